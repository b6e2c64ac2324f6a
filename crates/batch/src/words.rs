//! Splits a line of a batch file into words.
//!
//! Place in the flow: before `language`, which gives the words their meaning.
//!
//! Invariants: operators are words of their own, so they stand between spaces, except `(`, `)` and `,`. A word in double quotes
//! is a path with any characters but quotes, and never an operator, a name or a number.

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// An operator or a separator.
    Sign(&'static str),
    /// Text without quotes: a name, a path, a number or a keyword.
    Plain(String),
    /// Text that stood in quotes.
    Quoted(String),
}

/// Signs that must stand between spaces, because paths and numbers may contain them.
const SPACED: [&str; 6] = ["=", "@", "+", "-", "*", "->"];

/// Splits a line; a `#` at the beginning of a word starts a comment.
pub(crate) fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next().filter(|first| *first != '#') {
        let (word, after) = match first {
            '(' => (Word::Sign("("), &rest[1..]),
            ')' => (Word::Sign(")"), &rest[1..]),
            ',' => (Word::Sign(","), &rest[1..]),
            '"' => quoted(&rest[1..])?,
            _ => plain(rest),
        };
        words.push(word);
        rest = after.trim_start();
    }
    Ok(words)
}

/// The text up to the closing quote, and what follows it. A transposed path ends in `".T`.
fn quoted(rest: &str) -> Result<(Word, &str), String> {
    let missing = || "a quote is not closed; add a \" at the end of the path".to_owned();
    let (text, after) = rest.split_once('"').ok_or_else(missing)?;
    if text.is_empty() {
        return Err("\"\": is no path; name a file between the quotes".to_owned());
    }
    Ok((Word::Quoted(text.to_owned()), after))
}

/// The word up to a space, a quote or a separator.
fn plain(rest: &str) -> (Word, &str) {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | '"');
    let (text, after) = rest.split_at(rest.find(is_end).unwrap_or(rest.len()));
    let sign = SPACED.into_iter().find(|sign| *sign == text);
    (sign.map_or_else(|| Word::Plain(text.to_owned()), Word::Sign), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        let text = |word: Word| match word {
            Word::Sign(sign) => format!("<{sign}>"),
            Word::Plain(text) => text,
            Word::Quoted(text) => format!("'{text}'"),
        };
        words(line).unwrap().into_iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn signs_stand_between_spaces_and_separators_anywhere() {
        let cases = [
            ("y.npy = x.npy @ W", "y.npy <=> x.npy <@> W"),
            ("H -> a=b.npy", "H <->> a=b.npy"),
            ("t = topk(x @ W, 10)", "t <=> topk <(> x <@> W <,> 10 <)>"),
            ("C=A@B", "C=A@B"),
            ("  x = \"a b@c\".T\t# note", "x <=> 'a b@c' .T"),
            ("# only a note", ""),
            ("a#b = c", "a#b <=> c"),
        ];
        for (line, expected) in cases {
            assert_eq!(shown(line), expected, "{line}");
        }
    }

    #[test]
    fn quotes_that_are_not_closed_or_empty_are_refused() {
        assert!(words("a = \"b").unwrap_err().contains("not closed"));
        assert!(words("a = \"\"").unwrap_err().contains("no path"));
    }
}
