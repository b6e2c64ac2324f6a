//! An independent record of one worker: the matrices sent to it, their uses by jobs, and the tiles that it owes.
//!
//! Invariants: credit covers every sent matrix; a link is given no more than its window and one message; every matrix
//! precedes the jobs that name it, and is used exactly as often as its header says.

use bramble_schedule::primary::Outgoing;
use bramble_wire::limits::{CHUNK_BYTES_MAX, LINK_WINDOW_BYTES};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, Operation, ResultHead, StoreHead, Then};
use std::collections::{BTreeMap, VecDeque};

/// A matrix at the worker.
struct Matrix {
    header: MatrixHeader,
    lines_sent: u32,
    uses_left: u16,
    /// Steps of k whose products are in it, one bit each.
    steps: u64,
    /// Steps that its own jobs name: the first, and the last + 1.
    named: Option<(u32, u32)>,
    /// Its last job was sent.
    is_made: bool,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct PeerBook {
    shares_memory: bool,
    credit_bytes: u64,
    /// Bytes sent and not credited; below 0 where credit arrived before the matrix was sent.
    held_bytes: i128,
    in_link: VecDeque<usize>,
    matrices: BTreeMap<u32, Matrix>,
    /// Tiles that the worker owes, and how many rows of each are back.
    tiles: BTreeMap<u32, u32>,
    /// Bytes that an honest worker has used up and not yet credited.
    freed_bytes: u64,
    pub(super) pings: u64,
}

impl PeerBook {
    pub(super) fn new(credit_bytes: u64, shares_memory: bool) -> Self {
        Self { credit_bytes, shares_memory, ..Self::default() }
    }

    pub(super) fn shares_memory(&self) -> bool {
        self.shares_memory
    }

    pub(super) fn send(&mut self, message: &Outgoing) {
        let waiting: usize = self.in_link.iter().sum();
        assert!(waiting < LINK_WINDOW_BYTES, "{waiting} bytes wait in the link already");
        self.in_link.push_back(message.wire_bytes());
        let head = &message.head;
        assert_eq!(StoreHead::decode(&head.encode()).as_ref(), Ok(head), "the worker can read it");
        let body = message.piece.map_or(0, |p| p.bytes);
        if let Some(piece) = message.piece {
            assert!(!piece.leased || self.shares_memory, "memory is leased over a link that moves bytes");
            assert!(self.shares_memory || body <= CHUNK_BYTES_MAX, "a body of {body} bytes");
            assert!(piece.leased || head.body_bytes() == body as u64, "bytes of a body");
        }
        head.matrices.iter().for_each(|m| self.announce(m));
        head.jobs.iter().for_each(|j| self.job(j));
        assert!(
            self.held_bytes <= i128::from(self.credit_bytes),
            "{} of {}",
            self.held_bytes,
            self.credit_bytes
        );
    }

    fn announce(&mut self, header: &MatrixHeader) {
        if header.first_line > 0 {
            let known = self.matrices.get_mut(&header.id).unwrap_or_else(|| panic!("{header:?} goes on"));
            assert_eq!(known.lines_sent, header.first_line, "lines come in order");
            known.lines_sent += header.lines;
            assert!(known.lines_sent <= known.header.lines_total().0);
            return;
        }
        self.held_bytes += i128::from(header.charged_bytes());
        if header.uses == 0 {
            let before = self.tiles.insert(header.id, 0);
            assert!(before.is_none(), "tile {} is sent twice", header.id);
        }
        let matrix = Matrix {
            header: *header,
            lines_sent: header.lines,
            uses_left: header.uses,
            steps: 0,
            named: None,
            is_made: false,
        };
        assert!(self.matrices.insert(header.id, matrix).is_none(), "{header:?} is stored already");
    }

    /// The steps in an operand; counts one use.
    fn read(&mut self, id: u32) -> (u64, MatrixHeader) {
        let matrix = self.matrices.get_mut(&id).unwrap_or_else(|| panic!("{id} is read and not stored"));
        let header = matrix.header;
        let whole = matrix.lines_sent == header.lines_total().0;
        let made = header.source != MatrixSource::Vacant || matrix.is_made;
        assert!(whole && made && matrix.uses_left > 0, "{id} is read");
        matrix.uses_left -= 1;
        let steps = matrix.steps;
        if matrix.uses_left == 0 {
            self.matrices.remove(&id);
            self.freed_bytes += header.charged_bytes();
        }
        (steps, header)
    }

    fn job(&mut self, job: &Job) {
        let (a, left) = self.read(job.a);
        let (b, right) = self.read(job.b);
        let target = self.matrices.get_mut(&job.c).unwrap_or_else(|| panic!("{job:?} has no target"));
        let (l, r, c) = (left.shape(), right.shape(), target.header.shape());
        match job.operation {
            Operation::Multiply => {
                assert!(l.rows == c.rows && r.cols == c.cols && l.cols == r.rows, "{job:?}: {l} by {r}");
                assert_eq!(target.steps >> job.step, 0, "{job:?} comes after later steps");
                target.steps |= 1 << job.step;
            }
            Operation::Add | Operation::Subtract => {
                assert!(l == c && r == c, "{job:?}: {l}, {r}, {c}");
                target.steps |= a | b;
            }
        }
        assert!(!target.is_made && (target.header.uses == 0 || target.header.source == MatrixSource::Vacant));
        assert!(target.named.is_none_or(|(_, end)| end <= job.step), "{job:?} keeps the order of steps");
        target.named = Some((target.named.map_or(job.step, |n| n.0), job.step + 1));
        target.is_made = job.then != Then::Continue;
        assert!(job.then == Then::Continue || (job.then == Then::Return) == (target.header.uses == 0));
    }

    /// Takes the next message out of the link.
    pub(super) fn link_takes(&mut self) -> Option<usize> {
        self.in_link.pop_front()
    }

    pub(super) fn freed_bytes(&self) -> u64 {
        self.freed_bytes
    }

    /// Whether the worker may have held this many bytes.
    pub(super) fn may_credit(&self, bytes: u64) -> bool {
        bytes <= self.credit_bytes
    }

    pub(super) fn credited(&mut self, bytes: u64) {
        self.held_bytes -= i128::from(bytes);
        self.freed_bytes = self.freed_bytes.saturating_sub(bytes);
    }

    /// Tiles that may be returned, or with `early` that were announced: the missing rows, and the steps that
    /// jobs name.
    pub(super) fn all_owed(&self, early: bool) -> impl Iterator<Item = ResultHead> {
        self.tiles.iter().filter_map(move |(id, first_line)| {
            let matrix = self.matrices.get(id).filter(|m| early || m.is_made)?;
            let (step_start, step_end) = matrix.named.unwrap_or((0, 1));
            let (c, first_line) = (*id, *first_line);
            let lines = matrix.header.rows - first_line;
            Some(ResultHead { c, epoch: 0, step_start, step_end, first_line, lines })
        })
    }

    /// The number of tiles that may be returned.
    pub(super) fn ready(&self) -> usize {
        self.all_owed(false).count()
    }

    /// One of the tiles that may be returned, or with `early` that were announced.
    pub(super) fn owed(&self, which: usize, early: bool) -> Option<ResultHead> {
        self.all_owed(early).nth(which % self.all_owed(early).count().max(1))
    }

    /// Whether all jobs of a tile were sent.
    pub(super) fn is_made(&self, id: u32) -> bool {
        self.matrices.get(&id).is_some_and(|m| m.is_made)
    }

    /// Lines were accepted. Returns the steps whose products are in the tile.
    pub(super) fn landed(&mut self, head: &ResultHead, last: bool) -> u64 {
        let rows_back = self.tiles.get_mut(&head.c).unwrap_or_else(|| panic!("{head:?} was not asked for"));
        assert_eq!(*rows_back, head.first_line, "{head:?} is accepted");
        *rows_back += head.lines;
        let matrix = self.matrices.get(&head.c).unwrap_or_else(|| panic!("{head:?} has no matrix"));
        assert!(matrix.is_made, "{head:?} is accepted before all of its jobs were sent");
        assert_eq!(last, *rows_back == matrix.header.rows);
        let steps = matrix.steps;
        if last {
            self.freed_bytes += matrix.header.charged_bytes();
            self.matrices.remove(&head.c);
            self.tiles.remove(&head.c);
        }
        steps
    }

    /// Every matrix was sent, used and returned.
    pub(super) fn check_end(&self) {
        assert!(self.matrices.is_empty() && self.tiles.is_empty(), "matrices are left");
        assert_eq!(self.held_bytes, i128::from(self.freed_bytes), "bytes are left");
    }
}
