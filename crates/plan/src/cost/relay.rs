//! Relaying: the panels that several members need, and the amounts that members send to each other.
//!
//! Place in the flow: between the bytes of the shares and the seconds. The schedule decides panel by panel which
//! member has one; this file counts in the same way, with equal shares of the amounts that depend on the order of
//! arrival.
//!
//! Sharing: the *wave* of a block is its number among all blocks of its member. Relaying members whose blocks of a
//! wave have the same region and order share each panel (side, row or column of cells, step) that both blocks
//! cover. The primary sends it to the first of the g members that reach it, and the others receive it from each
//! other: g − 1 transfers.
//!
//! Invariants: the bytes sent by the primary and the bytes relayed add up to the need of the members, to the byte.
//! Waves are counted one by one as long as waves × members are at most `LOOKED_AT_MAX`; beyond that, a sample of
//! evenly spaced waves stands for all.

use super::bytes::{Matrices, panels};
use crate::{Block, Member, Problem, Region};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::Span;
use bramble_base::float::round;

/// Most blocks that are counted.
const LOOKED_AT_MAX: usize = 4096;

/// Panels of a member that other members need, too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Passed {
    /// Received from other members.
    pub(crate) taken: Panels,
    /// Sent to other members.
    pub(crate) given: Panels,
    /// The most members that need one of its panels.
    pub(crate) sharers: u64,
}

/// Panels, with their matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Panels {
    pub(crate) matrices: Matrices,
    pub(crate) panels: u64,
}

impl Panels {
    fn plus(self, other: Self) -> Self {
        Self {
            matrices: self.matrices.plus(other.matrices),
            panels: self.panels.saturating_add(other.panels),
        }
    }

    /// Part number `at` of `count` even parts.
    fn part(self, at: u64, count: u64) -> Self {
        Self {
            matrices: self.matrices.part(at, count),
            panels: self.panels / count + u64::from(at < self.panels % count),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self { matrices: self.matrices.minus(other.matrices), panels: self.panels - other.panels }
    }

    fn times(self, factor: f64) -> Self {
        // Estimates, far below 2^64.
        Self { matrices: self.matrices.scaled(factor), panels: round(self.panels as f64 * factor) as u64 }
    }
}

/// The panels that each member receives and sends, if the members of `relaying` relay.
pub(crate) fn passed(
    problem: &Problem,
    regions: &[Region],
    members: &[Member],
    relaying: &[bool],
) -> Vec<Passed> {
    let mut all = vec![Passed::default(); members.len()];
    let who: Vec<usize> = (0..members.len()).filter(|at| relaying[*at]).collect();
    if who.len() < 2 || !(problem.a_source.is_sent() || problem.b_source.is_sent()) {
        return all;
    }
    let blocks = |at: &usize| members[*at].shares.iter().map(|s| s.blocks()).fold(0, u64::saturating_add);
    // A wave of only one member shares nothing.
    let mut counts: Vec<u64> = who.iter().map(blocks).collect();
    counts.sort_unstable();
    let waves = counts[counts.len() - 2];
    let looked_at = waves.min((LOOKED_AT_MAX / who.len()).max(1) as u64);
    for number in 0..looked_at {
        let wave = spread(number, looked_at, waves);
        let theirs = who.iter().filter_map(|at| Some((*at, members[*at].block_at(wave)?)));
        let mut left: Vec<(usize, Block)> = theirs.collect();
        while let Some(first) = left.first().map(|(_, b)| *b) {
            let alike = |b: &Block| b.region == first.region && b.order == first.order;
            let group: Vec<(usize, Block)> = left.iter().copied().filter(|(_, b)| alike(b)).collect();
            left.retain(|(_, b)| !alike(b));
            for side in [PanelSide::A, PanelSide::B] {
                if side.travels(problem) {
                    share(problem, &regions[first.region], side, &group, &mut all);
                }
            }
        }
    }
    if looked_at < waves {
        let factor = waves as f64 / looked_at as f64;
        for one in &mut all {
            (one.taken, one.given) = (one.taken.times(factor), one.given.times(factor));
        }
    }
    all
}

/// Number `number` of `count` that are evenly spaced among `all`.
fn spread(number: u64, count: u64, all: u64) -> u64 {
    if count == all { number } else { number * (all / count) + number * (all % count) / count }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PanelSide {
    A,
    B,
}

impl PanelSide {
    fn travels(self, problem: &Problem) -> bool {
        match self {
            Self::A => problem.a_source.is_sent(),
            Self::B => problem.b_source.is_sent(),
        }
    }

    /// The rows or columns of cells for which a block needs panels.
    fn of(self, block: &Block) -> Span {
        match self {
            Self::A => block.cells.rows,
            Self::B => block.cells.cols,
        }
    }
}

/// Adds the panels that the members of a group share on one side in one wave.
fn share(problem: &Problem, region: &Region, side: PanelSide, group: &[(usize, Block)], all: &mut [Passed]) {
    for steps in pieces(group.iter().map(|(_, b)| b.steps)) {
        let here: Vec<&(usize, Block)> =
            group.iter().filter(|(_, b)| b.steps.contains(steps.start)).collect();
        let mut begins: Vec<&(usize, Block)> = here.clone();
        begins.sort_by_key(|(at, b)| (side.of(b).start, *at));
        let mut begins = begins.into_iter().peekable();
        // The members that need the panels of a piece.
        let mut needing: Vec<(usize, u64)> = Vec::new();
        for lines in pieces(here.iter().map(|(_, b)| side.of(b))) {
            needing.retain(|(_, end)| *end > lines.start);
            while let Some((at, block)) = begins.next_if(|(_, b)| side.of(b).start <= lines.start) {
                needing.push((*at, side.of(block).end));
            }
            let sharers = needing.len() as u64;
            if sharers < 2 {
                continue;
            }
            let needed = panels(problem, region, side == PanelSide::A, lines, steps);
            for (number, (at, _)) in needing.iter().enumerate() {
                let passed = needed.minus(needed.part(number as u64, sharers));
                let one = &mut all[*at];
                (one.taken, one.given) = (one.taken.plus(passed), one.given.plus(passed));
                one.sharers = one.sharers.max(sharers);
            }
        }
    }
}

/// The pieces between all ends of some spans, in order; some may be in none of the spans.
fn pieces(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut ends: Vec<u64> = spans.flat_map(|s| [s.start, s.end]).collect();
    ends.sort_unstable();
    ends.dedup();
    ends.windows(2).map(|w| Span::new(w[0], w[1])).collect()
}

/// Whether members may relay with such shares: not if chained parts of k wait for each other.
pub(crate) fn may_relay(is_chained: bool, regions: &[Region], members: &[Member]) -> bool {
    members.iter().flat_map(|m| &m.shares).all(|share| {
        let all = regions[share.region].steps();
        let whole = share.steps.start == 0 && share.steps.end == all && share.block.steps >= all;
        whole || !is_chained
    })
}
