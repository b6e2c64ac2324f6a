//! Matrix files: chooses the reader for a text on the command line.
//!
//! Place in the flow: `Matrix::open` opens every operand that a user names, `Matrix::from_bytes` every file that is
//! in memory already; the readers of the three formats and the map of a file are their helpers.
//!
//! Invariants: a file is mapped read-only and never read whole; nothing in a file can make a reader panic or
//! take memory before the sizes are checked against the file and the machine.
//!
//! Deliberately absent: writing (see `output`; `npy::write_header` is its helper), compressed files (`.npz`,
//! `.mtx.gz`: refused with the command that unpacks them), and protection against a file that another program
//! shortens while it is mapped (`state` detects the change afterwards).

pub(crate) mod mtx;
pub(crate) mod npy;
pub(crate) mod safetensors;

mod describe;
mod map;
mod similar;
mod state;

pub use describe::{MatrixDescription, StorageOrder, describe, describe_bytes};
pub(crate) use similar::similar;
pub use state::Change;
pub(crate) use state::FileState;

use crate::source::Mapped;
use crate::{DType, Generator, Matrix, MatrixError, Shape, SharedBytes, generate};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The bytes that come before the elements of a row-major matrix in a `.npy` file.
pub fn npy_header(shape: Shape, dtype: DType) -> Vec<u8> {
    npy::write_header(shape, dtype)
}

/// The header that `numpy.save` would write before the elements of a C-ordered array of one or two dimensions.
pub fn npy_header_of(dims: &[u64], dtype: DType) -> Vec<u8> {
    npy::write_header_of(dims, dtype)
}

/// The message for a file of an unknown format.
const KNOWN: &str = "is not a matrix file that is known; accepted are FILE.npy, FILE.mtx, FILE.safetensors:TENSOR, \
     random:ROWSxCOLS:DTYPE:SEED and identity:N:DTYPE";

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Npy,
    Mtx,
    Safetensors,
}

impl Format {
    /// The message for a file of one matrix whose name is followed by `:TENSOR`.
    fn has_no_tensors(self, path: &str) -> String {
        let format = if self == Self::Npy { ".npy" } else { ".mtx" };
        format!(
            "{path} is a {format} file, which holds one matrix without a name; leave away what follows its name"
        )
    }
}

impl Matrix {
    /// The matrix that a word on the command line names: `random:ROWSxCOLS:DTYPE:SEED`, `identity:N:DTYPE`,
    /// `FILE.npy`, `FILE.mtx` or `FILE.safetensors:TENSOR`. A file with another ending is recognised by its
    /// first bytes. Names of files need not be UTF-8.
    pub fn open(spec: impl AsRef<OsStr>) -> Result<Self, MatrixError> {
        let spec = spec.as_ref();
        if let Some((text, parsed)) = spec.to_str().and_then(|text| Some((text, generate::parse(text)?))) {
            let (generator, shape, dtype): (Generator, _, _) = parsed?;
            return Self::generated(text, generator, shape, dtype);
        }
        Operand::of(spec).open()
    }

    /// The matrix in the file with exactly that name, whatever else the name may mean on the command line.
    pub fn open_file(path: &Path) -> Result<Self, MatrixError> {
        Operand { path, tensor: None }.open()
    }

    /// The matrix in the bytes of a file that is in memory already. `spec` is a text as for `open`, but no file is
    /// opened. Its ending determines the format, or else the first bytes; a `:TENSOR` names the tensor. Native,
    /// aligned elements are not copied. A `.mtx` file is made dense, with at most `dense_bytes_max` bytes, or the
    /// machine's available memory if that is `None`.
    pub fn from_bytes(
        spec: &str,
        bytes: SharedBytes,
        dense_bytes_max: Option<u64>,
    ) -> Result<Self, MatrixError> {
        Operand::by_ending(OsStr::new(spec)).read(Contents {
            bytes,
            mapped: Mapped::default(),
            dense_bytes_max,
        })
    }
}

/// A file on the command line, and the tensor in it.
#[derive(Clone, Copy, Debug)]
struct Operand<'a> {
    path: &'a Path,
    tensor: Option<&'a OsStr>,
}

impl<'a> Operand<'a> {
    /// Parses `FILE` or `FILE:TENSOR`. An existing file of the whole name precedes a tensor, and a longer file name
    /// precedes shorter ones: both may contain colons.
    fn of(spec: &'a OsStr) -> Self {
        let whole = Path::new(spec);
        if whole.exists() {
            return Self { path: whole, tensor: None };
        }
        let bytes = spec.as_bytes();
        let colons = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b':');
        let mut split = colons.map(|(at, _)| {
            let (path, tensor) = (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]));
            Self { path: Path::new(path), tensor: Some(tensor) }
        });
        split.find(|operand| operand.path.is_file()).unwrap_or_else(|| Self::by_ending(spec))
    }

    /// The same without looking for a file.
    fn by_ending(spec: &'a OsStr) -> Self {
        const MARK: &[u8] = b".safetensors:";
        let bytes = spec.as_bytes();
        let Some(at) = bytes.windows(MARK.len()).position(|part| part == MARK) else {
            return Self { path: Path::new(spec), tensor: None };
        };
        let (path, tensor) = bytes.split_at(at + MARK.len());
        let path = OsStr::from_bytes(&path[..path.len() - 1]);
        Self { path: Path::new(path), tensor: Some(OsStr::from_bytes(tensor)) }
    }

    /// The name in messages.
    fn name(&self) -> String {
        let path = self.path.display();
        self.tensor_text().map_or_else(|| path.to_string(), |tensor| format!("{path}:{tensor}"))
    }

    /// Names of tensors are UTF-8: any other name is not found, and is shown approximately.
    fn tensor_text(&self) -> Option<Cow<'a, str>> {
        self.tensor.map(OsStr::to_string_lossy)
    }

    fn open(&self) -> Result<Matrix, MatrixError> {
        let (map, file) = map::map_file(self.path)?;
        let state = FileState::of(&file);
        let mapped = Mapped { bytes: map.len() as u64, file: Some(Arc::new(file)), state };
        self.read(Contents { bytes: map, mapped, dense_bytes_max: None })
    }

    fn read(&self, contents: Contents) -> Result<Matrix, MatrixError> {
        let (name, tensor) = (self.name(), self.tensor_text());
        if let Some(way_out) = packed((*contents.bytes).as_ref()) {
            return Err(MatrixError::format(name, way_out));
        }
        match format_of(self.path, (*contents.bytes).as_ref()) {
            Some(Format::Safetensors) => safetensors::open(self.path, tensor.as_deref(), contents),
            Some(other) if tensor.is_some() => {
                let what = other.has_no_tensors(&self.path.display().to_string());
                Err(MatrixError::format(name, what))
            }
            Some(Format::Npy) => npy::open(&name, contents),
            Some(Format::Mtx) => mtx::open(&name, contents),
            None => Err(MatrixError::format(name, KNOWN)),
        }
    }
}

/// The contents of a file, and the limits for its reader.
pub(crate) struct Contents {
    pub(crate) bytes: SharedBytes,
    /// The file that the bytes are mapped from, if any.
    pub(crate) mapped: Mapped,
    /// Most memory for a matrix that is made dense; `None`: the machine's available memory.
    pub(crate) dense_bytes_max: Option<u64>,
}

/// The format of a file, by its ending or its first bytes.
fn format_of(path: &Path, bytes: &[u8]) -> Option<Format> {
    by_name(path).or_else(|| sniff(bytes))
}

/// The message for a compressed file or a file of another program: how to get a matrix out of it.
fn packed(bytes: &[u8]) -> Option<&'static str> {
    const KINDS: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "is compressed with gzip; unpack it first: gunzip --keep FILE"),
        (b"BZh", "is compressed with bzip2; unpack it first: bunzip2 --keep FILE"),
        (b"\xfd7zXZ\0", "is compressed with xz; unpack it first: unxz --keep FILE"),
        (b"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it first: unzstd FILE"),
        (
            b"PK\x03\x04",
            "is a zip archive, as .npz and .pt files are; save the array by itself: np.save('A.npy', np.load(FILE)[NAME])",
        ),
        (
            b"\x89HDF\r\n",
            "is an HDF5 file; save the array by itself: np.save('A.npy', h5py.File(FILE)[NAME])",
        ),
    ];
    let found = KINDS.iter().find(|(magic, _)| bytes.starts_with(magic));
    // A .safetensors file begins with a length, which may have any bytes.
    found.filter(|_| !safetensors::looks_like(bytes)).map(|(_, what)| *what)
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
        std::fs::write(at("a.mtx.gz"), b"\x1f\x8b\x08\0").unwrap();
        assert!(message(&at("a.mtx.gz")).contains("gunzip"), "{}", message(&at("a.mtx.gz")));
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
    fn names_need_not_be_utf8_and_tensors_follow_any_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name)).into_os_string();
        let mtx = "%%MatrixMarket matrix array real general\n1 1\n2.5\n";
        std::fs::write(at(b"\xff.mtx"), mtx).unwrap();
        assert_eq!(Matrix::open(at(b"\xff.mtx")).unwrap().shape(), Shape::new(1, 1));
        let header = r#"{"t:0":{"dtype":"U8","shape":[1,3],"data_offsets":[0,3]}}"#;
        let file = format!("{}\0\0\0\0\0\0\0{header}xyz", char::from(header.len() as u8));
        std::fs::write(at(b"M:\xfe.bin"), &file).unwrap();
        let tensor = Matrix::open(at(b"M:\xfe.bin:t:0")).unwrap();
        assert_eq!(tensor.shape(), Shape::new(1, 3));
        let message = |name: &[u8]| Matrix::open(at(name)).unwrap_err().to_string();
        assert!(message(b"M:\xfe.bin:t0").contains("did you mean 't:0'?"), "{}", message(b"M:\xfe.bin:t0"));
        assert!(message(b"\xff.mtx:t").contains("one matrix without a name"), "{}", message(b"\xff.mtx:t"));
        let all = describe(&at(b"M:\xfe.bin")).unwrap();
        assert_eq!((all[0].tensor.as_deref(), all[0].bytes), (Some("t:0"), 3));
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
        assert!(message("m.safetensors:u", &file, None).contains("did you mean 't'?"));
    }

    #[test]
    fn generated_matrices_need_no_file() {
        let matrix = Matrix::open("random:3x5:f32:1").unwrap().transposed();
        assert_eq!((matrix.shape(), matrix.mapped_bytes()), (Shape::new(5, 3), 0));
        assert_eq!(matrix.generator(), Some(Generator::random(1).transposed()));
        assert!(Matrix::open("random:9999999999x9999999999").unwrap_err().to_string().contains("2^63"));
    }
}
