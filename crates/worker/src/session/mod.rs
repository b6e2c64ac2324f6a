//! One session: from the primary's hello to its goodbye.
//!
//! Invariants: all state of a session is on one event loop and is dropped with it; a broken rule, a
//! lost link or a failed task ends the session, never the worker. The session's state machine decides; this
//! file only carries out.

mod core;
mod greet;
mod held_messages;
mod log;
mod neighbours;
mod outbox;
mod relay;

use self::core::{Core, OutgoingFrame, TaskResult};
use self::greet::{FirstMessage, GreetedPeer, first_message_at_door, greet, session_threads, welcome};
use self::held_messages::place_part;
use self::neighbours::neighbours;
use self::outbox::Outbox;
use self::relay::Neighbours;
use crate::held::HeldStore;
use crate::job_recorder::JobRecorder;
use crate::ledger::{Grant, SessionLedger, SessionOwner};
use crate::machine::Config;
use crate::memory::Store;
use crate::pool::{ComputePool, EndedTask, ThreadPlacement};
use crate::tickets::NeighbourTickets;
use bramble_kernel::Pick;
use bramble_link::{
    Body, BodyPlacer, DiscardedBody, Frame, Landing, Link, LinkError, Receiver, Section, SectionMeter,
    Sender, Slot, clock_ns,
};
use bramble_matrix::number::to_u64;
use bramble_schedule::ProtocolError;
use bramble_schedule::clock::{StepClock, WORKER_STEP};
use bramble_schedule::limits::{CHUNK_BYTES_MAX, PING_AFTER, PRIMARY_SILENCE_MAX};
use bramble_schedule::message::{
    Hello, Kind, Neighbour, Pong, Reached, StoreHead, decode_error, decode_forwards, decode_number,
    encode_error,
};
use bramble_schedule::worker::{StartLimits, Worker, WorkerEvent};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

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
    /// It was a session, which has ended.
    Session,
    /// It came from another worker, and was passed to the session that waited for it.
    Neighbour,
}

/// Serves one primary over a link, from hello to goodbye, without relaying. `slot` is the link's place among
/// the strangers, if it came through a door; `ledger` is the one of all sessions of this worker.
pub async fn serve_link(
    link: Link,
    slot: Option<Slot>,
    config: &Config,
    ledger: &SessionLedger,
) -> Result<(), WorkerError> {
    serve_arrival(link, slot, config, ledger, None).await.map(drop)
}

/// Serves a primary, or passes another worker's link to the session that waits for it. With `tickets`, which
/// all sessions of this worker share, sessions relay.
pub async fn serve_arrival(
    mut link: Link,
    slot: Option<Slot>,
    config: &Config,
    ledger: &SessionLedger,
    tickets: Option<&NeighbourTickets>,
) -> Result<Served, WorkerError> {
    let (hello, pick, grant) = match greet(&mut link, slot, config, ledger).await {
        Ok(GreetedPeer::Primary(hello, pick, grant)) => (hello, pick, grant),
        Ok(GreetedPeer::Neighbour(join)) => {
            let unknown = || ProtocolError::new("it joins, but this worker does not relay").into();
            let handed = tickets.ok_or_else(unknown).and_then(|m| m.hand_over(link, &join.ticket));
            return handed.map(|()| Served::Neighbour);
        }
        Err(e) => return Err(refuse(link, e).await),
    };
    let port = tickets.map_or(0, NeighbourTickets::port);
    if let Err(e) = welcome(&mut link, config, ledger, &hello, &pick, &grant, port).await {
        return Err(refuse(link, e).await);
    }
    run(link, config, hello, pick, grant, tickets).await.map(|()| Served::Session)
}

/// Sends the primary the reason for the refusal, if it still reads; returns the reason.
async fn refuse(mut link: Link, why: WorkerError) -> WorkerError {
    let frame = Frame::new(Kind::Error.code(), encode_error(&why.to_string()), Body::Empty);
    let _ = tokio::time::timeout(LAST_WORDS, link.sender.send(frame)).await;
    why
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

async fn run(
    link: Link,
    config: &Config,
    hello: Hello,
    pick: Pick,
    grant: Grant,
    tickets: Option<&NeighbourTickets>,
) -> Result<(), WorkerError> {
    // Neither channel needs a limit of its own: they hold tiles and jobs, which the grant bounds, at
    // most `ANSWERS_MAX` pongs, one credit, one goodbye, one error.
    let (out, leaving) = mpsc::unbounded_channel();
    // Bounded by `NEIGHBOURS_MAX`.
    let (introduced, introductions) = mpsc::unbounded_channel();
    let (done_tx, mut done) = mpsc::unbounded_channel();
    let wants = hello.wants;
    let hosting = ThreadPlacement { pin_from: config.pin_from, gives_way: config.gives_way };
    let threads = session_threads(config, &hello);
    let pool = ComputePool::new(threads, hosting, wants.account, move |result| {
        // After the session the result is not needed.
        let _ = done_tx.send(result);
    });
    let meter = Rc::new(SectionMeter::new(wants.account));
    let owner = SessionOwner { name: hello.name.clone(), peer: link.peer.clone() };
    let account = grant.ledger().hold_account(&owner, config.capacity_bytes());
    let core = Rc::new(RefCell::new(Core {
        state: Worker::new(grant.bytes(), StartLimits::for_threads(threads)),
        store: Store::new(),
        grant: Arc::new(grant),
        pool,
        kernel: pick.kernel,
        held: Rc::new(RefCell::new(HeldStore::new(account))),
        hello,
        outbox: Outbox::new(out),
        reserved: None,
        is_heard: true,
        sums_bodies: link.sender.sums_bodies(),
        neighbours: Neighbours::new(introduced),
        meter: meter.clone(),
        recorder: JobRecorder::new(wants.log),
    }));
    let watched = !link.shares_memory;
    let (sender, mut receiver) = (link.sender, link.receiver);
    let arriving = receiver.arriving();
    let goodbye = Rc::new(Cell::new(false));
    let mut writing = std::pin::pin!(write(sender, leaving, core.clone(), goodbye.clone()));
    let mut written = false;
    let result = tokio::select! {
        r = read(&mut *receiver, core.clone(), &goodbye) => r,
        r = &mut writing => {
            written = true;
            r
        }
        r = collect(&mut done, core.clone()) => r,
        r = watch(core.clone(), arriving), if watched => r,
        r = neighbours(introductions, core.clone(), tickets) => r,
        r = log::send_regularly(core.clone()), if wants.log => r,
    };
    let has_reason = send_reason(&mut core.borrow_mut(), &result);
    let broken = matches!(result, Err(WorkerError::Link(_)));
    if !written && !broken {
        let draining = async {
            if has_reason {
                let _ = receiver.drain().await;
            }
        };
        let _ = tokio::time::timeout(LAST_WORDS, async { tokio::join!(writing, draining) }).await;
    }
    result
}

/// Tells the primary why the session ends, unless it ends in order or the primary knows; whether there is a reason. Nothing
/// more may be sent afterwards: queued frames, the reason included, still leave, then the writer ends.
fn send_reason(core: &mut Core, result: &Result<(), WorkerError>) -> bool {
    let reason =
        result.as_ref().err().filter(|e| matches!(e, WorkerError::Protocol(_) | WorkerError::Here(_)));
    if let Some(e) = reason {
        core.send(Kind::Error, encode_error(&e.to_string()), Body::Empty);
    }
    core.outbox.close();
    reason.is_some()
}

/// Reads frames until the primary's goodbye and the end of the link.
async fn read(
    receiver: &mut dyn Receiver,
    core: Rc<RefCell<Core>>,
    goodbye: &Cell<bool>,
) -> Result<(), WorkerError> {
    let mut placer = Placer(core.clone());
    let meter = core.borrow().meter.clone();
    loop {
        let arrived = match meter.timed(Section::Receiving, receiver.receive(&mut placer)).await {
            // After the goodbyes, any end of the link is orderly.
            Err(LinkError::Closed | LinkError::Broken(_)) if goodbye.get() => return Ok(()),
            Err(LinkError::Refused(why)) => return Err(ProtocolError::new(why).into()),
            other => other?,
        };
        core.borrow_mut().is_heard = true;
        match Kind::from_code(arrived.kind)? {
            Kind::Store => core.borrow_mut().stored(arrived)?,
            Kind::Put | Kind::Get | Kind::Free => core.borrow_mut().held_message(arrived)?,
            Kind::Ping => {
                let nonce = decode_number(&arrived.head)?;
                if core.borrow().outbox.answers() >= ANSWERS_MAX {
                    return Err(ProtocolError::new("it sends pings, but does not read the pongs").into());
                }
                core.borrow().send(Kind::Pong, Pong { nonce, clock_ns: clock_ns() }.encode(), Body::Empty);
            }
            Kind::Bye if goodbye.get() => return Err(ProtocolError::new("it says goodbye twice").into()),
            Kind::Bye => {
                goodbye.set(true);
                core.borrow_mut().send_log(true);
                let report = core.borrow().report();
                core.borrow().send(Kind::Bye, report.encode(), Body::Empty);
            }
            Kind::Relay => {
                let forwards = decode_forwards(&arrived.head)?;
                let mut core = core.borrow_mut();
                let actions = core.dispatch(WorkerEvent::Relay(&forwards))?;
                core.carry_out(actions)?;
            }
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
            | Kind::Part => {
                let what = format!("a message of kind {} has no place here", arrived.kind);
                return Err(ProtocolError::new(what).into());
            }
        }
    }
}

/// Sends queued frames in order.
async fn write(
    mut sender: Box<dyn Sender>,
    mut leaving: mpsc::UnboundedReceiver<OutgoingFrame>,
    core: Rc<RefCell<Core>>,
    goodbye: Rc<Cell<bool>>,
) -> Result<(), WorkerError> {
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
            Err(LinkError::Closed | LinkError::Broken(_)) if goodbye.get() => return Ok(()),
            sent => sent?,
        }
        let mut core = core.borrow_mut();
        core.is_heard = true;
        core.recorder.left(kind);
        if is_answer {
            core.outbox.answered();
        }
        if let Some((tile, buffer)) = last_of {
            core.returned(tile, buffer)?;
        }
    }
    // An error does not matter here: the session is over.
    let _ = sender.close().await;
    Ok(())
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

/// Ends a session whose primary is silent: it pings after two seconds of silence, so this limit is long. Bytes
/// of a partial frame count as a sign of life: on a slow link a megabyte takes long. Time in which this process was suspended
/// does not count as silence.
async fn watch(core: Rc<RefCell<Core>>, arriving: Rc<Cell<u64>>) -> Result<(), WorkerError> {
    let (began, mut clock) = (Instant::now(), StepClock::new(WORKER_STEP));
    let (mut seen, mut heard) = (0, Duration::ZERO);
    loop {
        tokio::time::sleep(PING_AFTER).await;
        let now = clock.advance_to(began.elapsed());
        let moves = std::mem::replace(&mut seen, arriving.get()) != arriving.get();
        if std::mem::take(&mut core.borrow_mut().is_heard) || moves {
            heard = now;
        }
        let silence = now.saturating_sub(heard);
        if silence > PRIMARY_SILENCE_MAX {
            let what = format!("the primary has been silent for {} s", silence.as_secs());
            return Err(WorkerError::Here(what));
        }
    }
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
