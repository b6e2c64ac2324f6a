//! Machines that are done wait for the others, and hear from this process meanwhile.
//!
//! Place in the flow: parts of one put travel at once; a machine with a small part, or with none, has nothing to do for as long
//! as the slowest link needs.
//!
//! Invariant: a machine that waits hears from the primary every `PING_AFTER`: it gives up a primary that is silent.

use crate::PrimaryError;
use crate::measure::ping;
use crate::opening::{LostConnection, Session};
use bramble_wire::limits::{PING_AFTER, SILENCE_MAX};
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A session after a job.
pub struct UsedSession {
    /// The session.
    pub session: Session,
    /// Bytes that the job sent.
    pub sent: u64,
}

/// The work of one machine: gives the session back, unless the link broke, and a result.
pub type MachineWork<T> = Pin<Box<dyn Future<Output = (Result<UsedSession, LostConnection>, T)> + 'static>>;
/// A machine's number, and its work with the session.
pub type MachineJob<T> = (usize, Box<dyn FnOnce(Session) -> MachineWork<T>>);

/// A job that has ended.
pub struct EndedJob<T> {
    /// The machine's number.
    pub machine: usize,
    /// Bytes sent for it, and the result; or the machine that was lost.
    pub result: Result<(u64, T), LostConnection>,
}

/// Runs the jobs of several machines at once, and puts the sessions back in their slots. Machines without a job, or whose job has
/// ended, are pinged until the last job ends; a machine that is lost then is named, too.
pub async fn at_once<T: 'static>(
    slots: &mut [Option<Session>],
    jobs: Vec<MachineJob<T>>,
) -> Result<Vec<EndedJob<T>>, PrimaryError> {
    let together = Together::of(jobs.len());
    let mut tasks = JoinSet::new();
    for (machine, job) in jobs {
        let Some(session) = slots[machine].take() else {
            together.done();
            continue;
        };
        let together = together.clone();
        tasks.spawn_local(async move {
            let (used, made) = job(session).await;
            together.done();
            match used {
                Ok(used) => (machine, together.wait(used.session).await, Some((used.sent, made))),
                Err(lost) => (machine, Err(lost), None),
            }
        });
    }
    for (machine, slot) in slots.iter_mut().enumerate() {
        if let Some(session) = slot.take() {
            let together = together.clone();
            tasks.spawn_local(async move { (machine, together.wait(session).await, None) });
        }
    }
    let mut ended = Vec::new();
    while let Some(task) = tasks.join_next().await {
        let (machine, session, made) =
            task.map_err(|e| PrimaryError::Failed(format!("a task with a machine has failed: {e}")))?;
        match (session, made) {
            (Ok(session), made) => {
                slots[machine] = Some(session);
                ended.extend(made.map(|made| EndedJob { machine, result: Ok(made) }));
            }
            (Err(lost), _) => ended.push(EndedJob { machine, result: Err(lost) }),
        }
    }
    ended.sort_by_key(|ended| ended.machine);
    Ok(ended)
}

/// Machines with something to do. All of them are on one event loop.
pub struct Together {
    busy: Cell<usize>,
    over: Notify,
}

impl Together {
    /// That many machines have something to do.
    pub fn of(busy: usize) -> Rc<Self> {
        Rc::new(Self { busy: Cell::new(busy), over: Notify::new() })
    }

    /// One of them is done, or lost.
    pub fn done(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
        if self.busy.get() == 0 {
            self.over.notify_waiters();
        }
    }

    /// Pings a machine until all are done; or why it is lost.
    pub async fn wait(&self, mut session: Session) -> Result<Session, LostConnection> {
        while self.busy.get() > 0 {
            tokio::select! {
                biased;
                () = self.over.notified() => return Ok(session),
                () = tokio::time::sleep(PING_AFTER) => {}
            }
            if session.link.shares_memory {
                continue;
            }
            let why = match tokio::time::timeout(SILENCE_MAX, ping(&mut session.link, 0, 0)).await {
                Ok(Ok(_)) => continue,
                Ok(Err(why)) => why,
                Err(_) => format!("it has been silent for {} s", SILENCE_MAX.as_secs()),
            };
            return Err(LostConnection { name: session.name, why });
        }
        Ok(session)
    }
}
