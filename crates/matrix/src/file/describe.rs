//! Describes a matrix file, whether it can be multiplied or not: `bramble matrix`.
//!
//! Place in the flow: beside `Matrix::open`, with the same names and the same readers; it reads only headers.

use super::{Format, KNOWN, Operand, format_of, map, mtx, npy, packed, safetensors};
use crate::error::check_sides;
use crate::{DType, MatrixError, generate};
use std::ffi::OsStr;

/// The description of a matrix that is named on the command line, or of one tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixDescription {
    /// `npy`, `mtx`, `safetensors`, `random` or `identity`.
    pub format: &'static str,
    /// The tensor's name, in a file with several tensors.
    pub tensor: Option<String>,
    /// Elements along each dimension.
    pub dims: Vec<u64>,
    /// The element type, as the file states it.
    pub dtype: String,
    /// The element type in a product, or the reason why it cannot be multiplied.
    pub product: Result<DType, String>,
    /// The storage order of its elements.
    pub order: StorageOrder,
    /// Bytes of its elements: in the file, or in memory if they are converted or generated.
    pub bytes: u64,
}

/// The storage order of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageOrder {
    /// Row by row (C).
    Rows,
    /// Column by column (Fortran).
    Columns,
    /// Each with its position; all others are 0.
    Sparse,
    /// Computed.
    Generated,
}

impl StorageOrder {
    /// The order in one word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Columns => "columns",
            Self::Sparse => "sparse",
            Self::Generated => "generated",
        }
    }
}

/// Describes the matrix that a text as for `Matrix::open` names; for a `.safetensors` file without a tensor, all
/// tensors in the order of their names.
pub fn describe(spec: &OsStr) -> Result<Vec<MatrixDescription>, MatrixError> {
    if let Some(parsed) = spec.to_str().and_then(generate::parse) {
        let name = spec.to_string_lossy();
        let (_, shape, dtype) = parsed?;
        let bytes = shape.bytes(dtype);
        let Some(bytes) = bytes else {
            return Err(MatrixError::TooLarge { name: name.into_owned(), shape, dtype });
        };
        check_sides(shape, &name)?;
        let format = if name.starts_with("random") { "random" } else { "identity" };
        let (dims, order) = (vec![shape.rows, shape.cols], StorageOrder::Generated);
        let dtype_name = dtype.name().to_owned();
        let product = Ok(dtype);
        return Ok(vec![MatrixDescription {
            format,
            tensor: None,
            dims,
            dtype: dtype_name,
            product,
            order,
            bytes,
        }]);
    }
    let operand = Operand::of(spec);
    let (map, _) = map::map_file(operand.path)?;
    contents(operand, &map)
}

/// The same of the bytes of a file that has no name to open it by; `name` is what messages call it.
pub fn describe_bytes(name: &str, bytes: &[u8]) -> Result<Vec<MatrixDescription>, MatrixError> {
    contents(Operand::by_ending(OsStr::new(name)), bytes)
}

/// What a file holds.
fn contents(operand: Operand<'_>, bytes: &[u8]) -> Result<Vec<MatrixDescription>, MatrixError> {
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
