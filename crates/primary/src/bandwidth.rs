//! How fast the elements of a thin product come from memory: measured at the larger operand itself.
//!
//! Place in the flow: before a product is planned, where it has so little work for each byte that memory may bind it.
//!
//! Invariants: operands are only read, and C is not touched. No more than `PROBE_BYTES` are touched, by as many threads as will
//! compute, and no thread begins another piece after `PROBE_TIME`. So what is measured has the first touch of mapped pages in
//! it, as the product has.
//!
//! Deliberately absent: products with much work for each byte, and generated operands, which no memory is read for.

use bramble_matrix::{Matrix, Rect, Span};
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
/// read once. Where C is the largest of them, pages of plain memory stand for those of C.
pub(crate) fn bandwidth(problem: &Problem, (a, b): (&Matrix, &Matrix), threads: usize) -> Option<f64> {
    let bytes = problem.operand_bytes() + problem.result_bytes();
    if bytes < BYTES_LEAST || problem.flops() / bytes > OPERATIONS_A_BYTE {
        return None;
    }
    let size = problem.element_bytes() as f64;
    let (in_a, in_b) =
        (problem.m as f64 * problem.k as f64 * size, problem.k as f64 * problem.n as f64 * size);
    let bytes_per_s = match problem.result_bytes() > in_a.max(in_b) {
        true => written(threads),
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

/// Bytes a second of so many threads, which share pieces of `piece` bytes. `touch` touches one of them; it may append to memory
/// that is the thread's own.
fn timed(pieces: u64, piece: u64, threads: usize, touch: impl Fn(&mut Vec<u8>, u64) + Sync) -> Option<f64> {
    let threads = threads.max(1) as u64;
    let each = pieces / threads;
    let own = |thread: u64| {
        let mut memory = Vec::with_capacity(to_index(each * PIECE_BYTES));
        let began = Instant::now();
        let mut done = 0;
        while done < each && began.elapsed() < PROBE_TIME {
            touch(&mut memory, thread * each + done);
            done += 1;
        }
        black_box(&memory);
        (done * piece) as f64 / began.elapsed().as_secs_f64().max(1e-9)
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
    // Pieces of a long line, or short lines together.
    let line_bytes = whole.line_bytes as u64;
    let together = (PIECE_BYTES / line_bytes.max(1)).max(1);
    let piece = PIECE_BYTES.min(line_bytes);
    let a_line = (line_bytes / PIECE_BYTES).max(1);
    let pieces = match together > 1 {
        true => whole.lines as u64 / together,
        false => whole.lines as u64 * a_line,
    };
    let pieces = pieces.min(PROBE_BYTES / PIECE_BYTES);
    timed(pieces, piece * together, threads, |_, at| {
        for line in at * together..(at + 1) * together {
            let (line, from) = if together > 1 { (line, 0) } else { (line / a_line, line % a_line * piece) };
            let bytes = &whole.line(to_index(line))[to_index(from)..to_index(from + piece)];
            let (words, _) = bytes.as_chunks::<8>();
            black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
        }
    })
}

/// What the threads write into memory that is theirs for the first time.
fn written(threads: usize) -> Option<f64> {
    let pieces = PROBE_BYTES / PIECE_BYTES;
    timed(pieces, PIECE_BYTES, threads, |memory, _| memory.resize(memory.len() + to_index(PIECE_BYTES), 1))
}

/// An index of something that is in memory.
fn to_index(at: u64) -> usize {
    usize::try_from(at).unwrap_or_else(|_| panic!("{at} is said to be in memory"))
}
