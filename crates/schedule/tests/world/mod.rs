//! A product with real numbers in memory: the primary's and the workers' states, and everything that is on its way.

#![allow(dead_code)] // Each of the tests beside it uses another part of it.

mod deaths;
mod relays;

use bramble_matrix::{DType, Layout, Rect};
use bramble_plan::{Base, Cut, LinkRate, Machine, Order, Plan, Problem, Strategy as Cutting, Wish, decide};
use bramble_schedule::message::{
    Forward, Job, MatrixHeader, Operation, ResultHead, Source, StoreHead, decode_forwards, encode_forwards,
};
use bramble_schedule::primary::{
    Action, Destination, Event, Operands, Outgoing, PeerInfo, Place, Primary, Which,
};
use bramble_schedule::worker::{Action as WorkerAction, Event as WorkerEvent, Run, Worker};
use deaths::Landing;
use proptest::prelude::*;
use relays::Passing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// β of products that read C.
const BETA: i64 = 3;
/// α of all products.
const ALPHA: i64 = 5;

/// The machines and how things lie.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) cut: Cut,
    pub(crate) memories: Vec<u64>,
    /// 0: all links move bytes; 1: all share memory; 2: the primary computes alone, in its own memory; 3: one of
    /// the machines shares memory, as when the primary computes too.
    pub(crate) shared: u8,
    pub(crate) col_major: bool,
    /// Workers whose links move bytes pass panels on to each other.
    pub(crate) relay: bool,
    /// Links between workers may break at any time.
    pub(crate) breaks: bool,
    /// How many times as long as others each machine takes; where it ends, 1.
    pub(crate) slow: Vec<u32>,
    /// Whether work goes from slow machines to others.
    pub(crate) steals: bool,
    /// If not 0, blocks are computed by groups of so many columns, if 4 from a corner, if more by columns in so many last
    /// steps less 4, with memory for that.
    pub(crate) columns: u64,
    /// Others do what lost machines have not given back.
    pub(crate) recovers: bool,
    /// There is a machine beside those of the plan, in the primary's own memory, that works where nobody else can.
    pub(crate) reserve: bool,
    /// Machines that die: after which event, and which and how. Never the last one, and none that shares memory.
    pub(crate) deaths: Vec<(u64, u32)>,
}

impl Setting {
    /// Nothing special.
    pub(crate) const PLAIN: Self = Self {
        cut: Cut { tile: None, depth: None },
        memories: Vec::new(),
        shared: 0,
        col_major: false,
        relay: false,
        breaks: false,
        slow: Vec::new(),
        steals: false,
        columns: 0,
        recovers: false,
        reserve: false,
        deaths: Vec::new(),
    };
}

/// What the primary has sent to a worker.
enum Sent {
    Store(Outgoing, Vec<i64>, u64),
    Relay(Vec<Forward>),
    Parted(usize),
}

/// A matrix in a worker's memory, by rows.
#[derive(Clone, Debug)]
struct Held {
    header: MatrixHeader,
    elements: Vec<i64>,
    /// How its elements came about, as a number: equal only for equal operations in equal order.
    trace: u64,
    /// It is a part of C, lent.
    lent: Option<Rect>,
}

struct End {
    worker: Worker,
    inbox: VecDeque<Sent>,
    /// To others, in order for each of them.
    passing: BTreeMap<usize, VecDeque<Passing>>,
    outbox: VecDeque<Event>,
    running: Vec<Run>,
    filling: Vec<u32>,
    leaving: Vec<ResultHead>,
    held: BTreeMap<u32, Held>,
}

pub(crate) struct World {
    pub(crate) primary: Primary,
    ends: Vec<End>,
    p: Problem,
    a: Vec<i64>,
    b: Vec<i64>,
    pub(crate) c: Vec<i64>,
    old_c: Vec<i64>,
    pub(crate) expected: Vec<i64>,
    /// Parts of C that are lent.
    lent: Vec<Rect>,
    /// Sums that were put aside, and tiles that were staged, by peer and id.
    asides: BTreeMap<(usize, u32), Landing>,
    staged: BTreeMap<(usize, u32), Landing>,
    /// How each tile of C came about.
    pub(crate) traces: BTreeMap<(u64, u64), u64>,
    pub(crate) aside_bytes_max: usize,
    /// Steps that have been computed for each element's tile: whether they came one after the other.
    pub(crate) steps_were_in_order: bool,
    last_step: BTreeMap<(u64, u64), u32>,
    /// Pairs of workers whose link is broken, lower number first.
    broken: BTreeSet<(usize, usize)>,
    breaks: bool,
    /// Whose links move bytes.
    by_bytes: Vec<bool>,
    /// Matrices that went from worker to worker, and operands that the primary sent.
    pub(crate) relayed: u64,
    pub(crate) sent_elements: u64,
    clock: Duration,
    finished: bool,
    pub(crate) failed: Option<String>,
    progress: f64,
    /// Messages with sums that their receiver goes on from.
    pub(crate) sums_sent: usize,
    /// Events, a millisecond each.
    pub(crate) events: u64,
    moves: usize,
    slow: Vec<u32>,
    /// Deaths to come, the last one first.
    deaths: Vec<(u64, u32)>,
    dead: BTreeSet<usize>,
    gone: BTreeSet<usize>,
    /// Times that something was staged, and that something landed nowhere.
    pub(crate) staged_times: u64,
    pub(crate) nowhere_times: u64,
}

fn machine(memory_bytes: u64, at: usize) -> Machine {
    Machine {
        name: format!("w{at}"),
        threads: 1 + at as u32 % 3,
        gflops: 1.0 + at as f64 * 0.7,
        peak_gflops: 3.0 + at as f64,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
    }
}

fn plan(p: &Problem, cut: Cut, memories: &[u64], alone: bool, wish: &Wish) -> Option<Plan> {
    let machines: Vec<Machine> = memories.iter().enumerate().map(|(at, m)| machine(*m, at)).collect();
    let workers = if alone { &[][..] } else { &machines[..] };
    Some(decide(p, cut, &machines[0], workers, wish).ok()?.plan)
}

/// A product of whole numbers.
pub(crate) fn problem(m: u64, n: u64, k: u64, reads_c: bool, generated: bool) -> Problem {
    Problem { m, n, k, dtype: DType::I64, reads_c, sends_a: !generated, sends_b: true }
}

/// Any strategy.
pub(crate) fn cutting() -> impl Strategy<Value = Cutting> {
    let base = prop_oneof![
        Just(Base::Naive),
        (1u32..5).prop_map(Base::Row),
        (1u32..5).prop_map(Base::Square),
        Just(Base::Reuse),
        Just(Base::Cuboid),
        (1u32..4, 1u32..4, 1u32..4).prop_map(|(a, b, c)| Base::Box3(a, b, c)),
        (1u32..4, 1u32..4).prop_map(|(r, c)| Base::Summa(r, c)),
    ];
    (base, 0u32..3).prop_map(|(base, levels)| Cutting { base, levels })
}

/// A primary with one worker.
pub(crate) fn primary(p: &Problem, tile: u64, depth: u64, memory_bytes: u64, wish: &Wish) -> Primary {
    let plan = plan(p, Cut { tile: Some(tile), depth: Some(depth) }, &[memory_bytes], false, wish).unwrap();
    let peers = vec![PeerInfo {
        name: "w".into(),
        credit_bytes: memory_bytes,
        shares_memory: false,
        neighbours: Vec::new(),
        work_per_s: 1e6,
        is_reserve: false,
    }];
    Primary::new(plan, operands(p, false), peers)
}

fn operands(p: &Problem, col_major: bool) -> Operands {
    Operands {
        a_layout: if col_major { Layout::ColMajor } else { Layout::RowMajor },
        b_layout: Layout::RowMajor,
        a_generated: !p.sends_a,
        b_generated: false,
        reads_c: p.reads_c,
    }
}

/// Numbers that differ everywhere.
fn numbers(count: u64, by: u64) -> Vec<i64> {
    (0..count).map(|i| (i.wrapping_mul(by).wrapping_add(by >> 3) % 201) as i64 - 100).collect()
}

impl World {
    /// `None` where the product does not fit those machines.
    pub(crate) fn new(p: &Problem, setting: &Setting, wish: &Wish) -> Option<Self> {
        let alone = setting.shared == 2;
        let mut plan = plan(p, setting.cut, &setting.memories, alone, wish)?;
        let order = match setting.columns {
            4 => Order::Corner,
            more if more > 4 => Order::Ending(more - 4),
            columns => Order::Columns(columns),
        };
        for member in plan.members.iter_mut().filter(|_| setting.columns > 0) {
            member.shares.iter_mut().for_each(|s| s.order = order);
            member.memory_bytes = 1 << 30;
        }
        let peers: Vec<PeerInfo> = plan
            .members
            .iter()
            .enumerate()
            .map(|(at, m)| PeerInfo {
                name: format!("machine {}", m.machine),
                credit_bytes: m.memory_bytes,
                shares_memory: [false, true, true, at == 1][usize::from(setting.shared)],
                neighbours: Vec::new(),
                work_per_s: 1e6,
                is_reserve: false,
            })
            .collect();
        let mut peers = if setting.relay { relays::neighbours(peers) } else { peers };
        if setting.reserve {
            peers.push(deaths::reserve(&peers));
        }
        let end = |info: &PeerInfo| End {
            worker: Worker::new(info.credit_bytes),
            inbox: VecDeque::new(),
            passing: BTreeMap::new(),
            outbox: VecDeque::new(),
            running: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
            held: BTreeMap::new(),
        };
        let ends = peers.iter().map(end).collect();
        let by_bytes = peers.iter().map(|p| !p.shares_memory).collect();
        let (a, b) = (numbers(p.m * p.k, 7919), numbers(p.k * p.n, 104_729));
        let old_c = if p.reads_c { numbers(p.m * p.n, 1_299_709) } else { vec![0; (p.m * p.n) as usize] };
        let expected = (0..p.m * p.n).map(|at| {
            let (i, j) = (at / p.n, at % p.n);
            let sum: i64 = (0..p.k).map(|l| a[(i * p.k + l) as usize] * b[(l * p.n + j) as usize]).sum();
            ALPHA * sum + BETA * old_c[at as usize]
        });
        let primary = Primary::new(plan, operands(p, setting.col_major), peers);
        let primary = if setting.steals { primary } else { primary.without_stealing() };
        let primary = if setting.recovers { primary.recovering() } else { primary };
        Some(Self {
            expected: expected.collect(),
            primary,
            ends,
            p: *p,
            a,
            b,
            // What nobody has written must not be taken for a zero.
            c: vec![-77_777; (p.m * p.n) as usize],
            old_c,
            lent: Vec::new(),
            asides: BTreeMap::new(),
            staged: BTreeMap::new(),
            traces: BTreeMap::new(),
            aside_bytes_max: 0,
            steps_were_in_order: true,
            last_step: BTreeMap::new(),
            broken: BTreeSet::new(),
            breaks: setting.breaks,
            by_bytes,
            relayed: 0,
            sent_elements: 0,
            clock: Duration::ZERO,
            finished: false,
            failed: None,
            progress: 0.0,
            sums_sent: 0,
            events: 0,
            moves: 0,
            slow: setting.slow.clone(),
            deaths: deaths::in_order(&setting.deaths),
            dead: BTreeSet::new(),
            gone: BTreeSet::new(),
            staged_times: 0,
            nowhere_times: 0,
        })
    }

    /// Some tile that the first worker was told of.
    pub(crate) fn announced_tile(&self) -> u32 {
        let stores = self.ends[0].inbox.iter().filter_map(|sent| match sent {
            Sent::Store(message, ..) => Some(message),
            Sent::Relay(_) | Sent::Parted(_) => None,
        });
        let heads = stores.flat_map(|message| &message.head.matrices);
        heads.filter(|m| m.uses == 0).map(|m| m.id).next().unwrap()
    }

    pub(crate) fn primary(&mut self, event: Event) {
        self.events += 1;
        self.clock += Duration::from_millis(1);
        for action in self.primary.handle(event, self.clock) {
            if let Action::Send(peer, _) | Action::Relay(peer, _) | Action::Parted { peer, .. } = &action {
                assert!(!self.gone.contains(peer), "{peer} is gone, and sent something");
            }
            match action {
                Action::Send(peer, message) => {
                    let body = self.body(&message);
                    let trace = self.trace(&message);
                    if message.piece.is_some_and(|p| matches!(p.which, Which::A | Which::B) && !p.lent) {
                        self.sent_elements += body.len() as u64;
                    }
                    self.ends[peer].inbox.push_back(Sent::Store(message, body, trace));
                }
                Action::Relay(peer, forwards) => {
                    let forwards = decode_forwards(&encode_forwards(&forwards)).unwrap();
                    self.ends[peer].inbox.push_back(Sent::Relay(forwards));
                }
                Action::Parted { peer, other } => self.ends[peer].inbox.push_back(Sent::Parted(other)),
                Action::Merge { peer, tile, rect } => {
                    let sum = self.asides.remove(&(peer, tile)).expect("a sum that was put aside");
                    assert!(sum.is_whole() && sum.rect == rect, "half a sum is merged");
                    let c = self.traces.get_mut(&(rect.rows.start, rect.cols.start)).unwrap();
                    *c = mixed(&[*c, sum.trace]);
                    assert!(self.lent.iter().all(|l| l.disjoint(rect)), "{rect} is lent");
                    for (at, place) in places(rect, self.p.n).enumerate() {
                        self.c[place] += sum.elements[at];
                    }
                }
                Action::Put { peer, tile, rect } => self.put(peer, tile, rect),
                Action::Cut { peer, .. } => {
                    self.gone.insert(peer);
                    self.kill(peer, 0);
                }
                Action::Finished => self.finished = true,
                Action::Fail(why) => self.failed = Some(why),
                Action::Committed(_) | Action::Ping(..) => {}
            }
        }
        self.primary.validate();
        let moves = self.primary.moves();
        if self.failed.is_none() && (moves != self.moves || self.events.is_multiple_of(128)) {
            self.primary.validate_tiles();
            self.moves = moves;
        }
        let progress = self.primary.progress();
        assert!(self.progress <= progress && progress <= 1.0, "progress went back");
        self.progress = progress;
    }

    /// The elements of a message's piece, by rows, as they are when it is given to the link.
    fn body(&mut self, message: &Outgoing) -> Vec<i64> {
        let Some(piece) = message.piece else { return Vec::new() };
        self.sums_sent += usize::from(piece.which == Which::Sum);
        let header = message.head.matrices.last().unwrap();
        let (from, cols) = match piece.which {
            Which::A => (&self.a, self.p.k),
            Which::B => (&self.b, self.p.n),
            Which::C if piece.lent && header.source == Source::Vacant => (&self.c, self.p.n),
            Which::C => (&self.old_c, self.p.n),
            Which::Sum => (&self.c, self.p.n),
        };
        let elements = places(piece.rect, cols).map(|at| from[at]).collect();
        if piece.lent {
            assert!(self.lent.iter().all(|l| l.disjoint(piece.rect)), "{} is lent twice", piece.rect);
            self.lent.push(piece.rect);
        } else if piece.which == Which::Sum {
            assert!(
                self.lent.iter().all(|l| l.disjoint(piece.rect)),
                "{} is read while it is lent",
                piece.rect
            );
        }
        elements
    }

    /// How the matrix of a message's piece came about.
    fn trace(&self, message: &Outgoing) -> u64 {
        let Some(piece) = message.piece else { return 0 };
        let header = message.head.matrices.last().unwrap();
        let (mut row, mut col) = (piece.rect.rows.start, piece.rect.cols.start);
        match header.layout {
            Layout::RowMajor => row -= u64::from(header.first_line),
            Layout::ColMajor => col -= u64::from(header.first_line),
        }
        match piece.which {
            Which::Sum => self.traces[&(row, col)],
            which => mixed(&[1 + which as u64, row, col]),
        }
    }

    fn worker(&mut self, peer: usize, actions: Vec<WorkerAction>) {
        let end = &mut self.ends[peer];
        for action in actions {
            match action {
                WorkerAction::Start(run) => end.running.push(run),
                WorkerAction::Fill(id) => end.filling.push(id),
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    let none = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    end.leaving.push(none);
                }
                WorkerAction::Credit(bytes) => end.outbox.push_back(Event::Credit { peer, bytes }),
                WorkerAction::Release(id) => {
                    end.held.remove(&id);
                }
                WorkerAction::Pass(forward) => {
                    let passing = Passing::of(forward);
                    end.passing.entry(forward.to as usize).or_default().push_back(passing);
                }
                WorkerAction::Missing(missing) => end.outbox.push_back(Event::Missing { peer, missing }),
                WorkerAction::Reserve(_) => {}
            }
        }
        end.worker.validate();
    }

    /// A message of the primary arrives.
    fn deliver(&mut self, peer: usize) {
        match self.ends[peer].inbox.pop_front().unwrap() {
            Sent::Store(message, body, trace) => self.store(peer, &message, &body, trace),
            Sent::Relay(forwards) => {
                let actions = self.ends[peer].worker.handle(WorkerEvent::Relay(&forwards)).unwrap();
                self.worker(peer, actions);
            }
            Sent::Parted(other) => self.parted(peer, other),
        }
    }

    /// Elements go where they belong.
    fn store(&mut self, peer: usize, message: &Outgoing, body: &[i64], trace: u64) {
        let head = StoreHead::decode(&message.head.encode()).unwrap();
        let mut actions = self.ends[peer].worker.handle(WorkerEvent::Announced(&head)).unwrap();
        for header in &head.matrices {
            let count = (header.rows * header.cols) as usize;
            let header = MatrixHeader { first_line: 0, ..*header };
            let fresh = || Held { header, elements: vec![-55_555; count], trace: 0, lent: None };
            self.ends[peer].held.entry(header.id).or_insert_with(fresh);
        }
        if let (Some(piece), Some(header)) = (message.piece, head.matrices.last()) {
            let held = self.ends[peer].held.get_mut(&header.id).unwrap();
            held.trace = trace;
            held.lent = piece.lent.then_some(piece.rect);
            let (rows, cols) = (piece.rect.rows.len() as usize, piece.rect.cols.len() as usize);
            let whole = piece.lent || header.source == Source::Generated;
            let first = if whole { 0 } else { header.first_line as usize };
            for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
                let (row, col) = match header.layout {
                    Layout::RowMajor => (first + i, j),
                    Layout::ColMajor => (i, first + j),
                };
                held.elements[row * header.cols as usize + col] = body[i * cols + j];
            }
        }
        actions.extend(self.ends[peer].worker.handle(WorkerEvent::Landed(&head)).unwrap());
        self.worker(peer, actions);
        self.primary(Event::Sent { peer, bytes: message.wire_bytes() });
    }

    /// A job is done.
    fn compute(&mut self, peer: usize, run: Run) {
        let Job { operation, a, b, c, .. } = run.job;
        let held = &mut self.ends[peer].held;
        let (left, right) = (held[&a].clone(), held[&b].clone());
        let tile = held.get_mut(&c).unwrap();
        let before = if run.reads_tile { tile.trace } else { 0 };
        tile.trace = mixed(&[before, left.trace, right.trace, operation as u64, u64::from(run.scales_tile)]);
        let (rows, cols) = (tile.header.rows as usize, tile.header.cols as usize);
        let depth = left.header.cols as usize;
        for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            let at = i * cols + j;
            let product: i64 = match operation {
                Operation::Multiply => {
                    let terms =
                        (0..depth).map(|l| left.elements[i * depth + l] * right.elements[l * cols + j]);
                    ALPHA * terms.sum::<i64>()
                }
                Operation::Add => left.elements[at] + right.elements[at],
                Operation::Subtract => left.elements[at] - right.elements[at],
            };
            let before = match (run.reads_tile, run.scales_tile) {
                (false, _) => 0,
                (true, true) => BETA * tile.elements[at],
                (true, false) => tile.elements[at],
            };
            tile.elements[at] = before + product;
        }
        let actions = self.ends[peer].worker.handle(WorkerEvent::Finished(&run.job)).unwrap();
        self.worker(peer, actions);
    }

    /// Does one of the things that may happen at `peer`; false where that one cannot happen now.
    fn step(&mut self, peer: usize, what: usize, which: usize) -> bool {
        if self.dead.contains(&peer) {
            return self.step_of_the_dead(peer, what);
        }
        let end = &mut self.ends[peer];
        match what {
            0 if !end.inbox.is_empty() => self.deliver(peer),
            1 if !end.outbox.is_empty() => {
                let event = end.outbox.pop_front().unwrap();
                self.primary(event);
            }
            2 if !end.running.is_empty() => {
                let run = end.running.swap_remove(which % end.running.len());
                self.compute(peer, run);
            }
            5 => return self.pass_some(peer, which),
            6 => return self.sever_some(peer, which),
            3 if !end.filling.is_empty() => {
                let id = end.filling.swap_remove(which % end.filling.len());
                let actions = end.worker.handle(WorkerEvent::Filled(id)).unwrap();
                self.worker(peer, actions);
            }
            4 if !end.leaving.is_empty() => {
                let head = end.leaving.swap_remove(which % end.leaving.len());
                self.result(peer, head, which);
                self.ends[peer].held.remove(&head.c);
                let actions = self.ends[peer].worker.handle(WorkerEvent::Returned(head.c)).unwrap();
                self.worker(peer, actions);
            }
            _ => return false,
        }
        true
    }

    /// A tile comes back, in two pieces where it has two rows and is not lent.
    fn result(&mut self, peer: usize, head: ResultHead, which: usize) {
        let held = self.ends[peer].held[&head.c].clone();
        let rows = held.header.rows;
        let cut = if rows > 1 && held.lent.is_none() { 1 + which as u32 % (rows - 1) } else { rows };
        for (first_line, lines) in [(0, cut), (cut, rows - cut)] {
            if lines == 0 {
                continue;
            }
            self.land(peer, &held, &ResultHead { first_line, lines, ..head });
            // Deliver at once: the second piece is checked against the first.
            while let Some(event) = self.ends[peer].outbox.pop_front() {
                self.primary(event);
            }
        }
    }

    /// Some lines of a tile land.
    fn land(&mut self, peer: usize, held: &Held, head: &ResultHead) {
        let Destination { rect, place } = self.primary.expect(peer, head).unwrap();
        let cols = held.header.cols as usize;
        let range = head.first_line as usize * cols..(head.first_line + head.lines) as usize * cols;
        let steps = (head.step_start, head.step_end);
        if place == Place::InC {
            self.lent.retain(|l| Some(*l) != held.lent);
            assert!(self.lent.iter().all(|l| l.disjoint(rect)), "it is lent to another");
            let places: Vec<usize> = places(rect, self.p.n).collect();
            for at in range {
                self.c[places[at]] = held.elements[at];
            }
            if head.first_line + head.lines == held.header.rows {
                self.is_in_c(rect, held.trace, steps);
            }
        } else {
            assert_eq!(held.lent, None, "what has to wait was lent");
            let to = match place {
                Place::Aside => &mut self.asides,
                Place::Staged => &mut self.staged,
                Place::InC | Place::Nowhere => &mut BTreeMap::new(),
            };
            let fresh = Landing { elements: Vec::new(), rect, trace: held.trace, steps };
            to.entry((peer, head.c)).or_insert(fresh).elements.extend(&held.elements[range]);
            self.staged_times += u64::from(place == Place::Staged);
            self.nowhere_times += u64::from(place == Place::Nowhere);
            let bytes = self.asides.values().map(|s| s.elements.len() * 8).sum();
            self.aside_bytes_max = self.aside_bytes_max.max(bytes);
        }
        self.ends[peer].outbox.push_back(Event::Landed { peer, head: *head });
    }

    /// A tile is in C with so many of its steps.
    fn is_in_c(&mut self, rect: Rect, trace: u64, steps: (u32, u32)) {
        let at = (rect.rows.start, rect.cols.start);
        self.traces.insert(at, trace);
        let done = self.last_step.entry(at).or_insert(0);
        self.steps_were_in_order &= *done == steps.0;
        *done = steps.1;
    }

    /// Nobody is silent here, only slow.
    fn pass_time(&mut self) {
        self.clock += Duration::from_millis(100);
        for peer in (0..self.ends.len()).filter(|p| !self.dead.contains(p)).collect::<Vec<_>>() {
            self.primary(Event::Alive { peer });
        }
        self.primary(Event::Tick);
    }

    /// Nobody says anything for a while.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.clock += time;
        self.primary(Event::Tick);
    }

    pub(crate) fn run(&mut self, choices: &[u32]) {
        self.primary(Event::Start);
        self.go_on(choices);
    }

    pub(crate) fn go_on(&mut self, choices: &[u32]) {
        let mut quiet = 0usize;
        let mut chosen = vec![0u32; self.ends.len()];
        let slowest = self.slow.iter().copied().max().unwrap_or(1) as usize;
        for n in 0..40_000_000usize {
            if self.finished || self.failed.is_some() {
                return;
            }
            // A fixed list of choices, then round robin, so that every run ends.
            self.die_if_due();
            let c = choices.get(n).map_or(n, |c| *c as usize);
            let peers = self.ends.len();
            chosen[c % peers] += 1;
            let one_in = u64::from(self.slow.get(c % peers).copied().unwrap_or(1).max(1));
            let waits = !(mixed(&[u64::from(chosen[c % peers])]) >> 32).is_multiple_of(one_in);
            let moved = !waits && self.step(c % peers, (c / peers) % 7, c / peers / 7);
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet > 0 && quiet.is_multiple_of(7 * peers * slowest * 4) {
                // Whoever keeps panels for others is relieved of them after a while.
                self.pass_time();
            }
            let most = 7 * peers * slowest * 400 + choices.len();
            assert!(quiet < most, "nothing can happen any more, and C is not there");
        }
        panic!("the run does not end");
    }
}

/// Where the elements of a rectangle lie in a matrix of so many columns, by rows.
fn places(rect: Rect, cols: u64) -> impl Iterator<Item = usize> {
    rect.rows.iter().flat_map(move |i| rect.cols.iter().map(move |j| (i * cols + j) as usize))
}

/// One number of several, in their order.
fn mixed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, part| {
        (sum.rotate_left(23) ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    })
}
