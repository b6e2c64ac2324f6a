//! The receiving half of a link that moves bytes.
//!
//! Invariants: lengths are checked against the limits before anything is read. The head is read first, then the
//! body in vectored reads into the memory that `BodyPlacer` chose; only the read-ahead of a few kilobytes is
//! copied.

use super::stall_guard::StallGuard;
use super::{SLICES_MAX, Stream, YieldBudget, broken, cut_off};
use crate::frame::REFERENCE_BYTES;
use crate::{
    Arrived, ArrivedBody, BodyPlacer, FrameLimits, HEADER_BYTES, Header, Landing, LinkError, LinkFuture,
    Receiver, SharedRegion, checksum, to_u64,
};
use bytes::Bytes;
use std::cell::Cell;
use std::io::IoSliceMut;
use std::rc::Rc;

/// Bytes read ahead of a frame: header and head of most frames fit.
const READ_AHEAD_BYTES: usize = 8 * 1024;

pub(crate) struct FrameReceiver<S: Stream> {
    stream: Rc<S>,
    session: u32,
    limits: FrameLimits,
    /// Bytes of completely received frames.
    bytes: u64,
    /// All bytes received, also of an incomplete frame.
    arriving: Rc<Cell<u64>>,
    /// The read-ahead buffer; its bytes `from..to` are read and not consumed yet.
    ahead: Vec<u8>,
    from: usize,
    to: usize,
    turns: YieldBudget,
}

impl<S: Stream> FrameReceiver<S> {
    pub(crate) fn new(stream: Rc<S>) -> Self {
        Self {
            stream,
            session: 0,
            limits: FrameLimits::STRANGER,
            bytes: 0,
            arriving: Rc::default(),
            ahead: vec![0; READ_AHEAD_BYTES],
            from: 0,
            to: 0,
            turns: YieldBudget::default(),
        }
    }

    fn came(&self, bytes: usize) {
        self.arriving.set(self.arriving.get().wrapping_add(to_u64(bytes)));
    }

    /// Waits for a header in the read-ahead. `None` if the peer closed before it.
    async fn header(&mut self) -> Result<Option<[u8; HEADER_BYTES]>, LinkError> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.from + HEADER_BYTES > self.ahead.len() {
            self.ahead.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let mut guard = None;
        while self.to - self.from < HEADER_BYTES {
            let mut runs = [IoSliceMut::new(&mut self.ahead[self.to..])];
            let reading = self.stream.read(&mut runs, 0);
            let got = if self.from == self.to {
                // No frame has begun, so no limit applies here; the schedule limits silence.
                reading.await.map_err(broken)?
            } else {
                guard.get_or_insert_with(|| StallGuard::new(self.limits)).keep(reading).await?
            };
            match got {
                0 if self.from == self.to => return Ok(None),
                0 => return Err(cut_off()),
                _ => self.to += got,
            }
            self.came(got);
        }
        let mut raw = [0; HEADER_BYTES];
        raw.copy_from_slice(&self.ahead[self.from..self.from + HEADER_BYTES]);
        self.from += HEADER_BYTES;
        Ok(Some(raw))
    }

    /// Takes `n` bytes, at most the length of a head, from the read-ahead and, if it has too few, from the stream.
    async fn head(&mut self, n: usize, guard: &mut StallGuard) -> Result<Bytes, LinkError> {
        let mut out = vec![0; n];
        let have = n.min(self.to - self.from);
        out[..have].copy_from_slice(&self.ahead[self.from..self.from + have]);
        self.from += have;
        let mut done = have;
        while done < n {
            let mut runs = [IoSliceMut::new(&mut out[done..])];
            let got = guard.keep(self.stream.read(&mut runs, n - done)).await?;
            if got == 0 {
                return Err(cut_off());
            }
            done += got;
            self.came(got);
        }
        Ok(Bytes::from(out))
    }

    /// Reads `len` bytes into the landing; returns the checksum continued over them, if it covers bodies.
    async fn land(
        &mut self,
        landing: &mut dyn Landing,
        len: usize,
        sum: u32,
        guard: &mut StallGuard,
    ) -> Result<u32, LinkError> {
        let mut sum = sum;
        let mut done = 0;
        while done < len {
            let mut runs = Vec::with_capacity(16);
            landing.runs_mut(done, SLICES_MAX, &mut runs);
            let got = if self.from < self.to {
                let got = scatter(&self.ahead[self.from..self.to], &mut runs);
                self.from += got;
                got
            } else {
                let got = guard.keep(self.stream.read(&mut runs, len - done)).await?;
                self.came(got);
                got
            };
            if got == 0 {
                return Err(cut_off());
            }
            if S::SUMS_BODIES {
                sum = appended(sum, &runs, got);
            }
            done += got;
        }
        Ok(sum)
    }

    /// The body that the next bytes refer to; continues the checksum over the reference.
    async fn reference(&mut self, sum: &mut u32, guard: &mut StallGuard) -> Result<SharedRegion, LinkError> {
        let bytes = self.head(REFERENCE_BYTES, guard).await?;
        *sum = checksum::append(*sum, &bytes);
        let Ok(reference) = bytes[..].try_into() else { return Err(cut_off()) };
        self.stream.referred(reference)
    }

    async fn read_frame(&mut self, place: &mut dyn BodyPlacer) -> Result<Arrived, LinkError> {
        // A stream that always has bytes must not monopolise the event loop.
        self.turns.between_frames(S::TURN_FRAMES).await;
        let Some(raw) = self.header().await? else { return Err(LinkError::Closed) };
        let header = Header::decode(&raw, self.limits)?;
        if header.session != self.session {
            let (got, want) = (header.session, self.session);
            return Err(LinkError::Foreign(format!("a frame of session {got:08x} in session {want:08x}")));
        }
        if header.is_reference && !S::REFERS {
            return Err(LinkError::Foreign(
                "a frame refers to a file, on a link that sends bodies".to_owned(),
            ));
        }
        let mut guard = StallGuard::new(self.limits);
        let head = self.head(usize::from(header.head_bytes), &mut guard).await?;
        let mut sum = checksum::append(checksum::append(0, &header.prefix()), &head);
        let mut body = ArrivedBody::Empty;
        let mut body_bytes = header.body_bytes();
        if header.is_reference {
            let region = self.reference(&mut sum, &mut guard).await?;
            body_bytes = region.len();
            body = ArrivedBody::Shared(region);
        } else if body_bytes > 0 {
            if let Some(until) = place.until(header.kind, &head) {
                until.await;
                // The wait for the placer is not the peer's delay.
                guard = StallGuard::new(self.limits);
            }
            let mut landing = place.place(header.kind, &head, body_bytes).map_err(LinkError::Refused)?;
            if landing.len() != body_bytes {
                let place = landing.len();
                return Err(LinkError::Refused(format!(
                    "a body of {body_bytes} bytes for a landing of {place}"
                )));
            }
            sum = self.land(&mut *landing, body_bytes, sum, &mut guard).await?;
            body = ArrivedBody::Landed(landing);
        }
        if sum != header.checksum {
            return Err(LinkError::Damaged { got: sum, expected: header.checksum });
        }
        self.bytes += to_u64(HEADER_BYTES + head.len() + body_bytes);
        self.turns.moved(header.body_bytes());
        Ok(Arrived { kind: header.kind, head, body })
    }
}

impl<S: Stream> Receiver for FrameReceiver<S> {
    fn receive<'a>(&'a mut self, place: &'a mut dyn BodyPlacer) -> LinkFuture<'a, Arrived> {
        Box::pin(self.read_frame(place))
    }
    fn drain(&mut self) -> LinkFuture<'_, ()> {
        Box::pin(async {
            (self.from, self.to) = (0, 0);
            while self.stream.read(&mut [IoSliceMut::new(&mut self.ahead)], 0).await.map_err(broken)? > 0 {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }
    fn set_session(&mut self, session: u32) {
        self.session = session;
    }
    fn set_limits(&mut self, limits: FrameLimits) {
        self.limits = limits;
    }
    fn bytes_received(&self) -> u64 {
        self.bytes
    }
    fn arriving(&self) -> Rc<Cell<u64>> {
        self.arriving.clone()
    }
}

impl<S: Stream> Drop for FrameReceiver<S> {
    fn drop(&mut self) {
        self.stream.receiver_gone();
    }
}

/// A checksum continued over the first `bytes` bytes of the runs.
fn appended(sum: u32, runs: &[IoSliceMut<'_>], bytes: usize) -> u32 {
    let (mut sum, mut left) = (sum, bytes);
    for run in runs {
        let part = left.min(run.len());
        sum = checksum::append(sum, &run[..part]);
        left -= part;
        if left == 0 {
            break;
        }
    }
    sum
}

/// Copies as much of `from` as fits into the runs.
fn scatter(from: &[u8], runs: &mut [IoSliceMut<'_>]) -> usize {
    let mut done = 0;
    for run in runs {
        let part = run.len().min(from.len() - done);
        run[..part].copy_from_slice(&from[done..done + part]);
        done += part;
    }
    done
}
