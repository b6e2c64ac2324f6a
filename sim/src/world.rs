//! A primary and its workers: everything that happens, in the order of time.
//!
//! The primary's event loop is one server: what it sends and takes waits for it in order, and takes processor time for
//! its bytes; sums are added before anything else goes on. Machines on the primary's cores slow down in proportion
//! where more wants to run than there are cores.
//!
//! Invariants: see `lib.rs`; they are asserted here.

use crate::clock::Agenda;
use crate::machine::{End, Parcel, Task};
use crate::network::{Network, Signal, Way};
use crate::relay::{Across, Passing};
use crate::report::Report;
use crate::setting::{Pace, Setting};
use bramble_matrix::{Layout, Rect};
use bramble_plan::{Machine, Plan};
use bramble_schedule::message::Forward;
use bramble_schedule::primary::{Action, Event, Operands, Outgoing, PeerInfo, Place, Primary};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often the primary looks at the time.
const TICK_S: f64 = 0.1;

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
}

impl Message {
    /// Bytes on the wire.
    fn frame_bytes(&self) -> usize {
        match self {
            Self::Store(message) => 16 + message.wire_bytes(),
            Self::Relay(forwards) => 16 + 2 + 12 * forwards.len(),
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

struct World<'a> {
    agenda: Agenda<Happening>,
    primary: Primary,
    ends: Vec<End>,
    out: Network<Message>,
    /// Between workers.
    across: Across,
    back: Network<Parcel>,
    setting: &'a Setting,
    cores: f64,
    duties: VecDeque<Duty>,
    /// What the event loop is busy with.
    duty: Option<Duty>,
    loop_busy_s: f64,
    /// Sums that wait, and their bytes.
    asides: BTreeMap<(usize, u32), u64>,
    aside_bytes: u64,
    aside_bytes_max: u64,
    committed: BTreeSet<(u64, u64)>,
    committed_elements: u64,
    finished_s: Option<f64>,
    events: u64,
}

/// Carries a plan out. `machines` are those that it was made for: the primary first.
///
/// # Panics
///
/// Where the plan or the state machines break a promise: that is what it is for.
pub fn simulate(plan: &Plan, machines: &[Machine], setting: &Setting) -> Report {
    let mut world = World::new(plan, machines, setting);
    world.tell(Event::Start);
    world.run();
    world.report()
}

impl<'a> World<'a> {
    fn new(plan: &Plan, machines: &[Machine], setting: &'a Setting) -> Self {
        let problem = plan.problem;
        let of = |member: &bramble_plan::Member| &machines[member.machine];
        let relays = |at: usize| plan.relay && of(&plan.members[at]).link.is_some();
        let neighbours = |member: &bramble_plan::Member| {
            let others = (0..plan.members.len()).filter(|at| plan.members[*at].machine != member.machine);
            if of(member).link.is_some() { others.filter(|at| relays(*at)).collect() } else { Vec::new() }
        };
        let info = |member: &bramble_plan::Member| PeerInfo {
            name: of(member).name.clone(),
            credit_bytes: member.memory_bytes,
            shares_memory: of(member).link.is_none(),
            neighbours: neighbours(member),
            work_per_s: of(member).gflops * 1e9 / 2.0,
            is_reserve: false,
        };
        let end = |member: &bramble_plan::Member| {
            let machine = of(member);
            let pace = setting.paces.get(member.machine).copied();
            let speed = setting.speeds.get(member.machine).copied().unwrap_or(1.0);
            let really = Machine { gflops: machine.gflops * speed, ..machine.clone() };
            End::new(member, &really, pace.unwrap_or(Pace::USUAL), setting.additions_first)
        };
        let links = || {
            plan.members.iter().map(|m| match of(m).link {
                Some(link) => (link.bytes_per_s, link.round_trip_s / 2.0),
                None => (f64::INFINITY, 0.0),
            })
        };
        let fastest = links().map(|l| l.0).filter(|r| r.is_finite()).fold(0.0, f64::max);
        let said = || machines.first().and_then(|m| m.nic_bytes_per_s);
        let card = setting.primary_bytes_per_s.or_else(said);
        let card = card.unwrap_or(if fastest > 0.0 { fastest } else { f64::INFINITY });
        let operands = Operands {
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            a_generated: !problem.sends_a,
            b_generated: !problem.sends_b,
            reads_c: problem.reads_c,
        };
        let primary = Primary::new(plan.clone(), operands, plan.members.iter().map(info).collect());
        Self {
            agenda: Agenda::new(setting.seed),
            primary: if setting.steals { primary } else { primary.without_stealing() },
            ends: plan.members.iter().map(end).collect(),
            out: Network::new(Way::Out, card, links()),
            back: Network::new(Way::Back, card, links()),
            setting,
            cores: machines.first().map_or(1.0, |m| f64::from(m.threads.max(1))),
            across: Across::new(plan.members.len()),
            duties: VecDeque::new(),
            duty: None,
            loop_busy_s: 0.0,
            asides: BTreeMap::new(),
            aside_bytes: 0,
            aside_bytes_max: 0,
            committed: BTreeSet::new(),
            committed_elements: 0,
            finished_s: None,
            events: 0,
        }
    }

    /// Until C is there.
    fn run(&mut self) {
        if self.primary.plan().relay {
            self.agenda.add(TICK_S, Happening::Tick);
        }
        self.attend();
        while self.finished_s.is_none() {
            let Some(happening) = self.agenda.next() else {
                panic!("nothing can happen any more, and {} tiles are missing", self.primary.tiles_left());
            };
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
                        self.stored(peer, &message);
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
                Happening::Passing(Passing::Left(from)) => {
                    if let Some(forward) = self.across.left(from) {
                        self.ends[from].passed(&forward);
                    }
                    self.go_on(from);
                }
                Happening::Passing(Passing::There { from, to, piece }) => {
                    self.across.there(to, from, piece);
                    self.go_on(to);
                }
                Happening::Tick => {
                    // Nobody is silent here, only slow.
                    (0..self.ends.len()).for_each(|peer| self.tell(Event::Alive { peer }));
                    self.tell(Event::Tick);
                    self.agenda.add(TICK_S, Happening::Tick);
                }
                Happening::Loop => {
                    if let Some(duty) = self.duty.take() {
                        self.perform(duty);
                    }
                }
                Happening::Done(peer, task) => {
                    self.ends[peer].done(task);
                    self.ends[peer].report.last_job_s = self.agenda.now().seconds();
                    self.go_on(peer);
                }
            }
            self.attend();
        }
    }

    /// A store message is at a machine.
    fn stored(&mut self, peer: usize, message: &Message) {
        match message {
            Message::Store(message) => self.ends[peer].stored(message),
            Message::Relay(forwards) => self.ends[peer].ordered(forwards),
        }
        self.ends[peer].report.last_store_s = self.agenda.now().seconds();
        self.go_on(peer);
    }

    /// Starts what a machine's threads can do, and gives its link what leaves.
    fn go_on(&mut self, peer: usize) {
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

    /// How many times as long things take on the primary's cores, for what runs there now.
    fn slowness(&self) -> f64 {
        let mut wanted = if self.duty.is_some() { 1.0 } else { 0.0 };
        for (peer, end) in self.ends.iter().enumerate().filter(|(_, e)| e.on_host) {
            let moves = self.out.is_busy(peer) || self.back.is_busy(peer);
            let far = if moves { self.setting.far_s_per_byte * self.out.rate(peer) } else { 0.0 };
            wanted += f64::from(end.running) + far.min(1.0);
        }
        (wanted / self.cores).max(1.0)
    }

    /// The event loop goes on until it is busy or has nothing to do.
    fn attend(&mut self) {
        while self.duty.is_none() {
            let Some(duty) = self.duties.pop_front() else { return };
            let seconds = self.seconds(&duty);
            if seconds > 0.0 {
                self.duty = Some(duty);
                let slowed = seconds * self.slowness();
                self.loop_busy_s += seconds;
                self.agenda.add(slowed, Happening::Loop);
            } else {
                self.perform(duty);
            }
        }
    }

    fn seconds(&self, duty: &Duty) -> f64 {
        match duty {
            Duty::Sent(..) => 0.0,
            Duty::Merge(bytes) => *bytes as f64 * self.setting.merge_s_per_byte,
            // The own threads' messages go by reference; a sum that waits is copied.
            Duty::Send(peer, _) if self.ends[*peer].shares_memory => 0.0,
            Duty::Send(_, message) => message.frame_bytes() as f64 * self.setting.loop_s_per_byte,
            Duty::Take(peer, parcel) => match parcel {
                Parcel::Result { bytes, .. } => *bytes as f64 * self.setting.loop_s_per_byte,
                Parcel::Credit(_) if self.ends[*peer].shares_memory => 0.0,
                Parcel::Credit(_) => parcel.wire_bytes() as f64 * self.setting.loop_s_per_byte,
            },
        }
    }

    fn perform(&mut self, duty: Duty) {
        match duty {
            Duty::Merge(_) => {}
            Duty::Sent(peer, bytes) => self.tell(Event::Sent { peer, bytes }),
            Duty::Send(peer, message) if self.ends[peer].shares_memory => {
                self.stored(peer, &message);
                if let Message::Store(message) = message {
                    self.duties.push_back(Duty::Sent(peer, message.wire_bytes()));
                }
            }
            Duty::Send(peer, message) => {
                let bytes = message.frame_bytes();
                self.out.send(peer, message, bytes, &mut self.agenda);
            }
            Duty::Take(peer, Parcel::Credit(bytes)) => self.tell(Event::Credit { peer, bytes }),
            Duty::Take(peer, Parcel::Result { head, .. }) => {
                self.ends[peer].report.last_result_s = self.agenda.now().seconds();
                let expected = self.primary.expect(peer, &head);
                let place = expected.unwrap_or_else(|e| panic!("a worker broke the protocol: {e}"));
                if place.place == Place::Aside && head.first_line == 0 {
                    let bytes = self.bytes_of(place.rect);
                    assert!(self.asides.insert((peer, head.c), bytes).is_none(), "put aside twice");
                    self.aside_bytes += bytes;
                    self.aside_bytes_max = self.aside_bytes_max.max(self.aside_bytes);
                    let most = self.primary.plan().predicted.primary_memory_bytes;
                    assert!(
                        self.aside_bytes <= most,
                        "{} bytes wait, {most} were predicted",
                        self.aside_bytes
                    );
                }
                self.tell(Event::Landed { peer, head });
            }
        }
    }

    fn bytes_of(&self, rect: Rect) -> u64 {
        rect.rows.len() * rect.cols.len() * self.primary.plan().problem.element_bytes()
    }

    /// One event through the primary's state, and what comes of it.
    fn tell(&mut self, event: Event) {
        let now = self.agenda.now();
        for action in self.primary.handle(event, now.duration()) {
            match action {
                Action::Send(peer, message) => {
                    self.duties.push_back(Duty::Send(peer, Message::Store(message)));
                }
                Action::Relay(peer, forwards) => {
                    self.duties.push_back(Duty::Send(peer, Message::Relay(forwards)));
                }
                Action::Merge { peer, tile, rect } => {
                    let bytes = self.asides.remove(&(peer, tile));
                    let bytes = bytes.unwrap_or_else(|| panic!("a sum is added that is not there"));
                    assert_eq!(bytes, self.bytes_of(rect), "a sum is added where it does not belong");
                    self.aside_bytes -= bytes;
                    self.duties.push_front(Duty::Merge(bytes));
                }
                Action::Committed(rect) => {
                    let first = self.committed.insert((rect.rows.start, rect.cols.start));
                    assert!(first, "{rect} is committed twice");
                    self.committed_elements += rect.rows.len() * rect.cols.len();
                }
                Action::Finished => self.finished_s = Some(self.finish()),
                Action::Ping(..) => {}
                Action::Cut { .. } | Action::Put { .. } => unreachable!("no machine is lost here"),
                Action::Parted { .. } => unreachable!("links between workers do not end here"),
                Action::Fail(why) => panic!("the product failed: {why}"),
            }
        }
    }

    /// The time at which C is there: after what is still to be added.
    fn finish(&self) -> f64 {
        let left = self.duties.iter().filter(|d| matches!(d, Duty::Merge(_)));
        self.agenda.now().seconds() + left.map(|d| self.seconds(d)).sum::<f64>()
    }

    fn report(self) -> Report {
        let moved = self.primary.moved();
        let plan = self.primary.plan();
        assert_eq!(self.committed_elements, plan.problem.m * plan.problem.n, "every element of C, once");
        assert_eq!((self.primary.tiles_left(), self.primary.sums_under_way()), (0, (0, 0)));
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
