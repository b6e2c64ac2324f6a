//! How fast the elements of a thin product pass memory: measured at the largest of A, B and C themselves.
//!
//! Place in the flow: before a product is planned, where it has so little work for each byte that memory may bind it.
//!
//! Invariants: operands are only read; of a C that is larger than both, and still zero, zeros are written over zeros. No more
//! than `PROBE_BYTES` are touched, in pieces from all over, by as many threads as will compute, and no thread begins another
//! piece after `PROBE_TIME`. So what is measured has the first touch of mapped pages in it, as the product has, and little of
//! what a cache still holds.
//!
//! Deliberately absent: products with much work for each byte, and generated operands, which no memory is read for.

use bramble_matrix::{Matrix, Output, Rect, Span};
use bramble_plan::Problem;
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Operations for each byte of A, B and C below which memory may bind a product.
const OPERATIONS_A_BYTE: f64 = 64.0;
/// Smaller products are over before anything could be measured.
const BYTES_LEAST: f64 = 32e6;
/// Bytes that the probe touches in all.
const PROBE_BYTES: u64 = 16 << 20;
/// How long a thread goes on: files that are not in memory yet would take seconds for that many bytes.
const PROBE_TIME: Duration = Duration::from_millis(20);
/// Bytes that a thread touches between two looks at the clock, about.
const PIECE_BYTES: u64 = 1 << 16;

/// Bytes of A, B and C a second, or nothing where memory does not bind the product. A and B of one file count twice and are
/// read once. Nothing may have been written into C before.
pub(crate) fn bandwidth(
    problem: &Problem,
    (a, b): (&Matrix, &Matrix),
    output: &Output,
    threads: usize,
) -> Option<f64> {
    let bytes = problem.operand_bytes() + problem.result_bytes();
    if bytes < BYTES_LEAST || problem.flops() / bytes > OPERATIONS_A_BYTE {
        return None;
    }
    let size = problem.element_bytes() as f64;
    let (in_a, in_b) =
        (problem.m as f64 * problem.k as f64 * size, problem.k as f64 * problem.n as f64 * size);
    let bytes_per_s = match problem.result_bytes() > in_a.max(in_b) {
        true => written(output, threads),
        false => read(if in_a >= in_b { a } else { b }, threads),
    }?;
    let once = if is_one_file(a, b) { bytes - in_a.min(in_b) } else { bytes };
    Some(bytes / once * bytes_per_s)
}

/// Whether both are read from one file.
fn is_one_file(a: &Matrix, b: &Matrix) -> bool {
    let place = |m: &Matrix| m.file().and_then(|f| f.metadata().ok()).map(|meta| (meta.dev(), meta.ino()));
    place(a).is_some_and(|at| Some(at) == place(b))
}

/// Bytes a second of so many threads, which share some of the `places` for a piece of so many bytes. `touch` touches one of them.
fn timed(places: u64, piece_bytes: u64, threads: usize, touch: impl Fn(u64) + Sync) -> Option<f64> {
    let threads = threads.max(1) as u64;
    let each = places.min(PROBE_BYTES / PIECE_BYTES) / threads;
    let apart = places / (each * threads).max(1);
    let own = |thread: u64| {
        let began = Instant::now();
        let mut done = 0;
        while done < each && began.elapsed() < PROBE_TIME {
            touch((thread * each + done) * apart);
            done += 1;
        }
        (done * piece_bytes) as f64 / began.elapsed().as_secs_f64().max(1e-9)
    };
    let own = &own;
    let all: f64 = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || own(thread))).collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).sum()
    });
    (all > 0.0).then_some(all)
}

fn read(matrix: &Matrix, threads: usize) -> Option<f64> {
    let shape = matrix.shape();
    let whole = matrix.lines(Rect::new(Span::new(0, shape.rows), Span::new(0, shape.cols)))?;
    let (lines, line_bytes) = (whole.lines as u64, whole.line_bytes as u64);
    let touch = |line: u64, from: u64, bytes: u64| {
        let bytes = &whole.line(to_index(line))[to_index(from)..to_index(from + bytes)];
        let (words, _) = bytes.as_chunks::<8>();
        black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
    };
    if line_bytes >= PIECE_BYTES {
        let of_a_line = line_bytes / PIECE_BYTES;
        return timed(lines * of_a_line, PIECE_BYTES, threads, |at| {
            touch(at / of_a_line, at % of_a_line * PIECE_BYTES, PIECE_BYTES);
        });
    }
    let together = (PIECE_BYTES / line_bytes.max(1)).min(lines).max(1);
    timed(lines / together, together * line_bytes, threads, |at| {
        (at * together..(at + 1) * together).for_each(|line| touch(line, 0, line_bytes));
    })
}

fn written(output: &Output, threads: usize) -> Option<f64> {
    let (shape, size) = (output.shape(), output.dtype().size_bytes() as u64);
    let cols = shape.cols.min(PIECE_BYTES / size);
    let together = (PIECE_BYTES / (cols * size).max(1)).min(shape.rows).max(1);
    timed(shape.rows / together, together * cols * size, threads, |at| {
        let rows = Span::new(at * together, (at + 1) * together);
        let mut lent = output.lend(Rect::new(rows, Span::new(0, cols)));
        let lines = lent.lines();
        lent.lines_mut(0..lines).for_each(|line| line.fill(0));
    })
}

/// An index of something that is in memory.
fn to_index(at: u64) -> usize {
    usize::try_from(at).unwrap_or_else(|_| panic!("{at} is said to be in memory"))
}
