//! How fast the elements of a thin product come from memory: measured at the largest of A, B and C themselves.
//!
//! Place in the flow: before a product is planned, where it has so little work for each byte that memory may bind it.
//!
//! Invariants: no more than `PROBE_BYTES` are touched, by as many threads as will compute. Operands are only read; of C, which
//! is zero before a product begins, zeros are written over zeros. So what is measured has the first touch of mapped pages in
//! it, as the product has; what has been touched then is not touched for the first time again.
//!
//! Deliberately absent: products with much work for each byte, and generated operands, which no memory is read for.

use bramble_matrix::{Matrix, Output, Rect, Span};
use bramble_plan::Problem;
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

/// Operations for each byte of A, B and C below which memory may bind a product.
const OPERATIONS_A_BYTE: f64 = 64.0;
/// Smaller products are over before anything could be measured.
const BYTES_LEAST: f64 = 32e6;
/// Bytes that the probe touches in all.
const PROBE_BYTES: u64 = 16 << 20;

/// Bytes of A, B and C a second, or nothing where memory does not bind the product. A and B of one file count twice and are
/// read once. `writes` says that C is still to be written from nothing.
pub(crate) fn bandwidth(
    problem: &Problem,
    (a, b): (&Matrix, &Matrix),
    output: &Output,
    threads: usize,
    writes: bool,
) -> Option<f64> {
    let bytes = problem.operand_bytes() + problem.result_bytes();
    if bytes < BYTES_LEAST || problem.flops() / bytes > OPERATIONS_A_BYTE {
        return None;
    }
    let size = problem.element_bytes() as f64;
    let (in_a, in_b) =
        (problem.m as f64 * problem.k as f64 * size, problem.k as f64 * problem.n as f64 * size);
    let seconds_a_byte = if problem.result_bytes() > in_a.max(in_b) {
        if writes { written(output, threads) } else { None }
    } else {
        read(if in_a >= in_b { a } else { b }, threads)
    }?;
    let once = if is_one_file(a, b) { bytes - in_a.min(in_b) } else { bytes };
    (seconds_a_byte > 0.0).then(|| bytes / once / seconds_a_byte)
}

/// Whether both are read from one file.
fn is_one_file(a: &Matrix, b: &Matrix) -> bool {
    let place = |m: &Matrix| m.file().and_then(|f| f.metadata().ok()).map(|meta| (meta.dev(), meta.ino()));
    place(a).is_some_and(|at| Some(at) == place(b))
}

/// Seconds for a byte, where `touch` touches the lines in a range and says how many bytes that were.
fn timed(lines: u64, threads: usize, touch: impl Fn(Span) -> u64 + Sync) -> Option<f64> {
    let each = lines / (threads.max(1) as u64);
    if each == 0 {
        return None;
    }
    let began = Instant::now();
    let bytes: u64 = std::thread::scope(|scope| {
        let touch = &touch;
        let part = |at: u64| Span::new(at * each, (at + 1) * each);
        let running: Vec<_> =
            (0..threads.max(1) as u64).map(|at| scope.spawn(move || touch(part(at)))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    (bytes > 0).then(|| began.elapsed().as_secs_f64() / bytes as f64)
}

/// How many of so many lines, of that many bytes each, the probe touches.
fn count(lines: u64, line_bytes: u64) -> u64 {
    (PROBE_BYTES / line_bytes.max(1)).clamp(1, lines.max(1)).min(lines)
}

fn read(matrix: &Matrix, threads: usize) -> Option<f64> {
    let shape = matrix.shape();
    let whole = matrix.lines(Rect::new(Span::new(0, shape.rows), Span::new(0, shape.cols)))?;
    let line_bytes = whole.line_bytes as u64;
    // A single line, or a few, are cut into pieces.
    let (piece, pieces) = match line_bytes > PROBE_BYTES / 64 {
        true => (1u64 << 16, line_bytes >> 16),
        false => (line_bytes, whole.lines as u64),
    };
    let pieces = count(pieces, piece);
    timed(pieces, threads, |span| {
        let sum = |bytes: &[u8]| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
        };
        let mut total = 0u64;
        for at in span.iter() {
            let bytes = match piece == line_bytes {
                true => whole.line(to_line(at)),
                false => &whole.line(0)[to_line(at * piece)..to_line((at + 1) * piece)],
            };
            total = total.wrapping_add(sum(bytes));
        }
        black_box(total);
        span.len() * piece
    })
}

fn written(output: &Output, threads: usize) -> Option<f64> {
    let shape = output.shape();
    let line_bytes = shape.cols * output.dtype().size_bytes() as u64;
    let rows = count(shape.rows, line_bytes);
    timed(rows, threads, |rows| {
        let mut lent = output.lend(Rect::new(rows, Span::new(0, shape.cols)));
        let lines = lent.lines();
        lent.lines_mut(0..lines).for_each(|line| line.fill(0));
        rows.len() * line_bytes
    })
}

/// An index of a line that is in memory.
fn to_line(at: u64) -> usize {
    usize::try_from(at).unwrap_or_else(|_| panic!("line {at} is said to be in memory"))
}
