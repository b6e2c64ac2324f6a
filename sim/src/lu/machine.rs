//! A machine of a ring in a trial: carries out what the real state machine decides, with elements.
//!
//! Place in the flow: `ring.rs` passes events in, schedules the tasks that begin, and takes the frames that go to neighbours. The
//! steps are those of the worker's shell (`crates/worker/src/session/lu/`).
//!
//! Invariants: a task takes its blocks out of the matrix when it begins and returns them when it ends, so two tasks cannot have
//! one block. Elements of a panel arrive and go on in order.
//!
//! Deliberately absent: the rules of the order (`rules.rs`), time, links.

use super::field::{ResiduePanel, plus, residue, solve_back, solve_forward};
use super::result::LuRareEvents;
use super::rules::MachineRules;
use super::scenario::LuScenario;
use bramble_schedule::lu::{LuAction, LuEvent, LuExchange, LuNode, LuShape, LuTask, apply_pivots};
use bramble_wire::message::{LuPass, LuRing};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What goes from one machine to a neighbour.
#[derive(Clone, Debug)]
pub(super) enum RingFrame {
    /// Panels below this number are spent.
    Spent(usize),
    /// Consecutive elements of a panel, from `first` on; the first frame has the pivots.
    Panel { step: usize, first: usize, elements: Vec<u64>, pivots: Vec<usize> },
}

/// A panel at a machine.
enum TrialPanel {
    Arriving { rows: usize, all: usize, elements: Vec<u64>, pivots: Vec<usize> },
    Whole(Rc<ResiduePanel>),
}

/// A task that a thread works on.
struct LuRunning {
    task: LuTask,
    /// Its blocks: their columns.
    blocks: Vec<Vec<Vec<u64>>>,
    panel: Option<Rc<ResiduePanel>>,
}

/// An update that leaves a wrong element.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongUpdate {
    /// The number of the update among this machine's.
    pub(super) number: u64,
    pub(super) choice: u64,
    pub(super) has_erred: bool,
}

/// A machine.
pub(super) struct RingMachine {
    node: LuNode,
    rules: MachineRules,
    ring: LuRing,
    order: usize,
    width: usize,
    frame: usize,
    /// The columns of own blocks that have not come, by the number of the block.
    missing: BTreeMap<usize, Vec<Vec<u64>>>,
    /// The first column and the columns of each block, those of the checksum as the last; `None` before they have come, and while
    /// a task has them. The checksum is never taken before all have come.
    blocks: Vec<(usize, Option<Vec<Vec<u64>>>)>,
    panels: BTreeMap<usize, TrialPanel>,
    tasks: BTreeMap<u64, LuRunning>,
    begun_tasks: u64,
    /// The panel that goes to the next machine, and how many of its elements have gone.
    passing: Option<(usize, usize)>,
    /// The exchanges of rows of its own panels.
    pivots: BTreeMap<usize, Vec<usize>>,
    /// What the machine before has to be told.
    tell: Option<usize>,
    pub(super) updates: u64,
    pub(super) wrong: Option<WrongUpdate>,
}

impl RingMachine {
    /// A machine with its columns of the matrix.
    pub(super) fn new(scenario: &LuScenario, me: usize, matrix: &[Vec<u64>]) -> Self {
        let owners = scenario.owners.clone();
        let ring = LuRing { owners, machines: scenario.machines(), me };
        let shape = LuShape {
            blocks: scenario.owners.len(),
            panels: scenario.panels(),
            threads: scenario.threads[me],
            widest: scenario.widest,
            live_max: scenario.live_max,
        };
        let own = ring.columns();
        let missing = own.iter().map(|block| (*block, matrix[scenario.span(*block)].to_vec())).collect();
        let mut blocks: Vec<(usize, Option<Vec<Vec<u64>>>)> =
            own.iter().map(|block| (scenario.span(*block).start, None)).collect();
        if scenario.has_checksum {
            blocks.push((usize::MAX, Some(vec![vec![0; scenario.order]])));
        }
        Self {
            node: LuNode::new(shape, ring.clone(), scenario.has_checksum),
            rules: MachineRules::new(shape, ring.clone(), scenario.has_checksum),
            ring,
            order: scenario.order,
            width: scenario.width,
            frame: scenario.frames.0,
            missing,
            blocks,
            panels: BTreeMap::new(),
            tasks: BTreeMap::new(),
            begun_tasks: 0,
            passing: None,
            pivots: BTreeMap::new(),
            tell: None,
            updates: 0,
            wrong: None,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.rules.is_finished()
    }

    /// Whether an update has left a wrong element.
    pub(super) fn has_erred(&self) -> bool {
        self.wrong.is_some_and(|wrong| wrong.has_erred)
    }

    fn name(&self) -> String {
        format!("violation: w{}", self.ring.me + 1)
    }

    /// Passes an event to the state machine, and carries its actions out; returns the numbers of the tasks that begin.
    pub(super) fn handle(&mut self, event: LuEvent, seen: &mut LuRareEvents) -> Vec<u64> {
        self.rules.event(&event, seen);
        let actions = match self.node.handle(event) {
            Ok(actions) => actions,
            Err(e) => panic!("{}: refuses what its neighbour may do: {e}", self.name()),
        };
        let mut begun = Vec::new();
        for action in actions {
            self.rules.action(&action, seen);
            match action {
                LuAction::Start(task) => begun.push(self.start(task)),
                LuAction::Pass(step) => self.passing = Some((step, 0)),
                LuAction::Drop(count) => self.forget(count),
                LuAction::TellSpent(count) => self.tell = Some(count),
                LuAction::Finished => {}
            }
        }
        self.rules.settled(seen);
        begun
    }

    /// A block comes from the primary, and is added to the checksum.
    pub(super) fn fill(&mut self, block: usize, seen: &mut LuRareEvents) -> Vec<u64> {
        let Some(columns) = self.missing.remove(&block) else {
            unreachable!("a block comes once, to its owner");
        };
        if let Some((usize::MAX, Some(checksum))) = self.blocks.last_mut() {
            for column in &columns {
                checksum[0].iter_mut().zip(column).for_each(|(sum, x)| *sum = plus(*sum, *x));
            }
        }
        let first = self.ring.columns().iter().position(|own| *own == block);
        first.into_iter().for_each(|at| self.blocks[at].1 = Some(columns.clone()));
        self.handle(LuEvent::Filled(block), seen)
    }

    fn forget(&mut self, count: usize) {
        let is_used = |task: &LuRunning| matches!(task.task, LuTask::Update { step, .. } if step < count);
        assert!(!self.tasks.values().any(is_used), "{}: drops a panel that a task uses", self.name());
        let is_passed = self.passing.is_none_or(|(step, _)| step >= count);
        assert!(is_passed, "{}: drops a panel that it passes on", self.name());
        self.panels = self.panels.split_off(&count);
    }

    fn start(&mut self, task: LuTask) -> u64 {
        let (range, panel) = match &task {
            LuTask::Panel(step) => {
                let own = self.blocks.iter().position(|(first, _)| *first == step * self.width);
                (own.map_or(0..0, |own| own..own + 1), None)
            }
            LuTask::Update { step, blocks } => {
                let Some(TrialPanel::Whole(panel)) = self.panels.get(step) else {
                    panic!("{}: panel {step} was lost", self.name());
                };
                (blocks.clone(), Some(panel.clone()))
            }
        };
        let name = self.name();
        let take = |(_, columns): &mut (usize, Option<Vec<Vec<u64>>>)| match columns.take() {
            Some(columns) => columns,
            None => panic!("{name}: {task:?} has a block that is not there, or of another task"),
        };
        let blocks = self.blocks[range].iter_mut().map(take).collect();
        self.begun_tasks += 1;
        self.tasks.insert(self.begun_tasks, LuRunning { task, blocks, panel });
        self.begun_tasks
    }

    /// A task ends: computes it.
    pub(super) fn end(&mut self, number: u64, seen: &mut LuRareEvents) -> Vec<u64> {
        let Some(LuRunning { task, mut blocks, panel }) = self.tasks.remove(&number) else {
            unreachable!("a task that runs ends once");
        };
        let first = match (&task, panel) {
            (LuTask::Panel(step), _) => {
                let top = step * self.width;
                let columns: Vec<&[u64]> = blocks[0].iter().map(|column| &column[top..]).collect();
                let panel = ResiduePanel::factor(&columns);
                seen.singular += u64::from(panel.is_singular());
                for (column, new) in blocks[0].iter_mut().zip(panel.elements.chunks(panel.rows)) {
                    column[top..].copy_from_slice(new);
                }
                self.pivots.insert(*step, panel.pivots.clone());
                self.panels.insert(*step, TrialPanel::Whole(Rc::new(panel)));
                self.blocks.iter().position(|(first, _)| *first == top)
            }
            (LuTask::Update { step, blocks: range }, Some(panel)) => {
                let top = step * self.width;
                blocks.iter_mut().flatten().for_each(|column| panel.update(&mut column[top..]));
                self.err(top, range, &mut blocks, seen);
                self.updates += 1;
                Some(range.start)
            }
            (LuTask::Update { .. }, None) => unreachable!("an update has a panel"),
        };
        let first = first.unwrap_or_default();
        for (at, columns) in blocks.into_iter().enumerate() {
            self.blocks[first + at].1 = Some(columns);
        }
        self.handle(LuEvent::Ended(task), seen)
    }

    /// Changes an element of this update if it is the one that errs.
    fn err(
        &mut self,
        top: usize,
        range: &std::ops::Range<usize>,
        blocks: &mut [Vec<Vec<u64>>],
        seen: &mut LuRareEvents,
    ) {
        let Some(wrong) = self.wrong.as_mut().filter(|wrong| wrong.number == self.updates) else { return };
        wrong.has_erred = true;
        let choice = wrong.choice;
        let at = choice as usize % blocks.len();
        let is_checksum = self.blocks.get(range.start + at).is_some_and(|(first, _)| *first == usize::MAX);
        seen.wrong_found[1] += u64::from(is_checksum);
        let columns = &mut blocks[at];
        let column = (choice >> 16) as usize % columns.len();
        let row = top + (choice >> 32) as usize % (self.order - top);
        columns[column][row] = plus(columns[column][row], 1 + residue(choice) / 2);
    }

    /// The next frame to a neighbour, if there is one, and the panel whose last elements it has.
    pub(super) fn frame_to(
        &mut self,
        peer: usize,
        seen: &mut LuRareEvents,
    ) -> Option<(RingFrame, Option<usize>)> {
        if peer == self.ring.previous()
            && let Some(count) = self.tell.take()
        {
            return Some((RingFrame::Spent(count), None));
        }
        let (step, sent) = self.passing.filter(|_| peer == self.ring.next())?;
        let (all, come, pivots) = match self.panels.get(&step)? {
            TrialPanel::Whole(panel) => (panel.elements.len(), &panel.elements, &panel.pivots),
            TrialPanel::Arriving { all, elements, pivots, .. } => (*all, elements, pivots),
        };
        let elements = come[sent..].chunks(self.frame).next()?.to_vec();
        seen.cut_through += u64::from(come.len() < all);
        let pivots = if sent == 0 { pivots.clone() } else { Vec::new() };
        let is_last = sent + elements.len() == all;
        self.passing = (!is_last).then_some((step, sent + elements.len()));
        Some((RingFrame::Panel { step, first: sent, elements, pivots }, is_last.then_some(step)))
    }

    /// A frame has come from a neighbour.
    pub(super) fn take(&mut self, frame: RingFrame, seen: &mut LuRareEvents) -> Vec<u64> {
        let (step, first, more, pivots) = match frame {
            RingFrame::Spent(count) => return self.handle(LuEvent::NextSpent(count), seen),
            RingFrame::Panel { step, first, elements, pivots } => (step, first, elements, pivots),
        };
        let mut begun = Vec::new();
        if first == 0 {
            begun = self.handle(LuEvent::Arriving(step), seen);
            let rows = self.order - step * self.width;
            let panel = TrialPanel::Arriving { rows, all: rows * pivots.len(), elements: Vec::new(), pivots };
            assert!(self.panels.insert(step, panel).is_none(), "{}: panel {step} comes twice", self.name());
        }
        let name = self.name();
        let Some(TrialPanel::Arriving { rows, all, elements, pivots }) = self.panels.get_mut(&step) else {
            panic!("{name}: panel {step} was lost while it came");
        };
        assert_eq!(elements.len(), first, "{name}: elements of panel {step} come in order");
        elements.extend(more);
        assert!(elements.len() <= *all, "{name}: panel {step} has too many elements");
        if elements.len() == *all {
            let panel = ResiduePanel {
                rows: *rows,
                elements: std::mem::take(elements),
                pivots: std::mem::take(pivots),
            };
            self.panels.insert(step, TrialPanel::Whole(Rc::new(panel)));
            begun.extend(self.handle(LuEvent::Arrived(step), seen));
        }
        begun
    }

    /// Nothing is left when the machine has finished.
    pub(super) fn check_end(&self) {
        assert!(self.is_finished(), "{}: stands still", self.name());
        assert!(self.panels.is_empty() && self.tasks.is_empty(), "{}: something is left", self.name());
        assert!(self.passing.is_none(), "{}: a panel is still passed on", self.name());
    }

    /// The first column of each block and its columns, without the checksum.
    pub(super) fn factors(&self) -> impl Iterator<Item = (usize, &Vec<Vec<u64>>)> {
        let own = self.blocks.iter().filter(|(first, _)| *first != usize::MAX);
        own.filter_map(|(first, columns)| Some((*first, columns.as_ref()?)))
    }

    /// Solves for a right-hand side that visits this machine, as `lu::LuPart` does.
    pub(super) fn solve(&self, visit: &LuExchange, x: &mut [u64]) {
        assert_eq!(visit.owner, self.ring.me, "{}: is visited for other columns", self.name());
        let columns: BTreeMap<usize, &Vec<Vec<u64>>> = self.factors().collect();
        let of = |block: usize| -> (usize, &Vec<Vec<u64>>) {
            let first = block * self.width;
            let own = columns.get(&first).unwrap_or_else(|| panic!("{}: has no block {block}", self.name()));
            (first, own)
        };
        let top = visit.rows.start;
        assert_eq!(x.len(), visit.rows.len(), "{}: other rows than the visit needs", self.name());
        match visit.pass {
            LuPass::Forward => visit.blocks.clone().for_each(|block| {
                let (first, own) = of(block);
                assert!(first >= top, "{}: the rows of block {block} are not here", self.name());
                apply_pivots(&mut x[first - top..], 1, &self.pivots[&block]);
                solve_forward(own, first, top, x);
            }),
            LuPass::Back => visit.blocks.clone().rev().for_each(|block| {
                let (first, own) = of(block);
                assert!(top == 0 && first + own.len() <= x.len(), "{}: rows are missing", self.name());
                solve_back(own, first, x);
            }),
            LuPass::Multiply => panic!("{}: nothing is solved in a product", self.name()),
        }
    }

    /// Whether the checksum is the sum of this machine's part of U, in every row.
    pub(super) fn sums_agree(&self) -> bool {
        let Some((usize::MAX, Some(checksum))) = self.blocks.last() else { return true };
        (0..self.order).all(|row| {
            // Left of the diagonal is L.
            let right = |first: usize, columns: &Vec<Vec<u64>>| {
                let from = row.saturating_sub(first).min(columns.len());
                columns[from..].iter().fold(0, |sum, column| plus(sum, column[row]))
            };
            let sum = self.factors().fold(0, |sum, (first, columns)| plus(sum, right(first, columns)));
            sum == checksum[0][row]
        })
    }
}
