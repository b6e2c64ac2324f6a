//! Corpora as text: a line of hexadecimal digits for each input, `#` before a comment.

use std::fmt::Write;

/// The inputs of a text. An error names the line.
pub fn parse(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut inputs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            inputs.push(bytes(line).ok_or_else(|| format!("line {}: no hexadecimal bytes", index + 1))?);
        }
    }
    Ok(inputs)
}

fn bytes(line: &str) -> Option<Vec<u8>> {
    let (pairs, []) = line.as_bytes().as_chunks::<2>() else { return None };
    let digit = |b: u8| char::from(b).to_digit(16);
    pairs.iter().map(|[high, low]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()).collect()
}

/// The text of those inputs.
pub fn format(name: &str, inputs: &[Vec<u8>]) -> String {
    let mut text = format!("# Inputs of the target {name}; see fuzz/README.md.\n");
    for input in inputs {
        for byte in input {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip_and_slips_are_named() {
        let inputs = vec![vec![0, 255, 16], vec![1]];
        assert_eq!(parse(&format("x", &inputs)).unwrap(), inputs);
        assert_eq!(parse("# a\n\n0a # b\n").unwrap(), [[10]]);
        assert!(parse("0a\n0\n").unwrap_err().contains("line 2"));
        assert!(parse("zz").is_err());
    }
}
