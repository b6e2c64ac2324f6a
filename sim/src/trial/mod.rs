//! One product with real elements, under a virtual clock, in which things go wrong.
//!
//! Place in the flow: takes the place of both shells, of the machines and of the network between them. The state machines are
//! the real ones, and what they say to each other is encoded and decoded. `swarm` runs trials by the thousand.
//!
//! Invariants: after every event those of `check.rs`. The same scenario gives the same trial, to the event.
//!
//! Deliberately absent: real time, cards that links share, the cost of the primary's event loop: how long a product takes is what
//! the timing mode tells.

mod carry;
mod check;
mod disk;
mod faults;
mod joins;
mod keeper;
mod links;
mod lives;
mod looks;
mod matter;
mod model;
mod neighbours;
mod node;
mod scenario;
mod shell;
mod time;
mod watch;

pub use scenario::{Scenario, Values};

use self::faults::Struck;
use self::keeper::Keeper;
use self::links::{Lane, Signal};
use self::lives::Left;
use self::matter::Matter;
use self::node::{Node, Task};
use self::shell::Shell;
use self::watch::Watch;
use crate::clock::{Agenda, Time};
use crate::fault::Fault;
use crate::random::{Random, mixed};
use bramble_matrix::Layout;
use bramble_plan::Machine;
use bramble_schedule::clock::{Clock, PRIMARY_STEP};
use bramble_schedule::primary::{Event, Operands, Primary};

/// How often ends look at the time.
const TICK_S: f64 = 0.1;

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Link(usize, Signal),
    /// A thread of a machine is done with its task.
    Done(usize, Task),
    /// The primary's reader of a link ends.
    Reader(usize),
    /// One end of a link sees that it is broken: a lane's receiver.
    Broken(usize),
    /// A fault begins, or is over.
    Fault(usize),
    Over(usize),
    Tick,
    /// C has been looked at.
    Looked,
    /// The keeper of the journal is done with a step.
    Kept,
    /// A tile has been looked at, and is wrong or not.
    Spotted(bool),
}

impl From<(usize, Signal)> for Happening {
    fn from((lane, signal): (usize, Signal)) -> Self {
        Self::Link(lane, signal)
    }
}

/// What came of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tried {
    /// A number of everything that happened and when.
    pub hash: u64,
    /// Virtual seconds.
    pub seconds: f64,
    /// Things that happened.
    pub events: u64,
    /// Machines that were lost.
    pub losses: usize,
    /// How often what is rare came up.
    pub seen: Seen,
    /// How often work moved, losses or not.
    pub moves: usize,
    /// Why there is no C, where that is as it should be: nobody was left who could make it.
    pub failed: Option<String>,
}

/// How often what is rare came up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames with lines that workers passed on to each other.
    pub relayed: u64,
    /// Matrices that did not come from the worker that should have passed them on.
    pub missed: u64,
    /// Tiles that went on from a sum in C and landed beside it.
    pub staged: u64,
    /// Tiles that were made again though they were in C.
    pub thrown_away: u64,
    /// Sums that were added to C after the machine that made them was lost.
    pub left_behind: u64,
    /// Tiles of which some lines had landed when their machine was lost.
    pub broken_off: u64,
    /// Machines that were given up because they were silent.
    pub silent: u64,
    /// Machines whose links were too slow.
    pub too_slow: u64,
    /// Machines that were left out since what they sent was wrong, before all of C was there.
    pub left_out: u64,
    /// Links between workers that one of them gave up because nothing came over it.
    pub parted: u64,
    /// Machines that came in, and those of them that gave work back.
    pub joined: u64,
    /// See `joined`.
    pub comers_worked: u64,
    /// Tiles that were wrong and were made again.
    pub mended: u64,
    /// Deaths of the primary, those with a journal that was not synced, and tiles that the next one did not have to make.
    pub deaths: u64,
    /// See `deaths`.
    pub died_torn: u64,
    /// See `deaths`.
    pub tiles_kept: u64,
    /// How often the primary was suspended, or a clock leapt or stood still.
    pub odd_clocks: u64,
}

struct Trial {
    agenda: Agenda<Happening>,
    primary: Primary,
    shell: Shell,
    nodes: Vec<Node>,
    /// How many peers there are by now; after them nodes, lanes and sessions for those who come in.
    count: usize,
    /// How many there were when it began.
    first_count: usize,
    cluster: Vec<Machine>,
    /// Machine of each peer, and the memory that it may be given.
    machines: Vec<usize>,
    rooms: Vec<u64>,
    /// Of n peers, also of those to come: n from the primary, n to it, then n by n from peer to peer.
    lanes: Vec<Lane>,
    matter: Matter,
    /// What C has to be.
    expected: Vec<f64>,
    is_digits: bool,
    lines_per_frame: u32,
    faults: Vec<Fault>,
    struck: Vec<Struck>,
    random: Random,
    hash: u64,
    events: u64,
    /// How often ends have looked at the time.
    ticks: u64,
    seen: Seen,
    /// When something happened last that gets the product on.
    moved_last: Time,
    /// The product is over, and what is on its way arrives.
    drains: bool,
    checks: check::Checks,
    looks: looks::Looks,
    /// By peer: products that it was asked for, that it made, and steps of tiles that came back whole.
    jobs_sent: Vec<u64>,
    jobs: Vec<u64>,
    steps_back: Vec<u64>,
    /// Steps of tiles that were there before this life of the primary.
    steps_there: u64,
    /// The primary's clock, and what the schedule makes of it.
    watch: Watch,
    clock: Clock,
    /// How many faults have the primary stand still, and what happens when it goes on.
    stands: u32,
    deferred: Vec<Happening>,
    /// Keeps the journal, where the primary is to die.
    keeper: Option<Keeper>,
    /// What is left, when it has.
    left: Option<Left>,
}

/// Tries a scenario.
///
/// # Panics
///
/// Where anything is not as it has to be: that is what it is for.
pub fn try_out(scenario: &Scenario) -> Tried {
    let (mut left, mut tried) = (None, Tried::default());
    loop {
        let mut trial = match Trial::new(scenario, left.take()) {
            Ok(trial) => trial,
            Err(why) => {
                tried.failed = Some(why);
                return tried;
            }
        };
        trial.seen = tried.seen;
        trial.live();
        left = trial.left.take();
        if left.is_none() {
            trial.end(scenario);
        }
        trial.account(&mut tried);
        if left.is_none() {
            return tried;
        }
    }
}

impl Trial {
    /// One life of the primary, after what an earlier one left. An error where nobody has room for the rest.
    fn new(scenario: &Scenario, left: Option<Left>) -> Result<Self, String> {
        let plan = &scenario.plan;
        let matter = Matter::of(scenario, plan);
        let expected = model::c_of(plan, &matter);
        let wrong = matter.far_off(&expected);
        assert_eq!(wrong, None, "the model is no product");
        let p = plan.problem;
        let operands = Operands {
            a_layout: if scenario.col_major { Layout::ColMajor } else { Layout::RowMajor },
            b_layout: Layout::RowMajor,
            a_generated: !p.sends_a,
            b_generated: !p.sends_b,
            reads_c: p.reads_c,
        };
        let (peers, primary) = lives::begun(scenario, operands, left.as_ref());
        let rooms: Vec<u64> = peers.iter().map(|(_, info)| info.credit_bytes).collect();
        let primary = primary.inspect_err(|why| check::check_want(why, rooms.iter().copied().max()))?;
        let machine = |at: usize| &scenario.machines[peers.get(at).map_or(0, |peer| peer.0)];
        let rate = |at: usize| machine(at).link.map_or(f64::INFINITY, |link| link.bytes_per_s);
        let latency = |at: usize| machine(at).link.map_or(0.0, |link| link.round_trip_s / 2.0);
        let faults = left.as_ref().map_or_else(|| scenario.faults.0.clone(), |left| left.faults.clone());
        // Who comes in has its lanes from then on.
        let first_count = peers.len();
        let count = first_count + lives::comings(&faults);
        let primary_lanes = (0..2 * count).map(|at| Lane::new(rate(at % count), latency(at % count)));
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let across = pairs.map(|(from, to)| Lane::new(rate(from).min(rate(to)), latency(from) + latency(to)));
        let node = |at: usize| match peers.get(at) {
            Some((_, info)) => Node::new(info, machine(at).threads, machine(at).gflops),
            None => Node::absent(),
        };
        let life = left.as_ref().map_or(0, |left| mixed(left.hash));
        let mut trial = Self {
            agenda: Agenda::new((scenario.seed ^ life) | 1),
            primary: if scenario.steals { primary } else { primary.without_stealing() },
            shell: Shell::new(expected.len(), count),
            nodes: (0..count).map(node).collect(),
            count: first_count,
            first_count,
            cluster: scenario.machines.clone(),
            machines: peers.iter().map(|(machine, _)| *machine).collect(),
            rooms,
            lanes: primary_lanes.chain(across).collect(),
            matter,
            expected,
            is_digits: scenario.values == Values::Digits,
            lines_per_frame: scenario.lines_per_frame,
            struck: vec![Struck::default(); faults.len()],
            faults,
            random: Random::new(scenario.seed ^ 0x7ea1 ^ life),
            hash: mixed(scenario.seed),
            events: 0,
            ticks: 0,
            seen: Seen::default(),
            moved_last: Time::default(),
            drains: false,
            checks: check::Checks::new(count),
            looks: looks::Looks::default(),
            jobs_sent: vec![0; count],
            jobs: vec![0; count],
            steps_back: vec![0; count],
            steps_there: 0,
            watch: Watch::default(),
            clock: Clock::new(PRIMARY_STEP),
            stands: 0,
            deferred: Vec::new(),
            keeper: None,
            left: None,
        };
        trial.take_over(scenario, left);
        Ok(trial)
    }

    /// From the start until C is there, or the primary is not.
    fn live(&mut self) {
        for number in 0..self.faults.len() {
            self.agenda.add(self.faults[number].from.as_secs_f64(), Happening::Fault(number));
        }
        self.agenda.add(TICK_S, Happening::Tick);
        self.tell(Event::Start);
        self.run();
    }

    /// Looks at what there is in the end.
    fn end(&mut self, scenario: &Scenario) {
        self.check_the_end(scenario);
        self.drain();
        self.check_what_is_left();
    }

    /// Counts this life.
    fn account(self, tried: &mut Tried) {
        let comers = self.first_count..self.count;
        tried.hash = self.hash;
        tried.seconds += self.agenda.now().seconds();
        tried.events += self.events;
        tried.losses += self.primary.losses().len();
        tried.moves += self.primary.moves();
        tried.seen = self.seen;
        tried.seen.comers_worked += comers.filter(|peer| self.steps_back[*peer] > 0).count() as u64;
        tried.failed = self.shell.failed;
    }

    /// What is on its way when the product is over still arrives at workers; the primary says nothing any more.
    fn drain(&mut self) {
        self.drains = true;
        self.part_where_nothing_moves();
        for lane in 0..self.lanes.len() {
            self.pump(lane);
        }
        while let Some(happening) = self.agenda.next() {
            match happening {
                Happening::Link(lane, Signal::Left) => self.left(lane),
                Happening::Link(lane, Signal::There) => {
                    self.lanes[lane].there();
                    self.pump(lane);
                }
                Happening::Done(peer, task) => self.done(peer, task),
                Happening::Broken(lane) => self.see_broken(lane),
                Happening::Over(number) => self.end_fault(number),
                Happening::Fault(_)
                | Happening::Reader(_)
                | Happening::Tick
                | Happening::Looked
                | Happening::Kept
                | Happening::Spotted(_) => {}
            }
        }
    }

    /// Until C is there, or it is said that it will not be.
    fn run(&mut self) {
        while !self.is_over() {
            let Some(happening) = self.agenda.next() else {
                panic!("nothing can happen any more, and {} tiles are missing", self.primary.tiles_left());
            };
            self.events += 1;
            self.remember(&happening);
            if self.is_for_later(&happening) {
                self.deferred.push(happening);
                continue;
            }
            match happening {
                Happening::Link(lane, Signal::Left) => self.left(lane),
                Happening::Link(lane, Signal::There) => {
                    self.lanes[lane].there();
                    self.pump(lane);
                }
                Happening::Done(peer, task) => {
                    self.moved_last = self.agenda.now();
                    self.done(peer, task);
                }
                Happening::Reader(peer) => self.gone(peer, "the connection was reset"),
                Happening::Broken(lane) => self.see_broken(lane),
                Happening::Fault(number) => self.begin_fault(number),
                Happening::Over(number) => self.end_fault(number),
                Happening::Tick => self.tick(),
                Happening::Looked => self.look(),
                Happening::Kept => self.kept(),
                Happening::Spotted(is_wrong) => self.tell(Event::Looked(Some(is_wrong))),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.shell.finished || self.shell.failed.is_some() || self.left.is_some()
    }

    /// What happens, and when, in one number.
    fn remember(&mut self, happening: &Happening) {
        let what = match happening {
            Happening::Link(lane, Signal::Left) => (1, *lane),
            Happening::Link(lane, Signal::There) => (2, *lane),
            Happening::Done(peer, Task::Run(run)) => (3 + (u64::from(run.job.c) << 8), *peer),
            Happening::Done(peer, Task::Fill(id)) => (4 + (u64::from(*id) << 8), *peer),
            Happening::Reader(peer) => (5, *peer),
            Happening::Broken(lane) => (6, *lane),
            Happening::Fault(number) => (7, *number),
            Happening::Over(number) => (8, *number),
            Happening::Tick => (9, 0),
            Happening::Looked => (10, 0),
            Happening::Kept => (11, 0),
            Happening::Spotted(is_wrong) => (12, usize::from(*is_wrong)),
        };
        let time = self.agenda.now().picoseconds();
        self.hash = mixed(self.hash ^ mixed(time) ^ (what.0 << 16) ^ what.1 as u64);
    }
}
