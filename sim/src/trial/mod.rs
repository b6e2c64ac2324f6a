//! A trial: one product with real elements, under a virtual clock, with faults.
//!
//! Place in the flow: replaces both shells, the machines and the network between them. The state machines are
//! the real ones, and their messages are encoded and decoded. `swarm` runs thousands of trials.
//!
//! Invariants: after every event those of `check.rs`. The same scenario gives the same trial, event by event.
//!
//! Deliberately absent: real time, network cards that links share, the cost of the primary's event loop: the timing mode
//! predicts how long a product takes.

mod check;
mod chosen_order;
mod disk;
mod end_clock;
mod faults;
mod inspection;
mod joins;
mod journal_writer;
mod lane_ends;
mod lanes;
mod model;
mod neighbours;
mod node;
mod order_setting;
mod placement;
mod primary_death;
mod result;
mod scenario;
mod shell;
mod ticks;
mod trial_data;

pub use chosen_order::ChosenOrder;
pub use order_setting::OrderSetting;
pub use placement::PLACED_SEEDS;
pub use result::{RareEvents, TrialResult};
pub use scenario::{Scenario, Values};

use self::end_clock::EndClock;
use self::faults::Struck;
use self::journal_writer::TrialJournalWriter;
use self::lanes::{Lane, LaneSignal};
use self::node::Node;
use self::primary_death::SurvivingState;
use self::shell::TrialShell;
use self::trial_data::TrialData;
use crate::clock::{EventQueue, VirtualTime};
use crate::fault::SimFault;
use crate::machine::SimTask;
use crate::participants;
use crate::random::{SeededRandom, mixed};
use bramble_plan::Machine;
use bramble_schedule::clock::{PRIMARY_STEP, StepClock};
use bramble_schedule::primary::{Operands, PeerInfo, Primary, PrimaryEvent, UnplacedOperand};
use bramble_schedule::worker::StartLimits;

/// Interval between ticks of all ends, seconds.
const TICK_S: f64 = 0.1;

/// Events.
#[derive(Clone, Copy, Debug)]
enum TrialEvent {
    Link(usize, LaneSignal),
    /// A thread of a machine has finished its task.
    Done(usize, SimTask),
    /// The primary's reader of a link ends.
    Reader(usize),
    /// The receiver of a lane notices that the link is broken.
    Broken(usize),
    /// A fault begins, or ends.
    Fault(usize),
    Over(usize),
    Tick,
    /// The inspection of C has ended.
    Looked,
    /// The journal writer has ended a step.
    Kept,
    /// A spot check has ended: whether the tile is wrong.
    Spotted(bool),
}

impl From<(usize, LaneSignal)> for TrialEvent {
    fn from((lane, signal): (usize, LaneSignal)) -> Self {
        Self::Link(lane, signal)
    }
}

/// The work that was sent, done and returned, by peer.
#[derive(Default)]
struct WorkCounts {
    /// Multiplications that were sent.
    jobs_sent: Vec<u64>,
    /// Multiplications that were done.
    jobs: Vec<u64>,
    /// Steps of tiles that came back complete.
    steps_back: Vec<u64>,
    /// Steps of tiles that were complete before this life of the primary.
    steps_there: u64,
    /// Elements of operands that the primary has sent.
    operand_elements: u64,
    /// Sums that the primary has sent, so that their receiver continues them.
    sums_sent: u64,
}

impl WorkCounts {
    fn of(peers: usize) -> Self {
        let none = vec![0; peers];
        Self { jobs_sent: none.clone(), jobs: none.clone(), steps_back: none, ..Self::default() }
    }
}

/// The machines of a trial; some of them are peers.
struct Members {
    /// Number of peers so far; nodes, lanes and sessions beyond it are for machines that may join.
    count: usize,
    /// Number of peers at the start.
    first_count: usize,
    cluster: Vec<Machine>,
    /// Machine of each peer, and the memory that it grants.
    machines: Vec<usize>,
    rooms: Vec<u64>,
}

/// The operands, and the value that C must have.
struct Model {
    data: TrialData,
    expected: Vec<f64>,
    is_digits: bool,
    /// How the primary sends panels of lost parts of a placed operand, if it can.
    unplaced: [Option<UnplacedOperand>; 2],
}

/// How machines cut their messages, and how far they compute ahead.
#[derive(Clone, Copy)]
struct WorkerLimits {
    lines_per_frame: u32,
    start_limits: StartLimits,
}

/// The faults, and what each has struck.
struct TrialFaults {
    all: Vec<SimFault>,
    struck: Vec<Struck>,
}

/// The events so far: their hash and their counts.
struct Record {
    hash: u64,
    events: u64,
    /// Number of ticks.
    ticks: u64,
    seen: RareEvents,
    /// When the product last made progress.
    moved_last: VirtualTime,
}

/// The primary's process: its clock, its suspensions, its journal and its death.
struct PrimaryProcess {
    /// The clock as the process sees it, and as the schedule corrects it.
    watch: EndClock,
    clock: StepClock,
    /// How many faults suspend it, and events that wait until it resumes.
    stands: u32,
    deferred: Vec<TrialEvent>,
    /// The journal writer, if the primary will die.
    journal_writer: Option<TrialJournalWriter>,
    /// The state that survives the primary's death.
    left: Option<SurvivingState>,
}

struct Trial {
    event_queue: EventQueue<TrialEvent>,
    primary: Primary,
    shell: TrialShell,
    nodes: Vec<Node>,
    members: Members,
    /// For n peers, future ones included: n lanes from the primary, n to it, then n by n between peers.
    lanes: Vec<Lane>,
    model: Model,
    limits: WorkerLimits,
    faults: TrialFaults,
    random: SeededRandom,
    record: Record,
    /// The product is over, and frames in flight still arrive.
    drains: bool,
    checks: check::Checks,
    inspection: inspection::InspectionState,
    work: WorkCounts,
    process: PrimaryProcess,
}

/// Runs a scenario.
///
/// # Panics
///
/// If an invariant is violated: that is the purpose of a trial.
pub fn run_trial(scenario: &Scenario) -> TrialResult {
    let (mut left, mut tried) = (None, TrialResult::default());
    loop {
        let mut trial = match Trial::new(scenario, left.take()) {
            Ok(trial) => trial,
            Err(why) => {
                tried.failed = Some(why);
                return tried;
            }
        };
        trial.record.seen = tried.seen;
        trial.live();
        left = trial.process.left.take();
        if left.is_none() {
            trial.end(scenario);
        }
        trial.account(&mut tried);
        if left.is_none() {
            return tried;
        }
    }
}

fn operands_of(scenario: &Scenario) -> Operands {
    let operands = participants::operands(&scenario.plan.problem, scenario.col_major);
    Operands { unplaced: placement::unplaced(scenario), ..operands }
}

impl Trial {
    /// One life of the primary, after an earlier one if `left` is given. An error if no machine has memory for the rest.
    fn new(scenario: &Scenario, left: Option<SurvivingState>) -> Result<Self, String> {
        let (peers, primary) = primary_death::begun(scenario, operands_of(scenario), left.as_ref());
        let most = peers.iter().map(|(_, info)| info.credit_bytes).max();
        let primary = primary.inspect_err(|why| check::check_want(why, most))?;
        let life = left.as_ref().map_or(0, |left| mixed(left.hash));
        let faults = left.as_ref().map_or_else(|| scenario.faults.0.clone(), |left| left.faults.clone());
        check::check_pairs(scenario);
        let mut trial =
            Self::assembled(scenario, (&peers, primary), faults, EventQueue::new((scenario.seed ^ life) | 1));
        trial.random = SeededRandom::new(scenario.seed ^ 0x7ea1 ^ life);
        trial.begin_life(scenario, left);
        Ok(trial)
    }

    /// A trial of these peers and their primary, before anything has happened.
    fn assembled(
        scenario: &Scenario,
        (peers, primary): (&[(usize, PeerInfo)], Primary),
        faults: Vec<SimFault>,
        event_queue: EventQueue<TrialEvent>,
    ) -> Self {
        let plan = &scenario.plan;
        let data = TrialData::of(scenario, plan);
        let expected = model::c_of(plan, &data);
        let wrong = data.far_off(&expected);
        assert_eq!(wrong, None, "the model's C is not the product");
        let machine = |at: usize| &scenario.machines[peers.get(at).map_or(0, |peer| peer.0)];
        let (rate, latency) =
            (|at: usize| participants::link(machine(at)).0, |at: usize| participants::link(machine(at)).1);
        // Lanes exist from the start for all machines that may join.
        let first_count = peers.len();
        let count = first_count + primary_death::joins(&faults);
        let primary_lanes = (0..2 * count).map(|at| Lane::new(rate(at % count), latency(at % count)));
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let across = pairs.map(|(from, to)| Lane::new(rate(from).min(rate(to)), latency(from) + latency(to)));
        let limits =
            WorkerLimits { lines_per_frame: scenario.lines_per_frame, start_limits: scenario.start_limits };
        let node = |at: usize| match peers.get(at) {
            Some((_, info)) => Node::new(info, machine(at), limits),
            None => Node::absent(machine(at), limits),
        };
        Self {
            event_queue,
            primary: if scenario.steals { primary } else { primary.without_stealing() },
            shell: TrialShell::new(expected.len(), count),
            nodes: (0..count).map(node).collect(),
            members: Members {
                count: first_count,
                first_count,
                cluster: scenario.machines.clone(),
                machines: peers.iter().map(|(machine, _)| *machine).collect(),
                rooms: peers.iter().map(|(_, info)| info.credit_bytes).collect(),
            },
            lanes: primary_lanes.chain(across).collect(),
            model: Model {
                data,
                expected,
                is_digits: scenario.values == Values::Digits,
                unplaced: placement::unplaced(scenario),
            },
            limits,
            faults: TrialFaults { struck: vec![Struck::default(); faults.len()], all: faults },
            random: SeededRandom::new(scenario.seed),
            record: Record {
                hash: mixed(scenario.seed),
                events: 0,
                ticks: 0,
                seen: RareEvents::default(),
                moved_last: VirtualTime::default(),
            },
            drains: false,
            checks: check::Checks::new(count),
            inspection: inspection::InspectionState::default(),
            work: WorkCounts::of(count),
            process: PrimaryProcess {
                watch: EndClock::default(),
                clock: StepClock::new(PRIMARY_STEP),
                stands: 0,
                deferred: Vec::new(),
                journal_writer: None,
                left: None,
            },
        }
    }

    /// Runs from the start until C is accepted, the product has failed, or the primary dies.
    fn live(&mut self) {
        for number in 0..self.faults.all.len() {
            self.event_queue.add(self.faults.all[number].from.as_secs_f64(), TrialEvent::Fault(number));
        }
        self.event_queue.add(TICK_S, TrialEvent::Tick);
        self.dispatch(PrimaryEvent::Start);
        self.run();
    }

    /// Checks the end of the trial.
    fn end(&mut self, scenario: &Scenario) {
        self.check_the_end(scenario);
        self.drain();
        self.check_what_is_left();
    }

    /// Adds this life to the result.
    fn account(self, tried: &mut TrialResult) {
        let comers = self.members.first_count..self.members.count;
        tried.hash = self.record.hash;
        tried.seconds += self.event_queue.now().seconds();
        tried.events += self.record.events;
        tried.losses += self.primary.losses().len();
        tried.moves += self.primary.moves();
        tried.seen = self.record.seen;
        tried.seen.comers_worked += comers.filter(|peer| self.work.steps_back[*peer] > 0).count() as u64;
        tried.failed = self.shell.failed;
    }

    /// After the product, frames in flight still arrive at workers; the primary sends nothing more.
    fn drain(&mut self) {
        self.drains = true;
        self.part_where_nothing_moves();
        for lane in 0..self.lanes.len() {
            self.pump(lane);
        }
        while let Some(event) = self.event_queue.next() {
            match event {
                TrialEvent::Link(lane, LaneSignal::Left) => self.left(lane),
                TrialEvent::Link(lane, LaneSignal::There) => {
                    self.lanes[lane].there();
                    self.pump(lane);
                }
                TrialEvent::Done(peer, task) => self.done(peer, task),
                TrialEvent::Broken(lane) => self.see_broken(lane),
                TrialEvent::Over(number) => self.end_fault(number),
                TrialEvent::Fault(_)
                | TrialEvent::Reader(_)
                | TrialEvent::Tick
                | TrialEvent::Looked
                | TrialEvent::Kept
                | TrialEvent::Spotted(_) => {}
            }
        }
    }

    /// Runs until C is accepted, the product has failed, or the primary dies.
    fn run(&mut self) {
        while !self.is_over() {
            let Some(event) = self.event_queue.next() else {
                panic!("nothing can happen any more, and {} tiles are missing", self.primary.tiles_left());
            };
            self.record.events += 1;
            self.remember(&event);
            if self.is_for_later(&event) {
                self.process.deferred.push(event);
            } else {
                self.happen(event);
            }
        }
    }

    /// An event happens.
    fn happen(&mut self, event: TrialEvent) {
        match event {
            TrialEvent::Link(lane, LaneSignal::Left) => self.left(lane),
            TrialEvent::Link(lane, LaneSignal::There) => {
                self.lanes[lane].there();
                self.pump(lane);
            }
            TrialEvent::Done(peer, task) => {
                self.record.moved_last = self.event_queue.now();
                self.done(peer, task);
            }
            TrialEvent::Reader(peer) => self.gone(peer, "the connection was reset"),
            TrialEvent::Broken(lane) => self.see_broken(lane),
            TrialEvent::Fault(number) => self.begin_fault(number),
            TrialEvent::Over(number) => self.end_fault(number),
            TrialEvent::Tick => self.tick(),
            TrialEvent::Looked => self.inspect(),
            TrialEvent::Kept => self.end_journal_step(),
            TrialEvent::Spotted(is_wrong) => self.dispatch(PrimaryEvent::SpotChecked(Some(is_wrong))),
        }
    }

    fn is_over(&self) -> bool {
        self.shell.finished || self.shell.failed.is_some() || self.process.left.is_some()
    }

    /// Adds an event and its time to the hash.
    fn remember(&mut self, event: &TrialEvent) {
        let what = match event {
            TrialEvent::Link(lane, LaneSignal::Left) => (1, *lane),
            TrialEvent::Link(lane, LaneSignal::There) => (2, *lane),
            TrialEvent::Done(peer, SimTask::Run(run)) => (3 + (u64::from(run.job.c) << 8), *peer),
            TrialEvent::Done(peer, SimTask::Fill(id)) => (4 + (u64::from(*id) << 8), *peer),
            TrialEvent::Reader(peer) => (5, *peer),
            TrialEvent::Broken(lane) => (6, *lane),
            TrialEvent::Fault(number) => (7, *number),
            TrialEvent::Over(number) => (8, *number),
            TrialEvent::Tick => (9, 0),
            TrialEvent::Looked => (10, 0),
            TrialEvent::Kept => (11, 0),
            TrialEvent::Spotted(is_wrong) => (12, usize::from(*is_wrong)),
        };
        let time = self.event_queue.now().picoseconds();
        self.record.hash = mixed(self.record.hash ^ mixed(time) ^ (what.0 << 16) ^ what.1 as u64);
    }
}
