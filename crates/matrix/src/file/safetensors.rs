//! Tensors of `.safetensors` files, named as `FILE.safetensors:TENSOR`.
//!
//! Place in the flow: the header says where a tensor lies in the file; its elements are used there.
//!
//! Invariants: only the header is parsed; offsets are checked against the file before they are used; no
//! bytes whatever make the reader panic.
//!
//! Deliberately absent: 8-bit and smaller floats, complex and unsigned 64-bit elements (refused by name),
//! and tensors that are not two-dimensional.

use crate::element::{ByteOrder, FileElement};
use crate::error::printable;
use crate::file::Contents;
use crate::source::Found;
use crate::{Layout, Matrix, MatrixError, Shape, SharedBytes};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::path::Path;

/// Bytes of the number that says how long the header is.
const LENGTH_BYTES: usize = 8;

/// The longest header that is parsed; the format's own limit.
const MAX_HEADER: usize = 100_000_000;

/// How many tensor names a message lists.
const LISTED: usize = 10;

/// Whether a file without a telling name seems to be of this format, which has no magic number.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    header(bytes).is_some_and(|(text, _)| text.first() == Some(&b'{'))
}

/// The header's text and where the data start.
fn header(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (len, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let len = usize::try_from(u64::from_le_bytes(*len)).ok().filter(|&len| len <= MAX_HEADER)?;
    Some((rest.get(..len)?, LENGTH_BYTES + len))
}

/// The tensor of that name in a file.
pub(crate) fn open(path: &Path, tensor: Option<&str>, contents: Contents) -> Result<Matrix, MatrixError> {
    let file = path.display().to_string();
    let name = tensor.map_or_else(|| file.clone(), |tensor| format!("{file}:{tensor}"));
    let found = find(&file, tensor, contents.bytes).map_err(|what| MatrixError::format(&*name, what))?;
    Matrix::from_found(name, found, contents.mapped)
}

fn find(file: &str, tensor: Option<&str>, owner: SharedBytes) -> Result<Found, String> {
    let bytes = (*owner).as_ref();
    let (text, data) =
        header(bytes).ok_or("is not a .safetensors file (no header); copy or write it again")?;
    let metadata: Metadata = serde_json::from_slice(text).map_err(|e| {
        let why = printable(&e.to_string());
        format!("its .safetensors header is damaged ({why}); copy or write it again")
    })?;
    let Some(tensor) = tensor else {
        return Err(format!("names no tensor; write {file}:TENSOR. {}", present(&metadata)));
    };
    let info = metadata.info(tensor).ok_or_else(|| format!("has no such tensor. {}", present(&metadata)))?;
    let shape = two_dimensional(info)?;
    let element = element(info.dtype)?;
    let (from, to) = info.data_offsets;
    let held = (bytes.len() - data) as u64;
    if to as u64 > held {
        return Err(format!(
            "needs data bytes {from} to {to}, but the file holds {held}: it is cut short, copy or download it again"
        ));
    }
    let start = data + from;
    Ok(Found { owner, start, shape, layout: Layout::RowMajor, element, order: ByteOrder::Little })
}

/// The two-dimensional tensors of a file, for messages.
fn present(metadata: &Metadata) -> String {
    let names: Vec<String> = metadata
        .offset_keys()
        .into_iter()
        .filter(|name| metadata.info(name).is_some_and(|info| info.shape.len() == 2))
        .collect();
    if names.is_empty() {
        return "It holds no 2-dimensional tensors".to_owned();
    }
    let more = names.len().saturating_sub(LISTED);
    let shown: Vec<String> = names[..names.len() - more].iter().map(|name| printable(name)).collect();
    let listed = shown.join(", ");
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("Its 2-dimensional tensors: {listed}{rest}")
}

fn two_dimensional(info: &TensorInfo) -> Result<Shape, String> {
    match *info.shape.as_slice() {
        [rows, cols] => Ok(Shape::new(rows as u64, cols as u64)),
        _ => Err(format!(
            "is {}-dimensional (shape {}); only 2-dimensional tensors are multiplied, reshape it and save it again",
            info.shape.len(),
            printable(&format!("{:?}", info.shape))
        )),
    }
}

fn element(dtype: Dtype) -> Result<FileElement, String> {
    use FileElement as E;
    Ok(match dtype {
        Dtype::F16 => E::F16,
        Dtype::BF16 => E::Bf16,
        Dtype::F32 => E::F32,
        Dtype::F64 => E::F64,
        Dtype::I8 => E::I8,
        Dtype::I16 => E::I16,
        Dtype::I32 => E::I32,
        Dtype::I64 => E::I64,
        Dtype::U8 => E::U8,
        Dtype::U16 => E::U16,
        Dtype::U32 => E::U32,
        Dtype::BOOL => E::Bool,
        other => {
            return Err(format!(
                "has dtype {other:?}, which cannot be multiplied; save it as F32, as in tensor.to(torch.float32)"
            ));
        }
    })
}

#[cfg(test)]
mod tests;
