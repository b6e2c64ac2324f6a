//! The primary's state machine, and workers that say whatever they like.
//!
//! The input is a small product, machines with the speeds and memories that they claim, and a list of things that
//! happen: a link takes a message, lines of a tile come, credit is given, a worker is heard or lost, time passes.
//!
//! Promises: no panic; no worker is ever sent more than its credit covers; no link is given more than its window and
//! one message; every tile is committed once, and the end comes with the last; after an error there is nothing.

use crate::bytes::Bytes;
use crate::files::check_message;
use crate::memory::within;
use bramble_matrix::{DType, Layout};
use bramble_plan::{Cut, Decision, LinkRate, Machine, Preference, Problem, decide};
use bramble_schedule::limits::LINK_WINDOW_BYTES;
use bramble_schedule::message::ResultHead;
use bramble_schedule::primary::{Action, Event, Operands, Outgoing, PeerInfo, Primary};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A plan of at most 25 tiles and four steps, and the messages for all of it.
const BOUND_BYTES: usize = 1 << 20;
/// Things that happen in one run.
const EVENTS_MAX: usize = 48;

/// What is between the primary and one worker.
#[derive(Default)]
struct Peer {
    credit_bytes: u64,
    /// Bytes of matrices that were sent and not credited.
    held_bytes: u64,
    /// Sizes of the messages that the link has not taken.
    in_link: VecDeque<usize>,
    /// Tiles that it was given, with the rows that it has returned.
    tiles: BTreeMap<u32, u32>,
}

struct World {
    primary: Primary,
    peers: Vec<Peer>,
    committed: BTreeSet<(u64, u64)>,
    now: Duration,
    progress: f64,
    over: bool,
}

/// See the head of this file.
pub fn primary_session(data: &[u8]) {
    within(BOUND_BYTES, || {
        let mut bytes = Bytes::new(data);
        let Some(mut world) = World::new(&mut bytes) else { return };
        world.handle(Event::Start);
        for _ in 0..EVENTS_MAX {
            if bytes.is_empty() || world.over {
                break;
            }
            world.step(&mut bytes);
        }
        if world.over {
            let after = world.primary.handle(Event::Tick, world.now + Duration::from_secs(99));
            assert!(after.is_empty(), "after the end: {after:?}");
        }
    });
}

impl World {
    fn new(bytes: &mut Bytes<'_>) -> Option<Self> {
        // A product without steps never comes here: the shell answers it alone.
        let (m, n, k) = (bytes.u8() % 6, bytes.u8() % 6, 1 + bytes.u8() % 4);
        let (cut, flags) = (bytes.u8(), bytes.u8());
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let problem = Problem {
            m: u64::from(m),
            n: u64::from(n),
            k: u64::from(k),
            dtype: if flag(0) { DType::F64 } else { DType::F32 },
            reads_c: flag(1),
            sends_a: !flag(2),
            sends_b: !flag(3),
        };
        let preference = if flag(4) { Preference::Fastest } else { Preference::Workers };
        let machines: Vec<Machine> = (0..1 + cut / 64 % 3).map(|_| machine(bytes)).collect();
        let cut = Cut { tile: Some(1 + u64::from(cut % 8)), depth: Some(1 + u64::from(cut / 8 % 8)) };
        match decide(&problem, cut, &machines[0], &machines, preference) {
            Ok(decision) => Some(Self::of(decision, &problem, flag(5), flag(6))),
            Err(e) => {
                check_message(&e.to_string());
                None
            }
        }
    }

    fn of(decision: Decision, problem: &Problem, shares_memory: bool, col_major: bool) -> Self {
        check_message(&decision.sentence);
        let layout = if col_major { Layout::ColMajor } else { Layout::RowMajor };
        let operands = Operands {
            a_layout: layout,
            b_layout: Layout::RowMajor,
            a_generated: !problem.sends_a,
            b_generated: !problem.sends_b,
            reads_c: problem.reads_c,
        };
        let shares = &decision.plan.shares;
        let info = |credit_bytes: u64| PeerInfo { name: "w".to_owned(), credit_bytes, shares_memory };
        let infos = shares.iter().map(|s| info(s.memory_bytes)).collect();
        let peer = |credit_bytes: u64| Peer { credit_bytes, ..Peer::default() };
        let peers = shares.iter().map(|s| peer(s.memory_bytes)).collect();
        Self {
            primary: Primary::new(decision.plan, operands, infos),
            peers,
            committed: BTreeSet::new(),
            now: Duration::ZERO,
            progress: 0.0,
            over: false,
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        if self.peers.is_empty() {
            return self.handle(Event::Tick);
        }
        let peer = usize::from(what >> 3) % self.peers.len();
        match what % 8 {
            0 | 1 => {
                // As many messages as the link likes.
                for _ in 0..=what >> 5 {
                    if let Some(size) = self.peers[peer].in_link.pop_front()
                        && !self.over
                    {
                        self.handle(Event::Sent { peer, bytes: size });
                    }
                }
            }
            2 => {
                let claimed = u64::from(bytes.u16());
                self.credit(peer, claimed.min(self.peers[peer].held_bytes));
            }
            3 => {
                let claimed = bytes.u64();
                self.credit(peer, claimed);
            }
            4 | 5 => {
                if let Some(head) = self.result(peer, bytes) {
                    self.lines(peer, head, what % 8 == 5);
                }
            }
            6 => {
                self.now += Duration::from_millis(u64::from(bytes.u16()));
                let quiet = what >> 3 & 1 == 0;
                self.handle(if quiet { Event::Tick } else { Event::Alive { peer } });
            }
            _ => match ResultHead::decode(bytes.take(24)) {
                Ok(head) => self.lines(peer, head, false),
                Err(e) => self.lost(peer, e.0),
            },
        }
    }

    fn lost(&mut self, peer: usize, why: String) {
        self.handle(Event::Lost { peer, why });
        assert!(self.over, "a lost worker ends the product");
    }

    fn credit(&mut self, peer: usize, bytes: u64) {
        let held = self.peers[peer].held_bytes;
        let is_owed = bytes <= held;
        if is_owed {
            self.peers[peer].held_bytes -= bytes;
        }
        self.handle(Event::Credit { peer, bytes });
        assert!(is_owed || self.over, "credit of {bytes} bytes, of {held} that it holds");
    }

    /// Lines of a tile that the worker has, right but for what the input changes.
    fn result(&self, peer: usize, bytes: &mut Bytes<'_>) -> Option<ResultHead> {
        let (which, lines, change) = (bytes.u8(), bytes.u8(), bytes.u8());
        let tiles = &self.peers[peer].tiles;
        let (c, have) = tiles.iter().nth(usize::from(which) % tiles.len().max(1))?;
        let grid = self.primary.plan().grid;
        let (row, col) = grid.tile_of(*c)?;
        let left = grid.tile(row, col).shape().rows as u32 - have;
        let mut head = ResultHead {
            c: *c,
            epoch: 0,
            step_start: 0,
            step_end: grid.steps() as u32,
            first_line: *have,
            lines: if lines == 0 { left } else { u32::from(lines).min(left) },
        };
        match change % 16 {
            1 => head.c = head.c.wrapping_add(u32::from(lines)),
            2 => head.epoch = 1,
            3 => head.step_start = 1,
            4 => head.step_end = head.step_end.wrapping_sub(1),
            5 => head.first_line = head.first_line.wrapping_sub(1),
            6 => head.lines = u32::from(lines),
            7 => head.lines = u32::MAX - u32::from(lines),
            _ => {}
        }
        Some(head)
    }

    /// Lines have come. As the shell does, asks first where they belong, unless the input is `rash`.
    fn lines(&mut self, peer: usize, head: ResultHead, rash: bool) {
        let expected = self.primary.expect(peer, &head);
        if let (Err(e), false) = (&expected, rash) {
            check_message(&e.0);
            return self.lost(peer, e.0.clone());
        }
        if expected.is_ok() {
            let have = self.peers[peer]
                .tiles
                .get_mut(&head.c)
                .unwrap_or_else(|| panic!("{head:?} was not asked for"));
            assert_eq!(*have, head.first_line);
            *have += head.lines;
        }
        self.handle(Event::Landed { peer, head });
        assert!(expected.is_ok() || self.over, "{head:?} is accepted");
    }

    fn handle(&mut self, event: Event) {
        assert!(!self.over, "{event:?} after the end");
        for action in self.primary.handle(event, self.now) {
            assert!(!self.over, "{action:?} after the end");
            match action {
                Action::Send(peer, message) => self.send(peer, &message),
                Action::Committed { row, col } => self.commit(row, col),
                Action::Ping(peer, nonce) => assert!(peer < self.peers.len() && nonce > 0),
                Action::Finished => {
                    assert_eq!(self.committed.len() as u64, self.primary.plan().grid.tiles());
                    self.over = true;
                }
                Action::Fail(why) => {
                    check_message(&why);
                    self.over = true;
                }
            }
        }
        self.primary.validate();
        let progress = self.primary.progress();
        assert!(self.progress <= progress && progress <= 1.0, "progress {} to {progress}", self.progress);
        self.progress = progress;
    }

    fn send(&mut self, peer: usize, message: &Outgoing) {
        let peer = &mut self.peers[peer];
        let waiting: usize = peer.in_link.iter().sum();
        assert!(waiting < LINK_WINDOW_BYTES, "{waiting} bytes wait in the link already");
        peer.in_link.push_back(message.wire_bytes());
        for matrix in message.head.matrices.iter().filter(|m| m.first_line == 0) {
            peer.held_bytes += matrix.charged_bytes();
            if matrix.uses == 0 {
                assert!(peer.tiles.insert(matrix.id, 0).is_none(), "tile {} is sent twice", matrix.id);
            }
        }
        assert!(peer.held_bytes <= peer.credit_bytes, "{} of {}", peer.held_bytes, peer.credit_bytes);
    }

    fn commit(&mut self, row: u64, col: u64) {
        assert!(self.committed.insert((row, col)), "tile ({row}, {col}) twice");
        let id = self.primary.plan().grid.c_id(row, col);
        let owners = self.peers.iter_mut().filter_map(|p| p.tiles.remove(&id)).count();
        assert_eq!(owners, 1, "tile {id} has one owner");
    }
}

/// A machine as it describes itself: most are like each other, some claim what a welcome may at most.
fn machine(bytes: &mut Bytes<'_>) -> Machine {
    let kind = bytes.u8();
    // What `Welcome::decode` lets through.
    let mut speed = || {
        let claimed = f64::from_bits(bytes.u64());
        if claimed > 0.0 && claimed <= 1e9 { claimed } else { 1.0 }
    };
    let (gflops, peak_gflops) = if kind & 1 == 0 { (2.0, 3.0) } else { (speed(), speed()) };
    let memory_bytes = if kind & 2 == 0 { 4096 * u64::from(bytes.u8()) } else { bytes.u64() };
    let bytes_per_s = if kind & 4 == 0 { 1e9 } else { f64::from(bytes.u32()) + 1.0 };
    let link = (kind & 8 == 0).then_some(LinkRate { bytes_per_s, round_trip_s: 1e-4 });
    Machine {
        name: "w".to_owned(),
        threads: 1 + u32::from(kind >> 4),
        gflops,
        peak_gflops,
        memory_bytes,
        link,
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for flags in (0..128).step_by(3) {
        for cut in [0x4a, 0x9b] {
            let mut seed = vec![5, 4, 3, cut, flags];
            // Ordinary machines with less and less memory.
            seed.extend((0..=cut / 64).flat_map(|i| [0, 60 - 20 * i]));
            // Links take everything, tiles come back whole, credit comes.
            seed.extend(
                [0xe0, 0xe8, 0xf0, 4, 0, 0, 0, 12, 0, 0, 0, 20, 0, 0, 0, 2, 60, 0, 10, 60, 0].repeat(3),
            );
            seeds.push(seed);
        }
    }
    seeds
}
