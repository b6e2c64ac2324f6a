//! NumPy's `.npy` files: formats 1.0, 2.0 and 3.0, both orders, and the header of a result.
//!
//! Place in the flow: `open` turns a file into a `Matrix`; `write_header` gives `output` the bytes before the
//! elements of C.
//!
//! Invariants: no input makes the parser panic; it accepts the headers that `numpy.load` accepts, except for
//! negative sizes, which NumPy accepts by accident; `write_header` returns byte for byte the header of `numpy.save`
//! (NumPy 1.24 and later; earlier versions differ in padding only).
//!
//! Deliberately absent: pickled objects, structures, and arrays of no or more than two dimensions. Bytes after
//! the last element are allowed, as they are by `numpy.load`.

use crate::element::{ByteOrder, FileElement};
use crate::error::printable;
use crate::file::{Contents, MatrixDescription, StorageOrder};
use crate::source::{FoundMatrix, may_be_multiplied};
use crate::{DType, Layout, Matrix, MatrixError, Shape};
use descr::{Descr, element};
use literal::Value;

mod descr;
mod literal;

/// How every file begins.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Elements start at a multiple of this in written files.
const ALIGN: usize = 64;

/// NumPy leaves room for the longest axis to grow to this many digits.
const GROWTH_DIGITS: usize = 21;

/// Most characters of a header, as in `numpy.load`: a longer one could only waste the reader's time.
const HEADER_CHARS_MAX: usize = 10_000;

/// The bytes before the elements of a row-major matrix.
pub(crate) fn write_header(shape: Shape, dtype: DType) -> Vec<u8> {
    write_header_of(&[shape.rows, shape.cols], dtype)
}

/// The same for an array of one or two dimensions.
pub(crate) fn write_header_of(dims: &[u64], dtype: DType) -> Vec<u8> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
    };
    let listed = match dims {
        [one] => format!("{one},"),
        _ => dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({listed}), }}");
    let growth = GROWTH_DIGITS - dims.first().map_or(0, |rows| rows.to_string().len());
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
    let found = FoundMatrix {
        owner: contents.bytes,
        start: header.start,
        shape: header.shape,
        is_vector: header.is_vector,
        layout: header.layout,
        element: header.element,
        order: header.order,
    };
    Matrix::from_found(name, found, contents.mapped)
}

/// Describes a file, whether it can be multiplied or not.
pub(crate) fn describe(file: &[u8]) -> Result<MatrixDescription, String> {
    let raw = raw(file)?;
    let dtype = match &raw.descr {
        Descr::Name(text) => printable(text),
        Descr::Structure => "structure".to_owned(),
    };
    let held_bytes = file.len() as u64 - raw.start as u64;
    let element = element(&raw.descr).map(|(element, _)| element);
    let elements = raw.dims.iter().try_fold(1u64, |product, side| product.checked_mul(*side));
    let size_bytes = element.as_ref().ok().map(|element| element.size_bytes() as u64);
    let bytes = elements.zip(size_bytes).and_then(|(elements, size)| elements.checked_mul(size));
    let product = element.and_then(|element| {
        let (shape, _) = sides(&raw.dims)?;
        may_be_multiplied(shape, element, held_bytes)?;
        Ok(element.dtype())
    });
    Ok(MatrixDescription {
        format: "npy",
        tensor: None,
        order: if raw.fortran { StorageOrder::Columns } else { StorageOrder::Rows },
        bytes: bytes.unwrap_or(held_bytes),
        dims: raw.dims,
        dtype,
        product,
    })
}

/// The header of a matrix.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    start: usize,
    shape: Shape,
    is_vector: bool,
    layout: Layout,
    element: FileElement,
    order: ByteOrder,
}

fn parse(file: &[u8]) -> Result<Header, String> {
    let raw = raw(file)?;
    let (element, order) = element(&raw.descr)?;
    let (shape, is_vector) = sides(&raw.dims)?;
    let layout = if raw.fortran && !is_vector { Layout::ColMajor } else { Layout::RowMajor };
    Ok(Header { start: raw.start, shape, is_vector, layout, element, order })
}

/// The header of an array.
struct Raw {
    start: usize,
    descr: Descr,
    fortran: bool,
    dims: Vec<u64>,
}

fn raw(file: &[u8]) -> Result<Raw, String> {
    let (text, start, version) = header_text(file)?;
    let damaged = |why: &str, text: &str| {
        format!(
            "its header is damaged ({why}): '{}'; save the array again with np.save",
            printable(text.trim_end())
        )
    };
    let lossy = || String::from_utf8_lossy(text);
    let text = match version {
        // Latin-1: a byte is a character.
        1 | 2 => text.iter().map(|b| char::from(*b)).collect(),
        _ => String::from_utf8(text.to_vec()).map_err(|_| damaged("it is not UTF-8", &lossy()))?,
    };
    let chars = text.chars().count();
    if chars > HEADER_CHARS_MAX {
        return Err(format!(
            "its header has {chars} characters; as in numpy.load, {HEADER_CHARS_MAX} are read; save the array again with np.save"
        ));
    }
    let fields = fields(&text, version < 3).map_err(|why| damaged(why, &text))?;
    Ok(Raw { start, descr: fields.descr, fortran: fields.fortran, dims: fields.shape })
}

/// The text of the header, where the elements start, and the format's major version.
fn header_text(file: &[u8]) -> Result<(&[u8], usize, u8), String> {
    let short = || "is cut short within its header; copy or write it again".to_owned();
    let Some(rest) = file.strip_prefix(MAGIC) else {
        return Err(
            "is not a .npy file (it does not begin with \\x93NUMPY); write it with np.save".to_owned()
        );
    };
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (len, rest) = match version {
        [1, 0] => {
            let (len, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
            (usize::from(u16::from_le_bytes(*len)), rest)
        }
        [2 | 3, 0] => {
            let (len, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
            (usize::try_from(u32::from_le_bytes(*len)).map_err(|_| short())?, rest)
        }
        [major, minor] => {
            return Err(format!(
                "is of .npy format {major}.{minor}; formats 1.0, 2.0 and 3.0 are read; save the array again with np.save"
            ));
        }
    };
    let text = rest.get(..len).ok_or_else(short)?;
    Ok((text, file.len() - rest.len() + len, version[0]))
}

/// Rows and columns, and whether it is a vector: n elements of one dimension are 1 x n.
fn sides(dims: &[u64]) -> Result<(Shape, bool), String> {
    let listed = dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match *dims {
        [rows, cols] => Ok((Shape::new(rows, cols), false)),
        [n] => Ok((Shape::new(1, n), true)),
        [] => Err("is 0-dimensional (shape ()), a single number; save it as a matrix: np.save(path, a.reshape(1, 1)), or give a factor with --alpha".to_owned()),
        _ => Err(format!(
            "is {}-dimensional (shape ({})); save one 2-dimensional slice, np.save(path, a[0]), or reshape it: a.reshape(-1, a.shape[-1])",
            dims.len(),
            printable(&listed)
        )),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Fields {
    descr: Descr,
    fortran: bool,
    shape: Vec<u64>,
}

/// Parses the dictionary `{'descr': …, 'fortran_order': …, 'shape': …}`, or says what is wrong with it. `longs`:
/// numbers may have the suffix of Python 2.
fn fields(text: &str, longs: bool) -> Result<Fields, &'static str> {
    let Some(Value::Dict(pairs)) = literal::evaluate(text, longs) else {
        return Err("it is not a Python dictionary");
    };
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    for (key, value) in pairs {
        match key {
            Value::Text(key) if key == "descr" => descr = Some(value),
            Value::Text(key) if key == "fortran_order" => fortran = Some(value),
            Value::Text(key) if key == "shape" => shape = Some(value),
            _ => return Err("it has other keys than descr, fortran_order and shape"),
        }
    }
    let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
        return Err("descr, fortran_order or shape is missing");
    };
    let descr = match descr {
        Value::Text(name) => Descr::Name(name),
        Value::List | Value::Tuple(_) => Descr::Structure,
        _ => return Err("descr is not the name of a type"),
    };
    let Value::Bool(fortran) = fortran else { return Err("fortran_order is neither True nor False") };
    let Value::Tuple(sides) = shape else { return Err("shape is not a tuple") };
    let side = |value: &Value| match value {
        Value::Int(Some(n)) => u64::try_from(*n).ok(),
        _ => None,
    };
    let shape = sides.iter().map(side).collect::<Option<Vec<u64>>>();
    Ok(Fields { descr, fortran, shape: shape.ok_or("shape has a side that is no 64-bit size")? })
}

#[cfg(test)]
mod tests;
