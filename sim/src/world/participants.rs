//! Participants of a simulated product: the primary's knowledge of each machine, and the machine itself.
//!
//! Place in the flow: derives from a plan and its machines what the shells learn from their sessions.
//!
//! Invariant: the plan's members come first, in their order.

use crate::machine::SimWorker;
use crate::setting::{SimRates, SimSetting};
use bramble_plan::{Machine, Member, Plan};
use bramble_schedule::limits::NEIGHBOURS_MAX;
use bramble_schedule::primary::{PeerInfo, Referred};

/// The members of a plan with their machines' indices; if the product recovers, also the primary's own threads.
pub(super) fn of(plan: &Plan, machines: &[Machine], recovers: bool) -> Vec<(usize, PeerInfo)> {
    let neighbours = neighbours(plan, machines, recovers);
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
    let said = &machines[number];
    let really = Machine { gflops: said.gflops * speed, ..said.clone() };
    let moves = setting.moves_s_per_byte.get(number).copied().unwrap_or(0.0);
    SimWorker::new((number, grant_bytes), &really, rates, setting.additions_first).moving(moves)
}

/// Bandwidth of a machine's link in bytes a second, and latency in seconds.
pub(super) fn link(machine: &Machine) -> (f64, f64) {
    machine.link.map_or((f64::INFINITY, 0.0), |link| (link.bytes_per_s, link.round_trip_s / 2.0))
}

/// The workers with which each member has a link. `as_introduced`: limited as by the primary's shell
/// (crates/primary/src/neighbours.rs): pairs that may share panels, and at most `NEIGHBOURS_MAX` each.
fn neighbours(plan: &Plan, machines: &[Machine], as_introduced: bool) -> Vec<Vec<usize>> {
    let members = &plan.members;
    let mut all = vec![Vec::new(); members.len()];
    if !plan.relay {
        return all;
    }
    let moves = |member: &Member| machines[member.machine].link.is_some();
    let movers: Vec<usize> = (0..members.len()).filter(|at| moves(&members[*at])).collect();
    let few = !as_introduced || members.len() <= NEIGHBOURS_MAX;
    for (at, one) in movers.iter().enumerate() {
        for other in &movers[..at] {
            let is_full = all[*one].len() >= NEIGHBOURS_MAX || all[*other].len() >= NEIGHBOURS_MAX;
            if few || !is_full && members[*one].may_share(&members[*other]) {
                all[*one].push(*other);
                all[*other].push(*one);
            }
        }
    }
    all
}
