//! Machines that take part: those of the plan, and those that come in mid-product.
//!
//! Place in the flow: sessions come from the opening; who is here gets two tasks for its link, and a number among the peers.
//!
//! Invariants: numbers are given in the order in which machines come, and never again: who was lost and comes back is a new
//! machine. A session is opened beside the product, which waits for nobody. A machine that may not take part (another kernel
//! where bits must be the same) is told goodbye.
//!
//! Deliberately absent: where they come from (the command line knows), and what they are given (the schedule decides). Their
//! links are not measured: what they carry is seen.

use super::carry::{read, write};
use super::{Core, Peer};
use crate::PrimaryError;
use crate::account::report_stub;
use crate::levels;
use crate::opening::{Opening, Session, dismiss, open, same_kernel};
use crate::product::End;
use bramble_matrix::{DType, Winograd};
use bramble_schedule::primary::{Event, PeerInfo};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// Those who may still come.
pub(crate) struct Comers {
    /// Links with them.
    pub(crate) ends: mpsc::Receiver<End>,
    /// What they are told.
    pub(crate) opening: Opening,
    /// The number of their first session; each has the next but one.
    pub(crate) session: u32,
    /// Most bytes that any one of them is sent before it frees some.
    pub(crate) credits: u64,
    pub(crate) kernels: Kernels,
}

/// Which kernels those who come may have.
pub(crate) struct Kernels {
    /// The one, where bits must be the same.
    pub(crate) same: Option<String>,
    pub(crate) dtype: DType,
    /// How those cut products that the check of C knows of.
    pub(crate) rules: Vec<Winograd>,
}

/// Machines that may come to one product.
const JOINS_MAX: usize = 1000;

/// A machine that came, or why it takes no part.
pub(super) type Came = Result<Session, PrimaryError>;

/// Opens a session with each that comes. Ends when nobody can come any more.
pub(super) async fn admit(mut comers: Comers, came: mpsc::Sender<Came>) {
    let mut opening = JoinSet::new();
    let mut is_open = true;
    let mut admitted = 0;
    while is_open || !opening.is_empty() {
        tokio::select! {
            end = comers.ends.recv(), if is_open => match end {
                // Each leaves an entry behind for the report.
                Some(_) if admitted >= JOINS_MAX => {}
                Some(end) => {
                    admitted += 1;
                    let (told, number) = (comers.opening.clone(), comers.session);
                    comers.session = comers.session.wrapping_add(2);
                    opening.spawn_local(async move { open(end, &told, number).await });
                }
                None => is_open = false,
            },
            Some(opened) = opening.join_next() => {
                let opened = opened
                    .unwrap_or_else(|e| Err(PrimaryError::Failed(format!("opening a session: {e}"))));
                let result = match opened {
                    Ok(mut session) => {
                        session.welcome.memory_bytes = session.welcome.memory_bytes.min(comers.credits);
                        fitting(session, &comers.kernels).await
                    }
                    Err(e) => Err(e),
                };
                if came.send(result).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The session, if its machine computes as the others do.
async fn fitting(session: Session, kernels: &Kernels) -> Came {
    let is_same = kernels.same.as_ref().map_or(Ok(()), |kernel| same_kernel(kernel, &session));
    match is_same.and_then(|()| levels::expected(&session, kernels.dtype, &kernels.rules)) {
        Ok(()) => Ok(session),
        Err(e) => {
            dismiss(vec![session]).await;
            Err(e)
        }
    }
}

/// The tasks of all links.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) writers: JoinSet<()>,
    pub(super) readers: JoinSet<()>,
}

impl Tasks {
    /// Waits until one of them ends by a fault of this program, and says which. Without it what its machine has would be
    /// waited for for ever: nobody is left to see that its link is of no use.
    pub(super) async fn fault(&mut self) -> String {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.writers.join_next() => ended,
                Some(ended) = self.readers.join_next() => ended,
                else => std::future::pending().await,
            };
            // Writers of machines that are lost are cancelled.
            if let Err(e) = ended
                && e.is_panic()
            {
                return format!(
                    "a task of a link has failed ({e}); this is a fault of Bramble, please report it"
                );
            }
        }
    }

    /// A machine gets its number; `is_dead` if its link is of no use any more.
    pub(super) fn enlist(&mut self, core: &Rc<RefCell<Core>>, session: Session, is_dead: bool) {
        // Bounded by who fills it: stores by the link's window, pings by the silence after which a peer is lost.
        let (to, frames) = mpsc::unbounded_channel();
        let (sent, received) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let before = (session.link.sender.bytes_sent(), session.link.receiver.bytes_received());
        let index = core.borrow().peers.len();
        core.borrow_mut().peers.push(Peer {
            name: session.name,
            to: Some(to),
            shares_memory: session.link.shares_memory,
            bytes_sent: sent.clone(),
            bytes_received: received.clone(),
            before,
            arriving: session.link.receiver.arriving(),
            leaving: session.link.sender.leaving(),
            moved_bytes: (0, 0),
            goodbye: None,
            cut: Rc::new(Notify::new()),
            why: None,
            writer: None,
        });
        if is_dead {
            return;
        }
        let writer = self.writers.spawn_local(write(session.link.sender, frames, core.clone(), index, sent));
        core.borrow_mut().peers[index].writer = Some(writer);
        self.readers.spawn_local(read(session.link.receiver, core.clone(), index, received));
    }

    /// A machine has come in mid-product.
    pub(super) fn join(&mut self, core: &Rc<RefCell<Core>>, session: Session) {
        let info = PeerInfo {
            name: session.name.clone(),
            credit_bytes: session.welcome.memory_bytes,
            shares_memory: session.link.shares_memory,
            referred: core.borrow().bodies.referred(&session.link),
            neighbours: Vec::new(),
            work_per_s: session.welcome.gflops * 1e9 / 2.0,
            link_bytes_per_s: None,
            is_reserve: false,
        };
        {
            let mut core = core.borrow_mut();
            core.recorder.peers(std::slice::from_ref(&session), 1);
            let (number, began) = (core.machines.len(), core.began);
            let at = core.clock.look(began.elapsed());
            core.joined.push((number, at));
            core.machines.push(report_stub(&session, 0.0));
        }
        self.enlist(core, session, false);
        core.borrow_mut().happened(Event::Joined(info));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_task_that_panics_is_told_and_one_that_ends_or_is_cancelled_is_not() {
        tokio::task::LocalSet::new().run_until(told()).await;
    }

    async fn told() {
        let mut tasks = Tasks::default();
        let waited = tokio::time::timeout(Duration::from_millis(10), tasks.fault()).await;
        assert!(waited.is_err(), "without tasks there is nothing to wait for");
        tasks.writers.spawn_local(async {});
        tasks.writers.spawn_local(std::future::pending()).abort();
        tasks.readers.spawn_local(std::future::pending());
        let waited = tokio::time::timeout(Duration::from_millis(10), tasks.fault()).await;
        assert!(waited.is_err(), "{waited:?}");
        tasks.readers.spawn_local(async { panic!("out of its mind") });
        let told = tasks.fault().await;
        assert!(told.contains("out of its mind") && told.contains("please report"), "{told}");
    }
}
