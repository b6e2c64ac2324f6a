//! Participants of a simulated product: the primary's knowledge of each machine, and the machine itself.
//!
//! Place in the flow: derives from a plan and its machines what the shells learn from their sessions.
//!
//! Invariant: the plan's members come first, in their order.

use crate::machine::{SimSpeed, SimWorker};
use crate::setting::{SimRates, SimSetting};
use bramble_matrix::number::to_usize;
use bramble_plan::{Machine, Plan, neighbour_pairs, neighbours_of_each};
use bramble_schedule::limits::NEIGHBOURS_MAX;
use bramble_schedule::primary::{PeerInfo, Referred};
use bramble_schedule::worker::StartLimits;

/// The members of a plan with their machines' indices; if the product recovers, also the primary's own threads.
pub(super) fn of(plan: &Plan, machines: &[Machine], recovers: bool) -> Vec<(usize, PeerInfo)> {
    let neighbours = neighbours(plan, machines);
    let members = plan.members.iter().zip(neighbours);
    let mut participants: Vec<(usize, PeerInfo)> = members
        .map(|(member, neighbours)| {
            let info = info(&machines[member.machine], member.memory_bytes);
            (member.machine, PeerInfo { neighbours, ..info })
        })
        .collect();
    if recovers && participants.iter().all(|(machine, _)| *machine != 0) {
        let info = info(&machines[0], machines[0].memory_bytes);
        participants.push((0, PeerInfo { is_reserve: true, ..info }));
    }
    participants
}

/// A machine's `PeerInfo` with this credit.
pub(super) fn info(machine: &Machine, credit_bytes: u64) -> PeerInfo {
    PeerInfo {
        name: machine.name.clone(),
        credit_bytes,
        shares_memory: machine.link.is_none(),
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: machine.gflops * 1e9 / 2.0,
        link_bytes_per_s: machine.link.map(|link| link.bytes_per_s),
        is_reserve: false,
    }
}

/// A simulated machine by its index, with this grant.
pub(super) fn end(
    (number, grant_bytes): (usize, u64),
    machines: &[Machine],
    setting: &SimSetting,
) -> SimWorker {
    let rates = setting.rates.get(number).copied().unwrap_or(SimRates::USUAL);
    let speed = setting.speeds.get(number).copied().unwrap_or(1.0);
    let is = &machines[number];
    let shares_memory = is.link.is_none();
    let moves = setting.moves_s_per_byte.get(number).copied().filter(|_| !shares_memory).unwrap_or(0.0);
    let speed = SimSpeed::new(is.threads, is.gflops * speed, rates).moving(moves);
    let limits = StartLimits::for_threads(to_usize(is.threads));
    let mut end = SimWorker::new(grant_bytes, shares_memory, speed, limits);
    end.on_host |= is.shares_cores;
    end.tasks.in_order = !setting.additions_first;
    end.report.machine = number;
    end
}

/// Bandwidth of a machine's link in bytes a second, and latency in seconds.
pub(super) fn link(machine: &Machine) -> (f64, f64) {
    machine.link.map_or((f64::INFINITY, 0.0), |link| (link.bytes_per_s, link.round_trip_s / 2.0))
}

/// The workers with which each member has a link, as the primary introduces them.
fn neighbours(plan: &Plan, machines: &[Machine]) -> Vec<Vec<usize>> {
    let members = &plan.members;
    let moves = |at: usize| machines[members[at].machine].link.is_some();
    let pairs = if plan.relay {
        neighbour_pairs(members, NEIGHBOURS_MAX, |one, other| moves(one) && moves(other))
    } else {
        Vec::new()
    };
    neighbours_of_each(&pairs, members.len())
}
