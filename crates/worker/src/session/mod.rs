//! One session: from the primary's hello to both goodbyes. Then the link is free for the next one (`connection.rs`).
//!
//! Invariants: all state of a session is on one event loop and is dropped with it; a broken rule, a
//! lost link or a failed task ends the session and its connection, never the worker. The session's state machine decides; this
//! file only carries out. A session that ends in order has sent all its frames and reads none of the next.

mod connection;
mod core;
mod fetches;
mod greet;
mod held_messages;
mod log;
mod lu;
mod making;
mod neighbours;
mod outbox;
mod reductions;
mod relay;
mod silence;

use self::connection::ServedConnection;
use self::core::{Core, OutgoingFrame, TaskResult};
use self::greet::{FirstMessage, GreetedPeer, first_message_at_door, greet, session_threads};
use self::held_messages::place_part;
use self::neighbours::neighbours;
use self::outbox::Outbox;
use self::relay::Neighbours;
use self::silence::primary_silence;
use crate::job_recorder::JobRecorder;
use crate::ledger::{Grant, SessionLedger};
use crate::machine::Config;
use crate::memory::Store;
use crate::pool::EndedTask;
use crate::tickets::NeighbourTickets;
use bramble_kernel::Pick;
use bramble_link::LocalFuture;
use bramble_link::{
    Body, BodyPlacer, DiscardedBody, Frame, Landing, Link, LinkError, Receiver, Section, SectionMeter,
    Sender, Slot, clock_ns,
};
use bramble_matrix::number::to_u64;
use bramble_schedule::worker::{StartLimits, Worker};
use bramble_wire::ProtocolError;
use bramble_wire::limits::CHUNK_BYTES_MAX;
use bramble_wire::message::{
    Hello, Kind, Neighbour, Pong, Reached, StoreHead, decode_error, decode_number, encode_error,
};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const _: () = assert!(CHUNK_BYTES_MAX == bramble_link::CHUNK_BYTES_MAX);

/// How long queued frames may take to be sent when a session ends.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Most pongs that may be queued.
const ANSWERS_MAX: usize = 64;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The link failed.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The primary broke the protocol.
    #[error("the primary broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The primary reported an error.
    #[error("the primary gave up: {0}")]
    Primary(String),
    /// This machine failed.
    #[error("{0}")]
    Here(String),
}

/// Result of serving a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It came from a primary, whose products are done.
    Session,
    /// It came from another worker, and was passed to the session that waited for it.
    Neighbour,
}

/// Serves one primary over a link, product after product, without relaying. `slot` is the link's place among
/// the strangers, if it came through a door; `ledger` is the one of all sessions of this worker.
pub fn serve_link<'f>(
    link: Link,
    slot: Option<Slot>,
    config: &'f Config,
    ledger: &'f SessionLedger,
) -> LocalFuture<'f, Result<(), WorkerError>> {
    Box::pin(async move { serve_arrival(link, slot, config, ledger, None).await.map(drop) })
}

/// Serves a primary, or passes another worker's link to the session that waits for it. With `tickets`, which
/// all sessions of this worker share, sessions relay.
pub fn serve_arrival<'f>(
    mut link: Link,
    slot: Option<Slot>,
    config: &'f Config,
    ledger: &'f SessionLedger,
    tickets: Option<&'f NeighbourTickets>,
) -> LocalFuture<'f, Result<Served, WorkerError>> {
    Box::pin(async move {
        let admitted = match greet(&mut link, slot, config, ledger).await {
            Ok(GreetedPeer::Primary(admitted)) => admitted,
            Ok(GreetedPeer::Neighbour(join)) => {
                let unknown = || ProtocolError::new("it joins, but this worker does not relay").into();
                let handed = tickets.ok_or_else(unknown).and_then(|m| m.hand_over(link, &join.ticket));
                return handed.map(|()| Served::Neighbour);
            }
            Err(e) => return Err(refuse(link, e).await),
        };
        let connection = ServedConnection { config, ledger, tickets, held: None, pool: None };
        connection.serve(link, admitted).await.map(|()| Served::Session)
    })
}

/// Sends the primary the reason for the refusal, if it still reads; returns the reason.
async fn refuse(mut link: Link, why: WorkerError) -> WorkerError {
    let _ = tokio::time::timeout(LAST_WORDS, link.sender.send(error_frame(&why))).await;
    why
}

fn error_frame(why: &WorkerError) -> Frame {
    Frame::new(Kind::Error.code(), encode_error(&why.to_string()), Body::Empty)
}

/// Passes another worker's link to the session that waits for it; primaries are refused.
pub(crate) async fn serve_neighbour(
    mut link: Link,
    slot: Slot,
    tickets: &NeighbourTickets,
) -> Result<(), WorkerError> {
    match first_message_at_door(&slot, &mut link).await? {
        FirstMessage::Join(join) => tickets.hand_over(link, &join.ticket),
        FirstMessage::Hello(_) => Err(ProtocolError::new("this door is for other workers").into()),
    }
}

/// One session, from its welcome to both goodbyes. Afterwards the link is free for the next session, and has a place in the
/// ledger; `None` if the primary has closed the link before this worker's goodbye was sent.
async fn run(
    mut link: Link,
    connection: &mut ServedConnection<'_>,
    hello: Hello,
    pick: Pick,
    grant: Grant,
) -> Result<Option<(Link, Grant)>, WorkerError> {
    // Neither channel needs a limit of its own: they hold tiles and jobs, which the grant bounds, at
    // most `ANSWERS_MAX` pongs, `LU_FETCHES_MAX` frames of factors, one credit, one goodbye, one error.
    let (out, leaving) = mpsc::unbounded_channel();
    // Bounded by `NEIGHBOURS_MAX`.
    let (introduced, introductions) = mpsc::unbounded_channel();
    let (done_tx, mut done) = mpsc::unbounded_channel();
    let wants = hello.wants;
    let pool = connection.threads(&hello, done_tx);
    let threads = session_threads(connection.config, &hello);
    let held = connection.held(&hello, &link.peer);
    let core = Rc::new(RefCell::new(Core {
        state: Worker::new(grant.bytes(), StartLimits::for_threads(threads)),
        store: Store::new(),
        grant: Arc::new(grant),
        pool: pool.clone(),
        kernel: pick.kernel,
        held,
        hello,
        outbox: Outbox::new(out),
        reserved: None,
        is_heard: true,
        sums_bodies: link.sender.sums_bodies(),
        neighbours: Neighbours::new(introduced),
        lu: None,
        arrays: Default::default(),
        meter: Rc::new(SectionMeter::new(wants.account)),
        recorder: JobRecorder::new(wants.log),
    }));
    let mut neighbour_links = JoinSet::new();
    let goodbye = Rc::new(Cell::new(false));
    let has_sent_all = {
        let (watched, arriving) = (!link.shares_memory, link.receiver.arriving());
        let was_heard = || std::mem::take(&mut core.borrow_mut().is_heard);
        let mut silence = std::pin::pin!(primary_silence(was_heard, arriving));
        let mut writing = std::pin::pin!(write(&mut *link.sender, leaving, core.clone(), goodbye.clone()));
        let mut written = false;
        let result = tokio::select! {
            r = read(&mut *link.receiver, core.clone(), &goodbye) => r,
            r = &mut writing => {
                written = true;
                r.map(drop)
            }
            r = collect(&mut done, core.clone()) => r,
            e = &mut silence, if watched => Err(e),
            r = neighbours(introductions, core.clone(), connection.tickets, &mut neighbour_links) => r,
            r = log::send_regularly(core.clone()), if wants.log => r,
        };
        if let Err(why) = result {
            let writing = (!written).then_some(writing);
            return Err(end_early(&core, &mut *link.receiver, writing, why).await);
        }
        // The goodbye is the last frame in the queue.
        tokio::select! {
            r = &mut writing, if !written => r?,
            e = &mut silence, if watched => return Err(e),
            else => false,
        }
    };
    pool.end_session();
    neighbour_links.shutdown().await;
    let place = core.borrow().grant.idle_place();
    Ok(has_sent_all.then_some((link, place)))
}

/// Ends a session before the goodbyes: tells the primary the reason, unless it knows; returns the reason. `writing` is the
/// writer, if it still runs.
async fn end_early(
    core: &Rc<RefCell<Core>>,
    receiver: &mut dyn Receiver,
    writing: Option<Pin<&mut impl Future<Output = Result<bool, WorkerError>>>>,
    why: WorkerError,
) -> WorkerError {
    let has_reason = send_reason(&mut core.borrow_mut(), &why);
    let Some(writing) = writing.filter(|_| !matches!(why, WorkerError::Link(_))) else { return why };
    let draining = async {
        if has_reason {
            let _ = receiver.drain().await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, async { tokio::join!(writing, draining) }).await;
    why
}

/// Tells the primary why the session ends, unless the primary knows; whether there is a reason. Nothing
/// more may be sent afterwards: queued frames, the reason included, still leave, then the writer ends.
fn send_reason(core: &mut Core, why: &WorkerError) -> bool {
    let has_reason = matches!(why, WorkerError::Protocol(_) | WorkerError::Here(_));
    if has_reason {
        core.send(Kind::Error, encode_error(&why.to_string()), Body::Empty);
    }
    core.outbox.close();
    has_reason
}

/// Reads frames until the primary's goodbye, and queues this worker's goodbye as the last frame of the session.
async fn read(
    receiver: &mut dyn Receiver,
    core: Rc<RefCell<Core>>,
    goodbye: &Cell<bool>,
) -> Result<(), WorkerError> {
    let mut placer = Placer(core.clone());
    let meter = core.borrow().meter.clone();
    loop {
        let arrived = match meter.timed(Section::Receiving, receiver.receive(&mut placer)).await {
            Err(LinkError::Refused(why)) => return Err(ProtocolError::new(why).into()),
            other => other?,
        };
        core.borrow_mut().is_heard = true;
        match Kind::from_code(arrived.kind)? {
            Kind::Store => core.borrow_mut().stored(arrived)?,
            kind @ (Kind::Put | Kind::Get | Kind::Free | Kind::Reduce | Kind::Make | Kind::Fetch) => {
                core.borrow_mut().array_message(kind, arrived)?;
            }
            kind @ (Kind::LuBegin
            | Kind::LuFill
            | Kind::LuGo
            | Kind::LuRows
            | Kind::LuCheck
            | Kind::LuFetch) => {
                core.borrow_mut().lu_message(kind, arrived)?;
            }
            Kind::Ping => answer(&core.borrow(), &arrived.head)?,
            Kind::Bye => {
                goodbye.set(true);
                let mut core = core.borrow_mut();
                core.send_log(true);
                core.send(Kind::Bye, core.report().encode(), Body::Empty);
                core.outbox.close();
                return Ok(());
            }
            Kind::Relay => core.borrow_mut().relay_orders(&arrived.head)?,
            Kind::Neighbour => core.borrow_mut().introduce(Neighbour::decode(&arrived.head)?)?,
            Kind::Reached => {
                let reached = Reached::decode(&arrived.head)?;
                if !reached.is_there {
                    core.borrow_mut().pair_parted(reached.peer)?;
                }
            }
            Kind::Error => return Err(WorkerError::Primary(decode_error(&arrived.head)?)),
            Kind::Hello
            | Kind::Welcome
            | Kind::Result
            | Kind::Credit
            | Kind::Pong
            | Kind::Join
            | Kind::Piece
            | Kind::Missing
            | Kind::Log
            | Kind::Placed
            | Kind::Part
            | Kind::Reduced
            | Kind::LuPanel
            | Kind::LuSpent
            | Kind::LuStatus => {
                let what = format!("a message of kind {} has no place here", arrived.kind);
                return Err(ProtocolError::new(what).into());
            }
        }
    }
}

/// Answers a ping.
fn answer(core: &Core, head: &[u8]) -> Result<(), ProtocolError> {
    let nonce = decode_number(head)?;
    if core.outbox.answers() >= ANSWERS_MAX {
        return Err(ProtocolError::new("it sends pings, but does not read the pongs"));
    }
    core.send(Kind::Pong, Pong { nonce, clock_ns: clock_ns() }.encode(), Body::Empty);
    Ok(())
}

/// Sends queued frames in order, until the queue is closed and empty; whether all have been sent. Without goodbyes the link is
/// closed afterwards.
async fn write(
    sender: &mut dyn Sender,
    mut leaving: mpsc::UnboundedReceiver<OutgoingFrame>,
    core: Rc<RefCell<Core>>,
    goodbye: Rc<Cell<bool>>,
) -> Result<bool, WorkerError> {
    let meter = core.borrow().meter.clone();
    while let Some(OutgoingFrame { frame, last_of }) = leaving.recv().await {
        let is_answer = frame.as_ref().is_some_and(|f| f.kind == Kind::Pong.code());
        let frame = frame.unwrap_or_else(|| core.borrow().outbox.take_credit());
        let kind = frame.kind;
        if sender.sums_bodies() {
            meter.seal(&frame);
        }
        match meter.timed(Section::Sending, sender.send(frame)).await {
            // After the goodbye the primary does not wait for the rest.
            Err(LinkError::Closed | LinkError::Broken(_)) if goodbye.get() => return Ok(false),
            sent => sent?,
        }
        let mut core = core.borrow_mut();
        core.is_heard = true;
        core.recorder.left(kind);
        if is_answer {
            core.outbox.answered();
        }
        if let Some(lu) = core.lu.as_mut().filter(|_| kind == Kind::LuFill.code()) {
            lu.sent_rows();
        }
        if let Some((tile, buffer)) = last_of {
            core.returned(tile, buffer)?;
        }
    }
    if !goodbye.get() {
        // An error does not matter here: the connection is over.
        let _ = sender.close().await;
    }
    Ok(true)
}

/// Takes the results of the compute threads.
async fn collect(
    done: &mut mpsc::UnboundedReceiver<Vec<EndedTask<TaskResult>>>,
    core: Rc<RefCell<Core>>,
) -> Result<(), WorkerError> {
    while let Some(batch) = done.recv().await {
        // The whole batch is handled before the writer runs, so that the memory that it frees is one credit message.
        core.borrow_mut().collected(batch)?;
    }
    Ok(())
}

/// Places the bodies of store and put messages and of pings.
struct Placer(Rc<RefCell<Core>>);

impl BodyPlacer for Placer {
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        match Kind::from_code(kind).map_err(|e| e.0)? {
            Kind::Store => {}
            Kind::Put => {
                let held = self.0.borrow().held.clone();
                return place_part(&mut held.borrow_mut(), head, body_bytes).map_err(|e| e.0);
            }
            Kind::Ping => return Ok(Box::new(DiscardedBody::new(body_bytes))),
            Kind::LuFill | Kind::LuRows => return Ok(Box::new(vec![0; body_bytes])),
            other => return Err(format!("a message of kind {other:?} has no body")),
        }
        let store = StoreHead::decode(head).map_err(|e| e.0)?;
        if store.body_bytes() != to_u64(body_bytes) {
            return Err(format!("a store of {} bytes came with {body_bytes}", store.body_bytes()));
        }
        let mut core = self.0.borrow_mut();
        core.reserve(&store).map_err(|e| e.to_string())?;
        let parts = core.store.landing(&store.matrices).map_err(|e| e.to_string())?;
        core.reserved = Some(store);
        Ok(Box::new(parts))
    }
}
