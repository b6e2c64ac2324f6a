//! Right-hand sides of a system of equations on their way between the primary and a worker.
//!
//! Place in the flow: after the elimination the primary sends rows of right-hand sides to the owner of some blocks, which solves
//! for them, or all rows to each worker, which multiplies its columns by them (`LuRows`).
//!
//! Invariants: as for all messages. The elements are f64 and go by rows.
//!
//! Deliberately absent: which worker owns the blocks, and in which order they are visited.

use super::lu::to_usize_of;
use super::{FieldReader, FieldWriter};
use crate::ProtocolError;
use crate::limits::{LU_ORDER_MAX, LU_WIDTH_MAX};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::number::{to_u64, to_usize};
use core::ops::Range;

/// What a worker does with rows of right-hand sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LuPass {
    /// It solves with the exchanges of rows and L; a pass goes from the first block to the last.
    Forward,
    /// It solves with U; a pass goes from the last block to the first.
    Back,
    /// It multiplies its columns of A by their rows, in f64, and returns the sum: its part of the product. For HPL-MxP, whose
    /// columns workers can generate again: they keep the factors only.
    Multiply,
}

impl LuPass {
    fn code(self) -> u8 {
        match self {
            Self::Forward => 0,
            Self::Back => 1,
            Self::Multiply => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Forward, Self::Back, Self::Multiply].into_iter().find(|pass| pass.code() == code)
    }
}

/// Head of a rows message: some rows of right-hand sides. 45 bytes.
///
/// To a worker: it solves for the columns of `blocks`, which are its own, and returns all rows; or it multiplies, for which it
/// gets all rows, and all blocks are named. To the primary: the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuRows {
    /// With which factor they are solved, or that they are multiplied.
    pub pass: LuPass,
    /// The blocks to solve for, or that were solved for; empty for right-hand sides as the elimination left them.
    pub blocks: Range<usize>,
    /// Right-hand sides.
    pub width: usize,
    /// All rows of this transfer: 0 to `total`.
    pub total: usize,
    /// First row of this frame.
    pub first: usize,
    /// Rows of this frame.
    pub rows: usize,
}

impl LuRows {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u8(self.pass.code());
        w.u32(u32::try_from(self.width).unwrap_or(u32::MAX));
        for x in [self.blocks.start, self.blocks.end, self.total, self.first, self.rows] {
            w.u64(to_u64(x));
        }
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (code, width) = (r.u8()?, to_usize(r.u32()?));
        let mut next = || r.u64().map(to_usize_of);
        let (start, end, total, first, rows) = (next()?, next()?, next()?, next()?, next()?);
        r.end()?;
        let is_within = first.checked_add(rows).is_some_and(|end| end <= total);
        let has_sizes = total <= LU_ORDER_MAX && (1..=LU_WIDTH_MAX).contains(&width);
        let pass = LuPass::from_code(code).filter(|_| start <= end && has_sizes && is_within);
        let wrong = || ProtocolError::new(format!("{rows} rows of {width} from {first} on, of {total}"));
        let pass = pass.ok_or_else(wrong)?;
        Ok(Self { pass, blocks: start..end, width, total, first, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_encoding() {
        for pass in [LuPass::Forward, LuPass::Back, LuPass::Multiply] {
            let rows = LuRows { pass, blocks: 2..5, width: 3, total: 10, first: 3, rows: 7 };
            assert_eq!(LuRows::decode(&rows.encode()), Ok(rows));
        }
    }

    #[test]
    fn rows_without_sense_are_refused() {
        let rows = LuRows { pass: LuPass::Back, blocks: 0..0, width: 1, total: 4, first: 3, rows: 1 };
        assert!(LuRows::decode(&rows.encode()).is_ok());
        for bad in [LuRows { rows: 2, ..rows.clone() }, LuRows { width: 0, ..rows.clone() }] {
            assert!(LuRows::decode(&bad.encode()).is_err());
        }
        let mut aside = rows.encode();
        aside[0] = 3;
        assert!(LuRows::decode(&aside).is_err(), "a fourth pass");
    }
}
