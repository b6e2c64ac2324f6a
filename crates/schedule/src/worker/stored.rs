//! What a worker knows of a matrix: as an operand that jobs read, and as a target that they write.
//!
//! Place in the flow: the entries of the worker's map. A tile is a target; an operand that was sent or is generated
//! is an operand; one that jobs make is a target until the job that closes it is done, and has readers who wait.
//!
//! Invariants: an operand is read only when it is whole; one job of a target runs at a time, in the order of the
//! queue; a target that has ended takes no more jobs. One entry of at most 96 bytes has all of that: what a matrix counts
//! for at least covers it.
//!
//! Deliberately absent: anything that concerns two matrices at once.

use super::Run;
use crate::ProtocolError;
use crate::message::{Forward, Job, MatrixHeader, Source};
use std::collections::VecDeque;

/// A matrix that was announced and is not gone.
pub(super) struct Stored {
    /// As its first frame had it, but `lines` counts all that were announced so far.
    pub(super) header: MatrixHeader,
    /// Lines that have landed.
    pub(super) lines: u32,
    /// A generated one has its elements; one that jobs make is closed.
    pub(super) complete: bool,

    /// Jobs that were queued and read it, and those of them that are done.
    pub(super) promised: u16,
    pub(super) used: u16,
    /// Who waits for it to be whole. Most matrices have nobody, and many small ones are to take little.
    waiting: Option<Box<Waiting>>,

    /// Jobs that write it and have not been started.
    pub(super) queue: VecDeque<Job>,
    /// Steps of the first and the last job that were queued.
    pub(super) steps: Option<(u32, u32)>,
    pub(super) epoch: u32,
    /// A job that writes it has been done.
    begun: bool,
    /// The job that sends it back, or closes it, has been queued.
    pub(super) ended: bool,
    pub(super) doing: Doing,
}

/// Who waits for an operand to be whole.
#[derive(Default)]
pub(super) struct Waiting {
    /// Targets: one entry for each job of theirs that reads it.
    pub(super) targets: Vec<u32>,
    /// Other workers that it is to be passed on to.
    pub(super) orders: Vec<Forward>,
}

/// What happens to a target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing.
    Waiting,
    /// A job writes it.
    Running,
    /// It is a tile on its way back.
    Leaving,
}

impl Stored {
    /// A matrix that has to start at its first line.
    pub(super) fn new(header: &MatrixHeader) -> Result<Self, ProtocolError> {
        let cut = !comes_in_parts(header.source) && header.lines != header.lines_total().0;
        if header.first_line != 0 && header.source != Source::Relayed || cut {
            return Err(ProtocolError::new(format!("matrix {} does not start at its first line", header.id)));
        }
        Ok(Self {
            header: *header,
            lines: 0,
            complete: false,
            promised: 0,
            used: 0,
            waiting: None,
            queue: VecDeque::new(),
            steps: None,
            epoch: 0,
            begun: false,
            ended: false,
            doing: Doing::Waiting,
        })
    }

    /// It goes on, where it stopped, and is the same.
    pub(super) fn announce(&mut self, header: &MatrixHeader) -> Result<(), ProtocolError> {
        let known = self.header;
        let same = MatrixHeader { first_line: known.first_line, lines: known.lines, ..*header } == known;
        if !same || header.first_line != known.lines || !comes_in_parts(header.source) {
            return Err(ProtocolError::new(format!("matrix {} comes twice, or out of order", header.id)));
        }
        self.header.lines += header.lines;
        Ok(())
    }

    /// Whether it is a tile of C, not an operand.
    pub(super) fn is_tile(&self) -> bool {
        self.header.uses == 0
    }

    /// Whether it is an operand that jobs make, or have made.
    pub(super) fn is_made(&self) -> bool {
        !self.is_tile() && self.header.source == Source::Vacant
    }

    /// Whether jobs write it.
    pub(super) fn is_target(&self) -> bool {
        self.is_tile() || self.is_made() && !self.complete
    }

    /// Whether it is an operand that jobs may read now.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_tile()
            && match self.header.source {
                Source::Generated | Source::Vacant => self.complete,
                Source::Data | Source::Partial | Source::Relayed => self.lines == self.header.lines_total().0,
            }
    }

    /// Remembers that the next job of a target waits for it.
    pub(super) fn wait(&mut self, target: u32) {
        self.waiting.get_or_insert_default().targets.push(target);
    }

    /// Remembers that it is to be passed on.
    pub(super) fn order(&mut self, forward: Forward) {
        self.waiting.get_or_insert_default().orders.push(forward);
    }

    /// Who waited for it.
    pub(super) fn take_waiting(&mut self) -> Waiting {
        self.waiting.take().map(|waiting| *waiting).unwrap_or_default()
    }

    /// Its other lines come from the primary, not from whom they were to come.
    pub(super) fn turn_to_the_primary(&mut self) {
        self.header = MatrixHeader { source: Source::Data, first_line: 0, lines: self.lines, ..self.header };
    }

    /// How many wait for it: (jobs, orders).
    pub(super) fn waiting(&self) -> (usize, usize) {
        self.waiting.as_ref().map_or((0, 0), |w| (w.targets.len(), w.orders.len()))
    }

    /// The job that is next to write it, if nothing but its operands can be missing.
    pub(super) fn next(&self) -> Option<&Job> {
        let there = self.header.source == Source::Vacant || self.lines == self.header.lines_total().0;
        if self.doing != Doing::Waiting || !there {
            return None;
        }
        self.queue.front()
    }

    /// Starts the job that is next.
    pub(super) fn start(&mut self) -> Option<Run> {
        let job = self.queue.pop_front()?;
        self.doing = Doing::Running;
        let first = !self.begun;
        Some(Run {
            job,
            reads_tile: !first || self.header.source != Source::Vacant,
            scales_tile: first && self.header.source == Source::Data,
        })
    }

    /// The job that was started is done.
    pub(super) fn finish(&mut self, leaves: bool) {
        let id = self.header.id;
        assert_eq!(self.doing, Doing::Running, "matrix {id} finished a job that was not started");
        self.begun = true;
        self.doing = if leaves { Doing::Leaving } else { Doing::Waiting };
    }

    /// Queues a job that writes it, and was checked.
    pub(super) fn queue(&mut self, job: Job, ends: bool) {
        if self.queue.is_empty() {
            // Most targets have one job at a time; the least that a queue takes by itself is four.
            self.queue.reserve_exact(1);
        }
        self.steps = Some((self.steps.map_or(job.step, |(first, _)| first), job.step));
        self.epoch = job.epoch;
        self.ended = ends;
        self.queue.push_back(job);
    }
}

const _: () = assert!(size_of::<Stored>() <= 96);

/// Whether a matrix may come in several frames.
fn comes_in_parts(source: Source) -> bool {
    matches!(source, Source::Data | Source::Partial)
}
