//! Store messages as the walk makes them: heads, and which part of which matrix the body is.
//!
//! Invariants: a body is one piece of one matrix, in whole lines, and fits a frame where the link moves bytes. Matrices
//! without a body go ahead of those that have one; jobs come with the last frame.

use super::events::Referred;
use crate::limits::{JOBS_MAX, MATRICES_MAX, lines_per_frame};
use crate::message::{Job, MatrixHeader, Source, StoreHead};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Layout, Rect, Span};
use std::collections::VecDeque;

/// What the walk has to know of the operands.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// How A lies.
    pub a_layout: Layout,
    /// How B lies.
    pub b_layout: Layout,
    /// Whether the worker makes A itself.
    pub a_generated: bool,
    /// Whether the worker makes B itself.
    pub b_generated: bool,
    /// Whether the old C's tiles are sent (β ≠ 0); always by rows.
    pub reads_c: bool,
}

/// Which matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The left operand.
    A,
    /// The right operand.
    B,
    /// The old C, or (where memory is shared) the tile to be lent.
    C,
    /// C as it is now: the sum of earlier steps.
    Sum,
}

/// The rectangle of a matrix that a message's body consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which matrix.
    pub which: Which,
    /// Which part.
    pub rect: Rect,
    /// Its bytes in the body.
    pub bytes: usize,
    /// Whether the memory itself is lent (tiles of C where memory is shared).
    pub lent: bool,
}

/// One store message: the head, and what its body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The head.
    pub head: StoreHead,
    /// The body, if there is one.
    pub piece: Option<Piece>,
}

impl Outgoing {
    /// Bytes of head and body, as the link window counts them.
    pub fn wire_bytes(&self) -> usize {
        4 + 24 * (self.head.matrices.len() + self.head.jobs.len()) + self.piece.map_or(0, |p| p.bytes)
    }
}

/// A matrix that comes with a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored {
    pub(super) header: MatrixHeader,
    pub(super) which: Which,
    pub(super) rect: Rect,
    /// Its memory is lent instead of its bytes sent.
    pub(super) lent: bool,
}

/// What one panel brings: matrices with a body, matrices without (vacant, or sent by another worker), and the jobs that
/// have become possible.
#[derive(Default)]
pub(super) struct Delivery {
    pub(super) stored: Vec<Stored>,
    pub(super) vacant: Vec<MatrixHeader>,
    /// Those among them that another worker sends, as the primary would.
    pub(super) relayed: Vec<Stored>,
    pub(super) jobs: Vec<Job>,
}

impl Delivery {
    /// What all of it counts for at the worker.
    pub(super) fn charged_bytes(&self) -> u64 {
        let stored: u64 = self.stored.iter().map(|s| s.header.charged_bytes()).sum();
        stored + self.vacant.iter().map(MatrixHeader::charged_bytes).sum::<u64>()
    }

    /// What its operands count for.
    pub(super) fn operand_bytes(&self) -> u64 {
        let stored = self.stored.iter().map(|s| &s.header);
        stored.chain(&self.vacant).filter(|h| h.uses > 0).map(MatrixHeader::charged_bytes).sum()
    }

    /// As messages, in order. Bodies of any size go over a link that shares memory, and those that are referred to.
    pub(super) fn into_messages(
        self,
        (shares_memory, referred): (bool, Referred),
        out: &mut VecDeque<Outgoing>,
    ) {
        let Self { stored, mut vacant, mut jobs, relayed: _ } = self;
        let count = stored.len();
        // One place is kept for the matrix with the body.
        while vacant.len() >= MATRICES_MAX {
            let rest = vacant.split_off(MATRICES_MAX - 1);
            let head = StoreHead { matrices: std::mem::replace(&mut vacant, rest), jobs: Vec::new() };
            out.push_back(Outgoing { head, piece: None });
        }
        let more = if jobs.len() > JOBS_MAX { jobs.split_off(JOBS_MAX) } else { Vec::new() };
        for (at, matrix) in stored.into_iter().enumerate() {
            let last = if at + 1 == count { std::mem::take(&mut jobs) } else { Vec::new() };
            let by_reference = shares_memory
                || match matrix.which {
                    Which::A => referred.a,
                    Which::B => referred.b,
                    Which::C | Which::Sum => false,
                };
            cut(matrix, 0, by_reference, (std::mem::take(&mut vacant), last), out);
        }
        if count == 0 && !(vacant.is_empty() && jobs.is_empty()) {
            let head = StoreHead { matrices: vacant, jobs };
            out.push_back(Outgoing { head, piece: None });
        }
        for jobs in more.chunks(JOBS_MAX) {
            out.push_back(Outgoing {
                head: StoreHead { matrices: Vec::new(), jobs: jobs.to_vec() },
                piece: None,
            });
        }
    }
}

/// The lines of a matrix that are missing, from `first_line` on.
pub(super) fn rest_of(matrix: Stored, first_line: u32, out: &mut VecDeque<Outgoing>) {
    cut(matrix, first_line, false, (Vec::new(), Vec::new()), out);
}

/// Cuts a matrix into frames of whole lines, from `first_line` on. Matrices without a body go with the first, jobs with
/// the last.
fn cut(
    matrix: Stored,
    mut first_line: u32,
    by_reference: bool,
    (mut vacant, mut jobs): (Vec<MatrixHeader>, Vec<Job>),
    out: &mut VecDeque<Outgoing>,
) {
    let Stored { header, which, rect, lent } = matrix;
    let (lines, line_bytes) = header.lines_total();
    let whole = by_reference || header.source == Source::Generated;
    let per_frame = if whole { lines } else { lines_per_frame(line_bytes) };
    while first_line < lines {
        let count = per_frame.min(lines - first_line);
        let part = MatrixHeader { first_line, lines: count, ..header };
        let last = first_line + count == lines;
        let mut matrices = std::mem::take(&mut vacant);
        matrices.push(part);
        let bytes = if lent { header.bytes() } else { part.body_bytes() };
        let piece = Piece { which, rect: lines_of(rect, &part), bytes: here(bytes), lent };
        let jobs = if last { std::mem::take(&mut jobs) } else { Vec::new() };
        out.push_back(Outgoing { head: StoreHead { matrices, jobs }, piece: Some(piece) });
        first_line += count;
    }
}

/// Bytes of something that lies in this process's memory.
fn here(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or_else(|_| panic!("a piece of {bytes} bytes is said to be in memory"))
}

/// The lines of a rectangle that a header's frame carries.
fn lines_of(rect: Rect, part: &MatrixHeader) -> Rect {
    let (from, count) = (u64::from(part.first_line), u64::from(part.lines));
    let cut = |span: Span| Span::new(span.start + from, span.start + from + count);
    match part.layout {
        Layout::RowMajor => Rect::new(cut(rect.rows), rect.cols),
        Layout::ColMajor => Rect::new(rect.rows, cut(rect.cols)),
    }
}

const _: () = assert!(MATRICES_MAX > 1 && JOBS_MAX > 0);

/// A side or a count of the plan, which has a limit far below 2^32.
pub(super) fn small(x: u64) -> u32 {
    u32::try_from(x).unwrap_or_else(|_| panic!("the grid limits sides and steps, but here is {x}"))
}

/// The number of a member, of which a plan has far fewer than 2^32.
pub(super) fn small_index(member: usize) -> u32 {
    small(to_u64(member))
}

/// How often an operand is used, which blocks keep far below 2^16.
pub(super) fn uses(x: usize) -> u16 {
    u16::try_from(x).unwrap_or_else(|_| panic!("a block makes {} uses of one operand", to_u64(x)))
}
