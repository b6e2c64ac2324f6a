//! Boxes of C and k by halving the longest side (CARMA).

use super::Seat;
use super::partition::apportion;
use crate::Region;
use crate::memory::{CellCharges, largest_block};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// Cells of a region and steps of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells3 {
    pub(crate) cells: Rect,
    pub(crate) steps: Span,
}

impl Cells3 {
    pub(super) fn is_empty(&self) -> bool {
        self.cells.rows.is_empty() || self.cells.cols.is_empty() || self.steps.is_empty()
    }

    /// Cells of C.
    pub(super) fn count(&self) -> u64 {
        self.cells.rows.len().saturating_mul(self.cells.cols.len())
    }

    pub(crate) fn whole(region: &Region) -> Self {
        Self { cells: region.cells(), steps: Span::new(0, region.steps()) }
    }

    /// The parts before and from `at` cells (or steps) in direction `side`.
    pub(super) fn split(self, side: usize, at: u64) -> (Self, Self) {
        let cut = |span: Span| (Span::new(span.start, span.start + at), Span::new(span.start + at, span.end));
        let (rows, cols) = (self.cells.rows, self.cells.cols);
        match side {
            0 => {
                let (a, b) = cut(rows);
                (Self { cells: Rect::new(a, cols), ..self }, Self { cells: Rect::new(b, cols), ..self })
            }
            1 => {
                let (a, b) = cut(cols);
                (Self { cells: Rect::new(rows, a), ..self }, Self { cells: Rect::new(rows, b), ..self })
            }
            _ => {
                let (a, b) = cut(self.steps);
                (Self { steps: a, ..self }, Self { steps: b, ..self })
            }
        }
    }

    /// Lengths in cells and steps, and in elements.
    pub(super) fn lengths(&self, region: &Region) -> [(u64, u64); 3] {
        let q = region.q();
        [
            (self.cells.rows.len(), region.grid.rows_of(self.cells.rows) * q),
            (self.cells.cols.len(), region.grid.cols_of(self.cells.cols) * q),
            (self.steps.len(), region.depth_of(self.steps)),
        ]
    }
}

/// The box of each seat by recursive halving of the longest of m, n and k, with machines and box in proportion
/// (Demmel, Eliahu, Fox, Kamil, Lipshitz, Schwartz, Spillinger, *Communication-optimal parallel recursive
/// rectangular matrix multiplication*, IPDPS 2013), as often per side as `halvings` gives. A machine with more
/// threads than its box has products gets parts of k, one per thread.
pub(super) fn cuboid(
    region: &Region,
    charges: &CellCharges,
    seats: &[Seat],
    everyone: bool,
) -> Vec<Vec<Cells3>> {
    let mut order: Vec<usize> = (0..seats.len()).collect();
    order.sort_by(|a, b| seats[*b].weight.total_cmp(&seats[*a].weight).then(a.cmp(b)));
    let mut result = vec![Vec::new(); seats.len()];
    let whole = Cells3::whole(region);
    let quota = halvings(region, charges, seats);
    let mut open = vec![(whole, order, quota)];
    while let Some((part, members, quota)) = open.pop() {
        match members[..] {
            [] => {}
            _ if part.is_empty() => {}
            [seat] => {
                result[seat] = for_threads(part, charges.products_of(part.count()), seats[seat].threads)
            }
            _ => {
                let (left, right) = halves(&members, seats);
                let weight = |m: &[usize]| m.iter().map(|i| seats[*i].weight).sum::<f64>();
                let sides = part.lengths(region);
                // The longest side that may and can be cut; the earlier one of equal sides.
                let longest = |allowed: &dyn Fn(usize) -> bool| {
                    let can = (0..3).filter(|s| sides[*s].0 > 1 && allowed(*s));
                    can.max_by_key(|s| (sides[*s].1, 2 - s))
                };
                let Some(side) = longest(&|s| quota[s] > 0).or_else(|| longest(&|_| true)) else {
                    result[members[0]] = vec![part];
                    continue;
                };
                let cells = apportion(sides[side].0, &[weight(&left), weight(&right)], everyone);
                let (a, b) = part.split(side, cells[0]);
                let mut rest = quota;
                rest[side] = rest[side].saturating_sub(1);
                open.push((b, right, rest));
                open.push((a, left, rest));
            }
        }
    }
    result
}

/// How often to halve m, n and k for that many machines, so that one of equal machines with the mean memory moves
/// the fewest bytes, including its blocks; among equals, so that the bytes sent and received by the primary are
/// balanced. With plenty of memory this is the longest side each time.
fn halvings(region: &Region, charges: &CellCharges, seats: &[Seat]) -> [u32; 3] {
    let count = seats.len().max(1) as u64;
    let memory = seats.iter().map(|s| s.memory_bytes / count).sum::<u64>();
    let times = count.next_power_of_two().ilog2();
    let whole = Cells3::whole(region);
    let sides = whole.lengths(region);
    let can = |side: usize, halved: u32| sides[side].0 >> halved > 0;
    let mut best: Option<(f64, f64, [u32; 3])> = None;
    for i in (0..=times).filter(|i| can(0, *i)) {
        for j in (0..=times - i).filter(|j| can(1, *j)) {
            let cut = [i, j, times - i - j];
            if !can(2, cut[2]) {
                continue;
            }
            let cells = |side: usize| sides[side].0.div_ceil(1 << cut[side]);
            let [m, n, k] = core::array::from_fn(|side| sides[side].1 as f64 / f64::from(1u32 << cut[side]));
            let rect = Rect::new(Span::new(0, cells(0)), Span::new(0, cells(1)));
            let Some(block) = largest_block(region, charges, rect, cells(2), memory) else { continue };
            let (across, down) = (cells(1).div_ceil(block.cols) as f64, cells(0).div_ceil(block.rows) as f64);
            let (out, back) = (m * k * across + k * n * down, m * n);
            let (all, longer) = (out + back, out.max(back));
            if best.is_none_or(|b| all < b.0 * 0.999 || (all <= b.0 * 1.001 && longer < b.1 * 0.999)) {
                best = Some((all, longer, cut));
            }
        }
    }
    best.map_or([times; 3], |b| b.2)
}

/// Members, fastest first, in two groups of about equal weight and, where all are equal, equal number.
fn halves(members: &[usize], seats: &[Seat]) -> (Vec<usize>, Vec<usize>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let (mut weight_left, mut weight_right) = (0.0, 0.0);
    for member in members {
        if weight_left <= weight_right {
            weight_left += seats[*member].weight;
            left.push(*member);
        } else {
            weight_right += seats[*member].weight;
            right.push(*member);
        }
    }
    (left, right)
}

/// A machine's box in parts of k, if it has fewer concurrent products than threads.
fn for_threads(part: Cells3, products: u64, threads: u32) -> Vec<Cells3> {
    let parts = (u64::from(threads) / products.max(1)).clamp(1, part.steps.len().max(1));
    let each = part.steps.len().div_ceil(parts).max(1);
    let spans = (0..parts).map(|p| {
        let start = (part.steps.start + p * each).min(part.steps.end);
        Span::new(start, (start + each).min(part.steps.end))
    });
    spans.filter(|s| !s.is_empty()).map(|steps| Cells3 { steps, ..part }).collect()
}
