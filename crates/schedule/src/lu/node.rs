//! One machine of several that factor a matrix together: which task starts, and which panel goes to the next machine.
//!
//! Place in the flow: the worker's session passes events in and carries the actions out. The machines form a ring; each
//! panel goes from its owner to the next machine, and from there on, up to the machine before the owner, so it crosses
//! every link at most once. A machine passes a panel on while it still arrives.
//!
//! Invariants: panels go over a link in the order of their steps, each once. A machine keeps at most `live_max` panels: the one
//! before it in the ring begins to send panel s only when all panels below s + 1 − live_max are *spent* there: used by all of its
//! blocks, and passed on.
//!
//! Nothing waits for ever. Of the panels that are not spent everywhere, take the first, s. If it is not factored: its
//! owner has all panels before it, which are spent, so the owner can factor it. If it is: every machine on its way has
//! spent all panels before it, so there is room for it; each gets it in turn, updates its blocks, which needs no
//! message, and spends it. Blocks that are still on their way from the primary change nothing: they come without regard to
//! panels, so all are there at some time.
//!
//! Deliberately absent: lost machines. Columns live at one machine, so a loss ends the factorisation; the shell names
//! the machine.

use super::{LuOrder, LuShape, LuTask};
use alloc::format;
use alloc::vec::Vec;
use bramble_wire::ProtocolError;
use bramble_wire::message::LuRing;

/// What happens at a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LuEvent {
    /// All machines have room for their columns: tasks may begin.
    Begin,
    /// The elements of one of this machine's blocks are there.
    Filled(usize),
    /// A task has ended.
    Ended(LuTask),
    /// The first elements of a panel have come.
    Arriving(usize),
    /// A panel has come as a whole.
    Arrived(usize),
    /// A panel has been sent to the next machine.
    Passed(usize),
    /// The next machine has spent the panels below this number.
    NextSpent(usize),
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LuAction {
    /// Start a task on a thread.
    Start(LuTask),
    /// Send a panel to the next machine: the elements that are here, then the rest as soon as it arrives.
    Pass(usize),
    /// Forget the panels below this number.
    Drop(usize),
    /// Tell the machine before this one that the panels below this number are spent.
    TellSpent(usize),
    /// All columns of this machine are eliminated.
    Finished,
}

/// The state of one machine.
#[derive(Debug)]
pub struct LuNode {
    order: LuOrder,
    shape: LuShape,
    ring: LuRing,
    running: usize,
    has_begun: bool,
    /// Panels of which at least the first elements are here.
    begun: usize,
    /// The panel that is being sent.
    passing: Option<usize>,
    /// Panels below this number need not be sent any more.
    passed: usize,
    next_spent: usize,
    told: usize,
    is_over: bool,
}

impl LuNode {
    /// A machine of a ring. `has_checksum`: it has one block more, right of all others, that all panels update. Panics
    /// if an owner is not in the ring, or if the sizes are none: a bug of the caller, who has checked the message.
    pub fn new(shape: LuShape, ring: LuRing, has_checksum: bool) -> Self {
        assert!(ring.me < ring.machines && ring.owners.len() == shape.blocks, "a ring of machines");
        let mut columns = ring.columns();
        columns.extend(has_checksum.then_some(usize::MAX));
        Self {
            order: LuOrder::of_part(shape, columns),
            shape,
            ring,
            running: 0,
            has_begun: false,
            begun: 0,
            passing: None,
            passed: 0,
            next_spent: 0,
            told: 0,
            is_over: false,
        }
    }

    /// Takes an event, and returns what follows. An error if another machine has broken the rules.
    pub fn handle(&mut self, event: LuEvent) -> Result<Vec<LuAction>, ProtocolError> {
        match event {
            LuEvent::Begin => self.has_begun = true,
            LuEvent::Filled(block) => self.order.filled(block),
            LuEvent::Ended(task) => {
                self.running -= 1;
                self.order.done(&task);
                if let LuTask::Panel(step) = task {
                    self.begun = self.begun.max(step + 1);
                }
            }
            LuEvent::Arriving(step) => self.arriving(step)?,
            LuEvent::Arrived(step) => {
                if step + 1 != self.begun || step != self.order.factored() {
                    return Err(ProtocolError::new(format!(
                        "panel {step} of a factorisation is out of order"
                    )));
                }
                self.order.arrived();
            }
            LuEvent::Passed(step) => {
                assert_eq!(self.passing.take(), Some(step), "one panel is sent at a time");
                self.passed = step + 1;
            }
            LuEvent::NextSpent(count) => {
                if count < self.next_spent || count > self.shape.panels {
                    return Err(ProtocolError::new(format!("{count} panels of a factorisation are spent")));
                }
                self.next_spent = count;
            }
        }
        Ok(self.follow())
    }

    /// The first elements of a panel from the machine before this one.
    fn arriving(&mut self, step: usize) -> Result<(), ProtocolError> {
        let is_foreign = step < self.shape.panels && self.ring.owners[step] != self.ring.me;
        let has_room = step < self.told + self.shape.live_max;
        if !is_foreign || step != self.begun || step != self.order.factored() || !has_room {
            return Err(ProtocolError::new(format!("panel {step} of a factorisation is not expected now")));
        }
        self.begun = step + 1;
        Ok(())
    }

    /// Whether a panel goes to the next machine.
    fn goes_on(&self, step: usize) -> bool {
        self.ring.owners[step] != self.ring.next()
    }

    fn follow(&mut self) -> Vec<LuAction> {
        let mut actions = Vec::new();
        self.pass(&mut actions);
        self.order.passed(self.passed);
        let spent = self.order.spent();
        if spent > self.told {
            self.told = spent;
            actions.push(LuAction::Drop(spent));
            if self.ring.machines > 1 {
                actions.push(LuAction::TellSpent(spent));
            }
        }
        while self.has_begun && self.running < self.shape.threads {
            let Some(task) = self.order.next_task() else { break };
            self.running += 1;
            actions.push(LuAction::Start(task));
        }
        if !self.is_over && self.order.is_over() && self.passed == self.shape.panels {
            self.is_over = true;
            actions.push(LuAction::Finished);
        }
        actions
    }

    /// Begins to send the next panel that has to go on, if it is here and the next machine has room.
    fn pass(&mut self, actions: &mut Vec<LuAction>) {
        while self.passing.is_none() && self.passed < self.begun {
            let step = self.passed;
            if !self.goes_on(step) {
                self.passed += 1;
            } else if step < self.next_spent + self.shape.live_max {
                self.passing = Some(step);
                actions.push(LuAction::Pass(step));
            } else {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::{BTreeSet, VecDeque};
    use alloc::vec;
    use proptest::prelude::*;

    const LIVE_MAX: usize = 2;

    /// What travels from one machine to another.
    #[derive(Debug, PartialEq)]
    enum Sent {
        First(usize),
        Rest(usize),
        Spent(usize),
    }

    /// Machines in a ring, and the messages between them.
    struct Ring {
        nodes: Vec<LuNode>,
        tasks: Vec<Vec<LuTask>>,
        /// To the next machine, and to the one before.
        onward: Vec<VecDeque<Sent>>,
        back: Vec<VecDeque<Sent>>,
        kept: Vec<BTreeSet<usize>>,
        is_finished: Vec<bool>,
        /// Blocks of each machine that have not come.
        missing: Vec<Vec<usize>>,
    }

    impl Ring {
        fn new(owners: &[usize], machines: usize, panels: usize, threads: usize) -> Self {
            let shape = LuShape { blocks: owners.len(), panels, threads, widest: 3, live_max: LIVE_MAX };
            let node = |me| LuNode::new(shape, LuRing { owners: owners.to_vec(), machines, me }, me % 2 == 0);
            Self {
                nodes: (0..machines).map(node).collect(),
                tasks: vec![Vec::new(); machines],
                onward: (0..machines).map(|_| VecDeque::new()).collect(),
                back: (0..machines).map(|_| VecDeque::new()).collect(),
                kept: vec![BTreeSet::new(); machines],
                is_finished: vec![false; machines],
                missing: (0..machines)
                    .map(|me| (0..owners.len()).filter(|b| owners[*b] == me).collect())
                    .collect(),
            }
        }

        fn handle(&mut self, at: usize, event: LuEvent) {
            match &event {
                LuEvent::Arriving(step) | LuEvent::Ended(LuTask::Panel(step)) => {
                    assert!(self.kept[at].insert(*step), "w{at} gets panel {step} twice");
                    assert!(self.kept[at].len() <= LIVE_MAX, "w{at} keeps {:?}", self.kept[at]);
                }
                _ => {}
            }
            for action in self.nodes[at].handle(event).unwrap() {
                match action {
                    LuAction::Start(task) => {
                        self.check_filled(at, &task);
                        if let LuTask::Update { step, .. } = &task {
                            assert!(self.kept[at].contains(step), "w{at} has no panel {step}");
                        }
                        self.tasks[at].push(task);
                    }
                    LuAction::Pass(step) => self.onward[at].extend([Sent::First(step), Sent::Rest(step)]),
                    LuAction::Drop(count) => self.kept[at].retain(|step| *step >= count),
                    LuAction::TellSpent(count) => self.back[at].push_back(Sent::Spent(count)),
                    LuAction::Finished => self.is_finished[at] = true,
                }
            }
        }

        /// The blocks of a task have come.
        fn check_filled(&self, at: usize, task: &LuTask) {
            let own = self.nodes[at].ring.columns();
            let of = |block: usize| {
                own.get(block).map_or_else(|| self.missing[at].is_empty(), |b| !self.missing[at].contains(b))
            };
            match task {
                LuTask::Panel(step) => assert!(!self.missing[at].contains(step), "w{at} has no block {step}"),
                LuTask::Update { blocks, .. } => {
                    assert!(blocks.clone().all(of), "w{at}: {task:?} lacks a block")
                }
            }
        }

        /// What can happen next, as (machine, kind).
        fn possible(&self) -> Vec<(usize, usize)> {
            let of = |at: usize| {
                let tasks = (0..self.tasks[at].len()).map(move |task| (at, 3 + task));
                // The last part of a panel leaves a machine only when it has arrived there.
                let has_whole = match self.onward[at].front() {
                    Some(Sent::Rest(step)) => self.nodes[at].order.factored() > *step,
                    other => other.is_some(),
                };
                let links =
                    [(has_whole, 0), (!self.back[at].is_empty(), 1), (!self.missing[at].is_empty(), 2)];
                links.into_iter().filter(|(is, _)| *is).map(move |(_, kind)| (at, kind)).chain(tasks)
            };
            (0..self.nodes.len()).flat_map(of).collect()
        }

        fn take(&mut self, (at, kind): (usize, usize)) {
            let (next, before) = (self.nodes[at].ring.next(), self.nodes[at].ring.previous());
            match kind {
                0 => match self.onward[at].pop_front() {
                    Some(Sent::First(step)) => self.handle(next, LuEvent::Arriving(step)),
                    Some(Sent::Rest(step)) => {
                        self.handle(at, LuEvent::Passed(step));
                        self.handle(next, LuEvent::Arrived(step));
                    }
                    other => panic!("{other:?} goes to the next machine"),
                },
                1 => match self.back[at].pop_front() {
                    Some(Sent::Spent(count)) => self.handle(before, LuEvent::NextSpent(count)),
                    other => panic!("{other:?} goes to the machine before"),
                },
                // In the order of the primary, or any other: the middle one.
                2 => {
                    let middle = self.missing[at].len() / 2;
                    let block = self.missing[at].remove(if at % 2 == 0 { 0 } else { middle });
                    self.handle(at, LuEvent::Filled(block));
                }
                task => {
                    let task = self.tasks[at].swap_remove(task - 3);
                    self.handle(at, LuEvent::Ended(task));
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn every_factorisation_ends_in_any_order_of_events(
            owners in prop::collection::vec(0..5usize, 1..14), machines in 1..6usize, extra in 0..3usize, threads in 1..3usize,
            choices in prop::collection::vec(any::<prop::sample::Index>(), 500),
        ) {
            let owners: Vec<usize> = owners.into_iter().map(|owner| owner % machines).collect();
            let panels = owners.len().saturating_sub(extra);
            let mut ring = Ring::new(&owners, machines, panels, threads);
            (0..machines).for_each(|at| ring.handle(at, LuEvent::Begin));
            let mut choices = choices.iter().cycle();
            loop {
                let possible = ring.possible();
                if possible.is_empty() {
                    break;
                }
                let choice = choices.next().map_or(0, |choice| choice.index(possible.len()));
                ring.take(possible[choice]);
            }
            prop_assert!(ring.is_finished.iter().all(|is| *is), "it stands still");
            prop_assert!(ring.kept.iter().all(|kept| kept.is_empty()));
        }
    }

    #[test]
    fn panels_out_of_turn_are_refused() {
        let shape = LuShape { blocks: 4, panels: 4, threads: 1, widest: 1, live_max: 2 };
        let ring = LuRing { owners: vec![0, 1, 0, 1], machines: 2, me: 1 };
        let node = || LuNode::new(shape, ring.clone(), false);
        for event in [
            LuEvent::Arriving(1),
            LuEvent::Arriving(2),
            LuEvent::Arriving(9),
            LuEvent::Arrived(0),
            LuEvent::NextSpent(5),
        ] {
            assert!(node().handle(event.clone()).is_err(), "{event:?}");
        }
        let mut node = node();
        node.handle(LuEvent::Arriving(0)).unwrap();
        assert!(node.handle(LuEvent::Arriving(0)).is_err());
    }
}
