//! C's tiles for unequal machines: rectangles with areas in proportion to speed and a small sum of half perimeters,
//! to which the operands' traffic is proportional.
//!
//! The machines are sorted by speed and put into columns; dynamic programming finds the best column ends (Beaumont,
//! Boudet, Rastello, Robert, "Matrix multiplication on heterogeneous platforms", IEEE TPDS 12(10), 2001:
//! column-based partitions are within a small factor of the optimum).
//!
//! Invariant: the rectangles are disjoint and cover the grid. A machine may get none.

use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// One rectangle of tiles for each weight, in the order of the weights; `None` for a machine whose share rounds to
/// zero. `rows` and `cols` are the grid's, `height` and `width` the elements of C in these directions (they set the
/// cost of a half perimeter). With `everyone` no share rounds to zero, if its column has enough tiles.
pub fn partition(
    rows: u64,
    cols: u64,
    height: f64,
    width: f64,
    weights: &[f64],
    everyone: bool,
) -> Vec<Option<Rect>> {
    let mut order: Vec<usize> =
        (0..weights.len()).filter(|i| weights[*i] > 0.0 && weights[*i].is_finite()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
    let mut result = vec![None; weights.len()];
    if order.is_empty() || rows == 0 || cols == 0 {
        return result;
    }
    let sorted: Vec<f64> = order.iter().map(|i| weights[*i]).collect();
    let columns = columns(&sorted, height, width);
    let column_weights: Vec<f64> = columns.iter().map(|c| sorted[c.clone()].iter().sum()).collect();
    let mut col = 0;
    for (members, share) in columns.into_iter().zip(apportion(cols, &column_weights, everyone)) {
        let across = Span::new(col, col + share);
        col += share;
        let mut row = 0;
        for (place, tall) in members.clone().zip(apportion(rows, &sorted[members], everyone)) {
            let down = Span::new(row, row + tall);
            row += tall;
            if !across.is_empty() && !down.is_empty() {
                result[order[place]] = Some(Rect::new(down, across));
            }
        }
    }
    result
}

/// The column ends for sorted machines that minimise Σ (machines in column × its width) + height over the columns.
fn columns(sorted: &[f64], height: f64, width: f64) -> Vec<core::ops::Range<usize>> {
    let total: f64 = sorted.iter().sum();
    let mut prefix = vec![0.0];
    for weight in sorted {
        prefix.push(prefix[prefix.len() - 1] + weight / total);
    }
    let mut best = vec![(f64::INFINITY, 0usize); sorted.len() + 1];
    best[0] = (0.0, 0);
    for end in 1..=sorted.len() {
        for start in 0..end {
            let cost = best[start].0 + (end - start) as f64 * (prefix[end] - prefix[start]) * width + height;
            if cost < best[end].0 {
                best[end] = (cost, start);
            }
        }
    }
    let mut cuts = Vec::new();
    let mut end = sorted.len();
    while end > 0 {
        cuts.push(best[end].1..end);
        end = best[end].1;
    }
    cuts.reverse();
    cuts
}

/// Distributes `total` units in proportion to the weights. Each next unit goes to the machine for which the
/// resulting time (units / weight) is least, which minimises the slowest finish. With `everyone` each gets at least
/// one, if there are enough. Weights are positive and finite.
pub(super) fn apportion(total: u64, weights: &[f64], everyone: bool) -> Vec<u64> {
    let sum: f64 = weights.iter().sum();
    let mut left = total;
    let mut units = Vec::with_capacity(weights.len());
    let least = u64::from(everyone && total >= weights.len() as u64);
    for (at, weight) in weights.iter().enumerate() {
        let others = least * (weights.len() - at - 1) as u64;
        let part = ((total as f64 * weight / sum) as u64).max(least).min(left - others);
        units.push(part);
        left -= part;
    }
    // Rounding has left less than one unit per weight.
    while left > 0 {
        let next = (0..weights.len()).min_by(|a, b| {
            let time = |i: &usize| (units[*i] + 1) as f64 / weights[*i];
            time(a).total_cmp(&time(b)).then(a.cmp(b))
        });
        let Some(next) = next else { return units };
        units[next] += 1;
        left -= 1;
    }
    units
}
