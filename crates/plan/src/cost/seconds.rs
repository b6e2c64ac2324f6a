//! Seconds: the time of each machine alone, the time of the primary for all of them, and the maximum.
//!
//! Place in the flow: after the bytes. The page docs/cost-model.md has the same formulas in the same order.

use super::flow::{SharedFlow, first_rates, queue_s};
use super::waits::{after_s, behind_s, cells_a_unit, lag_s, last_results, rounds};
use super::{ADD_S_PER_BYTE, FAR_S_PER_BYTE, LOOP_S_PER_BYTE, flops_an_addition};
use super::{Costs, Limit, Load, MachineCost, Prediction};
use crate::{Machine, Member, PanelOrder, Share, Sums};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bramble_base::float::{ceil, sqrt};

/// The fraction of the memory rate at which kernels read operands: a loop that only reads is faster. Between 0.53
/// (dot product) and 0.72 (products with eight columns) were measured on a server, where one core cannot use the
/// full memory rate; with less memory bandwidth per core, kernels use nearly all of it.
const MEMORY_USED: f64 = 0.75;
/// The smallest fraction of a machine's speed that the model uses.
const BUSY_MIN: f64 = 1e-3;

/// The rates of one member's link, and the bytes per second that the other members leave to it.
struct Rates {
    /// Bytes to it, from the primary and from other members.
    whole: f64,
    /// Bytes to other members.
    given: f64,
    /// Members that receive a panel before it, at worst.
    before: f64,
    /// Rate while all members use the primary's link.
    first: f64,
    /// Rate until all of its bytes have arrived.
    out: f64,
    /// Rate until all of its results are returned.
    back: f64,
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
struct Alone {
    /// Kernels, including their wait for memory.
    compute_s: f64,
    /// Memory traffic of the machine, each element once.
    memory_s: f64,
    /// Its link, in both directions.
    there_s: f64,
    home_s: f64,
    /// While no results can be returned: until the last step of the first block, and of later blocks that have to
    /// wait.
    empty_s: f64,
    /// In rounds of as many blocks and steps as it has room for, each with its transfer, its job and its return.
    rounds_s: f64,
    /// Between blocks for which it has no room at once.
    stalls_s: f64,
    /// Until its work is done, given the arrival of its bytes.
    late_s: f64,
    /// From the last byte until the jobs of the last step are done.
    lag_s: f64,
    /// One job.
    job_s: f64,
    /// From the sending of a panel until the last of the members that share it has received it.
    chain_s: f64,
    /// Sending, of results and of relayed panels.
    sends_s: f64,
    /// One round trip.
    trip_s: f64,
    /// From the first bytes until its threads are busy.
    start_s: f64,
    /// While its threads wait for panels that precede their work.
    idle_s: f64,
    /// How much later its results return than if they came evenly from the start.
    quiet_s: f64,
    /// From the last job until the last tile is returned, with the link for itself.
    tail_s: f64,
    /// Results that return at the end: those of the last step (from that long before the last job), and the ones
    /// that its threads finish last.
    last_step: (f64, f64),
    last_tiles: f64,
}

impl Alone {
    /// Until its last job is done.
    fn done_s(&self) -> f64 {
        let kernels_s = self.start_s + self.idle_s + self.compute_s;
        self.trip_s + (kernels_s.max(self.there_s).max(self.rounds_s) + self.stalls_s).max(self.late_s)
    }

    fn all_s(&self) -> f64 {
        let results_s = self.empty_s + self.quiet_s + self.home_s;
        (self.done_s() + self.tail_s).max(self.trip_s + results_s.max(self.start_s + self.sends_s))
    }
}

impl Costs<'_> {
    /// The seconds, and the resource that sets them.
    pub(super) fn seconds(
        &self,
        p: &mut Prediction,
        members: &[Member],
        loads: &[Vec<Load>],
        sharers: &[u64],
    ) {
        let primary = primary_rate(self.machines, members);
        let links: Vec<Option<f64>> =
            members.iter().map(|m| self.machines[m.machine].link.map(|l| l.bytes_per_s)).collect();
        let sum =
            |of: fn(&MachineCost) -> u64| -> Vec<f64> { p.machines.iter().map(|m| of(m) as f64).collect() };
        let (out, taken, back) = (sum(|m| m.bytes_out), sum(|m| m.bytes_taken), sum(|m| m.bytes_back));
        // Bytes received in total per byte from the primary; relayed bytes arrive as fast as they are sent.
        let times: Vec<f64> = out.iter().zip(&taken).map(|(out, taken)| 1.0 + taken / out.max(1.0)).collect();
        let caps: Vec<Option<f64>> = links.iter().zip(&times).map(|(link, t)| link.map(|l| l / t)).collect();
        let (there, home) = (SharedFlow::new(&caps, &out, primary), SharedFlow::new(&links, &back, primary));
        let first: Vec<f64> = first_rates(&caps, primary).iter().zip(&times).map(|(r, t)| r * t).collect();
        let mut alone: Vec<Alone> = Vec::with_capacity(members.len());
        for (at, (member, loads)) in members.iter().zip(loads).enumerate() {
            let mean = |bytes: f64, flow: &SharedFlow| match flow.end_s(at) {
                0.0 => first[at],
                seconds => bytes / seconds,
            };
            let whole = out[at] + taken[at];
            let rates = Rates {
                whole,
                given: p.machines[at].bytes_given as f64,
                before: sharers[at].saturating_sub(1) as f64,
                first: first[at],
                out: mean(whole, &there),
                back: mean(back[at], &home),
            };
            let one = self.alone(member, loads, &rates);
            let late_s =
                (there.done_s(at, one.compute_s) + one.lag_s).max(there.end_s(at) + one.job_s) + one.chain_s;
            alone.push(Alone { late_s: if links[at].is_some() { late_s } else { 0.0 }, ..one });
        }
        let (mut first_s, mut tail_s) = (0.0f64, 0.0f64);
        let mut longest = Longest::default();
        let loop_s = self.loop_s(p, members, loads);
        let cores_s = self.cores_s(p, members, loop_s);
        for alone in &alone {
            first_s = first_s.max(alone.trip_s + alone.start_s + alone.quiet_s);
            tail_s = tail_s.max(alone.trip_s + alone.tail_s);
        }
        longest.consider(p.bytes_sent as f64 / primary + tail_s, Limit::Egress);
        longest.consider(p.bytes_received as f64 / primary + first_s, Limit::Ingress);
        for ((member, alone), cost) in members.iter().zip(&alone).zip(&mut p.machines) {
            let machine = &self.machines[member.machine];
            cost.compute_s = alone.compute_s;
            cost.link_s = alone.there_s.max(alone.sends_s).max(alone.rounds_s);
            cost.seconds = alone.all_s();
            let by = if cost.link_s > alone.compute_s {
                Limit::Link
            } else if alone.memory_s > alone.compute_s / 2.0 {
                Limit::Memory
            } else {
                Limit::Compute
            };
            longest.consider(cost.seconds, by(machine.name.clone()));
            if machine.shares_cores || machine.link.is_none() {
                cost.seconds = cost.seconds.max(cores_s);
            }
        }
        longest.consider(loop_s.max(cores_s), Limit::Primary);
        longest.consider(self.chain_s(members, &alone), Limit::Ingress);
        // Results that wait for results of other members lengthen the maximum so far.
        let begin = |a: &Alone| ((a.done_s() - a.last_step.0).max(0.0), a.last_step.1);
        let ends = |a: &Alone| (a.done_s(), a.last_tiles);
        let home_s = queue_s(alone.iter().map(begin), primary).max(queue_s(alone.iter().map(ends), primary));
        (p.seconds, p.by) = (longest.seconds.max(home_s), longest.by);
    }

    /// The time of a member alone, with these rates of its link.
    fn alone(&self, member: &Member, loads: &[Load], rates: &Rates) -> Alone {
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
            if one.last_step.1 > all.last_step.1 {
                (all.last_step, all.last_tiles) = (one.last_step, one.last_tiles);
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
        Alone { there_s, home_s, sends_s, ..all }
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
            let sent = |travels: bool, side: f64| if travels { side * depth } else { 0.0 };
            let read = sent(self.problem.sends_a, rows) + sent(self.problem.sends_b, cols);
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
        let mut at_once = room.blocks.min(member.blocks_at_once as u64).min(beside.blocks).max(1);
        let (_, across, deep) = share.blocks_each_way();
        if self.sums == Sums::Chained && deep > 1 {
            // The next sum of a tile begins when the one before is returned; the others of its row come in between.
            at_once = at_once.min(across);
        }
        let products = charges.products_of(share.block.rows.saturating_mul(share.block.cols)) as f64;
        let busy = |products: f64| (products / threads).clamp(BUSY_MIN, 1.0);
        // If it has fewer blocks than are given at once, blocks of other shares are there, too.
        let own = at_once.min(share.blocks().max(1));
        let products_at_once = products * own as f64 + (beside.products * (at_once - own)) as f64;
        let compute_s = work / (speed * busy(products_at_once));
        let jobs = load.jobs.max(1) as f64;
        let Some(link) = machine.link else { return Alone { compute_s, ..Alone::default() } };
        let (units, each) = rounds(share);
        let (units, each) = (units.max(1) as f64, each.max(1) as f64);
        // With room for one block there may be room for more of its steps; two are always there.
        let units_at_once = at_once as f64 * if at_once == 1 { room.units as f64 } else { each.min(2.0) };
        let products_a_unit = charges.products_of(cells_a_unit(share)) as f64;
        let unit_s = work / units / (speed * busy(products_a_unit));
        let there_s = load.out as f64 / units / rates.out;
        let home_s = load.back as f64 / units / rates.back;
        // Product by product: the slowest one all the time, the others for one. No machine waits for the return of
        // the last round.
        let by_products = |slowest_s: f64, all_s: f64| {
            link.round_trip_s + slowest_s + (all_s - slowest_s) / products_a_unit.max(1.0)
        };
        let last_s = by_products(there_s.max(unit_s), there_s + unit_s);
        let round_s = by_products(there_s.max(unit_s).max(home_s), there_s + unit_s + home_s);
        let rounds = units / units_at_once;
        let rounds_s = (rounds - 1.0).max(0.0) * round_s + rounds.min(1.0) * last_s;
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
            // Until the first column of the last steps is done.
            PanelOrder::Ending(last) => {
                let last = last.min(share.block.steps) as f64;
                (each - last) * there_s.max(unit_s) + idle_s + last * unit_s / share.block.cols.max(1) as f64
            }
            PanelOrder::Corner => behind_s(net_s, load.back as f64 / rates.back),
        };
        let all_blocks = share.blocks().max(1) as f64;
        // The tiles of the last step return while it is computed, or still arrives; those that threads finish last
        // return together.
        let (part, of_unit) = last_results(share, units);
        let last_back = load.results as f64 * part;
        let step_s = compute_s.max(net_s) / units * of_unit;
        let ending = ceil(threads / charges.products_of(1) as f64);
        let cells = share.block.rows.saturating_mul(share.block.cols) as f64 * at_once as f64;
        let last_tiles = ((ending.min(cells) + 1.0) / 2.0 * cell).min(last_back);
        let home_s = last_back / rates.back;
        let lead_s = home_s - after_s(step_s, home_s);
        let tail_s = |rate: f64| after_s(step_s, last_back / rate).max(last_tiles / rate);
        let waits = if each > 1.0 && at_once == 1 { (all_blocks - 1.0) * (1.0 - room.spare) } else { 0.0 };
        let steps_before = if share.order == PanelOrder::Steps { each - 1.0 } else { 0.0 };
        Alone {
            compute_s,
            empty_s: start_s + steps_before * there_s.max(unit_s) * (1.0 + waits),
            rounds_s,
            stalls_s: waits * tail_s(rates.back),
            lag_s: lag_s(there_s, compute_s / units),
            job_s: work / jobs * threads / speed,
            trip_s: link.round_trip_s,
            start_s,
            idle_s,
            quiet_s,
            chain_s,
            tail_s: tail_s(link.bytes_per_s),
            last_step: (lead_s, last_back),
            last_tiles,
            ..Alone::default()
        }
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
        if self.problem.sends_a { (elements * self.problem.element_bytes()) as f64 } else { 0.0 }
    }

    /// Bytes of the first panels of A and B of a share, of a cell of C, and of the larger matrix of these panels.
    fn first_bytes(&self, share: &Share) -> (f64, f64, f64) {
        let grid = &self.regions[share.region].grid;
        let panels = self.regions[share.region].q().pow(2) as f64;
        let e = self.problem.element_bytes() as f64;
        let (rows, cols, depth) = (grid.tile_rows as f64, grid.tile_cols as f64, grid.depth as f64);
        let sent = |travels: bool, elements: f64| if travels { elements } else { 0.0 };
        let (a, b) = (sent(self.problem.sends_a, rows * depth), sent(self.problem.sends_b, depth * cols));
        ((a + b) * panels * e, rows * cols * panels * e, a.max(b) * e)
    }

    /// The time of the primary's event loop: it handles every byte of a link, copies the sums of the primary's own
    /// threads while they wait, and adds the partial sums.
    fn loop_s(&self, p: &Prediction, members: &[Member], loads: &[Vec<Load>]) -> f64 {
        let merged = |loads: &[Load]| loads.iter().map(|l| l.merged as f64).sum::<f64>();
        let own = |m: &&Member| self.machines[m.machine].link.is_none();
        let copied: f64 =
            members.iter().zip(loads).filter(|(m, _)| own(m)).map(|(_, loads)| merged(loads)).sum();
        let added: f64 = loads.iter().map(|loads| merged(loads)).sum();
        (p.bytes_sent as f64 + p.bytes_received as f64 + copied) * LOOP_S_PER_BYTE + added * ADD_S_PER_BYTE
    }

    /// The time of the primary's cores: kernels on them, and moving bytes at this end and at workers that share the
    /// cores.
    fn cores_s(&self, p: &Prediction, members: &[Member], loop_s: f64) -> f64 {
        let cores = self.machines.first().map_or(1.0, |m| f64::from(m.threads.max(1)));
        let one = |(member, cost): (&Member, &MachineCost)| {
            let machine = &self.machines[member.machine];
            let kernels = cost.flops / (machine.gflops * 1e9) * f64::from(machine.threads.max(1));
            let passed = cost.bytes_taken as f64 + cost.bytes_given as f64;
            let moved = (cost.bytes_out as f64 + cost.bytes_back as f64 + passed) * FAR_S_PER_BYTE;
            match (machine.link.is_some(), machine.shares_cores) {
                (false, _) => kernels,
                (true, true) => kernels + moved,
                (true, false) => 0.0,
            }
        };
        let busy: f64 = members.iter().zip(&p.machines).map(one).sum();
        (busy + loop_s) / cores
    }

    /// If sums are chained: a member with later parts of k begins when the first block with the earlier parts is
    /// returned.
    fn chain_s(&self, members: &[Member], alone: &[Alone]) -> f64 {
        if self.sums == Sums::Merged {
            return 0.0;
        }
        // By the start of the part of k: (longest link time, longest link time of one block).
        let mut links: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (member, alone) in members.iter().zip(alone) {
            let mut mine: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
            let work = |s: &Share| {
                let region = &self.regions[s.region];
                region.elements(s.cells) as f64 * region.depth_of(s.steps) as f64
            };
            let all: f64 = member.shares.iter().map(work).sum();
            for share in &member.shares {
                let entry = mine.entry(share.steps.start).or_default();
                entry.0 += alone.all_s() * work(share) / all.max(1.0);
                entry.1 = entry.1.saturating_add(share.blocks());
            }
            for (start, (seconds, blocks)) in mine {
                let link = links.entry(start).or_default();
                link.0 = link.0.max(seconds);
                link.1 = link.1.max(seconds / blocks.max(1) as f64);
            }
        }
        let longest = links.values().map(|l| l.0 - l.1).fold(0.0, f64::max);
        longest + links.values().map(|l| l.1).sum::<f64>()
    }
}

/// The maximum so far; a time that is hardly longer than an earlier one does not change the named resource.
#[derive(Default)]
struct Longest {
    seconds: f64,
    by: Limit,
}

impl Longest {
    fn consider(&mut self, seconds: f64, by: Limit) {
        if seconds > self.seconds * 1.02 {
            self.by = by;
        }
        self.seconds = self.seconds.max(seconds);
    }
}

/// The rate at which the primary can send and receive, bytes per second: as measured over all its links at once,
/// but at most the sum of these links; if unknown, that of the fastest link. Infinite if nothing leaves the
/// process.
pub(crate) fn primary_rate(machines: &[Machine], members: &[Member]) -> f64 {
    let rates = || members.iter().filter_map(|m| machines[m.machine].link).map(|l| l.bytes_per_s);
    let fastest = rates().fold(f64::NEG_INFINITY, f64::max);
    if fastest.is_nan() || fastest <= 0.0 {
        return f64::INFINITY;
    }
    match machines.first().and_then(|primary| primary.nic_bytes_per_s) {
        // A measurement over all links may have been disturbed, but one link was that fast.
        Some(nic) => nic.max(fastest).min(rates().sum()),
        None => fastest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LinkRate;

    #[test]
    fn slow_links_are_filled_and_the_others_share_the_rest() {
        let link = |bytes_per_s| Some(LinkRate { bytes_per_s, round_trip_s: 0.0 });
        let machine = |link| Machine {
            name: String::new(),
            threads: 1,
            gflops: 1.0,
            peak_gflops: 1.0,
            memory_bytes: 0,
            link,
            shares_cores: false,
            nic_bytes_per_s: None,
            memory_rate: None,
        };
        let machines = [machine(None), machine(link(100.0)), machine(link(10.0)), machine(link(100.0))];
        let member = |machine| Member { machine, shares: Vec::new(), memory_bytes: 0, blocks_at_once: 1 };
        let members: Vec<Member> = (0..4).map(member).collect();
        assert_eq!(primary_rate(&machines, &members), 100.0);
        let links: Vec<Option<f64>> = machines.iter().map(|m| m.link.map(|l| l.bytes_per_s)).collect();
        assert_eq!(first_rates(&links, 100.0), [f64::INFINITY, 45.0, 10.0, 45.0]);
        assert_eq!(first_rates(&links, 30.0)[1..], [10.0; 3]);
        assert_eq!(first_rates(&links, 1000.0)[1..], [100.0, 10.0, 100.0]);
    }
}
