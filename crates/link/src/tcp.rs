//! The TCP link: vectored writes from where the bytes lie, vectored reads to where they will be used.
//!
//! Invariants: a frame is written whole before the next; a body is never gathered into a buffer first. A
//! read takes at most one frame's bytes beyond the small read-ahead, which is copied once.
//!
//! Deliberately absent: authentication and encryption. Until a cluster key exists, the shells refuse
//! addresses other than loopback.

use crate::{
    Arrived, ArrivedBody, Body, Frame, HEADER_BYTES, Header, Landing, Limits, Link, LinkError, LinkFuture,
    Place, Receiver, Sender,
};
use bytes::Bytes;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Slices of one vectored call; the kernel takes at most 1024.
const SLICES_MAX: usize = 512;
/// Bytes read ahead of a frame: enough for header and head of most.
const READ_AHEAD_BYTES: usize = 8 * 1024;
/// The kernel ends a connection whose data nobody takes for that long. It counts a receiver that has no room
/// too, and one whose disk is busy may have none for many seconds: so longer than the silence after which the
/// schedule gives an end up.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Connects within `deadline`.
pub async fn tcp_connect(address: std::net::SocketAddr, deadline: Duration) -> Result<TcpStream, LinkError> {
    match tokio::time::timeout(deadline, TcpStream::connect(address)).await {
        Ok(stream) => Ok(stream?),
        Err(_) => {
            let what = format!("no answer within {} s", deadline.as_secs());
            Err(LinkError::Broken(io::Error::new(ErrorKind::TimedOut, what)))
        }
    }
}

/// A link over a connected stream. It starts with the limits for strangers.
pub fn tcp_link(stream: TcpStream) -> Result<Link, LinkError> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    socket.set_keepalive(true)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    let peer = stream.peer_addr()?.to_string();
    let (read, write) = stream.into_split();
    let sender = TcpSender { write, session: 0, bytes: 0, prefix: Vec::with_capacity(256) };
    let receiver = TcpReceiver {
        read,
        session: 0,
        limits: Limits::STRANGER,
        bytes: 0,
        ahead: vec![0; READ_AHEAD_BYTES],
        from: 0,
        to: 0,
    };
    Ok(Link {
        sender: Box::new(sender),
        receiver: Box::new(receiver),
        peer,
        name: "tcp",
        shares_memory: false,
    })
}

struct TcpSender {
    write: OwnedWriteHalf,
    session: u32,
    bytes: u64,
    /// Header and head of the frame that is being sent.
    prefix: Vec<u8>,
}

impl TcpSender {
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

    async fn write_frame(&mut self, frame: Frame) -> Result<(), LinkError> {
        if matches!(frame.body, Body::Lent(_)) {
            unreachable!("memory was lent over a link that does not share it");
        }
        self.prefix.clear();
        self.prefix.extend_from_slice(&frame.header(self.session).encode());
        self.prefix.extend_from_slice(&frame.head);
        // Nor one that is never full.
        tokio::task::yield_now().await;
        let total = frame.wire_bytes();
        let mut done = 0;
        while done < total {
            let mut slices = Vec::with_capacity(SLICES_MAX.min(8));
            Self::slices(&self.prefix, &frame.body, done, &mut slices);
            match self.write.try_write_vectored(&slices) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.write.writable().await?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.bytes += total as u64;
        Ok(())
    }
}

impl Sender for TcpSender {
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()> {
        Box::pin(self.write_frame(frame))
    }
    fn set_session(&mut self, session: u32) {
        self.session = session;
    }
    fn bytes_sent(&self) -> u64 {
        self.bytes
    }
    fn close(&mut self) -> LinkFuture<'_, ()> {
        Box::pin(async move { Ok(tokio::io::AsyncWriteExt::shutdown(&mut self.write).await?) })
    }
}

struct TcpReceiver {
    read: OwnedReadHalf,
    session: u32,
    limits: Limits,
    bytes: u64,
    /// Bytes `from..to` of it were read and not used yet.
    ahead: Vec<u8>,
    from: usize,
    to: usize,
}

impl TcpReceiver {
    /// Makes `need` bytes (at most the read-ahead's size) available at `ahead[from..]`. Ok(false) where the
    /// other end closed before the first of them.
    async fn fill(&mut self, need: usize) -> Result<bool, LinkError> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        if self.from + need > self.ahead.len() {
            self.ahead.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        while self.to - self.from < need {
            self.read.readable().await?;
            match self.read.try_read(&mut self.ahead[self.to..]) {
                Ok(0) if self.from == self.to => return Ok(false),
                Ok(0) => return Err(cut_off()),
                Ok(n) => self.to += n,
                Err(e) if retry(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// Takes `n` bytes out of the read-ahead and, where it is too small for them, the stream.
    async fn take(&mut self, n: usize) -> Result<Vec<u8>, LinkError> {
        let mut out = vec![0; n];
        let have = n.min(self.to - self.from);
        out[..have].copy_from_slice(&self.ahead[self.from..self.from + have]);
        self.from += have;
        let mut done = have;
        while done < n {
            self.read.readable().await?;
            match self.read.try_read(&mut out[done..]) {
                Ok(0) => return Err(cut_off()),
                Ok(got) => done += got,
                Err(e) if retry(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(out)
    }

    /// Reads `len` bytes to where they belong; gives the checksum continued over them.
    async fn land(&mut self, landing: &mut dyn Landing, len: usize, sum: u32) -> Result<u32, LinkError> {
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
                match self.read.try_read_vectored(&mut runs) {
                    Ok(0) => return Err(cut_off()),
                    Ok(got) => got,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        self.read.readable().await?;
                        continue;
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return Err(e.into()),
                }
            };
            let mut left = got;
            for run in &runs {
                let part = left.min(run.len());
                sum = crc32c::crc32c_append(sum, &run[..part]);
                left -= part;
                if left == 0 {
                    break;
                }
            }
            done += got;
        }
        Ok(sum)
    }

    async fn read_frame(&mut self, place: &mut dyn Place) -> Result<Arrived, LinkError> {
        // A socket that is never empty must not keep the event loop to itself.
        tokio::task::yield_now().await;
        if !self.fill(HEADER_BYTES).await? {
            return Err(LinkError::Closed);
        }
        let mut raw = [0; HEADER_BYTES];
        raw.copy_from_slice(&self.ahead[self.from..self.from + HEADER_BYTES]);
        self.from += HEADER_BYTES;
        let header = Header::decode(&raw, self.limits)?;
        if header.session != self.session {
            let (got, want) = (header.session, self.session);
            return Err(LinkError::Foreign(format!("a frame of session {got:08x} in session {want:08x}")));
        }
        let head = Bytes::from(self.take(usize::from(header.head_bytes)).await?);
        let mut sum = crc32c::crc32c_append(crc32c::crc32c(&header.prefix()), &head);
        let body_bytes = header.body_bytes as usize;
        let mut body = ArrivedBody::Empty;
        if body_bytes > 0 {
            let mut landing = place.place(header.kind, &head, body_bytes).map_err(LinkError::Refused)?;
            if landing.len() != body_bytes {
                return Err(LinkError::Refused(format!(
                    "{body_bytes} bytes came for a place of {}",
                    landing.len()
                )));
            }
            sum = self.land(&mut *landing, body_bytes, sum).await?;
            body = ArrivedBody::Landed(landing);
        }
        if sum != header.checksum {
            return Err(LinkError::Damaged { got: sum, expected: header.checksum });
        }
        self.bytes += (HEADER_BYTES + head.len() + body_bytes) as u64;
        Ok(Arrived { kind: header.kind, head, body })
    }
}

impl Receiver for TcpReceiver {
    fn receive<'a>(&'a mut self, place: &'a mut dyn Place) -> LinkFuture<'a, Arrived> {
        Box::pin(self.read_frame(place))
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
}

fn retry(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn cut_off() -> LinkError {
    LinkError::Broken(io::Error::new(ErrorKind::UnexpectedEof, "it ended in the middle of a frame"))
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
