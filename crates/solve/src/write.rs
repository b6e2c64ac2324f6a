//! Writes results as `.npy` files, in order, through a file that replaces an old one when it is complete.

use bramble_kernel::lu::LuElement;
use bramble_matrix::{DType, View, npy_header_of};
use bramble_report::exit::Failure;
use bramble_report::out_file::OutFile;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The option that names the files, for errors.
pub(crate) const OPTION: &str = "-o";

/// Opens the file, or refuses it before any work is done.
pub(crate) fn open(name: Option<&Path>) -> Result<Option<OutFile>, Failure> {
    name.map(|name| OutFile::open(OPTION, name)).transpose()
}

/// The name of the file of pivots beside the factors: `LU.npy` has `LU.pivots.npy`.
pub(crate) fn beside(name: &Path) -> PathBuf {
    name.with_extension("pivots.npy")
}

/// Writes an array of these dimensions whose last lines are `lines`, and gives the file its name.
pub(crate) fn write<'a>(
    file: OutFile,
    dims: &[u64],
    dtype: DType,
    lines: impl Iterator<Item = &'a [u8]>,
) -> Result<(), Failure> {
    let mut to = BufWriter::with_capacity(1 << 20, file.file());
    let written = to.write_all(&npy_header_of(dims, dtype)).and_then(|()| {
        lines.into_iter().try_for_each(|line| to.write_all(line))?;
        to.flush()
    });
    drop(to);
    written.map_err(|e| file.failed(&e))?;
    file.keep()
}

/// Writes exchanges of rows, as SciPy has them.
pub(crate) fn pivots(file: OutFile, pivots: &[usize]) -> Result<(), Failure> {
    let pivots: Vec<i64> = pivots.iter().map(|pivot| *pivot as i64).collect();
    write(file, &[pivots.len() as u64], DType::I64, std::iter::once(bytemuck::cast_slice(&pivots)))
}

/// The rows of a view with contiguous rows, as bytes.
pub(crate) fn rows<T: LuElement>(view: View<'_, T>) -> impl Iterator<Item = &[u8]> {
    let (data, pitch, cols) = (view.data(), view.row_stride(), view.cols());
    (0..view.rows())
        .map(move |i| bytemuck::cast_slice(if cols == 0 { &[] } else { &data[i * pitch..][..cols] }))
}
