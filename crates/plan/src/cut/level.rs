//! Moves cells from machines with more than their part to machines with less: rectangles of few cells can be far
//! from the parts that speeds require (five equal machines on 16 × 16 cells have 48 to 60 cells each).
//!
//! Place in the flow: after the boxes of a strategy that does not cut k; the cost model decides whether the gain is
//! worth the panels that are then sent again.
//!
//! Invariants: the boxes stay disjoint and cover the same cells; only single rows or columns of cells, or parts of
//! them, are moved; the longest time, cells over weight, never grows; every machine keeps at least one cell.

use super::boxes::Cells3;
use alloc::vec::Vec;
use bramble_base::Span;
use bramble_base::float::round;

/// Most moves per machine.
const MOVES_MAX: usize = 4;

/// Balances boxes. The first box of each machine is its own part; the boxes after it are strips, which are computed
/// last.
pub(super) fn level(boxes: &mut [Vec<Cells3>], weights: &[f64]) {
    let has_one = |boxes: &[Vec<Cells3>]| boxes.iter().all(|mine| mine.len() <= 1);
    let steps: Vec<Span> = boxes.iter().flatten().map(|b| b.steps).collect();
    if !has_one(boxes) || steps.windows(2).any(|w| w[0] != w[1]) {
        return;
    }
    let mut counts: Vec<u64> = boxes.iter().map(|mine| mine.iter().map(Cells3::count).sum()).collect();
    let total = counts.iter().sum::<u64>() as f64;
    let sum: f64 = weights.iter().sum();
    let share = |at: usize| total * weights[at] / sum;
    for _ in 0..MOVES_MAX * boxes.len() {
        let time = |at: usize, count: u64| count as f64 / weights[at];
        let by_time = |a: &usize, b: &usize| time(*a, counts[*a]).total_cmp(&time(*b, counts[*b]));
        let used = || (0..boxes.len()).filter(|at| counts[*at] > 0);
        let (Some(from), Some(to)) = (used().max_by(by_time), used().min_by(by_time)) else { return };
        let (over, under) = (counts[from] as f64 - share(from), share(to) - counts[to] as f64);
        let wanted = (round(over.min(under)) as u64).max(1);
        // Only while it shortens the longest time.
        let shortens = time(to, counts[to] + wanted) < time(from, counts[from]);
        if counts[from] <= wanted || !shortens {
            return;
        }
        let Some(strip) = cut_off(&mut boxes[from], wanted) else { return };
        counts[from] -= strip.count();
        counts[to] += strip.count();
        boxes[to].push(strip);
    }
}

/// At most `wanted` cells from the end of the last box.
fn cut_off(mine: &mut Vec<Cells3>, wanted: u64) -> Option<Cells3> {
    let last = mine.last_mut()?;
    let (rows, cols) = (last.cells.rows.len(), last.cells.cols.len());
    if rows > 1 && cols > 1 {
        // Lines of the shorter side: few panels for the cells that are cut off.
        let (side, lines, length) = if rows >= cols { (0, rows, cols) } else { (1, cols, rows) };
        let count = (wanted / length).clamp(1, lines - 1);
        let (rest, cut) = last.split(side, lines - count);
        *last = rest;
        if count * length <= wanted {
            return Some(cut);
        }
        mine.push(cut);
    }
    let line = mine.pop()?;
    let (side, length) = match (line.cells.rows.len(), line.cells.cols.len()) {
        (1, cols) => (1, cols),
        (rows, _) => (0, rows),
    };
    let (rest, cut) = line.split(side, length - wanted.min(length));
    if !rest.is_empty() {
        mine.push(rest);
    }
    Some(cut)
}
