//! The primary's state machine, and workers that say whatever they like.
//!
//! The input is a small product, machines with claimed speeds and memories, a strategy, and a list of
//! events: a link takes messages, lines of a tile arrive, credit returns, a worker is heard or lost, time passes. Results
//! and credit may be honest, early, or lies. Independent records of C and of each worker's messages check the state machine.
//!
//! Promises: no panic; no worker is ever sent more than its credit covers; no link is given more than its window and
//! one message; jobs find their operands, and use each as often as announced; each step of each tile is in C once, in order;
//! waiting partial sums stay within the prediction; every tile is committed once, and the last commit ends the product; honest
//! workers reach the end; after an error no action follows.

mod c_book;
mod input;
mod peer_book;

use crate::bytes::Bytes;
use crate::files::check_message;
use crate::memory::within;
use bramble_plan::Region;
use bramble_schedule::primary::{Outgoing, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred, Which};
use bramble_wire::message::ResultHead;
use c_book::CBook;
use input::Setting;
use peer_book::PeerBook;
use std::time::Duration;

pub(crate) use input::seeds;

/// All candidate plans, one plan of at most 128 results, its messages, and both records.
const BOUND_BYTES: usize = 1 << 20;
/// Events of one run.
const EVENTS_MAX: usize = 100;
/// Rounds within which honest workers must finish.
const ROUNDS_MAX: usize = 4096;

struct World {
    primary: Primary,
    peers: Vec<PeerBook>,
    c: CBook,
    now: Duration,
    progress: f64,
    /// No worker has returned credit for a matrix that it still held.
    is_honest: bool,
    over: bool,
}

/// See the head of this file.
pub fn primary_session(data: &[u8]) {
    within(BOUND_BYTES, || {
        let mut bytes = Bytes::new(data);
        let Some(setting) = Setting::new(&mut bytes) else { return };
        let ends = setting.ends;
        let mut world = World::new(setting);
        world.handle(PrimaryEvent::Start);
        for _ in 0..EVENTS_MAX {
            if bytes.is_empty() || world.over {
                break;
            }
            world.step(&mut bytes);
        }
        if ends {
            world.end();
        }
        if world.over {
            let after = world.primary.handle(PrimaryEvent::Tick, world.now + Duration::from_secs(99));
            assert!(after.is_empty(), "after the end: {after:?}");
        }
    });
}

impl World {
    fn new(setting: Setting) -> Self {
        let Setting { plan, operands, shared, .. } = setting;
        let infos: Vec<PeerInfo> = plan
            .members
            .iter()
            .map(|m| PeerInfo {
                name: "w".to_owned(),
                credit_bytes: m.memory_bytes,
                shares_memory: shared >> m.machine & 1 == 1,
                referred: Referred::default(),
                // No worker relays here: each must be sent its panels whole.
                neighbours: Vec::new(),
                work_per_s: 0.0,
                link_bytes_per_s: None,
                is_reserve: false,
            })
            .collect();
        Self {
            c: CBook::new(&plan),
            peers: infos.iter().map(|p| PeerBook::new(p.credit_bytes, p.shares_memory)).collect(),
            primary: Primary::new(plan, operands, infos),
            now: Duration::ZERO,
            progress: 0.0,
            is_honest: true,
            over: false,
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        if self.peers.is_empty() {
            return self.handle(PrimaryEvent::Tick);
        }
        let peer = usize::from(what >> 4) % self.peers.len();
        match what % 16 {
            0 | 1 => {
                // Any number of messages.
                for _ in 0..=what >> 4 {
                    self.link_takes(peer);
                }
            }
            2 | 3 => {
                let peers = if what % 16 == 2 { peer..peer + 1 } else { 0..self.peers.len() };
                for peer in peers {
                    self.all_honest(peer);
                }
            }
            4 => self.credit(peer, self.peers[peer].freed_bytes()),
            5 => {
                let claimed = u64::from(bytes.u16());
                self.credit(peer, claimed);
            }
            6 => {
                let claimed = bytes.u64();
                self.credit(peer, claimed);
            }
            kind @ 7..=11 => {
                let (which, lines) = (bytes.u8(), bytes.u8());
                let owed = self.peers[peer].owed(usize::from(which), kind == 10);
                let Some(mut head) = owed else { return };
                if lines > 0 {
                    head.lines = u32::from(lines).min(head.lines);
                }
                match kind {
                    7 | 8 => self.lines(peer, head, false),
                    9 => self.lines(peer, lie(head, bytes.u8(), lines), which >= 128),
                    10 => self.early(peer, head),
                    _ => {
                        head.lines = 1;
                        self.lines(peer, head, false);
                    }
                }
            }
            12 | 13 => {
                self.now += Duration::from_millis(u64::from(bytes.u16()));
                let quiet = what % 16 == 12;
                self.handle(if quiet { PrimaryEvent::Tick } else { PrimaryEvent::Alive { peer } });
            }
            14 => match ResultHead::decode(bytes.take(24)) {
                Ok(head) => self.lines(peer, head, true),
                Err(e) => self.lost(peer, e.0),
            },
            _ => self.tiles_backwards(peer, usize::from(bytes.u8())),
        }
    }

    /// Honest workers finish the product.
    fn end(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for peer in 0..self.peers.len() {
                moved |= self.all_honest(peer);
            }
            if self.over {
                return;
            }
            assert!(moved || self.peers.is_empty(), "no event is possible any more, and C is not complete");
        }
        assert!(self.over, "the run does not end");
    }

    /// The link takes every message, all finished tiles return, and credit for every used operand.
    fn all_honest(&mut self, peer: usize) -> bool {
        let mut moved = false;
        while self.link_takes(peer) {
            moved = true;
        }
        for head in self.peers[peer].all_owed(false).collect::<Vec<_>>() {
            if !self.over {
                self.lines(peer, head, false);
            }
            moved = true;
        }
        let freed = self.peers[peer].freed_bytes();
        if freed > 0 && !self.over {
            self.credit(peer, freed);
            moved = true;
        }
        moved
    }

    /// The link takes every message, and all tiles but the first few return, so that partial sums wait.
    fn tiles_backwards(&mut self, peer: usize, kept: usize) {
        while self.link_takes(peer) {}
        while !self.over && self.peers[peer].ready() > kept % 4 {
            let Some(head) = self.peers[peer].owed(self.peers[peer].ready() - 1, false) else { return };
            self.lines(peer, head, false);
        }
    }

    fn link_takes(&mut self, peer: usize) -> bool {
        if self.over {
            return false;
        }
        let Some(bytes) = self.peers[peer].link_takes() else { return false };
        self.handle(PrimaryEvent::Sent { peer, bytes });
        true
    }

    fn lost(&mut self, peer: usize, why: String) {
        self.handle(PrimaryEvent::Lost { peer, why });
        assert!(self.over, "a lost worker ends the product");
    }

    fn credit(&mut self, peer: usize, bytes: u64) {
        let may_be_due = self.peers[peer].may_credit(bytes);
        self.is_honest &= bytes <= self.peers[peer].freed_bytes();
        self.peers[peer].credited(bytes);
        self.handle(PrimaryEvent::Credit { peer, bytes });
        assert!(may_be_due || self.over, "credit of {bytes} bytes, more than was ever spent");
    }

    /// Perhaps a tile returns before its last job was sent: no steps make that valid.
    fn early(&mut self, peer: usize, head: ResultHead) {
        if !self.peers[peer].is_made(head.c) {
            let last = self.primary.plan().regions.iter().map(Region::steps).max().unwrap_or(0) as u32;
            for (step_start, step_end) in (1..=last).flat_map(|end| (0..end).map(move |start| (start, end))) {
                let head = ResultHead { step_start, step_end, ..head };
                assert!(self.primary.expect(peer, &head).is_err(), "{head:?} is too early");
            }
        }
        self.lines(peer, head, true);
    }

    /// Lines have arrived. Like the shell, asks first where they belong, unless the input is `rash`.
    fn lines(&mut self, peer: usize, head: ResultHead, rash: bool) {
        let expected = self.primary.expect(peer, &head);
        match &expected {
            Ok(to) => {
                let moved = !self.primary.moved().is_empty();
                let steps = self.c.steps_of(self.primary.plan(), peer, to.rect, &head, moved);
                let last = self.c.landed(peer, &head, *to, steps);
                let made = self.peers[peer].landed(&head, last);
                assert_eq!(made, (1 << steps.end) - (1 << steps.start), "steps {steps} of {}", to.rect);
            }
            Err(e) => {
                check_message(&e.0);
                if !rash {
                    return self.lost(peer, e.0.clone());
                }
            }
        }
        self.handle(PrimaryEvent::Landed { peer, head });
        assert!(expected.is_ok() || self.over, "{head:?} is accepted");
    }

    fn handle(&mut self, event: PrimaryEvent) {
        assert!(!self.over, "{event:?} after the end");
        for action in self.primary.handle(event, self.now) {
            assert!(!self.over, "{action:?} after the end");
            match action {
                PrimaryAction::Send(peer, message) => self.send(peer, &message),
                PrimaryAction::Relay(peer, orders) => {
                    panic!("peer {peer} has no neighbour, and is ordered to relay {orders:?}")
                }
                PrimaryAction::Parted { peer, other } => assert!(peer < self.peers.len() && peer != other),
                PrimaryAction::Merge { peer, tile, rect } => self.c.merge(peer, tile, rect),
                PrimaryAction::Committed(rect) => self.c.commit(rect),
                action @ (PrimaryAction::Disconnect { .. }
                | PrimaryAction::Put { .. }
                | PrimaryAction::SpotCheck(_)
                | PrimaryAction::Inspection(_)) => {
                    panic!("{action:?} without recovering")
                }
                PrimaryAction::Ping(peer, nonce) => {
                    let peer = &mut self.peers[peer];
                    assert!(!peer.shares_memory() && nonce > peer.pings, "ping {nonce}");
                    peer.pings = nonce;
                }
                PrimaryAction::Finished => {
                    self.c.check_end();
                    if self.is_honest {
                        self.peers.iter().for_each(PeerBook::check_end);
                    }
                    self.over = true;
                }
                PrimaryAction::Fail(why) => {
                    check_message(&why);
                    self.over = true;
                }
            }
        }
        self.primary.validate();
        assert_eq!(self.primary.tiles_left(), self.c.missing() as u64);
        assert!(self.over || self.c.missing() > 0, "the end comes with the last tile");
        let progress = self.primary.progress();
        assert!(self.progress <= progress && progress <= 1.0, "progress {} to {progress}", self.progress);
        self.progress = progress;
    }

    fn send(&mut self, peer: usize, message: &Outgoing) {
        if let Some(piece) = message.piece {
            let id = message.head.matrices.last().map_or(0, |m| m.id);
            if piece.leased {
                self.c.lend(peer, id, piece.rect);
            } else if piece.which == Which::Sum {
                self.c.read_sum(piece.rect);
            }
        }
        self.peers[peer].send(message);
    }
}

/// A valid result with the changes that the input makes.
fn lie(mut head: ResultHead, change: u8, by: u8) -> ResultHead {
    match change % 8 {
        0 => head.c = head.c.wrapping_add(u32::from(by)),
        1 => head.epoch = 1,
        2 => head.step_start = head.step_start.wrapping_add(1),
        3 => head.step_end = head.step_end.wrapping_sub(1),
        4 => head.first_line = head.first_line.wrapping_sub(1),
        5 => head.lines = u32::from(by),
        6 => head.lines = u32::MAX - u32::from(by),
        _ => head.step_end = head.step_end.wrapping_add(u32::from(by)),
    }
    head
}
