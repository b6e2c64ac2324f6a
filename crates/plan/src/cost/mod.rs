//! The cost model: seconds and bytes of a plan, machine by machine (docs/cost-model.md has the formulas).
//!
//! Units: seconds, bytes, Gflop/s = 10^9 operations a second. Links are full duplex.
//!
//! Invariant: bytes and memory are exactly those of the schedule, frame by frame; seconds are a model.

mod alone;
mod bytes;
mod flow;
mod relay;
mod seconds;
mod waits;

use crate::memory::CellCharges;
use crate::winograd::Recipe;
use crate::{Machine, Member, PanelOrder, Problem, Region, Relay, Share, Sums, USE_BYTES};
use alloc::string::String;
use alloc::vec::Vec;
pub(crate) use bytes::load;
use bytes::{Load, Relayed};
pub(crate) use relay::may_relay;
pub(crate) use seconds::primary_rate;

/// CPU seconds per byte that the primary sends or receives, on its one event loop. Measured over loopback: the
/// primary spends 0.8 to 0.9 s of CPU time per gigabyte, half of it in the kernel's own threads.
pub(crate) const LOOP_S_PER_BYTE: f64 = 0.45e-9;
/// The same at the worker's end, for workers on the primary's own cores.
pub(crate) const FAR_S_PER_BYTE: f64 = 0.4e-9;
/// Seconds to add a byte of a partial sum to C, which is read from and written to the page cache.
pub(crate) const ADD_S_PER_BYTE: f64 = 0.5e-9;
/// Bytes per second that a machine's threads together read and write in additions of matrices: three per byte of
/// the result. Measured with Strassen's method on two cores of a server; small boards have 4 to 9 GB/s.
pub(crate) const ADDED_BYTES_PER_S: f64 = 6e9;

/// Additions of matrices are bound by memory: the number of kernel operations that take as long as the addition of
/// one element.
pub(crate) fn flops_an_addition(machine: &Machine, element_bytes: u64) -> f64 {
    3.0 * element_bytes as f64 * machine.gflops * 1e9 / ADDED_BYTES_PER_S
}
/// About the number of operands and tiles per credit: credit accumulates while a link is busy.
pub(crate) const FRAMES_A_CREDIT: u64 = 4;

/// The predicted cost of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineCost {
    /// Operations.
    pub flops: f64,
    /// Bytes from the primary to it.
    pub bytes_out: u64,
    /// Bytes that it returns to the primary.
    pub bytes_back: u64,
    /// Bytes that it receives from other workers.
    pub bytes_taken: u64,
    /// Bytes that it sends to other workers.
    pub bytes_given: u64,
    /// Jobs.
    pub jobs: u64,
    /// Most bytes of matrices that it holds.
    pub memory_bytes: u64,
    /// Seconds in kernels.
    pub compute_s: f64,
    /// Seconds of its link, in the busier direction.
    pub link_s: f64,
    /// Its fraction of all work.
    pub part: f64,
    /// Seconds until its last result is returned, if only the machine itself and its link delayed it.
    pub seconds: f64,
}

/// The predicted cost of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// From the first byte sent to the last tile received.
    pub seconds: f64,
    /// The resource that sets the time.
    pub by: Limit,
    /// Bytes sent by the primary.
    pub bytes_sent: u64,
    /// Bytes received by the primary.
    pub bytes_received: u64,
    /// Bytes that workers relay.
    pub bytes_relayed: u64,
    /// Most matrix bytes at once at any one worker.
    pub worker_memory_bytes: u64,
    /// Most bytes of partial sums at the primary, in addition to A, B and C.
    pub primary_memory_bytes: u64,
    /// Each member, in the plan's order.
    pub machines: Vec<MachineCost>,
}

/// The resource that sets the predicted time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// No work.
    #[default]
    Nothing,
    /// The kernels of a machine.
    Compute(String),
    /// The memory traffic of a machine.
    Memory(String),
    /// A machine's link.
    Link(String),
    /// The bytes that the primary sends.
    Egress,
    /// The bytes that the primary receives.
    Ingress,
    /// The primary's own CPU, which handles every byte.
    Primary,
}

impl core::fmt::Display for Limit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Compute(name) => write!(f, "computing at {name}"),
            Self::Memory(name) => write!(f, "the memory of {name}"),
            Self::Link(name) => write!(f, "the link to {name}"),
            Self::Egress => f.write_str("what the primary sends"),
            Self::Ingress => f.write_str("what the primary receives"),
            Self::Primary => f.write_str("the primary's processor, which moves all bytes"),
        }
    }
}

/// The input of the cost model.
pub(crate) struct Costs<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) regions: &'a [Region],
    /// The recipes of the regions, made once for all plans.
    pub(crate) recipes: &'a [Recipe],
    pub(crate) charges: &'a [CellCharges],
    pub(crate) sums: Sums,
    pub(crate) machines: &'a [Machine],
    /// Which members may relay.
    pub(crate) relay: Relay,
}

impl Costs<'_> {
    /// Whether a machine may relay.
    fn relays(&self, machine: &Machine) -> bool {
        machine.link.is_some() && (!machine.shares_cores || self.relay == Relay::On)
    }

    /// Whether these members could relay.
    pub(crate) fn may_relay(&self, members: &[Member]) -> bool {
        let relaying = members.iter().filter(|m| self.relays(&self.machines[m.machine])).count();
        self.relay != Relay::Off
            && relaying > 1
            && may_relay(self.sums == Sums::Chained, self.regions, members)
    }

    /// Seconds and bytes of members with their shares, with or without relaying.
    pub(crate) fn predict(&self, members: &[Member], relay: bool) -> Prediction {
        let relaying: Vec<bool> =
            members.iter().map(|m| relay && self.relays(&self.machines[m.machine])).collect();
        let passed = relay::passed(self.problem, self.regions, members, &relaying);
        let mut p = Prediction::default();
        let loads: Vec<Vec<Load>> = members.iter().map(|member| self.loads(member)).collect();
        let e = self.problem.element_bytes();
        let operations = |machine: &Machine, l: &Load| l.flops + flops_an_addition(machine, e) * l.added;
        for ((member, loads), passed) in members.iter().zip(&loads).zip(&passed) {
            let machine = &self.machines[member.machine];
            let mut cost = MachineCost { memory_bytes: member.memory_bytes, ..MachineCost::default() };
            for load in loads {
                cost.flops += operations(machine, load);
                cost.jobs = cost.jobs.saturating_add(load.jobs);
                if machine.link.is_some() {
                    cost.bytes_out = cost.bytes_out.saturating_add(load.out);
                    cost.bytes_back = cost.bytes_back.saturating_add(load.back);
                }
            }
            let relayed = Relayed::of(passed);
            cost.bytes_out = cost.bytes_out.saturating_sub(relayed.spared).saturating_add(relayed.told);
            (cost.bytes_taken, cost.bytes_given) = (relayed.taken, relayed.given);
            p.bytes_relayed = p.bytes_relayed.saturating_add(cost.bytes_taken);
            p.bytes_sent = p.bytes_sent.saturating_add(cost.bytes_out);
            p.bytes_received = p.bytes_received.saturating_add(cost.bytes_back);
            p.worker_memory_bytes = p.worker_memory_bytes.max(member.memory_bytes);
            p.machines.push(cost);
        }
        p.primary_memory_bytes = self.merge_memory(members);
        let work: f64 = p.machines.iter().map(|m| m.flops).sum();
        for cost in &mut p.machines {
            cost.part = if work > 0.0 { cost.flops / work } else { 0.0 };
        }
        let sharers: Vec<u64> = passed.iter().map(|p| p.sharers).collect();
        self.seconds(&mut p, members, &loads, &sharers);
        p
    }

    fn loads(&self, member: &Member) -> Vec<Load> {
        let one = |share: &Share| {
            load(self.problem, &self.regions[share.region], &self.recipes[share.region], self.sums, share)
        };
        member.shares.iter().map(one).collect()
    }

    /// Partial sums that may have to wait for earlier ones: in the worst case all except those from step 0.
    fn merge_memory(&self, members: &[Member]) -> u64 {
        if self.sums == Sums::Chained {
            return 0;
        }
        let e = self.problem.element_bytes();
        let tile = |share: &Share| {
            let grid = &self.regions[share.region].grid;
            grid.tile_rows * grid.tile_cols * e
        };
        let of = |member: &Member, share: &Share| -> u64 {
            let region = &self.regions[share.region];
            let whole = share.steps.start == 0 && share.steps.end == region.steps();
            let (_, _, deep) = share.blocks_each_way();
            // Sums from step 0 are made in C itself.
            if share.steps.start == 0 && deep == 1 {
                return 0;
            }
            if whole {
                // One machine returns them, in order: the sums of the blocks that it has at once may wait, while one
                // more tile lands (docs/schedule-states.md).
                let block = (share.block.rows * share.block.cols).saturating_mul(region.q() * region.q());
                let at_once = block.saturating_mul(member.blocks_at_once as u64 + 1).saturating_add(1);
                return at_once.saturating_mul(tile(share));
            }
            (region.elements(share.cells) * e).saturating_mul(deep)
        };
        let all = members.iter().flat_map(|m| m.shares.iter().map(move |s| of(m, s)));
        all.fold(0, u64::saturating_add)
    }
}

/// About the total charge of all matrices that workers will have been given: the part of it that they have freed
/// shows the progress of a product.
pub(crate) fn stored_bytes(problem: &Problem, regions: &[Region], members: &[Member]) -> u64 {
    let of = |share: &Share| {
        let region = &regions[share.region];
        let charges = CellCharges::of(region, problem, &Recipe::new(region.levels));
        let (down, across, deep) = share.blocks_each_way();
        let one = |rows, cols, steps| charges.need(crate::BlockSize { rows, cols, steps }, PanelOrder::Steps);
        let (rows, cols) = (share.cells.rows.len(), share.cells.cols.len());
        let a = one(rows, 0, 1).saturating_mul(share.steps.len()).saturating_mul(across);
        let b = one(0, cols, 1).saturating_mul(share.steps.len()).saturating_mul(down);
        let tiles = one(rows, cols, 0).saturating_mul(deep);
        let uses = charges
            .products_of(rows.saturating_mul(cols))
            .saturating_mul(share.steps.len())
            .saturating_mul(2 * USE_BYTES);
        a.saturating_add(b).saturating_add(tiles).saturating_add(uses)
    };
    members.iter().flat_map(|m| &m.shares).map(of).fold(0, u64::saturating_add)
}
