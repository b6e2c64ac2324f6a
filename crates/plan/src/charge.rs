//! What a stored matrix counts for: the unit of grants and credit, at the primary and at the worker alike.
//!
//! Invariant: never less than the memory that a worker really takes for the matrix, its bookkeeping and the jobs
//! that wait for it. A grant therefore bounds how many matrices and jobs a worker can be made to remember, not
//! only how many bytes.

/// Buffers start and end on this boundary.
const BUFFER_ALIGN_BYTES: u64 = 64;
/// The least that a stored matrix counts for. Its entries in the maps and queues of a worker, the smallest buffer
/// and the frame that takes it home are some 450 bytes on a 64-bit machine.
pub const MATRIX_BYTES_MIN: u64 = 512;
/// What each job that will use an operand counts for, at each of its two operands: a job that waits is 24 bytes
/// in a queue and 4 at each operand, and queues grow by doubling.
pub const USE_BYTES: u64 = 32;

/// What a matrix of `bytes` that `uses` jobs will read (0 for a tile) counts for. `u64::MAX`, which exceeds every
/// grant, where that is no number of 64 bits.
pub const fn charged_bytes(bytes: u64, uses: u64) -> u64 {
    let Some(whole) = bytes.checked_next_multiple_of(BUFFER_ALIGN_BYTES) else { return u64::MAX };
    let least = if whole < MATRIX_BYTES_MIN { MATRIX_BYTES_MIN } else { whole };
    least.saturating_add(uses.saturating_mul(USE_BYTES))
}
