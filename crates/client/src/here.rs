//! Reductions of a matrix that this process can read: sums, norm, extremes, and the largest elements of each row.
//!
//! Place in the flow: beside `elementwise`, for matrices in files or in this process. A placed matrix is read from its source,
//! which stays open here.
//!
//! Invariants: the matrix is cut into bands that depend on its shape alone, and they are merged in their order, so the result
//! does not depend on the number of threads. Memory beside the result is two bands and their results for each thread.
//!
//! Deliberately absent: reducing parts at their workers, and verification. Checking a reduction is computing it again.

use bramble_matrix::{
    DType, Matrix, MatrixError, Rect, RectReduction, ReducedMatrix, Reducer, Reducible, Reduction, Shape,
    Span,
};
use bramble_report::exit::Failure;
use std::num::NonZeroUsize;

/// Most elements of a band.
const BAND_ELEMENTS: u64 = 1 << 19;

/// Reduces a matrix on the calling thread and `threads` − 1 others: one result, or the columns and the elements of topk.
pub(crate) fn reduced(
    matrix: &Matrix,
    reduction: Reduction,
    threads: NonZeroUsize,
) -> Result<Vec<ReducedMatrix>, Failure> {
    match matrix.dtype() {
        DType::F32 => in_threads::<f32>(matrix, reduction, threads),
        DType::F64 => in_threads::<f64>(matrix, reduction, threads),
        DType::I32 => in_threads::<i32>(matrix, reduction, threads),
        DType::I64 => in_threads::<i64>(matrix, reduction, threads),
    }
}

/// The rectangles of a matrix of that shape, from its first row to its last: as many whole rows as a band may have elements,
/// or pieces of one row.
fn bands(shape: Shape) -> impl Iterator<Item = Rect> {
    let Shape { rows, cols } = shape;
    let across = cols.clamp(1, BAND_ELEMENTS);
    let down = BAND_ELEMENTS / across;
    let steps =
        |end: u64, by: u64| (0..end.div_ceil(by)).map(move |i| Span::new(i * by, end.min((i + 1) * by)));
    steps(rows, down).flat_map(move |rows| steps(cols, across).map(move |cols| Rect::new(rows, cols)))
}

fn in_threads<T: Reducible>(
    matrix: &Matrix,
    reduction: Reduction,
    threads: NonZeroUsize,
) -> Result<Vec<ReducedMatrix>, Failure> {
    let mut reducer = Reducer::<T>::new(reduction, matrix.name(), matrix.shape())?;
    let one = |rect: Rect| -> Result<RectReduction<T>, MatrixError> {
        let buffer = matrix.block(rect)?;
        Ok(RectReduction::of(reduction, rect, &matrix.block_view::<T>(rect, &buffer)))
    };
    let mut bands = bands(matrix.shape()).peekable();
    while bands.peek().is_some() {
        // Bands are as long as each other, so threads that wait for the others of a round wait briefly.
        let round: Vec<Rect> = bands.by_ref().take(threads.get()).collect();
        let results: Vec<Result<_, Failure>> = std::thread::scope(|scope| {
            let (last, others) =
                round.split_last().map_or((None, &[][..]), |(last, others)| (Some(*last), others));
            let started: Vec<_> = others
                .iter()
                .map(|rect| (*rect, std::thread::Builder::new().spawn_scoped(scope, || one(*rect)).ok()))
                .collect();
            let own = last.map(|rect| Ok(one(rect)?));
            let failed = || Failure::failed("a thread of the reduction failed".to_owned());
            // If the system gives no more threads, this one does the work.
            let others = started.into_iter().map(|(rect, thread)| match thread {
                Some(thread) => Ok(thread.join().map_err(|_| failed())??),
                None => Ok(one(rect)?),
            });
            others.collect::<Vec<_>>().into_iter().chain(own).collect()
        });
        for result in results {
            reducer.merge(result?);
        }
    }
    Ok(reducer.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(spec: &str, reduction: Reduction, threads: usize) -> Vec<ReducedMatrix> {
        reduced(&Matrix::open(spec).unwrap(), reduction, NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn results_have_the_same_bits_for_any_number_of_threads() {
        for spec in ["random:3000x700:f32:1", "random:3x600000:f64:2", "random:2000x600:i64:3"] {
            for reduction in [
                Reduction::RowSum,
                Reduction::ColSum,
                Reduction::Norm,
                Reduction::Max,
                Reduction::Min,
                Reduction::TopK(5),
            ] {
                let bytes = |threads| -> Vec<Vec<u8>> {
                    run(spec, reduction, threads).iter().map(|of| of.elements.bytes().to_vec()).collect()
                };
                assert_eq!(bytes(1), bytes(3), "{spec} {reduction:?}");
            }
        }
    }

    #[test]
    fn bands_are_all_elements_in_order() {
        for (rows, cols) in [(0, 5), (5, 0), (1, 1), (3000, 700), (2, 1 << 20), (3, (1 << 19) + 1)] {
            let (shape, mut count, mut before) = (Shape::new(rows, cols), 0, None);
            for band in bands(shape) {
                assert!(band.fits(shape) && band.shape().elements().unwrap() <= BAND_ELEMENTS);
                let at = (band.rows.start, band.cols.start);
                assert!(before.is_none_or(|before| before < at));
                (before, count) = (Some(at), count + band.shape().elements().unwrap());
            }
            assert_eq!(count, rows * cols);
        }
    }

    #[test]
    fn matrices_without_elements_have_sums_and_a_norm() {
        let zeros = |spec, reduction| run(spec, reduction, 2)[0].elements.elements::<f32>().to_vec();
        assert_eq!(zeros("random:3x0:f32:1", Reduction::RowSum), [0.0; 3]);
        assert_eq!(zeros("random:0x3:f32:1", Reduction::ColSum), [0.0; 3]);
        assert_eq!(zeros("random:0x3:f32:1", Reduction::Norm), [0.0]);
        assert_eq!(run("random:0x3:f32:1", Reduction::TopK(2), 2)[0].shape, Shape::new(0, 2));
    }
}
