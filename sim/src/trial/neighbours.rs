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
use bramble_wire::message::{Forward, Kind, MatrixHeader, PieceHead, encode_number};

impl Trial {
    /// Relays a matrix, if there is a link.
    pub(super) fn pass(&mut self, peer: usize, forward: Forward) {
        let to = forward.to as usize;
        if self.nodes[peer].machine.parted.contains(&to) {
            return self.nodes[peer].machine.passed(&forward);
        }
        let held = self.nodes[peer].machine.held(forward.id);
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
        let is_expected = self.nodes[to].machine.expects(from, &piece);
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
            if !node.machine.lives || node.machine.stands > 0 || node.machine.parted.contains(&other) {
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
        self.nodes[to].machine.piece(&piece);
        self.advance(to);
    }

    fn put_lines(&mut self, to: usize, piece: &PieceHead, elements: Option<&[f64]>) {
        let held = self.nodes[to].machine.held_mut(piece.id);
        let MatrixHeader { layout, rows, cols, .. } = held.header;
        let first = u64::from(piece.first_line);
        let places = line_places(layout, (rows, cols), Span::new(first, first + u64::from(piece.lines)));
        for (at, place) in places.enumerate() {
            held.elements[place] = elements.map_or(GARBAGE, |elements| elements[at]);
        }
    }

    /// The link from a worker to another is gone.
    pub(super) fn part(&mut self, peer: usize, other: usize, says_so: bool) {
        if !self.nodes[peer].machine.lives || !self.nodes[peer].machine.parted.insert(other) {
            return;
        }
        let (to, from) = (self.across(peer, other), self.across(other, peer));
        self.lanes[to].close(to, None, &mut self.event_queue);
        self.lanes[from].end();
        let orders = self.lanes[to].take_undone();
        let machine = &mut self.nodes[peer].machine;
        if says_so {
            machine.say_parted(other);
        }
        orders.iter().for_each(|forward| machine.passed(forward));
        machine.part(other);
        self.advance(peer);
    }
}
