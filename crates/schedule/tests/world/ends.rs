//! The workers of the simulated world: they receive messages, compute and send results, one thing at a time.

use super::deaths::Landing;
use super::relays::Passing;
use super::{ALPHA, BETA, Held, Sent, World, mixed, places};
use bramble_base::{Layout, Rect};
use bramble_schedule::message::{Job, MatrixHeader, MatrixSource, Operation, ResultHead, StoreHead};
use bramble_schedule::primary::{Outgoing, PrimaryEvent, ResultDestination, ResultPlace};
use bramble_schedule::worker::{RunnableJob, WorkerAction, WorkerEvent};
use std::collections::BTreeMap;

impl World {
    pub(super) fn worker(&mut self, peer: usize, actions: Vec<WorkerAction>) {
        let end = &mut self.ends[peer];
        for action in actions {
            match action {
                WorkerAction::Start(run) => end.running.push(run),
                WorkerAction::Fill(id) => end.filling.push(id),
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    let none = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    end.leaving.push(none);
                }
                WorkerAction::Credit(bytes) => end.outbox.push_back(PrimaryEvent::Credit { peer, bytes }),
                WorkerAction::Release(id) => {
                    end.held.remove(&id);
                }
                WorkerAction::Pass(forward) => {
                    let passing = Passing::of(forward);
                    end.passing.entry(forward.to as usize).or_default().push_back(passing);
                }
                WorkerAction::Missing(missing) => {
                    end.outbox.push_back(PrimaryEvent::Missing { peer, missing })
                }
                WorkerAction::Reserve(_) => {}
            }
        }
        end.worker.validate();
    }

    /// A message of the primary arrives.
    pub(super) fn deliver(&mut self, peer: usize) {
        match self.ends[peer].inbox.pop_front().unwrap() {
            Sent::Store(message, body, trace) => self.store(peer, &message, &body, trace),
            Sent::Relay(forwards) => {
                let actions = self.ends[peer].worker.handle(WorkerEvent::Relay(&forwards)).unwrap();
                self.worker(peer, actions);
            }
            Sent::Parted(other) => self.parted(peer, other),
        }
    }

    /// Stores the elements of a message.
    pub(super) fn store(&mut self, peer: usize, message: &Outgoing, body: &[i64], trace: u64) {
        let head = StoreHead::decode(&message.head.encode()).unwrap();
        let mut actions = self.ends[peer].worker.handle(WorkerEvent::Announced(&head)).unwrap();
        for header in &head.matrices {
            let count = (header.rows * header.cols) as usize;
            let header = MatrixHeader { first_line: 0, ..*header };
            let fresh = || Held { header, elements: vec![-55_555; count], trace: 0, leased: None };
            self.ends[peer].held.entry(header.id).or_insert_with(fresh);
        }
        if let (Some(piece), Some(header)) = (message.piece, head.matrices.last()) {
            if piece.leased && header.uses == 0 {
                actions.extend(self.ends[peer].worker.handle(WorkerEvent::Leased(header.id)).unwrap());
            }
            let held = self.ends[peer].held.get_mut(&header.id).unwrap();
            held.trace = trace;
            held.leased = piece.leased.then_some(piece.rect);
            let (rows, cols) = (piece.rect.rows.len() as usize, piece.rect.cols.len() as usize);
            let whole = piece.leased || header.source == MatrixSource::Generated;
            let first = if whole { 0 } else { header.first_line as usize };
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                let (row, col) = match header.layout {
                    Layout::RowMajor => (first + i, j),
                    Layout::ColMajor => (i, first + j),
                };
                held.elements[row * header.cols as usize + col] = body[i * cols + j];
            }
        }
        actions.extend(self.ends[peer].worker.handle(WorkerEvent::Landed(&head)).unwrap());
        self.worker(peer, actions);
        self.primary(PrimaryEvent::Sent { peer, bytes: message.wire_bytes() });
    }

    /// A job is done.
    pub(super) fn compute(&mut self, peer: usize, run: RunnableJob) {
        let Job { operation, a, b, c, .. } = run.job;
        let held = &mut self.ends[peer].held;
        let (left, right) = (held[&a].clone(), held[&b].clone());
        let tile = held.get_mut(&c).unwrap();
        let before = if run.reads_tile { tile.trace } else { 0 };
        tile.trace = mixed(&[before, left.trace, right.trace, operation as u64, u64::from(run.scales_tile)]);
        let (rows, cols) = (tile.header.rows as usize, tile.header.cols as usize);
        let depth = left.header.cols as usize;
        for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            let at = i * cols + j;
            let product: i64 = match operation {
                Operation::Multiply => {
                    let terms =
                        (0..depth).map(|l| left.elements[i * depth + l] * right.elements[l * cols + j]);
                    ALPHA * terms.sum::<i64>()
                }
                Operation::Add => left.elements[at] + right.elements[at],
                Operation::Subtract => left.elements[at] - right.elements[at],
            };
            let before = match (run.reads_tile, run.scales_tile) {
                (false, _) => 0,
                (true, true) => BETA * tile.elements[at],
                (true, false) => tile.elements[at],
            };
            tile.elements[at] = before + product;
        }
        let actions = self.ends[peer].worker.handle(WorkerEvent::Finished(&run.job)).unwrap();
        self.worker(peer, actions);
    }

    /// Does one of the things that may happen at `peer`; false if it cannot happen now.
    pub(super) fn step(&mut self, peer: usize, what: usize, which: usize) -> bool {
        if self.dead.contains(&peer) {
            return self.step_of_the_dead(peer, what);
        }
        let end = &mut self.ends[peer];
        match what {
            0 if !end.inbox.is_empty() => self.deliver(peer),
            1 if !end.outbox.is_empty() => {
                let event = end.outbox.pop_front().unwrap();
                self.primary(event);
            }
            2 if !end.running.is_empty() => {
                let run = end.running.swap_remove(which % end.running.len());
                self.compute(peer, run);
            }
            5 => return self.pass_some(peer, which),
            6 => return self.sever_some(peer, which),
            3 if !end.filling.is_empty() => {
                let id = end.filling.swap_remove(which % end.filling.len());
                let actions = end.worker.handle(WorkerEvent::Filled(id)).unwrap();
                self.worker(peer, actions);
            }
            4 if !end.leaving.is_empty() => {
                let head = end.leaving.swap_remove(which % end.leaving.len());
                self.result(peer, head, which);
                self.ends[peer].held.remove(&head.c);
                let actions = self.ends[peer].worker.handle(WorkerEvent::Returned(head.c)).unwrap();
                self.worker(peer, actions);
            }
            _ => return false,
        }
        true
    }

    /// A tile comes back, in two pieces if it has two rows and is not leased.
    pub(super) fn result(&mut self, peer: usize, head: ResultHead, which: usize) {
        let held = self.ends[peer].held[&head.c].clone();
        let rows = held.header.rows;
        let cut = if rows > 1 && held.leased.is_none() { 1 + which as u32 % (rows - 1) } else { rows };
        for (first_line, lines) in [(0, cut), (cut, rows - cut)] {
            if lines == 0 {
                continue;
            }
            self.land(peer, &held, &ResultHead { first_line, lines, ..head });
            // Deliver at once: the second piece is checked against the first.
            while let Some(event) = self.ends[peer].outbox.pop_front() {
                self.primary(event);
            }
        }
    }

    /// Some rows of a tile land.
    pub(super) fn land(&mut self, peer: usize, held: &Held, head: &ResultHead) {
        let ResultDestination { rect, place } = self.primary.expect(peer, head).unwrap();
        let cols = held.header.cols as usize;
        let range = head.first_line as usize * cols..(head.first_line + head.lines) as usize * cols;
        let steps = (head.step_start, head.step_end);
        let lie = i64::from(self.liar == Some(peer));
        if place == ResultPlace::InC {
            self.leased.retain(|l| Some(*l) != held.leased);
            assert!(self.leased.iter().all(|l| l.disjoint(rect)), "it is leased to another");
            let places: Vec<usize> = places(rect, self.p.n).collect();
            for at in range {
                self.c[places[at]] = held.elements[at] + lie;
            }
            if head.first_line + head.lines == held.header.rows {
                self.is_in_c(rect, held.trace, steps);
            }
        } else {
            assert_eq!(held.leased, None, "a partial sum that has to wait was leased");
            let to = match place {
                ResultPlace::PartialSum => &mut self.partial_sums,
                ResultPlace::Staged => &mut self.staged,
                ResultPlace::InC | ResultPlace::Discarded => &mut BTreeMap::new(),
            };
            let fresh = Landing { elements: Vec::new(), rect, trace: held.trace, steps };
            to.entry((peer, head.c))
                .or_insert(fresh)
                .elements
                .extend(held.elements[range].iter().map(|x| x + lie));
            self.staged_times += u64::from(place == ResultPlace::Staged);
            self.nowhere_times += u64::from(place == ResultPlace::Discarded);
            let bytes = self.partial_sums.values().map(|s| s.elements.len() * 8).sum();
            self.aside_bytes_max = self.aside_bytes_max.max(bytes);
        }
        self.ends[peer].outbox.push_back(PrimaryEvent::Landed { peer, head: *head });
    }

    /// C contains this many steps of a tile.
    pub(super) fn is_in_c(&mut self, rect: Rect, trace: u64, steps: (u32, u32)) {
        let at = (rect.rows.start, rect.cols.start);
        self.traces.insert(at, trace);
        let done = self.last_step.entry(at).or_insert(0);
        self.steps_were_in_order &= *done == steps.0;
        *done = steps.1;
    }
}
