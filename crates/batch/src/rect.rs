//! A rectangle of a kept matrix that a line writes: `H[0:256, :] -> H.npy`.
//!
//! Place in the flow: `language.rs` parses a line with it; `tasks.rs` resolves it when the shape is known.
//!
//! Invariants: ranges are half-open, as in Python, without negative numbers and steps. A rectangle has elements, and lies in the
//! matrix.

use super::language::is_name;
use super::words::Word;
use bramble_matrix::{Rect, Shape, Span};
use std::fmt;
use std::path::PathBuf;

/// Rows and columns, each from a number to another one; `None`: from the first, or to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenRect {
    rows: Range,
    cols: Range,
}

type Range = (Option<u64>, Option<u64>);

const FORM: &str = "write NAME[FROM:TO, FROM:TO] -> FILE.npy, rows first, as in H[0:256, :] -> H.npy";

impl WrittenRect {
    /// Name, rectangle and path of a line that writes a rectangle; `None` for another line.
    pub(crate) fn of_line(words: &[Word]) -> Option<Result<(String, Self, &Word), String>> {
        let [Word::Plain(start), Word::Sign(","), Word::Plain(end), Word::Sign("->"), path] = words else {
            return None;
        };
        let (name, rows) = start.split_once('[').filter(|(name, _)| is_name(name))?;
        let cols = end.strip_suffix(']')?;
        let both = range(rows).zip(range(cols));
        let wrong = || format!("{name}[{rows}, {cols}]: is no rectangle; {FORM}");
        Some(both.ok_or_else(wrong).map(|(rows, cols)| (name.to_owned(), Self { rows, cols }, path)))
    }

    /// The rectangle of a matrix of that shape.
    pub(crate) fn of(self, name: &str, shape: Shape) -> Result<Rect, String> {
        let span = |(from, to): Range, len: u64| {
            let (from, to) = (from.unwrap_or(0), to.unwrap_or(len));
            (from < to && to <= len).then(|| Span::new(from, to))
        };
        let spans = span(self.rows, shape.rows).zip(span(self.cols, shape.cols));
        spans.map(|(rows, cols)| Rect::new(rows, cols)).ok_or_else(|| {
            format!("{name}{self}: has no elements, or is not all in {name}, which is {shape}")
        })
    }
}

/// `FROM:TO`, where each of the numbers may be missing.
fn range(text: &str) -> Option<Range> {
    let (from, to) = text.trim().split_once(':')?;
    let number = |text: &str| match text {
        "" => Some(None),
        digits => digits.parse().ok().map(Some),
    };
    number(from).zip(number(to))
}

/// The path to which a matrix is written.
pub(crate) fn path_of(name: &str, path: &Word) -> Result<PathBuf, String> {
    match path {
        Word::Plain(path) | Word::Quoted(path) => Ok(PathBuf::from(path)),
        Word::Sign(sign) => Err(format!("{name} -> {sign}: is no path; name a .npy file")),
    }
}

impl fmt::Display for WrittenRect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |(from, to): Range| {
            let number = |number: Option<u64>| number.map_or_else(String::new, |number| number.to_string());
            format!("{}:{}", number(from), number(to))
        };
        write!(f, "[{}, {}]", text(self.rows), text(self.cols))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::words;

    fn parsed(line: &str) -> Option<Result<(String, WrittenRect), String>> {
        let words = words(line).unwrap();
        WrittenRect::of_line(&words).map(|found| found.map(|(name, rect, _)| (name, rect)))
    }

    #[test]
    fn ranges_are_those_of_python() {
        let shape = Shape::new(10, 20);
        let cases = [
            ("H[0:3, 5:20] -> a.npy", Rect::new(Span::new(0, 3), Span::new(5, 20))),
            ("H[:,19:] -> a.npy", Rect::new(Span::new(0, 10), Span::new(19, 20))),
            ("H[9:10, :] -> a.npy", Rect::new(Span::new(9, 10), Span::new(0, 20))),
        ];
        for (line, rect) in cases {
            let (name, written) = parsed(line).unwrap().unwrap();
            assert_eq!((name.as_str(), written.of("H", shape)), ("H", Ok(rect)), "{line}");
        }
    }

    #[test]
    fn other_rectangles_are_refused() {
        let shape = Shape::new(10, 20);
        for line in ["H[0:11, :] -> a.npy", "H[3:3, :] -> a.npy", "H[:, 7:2] -> a.npy"] {
            let (name, written) = parsed(line).unwrap().unwrap();
            let why = written.of(&name, shape).unwrap_err();
            assert!(why.starts_with("H[") && why.contains("not all in H, which is 10x20"), "{line}: {why}");
        }
        for line in ["H[1, 2] -> a.npy", "H[-1:, :] -> a.npy", "H[0:4:2, :] -> a.npy"] {
            assert!(parsed(line).unwrap().unwrap_err().contains("is no rectangle"), "{line}");
        }
        assert_eq!(parsed("H = topk(W, 3)"), None);
        assert_eq!(parsed("a.npy[0:1, :] -> b.npy"), None);
    }
}
