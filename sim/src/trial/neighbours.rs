//! Relaying between workers in a trial, and links between workers that end.
//!
//! Place in the flow: replaces parts of the worker's shell (crates/worker/src/session/neighbours.rs, relay.rs), with elements.
//!
//! Invariants: each relay order is followed by one `Passed`, whether there is a link or not. Lines that arrive before their
//! announcement stay in the link. A worker that hears nothing for too long, by the schedule's own rule, gives up the link.

use super::Trial;
use super::lanes::{AfterSend, FrameBody, TrialFrame};
use super::node::decoded;
use super::trial_data::{GARBAGE, line_places};
use bramble_matrix::Span;
use bramble_schedule::message::{Forward, Kind, MatrixHeader, PieceHead, Reached, encode_number};
use bramble_schedule::worker::WorkerEvent;

impl Trial {
    /// Relays a matrix, if there is a link.
    pub(super) fn pass(&mut self, peer: usize, forward: Forward) {
        let to = forward.to as usize;
        if self.nodes[peer].lost.contains(&to) {
            return self.has_left(peer, AfterSend::Passed(forward));
        }
        let held = &self.nodes[peer].held[&forward.id];
        let header = held.header;
        let (total, elements) = (header.lines_total().0, held.elements.clone());
        let lane = self.across(peer, to);
        let mut first_line = 0;
        while first_line < total {
            let lines = self.limits.lines_per_frame.min(total - first_line);
            let span = Span::new(u64::from(first_line), u64::from(first_line + lines));
            let places = line_places(header.layout, (header.rows, header.cols), span);
            let body = FrameBody::Elements(places.map(|place| elements[place]).collect());
            let head = PieceHead { id: forward.id_there, first_line, lines }.encode();
            first_line += lines;
            let after = if first_line == total { AfterSend::Passed(forward) } else { AfterSend::Nothing };
            self.send(lane, Kind::Piece, head, body, after);
        }
    }

    /// Whether lines from another worker may land now; if so they begin to.
    pub(super) fn begin_piece(&mut self, from: usize, to: usize, head: &[u8]) -> bool {
        let piece = decoded(PieceHead::decode(head));
        let expected = decoded(self.nodes[to].worker.expects(from as u32, &piece));
        let is_expected = expected.is_some();
        if is_expected {
            self.put_lines(to, &piece, None);
        }
        is_expected
    }

    /// A frame from another worker has arrived.
    pub(super) fn take_of_a_neighbour(&mut self, (from, to): (usize, usize), frame: TrialFrame) {
        self.nodes[to].ears.entry(from).and_modify(|(_, heard)| *heard += 1);
        if frame.kind != Kind::Ping {
            self.take_piece(to, frame);
        }
    }

    /// A worker sends its neighbours a sign of life, and gives up neighbours that were silent for too long.
    pub(super) fn listen(&mut self, peer: usize) {
        let now = self.event_queue.now();
        let others: Vec<usize> = self.nodes[peer].ears.keys().copied().collect();
        for other in others {
            let node = &mut self.nodes[peer];
            if !node.lives || node.stands > 0 || node.lost.contains(&other) {
                continue;
            }
            let (to, from) = (self.across(peer, other), self.across(other, peer));
            if self.lanes[to].is_idle() {
                self.send(to, Kind::Ping, encode_number(0), FrameBody::Empty, AfterSend::Nothing);
            }
            let (reads, moves) = (!self.lanes[from].is_refused(), self.lanes[from].moves());
            let node = &mut self.nodes[peer];
            let shown = node.shown(now);
            let Some((silence, heard)) = node.ears.get_mut(&other) else { continue };
            *heard += u64::from(reads && moves);
            if silence.check(shown, *heard, reads).is_some() {
                self.check_silence(other, peer);
                self.record.seen.parted += 1;
                self.part(peer, other, true);
            }
        }
    }

    /// Parts workers whose links are stalled, if they had not noticed before the product was over.
    pub(super) fn part_where_nothing_moves(&mut self) {
        let count = self.members.count;
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            if from != to && self.lanes[self.across(from, to)].is_stalled() {
                self.part(from, to, false);
                self.part(to, from, false);
            }
        }
    }

    /// Lines from another worker have arrived.
    fn take_piece(&mut self, to: usize, frame: TrialFrame) {
        let piece = decoded(PieceHead::decode(&frame.head));
        let FrameBody::Elements(elements) = frame.body else { panic!("lines without elements") };
        self.put_lines(to, &piece, Some(&elements));
        self.record.seen.relayed += 1;
        let actions = self.nodes[to].worker.handle(WorkerEvent::Piece(&piece));
        self.act(to, decoded(actions));
    }

    fn put_lines(&mut self, to: usize, piece: &PieceHead, elements: Option<&[f64]>) {
        let held = self.nodes[to].held.get_mut(&piece.id);
        let held = held.unwrap_or_else(|| panic!("lines land in matrix {}, which is not there", piece.id));
        let MatrixHeader { layout, rows, cols, .. } = held.header;
        let first = u64::from(piece.first_line);
        let places = line_places(layout, (rows, cols), Span::new(first, first + u64::from(piece.lines)));
        for (at, place) in places.enumerate() {
            held.elements[place] = elements.map_or(GARBAGE, |elements| elements[at]);
        }
    }

    /// The link from a worker to another is gone.
    pub(super) fn part(&mut self, peer: usize, other: usize, says_so: bool) {
        if !self.nodes[peer].lives || !self.nodes[peer].lost.insert(other) {
            return;
        }
        let (to, from) = (self.across(peer, other), self.across(other, peer));
        self.lanes[to].close(to, None, &mut self.event_queue);
        self.lanes[from].end();
        let orders = self.lanes[to].take_undone();
        if says_so {
            let reached = Reached { peer: other as u32, is_there: false, why: "it is gone".into() };
            let lane = self.back(peer);
            self.send(lane, Kind::Reached, reached.encode(), FrameBody::Empty, AfterSend::Nothing);
        }
        for forward in orders {
            self.has_left(peer, AfterSend::Passed(forward));
        }
        let actions = self.nodes[peer].worker.handle(WorkerEvent::PeerLost(other as u32));
        self.act(peer, decoded(actions));
    }
}
