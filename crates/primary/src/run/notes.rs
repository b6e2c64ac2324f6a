//! What is written down of a run beside its result, and the last questions that belong there.

use super::kept::Before;
use super::{Comers, Core};
use crate::inspector::Inspector;
use crate::keeper::{Journaling, Subject};
use crate::log::{Phase, Recorder};
use crate::stop::Stop;
use bramble_link::Body;
use bramble_schedule::message::{Bye, Kind};
use std::rc::Rc;
use std::sync::Arc;

/// How a run goes, and what is written down of it.
pub(crate) struct Terms {
    /// Whether work that a slow machine has not been sent goes to others.
    pub(crate) steals: bool,
    /// Whether the processor's time is accounted for.
    pub(crate) account: bool,
    /// Most bytes that any one worker is sent before it frees some, if the user said so.
    pub(crate) credits: Option<u64>,
    /// Machines that may come while it runs.
    pub(crate) comers: Option<Comers>,
    /// The event log, if there is one.
    pub(crate) recorder: Recorder,
    /// The journal, and what it is about.
    pub(crate) journal: Option<(Journaling, Subject)>,
    /// What a run before has left.
    pub(crate) before: Option<Before>,
    /// Where the user may say that it shall end.
    pub(crate) stop: Rc<Stop>,
    /// Looks at C.
    pub(crate) inspector: Arc<Inspector>,
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
