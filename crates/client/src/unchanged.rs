//! Reads matrices whose files must be as they were when they were opened.
//!
//! Place in the flow: around everything that this process computes from sources alone: sums of elements, copies to files, and
//! reductions. A placed matrix keeps its source open, perhaps for hours, while its machines hold the elements as they were.
//!
//! Invariants: a shorter file is refused before it is read, since reading beyond its end would end the process. What was read
//! from a file that changed meanwhile is not returned.
//!
//! Deliberately absent: other changes of the operands of products, which their checks notice (`crates/primary`, `crates/arrays`),
//! and changes that the system does not record (`crates/matrix/src/file/state.rs`).

use bramble_matrix::{Change, Matrix};
use bramble_report::exit::Failure;

/// What `read` computes from the matrices; an error that names the one whose file was changed.
pub(crate) fn unchanged<T>(
    matrices: &[&Matrix],
    read: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    as_opened(matrices)?;
    let done = read()?;
    as_opened(matrices)?;
    Ok(done)
}

/// An error if a file has become shorter, for what compares everything else itself: reading beyond the end would end the process.
pub(crate) fn long_enough<'a>(matrices: impl IntoIterator<Item = &'a Matrix>) -> Result<(), Failure> {
    without(matrices, |change| matches!(change, Change::Length { was, is } if is < was))
}

fn as_opened(matrices: &[&Matrix]) -> Result<(), Failure> {
    without(matrices.iter().copied(), Change::is_of_contents)
}

/// An error that names the first matrix with such a change.
fn without<'a>(
    matrices: impl IntoIterator<Item = &'a Matrix>,
    is_wrong: impl Fn(Change) -> bool,
) -> Result<(), Failure> {
    let change = |matrix: &Matrix| matrix.change().filter(|change| is_wrong(*change));
    match matrices.into_iter().find_map(|matrix| Some((matrix, change(matrix)?))) {
        None => Ok(()),
        Some((matrix, change)) => Err(Failure::failed(format!(
            "{} was changed since it was opened ({change}): open or place it again",
            matrix.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_matrix::{DType, Output, Shape};
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_file_that_changes_before_or_meanwhile_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.npy");
        Output::create(&path, Shape::new(300, 400), DType::F64).unwrap().seal().unwrap().commit().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(100)).unwrap();
        let matrix = Matrix::open(path.to_str().unwrap()).unwrap();
        assert_eq!(unchanged(&[&matrix], || Ok(7)).ok(), Some(7));
        let touched = || file.set_modified(SystemTime::now()).map_err(|e| Failure::failed(e.to_string()));
        let text = unchanged(&[&matrix], touched).err().unwrap().text;
        assert!(text.contains("w.npy was changed since it was opened"), "{text}");
        file.set_len(100).unwrap();
        let text = unchanged::<()>(&[&matrix], || panic!("it is read")).err().unwrap().text;
        assert!(text.contains("has 100 now"), "{text}");
        assert!(long_enough([&matrix]).is_err());
        file.set_len(1 << 20).unwrap();
        assert!(long_enough([&matrix]).is_ok() && unchanged(&[&matrix], || Ok(())).is_err());
    }
}
