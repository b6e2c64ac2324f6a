//! The order of the tasks of an LU factorisation by block columns: a free thread asks for its next task.
//!
//! Place in the flow: the crate `lu` asks before each task and reports after it. The matrix is cut into block columns; the
//! first of them become panels. Step `k` factors block `k` (the *panel*) and updates all blocks right of it. A machine of several
//! has some of the blocks, and gets the other panels from their owners (`node.rs`).
//!
//! Invariants: a block gets the steps 0, 1, 2, … in order, each once, and is factored after all steps before its own. A block
//! belongs to one task at a time, and to none before its elements are there. At most `live_max` panels are kept: a panel is
//! *spent* when all blocks right of it have had its step, and the machine has passed it on.
//!
//! The next panel comes first, then the block that will be the panel after it (*look-ahead*; Dongarra, Luszczek & Petitet,
//! "The LINPACK benchmark: past, present and future", 2003): all other blocks wait for nobody, so the panels hide behind their
//! updates.
//!
//! Deliberately absent: the elements, threads, and how long a task takes.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// One task of a factorisation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LuTask {
    /// Factor the block column of this number.
    Panel(usize),
    /// Update block columns with a panel.
    Update {
        /// The panel.
        step: usize,
        /// The block columns, counted among those of this machine: they are adjacent there.
        blocks: Range<usize>,
    },
}

/// The sizes that the order depends on.
#[derive(Clone, Copy, Debug)]
pub struct LuShape {
    /// Block columns.
    pub blocks: usize,
    /// How many of them, from the first, become panels.
    pub panels: usize,
    /// Threads that take tasks.
    pub threads: usize,
    /// Most block columns in one task.
    pub widest: usize,
    /// Most panels that are kept at a time.
    pub live_max: usize,
}

/// The state of a factorisation at one machine.
#[derive(Debug)]
pub struct LuOrder {
    shape: LuShape,
    /// The number in the whole matrix of each block that this machine has, ascending.
    columns: Vec<usize>,
    /// The steps that each of them has had.
    steps: Vec<usize>,
    is_busy: Vec<bool>,
    /// Whether its elements are there.
    is_filled: Vec<bool>,
    /// Panels that are there: factored, or received.
    factored: usize,
    /// Panels below this number have been passed on as far as they have to be.
    passed: usize,
}

impl LuOrder {
    /// The order for these sizes, with all blocks in one machine. Panics if there are fewer blocks than panels, or if a size that
    /// must be positive is 0: a bug of the caller.
    pub fn new(shape: LuShape) -> Self {
        let is_filled = vec![true; shape.blocks];
        Self { passed: shape.panels, is_filled, ..Self::of_part(shape, (0..shape.blocks).collect()) }
    }

    /// The order for a machine with these blocks, by their numbers in the whole matrix, ascending. Their elements are still to
    /// come; those of a block `usize::MAX`, the checksum, are there when all others are. Panics as `new` does.
    pub fn of_part(shape: LuShape, columns: Vec<usize>) -> Self {
        assert!(shape.panels <= shape.blocks, "panels are block columns");
        assert!(shape.threads > 0 && shape.widest > 0 && shape.live_max > 0, "a task, a thread and a panel");
        assert!(columns.is_sorted_by(|a, b| a < b), "blocks in ascending order");
        let (steps, is_busy) = (vec![0; columns.len()], vec![false; columns.len()]);
        let mut new =
            Self { shape, columns, steps, is_filled: is_busy.clone(), is_busy, factored: 0, passed: 0 };
        new.fill_checksum();
        new
    }

    /// The elements of a block are there. Panics if it is not one of this machine's, or was filled before: a bug of the caller.
    pub fn filled(&mut self, column: usize) {
        let own = self.own(column).filter(|own| column != usize::MAX && !self.is_filled[*own]);
        assert!(own.is_some(), "block {column} is filled once, by its owner");
        own.into_iter().for_each(|own| self.is_filled[own] = true);
        self.fill_checksum();
    }

    /// The checksum is the sum of all other blocks of this machine.
    fn fill_checksum(&mut self) {
        if let Some((usize::MAX, others)) =
            self.columns.split_last().map(|(last, others)| (*last, others.len()))
        {
            self.is_filled[others] = self.is_filled[..others].iter().all(|is_filled| *is_filled);
        }
    }

    /// The next panel, of another machine, has arrived. Panics if it is this machine's own: a bug of the caller.
    pub fn arrived(&mut self) {
        assert!(self.own(self.factored).is_none(), "a panel of this machine's own");
        self.factored += 1;
    }

    /// Panels below `count` have been passed on.
    pub fn passed(&mut self, count: usize) {
        self.passed = self.passed.max(count);
    }

    /// Panels that are there.
    pub fn factored(&self) -> usize {
        self.factored
    }

    /// The task that a free thread takes now; `None` if it has to wait for another task, or if all are done.
    pub fn next_task(&mut self) -> Option<LuTask> {
        let task = self.panel().or_else(|| self.look_ahead()).or_else(|| self.update())?;
        self.mark(&task, true);
        Some(task)
    }

    /// Ends a task. Panics if it was not taken: a bug of the caller.
    pub fn done(&mut self, task: &LuTask) {
        self.mark(task, false);
        match task {
            LuTask::Panel(_) => self.factored += 1,
            LuTask::Update { blocks, .. } => blocks.clone().for_each(|block| self.steps[block] += 1),
        }
    }

    /// Whether all tasks have ended.
    pub fn is_over(&self) -> bool {
        self.factored == self.shape.panels
            && (0..self.columns.len()).all(|block| self.steps[block] == self.needed(block))
    }

    /// Panels below this number are not needed any more.
    pub fn spent(&self) -> usize {
        let waiting = (0..self.columns.len()).filter(|block| self.steps[*block] < self.needed(*block));
        let used = waiting.map(|block| self.steps[block]).min().unwrap_or(self.factored);
        used.min(self.factored).min(self.passed)
    }

    /// Steps that a block has before it is finished.
    fn needed(&self, block: usize) -> usize {
        self.columns[block].min(self.shape.panels)
    }

    /// This machine's number of a block column.
    fn own(&self, column: usize) -> Option<usize> {
        self.columns.binary_search(&column).ok()
    }

    /// Whether a block has no task, and it and a panel for its next step are there.
    fn is_ready(&self, block: usize) -> bool {
        self.is_free(block) && self.steps[block] < self.needed(block).min(self.factored)
    }

    /// Whether a block is there and has no task.
    fn is_free(&self, block: usize) -> bool {
        self.is_filled[block] && !self.is_busy[block]
    }

    fn panel(&self) -> Option<LuTask> {
        let next = self.factored;
        let own = self.own(next).filter(|_| next < self.shape.panels)?;
        let is_due = self.is_free(own) && self.steps[own] == next;
        (is_due && next - self.spent() < self.shape.live_max).then_some(LuTask::Panel(next))
    }

    /// The block that becomes the next panel.
    fn look_ahead(&self) -> Option<LuTask> {
        let own = self.own(self.factored).filter(|_| self.factored < self.shape.panels)?;
        self.is_ready(own).then(|| LuTask::Update { step: self.steps[own], blocks: own..own + 1 })
    }

    /// Adjacent blocks that lack the earliest step: as many as give every thread two tasks for that step.
    fn update(&self) -> Option<LuTask> {
        let ready = || (0..self.columns.len()).filter(|block| self.is_ready(*block));
        let step = ready().map(|block| self.steps[block]).min()?;
        let has_step = |block: &usize| self.steps[*block] == step;
        let (first, count) = (ready().find(has_step)?, ready().filter(has_step).count());
        let widest = count.div_ceil(2 * self.shape.threads).min(self.shape.widest);
        let width =
            (first..self.columns.len()).take(widest).take_while(|b| self.is_ready(*b) && has_step(b)).count();
        Some(LuTask::Update { step, blocks: first..first + width })
    }

    fn mark(&mut self, task: &LuTask, is_taken: bool) {
        let blocks = match task {
            LuTask::Panel(column) => self.own(*column).map_or(0..0, |own| own..own + 1),
            LuTask::Update { blocks, .. } => blocks.clone(),
        };
        for block in blocks {
            assert_ne!(self.is_busy[block], is_taken, "a block belongs to one task at a time");
            self.is_busy[block] = is_taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a factorisation whose tasks end in an order that `choice` picks, and checks every rule from the outside.
    fn run(shape: LuShape, mut choice: impl FnMut(usize) -> usize) {
        let mut order = LuOrder::new(shape);
        let (mut running, mut steps, mut factored) = (Vec::new(), vec![0; shape.blocks], 0);
        loop {
            while running.len() < shape.threads {
                let Some(task) = order.next_task() else { break };
                match &task {
                    LuTask::Panel(block) => {
                        assert!(*block == factored && steps[*block] == *block, "{task:?}")
                    }
                    LuTask::Update { step, blocks } => {
                        assert!(
                            *step < factored && !blocks.is_empty() && blocks.len() <= shape.widest,
                            "{task:?}"
                        );
                        assert!(order.spent() <= *step, "{task:?} needs a panel that is spent");
                        assert!(
                            blocks.clone().all(|block| steps[block] == *step && block > *step),
                            "{task:?}"
                        );
                    }
                }
                running.push(task);
            }
            assert!(
                factored - order.spent() <= shape.live_max,
                "{} panels are kept",
                factored - order.spent()
            );
            if running.is_empty() {
                break;
            }
            let task = running.swap_remove(choice(running.len()));
            match &task {
                LuTask::Panel(_) => factored += 1,
                LuTask::Update { blocks, .. } => blocks.clone().for_each(|block| steps[block] += 1),
            }
            order.done(&task);
        }
        assert!(order.is_over(), "{shape:?} stands still at {order:?}");
        assert_eq!(factored, shape.panels);
        assert!(steps.iter().enumerate().all(|(block, steps)| *steps == block.min(shape.panels)));
    }

    proptest! {
        #[test]
        fn every_block_gets_its_steps_in_order_whichever_task_ends_first(
            panels in 0..12usize, more in 0..5usize, threads in 1..6usize, widest in 1..8usize, live_max in 1..4usize,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let shape = LuShape { blocks: panels + more, panels, threads, widest, live_max };
            let mut choices = choices.iter().cycle();
            run(shape, |len| choices.next().map_or(0, |choice| choice.index(len)));
        }
    }

    #[test]
    fn the_next_panel_is_factored_while_others_update() {
        let mut order = LuOrder::new(LuShape { blocks: 6, panels: 6, threads: 2, widest: 4, live_max: 2 });
        let first = order.next_task().unwrap();
        assert_eq!((&first, order.next_task()), (&LuTask::Panel(0), None));
        order.done(&first);
        let (ahead, rest) = (order.next_task().unwrap(), order.next_task().unwrap());
        assert_eq!(ahead, LuTask::Update { step: 0, blocks: 1..2 });
        assert_eq!(rest, LuTask::Update { step: 0, blocks: 2..3 });
        order.done(&ahead);
        assert_eq!(order.next_task(), Some(LuTask::Panel(1)));
    }
}
