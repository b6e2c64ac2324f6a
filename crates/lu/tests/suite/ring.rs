//! Several machines in a ring factor one system, in one process and in any order of events: their solution has the same bits as
//! that of one machine.

use bramble_kernel::lu::PackedPanel;
use bramble_kernel::{Choice, Kernel, KernelName, pick};
use bramble_lu::{LuFactors, LuKernels, LuOptions, LuPart, WorkingMatrix, hpl};
use bramble_matrix::DType;
use bramble_schedule::lu::{LuAction, LuEvent, LuHome, LuNode, LuPivots, LuShape, LuTask};
use bramble_wire::message::{LuBegin, LuOrigin, LuPass, LuRing};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

struct Machine {
    part: LuPart<f64>,
    node: LuNode,
    panels: BTreeMap<usize, Arc<PackedPanel<f64>>>,
    tasks: Vec<LuTask>,
    /// The exchanges of its own panels.
    pivots: BTreeMap<usize, Vec<usize>>,
    /// Panels on their way to the next machine, and counts on their way to the one before.
    onward: VecDeque<usize>,
    back: VecDeque<usize>,
    is_finished: bool,
    /// Blocks whose elements have not come.
    missing: VecDeque<usize>,
    order: usize,
}

fn kernel() -> Arc<dyn Kernel> {
    pick(Choice::Named(KernelName::Simd), DType::F64, 0.0).unwrap().kernel
}

impl Machine {
    fn new(begin: &LuBegin, me: usize) -> Self {
        let begin = LuBegin { ring: LuRing { me, ..begin.ring.clone() }, ..begin.clone() };
        let part = LuPart::new(&begin).unwrap();
        let missing = part.blocks().collect();
        let shape = LuShape {
            blocks: begin.ring.owners.len(),
            panels: begin.panels(),
            threads: 2,
            widest: 3,
            live_max: begin.live_max,
        };
        let node = LuNode::new(shape, begin.ring.clone(), true);
        let (panels, tasks, pivots, onward, back) = Default::default();
        Self {
            part,
            node,
            panels,
            tasks,
            pivots,
            onward,
            back,
            is_finished: false,
            missing,
            order: begin.order,
        }
    }

    /// The elements of the next block come.
    fn fill(&mut self) {
        let block = self.missing.pop_front().unwrap();
        self.part.generate(block);
        self.part.add(block, 0..self.order);
        self.handle(LuEvent::Filled(block));
    }

    fn handle(&mut self, event: LuEvent) {
        for action in self.node.handle(event).unwrap() {
            match action {
                LuAction::Start(task) => self.tasks.push(task),
                LuAction::Pass(step) => self.onward.push_back(step),
                LuAction::Drop(count) => self.panels.retain(|step, _| *step >= count),
                LuAction::TellSpent(count) => self.back.push_back(count),
                LuAction::Finished => self.is_finished = true,
            }
        }
    }

    fn run(&mut self, at: usize) {
        let task = self.tasks.swap_remove(at);
        match &task {
            LuTask::Panel(step) => {
                let panel = self.part.panel(&*kernel(), *step, Vec::new());
                self.pivots.insert(*step, panel.pivots().to_vec());
                self.panels.insert(*step, Arc::new(panel));
            }
            LuTask::Update { step, blocks } => {
                self.part.update(&*kernel(), &self.panels[step], *step, blocks.clone());
            }
        }
        self.handle(LuEvent::Ended(task));
    }
}

/// Runs a ring to its end.
fn factored(begin: &LuBegin, mut choice: impl FnMut(usize) -> usize) -> Vec<Machine> {
    let mut ring: Vec<Machine> = (0..begin.ring.machines).map(|me| Machine::new(begin, me)).collect();
    ring.iter_mut().for_each(|machine| machine.handle(LuEvent::Begin));
    loop {
        let of = |(at, machine): (usize, &Machine)| {
            let links = [
                (!machine.onward.is_empty(), 0),
                (!machine.back.is_empty(), 1),
                (!machine.missing.is_empty(), 2),
            ];
            let links = links.into_iter().filter(|(is, _)| *is).map(move |(_, kind)| (at, kind));
            links.chain((0..machine.tasks.len()).map(move |task| (at, 3 + task))).collect::<Vec<_>>()
        };
        let possible: Vec<(usize, usize)> = ring.iter().enumerate().flat_map(of).collect();
        if possible.is_empty() {
            return ring;
        }
        let (at, kind) = possible[choice(possible.len())];
        let (next, before) = ((at + 1) % ring.len(), (at + ring.len() - 1) % ring.len());
        match kind {
            0 => {
                let step = ring[at].onward.pop_front().unwrap();
                let panel = ring[at].panels[&step].clone();
                ring[at].handle(LuEvent::Passed(step));
                let other = &mut ring[next];
                let (elements, pivots) = (panel.elements().to_vec(), panel.pivots().to_vec());
                let received = other.part.received(step, elements, pivots).unwrap();
                other.panels.insert(step, Arc::new(received));
                other.handle(LuEvent::Arriving(step));
                other.handle(LuEvent::Arrived(step));
            }
            1 => {
                let count = ring[at].back.pop_front().unwrap();
                ring[before].handle(LuEvent::NextSpent(count));
            }
            2 => ring[at].fill(),
            task => ring[at].run(task - 3),
        }
    }
}

/// The solution by substitution through the machines that own the columns.
fn solution(begin: &LuBegin, ring: &[Machine]) -> Vec<f64> {
    let mut x = ring[begin.ring.owners[begin.panels()]].part.right_hand_sides().unwrap().unwrap();
    for block in (0..begin.panels()).rev() {
        let end = begin.columns(block).end * begin.extra;
        let owner = &ring[begin.ring.owners[block]].part;
        let back = (LuPass::Back, block..block + 1);
        assert!(owner.solve(&*kernel(), back, &mut x[..end], begin.extra).unwrap());
    }
    x
}

/// The factors as the machines send them to one place, and the exchanges of rows.
fn home(begin: &LuBegin, ring: &[Machine]) -> (Vec<f64>, Vec<usize>) {
    let mut pivots = LuPivots::new(begin);
    for (step, owner) in begin.ring.owners[..begin.panels()].iter().enumerate() {
        pivots.factored(*owner, step, &ring[*owner].pivots[&step]).unwrap();
    }
    (0..ring.len()).for_each(|at| pivots.eliminated(at).unwrap());
    let mut state = LuHome::new(pivots);
    let mut factors = vec![f64::NAN; begin.order * begin.order];
    while !state.is_over() {
        for (at, machine) in ring.iter().enumerate() {
            for request in state.ask(at) {
                let rows = request.first..request.first + request.rows;
                let elements = machine.part.rows(request.block, rows).unwrap().unwrap();
                let places = state.arrived(at, &request, elements.len() * 8).unwrap();
                for (line, row) in elements.chunks_exact(places.columns.len()).zip(places.rows) {
                    factors[row * begin.order..][places.columns.clone()].copy_from_slice(line);
                }
            }
        }
    }
    (factors, state.into_pivots())
}

fn system(order: usize, width: usize, owners: &[usize], machines: usize) -> LuBegin {
    let mut owners: Vec<usize> = owners.iter().map(|owner| owner % machines).collect();
    owners.resize(order.div_ceil(width) + 1, machines - 1);
    let ring = LuRing { owners, machines, me: 0 };
    LuBegin { order, width, extra: 1, dtype: DType::F64, live_max: 2, origin: LuOrigin::Hpl, ring }
}

/// The solution, the factors and the exchanges of rows of one machine.
fn alone(order: usize, width: usize) -> (Vec<f64>, Vec<f64>, Vec<usize>) {
    let options = LuOptions { threads: 1, block: width };
    let kernels = LuKernels::open(Some(KernelName::Simd), DType::F64, 0.0, 1).unwrap();
    let working = WorkingMatrix::zeros::<f64>(order, order + 1).unwrap();
    hpl::generate(&working, 1);
    let factors = LuFactors::<f64>::new(&working, order, &kernels, options).unwrap();
    let x = factors.back_substitute(1);
    let factors = factors.finished(&working).unwrap();
    let (view, pivots) = (factors.view(), factors.elimination().pivots.clone());
    let elements = (0..order * order).map(|at| view.at(at / order, at % order)).collect();
    (x, elements, pivots)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_ring_of_machines_gives_the_same_bits_as_one(
        order in 1..90usize, width in 1..20usize, owners in prop::collection::vec(0..4usize, 0..90), machines in 1..5usize,
        choices in prop::collection::vec(any::<prop::sample::Index>(), 300),
    ) {
        let begin = system(order, width, &owners, machines);
        let mut choices = choices.iter().cycle();
        let ring = factored(&begin, |len| choices.next().map_or(0, |choice| choice.index(len)));
        prop_assert!(ring.iter().all(|machine| machine.is_finished && machine.panels.is_empty()));
        let (x, factors, pivots) = alone(order, width);
        prop_assert_eq!(solution(&begin, &ring), x);
        prop_assert_eq!(home(&begin, &ring), (factors, pivots));
        for machine in &ring {
            prop_assert!(machine.part.deviation().unwrap() < 1.0);
        }
    }
}

#[test]
fn the_checksums_name_the_machine_whose_columns_have_changed() {
    let begin = system(200, 16, &[0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2], 3);
    for (wrong, exponent) in [(0, 0), (1, 0), (2, -20)] {
        let mut ring: Vec<Machine> = (0..3).map(|me| Machine::new(&begin, me)).collect();
        ring.iter_mut().for_each(|machine| (0..machine.missing.len()).for_each(|_| machine.fill()));
        let block = ring[wrong].part.blocks().nth(2).unwrap();
        // After its checksum was made, an element of that machine changes: what HPL made is of size 1.
        let columns = begin.columns(block).len();
        let mut row = vec![0.25; columns];
        row[3] += 2f64.powi(exponent);
        let rest = vec![0.25; columns];
        let part = &ring[wrong].part;
        assert!(part.fill(block, 150, &rest));
        part.sum(150..151);
        assert!(part.fill(block, 150, &row));
        ring.iter_mut().for_each(|machine| machine.handle(LuEvent::Begin));
        let ring = run_on(ring);
        let found: Vec<bool> = ring.iter().map(|machine| machine.part.deviation().unwrap() > 16.0).collect();
        assert_eq!(found, [wrong == 0, wrong == 1, wrong == 2], "2^{exponent}");
    }
}

/// Runs machines that have begun to their end, in turns.
fn run_on(mut ring: Vec<Machine>) -> Vec<Machine> {
    loop {
        let mut is_idle = true;
        for at in 0..ring.len() {
            let (next, before) = ((at + 1) % ring.len(), (at + ring.len() - 1) % ring.len());
            while !ring[at].tasks.is_empty() {
                is_idle = false;
                ring[at].run(0);
            }
            while let Some(step) = ring[at].onward.pop_front() {
                is_idle = false;
                let panel = ring[at].panels[&step].clone();
                ring[at].handle(LuEvent::Passed(step));
                ring[next].panels.insert(step, panel);
                ring[next].handle(LuEvent::Arriving(step));
                ring[next].handle(LuEvent::Arrived(step));
            }
            while let Some(count) = ring[at].back.pop_front() {
                is_idle = false;
                ring[before].handle(LuEvent::NextSpent(count));
            }
        }
        if is_idle {
            return ring;
        }
    }
}

#[test]
fn a_part_needs_no_more_memory_than_was_promised() {
    for (order, width, machines) in [(100, 8, 1), (333, 16, 3), (4096, 128, 4)] {
        let begin = system(order, width, &[0, 1, 2, 3, 0, 1, 2, 3, 1, 1], machines);
        let part = LuPart::<f64>::new(&begin).unwrap();
        let panels = (begin.live_max * order * width * 8) as u64;
        assert!(part.bytes() + panels <= begin.part_bytes(part.columns(), 2), "{order}");
    }
}
