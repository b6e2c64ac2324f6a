//! Machines that come in while a product runs, for the first time or again.
//!
//! Place in the flow: a fault says that a machine comes; what `primary/src/run/joins.rs` does follows: a link, a number, and
//! the primary hears of it.
//!
//! Invariants: who comes in has the next number, and nothing of what was said to it or by it before; a machine that is there
//! does not come in.
//!
//! Deliberately absent: finding it, saying hello, and whether its kernels fit: only who may take part comes in.

use super::Trial;
use super::links::Lane;
use super::node::Node;
use crate::fault::{At, Site};
use bramble_schedule::primary::{Event, PeerInfo, Referred};

/// A machine that comes in, as the primary knows it.
pub(super) fn comer(machine: usize, credit_bytes: u64, gflops: f64) -> PeerInfo {
    PeerInfo {
        name: format!("w{machine}"),
        credit_bytes,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: gflops * 1e9 / 2.0,
        link_bytes_per_s: None,
        is_reserve: false,
    }
}

impl Trial {
    /// A machine comes in, unless it is there or there is no such machine.
    pub(super) fn come(&mut self, site: Site) {
        let Site::Worker(machine) = site else { return };
        if self.is_over() {
            return;
        }
        let is_there = self.peer_of(At::Worker(machine)).is_some_and(|peer| self.nodes[peer].lives);
        let Some(is) = self.cluster.get(machine).filter(|_| !is_there && machine > 0).cloned() else {
            return;
        };
        let info = comer(machine, is.memory_bytes, is.gflops);
        let (peer, now) = (self.count, self.agenda.now());
        self.count += 1;
        self.machines.push(machine);
        self.rooms.push(info.credit_bytes);
        self.nodes[peer] = Node::new(&info, is.threads, is.gflops);
        self.nodes[peer].starts(now);
        self.nodes[peer].announced = now;
        let rate = is.link.map_or(f64::INFINITY, |link| link.bytes_per_s);
        let latency = is.link.map_or(0.0, |link| link.round_trip_s / 2.0);
        for lane in [self.out(peer), self.back(peer)] {
            self.lanes[lane] = Lane::new(rate, latency);
        }
        if self.stands > 0 || self.watch.stands() {
            // It may have to wait for long until it hears anything.
            self.checks.suffers(peer);
        }
        self.seen.joined += 1;
        self.moved_last = now;
        self.tell(Event::Joined(info));
        self.check_that_numbers_stay();
    }
}
