//! What workers that pass panels on to each other are told, and what they say.

use super::Core;
use bramble_link::{Arrived, Body};
use bramble_schedule::ProtocolError;
use bramble_schedule::message::{Forward, Kind, Missing, Reached, encode_forwards};
use bramble_schedule::primary::Event;

impl Core {
    /// Orders a worker to pass matrices on.
    pub(super) fn order(&self, peer: usize, forwards: &[Forward]) {
        self.send(peer, Kind::Relay, encode_forwards(forwards), Body::Empty);
    }

    /// Tells a worker that the other has no link to it.
    pub(super) fn parted(&self, peer: usize, other: usize) {
        if let Ok(other) = u32::try_from(other) {
            let reached = Reached { peer: other, is_there: false, why: String::new() };
            self.send(peer, Kind::Reached, reached.encode(), Body::Empty);
        }
    }

    /// A worker misses a matrix, or a neighbour.
    pub(super) fn relayed(&mut self, peer: usize, arrived: &Arrived) -> Result<(), ProtocolError> {
        if arrived.kind == Kind::Missing.code() {
            let missing = Missing::decode(&arrived.head)?;
            self.happened(Event::Missing { peer, missing });
            return Ok(());
        }
        let Reached { peer: other, is_there, .. } = Reached::decode(&arrived.head)?;
        // That a link is there was said before the product began.
        if !is_there {
            self.happened(Event::Parted { peer, other });
        }
        Ok(())
    }
}
