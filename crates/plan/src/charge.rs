//! The charge of a stored matrix: the unit of grants and credit, at the primary and at the worker alike.
//!
//! Invariant: never less than the memory that a worker really uses for the matrix, its bookkeeping and the jobs
//! that wait for it. A grant therefore bounds the number of matrices and jobs in a worker, and not only the bytes.

/// Buffers start and end on this boundary.
const BUFFER_ALIGN_BYTES: u64 = 64;
/// The least charge of a stored matrix. Its entries in the maps and queues of a worker, the smallest buffer and the
/// frame that returns it take some 450 bytes on a 64-bit machine.
pub const MATRIX_BYTES_MIN: u64 = 512;
/// The charge of each job that will use an operand, at each of its two operands: a waiting job takes 24 bytes in a
/// queue and 4 at each operand, and queues grow by doubling.
pub const USE_BYTES: u64 = 32;

/// The charge of a matrix of `bytes` that `uses` jobs will read (0 for a tile). `u64::MAX`, which exceeds every
/// grant, if it does not fit 64 bits.
pub const fn charged_bytes(bytes: u64, uses: u64) -> u64 {
    let Some(whole) = bytes.checked_next_multiple_of(BUFFER_ALIGN_BYTES) else { return u64::MAX };
    let least = if whole < MATRIX_BYTES_MIN { MATRIX_BYTES_MIN } else { whole };
    least.saturating_add(uses.saturating_mul(USE_BYTES))
}
