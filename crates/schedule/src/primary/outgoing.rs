//! Store messages as the panel stream makes them: the head, and which part of which matrix is the body.
//!
//! Invariants: a body is one piece of one matrix, in whole lines, and fits a frame if the link moves bytes.
//! Matrices without a body precede those with one; jobs come with the last frame.

use super::events::Referred;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bramble_base::number::to_u64;
use bramble_base::{Layout, Rect, Span};
use bramble_plan::OperandSource;
use bramble_wire::limits::{JOBS_MAX, MATRICES_MAX, lines_per_frame};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, StoreHead};

/// Properties of the operands that decide which messages are sent.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Layout of A.
    pub a_layout: Layout,
    /// Layout of B.
    pub b_layout: Layout,
    /// Where workers get A from.
    pub a_source: OperandSource,
    /// Where workers get B from.
    pub b_source: OperandSource,
    /// How panels of A, and of B, reach a worker that holds no part of it, if it is placed and the primary can read it.
    pub unplaced: [Option<UnplacedOperand>; 2],
    /// Whether tiles of the old C are sent (β ≠ 0), always by rows.
    pub reads_c: bool,
}

/// How a worker that holds no part of a placed operand gets panels of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnplacedOperand {
    /// Layout of the matrix that the primary reads.
    pub layout: Layout,
    /// `Sent` or `Generated`.
    pub source: OperandSource,
}

impl Operands {
    /// Layout and source of the panels of A or B, for a worker that holds its parts of placed operands, or does not.
    pub(super) fn panels(&self, is_b: bool, is_owner: bool) -> (Layout, OperandSource) {
        let (layout, source) =
            if is_b { (self.b_layout, self.b_source) } else { (self.a_layout, self.a_source) };
        match self.unplaced[usize::from(is_b)] {
            Some(unplaced) if source == OperandSource::Resident && !is_owner => {
                (unplaced.layout, unplaced.source)
            }
            _ => (layout, source),
        }
    }

    /// Whether a worker that holds no part of a placed operand can get all its panels.
    pub(super) fn can_be_sent(&self) -> bool {
        let sources = [self.a_source, self.b_source].into_iter().zip(self.unplaced);
        sources.into_iter().all(|(source, unplaced)| source != OperandSource::Resident || unplaced.is_some())
    }
}

/// The matrix that a body comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The left operand.
    A,
    /// The right operand.
    B,
    /// The old C or, over shared memory, the tile to be leased.
    C,
    /// The current C: the sum of earlier steps.
    Sum,
}

/// The part of a matrix that is a message's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPiece {
    /// The matrix.
    pub which: Which,
    /// The rectangle of the matrix.
    pub rect: Rect,
    /// Its bytes in the body.
    pub bytes: usize,
    /// Whether the memory itself is leased (tiles of C over shared memory).
    pub leased: bool,
}

/// One store message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The head.
    pub head: StoreHead,
    /// The source of the body, if there is one.
    pub piece: Option<BodyPiece>,
}

impl Outgoing {
    /// Bytes of head and body, as the link window counts them.
    pub fn wire_bytes(&self) -> usize {
        4 + 24 * (self.head.matrices.len() + self.head.jobs.len()) + self.piece.map_or(0, |p| p.bytes)
    }
}

/// A matrix that is sent with a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyMatrix {
    pub(super) header: MatrixHeader,
    pub(super) which: Which,
    pub(super) rect: Rect,
    /// Whether its memory is leased instead of its bytes sent.
    pub(super) leased: bool,
}

/// Contents of a panel: matrices with a body, matrices without (vacant, or relayed by another worker), and
/// the jobs that become possible.
#[derive(Default)]
pub(super) struct Delivery {
    pub(super) stored: Vec<BodyMatrix>,
    pub(super) vacant: Vec<MatrixHeader>,
    /// Those matrices in `vacant` that another worker relays, in the form in which the primary would send
    /// them.
    pub(super) relayed: Vec<BodyMatrix>,
    pub(super) jobs: Vec<Job>,
}

impl Delivery {
    /// Charge of all its matrices at the worker.
    pub(super) fn charged_bytes(&self) -> u64 {
        let stored: u64 = self.stored.iter().map(|s| s.header.charged_bytes()).sum();
        stored + self.vacant.iter().map(MatrixHeader::charged_bytes).sum::<u64>()
    }

    /// Charge of its operands.
    pub(super) fn operand_bytes(&self) -> u64 {
        let stored = self.stored.iter().map(|s| &s.header);
        stored.chain(&self.vacant).filter(|h| h.uses > 0).map(MatrixHeader::charged_bytes).sum()
    }

    /// Splits it into messages, in order. Over links that share memory, and by reference, bodies may have any
    /// size.
    pub(super) fn into_messages(
        self,
        (shares_memory, referred): (bool, Referred),
        out: &mut VecDeque<Outgoing>,
    ) {
        let Self { stored, mut vacant, mut jobs, relayed: _ } = self;
        let count = stored.len();
        // One entry is reserved for the matrix with the body.
        while vacant.len() >= MATRICES_MAX {
            let rest = vacant.split_off(MATRICES_MAX - 1);
            let head = StoreHead { matrices: core::mem::replace(&mut vacant, rest), jobs: Vec::new() };
            out.push_back(Outgoing { head, piece: None });
        }
        let more = if jobs.len() > JOBS_MAX { jobs.split_off(JOBS_MAX) } else { Vec::new() };
        for (at, matrix) in stored.into_iter().enumerate() {
            let last = if at + 1 == count { core::mem::take(&mut jobs) } else { Vec::new() };
            let by_reference = shares_memory
                || match matrix.which {
                    Which::A => referred.a,
                    Which::B => referred.b,
                    Which::C | Which::Sum => false,
                };
            cut(matrix, 0, by_reference, (core::mem::take(&mut vacant), last), out);
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

/// Messages with the lines of a matrix from `first_line` on.
pub(super) fn rest_of(matrix: BodyMatrix, first_line: u32, out: &mut VecDeque<Outgoing>) {
    cut(matrix, first_line, false, (Vec::new(), Vec::new()), out);
}

/// Splits a matrix into frames of whole lines, from `first_line` on. Matrices without a body go with the
/// first frame, jobs with the last.
fn cut(
    matrix: BodyMatrix,
    mut first_line: u32,
    by_reference: bool,
    (mut vacant, mut jobs): (Vec<MatrixHeader>, Vec<Job>),
    out: &mut VecDeque<Outgoing>,
) {
    let BodyMatrix { header, which, rect, leased } = matrix;
    let (lines, line_bytes) = header.lines_total();
    let whole = by_reference || matches!(header.source, MatrixSource::Generated | MatrixSource::Resident);
    let per_frame = if whole { lines } else { lines_per_frame(line_bytes) };
    while first_line < lines {
        let count = per_frame.min(lines - first_line);
        let part = MatrixHeader { first_line, lines: count, ..header };
        let last = first_line + count == lines;
        let mut matrices = core::mem::take(&mut vacant);
        matrices.push(part);
        let bytes = if leased { header.bytes() } else { part.body_bytes() };
        let piece = BodyPiece { which, rect: lines_of(rect, &part), bytes: here(bytes), leased };
        let jobs = if last { core::mem::take(&mut jobs) } else { Vec::new() };
        out.push_back(Outgoing { head: StoreHead { matrices, jobs }, piece: Some(piece) });
        first_line += count;
    }
}

/// Converts a size that is in this process's memory.
fn here(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or_else(|_| panic!("a piece of {bytes} bytes is said to be in memory"))
}

/// The rectangle of the lines in a header's frame.
fn lines_of(rect: Rect, part: &MatrixHeader) -> Rect {
    let (from, count) = (u64::from(part.first_line), u64::from(part.lines));
    let cut = |span: Span| Span::new(span.start + from, span.start + from + count);
    match part.layout {
        Layout::RowMajor => Rect::new(cut(rect.rows), rect.cols),
        Layout::ColMajor => Rect::new(rect.rows, cut(rect.cols)),
    }
}

const _: () = assert!(MATRICES_MAX > 1 && JOBS_MAX > 0);

/// Converts a length or a count of the plan, whose limit is far below 2^32.
pub(super) fn small(x: u64) -> u32 {
    u32::try_from(x).unwrap_or_else(|_| panic!("the grid limits sides and steps, but here is {x}"))
}

/// Converts the number of a member; a plan has far fewer than 2^32.
pub(super) fn small_index(member: usize) -> u32 {
    small(to_u64(member))
}

/// Converts a number of uses, which blocks keep far below 2^16.
pub(super) fn uses(x: usize) -> u16 {
    u16::try_from(x).unwrap_or_else(|_| panic!("a block makes {} uses of one operand", to_u64(x)))
}
