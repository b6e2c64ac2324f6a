//! Reductions of parts of placed matrices, and of products with them, at their worker.
//!
//! Place in the flow: `mod.rs` passes reduce messages in. The rectangle is cut into pieces, bands of rows or, where there are few
//! rows, of columns, which compute threads multiply, if it is that of a product, and reduce; one more task joins them, and the
//! bytes go to the primary.
//!
//! Invariants: pieces depend on the rectangle alone, and are joined in their order, so the bytes do not depend on the number of
//! threads. A product's elements exist one piece for each thread at a time. Memory is taken from the ledger first; where there
//! is too little, the answer is a refusal, and nothing is computed.
//!
//! Deliberately absent: the other workers' parts, which the primary merges.

use super::WorkerError;
use super::core::{Core, TaskResult};
use super::held_messages::placed_frame;
use crate::ledger::HoldGrant;
use crate::memory::Operand;
use bramble_kernel::{Kernel, KernelElement, factors};
use bramble_link::{Arrived, ArrivedBody, Body, Frame, SharedRegion};
use bramble_matrix::number::to_u64;
use bramble_matrix::{
    Buffer, DType, MatrixError, Rect, RectReduction, Reducible, Reduction, Shape, Span, View, ViewMut,
};
use bramble_schedule::worker::{Priority, TaskLength};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{CHUNK_BYTES_MAX, REDUCTIONS_MAX};
use bramble_wire::message::{Kind, PlacedHead, PutOutcome, ReduceHead, ReducedHead, ResidentView};
use std::sync::{Arc, Mutex, PoisonError};

/// Elements of a band: a few MiB, which a cache near the threads may hold.
const BAND_ELEMENTS: u64 = 1 << 21;
/// Fewest rows of a band of a product: the kernel packs the right operand once for each band.
const BAND_ROWS_MIN: u64 = 64;
/// With fewer bands the columns are cut, too: into this many parts, if they are wide enough.
const BANDS_WANTED: u64 = 16;
const COLS_MIN: u64 = 256;

/// Most bands of a rectangle, since each is a task in memory.
pub(super) const PIECES_MAX: u64 = 1 << 16;
/// Bytes that a piece takes until it is done: its task, its place in the queue, and its rectangle.
const TASK_BYTES: u64 = 512;

/// A step of a reduction that a compute thread has done.
pub(in crate::session) enum ReductionStep {
    /// A band of the reduction of that number, and its bytes.
    Band(u64, usize, Result<Vec<u8>, MatrixError>),
    /// All bands, joined.
    Whole(u64, Result<Vec<u8>, MatrixError>),
}

/// Buffers for the elements of a product, reused from band to band.
type Scratch = Arc<Mutex<Vec<Buffer>>>;

/// A reduction under way.
pub(in crate::session) struct RunningReduction {
    head: ReduceHead,
    reduction: Reduction,
    /// The bytes of each band, when it is done.
    bands: Vec<(Rect, Vec<u8>)>,
    missing: usize,
    /// Returned with the reduction.
    _grant: HoldGrant,
}

/// A piece of the reduction: its operands, its rectangle and the reduction.
struct BandTask {
    left: Operand,
    right: Option<(Operand, f64)>,
    rect: Rect,
    reduction: Reduction,
    dtype: DType,
    kernel: Arc<dyn Kernel>,
    scratch: Scratch,
}

impl Core {
    /// A reduce message.
    pub(super) fn reduce(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let head = ReduceHead::decode(&arrived.head)?;
        let reduction = Reduction::from_code(head.reduction, head.count);
        let (Some(reduction), ArrivedBody::Empty, true) =
            (reduction, arrived.body, head.dtype == self.hello.dtype)
        else {
            return Err(ProtocolError::new("a reduction of unknown kind or type").into());
        };
        if self.arrays.reductions.len() >= REDUCTIONS_MAX
            || self.arrays.reductions.iter().any(|one| one.head.number == head.number)
        {
            return Err(ProtocolError::new(format!("reduction {} comes too early", head.number)).into());
        }
        // What this worker holds bounds the rectangle, and its room the pieces, before anything is cut.
        self.check_operands(&head)?;
        let bytes = memory_of(&head, reduction, to_u64(self.pool.threads_max()));
        let grant = match self.held.borrow().room(bytes) {
            Ok(grant) => grant,
            Err(why) => {
                let refused = PlacedHead { array: head.number, outcome: PutOutcome::Refused(why) };
                self.send_frame(placed_frame(&refused));
                return Ok(());
            }
        };
        let tasks = self.band_tasks(&head, reduction)?;
        let bands: Vec<_> = tasks.iter().map(|task| (task.rect, Vec::new())).collect();
        let missing = bands.len();
        self.arrays.reductions.push(RunningReduction { head, reduction, bands, missing, _grant: grant });
        for (at, task) in tasks.into_iter().enumerate() {
            let work = move || TaskResult::Reduced(ReductionStep::Band(head.number, at, task.run()));
            self.submit(Box::new(work), Priority(0), TaskLength::Any)?;
        }
        Ok(())
    }

    /// Whether this worker holds the operands of a reduction.
    fn check_operands(&self, head: &ReduceHead) -> Result<(), ProtocolError> {
        let held = self.held.borrow();
        let (left, right) = head.operands(head.rect);
        for (view, shape) in [Some(left), right].into_iter().flatten() {
            held.operand(&view, shape, head.dtype)?;
        }
        Ok(())
    }

    /// The pieces of a reduction, with their operands.
    fn band_tasks(&self, head: &ReduceHead, reduction: Reduction) -> Result<Vec<BandTask>, ProtocolError> {
        let held = self.held.borrow();
        let operand = |(view, shape): (ResidentView, Shape)| held.operand(&view, shape, head.dtype);
        let alpha = head.right.map_or(1.0, |right| right.alpha);
        let scratch = Scratch::default();
        let task = |rect: Rect| {
            let (left, right) = head.operands(rect);
            Ok(BandTask {
                left: operand(left)?,
                right: right.map(operand).transpose()?.map(|right| (right, alpha)),
                rect,
                reduction,
                dtype: head.dtype,
                kernel: self.kernel.clone(),
                scratch: scratch.clone(),
            })
        };
        let sides = piece_sides(head.rect, head.right.is_some());
        pieces(head.rect, sides).map(task).collect()
    }

    /// A compute thread has done a step.
    pub(super) fn reduced(&mut self, step: ReductionStep) -> Result<(), WorkerError> {
        let failed = |e: MatrixError| WorkerError::Here(format!("reducing a matrix: {e}"));
        let (number, whole) = match step {
            ReductionStep::Band(number, at, bytes) => {
                let bytes = bytes.map_err(failed)?;
                let running = self.arrays.reductions.iter_mut().find(|one| one.head.number == number);
                let Some(running) = running else { return Ok(()) };
                running.bands[at].1 = bytes;
                running.missing -= 1;
                if running.missing > 0 {
                    return Ok(());
                }
                let (bands, reduction, head) =
                    (std::mem::take(&mut running.bands), running.reduction, running.head);
                let join = move || {
                    TaskResult::Reduced(ReductionStep::Whole(number, joined(&head, reduction, bands)))
                };
                return self.submit(Box::new(join), Priority(0), TaskLength::Any);
            }
            ReductionStep::Whole(number, whole) => (number, Arc::new(whole.map_err(failed)?)),
        };
        self.arrays.reductions.retain(|one| one.head.number != number);
        let total = whole.len();
        for first in (0..total).step_by(CHUNK_BYTES_MAX) {
            let len = CHUNK_BYTES_MAX.min(total - first);
            let head = ReducedHead { number, first: to_u64(first), total: to_u64(total) };
            let body = Body::Shared(SharedRegion::new(whole.clone(), first, len, len, 1));
            self.send_frame(Frame::new(Kind::Reduced.code(), head.encode(), body));
        }
        Ok(())
    }
}

/// Rows of a band, and columns of a piece of it.
pub(super) fn piece_sides(rect: Rect, is_product: bool) -> (u64, u64) {
    let (rows, cols) = (rect.rows.len(), rect.cols.len().max(1));
    let least = if is_product { BAND_ROWS_MIN } else { 1 };
    let each = (BAND_ELEMENTS / cols).max(least).max(rows.div_ceil(PIECES_MAX));
    let across = (BANDS_WANTED / rows.div_ceil(each).max(1)).max(1);
    (each, cols.div_ceil(across).max(COLS_MIN.min(cols)))
}

/// The pieces of a rectangle with these sides, band after band.
pub(super) fn pieces(rect: Rect, (each, across): (u64, u64)) -> impl Iterator<Item = Rect> + use<> {
    fn cut(span: Span, each: u64) -> impl Iterator<Item = Span> {
        (0..span.len().div_ceil(each)).map(move |at| {
            let start = span.start + at * each;
            Span::new(start, span.end.min(start.saturating_add(each)))
        })
    }
    cut(rect.rows, each).flat_map(move |rows| cut(rect.cols, across).map(move |cols| Rect::new(rows, cols)))
}

/// Bytes that a reduction takes: its result in pieces and joined, the pieces' tasks, and the elements of one piece for each
/// thread.
fn memory_of(head: &ReduceHead, reduction: Reduction, threads: u64) -> u64 {
    let of = |rect: Rect| {
        let sums = if head.right.is_some() { Reduction::RowSum.bytes_of(rect, head.dtype) } else { 0 };
        reduction.bytes_of(rect, head.dtype).saturating_add(sums)
    };
    let (rows, cols) = piece_sides(head.rect, head.right.is_some());
    let with_piece = |sum: u64, piece: Rect| sum.saturating_add(of(piece)).saturating_add(TASK_BYTES);
    let results = pieces(head.rect, (rows, cols)).fold(of(head.rect), with_piece);
    let size = to_u64(head.dtype.size_bytes());
    let piece = rows.min(head.rect.rows.len()).saturating_mul(cols).saturating_mul(size);
    let scratch = if head.right.is_some() { piece.saturating_mul(threads) } else { 0 };
    results.saturating_add(scratch).max(1)
}

impl BandTask {
    fn run(self) -> Result<Vec<u8>, MatrixError> {
        match self.dtype {
            DType::F32 => self.run_as::<f32>(),
            DType::F64 => self.run_as::<f64>(),
            DType::I32 => self.run_as::<i32>(),
            DType::I64 => self.run_as::<i64>(),
        }
    }

    fn run_as<T: Reducible + KernelElement>(self) -> Result<Vec<u8>, MatrixError> {
        let Self { left, right, rect, reduction, kernel, scratch, .. } = self;
        let Some((right, alpha)) = right else {
            return Ok(RectReduction::of(reduction, rect, &left.view::<T>()).to_bytes());
        };
        let (rows, cols) = (index(rect.rows.len()), index(rect.cols.len()));
        let spare = scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = match spare {
            Some(buffer) if buffer.bytes().len() >= rows * cols * size_of::<T>() => buffer,
            _ => Buffer::untouched(rows * cols * size_of::<T>())?,
        };
        let elements = &mut buffer.elements_mut::<T>()[..rows * cols];
        let c = ViewMut::row_major(elements, rows, cols);
        factors::multiply::<T>(&*kernel, alpha, [left.view(), right.view()], 0.0, c);
        let made = View::row_major(elements, rows, cols);
        let mut bytes = RectReduction::of(reduction, rect, &made).to_bytes();
        // For the primary's check, from the same elements.
        bytes.extend(RectReduction::of(Reduction::RowSum, rect, &made).to_bytes());
        scratch.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        Ok(bytes)
    }
}

/// A side within this process's memory.
fn index(side: u64) -> usize {
    usize::try_from(side).unwrap_or(usize::MAX)
}

/// The bytes of the whole rectangle from those of its pieces; of a product the row sums follow.
fn joined(
    head: &ReduceHead,
    reduction: Reduction,
    bands: Vec<(Rect, Vec<u8>)>,
) -> Result<Vec<u8>, MatrixError> {
    fn of<T: Reducible>(
        (rect, reduction): (Rect, Reduction),
        bands: &[(Rect, Vec<u8>)],
    ) -> Result<Vec<u8>, MatrixError> {
        let (mut parts, mut sums) = (Vec::new(), Vec::new());
        for (rect, bytes) in bands {
            // This worker has made the bytes.
            let split = bytes.split_at_checked(index(reduction.bytes_of(*rect, T::DTYPE)));
            let (reduced, of_rows) = split.unwrap_or((bytes, &[]));
            parts.extend(RectReduction::<T>::from_bytes(reduction, *rect, reduced));
            sums.extend(RectReduction::<T>::from_bytes(Reduction::RowSum, *rect, of_rows));
        }
        let mut bytes = RectReduction::joined(reduction, rect, parts)?.to_bytes();
        if !sums.is_empty() {
            bytes.extend(RectReduction::joined(Reduction::RowSum, rect, sums)?.to_bytes());
        }
        Ok(bytes)
    }
    let what = (head.rect, reduction);
    match head.dtype {
        DType::F32 => of::<f32>(what, &bands),
        DType::F64 => of::<f64>(what, &bands),
        DType::I32 => of::<i32>(what, &bands),
        DType::I64 => of::<i64>(what, &bands),
    }
}
