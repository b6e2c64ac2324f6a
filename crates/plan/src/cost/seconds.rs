//! Seconds: the time of each machine beside the others, the time of the primary for all of them, and the maximum.
//!
//! Place in the flow: after the bytes. The page docs/cost-model.md has the same formulas in the same order.

use super::alone::{Alone, Rates};
use super::flow::{SharedFlow, first_rates, queue_s};
use super::{ADD_S_PER_BYTE, FAR_S_PER_BYTE, LOOP_S_PER_BYTE};
use super::{Costs, Limit, Load, MachineCost, Prediction};
use crate::{Machine, Member, Share, Sums};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

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
        let longest_of = |of: fn(&Alone) -> f64| alone.iter().map(of).fold(0.0, f64::max);
        let first_s = longest_of(|alone| alone.trip_s + alone.start_s + alone.quiet_s);
        let tail_s = longest_of(|alone| alone.trip_s + alone.tail_s);
        let mut longest = Longest::default();
        let loop_s = self.loop_s(p, members, loads);
        let cores_s = self.cores_s(p, members, loop_s);
        longest.consider(p.bytes_sent as f64 / primary + tail_s, Limit::Egress);
        longest.consider(p.bytes_received as f64 / primary + first_s, Limit::Ingress);
        for ((member, alone), cost) in members.iter().zip(&alone).zip(&mut p.machines) {
            let machine = &self.machines[member.machine];
            cost.compute_s = alone.compute_s;
            cost.link_s = alone.link_s();
            cost.seconds = alone.all_s();
            longest.consider(cost.seconds, alone.limit(machine.name.clone()));
            if machine.shares_cores || machine.link.is_none() {
                cost.seconds = cost.seconds.max(cores_s);
            }
        }
        longest.consider(loop_s.max(cores_s), Limit::Primary);
        longest.consider(self.chain_s(members, &alone), Limit::Ingress);
        // Results that wait for results of other members lengthen the maximum so far.
        let begin = |a: &Alone| ((a.done_s() - a.last.lead_s).max(0.0), a.last.of_step);
        let ends = |a: &Alone| (a.done_s(), a.last.of_tiles);
        let home_s = queue_s(alone.iter().map(begin), primary).max(queue_s(alone.iter().map(ends), primary));
        (p.seconds, p.by) = (longest.seconds.max(home_s), longest.by);
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
