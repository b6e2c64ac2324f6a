//! The real state machines of both ends, joined by queues whose deliveries, job completions and fills come
//! in any order that a link allows: every (tile, step) is done once and in step order, whatever happens
//! first, and no worker ever holds more than its grant.

#![allow(clippy::unwrap_used)] // A test may panic.

use bramble_matrix::{DType, Layout};
use bramble_plan::{Cut, LinkRate, Machine, Preference, Problem, decide};
use bramble_schedule::message::{Job, ResultHead, StoreHead};
use bramble_schedule::primary::{Action, Event, Operands, Outgoing, PeerInfo, Primary};
use bramble_schedule::worker::{Action as WorkerAction, Event as WorkerEvent, Worker};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// One worker with everything that is on its way to and from it.
struct End {
    worker: Worker,
    inbox: VecDeque<Outgoing>,
    outbox: VecDeque<Event>,
    running: Vec<Job>,
    filling: Vec<u32>,
    leaving: Vec<(u32, u32, u32)>,
}

struct World {
    primary: Primary,
    ends: Vec<End>,
    /// Steps done of each tile.
    done: BTreeMap<u32, Vec<u32>>,
    finished: bool,
    failed: Option<String>,
    progress: f64,
    /// What all matrices that workers were sent count for.
    stored_bytes: u64,
}

impl World {
    fn new(primary: Primary, grants: &[u64]) -> Self {
        let end = |grant: &u64| End {
            worker: Worker::new(*grant),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            running: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
        };
        let ends = grants.iter().map(end).collect();
        Self {
            primary,
            ends,
            done: BTreeMap::new(),
            finished: false,
            failed: None,
            progress: 0.0,
            stored_bytes: 0,
        }
    }

    fn primary(&mut self, event: Event) {
        for action in self.primary.handle(event, Duration::ZERO) {
            match action {
                Action::Send(peer, message) => self.ends[peer].inbox.push_back(message),
                Action::Finished => self.finished = true,
                Action::Fail(why) => self.failed = Some(why),
                Action::Committed { .. } | Action::Ping(..) => {}
            }
        }
        self.primary.validate();
        let progress = self.primary.progress();
        assert!(self.progress <= progress && progress <= 1.0, "progress went back");
        self.progress = progress;
    }

    fn worker(&mut self, peer: usize, actions: Vec<WorkerAction>) {
        let end = &mut self.ends[peer];
        for action in actions {
            match action {
                WorkerAction::Start(run) => {
                    let first = self.done.entry(run.job.c).or_default().is_empty();
                    let reads_c = self.primary.plan().problem.reads_c;
                    assert_eq!(run.reads_tile, !first || reads_c, "only the first job overwrites");
                    assert_eq!(run.scales_tile, first && reads_c, "the old C is scaled once");
                    end.running.push(run.job);
                }
                WorkerAction::Fill(id) => end.filling.push(id),
                WorkerAction::Return { tile, step_start, step_end, .. } => {
                    end.leaving.push((tile, step_start, step_end));
                }
                WorkerAction::Credit(bytes) => end.outbox.push_back(Event::Credit { peer, bytes }),
                WorkerAction::Reserve(_) | WorkerAction::Release(_) => {}
            }
        }
        end.worker.validate();
    }

    /// Does one of the things that may happen at `peer`; false where that one cannot happen now.
    fn step(&mut self, peer: usize, what: usize, which: usize) -> bool {
        let end = &mut self.ends[peer];
        match what {
            0 if !end.inbox.is_empty() => {
                let message = end.inbox.pop_front().unwrap();
                let head = StoreHead::decode(&message.head.encode()).unwrap();
                let new = head.matrices.iter().filter(|m| m.first_line == 0);
                self.stored_bytes += new.map(|m| m.charged_bytes()).sum::<u64>();
                let mut actions = end.worker.handle(WorkerEvent::Announced(&head)).unwrap();
                actions.extend(end.worker.handle(WorkerEvent::Landed(&head)).unwrap());
                self.worker(peer, actions);
                self.primary(Event::Sent { peer, bytes: message.wire_bytes() });
            }
            1 if !end.outbox.is_empty() => {
                let event = end.outbox.pop_front().unwrap();
                self.primary(event);
            }
            2 if !end.running.is_empty() => {
                let job = end.running.swap_remove(which % end.running.len());
                self.done.entry(job.c).or_default().push(job.step);
                let actions = self.ends[peer].worker.handle(WorkerEvent::Finished(&job)).unwrap();
                self.worker(peer, actions);
            }
            3 if !end.filling.is_empty() => {
                let id = end.filling.swap_remove(which % end.filling.len());
                let actions = end.worker.handle(WorkerEvent::Filled(id)).unwrap();
                self.worker(peer, actions);
            }
            4 if !end.leaving.is_empty() => {
                let (tile, start, stop) = end.leaving.swap_remove(which % end.leaving.len());
                self.result(peer, tile, start, stop, which);
                let actions = self.ends[peer].worker.handle(WorkerEvent::Returned(tile)).unwrap();
                self.worker(peer, actions);
            }
            _ => return false,
        }
        true
    }

    /// A tile comes back in two pieces where it has two rows.
    fn result(&mut self, peer: usize, c: u32, step_start: u32, step_end: u32, which: usize) {
        let grid = self.primary.plan().grid;
        let (i, j) = grid.tile_of(c).unwrap();
        let rows = grid.tile(i, j).shape().rows as u32;
        let cut = if rows > 1 { 1 + which as u32 % (rows - 1) } else { rows };
        for (first_line, lines) in [(0, cut), (cut, rows - cut)] {
            if lines > 0 {
                let head = ResultHead { c, epoch: 0, step_start, step_end, first_line, lines };
                self.primary.expect(peer, &head).unwrap();
                self.ends[peer].outbox.push_back(Event::Landed { peer, head });
                // Deliver at once: the second piece is checked against the first.
                while let Some(event) = self.ends[peer].outbox.pop_front() {
                    self.primary(event);
                }
            }
        }
    }

    fn run(&mut self, choices: &[u32]) {
        self.primary(Event::Start);
        let mut quiet = 0;
        for n in 0..2_000_000usize {
            if self.finished || self.failed.is_some() {
                return;
            }
            // A fixed list of choices, then round robin, so that every run ends.
            let c = choices.get(n).map_or(n, |c| *c as usize);
            let peers = self.ends.len();
            let moved = self.step(c % peers, (c / peers) % 5, c / peers / 5);
            quiet = if moved { 0 } else { quiet + 1 };
            assert!(quiet < 5 * peers * 4 + choices.len(), "nothing can happen any more, and C is not there");
        }
        panic!("the run does not end");
    }
}

fn problem(m: u64, n: u64, k: u64, reads_c: bool, generated: bool) -> Problem {
    Problem { m, n, k, dtype: DType::F64, reads_c, sends_a: !generated, sends_b: true }
}

fn world(
    p: &Problem,
    tile: u64,
    depth: u64,
    memories: &[u64],
    shared: bool,
    col_major: bool,
) -> Option<World> {
    let machine = |memory: &u64| Machine {
        name: "w".to_owned(),
        threads: 1,
        gflops: 1.0,
        peak_gflops: 1.0,
        memory_bytes: *memory,
        link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
    };
    let machines: Vec<Machine> = memories.iter().map(machine).collect();
    let cut = Cut { tile: Some(tile), depth: Some(depth) };
    let decision = decide(p, cut, &machines[0], &machines, Preference::Workers).ok()?;
    let peers: Vec<PeerInfo> = decision
        .plan
        .shares
        .iter()
        .map(|s| PeerInfo { name: "w".into(), credit_bytes: memories[s.machine], shares_memory: shared })
        .collect();
    let grants: Vec<u64> = peers.iter().map(|p| p.credit_bytes).collect();
    let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
    let operands = Operands {
        a_layout: layout,
        b_layout: Layout::RowMajor,
        a_generated: !p.sends_a,
        b_generated: false,
        reads_c: p.reads_c,
    };
    Some(World::new(Primary::new(decision.plan, operands, peers), &grants))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_step_of_every_tile_is_done_once_in_order(
        m in 1u64..40, n in 1u64..40, k in 1u64..40, tile in 1u64..12, depth in 1u64..12,
        memories in proptest::collection::vec(2_500u64..200_000, 1..5),
        shared in any::<bool>(), col_major in any::<bool>(), reads_c in any::<bool>(), generated in any::<bool>(),
        choices in proptest::collection::vec(any::<u32>(), 0..3000),
    ) {
        let p = problem(m, n, k, reads_c, generated);
        if let Some(mut world) = world(&p, tile, depth, &memories, shared, col_major) {
            world.run(&choices);
            prop_assert_eq!(&world.failed, &None);
            let grid = world.primary.plan().grid;
            let steps: Vec<u32> = (0..grid.steps() as u32).collect();
            prop_assert_eq!(world.done.len() as u64, grid.tiles());
            prop_assert!(world.done.values().all(|s| *s == steps));
            prop_assert_eq!(world.primary.tiles_left(), 0);
            prop_assert_eq!(world.stored_bytes, world.primary.plan().stored_bytes());
            prop_assert_eq!(world.primary.progress(), 1.0);
        }
    }
}

#[test]
fn blocks_that_come_back_in_any_order_keep_their_panels_apart() {
    // Blocks of one tile each: the second may be back long before the first.
    for seed in 0..200u32 {
        let p = problem(24, 24, 16, false, false);
        let mut world = world(&p, 4, 4, &[5 * 512 + 4 * 32 + 100], false, false).unwrap();
        let blocks = world.primary.plan().shares[0].blocks();
        assert!(blocks >= 18, "{blocks}");
        let choices: Vec<u32> =
            (0..4000u32).map(|i| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(7)).collect();
        world.run(&choices);
        assert_eq!((world.failed, world.primary.tiles_left()), (None, 0));
    }
}

#[test]
fn answers_that_nobody_asked_for_are_refused() {
    let p = problem(8, 8, 8, false, false);
    let mut world = world(&p, 4, 4, &[100_000], false, false).unwrap();
    world.primary(Event::Start);
    let grid = world.primary.plan().grid;
    let good =
        ResultHead { c: grid.c_id(0, 0), epoch: 0, step_start: 0, step_end: 2, first_line: 0, lines: 4 };
    assert!(world.primary.expect(0, &good).is_ok());
    let bad = [
        ResultHead { c: grid.a_id(0, 0), ..good },
        ResultHead { c: u32::MAX, ..good },
        ResultHead { epoch: 1, ..good },
        ResultHead { step_start: 1, ..good },
        ResultHead { step_end: 1, ..good },
        ResultHead { first_line: 1, ..good },
        ResultHead { lines: 5, ..good },
        ResultHead { lines: 0, ..good },
        ResultHead { lines: u32::MAX, first_line: 0, ..good },
    ];
    for head in bad {
        assert!(world.primary.expect(0, &head).is_err(), "{head:?}");
    }
    world.primary(Event::Landed { peer: 0, head: good });
    assert!(world.primary.expect(0, &good).is_err(), "a tile comes once");
}

#[test]
fn more_credit_than_was_given_is_refused() {
    let p = problem(8, 8, 8, false, false);
    let mut world = world(&p, 4, 4, &[100_000], false, false).unwrap();
    world.primary(Event::Start);
    world.primary(Event::Credit { peer: 0, bytes: 1 << 40 });
    assert!(world.failed.unwrap().contains("credit"));
}

#[test]
fn a_silent_worker_is_asked_and_then_given_up() {
    let p = problem(8, 8, 8, false, false);
    let mut world = world(&p, 4, 4, &[100_000], false, false).unwrap();
    world.primary(Event::Start);
    let asked = world.primary.handle(Event::Tick, Duration::from_secs(3));
    assert!(asked.iter().any(|a| matches!(a, Action::Ping(0, _))), "{asked:?}");
    world.primary.handle(Event::Alive { peer: 0 }, Duration::from_secs(4));
    let later = world.primary.handle(Event::Tick, Duration::from_secs(21));
    assert!(!later.iter().any(|a| matches!(a, Action::Fail(_))), "{later:?}");
    let given_up = world.primary.handle(Event::Tick, Duration::from_secs(60));
    assert!(
        given_up.iter().any(|a| matches!(a, Action::Fail(why) if why.contains("silent"))),
        "{given_up:?}"
    );
}

#[test]
fn a_million_blocks_cost_no_more_than_what_is_in_flight() {
    let p = problem(2_000_000, 2_000_000, 1000, false, false);
    let mut world = world(&p, 2000, 1000, &[4 << 30], false, false).unwrap();
    world.primary(Event::Start);
    let queued: usize = world.ends[0].inbox.iter().map(Outgoing::wire_bytes).sum();
    assert!(queued < 6 << 20, "{queued} bytes in the link");
}
