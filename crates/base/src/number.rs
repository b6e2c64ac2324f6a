//! Conversions between numbers that lose nothing, or document their loss. Code that reads bytes from a peer uses
//! these and `try_from`, never a bare cast.
//!
//! Deliberately absent: conversions that may fail. Those are `try_from`, with an error at the call.

const _: () = assert!(usize::BITS >= 32 && usize::BITS <= 64, "sizes in memory have 32 to 64 bits");

/// A size in memory as a number of 64 bits.
#[inline(always)]
pub const fn to_u64(x: usize) -> u64 {
    x as u64
}

/// A number of 32 bits as a size in memory.
#[inline(always)]
pub const fn to_usize(x: u32) -> usize {
    x as usize
}

/// The nearest float: exact up to 2^53. For reports and predictions.
#[inline(always)]
pub const fn nearest_f64(x: u64) -> f64 {
    x as f64
}
