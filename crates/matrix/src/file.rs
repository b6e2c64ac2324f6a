//! Matrix files: which reader a text on the command line goes to.
//!
//! Place in the flow: `Matrix::open` is the only way in for users' texts, `Matrix::from_bytes` for files that
//! are in memory already; the readers of the three formats and the map of a file are their helpers.
//!
//! Invariants: a file is mapped read-only and never read whole; nothing in a file can make a reader panic or
//! take memory before the sizes are checked against the file and the machine.
//!
//! Deliberately absent: writing (see `output`; `npy::write_header` is its helper), compressed files (`.npz`,
//! `.mtx.gz`), and protection against a file that another program shortens while it is mapped (`state` says
//! afterwards that one was changed).

pub(crate) mod mtx;
pub(crate) mod npy;
pub(crate) mod safetensors;

mod map;
mod state;

pub use state::Change;
pub(crate) use state::FileState;

use crate::source::Mapped;
use crate::{Generator, Matrix, MatrixError, SharedBytes, generate};
use std::path::Path;
use std::sync::Arc;

/// What `Matrix::open` takes, for messages.
const ACCEPTED: &str = "accepted are FILE.npy, FILE.mtx, FILE.safetensors:TENSOR, \
     random:ROWSxCOLS:DTYPE:SEED and identity:N:DTYPE";

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npy,
    Mtx,
    Safetensors,
}

impl Matrix {
    /// The matrix that a text on the command line names: `random:ROWSxCOLS:DTYPE:SEED`, `identity:N:DTYPE`,
    /// `FILE.npy`, `FILE.mtx` or `FILE.safetensors:TENSOR`. A file with another ending is recognised by its
    /// first bytes.
    pub fn open(spec: &str) -> Result<Self, MatrixError> {
        if let Some(parsed) = generate::parse(spec) {
            let (generator, shape, dtype): (Generator, _, _) = parsed?;
            return Self::generated(spec, generator, shape, dtype);
        }
        let whole = Path::new(spec);
        // A file of that very name goes before a tensor.
        let (path, tensor) = if whole.exists() { (whole, None) } else { split_tensor(spec) };
        let (map, file) = map::map_file(path)?;
        let state = FileState::of(&file);
        let mapped = Mapped { bytes: map.len() as u64, file: Some(Arc::new(file)), state };
        let contents = Contents { bytes: map, mapped, dense_bytes_max: None };
        read(spec, path, tensor, contents)
    }

    /// The matrix in the bytes of a file that is in memory already. `spec` is the text that `open` would take;
    /// no file is looked for. Its ending tells the format, or the first bytes do; a `:TENSOR` names the tensor.
    /// Elements that are native and aligned are used where they lie. A `.mtx` file is made dense, which takes
    /// `dense_bytes_max` bytes at most, or what the machine has available where that is `None`.
    pub fn from_bytes(
        spec: &str,
        bytes: SharedBytes,
        dense_bytes_max: Option<u64>,
    ) -> Result<Self, MatrixError> {
        let (path, tensor) = split_tensor(spec);
        read(spec, path, tensor, Contents { bytes, mapped: Mapped::default(), dense_bytes_max })
    }
}

/// What is in a file, and what its reader may do with it.
pub(crate) struct Contents {
    pub(crate) bytes: SharedBytes,
    /// What they are mapped from, if they are.
    pub(crate) mapped: Mapped,
    /// Most memory for a matrix that is made dense; `None` is what the machine has available.
    pub(crate) dense_bytes_max: Option<u64>,
}

fn read(spec: &str, path: &Path, tensor: Option<&str>, contents: Contents) -> Result<Matrix, MatrixError> {
    match by_name(path).or_else(|| sniff((*contents.bytes).as_ref())) {
        Some(Format::Npy) => npy::open(spec, contents),
        Some(Format::Mtx) => mtx::open(spec, contents),
        Some(Format::Safetensors) => safetensors::open(path, tensor, contents),
        None => Err(MatrixError::format(spec, format!("is not a matrix file that is known; {ACCEPTED}"))),
    }
}

/// (file, tensor) of `FILE.safetensors:TENSOR`.
fn split_tensor(spec: &str) -> (&Path, Option<&str>) {
    const ENDING: &str = ".safetensors";
    match spec.find(".safetensors:") {
        Some(at) => {
            let (path, rest) = spec.split_at(at + ENDING.len());
            (Path::new(path), rest.strip_prefix(':'))
        }
        None => (Path::new(spec), None),
    }
}

fn by_name(path: &Path) -> Option<Format> {
    let ending = path.extension()?.to_str()?.to_ascii_lowercase();
    match ending.as_str() {
        "npy" => Some(Format::Npy),
        "mtx" => Some(Format::Mtx),
        "safetensors" => Some(Format::Safetensors),
        _ => None,
    }
}

fn sniff(bytes: &[u8]) -> Option<Format> {
    if bytes.starts_with(npy::MAGIC) {
        return Some(Format::Npy);
    }
    if bytes.get(..mtx::BANNER.len()).is_some_and(|b| b.eq_ignore_ascii_case(mtx::BANNER)) {
        return Some(Format::Mtx);
    }
    safetensors::looks_like(bytes).then_some(Format::Safetensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_name_nothing_are_explained() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let message = |spec: &str| Matrix::open(spec).unwrap_err().to_string();
        assert!(message(&at("no.npy")).contains("no.npy: cannot open"), "{}", message(&at("no.npy")));
        assert!(message(folder.path().to_str().unwrap()).contains("is a folder"));
        std::fs::write(at("a.txt"), "1 2 3").unwrap();
        assert!(message(&at("a.txt")).contains("accepted are FILE.npy"));
        std::fs::write(at("empty.npy"), "").unwrap();
        assert!(message(&at("empty.npy")).contains("is empty"));
        assert!(message(&at("no.safetensors:x")).contains("no.safetensors: cannot open"));
    }

    #[test]
    fn another_ending_is_recognised_by_the_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("matrix.dat");
        std::fs::write(&path, "%%matrixmarket matrix array real general\n1 1\n2.5\n").unwrap();
        let matrix = Matrix::open(path.to_str().unwrap()).unwrap();
        let mut out = [0; 8];
        matrix.read_block(matrix.shape().rect(), &mut out).unwrap();
        assert_eq!(f64::from_le_bytes(out), 2.5);
    }

    #[test]
    fn a_file_in_memory_is_the_same_matrix() {
        let bytes = |text: &str| -> SharedBytes { Arc::new(text.to_owned()) };
        let mtx = "%%MatrixMarket matrix array real general\n2 1\n2.5\n-1\n";
        for spec in ["a.mtx", "without an ending"] {
            let matrix = Matrix::from_bytes(spec, bytes(mtx), None).unwrap();
            assert_eq!((matrix.name(), matrix.mapped_bytes()), (spec, 0));
            let mut out = [0; 16];
            matrix.read_block(matrix.shape().rect(), &mut out).unwrap();
            assert_eq!(out.as_chunks().0, [2.5f64.to_le_bytes(), (-1f64).to_le_bytes()]);
        }
        let message =
            |spec: &str, text: &str, max| Matrix::from_bytes(spec, bytes(text), max).unwrap_err().to_string();
        assert!(message("a.mtx", mtx, Some(15)).contains("needs 16 bytes"));
        assert!(message("a.npy", mtx, None).contains("is not a .npy file"));
        assert!(message("a", "1 2 3", None).contains("accepted are"));
        assert!(message("a", "", None).contains("accepted are"));
        let header = r#"{"t":{"dtype":"U8","shape":[1,1],"data_offsets":[0,1]}}"#;
        let file = format!("{}\0\0\0\0\0\0\0{header}x", char::from(header.len() as u8));
        assert_eq!(
            Matrix::from_bytes("m.safetensors:t", bytes(&file), None).unwrap().name(),
            "m.safetensors:t"
        );
        assert!(message("m.safetensors:u", &file, None).contains("tensors: t"));
    }

    #[test]
    fn generated_matrices_need_no_file() {
        let matrix = Matrix::open("random:3x5:f32:1").unwrap().transposed();
        assert_eq!((matrix.shape(), matrix.mapped_bytes()), (crate::Shape::new(5, 3), 0));
        assert_eq!(matrix.generator(), Some(Generator::random(1).transposed()));
        assert!(Matrix::open("random:9999999999x9999999999").unwrap_err().to_string().contains("2^63"));
    }
}
