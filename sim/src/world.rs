//! A primary and its workers: everything that happens, in the order of time.
//!
//! The primary's event loop is one server: what it sends and takes waits for it in order, and takes processor time for
//! its bytes; sums are added before anything else goes on (`world/event_loop.rs`). Machines on the primary's cores slow down
//! in proportion where more wants to run than there are cores. What faults do is in `world/faults.rs`.
//!
//! Invariants: see `lib.rs`; they are asserted here. A number of a peer is a session: who comes in again has the next.

mod event_loop;
mod faults;
mod people;

use crate::clock::Agenda;
use crate::fault::{Fault, Faults};
use crate::machine::{End, Parcel, Task};
use crate::network::{Network, Signal, Way};
use crate::relay::{Across, Passing};
use crate::report::{Coming, Loss, Report};
use crate::setting::Setting;
use bramble_matrix::Layout;
use bramble_plan::{Machine, Plan};
use bramble_schedule::message::Forward;
use bramble_schedule::primary::{Event, Operands, Outgoing, Primary};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often the primary looks at the time.
const TICK_S: f64 = 0.1;
/// So many looks at the time with nothing else to come, and nothing will come: more than a silent machine is waited for.
const IDLE_TICKS_MAX: u32 = 300;

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Link(Way, Signal),
    Passing(Passing),
    /// Time has passed.
    Tick,
    /// The event loop is done with its task.
    Loop,
    /// A thread of a machine is done with its task.
    Done(usize, Task),
    /// A fault begins, or is over.
    Fault(usize),
    Over(usize),
    /// The primary's reader of a link ends.
    Gone(usize),
    /// A machine sees that its link to another has ended.
    Parts(usize, usize),
}

impl From<(Way, Signal)> for Happening {
    fn from((way, signal): (Way, Signal)) -> Self {
        Self::Link(way, signal)
    }
}

impl From<Passing> for Happening {
    fn from(passing: Passing) -> Self {
        Self::Passing(passing)
    }
}

/// What the primary sends.
enum Message {
    Store(Outgoing),
    Relay(Vec<Forward>),
    /// Another has no link to it any more.
    Parted(usize),
}

impl Message {
    /// Bytes on the wire.
    fn frame_bytes(&self) -> usize {
        match self {
            Self::Store(message) => 16 + message.wire_bytes(),
            Self::Relay(forwards) => 16 + 2 + 12 * forwards.len(),
            Self::Parted(_) => 16 + 5,
        }
    }
}

/// What the primary's event loop has to do.
enum Duty {
    Send(usize, Message),
    Take(usize, Parcel),
    Sent(usize, usize),
    /// Bytes that are added to C; it is done when the time has passed.
    Merge(u64),
}

/// A result that does not land in C.
struct Aside {
    bytes: u64,
    is_whole: bool,
    is_staged: bool,
}

struct World<'a> {
    agenda: Agenda<Happening>,
    primary: Primary,
    machines: &'a [Machine],
    setting: &'a Setting,
    /// Whether others do what a lost machine had to do; without it nothing goes wrong.
    recovers: bool,
    faults: Vec<Fault>,
    /// Which peer each fault has struck.
    struck: Vec<Option<usize>>,
    /// By peer.
    ends: Vec<End>,
    /// Peers on the primary's cores.
    on_host: Vec<usize>,
    out: Network<Message>,
    /// Between workers: with whom each had a link when the product began, and what is on these.
    neighbours: Vec<Vec<usize>>,
    across: Across,
    back: Network<Parcel>,
    /// What is at a machine that stands still.
    inboxes: Vec<VecDeque<Message>>,
    /// Links that the primary has ended, or that have ended for it; and why.
    is_cut: Vec<bool>,
    is_gone: Vec<bool>,
    why: Vec<Option<String>>,
    cores: f64,
    duties: VecDeque<Duty>,
    /// What the event loop is busy with.
    duty: Option<Duty>,
    loop_busy_s: f64,
    /// Sums that wait and tiles that are staged.
    asides: BTreeMap<(usize, u32), Aside>,
    /// Bytes of the sums.
    aside_bytes: u64,
    aside_bytes_max: u64,
    committed: BTreeSet<(u64, u64)>,
    committed_elements: u64,
    comings: Vec<Coming>,
    failed: Option<String>,
    finished_s: Option<f64>,
    idle_ticks: u32,
    events: u64,
}

/// Carries a plan out. `machines` are those that it was made for: the primary first.
///
/// # Panics
///
/// Where the plan or the state machines break a promise: that is what it is for.
pub fn simulate(plan: &Plan, machines: &[Machine], setting: &Setting) -> Report {
    World::new(plan, machines, setting, None).told()
}

/// The same where things go wrong, as the program does it: others do what a machine that is lost has not given back, machines
/// come in, the primary's own threads are there in any case, and each worker knows as many others as it is introduced to.
/// Faults name workers by their numbers among the machines; those without a part in the plan can join.
///
/// # Panics
///
/// As `simulate`; and where a fault is none that this mode knows (`Faults::check_timed`).
pub fn simulate_with(plan: &Plan, machines: &[Machine], setting: &Setting, faults: &Faults) -> Report {
    if let Err(why) = faults.check_timed(machines.len().saturating_sub(1)) {
        panic!("{why}");
    }
    World::new(plan, machines, setting, Some(faults)).told()
}

impl<'a> World<'a> {
    fn new(plan: &Plan, machines: &'a [Machine], setting: &'a Setting, faults: Option<&Faults>) -> Self {
        let recovers = faults.is_some();
        let people = people::of(plan, machines, recovers);
        let links: Vec<(f64, f64)> =
            people.iter().map(|(machine, _)| people::link(&machines[*machine])).collect();
        let fastest = links.iter().map(|l| l.0).filter(|r| r.is_finite()).fold(0.0, f64::max);
        let said = || machines.first().and_then(|m| m.nic_bytes_per_s);
        let card = setting.primary_bytes_per_s.or_else(said);
        let card = card.unwrap_or(if fastest > 0.0 { fastest } else { f64::INFINITY });
        let problem = plan.problem;
        let operands = Operands {
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            a_generated: !problem.sends_a,
            b_generated: !problem.sends_b,
            reads_c: problem.reads_c,
        };
        let infos = people.iter().map(|(_, info)| info.clone()).collect();
        let mut primary = Primary::new(plan.clone(), operands, infos);
        primary = if setting.steals { primary } else { primary.without_stealing() };
        let ends: Vec<End> = people
            .iter()
            .map(|(machine, info)| people::end((*machine, info.credit_bytes), machines, setting))
            .collect();
        let faults = faults.map_or_else(Vec::new, |faults| faults.0.clone());
        Self {
            agenda: Agenda::new(setting.seed),
            primary: if recovers { primary.recovering() } else { primary },
            machines,
            setting,
            recovers,
            struck: vec![None; faults.len()],
            faults,
            on_host: (0..ends.len()).filter(|peer| ends[*peer].on_host).collect(),
            out: Network::new(Way::Out, card, links.iter().copied()),
            back: Network::new(Way::Back, card, links.iter().copied()),
            neighbours: people.into_iter().map(|(_, info)| info.neighbours).collect(),
            across: Across::new(ends.len()),
            inboxes: ends.iter().map(|_| VecDeque::new()).collect(),
            is_cut: vec![false; ends.len()],
            is_gone: vec![false; ends.len()],
            why: vec![None; ends.len()],
            ends,
            cores: machines.first().map_or(1.0, |m| f64::from(m.threads.max(1))),
            duties: VecDeque::new(),
            duty: None,
            loop_busy_s: 0.0,
            asides: BTreeMap::new(),
            aside_bytes: 0,
            aside_bytes_max: 0,
            committed: BTreeSet::new(),
            committed_elements: 0,
            comings: Vec::new(),
            failed: None,
            finished_s: None,
            idle_ticks: 0,
            events: 0,
        }
    }

    /// From the start to the report.
    fn told(mut self) -> Report {
        for number in 0..self.faults.len() {
            self.agenda.add(self.faults[number].from.as_secs_f64(), Happening::Fault(number));
        }
        self.tell(Event::Start);
        self.run();
        self.report()
    }

    /// Until C is there, or it is said that it will not be.
    fn run(&mut self) {
        if self.recovers || self.primary.plan().relay {
            self.agenda.add(TICK_S, Happening::Tick);
        }
        self.attend();
        while self.finished_s.is_none() {
            let Some(happening) = self.agenda.next() else { self.is_stuck() };
            self.events += 1;
            match happening {
                Happening::Link(Way::Out, Signal::Card) => self.out.card_is_free(&mut self.agenda),
                Happening::Link(Way::Back, Signal::Card) => self.back.card_is_free(&mut self.agenda),
                Happening::Link(Way::Out, Signal::Left(peer)) => {
                    if let Some(Message::Store(message)) = self.out.left(peer, &mut self.agenda) {
                        self.duties.push_back(Duty::Sent(peer, message.wire_bytes()));
                    }
                }
                Happening::Link(Way::Out, Signal::There(peer)) => {
                    if let Some(message) = self.out.there(peer) {
                        self.stored(peer, message);
                    }
                }
                Happening::Link(Way::Back, Signal::Left(peer)) => {
                    if let Some(parcel) = self.back.left(peer, &mut self.agenda) {
                        self.ends[peer].left(parcel);
                        self.go_on(peer);
                    }
                }
                Happening::Link(Way::Back, Signal::There(peer)) => {
                    if let Some(parcel) = self.back.there(peer) {
                        self.duties.push_back(Duty::Take(peer, parcel));
                    }
                }
                Happening::Passing(Passing::Left(from)) if self.ends[from].lives => {
                    if let Some(forward) = self.across.left(from) {
                        self.ends[from].passed(&forward);
                    }
                    self.go_on(from);
                }
                Happening::Passing(Passing::There { from, to, piece }) => {
                    if self.ends[to].lives && !self.ends[to].parted.contains(&from) {
                        self.across.there(to, from, piece);
                        self.go_on(to);
                    }
                }
                Happening::Tick => self.tick(),
                Happening::Loop => {
                    if let Some(duty) = self.duty.take() {
                        self.perform(duty);
                    }
                }
                Happening::Done(peer, task) if self.ends[peer].lives => self.done(peer, task),
                Happening::Passing(Passing::Left(_)) | Happening::Done(..) => {}
                Happening::Fault(number) => self.begin_fault(number),
                Happening::Over(number) => self.end_fault(number),
                Happening::Gone(peer) => self.gone(peer),
                Happening::Parts(peer, other) => self.part(peer, other, true),
            }
            self.attend();
        }
    }

    fn is_stuck(&self) -> ! {
        panic!("nothing can happen any more, and {} tiles are missing", self.primary.tiles_left());
    }

    /// Time has passed: who is there and does not stand still is heard, however slow it is.
    fn tick(&mut self) {
        let nothing_else = self.recovers && self.agenda.is_empty();
        self.idle_ticks = if nothing_else { self.idle_ticks + 1 } else { 0 };
        if self.idle_ticks > IDLE_TICKS_MAX {
            self.is_stuck();
        }
        for peer in 0..self.ends.len() {
            if self.ends[peer].lives && self.ends[peer].stands == 0 {
                let now = self.agenda.now();
                let (came, gone) = (self.back.gone(peer, now), self.out.gone(peer, now));
                self.tell(Event::Flow { peer, came, gone, held: 0 });
            }
        }
        self.tell(Event::Tick);
        self.agenda.add(TICK_S, Happening::Tick);
    }

    fn done(&mut self, peer: usize, task: Task) {
        if self.ends[peer].stands > 0 {
            return self.ends[peer].deferred.push(task);
        }
        self.ends[peer].done(task);
        self.ends[peer].report.last_job_s = self.agenda.now().seconds();
        self.go_on(peer);
    }

    /// A message of the primary is at a machine.
    fn stored(&mut self, peer: usize, message: Message) {
        if !self.ends[peer].lives {
            return;
        }
        if self.ends[peer].stands > 0 {
            return self.inboxes[peer].push_back(message);
        }
        match message {
            Message::Store(message) => self.ends[peer].stored(&message),
            Message::Relay(forwards) => self.ends[peer].ordered(&forwards),
            Message::Parted(other) => return self.part(peer, other, false),
        }
        self.ends[peer].report.last_store_s = self.agenda.now().seconds();
        self.go_on(peer);
    }

    /// Starts what a machine's threads can do, and gives its link what leaves.
    fn go_on(&mut self, peer: usize) {
        if !self.ends[peer].lives || self.ends[peer].stands > 0 {
            return;
        }
        self.across.land(peer, &mut self.ends[peer]);
        let links = (&mut self.out, &mut self.back);
        self.across.order(peer, &mut self.ends[peer], links, &mut self.agenda);
        while let Some(mut parcel) = self.ends[peer].leaving.pop_front() {
            if self.ends[peer].shares_memory {
                self.ends[peer].left(&mut parcel);
                self.duties.push_back(Duty::Take(peer, parcel));
            } else {
                self.back.send(peer, parcel, parcel.wire_bytes(), &mut self.agenda);
            }
        }
        while let Some((task, seconds)) = self.ends[peer].begin() {
            let slowed = if self.ends[peer].on_host { seconds * self.slowness() } else { seconds };
            self.ends[peer].report.busy_s += slowed;
            self.agenda.add(slowed, Happening::Done(peer, task));
        }
    }

    fn report(self) -> Report {
        let moved = self.primary.moved();
        let plan = self.primary.plan();
        if self.failed.is_none() {
            let elements = plan.problem.m * plan.problem.n;
            assert_eq!(self.committed_elements, elements, "every element of C, once");
            assert_eq!((self.primary.tiles_left(), self.primary.sums_under_way()), (0, (0, 0)));
        }
        let losses = self.primary.losses().iter().map(|lost| Loss {
            machine: self.ends[lost.peer].report.machine,
            at_s: lost.at.as_secs_f64(),
            why: lost.why.clone(),
            part: lost.part,
        });
        let losses = losses.collect();
        let mut machines = Vec::with_capacity(self.ends.len());
        for (peer, end) in self.ends.into_iter().enumerate() {
            let (bytes_out, bytes_back) = match end.shares_memory {
                true => (0, 0),
                false => (self.out.bytes(peer), self.back.bytes(peer)),
            };
            let bytes_passed = self.across.bytes[peer];
            machines.push(crate::MachineReport { bytes_out, bytes_back, bytes_passed, ..end.report });
        }
        Report {
            seconds: self.finished_s.unwrap_or_default(),
            failed: self.failed,
            losses,
            comings: self.comings,
            jobs: machines.iter().map(|m| m.jobs).sum(),
            machines,
            moved,
            loop_busy_s: self.loop_busy_s,
            aside_bytes_max: self.aside_bytes_max,
            tiles: self.committed.len() as u64,
            events: self.events,
        }
    }
}
