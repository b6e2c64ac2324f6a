//! Traffic to measure a link: the peer sends every frame back, both directions at once.
//!
//! Place in the flow: in place of a session, on an ordinary link. `drive` is the measuring end, `serve` the echoing
//! end; `examples/echo.rs` is a program with both.
//!
//! Invariants: the echoed body is sent from the memory that received it, and that memory is reused. Neither end
//! holds more than `WINDOW` bodies. Frames return in order and once, or the run ends with an error. Both ends
//! compute the checksum of every body anew, as in a product.
//!
//! Deliberately absent: messages, and the CPU time and memory of the process: the caller reads them in its
//! callback, once a second.

use crate::{
    Arrived, ArrivedBody, Body, BodyOwner, BodyPlacer, Frame, FrameLimits, Landing, Link, LinkError,
    Receiver, SharedRegion,
};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Bodies in flight at once in both directions: two megabytes of window each way, and the bodies that the echoing
/// end holds.
pub const WINDOW: usize = 16;

/// Length of a head: that of a store message of one matrix and one job.
const HEAD_BYTES: usize = 52;
/// The kind of every frame.
const KIND: u8 = 3;

/// Bytes moved so far, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoTotals {
    /// Time since the start.
    pub elapsed: Duration,
    /// To the other end.
    pub bytes_sent: u64,
    /// From the other end.
    pub bytes_received: u64,
}

/// Sends bodies of `body_bytes` bytes, taken from `source` in turn, until the time is over, and receives them back.
/// Calls `each` once a second, and returns the time and the bytes up to the return of the last frame. Panics if
/// `source` is empty or `body_bytes` exceeds `CHUNK_BYTES_MAX`.
pub async fn drive(
    link: Link,
    source: BodyOwner,
    body_bytes: usize,
    lasting: Duration,
    each: &mut dyn FnMut(EchoTotals),
) -> Result<EchoTotals, LinkError> {
    let mut link = link;
    link.receiver.set_limits(FrameLimits::SESSION);
    let (began, room, bytes) = (Instant::now(), Semaphore::new(WINDOW), Bytes::default());
    let told = Cell::new(0);
    let (sender, receiver) = (&mut *link.sender, &mut *link.receiver);
    let sending = async {
        let (bodies, mut number) = ((*source).as_ref().len() / body_bytes, 0u64);
        while began.elapsed() < lasting
            && let Ok(permit) = room.acquire().await
        {
            permit.forget();
            let at = usize::try_from(number).unwrap_or_default() % bodies * body_bytes;
            let region = SharedRegion::new(source.clone(), at, body_bytes, body_bytes, 1);
            sender.send(Frame::new(KIND, head(number), Body::Shared(region))).await?;
            number += 1;
            told.set(number);
            bytes.sent.set(sender.bytes_sent());
        }
        sender.close().await
    };
    let receiving = async {
        let (mut place, mut number) = (Pool::default(), 0u64);
        while let Some(arrived) = next(receiver, &mut place).await? {
            if arrived.head[..] != head(number)[..] || number > told.get() {
                return Err(LinkError::Foreign(format!("frame {number} returned changed")));
            }
            place.put_back(taken(arrived)?);
            number += 1;
            room.add_permits(1);
            bytes.received.set(receiver.bytes_received());
        }
        if number < told.get() {
            return Err(LinkError::Foreign(format!("{number} of {} frames were returned", told.get())));
        }
        Ok(())
    };
    tokio::select! {
        result = async { tokio::try_join!(sending, receiving) } => result?,
        never = bytes.tell(began, each) => match never {},
    };
    Ok(bytes.moved(began))
}

/// Sends every frame back until the peer closes; calls `each` once a second.
pub async fn serve(link: Link, each: &mut dyn FnMut(EchoTotals)) -> Result<EchoTotals, LinkError> {
    let mut link = link;
    link.receiver.set_limits(FrameLimits::SESSION);
    let (began, bytes, pool) = (Instant::now(), Bytes::default(), Pool::default());
    // Unbounded, but at most `WINDOW` frames wait: the pool has no memory for more.
    let (to_sender, mut arrived) = mpsc::unbounded_channel::<(bytes::Bytes, Vec<u8>)>();
    let (sender, receiver) = (&mut *link.sender, &mut *link.receiver);
    let receiving = async {
        let mut place = pool.clone();
        while let Some(frame) = next(receiver, &mut place).await? {
            bytes.received.set(receiver.bytes_received());
            let head = frame.head.clone();
            if to_sender.send((head, taken(frame)?)).is_err() {
                break;
            }
        }
        drop(to_sender);
        Ok(())
    };
    let sending = async {
        while let Some((head, body)) = arrived.recv().await {
            let body = Arc::new(body);
            sender.send(Frame::new(KIND, head, Body::Shared(SharedRegion::whole(body.clone())))).await?;
            bytes.sent.set(sender.bytes_sent());
            // The frame has been sent, so this is the only reference.
            pool.put_back(Arc::try_unwrap(body).unwrap_or_default());
        }
        sender.close().await
    };
    tokio::select! {
        result = async { tokio::try_join!(receiving, sending) } => result?,
        never = bytes.tell(began, each) => match never {},
    };
    Ok(bytes.moved(began))
}

/// The head of a frame: its number, padded with zeros.
fn head(number: u64) -> Vec<u8> {
    let mut head = vec![0; HEAD_BYTES];
    head[..8].copy_from_slice(&number.to_le_bytes());
    head
}

/// The next frame; `None` once the peer has closed.
async fn next(receiver: &mut dyn Receiver, place: &mut dyn BodyPlacer) -> Result<Option<Arrived>, LinkError> {
    match receiver.receive(place).await {
        Ok(arrived) => Ok(Some(arrived)),
        Err(LinkError::Closed) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The memory of a received body.
fn taken(arrived: Arrived) -> Result<Vec<u8>, LinkError> {
    if let ArrivedBody::Landed(landing) = arrived.body
        && let Ok(memory) = landing.into_any().downcast::<Vec<u8>>()
    {
        return Ok(*memory);
    }
    Err(LinkError::Foreign("a frame has no body".to_owned()))
}

/// Byte counters.
#[derive(Default)]
struct Bytes {
    sent: Cell<u64>,
    received: Cell<u64>,
}

impl Bytes {
    fn moved(&self, began: Instant) -> EchoTotals {
        let (bytes_sent, bytes_received) = (self.sent.get(), self.received.get());
        EchoTotals { elapsed: began.elapsed(), bytes_sent, bytes_received }
    }

    /// Calls `each` once a second, for ever.
    async fn tell(&self, began: Instant, each: &mut dyn FnMut(EchoTotals)) -> Infallible {
        const SECOND: Duration = Duration::from_secs(1);
        let mut seconds = tokio::time::interval_at(began + SECOND, SECOND);
        loop {
            seconds.tick().await;
            each(self.moved(began));
        }
    }
}

/// A pool of buffers for bodies.
#[derive(Clone, Default)]
struct Pool(Rc<RefCell<Free>>);

#[derive(Default)]
struct Free {
    spare: Vec<Vec<u8>>,
    made: usize,
}

impl Pool {
    fn put_back(&self, memory: Vec<u8>) {
        self.0.borrow_mut().spare.push(memory);
    }
}

impl BodyPlacer for Pool {
    fn place(&mut self, _kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        if head.len() != HEAD_BYTES {
            return Err(format!("a head of {} bytes", head.len()));
        }
        let mut free = self.0.borrow_mut();
        let mut memory = match free.spare.pop() {
            Some(memory) => memory,
            None if free.made < WINDOW => {
                free.made += 1;
                Vec::new()
            }
            None => return Err(format!("more than {WINDOW} bodies at once")),
        };
        memory.resize(body_bytes, 0);
        Ok(Box::new(memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tcp_connect, tcp_link};

    async fn pair() -> (Link, Link) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, taken) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
        (tcp_link(out.unwrap()).unwrap(), tcp_link(taken.unwrap().0).unwrap())
    }

    #[tokio::test]
    async fn what_goes_out_comes_back_and_both_ends_count_it() {
        let (left, right) = pair().await;
        let source: BodyOwner = Arc::new(vec![5u8; 3 * 4096]);
        let lasting = Duration::from_millis(50);
        let (left_each, right_each) = (&mut |_| (), &mut |_| ());
        let (driving, serving) = (drive(left, source, 4096, lasting, left_each), serve(right, right_each));
        let (drove, served) = tokio::join!(driving, serving);
        let (drove, served) = (drove.unwrap(), served.unwrap());
        assert!(drove.bytes_sent > 0 && drove.bytes_sent == drove.bytes_received);
        assert_eq!((served.bytes_sent, served.bytes_received), (drove.bytes_received, drove.bytes_sent));
    }

    #[tokio::test]
    async fn a_frame_that_comes_back_as_another_ends_it() {
        let (left, mut right) = pair().await;
        right.receiver.set_limits(FrameLimits::SESSION);
        let source: BodyOwner = Arc::new(vec![5u8; 4096]);
        let wrong = async {
            let arrived = right.receiver.receive(&mut Pool::default()).await.unwrap();
            let body = SharedRegion::whole(Arc::new(taken(arrived).unwrap()));
            right.sender.send(Frame::new(KIND, head(7), Body::Shared(body))).await.unwrap();
        };
        let each = &mut |_| ();
        let (drove, ()) = tokio::join!(drive(left, source, 4096, Duration::from_secs(60), each), wrong);
        assert!(matches!(drove, Err(LinkError::Foreign(_))), "{drove:?}");
    }
}
