//! Digests of matrices and tiles: they detect changes of C on the disk and of operands between two runs.
//!
//! Place in the flow: the journal of a product names its operands and each tile of C by their digests.
//!
//! Invariants: a digest depends on the shape and the bytes, and not on threads, pieces or the machine.

use crate::memory::Buffer;
use crate::{DType, Digest128, Digester, Layout, Matrix, MatrixError, Rect, Shape, Span, TileLease};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Lines are digested in strips of about this many bytes, each separately, so that threads can share a matrix.
const STRIP_BYTES: u64 = 16 << 20;

impl TileLease {
    /// The digest of the view's rows.
    pub fn digest(&self) -> Digest128 {
        Digest128::of(self.rect().shape(), (0..self.lines()).map(|i| self.line(i)))
    }
}

impl Matrix {
    /// The digest of element type, layout, shape and elements; of a generated matrix, that of its rule. So equal matrices of
    /// different layouts, or one of them generated, have different digests. Reads all elements, on `threads` threads that
    /// end with the call; `None` if `stop` becomes true meanwhile.
    pub fn digest(
        &self,
        threads: usize,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Digest128>, MatrixError> {
        let shape = self.shape();
        let mut all = Digester::default();
        all.update(self.dtype().name().as_bytes());
        all.update(&[0, u8::from(self.layout() == Layout::ColMajor), u8::from(self.generator().is_some())]);
        all.update(&shape.rows.to_le_bytes());
        all.update(&shape.cols.to_le_bytes());
        if let Some(generator) = self.generator() {
            all.update(&generator.to_bytes());
            return Ok(Some(all.digest()));
        }
        let strips = strips(self.layout(), shape, self.dtype());
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || -> Result<(), MatrixError> {
            while let Some(strip) = strips.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !stop()) {
                let digest = self.strip(*strip)?;
                let mut found = found.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                found.push((strip.rows.start, strip.cols.start, digest));
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(strips.len())).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            others.into_iter().map(join).fold(mine, Result::and)
        })?;
        let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        if found.len() < strips.len() {
            return Ok(None);
        }
        found.sort_unstable_by_key(|(row, col, _)| (*row, *col));
        found.iter().for_each(|(_, _, digest)| all.update(&digest.0));
        Ok(Some(all.digest()))
    }

    /// The digest of a strip of lines.
    fn strip(&self, rect: Rect) -> Result<Digest128, MatrixError> {
        if let Some(lines) = self.lines(rect) {
            return Ok(Digest128::of(rect.shape(), (0..lines.lines).map(|i| lines.line(i))));
        }
        let bytes = rect.shape().bytes(self.dtype()).and_then(|bytes| usize::try_from(bytes).ok());
        let mut buffer = Buffer::zeroed(bytes.unwrap_or(usize::MAX))?;
        self.read_block(rect, buffer.bytes_mut())?;
        Ok(Digest128::of(rect.shape(), std::iter::once(buffer.bytes())))
    }
}

/// All of a matrix in strips of whole lines.
fn strips(layout: Layout, shape: Shape, dtype: DType) -> Vec<Rect> {
    let (lines, elements) = layout.lines(shape);
    let line_bytes = elements.saturating_mul(dtype.size_bytes() as u64).max(1);
    let each = (STRIP_BYTES / line_bytes).max(1);
    let strip = |at: u64| {
        let lines = Span::new(at * each, ((at + 1) * each).min(lines));
        match layout {
            Layout::RowMajor => Rect::new(lines, Span::new(0, shape.cols)),
            Layout::ColMajor => Rect::new(Span::new(0, shape.rows), lines),
        }
    };
    // A matrix without elements may have more lines than fit into memory.
    let count = if elements == 0 { 0 } else { lines.div_ceil(each) };
    (0..count).map(strip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn matrix(bytes: Vec<u8>, rows: u64, cols: u64) -> Matrix {
        let shape = Shape::new(rows, cols);
        Matrix::from_shared("m", Arc::new(Aligned::of(&bytes)), 0, shape, DType::F64, Layout::RowMajor)
            .unwrap()
    }

    /// Aligned bytes.
    struct Aligned(Buffer);

    impl Aligned {
        fn of(bytes: &[u8]) -> Self {
            let mut buffer = Buffer::zeroed(bytes.len()).unwrap();
            buffer.bytes_mut().copy_from_slice(bytes);
            Self(buffer)
        }
    }

    impl AsRef<[u8]> for Aligned {
        fn as_ref(&self) -> &[u8] {
            self.0.bytes()
        }
    }

    fn digest(matrix: &Matrix, threads: usize) -> Digest128 {
        matrix.digest(threads, &|| false).unwrap().unwrap()
    }

    #[test]
    fn every_element_shape_and_layout_counts_and_threads_do_not() {
        // Three strips and a part of one: 2^20 columns have 8 MiB.
        let (rows, cols) = (7u64, 1u64 << 20);
        let bytes: Vec<u8> = (0..rows * cols * 8).map(|at| (at % 251) as u8).collect();
        let whole = matrix(bytes.clone(), rows, cols);
        let found = digest(&whole, 1);
        assert_eq!(found, digest(&whole, 4));
        for at in [0, 8 * cols as usize * 2 + 3, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(found, digest(&matrix(other, rows, cols), 2), "byte {at}");
        }
        assert_ne!(found, digest(&matrix(bytes, cols, rows), 2));
        assert_ne!(found, digest(&whole.clone().transposed(), 2));
        assert_eq!(whole.digest(2, &|| true).unwrap(), None);
    }

    #[test]
    fn converted_elements_count_as_they_are_read_and_generated_ones_by_their_rule() {
        let shape = Shape::new(5, 3);
        let random =
            |seed| Matrix::generated("r", crate::Generator::random(seed), shape, DType::F32).unwrap();
        assert_ne!(digest(&random(1), 1), digest(&random(2), 1));
        assert_eq!(digest(&random(1), 1), digest(&random(1), 1));
        let wide = random(1).converted(DType::F64).unwrap();
        assert_ne!(digest(&wide, 1), digest(&random(1), 1));
        let empty =
            Matrix::generated("r", crate::Generator::random(1), Shape::new(Shape::SIDE_MAX, 0), DType::F32);
        digest(&empty.unwrap(), 3);
    }
}
