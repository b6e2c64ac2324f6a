//! Tensors of `.safetensors` files, named as `FILE.safetensors:TENSOR`.
//!
//! Place in the flow: the header gives the position of a tensor in the file; its elements are not copied.
//!
//! Invariants: only the header is parsed; offsets are checked against the file before they are used; no input makes
//! the reader panic.
//!
//! Deliberately absent: 8-bit and smaller floats, complex and unsigned 64-bit elements (refused by name),
//! and tensors of no or more than two dimensions.

use crate::element::{ByteOrder, FileElement};
use crate::error::printable;
use crate::file::{Contents, MatrixDescription, StorageOrder, similar};
use crate::source::{FoundMatrix, may_be_multiplied};
use crate::{Layout, Matrix, MatrixError, Shape, SharedBytes};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::path::Path;

/// Bytes of the length of the header.
const LENGTH_BYTES: usize = 8;

/// The longest header that is parsed; the format's own limit.
const MAX_HEADER: usize = 100_000_000;

/// How many tensor names a message lists.
const LISTED: usize = 10;

/// Whether the bytes of a file without a known ending seem to have this format, which has no magic number.
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

/// Describes all tensors of a file in the order of their names, or the named one, whether they can be multiplied or
/// not.
pub(crate) fn describe(
    file: &str,
    tensor: Option<&str>,
    bytes: &[u8],
) -> Result<Vec<MatrixDescription>, String> {
    let (metadata, data) = metadata(bytes)?;
    let held_bytes = (bytes.len() - data) as u64;
    let names = match tensor {
        Some(tensor) if metadata.info(tensor).is_none() => return Err(absent(file, tensor, &metadata)),
        Some(tensor) => vec![tensor.to_owned()],
        None => sorted(&metadata),
    };
    let described = |name: String| {
        let info = metadata.info(&name)?;
        let product = element(info.dtype).and_then(|element| {
            let (shape, _) = sides(info)?;
            is_there(info, held_bytes)?;
            may_be_multiplied(shape, element, held_bytes)?;
            Ok(element.dtype())
        });
        Some(MatrixDescription {
            format: "safetensors",
            tensor: Some(name),
            dims: info.shape.iter().map(|side| *side as u64).collect(),
            dtype: format!("{:?}", info.dtype),
            product,
            order: StorageOrder::Rows,
            bytes: (info.data_offsets.1 as u64).saturating_sub(info.data_offsets.0 as u64),
        })
    };
    Ok(names.into_iter().filter_map(described).collect())
}

/// The parsed header, and the position of the data.
fn metadata(bytes: &[u8]) -> Result<(Metadata, usize), String> {
    let (text, data) =
        header(bytes).ok_or("is not a .safetensors file (no header); copy or write it again")?;
    let metadata: Metadata = serde_json::from_slice(text).map_err(|e| {
        let why = printable(&e.to_string());
        format!("its .safetensors header is damaged ({why}); copy or write it again")
    })?;
    Ok((metadata, data))
}

fn find(file: &str, tensor: Option<&str>, owner: SharedBytes) -> Result<FoundMatrix, String> {
    let bytes = (*owner).as_ref();
    let (metadata, data) = metadata(bytes)?;
    let Some(tensor) = tensor else {
        return Err(format!("names no tensor; write {file}:TENSOR. {}", present(file, &metadata)));
    };
    let info = metadata.info(tensor).ok_or_else(|| absent(file, tensor, &metadata))?;
    let (shape, is_vector) = sides(info)?;
    let element = element(info.dtype)?;
    is_there(info, (bytes.len() - data) as u64)?;
    let (from, _) = info.data_offsets;
    let (start, layout, order) = (data + from, Layout::RowMajor, ByteOrder::Little);
    Ok(FoundMatrix { owner, start, shape, is_vector, layout, element, order })
}

/// Refuses a tensor whose bytes lie beyond the end of the file.
fn is_there(info: &TensorInfo, held_bytes: u64) -> Result<(), String> {
    let (from, to) = info.data_offsets;
    if to as u64 <= held_bytes {
        return Ok(());
    }
    Err(format!(
        "needs data bytes {from} to {to}, but the file holds {held_bytes}: it is cut short, copy or download it again"
    ))
}

/// All names.
fn sorted(metadata: &Metadata) -> Vec<String> {
    let mut names = metadata.offset_keys();
    names.sort();
    names
}

/// The message that there is no such tensor, with the most similar names.
fn absent(file: &str, tensor: &str, metadata: &Metadata) -> String {
    let names = sorted(metadata);
    let like = similar(tensor, &names);
    if like.is_empty() {
        return format!("has no such tensor. {}", present(file, metadata));
    }
    let like: Vec<String> = like.iter().map(|name| format!("'{}'", printable(name))).collect();
    format!(
        "has no such tensor; did you mean {}? 'bramble matrix {file}' lists all {}",
        like.join(" or "),
        names.len()
    )
}

/// The tensors of a file that can be multiplied, for messages.
fn present(file: &str, metadata: &Metadata) -> String {
    let mut names = sorted(metadata);
    let all = names.len();
    names.retain(|name| metadata.info(name).is_some_and(|info| matches!(info.shape.len(), 1 | 2)));
    if names.is_empty() {
        return "It holds no tensor of one or two dimensions".to_owned();
    }
    let more = names.len().saturating_sub(LISTED);
    let shown: Vec<String> = names[..names.len() - more].iter().map(|name| printable(name)).collect();
    let listed = shown.join(", ");
    let rest = if more > 0 || all > names.len() {
        format!(" and {}: 'bramble matrix {file}' lists all {all}", counted(more, all - names.len()))
    } else {
        String::new()
    };
    format!("Its tensors of one or two dimensions: {listed}{rest}")
}

/// The tensors that a list omits: `more` of its own kind, and `others` of other dimensions.
fn counted(more: usize, others: usize) -> String {
    match (more, others) {
        (more, 0) => format!("{more} more"),
        (0, others) => format!("{others} of other dimensions"),
        (more, others) => format!("{more} more, {others} of other dimensions"),
    }
}

/// Rows and columns, and whether it is a vector: n elements of one dimension are 1 x n.
fn sides(info: &TensorInfo) -> Result<(Shape, bool), String> {
    match *info.shape.as_slice() {
        [rows, cols] => Ok((Shape::new(rows as u64, cols as u64), false)),
        [n] => Ok((Shape::new(1, n as u64), true)),
        [] => Err("is 0-dimensional (shape []), a single number; save it as a matrix: tensor.reshape(1, 1)"
            .to_owned()),
        _ => Err(format!(
            "is {}-dimensional (shape {}); only tensors of one or two dimensions are multiplied, reshape it and save it again",
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
        Dtype::U64 => {
            return Err("has dtype U64, which does not fit i64; save it as I64, as in tensor.to(torch.int64), or as F64"
                .to_owned());
        }
        Dtype::C64 => {
            return Err(
                "has dtype C64 (complex); save the parts as two tensors: tensor.real and tensor.imag"
                    .to_owned(),
            );
        }
        other => {
            return Err(format!(
                "has dtype {other:?}, which cannot be multiplied; save it as F32, as in tensor.to(torch.float32)"
            ));
        }
    })
}

#[cfg(test)]
mod tests;
