//! What is in a matrix file, whether it can be multiplied or not: `bramble matrix`.
//!
//! Place in the flow: beside `Matrix::open`, with the same names and the same readers; only headers are read.

use super::{Format, KNOWN, Operand, format_of, map, mtx, npy, packed, safetensors};
use crate::{DType, MatrixError, generate};
use std::ffi::OsStr;

/// What one name on the command line, or one tensor of a file, stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// `npy`, `mtx`, `safetensors`, `random` or `identity`.
    pub format: &'static str,
    /// Its name in a file of several.
    pub tensor: Option<String>,
    /// Elements along each dimension.
    pub dims: Vec<u64>,
    /// The type of an element, as the file has it.
    pub dtype: String,
    /// The type that it is multiplied in, or why it is not multiplied.
    pub product: Result<DType, String>,
    /// How its elements follow each other.
    pub order: Order,
    /// Bytes of its elements: in the file, or where they are made from it or from nothing, in memory.
    pub bytes: u64,
}

/// How the elements of a matrix follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Row by row (C).
    Rows,
    /// Column by column (Fortran).
    Columns,
    /// One by one, with their places: the others are 0.
    Sparse,
    /// They are computed.
    Generated,
}

impl Order {
    /// In one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::Sparse => "sparse",
            Self::Generated => "generated",
        }
    }
}

/// What the text that `Matrix::open` would take stands for; of a `.safetensors` file without a tensor, all tensors in the
/// order of their names.
pub fn describe(spec: &OsStr) -> Result<Vec<Described>, MatrixError> {
    if let Some(parsed) = spec.to_str().and_then(generate::parse) {
        let name = spec.to_string_lossy();
        let (_, shape, dtype) = parsed?;
        let bytes = shape.bytes(dtype);
        let Some(bytes) = bytes else {
            return Err(MatrixError::TooLarge { name: name.into_owned(), shape, dtype });
        };
        shape.check_sides(&name)?;
        let format = if name.starts_with("random") { "random" } else { "identity" };
        let (dims, order) = (vec![shape.rows, shape.cols], Order::Generated);
        let dtype_name = dtype.name().to_owned();
        let product = Ok(dtype);
        return Ok(vec![Described { format, tensor: None, dims, dtype: dtype_name, product, order, bytes }]);
    }
    let operand = Operand::of(spec);
    let (map, _) = map::map_file(operand.path)?;
    let bytes: &[u8] = &map;
    let name = operand.name();
    if let Some(way_out) = packed(bytes) {
        return Err(MatrixError::format(name, way_out));
    }
    let path = operand.path.display().to_string();
    let format = format_of(operand.path, bytes);
    let tensor = operand.tensor_text();
    let described = match format {
        Some(Format::Safetensors) => safetensors::describe(&path, tensor.as_deref(), bytes),
        Some(other) if tensor.is_some() => Err(other.has_no_tensors(&path)),
        Some(Format::Npy) => npy::describe(bytes).map(|one| vec![one]),
        Some(Format::Mtx) => {
            return mtx::describe(&name, bytes).map(|one| vec![one]);
        }
        None => Err(KNOWN.to_owned()),
    };
    described.map_err(|what| MatrixError::format(name, what))
}
