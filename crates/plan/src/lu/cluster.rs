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

/// Columns that come from one process while the machines eliminate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComingColumns {
    /// Bytes a second to all machines together.
    pub bytes_per_s: f64,
    /// Steps of the elimination that can be done before the last column is there: the panels that a machine keeps.
    pub steps: usize,
}

/// A system, and the machines that may take part.
pub struct LuCluster<'a> {
    /// Rows, and columns that are eliminated.
    pub order: usize,
    /// Right-hand sides.
    pub extra: usize,
    /// Columns of a block, if the user has said; else they are chosen.
    pub width: Option<usize>,
    /// Bytes of an element of the columns and panels; the machines' rates are those for it.
    pub element_bytes: usize,
    /// The machines.
    pub machines: &'a [LuMachine],
    /// Whether all of them take part, also where fewer would be faster.
    pub keeps_all: bool,
    /// How the columns come to the machines; `None` if they are there before the clock runs.
    pub coming: Option<ComingColumns>,
    /// Memory of a machine's part, as a function of (columns of a block, columns of the part, threads).
    pub bytes: &'a dyn Fn(usize, usize, usize) -> u64,
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
}

/// The plan of a factorisation on a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct LuPlan {
    /// Columns of a block.
    pub width: usize,
    /// The columns of each machine.
    pub deal: ColumnDeal,
    /// The bound and the prediction.
    pub estimate: ClusterEstimate,
    /// Machines that would make it slower, by their numbers in the cluster: they take no part.
    pub left_out: Vec<usize>,
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
        let widths = self.width.map_or_else(|| WIDTHS.to_vec(), |width| vec![width]);
        let mut best: Option<LuPlan> = None;
        for width in widths {
            let least = if self.keeps_all { by_speed.len() } else { 1 };
            for count in least..=by_speed.len() {
                let mut used = by_speed[..count].to_vec();
                used.sort_unstable();
                let Some(deal) = self.deal(width, used) else { continue };
                let estimate = self.estimate(width, &deal);
                if best.as_ref().is_none_or(|best| estimate.seconds < best.estimate.seconds) {
                    let left_out =
                        (0..self.machines.len()).filter(|at| !deal.machines.contains(at)).collect();
                    best = Some(LuPlan { width, deal, estimate, left_out });
                }
            }
        }
        best.ok_or_else(|| self.too_large())
    }

    /// An error if the system does not fit without the `lost` machines that offer the most memory.
    pub fn fits_without(&self, lost: usize) -> Result<(), LuPlanError> {
        let mut machines = self.machines.to_vec();
        machines.sort_by_key(|machine| machine.memory_bytes);
        machines.truncate(machines.len().saturating_sub(lost));
        LuCluster { machines: &machines, keeps_all: false, ..*self }.plan().map(drop)
    }

    fn too_large(&self) -> LuPlanError {
        let columns = self.order.saturating_add(self.extra);
        let width = self.width.unwrap_or(WIDTHS[0]);
        LuPlanError {
            needed: (self.bytes)(width, columns, 1),
            offers: self.machines.iter().map(|m| (m.name.clone(), m.memory_bytes)).collect(),
        }
    }

    /// The columns of a block.
    fn columns(&self, width: usize, block: usize) -> usize {
        match block < self.order.div_ceil(width) {
            true => width.min(self.order - block * width),
            false => self.extra,
        }
    }

    /// Deals the columns among these machines; `None` if one of them would get none, or the memory does not suffice.
    fn deal(&self, width: usize, machines: Vec<usize>) -> Option<ColumnDeal> {
        let blocks = self.order.div_ceil(width) + 1;
        let (mut owners, mut columns) = (vec![0; blocks], vec![0; machines.len()]);
        for block in (0..blocks).rev() {
            let more = self.columns(width, block);
            let mut least: Option<(f64, usize)> = None;
            for (at, machine) in machines.iter().map(|at| &self.machines[*at]).enumerate() {
                let with = columns[at] + more;
                let has_room = (self.bytes)(width, with, machine.threads) <= machine.memory_bytes;
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
        let all_have_some = columns.iter().all(|count| *count > 0);
        all_have_some.then_some(ColumnDeal { machines, owners, columns })
    }

    /// The bound and the prediction for a deal.
    fn estimate(&self, width: usize, deal: &ColumnDeal) -> ClusterEstimate {
        let machines: Vec<&LuMachine> = deal.machines.iter().map(|at| &self.machines[*at]).collect();
        let flops = lu_operations(self.order);
        let all: f64 = machines.iter().map(|machine| machine.gflops).sum();
        let (compute, links) = (flops / all / 1e9, self.link_bound(width, &machines, deal));
        let links = links.max(self.coming_seconds());
        let bound_seconds = f64::max(compute, links);
        let back_seconds = self.back_seconds(width, deal, &machines);
        let seconds = self.factor_seconds(width, deal, &machines) + back_seconds;
        ClusterEstimate {
            bound_seconds,
            is_bound_by_links: links > compute,
            seconds: seconds.max(bound_seconds),
            back_seconds,
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

    /// Seconds of the elimination. In each step all machines update their columns, while the next panel's owner updates that
    /// block first, factors it on one thread, and sends it around the ring. Steps after the first few wait for the last column.
    fn factor_seconds(&self, width: usize, deal: &ColumnDeal, machines: &[&LuMachine]) -> f64 {
        let panels = self.order.div_ceil(width);
        let mut right = deal.columns.clone();
        let rate = machines.iter().filter_map(|machine| machine.bytes_per_s).fold(f64::INFINITY, f64::min);
        let last_early = self.coming.map_or(0, |coming| coming.steps.clamp(1, panels));
        let mut seconds = self.panel_seconds(width, 0, deal, machines);
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
            seconds += longest.max(chain);
            if step + 1 == last_early {
                seconds = seconds.max(self.coming_seconds());
            }
        }
        seconds
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn machine(gflops: f64, memory_bytes: u64, bytes_per_s: Option<f64>) -> LuMachine {
        let (name, tasks) = ("w".into(), LuTaskModel::default());
        LuMachine { name, threads: 4, gflops, memory_bytes, bytes_per_s, round_trip_s: 2e-4, tasks }
    }

    fn bytes(order: usize) -> impl Fn(usize, usize, usize) -> u64 {
        move |width, columns, _| 8 * (order * columns + 4 * order * width) as u64
    }

    fn plan(order: usize, width: Option<usize>, machines: &[LuMachine]) -> Result<LuPlan, LuPlanError> {
        let bytes = bytes(order);
        LuCluster {
            order,
            extra: 1,
            width,
            element_bytes: 8,
            machines,
            keeps_all: false,
            coming: None,
            bytes: &bytes,
        }
        .plan()
    }

    #[test]
    fn columns_follow_the_speeds_in_every_remainder() {
        let machines = [4.0, 2.0, 2.0, 1.0].map(|gflops| machine(gflops, 1 << 40, Some(125e6)));
        let LuPlan { deal, left_out, .. } = plan(9000, Some(50), &machines).unwrap();
        assert!(left_out.is_empty());
        for start in [0, 60, 120] {
            let rest = &deal.owners[start..180];
            let count = |at: usize| rest.iter().filter(|owner| **owner == at).count();
            let part = |at: usize| (count(at) * 9 + rest.len() / 2) / rest.len();
            assert_eq!([part(0), part(1), part(2), part(3)], [4, 2, 2, 1], "from block {start} on");
        }
    }

    #[test]
    fn memory_limits_a_share_and_what_does_not_fit_is_refused() {
        let machines = [machine(9.0, 30 << 20, None), machine(1.0, 1 << 30, None)];
        let found = plan(2000, Some(64), &machines).unwrap();
        let with = |columns| bytes(2000)(64, columns, 4);
        assert!(with(found.deal.columns[0]) <= 30 << 20 && found.deal.columns[1] > 0);
        let small = [machine(9.0, 9 << 20, None), machine(1.0, 9 << 20, None)];
        let refused = plan(2000, None, &small).unwrap_err();
        assert_eq!(refused.offers.len(), 2);
        assert!(refused.needed > 18 << 20);
    }

    #[test]
    fn a_loss_of_the_largest_memory_has_to_leave_room_for_all_columns() {
        // Columns take 32 MB in all, and each machine's panels 4 MiB beside them.
        let fits = |memories_mib: &[u64], lost: usize| {
            let machines: Vec<LuMachine> =
                memories_mib.iter().map(|mib| machine(1.0, mib << 20, None)).collect();
            let all = LuCluster {
                order: 2000,
                extra: 1,
                width: Some(64),
                element_bytes: 8,
                machines: &machines,
                keeps_all: false,
                coming: None,
                bytes: &bytes(2000),
            };
            assert!(all.plan().is_ok());
            all.fits_without(lost)
        };
        assert!(fits(&[21, 21, 21], 0).is_ok() && fits(&[24, 24, 24], 1).is_ok());
        let refused = fits(&[21, 60, 15], 1).unwrap_err();
        assert_eq!(refused.offers.iter().map(|(_, bytes)| bytes >> 20).collect::<Vec<_>>(), [15, 21]);
        assert!(fits(&[60, 21, 21, 60], 1).is_ok() && fits(&[60, 21, 15, 60], 2).is_err());
        assert!(fits(&[60, 60], 2).is_err());
    }

    #[test]
    fn a_machine_that_would_slow_the_others_is_left_out() {
        let slow_link = [machine(20.0, 1 << 40, Some(125e6)), machine(0.5, 1 << 40, Some(1e6))];
        assert_eq!(plan(4000, None, &slow_link).unwrap().left_out, [1]);
        let all = LuCluster {
            order: 4000,
            extra: 1,
            width: None,
            element_bytes: 8,
            machines: &slow_link,
            keeps_all: true,
            coming: None,
            bytes: &bytes(4000),
        };
        assert!(all.plan().unwrap().left_out.is_empty());
        let alike = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(1.25e9)));
        assert!(plan(20_000, None, &alike).unwrap().left_out.is_empty());
    }

    #[test]
    fn elements_of_half_the_size_take_half_of_the_links() {
        let machines = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(1e6)));
        let of = |element_bytes| {
            let cluster = LuCluster {
                order: 4000,
                extra: 1,
                width: Some(100),
                element_bytes,
                machines: &machines,
                keeps_all: true,
                coming: None,
                bytes: &bytes(4000),
            };
            cluster.plan().unwrap().estimate
        };
        let (half, whole) = (of(4), of(8));
        assert!(half.is_bound_by_links && (whole.bound_seconds / half.bound_seconds - 2.0).abs() < 1e-9);
        assert!(half.seconds < 0.6 * whole.seconds, "{half:?} {whole:?}");
    }

    #[test]
    fn columns_that_come_slowly_hide_the_first_steps_only() {
        let machines = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(1.25e9)));
        let of = |coming| {
            let cluster = LuCluster {
                order: 4000,
                extra: 1,
                width: Some(100),
                element_bytes: 8,
                machines: &machines,
                keeps_all: true,
                coming,
                bytes: &bytes(4000),
            };
            cluster.plan().unwrap().estimate
        };
        let coming = |bytes_per_s, steps| of(Some(ComingColumns { bytes_per_s, steps }));
        let (there, way) = (of(None), 4000.0 * 4001.0 * 8.0 / 1e7);
        assert_eq!(coming(1e18, 4), there);
        let (few, half) = (coming(1e7, 4), coming(1e7, 20));
        assert!(few.bound_seconds == way && few.is_bound_by_links);
        let after = |estimate: ClusterEstimate| (estimate.seconds - way) / there.seconds;
        // 1 - (1 - 4/40)^3 and 1 - (1 - 20/40)^3 of the operations.
        assert!((0.65..0.95).contains(&after(few)) && (0.05..0.4).contains(&after(half)), "{few:?} {half:?}");
    }

    proptest! {
        #[test]
        fn a_plan_covers_all_columns_and_is_never_below_its_bound(
            order in 1..3000usize, width in prop::option::of(1..300usize), speeds in prop::collection::vec(0.1..90.0f64, 1..7),
            rate in prop::option::of(1e6..1e9f64),
        ) {
            let machines: Vec<LuMachine> = speeds.into_iter().map(|gflops| machine(gflops, 1 << 40, rate)).collect();
            let found = plan(order, width, &machines).unwrap();
            prop_assert_eq!(found.deal.columns.iter().sum::<usize>(), order + 1);
            prop_assert_eq!(found.deal.owners.len(), order.div_ceil(found.width) + 1);
            prop_assert!(found.estimate.seconds.is_finite());
            prop_assert!(found.estimate.seconds >= found.estimate.bound_seconds);
        }
    }
}
