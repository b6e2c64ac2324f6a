//! The rules of one machine in a ring, checked from the outside: a second account of its blocks, panels and threads.
//!
//! Place in the flow: `machine.rs` tells each event before the state machine gets it, each action before it is carried out, and
//! the end of each event.
//!
//! Invariants checked:
//! 1. a block belongs to one task at a time, and to none before it has come (the checksum: before all others have), gets the
//!    steps 0, 1, 2, … in order, each once, with a panel that is here as a whole, and becomes a panel after all
//!    steps before its own; no task needs more threads, or more blocks, than there are;
//! 2. panels go to the next machine in order, each once, except those of the next machine; none goes before the next machine has
//!    room;
//! 3. at most `live_max` panels are kept, counting one that arrives and one that is being factored;
//! 4. exactly the spent panels are dropped, and the machine before is told at once: those that all own blocks have used and
//!    that have been passed on;
//! 5. no thread is idle while a block is ready or a panel is due, and no panel waits while the next machine has room;
//! 6. a due panel is factored before anything is updated, then the block that becomes the next panel gets its steps, alone, then
//!    blocks that lack the earliest step (*look-ahead*);
//! 7. the machine finishes once, when all its blocks have had their steps and all panels have been passed on, and does nothing
//!    afterwards.
//!
//! Deliberately absent: elements.

use super::result::LuRareEvents;
use bramble_schedule::lu::{LuAction, LuEvent, LuShape, LuTask};
use bramble_wire::message::LuRing;

/// A machine's account.
pub(super) struct MachineRules {
    shape: LuShape,
    ring: LuRing,
    /// The number in the whole matrix of each block, the checksum as the last, above all others.
    columns: Vec<usize>,
    steps: Vec<usize>,
    is_busy: Vec<bool>,
    running: usize,
    has_begun: bool,
    /// The blocks that have come.
    come: Vec<bool>,
    /// Panels that are here as a whole, and those of which at least a part is.
    whole: usize,
    begun: usize,
    /// The own panel that is being factored.
    factoring: Option<usize>,
    passing: Option<usize>,
    /// Panels below this number have been passed on, or need not be.
    passed: usize,
    next_spent: usize,
    dropped: usize,
    is_finished: bool,
}

impl MachineRules {
    pub(super) fn new(shape: LuShape, ring: LuRing, has_checksum: bool) -> Self {
        let mut columns: Vec<usize> =
            (0..shape.blocks).filter(|block| ring.owners[*block] == ring.me).collect();
        columns.extend(has_checksum.then_some(usize::MAX));
        Self {
            shape,
            steps: vec![0; columns.len()],
            is_busy: vec![false; columns.len()],
            come: vec![false; columns.len()],
            columns,
            ring,
            running: 0,
            has_begun: false,
            whole: 0,
            begun: 0,
            factoring: None,
            passing: None,
            passed: 0,
            next_spent: 0,
            dropped: 0,
            is_finished: false,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Steps that a block has before it is finished.
    fn needed(&self, block: usize) -> usize {
        self.columns[block].min(self.shape.panels)
    }

    fn name(&self) -> String {
        format!("violation: w{}", self.ring.me + 1)
    }

    /// An event happens.
    pub(super) fn event(&mut self, event: &LuEvent, seen: &mut LuRareEvents) {
        match event {
            LuEvent::Begin => self.has_begun = true,
            LuEvent::Filled(block) => {
                let own = self.own(*block);
                assert!(
                    !std::mem::replace(&mut self.come[own], true),
                    "{}: a block comes twice",
                    self.name()
                );
            }
            LuEvent::Ended(LuTask::Panel(step)) => {
                self.running -= 1;
                self.set_free(self.own(*step)..self.own(*step) + 1);
                assert_eq!(self.factoring.take(), Some(*step), "{}: a panel that was begun", self.name());
                (self.whole, self.begun) = (step + 1, step + 1);
            }
            LuEvent::Ended(LuTask::Update { blocks, .. }) => {
                self.running -= 1;
                blocks.clone().for_each(|block| self.steps[block] += 1);
                self.set_free(blocks.clone());
            }
            LuEvent::Arriving(step) => {
                seen.came_early += u64::from(!self.has_begun);
                assert_eq!(*step, self.begun, "{}: panels arrive in order", self.name());
                assert_ne!(self.ring.owners[*step], self.ring.me, "{}: its own panel arrives", self.name());
                self.begun = step + 1;
            }
            LuEvent::Arrived(step) => self.whole = step + 1,
            LuEvent::Passed(step) => {
                seen.overtaken += u64::from(self.next_spent > *step);
                assert_eq!(self.passing.take(), Some(*step), "{}: a panel that was sent", self.name());
                self.passed = step + 1;
            }
            LuEvent::NextSpent(count) => {
                assert!(*count >= self.next_spent, "{}: spent panels grow in number", self.name());
                self.next_spent = *count;
            }
        }
        self.skip();
    }

    /// Whether the elements of a block are here; those of the checksum, if those of all others are.
    fn is_here(&self, block: usize) -> bool {
        let mut others = self.columns.iter().zip(&self.come).filter(|(column, _)| **column != usize::MAX);
        self.come[block] || self.columns[block] == usize::MAX && others.all(|(_, come)| *come)
    }

    /// Passes over panels of the next machine: they end there.
    fn skip(&mut self) {
        while self.passing.is_none()
            && self.passed < self.begun
            && self.ring.owners[self.passed] == self.ring.next()
        {
            self.passed += 1;
        }
    }

    fn set_free(&mut self, blocks: std::ops::Range<usize>) {
        for block in blocks {
            assert!(self.is_busy[block], "{}: a block of a task is free", self.name());
            self.is_busy[block] = false;
        }
    }

    fn own(&self, step: usize) -> usize {
        let own = self.columns.iter().position(|column| *column == step);
        own.unwrap_or_else(|| panic!("{}: panel {step} is not one of its blocks", self.name()))
    }

    /// The state machine wants an action.
    pub(super) fn action(&mut self, action: &LuAction, seen: &mut LuRareEvents) {
        assert!(!self.is_finished, "{}: {action:?} after its end", self.name());
        match action {
            LuAction::Start(task) => self.start(task, seen),
            LuAction::Pass(step) => {
                assert!(self.passing.is_none(), "{}: two panels are passed on at once", self.name());
                assert_eq!(*step, self.passed, "{}: panels are passed on in order", self.name());
                assert!(*step < self.begun, "{}: panel {step} is not here", self.name());
                assert!(*step >= self.dropped, "{}: panel {step} was dropped", self.name());
                let has_room = *step < self.next_spent + self.shape.live_max;
                assert!(has_room, "{}: the next machine has no room for panel {step}", self.name());
                self.passing = Some(*step);
            }
            LuAction::Drop(count) => {
                assert!(*count > self.dropped, "{}: panels are dropped twice", self.name());
                assert!(*count <= self.spent(), "{}: panel {} is needed", self.name(), self.spent());
                self.dropped = *count;
            }
            LuAction::TellSpent(count) => {
                assert!(self.ring.machines > 1, "{}: tells itself", self.name());
                assert_eq!(*count, self.dropped, "{}: what is spent is dropped", self.name());
            }
            LuAction::Finished => {
                assert!(self.is_over(), "{}: finishes too early", self.name());
                self.is_finished = true;
            }
        }
    }

    fn start(&mut self, task: &LuTask, seen: &mut LuRareEvents) {
        assert!(self.has_begun, "{}: {task:?} before the start", self.name());
        self.running += 1;
        assert!(self.running <= self.shape.threads, "{}: {task:?} has no thread", self.name());
        let blocks = match task {
            LuTask::Panel(step) => {
                assert_eq!(*step, self.whole, "{}: panels are factored in order", self.name());
                self.factoring = Some(*step);
                let own = self.own(*step);
                assert_eq!(self.steps[own], *step, "{}: panel {step} lacks a step", self.name());
                own..own + 1
            }
            LuTask::Update { step, blocks } => {
                seen.wide_updates += u64::from(blocks.len() > 1);
                let is_sized = (1..=self.shape.widest).contains(&blocks.len());
                assert!(is_sized && blocks.end <= self.columns.len(), "{}: {task:?}", self.name());
                self.check_turn(*step, blocks);
                let is_here = (self.dropped..self.whole).contains(step);
                assert!(is_here, "{}: panel {step} is not here", self.name());
                for block in blocks.clone() {
                    let (has, of) = (self.steps[block], self.columns[block]);
                    assert_eq!(has, *step, "{}: block {block} has had {has} steps", self.name());
                    assert!(of > *step, "{}: block {block} is not right of panel {step}", self.name());
                }
                blocks.clone()
            }
        };
        seen.before_the_last_block += u64::from(!(0..self.columns.len()).all(|block| self.is_here(block)));
        for block in blocks {
            assert!(self.is_here(block), "{}: block {block} has not come", self.name());
            assert!(!self.is_busy[block], "{}: block {block} is in two tasks", self.name());
            self.is_busy[block] = true;
        }
    }

    /// Nothing that comes first was ready when this update began.
    fn check_turn(&self, step: usize, blocks: &std::ops::Range<usize>) {
        assert!(!self.is_due(), "{}: an update before panel {} that is due", self.name(), self.whole);
        let next = Some(self.whole).filter(|next| *next < self.shape.panels);
        let ahead = next.and_then(|next| self.columns.iter().position(|column| *column == next));
        match ahead.filter(|own| self.is_ready(*own)) {
            Some(own) => {
                assert_eq!(*blocks, own..own + 1, "{}: the block of the next panel waits", self.name());
            }
            None => {
                let ready = (0..self.columns.len()).filter(|block| self.is_ready(*block));
                let least = ready.map(|block| self.steps[block]).min();
                assert_eq!(Some(step), least, "{}: an earlier step waits", self.name());
            }
        }
    }

    /// Whether a block has no task and lacks the step of a panel that is here.
    fn is_ready(&self, block: usize) -> bool {
        self.is_here(block) && !self.is_busy[block] && self.steps[block] < self.needed(block).min(self.whole)
    }

    /// Whether the next panel is one of this machine's, has had its steps, and has room.
    fn is_due(&self) -> bool {
        self.has_its_steps() && self.whole - self.dropped < self.shape.live_max
    }

    /// Whether the next panel is one of this machine's, and only has to be factored.
    fn has_its_steps(&self) -> bool {
        let is_own = self.whole < self.shape.panels && self.ring.owners[self.whole] == self.ring.me;
        is_own && {
            let own = self.own(self.whole);
            self.is_here(own) && !self.is_busy[own] && self.steps[own] == self.whole
        }
    }

    /// Panels below this number have been used by all blocks, and passed on.
    fn spent(&self) -> usize {
        let waiting = (0..self.columns.len()).filter(|block| self.steps[*block] < self.needed(*block));
        waiting.map(|block| self.steps[block]).fold(self.whole.min(self.passed), usize::min)
    }

    fn is_over(&self) -> bool {
        let has_all = (0..self.columns.len()).all(|block| self.steps[block] == self.needed(block));
        has_all && self.whole == self.shape.panels && self.passed == self.shape.panels
    }

    /// All actions that follow from an event have been carried out.
    pub(super) fn settled(&self, seen: &mut LuRareEvents) {
        let LuShape { threads, live_max, .. } = self.shape;
        let kept = self.begun.max(self.factoring.map_or(0, |step| step + 1)) - self.dropped;
        assert!(kept <= live_max, "{}: keeps {kept} panels of {live_max}", self.name());
        assert_eq!(self.dropped, self.spent(), "{}: spent panels are kept", self.name());
        assert_eq!(self.is_finished, self.is_over(), "{}: is over, but does not say so", self.name());
        if self.passing.is_none() && self.passed < self.begun {
            let has_room = self.passed < self.next_spent + live_max;
            assert!(!has_room, "{}: panel {} waits without a reason", self.name(), self.passed);
            seen.waited_for_room += 1;
        }
        if !self.has_begun || self.running == threads {
            return;
        }
        let ready = (0..self.columns.len()).find(|block| self.is_ready(*block));
        assert_eq!(ready, None, "{}: a thread is idle while a block is ready", self.name());
        assert!(!self.is_due(), "{}: a thread is idle while a panel is due", self.name());
        seen.waited_for_memory += u64::from(self.has_its_steps());
    }
}
