//! Matrix files: `.npy`, `.mtx`, `.safetensors`.
//!
//! Promises: any bytes give a matrix or an error, which is one short line; every block of a matrix can be read,
//! transposed and in every type that it may be converted to, and all ways of reading give the same bytes; memory stays
//! within the limit of a dense matrix, and a little for the header.

use crate::memory::within;
use bramble_matrix::{DType, Matrix, MatrixError, Rect, Shape, Span};
use std::sync::Arc;

/// Most bytes of a matrix that is made dense.
const DENSE_BYTES_MAX: u64 = 16 << 10;
/// That matrix, the input, its header as values, and the blocks that are read at once.
const BOUND_BYTES: usize = 128 << 10;
/// Largest matrix, in elements, that is also read as one block.
const WHOLE_ELEMENTS: u64 = 256;
/// Rows and columns of the blocks that are read from the corners.
const CORNER: u64 = 3;
/// No message is longer. The longest lists ten names of tensors.
const MESSAGE_BYTES_MAX: usize = 2048;

/// NumPy arrays.
pub fn npy(data: &[u8]) {
    explore("a.npy", data);
}

/// Matrix Market files.
pub fn mtx(data: &[u8]) {
    explore("a.mtx", data);
}

/// The tensor `a` of a safetensors file.
pub fn safetensors(data: &[u8]) {
    explore("a.safetensors:a", data);
}

fn explore(spec: &str, data: &[u8]) {
    within(BOUND_BYTES, || {
        let matrix = match Matrix::from_bytes(spec, Arc::new(data.to_vec()), Some(DENSE_BYTES_MAX)) {
            Ok(matrix) => matrix,
            Err(e) => return check_error(&e),
        };
        let shape = matrix.shape();
        if shape.elements().is_some_and(|n| n <= WHOLE_ELEMENTS) {
            read(&matrix, shape.rect());
        }
        for rect in corners(shape) {
            read(&matrix, rect);
        }
    });
}

/// Reads a block in every way.
fn read(matrix: &Matrix, rect: Rect) {
    let plain = block(matrix, rect);
    if let Some(lines) = matrix.lines(rect)
        && !plain.is_empty()
    {
        let joined: Vec<u8> = (0..lines.lines).flat_map(|i| lines.line(i).iter().copied()).collect();
        assert_eq!(joined, plain, "lines in place, and lines copied");
    }
    let transposed = matrix.clone().transposed();
    assert_eq!(block(&transposed, rect.transposed()), plain, "transposing moves no byte");
    for dtype in DType::ALL {
        match matrix.clone().converted(dtype) {
            Ok(converted) => {
                let there = block(&converted, rect);
                assert_eq!(there.len() / dtype.size_bytes(), plain.len() / matrix.dtype().size_bytes());
            }
            Err(e) => check_error(&e),
        }
    }
}

fn block(matrix: &Matrix, rect: Rect) -> Vec<u8> {
    let bytes = rect.shape().bytes(matrix.dtype());
    let mut out = vec![0xAA; bytes.and_then(|n| usize::try_from(n).ok()).unwrap_or_else(|| panic!("{rect}"))];
    if let Err(e) = matrix.read_block(rect, &mut out) {
        panic!("reading a block of an opened matrix failed: {e}");
    }
    out
}

/// Blocks at the four corners; they overlap where the matrix is small.
fn corners(shape: Shape) -> Vec<Rect> {
    let ends = |n: u64| [Span::new(0, n.min(CORNER)), Span::new(n.saturating_sub(CORNER), n)];
    let (rows, cols) = (ends(shape.rows), ends(shape.cols));
    rows.into_iter().flat_map(|down| cols.map(|across| Rect::new(down, across))).collect()
}

fn check_error(e: &MatrixError) {
    check_message(&e.to_string());
}

/// A message is one line for a person; a stranger's text must not control the terminal.
pub(crate) fn check_message(message: &str) {
    assert!(!message.contains(char::is_control), "control characters in a message: {message:?}");
    assert!(message.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes", message.len());
}

pub(crate) fn npy_seeds() -> Vec<Vec<u8>> {
    let kinds = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "b1", "u8", "c8", "U3", "O"];
    let mut seeds = Vec::new();
    for (i, kind) in kinds.into_iter().enumerate() {
        for order in ["<", ">", "|"] {
            let fortran = if i % 2 == 0 { "False" } else { "True" };
            let header =
                format!("{{'descr': '{order}{kind}', 'fortran_order': {fortran}, 'shape': (2, 3), }}");
            seeds.push(npy_file(1 + (i % 3) as u8, &header, 48 + i % 8));
        }
    }
    for shape in ["()", "(6,)", "(1, 2, 3)", "(0, 5)", "(3L, 2L)", "(4294967296, 4294967296)", "(20, 20)"] {
        let header = format!("{{'shape': {shape}, 'fortran_order': False, 'descr': '<f4'}}");
        seeds.push(npy_file(1, &header, 24));
    }
    seeds.push(npy_file(1, "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 3)}", 24));
    seeds
}

/// A file with this header, padded so that some paddings align the elements.
fn npy_file(version: u8, header: &str, pad: usize) -> Vec<u8> {
    let text = format!("{header}{}\n", " ".repeat(pad % 16));
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    match version {
        1 => file.extend((text.len() as u16).to_le_bytes()),
        _ => file.extend((text.len() as u32).to_le_bytes()),
    }
    file.extend(text.as_bytes());
    file.extend((0..pad).map(|i| i as u8));
    file
}

pub(crate) fn mtx_seeds() -> Vec<Vec<u8>> {
    let array = ["general\n2 2\n1\n2\n3\n4\n", "symmetric\n2 2\n1\n2\n3\n", "skew-symmetric\n2 2\n5\n"];
    let points = [
        "general\n3 2 2\n1 1 5\n3 2 -1\n",
        "symmetric\n2 2 2\n1 1 1\n2 1 7\n",
        "skew-symmetric\n2 2 1\n2 1 7\n",
    ];
    let mut seeds = Vec::new();
    for field in ["real", "double", "integer", "complex"] {
        seeds.extend(array.iter().map(|rest| format!("%%MatrixMarket matrix array {field} {rest}")));
        seeds.extend(points.iter().map(|rest| format!("%%MatrixMarket matrix coordinate {field} {rest}")));
    }
    seeds.push(
        "%%MatrixMarket matrix coordinate pattern general\n% a\r\n\n3 3 2\r\n1 2\n% b\n3 3\n".to_owned(),
    );
    seeds.push("%%matrixmarket MATRIX array real general\n1 3\n1e300\n-inf\n nan ".to_owned());
    seeds.push("%%MatrixMarket matrix coordinate real hermitian\n40 40 0\n".to_owned());
    seeds.push(
        "%%MatrixMarket matrix coordinate integer general\n40 40 1\n40 40 9223372036854775807\n".to_owned(),
    );
    seeds.push("%%MatrixMarket matrix array real general\n0 18446744073709551615\n".to_owned());
    seeds.into_iter().map(String::into_bytes).collect()
}

pub(crate) fn safetensors_seeds() -> Vec<Vec<u8>> {
    let types = [
        ("F16", 2),
        ("BF16", 2),
        ("F32", 4),
        ("F64", 8),
        ("I8", 1),
        ("I16", 2),
        ("I32", 4),
        ("I64", 8),
        ("U8", 1),
        ("U16", 2),
        ("U32", 4),
        ("U64", 8),
        ("BOOL", 1),
        ("F8_E4M3", 1),
    ];
    let mut seeds = Vec::new();
    for (dtype, size) in types {
        let len = 6 * size;
        let tensor = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[2,3],"data_offsets":[0,{len}]}}}}"#);
        seeds.push(safetensors_file(&tensor, len));
    }
    let b = r#""b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}"#;
    let a = r#""a":{"dtype":"U8","shape":[1,1],"data_offsets":[3,4]}"#;
    let two = format!(r#"{{"__metadata__":{{"format":"pt"}},{b},{a}}}"#);
    seeds.push(safetensors_file(&two, 4));
    seeds.push(safetensors_file(&two.replace("\"a\"", "\"c\""), 4));
    seeds.push(safetensors_file(&two.replace("[3,4]", "[3,9]"), 4));
    seeds.push(safetensors_file(r#"{"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]}}"#, 0));
    seeds.push(safetensors_file("{}", 0));
    seeds
}

fn safetensors_file(header: &str, len: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..len).map(|i| i as u8));
    file
}
