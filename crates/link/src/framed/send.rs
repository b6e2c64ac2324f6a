//! The sending half of a link that moves bytes.
//!
//! Invariants: a frame is written whole before the next; a body leaves from where it lies, in vectored
//! writes, and is never gathered into a buffer first (TLS encrypts it into buffers of its own).

use super::pace::Pace;
use super::{SLICES_MAX, Stream, Turns, broken};
use crate::frame::REFERENCE_BYTES;
use crate::{Body, Frame, Leaving, Left, Limits, LinkError, LinkFuture, Sender, to_u64};
use std::cell::Cell;
use std::io::IoSlice;
use std::rc::Rc;

/// A body that is worth asking the system for room.
const LONG_BYTES: usize = 64 << 10;

pub(crate) struct FrameSender<S: Stream> {
    stream: Rc<S>,
    session: u32,
    bytes: u64,
    /// Where the last body ended in the stream of bytes that were written.
    body_end: Rc<Cell<u64>>,
    /// Header and head of the frame that is being sent.
    prefix: Vec<u8>,
    turns: Turns,
}

impl<S: Stream> FrameSender<S> {
    pub(crate) fn new(stream: Rc<S>) -> Self {
        Self {
            stream,
            session: 0,
            bytes: 0,
            body_end: Rc::default(),
            prefix: Vec::with_capacity(256),
            turns: Turns::default(),
        }
    }

    /// Collects the unsent slices of the frame from byte `done` on.
    fn slices<'a>(prefix: &'a [u8], body: &'a Body, done: usize, out: &mut Vec<IoSlice<'a>>) {
        let mut skip = done;
        if skip < prefix.len() {
            out.push(IoSlice::new(&prefix[skip..]));
            skip = 0;
        } else {
            skip -= prefix.len();
        }
        if let Body::Shared(region) = body
            && region.run_bytes > 0
        {
            let mut run = skip / region.run_bytes;
            let mut within = skip % region.run_bytes;
            while run < region.runs && out.len() < SLICES_MAX {
                out.push(IoSlice::new(&region.run(run)[within..]));
                within = 0;
                run += 1;
            }
        }
    }

    /// What goes in place of the frame's body, if something does.
    fn reference(&self, body: &Body) -> Result<Option<[u8; REFERENCE_BYTES]>, LinkError> {
        match body {
            Body::Shared(region) if !region.is_empty() => self.stream.refer(region).map_err(broken),
            Body::Shared(_) | Body::Empty | Body::Lent(_) => Ok(None),
        }
    }

    /// Who reads a body for its sum has it in the cache, and should send it then: not before there is room for it.
    async fn wait_to_sum(&self, body: &Body, pace: &mut Pace) -> Result<(), LinkError> {
        match body {
            Body::Shared(region) if S::SUMS_BODIES && region.len() >= LONG_BYTES && !region.is_summed() => {
                pace.keep(async { self.stream.room().await.map(|()| 0) }).await.map(drop)
            }
            Body::Shared(_) | Body::Empty | Body::Lent(_) => Ok(()),
        }
    }

    async fn write_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        if matches!(frame.body, Body::Lent(_)) {
            unreachable!("memory was lent over a link that does not share it");
        }
        // A stream that is never full must not keep the event loop to itself. Before the sum: others' turns empty the cache.
        self.turns.between_frames(S::TURN_FRAMES).await;
        let mut pace = Pace::new(Limits::SESSION);
        self.wait_to_sum(&frame.body, &mut pace).await?;
        self.prefix.clear();
        let reference = self.reference(&frame.body)?;
        let header = match &reference {
            Some(reference) => frame.header_with(self.session, reference),
            None => frame.header_for(self.session, S::SUMS_BODIES),
        };
        self.prefix.extend_from_slice(&header.encode());
        self.prefix.extend_from_slice(&frame.head);
        let front = self.prefix.len();
        self.prefix.extend_from_slice(reference.as_ref().map_or(&[], |reference| &reference[..]));
        let carried = if reference.is_some() { &Body::Empty } else { &frame.body };
        let total = self.prefix.len() + carried.len();
        let mut done = 0;
        while done < total {
            let mut slices = Vec::with_capacity(carried.runs().saturating_add(1).min(SLICES_MAX));
            Self::slices(&self.prefix, carried, done, &mut slices);
            done += pace.keep(self.stream.write(&slices)).await?;
            if done > front {
                self.body_end.set(self.stream.written());
            }
        }
        // What was referred to counts, as it does where memory is shared.
        self.bytes += to_u64(frame.wire_bytes());
        self.turns.moved(total);
        Ok(())
    }
}

impl<S: Stream> Sender for FrameSender<S> {
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()> {
        Box::pin(self.write_frame(frame))
    }
    fn set_session(&mut self, session: u32) {
        self.session = session;
    }
    fn sums_bodies(&self) -> bool {
        S::SUMS_BODIES
    }
    fn bytes_sent(&self) -> u64 {
        self.bytes
    }
    fn leaving(&self) -> Leaving {
        // Whoever asks does not keep the connection open.
        let (stream, body_end) = (Rc::downgrade(&self.stream), self.body_end.clone());
        Rc::new(move || {
            let Some(stream) = stream.upgrade() else { return Left::default() };
            let there = stream.acknowledged();
            Left { there: there.min(body_end.get()), held: stream.written().saturating_sub(there) }
        })
    }
    fn close(&mut self) -> LinkFuture<'_, ()> {
        Box::pin(async move { self.stream.close().await.map_err(broken) })
    }
}

impl<S: Stream> Drop for FrameSender<S> {
    fn drop(&mut self) {
        self.stream.sender_gone();
    }
}
