//! Options of a run, and the closing messages to its workers.

use super::resume_point::ResumePoint;
use super::{Core, JoinTerms};
use crate::inspector::Inspector;
use crate::stop::Stop;
use bramble_link::Body;
use bramble_record::journal::{JournalOptions, JournalSubject};
use bramble_record::log::{EventRecorder, Phase};
use bramble_wire::message::{Bye, Kind};
use std::rc::Rc;
use std::sync::Arc;

/// Options of a run.
pub(crate) struct RunOptions {
    /// Whether idle machines steal work that a slow machine has not been sent.
    pub(crate) steals: bool,
    /// Whether processor time is accounted for.
    pub(crate) account: bool,
    /// Most bytes that the primary may have outstanding at each worker, if the user set a limit.
    pub(crate) credits: Option<u64>,
    /// Conditions for machines that join while the product runs, if any may.
    pub(crate) join_terms: Option<JoinTerms>,
    /// The event log; inactive unless the user asked for one.
    pub(crate) recorder: EventRecorder,
    /// The journal's options, and the contents of its head.
    pub(crate) journal: Option<(JournalOptions, JournalSubject)>,
    /// State left by the run that this one resumes.
    pub(crate) before: Option<ResumePoint>,
    /// Tells whether the user asked for the end.
    pub(crate) stop: Rc<Stop>,
    /// Checks C.
    pub(crate) inspector: Arc<Inspector>,
}

impl Core {
    /// Sends goodbye to every worker, once, and nothing after it; before it, the last clock readings for the event log.
    pub(super) fn say_goodbye(&mut self) {
        if std::mem::replace(&mut self.times.has_said_goodbye, true) {
            return;
        }
        self.recorder.phase(Phase::Closing);
        for peer in 0..self.peers.len() {
            for question in self.recorder.clock_requests(peer) {
                self.send(peer, Kind::Ping, question, Body::Empty);
            }
            self.send(peer, Kind::Bye, Bye::default().encode(), Body::Empty);
            self.peers[peer].is_leaving = self.peers[peer].to.take().is_some();
        }
    }
}
