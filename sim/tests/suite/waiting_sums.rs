//! Partial sums that wait at the primary take no more memory than the plan predicts, whatever happens to the machines.

use bramble_matrix::{DType, Layout};
use bramble_plan::{
    Base, LinkRate, Machine, OperandSource, Plan, PlanOptions, Preference, Problem, Strategy, TileSize,
    decide,
};
use bramble_schedule::primary::{
    Operands, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred, ResultPlace,
};
use bramble_sim::{Faults, SimSetting, simulate_with};
use bramble_wire::message::ResultHead;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

fn machine(threads: u32, gflops: f64, memory_bytes: u64, bytes_per_s: Option<f64>) -> Machine {
    Machine {
        name: "w".into(),
        threads,
        gflops,
        peak_gflops: 20.0,
        memory_bytes,
        link: bytes_per_s.map(|bytes_per_s| LinkRate { bytes_per_s, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

fn problem(m: u64, n: u64, k: u64) -> Problem {
    let sent = OperandSource::Sent;
    Problem { m, n, k, dtype: DType::F64, reads_c: false, a_source: sent, b_source: sent }
}

/// Each machine computes tile by tile and step by step, so most sums could wait.
fn planned(p: &Problem, tile: u64, machines: &[Machine]) -> Plan {
    let strategy = Some(Strategy { base: Base::Naive, levels: 0 });
    let wish = PlanOptions { strategy, who: Preference::Workers, ..PlanOptions::AUTO };
    let cut = TileSize { tile: Some(tile), depth: Some(tile) };
    decide(p, cut, &machines[0], &machines[1..], &wish).unwrap().plan
}

/// Work of a lost machine went to several others. One of these was suspended, and ever more sums that the others returned
/// waited for it: 1,540,096 bytes, where 1,507,328 were predicted.
#[test]
fn sums_do_not_pile_up_while_one_heir_of_a_lost_machine_is_suspended() {
    let worker = |threads| machine(threads, 3.3825889829040423, 6_646_668, Some(1e7));
    let mut machines = vec![machine(3, 0.1, 1 << 30, None)];
    machines.extend([3, 1, 1, 3, 1].map(worker));
    let faults =
        "kill:w3@8672ms,restart:w1@10081ms..11056ms,pause:w4@8888ms..27532ms,restart:w1@8888ms..11598ms";
    check(&planned(&problem(640, 704, 960), 64, &machines), &machines, faults);
}

/// The same after two losses, at different machines: 548,864 bytes, where 540,672 were predicted.
#[test]
fn sums_do_not_pile_up_after_two_losses() {
    let worker = |(threads, gflops, memory_bytes)| machine(threads, gflops, memory_bytes, Some(1e7));
    let mut machines = vec![machine(2, 6.121264774199006, 1 << 30, None)];
    let workers = [
        (2, 13.880875489373564, 4_541_287),
        (4, 5.195311773332704, 4_541_957),
        (2, 1.1011438873914128, 5_202_562),
        (3, 1.2680054723259093, 554_945),
        (3, 1.4148342286427038, 3_659_155),
    ];
    machines.extend(workers.map(worker));
    check(&planned(&problem(416, 384, 384), 32, &machines), &machines, "kill:w5@1611ms,off:w3@769ms");
}

fn check(plan: &Plan, machines: &[Machine], faults: &str) {
    let report = simulate_with(plan, machines, &SimSetting::measured(), &faults.parse::<Faults>().unwrap());
    let most = plan.predicted.primary_memory_bytes;
    assert!(report.failed.is_none() && !report.losses.is_empty());
    assert!(report.partial_sum_bytes_max <= most, "{} of {most}", report.partial_sum_bytes_max);
}

/// Plan for one worker, resumed by ten that each keep the first tile that they are asked for. The sums after it wait for it,
/// and the plan has room for those of one worker.
#[test]
fn workers_outside_the_plan_return_no_sums_that_have_to_wait() {
    let machines = [machine(1, 1.0, 100_000, None), machine(1, 1.0, 100_000, Some(1e9))];
    let plan = planned(&problem(80, 4, 64), 4, &machines);
    let most = plan.predicted.primary_memory_bytes;
    let peer = PeerInfo {
        name: "w".into(),
        credit_bytes: 100_000,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e6,
        link_bytes_per_s: None,
        is_reserve: false,
    };
    let (layout, sent) = (Layout::RowMajor, OperandSource::Sent);
    let operands = Operands {
        a_layout: layout,
        b_layout: layout,
        a_source: sent,
        b_source: sent,
        unplaced: [None; 2],
        reads_c: false,
    };
    let mut primary = Primary::resumed(plan, operands, vec![peer; 10], &|_, _| false).unwrap();
    let mut actions = VecDeque::from(primary.handle(PrimaryEvent::Start, Duration::ZERO));
    let (mut keeps, mut returned, mut waiting_bytes) = (BTreeSet::new(), 0, 0);
    while let Some(action) = actions.pop_front() {
        let (peer, message) = match action {
            PrimaryAction::Send(peer, message) => (peer, message),
            PrimaryAction::Merge { .. } => {
                waiting_bytes -= 4 * 4 * 8;
                continue;
            }
            _ => continue,
        };
        let bytes = message.wire_bytes();
        actions.extend(primary.handle(PrimaryEvent::Sent { peer, bytes }, Duration::ZERO));
        for job in &message.head.jobs {
            if keeps.insert(peer) {
                continue;
            }
            let (step_start, step_end) = (job.step, job.step + 1);
            let head = ResultHead { c: job.c, epoch: 0, step_start, step_end, first_line: 0, lines: 4 };
            if primary.expect(peer, &head).unwrap().place == ResultPlace::PartialSum {
                waiting_bytes += 4 * 4 * 8;
                assert!(waiting_bytes <= most, "{waiting_bytes} bytes wait, {most} are predicted");
            }
            returned += 1;
            actions.extend(primary.handle(PrimaryEvent::Landed { peer, head }, Duration::ZERO));
            // Two panels and a tile, at the minimum charge of a matrix.
            actions.extend(primary.handle(PrimaryEvent::Credit { peer, bytes: 3 * 512 }, Duration::ZERO));
        }
    }
    assert_eq!((keeps.len(), primary.sums_under_way().0), (10, 0), "sums wait");
    assert!(returned > 0 && primary.tiles_left() > 0);
}
