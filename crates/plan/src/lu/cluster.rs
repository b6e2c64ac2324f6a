//! LU on several machines: the width of the block columns, their owners, the bound and the prediction.
//!
//! Place in the flow: after the machines have said how fast they are and how much memory they offer, before the first column.
//!
//! Invariants: every block column has one owner, whose memory holds all of its own. Columns are dealt from right to
//! left, each to the machine that would be done with its own first, so that every remainder of the matrix is shared in
//! proportion to the speeds (Boulet, Dongarra, Rastello, Robert & Vivien, "Algorithmic issues on heterogeneous
//! computing platforms", 1999). The prediction is never below the bound.
//!
//! Deliberately absent: panels that several machines factor together.

use super::tasks::{LuTaskModel, lu_operations, real, update_flops};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// Widths of a block column that are compared.
const WIDTHS: [usize; 7] = [32, 64, 96, 128, 192, 256, 384];
/// Panels that each machine keeps at least, unless the user has said fewer: one in use, one that comes, one ahead.
pub const DEPTH_MIN: usize = 3;
/// Numbers of panels that are compared for systems whose columns come from one process.
const DEPTHS: [usize; 4] = [DEPTH_MIN, 6, 10, 16];
/// Panels take memory: more of them are kept only if that leaves less than this of the time.
const DEEPER_PAYS: f64 = 0.99;
/// Bytes that a thread reads in a second per Gflop/s of its products, in the back-substitution.
const READ_BYTES_PER_FLOP: f64 = 0.06;
/// Bytes of an element of a right-hand side.
const RIGHT_ELEMENT: f64 = 8.0;

/// A machine that may take part.
#[derive(Clone, Debug, PartialEq)]
pub struct LuMachine {
    /// Its name.
    pub name: String,
    /// Compute threads.
    pub threads: usize,
    /// All threads together, multiplying large matrices, Gflop/s.
    pub gflops: f64,
    /// Memory that it offers.
    pub memory_bytes: u64,
    /// Bytes a second between it and others; `None` if unknown or within one machine.
    pub bytes_per_s: Option<f64>,
    /// Seconds of a round trip.
    pub round_trip_s: f64,
    /// How its tasks relate to its products.
    pub tasks: LuTaskModel,
}

/// Columns that come from one process while the machines eliminate. As many steps as a machine keeps panels can be done before
/// the last column is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComingColumns {
    /// Bytes a second to all machines together.
    pub bytes_per_s: f64,
}

impl ComingColumns {
    /// Over the link of the process that has them, or the machines' links together if these are slower.
    pub fn over(bytes_per_s: Option<f64>, machines: &[LuMachine]) -> Self {
        let all: f64 = machines.iter().map(|machine| machine.bytes_per_s.unwrap_or(f64::INFINITY)).sum();
        Self { bytes_per_s: bytes_per_s.unwrap_or(f64::INFINITY).min(all) }
    }
}

/// The sizes that a machine's memory depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSizes {
    /// Rows.
    pub order: usize,
    /// Panels that it keeps.
    pub depth: usize,
    /// Columns of a block.
    pub width: usize,
    /// Its columns.
    pub columns: usize,
    /// Its compute threads.
    pub threads: usize,
}

/// A system, and the machines that may take part.
pub struct LuCluster<'a> {
    /// Rows, and columns that are eliminated.
    pub order: usize,
    /// Right-hand sides.
    pub extra: usize,
    /// Columns of a block, if the user has said; else they are chosen.
    pub width: Option<usize>,
    /// Panels that each machine keeps, if the user has said; else they are chosen.
    pub depth: Option<usize>,
    /// Bytes of an element of the columns and panels; the machines' rates are those for it.
    pub element_bytes: usize,
    /// The machines.
    pub machines: &'a [LuMachine],
    /// Whether all of them take part, also where fewer would be faster.
    pub keeps_all: bool,
    /// How the columns come to the machines; `None` if they are there before the clock runs.
    pub coming: Option<ComingColumns>,
    /// Memory of a machine's part.
    pub bytes: &'a dyn Fn(PartSizes) -> u64,
}

/// The owners of the columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnDeal {
    /// The machines that take part, by their numbers in the cluster.
    pub machines: Vec<usize>,
    /// The owner of each block column, and of the right-hand sides, which are the last block: a number in `machines`.
    pub owners: Vec<usize>,
    /// Columns of each machine that takes part.
    pub columns: Vec<usize>,
}

/// Bound and prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterEstimate {
    /// No LU on these machines takes less, seconds.
    pub bound_seconds: f64,
    /// Whether the links make that bound, rather than the arithmetic.
    pub is_bound_by_links: bool,
    /// The prediction, seconds.
    pub seconds: f64,
    /// The part of the prediction that is the back-substitution, seconds.
    pub back_seconds: f64,
    /// The part in which machines that have updated their columns wait for the next panel, seconds.
    pub panel_wait_seconds: f64,
    /// The part in which they wait for columns that have not come yet, seconds.
    pub column_wait_seconds: f64,
}

/// Seconds of an elimination, and of its waits.
struct EliminationTime {
    seconds: f64,
    panel_wait: f64,
    column_wait: f64,
}

/// The plan of a factorisation on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct LuPlan {
    /// Columns of a block.
    pub width: usize,
    /// Panels that each machine keeps.
    pub depth: usize,
    /// The columns of each machine.
    pub deal: ColumnDeal,
    /// The bound and the prediction.
    pub estimate: ClusterEstimate,
    /// Machines that would make it slower, by their numbers in the cluster: they take no part.
    pub left_out: Vec<usize>,
    /// Each width of a block that was compared and fits, with its best prediction, seconds.
    pub tried: Vec<(usize, f64)>,
}

/// The system does not fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("it does not fit in the memory of these machines: {needed} bytes for its columns, and {}", table(.offers))]
pub struct LuPlanError {
    /// Bytes of all columns.
    pub needed: u64,
    /// Name and memory of each machine.
    pub offers: Vec<(String, u64)>,
}

fn table(offers: &[(String, u64)]) -> String {
    use core::fmt::Write;
    let mut text = String::new();
    for (at, (name, bytes)) in offers.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{name} offers {bytes}");
    }
    text
}

impl LuCluster<'_> {
    /// The fastest plan: for each width, with all machines, and without one slow machine after another.
    pub fn plan(&self) -> Result<LuPlan, LuPlanError> {
        let mut by_speed: Vec<usize> = (0..self.machines.len()).collect();
        by_speed.sort_by(|a, b| self.machines[*b].gflops.total_cmp(&self.machines[*a].gflops));
        let widths = self.widths();
        let mut tried = Vec::new();
        let mut best: Option<LuPlan> = None;
        for width in widths {
            let Some(found) = self.plan_of_width(width, &by_speed) else { continue };
            tried.push((width, found.estimate.seconds));
            if best.as_ref().is_none_or(|best| found.estimate.seconds < best.estimate.seconds) {
                best = Some(found);
            }
        }
        let best = best.ok_or_else(|| self.too_large())?;
        Ok(LuPlan { tried, ..best })
    }

    /// The fastest plan with blocks of this width; `None` if the system does not fit.
    fn plan_of_width(&self, width: usize, by_speed: &[usize]) -> Option<LuPlan> {
        let mut best: Option<LuPlan> = None;
        for depth in self.depths() {
            let least = if self.keeps_all { by_speed.len() } else { 1 };
            for count in least..=by_speed.len() {
                let mut used = by_speed[..count].to_vec();
                used.sort_unstable();
                let Some(deal) = self.deal((width, depth), used) else { continue };
                let estimate = self.estimate((width, depth), &deal);
                let pays = |best: &LuPlan| if depth > best.depth { DEEPER_PAYS } else { 1.0 };
                if best.as_ref().is_none_or(|best| estimate.seconds < best.estimate.seconds * pays(best)) {
                    let left_out =
                        (0..self.machines.len()).filter(|at| !deal.machines.contains(at)).collect();
                    best = Some(LuPlan { width, depth, deal, estimate, left_out, tried: Vec::new() });
                }
            }
        }
        best
    }

    /// Widths of a block that are compared.
    pub fn widths(&self) -> Vec<usize> {
        self.width.map_or_else(|| WIDTHS.to_vec(), |width| vec![width])
    }

    /// Numbers of panels that are compared.
    pub(super) fn depths(&self) -> Vec<usize> {
        match (self.depth, self.coming) {
            (Some(depth), _) => vec![depth],
            (None, Some(_)) => DEPTHS.to_vec(),
            (None, None) => vec![DEPTH_MIN],
        }
    }

    /// An error if the system does not fit without the `lost` machines that offer the most memory.
    pub fn fits_without(&self, lost: usize) -> Result<(), LuPlanError> {
        LuCluster { machines: &self.without_largest(lost), keeps_all: false, ..*self }.plan().map(drop)
    }

    /// The machines but for the `lost` ones that offer the most memory.
    pub(super) fn without_largest(&self, lost: usize) -> Vec<LuMachine> {
        let mut machines = self.machines.to_vec();
        machines.sort_by_key(|machine| machine.memory_bytes);
        machines.truncate(machines.len().saturating_sub(lost));
        machines
    }

    fn too_large(&self) -> LuPlanError {
        let columns = self.order.saturating_add(self.extra);
        let width = self.width.unwrap_or(WIDTHS[0]);
        LuPlanError {
            needed: self.part_bytes((width, self.depths()[0]), columns, 1),
            offers: self.machines.iter().map(|m| (m.name.clone(), m.memory_bytes)).collect(),
        }
    }

    /// Memory of a machine's part.
    fn part_bytes(&self, (width, depth): (usize, usize), columns: usize, threads: usize) -> u64 {
        (self.bytes)(PartSizes { order: self.order, depth, width, columns, threads })
    }

    /// The columns of a block.
    fn columns(&self, width: usize, block: usize) -> usize {
        match block < self.order.div_ceil(width) {
            true => width.min(self.order - block * width),
            false => self.extra,
        }
    }

    /// Deals the columns among these machines; `None` if one of them would get none, or the memory does not suffice.
    fn deal(&self, sizes: (usize, usize), machines: Vec<usize>) -> Option<ColumnDeal> {
        let mut deal = self.proportional_deal(sizes, machines)?;
        if self.keeps_all {
            self.give_all_some(sizes, &mut deal);
        }
        deal.columns.iter().all(|count| *count > 0).then_some(deal)
    }

    /// Deals the columns among these machines, of which some may get none; `None` if the memory does not suffice.
    pub(super) fn proportional_deal(
        &self,
        (width, depth): (usize, usize),
        machines: Vec<usize>,
    ) -> Option<ColumnDeal> {
        let blocks = self.order.div_ceil(width) + 1;
        let (mut owners, mut columns) = (vec![0; blocks], vec![0; machines.len()]);
        for block in (0..blocks).rev() {
            let more = self.columns(width, block);
            let mut least: Option<(f64, usize)> = None;
            for (at, machine) in machines.iter().map(|at| &self.machines[*at]).enumerate() {
                let with = columns[at] + more;
                let has_room = self.part_bytes((width, depth), with, machine.threads) <= machine.memory_bytes;
                let time = real(with) / machine.update_flops_per_s(width);
                // Of equals the last: from left to right the owners then follow the ring, and the next panel's owner is the
                // first to which a panel goes.
                if has_room && least.is_none_or(|(best, _)| time <= best) {
                    least = Some((time, at));
                }
            }
            let (_, owner) = least?;
            (owners[block], columns[owner]) = (owner, columns[owner] + more);
        }
        Some(ColumnDeal { machines, owners, columns })
    }

    /// Gives each machine that is too slow for any block one of the first, which take part in the fewest steps, if it has room
    /// and there are enough.
    fn give_all_some(&self, (width, depth): (usize, usize), deal: &mut ColumnDeal) {
        let (mut block, panels) = (0, self.order.div_ceil(width));
        for (at, number) in deal.machines.iter().enumerate() {
            let machine = &self.machines[*number];
            while deal.columns[at] == 0 && block < panels {
                let (owner, columns) = (deal.owners[block], self.columns(width, block));
                let bytes = self.part_bytes((width, depth), columns, machine.threads);
                if deal.columns[owner] > columns && bytes <= machine.memory_bytes {
                    (deal.columns[owner], deal.columns[at]) = (deal.columns[owner] - columns, columns);
                    deal.owners[block] = at;
                }
                block += 1;
            }
        }
    }

    /// The bound and the prediction for a deal.
    fn estimate(&self, (width, depth): (usize, usize), deal: &ColumnDeal) -> ClusterEstimate {
        let machines: Vec<&LuMachine> = deal.machines.iter().map(|at| &self.machines[*at]).collect();
        let flops = lu_operations(self.order);
        let all: f64 = machines.iter().map(|machine| machine.gflops).sum();
        let (compute, links) = (flops / all / 1e9, self.link_bound(width, &machines, deal));
        let links = links.max(self.coming_seconds());
        let bound_seconds = f64::max(compute, links);
        let back_seconds = self.back_seconds(width, deal, &machines);
        let elimination = self.elimination_time((width, depth), deal, &machines);
        ClusterEstimate {
            bound_seconds,
            is_bound_by_links: links > compute,
            seconds: f64::max(elimination.seconds + back_seconds, bound_seconds),
            back_seconds,
            panel_wait_seconds: elimination.panel_wait,
            column_wait_seconds: elimination.column_wait,
        }
    }

    /// Bytes of an element of the columns.
    fn element(&self) -> f64 {
        real(self.element_bytes)
    }

    /// Seconds in which all columns come.
    fn coming_seconds(&self) -> f64 {
        let bytes = real(self.order) * real(self.order + self.extra) * self.element();
        self.coming.map_or(0.0, |coming| bytes / coming.bytes_per_s)
    }

    /// Each machine receives the panels of the others, as long as it has columns right of them.
    fn link_bound(&self, width: usize, machines: &[&LuMachine], deal: &ColumnDeal) -> f64 {
        let (mut right, mut received) = (deal.columns.clone(), vec![0.0; machines.len()]);
        for step in 0..self.order.div_ceil(width) {
            let (owner, columns) = (deal.owners[step], self.columns(width, step));
            right[owner] -= columns;
            let bytes = real(self.order - step * width) * real(columns) * self.element();
            let needs = |at: usize| at != owner && right[at] > 0;
            (0..machines.len()).filter(|at| needs(*at)).for_each(|at| received[at] += bytes);
        }
        let seconds =
            |(machine, bytes): (&&LuMachine, &f64)| machine.bytes_per_s.map_or(0.0, |rate| bytes / rate);
        machines.iter().zip(&received).map(seconds).fold(0.0, f64::max)
    }

    /// The time of the elimination. In each step all machines update their columns, while the next panel's owner updates that
    /// block first, factors it on one thread, and sends it around the ring. Steps after the first `depth` wait for the last
    /// column.
    fn elimination_time(
        &self,
        (width, depth): (usize, usize),
        deal: &ColumnDeal,
        machines: &[&LuMachine],
    ) -> EliminationTime {
        let panels = self.order.div_ceil(width);
        let mut right = deal.columns.clone();
        let rate = machines.iter().filter_map(|machine| machine.bytes_per_s).fold(f64::INFINITY, f64::min);
        let last_early = self.coming.map_or(0, |_| depth.clamp(1, panels));
        let first = self.panel_seconds(width, 0, deal, machines);
        let mut time = EliminationTime { seconds: first, panel_wait: first, column_wait: 0.0 };
        for step in 0..panels {
            let columns = self.columns(width, step);
            right[deal.owners[step]] -= columns;
            let rows = self.order - step * width;
            let next = (step + 1 < panels).then(|| deal.owners[step + 1]);
            let panel = next.map_or(0.0, |_| self.panel_seconds(width, step + 1, deal, machines));
            let mut longest = 0.0f64;
            for (at, machine) in machines.iter().enumerate() {
                let update = update_flops(rows, columns, right[at]) / machine.update_flops_per_s(width);
                let own_panel = if next == Some(at) { panel / real(machine.threads) } else { 0.0 };
                longest = longest.max(update + own_panel);
            }
            let chain = next.map_or(0.0, |owner| {
                let machine = machines[owner];
                let one = machine.update_flops_per_s(width) / real(machine.threads);
                let bytes = real(rows.saturating_sub(columns)) * real(columns) * self.element();
                let travel = if machines.len() > 1 { bytes / rate } else { 0.0 };
                update_flops(rows, columns, columns) / one + panel + travel
            });
            time.seconds += longest.max(chain);
            time.panel_wait += (chain - longest).max(0.0);
            if step + 1 == last_early {
                time.column_wait = (self.coming_seconds() - time.seconds).max(0.0);
                time.seconds += time.column_wait;
            }
        }
        time
    }

    /// Seconds that one thread of the panel's owner takes to factor it.
    fn panel_seconds(&self, width: usize, step: usize, deal: &ColumnDeal, machines: &[&LuMachine]) -> f64 {
        machines[deal.owners[step]].panel_seconds(self.order - step * width, self.columns(width, step))
    }

    /// Seconds of the back-substitution: every machine reads its part of U, one after another, and the right-hand sides go to it
    /// and back for each of its blocks.
    fn back_seconds(&self, width: usize, deal: &ColumnDeal, machines: &[&LuMachine]) -> f64 {
        let n = real(self.order);
        let of = |(machine, columns): (&&LuMachine, &usize)| {
            let part = real(*columns) / n;
            let read = n * n / 2.0 * part / (machine.thread_flops_per_s() * READ_BYTES_PER_FLOP);
            let blocks = real(*columns / width.max(1));
            let rows = n / 2.0 * blocks * real(self.extra) * RIGHT_ELEMENT * 2.0;
            read + rows / machine.bytes_per_s.unwrap_or(f64::INFINITY) + blocks * machine.round_trip_s
        };
        machines.iter().zip(&deal.columns).map(of).sum()
    }
}

#[cfg(test)]
mod tests;
