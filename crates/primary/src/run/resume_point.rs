//! What makes a run resumable: it reports committed tiles to the journal writer, and ends in order when the user asks.
//!
//! Place in the flow: between the state machine and the journal writer's thread.
//!
//! Invariants: each tile is reported once, when it is committed and no worker or link holds it. The journal writer has ended, and
//! given the output back, before the run returns.

use super::Core;
use crate::stop::Stop;
use bramble_plan::Plan;
use bramble_record::journal::{JournalEnding, JournalFile, JournalOptions, JournalSubject, JournalWriter};
use bramble_schedule::journal::Journal;
use bramble_schedule::primary::{Operands, PeerInfo, Primary, PrimaryEvent};
use bramble_sessions::PrimaryError;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How long results that are under way may still land after the user asked for the end.
const LANDING: Duration = Duration::from_secs(1);

/// State left by an earlier run, from which this run resumes.
pub(crate) struct ResumePoint {
    /// Tiles that are in C already, by region and tile number.
    pub(crate) tiles: BTreeSet<(usize, u64)>,
    /// Number of sessions that work from the start; those after them are reserves.
    pub(crate) working: usize,
}

impl ResumePoint {
    pub(crate) fn of(journal: &Journal, working: usize) -> Self {
        Self { tiles: journal.tiles.keys().copied().collect(), working }
    }
}

/// The state machine of a product, new or resumed.
pub(super) fn state(
    plan: Plan,
    operands: Operands,
    infos: Vec<PeerInfo>,
    before: Option<&ResumePoint>,
    steals: bool,
) -> Result<Primary, PrimaryError> {
    let state = match before {
        None => Primary::new(plan, operands, infos).recovering().inspected(),
        Some(before) => {
            Primary::resumed(plan, operands, infos, &|region, tile| before.tiles.contains(&(region, tile)))
                .map_err(PrimaryError::Failed)?
                .inspected()
        }
    };
    Ok(if steals { state } else { state.without_stealing() })
}

impl Core {
    /// Starts the journal writer, if a journal is wanted.
    pub(super) fn keep_journal(
        &mut self,
        wanted: Option<(JournalOptions, JournalSubject)>,
    ) -> Result<(), PrimaryError> {
        self.journal_writer = match wanted {
            Some((journaling, subject)) => {
                Some(JournalWriter::start(journaling, subject, self.output.clone())?)
            }
            None => None,
        };
        Ok(())
    }

    /// Whether the run has to end because the user asked for it, or because the journal failed.
    pub(super) fn is_given_up(&mut self, stop: &Stop) -> bool {
        stop.arm(self.journal_writer.as_ref().is_some_and(JournalWriter::is_writing));
        if self.journal_writer.as_ref().is_some_and(JournalWriter::has_failed) {
            // The journal writer returns the cause when it ends.
            self.fail("the journal cannot be written".to_owned());
            return true;
        }
        if !stop.is_asked() {
            return false;
        }
        if self.times.stopped.is_none() {
            self.dispatch(PrimaryEvent::Stop);
            self.times.stopped = Some(self.times.clock.passed());
        }
        self.times.stopped.is_some_and(|since| self.times.clock.passed().saturating_sub(since) >= LANDING)
    }
}

/// Ends the journal writer; unless C is complete, it first records all tiles that are.
pub(super) async fn end_journal_writer(
    core: &Rc<RefCell<Core>>,
) -> Result<Option<JournalFile>, PrimaryError> {
    let journal_writer = core.borrow_mut().journal_writer.take();
    let is_finished = core.borrow().finished.is_some();
    let Some(journal_writer) = journal_writer else { return Ok(None) };
    let how = if is_finished { journal_writer.ending_with_c() } else { JournalEnding::Last };
    Ok(journal_writer.end(how).await.map(Some)?)
}
