//! Measures the rate at which memory feeds all threads of a thin product, on the largest of A, B and C.
//!
//! Place in the flow: before planning, for products with so few operations per byte that memory bandwidth may bind them.
//!
//! Invariants: operands are only read; in a C that is larger than both, zeros are written over its zeros before anything is
//! computed. The probe touches at most `PROBE_BYTES`, with as many threads as will compute. Each thread has a place of its own
//! and touches one piece after another, as the product walks along rows; no thread begins a piece after `PROBE_TIME`.
//! So the mean includes the first touch of mapped pages, which the product pays for, too, and hardly any cached data.
//!
//! Deliberately absent: products with many operations per byte, and generated operands, which are not in memory.

use bramble_matrix::{Matrix, Output, Rect, Span};
use bramble_plan::{MemoryRate, Problem};
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Operations per byte of A, B and C below which memory may bind a product.
const OPERATIONS_A_BYTE: f64 = 64.0;
/// Smaller products end before a measurement would.
const BYTES_LEAST: f64 = 32e6;
/// Bytes that all threads together touch.
const PROBE_BYTES: u64 = 16 << 20;
/// How long a thread may probe: files that are not in memory yet would take seconds for that many bytes.
const PROBE_TIME: Duration = Duration::from_millis(20);
/// Bytes that a thread touches between two readings of the clock, approximately.
const PIECE_BYTES: u64 = 1 << 16;

/// The rate for bytes of A, B and C, or `None` if memory does not bind the product. If A and B are one file, its bytes count
/// twice but are read once. C must not have been written to before.
pub(crate) fn memory_rate(
    problem: &Problem,
    (a, b): (&Matrix, &Matrix),
    output: &Output,
    threads: usize,
) -> Option<MemoryRate> {
    let bytes = problem.operand_bytes() + problem.result_bytes();
    if bytes < BYTES_LEAST || problem.flops() / bytes > OPERATIONS_A_BYTE {
        return None;
    }
    let size = problem.element_bytes() as f64;
    let (in_a, in_b) =
        (problem.m as f64 * problem.k as f64 * size, problem.k as f64 * problem.n as f64 * size);
    let rate = match problem.result_bytes() > in_a.max(in_b) {
        true => write_rate(output, threads),
        false => read_rate(if in_a >= in_b { a } else { b }, threads),
    }?;
    let once = if is_one_file(a, b) { bytes - in_a.min(in_b) } else { bytes };
    let times = bytes / once;
    Some(MemoryRate {
        bytes_per_s: rate.bytes_per_s * times,
        most_bytes_per_s: rate.most_bytes_per_s * times,
    })
}

/// Whether both are mapped from one file.
fn is_one_file(a: &Matrix, b: &Matrix) -> bool {
    let place = |m: &Matrix| m.file().and_then(|f| f.metadata().ok()).map(|meta| (meta.dev(), meta.ino()));
    place(a).is_some_and(|at| Some(at) == place(b))
}

/// A matrix in pieces of about `PIECE_BYTES`: parts of long lines, or several short lines together.
#[derive(Clone, Copy)]
struct Pieces {
    line_bytes: u64,
    lines_each: u64,
    parts_of_a_line: u64,
    count: u64,
}

impl Pieces {
    fn of(lines: u64, line_bytes: u64) -> Self {
        let line_bytes = line_bytes.max(1);
        let parts_of_a_line = (line_bytes / PIECE_BYTES).max(1);
        let lines_each = (PIECE_BYTES / line_bytes).clamp(1, lines.max(1));
        Self { line_bytes, lines_each, parts_of_a_line, count: lines / lines_each * parts_of_a_line }
    }

    /// The lines of a piece, and the byte range of each line.
    fn at(&self, piece: u64) -> (Span, Span) {
        let first = piece / self.parts_of_a_line * self.lines_each;
        let lines = Span::new(first, first + self.lines_each);
        if self.parts_of_a_line == 1 {
            return (lines, Span::new(0, self.line_bytes));
        }
        let start = piece % self.parts_of_a_line * PIECE_BYTES;
        (lines, Span::new(start, start + PIECE_BYTES))
    }

    fn bytes_each(&self) -> u64 {
        if self.parts_of_a_line == 1 { self.lines_each * self.line_bytes } else { PIECE_BYTES }
    }

    /// The pieces of each thread: adjacent, and disjoint from other threads' pieces.
    fn shared_by(&self, threads: u64) -> impl Iterator<Item = std::ops::Range<u64>> + use<> {
        let apart = self.count / threads;
        let each = apart.min(PROBE_BYTES / PIECE_BYTES / threads);
        (0..threads).map(move |thread| thread * apart..thread * apart + each)
    }
}

/// The rate at which threads touch pieces; `touch` touches one. The mean is taken over the last of `parts` equal parts of each
/// thread's pieces.
fn touch_rate(
    pieces: Pieces,
    threads: usize,
    parts: usize,
    touch: impl Fn(u64) + Sync,
) -> Option<MemoryRate> {
    let bytes = pieces.bytes_each() as f64;
    let one_thread = |own: std::ops::Range<u64>| {
        let began = Instant::now();
        let seconds: Vec<f64> = own
            .take_while(|_| began.elapsed() < PROBE_TIME)
            .map(|piece| {
                let before = Instant::now();
                touch(piece);
                before.elapsed().as_secs_f64().max(1e-9)
            })
            .collect();
        let last = &seconds[seconds.len() - seconds.len().div_ceil(parts)..];
        let best_s = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        MemoryRate {
            bytes_per_s: bytes * last.len() as f64 / last.iter().sum::<f64>().max(1e-9),
            most_bytes_per_s: bytes / best_s,
        }
    };
    let one_thread = &one_thread;
    let rates: Option<Vec<MemoryRate>> = std::thread::scope(|scope| {
        let spawn = |own| std::thread::Builder::new().spawn_scoped(scope, move || one_thread(own)).ok();
        let running: Option<Vec<_>> = pieces.shared_by(threads.max(1) as u64).map(spawn).collect();
        running?.into_iter().map(|thread| thread.join().ok()).collect()
    });
    let rates = rates?;
    let mean: f64 = rates.iter().map(|rate| rate.bytes_per_s).sum();
    let most = rates.iter().map(|rate| rate.most_bytes_per_s).fold(0.0, f64::max) * rates.len() as f64;
    (mean > 0.0).then_some(MemoryRate { bytes_per_s: mean, most_bytes_per_s: most.max(mean) })
}

fn read_rate(matrix: &Matrix, threads: usize) -> Option<MemoryRate> {
    let shape = matrix.shape();
    let whole = matrix.lines(Rect::new(Span::new(0, shape.rows), Span::new(0, shape.cols)))?;
    let pieces = Pieces::of(whole.lines as u64, whole.line_bytes as u64);
    touch_rate(pieces, threads, 1, |piece| {
        let (lines, part) = pieces.at(piece);
        for line in lines.start..lines.end {
            let bytes = &whole.line(to_index(line))[to_index(part.start)..to_index(part.end)];
            let (words, _) = bytes.as_chunks::<8>();
            black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))));
        }
    })
}

fn write_rate(output: &Output, threads: usize) -> Option<MemoryRate> {
    let (shape, size) = (output.shape(), output.dtype().size_bytes() as u64);
    let pieces = Pieces::of(shape.rows, shape.cols * size);
    // The first pages of a new file cost up to a hundred times as much as later ones, until the system detects their order.
    touch_rate(pieces, threads, 4, |piece| {
        let (rows, part) = pieces.at(piece);
        let mut lent = output.lease(Rect::new(rows, Span::new(part.start / size, part.end / size)));
        let lines = lent.lines();
        lent.lines_mut(0..lines).for_each(|line| line.fill(0));
    })
}

/// An index into memory.
fn to_index(at: u64) -> usize {
    usize::try_from(at).unwrap_or_else(|_| panic!("{at} is said to be in memory"))
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES, Pieces};
    use std::collections::BTreeSet;

    #[test]
    fn pieces_of_all_threads_are_disjoint_and_inside_the_matrix() {
        for (lines, line_bytes) in
            [(1, 160_000_000), (2_000_000, 64), (8000, 64_000), (3, 9_000_001), (40_000, 800)]
        {
            let pieces = Pieces::of(lines, line_bytes);
            for threads in [1, 2, 3, 16, 200] {
                let all: Vec<u64> = pieces.shared_by(threads).flatten().collect();
                let apart: BTreeSet<u64> = all.iter().copied().collect();
                assert_eq!(apart.len(), all.len(), "{lines} lines of {line_bytes} for {threads} threads");
                assert!(!all.is_empty());
                for piece in all {
                    let (lines_of, part) = pieces.at(piece);
                    assert!(lines_of.end <= lines && part.end <= line_bytes);
                    assert_eq!(lines_of.len() * part.len(), pieces.bytes_each());
                    assert!(pieces.bytes_each() <= PIECE_BYTES || lines_of.len() == 1);
                }
            }
        }
    }

    #[test]
    fn more_threads_than_pieces_touch_nothing_twice() {
        let pieces = Pieces::of(3, 10);
        assert!(pieces.shared_by(8).all(|own| own.is_empty()));
    }
}
