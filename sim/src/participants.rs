//! Participants of a simulated product: the operands, and the primary's knowledge of each machine.
//!
//! Place in the flow: derives from a plan and its machines what the shells learn from their sessions, for both modes.
//!
//! Invariant: the plan's members come first, in their order.

use bramble_matrix::Layout;
use bramble_plan::{Machine, Plan, Problem, neighbours_of_each};
use bramble_schedule::primary::{Operands, PeerInfo, Referred};

/// The members of a plan with their machines' indices, introduced to each other in these pairs; with a reserve also the
/// primary's own threads.
pub(crate) fn of(
    plan: &Plan,
    machines: &[Machine],
    pairs: &[(usize, usize)],
    has_reserve: bool,
) -> Vec<(usize, PeerInfo)> {
    let members = plan.members.iter().zip(neighbours_of_each(pairs, plan.members.len()));
    let mut participants: Vec<(usize, PeerInfo)> = members
        .map(|(member, neighbours)| {
            let info = info(&machines[member.machine], member.memory_bytes);
            (member.machine, PeerInfo { neighbours, ..info })
        })
        .collect();
    if has_reserve && participants.iter().all(|(machine, _)| *machine != 0) {
        let info = info(&machines[0], machines[0].memory_bytes);
        participants.push((0, PeerInfo { is_reserve: true, ..info }));
    }
    participants
}

/// What the primary knows of a machine that is connected when the product begins, with this credit.
pub(crate) fn info(machine: &Machine, credit_bytes: u64) -> PeerInfo {
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

/// The same of a machine that joins: its link is not measured.
pub(crate) fn joining(machine: &Machine) -> PeerInfo {
    PeerInfo { shares_memory: false, link_bytes_per_s: None, ..info(machine, machine.memory_bytes) }
}

/// Bandwidth of a machine's link in bytes a second, and latency in seconds.
pub(crate) fn link(machine: &Machine) -> (f64, f64) {
    machine.link.map_or((f64::INFINITY, 0.0), |link| (link.bytes_per_s, link.round_trip_s / 2.0))
}

/// The operands; A may be stored by columns.
pub(crate) fn operands(problem: &Problem, col_major: bool) -> Operands {
    Operands {
        a_layout: if col_major { Layout::ColMajor } else { Layout::RowMajor },
        b_layout: Layout::RowMajor,
        a_source: problem.a_source,
        b_source: problem.b_source,
        unplaced: [None; 2],
        reads_c: problem.reads_c,
    }
}
