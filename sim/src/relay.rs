//! What workers pass on to each other: matrices in frames, from worker to worker.
//!
//! A frame takes what is left of the sender's link to the primary's side of the network and of the receiver's link from it,
//! at the same time, at the slower of both rates: a machine has one link, whoever is at the other end. A worker
//! passes one matrix on after the other; those for machines that stand still wait, and others go first.
//!
//! Invariants: matrices for one receiver arrive in the order in which they were ordered; lines that come before the
//! primary's announcement of their matrix wait for it. Each order is followed by one `Passed`, whether there is a link or not.

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
    /// By sender; the first is on its way where the sender is busy.
    waiting: Vec<VecDeque<Matrix>>,
    is_busy: Vec<bool>,
    /// By receiver: what came too early.
    early: Vec<VecDeque<(usize, PieceHead)>>,
    /// How many faults have a machine stand still.
    holds: Vec<u32>,
    /// Bytes that each has passed on.
    pub(crate) bytes: Vec<u64>,
}

impl Across {
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

    /// One more machine.
    pub(crate) fn add(&mut self) {
        self.waiting.push(VecDeque::new());
        self.is_busy.push(false);
        self.early.push(VecDeque::new());
        self.holds.push(0);
        self.bytes.push(0);
    }

    /// A machine stands still, or goes on: nothing leaves it or goes to it.
    pub(crate) fn hold(&mut self, machine: usize, holds: bool) {
        let count = &mut self.holds[machine];
        *count = if holds { *count + 1 } else { count.saturating_sub(1) };
    }

    /// A machine is gone: it passes nothing on.
    pub(crate) fn end(&mut self, machine: usize) {
        self.waiting[machine].clear();
        self.early[machine].clear();
        self.is_busy[machine] = true;
    }

    /// A machine has no link to another any more; gives the orders that will not be carried out. The one that is on its way is
    /// done when its frame has left.
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
