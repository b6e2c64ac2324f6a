//! Bytes in both directions over one socket: as they are, or through TLS.
//!
//! Place in the flow: below the frames of the TCP link, whose two halves share one pipe.
//!
//! Invariants: a write returns once the kernel has accepted its bytes, so nothing stays behind when a sender
//! becomes idle. A read returns at least one byte, or 0 if the peer has closed. With TLS, a connection that ends
//! without `close_notify` is broken, not closed: nobody on the network path can truncate a stream unnoticed. Until
//! the peer has proven a key, at most `STRANGER_BYTES` are read from it. No `RefCell` is borrowed across an await.
//!
//! Deliberately absent: frames, time limits (the receiver of frames has them), and the identity of the peer
//! (`secure`).

use super::low_water::LowWaterMark;
use crate::framed::Stream;
use crate::to_u64;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::Connection;
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Encrypted bytes that TLS may hold before the kernel has accepted them.
const SEALED_BYTES: usize = 256 << 10;
/// Bytes of one read from the socket, before decryption.
const RAW_BYTES: usize = 64 << 10;
/// Longest TLS record.
const RECORD_BYTES: usize = 16 << 10;
/// Bytes read from a peer before its key is proven. Handshake, introduction and hello need less than a tenth of it;
/// without this limit TLS would accept and keep a handshake of 64 KiB.
const STRANGER_BYTES: usize = 16 << 10;

/// One socket. Two tasks of one event loop may use its two directions.
pub(crate) enum Pipe {
    /// The counter has the bytes that the kernel has accepted.
    Plain(TcpStream, LowWaterMark, Cell<u64>),
    Sealed(TcpStream, LowWaterMark, Box<RefCell<TlsStream>>),
}

/// TLS over a socket, and the bytes that were read from it and not decrypted yet.
pub(crate) struct TlsStream {
    connection: Connection,
    raw: Vec<u8>,
    from: usize,
    to: usize,
    /// Bytes that the kernel has accepted.
    written: u64,
    /// Bytes that may still be read from an unproven peer; `None` once it has proven its key.
    stranger_left: Option<usize>,
}

impl Pipe {
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self::Plain(stream, LowWaterMark::new(), Cell::new(0))
    }

    pub(crate) fn sealed(stream: TcpStream, connection: Connection) -> Self {
        let mut connection = connection;
        connection.set_buffer_limit(Some(SEALED_BYTES));
        let (raw, stranger_left) = (vec![0; STRANGER_BYTES], Some(STRANGER_BYTES));
        let tls = TlsStream { connection, raw, from: 0, to: 0, written: 0, stranger_left };
        Self::Sealed(stream, LowWaterMark::new(), Box::new(RefCell::new(tls)))
    }

    /// Marks the peer as proven.
    pub(crate) fn proven(&self) {
        if let Self::Sealed(_, _, tls) = self {
            let mut tls = tls.borrow_mut();
            tls.stranger_left = None;
            tls.raw.resize(RAW_BYTES, 0);
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream, ..) | Self::Sealed(stream, ..) => stream,
        }
    }

    /// The cipher suite, if the connection is encrypted.
    pub(crate) fn cipher(&self) -> Option<&'static str> {
        let Self::Sealed(_, _, tls) = self else { return None };
        match tls.borrow().connection.negotiated_cipher_suite()?.suite() {
            rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some("chacha20-poly1305"),
            rustls::CipherSuite::TLS13_AES_128_GCM_SHA256 => Some("aes-128-gcm"),
            _ => Some("another"),
        }
    }

    /// 32 bytes that only the two ends of this connection can derive (TLS exporter); `None` if it is not encrypted.
    pub(crate) fn exported(&self, label: &[u8]) -> Option<Result<[u8; 32], rustls::Error>> {
        let Self::Sealed(_, _, tls) = self else { return None };
        Some(tls.borrow().connection.export_keying_material([0; 32], label, None))
    }

    /// Finishes the TLS handshake.
    pub(crate) async fn handshake(&self) -> io::Result<()> {
        let Self::Sealed(stream, _, tls) = self else { return Ok(()) };
        loop {
            self.flush().await?;
            if !tls.borrow().connection.is_handshaking() {
                return Ok(());
            }
            if tls.borrow_mut().take_in(stream)? {
                tokio::task::yield_now().await;
            } else {
                stream.readable().await?;
            }
        }
    }

    /// Writes all encrypted bytes to the socket.
    async fn flush(&self) -> io::Result<()> {
        let Self::Sealed(stream, _, tls) = self else { return Ok(()) };
        while tls.borrow().connection.wants_write() {
            let written = tls.borrow_mut().connection.write_tls(&mut NoWait(stream));
            match written {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(e) if e.kind() == ErrorKind::WouldBlock => stream.writable().await?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => tls.borrow_mut().written += to_u64(other?),
            }
        }
        Ok(())
    }
}

impl Stream for Pipe {
    const SUMS_BODIES: bool = true;
    const TURN_FRAMES: u32 = 1;

    async fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(stream, _, written) => loop {
                match write_now(stream, slices) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(bytes) => {
                        written.set(written.get() + to_u64(bytes));
                        return Ok(bytes);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => stream.writable().await?,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    other => return other,
                }
            },
            Self::Sealed(_, _, tls) => {
                let taken = tls.borrow_mut().connection.writer().write_vectored(slices)?;
                self.flush().await?;
                Ok(taken)
            }
        }
    }

    /// Linux reports a socket as writable when a third of its buffer is free: of the usual 4 MiB, more than a body.
    async fn room(&self) -> io::Result<()> {
        let stream = self.stream();
        loop {
            match has_room(stream) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => stream.writable().await?,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    async fn read(&self, runs: &mut [IoSliceMut<'_>], sure: usize) -> io::Result<usize> {
        match self {
            Self::Plain(stream, wake, _) => loop {
                match read_now(stream, runs) {
                    Err(e) if e.kind() == ErrorKind::WouldBlock => wake.readable(stream, sure).await?,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    other => return other,
                }
            },
            Self::Sealed(stream, wake, tls) => loop {
                let opened = tls.borrow_mut().opened(runs)?;
                if let Some(bytes) = opened {
                    return Ok(bytes);
                }
                // A record need not contain data. A peer that sends only empty records for ever must not monopolise
                // the event loop.
                if tls.borrow_mut().take_in(stream)? {
                    tokio::task::yield_now().await;
                } else {
                    // All of these bytes but part of one record are still to be read.
                    wake.readable(stream, sure.saturating_sub(RECORD_BYTES)).await?;
                }
            },
        }
    }

    async fn close(&self) -> io::Result<()> {
        if let Self::Sealed(_, _, tls) = self {
            tls.borrow_mut().connection.send_close_notify();
            self.flush().await?;
        }
        socket2::SockRef::from(self.stream()).shutdown(std::net::Shutdown::Write)
    }

    fn written(&self) -> u64 {
        match self {
            Self::Plain(_, _, written) => written.get(),
            Self::Sealed(_, _, tls) => tls.borrow().written,
        }
    }

    /// Bytes acknowledged by the peer's system, according to this system.
    fn acknowledged(&self) -> u64 {
        #[cfg(target_os = "linux")]
        let waiting = super::socket::unacknowledged(self.stream());
        #[cfg(not(target_os = "linux"))]
        let waiting = 0;
        self.written().saturating_sub(waiting)
    }
}

impl TlsStream {
    /// Copies decrypted bytes into the runs; `None` if more bytes must be read first.
    fn opened(&mut self, runs: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut done = 0;
        for run in runs.iter_mut().filter(|r| !r.is_empty()) {
            let mut filled = 0;
            while filled < run.len() {
                match self.connection.reader().read(&mut run[filled..]) {
                    // The peer has sent `close_notify`.
                    Ok(0) => return Ok(Some(done)),
                    Ok(bytes) => (filled, done) = (filled + bytes, done + bytes),
                    Err(e) if e.kind() == ErrorKind::WouldBlock && self.from < self.to => self.decrypt()?,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok((done > 0).then_some(done)),
                    // Bytes before the break are valid; the next call returns the error again.
                    Err(_) if done > 0 => return Ok(Some(done)),
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Err(cut_off()),
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(Some(done))
    }

    /// Reads from the socket once and decrypts. False if the socket had no bytes.
    fn take_in(&mut self, stream: &TcpStream) -> io::Result<bool> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            let most = self.stranger_left.unwrap_or(self.raw.len());
            if most == 0 {
                let what = format!("it sent {STRANGER_BYTES} bytes and proved no key");
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
            match read_now(stream, &mut [IoSliceMut::new(&mut self.raw[..most])]) {
                Ok(0) => {
                    // TLS needs to see the end of the stream, to distinguish `close_notify` from a truncation.
                    self.connection.read_tls(&mut io::empty())?;
                    self.process()?;
                    if self.connection.is_handshaking() {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    return Ok(true);
                }
                Ok(bytes) => {
                    self.to = bytes;
                    self.stranger_left = self.stranger_left.map(|left| left - bytes);
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        self.decrypt()?;
        Ok(true)
    }

    /// Gives TLS some of the bytes that were read.
    fn decrypt(&mut self) -> io::Result<()> {
        let mut some = &self.raw[self.from..self.to];
        let before = some.len();
        self.connection.read_tls(&mut some)?;
        self.from += before - some.len();
        self.process()
    }

    fn process(&mut self) -> io::Result<()> {
        match self.connection.process_new_packets() {
            Ok(_) => Ok(()),
            // A queued alert is not sent: a stranger learns nothing from this end.
            Err(e) => Err(io::Error::new(ErrorKind::InvalidData, e)),
        }
    }
}

/// Reads the available bytes. A short read means that the buffer is empty, so the next call waits without another
/// system call.
fn read_now(stream: &TcpStream, runs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let room = runs.iter().map(|run| run.len()).sum();
    at_once(stream, Interest::READABLE, room, |mut socket| socket.read_vectored(runs))
}

/// Writes as much as fits. A short write means that the buffer is full, so the next call waits without another
/// system call.
fn write_now(stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let all = slices.iter().map(|slice| slice.len()).sum();
    at_once(stream, Interest::WRITABLE, all, |mut socket| socket.write_vectored(slices))
}

/// Asks the system itself: after a complete write the event loop still assumes that there is room.
fn has_room(stream: &TcpStream) -> io::Result<()> {
    stream.try_io(Interest::WRITABLE, || {
        let mut asked = [PollFd::new(stream, PollFlags::OUT)];
        match poll(&mut asked, Some(&Timespec::default()))? {
            0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    })
}

/// One system call, if the event loop takes the socket for ready; `whole` is the result that leaves it ready.
fn at_once(
    stream: &TcpStream,
    interest: Interest,
    whole: usize,
    call: impl FnOnce(&socket2::Socket) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut part = None;
    let result = stream.try_io(interest, || {
        let moved = call(&socket2::SockRef::from(stream))?;
        if 0 < moved && moved < whole {
            // The event loop takes the socket for exhausted until the system reports a change.
            part = Some(moved);
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(moved)
    });
    part.map_or(result, Ok)
}

/// The stream ended without `close_notify`: the peer's process died, or the connection was cut on the network path.
fn cut_off() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "it ended without close_notify")
}

/// The socket as a writer that never blocks.
struct NoWait<'a>(&'a TcpStream);

impl Write for NoWait<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
