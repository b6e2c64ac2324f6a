//! The TCP link: vectored writes from, and vectored reads into, the memory that the engine uses.
//!
//! Place in the flow: between two machines. A socket becomes a link without any proof (`tcp_link`), or after both
//! ends have proven their key (`secure`).
//!
//! Invariants: those of its parts `pipe` and `low_water`, and of the frames over them (`framed`).
//!
//! Deliberately absent: reconnecting. A link that has ended stays ended.

mod low_water;
pub(crate) mod pipe;
#[cfg(target_os = "linux")]
mod socket;

use crate::framed::{FrameReceiver, FrameSender};
use crate::{Addresses, Link, LinkError};
use pipe::Pipe;
use socket2::TcpKeepalive;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::TcpStream;

/// `TCP_USER_TIMEOUT`: the kernel ends a connection whose data stays unacknowledged for that long. It also counts a
/// receiver with a full buffer, and a receiver with a busy disk may be full for many seconds; so this is longer
/// than the silence after which the schedule gives up a peer.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Keep-alive probes for an idle connection: a worker may wait for a day until its primary has all the other
/// workers, and must notice a primary whose machine was switched off.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));

/// Connects within `deadline`.
pub async fn tcp_connect(address: std::net::SocketAddr, deadline: Duration) -> Result<TcpStream, LinkError> {
    match tokio::time::timeout(deadline, TcpStream::connect(address)).await {
        Ok(stream) => stream.map_err(LinkError::Unreached),
        Err(_) => {
            let what = format!("no answer within {} s", deadline.as_secs());
            Err(LinkError::Unreached(io::Error::new(ErrorKind::TimedOut, what)))
        }
    }
}

/// A link over a connected stream, without proof or encryption: anyone on the network path can read and change the
/// bytes. It starts with the limits for strangers.
pub fn tcp_link(stream: TcpStream) -> Result<Link, LinkError> {
    tune(&stream)?;
    framed(Rc::new(Pipe::plain(stream)))
}

/// Sets the options of every socket.
pub(crate) fn tune(stream: &TcpStream) -> Result<(), LinkError> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(&KEEPALIVE)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}

/// Frames over a pipe.
pub(crate) fn framed(pipe: Rc<Pipe>) -> Result<Link, LinkError> {
    let (here, there) = (pipe.stream().local_addr()?, pipe.stream().peer_addr()?);
    Ok(Link {
        sender: Box::new(FrameSender::new(pipe.clone())),
        receiver: Box::new(FrameReceiver::new(pipe.clone())),
        peer: there.to_string(),
        addresses: Some(Addresses { here, there }),
        name: "tcp",
        shares_memory: false,
        refers_to_files: false,
        cipher: pipe.cipher(),
        proven: crate::Proven::Nothing,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, BodyPlacer, CHUNK_BYTES_MAX, DiscardedBody, Frame, FrameLimits, SharedRegion};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;
    use tokio::io::AsyncReadExt;

    struct Forgotten;

    impl BodyPlacer for Forgotten {
        fn place(&mut self, _: u8, _: &[u8], bytes: usize) -> Result<Box<dyn crate::Landing>, String> {
            Ok(Box::new(DiscardedBody::new(bytes)))
        }
    }

    /// Writes until the system has reported a full buffer for half a second, longer than it takes to probe the
    /// peer's window. No write was refused, so the event loop still takes the socket for writable. Returns the
    /// number of bytes.
    async fn fill(stream: &TcpStream) -> usize {
        let (mut done, mut full) = (0, 0);
        while full < 50 {
            let mut asked = [PollFd::new(stream, PollFlags::OUT)];
            if poll(&mut asked, Some(&Timespec::default())).unwrap() > 0 {
                assert_eq!(stream.try_write(&[0; 4096]).unwrap(), 4096);
                (done, full) = (done + 4096, 0);
            } else {
                full += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        done
    }

    #[tokio::test]
    async fn who_is_not_there_could_not_be_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = tcp_connect(address, Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(&error, LinkError::Unreached(e) if e.kind() == ErrorKind::ConnectionRefused));
        assert!(error.to_string().starts_with("could not connect: "), "{error}");
    }

    #[tokio::test]
    async fn a_body_is_summed_when_there_is_room_for_it_and_not_before() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, taken) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
        let (out, mut taken) = (out.unwrap(), taken.unwrap().0);
        let filled = fill(&out).await;
        let mut here = tcp_link(out).unwrap();
        let body = SharedRegion::whole(Arc::new(vec![7u8; CHUNK_BYTES_MAX]));
        let sending = here.sender.send(Frame::new(3, vec![], Body::Shared(body.clone())));
        let receiving = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!body.is_summed());
            taken.read_exact(&mut vec![0; filled]).await.unwrap();
            let mut there = tcp_link(taken).unwrap();
            there.receiver.set_limits(FrameLimits::SESSION);
            there.receiver.receive(&mut Forgotten).await.unwrap()
        };
        let both = async { tokio::join!(sending, receiving) };
        let (sent, _) =
            tokio::time::timeout(Duration::from_secs(60), both).await.expect("the frame never arrived");
        sent.unwrap();
        assert!(body.is_summed());
    }
}
