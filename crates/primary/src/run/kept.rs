//! What a run does so that another could go on: it tells the keeper what is complete, and ends in order when it is asked to.
//!
//! Place in the flow: between the state machine and the keeper's thread.
//!
//! Invariants: a tile is told of once, when it is complete and nobody has it. The keeper has ended, and given the output back,
//! before the run has.

use super::Core;
use crate::PrimaryError;
use crate::keeper::{Ending, JournalFile, Journaling, Keeper, Subject};
use crate::stop::Stop;
use bramble_plan::Plan;
use bramble_schedule::journal::Journal;
use bramble_schedule::primary::{Event, Operands, PeerInfo, Primary};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How long tiles that are under way may still land when the user wants to end.
const LANDING: Duration = Duration::from_secs(1);

/// What another run has left.
pub(crate) struct Before {
    /// Tiles that are there, by region and number.
    pub(crate) tiles: BTreeSet<(usize, u64)>,
    /// How many of the sessions work from the start; those after them are reserves.
    pub(crate) working: usize,
}

impl Before {
    pub(crate) fn of(journal: &Journal, working: usize) -> Self {
        Self { tiles: journal.tiles.keys().copied().collect(), working }
    }
}

/// The state machine of a product, from its beginning or from where another run ended.
pub(super) fn state(
    plan: Plan,
    operands: Operands,
    infos: Vec<PeerInfo>,
    before: Option<&Before>,
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
    /// Begins to keep a journal.
    pub(super) fn keep_journal(&mut self, wanted: Option<(Journaling, Subject)>) -> Result<(), PrimaryError> {
        self.keeper = match wanted {
            Some((journaling, subject)) => Some(Keeper::start(journaling, subject, self.output.clone())?),
            None => None,
        };
        Ok(())
    }

    /// Whether the run is over because the user wants that, or because nothing can be kept any more.
    pub(super) fn is_given_up(&mut self, stop: &Stop) -> bool {
        stop.arm(self.keeper.as_ref().is_some_and(Keeper::is_writing));
        if self.keeper.as_ref().is_some_and(Keeper::has_failed) {
            // Why is what the keeper says when it ends.
            self.fail("the journal cannot be kept".to_owned());
            return true;
        }
        if !stop.is_asked() {
            return false;
        }
        if self.stopped.is_none() {
            self.happened(Event::Stop);
            self.stopped = Some(self.clock.passed());
        }
        self.stopped.is_some_and(|since| self.clock.passed().saturating_sub(since) >= LANDING)
    }
}

/// Ends the keeper: with what is complete, unless C is.
pub(super) async fn end_keeper(core: &Rc<RefCell<Core>>) -> Result<Option<JournalFile>, PrimaryError> {
    let keeper = core.borrow_mut().keeper.take();
    let is_finished = core.borrow().finished.is_some();
    let Some(keeper) = keeper else { return Ok(None) };
    let how = if is_finished { keeper.ending_with_c() } else { Ending::Last };
    keeper.end(how).await.map(Some)
}
