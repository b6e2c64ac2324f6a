//! A connection with one primary: products, one after another, and the time between them.
//!
//! Place in the flow: the greeting of a connection brings the first hello here. Each product is a session of its own (`run`); in
//! between, the primary sends pings and then the next hello, or ends the connection.
//!
//! Invariants: frames between two products have the number 0, and those of a product its number, so no frame can be taken for
//! one of another product. Placed matrices stay. Of a product only the compute threads stay, for `THREADS_STAY` and if the next
//! one wants as many, and the scratch memory that these keep: its grant is returned. A wrong message between two products ends
//! the connection, with a reason.

use super::core::TaskResult;
use super::greet::{MEMORY_PATIENCE, choose_kernel_and_memory, session_threads, welcome};
use super::silence::primary_silence;
use super::{LAST_WORDS, WorkerError, refuse, run};
use crate::held::HeldStore;
use crate::ledger::{Grant, SessionLedger, SessionOwner};
use crate::machine::Config;
use crate::pool::{ComputePool, EndedTask, ThreadPlacement};
use crate::tickets::NeighbourTickets;
use bramble_kernel::Pick;
use bramble_link::{Body, Frame, Link, LinkError, NoBodies, Receiver, Sender, clock_ns};
use bramble_matrix::give_back_free_memory;
use bramble_wire::ProtocolError;
use bramble_wire::message::{Hello, Kind, Pong, decode_error, decode_number};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Why a connection with parts is ended by the worker.
const LEASE_ENDED: &str = "its placed matrices were idle, and another primary needs the memory";
/// How long the compute threads of a product wait for the next one. Less than another primary waits for memory
/// (`MEMORY_PATIENCE`), so the scratch memory of threads that wait never causes a refusal.
const THREADS_STAY: Duration = Duration::from_secs(1);

const _: () = assert!(THREADS_STAY.as_millis() < MEMORY_PATIENCE.as_millis());

/// A hello, and the kernel and memory for its product.
pub(super) type AdmittedProduct = (Hello, Pick, Grant);

/// A connection that this worker serves: the worker's state, and the compute threads that a product leaves to the next.
pub(super) struct ServedConnection<'a> {
    pub(super) config: &'a Config,
    pub(super) ledger: &'a SessionLedger,
    pub(super) tickets: Option<&'a NeighbourTickets>,
    /// Parts of placed matrices, which all products of the connection share; from the first product on.
    pub(super) held: Option<Rc<RefCell<HeldStore>>>,
    /// The compute threads of the last product.
    pub(super) pool: Option<Rc<ComputePool<TaskResult>>>,
}

impl ServedConnection<'_> {
    /// Serves products until the primary ends the connection. An error has been reported to the primary.
    pub(super) async fn serve(mut self, mut link: Link, first: AdmittedProduct) -> Result<(), WorkerError> {
        let mut admitted = first;
        loop {
            let (hello, pick, grant) = admitted;
            let port = self.tickets.map_or(0, NeighbourTickets::port);
            if let Err(e) = welcome(&mut link, self.config, self.ledger, &hello, &pick, &grant, port).await {
                return Err(refuse(link, e).await);
            }
            let number = hello.session;
            let Some((idle, place)) = run(link, &mut self, hello, pick, grant).await? else { return Ok(()) };
            link = idle;
            admitted = match self.next_product(&mut link, number, place).await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    // The primary has left, so an error does not matter.
                    let _ = tokio::time::timeout(LAST_WORDS, link.sender.close()).await;
                    return Ok(());
                }
                Err(e) => return Err(leave(link, e).await),
            };
        }
    }

    /// The next product, or `None` if the primary has ended the connection. `place` counts among the sessions meanwhile.
    async fn next_product(
        &mut self,
        link: &mut Link,
        before: u32,
        place: Grant,
    ) -> Result<Option<AdmittedProduct>, WorkerError> {
        link.sender.set_session(0);
        link.receiver.set_session(0);
        let (arriving, is_remote) = (link.receiver.arriving(), !link.shares_memory);
        let activity = self.held.as_ref().map(|held| held.borrow().activity()).unwrap_or_default();
        activity.set_idle(true);
        let hello = tokio::select! {
            hello = next_hello(&mut *link.sender, &mut *link.receiver, before) => hello?,
            () = activity.asked() => return Err(WorkerError::Here(LEASE_ENDED.to_owned())),
            silent = primary_silence(|| false, arriving), if is_remote => return Err(silent),
            never = self.give_back_threads(&place, is_remote) => never,
        };
        activity.set_idle(false);
        let Some(hello) = hello else { return Ok(None) };
        let threads = session_threads(self.config, &hello);
        if self.pool.as_ref().is_some_and(|pool| pool.threads_max() != threads) {
            self.pool = None;
            place.drop_scratch();
        }
        choose_kernel_and_memory(hello, &link.peer, self.config, self.ledger, Some(place)).await.map(Some)
    }

    /// Ends the compute threads, and returns the last product's memory to the system, if the next product does not follow soon.
    /// Never ends itself.
    async fn give_back_threads<T>(&mut self, place: &Grant, is_own_process: bool) -> T {
        tokio::time::sleep(THREADS_STAY).await;
        self.pool = None;
        place.drop_scratch();
        if is_own_process {
            give_back_free_memory();
        }
        std::future::pending().await
    }

    /// The parts of placed matrices that the primary has put here.
    pub(super) fn held(&mut self, hello: &Hello, peer: &str) -> Rc<RefCell<HeldStore>> {
        let (ledger, capacity_bytes) = (self.ledger, self.config.capacity_bytes());
        let store = || {
            let owner = SessionOwner { name: hello.name.clone(), peer: peer.to_owned() };
            Rc::new(RefCell::new(HeldStore::new(ledger.hold_account(&owner, capacity_bytes))))
        };
        self.held.get_or_insert_with(store).clone()
    }

    /// Compute threads for a session; `done` gets the results of its tasks. The last session's threads, if it had as many.
    pub(super) fn threads(
        &mut self,
        hello: &Hello,
        done: UnboundedSender<Vec<EndedTask<TaskResult>>>,
    ) -> Rc<ComputePool<TaskResult>> {
        let threads = session_threads(self.config, hello);
        let done = move |result| {
            // After the session the result is not needed.
            let _ = done.send(result);
        };
        if let Some(pool) = self.pool.as_ref().filter(|pool| pool.threads_max() == threads) {
            pool.begin_session(hello.wants.account, done);
            return pool.clone();
        }
        let hosting = ThreadPlacement { pin_from: self.config.pin_from, gives_way: self.config.gives_way };
        let pool = Rc::new(ComputePool::new(threads, hosting, hello.wants.account, done));
        self.pool = Some(pool.clone());
        pool
    }
}

/// Waits for the hello of the next product, and answers pings meanwhile. `None` if the primary has ended the connection.
async fn next_hello(
    sender: &mut dyn Sender,
    receiver: &mut dyn Receiver,
    before: u32,
) -> Result<Option<Hello>, WorkerError> {
    loop {
        let arrived = match receiver.receive(&mut NoBodies).await {
            // Between two products any end of the link is orderly.
            Err(LinkError::Closed | LinkError::Broken(_)) => return Ok(None),
            Err(LinkError::Refused(why)) => return Err(ProtocolError::new(why).into()),
            other => other?,
        };
        match Kind::from_code(arrived.kind)? {
            Kind::Ping => {
                let pong = Pong { nonce: decode_number(&arrived.head)?, clock_ns: clock_ns() };
                sender.send(Frame::new(Kind::Pong.code(), pong.encode(), Body::Empty)).await?;
            }
            Kind::Hello => {
                let hello = Hello::decode(&arrived.head)?;
                if hello.session == before {
                    return Err(ProtocolError::new("two products with the same number").into());
                }
                return Ok(Some(hello));
            }
            Kind::Error => return Err(WorkerError::Primary(decode_error(&arrived.head)?)),
            other => {
                let what = format!("a message of kind {other:?} has no place between two products");
                return Err(ProtocolError::new(what).into());
            }
        }
    }
}

/// Tells the primary why this worker ends the connection, unless the connection is gone; returns the reason.
async fn leave(mut link: Link, why: WorkerError) -> WorkerError {
    if matches!(why, WorkerError::Primary(_) | WorkerError::Link(LinkError::Closed | LinkError::Broken(_))) {
        return why;
    }
    let frame = super::error_frame(&why);
    let leaving = async {
        if link.sender.send(frame).await.is_ok() && link.sender.close().await.is_ok() {
            // Closing a connection with unread bytes would discard the reason.
            let _ = link.receiver.drain().await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, leaving).await;
    why
}
