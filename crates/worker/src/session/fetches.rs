//! Rectangles of arrays that this worker gets from other workers, and gives to them.
//!
//! Place in the flow: a fetch message of the primary reserves memory and asks the neighbour with a get message; its part messages
//! land in that memory as if the primary had put them. The tasks of the links with neighbours pass arriving frames in, and take
//! leaving frames from here.
//!
//! Invariants: a neighbour answers its get messages in order, so each of its part messages belongs to the first fetch that
//! waits for it. Each fetch is answered once: the part is held, or refused, also when the link with the neighbour ends. Frames
//! that leave refer to the part and copy nothing.
//!
//! Deliberately absent: which worker holds which part. The primary knows.

use super::WorkerError;
use super::core::Core;
use super::held_messages::placed_frame;
use crate::held::PutProgress;
use bramble_link::{Arrived, ArrivedBody, Body, Frame, Landing};
use bramble_wire::ProtocolError;
use bramble_wire::limits::FETCHES_MAX;
use bramble_wire::message::{FetchHead, GetHead, Kind, PartHead, PlacedHead, PutOutcome};
use std::collections::{BTreeMap, VecDeque};

/// Most frames that wait for a neighbour: honest primaries have few blocks under way, of 1 MiB a frame.
const FRAMES_MAX: usize = 1 << 14;

/// Fetches under way, and frames that leave.
#[derive(Default)]
pub(in crate::session) struct Fetches {
    /// For each neighbour the fetches that wait for it, in the order of their get messages.
    waiting: BTreeMap<u32, VecDeque<FetchHead>>,
    /// For each neighbour the frames that it gets.
    leaving: BTreeMap<u32, VecDeque<Frame>>,
}

impl Fetches {
    /// The next frame to a neighbour.
    pub(in crate::session) fn frame_to(&mut self, peer: u32) -> Option<Frame> {
        self.leaving.get_mut(&peer)?.pop_front()
    }

    /// The fetch to which elements from a neighbour belong.
    fn awaited(&self, peer: u32, head: &[u8]) -> Result<(FetchHead, PartHead), ProtocolError> {
        let part = PartHead::decode(head)?;
        let first =
            self.waiting.get(&peer).and_then(VecDeque::front).filter(|fetch| fetch.from == part.array);
        let unknown = || ProtocolError::new(format!("worker {peer} sent elements without a get message"));
        Ok((*first.ok_or_else(unknown)?, part))
    }
}

impl Core {
    /// A fetch message.
    pub(super) fn fetch(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let fetch = FetchHead::decode(&arrived.head)?;
        let FetchHead { array, peer, from, rect, .. } = fetch;
        let waiting = self.arrays.fetches.waiting.entry(peer).or_default();
        if !matches!(arrived.body, ArrivedBody::Empty) || waiting.len() >= FETCHES_MAX {
            return Err(ProtocolError::new(format!("the fetch of array {array} comes too early")).into());
        }
        if let Some(refused) = self.held.borrow_mut().open_fetched(&fetch.put(0))? {
            self.send_frame(placed_frame(&refused));
            return Ok(());
        }
        waiting.push_back(fetch);
        if !self.neighbours.is_linked(peer) {
            self.refuse_fetches(peer);
            return Ok(());
        }
        let get = Frame::new(Kind::Get.code(), GetHead { array: from, rect }.encode(), Body::Empty);
        self.arrays.fetches.leaving.entry(peer).or_default().push_back(get);
        self.neighbours.wake(peer);
        Ok(())
    }

    /// The link with a neighbour has ended: refuses all fetches from it.
    pub(super) fn refuse_fetches(&mut self, peer: u32) {
        self.arrays.fetches.leaving.remove(&peer);
        for fetch in self.arrays.fetches.waiting.remove(&peer).unwrap_or_default() {
            self.held.borrow_mut().give_up(fetch.array);
            let why = format!("the link with worker {peer} has ended");
            let refused = PlacedHead { array: fetch.array, outcome: PutOutcome::Refused(why) };
            self.send_frame(placed_frame(&refused));
        }
    }

    /// A neighbour asks for a rectangle. An error ends the link with it.
    pub(super) fn asked(&mut self, peer: u32, head: &[u8]) -> Result<(), ProtocolError> {
        let get = GetHead::decode(head)?;
        let leaving = self.arrays.fetches.leaving.entry(peer).or_default();
        let frames = self.held.borrow().get(&get)?;
        if leaving.len().saturating_add(frames.len()) > FRAMES_MAX {
            return Err(ProtocolError::new(format!("worker {peer} asks for more than it takes")));
        }
        leaving.extend(frames);
        self.neighbours.wake(peer);
        Ok(())
    }

    /// The memory for elements from a neighbour.
    pub(super) fn place_fetched(
        &mut self,
        peer: u32,
        head: &[u8],
        body_bytes: usize,
    ) -> Result<Box<dyn Landing>, ProtocolError> {
        let (fetch, part) = self.arrays.fetches.awaited(peer, head)?;
        self.held.borrow_mut().place(&fetch.put(part.first), body_bytes)
    }

    /// Elements from a neighbour have landed. An error ends the link with it.
    pub(super) fn fetched(&mut self, peer: u32, arrived: Arrived) -> Result<(), ProtocolError> {
        let (fetch, part) = self.arrays.fetches.awaited(peer, &arrived.head)?;
        let ArrivedBody::Landed(landing) = arrived.body else {
            return Err(ProtocolError::new(format!("worker {peer} sent elements without bytes")));
        };
        let progress = self.held.borrow_mut().landed(&fetch.put(part.first), landing)?;
        if let PutProgress::Done(placed) = progress {
            if let Some(waiting) = self.arrays.fetches.waiting.get_mut(&peer) {
                waiting.pop_front();
            }
            self.send_frame(placed_frame(&placed));
        }
        Ok(())
    }
}
