//! Supervises a run beside its link tasks: ticks, machines that join, spot checks, the inspection of C, goodbyes.
//!
//! Place in the flow: `run` starts the supervisor when every link has its two tasks; they move the messages.
//!
//! Invariants: whatever the primary waits for, the state machine gets its tick, so workers keep hearing heartbeats.

use super::inspection::{Inspected, inspect};
use super::joins::{Came, Tasks};
use super::kept::end_keeper;
use super::spots::Looking;
use super::{Core, GOODBYE, TICK};
use crate::PrimaryError;
use crate::inspector::Inspector;
use crate::keeper::JournalFile;
use crate::product::Watch;
use crate::stop::Stop;
use bramble_schedule::primary::Event;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// What the supervisor of a run needs beside the core.
pub(super) struct Attendants<'a> {
    pub(super) changed: &'a Notify,
    pub(super) watch: &'a dyn Watch,
    pub(super) stop: &'a Stop,
    pub(super) tasks: Tasks,
    pub(super) came: mpsc::Receiver<Came>,
    /// How many losses have been reported to `watch`.
    pub(super) told: usize,
    /// Checks C, and single tiles while the product runs.
    pub(super) inspector: Arc<Inspector>,
    pub(super) looking: Looking,
}

impl Attendants<'_> {
    /// Adds a machine that was admitted, or reports why it was turned away.
    fn welcome(&mut self, core: &Rc<RefCell<Core>>, came: Came) {
        match came {
            Ok(session) => {
                self.watch.joined(&session.name);
                self.tasks.join(core, session);
            }
            Err(e) => self.watch.turned_away(&e),
        }
    }

    /// Reports the losses since the last call.
    fn tell(&mut self, core: &Core) {
        for lost in &core.state.losses()[self.told..] {
            let helps = !lost.too_slow && !lost.is_wrong;
            self.watch.lost(&core.peers[lost.peer].name, &lost.why, helps);
            self.told += 1;
        }
    }
}

/// Ticks until every tile is committed, the run has failed, or the user has ended it.
pub(super) async fn supervise(core: &Rc<RefCell<Core>>, with: &mut Attendants<'_>) {
    loop {
        tokio::select! {
            biased;
            why = with.tasks.fault() => core.borrow_mut().fail(why),
            Some(came) = with.came.recv() => with.welcome(core, came),
            is_wrong = with.looking.over() => core.borrow_mut().looked(is_wrong, &with.inspector),
            _ = tokio::time::timeout(TICK, with.changed.notified()) => {}
        }
        let mut core = core.borrow_mut();
        if let Some(look) = core.look.take() {
            with.looking.begin(look, &with.inspector, &core);
        }
        with.tell(&core);
        if core.finished.is_some() || core.failed.is_some() {
            return with.watch.progress(&core.progress());
        }
        if core.is_given_up(with.stop) {
            return;
        }
        core.tick();
        with.watch.progress(&core.progress());
    }
}

/// Waits for `work` while ticks go on, so that workers do not take the primary for lost.
pub(super) async fn while_alive<T>(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            why = with.tasks.fault() => core.borrow_mut().fail(why),
            Some(came) = with.came.recv() => with.welcome(core, came),
            () = tokio::time::sleep(TICK) => core.borrow_mut().tick(),
        }
    }
}

/// Ends a run: closes the journal, inspects C while all workers are still connected, and says goodbye.
pub(super) async fn ended(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    inspector: &Arc<Inspector>,
) -> Result<(Option<Inspected>, Result<Option<JournalFile>, PrimaryError>), PrimaryError> {
    // From here on a signal kills the process at once, unless the user has asked for an orderly end already.
    with.stop.arm(core.borrow().stopped.is_some());
    if core.borrow().finished.is_none() {
        // Goodbyes first: closing the journal waits for the disk, and no worker has to wait for that.
        goodbyes(core, with.changed).await;
        return Ok((None, end_keeper(core).await));
    }
    // C is complete, so the journal needs no more tiles; its thread must not read C while C is inspected.
    let journal = while_alive(core, with, end_keeper(core)).await;
    let inspected = inspect(core, with, inspector).await?;
    core.borrow_mut().happened(Event::Accepted);
    goodbyes(core, with.changed).await;
    Ok((inspected, journal))
}

/// Says goodbye to every worker and waits, at most `GOODBYE`, for their accounts.
async fn goodbyes(core: &Rc<RefCell<Core>>, changed: &Notify) {
    if core.borrow().failed.is_some() {
        return;
    }
    core.borrow_mut().say_goodbye();
    if core.borrow().stopped.is_some() {
        return;
    }
    let deadline = tokio::time::Instant::now() + GOODBYE;
    while core.borrow().peers.iter().any(|p| p.goodbye.is_none() && p.to.is_some()) {
        if tokio::time::timeout_at(deadline, changed.notified()).await.is_err() {
            return;
        }
    }
}

impl Core {
    fn tick(&mut self) {
        self.hear();
        self.happened(Event::Tick);
    }
}
