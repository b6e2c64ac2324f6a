//! What waits for what within a share, whatever its machine: in which rounds it comes and goes, and by how much what can only
//! begin when panels are there ends later than they.
//!
//! Place in the flow: formulas of `seconds`, each of plain numbers.

use crate::{Order, Share};

/// What of the results of a step that takes so long is still on its way home after it, where they need `home_s`. When a
/// part f of the panels is there, f² of the tiles have both of theirs: they cannot leave evenly.
pub(super) fn after_s(step_s: f64, home_s: f64) -> f64 {
    if 2.0 * home_s <= step_s { 0.0 } else { home_s - step_s + step_s * step_s / (4.0 * home_s) }
}

/// Rounds of a share, and of one of its blocks: steps, groups of columns, or rows and columns at a time.
pub(super) fn rounds(share: &Share) -> (u64, u64) {
    let (down, across, deep) = share.blocks_each_way();
    match share.order {
        Order::Steps | Order::Ending(_) => {
            (down.saturating_mul(across).saturating_mul(share.steps.len()), share.block.steps)
        }
        Order::Columns(group) => {
            let groups = |cols: u64| cols.div_ceil(group.max(1));
            (
                down.saturating_mul(groups(share.cells.cols.len())).saturating_mul(deep),
                groups(share.block.cols),
            )
        }
        // A row and a column of cells.
        Order::Corner => {
            let lines = share.block.rows.min(share.block.cols);
            (share.blocks().saturating_mul(lines), lines)
        }
    }
}

/// Cells times steps that have a product in a unit: a step, a group of columns, or rows and columns.
pub(super) fn cells_a_unit(share: &Share) -> u64 {
    let block = share.block;
    match share.order {
        Order::Steps | Order::Ending(_) => block.rows.saturating_mul(block.cols),
        Order::Columns(group) => block.rows.saturating_mul(group.min(block.cols)).saturating_mul(block.steps),
        Order::Corner => block.rows.saturating_add(block.cols).saturating_mul(block.steps),
    }
}

/// The part of all results that comes home last, and in what part of one of the units it is done.
pub(super) fn last_results(share: &Share, units: f64) -> (f64, f64) {
    let all_blocks = share.blocks().max(1) as f64;
    match share.order {
        Order::Steps => (1.0 / all_blocks, 1.0),
        Order::Columns(_) | Order::Corner => (1.0 / units, 1.0 / share.block.steps.max(1) as f64),
        // A column of so many steps.
        Order::Ending(last) => {
            let columns = share.block.cols.max(1) as f64;
            (1.0 / (all_blocks * columns), last.min(share.block.steps) as f64 / columns)
        }
    }
}

/// Jobs of a step become possible as the square of the part of its panels that have come. Where a step comes in
/// `there_s` and computes in `step_s`, it is done that long after its last panel.
pub(super) fn lag_s(there_s: f64, step_s: f64) -> f64 {
    if step_s <= 0.0 || there_s >= 2.0 * step_s {
        return 0.0;
    }
    let more_s = there_s * there_s / (4.0 * step_s);
    more_s + (step_s - there_s).min(0.0)
}

/// The part f of all panels, which come in `net_s`, makes f² of what takes `work_s` possible: by how much that ends later
/// than if it could begin at once. The worst moment is at f = net / (2 work).
pub(super) fn behind_s(net_s: f64, work_s: f64) -> f64 {
    if net_s < 2.0 * work_s { net_s * net_s / (4.0 * work_s) } else { net_s - work_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_lags_behind_panels_most_where_both_take_equally_long() {
        assert_eq!(lag_s(4.0, 4.0), 1.0);
        assert_eq!((lag_s(8.0, 4.0), lag_s(0.0, 4.0), lag_s(1.0, 0.0)), (0.0, 0.0, 0.0));
        assert!(lag_s(6.0, 4.0) < 1.0 && lag_s(2.0, 4.0) < 1.0);
    }

    #[test]
    fn what_grows_as_a_square_ends_later_by_what_its_worst_moment_lacks() {
        // Work that takes half the time of its panels ends with them; more work ends later than they, by less and less.
        assert_eq!((behind_s(4.0, 2.0), behind_s(4.0, 4.0), behind_s(4.0, 8.0)), (2.0, 1.0, 0.5));
        assert_eq!(behind_s(4.0, 1.0) + 1.0, 4.0);
    }
}
