//! The world of the timing mode: a primary and its workers, and all events in the order of time.
//!
//! The primary's event loop is one server: messages that it sends and receives wait for it in order, and take processor time
//! for their bytes; sums are added before anything else (`world/event_loop.rs`). Machines on the primary's cores slow down
//! in proportion when more threads want to run than there are cores. Effects of faults are in `world/faults.rs`.
//!
//! Invariants: those of `lib.rs`, asserted here. The index of a peer is that of a session: a machine that joins again has a
//! new one.

mod event_loop;
mod faults;

use crate::clock::EventQueue;
use crate::fault::{Faults, SimFault};
use crate::machine::{SimSpeed, SimTask, SimWorker, WorkerMessage};
use crate::network::{Direction, LinkSignal, Network};
use crate::participants;
use crate::primary_shell::{PeerLink, PrimaryMessage, SimPendingResults};
use crate::relay::{RelayEvent, RelayTraffic};
use crate::report::{SimJoin, SimLoss, SimReport};
use crate::setting::{SimRates, SimSetting};
use bramble_matrix::number::to_usize;
use bramble_plan::{Machine, Plan, neighbour_pairs};
use bramble_schedule::primary::{PeerInfo, Primary, PrimaryEvent};
use bramble_schedule::worker::StartLimits;
use bramble_wire::limits::NEIGHBOURS_MAX;
use std::collections::{BTreeSet, VecDeque};

/// Interval between ticks of the primary, seconds.
const TICK_S: f64 = 0.1;
/// After this many ticks without any other event no event will come: longer than the primary waits for a silent machine.
const IDLE_TICKS_MAX: u32 = 300;

/// Events.
#[derive(Clone, Copy, Debug)]
enum WorldEvent {
    Link(Direction, LinkSignal),
    Relay(RelayEvent),
    /// A tick.
    Tick,
    /// The event loop has finished its task.
    Loop,
    /// A thread of a machine has finished its task.
    Done(usize, SimTask),
    /// A fault begins, or ends.
    Fault(usize),
    Over(usize),
    /// The primary's reader of a link ends.
    Gone(usize),
    /// A machine notices that its link to another has ended.
    Parts(usize, usize),
}

impl From<(Direction, LinkSignal)> for WorldEvent {
    fn from((direction, signal): (Direction, LinkSignal)) -> Self {
        Self::Link(direction, signal)
    }
}

impl From<RelayEvent> for WorldEvent {
    fn from(passing: RelayEvent) -> Self {
        Self::Relay(passing)
    }
}

/// Bytes of a message on the wire.
fn frame_bytes(message: &PrimaryMessage) -> usize {
    match message {
        PrimaryMessage::Store(message) => 16 + message.wire_bytes(),
        PrimaryMessage::Relay(forwards) => 16 + 2 + 12 * forwards.len(),
        PrimaryMessage::Parted(_) => 16 + 5,
        PrimaryMessage::Ping(_) => 16 + 8,
    }
}

/// A task of the primary's event loop.
enum LoopTask {
    Send(usize, PrimaryMessage),
    Take(usize, WorkerMessage),
    Sent(usize, usize),
    /// Bytes to add to C; only the time counts.
    Merge(u64),
}

/// The primary's event loop.
#[derive(Default)]
struct PrimaryLoop {
    tasks: VecDeque<LoopTask>,
    /// The current task.
    current: Option<LoopTask>,
    busy_s: f64,
}

/// The primary's link to a peer, and what the peer has beside its machine.
#[derive(Default)]
struct SimSession {
    /// Workers with which it had a link when the product began.
    neighbours: Vec<usize>,
    /// Messages that have arrived while the machine is suspended.
    inbox: VecDeque<PrimaryMessage>,
    link: PeerLink,
}

/// The tiles of C that are complete.
#[derive(Default)]
struct CommittedTiles {
    /// By their first row and column.
    tiles: BTreeSet<(u64, u64)>,
    elements: u64,
}

/// The faults of a run.
struct TimedFaults {
    faults: Vec<SimFault>,
    /// The peer that each fault has struck.
    struck: Vec<Option<usize>>,
}

struct World<'a> {
    event_queue: EventQueue<WorldEvent>,
    /// Events that have been handled.
    events: u64,
    /// Ticks in a row without any other event.
    idle_ticks: u32,
    primary: Primary,
    machines: &'a [Machine],
    setting: &'a SimSetting,
    /// Whether lost work is reassigned; if not, there are no faults.
    recovers: bool,
    faults: TimedFaults,
    /// By peer.
    ends: Vec<SimWorker>,
    sessions: Vec<SimSession>,
    links: SimLinks,
    host: SimHost,
    pending: SimPendingResults,
    committed: CommittedTiles,
    joins: Vec<SimJoin>,
    ended: Option<SimEnd>,
}

/// All traffic.
struct SimLinks {
    out: Network<PrimaryMessage>,
    back: Network<WorkerMessage>,
    /// Between workers.
    across: RelayTraffic,
}

/// The machine of the primary.
struct SimHost {
    cores: f64,
    /// Peers on these cores.
    peers: Vec<usize>,
    event_loop: PrimaryLoop,
}

/// How a run has ended.
struct SimEnd {
    seconds: f64,
    /// Why it failed, if it did.
    failed: Option<String>,
}

/// Simulates a plan. `machines` are the machines of the plan: the primary first.
///
/// # Panics
///
/// If the plan or the state machines break a promise: that is the purpose of the simulation.
pub fn simulate(plan: &Plan, machines: &[Machine], setting: &SimSetting) -> SimReport {
    World::new(plan, machines, setting, None).run_to_report()
}

/// The same with faults, handled as in the program: lost work is reassigned, machines
/// join, the primary's own threads are at least a reserve, and each worker has as many neighbours as the primary introduces.
/// Faults name workers by their index among the machines; those without a part in the plan can join.
///
/// # Panics
///
/// As `simulate`; and if the timing mode does not support a fault (`Faults::check_timed`).
pub fn simulate_with(plan: &Plan, machines: &[Machine], setting: &SimSetting, faults: &Faults) -> SimReport {
    if let Err(why) = faults.check_timed(machines.len().saturating_sub(1)) {
        panic!("{why}");
    }
    World::new(plan, machines, setting, Some(faults)).run_to_report()
}

impl<'a> World<'a> {
    fn new(plan: &Plan, machines: &'a [Machine], setting: &'a SimSetting, faults: Option<&Faults>) -> Self {
        let recovers = faults.is_some();
        let participants = participants::of(plan, machines, &pairs(plan, machines), recovers);
        let links: Vec<(f64, f64)> =
            participants.iter().map(|(machine, _)| participants::link(&machines[*machine])).collect();
        let fastest = links.iter().map(|l| l.0).filter(|r| r.is_finite()).fold(0.0, f64::max);
        let said = || machines.first().and_then(|m| m.nic_bytes_per_s);
        let card = setting.primary_bytes_per_s.or_else(said);
        let card = card.unwrap_or(if fastest > 0.0 { fastest } else { f64::INFINITY });
        let problem = plan.problem;
        let infos = participants.iter().map(|(_, info)| info.clone()).collect();
        let mut primary = Primary::new(plan.clone(), participants::operands(&problem, false), infos);
        primary = if setting.steals { primary } else { primary.without_stealing() };
        let ends: Vec<SimWorker> = participants
            .iter()
            .map(|(machine, info)| end((*machine, info.credit_bytes), machines, setting))
            .collect();
        let faults = faults.map_or_else(Vec::new, |faults| faults.0.clone());
        let session = |info: PeerInfo| SimSession { neighbours: info.neighbours, ..SimSession::default() };
        Self {
            event_queue: EventQueue::new(setting.seed),
            events: 0,
            idle_ticks: 0,
            primary: if recovers { primary.recovering() } else { primary },
            machines,
            setting,
            recovers,
            faults: TimedFaults { struck: vec![None; faults.len()], faults },
            links: SimLinks {
                out: Network::new(Direction::Out, card, links.iter().copied()),
                back: Network::new(Direction::Back, card, links.iter().copied()),
                across: RelayTraffic::new(ends.len()),
            },
            host: SimHost {
                cores: machines.first().map_or(1.0, |m| f64::from(m.threads.max(1))),
                peers: (0..ends.len()).filter(|peer| ends[*peer].on_host).collect(),
                event_loop: PrimaryLoop::default(),
            },
            sessions: participants.into_iter().map(|(_, info)| session(info)).collect(),
            ends,
            pending: SimPendingResults::default(),
            committed: CommittedTiles::default(),
            joins: Vec::new(),
            ended: None,
        }
    }

    /// Runs from the start and returns the report.
    fn run_to_report(mut self) -> SimReport {
        for number in 0..self.faults.faults.len() {
            self.event_queue.add(self.faults.faults[number].from.as_secs_f64(), WorldEvent::Fault(number));
        }
        self.dispatch(PrimaryEvent::Start);
        self.run();
        self.report()
    }

    /// Runs until C is complete, or the product has failed.
    fn run(&mut self) {
        if self.recovers || self.primary.plan().relay {
            self.event_queue.add(TICK_S, WorldEvent::Tick);
        }
        self.attend();
        while self.ended.is_none() {
            let Some(event) = self.event_queue.next() else { self.is_stuck() };
            self.events += 1;
            match event {
                WorldEvent::Link(Direction::Out, LinkSignal::Card) => {
                    self.links.out.card_is_free(&mut self.event_queue)
                }
                WorldEvent::Link(Direction::Back, LinkSignal::Card) => {
                    self.links.back.card_is_free(&mut self.event_queue)
                }
                WorldEvent::Link(Direction::Out, LinkSignal::Left(peer)) => {
                    if let Some(PrimaryMessage::Store(message)) =
                        self.links.out.left(peer, &mut self.event_queue)
                    {
                        self.host.event_loop.tasks.push_back(LoopTask::Sent(peer, message.wire_bytes()));
                    }
                }
                WorldEvent::Link(Direction::Out, LinkSignal::There(peer)) => {
                    if let Some(message) = self.links.out.there(peer) {
                        self.stored(peer, message);
                    }
                }
                WorldEvent::Link(Direction::Back, LinkSignal::Left(peer)) => {
                    if let Some(parcel) = self.links.back.left(peer, &mut self.event_queue) {
                        self.ends[peer].left(parcel);
                        self.advance(peer);
                    }
                }
                WorldEvent::Link(Direction::Back, LinkSignal::There(peer)) => {
                    if let Some(parcel) = self.links.back.there(peer) {
                        self.host.event_loop.tasks.push_back(LoopTask::Take(peer, parcel));
                    }
                }
                WorldEvent::Relay(RelayEvent::Left(from)) if self.ends[from].lives => {
                    if let Some(forward) = self.links.across.left(from) {
                        self.ends[from].passed(&forward);
                    }
                    self.advance(from);
                }
                WorldEvent::Relay(RelayEvent::There { from, to, piece }) => {
                    if self.ends[to].lives && !self.ends[to].parted.contains(&from) {
                        self.links.across.there(to, from, piece);
                        self.advance(to);
                    }
                }
                WorldEvent::Tick => self.tick(),
                WorldEvent::Loop => {
                    if let Some(loop_task) = self.host.event_loop.current.take() {
                        self.perform(loop_task);
                    }
                }
                WorldEvent::Done(peer, task) if self.ends[peer].lives => self.done(peer, task),
                WorldEvent::Relay(RelayEvent::Left(_)) | WorldEvent::Done(..) => {}
                WorldEvent::Fault(number) => self.begin_fault(number),
                WorldEvent::Over(number) => self.end_fault(number),
                WorldEvent::Gone(peer) => self.gone(peer),
                WorldEvent::Parts(peer, other) => self.part(peer, other, true),
            }
            self.attend();
        }
    }

    fn is_stuck(&self) -> ! {
        panic!("nothing can happen any more, and {} tiles are missing", self.primary.tiles_left());
    }

    /// A tick: machines that run and are not suspended are heard, however slow they are.
    fn tick(&mut self) {
        let nothing_else = self.recovers && self.event_queue.is_empty();
        self.idle_ticks = if nothing_else { self.idle_ticks + 1 } else { 0 };
        if self.idle_ticks > IDLE_TICKS_MAX {
            self.is_stuck();
        }
        for peer in 0..self.ends.len() {
            if self.ends[peer].lives && self.ends[peer].stands == 0 {
                let now = self.event_queue.now();
                let (came, gone) = (self.links.back.gone(peer, now), self.links.out.gone(peer, now));
                self.dispatch(PrimaryEvent::Flow { peer, received: came, acknowledged: gone, buffered: 0 });
            }
        }
        self.dispatch(PrimaryEvent::Tick);
        self.event_queue.add(TICK_S, WorldEvent::Tick);
    }

    fn done(&mut self, peer: usize, task: SimTask) {
        if self.ends[peer].stands > 0 {
            return self.ends[peer].tasks.deferred.push(task);
        }
        self.ends[peer].done(task);
        self.ends[peer].report.last_job_s = self.event_queue.now().seconds();
        self.advance(peer);
    }

    /// A message of the primary has arrived at a machine.
    fn stored(&mut self, peer: usize, message: PrimaryMessage) {
        if !self.ends[peer].lives {
            return;
        }
        if self.ends[peer].stands > 0 {
            return self.sessions[peer].inbox.push_back(message);
        }
        match message {
            PrimaryMessage::Store(message) => self.ends[peer].stored(&message),
            PrimaryMessage::Relay(forwards) => self.ends[peer].ordered(&forwards),
            PrimaryMessage::Parted(other) => return self.part(peer, other, false),
            PrimaryMessage::Ping(_) => unreachable!("pings take no time, and are not sent"),
        }
        self.ends[peer].report.last_store_s = self.event_queue.now().seconds();
        self.advance(peer);
    }

    /// Starts tasks on a machine's idle threads, and sends its messages.
    fn advance(&mut self, peer: usize) {
        if !self.ends[peer].lives || self.ends[peer].stands > 0 {
            return;
        }
        self.links.across.land(peer, &mut self.ends[peer]);
        let SimLinks { out, back, across } = &mut self.links;
        across.order(peer, &mut self.ends[peer], (out, back), &mut self.event_queue);
        while let Some(mut parcel) = self.ends[peer].leaving.pop_front() {
            if self.ends[peer].shares_memory {
                self.ends[peer].left(&mut parcel);
                self.host.event_loop.tasks.push_back(LoopTask::Take(peer, parcel));
            } else {
                self.links.back.send(peer, parcel, parcel.wire_bytes(), &mut self.event_queue);
            }
        }
        while let Some((task, seconds)) = self.ends[peer].begin() {
            let slowed = if self.ends[peer].on_host { seconds * self.slowness() } else { seconds };
            self.ends[peer].report.busy_s += slowed;
            self.event_queue.add(slowed, WorldEvent::Done(peer, task));
        }
    }

    fn report(self) -> SimReport {
        let moved = self.primary.moved();
        let element_bytes = self.primary.plan().problem.element_bytes();
        let plan = self.primary.plan();
        let end = self.ended.unwrap_or(SimEnd { seconds: 0.0, failed: None });
        if end.failed.is_none() {
            let elements = plan.problem.m * plan.problem.n;
            assert_eq!(self.committed.elements, elements, "every element of C, once");
            assert_eq!((self.primary.tiles_left(), self.primary.sums_under_way()), (0, (0, 0)));
        }
        let losses = self.primary.losses().iter().map(|lost| SimLoss {
            machine: self.ends[lost.peer].report.machine,
            at_s: lost.at.as_secs_f64(),
            why: lost.why.clone(),
            part: lost.part,
        });
        let losses = losses.collect();
        let mut machines = Vec::with_capacity(self.ends.len());
        for (peer, worker) in self.ends.into_iter().enumerate() {
            let (bytes_out, bytes_back) = match worker.shares_memory {
                true => (0, 0),
                false => (self.links.out.bytes(peer), self.links.back.bytes(peer)),
            };
            let bytes_passed = self.links.across.bytes[peer];
            machines.push(crate::SimMachineReport { bytes_out, bytes_back, bytes_passed, ..worker.report });
        }
        SimReport {
            seconds: end.seconds,
            failed: end.failed,
            losses,
            joins: self.joins,
            jobs: machines.iter().map(|m| m.jobs).sum(),
            machines,
            moved,
            loop_busy_s: self.host.event_loop.busy_s,
            partial_sum_bytes_max: self.pending.waiting_max * element_bytes,
            tiles: self.committed.tiles.len() as u64,
            events: self.events,
        }
    }
}

/// A simulated machine by its index, with this grant.
fn end((number, grant_bytes): (usize, u64), machines: &[Machine], setting: &SimSetting) -> SimWorker {
    let rates = setting.rates.get(number).copied().unwrap_or(SimRates::USUAL);
    let speed = setting.speeds.get(number).copied().unwrap_or(1.0);
    let is = &machines[number];
    let shares_memory = is.link.is_none();
    let moves = setting.moves_s_per_byte.get(number).copied().filter(|_| !shares_memory).unwrap_or(0.0);
    let speed = SimSpeed::new(is.threads, is.gflops * speed, rates).moving(moves);
    let limits = StartLimits::for_threads(to_usize(is.threads));
    let mut end = SimWorker::new(grant_bytes, shares_memory, speed, limits);
    end.on_host |= is.shares_cores;
    end.tasks.in_order = !setting.additions_first;
    end.report.machine = number;
    end
}

/// The pairs of members that the primary introduces to each other.
fn pairs(plan: &Plan, machines: &[Machine]) -> Vec<(usize, usize)> {
    let moves = |at: usize| machines[plan.members[at].machine].link.is_some();
    if !plan.relay {
        return Vec::new();
    }
    neighbour_pairs(&plan.members, NEIGHBOURS_MAX, |one, other| moves(one) && moves(other))
}
