//! Matrix Market files (`.mtx`): `array` and `coordinate`, made dense.
//!
//! Place in the flow: `open` parses the text once into a buffer of f64 (real, double, pattern) or i64
//! (integer). Array files become column-major, as they are written; coordinate files row-major.
//!
//! Invariants: the sizes in the file are checked against its length and against the machine's free memory before
//! memory is allocated; every error names the line; duplicate entries are summed, as in SciPy; no input makes the
//! reader panic.
//!
//! Deliberately absent: complex and hermitian matrices (refused by name), and sparse products: the matrix is made
//! dense, and one that would not fit in memory is refused with the numbers.

use crate::error::check_sides;
use crate::file::{Contents, MatrixDescription, StorageOrder};
use crate::{Buffer, DType, Element, Layout, Matrix, MatrixError, Shape};
use std::str::FromStr;
use std::sync::Arc;

/// How every file begins, in any case of letters.
pub(crate) const BANNER: &[u8] = b"%%MatrixMarket";

/// The part of the first line that is read: it has five words.
const LONGEST_BANNER: usize = 200;

/// The fewest bytes of an entry in an array file ("1", newline) and in a coordinate file ("1 1", newline).
const ARRAY_ENTRY: u64 = 2;
const COORDINATE_ENTRY: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Array,
    Coordinate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Real,
    Integer,
    Pattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symmetry {
    General,
    Symmetric,
    Skew,
}

/// The contents of the first line and the size line.
#[derive(Debug)]
struct Head {
    form: Form,
    field: Field,
    symmetry: Symmetry,
    shape: Shape,
    /// Number of entries in the file.
    entries: u64,
    /// Format, field and symmetry, as the file states them.
    words: String,
}

impl Head {
    fn dtype(&self) -> DType {
        if self.field == Field::Integer { DType::I64 } else { DType::F64 }
    }
}

/// An error, with its line.
struct Wrong {
    line: u64,
    what: String,
}

/// The matrix in a file.
pub(crate) fn open(name: &str, contents: Contents) -> Result<Matrix, MatrixError> {
    parse(name, (*contents.bytes).as_ref(), contents.dense_bytes_max.or_else(available_memory))
}

/// Describes a file without reading its entries.
pub(crate) fn describe(name: &str, text: &[u8]) -> Result<MatrixDescription, MatrixError> {
    let mut lines = TextLines { rest: text, line: 0 };
    let head =
        read_head(&mut lines).map_err(|w| MatrixError::format(format!("{name}:{}", w.line), w.what))?;
    let dtype = head.dtype();
    let bytes = head.shape.bytes(dtype);
    let too_large = || MatrixError::TooLarge { name: name.to_owned(), shape: head.shape, dtype };
    Ok(MatrixDescription {
        format: "mtx",
        tensor: None,
        dims: vec![head.shape.rows, head.shape.cols],
        dtype: head.words.clone(),
        product: check_sides(head.shape, name).map(|()| dtype).map_err(|e| e.to_string()),
        order: if head.form == Form::Array { StorageOrder::Columns } else { StorageOrder::Sparse },
        bytes: bytes.ok_or_else(too_large)?,
    })
}

fn parse(name: &str, text: &[u8], available: Option<u64>) -> Result<Matrix, MatrixError> {
    let wrong = |w: Wrong| MatrixError::format(format!("{name}:{}", w.line), w.what);
    let mut lines = TextLines { rest: text, line: 0 };
    let head = read_head(&mut lines).map_err(wrong)?;
    let dtype = head.dtype();
    let Some(bytes) = head.shape.bytes(dtype) else {
        return Err(MatrixError::TooLarge { name: name.to_owned(), shape: head.shape, dtype });
    };
    check_sides(head.shape, name)?;
    check_entries(&head, &lines).map_err(wrong)?;
    if let Some(available) = available.filter(|&available| bytes > available) {
        let what = format!(
            "{} of {dtype} needs {bytes} bytes when made dense, but there are only {available} available; use a smaller matrix or a machine with more memory",
            head.shape
        );
        return Err(MatrixError::format(name, what));
    }
    let len = usize::try_from(bytes).map_err(|_| MatrixError::OutOfMemory { bytes })?;
    let mut dense = Buffer::zeroed(len)?;
    match dtype {
        DType::I64 => read_entries::<i64>(&head, &mut lines, dense.elements_mut()),
        _ => read_entries::<f64>(&head, &mut lines, dense.elements_mut()),
    }
    .map_err(wrong)?;
    let layout = match head.form {
        Form::Array => Layout::ColMajor,
        Form::Coordinate => Layout::RowMajor,
    };
    Matrix::from_shared(name, Arc::new(dense), 0, head.shape, dtype, layout)
}

/// Bytes that can be allocated without swapping, if the system reports them.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The lines that are neither blank nor comments, with their numbers.
struct TextLines<'a> {
    rest: &'a [u8],
    /// Number of the last line returned, from 1.
    line: u64,
}

impl<'a> TextLines<'a> {
    /// The next line of any kind.
    fn raw(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        self.line += 1;
        let len = self.rest.iter().position(|&b| b == b'\n').unwrap_or(self.rest.len());
        let line = &self.rest[..len];
        self.rest = self.rest.get(len + 1..).unwrap_or_default();
        Some(line)
    }

    /// The words of the next line that is neither blank nor a comment.
    fn next(&mut self) -> Option<Words<'a>> {
        loop {
            let line = self.raw()?.trim_ascii();
            if !line.is_empty() && line[0] != b'%' {
                return Some(Words { rest: line });
            }
        }
    }

    fn wrong(&self, what: impl Into<String>) -> Wrong {
        Wrong { line: self.line, what: what.into() }
    }
}

/// The words of a line. Invariant: `rest` does not begin with a blank.
struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let len = self.rest.iter().position(u8::is_ascii_whitespace).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest.trim_ascii_start();
        Some(word)
    }

    /// Parses the next word as a number; `meaning` names it in errors.
    fn number<N: Number>(&mut self, lines: &TextLines<'_>, meaning: &str) -> Result<N, Wrong> {
        let word = self.next().ok_or_else(|| lines.wrong(format!("{meaning} is missing")))?;
        let text = std::str::from_utf8(word).ok();
        text.and_then(N::of_file).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&word[..word.len().min(40)]).into_owned();
            lines.wrong(format!("'{}' is not {meaning}", shown.escape_debug()))
        })
    }

    fn end(&self, lines: &TextLines<'_>, what: &str) -> Result<(), Wrong> {
        if self.rest.is_empty() { Ok(()) } else { Err(lines.wrong(format!("has more than {what}"))) }
    }
}

/// A number in a file.
trait Number: FromStr {
    fn of_file(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Number for u64 {}
impl Number for i64 {}

impl Number for f64 {
    fn of_file(text: &str) -> Option<Self> {
        // Fortran writes the exponent of a double as D: 5.0D+00.
        let fortran = |text: &str| {
            let (digits, exponent) = text.split_once(['d', 'D'])?;
            let is_number = digits.ends_with(|c: char| c.is_ascii_digit() || c == '.');
            if is_number { format!("{digits}e{exponent}").parse().ok() } else { None }
        };
        text.parse().ok().or_else(|| fortran(text))
    }
}

fn read_head(lines: &mut TextLines<'_>) -> Result<Head, Wrong> {
    let banner = lines.raw().unwrap_or_default();
    let banner = banner[..banner.len().min(LONGEST_BANNER)].to_ascii_lowercase();
    let lossy = String::from_utf8_lossy(&banner);
    let said = lossy.split_ascii_whitespace().skip(2).take(3).collect::<Vec<_>>().join(" ");
    let mut words = lossy.split_ascii_whitespace();
    if words.next() != Some("%%matrixmarket") || words.next() != Some("matrix") {
        return Err(lines.wrong("is not '%%MatrixMarket matrix …'; write the file with scipy.io.mmwrite"));
    }
    let mut word = || words.next().unwrap_or_default();
    let form = match word() {
        "array" => Form::Array,
        "coordinate" => Form::Coordinate,
        other => {
            return Err(lines.wrong(format!("'{}' is neither array nor coordinate", other.escape_debug())));
        }
    };
    let field = match word() {
        "real" | "double" => Field::Real,
        // A value that does not fit i64 is refused where it occurs.
        "integer" | "unsigned-integer" => Field::Integer,
        "pattern" if form == Form::Coordinate => Field::Pattern,
        "complex" => {
            return Err(lines.wrong(
                "complex matrices are not multiplied; write the real and imaginary parts as two files",
            ));
        }
        other => {
            return Err(lines.wrong(format!(
                "'{}' is not real, double, integer, unsigned-integer or (coordinate only) pattern",
                other.escape_debug()
            )));
        }
    };
    let symmetry = match word() {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" if field != Field::Pattern => Symmetry::Skew,
        "skew-symmetric" => {
            return Err(lines.wrong(
                "a pattern has no signs, so it cannot be skew-symmetric; write it as symmetric or general, or with its numbers",
            ));
        }
        "hermitian" => return Err(lines.wrong("hermitian matrices are complex and not multiplied; write the real and imaginary parts as two files")),
        other => return Err(lines.wrong(format!("'{}' is not general, symmetric or skew-symmetric", other.escape_debug()))),
    };
    let Some(mut sizes) = lines.next() else { return Err(lines.wrong("the line with the sizes is missing")) };
    let shape =
        Shape::new(sizes.number(lines, "a number of rows")?, sizes.number(lines, "a number of columns")?);
    if symmetry != Symmetry::General && shape.rows != shape.cols {
        return Err(lines.wrong(format!("a {shape} matrix is not square, so it cannot be symmetric")));
    }
    let entries = match form {
        Form::Coordinate => sizes.number(lines, "a number of entries")?,
        Form::Array => {
            array_entries(shape, symmetry).ok_or_else(|| lines.wrong(format!("{shape} is too large")))?
        }
    };
    sizes.end(lines, "the sizes")?;
    Ok(Head { form, field, symmetry, shape, entries, words: said })
}

/// Number of entries of an array file: all, or the lower triangle with or without the diagonal.
fn array_entries(shape: Shape, symmetry: Symmetry) -> Option<u64> {
    let n = shape.rows;
    match symmetry {
        Symmetry::General => shape.elements(),
        Symmetry::Symmetric => n.checked_add(1)?.checked_mul(n).map(|twice| twice / 2),
        Symmetry::Skew => n.checked_mul(n.saturating_sub(1)).map(|twice| twice / 2),
    }
}

/// Refuses a number of entries for which the rest of the file is too short, before memory is allocated.
fn check_entries(head: &Head, lines: &TextLines<'_>) -> Result<(), Wrong> {
    let least = if head.form == Form::Array { ARRAY_ENTRY } else { COORDINATE_ENTRY };
    // The last line may lack its newline.
    let room = (lines.rest.len() as u64 + 1) / least;
    if head.entries > room {
        let what = format!(
            "{} entries are announced, but the rest of the file has room for {room} at most; it is cut short, copy or write it again",
            head.entries
        );
        return Err(lines.wrong(what));
    }
    Ok(())
}

/// A number of the file; an entry of a pattern is 1.
trait Entry: Element + Number {
    fn negated(self) -> Self;
    const MEANING: &'static str;
}

impl Entry for f64 {
    fn negated(self) -> Self {
        -self
    }
    const MEANING: &'static str = "a number";
}

impl Entry for i64 {
    fn negated(self) -> Self {
        self.wrapping_neg()
    }
    const MEANING: &'static str = "an integer of 64 bits (-2^63 to 2^63-1); write such numbers as real";
}

fn read_entries<T: Entry>(head: &Head, lines: &mut TextLines<'_>, dense: &mut [T]) -> Result<(), Wrong> {
    match head.form {
        Form::Array => read_array(head, lines, dense)?,
        Form::Coordinate => read_coordinates(head, lines, dense)?,
    }
    match lines.next() {
        None => Ok(()),
        Some(_) => Err(lines.wrong(format!("more than the {} entries announced", head.entries))),
    }
}

/// Reads column by column; only the lower triangle if the matrix is symmetric.
fn read_array<T: Entry>(head: &Head, lines: &mut TextLines<'_>, dense: &mut [T]) -> Result<(), Wrong> {
    // `dense` has rows × cols elements; if one of these is 0 there is nothing to read.
    let (rows, cols) =
        if dense.is_empty() { (0, 0) } else { (head.shape.rows as usize, head.shape.cols as usize) };
    for j in 0..cols {
        let first = match head.symmetry {
            Symmetry::General => 0,
            Symmetry::Symmetric => j,
            Symmetry::Skew => j + 1,
        };
        for i in first..rows {
            let Some(mut words) = lines.next() else {
                return Err(lines.wrong(format!("the file ends before entry ({}, {})", i + 1, j + 1)));
            };
            let value: T = words.number(lines, T::MEANING)?;
            words.end(lines, "one number")?;
            dense[j * rows + i] = value;
            match head.symmetry {
                Symmetry::General => {}
                Symmetry::Symmetric => dense[i * rows + j] = value,
                Symmetry::Skew => dense[i * rows + j] = value.negated(),
            }
        }
    }
    Ok(())
}

fn read_coordinates<T: Entry>(head: &Head, lines: &mut TextLines<'_>, dense: &mut [T]) -> Result<(), Wrong> {
    let cols = head.shape.cols as usize;
    for done in 0..head.entries {
        let Some(mut words) = lines.next() else {
            return Err(lines.wrong(format!("the file ends after {done} of {} entries", head.entries)));
        };
        let row: u64 = words.number(lines, "a row number")?;
        let col: u64 = words.number(lines, "a column number")?;
        let value = if head.field == Field::Pattern { T::ONE } else { words.number(lines, T::MEANING)? };
        words.end(lines, "one entry")?;
        let inside = (1..=head.shape.rows).contains(&row) && (1..=head.shape.cols).contains(&col);
        if !inside {
            return Err(
                lines.wrong(format!("entry ({row}, {col}) is outside {} (counted from 1)", head.shape))
            );
        }
        let (i, j) = ((row - 1) as usize, (col - 1) as usize);
        let mut add = |i: usize, j: usize, value: T| dense[i * cols + j] = dense[i * cols + j].plus(value);
        match head.symmetry {
            Symmetry::Skew if i == j && value != T::ZERO => {
                return Err(lines.wrong("the diagonal of a skew-symmetric matrix must be zero"));
            }
            Symmetry::Symmetric if i != j => add(j, i, value),
            Symmetry::Skew if i != j => add(j, i, value.negated()),
            _ => {}
        }
        add(i, j, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
