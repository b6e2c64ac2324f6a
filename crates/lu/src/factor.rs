//! The factorisation: threads take panels and updates in the order of `schedule::lu`.
//!
//! Place in the flow: the elimination of a loaded matrix, and of the right-hand sides that ride along as more columns.
//!
//! Invariants: each thread computes with a kernel for one thread. A panel is kept packed until all blocks have been updated
//! with it. A thread that panics ends the others.
//!
//! With a kernel whose bits do not depend on the cut of C (`simd`), the bits of the result depend on the block columns and not
//! on the threads: every element gets the same operations in the same order.

use crate::working::WorkingMatrix;
use crate::{threads, working};
use bramble_kernel::Kernel;
use bramble_kernel::lu::{LuElement, PackedPanel, exchange_rows};
use bramble_schedule::lu::{LuOrder, LuShape, LuTask};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Most panels that are kept packed at a time.
const LIVE_MAX: usize = 3;
/// Most columns of one update: the part of U that belongs to them stays in a second-level cache.
const COLUMNS_MAX: usize = 2048;

/// How a matrix is factored.
#[derive(Clone, Copy, Debug)]
pub struct LuOptions {
    /// Threads that compute.
    pub threads: usize,
    /// Columns of a panel.
    pub block: usize,
}

/// What a factorisation did beside the factors themselves.
#[derive(Clone, Debug)]
pub struct Elimination {
    /// For each eliminated column, the row with which its diagonal row was exchanged, as in LAPACK, from 0.
    pub pivots: Vec<usize>,
    /// The first column whose pivot is 0.
    pub zero: Option<usize>,
    /// The first column whose pivot is infinite or NaN.
    pub overflow: Option<usize>,
}

/// Columns of a panel that are fast for a matrix of this order: wide ones need fewer passes over the matrix, narrow ones
/// waste less at its end.
pub fn block_columns(order: usize) -> usize {
    match order {
        0..=512 => 64,
        513..=1024 => 128,
        1025..=2048 => 192,
        _ => 256,
    }
}

/// How many of these threads a matrix of this order is worth: with fewer columns each, they would wait for each other.
pub fn worthwhile_threads(order: usize, threads: usize) -> usize {
    threads.min((order / COLUMNS_EACH).max(1))
}

/// Columns for which another thread pays.
const COLUMNS_EACH: usize = 224;

/// Bytes that factoring a matrix of this shape with `extra` columns more takes, without the kernel's own memory.
pub fn memory_bytes<T: LuElement>(rows: usize, cols: usize, extra: usize, options: LuOptions) -> u64 {
    let size = size_of::<T>() as u64;
    // A panel is being made while the others are kept; every thread has its part of U.
    let panels = (LIVE_MAX as u64 + 1).saturating_mul((rows as u64).saturating_mul(options.block as u64));
    let scratch =
        (options.threads as u64).saturating_mul((COLUMNS_MAX + options.block) as u64 * options.block as u64);
    let work = size.saturating_mul(panels.saturating_add(scratch));
    working::bytes::<T>(rows, cols.saturating_add(extra)).saturating_add(work)
}

/// What the threads share.
struct Shared<'a, T> {
    working: &'a WorkingMatrix,
    kernel: &'a dyn Kernel,
    /// The columns of each block.
    blocks: Vec<Range<usize>>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    order: LuOrder,
    /// By step; `None` before it is factored and after it is spent.
    panels: Vec<Option<Arc<PackedPanel<T>>>>,
    /// Memory of spent panels.
    spare: Vec<Vec<T>>,
    made: Elimination,
    /// A thread has panicked.
    is_broken: bool,
}

/// Factors the first `eliminated` columns of a matrix in place, and updates the others. L has its rows in the order in which
/// they were eliminated only up to its own panel: [`finish`] exchanges the later ones.
pub(crate) fn factor<T: LuElement>(
    working: &WorkingMatrix,
    eliminated: usize,
    kernel: &dyn Kernel,
    options: LuOptions,
) -> Elimination {
    let eliminated = eliminated.min(working.rows());
    let blocks = blocks(eliminated, working.cols(), options.block.max(1));
    let panels = eliminated.div_ceil(options.block.max(1));
    let widest = (COLUMNS_MAX / options.block.max(1)).max(1);
    let threads = options.threads.max(1);
    let shape = LuShape { blocks: blocks.len(), panels, threads, widest, live_max: LIVE_MAX };
    let made = Elimination { pivots: Vec::with_capacity(eliminated), zero: None, overflow: None };
    let state: State<T> = State {
        order: LuOrder::new(shape),
        panels: vec![None; panels],
        spare: Vec::new(),
        made,
        is_broken: false,
    };
    let shared = Shared { working, kernel, blocks, state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(|| shared.work())));
        shared.work();
    });
    shared.state.into_inner().unwrap_or_else(PoisonError::into_inner).made
}

/// Columns of the blocks: the eliminated ones, then the others, each cut into pieces of `width`.
fn blocks(eliminated: usize, cols: usize, width: usize) -> Vec<Range<usize>> {
    let cut =
        |from: usize, to: usize| (from..to).step_by(width).map(move |start| start..to.min(start + width));
    cut(0, eliminated).chain(cut(eliminated, cols)).collect()
}

/// Tells the other threads when this one panics, so that none waits for it for ever.
struct Alarm<'a, 'b, T: LuElement>(&'a Shared<'b, T>);

impl<T: LuElement> Drop for Alarm<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}

impl<T: LuElement> Shared<'_, T> {
    /// A panic of another thread leaves the state intact: it computes without holding the lock.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tasks until all are done.
    fn work(&self) {
        let _alarm = Alarm(self);
        let mut scratch = Vec::new();
        let mut state = self.state();
        while !state.is_broken && !state.order.is_over() {
            let Some(task) = state.order.next_task() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let with = match &task {
                LuTask::Panel(_) => With::Memory(state.spare.pop().unwrap_or_default()),
                LuTask::Update { step, .. } => match &state.panels[*step] {
                    Some(panel) => With::Panel(panel.clone()),
                    None => unreachable!("the order keeps a panel until all blocks have had its step"),
                },
            };
            drop(state);
            let made = self.run(&task, with, &mut scratch);
            state = self.state();
            if let (LuTask::Panel(step), Some(made)) = (&task, made) {
                state.keep(*step, self.blocks[*step].start, made);
            }
            state.order.done(&task);
            state.recycle();
            self.changed.notify_all();
        }
    }

    /// Does a task; returns the panel if it was one.
    fn run(&self, task: &LuTask, with: With<T>, scratch: &mut Vec<T>) -> Option<PackedPanel<T>> {
        let (rows, blocks) = (self.working.rows(), &self.blocks);
        match (task, with) {
            (LuTask::Panel(step), With::Memory(memory)) => {
                let block = blocks[*step].clone();
                let mut lease = self.working.lease(block.start..rows, block);
                Some(PackedPanel::factor(self.kernel, lease.view_mut(), memory))
            }
            (LuTask::Update { step, blocks: range }, With::Panel(panel)) => {
                let (first, last) = (blocks[range.start].start, blocks[range.end - 1].end);
                let mut lease = self.working.lease(blocks[*step].start..rows, first..last);
                panel.update(self.kernel, lease.view_mut(), scratch);
                None
            }
            _ => unreachable!("a panel gets memory, and an update its panel"),
        }
    }
}

/// What a task works with.
enum With<T> {
    /// Memory of an earlier panel, or none yet.
    Memory(Vec<T>),
    /// The panel of the step.
    Panel(Arc<PackedPanel<T>>),
}

impl<T: LuElement> State<T> {
    /// Keeps a panel whose first row and column is `first`.
    fn keep(&mut self, step: usize, first: usize, panel: PackedPanel<T>) {
        let made = &mut self.made;
        made.pivots.extend(panel.pivots().iter().map(|pivot| first + pivot));
        for (at, pivot) in panel.diagonal().enumerate() {
            if pivot == T::ZERO {
                made.zero = made.zero.or(Some(first + at));
            } else if !pivot.is_number() {
                made.overflow = made.overflow.or(Some(first + at));
            }
        }
        self.panels[step] = Some(Arc::new(panel));
    }

    /// Takes back the memory of spent panels: new memory would be cleared by the system page by page.
    fn recycle(&mut self) {
        let spent = self.order.spent();
        let panels = self.panels[..spent].iter_mut().filter_map(Option::take);
        // A thread that has ended its update may still hold the panel for a moment; its memory is then given back.
        self.spare.extend(panels.filter_map(Arc::into_inner).map(PackedPanel::into_memory));
    }
}

/// Exchanges the rows of L that later panels exchanged, so that all of L has the order of `pivots`.
pub(crate) fn finish<T: LuElement>(working: &WorkingMatrix, pivots: &[usize], options: LuOptions) {
    let left: Vec<Range<usize>> = blocks(pivots.len(), pivots.len(), options.block.max(1));
    threads::each(options.threads, left, |block| {
        let from = block.end;
        let later: Vec<usize> = pivots[from..].iter().map(|pivot| pivot - from).collect();
        exchange_rows::<T>(&mut working.lease(from..working.rows(), block).view_mut(), &later);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_all_columns_and_end_with_the_eliminated_ones() {
        assert_eq!(blocks(10, 13, 4), [0..4, 4..8, 8..10, 10..13]);
        assert_eq!(blocks(0, 3, 4), [0..3; 1]);
        assert!(blocks(0, 0, 4).is_empty());
    }
}
