//! Messages to and from workers that relay panels to each other.

use super::Core;
use bramble_link::{Arrived, Body};
use bramble_schedule::primary::PrimaryEvent;
use bramble_wire::ProtocolError;
use bramble_wire::message::{Forward, Kind, Missing, Reached, encode_forwards};

impl Core {
    /// Orders a worker to pass matrices on.
    pub(super) fn order(&self, peer: usize, forwards: &[Forward]) {
        self.send(peer, Kind::Relay, encode_forwards(forwards), Body::Empty);
    }

    /// Tells a worker that its link with `other` is gone.
    pub(super) fn parted(&self, peer: usize, other: usize) {
        if let Ok(other) = u32::try_from(other) {
            let reached = Reached { peer: other, is_there: false, why: String::new() };
            self.send(peer, Kind::Reached, reached.encode(), Body::Empty);
        }
    }

    /// Records for the report that two workers have no link any more, once for the pair. Not after C is complete: then links
    /// end with their sessions.
    fn note_parted(&mut self, peer: usize, other: u32, why: String) {
        let other = usize::try_from(other).ok().filter(|other| *other < self.machines.len());
        let Some(other) = other.filter(|_| self.finished.is_none()) else { return };
        let is_known =
            |(a, b, _): &(usize, usize, String)| (*a, *b) == (peer, other) || (*b, *a) == (peer, other);
        if !self.observed.parted.iter().any(is_known) {
            self.observed.parted.push((peer, other, why));
        }
    }

    /// A worker reports a matrix that it did not get, or a neighbour that it has no link with.
    pub(super) fn relayed(&mut self, peer: usize, arrived: &Arrived) -> Result<(), ProtocolError> {
        if arrived.kind == Kind::Missing.code() {
            let missing = Missing::decode(&arrived.head)?;
            self.dispatch(PrimaryEvent::Missing { peer, missing });
            return Ok(());
        }
        let Reached { peer: other, is_there, why } = Reached::decode(&arrived.head)?;
        // Links that exist were reported before the product began.
        if !is_there {
            self.note_parted(peer, other, why);
            self.dispatch(PrimaryEvent::Parted { peer, other });
        }
        Ok(())
    }
}
