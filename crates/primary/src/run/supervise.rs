//! Supervises a run beside its link tasks: ticks, machines that join, spot checks, the inspection of C, goodbyes.
//!
//! Place in the flow: `run` starts the supervisor when every link has its two tasks; they move the messages.
//!
//! Invariants: whatever the primary waits for, the state machine gets its tick, so workers keep hearing heartbeats.

use super::inspection::{InspectionResult, inspect};
use super::joins::{Admission, Tasks};
use super::resume_point::end_journal_writer;
use super::spot_check::SpotChecker;
use super::{Core, TICK};
use crate::inspector::Inspector;
use crate::product::ProductObserver;
use crate::stop::Stop;
use bramble_record::journal::{JournalFile, JournalOptions, JournalSubject};
use bramble_schedule::primary::PrimaryEvent;
use bramble_sessions::{GOODBYE, IntroductionEnd, PrimaryError};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// What the supervisor of a run needs beside the core.
pub(super) struct Supervisor<'a> {
    pub(super) changed: &'a Notify,
    pub(super) watch: &'a dyn ProductObserver,
    pub(super) stop: &'a Stop,
    pub(super) tasks: Tasks,
    pub(super) joining: mpsc::Receiver<Admission>,
    /// How many losses have been reported to `watch`.
    pub(super) losses_reported: usize,
    /// Checks C, and single tiles while the product runs.
    pub(super) inspector: Arc<Inspector>,
    pub(super) spot_checker: SpotChecker,
}

impl Supervisor<'_> {
    /// Adds a machine that was admitted, or reports why it was turned away.
    fn welcome(&mut self, core: &Rc<RefCell<Core>>, came: Admission) {
        match came {
            Ok(session) => {
                self.watch.joined(&session.name);
                self.tasks.join(core, session);
            }
            Err(e) => self.watch.turned_away(&e),
        }
    }

    /// Reports the losses since the last call.
    fn report_losses(&mut self, core: &Core) {
        for lost in &core.state.losses()[self.losses_reported..] {
            let helps = !lost.too_slow && !lost.is_wrong;
            self.watch.lost(&core.peers[lost.peer].name, &lost.why, helps);
            self.losses_reported += 1;
        }
    }
}

/// Runs the product to its end, whatever that is. `dead`: for each link, why it has broken already, if it has.
pub(super) async fn run_to_end(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    (journal, dead): (Option<(JournalOptions, JournalSubject)>, Vec<Option<IntroductionEnd>>),
) -> Result<(Option<InspectionResult>, Result<Option<JournalFile>, PrimaryError>), PrimaryError> {
    core.borrow_mut().keep_journal(journal)?;
    core.borrow_mut().start(dead);
    supervise(core, supervisor).await;
    let inspector = supervisor.inspector.clone();
    finish(core, supervisor, &inspector).await
}

/// Ticks until every tile is committed, the run has failed, or the user has ended it.
pub(super) async fn supervise(core: &Rc<RefCell<Core>>, supervisor: &mut Supervisor<'_>) {
    loop {
        tokio::select! {
            biased;
            why = supervisor.tasks.wait_for_panic() => core.borrow_mut().fail(why),
            Some(came) = supervisor.joining.recv() => supervisor.welcome(core, came),
            is_wrong = supervisor.spot_checker.result() => core.borrow_mut().spot_checked(is_wrong, &supervisor.inspector),
            _ = tokio::time::timeout(TICK, supervisor.changed.notified()) => {}
        }
        let mut core = core.borrow_mut();
        if let Some(spot_check) = core.checks.spot_check.take() {
            supervisor.spot_checker.begin(spot_check, &supervisor.inspector, &core);
        }
        supervisor.report_losses(&core);
        if core.finished.is_some() || core.failed.is_some() {
            return supervisor.watch.progress(&core.progress());
        }
        if core.is_given_up(supervisor.stop) {
            return;
        }
        core.tick();
        supervisor.watch.progress(&core.progress());
    }
}

/// Waits for `work` while ticks go on, so that workers do not take the primary for lost.
pub(super) async fn while_alive<T>(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            why = supervisor.tasks.wait_for_panic() => core.borrow_mut().fail(why),
            Some(came) = supervisor.joining.recv() => supervisor.welcome(core, came),
            () = tokio::time::sleep(TICK) => core.borrow_mut().tick(),
        }
    }
}

/// Ends a run: closes the journal, inspects C while all workers are still connected, and says goodbye.
async fn finish(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    inspector: &Arc<Inspector>,
) -> Result<(Option<InspectionResult>, Result<Option<JournalFile>, PrimaryError>), PrimaryError> {
    // From here on a signal kills the process at once, unless the user has asked for an orderly end already.
    supervisor.stop.arm(core.borrow().times.stopped.is_some());
    if core.borrow().finished.is_none() {
        // Goodbyes first: closing the journal waits for the disk, and no worker has to wait for that.
        goodbyes(core, supervisor.changed).await;
        return Ok((None, end_journal_writer(core).await));
    }
    // C is complete, so the journal needs no more tiles; its thread must not read C while C is inspected.
    let journal = while_alive(core, supervisor, end_journal_writer(core)).await;
    let inspected = inspect(core, supervisor, inspector).await?;
    core.borrow_mut().dispatch(PrimaryEvent::Accepted);
    goodbyes(core, supervisor.changed).await;
    Ok((inspected, journal))
}

/// Sees to it that every machine is told goodbye, also after a failure, and waits for the answers: a machine that answers can
/// serve another product.
pub(super) async fn part(core: &Rc<RefCell<Core>>, supervisor: &mut Supervisor<'_>) {
    core.borrow_mut().say_goodbye();
    wait_for_goodbyes(core, supervisor.changed).await;
    supervisor.report_losses(&core.borrow());
}

/// Says goodbye to every worker and waits for their accounts, unless the product has failed or was stopped.
async fn goodbyes(core: &Rc<RefCell<Core>>, changed: &Notify) {
    if core.borrow().failed.is_some() {
        return;
    }
    core.borrow_mut().say_goodbye();
    if core.borrow().times.stopped.is_none() {
        wait_for_goodbyes(core, changed).await;
    }
}

/// Waits, at most `GOODBYE`, until every worker that was told goodbye has answered.
async fn wait_for_goodbyes(core: &Rc<RefCell<Core>>, changed: &Notify) {
    let deadline = tokio::time::Instant::now() + GOODBYE;
    while core.borrow().peers.iter().any(|p| p.goodbye.is_none() && p.is_leaving) {
        if tokio::time::timeout_at(deadline, changed.notified()).await.is_err() {
            return;
        }
    }
}

impl Core {
    fn tick(&mut self) {
        self.report_traffic();
        self.dispatch(PrimaryEvent::Tick);
    }
}
