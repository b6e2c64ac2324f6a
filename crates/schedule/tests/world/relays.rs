//! Workers as neighbours: their links, relayed matrices, and links that break.

use super::World;
use bramble_base::Layout;
use bramble_plan::{Member, neighbour_pairs, neighbours_of_each};
use bramble_schedule::limits::NEIGHBOURS_MAX;
use bramble_schedule::message::{Forward, PieceHead};
use bramble_schedule::primary::{PeerInfo, PrimaryEvent};
use bramble_schedule::worker::WorkerEvent;

/// A matrix under way from one worker to another.
pub(super) struct Passing {
    forward: Forward,
    /// Lines that were sent.
    lines: u32,
}

impl Passing {
    /// Nothing of it was sent yet.
    pub(super) fn of(forward: Forward) -> Self {
        Self { forward, lines: 0 }
    }
}

/// All workers whose links move bytes have a link to each other.
pub(super) fn neighbours(members: &[Member], peers: Vec<PeerInfo>) -> Vec<PeerInfo> {
    let moves = |peer: usize| !peers[peer].shares_memory;
    let pairs = neighbour_pairs(members, NEIGHBOURS_MAX, |one, other| moves(one) && moves(other));
    let each = neighbours_of_each(&pairs, members.len());
    peers.into_iter().zip(each).map(|(info, neighbours)| PeerInfo { neighbours, ..info }).collect()
}

impl World {
    /// A worker sends something to one of its receivers; false if there is nothing to send, or if it is not
    /// expected yet.
    pub(super) fn pass_some(&mut self, peer: usize, which: usize) -> bool {
        let passing = self.ends[peer].passing.iter().filter(|(_, p)| !p.is_empty());
        let to: Vec<usize> = passing.map(|(to, _)| *to).collect();
        !to.is_empty() && self.pass(peer, to[which % to.len()], which)
    }

    /// Now and then breaks the link between two workers, if the setting allows it; false if none broke.
    pub(super) fn sever_some(&mut self, peer: usize, which: usize) -> bool {
        let other = which / 97 % self.ends.len();
        self.breaks && which.is_multiple_of(97) && other != peer && self.sever(peer, other)
    }

    /// Some lines travel between two workers; false if they are not expected yet.
    fn pass(&mut self, from: usize, to: usize, which: usize) -> bool {
        if self.broken.contains(&(from.min(to), from.max(to))) {
            self.parted(from, to);
            return true;
        }
        let Passing { forward, lines } = self.ends[from].passing[&to].front().unwrap();
        let (id, first_line) = (forward.id_there, *lines);
        let held = self.ends[from].held[&forward.id].clone();
        let total = held.header.lines_total().0;
        let count = 1 + which as u32 % (total - first_line);
        let piece = PieceHead { id, first_line, lines: count };
        let Some(header) = self.ends[to].worker.expects(from as u32, &piece).unwrap() else { return false };
        assert_eq!((header.shape(), header.layout), (held.header.shape(), held.header.layout));
        let there = self.ends[to].held.get_mut(&id).unwrap();
        there.trace = held.trace;
        for at in 0..held.elements.len() {
            let (row, col) = (at / header.cols as usize, at % header.cols as usize);
            let line = if header.layout == Layout::RowMajor { row } else { col } as u32;
            if line >= first_line && line < first_line + count {
                there.elements[at] = held.elements[at];
            }
        }
        let actions = self.ends[to].worker.handle(WorkerEvent::Piece(&piece)).unwrap();
        self.worker(to, actions);
        let queue = self.ends[from].passing.get_mut(&to).unwrap();
        queue.front_mut().unwrap().lines += count;
        if first_line + count == total {
            self.relayed += 1;
            let Passing { forward, .. } = queue.pop_front().unwrap();
            let actions = self.ends[from].worker.handle(WorkerEvent::Passed(&forward)).unwrap();
            self.worker(from, actions);
        }
        true
    }

    /// The link between two workers breaks, as one of them sees it.
    fn sever(&mut self, peer: usize, other: usize) -> bool {
        if !self.by_bytes[peer]
            || !self.by_bytes[other]
            || !self.broken.insert((peer.min(other), peer.max(other)))
        {
            return false;
        }
        self.ends[peer].outbox.push_back(PrimaryEvent::Parted { peer, other: other as u32 });
        self.parted(peer, other);
        true
    }

    /// A worker learns that its link to another worker has ended.
    pub(super) fn parted(&mut self, peer: usize, other: usize) {
        let lost = WorkerEvent::PeerLost(other as u32);
        let actions = self.ends[peer].worker.handle(lost).unwrap();
        self.worker(peer, actions);
        for passing in self.ends[peer].passing.remove(&other).unwrap_or_default() {
            let actions = self.ends[peer].worker.handle(WorkerEvent::Passed(&passing.forward)).unwrap();
            self.worker(peer, actions);
        }
        // Data in a broken link does not arrive.
        if self.broken.contains(&(peer.min(other), peer.max(other))) {
            for passing in self.ends[other].passing.remove(&peer).unwrap_or_default() {
                let actions = self.ends[other].worker.handle(WorkerEvent::Passed(&passing.forward)).unwrap();
                self.worker(other, actions);
            }
        }
    }
}
