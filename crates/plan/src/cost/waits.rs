//! Waits within a share, independent of its machine: its rounds of sending and returning, and how much later work
//! ends that can only begin when its panels have arrived.
//!
//! Place in the flow: formulas of `seconds`, each of plain numbers.

use crate::{PanelOrder, Share};

/// The part of the results of a step that is still being returned after it, if the step takes `step_s` and its
/// results need `home_s`. When a fraction f of the panels has arrived, f² of the tiles have both of theirs: so
/// results cannot return evenly.
pub(super) fn after_s(step_s: f64, home_s: f64) -> f64 {
    if 2.0 * home_s <= step_s { 0.0 } else { home_s - step_s + step_s * step_s / (4.0 * home_s) }
}

/// Rounds of a share, and of one of its blocks: steps, groups of columns, or rows and columns at a time.
pub(super) fn rounds(share: &Share) -> (u64, u64) {
    let (down, across, deep) = share.blocks_each_way();
    match share.order {
        PanelOrder::Steps | PanelOrder::Ending(_) => {
            (down.saturating_mul(across).saturating_mul(share.steps.len()), share.block.steps)
        }
        PanelOrder::Columns(group) => {
            let groups = |cols: u64| cols.div_ceil(group.max(1));
            (
                down.saturating_mul(groups(share.cells.cols.len())).saturating_mul(deep),
                groups(share.block.cols),
            )
        }
        // A row and a column of cells.
        PanelOrder::Corner => {
            let lines = share.block.rows.min(share.block.cols);
            (share.blocks().saturating_mul(lines), lines)
        }
    }
}

/// Cells times steps with a product in a unit: a step, a group of columns, or rows and columns.
pub(super) fn cells_a_unit(share: &Share) -> u64 {
    let block = share.block;
    match share.order {
        PanelOrder::Steps | PanelOrder::Ending(_) => block.rows.saturating_mul(block.cols),
        PanelOrder::Columns(group) => {
            block.rows.saturating_mul(group.min(block.cols)).saturating_mul(block.steps)
        }
        PanelOrder::Corner => block.rows.saturating_add(block.cols).saturating_mul(block.steps),
    }
}

/// The fraction of all results that returns last, and the part of a unit in which it is computed.
pub(super) fn last_results(share: &Share, units: f64) -> (f64, f64) {
    let all_blocks = share.blocks().max(1) as f64;
    match share.order {
        PanelOrder::Steps => (1.0 / all_blocks, 1.0),
        PanelOrder::Columns(_) | PanelOrder::Corner => (1.0 / units, 1.0 / share.block.steps.max(1) as f64),
        // A column of that many steps.
        PanelOrder::Ending(last) => {
            let columns = share.block.cols.max(1) as f64;
            (1.0 / (all_blocks * columns), last.min(share.block.steps) as f64 / columns)
        }
    }
}

/// The number of possible jobs of a step is the square of the fraction of its panels that have arrived. If a step
/// arrives in `there_s` and computes in `step_s`, it is done this long after its last panel.
pub(super) fn lag_s(there_s: f64, step_s: f64) -> f64 {
    if step_s <= 0.0 || there_s >= 2.0 * step_s {
        return 0.0;
    }
    let more_s = there_s * there_s / (4.0 * step_s);
    more_s + (step_s - there_s).min(0.0)
}

/// A fraction f of all panels, which arrive in `net_s`, makes f² of the `work_s` of work possible: how much later
/// the work ends than if it could begin at once. The worst moment is at f = net / (2 work).
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
        // Work that takes half the time of its panels ends with them; more work ends later than the panels, by less
        // and less.
        assert_eq!((behind_s(4.0, 2.0), behind_s(4.0, 4.0), behind_s(4.0, 8.0)), (2.0, 1.0, 0.5));
        assert_eq!(behind_s(4.0, 1.0) + 1.0, 4.0);
    }
}
