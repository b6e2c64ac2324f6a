//! A product with real numbers in memory: the state machines of the primary and the workers, and everything
//! under way between them.

#![allow(dead_code, unused_imports)] // Each of the tests beside it uses another part of it.

pub(crate) mod again;
mod deaths;
mod ends;
mod joins;
mod relays;
pub(crate) mod resumed;
mod strategies;

use bramble_base::{DType, Layout, Rect};
use bramble_plan::{
    LinkRate, Machine, OperandSource, PanelOrder, Plan, PlanOptions, Problem, TileSize, decide,
};
use bramble_schedule::message::{
    Forward, MatrixHeader, MatrixSource, ResultHead, decode_forwards, encode_forwards,
};
use bramble_schedule::primary::{
    InspectionTask, Operands, Outgoing, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred, Which,
};
use bramble_schedule::worker::{RunnableJob, Worker};
use deaths::Landing;
use relays::Passing;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
pub(crate) use strategies::{cutting, kinds};

/// β of products that read C.
const BETA: i64 = 3;
/// α of all products.
const ALPHA: i64 = 5;

/// The workers and the properties of their links.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) cut: TileSize,
    pub(crate) memories: Vec<u64>,
    /// 0: all links move bytes; 1: all share memory; 2: the primary computes alone, in its own memory; 3: one
    /// of the machines shares memory, as when the primary computes too.
    pub(crate) shared: u8,
    pub(crate) col_major: bool,
    /// Workers whose links move bytes relay panels.
    pub(crate) relay: bool,
    /// Links between workers may break at any time.
    pub(crate) breaks: bool,
    /// Slowness factor of each worker; 1 beyond the end of the list.
    pub(crate) slow: Vec<u32>,
    /// Whether slow workers' work is stolen.
    pub(crate) steals: bool,
    /// 0: order of steps; 1 to 3: blocks are computed by groups of this many columns; 4: from a corner; more:
    /// by columns in the last steps (this number less 4); with memory for that.
    pub(crate) columns: u64,
    /// The work of lost workers is reassigned.
    pub(crate) recovers: bool,
    /// A reserve worker in the primary's own memory, outside the plan.
    pub(crate) reserve: bool,
    /// Workers that die: after which event, and a number that chooses worker and way. Never the last one, and
    /// none that shares memory.
    pub(crate) deaths: Vec<(u64, u32)>,
    /// Workers that join: after which event, and with how much memory.
    pub(crate) joins: Vec<(u64, u64)>,
}

impl Setting {
    /// The plain setting.
    pub(crate) const PLAIN: Self = Self {
        cut: TileSize { tile: None, depth: None },
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

/// A message from the primary to a worker.
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
    /// Hash of the operations that made its elements: equal only for equal operations in equal order.
    trace: u64,
    /// The part of C that it is, if it is leased.
    leased: Option<Rect>,
}

struct End {
    worker: Worker,
    inbox: VecDeque<Sent>,
    /// Matrices under way to other workers, in order for each of them.
    passing: BTreeMap<usize, VecDeque<Passing>>,
    outbox: VecDeque<PrimaryEvent>,
    running: Vec<RunnableJob>,
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
    /// Leased parts of C.
    leased: Vec<Rect>,
    /// Buffered partial sums and staged tiles, by peer and id.
    partial_sums: BTreeMap<(usize, u32), Landing>,
    staged: BTreeMap<(usize, u32), Landing>,
    /// Complete tiles, by their first element, including those of an earlier run.
    pub(crate) committed: BTreeSet<(u64, u64)>,
    infos: Vec<PeerInfo>,
    /// Hash of the operations that made each tile of C.
    pub(crate) traces: BTreeMap<(u64, u64), u64>,
    pub(crate) aside_bytes_max: usize,
    /// Whether the steps of each tile were computed in order.
    pub(crate) steps_were_in_order: bool,
    last_step: BTreeMap<(u64, u64), u32>,
    /// Pairs of workers whose link is broken, lower number first.
    broken: BTreeSet<(usize, usize)>,
    breaks: bool,
    /// Workers whose links move bytes.
    by_bytes: Vec<bool>,
    /// Number of matrices relayed between workers, and of operands sent by the primary.
    pub(crate) relayed: u64,
    pub(crate) sent_elements: u64,
    clock: Duration,
    finished: bool,
    pub(crate) failed: Option<String>,
    progress: f64,
    /// Number of messages with partial sums that their receiver continues.
    pub(crate) sums_sent: usize,
    /// Number of events; each takes a millisecond.
    pub(crate) events: u64,
    moves: usize,
    slow: Vec<u32>,
    /// Deaths to come, the last one first.
    deaths: Vec<(u64, u32)>,
    /// Joins to come, the last one first.
    joins: Vec<(u64, u64)>,
    /// The worker whose results are wrong.
    pub(crate) liar: Option<usize>,
    /// The next task of the inspection, and the tiles that were recomputed.
    task: Option<InspectionTask>,
    pub(crate) recomputed: BTreeSet<(usize, u64)>,
    dead: BTreeSet<usize>,
    gone: BTreeSet<usize>,
    /// How often something was staged, and how often a result was dropped.
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
        memory_rate: None,
    }
}

fn plan(p: &Problem, cut: TileSize, memories: &[u64], alone: bool, wish: &PlanOptions) -> Option<Plan> {
    let machines: Vec<Machine> = memories.iter().enumerate().map(|(at, m)| machine(*m, at)).collect();
    let workers = if alone { &[][..] } else { &machines[..] };
    Some(decide(p, cut, &machines[0], workers, wish).ok()?.plan)
}

/// A product of whole numbers.
pub(crate) fn problem(m: u64, n: u64, k: u64, reads_c: bool, generated: bool) -> Problem {
    Problem {
        m,
        n,
        k,
        dtype: DType::I64,
        reads_c,
        a_source: OperandSource::generated_if(generated),
        b_source: OperandSource::Sent,
    }
}

/// A primary with one worker.
pub(crate) fn primary(p: &Problem, tile: u64, depth: u64, memory_bytes: u64, wish: &PlanOptions) -> Primary {
    let plan =
        plan(p, TileSize { tile: Some(tile), depth: Some(depth) }, &[memory_bytes], false, wish).unwrap();
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
        a_source: p.a_source,
        b_source: OperandSource::Sent,
        reads_c: p.reads_c,
    }
}

/// Numbers that differ everywhere.
fn numbers(count: u64, by: u64) -> Vec<i64> {
    (0..count).map(|i| (i.wrapping_mul(by).wrapping_add(by >> 3) % 201) as i64 - 100).collect()
}

impl World {
    /// `None` if the product does not fit the workers.
    pub(crate) fn new(p: &Problem, setting: &Setting, wish: &PlanOptions) -> Option<Self> {
        let alone = setting.shared == 2;
        let mut plan = plan(p, setting.cut, &setting.memories, alone, wish)?;
        let order = match setting.columns {
            4 => PanelOrder::Corner,
            more if more > 4 => PanelOrder::Ending(more - 4),
            columns => PanelOrder::Columns(columns),
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
                // Some workers whose links move bytes read one or both operands in place.
                referred: Referred { a: at % 2 == 1, b: at % 3 == 1 },
                neighbours: Vec::new(),
                work_per_s: 1e6,
                // Over fast links all cells of a block are multiplied side by side.
                link_bytes_per_s: [None, Some(1e8), Some(2e9)][at % 3],
                is_reserve: false,
            })
            .collect();
        let mut peers = if setting.relay { relays::neighbours(&plan.members, peers) } else { peers };
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
            // Unwritten elements must not look like zeros.
            c: vec![-77_777; (p.m * p.n) as usize],
            old_c,
            leased: Vec::new(),
            partial_sums: BTreeMap::new(),
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
            task: None,
            recomputed: BTreeSet::new(),
            dead: BTreeSet::new(),
            gone: BTreeSet::new(),
            staged_times: 0,
            nowhere_times: 0,
        })
    }

    /// A tile that was announced to the first worker.
    pub(crate) fn announced_tile(&self) -> u32 {
        let stores = self.ends[0].inbox.iter().filter_map(|sent| match sent {
            Sent::Store(message, ..) => Some(message),
            Sent::Relay(_) | Sent::Parted(_) => None,
        });
        let heads = stores.flat_map(|message| &message.head.matrices);
        heads.filter(|m| m.uses == 0).map(|m| m.id).next().unwrap()
    }

    pub(crate) fn primary(&mut self, event: PrimaryEvent) {
        self.events += 1;
        self.clock += Duration::from_millis(1);
        for action in self.primary.handle(event, self.clock) {
            if let PrimaryAction::Send(peer, _)
            | PrimaryAction::Relay(peer, _)
            | PrimaryAction::Parted { peer, .. } = &action
            {
                assert!(!self.gone.contains(peer), "{peer} is gone, and sent something");
            }
            match action {
                PrimaryAction::Send(peer, message) => {
                    let body = self.body(&message);
                    let trace = self.trace(&message);
                    if message.piece.is_some_and(|p| matches!(p.which, Which::A | Which::B) && !p.leased) {
                        self.sent_elements += body.len() as u64;
                    }
                    self.ends[peer].inbox.push_back(Sent::Store(message, body, trace));
                }
                PrimaryAction::Relay(peer, forwards) => {
                    let forwards = decode_forwards(&encode_forwards(&forwards)).unwrap();
                    self.ends[peer].inbox.push_back(Sent::Relay(forwards));
                }
                PrimaryAction::Parted { peer, other } => self.ends[peer].inbox.push_back(Sent::Parted(other)),
                PrimaryAction::Merge { peer, tile, rect } => {
                    let sum = self.partial_sums.remove(&(peer, tile)).expect("a sum that was put aside");
                    assert!(sum.is_whole() && sum.rect == rect, "half a sum is merged");
                    let c = self.traces.get_mut(&(rect.rows.start, rect.cols.start)).unwrap();
                    *c = mixed(&[*c, sum.trace]);
                    assert!(self.leased.iter().all(|l| l.disjoint(rect)), "{rect} is leased");
                    for (at, place) in places(rect, self.p.n).enumerate() {
                        self.c[place] += sum.elements[at];
                    }
                }
                PrimaryAction::Put { peer, tile, rect } => self.put(peer, tile, rect),
                PrimaryAction::Disconnect { peer, .. } => {
                    self.gone.insert(peer);
                    self.kill(peer, 0);
                }
                PrimaryAction::Finished => self.finished = true,
                PrimaryAction::Inspection(task) => self.begin_task(task),
                PrimaryAction::Fail(why) => self.failed = Some(why),
                PrimaryAction::SpotCheck(_) => {}
                PrimaryAction::Committed(rect) => {
                    let tile = (rect.rows.start, rect.cols.start);
                    assert!(self.committed.insert(tile), "{rect} is complete twice");
                }
                PrimaryAction::Ping(..) => {}
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

    /// The elements of a message's body, by rows, at the time when it is put on the link.
    fn body(&mut self, message: &Outgoing) -> Vec<i64> {
        let Some(piece) = message.piece else { return Vec::new() };
        self.sums_sent += usize::from(piece.which == Which::Sum);
        let header = message.head.matrices.last().unwrap();
        let (from, cols) = match piece.which {
            Which::A => (&self.a, self.p.k),
            Which::B => (&self.b, self.p.n),
            Which::C if piece.leased && header.source == MatrixSource::Vacant => (&self.c, self.p.n),
            Which::C => (&self.old_c, self.p.n),
            Which::Sum => (&self.c, self.p.n),
        };
        let elements = places(piece.rect, cols).map(|at| from[at]).collect();
        if piece.leased {
            assert!(self.leased.iter().all(|l| l.disjoint(piece.rect)), "{} is leased twice", piece.rect);
            self.leased.push(piece.rect);
        } else if piece.which == Which::Sum {
            assert!(
                self.leased.iter().all(|l| l.disjoint(piece.rect)),
                "{} is read while it is leased",
                piece.rect
            );
        }
        elements
    }

    /// The trace of the matrix in a message's body.
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

    /// Time passes, without any silence.
    fn pass_time(&mut self) {
        self.clock += Duration::from_millis(100);
        for peer in (0..self.ends.len()).filter(|p| !self.dead.contains(p)).collect::<Vec<_>>() {
            self.primary(PrimaryEvent::Alive { peer });
        }
        self.primary(PrimaryEvent::Tick);
    }

    /// Time passes without any messages.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.clock += time;
        self.primary(PrimaryEvent::Tick);
    }

    pub(crate) fn run(&mut self, choices: &[u32]) {
        self.primary(PrimaryEvent::Start);
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
            // First the given choices, then round robin, so that every run ends.
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
                // A member that retains panels for others releases them after a while.
                self.pass_time();
            }
            let most = 7 * peers * slowest * 400 + choices.len();
            assert!(quiet < most, "nothing can happen any more, and C is not there");
        }
        panic!("the run does not end");
    }
}

/// Positions of a rectangle's elements in a matrix with this many columns, by rows.
fn places(rect: Rect, cols: u64) -> impl Iterator<Item = usize> {
    rect.rows.iter().flat_map(move |i| rect.cols.iter().map(move |j| (i * cols + j) as usize))
}

/// A hash of several numbers in their order.
fn mixed(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, part| {
        (sum.rotate_left(23) ^ part).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    })
}
