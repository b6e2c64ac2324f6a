//! What workers pass on to each other: matrices in frames, from worker to worker.
//!
//! A frame takes what is left of the sender's link to the primary's side of the network and of the receiver's link from it,
//! at the same time, at the slower of both rates: a machine has one link, whoever is at the other end. A worker
//! passes one matrix on after the other.
//!
//! Invariants: matrices for one receiver arrive in the order in which they were ordered; lines that come before the
//! primary's announcement of their matrix wait for it.

use crate::clock::Agenda;
use crate::machine::End;
use crate::network::{Network, Signal, Way};
use bramble_matrix::number::to_usize;
use bramble_schedule::limits::lines_per_frame;
use bramble_schedule::message::{Forward, PieceHead};
use std::collections::VecDeque;

/// Bytes of a piece beside its lines.
const HEAD_BYTES: usize = 16 + 12;

/// What happens between workers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passing {
    /// A frame has left its sender.
    Left(usize),
    /// It is at its receiver.
    There { from: usize, to: usize, piece: PieceHead },
}

/// A matrix on its way.
struct Matrix {
    forward: Forward,
    lines: u32,
    lines_left: u32,
    line_bytes: usize,
}

/// Everything that is between workers.
pub(crate) struct Across {
    /// By sender; the first is on its way.
    waiting: Vec<VecDeque<Matrix>>,
    is_busy: Vec<bool>,
    /// By receiver: what came too early.
    early: Vec<VecDeque<(usize, PieceHead)>>,
    /// Bytes that each has passed on.
    pub(crate) bytes: Vec<u64>,
}

impl Across {
    pub(crate) fn new(members: usize) -> Self {
        Self {
            waiting: (0..members).map(|_| VecDeque::new()).collect(),
            is_busy: vec![false; members],
            early: (0..members).map(|_| VecDeque::new()).collect(),
            bytes: vec![0; members],
        }
    }

    /// Takes what a machine is to pass on.
    pub(crate) fn order<F, G, E>(
        &mut self,
        from: usize,
        end: &mut End,
        links: (&mut Network<F>, &mut Network<G>),
        agenda: &mut Agenda<E>,
    ) where
        E: From<(Way, Signal)> + From<Passing>,
    {
        while let Some(forward) = end.passing.pop_front() {
            let (lines, line_bytes) = end.lines_of(forward.id);
            self.waiting[from].push_back(Matrix { forward, lines, lines_left: lines, line_bytes });
        }
        self.start(from, links, agenda);
    }

    /// Sends the next frame of a machine that sends none.
    pub(crate) fn start<F, G, E>(
        &mut self,
        from: usize,
        (out, back): (&mut Network<F>, &mut Network<G>),
        agenda: &mut Agenda<E>,
    ) where
        E: From<(Way, Signal)> + From<Passing>,
    {
        let Some(matrix) = self.waiting[from].front_mut().filter(|_| !self.is_busy[from]) else { return };
        let to = to_usize(matrix.forward.to);
        let lines = lines_per_frame(matrix.line_bytes).min(matrix.lines_left);
        let first_line = matrix.lines - matrix.lines_left;
        let piece = PieceHead { id: matrix.forward.id_there, first_line, lines };
        matrix.lines_left -= lines;
        let bytes = HEAD_BYTES + to_usize(lines) * matrix.line_bytes;
        self.bytes[from] += bytes as u64;
        self.is_busy[from] = true;
        let begin = agenda.now().max(back.free(from)).max(out.free(to));
        let end = begin.after(bytes as f64 / back.rate(from).min(out.rate(to)));
        back.occupy(from, end);
        out.occupy(to, end);
        let seconds = end.seconds_from(agenda.now());
        agenda.add(seconds, E::from(Passing::Left(from)));
        let there = Passing::There { from, to, piece };
        agenda.add(seconds + back.latency(from) + out.latency(to), E::from(there));
    }

    /// A frame has left: the order that is done with it, if it was the last of its matrix.
    pub(crate) fn left(&mut self, from: usize) -> Option<Forward> {
        self.is_busy[from] = false;
        let queue = &mut self.waiting[from];
        if queue.front()?.lines_left > 0 {
            return None;
        }
        queue.pop_front().map(|matrix| matrix.forward)
    }

    /// Lines have come.
    pub(crate) fn there(&mut self, to: usize, from: usize, piece: PieceHead) {
        self.early[to].push_back((from, piece));
    }

    /// Gives a machine the lines whose matrices it knows.
    pub(crate) fn land(&mut self, to: usize, end: &mut End) {
        self.early[to].retain(|(from, piece)| !end.take(*from, piece));
    }
}
