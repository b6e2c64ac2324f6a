//! The time of each machine alone: its kernels, its memory, its link, and its waits.
//!
//! Place in the flow: `seconds` gives each member the rates of its link, and combines the members. The page
//! docs/cost-model.md has the same formulas in the same order.

use super::waits::{after_s, behind_s, cells_a_unit, lag_s, last_results, rounds};
use super::{Costs, Limit, Load, flops_an_addition};
use crate::{Machine, Member, OperandSource, PanelOrder, Share, Sums};
use alloc::string::String;
use bramble_base::float::{ceil, sqrt};

/// The fraction of the memory rate at which kernels read operands: a loop that only reads is faster. Between 0.53
/// (dot product) and 0.72 (products with eight columns) were measured on a server, where one core cannot use the
/// full memory rate; with less memory bandwidth per core, kernels use nearly all of it.
const MEMORY_USED: f64 = 0.75;
/// The smallest fraction of a machine's speed that the model uses.
const BUSY_MIN: f64 = 1e-3;

/// The rates of one member's link, and the bytes per second that the other members leave to it.
pub(super) struct Rates {
    /// Bytes to it, from the primary and from other members.
    pub(super) whole: f64,
    /// Bytes to other members.
    pub(super) given: f64,
    /// Members that receive a panel before it, at worst.
    pub(super) before: f64,
    /// Rate while all members use the primary's link.
    pub(super) first: f64,
    /// Rate until all of its bytes have arrived.
    pub(super) out: f64,
    /// Rate until all of its results are returned.
    pub(super) back: f64,
}

/// A member's work outside of one share.
struct Beside {
    /// Blocks in all shares.
    blocks: u64,
    /// The most concurrent products in a block of another share.
    products: u64,
}

/// The time of a member alone.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alone {
    /// Kernels, including their wait for memory.
    pub(super) compute_s: f64,
    /// Memory traffic of the machine, each element once.
    pub(super) memory_s: f64,
    pub(super) link: LinkSeconds,
    /// While no results can be returned: until the last step of the first block, and of later blocks that have to
    /// wait.
    pub(super) empty_s: f64,
    /// In rounds of as many blocks and steps as it has room for, each with its transfer, its job and its return.
    pub(super) rounds_s: f64,
    /// Between blocks for which it has no room at once.
    pub(super) stalls_s: f64,
    /// Until its work is done, given the arrival of its bytes.
    pub(super) late_s: f64,
    /// From the last byte until the jobs of the last step are done.
    pub(super) lag_s: f64,
    /// One job.
    pub(super) job_s: f64,
    /// From the sending of a panel until the last of the members that share it has received it.
    pub(super) chain_s: f64,
    /// One round trip.
    pub(super) trip_s: f64,
    /// From the first bytes until its threads are busy.
    pub(super) start_s: f64,
    /// While its threads wait for panels that precede their work.
    pub(super) idle_s: f64,
    /// How much later its results return than if they came evenly from the start.
    pub(super) quiet_s: f64,
    /// From the last job until the last tile is returned, with the link for itself.
    pub(super) tail_s: f64,
    pub(super) last: LastBytes,
}

/// The time of a member's link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkSeconds {
    /// In both directions.
    pub(super) there_s: f64,
    pub(super) home_s: f64,
    /// Sending, of results and of relayed panels.
    pub(super) sends_s: f64,
}

/// Results that return at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastBytes {
    /// Bytes of the last step.
    pub(super) of_step: f64,
    /// How long before the last job they begin to return.
    pub(super) lead_s: f64,
    /// Bytes of the tiles that the threads finish last.
    pub(super) of_tiles: f64,
}

impl Alone {
    /// Until its last job is done.
    pub(super) fn done_s(&self) -> f64 {
        let kernels_s = self.start_s + self.idle_s + self.compute_s;
        self.trip_s + (kernels_s.max(self.link.there_s).max(self.rounds_s) + self.stalls_s).max(self.late_s)
    }

    /// Its link, or the rounds in which it is used.
    pub(super) fn link_s(&self) -> f64 {
        self.link.there_s.max(self.link.sends_s).max(self.rounds_s)
    }

    /// What limits the machine of this name.
    pub(super) fn limit(&self, name: String) -> Limit {
        if self.link_s() > self.compute_s {
            Limit::Link(name)
        } else if self.memory_s > self.compute_s / 2.0 {
            Limit::Memory(name)
        } else {
            Limit::Compute(name)
        }
    }

    pub(super) fn all_s(&self) -> f64 {
        let results_s = self.empty_s + self.quiet_s + self.link.home_s;
        (self.done_s() + self.tail_s).max(self.trip_s + results_s.max(self.start_s + self.link.sends_s))
    }
}

impl Costs<'_> {
    /// The time of a member alone, with these rates of its link.
    pub(super) fn alone(&self, member: &Member, loads: &[Load], rates: &Rates) -> Alone {
        let machine = &self.machines[member.machine];
        let mut all = Alone::default();
        let (mut back, mut work, mut jobs) = (0.0, 0.0, 0.0);
        let blocks = member.shares.iter().map(Share::blocks).fold(0, u64::saturating_add);
        let products = |share: &Share| {
            self.charges[share.region].products_of(share.block.rows.saturating_mul(share.block.cols))
        };
        for (at, (share, load)) in member.shares.iter().zip(loads).enumerate() {
            let others = member.shares.iter().enumerate().filter(|(other, _)| *other != at);
            let beside = Beside { blocks, products: others.map(|(_, s)| products(s)).max().unwrap_or(0) };
            let one = self.share(member, machine, share, load, rates, &beside);
            all.compute_s += one.compute_s;
            all.rounds_s += one.rounds_s;
            all.stalls_s += one.stalls_s;
            all.lag_s = all.lag_s.max(one.lag_s);
            all.job_s = all.job_s.max(one.job_s);
            all.trip_s = all.trip_s.max(one.trip_s);
            all.start_s = all.start_s.max(one.start_s);
            all.idle_s = all.idle_s.max(one.idle_s);
            all.quiet_s = all.quiet_s.max(one.quiet_s);
            all.chain_s = all.chain_s.max(one.chain_s);
            all.empty_s = all.empty_s.max(one.empty_s);
            all.tail_s = all.tail_s.max(one.tail_s);
            if one.last.of_step > all.last.of_step {
                all.last = one.last;
            }
            back += load.back as f64;
            work += self.work(machine, load);
            jobs += load.jobs as f64;
        }
        // The last jobs may leave some threads idle.
        let threads = f64::from(machine.threads.max(1));
        let waves = ceil(jobs / threads) * threads / jobs.max(1.0);
        all.compute_s = all.compute_s.max(work / (machine.gflops * 1e9) * waves);
        all.memory_s = self.memory_s(machine, member);
        // A thread computes with data that it has read: few of its bytes are loaded while it computes.
        all.compute_s += all.memory_s;
        let link = machine.link.map_or(f64::INFINITY, |l| l.bytes_per_s);
        let (there_s, home_s, sends_s) = (rates.whole / link, back / link, (back + rates.given) / link);
        Alone { link: LinkSeconds { there_s, home_s, sends_s }, ..all }
    }

    /// Seconds in which the elements of A, B and C of a member pass through its memory once: no cache can avoid
    /// that.
    fn memory_s(&self, machine: &Machine, member: &Member) -> f64 {
        let Some(rate) = machine.memory_rate else { return 0.0 };
        let elements = |share: &Share| {
            let region = &self.regions[share.region];
            let (rows, cols) = (region.grid.rows_of(share.cells.rows), region.grid.cols_of(share.cells.cols));
            let (rows, cols) = ((rows * region.q()) as f64, (cols * region.q()) as f64);
            let depth = region.depth_of(share.steps) as f64;
            // Generated elements are in a cache when they are used.
            let read = |source: OperandSource, side: f64| match source {
                OperandSource::Sent | OperandSource::Resident => side * depth,
                OperandSource::Generated => 0.0,
            };
            let read = read(self.problem.a_source, rows) + read(self.problem.b_source, cols);
            read / MEMORY_USED + rows * cols
        };
        let all: f64 = member.shares.iter().map(elements).sum();
        all * self.problem.element_bytes() as f64 / rate.bytes_per_s.max(1.0)
    }

    /// Operations of a share, with the additions converted to operations of the same time.
    fn work(&self, machine: &Machine, load: &Load) -> f64 {
        load.flops + flops_an_addition(machine, self.problem.element_bytes()) * load.added
    }

    /// One share of a member.
    fn share(
        &self,
        member: &Member,
        machine: &Machine,
        share: &Share,
        load: &Load,
        rates: &Rates,
        beside: &Beside,
    ) -> Alone {
        let charges = &self.charges[share.region];
        let threads = f64::from(machine.threads.max(1));
        let speed = machine.gflops * 1e9;
        let work = self.work(machine, load);
        let room = charges.room(share.block, share.order, member.memory_bytes);
        let at_once = self.blocks_at_once(member, share, room.blocks.min(beside.blocks));
        let products = charges.products_of(share.block.rows.saturating_mul(share.block.cols)) as f64;
        let busy = |products: f64| (products / threads).clamp(BUSY_MIN, 1.0);
        // If it has fewer blocks than are given at once, blocks of other shares are there, too.
        let own = at_once.min(share.blocks().max(1));
        let products_at_once = products * own as f64 + (beside.products * (at_once - own)) as f64;
        let compute_s = work / (speed * busy(products_at_once));
        let Some(link) = machine.link else { return Alone { compute_s, ..Alone::default() } };
        let (units, each) = rounds(share);
        let (units, each) = (units.max(1) as f64, each.max(1) as f64);
        // With room for one block there may be room for more of its steps; two are always there.
        let units_at_once = at_once as f64 * if at_once == 1 { room.units as f64 } else { each.min(2.0) };
        let products_a_unit = charges.products_of(cells_a_unit(share)) as f64;
        let unit_s = work / units / (speed * busy(products_a_unit));
        let there_s = load.out as f64 / units / rates.out;
        let home_s = load.back as f64 / units / rates.back;
        let rounds_s =
            rounds_s(units / units_at_once, link.round_trip_s, products_a_unit, [there_s, unit_s, home_s]);
        let (pair, cell, matrix) = self.first_bytes(share);
        let chain_s = rates.before * matrix / link.bytes_per_s;
        // Number of pairs of panels until each thread has a product; half of the threads are busy meanwhile.
        let pairs = ceil(sqrt(threads / charges.products_of(1) as f64)).min(sqrt(products)).max(1.0);
        let start_s = pair * (pairs + 1.0) / 2.0 / rates.first + chain_s / 2.0;
        let net_s = load.out as f64 / rates.out;
        let idle_s = self.idle_s(share, load, rates, (units, unit_s * units));
        let quiet_s = match share.order {
            PanelOrder::Steps => 0.0,
            PanelOrder::Columns(_) => idle_s,
            PanelOrder::Ending(last) => until_last_steps_s(share, (last, each), [there_s, unit_s, idle_s]),
            PanelOrder::Corner => behind_s(net_s, load.back as f64 / rates.back),
        };
        let ending = ceil(threads / charges.products_of(1) as f64);
        let cells = share.block.rows.saturating_mul(share.block.cols) as f64 * at_once as f64;
        let together = (ending.min(cells) + 1.0) / 2.0 * cell;
        let (last, step_s) = last_bytes(share, load, rates, (units, compute_s.max(net_s) / units), together);
        let tail_s = |rate: f64| after_s(step_s, last.of_step / rate).max(last.of_tiles / rate);
        let later_blocks = share.blocks().max(1) as f64 - 1.0;
        let waits = if each > 1.0 && at_once == 1 { later_blocks * (1.0 - room.spare) } else { 0.0 };
        let steps_before = if share.order == PanelOrder::Steps { each - 1.0 } else { 0.0 };
        Alone {
            compute_s,
            empty_s: start_s + steps_before * there_s.max(unit_s) * (1.0 + waits),
            rounds_s,
            stalls_s: waits * tail_s(rates.back),
            lag_s: lag_s(there_s, compute_s / units),
            job_s: work / load.jobs.max(1) as f64 * threads / speed,
            trip_s: link.round_trip_s,
            start_s,
            idle_s,
            quiet_s,
            chain_s,
            tail_s: tail_s(link.bytes_per_s),
            last,
            ..Alone::default()
        }
    }

    /// Blocks of a share that a member holds at once, where it has room for `room` of them.
    fn blocks_at_once(&self, member: &Member, share: &Share, room: u64) -> u64 {
        let at_once = room.min(member.blocks_at_once as u64).max(1);
        let (_, across, deep) = share.blocks_each_way();
        // The next sum of a tile begins when the one before is returned; the others of its row come in between.
        if self.sums == Sums::Chained && deep > 1 { at_once.min(across) } else { at_once }
    }

    /// Seconds in which threads wait for panels that precede their work, in an order other than step by step:
    /// `work_s` is the work of `units` units.
    fn idle_s(&self, share: &Share, load: &Load, rates: &Rates, (units, work_s): (f64, f64)) -> f64 {
        let net_s = load.out as f64 / rates.out;
        match share.order {
            PanelOrder::Steps => 0.0,
            PanelOrder::Ending(last) => {
                // The first column of the last steps arrives with all their panels of A, at most two steps ahead.
                let part = last.min(share.block.steps) as f64 / units;
                let (there_s, column) = (net_s * part, 1.0 / share.block.cols.max(1) as f64);
                let a_part = self.resident_bytes(share) / (load.out as f64).max(1.0);
                let first_s = there_s * (a_part + (1.0 - a_part).max(0.0) * column) - work_s * part * column;
                (first_s - 2.0 * ((work_s - net_s) / units).max(0.0)).max(0.0)
            }
            // The first columns arrive with all panels of A, which takes longer than their work.
            PanelOrder::Columns(_) => {
                let first = self.resident_bytes(share) * (1.0 - 1.0 / units) + load.out as f64 / units;
                (first / rates.out - work_s / units).max(0.0)
            }
            PanelOrder::Corner => behind_s(net_s, work_s),
        }
    }

    /// Bytes of the panels of A of a share.
    fn resident_bytes(&self, share: &Share) -> f64 {
        let region = &self.regions[share.region];
        let elements = region.grid.rows_of(share.cells.rows) * region.q() * region.depth_of(share.steps);
        if self.problem.a_source.is_sent() { (elements * self.problem.element_bytes()) as f64 } else { 0.0 }
    }

    /// Bytes of the first panels of A and B of a share, of a cell of C, and of the larger matrix of these panels.
    fn first_bytes(&self, share: &Share) -> (f64, f64, f64) {
        let grid = &self.regions[share.region].grid;
        let panels = self.regions[share.region].q().pow(2) as f64;
        let e = self.problem.element_bytes() as f64;
        let (rows, cols, depth) = (grid.tile_rows as f64, grid.tile_cols as f64, grid.depth as f64);
        let sent = |travels: bool, elements: f64| if travels { elements } else { 0.0 };
        let (a, b) = (
            sent(self.problem.a_source.is_sent(), rows * depth),
            sent(self.problem.b_source.is_sent(), depth * cols),
        );
        ((a + b) * panels * e, rows * cols * panels * e, a.max(b) * e)
    }
}

/// Results that return at the end, and the seconds of their step: one of `units` takes `unit_s`. The tiles of the last step
/// return while it is computed, or still arrives; `together` bytes, which threads finish last, return together.
fn last_bytes(
    share: &Share,
    load: &Load,
    rates: &Rates,
    (units, unit_s): (f64, f64),
    together: f64,
) -> (LastBytes, f64) {
    let (part, of_unit) = last_results(share, units);
    let (of_step, step_s) = (load.results as f64 * part, unit_s * of_unit);
    let home_s = of_step / rates.back;
    let lead_s = home_s - after_s(step_s, home_s);
    (LastBytes { of_step, lead_s, of_tiles: together.min(of_step) }, step_s)
}

/// Seconds of `rounds` rounds: product by product, the slowest of transfer, job and return all the time, the others for one
/// product. No machine waits for the return of the last round.
fn rounds_s(rounds: f64, round_trip_s: f64, products: f64, [there_s, unit_s, home_s]: [f64; 3]) -> f64 {
    let by_products =
        |slowest_s: f64, all_s: f64| round_trip_s + slowest_s + (all_s - slowest_s) / products.max(1.0);
    let last_s = by_products(there_s.max(unit_s), there_s + unit_s);
    let round_s = by_products(there_s.max(unit_s).max(home_s), there_s + unit_s + home_s);
    (rounds - 1.0).max(0.0) * round_s + rounds.min(1.0) * last_s
}

/// Seconds until the first column of the last steps of a block is done: `last` of `each` steps.
fn until_last_steps_s(share: &Share, (last, each): (u64, f64), [there_s, unit_s, idle_s]: [f64; 3]) -> f64 {
    let last = last.min(share.block.steps) as f64;
    (each - last) * there_s.max(unit_s) + idle_s + last * unit_s / share.block.cols.max(1) as f64
}
