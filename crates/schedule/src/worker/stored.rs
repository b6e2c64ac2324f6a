//! State of one matrix at a worker: as an operand that jobs read, and as a target that jobs write.
//!
//! Place in the flow: the entries of the worker's map. A tile is a target. A sent or generated operand is
//! only read. An operand that jobs make is a target until its closing job is done, and may have waiting
//! readers meanwhile.
//!
//! Invariants: an operand is read only when it is complete; one job of a target runs at a time, in the order
//! of the queue; a target that has ended takes no more jobs. An entry takes at most 96 bytes, which the
//! minimum charge of a matrix covers.
//!
//! Deliberately absent: anything that concerns two matrices at once.

use super::RunnableJob;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use bramble_wire::ProtocolError;
use bramble_wire::message::{Forward, Job, MatrixHeader, MatrixSource};

/// A matrix that was announced and not freed.
pub(super) struct Stored {
    /// The header from its first frame, with `lines` counting all lines announced so far.
    pub(super) header: MatrixHeader,
    /// Lines that have landed.
    pub(super) lines: u32,
    /// A generated operand has its elements, or an operand made by jobs is closed.
    pub(super) complete: bool,

    /// Number of queued jobs and orders that use it, and how many of these are done.
    pub(super) promised: u16,
    pub(super) used: u16,
    /// Jobs and orders that wait until it is complete. Boxed because most matrices have none, and small ones
    /// must take little memory.
    waiting: Option<Box<Waiting>>,

    /// Jobs that write it and have not started.
    pub(super) queue: VecDeque<Job>,
    /// Steps of the first and the last job that were queued.
    pub(super) steps: Option<(u32, u32)>,
    pub(super) epoch: u32,
    /// Whether a job that writes it is done.
    begun: bool,
    /// Whether the job that sends it back or closes it was queued.
    pub(super) ended: bool,
    pub(super) doing: Doing,
}

/// Users that wait for a complete operand.
#[derive(Default)]
pub(super) struct Waiting {
    /// Targets: one entry for each of their jobs that reads the operand.
    pub(super) targets: Vec<u32>,
    /// Relay orders for it.
    pub(super) orders: Vec<Forward>,
}

/// What happens to a target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing.
    Waiting,
    /// A job writes it, or waits for the link or the compute threads to let it start.
    Running,
    /// It is a tile that is being sent back.
    Leaving,
}

impl Stored {
    /// A newly announced matrix; it has to begin at its first line.
    pub(super) fn new(header: &MatrixHeader) -> Result<Self, ProtocolError> {
        let cut = !comes_in_parts(header.source) && header.lines != header.lines_total().0;
        if header.first_line != 0 && header.source != MatrixSource::Relayed || cut {
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

    /// Announces more lines: they must follow the known ones, with the same header otherwise.
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
        !self.is_tile() && self.header.source == MatrixSource::Vacant
    }

    /// Whether jobs may write it.
    pub(super) fn is_target(&self) -> bool {
        self.is_tile() || self.is_made() && !self.complete
    }

    /// Whether only jobs write it, and none has.
    pub(super) fn is_new(&self) -> bool {
        self.header.source == MatrixSource::Vacant && !self.begun
    }

    /// Whether it is an operand that jobs may read now.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_tile()
            && match self.header.source {
                MatrixSource::Generated | MatrixSource::Vacant => self.complete,
                MatrixSource::Data
                | MatrixSource::Partial
                | MatrixSource::Relayed
                | MatrixSource::Resident => self.lines == self.header.lines_total().0,
            }
    }

    /// Remembers that a job of this target waits for it.
    pub(super) fn wait(&mut self, target: u32) {
        self.waiting.get_or_insert_default().targets.push(target);
    }

    /// Remembers a relay order.
    pub(super) fn order(&mut self, forward: Forward) {
        self.waiting.get_or_insert_default().orders.push(forward);
    }

    /// Takes all waiting users.
    pub(super) fn take_waiting(&mut self) -> Waiting {
        self.waiting.take().map(|waiting| *waiting).unwrap_or_default()
    }

    /// From now on the primary sends the missing lines, instead of the relaying worker.
    pub(super) fn turn_to_the_primary(&mut self) {
        self.header =
            MatrixHeader { source: MatrixSource::Data, first_line: 0, lines: self.lines, ..self.header };
    }

    /// Number of waiting (jobs, orders).
    pub(super) fn waiting(&self) -> (usize, usize) {
        self.waiting.as_ref().map_or((0, 0), |w| (w.targets.len(), w.orders.len()))
    }

    /// The next job that writes it, unless the target itself is busy or incomplete.
    pub(super) fn next(&self) -> Option<&Job> {
        let there = self.header.source == MatrixSource::Vacant || self.lines == self.header.lines_total().0;
        if self.doing != Doing::Waiting || !there {
            return None;
        }
        self.queue.front()
    }

    /// Starts the next job.
    pub(super) fn start(&mut self) -> Option<RunnableJob> {
        let job = self.queue.pop_front()?;
        self.doing = Doing::Running;
        let first = !self.begun;
        Some(RunnableJob {
            job,
            reads_tile: !first || self.header.source != MatrixSource::Vacant,
            scales_tile: first && self.header.source == MatrixSource::Data,
        })
    }

    /// The running job is done.
    pub(super) fn finish(&mut self, leaves: bool) {
        let id = self.header.id;
        assert_eq!(self.doing, Doing::Running, "matrix {id} finished a job that was not started");
        self.begun = true;
        self.doing = if leaves { Doing::Leaving } else { Doing::Waiting };
    }

    /// Queues a checked job that writes it.
    pub(super) fn queue(&mut self, job: Job, ends: bool) {
        if self.queue.is_empty() {
            // Most targets have one job at a time; without this, a queue would reserve four.
            self.queue.reserve_exact(1);
        }
        self.steps = Some((self.steps.map_or(job.step, |(first, _)| first), job.step));
        self.epoch = job.epoch;
        self.ended = ends;
        self.queue.push_back(job);
    }
}

const _: () = assert!(size_of::<Stored>() <= 96);

/// Whether a matrix may arrive in several frames.
fn comes_in_parts(source: MatrixSource) -> bool {
    matches!(source, MatrixSource::Data | MatrixSource::Partial)
}
