//! How a kernel cuts one product for levels of Strassen–Winograd.
//!
//! Place in the flow: the kernel cuts by these rules, and `verify` uses them to know which elements were combined.
//!
//! Invariant: the cut is a function of the product's sizes and the cut-off alone, so it is the same on every
//! machine, and the verification can derive it.
//!
//! Deliberately absent: the levels of a plan (`strassen:L`), which combine whole tiles.

use crate::Span;

/// Longest side of a piece: it bounds the workspace of a kernel for operands of any size.
const PIECE: u64 = 4096;

/// The rules for one cut-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Winograd {
    /// Least side of a product that is multiplied classically after the last level; 0 counts as 1.
    pub cutoff: u64,
}

impl Winograd {
    /// Most levels: each costs accuracy, and the error bound is verified up to three.
    pub const LEVELS_MAX: u32 = 3;
    /// Longest side of a piece.
    pub const PIECE: u64 = PIECE;

    /// Levels for a piece of that size: as many as leave every side of the parts at least as long as the cut-off.
    pub fn levels(self, rows: u64, cols: u64, depth: u64) -> u32 {
        let least = rows.min(cols).min(depth);
        let fits = |levels: &u32| least >> levels >= self.cutoff.max(1);
        (1..=Self::LEVELS_MAX).take_while(fits).last().unwrap_or(0)
    }

    /// The pieces of a side: as few as possible, and as even as possible.
    pub fn pieces(side: u64) -> impl Iterator<Item = Span> + Clone {
        let count = side.div_ceil(PIECE);
        let (len, longer) = (side / count.max(1), side % count.max(1));
        let start = move |at: u64| at * len + at.min(longer);
        (0..count).map(move |at| Span::new(start(at), start(at + 1)))
    }

    /// The longest piece.
    pub fn longest(side: u64) -> u64 {
        side.div_ceil(side.div_ceil(PIECE).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_leave_parts_of_the_cut_off_at_least() {
        let of = |side, cutoff| Winograd { cutoff }.levels(side, side, side);
        assert_eq!((of(1023, 512), of(1024, 512), of(2047, 512), of(2048, 512)), (0, 1, 1, 2));
        assert_eq!(of(1 << 20, 1), Winograd::LEVELS_MAX);
        assert_eq!(Winograd { cutoff: 64 }.levels(4096, 4096, 127), 0, "the shortest side decides");
        assert_eq!((of(0, 0), of(1, 0), of(2, 0)), (0, 0, 1));
    }

    #[test]
    fn pieces_cover_a_side_once_and_are_even() {
        for side in [0, 1, 4095, 4096, 4097, 8192, 8193, 20_001] {
            let pieces: Vec<Span> = Winograd::pieces(side).collect();
            let mut end = 0;
            for piece in &pieces {
                assert_eq!(piece.start, end);
                assert!(piece.len() <= PIECE && piece.len() + 1 >= side / pieces.len() as u64);
                end = piece.end;
            }
            assert_eq!((end, pieces.len() as u64), (side, side.div_ceil(PIECE)));
            assert_eq!(pieces.iter().map(|p| p.len()).max().unwrap_or(0), Winograd::longest(side));
        }
    }
}
