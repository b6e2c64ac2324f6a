//! The link between two ends in one process: frames move by reference, and memory can be leased.
//!
//! Invariant: at most `QUEUE_FRAMES` frames wait; then the sender waits.

use crate::{
    Arrived, ArrivedBody, Body, BodyPlacer, Frame, FrameLimits, Link, LinkError, LinkFuture, Receiver,
    Sender, to_u64,
};
use tokio::sync::mpsc;

/// Frames that may wait in one direction.
const QUEUE_FRAMES: usize = 256;

/// The two sides of a link inside this process.
pub fn thread_pair(left: &str, right: &str) -> (Link, Link) {
    let (to_right, from_left) = mpsc::channel(QUEUE_FRAMES);
    let (to_left, from_right) = mpsc::channel(QUEUE_FRAMES);
    (side(to_right, from_right, right), side(to_left, from_left, left))
}

fn side(tx: mpsc::Sender<Frame>, rx: mpsc::Receiver<Frame>, peer: &str) -> Link {
    Link {
        sender: Box::new(ThreadSender { tx: Some(tx), bytes: 0 }),
        receiver: Box::new(ThreadReceiver { rx, bytes: 0 }),
        peer: peer.to_owned(),
        addresses: None,
        name: "thread",
        shares_memory: true,
        refers_to_files: false,
        cipher: None,
        proven: crate::Proven::Nothing,
    }
}

struct ThreadSender {
    tx: Option<mpsc::Sender<Frame>>,
    bytes: u64,
}

impl Sender for ThreadSender {
    fn send(&mut self, frame: Frame) -> LinkFuture<'_, ()> {
        Box::pin(async move {
            let bytes = to_u64(frame.wire_bytes());
            let tx = self.tx.as_ref().ok_or(LinkError::Closed)?;
            tx.send(frame).await.map_err(|_| LinkError::Closed)?;
            self.bytes += bytes;
            Ok(())
        })
    }
    fn set_session(&mut self, _session: u32) {}
    fn bytes_sent(&self) -> u64 {
        self.bytes
    }
    fn close(&mut self) -> LinkFuture<'_, ()> {
        self.tx = None;
        Box::pin(async { Ok(()) })
    }
}

struct ThreadReceiver {
    rx: mpsc::Receiver<Frame>,
    bytes: u64,
}

impl Receiver for ThreadReceiver {
    fn receive<'a>(&'a mut self, _place: &'a mut dyn BodyPlacer) -> LinkFuture<'a, Arrived> {
        Box::pin(async move {
            let frame = self.rx.recv().await.ok_or(LinkError::Closed)?;
            self.bytes += to_u64(frame.wire_bytes());
            let body = match frame.body {
                Body::Empty => ArrivedBody::Empty,
                Body::Shared(region) => ArrivedBody::Shared(region),
                Body::Leased(landing) => ArrivedBody::Leased(landing),
            };
            Ok(Arrived { kind: frame.kind, head: frame.head, body })
        })
    }
    fn drain(&mut self) -> LinkFuture<'_, ()> {
        // Frames in the channel stay available when the sender is dropped, so nothing needs to be drained.
        Box::pin(async { Ok(()) })
    }
    fn set_session(&mut self, _session: u32) {}
    fn set_limits(&mut self, _limits: FrameLimits) {}
    fn bytes_received(&self) -> u64 {
        self.bytes
    }
}
