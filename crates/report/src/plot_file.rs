//! The file of a plot.

use crate::exit::Failure;
use crate::out_file;
use rustix::fs::{Access, access};
use std::path::Path;

/// Refuses an SVG path that cannot be written, before hours of measuring.
///
/// # Errors
///
/// If the name does not end in `.svg`, or the user may not write the file.
pub fn check(path: &Path) -> Result<(), Failure> {
    // A device or a pipe may have any name.
    let is_file = path.as_os_str() != "-" && (path.is_file() || !path.exists());
    if is_file && !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
        let what = "plots are SVG; give the file a name that ends in .svg";
        return Err(Failure::usage(format!("--plot {}: {what}", path.display())));
    }
    out_file::check("--plot", path)?;
    if path.exists() {
        return Ok(());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    access(folder.unwrap_or_else(|| Path::new(".")), Access::WRITE_OK)
        .map_err(|e| Failure::failed(format!("--plot {}: cannot be written: {e}", path.display())))
}

/// Writes the plot.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(path: &Path, svg: &str) -> Result<(), Failure> {
    out_file::write("--plot", path, svg.as_bytes())
}
