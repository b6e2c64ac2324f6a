//! The receiving end of an MPI link.
//!
//! Receives for some first messages of frames are always posted, so small frames need no extra round. The receive
//! for a following message is posted when the header has been read: directly into the memory that `BodyPlacer`
//! chose if that is one run, else into a buffer that is then scattered.
//!
//! Invariants: lengths are checked against the limits and against the bytes that arrived. Everything that the peer
//! has begun to send is received, even after this end is dropped; the peer is told of the drop. So no message stays
//! in flight for ever.

use super::engine::{Engine, Ticket};
use super::held::{self, Payload};
use super::table::{Message, MpiFault};
use super::{CUT_OFF_BYTES, Channel, FIRST_BYTES, FIRSTS_AHEAD, failed};
use crate::framed::{YieldBudget, cut_off};
use crate::{
    Arrived, ArrivedBody, BodyPlacer, CHUNK_BYTES_MAX, FrameLimits, HEADER_BYTES, Header, Landing, LinkError,
    LinkFuture, Receiver, checksum, to_u64,
};
use bytes::Bytes;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Runs of a landing that are filled at a time.
const RUNS: usize = 512;
/// Frames after which the task yields.
const TURN_FRAMES: u32 = 8;

/// First messages of frames.
struct Firsts {
    engine: Rc<Engine>,
    channel: Channel,
    /// Posted receives, in order.
    expected: VecDeque<Ticket>,
    is_ended: bool,
}

impl Firsts {
    fn prepare(&mut self) -> Result<(), MpiFault> {
        let message = Message { bytes: FIRST_BYTES, peer: self.channel.peer, tag: self.channel.first };
        let buffer = Payload::Buffer(self.engine.buffer(FIRST_BYTES));
        self.expected.push_back(self.engine.receive(buffer, message)?);
        Ok(())
    }

    /// The next first message, with its length; `None` if the peer has ended.
    async fn next(&mut self) -> Result<Option<(usize, Box<[u8]>)>, MpiFault> {
        let Some(ticket) = self.expected.front_mut().filter(|_| !self.is_ended) else { return Ok(None) };
        self.engine.look_for(ticket);
        let (bytes, payload) = ticket.await?;
        self.expected.pop_front();
        if bytes == 0 {
            self.is_ended = true;
            return Ok(None);
        }
        self.prepare()?;
        let Payload::Buffer(buffer) = payload else { unreachable!("it was a buffer") };
        Ok(Some((bytes, buffer)))
    }

    /// Receives and discards first messages until the peer has ended.
    async fn forget(&mut self) -> Result<(), MpiFault> {
        while let Some((_, buffer)) = self.next().await? {
            self.engine.keep(Payload::Buffer(buffer));
        }
        Ok(())
    }
}

/// Messages that follow a first message.
struct Followers {
    engine: Rc<Engine>,
    channel: Channel,
    /// A posted receive whose message will be discarded.
    unwanted: Option<Ticket>,
    is_ended: bool,
}

impl Followers {
    fn prepare(&self, payload: Payload, bytes: usize) -> Result<Ticket, MpiFault> {
        self.engine.receive(payload, Message { bytes, peer: self.channel.peer, tag: self.channel.body })
    }

    /// Receives and discards following messages until the peer has ended.
    async fn forget(&mut self) -> Result<(), MpiFault> {
        while !self.is_ended {
            let ticket = match &mut self.unwanted {
                Some(ticket) => ticket,
                none => {
                    let buffer = Payload::Buffer(self.engine.buffer(CHUNK_BYTES_MAX));
                    let message =
                        Message { bytes: CHUNK_BYTES_MAX, peer: self.channel.peer, tag: self.channel.body };
                    none.insert(self.engine.receive(buffer, message)?)
                }
            };
            let (bytes, payload) = ticket.await?;
            self.unwanted = None;
            self.engine.keep(payload);
            self.is_ended = bytes == 0;
        }
        Ok(())
    }
}

/// Incoming messages, without knowledge of frames.
struct Incoming {
    firsts: Firsts,
    followers: Followers,
}

impl Incoming {
    /// Receives and discards everything. Both kinds at once: the peer may wait for one kind before it sends more of
    /// the other.
    async fn forget(&mut self) -> Result<(), MpiFault> {
        let (firsts, followers) = tokio::join!(self.firsts.forget(), self.followers.forget());
        firsts.and(followers)
    }
}

pub(super) struct MpiReceiver {
    /// `None` once this end is being dropped.
    incoming: Option<Incoming>,
    session: u32,
    limits: FrameLimits,
    bytes: u64,
    arriving: Rc<Cell<u64>>,
    turns: YieldBudget,
}

impl MpiReceiver {
    pub(super) fn new(engine: Rc<Engine>, channel: Channel) -> Result<Self, MpiFault> {
        let expected = VecDeque::with_capacity(FIRSTS_AHEAD);
        let mut firsts = Firsts { engine: engine.clone(), channel, expected, is_ended: false };
        (0..FIRSTS_AHEAD).try_for_each(|_| firsts.prepare())?;
        let followers = Followers { engine, channel, unwanted: None, is_ended: false };
        Ok(Self {
            incoming: Some(Incoming { firsts, followers }),
            session: 0,
            limits: FrameLimits::STRANGER,
            bytes: 0,
            arriving: Rc::default(),
            turns: YieldBudget::default(),
        })
    }

    fn incoming(&mut self) -> &mut Incoming {
        let Some(incoming) = &mut self.incoming else { unreachable!("it is there until this is dropped") };
        incoming
    }

    fn engine(&mut self) -> Rc<Engine> {
        self.incoming().firsts.engine.clone()
    }

    fn came(&self, bytes: usize) {
        self.arriving.set(self.arriving.get().wrapping_add(to_u64(bytes)));
    }

    /// Waits for a following message.
    async fn follower(&mut self, payload: Payload, bytes: usize) -> Result<Payload, LinkError> {
        let ticket = self.incoming().followers.prepare(payload, bytes).map_err(failed)?;
        self.engine().look_for(&ticket);
        let stall = self.limits.stall;
        let Ok(came) = tokio::time::timeout(stall, ticket).await else {
            return Err(LinkError::Stalled(stall));
        };
        let (came, payload) = came.map_err(failed)?;
        self.came(came);
        match came {
            0 => {
                self.incoming().followers.is_ended = true;
                Err(cut_off())
            }
            _ if came == bytes => Ok(payload),
            _ => Err(LinkError::Foreign(format!("a message of {came} bytes where {bytes} were announced"))),
        }
    }

    /// The head; the part that exceeds the first message follows.
    async fn head(&mut self, bytes: usize, first: &[u8]) -> Result<Bytes, LinkError> {
        let front = &first[..bytes.min(first.len())];
        if front.len() == bytes {
            return Ok(Bytes::copy_from_slice(front));
        }
        let rest = vec![0; bytes - front.len()].into_boxed_slice();
        let Payload::Buffer(rest) = self.follower(Payload::Buffer(rest), bytes - front.len()).await? else {
            unreachable!("it was a buffer")
        };
        Ok([front, &rest].concat().into())
    }

    /// Receives a following body into its landing.
    async fn land(&mut self, mut landing: Box<dyn Landing>) -> Result<Box<dyn Landing>, LinkError> {
        let bytes = landing.len();
        // The memory is held until the message has arrived, which may be never, because a dropped receiver cannot
        // cancel it. So only memory that may outlive its reader is used directly.
        if landing.may_outlive_its_reader() && held::is_one_run(&mut *landing) {
            return match self.follower(Payload::Landing(landing), bytes).await? {
                Payload::Landing(landing) => Ok(landing),
                Payload::Buffer(_) | Payload::SharedRegion(_) => unreachable!("it was a landing"),
            };
        }
        let buffer = self.engine().buffer(bytes);
        let payload = self.follower(Payload::Buffer(buffer), bytes).await?;
        if let Payload::Buffer(buffer) = &payload {
            scatter(buffer, &mut *landing)?;
        }
        self.engine().keep(payload);
        Ok(landing)
    }

    async fn read_frame(&mut self, place: &mut dyn BodyPlacer) -> Result<Arrived, LinkError> {
        // A link that always has messages must not monopolise the event loop.
        self.turns.between_frames(TURN_FRAMES).await;
        let Some((came, buffer)) = self.incoming().firsts.next().await.map_err(failed)? else {
            return Err(LinkError::Closed);
        };
        self.came(came);
        let result = self.frame(&buffer[..came], place).await;
        self.engine().keep(Payload::Buffer(buffer));
        result
    }

    /// The frame that a first message begins.
    async fn frame(&mut self, first: &[u8], place: &mut dyn BodyPlacer) -> Result<Arrived, LinkError> {
        let Some((raw, first)) = first.split_first_chunk::<HEADER_BYTES>() else {
            return Err(match first.len() {
                CUT_OFF_BYTES => cut_off(),
                came => LinkError::Foreign(format!("a message of {came} bytes where a frame begins")),
            });
        };
        let header = Header::decode(raw, self.limits)?;
        if header.session != self.session {
            let (got, want) = (header.session, self.session);
            return Err(LinkError::Foreign(format!("a frame of session {got:08x} in session {want:08x}")));
        }
        let (head_bytes, body_bytes) = (usize::from(header.head_bytes), header.body_bytes());
        let is_all = HEADER_BYTES + head_bytes + body_bytes <= FIRST_BYTES;
        let announced =
            if is_all { head_bytes + body_bytes } else { head_bytes.min(FIRST_BYTES - HEADER_BYTES) };
        if first.len() != announced {
            let came = first.len();
            return Err(LinkError::Foreign(format!(
                "a first message with {came} bytes instead of {announced}"
            )));
        }
        let head = self.head(head_bytes, first).await?;
        let sum = checksum::append(checksum::append(0, &header.prefix()), &head);
        if sum != header.checksum {
            return Err(LinkError::Damaged { got: sum, expected: header.checksum });
        }
        let mut body = ArrivedBody::Empty;
        if body_bytes > 0 {
            if let Some(until) = place.until(header.kind, &head) {
                until.await;
            }
            let mut landing = place.place(header.kind, &head, body_bytes).map_err(LinkError::Refused)?;
            if landing.len() != body_bytes {
                let place = landing.len();
                return Err(LinkError::Refused(format!(
                    "a body of {body_bytes} bytes for a landing of {place}"
                )));
            }
            if is_all {
                scatter(&first[head_bytes..], &mut *landing)?;
            } else {
                landing = self.land(landing).await?;
            }
            body = ArrivedBody::Landed(landing);
        }
        let total = HEADER_BYTES + head_bytes + body_bytes;
        self.bytes += to_u64(total);
        self.turns.moved(total);
        Ok(Arrived { kind: header.kind, head, body })
    }
}

/// Copies a body into the runs of its landing.
fn scatter(from: &[u8], landing: &mut dyn Landing) -> Result<(), LinkError> {
    let mut done = 0;
    while done < from.len() {
        let mut runs = Vec::with_capacity(16);
        landing.runs_mut(done, RUNS, &mut runs);
        let before = done;
        for run in runs {
            let mut run = run;
            let part = run.len().min(from.len() - done);
            run[..part].copy_from_slice(&from[done..done + part]);
            done += part;
        }
        if done == before {
            return Err(LinkError::Refused(format!("a landing of {} bytes ended after {done}", from.len())));
        }
    }
    Ok(())
}

impl Receiver for MpiReceiver {
    fn receive<'a>(&'a mut self, place: &'a mut dyn BodyPlacer) -> LinkFuture<'a, Arrived> {
        Box::pin(self.read_frame(place))
    }
    fn drain(&mut self) -> LinkFuture<'_, ()> {
        Box::pin(async { self.incoming().forget().await.map_err(failed) })
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

impl Drop for MpiReceiver {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        let (engine, channel) = (incoming.firsts.engine.clone(), incoming.firsts.channel);
        let message = Message { bytes: 0, peer: channel.peer, tag: channel.gone };
        // If the library has failed, the peer cannot be told, and it sends nothing.
        let _ = engine.send(Payload::Buffer(Box::default()), message, false, None);
        engine.run_detached(async move {
            let mut incoming = incoming;
            let _ = incoming.forget().await;
        });
    }
}
