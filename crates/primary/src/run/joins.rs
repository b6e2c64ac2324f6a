//! Machines that take part: members of the plan, and machines that join while the product runs.
//!
//! Place in the flow: the opening makes a session; here it gets two tasks for its link, and an index among the peers.
//!
//! Invariants: indices are given in the order of arrival and never reused: a lost machine that returns is a new peer.
//! Sessions of joining machines are opened beside the product, which does not wait for them. A machine that may not take part
//! (its kernel differs where bits must be the same) gets a goodbye when the product ends, as does one that comes too late.
//!
//! Deliberately absent: where joining machines come from (the command line knows), and which work they get (the schedule
//! decides). Their links are not measured; the schedule observes their rates.

use super::link_tasks::{read, write};
use super::links::LentLink;
use super::{Core, Peer};
use crate::account::report_stub;
use crate::levels;
use bramble_matrix::{DType, Winograd};
use bramble_schedule::primary::{PeerInfo, PrimaryEvent};
use bramble_sessions::{
    Connection, IdleConnections, MachineLink, Numbers, Opening, PrimaryError, Session, open, same_kernel,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};

/// The conditions for machines that join while the product runs.
pub(crate) struct JoinTerms {
    /// The hello for each of them.
    pub(crate) opening: Opening,
    /// Numbers for their connections and sessions.
    pub(crate) numbers: Rc<Numbers>,
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

/// Opens a session with each machine that joins, until the receiver of `came` is closed.
pub(super) async fn admit(
    mut ends: mpsc::Receiver<MachineLink>,
    terms: JoinTerms,
    came: mpsc::Sender<Admission>,
) -> AdmissionEnd {
    let mut opening = JoinSet::new();
    let mut unused = Vec::new();
    let mut is_open = true;
    let mut admitted = 0;
    loop {
        tokio::select! {
            () = came.closed() => return AdmissionEnd { ends, opening, unused },
            end = ends.recv(), if is_open => match end {
                // The report has an entry for each machine that was admitted, so their number is limited.
                Some(_) if admitted >= JOINS_MAX => {}
                Some(end) => {
                    admitted += 1;
                    let connection = Connection::new(end, terms.numbers.connection());
                    let (told, number) = (terms.opening.clone(), terms.numbers.session());
                    opening.spawn_local(async move { open(connection, &told, number).await });
                }
                None => is_open = false,
            },
            Some(opened) = opening.join_next() => {
                let opened = opened
                    .unwrap_or_else(|e| Err(PrimaryError::Failed(format!("opening a session: {e}"))));
                let result = match opened {
                    Ok(mut session) => {
                        session.welcome.memory_bytes = session.welcome.memory_bytes.min(terms.credits);
                        admit_if_compatible(session, &terms.kernels, &mut unused)
                    }
                    Err(e) => Err(e),
                };
                if let Err(mpsc::error::SendError(Ok(session))) = came.send(result).await {
                    unused.push(session);
                }
            }
        }
    }
}

/// Admits no more machines. Machines that were admitted too late are let go, or kept for the next product.
pub(super) async fn end_admission(
    admission: Option<JoinHandle<AdmissionEnd>>,
    mut joining: mpsc::Receiver<Admission>,
    idle: &mut IdleConnections,
) {
    let Some(admission) = admission else { return };
    joining.close();
    let mut late = Vec::new();
    while let Some(came) = joining.recv().await {
        late.extend(came);
    }
    // If the admission has panicked, no machine joins the next product.
    let Ok(AdmissionEnd { ends, opening, unused }) = admission.await else { return };
    late.extend(unused);
    idle.release(late).await;
    idle.release_later(opening);
    idle.later = Some(ends);
}

/// The source of joining machines, and sessions without a product, after the last admission.
pub(super) struct AdmissionEnd {
    /// Links with machines that join later.
    pub(super) ends: mpsc::Receiver<MachineLink>,
    /// Sessions that are being opened.
    pub(super) opening: JoinSet<Result<Session, PrimaryError>>,
    /// Sessions that take no part in the product.
    pub(super) unused: Vec<Session>,
}

/// The session, if its machine's kernel is allowed; otherwise it is in `unused`.
fn admit_if_compatible(session: Session, kernels: &AllowedKernels, unused: &mut Vec<Session>) -> Admission {
    match kernels.check(&session) {
        Ok(()) => Ok(session),
        Err(e) => {
            unused.push(session);
            Err(e)
        }
    }
}

impl AllowedKernels {
    /// Refuses a machine that joins with another kernel.
    pub(crate) fn check(&self, session: &Session) -> Result<(), PrimaryError> {
        self.same.as_ref().map_or(Ok(()), |kernel| same_kernel(kernel, session))?;
        levels::check_joining_kernel(session, self.dtype, &self.rules)
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
        let shares_memory = session.link.shares_memory;
        let (facts, sender, receiver) = session.link.split();
        let (arriving, leaving) = (receiver.arriving(), sender.send_progress());
        // Bytes of the measurement count as this product's, those of earlier products do not.
        let moved_before = if session.is_first { (0, 0) } else { (arriving.get(), leaving().acknowledged) };
        core.borrow_mut().peers.push(Peer {
            name: session.name,
            to: Some(to),
            shares_memory,
            bytes_sent: sent.clone(),
            bytes_received: received.clone(),
            before,
            arriving,
            leaving,
            moved_before,
            moved_bytes: moved_before,
            goodbye: None,
            is_leaving: false,
            disconnect: Rc::new(Notify::new()),
            why: None,
            writer: None,
            lent: Some(LentLink::new(facts, session.known)),
        });
        if is_dead {
            return;
        }
        let writer = self.writers.spawn_local(write(sender, frames, core.clone(), index, sent));
        core.borrow_mut().peers[index].writer = Some(writer);
        self.readers.spawn_local(read(receiver, core.clone(), index, received));
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
            core.recorder.peers(std::iter::once(session.logged()), 1);
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
