//! What goes on beside the links: time passes, machines come, C is looked at, goodbyes are said.
//!
//! Place in the flow: `run` begins it when all links have their tasks; what it waits for happens in these.
//!
//! Invariants: while this process waits for whatever it may be, its machines hear of it at every tick.

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

/// Who sees what happens, and who comes.
pub(super) struct Attendants<'a> {
    pub(super) changed: &'a Notify,
    pub(super) watch: &'a dyn Watch,
    pub(super) stop: &'a Stop,
    pub(super) tasks: Tasks,
    pub(super) came: mpsc::Receiver<Came>,
    /// Losses that were told.
    pub(super) told: usize,
    /// Who looks at C, and at tiles before.
    pub(super) inspector: Arc<Inspector>,
    pub(super) looking: Looking,
}

impl Attendants<'_> {
    /// A machine comes in, or may not.
    fn welcome(&mut self, core: &Rc<RefCell<Core>>, came: Came) {
        match came {
            Ok(session) => {
                self.watch.joined(&session.name);
                self.tasks.join(core, session);
            }
            Err(e) => self.watch.turned_away(&e),
        }
    }

    /// Says what was lost since.
    fn tell(&mut self, core: &Core) {
        for lost in &core.state.losses()[self.told..] {
            let helps = !lost.too_slow && !lost.is_wrong;
            self.watch.lost(&core.peers[lost.peer].name, &lost.why, helps);
            self.told += 1;
        }
    }
}

/// Ticks until all tiles are there, or never will be.
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

/// Waits for something, while the machines hear that this one is there.
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

/// What comes when the product is over, one way or the other: C is looked at while all are here, and goodbyes are said.
pub(super) async fn ended(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    inspector: &Arc<Inspector>,
) -> Result<(Option<Inspected>, Result<Option<JournalFile>, PrimaryError>), PrimaryError> {
    // From here on a signal ends at once, unless one has been heard already.
    with.stop.arm(core.borrow().stopped.is_some());
    if core.borrow().finished.is_none() {
        // Before the disk, which may take long: nobody has to wait for it.
        goodbyes(core, with.changed).await;
        return Ok((None, end_keeper(core).await));
    }
    // Which tiles are on the disk does not matter any more, and its thread reads C.
    let journal = while_alive(core, with, end_keeper(core)).await;
    let inspected = inspect(core, with, inspector).await?;
    core.borrow_mut().happened(Event::Accepted);
    goodbyes(core, with.changed).await;
    Ok((inspected, journal))
}

/// Says goodbye to every worker and takes its account, for a while.
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
