//! What is written down of a run beside its result, and the last questions that belong there.

use super::Core;
use crate::log::{Phase, Recorder};
use bramble_link::Body;
use bramble_schedule::message::{Bye, Kind};

/// How a run goes, and what is written down of it.
pub(crate) struct Terms {
    /// Whether work that a slow machine has not been sent goes to others.
    pub(crate) steals: bool,
    /// Whether the processor's time is accounted for.
    pub(crate) account: bool,
    /// The event log, if there is one.
    pub(crate) recorder: Recorder,
}

impl Core {
    /// No more jobs for anybody; before that, what their clocks say.
    pub(super) fn say_goodbye(&mut self) {
        self.recorder.phase(Phase::Closing);
        for peer in 0..self.peers.len() {
            for question in self.recorder.questions(peer) {
                self.send(peer, Kind::Ping, question, Body::Empty);
            }
            self.send(peer, Kind::Bye, Bye::default().encode(), Body::Empty);
        }
    }
}
