//! Measures what a job costs the primary in planning and scheduling, without links, kernels and matrix bytes.
//!
//! Drives the real `Primary` through large plans. Its workers take no time: either everything that they are
//! sent has landed, is computed and returned at once; or they are late: nothing comes back as long as the
//! primary can still send something, so that the primary always lacks credit, as with workers that compute.
//! The workers' own bookkeeping is not counted.
//!
//! `cargo run --release -p bramble-schedule --example job_cost`; with `-- --json` it prints lines for
//! `bench/results/`; with `-- STRATEGY WORKERS` it runs only that case, again and again for five seconds, for
//! a profiler.

#![allow(clippy::print_stdout)] // It is what it is for.

mod heap;

use bramble_base::{DType, Layout};
use bramble_plan::{
    LinkRate, Machine, OperandSource, Plan, PlanOptions, Preference, Problem, Strategy, TileSize, decide,
};
use bramble_schedule::primary::{
    Operands, Outgoing, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred,
};
use bramble_wire::message::{Job, MatrixHeader, ResultHead, Then};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

const STRATEGIES: [&str; 5] = ["naive", "row:8", "square:8", "reuse", "strassen:1"];

fn problem(side: u64) -> Problem {
    Problem {
        m: side,
        n: side,
        k: side,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    }
}

fn machines(workers: usize, memory_bytes: u64) -> Vec<Machine> {
    let machine = Machine {
        name: "machine".into(),
        threads: 4,
        gflops: 12.0,
        peak_gflops: 24.0,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s: 117e6, round_trip_s: 3e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    vec![machine; workers + 1]
}

fn planned(problem: &Problem, cut: TileSize, strategy: Option<&str>, workers: usize) -> Plan {
    let all = machines(workers, 4 << 30);
    let strategy = strategy.map(|s| s.parse::<Strategy>().unwrap_or_else(|e| panic!("{e}")));
    let wish = PlanOptions { strategy, who: Preference::Workers, ..PlanOptions::AUTO };
    match decide(problem, cut, &all[0], &all[1..], &wish) {
        Ok(decision) => decision.plan,
        Err(e) => panic!("{e}"),
    }
}

fn primary(plan: Plan) -> Primary {
    let info = |m: &bramble_plan::Member| PeerInfo {
        name: "worker".into(),
        credit_bytes: m.memory_bytes,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 0.0,
        link_bytes_per_s: None,
        is_reserve: false,
    };
    let peers = plan.members.iter().map(info).collect();
    let by_rows = Layout::RowMajor;
    let operands = Operands {
        a_layout: by_rows,
        b_layout: by_rows,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
        unplaced: [None; 2],
        reads_c: false,
    };
    Primary::new(plan, operands, peers)
}

/// A worker that needs no time.
#[derive(Default)]
struct Instantly {
    /// Stored matrices: headers, and the number of jobs that have used them.
    held: HashMap<u32, (MatrixHeader, u16)>,
    jobs: u64,
}

impl Instantly {
    /// Takes a message; returns the bytes that are then free, and adds the tiles that come back.
    fn take(&mut self, message: &Outgoing, results: &mut Vec<ResultHead>) -> u64 {
        for header in message.head.matrices.iter().filter(|h| h.first_line == 0) {
            self.held.insert(header.id, (*header, 0));
        }
        message.head.jobs.iter().map(|job| self.run(job, results)).sum()
    }

    fn run(&mut self, job: &Job, results: &mut Vec<ResultHead>) -> u64 {
        self.jobs += 1;
        let mut free = 0;
        if job.then == Then::Return
            && let Some((tile, first)) = self.held.remove(&job.c)
        {
            let step_start = if first == 0 { job.step } else { u32::from(first) - 1 };
            let (c, lines) = (job.c, tile.rows);
            free += tile.charged_bytes();
            results.push(ResultHead {
                c,
                epoch: 0,
                step_start,
                step_end: job.step + 1,
                first_line: 0,
                lines,
            });
        } else if let Some((tile, first)) = self.held.get_mut(&job.c).filter(|held| held.0.uses == 0) {
            // A tile has no uses; this field holds the first of its steps, plus one.
            if *first == 0 {
                *first = u16::try_from(job.step + 1).unwrap_or_else(|_| panic!("{} steps", tile.id));
            }
        }
        for id in [job.a, job.b] {
            let Some((header, used)) = self.held.get_mut(&id) else { panic!("{id} is not there") };
            *used += 1;
            if *used == header.uses {
                free += header.charged_bytes();
                self.held.remove(&id);
            }
        }
        free
    }
}

/// Cost of a product.
#[derive(Default)]
struct Cost {
    jobs: u64,
    messages: u64,
    /// Seconds in the primary.
    seconds: f64,
}

/// A whole product.
fn run(mut primary: Primary, late: bool) -> Cost {
    let mut workers: Vec<Instantly> = Vec::new();
    workers.resize_with(primary.plan().members.len(), Instantly::default);
    let (mut events, mut later) = (VecDeque::from([PrimaryEvent::Start]), VecDeque::new());
    let (mut cost, mut results) = (Cost::default(), Vec::new());
    let mut finished = false;
    while let Some(event) = events.pop_front().or_else(|| later.pop_front()) {
        let began = Instant::now();
        if let PrimaryEvent::Landed { peer, head } = &event {
            let expected = primary.expect(*peer, head);
            assert!(expected.is_ok(), "{expected:?}");
        }
        let actions = primary.handle(event, Duration::ZERO);
        cost.seconds += began.elapsed().as_secs_f64();
        for action in actions {
            match action {
                PrimaryAction::Send(peer, message) => {
                    cost.messages += 1;
                    events.push_back(PrimaryEvent::Sent { peer, bytes: message.wire_bytes() });
                    let bytes = workers[peer].take(&message, &mut results);
                    let answers = if late { &mut later } else { &mut events };
                    answers.extend(results.drain(..).map(|head| PrimaryEvent::Landed { peer, head }));
                    if bytes > 0 {
                        answers.push_back(PrimaryEvent::Credit { peer, bytes });
                    }
                }
                PrimaryAction::Finished => finished = true,
                PrimaryAction::Fail(why) => panic!("{why}"),
                PrimaryAction::Relay(..) | PrimaryAction::Parted { .. } => {
                    unreachable!("no worker has neighbours here")
                }
                PrimaryAction::Disconnect { .. } | PrimaryAction::Put { .. } => {
                    unreachable!("no worker is lost here")
                }
                PrimaryAction::Merge { .. }
                | PrimaryAction::SpotCheck(_)
                | PrimaryAction::Inspection(_)
                | PrimaryAction::Committed(_)
                | PrimaryAction::Ping(..) => {}
            }
        }
    }
    assert!(finished, "{} tiles are missing", primary.tiles_left());
    cost.jobs = workers.iter().map(|w| w.jobs).sum();
    cost
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [strategy, workers] = &arguments[..] {
        return again_and_again(strategy, workers.parse().unwrap_or_else(|e| panic!("{workers}: {e}")));
    }
    let json = arguments.iter().any(|a| a == "--json");
    table(json);
    first_message(json);
    many_blocks(json);
}

/// 64 × 64 tiles, 64 steps.
const CUT: TileSize = TileSize { tile: Some(512), depth: Some(512) };
const SIDE: u64 = 64 * 512;

fn table(json: bool) {
    if !json {
        println!(
            "| strategy | workers | jobs | messages | planning, ms | µs a job, instant workers | late workers |"
        );
        println!("|---|---|---|---|---|---|---|");
    }
    for strategy in STRATEGIES {
        for workers in [1, 8, 64] {
            let began = Instant::now();
            let plan = planned(&problem(SIDE), CUT, Some(strategy), workers);
            let planning_s = began.elapsed().as_secs_f64();
            let late = run(primary(plan.clone()), true);
            let Cost { jobs, messages, seconds } = run(primary(plan), false);
            let each_us = (seconds + planning_s) / jobs as f64 * 1e6;
            let late_us = (late.seconds + planning_s) / jobs as f64 * 1e6;
            if json {
                println!(
                    "{{\"script\": \"job_cost\", \"strategy\": \"{strategy}\", \"workers\": {workers}, \"jobs\": {jobs}, \
                     \"messages\": {messages}, \"planning_s\": {planning_s:.6}, \"us_a_job\": {each_us:.3}, \
                     \"late_us_a_job\": {late_us:.3}}}"
                );
            } else {
                let planning_ms = planning_s * 1e3;
                println!(
                    "| {strategy} | {workers} | {jobs} | {messages} | {planning_ms:.2} | {each_us:.2} | {late_us:.2} |"
                );
            }
        }
    }
}

/// Time from nothing to the first messages, for a product that is larger than most.
fn first_message(json: bool) {
    for (strategy, workers) in [(Some("naive"), 8), (Some("reuse"), 64), (None, 8), (None, 64)] {
        let began = Instant::now();
        let plan = planned(&problem(100_000), TileSize::default(), strategy, workers);
        let planning_s = began.elapsed().as_secs_f64();
        let mut primary = primary(plan);
        let sent = primary.handle(PrimaryEvent::Start, Duration::ZERO);
        let all_s = began.elapsed().as_secs_f64();
        let name = strategy.unwrap_or("auto");
        if json {
            println!(
                "{{\"script\": \"first_message\", \"strategy\": \"{name}\", \"workers\": {workers}, \
                 \"planning_s\": {planning_s:.6}, \"first_s\": {all_s:.6}}}"
            );
        } else {
            println!(
                "100,000 cubed by {name}, {workers} workers: planned in {:.2} ms, {} actions after {:.2} ms",
                planning_s * 1e3,
                sent.len(),
                all_s * 1e3
            );
        }
    }
}

/// The heap of a plan with a million blocks.
fn many_blocks(json: bool) {
    for workers in [1, 8, 64] {
        let before = heap::reset();
        let cut = TileSize { tile: Some(512), depth: Some(512) };
        let plan = planned(&problem(51_200), cut, Some("naive"), workers);
        let blocks: u64 = plan.members.iter().flat_map(|m| &m.shares).map(bramble_plan::Share::blocks).sum();
        let cost = run(primary(plan), false);
        let (bytes, each) = (heap::most() - before, cost.seconds / cost.jobs as f64 * 1e6);
        if json {
            println!(
                "{{\"script\": \"heap\", \"workers\": {workers}, \"blocks\": {blocks}, \"bytes_max\": {bytes}, \
                 \"us_a_job\": {each:.3}}}"
            );
        } else {
            println!(
                "{blocks} blocks, {workers} workers: {bytes} bytes of heap at most, those of the instant workers among \
                 them; {each:.2} µs a job"
            );
        }
    }
}

fn again_and_again(strategy: &str, workers: usize) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        let cost = run(primary(planned(&problem(SIDE), CUT, Some(strategy), workers)), true);
        println!("{} jobs, {:.2} µs each", cost.jobs, cost.seconds / cost.jobs as f64 * 1e6);
    }
}
