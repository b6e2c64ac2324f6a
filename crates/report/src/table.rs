//! Text tables: each column is as wide as its widest cell; the first is left-aligned, the others right-aligned.

/// The lines of a table; every row has as many cells as the head.
pub fn lines(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let wide = |text: &str| text.chars().count();
    let width = |at: usize| {
        let texts = rows.iter().filter_map(|row| row.get(at)).map(|text| wide(text));
        texts.chain([wide(head[at])]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |texts: &mut dyn Iterator<Item = &str>| {
        let cells = texts.zip(&widths).enumerate().map(|(at, (text, width))| match at {
            0 => format!("{text:<width$}"),
            _ => format!("{text:>width$}"),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned()
    };
    let mut out = vec![line(&mut head.iter().copied())];
    out.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_text() {
        let rows = [vec!["pi1".to_owned(), "5.0".to_owned()], vec!["longer".to_owned(), "12.25".to_owned()]];
        assert_eq!(lines(&["name", "s"], &rows), ["  name        s", "  pi1       5.0", "  longer  12.25"]);
    }
}
