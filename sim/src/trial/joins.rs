//! Machines that join while a product runs, for the first time or again.
//!
//! Place in the flow: a fault makes a machine join; then follows what `primary/src/run/joins.rs` does: a link, an index, and
//! the event for the primary.
//!
//! Invariants: a joining machine has the next index, and no messages from before; a machine that is connected
//! does not join.
//!
//! Deliberately absent: dialling, the hello, and the check of its kernel: only machines that may take part join.

use super::Trial;
use super::lanes::Lane;
use super::node::Node;
use crate::fault::{FaultSite, LinkEnd};
use crate::participants;
use bramble_schedule::primary::PrimaryEvent;

impl Trial {
    /// A machine joins, unless it is connected or does not exist.
    pub(super) fn join(&mut self, site: FaultSite) {
        let FaultSite::Worker(machine) = site else { return };
        if self.is_over() {
            return;
        }
        let is_there =
            self.peer_of(LinkEnd::Worker(machine)).is_some_and(|peer| self.nodes[peer].machine.lives);
        let Some(is) = self.members.cluster.get(machine).filter(|_| !is_there && machine > 0).cloned() else {
            return;
        };
        let info = participants::joining(&is);
        let (peer, now) = (self.members.count, self.event_queue.now());
        self.members.count += 1;
        self.members.machines.push(machine);
        self.members.rooms.push(info.credit_bytes);
        self.nodes[peer] = Node::new(&info, &is, self.limits);
        self.nodes[peer].starts(now);
        self.nodes[peer].announced = now;
        let (rate, latency) = participants::link(&is);
        for lane in [self.out(peer), self.back(peer)] {
            self.lanes[lane] = Lane::new(rate, latency);
        }
        if self.process.stands > 0 || self.process.watch.stands() {
            // It may wait for long until it hears anything.
            self.checks.may_look_lost(peer);
        }
        self.record.seen.joined += 1;
        self.record.moved_last = now;
        self.dispatch(PrimaryEvent::Joined(info));
        self.check_events_of_lost_machines();
    }
}
