//! The receiving half of a link that moves bytes.
//!
//! Invariants: lengths are checked against the limits before anything is read; the head is read first, then
//! the body to where `Place` says, in vectored reads; what is copied is a read-ahead of a few kilobytes.

use super::pace::Pace;
use super::{SLICES_MAX, Stream, Turns, broken, cut_off};
use crate::frame::REFERENCE_BYTES;
use crate::{
    Arrived, ArrivedBody, HEADER_BYTES, Header, Landing, Limits, LinkError, LinkFuture, Place, Receiver,
    Region, checksum, to_u64,
};
use bytes::Bytes;
use std::cell::Cell;
use std::io::IoSliceMut;
use std::rc::Rc;

/// Bytes read ahead of a frame: enough for header and head of most.
const READ_AHEAD_BYTES: usize = 8 * 1024;

pub(crate) struct FrameReceiver<S: Stream> {
    stream: Rc<S>,
    session: u32,
    limits: Limits,
    /// Bytes of frames that have come whole.
    bytes: u64,
    /// All bytes that have come.
    arriving: Rc<Cell<u64>>,
    /// Bytes `from..to` of it were read and not used yet.
    ahead: Vec<u8>,
    from: usize,
    to: usize,
    turns: Turns,
}

impl<S: Stream> FrameReceiver<S> {
    pub(crate) fn new(stream: Rc<S>) -> Self {
        Self {
            stream,
            session: 0,
            limits: Limits::STRANGER,
            bytes: 0,
            arriving: Rc::default(),
            ahead: vec![0; READ_AHEAD_BYTES],
            from: 0,
            to: 0,
            turns: Turns::default(),
        }
    }

    fn came(&self, bytes: usize) {
        self.arriving.set(self.arriving.get().wrapping_add(to_u64(bytes)));
    }

    /// Waits for a header in the read-ahead. `None` where the other end closed before it.
    async fn header(&mut self) -> Result<Option<[u8; HEADER_BYTES]>, LinkError> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.from + HEADER_BYTES > self.ahead.len() {
            self.ahead.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        let mut pace = None;
        while self.to - self.from < HEADER_BYTES {
            let mut runs = [IoSliceMut::new(&mut self.ahead[self.to..])];
            let reading = self.stream.read(&mut runs, 0);
            let got = if self.from == self.to {
                // Nothing has begun: the schedule decides how long silence is borne.
                reading.await.map_err(broken)?
            } else {
                pace.get_or_insert_with(|| Pace::new(self.limits)).keep(reading).await?
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

    /// Takes `n` bytes, at most a head's, out of the read-ahead and, where it is too small, the stream.
    async fn head(&mut self, n: usize, pace: &mut Pace) -> Result<Bytes, LinkError> {
        let mut out = vec![0; n];
        let have = n.min(self.to - self.from);
        out[..have].copy_from_slice(&self.ahead[self.from..self.from + have]);
        self.from += have;
        let mut done = have;
        while done < n {
            let mut runs = [IoSliceMut::new(&mut out[done..])];
            let got = pace.keep(self.stream.read(&mut runs, n - done)).await?;
            if got == 0 {
                return Err(cut_off());
            }
            done += got;
            self.came(got);
        }
        Ok(Bytes::from(out))
    }

    /// Reads `len` bytes to where they belong; gives the checksum continued over them, where it covers bodies.
    async fn land(
        &mut self,
        landing: &mut dyn Landing,
        len: usize,
        sum: u32,
        pace: &mut Pace,
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
                let got = pace.keep(self.stream.read(&mut runs, len - done)).await?;
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

    /// The body that the next bytes stand for; continues the checksum over them.
    async fn reference(&mut self, sum: &mut u32, pace: &mut Pace) -> Result<Region, LinkError> {
        let bytes = self.head(REFERENCE_BYTES, pace).await?;
        *sum = checksum::append(*sum, &bytes);
        let Ok(reference) = bytes[..].try_into() else { return Err(cut_off()) };
        self.stream.referred(reference)
    }

    async fn read_frame(&mut self, place: &mut dyn Place) -> Result<Arrived, LinkError> {
        // A stream that is never empty must not keep the event loop to itself.
        self.turns.between_frames(S::TURN_FRAMES).await;
        let Some(raw) = self.header().await? else { return Err(LinkError::Closed) };
        let header = Header::decode(&raw, self.limits)?;
        if header.session != self.session {
            let (got, want) = (header.session, self.session);
            return Err(LinkError::Foreign(format!("a frame of session {got:08x} in session {want:08x}")));
        }
        if header.is_reference && !S::REFERS {
            return Err(LinkError::Foreign(
                "a frame without its body, on a link that carries them".to_owned(),
            ));
        }
        let mut pace = Pace::new(self.limits);
        let head = self.head(usize::from(header.head_bytes), &mut pace).await?;
        let mut sum = checksum::append(checksum::append(0, &header.prefix()), &head);
        let mut body = ArrivedBody::Empty;
        let mut body_bytes = header.body_bytes();
        if header.is_reference {
            let region = self.reference(&mut sum, &mut pace).await?;
            body_bytes = region.len();
            body = ArrivedBody::Shared(region);
        } else if body_bytes > 0 {
            if let Some(until) = place.until(header.kind, &head) {
                until.await;
                // That was not the other end's time.
                pace = Pace::new(self.limits);
            }
            let mut landing = place.place(header.kind, &head, body_bytes).map_err(LinkError::Refused)?;
            if landing.len() != body_bytes {
                let place = landing.len();
                return Err(LinkError::Refused(format!("{body_bytes} bytes came for a place of {place}")));
            }
            sum = self.land(&mut *landing, body_bytes, sum, &mut pace).await?;
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
    fn receive<'a>(&'a mut self, place: &'a mut dyn Place) -> LinkFuture<'a, Arrived> {
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
    fn set_limits(&mut self, limits: Limits) {
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

/// A checksum continued over the first `bytes` of some runs.
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
