//! A product with real numbers in memory: the primary's and the workers' states, and everything that is on its way.

#![allow(dead_code, unused_imports)] // Each of the tests beside it uses another part of it.

pub(crate) mod again;
mod deaths;
mod ends;
mod joins;
mod relays;
pub(crate) mod resumed;
mod strategies;

use bramble_matrix::{DType, Layout, Rect};
use bramble_plan::{Cut, LinkRate, Machine, Order, Plan, Problem, Wish, decide};
use bramble_schedule::message::{
    Forward, MatrixHeader, ResultHead, Source, decode_forwards, encode_forwards,
};
use bramble_schedule::primary::{Action, Event, Operands, Outgoing, PeerInfo, Primary, Referred, Which};
use bramble_schedule::worker::{Run, Worker};
use deaths::Landing;
use relays::Passing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
pub(crate) use strategies::{cutting, kinds};

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
    /// Machines that come: after which event, and with how much memory.
    pub(crate) joins: Vec<(u64, u64)>,
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
        joins: Vec::new(),
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
    /// Complete tiles, by their first element; those of the run before with them.
    pub(crate) committed: BTreeSet<(u64, u64)>,
    infos: Vec<PeerInfo>,
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
    /// Machines to come, the last one first.
    joins: Vec<(u64, u64)>,
    /// Whose results are wrong.
    pub(crate) liar: Option<usize>,
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

/// A primary with one worker.
pub(crate) fn primary(p: &Problem, tile: u64, depth: u64, memory_bytes: u64, wish: &Wish) -> Primary {
    let plan = plan(p, Cut { tile: Some(tile), depth: Some(depth) }, &[memory_bytes], false, wish).unwrap();
    let peers = vec![PeerInfo {
        name: "w".into(),
        credit_bytes: memory_bytes,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e6,
        link_bytes_per_s: None,
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
                // Of those whose links move bytes, some read one operand where it lies, or both.
                referred: Referred { a: at % 2 == 1, b: at % 3 == 1 },
                neighbours: Vec::new(),
                work_per_s: 1e6,
                // Over some links tiles are home at once, so all cells of a block are multiplied side by side.
                link_bytes_per_s: [None, Some(1e8), Some(2e9)][at % 3],
                is_reserve: false,
            })
            .collect();
        let mut peers = if setting.relay { relays::neighbours(peers) } else { peers };
        if setting.reserve {
            peers.push(deaths::reserve(&peers));
        }
        let ends = peers.iter().map(|info| End::new(info.credit_bytes)).collect();
        let by_bytes = peers.iter().map(|p| !p.shares_memory).collect();
        let (a, b) = (numbers(p.m * p.k, 7919), numbers(p.k * p.n, 104_729));
        let old_c = if p.reads_c { numbers(p.m * p.n, 1_299_709) } else { vec![0; (p.m * p.n) as usize] };
        let expected = (0..p.m * p.n).map(|at| {
            let (i, j) = (at / p.n, at % p.n);
            let sum: i64 = (0..p.k).map(|l| a[(i * p.k + l) as usize] * b[(l * p.n + j) as usize]).sum();
            ALPHA * sum + BETA * old_c[at as usize]
        });
        let infos = peers.clone();
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
            committed: BTreeSet::new(),
            infos,
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
            joins: joins::in_order(&setting.joins),
            liar: None,
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
                Action::Look(_) => {}
                Action::Committed(rect) => {
                    let tile = (rect.rows.start, rect.cols.start);
                    assert!(self.committed.insert(tile), "{rect} is complete twice");
                }
                Action::Ping(..) => {}
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
            self.join_if_due();
            self.die_if_due();
            chosen.resize(self.ends.len(), 0);
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
