//! Short digests of bytes.
//!
//! Place in the flow: the journal of a product ends with a digest, and names its operands and each tile of C by theirs.
//!
//! Invariants: a digest depends on the shape and the bytes, and not on the pieces in which they come. It has 128 bits of BLAKE3,
//! so equal digests of different data do not occur by chance.
//!
//! Deliberately absent: authentication. A program that can write the file can also write its digest.

use crate::Shape;
use alloc::vec::Vec;
use core::fmt;

/// Rows are gathered to this many bytes: this halves the time for rows of 4 KiB.
const TOGETHER_BYTES: usize = 64 << 10;

/// The first 16 bytes of a BLAKE3 hash. `Debug` writes them as 32 hexadecimal digits; there is no `Display`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest128(pub [u8; 16]);

impl Digest128 {
    /// The digest of rows × columns (eight bytes each) and of the bytes of the rows, in order.
    pub fn of<'a>(shape: Shape, rows: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut digester = Digester::default();
        digester.update(&shape.rows.to_le_bytes());
        digester.update(&shape.cols.to_le_bytes());
        // BLAKE3's vector units take many kilobytes at once, and a row of a tile has a few.
        let mut together = Vec::with_capacity(TOGETHER_BYTES);
        for row in rows {
            if together.len() + row.len() > TOGETHER_BYTES {
                digester.update(&together);
                together.clear();
            }
            if row.len() > TOGETHER_BYTES / 2 {
                digester.update(&together);
                together.clear();
                digester.update(row);
            } else {
                together.extend_from_slice(row);
            }
        }
        digester.update(&together);
        digester.digest()
    }
}

impl fmt::Debug for Digest128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A digest of a stream of bytes.
#[derive(Clone, Default)]
pub struct Digester(blake3::Hasher);

impl Digester {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far; more may follow.
    pub fn digest(&self) -> Digest128 {
        let mut first = [0; 16];
        first.copy_from_slice(&self.0.finalize().as_bytes()[..16]);
        Digest128(first)
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digester({:?})", self.digest())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_beginning_of_blake3_over_the_sides_and_the_rows() {
        let rows: [&[u8]; 2] = [b"abcdefgh", b"ijklmnop"];
        let mut whole = Vec::new();
        whole.extend_from_slice(&2u64.to_le_bytes());
        whole.extend_from_slice(&1u64.to_le_bytes());
        whole.extend_from_slice(b"abcdefghijklmnop");
        let expected = blake3::hash(&whole);
        let found = Digest128::of(Shape::new(2, 1), rows.into_iter());
        assert_eq!(found.0, expected.as_bytes()[..16]);
        assert_ne!(found, Digest128::of(Shape::new(1, 2), rows.into_iter()));
        // Rows of any length, short ones after long ones.
        let lengths = [10_000, 50_000, 3, 40_000, 30_000, 70_000, 0, 1, 65_536, 65_535, 20];
        let rows: Vec<Vec<u8>> = lengths.iter().zip(1u8..).map(|(len, byte)| vec![byte; *len]).collect();
        let whole = [&1u64.to_le_bytes()[..], &9u64.to_le_bytes()[..], &rows.concat()[..]].concat();
        let found = Digest128::of(Shape::new(1, 9), rows.iter().map(Vec::as_slice));
        assert_eq!(found.0, blake3::hash(&whole).as_bytes()[..16]);
    }
}
