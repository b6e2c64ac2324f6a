//! NumPy's `.npy` files: formats 1.0, 2.0 and 3.0, both orders, and the header of a result.
//!
//! Place in the flow: `open` turns a file into a `Matrix`; `write_header` gives `output` the bytes
//! that come before the elements of C.
//!
//! Invariants: no bytes whatever make the parser panic; `write_header` gives byte for byte what
//! `numpy.save` writes (NumPy 1.24 and later; earlier ones differ in padding only).
//!
//! Deliberately absent: pickled objects, structures, and arrays that are not two-dimensional. Bytes after
//! the last element are allowed, as they are by `numpy.load`.

use crate::element::{ByteOrder, FileElement};
use crate::error::printable;
use crate::file::Contents;
use crate::source::Found;
use crate::{DType, Layout, Matrix, MatrixError, Shape};

/// How every file begins.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Where elements start in the files that are written: a multiple of this.
const ALIGN: usize = 64;

/// NumPy leaves room for the longest axis to grow to this many digits.
const GROWTH_DIGITS: usize = 21;

/// The bytes before the elements of a row-major matrix.
pub(crate) fn write_header(shape: Shape, dtype: DType) -> Vec<u8> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
    };
    let Shape { rows, cols } = shape;
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let growth = GROWTH_DIGITS - rows.to_string().len();
    text.extend(std::iter::repeat_n(' ', growth));
    let before = MAGIC.len() + 4;
    let pad = ALIGN - (before + text.len() + 1) % ALIGN;
    text.extend(std::iter::repeat_n(' ', pad));
    text.push('\n');
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    // At most 192 bytes: two numbers of 20 digits and the words around them.
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.as_bytes());
    header
}

/// The matrix in a file.
pub(crate) fn open(name: &str, contents: Contents) -> Result<Matrix, MatrixError> {
    let header = parse((*contents.bytes).as_ref()).map_err(|what| MatrixError::format(name, what))?;
    let found = Found {
        owner: contents.bytes,
        start: header.start,
        shape: header.shape,
        layout: header.layout,
        element: header.element,
        order: header.order,
    };
    Matrix::from_found(name, found, contents.mapped)
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    start: usize,
    shape: Shape,
    layout: Layout,
    element: FileElement,
    order: ByteOrder,
}

fn parse(file: &[u8]) -> Result<Header, String> {
    let (text, start) = header_text(file)?;
    let fields = Parser { text, at: 0 }.fields().ok_or_else(|| {
        format!(
            "its header is damaged: '{}'; save the array again with np.save",
            printable(&String::from_utf8_lossy(text))
        )
    })?;
    let (element, order) = element(&fields.descr)?;
    Ok(Header {
        start,
        shape: two_dimensional(&fields.shape)?,
        layout: if fields.fortran { Layout::ColMajor } else { Layout::RowMajor },
        element,
        order,
    })
}

/// The text of the header and where the elements start.
fn header_text(file: &[u8]) -> Result<(&[u8], usize), String> {
    let short = || "is cut short within its header; copy or write it again".to_owned();
    let Some(rest) = file.strip_prefix(MAGIC) else {
        return Err(
            "is not a .npy file (it does not begin with \\x93NUMPY); write it with np.save".to_owned()
        );
    };
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (len, rest) = match version {
        [1, _] => {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        [2 | 3, _] => {
            let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            (usize::try_from(u32::from_le_bytes(*len)).map_err(|_| short())?, rest)
        }
        [major, minor] => {
            return Err(format!("is of .npy format {major}.{minor}; formats 1.0, 2.0 and 3.0 are read"));
        }
    };
    let text = rest.get(..len).ok_or_else(short)?;
    Ok((text, file.len() - rest.len() + len))
}

fn two_dimensional(shape: &[u64]) -> Result<Shape, String> {
    let listed = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match *shape {
        [rows, cols] => Ok(Shape::new(rows, cols)),
        [] => Err("is 0-dimensional (shape ()); reshape it: a.reshape(1, 1)".to_owned()),
        [n] => {
            Err(format!("is 1-dimensional (shape ({n},)); reshape it: a.reshape(-1, 1) or a.reshape(1, -1)"))
        }
        _ => Err(format!(
            "is {}-dimensional (shape ({})); save one 2-dimensional slice, np.save(path, a[0]), or reshape it: a.reshape(-1, a.shape[-1])",
            shape.len(),
            printable(&listed)
        )),
    }
}

/// The element type of a `descr`, such as `<f8`.
fn element(descr: &Descr) -> Result<(FileElement, ByteOrder), String> {
    use FileElement as E;
    let text = match descr {
        Descr::Name(text) => text.as_str(),
        Descr::Structure => {
            return Err("holds structures (a dtype with fields); save one field: np.save(path, a['field'])"
                .to_owned());
        }
    };
    let (order, kind) = match text.as_bytes().first() {
        Some(b'>') => (ByteOrder::Big, &text[1..]),
        Some(b'<' | b'=' | b'|') => (ByteOrder::Little, &text[1..]),
        _ => (ByteOrder::Little, text),
    };
    let element = match kind {
        "f2" => E::F16,
        "f4" => E::F32,
        "f8" => E::F64,
        "i1" => E::I8,
        "i2" => E::I16,
        "i4" => E::I32,
        "i8" => E::I64,
        "u1" => E::U8,
        "u2" => E::U16,
        "u4" => E::U32,
        "b1" => E::Bool,
        "u8" => {
            return Err(format!(
                "has dtype '{text}' (uint64), which does not fit i64; save it as np.save(path, a.astype('int64')) or a.astype('float64')"
            ));
        }
        _ if kind.starts_with('c') => {
            return Err(format!(
                "has dtype '{}' (complex); save the parts: np.save(path, a.real) and np.save(path, a.imag)",
                printable(text)
            ));
        }
        _ => {
            let meaning = match kind.as_bytes().first() {
                Some(b'O') => " (Python objects)",
                Some(b'U' | b'S') => " (text)",
                Some(b'm' | b'M') => " (times)",
                Some(b'V') => " (raw bytes)",
                Some(b'f') => " (a longer float)",
                _ => "",
            };
            return Err(format!(
                "has dtype '{}'{meaning}, which cannot be multiplied; save it as np.save(path, a.astype('float64'))",
                printable(text)
            ));
        }
    };
    Ok((element, order))
}

/// The value of `descr`.
#[derive(Debug, PartialEq, Eq)]
enum Descr {
    Name(String),
    Structure,
}

#[derive(Debug, PartialEq, Eq)]
struct Fields {
    descr: Descr,
    fortran: bool,
    shape: Vec<u64>,
}

/// Reads the Python literal `{'descr': …, 'fortran_order': …, 'shape': …}`. Every step gives `None` where the
/// text is not what it must be, and never looks past the end.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn fields(mut self) -> Option<Fields> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.token(b'{')?;
        while self.peek()? != b'}' {
            let key = self.string()?;
            self.token(b':')?;
            match key.as_str() {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran = Some(self.boolean()?),
                "shape" => shape = Some(self.tuple()?),
                _ => return None,
            }
            if self.peek()? != b'}' {
                self.token(b',')?;
            }
        }
        self.token(b'}')?;
        // Only blanks may follow.
        self.peek().is_none().then_some(())?;
        Some(Fields { descr: descr?, fortran: fortran?, shape: shape? })
    }

    /// The next byte that is not blank.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn token(&mut self, want: u8) -> Option<()> {
        (self.peek()? == want).then(|| self.at += 1)
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.peek().filter(|b| matches!(b, b'\'' | b'"'))?;
        let rest = self.text.get(self.at + 1..)?;
        let len = rest.iter().position(|&b| b == quote)?;
        self.at += len + 2;
        let text = std::str::from_utf8(&rest[..len]).ok()?;
        // Names that are read need no escapes.
        (!text.contains('\\')).then(|| text.to_owned())
    }

    fn descr(&mut self) -> Option<Descr> {
        match self.peek()? {
            b'[' | b'(' | b'{' => self.skip_nested().map(|()| Descr::Structure),
            _ => self.string().map(Descr::Name),
        }
    }

    /// Skips a bracketed value with everything inside it.
    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0u32;
        loop {
            match self.peek()? {
                b'[' | b'(' | b'{' => depth += 1,
                b']' | b')' | b'}' => depth = depth.checked_sub(1)?,
                b'\'' | b'"' => {
                    self.string()?;
                    continue;
                }
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    fn boolean(&mut self) -> Option<bool> {
        self.peek()?;
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Some(value);
            }
        }
        None
    }

    fn tuple(&mut self) -> Option<Vec<u64>> {
        let mut numbers = Vec::new();
        self.token(b'(')?;
        while self.peek()? != b')' {
            numbers.push(self.number()?);
            if self.peek()? != b')' {
                self.token(b',')?;
            }
        }
        self.token(b')')?;
        Some(numbers)
    }

    fn number(&mut self) -> Option<u64> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        self.at += len;
        // Python 2 wrote long integers as 3L.
        if rest.get(len) == Some(&b'L') {
            self.at += 1;
        }
        std::str::from_utf8(&rest[..len]).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests;
