//! Machines that take part: members of the plan, and machines that join while the product runs.
//!
//! Place in the flow: the opening makes a session; here it gets two tasks for its link, and an index among the peers.
//!
//! Invariants: indices are given in the order of arrival and never reused: a lost machine that returns is a new peer.
//! Sessions of joining machines are opened beside the product, which does not wait for them. A machine that may not take part
//! (its kernel differs where bits must be the same) gets a goodbye.
//!
//! Deliberately absent: where joining machines come from (the command line knows), and which work they get (the schedule
//! decides). Their links are not measured; the schedule observes their rates.

use super::link_tasks::{read, write};
use super::{Core, Peer};
use crate::PrimaryError;
use crate::account::report_stub;
use crate::levels;
use crate::opening::{Opening, Session, dismiss, open, same_kernel};
use crate::product::MachineLink;
use bramble_matrix::{DType, Winograd};
use bramble_schedule::primary::{PeerInfo, PrimaryEvent};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// The source of machines that may join while the product runs, and the conditions for joining.
pub(crate) struct JoinSource {
    /// Links with joining machines.
    pub(crate) ends: mpsc::Receiver<MachineLink>,
    /// The hello for each of them.
    pub(crate) opening: Opening,
    /// The session number of the first to join; each later one adds two.
    pub(crate) session: u32,
    /// Most bytes that the primary may have outstanding at each of them.
    pub(crate) credits: u64,
    pub(crate) kernels: AllowedKernels,
}

/// The kernels that joining machines may use.
pub(crate) struct AllowedKernels {
    /// The only one, where bits must be the same.
    pub(crate) same: Option<String>,
    pub(crate) dtype: DType,
    /// The rules by which Strassen kernels cut products; the check of C allows for these only.
    pub(crate) rules: Vec<Winograd>,
}

/// Most machines that may join one product.
const JOINS_MAX: usize = 1000;

/// A session with a machine that joins, or why it takes no part.
pub(super) type Admission = Result<Session, PrimaryError>;

/// Opens a session with each machine that joins. Ends when no more can come.
pub(super) async fn admit(mut join_source: JoinSource, came: mpsc::Sender<Admission>) {
    let mut opening = JoinSet::new();
    let mut is_open = true;
    let mut admitted = 0;
    while is_open || !opening.is_empty() {
        tokio::select! {
            end = join_source.ends.recv(), if is_open => match end {
                // The report has an entry for each machine that was admitted, so their number is limited.
                Some(_) if admitted >= JOINS_MAX => {}
                Some(end) => {
                    admitted += 1;
                    let (told, number) = (join_source.opening.clone(), join_source.session);
                    join_source.session = join_source.session.wrapping_add(2);
                    opening.spawn_local(async move { open(end, &told, number).await });
                }
                None => is_open = false,
            },
            Some(opened) = opening.join_next() => {
                let opened = opened
                    .unwrap_or_else(|e| Err(PrimaryError::Failed(format!("opening a session: {e}"))));
                let result = match opened {
                    Ok(mut session) => {
                        session.welcome.memory_bytes = session.welcome.memory_bytes.min(join_source.credits);
                        admit_if_compatible(session, &join_source.kernels).await
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

/// The session, if its machine's kernel is allowed.
async fn admit_if_compatible(session: Session, kernels: &AllowedKernels) -> Admission {
    let is_same = kernels.same.as_ref().map_or(Ok(()), |kernel| same_kernel(kernel, &session));
    match is_same.and_then(|()| levels::check_joining_kernel(&session, kernels.dtype, &kernels.rules)) {
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
    /// Waits until one of the tasks panics, and describes the panic. Without this the run would wait for ever for that
    /// machine's results: no task would be left to report its link as broken.
    pub(super) async fn wait_for_panic(&mut self) -> String {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.writers.join_next() => ended,
                Some(ended) = self.readers.join_next() => ended,
                else => std::future::pending().await,
            };
            // Writers of lost machines are cancelled, which is no fault.
            if let Err(e) = ended
                && e.is_panic()
            {
                return format!(
                    "a task of a link has failed ({e}); this is a fault of Bramble, please report it"
                );
            }
        }
    }

    /// Gives a machine its index and starts its link tasks; `is_dead` if its link has broken already.
    pub(super) fn add_peer(&mut self, core: &Rc<RefCell<Core>>, session: Session, is_dead: bool) {
        // Unbounded, but its producers are bounded: stores by the link's window, pings by the silence after which a peer is lost.
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
            leaving: session.link.sender.send_progress(),
            moved_bytes: (0, 0),
            goodbye: None,
            disconnect: Rc::new(Notify::new()),
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

    /// Adds a machine that joins while the product runs.
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
            let (number, at) = (core.machines.len(), core.times.advance());
            core.observed.joined.push((number, at));
            core.machines.push(report_stub(&session, 0.0));
        }
        self.add_peer(core, session, false);
        core.borrow_mut().dispatch(PrimaryEvent::Joined(info));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_panic_of_a_task_is_reported_but_not_its_end_or_cancellation() {
        tokio::task::LocalSet::new().run_until(told()).await;
    }

    async fn told() {
        let mut tasks = Tasks::default();
        let waited = tokio::time::timeout(Duration::from_millis(10), tasks.wait_for_panic()).await;
        assert!(waited.is_err(), "without tasks there is nothing to wait for");
        tasks.writers.spawn_local(async {});
        tasks.writers.spawn_local(std::future::pending()).abort();
        tasks.readers.spawn_local(std::future::pending());
        let waited = tokio::time::timeout(Duration::from_millis(10), tasks.wait_for_panic()).await;
        assert!(waited.is_err(), "{waited:?}");
        tasks.readers.spawn_local(async { panic!("out of its mind") });
        let told = tasks.wait_for_panic().await;
        assert!(told.contains("out of its mind") && told.contains("please report"), "{told}");
    }
}
