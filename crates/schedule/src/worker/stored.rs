//! What a worker knows of a matrix: as an operand that jobs read, and as a target that they write.
//!
//! Place in the flow: the collections of the worker's state. A tile is a target; an operand that was sent or is
//! generated is an operand; one that jobs make is both until the job that closes it is done, and an operand after.
//!
//! Invariants: an operand is read only when it is whole; one job of a target runs at a time, in the order of the
//! queue; a target that has ended takes no more jobs.
//!
//! Deliberately absent: anything that concerns two matrices at once.

use super::Run;
use crate::ProtocolError;
use crate::message::{Job, MatrixHeader, Source};
use std::collections::VecDeque;

/// A matrix as jobs read it.
pub(super) struct Operand {
    pub(super) header: MatrixHeader,
    /// Lines that were announced by heads, and lines that have landed.
    pub(super) announced: u32,
    pub(super) lines: u32,
    /// A generated one has its elements; one that jobs make is closed.
    pub(super) complete: bool,
    /// Jobs that were queued and read it, and those of them that are done.
    pub(super) promised: u16,
    pub(super) used: u16,
    /// Targets whose jobs wait for it to be whole: one entry for each of those jobs.
    pub(super) waiting: Vec<u32>,
}

impl Operand {
    pub(super) fn new(header: &MatrixHeader) -> Self {
        Self {
            header: *header,
            announced: header.lines,
            lines: 0,
            complete: false,
            promised: 0,
            used: 0,
            waiting: Vec::new(),
        }
    }

    /// Whether jobs may read it.
    pub(super) fn whole(&self) -> bool {
        match self.header.source {
            Source::Generated | Source::Vacant => self.complete,
            Source::Data | Source::Partial => self.lines == self.header.lines_total().0,
        }
    }

    /// Whether jobs make it.
    pub(super) fn is_made(&self) -> bool {
        self.header.source == Source::Vacant
    }
}

/// A matrix as jobs write it.
pub(super) struct Target {
    pub(super) header: MatrixHeader,
    /// Lines that were announced by heads, and lines that have landed.
    pub(super) announced: u32,
    pub(super) lines: u32,
    /// Jobs that have not been started.
    pub(super) queue: VecDeque<Job>,
    pub(super) first_step: Option<u32>,
    pub(super) last_queued: Option<u32>,
    pub(super) done: u32,
    pub(super) epoch: u32,
    pub(super) running: bool,
    /// The job that sends it back, or closes it, has been queued.
    pub(super) ended: bool,
    /// A tile that is on its way back.
    pub(super) leaving: bool,
}

impl Target {
    pub(super) fn new(header: &MatrixHeader) -> Self {
        Self {
            header: *header,
            announced: header.lines,
            lines: 0,
            queue: VecDeque::new(),
            first_step: None,
            last_queued: None,
            done: 0,
            epoch: 0,
            running: false,
            ended: false,
            leaving: false,
        }
    }

    /// Whether it is a tile of C, not an operand that jobs make.
    pub(super) fn is_tile(&self) -> bool {
        self.header.uses == 0
    }

    /// The job that is next, if nothing but its operands can be missing.
    pub(super) fn next(&self) -> Option<&Job> {
        let there = self.header.source == Source::Vacant || self.lines == self.header.lines_total().0;
        if self.running || self.leaving || !there {
            return None;
        }
        self.queue.front()
    }

    /// Starts the job that is next.
    pub(super) fn start(&mut self) -> Option<Run> {
        let job = self.queue.pop_front()?;
        self.running = true;
        let first = self.done == 0;
        Some(Run {
            job,
            reads_tile: !first || self.header.source != Source::Vacant,
            scales_tile: first && self.header.source == Source::Data,
        })
    }

    /// Queues a job that was checked.
    pub(super) fn queue(&mut self, job: Job, ends: bool) {
        self.first_step.get_or_insert(job.step);
        self.last_queued = Some(job.step);
        self.epoch = job.epoch;
        self.ended = ends;
        self.queue.push_back(job);
    }
}

/// Whether a matrix may come in several frames.
fn comes_in_parts(source: Source) -> bool {
    matches!(source, Source::Data | Source::Partial)
}

/// A matrix that is new has to start at its first line.
pub(super) fn starts(header: &MatrixHeader) -> Result<(), ProtocolError> {
    let cut = !comes_in_parts(header.source) && header.lines != header.lines_total().0;
    if header.first_line != 0 || cut {
        return Err(ProtocolError::new(format!("matrix {} does not start at its first line", header.id)));
    }
    Ok(())
}

/// A matrix that is known has to go on where it stopped, and be the same.
pub(super) fn continues(
    known: &MatrixHeader,
    header: &MatrixHeader,
    announced: &mut u32,
) -> Result<(), ProtocolError> {
    let same = MatrixHeader { first_line: known.first_line, lines: known.lines, ..*header } == *known;
    if !same || header.first_line != *announced || !comes_in_parts(header.source) {
        return Err(ProtocolError::new(format!("matrix {} comes twice, or out of order", header.id)));
    }
    *announced += header.lines;
    Ok(())
}
