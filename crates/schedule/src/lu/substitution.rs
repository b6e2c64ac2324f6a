//! The order in which right-hand sides go through the machines that own the block columns.
//!
//! Place in the flow: after the elimination. The primary sends the rows of each exchange to its owner, which solves for its
//! blocks (`lu::LuPart`) and returns them; then it begins the next one.
//!
//! Invariants: a pass visits each block that is eliminated once, forward from the first to the last and back from the last to
//! the first; adjacent blocks of one owner make one exchange. A machine exchanges rows only in columns that are not factored yet,
//! so its L has its rows in the order of its own panel and those before it: right-hand sides go through in that order if each
//! panel's exchanges are applied to them before its L.
//!
//! Deliberately absent: elements, frames, and what follows a lost machine.

use alloc::vec::Vec;
use bramble_wire::message::{LuBegin, LuPass};
use core::ops::Range;

/// One visit of right-hand sides at a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuExchange {
    /// The machine, by its number in the ring.
    pub owner: usize,
    /// With which factor it solves.
    pub pass: LuPass,
    /// Its blocks.
    pub blocks: Range<usize>,
    /// The rows that travel to the machine and back: those of its blocks, which it solves, and those that it updates.
    pub rows: Range<usize>,
}

impl LuExchange {
    /// The visit for some adjacent blocks; `None` if they are not blocks of one machine that are eliminated, or nothing is
    /// solved.
    pub fn of(begin: &LuBegin, pass: LuPass, blocks: Range<usize>) -> Option<Self> {
        let owners = begin.ring.owners.get(blocks.clone()).filter(|_| blocks.end <= begin.panels())?;
        let owner = *owners.first()?;
        if owners.iter().any(|other| *other != owner) {
            return None;
        }
        let rows = match pass {
            LuPass::Forward => begin.columns(blocks.start).start..begin.order,
            LuPass::Back => 0..begin.columns(blocks.end - 1).end,
            LuPass::Multiply => return None,
        };
        Some(Self { owner, pass, blocks, rows })
    }

    /// All visits of a pass, in order.
    pub fn all(begin: &LuBegin, pass: LuPass) -> Vec<Self> {
        let (mut visits, mut end) = (Vec::new(), 0);
        for run in begin.ring.owners[..begin.panels()].chunk_by(|one, next| one == next) {
            let start = end;
            end += run.len();
            visits.extend(Self::of(begin, pass, start..end));
        }
        if pass == LuPass::Back {
            visits.reverse();
        }
        visits
    }
}

/// Applies the exchanges of a panel to right-hand sides in rows of `width` elements, of which the first is the panel's first row.
/// Each pivot is a row of `rows`.
pub fn apply_pivots<T>(rows: &mut [T], width: usize, pivots: &[usize]) {
    for (row, pivot) in pivots.iter().enumerate().filter(|(row, pivot)| row != *pivot) {
        (0..width).for_each(|column| rows.swap(row * width + column, pivot * width + column));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bramble_base::DType;
    use bramble_wire::message::{LuOrigin, LuRing};
    use proptest::prelude::*;

    fn system(order: usize, width: usize, owners: &[usize]) -> LuBegin {
        let mut owners: Vec<usize> = owners.to_vec();
        owners.resize(order.div_ceil(width) + 1, 3);
        let ring = LuRing { owners, machines: 4, me: 0 };
        LuBegin { order, width, extra: 1, dtype: DType::F32, live_max: 3, origin: LuOrigin::Sent, ring }
    }

    #[test]
    fn adjacent_blocks_of_one_owner_make_one_exchange() {
        let begin = system(10, 3, &[1, 0, 0, 2]);
        let of = |owner, pass, blocks, rows| LuExchange { owner, pass, blocks, rows };
        let forward = LuPass::Forward;
        assert_eq!(
            LuExchange::all(&begin, forward),
            [of(1, forward, 0..1, 0..10), of(0, forward, 1..3, 3..10), of(2, forward, 3..4, 9..10)]
        );
        let back = LuPass::Back;
        assert_eq!(
            LuExchange::all(&begin, back),
            [of(2, back, 3..4, 0..10), of(0, back, 1..3, 0..9), of(1, back, 0..1, 0..3)]
        );
        for blocks in [0..0, 0..2, 3..5, 4..5, 9..12] {
            assert_eq!(LuExchange::of(&begin, back, blocks.clone()), None, "{blocks:?}");
        }
    }

    #[test]
    fn pivots_move_whole_rows_in_their_order() {
        let mut rows = vec![0, 1, 10, 11, 20, 21];
        apply_pivots(&mut rows, 2, &[2, 2]);
        assert_eq!(rows, [20, 21, 0, 1, 10, 11]);
    }

    proptest! {
        #[test]
        fn a_pass_visits_every_block_once_in_order_and_each_with_all_rows_that_it_changes(
            order in 1..60usize, width in 1..9usize, owners in prop::collection::vec(0..4usize, 0..60),
        ) {
            let mut owners = owners;
            owners.truncate(order.div_ceil(width));
            let begin = system(order, width, &owners);
            for pass in [LuPass::Forward, LuPass::Back] {
                let visits = LuExchange::all(&begin, pass);
                let mut blocks: Vec<usize> = Vec::new();
                for visit in &visits {
                    prop_assert!(visit.blocks.clone().all(|block| begin.ring.owners[block] == visit.owner));
                    let columns = begin.columns(visit.blocks.start).start..begin.columns(visit.blocks.end - 1).end;
                    let changed = if pass == LuPass::Forward { columns.start..order } else { 0..columns.end };
                    prop_assert_eq!(&visit.rows, &changed);
                    if pass == LuPass::Forward {
                        blocks.extend(visit.blocks.clone());
                    } else {
                        blocks.extend(visit.blocks.clone().rev());
                    }
                }
                if pass == LuPass::Back {
                    blocks.reverse();
                }
                prop_assert_eq!(blocks, (0..begin.panels()).collect::<Vec<_>>());
                prop_assert!(visits.windows(2).all(|pair| pair[0].owner != pair[1].owner), "neighbours are joined");
            }
        }
    }
}
