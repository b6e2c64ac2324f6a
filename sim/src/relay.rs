//! Relayed matrices: frames from worker to worker.
//!
//! A frame uses the rest of the sender's link towards the primary and of the receiver's link from it,
//! at the same time, at the slower of both rates: a machine has one link for all its peers. A worker
//! relays one matrix after the other; those for suspended machines wait, and others go first.
//!
//! Invariants: matrices for one receiver arrive in the order of the relay orders; lines that come before the
//! primary's announcement of their matrix wait for it. Each order is followed by one `Passed`, whether there is a link or not.

use crate::clock::EventQueue;
use crate::machine::SimWorker;
use crate::network::{Direction, LinkSignal, Network};
use bramble_matrix::number::to_usize;
use bramble_wire::limits::lines_per_frame;
use bramble_wire::message::{Forward, PieceHead};
use std::collections::VecDeque;

/// Bytes of a piece's header and head.
const HEAD_BYTES: usize = 16 + 12;

/// Events of relaying.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RelayEvent {
    /// A frame has left its sender.
    Left(usize),
    /// A frame has arrived at its receiver.
    There { from: usize, to: usize, piece: PieceHead },
}

/// A matrix that is being relayed.
struct Matrix {
    forward: Forward,
    lines: u32,
    lines_left: u32,
    line_bytes: usize,
}

/// All relayed matrices.
pub(crate) struct RelayTraffic {
    /// By sender; if the sender is busy, the first is being sent.
    waiting: Vec<VecDeque<Matrix>>,
    is_busy: Vec<bool>,
    /// By receiver: lines that came before their announcement.
    early: Vec<VecDeque<(usize, PieceHead)>>,
    /// How many faults suspend each machine.
    holds: Vec<u32>,
    /// Bytes that each machine has relayed.
    pub(crate) bytes: Vec<u64>,
}

impl RelayTraffic {
    pub(crate) fn new(members: usize) -> Self {
        let mut across = Self {
            waiting: Vec::new(),
            is_busy: Vec::new(),
            early: Vec::new(),
            holds: Vec::new(),
            bytes: Vec::new(),
        };
        (0..members).for_each(|_| across.add());
        across
    }

    /// Adds a machine.
    pub(crate) fn add(&mut self) {
        self.waiting.push(VecDeque::new());
        self.is_busy.push(false);
        self.early.push(VecDeque::new());
        self.holds.push(0);
        self.bytes.push(0);
    }

    /// A machine is suspended or resumes: nothing leaves it or goes to it meanwhile.
    pub(crate) fn hold(&mut self, machine: usize, holds: bool) {
        let count = &mut self.holds[machine];
        *count = if holds { *count + 1 } else { count.saturating_sub(1) };
    }

    /// A machine is lost: it relays nothing.
    pub(crate) fn end(&mut self, machine: usize) {
        self.waiting[machine].clear();
        self.early[machine].clear();
        self.is_busy[machine] = true;
    }

    /// The link from a machine to another is gone; returns the orders that will not be carried out. An order whose frame is
    /// under way ends when the frame has left.
    pub(crate) fn part(&mut self, from: usize, to: usize) -> Vec<Forward> {
        self.early[from].retain(|(sender, _)| *sender != to);
        let (busy, queue) = (self.is_busy[from], &mut self.waiting[from]);
        let mut undone = Vec::new();
        let mut at = 0;
        queue.retain_mut(|matrix| {
            let leaves = busy && at == 0;
            at += 1;
            if to_usize(matrix.forward.to) != to {
                return true;
            }
            if leaves {
                matrix.lines_left = 0;
            } else {
                undone.push(matrix.forward);
            }
            leaves
        });
        undone
    }

    /// Takes a machine's relay orders.
    pub(crate) fn order<F, G, E>(
        &mut self,
        from: usize,
        end: &mut SimWorker,
        links: (&mut Network<F>, &mut Network<G>),
        event_queue: &mut EventQueue<E>,
    ) where
        E: From<(Direction, LinkSignal)> + From<RelayEvent>,
    {
        while let Some(forward) = end.passing.pop_front() {
            let (lines, line_bytes) = end.lines_of(forward.id);
            self.waiting[from].push_back(Matrix { forward, lines, lines_left: lines, line_bytes });
        }
        self.start(from, links, event_queue);
    }

    /// Sends the next frame of a machine that is not sending.
    pub(crate) fn start<F, G, E>(
        &mut self,
        from: usize,
        (out, back): (&mut Network<F>, &mut Network<G>),
        event_queue: &mut EventQueue<E>,
    ) where
        E: From<(Direction, LinkSignal)> + From<RelayEvent>,
    {
        if self.is_busy[from] || self.holds[from] > 0 {
            return;
        }
        let queue = &mut self.waiting[from];
        let goes = |matrix: &Matrix| self.holds[to_usize(matrix.forward.to)] == 0;
        let Some(at) = queue.iter().position(goes) else { return };
        if at > 0
            && let Some(matrix) = queue.remove(at)
        {
            queue.push_front(matrix);
        }
        let Some(matrix) = queue.front_mut() else { return };
        let to = to_usize(matrix.forward.to);
        let lines = lines_per_frame(matrix.line_bytes).min(matrix.lines_left);
        let first_line = matrix.lines - matrix.lines_left;
        let piece = PieceHead { id: matrix.forward.id_there, first_line, lines };
        matrix.lines_left -= lines;
        let bytes = HEAD_BYTES + to_usize(lines) * matrix.line_bytes;
        self.bytes[from] += bytes as u64;
        self.is_busy[from] = true;
        let begin = event_queue.now().max(back.free(from)).max(out.free(to));
        let end = begin.after(bytes as f64 / back.rate(from).min(out.rate(to)));
        back.occupy(from, end);
        out.occupy(to, end);
        let seconds = end.seconds_from(event_queue.now());
        event_queue.add(seconds, E::from(RelayEvent::Left(from)));
        let there = RelayEvent::There { from, to, piece };
        event_queue.add(seconds + back.latency(from) + out.latency(to), E::from(there));
    }

    /// A frame has left: returns the order that it completes, if it was the last frame of its matrix.
    pub(crate) fn left(&mut self, from: usize) -> Option<Forward> {
        self.is_busy[from] = false;
        let queue = &mut self.waiting[from];
        if queue.front()?.lines_left > 0 {
            return None;
        }
        queue.pop_front().map(|matrix| matrix.forward)
    }

    /// Lines have arrived.
    pub(crate) fn there(&mut self, to: usize, from: usize, piece: PieceHead) {
        self.early[to].push_back((from, piece));
    }

    /// Passes lines to a machine if it knows their matrices.
    pub(crate) fn land(&mut self, to: usize, end: &mut SimWorker) {
        self.early[to].retain(|(from, piece)| !end.take(*from, piece));
    }
}
