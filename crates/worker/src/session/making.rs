//! Makes parts of arrays from parts that this worker holds.
//!
//! Place in the flow: `mod.rs` passes make messages in. The first one opens the part; the rectangle of each further one is cut
//! into pieces, which compute threads make in place. After the last one a thread takes the digest of the part.
//!
//! Invariants: steps of a connection run one after another, so a rectangle has one writer. A product is added up in slices of
//! `SLICE_DEPTH` from the beginning of the depth, so its bits depend on neither the pieces, nor the steps, nor the threads.
//! Each step is answered when it is done; those of a part that was refused are not.
//!
//! Deliberately absent: moving operands here (`fetches.rs`).

use super::WorkerError;
use super::core::{Core, TaskResult};
use super::held_messages::placed_frame;
use super::reductions::{PIECES_MAX, piece_sides, pieces};
use crate::memory::Operand;
use bramble_kernel::{Kernel, KernelElement, factors};
use bramble_link::{Arrived, ArrivedBody};
use bramble_matrix::{DType, Digest128, Rect, Shape, TileLease};
use bramble_schedule::worker::{Priority, TaskLength};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{MAKINGS_MAX, SLICE_DEPTH};
use bramble_wire::message::{MakeHead, MakeStepForm, PlacedHead, PutOutcome, ResidentView};
use std::collections::VecDeque;
use std::sync::Arc;

/// A result with at most this many columns has so few elements that it would be one piece; rows of a piece of it.
const THIN_COLS: u64 = 16;
const THIN_ROWS: u64 = 512;

/// What a compute thread has done for a step.
pub(in crate::session) enum MadeStep {
    /// A piece of the first step.
    Piece,
    /// The digest of the part that the first step has completed, and its bytes.
    Digest(Digest128, u64),
}

/// Steps that wait; the first one runs.
#[derive(Default)]
pub(in crate::session) struct MakingQueue {
    steps: VecDeque<MakeHead>,
    /// Pieces of the first step that are not done.
    missing: usize,
}

/// A piece of a step: operands and target.
struct PieceTask {
    work: PieceWork,
    target: TileLease,
    kernel: Arc<dyn Kernel>,
}

enum PieceWork {
    Product { factors: [Operand; 2], alpha: f64, adds: bool },
    Sum { x: (f64, Operand), y: Option<(f64, Operand)> },
}

impl Core {
    /// A make message.
    pub(super) fn make(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let head = MakeHead::decode(&arrived.head)?;
        if !matches!(arrived.body, ArrivedBody::Empty) || head.dtype != self.hello.dtype {
            return Err(
                ProtocolError::new("a step with a body, or of another type than the session's").into()
            );
        }
        if head.step.is_none() {
            let refusal = self.held.borrow_mut().open_making(&head)?;
            let opened = || step_done(head.number, 0, Digest128::default());
            self.send_frame(placed_frame(&refusal.unwrap_or_else(opened)));
            return Ok(());
        }
        if self.arrays.making.steps.len() >= MAKINGS_MAX {
            return Err(ProtocolError::new(format!("step {} comes too early", head.number)).into());
        }
        self.arrays.making.steps.push_back(head);
        if self.arrays.making.steps.len() == 1 { self.start_step() } else { Ok(()) }
    }

    /// Starts the first step that waits.
    fn start_step(&mut self) -> Result<(), WorkerError> {
        while let Some(head) = self.arrays.making.steps.front().copied() {
            let Some(tasks) = self.piece_tasks(&head)? else {
                self.arrays.making.steps.pop_front();
                continue;
            };
            self.arrays.making.missing = tasks.len();
            for task in tasks {
                let work = move || {
                    task.run();
                    TaskResult::Made(MadeStep::Piece)
                };
                self.submit(Box::new(work), Priority(0), TaskLength::Any)?;
            }
            return Ok(());
        }
        Ok(())
    }

    /// The pieces of a step; `None` if its part was refused, or freed meanwhile. Part and operands are looked up before anything
    /// is cut: sizes that a message states are only bounded by what this worker holds.
    fn piece_tasks(&self, head: &MakeHead) -> Result<Option<Vec<PieceTask>>, ProtocolError> {
        let held = self.held.borrow();
        let Some(target) = held.step_target(head)? else { return Ok(None) };
        self.piece_work(head, head.rect)?;
        let task = |rect: Rect| {
            let (work, kernel) = (self.piece_work(head, rect)?, self.kernel.clone());
            Ok(PieceTask { work, target: target.lend(rect), kernel })
        };
        step_pieces(head).map(task).collect::<Result<_, ProtocolError>>().map(Some)
    }

    fn piece_work(&self, head: &MakeHead, rect: Rect) -> Result<PieceWork, ProtocolError> {
        let held = self.held.borrow();
        let (down, across) = (rect.rows.start - head.rect.rows.start, rect.cols.start - head.rect.cols.start);
        let (m, n) = (rect.rows.len(), rect.cols.len());
        let whole =
            |view: ResidentView| held.operand(&view.moved(down, across), Shape::new(m, n), head.dtype);
        Ok(match head.step {
            Some(MakeStepForm::Product { left, right, depth, alpha, adds }) => {
                let a = held.operand(&left.moved(down, 0), Shape::new(m, depth), head.dtype)?;
                let b = held.operand(&right.moved(0, across), Shape::new(depth, n), head.dtype)?;
                PieceWork::Product { factors: [a, b], alpha, adds }
            }
            Some(MakeStepForm::Scaled { x, alpha }) => PieceWork::Sum { x: (alpha, whole(x)?), y: None },
            Some(MakeStepForm::Sum { x, alpha, y, beta }) => {
                PieceWork::Sum { x: (alpha, whole(x)?), y: Some((beta, whole(y)?)) }
            }
            None => return Err(ProtocolError::new("a step without a form")),
        })
    }

    /// A compute thread has done something for the first step.
    pub(super) fn made(&mut self, done: MadeStep) -> Result<(), WorkerError> {
        let Some(head) = self.arrays.making.steps.front().copied() else { return Ok(()) };
        let answer = match done {
            MadeStep::Piece => {
                self.arrays.making.missing -= 1;
                if self.arrays.making.missing > 0 {
                    return Ok(());
                }
                let whole = if head.is_last { self.held.borrow_mut().seal(&head)? } else { None };
                if let Some(whole) = whole {
                    let work = move || {
                        let (digest, bytes) = whole.digest();
                        TaskResult::Made(MadeStep::Digest(digest, bytes))
                    };
                    return self.submit(Box::new(work), Priority(0), TaskLength::Any);
                }
                step_done(head.number, 0, Digest128::default())
            }
            MadeStep::Digest(digest, bytes) => step_done(head.number, bytes, digest),
        };
        self.send_frame(placed_frame(&answer));
        self.arrays.making.steps.pop_front();
        self.start_step()
    }
}

/// The pieces of a step: at least a few for each thread, if there are enough rows or columns.
fn step_pieces(head: &MakeHead) -> impl Iterator<Item = Rect> + use<> {
    let is_product = matches!(head.step, Some(MakeStepForm::Product { .. }));
    let Rect { rows, cols } = head.rect;
    let sides = if is_product && cols.len() <= THIN_COLS {
        (THIN_ROWS.max(rows.len().div_ceil(PIECES_MAX)), cols.len().max(1))
    } else {
        piece_sides(head.rect, is_product)
    };
    pieces(head.rect, sides)
}

/// The answer to a step.
fn step_done(number: u64, bytes: u64, digest: Digest128) -> PlacedHead {
    PlacedHead { array: number, outcome: PutOutcome::Held { bytes, digest } }
}

impl PieceTask {
    fn run(self) {
        match self.target.dtype() {
            DType::F32 => self.run_as::<f32>(),
            DType::F64 => self.run_as::<f64>(),
            DType::I32 => self.run_as::<i32>(),
            DType::I64 => self.run_as::<i64>(),
        }
    }

    fn run_as<T: KernelElement>(self) {
        let Self { work, mut target, kernel } = self;
        match work {
            PieceWork::Product { factors: [a, b], alpha, adds } => {
                let depth = usize::try_from(SLICE_DEPTH).unwrap_or(usize::MAX);
                let (operands, c) = ([a.view::<T>(), b.view()], target.view_mut());
                factors::multiply_in_slices(&*kernel, alpha, operands, adds, depth, c);
            }
            PieceWork::Sum { x: (alpha, x), y } => {
                let y = y.as_ref().map(|(beta, y)| (*beta, y.view::<T>()));
                factors::scaled_sum((alpha, x.view()), y, target.view_mut());
            }
        }
    }
}
