//! The session's links with other workers: one task for each, which establishes the link, reads and writes.
//!
//! Place in the flow: beside the tasks of the link with the primary, on the same event loop. A relayed matrix is sent from
//! the operand's own memory, and lands in the matrix's own buffer at the receiver.
//!
//! Invariants: a failure of a neighbour ends only its own link: the primary is told and sends the missing matrices.
//! Lines that arrive before their announcement stay in the link. A neighbour that sends nothing for
//! `NEIGHBOUR_SILENCE_MAX` loses its link, so each worker sends something every `NEIGHBOUR_BEAT`. All links end with the session.
//!
//! Deliberately absent: flow control. TCP has it, and the receiver has reserved the memory already.

use super::WorkerError;
use super::core::Core;
use super::lu::landed;
use super::relay::{LandedBuffer, LinkSignals, NeighbourIntroduction, RelayedLines};
use crate::memory::Operand;
use crate::tickets::{NeighbourTickets, RegisteredTicket};
use bramble_link::{
    Arrived, ArrivedBody, Body, BodyPlacer, ClusterKey, Frame, FrameLimits, Landing, Link, LinkError,
    NoBodies, Receiver, Section, Sender, SharedRegion, Until,
};
use bramble_matrix::number::{to_u64, to_usize};
use bramble_schedule::worker::{Silence, WorkerEvent};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{NEIGHBOUR_BEAT, NEIGHBOURS_DEADLINE, PRIMARY_SILENCE_MAX, lines_per_frame};
use bramble_wire::message::{Forward, Join, Kind, Neighbour, PieceHead, encode_number};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};

type Shared = Rc<RefCell<Core>>;

/// Links with neighbours as they are introduced, and serves the links, each in a task of `links`. An error ends the session.
pub(super) async fn neighbours(
    mut introduced: mpsc::UnboundedReceiver<NeighbourIntroduction>,
    core: Shared,
    tickets: Option<&NeighbourTickets>,
    links: &mut JoinSet<Result<(), WorkerError>>,
) -> Result<(), WorkerError> {
    loop {
        tokio::select! {
            Some(NeighbourIntroduction { neighbour, signals }) = introduced.recv() => {
                // Registered at once, not when the task first runs: the neighbour may come before.
                let expected = tickets.filter(|_| !neighbour.dials).map(|m| m.register(&neighbour));
                let tickets = tickets.cloned();
                links.spawn_local(serve_neighbour_link(neighbour, expected, signals, core.clone(), tickets));
            }
            Some(ended) = links.join_next() => {
                ended.map_err(|e| WorkerError::Here(format!("a link with another worker: {e}")))??;
            }
            else => return Ok(()),
        }
    }
}

/// Serves one neighbour, from its introduction until its link has ended. An error ends the session.
async fn serve_neighbour_link(
    neighbour: Neighbour,
    expected: Option<RegisteredTicket>,
    signals: LinkSignals,
    core: Shared,
    tickets: Option<NeighbourTickets>,
) -> Result<(), WorkerError> {
    let peer = neighbour.peer;
    let met = tokio::select! {
        met = establish_link(&neighbour, expected, tickets) => met,
        () = signals.parted.notified() => Err("the other end could not".to_owned()),
    };
    let ended = match met {
        Err(why) => Some(why),
        Ok(link) => {
            core.borrow().say_reached(peer, true, "");
            transfer(link, peer, &signals, &core).await?
        }
    };
    let mut core = core.borrow_mut();
    if let Some(why) = ended {
        core.say_reached(peer, false, &why);
    }
    core.neighbour_lost(peer)
}

/// Establishes the link with a neighbour, or returns why there is none.
async fn establish_link(
    neighbour: &Neighbour,
    expected: Option<RegisteredTicket>,
    tickets: Option<NeighbourTickets>,
) -> Result<Link, String> {
    let Some(tickets) = tickets else { return Err("it does not relay".to_owned()) };
    let late = |seconds: u64| format!("they did not establish a link within {seconds} s");
    let Some(mut expected) = expected else {
        let dialled = timeout(NEIGHBOURS_DEADLINE, dial(neighbour, &tickets)).await;
        let dialled = dialled.map_err(|_| late(NEIGHBOURS_DEADLINE.as_secs()))?;
        return dialled.map_err(|e| format!("{}: {e}", neighbour.address));
    };
    // The dialling worker gets its order later than this one, and if it fails, the primary tells this one.
    let patience = NEIGHBOURS_DEADLINE * 2;
    let joining = async {
        let Some(mut link) = expected.link().await else {
            return Err("another connection used its ticket".to_owned());
        };
        link.sender.send(join(neighbour)).await.map_err(|e| e.to_string())?;
        Ok(link)
    };
    let mut link = timeout(patience, joining).await.map_err(|_| late(patience.as_secs()))??;
    link.receiver.set_limits(FrameLimits::SESSION);
    Ok(link)
}

/// Dials a neighbour; both workers send the ticket.
async fn dial(neighbour: &Neighbour, tickets: &NeighbourTickets) -> Result<Link, LinkError> {
    let foreign = |what: &str| LinkError::Foreign(what.to_owned());
    let address = neighbour.address.parse().map_err(|_| foreign("this is no address"))?;
    let key = ClusterKey::from_bytes(neighbour.key);
    let mut link = tickets.security().reach_introduced(address, NEIGHBOURS_DEADLINE, &key).await?;
    link.sender.send(join(neighbour)).await?;
    link.receiver.set_limits(FrameLimits::STRANGER);
    let answer = link.receiver.receive(&mut NoBodies).await?;
    let is_join = Join::decode(&answer.head).is_ok_and(|join| join.ticket == neighbour.ticket);
    if answer.kind != Kind::Join.code() || !is_join {
        return Err(foreign("it did not answer as a worker of this product"));
    }
    link.receiver.set_limits(FrameLimits::SESSION);
    Ok(link)
}

fn join(neighbour: &Neighbour) -> Frame {
    Frame::new(Kind::Join.code(), Join { ticket: neighbour.ticket }.encode(), Body::Empty)
}

/// Reads and writes until the link ends; returns the reason, or `None` if the primary knows it. Afterwards nothing lands from it.
async fn transfer(
    link: Link,
    peer: u32,
    signals: &LinkSignals,
    core: &Shared,
) -> Result<Option<String>, WorkerError> {
    let Link { mut sender, mut receiver, .. } = link;
    let out = LandedBuffer::default();
    let (arriving, reads) = (receiver.arriving(), Rc::new(Cell::new(true)));
    let placer = Placer { core: core.clone(), peer, out: out.clone(), reads: reads.clone() };
    let ended = tokio::select! {
        ended = read(&mut *receiver, placer, core) => ended.map(Some),
        silent = watch_silence(&arriving, &reads) => Ok(Some(silent)),
        ended = write(&mut *sender, peer, signals, core) => ended.map(Some),
        () = signals.parted.notified() => Ok(None),
    };
    core.borrow_mut().put_back(&out);
    ended
}

/// Reads lines until the link ends; returns the reason.
async fn read(receiver: &mut dyn Receiver, mut placer: Placer, core: &Shared) -> Result<String, WorkerError> {
    let mut before = receiver.bytes_received();
    let meter = core.borrow().meter.clone();
    loop {
        let arrived = meter.timed(Section::Receiving, receiver.receive(&mut placer)).await;
        // Dropping the body returns the buffer to `out`, and `put_back` returns it to the store.
        let arrived = match arrived {
            Ok(arrived) if is_about_array(arrived.kind) => {
                let mut core = core.borrow_mut();
                core.neighbours.bytes_in += receiver.bytes_received() - before;
                before = receiver.bytes_received();
                if let Err(e) = core.array_frame(placer.peer, arrived) {
                    return Ok(e.0);
                }
                continue;
            }
            Ok(arrived) if is_lu(arrived.kind) => {
                core.borrow_mut().neighbours.bytes_in += receiver.bytes_received() - before;
                before = receiver.bytes_received();
                core.borrow_mut().lu_frame(placer.peer, arrived)?;
                continue;
            }
            other => other.map(|a| (a.kind, a.head, !matches!(a.body, ArrivedBody::Empty))),
        };
        let mut core = core.borrow_mut();
        core.put_back(&placer.out);
        let moved = receiver.bytes_received();
        let bytes = moved - std::mem::replace(&mut before, moved);
        let piece = match arrived {
            Err(e) => return Ok(e.to_string()),
            // A ping is only a sign of life.
            Ok((kind, _, false)) if kind == Kind::Ping.code() => continue,
            Ok((kind, head, true)) if kind == Kind::Piece.code() => PieceHead::decode(&head),
            Ok((kind, ..)) => return Ok(format!("it sent a message of kind {kind}, or lines without bytes")),
        };
        let Ok(piece) = piece else { return Ok("it sent lines without a valid head".to_owned()) };
        core.neighbours.bytes_in += bytes;
        let actions = core.dispatch(WorkerEvent::Piece(&piece))?;
        core.carry_out(actions)?;
    }
}

/// Whether a message is about an array.
fn is_about_array(kind: u8) -> bool {
    kind == Kind::Get.code() || kind == Kind::Part.code()
}

/// Whether a message is about a factorisation.
fn is_lu(kind: u8) -> bool {
    kind == Kind::LuPanel.code() || kind == Kind::LuSpent.code()
}

impl Core {
    /// A message about an array from a neighbour. An error ends its link.
    fn array_frame(&mut self, peer: u32, arrived: Arrived) -> Result<(), ProtocolError> {
        match arrived.body {
            ArrivedBody::Empty if arrived.kind == Kind::Get.code() => self.asked(peer, &arrived.head),
            _ => self.fetched(peer, arrived),
        }
    }

    /// A message about a factorisation from a neighbour.
    fn lu_frame(&mut self, peer: u32, arrived: Arrived) -> Result<(), WorkerError> {
        let body = landed(arrived.body)?;
        self.with_lu(|lu| match body {
            Some(bytes) => lu.panel_bytes(&arrived.head, &bytes),
            None => lu.spent(peer, &arrived.head),
        })
    }
}

/// Waits until the neighbour has been silent for too long; returns the reason.
async fn watch_silence(arriving: &Cell<u64>, reads: &Cell<bool>) -> String {
    let (began, mut silence) = (Instant::now(), Silence::new(arriving.get()));
    loop {
        tokio::time::sleep(NEIGHBOUR_BEAT).await;
        if let Some(silence) = silence.check(began.elapsed(), arriving.get(), reads.get()) {
            return format!("nothing has arrived over it for {} s", silence.as_secs());
        }
    }
}

/// Carries out relay orders until the link ends, and sends a ping when there are none; returns the reason.
async fn write(
    sender: &mut dyn Sender,
    peer: u32,
    signals: &LinkSignals,
    core: &Shared,
) -> Result<String, WorkerError> {
    loop {
        let panel = core.borrow_mut().lu.as_mut().and_then(|lu| lu.frame_to(peer));
        if let Some((frame, last_of)) = panel {
            let bytes = to_u64(frame.wire_bytes());
            if let Err(e) = sender.send(frame).await {
                return Ok(e.to_string());
            }
            let mut core = core.borrow_mut();
            core.neighbours.bytes_out += bytes;
            if let Some(step) = last_of {
                core.with_lu(|lu| lu.passed(step))?;
            }
            continue;
        }
        let array = core.borrow_mut().arrays.fetches.frame_to(peer);
        if let Some(frame) = array {
            let bytes = to_u64(frame.wire_bytes());
            if let Err(e) = sender.send(frame).await {
                return Ok(e.to_string());
            }
            core.borrow_mut().neighbours.bytes_out += bytes;
            continue;
        }
        let Some(forward) = core.borrow().neighbours.next_order(peer) else {
            if timeout(NEIGHBOUR_BEAT, signals.order.notified()).await.is_err()
                && let Err(e) =
                    sender.send(Frame::new(Kind::Ping.code(), encode_number(0), Body::Empty)).await
            {
                return Ok(e.to_string());
            }
            continue;
        };
        let lost = || WorkerError::Here(format!("matrix {} was lost before it was relayed", forward.id));
        let operand = core.borrow_mut().store.operand(forward.id).ok_or_else(lost)?;
        if let Err(e) = send(sender, &forward, operand, core).await {
            return Ok(e.to_string());
        }
        core.borrow_mut().order_done(peer)?;
    }
}

/// Sends a whole matrix from its memory.
async fn send(
    sender: &mut dyn Sender,
    forward: &Forward,
    operand: Arc<Operand>,
    core: &Shared,
) -> Result<(), LinkError> {
    let Operand::Owned(header, _) = &*operand else {
        return Err(LinkError::Refused(format!("matrix {} is not in this worker's own memory", forward.id)));
    };
    let (lines, line_bytes) = header.lines_total();
    let meter = core.borrow().meter.clone();
    let mut first_line = 0;
    while first_line < lines {
        let count = lines_per_frame(line_bytes).min(lines - first_line);
        let (start, len) = (to_usize(first_line) * line_bytes, to_usize(count) * line_bytes);
        let head = PieceHead { id: forward.id_there, first_line, lines: count };
        let body = Body::Shared(SharedRegion::new(operand.clone(), start, len, len, 1));
        let frame = Frame::new(Kind::Piece.code(), head.encode(), body);
        let bytes = to_u64(frame.wire_bytes());
        meter.seal(&frame);
        meter.timed(Section::Sending, sender.send(frame)).await?;
        core.borrow_mut().neighbours.bytes_out += bytes;
        first_line += count;
    }
    Ok(())
}

/// Places lines in their matrix, once it has been announced.
struct Placer {
    core: Shared,
    peer: u32,
    out: LandedBuffer,
    /// False while lines wait for their announcement.
    reads: Rc<Cell<bool>>,
}

/// While this exists, the link is not read.
struct Waits<'a>(&'a Cell<bool>);

impl<'a> Waits<'a> {
    fn begin(reads: &'a Cell<bool>) -> Self {
        reads.set(false);
        Self(reads)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

impl BodyPlacer for Placer {
    fn until(&self, kind: u8, head: &[u8]) -> Option<Until<'_>> {
        let piece = PieceHead::decode(head).ok().filter(|_| kind == Kind::Piece.code())?;
        let is_due = move || !matches!(self.core.borrow().state.expects(self.peer, &piece), Ok(None));
        if is_due() {
            return None;
        }
        let announced = self.core.borrow().neighbours.announced.clone();
        Some(Box::pin(async move {
            let _waits = Waits::begin(&self.reads);
            let mut deadline = Instant::now() + PRIMARY_SILENCE_MAX;
            while !is_due() {
                if timeout_at(deadline, announced.notified()).await.is_err() {
                    return;
                }
                deadline = Instant::now() + PRIMARY_SILENCE_MAX;
            }
        }))
    }

    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        if kind == Kind::LuPanel.code() {
            let core = self.core.borrow();
            let lu = core.lu.as_ref().ok_or("elements of a panel, and no factorisation has begun")?;
            lu.expects_panel(self.peer, head, body_bytes)?;
            return Ok(Box::new(vec![0; body_bytes]));
        }
        if kind == Kind::Part.code() {
            return self.core.borrow_mut().place_fetched(self.peer, head, body_bytes).map_err(|e| e.0);
        }
        if kind != Kind::Piece.code() {
            return Err(format!("a message of kind {kind} has no body"));
        }
        let piece = PieceHead::decode(head).map_err(|e| e.0)?;
        let part = self.core.borrow_mut().landing(self.peer, &piece, body_bytes)?;
        Ok(Box::new(RelayedLines::new(part, self.out.clone())))
    }
}
