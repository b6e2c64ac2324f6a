//! `.safetensors`: every type, names, and hostile headers.

use super::*;
use crate::DType;
use proptest::prelude::*;
use safetensors::tensor::{TensorView, serialize};

fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        ((*name).to_owned(), TensorView::new(*dtype, shape.to_vec(), data).unwrap())
    });
    serialize(views, None).unwrap()
}

fn opened(bytes: &[u8], tensor: &str) -> Result<Matrix, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let spec = path.to_str().unwrap().to_owned() + tensor;
    Matrix::open(&spec).map_err(|e| e.to_string())
}

fn block(matrix: &Matrix) -> Vec<u8> {
    let mut out = vec![0; matrix.shape().bytes(matrix.dtype()).unwrap() as usize];
    matrix.read_block(matrix.shape().rect(), &mut out).unwrap();
    out
}

#[test]
fn every_type_is_read_or_refused_by_name() {
    for (stored, size, dtype) in [
        (Dtype::F32, 4, DType::F32),
        (Dtype::F64, 8, DType::F64),
        (Dtype::F16, 2, DType::F32),
        (Dtype::BF16, 2, DType::F32),
        (Dtype::I32, 4, DType::I32),
        (Dtype::I64, 8, DType::I64),
        (Dtype::I8, 1, DType::I32),
        (Dtype::U8, 1, DType::I32),
        (Dtype::I16, 2, DType::I32),
        (Dtype::U16, 2, DType::I32),
        (Dtype::U32, 4, DType::I64),
        (Dtype::BOOL, 1, DType::I32),
    ] {
        let bytes = file(&[("w", stored, &[2, 3], &vec![1; 6 * size])]);
        let matrix = opened(&bytes, ":w").unwrap();
        assert_eq!((matrix.shape(), matrix.dtype()), (Shape::new(2, 3), dtype));
        assert_eq!(
            matrix.lines(matrix.shape().rect()).is_some(),
            matches!(stored, Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::I64)
        );
        assert_eq!(block(&matrix).len(), 6 * dtype.size_bytes());
        assert_eq!(matrix.mapped_bytes(), bytes.len() as u64);
    }
    let message = opened(&file(&[("w", Dtype::U64, &[1, 1], &[0; 8])]), ":w").unwrap_err();
    assert!(message.contains("m.safetensors:w: has dtype U64"), "{message}");
}

#[test]
fn the_right_tensor_is_read() {
    let (a, b) = (2f32.to_le_bytes(), bf16_bytes(-3.0));
    let bytes = file(&[("layer.0:a", Dtype::F32, &[1, 1], &a), ("b", Dtype::BF16, &[1, 1], &b)]);
    assert_eq!(block(&opened(&bytes, ":layer.0:a").unwrap()), a);
    assert_eq!(block(&opened(&bytes, ":b").unwrap()), (-3f32).to_le_bytes());
}

fn bf16_bytes(x: f32) -> [u8; 2] {
    half::bf16::from_f32(x).to_le_bytes()
}

#[test]
fn missing_and_unknown_names_list_what_is_there() {
    let names: Vec<String> = (0..12).map(|i| format!("w{i:02}")).collect();
    let mut tensors: Vec<(&str, Dtype, &[usize], &[u8])> =
        names.iter().map(|n| (n.as_str(), Dtype::U8, &[1, 2][..], &[0, 0][..])).collect();
    tensors.push(("bias", Dtype::U8, &[2], &[0, 0]));
    let bytes = file(&tensors);
    let none = opened(&bytes, "").unwrap_err();
    assert!(
        none.contains("names no tensor; write ")
            && none.contains("bias, w00, w01")
            && none.contains("and 3 more"),
        "{none}"
    );
    assert!(none.contains("w00") && none.contains("'bramble matrix "), "{none}");
    let unknown = opened(&bytes, ":w99").unwrap_err();
    assert!(
        unknown.contains("m.safetensors:w99: has no such tensor; did you mean 'w09'? 'bramble matrix "),
        "{unknown}"
    );
    let one = opened(&bytes, ":bias").unwrap();
    assert_eq!((one.shape(), one.is_vector()), (Shape::new(1, 2), true));
    let listed = describe("m", None, &bytes).unwrap();
    let names: Vec<&str> = listed.iter().filter_map(|one| one.tensor.as_deref()).collect();
    assert_eq!((names[0], names[12], names.is_sorted()), ("bias", "w11", true));
    assert_eq!((&listed[0].dims[..], listed[0].dtype.as_str(), listed[0].bytes), (&[2][..], "U8", 2));
}

#[test]
fn what_a_file_says_is_shown_short_and_without_control_characters() {
    let long = "y".repeat(100_000);
    let bytes = file(&[("\u{1b}[2Jx\n", Dtype::U8, &[1, 1], &[0]), (&long, Dtype::U8, &[1, 1], &[0])]);
    let listed = opened(&bytes, "").unwrap_err();
    assert!(listed.contains("dimensions: ?[2Jx?, yyy") && listed.len() < 500, "{listed}");
    let header = r#"{"w":{"dtype":"F\u001b[2J","shape":[1,1],"data_offsets":[0,4]}}"#;
    let unknown = opened(&with_header(header), ":w").unwrap_err();
    assert!(unknown.contains("damaged") && unknown.contains("F?[2J"), "{unknown}");
    let shape = format!("[{}0]", "1,".repeat(1000));
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,0]}}}}"#);
    let many = opened(&with_header(&header), ":w").unwrap_err();
    assert!(many.contains("is 1001-dimensional (shape [1, 1") && many.len() < 500, "{many}");
}

#[test]
fn short_files_are_refused() {
    let bytes = file(&[("w", Dtype::F32, &[2, 2], &[0; 16])]);
    for len in 1..bytes.len() {
        assert!(opened(&bytes[..len], ":w").is_err(), "cut to {len}");
    }
}

/// A file with any header.
fn with_header(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()
}

#[test]
fn offsets_that_overflow_are_refused() {
    let max = usize::MAX / 8;
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[1,{max}],"data_offsets":[0,{max}]}}}}"#);
    assert!(opened(&with_header(&header), ":w").unwrap_err().contains("cut short"));
    let header = format!(r#"{{"w":{{"dtype":"F64","shape":[{max},{max}],"data_offsets":[0,8]}}}}"#);
    assert!(opened(&with_header(&header), ":w").unwrap_err().contains("damaged"));
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(at in 0usize..100, value: u8, cut in 1usize..120) {
        let mut bytes = file(&[("w", Dtype::F16, &[2, 3], &[1; 12])]);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        bytes.truncate(cut);
        if let Ok(matrix) = opened(&bytes, ":w") {
            block(&matrix);
        }
    }

    #[test]
    fn no_likely_header_makes_the_reader_panic(a: u64, b: u64, rows: u64, cols: u64) {
        let header = format!(r#"{{"w":{{"dtype":"F16","shape":[{rows},{cols}],"data_offsets":[{a},{b}]}}}}"#);
        let _ = opened(&with_header(&header), ":w");
    }
}
