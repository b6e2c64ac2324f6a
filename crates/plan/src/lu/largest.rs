//! The order of a benchmark's system that fills the memory of a cluster.
//!
//! Place in the flow: `bench hpl` on workers asks if the user has named no order.
//!
//! Invariant: there is a plan for the order that is returned, also after the losses that the run is to survive.
//!
//! Deliberately absent: a limit of the time. The rules of HPL leave N to the user, and the rate grows with it.

use super::cluster::{LuCluster, LuMachine};
use super::tasks::lu_operations;
use alloc::vec::Vec;

/// Blocks that the order may be smaller than the memory alone would allow.
const FEWER_BLOCKS_MAX: usize = 8;

impl LuCluster<'_> {
    /// Each width of a block has an order, at most `self.order`, that fills the memory. Of these orders the one with the highest
    /// predicted rate; `None` if not even one block fits. Wide panels need memory, so the order is smaller, and narrow ones slow
    /// the run. The system also fits without the `losses` machines that offer the most memory.
    pub fn largest(&self, losses: usize) -> Option<usize> {
        let left = self.without_largest(losses);
        let mut best: Option<(f64, usize)> = None;
        for width in self.widths() {
            let Some((order, seconds)) = self.planned(width, self.filling(width, &left), losses) else {
                continue;
            };
            let rate = lu_operations(order) / seconds;
            if best.is_none_or(|(fastest, _)| rate > fastest) {
                best = Some((rate, order));
            }
        }
        best.map(|(_, order)| order)
    }

    /// That order, or one a few blocks smaller, for which there is a plan, with its time: where the memory is full to the last
    /// block, whether a deal fits depends on the order of the machines.
    fn planned(&self, width: usize, order: usize, losses: usize) -> Option<(usize, f64)> {
        let orders = (0..FEWER_BLOCKS_MAX).map(|fewer| order.saturating_sub(fewer * width));
        orders.take_while(|order| *order > 0).find_map(|order| {
            let cluster = LuCluster { order, ..*self };
            if losses > 0 && cluster.fits_without(losses).is_err() {
                return None;
            }
            cluster.plan().ok().map(|plan| (order, plan.estimate.seconds))
        })
    }

    /// The largest order that fits these machines in blocks of this width, a multiple of it unless it is `self.order`; 0 if none
    /// fits.
    fn filling(&self, width: usize, machines: &[LuMachine]) -> usize {
        let depth = self.depths()[0];
        let fits = |order: usize| {
            let all: Vec<usize> = (0..machines.len()).collect();
            LuCluster { order, machines, ..*self }.proportional_deal((width, depth), all).is_some()
        };
        if fits(self.order) {
            return self.order;
        }
        // In blocks.
        let (mut fit, mut over) = (0, self.order.div_ceil(width));
        while over - fit > 1 {
            let middle = fit + (over - fit) / 2;
            if fits(middle * width) { fit = middle } else { over = middle }
        }
        fit * width
    }
}
