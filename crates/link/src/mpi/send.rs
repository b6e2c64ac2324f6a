//! The sending end of an MPI link.
//!
//! A frame is one message with header, head and, if it fits, body; otherwise one or two messages follow, with the
//! rest of the head and with the body. A body of one run is sent from its own memory; a body of several runs is
//! gathered first.
//!
//! Invariants: a frame begins when there is room for all of it, and is then sent completely. At most
//! `WINDOW_BYTES`, and about 2 × `FIRSTS_PER_SYNC` frames, are in flight and not received by the peer. The sender
//! always announces its end, however it ends, and whether that was in the middle of a frame.
//!
//! Deliberately absent: checksums of bodies, for the same reason as in `pipe` and `shm`.

use super::engine::{Engine, Tally, Ticket, counted};
use super::held::Payload;
use super::table::{Message, MpiFault};
use super::{CUT_OFF_BYTES, Channel, FIRST_BYTES, FIRSTS_AHEAD, failed};
use crate::framed::YieldBudget;
use crate::{
    Body, Frame, FrameLimits, HEADER_BYTES, LinkError, LinkFuture, SendProgress, SendProgressProbe, Sender,
    SharedRegion, to_u64,
};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::ErrorKind;
use std::rc::Rc;
use std::task::Poll;

/// Most bytes in flight.
const WINDOW_BYTES: usize = 4 << 20;
/// Most messages in flight.
const WINDOW_MESSAGES: usize = 64;
/// One first message in this number is sent synchronously: it completes only when the peer has begun to receive it.
/// This bounds the number of frames that the library buffers at the peer.
const FIRSTS_PER_SYNC: u32 = 32;
/// Frames after which the task yields.
const TURN_FRAMES: u32 = 8;

pub(super) struct MpiSender {
    engine: Rc<Engine>,
    channel: Channel,
    session: u32,
    bytes: u64,
    /// Messages in flight with their bytes, in the order in which they were sent.
    under_way: VecDeque<(Ticket, usize)>,
    under_way_bytes: usize,
    firsts: u32,
    tally: Rc<Tally>,
    /// Completes when the peer receives no more.
    gone: Ticket,
    is_in_frame: bool,
    is_closed: bool,
    turns: YieldBudget,
}

impl MpiSender {
    pub(super) fn new(engine: Rc<Engine>, channel: Channel) -> Result<Self, MpiFault> {
        let message = Message { bytes: 0, peer: channel.peer, tag: channel.gone };
        let gone = engine.receive(Payload::Buffer(Box::default()), message)?;
        Ok(Self {
            engine,
            channel,
            session: 0,
            bytes: 0,
            under_way: VecDeque::new(),
            under_way_bytes: 0,
            firsts: 0,
            tally: Rc::default(),
            gone,
            is_in_frame: false,
            is_closed: false,
            turns: YieldBudget::default(),
        })
    }

    /// Drops completed messages, and waits until there is room for that many bytes.
    async fn room(&mut self, bytes: usize) -> Result<(), LinkError> {
        loop {
            while self.under_way.front().is_some_and(|(ticket, _)| ticket.is_done()) {
                self.under_way_bytes -= self.under_way.pop_front().map_or(0, |(_, bytes)| bytes);
            }
            let has_bytes = self.under_way.is_empty() || self.under_way_bytes + bytes <= WINDOW_BYTES;
            if has_bytes && self.under_way.len() < WINDOW_MESSAGES {
                return Ok(());
            }
            let Some((first, _)) = self.under_way.front() else { return Ok(()) };
            let gone = &self.gone;
            let waiting = poll_fn(|context| {
                let are_done = [first.watch(context), gone.watch(context)];
                if are_done.contains(&true) { Poll::Ready(()) } else { Poll::Pending }
            });
            let stall = FrameLimits::SESSION.stall;
            if tokio::time::timeout(stall, waiting).await.is_err() {
                return Err(LinkError::Stalled(stall));
            }
            self.check()?;
        }
    }

    fn check(&self) -> Result<(), LinkError> {
        if self.is_closed || self.gone.is_done() {
            if let Some(fault) = self.engine.fault() {
                return Err(failed(fault));
            }
            return Err(LinkError::Broken(ErrorKind::BrokenPipe.into()));
        }
        Ok(())
    }

    fn post(&mut self, payload: Payload, bytes: usize, tag: i32, body_bytes: usize) -> Result<(), LinkError> {
        let mut is_synchronous = true;
        if tag == self.channel.first {
            self.firsts += 1;
            is_synchronous = self.firsts.is_multiple_of(FIRSTS_PER_SYNC);
        }
        let message = Message { bytes, peer: self.channel.peer, tag };
        let ticket = self.engine.send(payload, message, is_synchronous, counted(&self.tally, body_bytes));
        self.under_way.push_back((ticket.map_err(failed)?, bytes));
        self.under_way_bytes += bytes;
        Ok(())
    }

    async fn send_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        self.check()?;
        self.turns.between_frames(TURN_FRAMES).await;
        let header = frame.header_for(self.session, false).encode();
        let total = frame.wire_bytes();
        self.room(total).await?;
        let mut first = self.engine.buffer(FIRST_BYTES);
        first[..HEADER_BYTES].copy_from_slice(&header);
        let front = frame.head.len().min(FIRST_BYTES - HEADER_BYTES);
        let mut filled = HEADER_BYTES + front;
        first[HEADER_BYTES..filled].copy_from_slice(&frame.head[..front]);
        let body_bytes = frame.body.len();
        let body = match frame.body {
            Body::Shared(region) if !region.is_empty() => Some(region.merged()),
            Body::Empty | Body::Shared(_) => None,
            Body::Leased(_) => unreachable!("a leased body on a link that does not share memory"),
        };
        let mut rest = body;
        if total <= FIRST_BYTES
            && let Some(region) = rest.take()
        {
            gather(&region, &mut first[filled..filled + body_bytes]);
            filled += body_bytes;
        }
        let in_first = if filled == total { body_bytes } else { 0 };
        self.post(Payload::Buffer(first), filled, self.channel.first, in_first)?;
        if front < frame.head.len() {
            let head = Box::from(&frame.head[front..]);
            self.post(Payload::Buffer(head), frame.head.len() - front, self.channel.body, 0)?;
        }
        if let Some(region) = rest {
            let payload = if region.runs == 1 {
                Payload::SharedRegion(region)
            } else {
                let mut buffer = self.engine.buffer(body_bytes);
                gather(&region, &mut buffer);
                Payload::Buffer(buffer)
            };
            self.post(payload, body_bytes, self.channel.body, body_bytes)?;
        }
        self.bytes += to_u64(total);
        self.turns.moved(total);
        Ok(())
    }

    /// Announces the end of this sender, with one message for each posted receive of the peer.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        let Channel { peer, first, body, .. } = self.channel;
        let say = |bytes: usize, tag: i32| {
            let message = Message { bytes, peer, tag };
            // These messages are not awaited; if the library has failed, they are useless.
            let _ = self.engine.send(Payload::Buffer(vec![0; bytes].into()), message, false, None);
        };
        if self.is_in_frame {
            say(CUT_OFF_BYTES, first);
        }
        (0..FIRSTS_AHEAD).for_each(|_| say(0, first));
        say(0, body);
    }
}

/// Copies the runs of a region into one buffer.
fn gather(region: &SharedRegion, to: &mut [u8]) {
    let runs = to.chunks_exact_mut(region.run_bytes).enumerate();
    runs.for_each(|(i, to)| to.copy_from_slice(region.run(i)));
}

impl Sender for MpiSender {
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()> {
        Box::pin(async {
            self.is_in_frame = true;
            self.send_frame(frame).await?;
            self.is_in_frame = false;
            Ok(())
        })
    }
    fn set_session(&mut self, session: u32) {
        self.session = session;
    }
    fn bytes_sent(&self) -> u64 {
        self.bytes
    }
    fn send_progress(&self) -> SendProgressProbe {
        // Weak references: messages in flight do not keep the link.
        let (tally, engine) = (Rc::downgrade(&self.tally), Rc::downgrade(&self.engine));
        Rc::new(move || match (tally.upgrade(), engine.upgrade()) {
            (Some(tally), Some(_)) => {
                SendProgress { acknowledged: tally.there.get(), buffered: tally.held.get() }
            }
            _ => SendProgress::default(),
        })
    }
    fn close(&mut self) -> LinkFuture<'_, ()> {
        self.end();
        Box::pin(async { Ok(()) })
    }
}

impl Drop for MpiSender {
    fn drop(&mut self) {
        self.end();
    }
}
