//! The receiving end.
//!
//! Some messages for first parts of frames are always waited for, so that small frames find a place. What follows one is waited
//! for when its header has been read: a body lands where `Place` says where that is one run, and is scattered where it is not.
//!
//! Invariants: lengths are checked against the limits and against what came. Whatever the other end has begun to send is taken,
//! also after this end is gone, which the other one is told; so no message is ever left under way.

use super::engine::{Engine, Ticket};
use super::held::{self, Payload};
use super::table::{Fault, Message};
use super::{CUT_OFF_BYTES, Channel, FIRST_BYTES, FIRSTS_AHEAD, failed};
use crate::framed::{Turns, cut_off};
use crate::{
    Arrived, ArrivedBody, CHUNK_BYTES_MAX, HEADER_BYTES, Header, Landing, Limits, LinkError, LinkFuture,
    Place, Receiver, checksum, to_u64,
};
use bytes::Bytes;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Runs of a landing that are filled at a time.
const RUNS: usize = 512;
/// Frames after which others have their turn.
const TURN_FRAMES: u32 = 8;

/// First messages of frames.
struct Firsts {
    engine: Rc<Engine>,
    channel: Channel,
    /// Those that are waited for, in order.
    expected: VecDeque<Ticket>,
    is_ended: bool,
}

impl Firsts {
    fn prepare(&mut self) -> Result<(), Fault> {
        let message = Message { bytes: FIRST_BYTES, peer: self.channel.peer, tag: self.channel.first };
        let buffer = Payload::Buffer(self.engine.buffer(FIRST_BYTES));
        self.expected.push_back(self.engine.receive(buffer, message)?);
        Ok(())
    }

    /// The next one, and its bytes; none where the other end has ended.
    async fn next(&mut self) -> Result<Option<(usize, Box<[u8]>)>, Fault> {
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

    /// Takes and forgets them until the other end has ended.
    async fn forget(&mut self) -> Result<(), Fault> {
        while let Some((_, buffer)) = self.next().await? {
            self.engine.keep(Payload::Buffer(buffer));
        }
        Ok(())
    }
}

/// What follows first messages.
struct Followers {
    engine: Rc<Engine>,
    channel: Channel,
    /// One that will be forgotten.
    unwanted: Option<Ticket>,
    is_ended: bool,
}

impl Followers {
    fn prepare(&self, payload: Payload, bytes: usize) -> Result<Ticket, Fault> {
        self.engine.receive(payload, Message { bytes, peer: self.channel.peer, tag: self.channel.body })
    }

    /// Takes and forgets them until the other end has ended.
    async fn forget(&mut self) -> Result<(), Fault> {
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

/// What comes, without knowing frames.
struct Incoming {
    firsts: Firsts,
    followers: Followers,
}

impl Incoming {
    /// Takes and forgets everything. Both kinds at a time: the other end sends no more of one while it waits for the other.
    async fn forget(&mut self) -> Result<(), Fault> {
        let (firsts, followers) = tokio::join!(self.firsts.forget(), self.followers.forget());
        firsts.and(followers)
    }
}

pub(super) struct MpiReceiver {
    /// Until this end is dropped.
    incoming: Option<Incoming>,
    session: u32,
    limits: Limits,
    bytes: u64,
    arriving: Rc<Cell<u64>>,
    turns: Turns,
}

impl MpiReceiver {
    pub(super) fn new(engine: Rc<Engine>, channel: Channel) -> Result<Self, Fault> {
        let expected = VecDeque::with_capacity(FIRSTS_AHEAD);
        let mut firsts = Firsts { engine: engine.clone(), channel, expected, is_ended: false };
        (0..FIRSTS_AHEAD).try_for_each(|_| firsts.prepare())?;
        let followers = Followers { engine, channel, unwanted: None, is_ended: false };
        Ok(Self {
            incoming: Some(Incoming { firsts, followers }),
            session: 0,
            limits: Limits::STRANGER,
            bytes: 0,
            arriving: Rc::default(),
            turns: Turns::default(),
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

    /// Waits for a message that follows a first one.
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

    /// The head, the part of which that is not in the first message follows.
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

    /// A body that follows, where it belongs.
    async fn land(&mut self, mut landing: Box<dyn Landing>) -> Result<Box<dyn Landing>, LinkError> {
        let bytes = landing.len();
        // What is under way is held until it has come, which may be never: a reader that ends meanwhile cannot call it off.
        if landing.may_outlive_its_reader() && held::is_one_run(&mut *landing) {
            return match self.follower(Payload::Landing(landing), bytes).await? {
                Payload::Landing(landing) => Ok(landing),
                Payload::Buffer(_) | Payload::Region(_) => unreachable!("it was a landing"),
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

    async fn read_frame(&mut self, place: &mut dyn Place) -> Result<Arrived, LinkError> {
        // A link that is never empty must not keep the event loop to itself.
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
    async fn frame(&mut self, first: &[u8], place: &mut dyn Place) -> Result<Arrived, LinkError> {
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
                return Err(LinkError::Refused(format!("{body_bytes} bytes came for a place of {place}")));
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

/// Copies a body into the runs of its place.
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
            return Err(LinkError::Refused(format!("a place of {} bytes ended after {done}", from.len())));
        }
    }
    Ok(())
}

impl Receiver for MpiReceiver {
    fn receive<'a>(&'a mut self, place: &'a mut dyn Place) -> LinkFuture<'a, Arrived> {
        Box::pin(self.read_frame(place))
    }
    fn drain(&mut self) -> LinkFuture<'_, ()> {
        Box::pin(async { self.incoming().forget().await.map_err(failed) })
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

impl Drop for MpiReceiver {
    fn drop(&mut self) {
        let Some(incoming) = self.incoming.take() else { return };
        let (engine, channel) = (incoming.firsts.engine.clone(), incoming.firsts.channel);
        let message = Message { bytes: 0, peer: channel.peer, tag: channel.gone };
        // Where the library has failed, nobody can be told, and nothing comes.
        let _ = engine.send(Payload::Buffer(Box::default()), message, false, None);
        engine.adopt(async move {
            let mut incoming = incoming;
            let _ = incoming.forget().await;
        });
    }
}
