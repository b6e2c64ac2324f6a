//! The sending half of a link that moves bytes.
//!
//! Invariants: a frame is written whole before the next one. A body is sent from the memory that holds it, in
//! vectored writes, and is never gathered into a buffer first (TLS encrypts it into its own buffers).

use super::stall_guard::StallGuard;
use super::{SLICES_MAX, Stream, YieldBudget, broken};
use crate::frame::REFERENCE_BYTES;
use crate::{
    Body, Frame, FrameLimits, LinkError, LinkFuture, SendProgress, SendProgressProbe, Sender, to_u64,
};
use std::cell::Cell;
use std::io::IoSlice;
use std::rc::Rc;

/// Shortest body for which the sender asks the system for room first.
const LONG_BYTES: usize = 64 << 10;

pub(crate) struct FrameSender<S: Stream> {
    stream: Rc<S>,
    session: u32,
    bytes: u64,
    /// Stream position of the end of the last body.
    body_end: Rc<Cell<u64>>,
    /// Header and head of the frame that is being sent.
    prefix: Vec<u8>,
    turns: YieldBudget,
}

impl<S: Stream> FrameSender<S> {
    pub(crate) fn new(stream: Rc<S>) -> Self {
        Self {
            stream,
            session: 0,
            bytes: 0,
            body_end: Rc::default(),
            prefix: Vec::with_capacity(256),
            turns: YieldBudget::default(),
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

    /// The file reference that is sent in place of the body, if any.
    fn reference(&self, body: &Body) -> Result<Option<[u8; REFERENCE_BYTES]>, LinkError> {
        match body {
            Body::Shared(region) if !region.is_empty() => self.stream.refer(region).map_err(broken),
            Body::Shared(_) | Body::Empty | Body::Leased(_) => Ok(None),
        }
    }

    /// To compute the checksum of a body brings it into the cache, and it should be sent from there. So the sender
    /// waits for room first.
    async fn wait_to_sum(&self, body: &Body, guard: &mut StallGuard) -> Result<(), LinkError> {
        match body {
            Body::Shared(region) if S::SUMS_BODIES && region.len() >= LONG_BYTES && !region.is_summed() => {
                guard.keep(async { self.stream.room().await.map(|()| 0) }).await.map(drop)
            }
            Body::Shared(_) | Body::Empty | Body::Leased(_) => Ok(()),
        }
    }

    async fn write_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        if matches!(frame.body, Body::Leased(_)) {
            unreachable!("a leased body on a link that does not share memory");
        }
        // A stream that always has room must not monopolise the event loop. Yield before the checksum: other tasks
        // would evict the body from the cache.
        self.turns.between_frames(S::TURN_FRAMES).await;
        let mut guard = StallGuard::new(FrameLimits::SESSION);
        self.wait_to_sum(&frame.body, &mut guard).await?;
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
            done += guard.keep(self.stream.write(&slices)).await?;
            if done > front {
                self.body_end.set(self.stream.written());
            }
        }
        // Bodies passed by reference count too, as on a link that shares memory.
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
    fn send_progress(&self) -> SendProgressProbe {
        // A weak reference: the probe does not keep the connection open.
        let (stream, body_end) = (Rc::downgrade(&self.stream), self.body_end.clone());
        Rc::new(move || {
            let Some(stream) = stream.upgrade() else { return SendProgress::default() };
            let acknowledged = stream.acknowledged();
            let body_bytes = acknowledged.min(body_end.get());
            SendProgress { acknowledged: body_bytes, buffered: stream.written().saturating_sub(acknowledged) }
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
