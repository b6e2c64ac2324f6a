//! A ring of machines in a trial: virtual time, links, faults, and the events one after the other.
//!
//! Place in the flow: `trial.rs` runs one ring without faults and one with them, and checks the end.
//!
//! Invariants: a link delivers frames in order, and takes at most so many before the first has arrived. Its sender may notice
//! that a frame has gone before or after the other end has it. A machine that is dead or was stopped takes part in nothing.
//!
//! Deliberately absent: the rules of a machine (`rules.rs`); rows of a block on their way, and right-hand sides.

use super::machine::{RingFrame, RingMachine, WrongUpdate};
use super::result::LuRareEvents;
use super::scenario::{LuFault, LuScenario};
use crate::clock::EventQueue;
use crate::random::{SeededRandom, mixed};
use bramble_schedule::lu::LuEvent;
use std::collections::BTreeMap;

/// Events after which a run counts as endless.
const EVENTS_MAX: u64 = 2_000_000;

/// What happens.
#[derive(Clone, Debug)]
enum RingEvent {
    /// The primary says that tasks may begin.
    Go(usize),
    /// A block comes from the primary to its owner.
    Fills(usize, usize),
    /// A machine's task ends, by its number.
    TaskEnds(usize, u64),
    /// The sender notices that a frame has gone; the panel whose last elements it had.
    Gone(usize, usize, Option<usize>),
    /// A frame arrives, from one machine at another.
    Arrives(usize, usize, RingFrame),
    /// A machine dies.
    Dies(usize),
    /// The primary ends the session of a machine.
    Stops(usize),
}

/// One direction of a link.
#[derive(Default)]
struct RingLink {
    is_writing: bool,
    in_flight: usize,
    /// When the last frame arrives.
    last_s: f64,
    /// Frames that would arrive in this time arrive at its end.
    stall: Option<(f64, f64)>,
    /// Nothing arrives later, as one end is dead.
    cut_s: Option<f64>,
}

/// What a run has come to.
pub(super) struct RingRun {
    pub(super) machines: Vec<RingMachine>,
    /// Machines that died or were stopped.
    pub(super) is_gone: Vec<bool>,
    pub(super) seconds: f64,
    pub(super) events: u64,
    pub(super) hash: u64,
}

/// Machines and the links between them.
pub(super) struct Ring<'a> {
    scenario: &'a LuScenario,
    random: SeededRandom,
    queue: EventQueue<RingEvent>,
    machines: Vec<RingMachine>,
    is_gone: Vec<bool>,
    links: BTreeMap<(usize, usize), RingLink>,
    /// For each machine: the time in which it is slow, and how much.
    slow: Vec<Option<(f64, f64, f64)>>,
    seen: &'a mut LuRareEvents,
    log: &'a mut Option<Vec<String>>,
    events: u64,
    hash: u64,
}

impl<'a> Ring<'a> {
    pub(super) fn new(
        scenario: &'a LuScenario,
        matrix: &[Vec<u64>],
        seed: u64,
        seen: &'a mut LuRareEvents,
        log: &'a mut Option<Vec<String>>,
    ) -> Self {
        let machines = scenario.machines();
        let links = (0..machines)
            .filter(|_| machines > 1)
            .flat_map(|at| [(at, (at + 1) % machines), ((at + 1) % machines, at)])
            .map(|pair| (pair, RingLink::default()));
        Self {
            scenario,
            random: SeededRandom::new(seed),
            queue: EventQueue::new(seed | 1),
            machines: (0..machines).map(|me| RingMachine::new(scenario, me, matrix)).collect(),
            is_gone: vec![false; machines],
            links: links.collect(),
            slow: vec![None; machines],
            seen,
            log,
            events: 0,
            hash: seed,
        }
    }

    /// Plans the faults: `seconds` is the time without them, `updates` counts each machine's updates.
    pub(super) fn plan_faults(&mut self, seconds: f64, updates: &[u64]) {
        for fault in &self.scenario.faults {
            match *fault {
                LuFault::Dies { machine, at } => self.queue.add(at * seconds, RingEvent::Dies(machine)),
                LuFault::Stalls { from, to, span } => {
                    if let Some(link) = self.links.get_mut(&(from, to)) {
                        link.stall = Some((span.0 * seconds, span.1 * seconds));
                    }
                }
                LuFault::Slows { machine, span, times } => {
                    self.slow[machine] = Some((span.0 * seconds, span.1 * seconds, times));
                }
                LuFault::Errs { machine, at, choice } => {
                    let number = (at * updates[machine] as f64) as u64;
                    self.machines[machine].wrong = Some(WrongUpdate { number, choice, has_erred: false });
                }
            }
        }
    }

    /// Runs until nothing can happen any more.
    pub(super) fn run(mut self) -> RingRun {
        for at in 0..self.machines.len() {
            let seconds = self.drawn(self.scenario.link_s[at] * 3.0);
            self.queue.add(seconds, RingEvent::Go(at));
        }
        self.plan_fills();
        let mut end_s = 0.0;
        while let Some(event) = self.queue.next() {
            self.events += 1;
            assert!(self.events < EVENTS_MAX, "violation: the run does not end");
            let now = self.queue.now();
            if let Some(log) = self.log {
                log.push(format!("{:.6} {event:?}", now.seconds()));
            }
            self.hash = mixed(self.hash ^ now.picoseconds());
            let were_finished = self.finished();
            self.happen(event);
            if self.finished() > were_finished {
                end_s = now.seconds();
            }
        }
        let Self { machines, is_gone, events, hash, .. } = self;
        RingRun { machines, is_gone, seconds: end_s, events, hash }
    }

    /// Plans when each block comes: ascending at each machine, as the primary sends them, or in any order.
    fn plan_fills(&mut self) {
        let (is_ascending, mut last_s) = (self.random.chance(0.6), vec![0.0; self.machines.len()]);
        for (block, owner) in self.scenario.owners.iter().enumerate() {
            let typical = self.scenario.fill_s;
            let seconds = match is_ascending {
                true => last_s[*owner] + self.drawn(typical),
                false => self.drawn(typical * self.scenario.owners.len() as f64),
            };
            last_s[*owner] = seconds;
            self.queue.add(seconds, RingEvent::Fills(*owner, block));
        }
    }

    fn finished(&self) -> usize {
        self.machines.iter().filter(|machine| machine.is_finished()).count()
    }

    /// Seconds around a typical number: between a third and three times.
    fn drawn(&mut self, seconds: f64) -> f64 {
        seconds * 10f64.powf(self.random.between(-0.5, 0.5))
    }

    fn happen(&mut self, event: RingEvent) {
        let (kind, at, detail) = match &event {
            RingEvent::Go(at) => (1, *at, 0),
            RingEvent::TaskEnds(at, number) => (2, *at, *number),
            RingEvent::Gone(at, to, step) => {
                (3, *at, ((*to as u64) << 32) + step.map_or(0, |s| s as u64 + 1))
            }
            RingEvent::Arrives(from, at, frame) => (4, *at, ((*from as u64) << 32) + weight(frame)),
            RingEvent::Dies(at) => (5, *at, 0),
            RingEvent::Stops(at) => (6, *at, 0),
            RingEvent::Fills(at, block) => (7, *at, *block as u64),
        };
        self.hash = mixed(self.hash ^ mixed(detail ^ mixed(kind << 8 | at as u64)));
        match event {
            RingEvent::Go(at) => self.with(at, |machine, seen| machine.handle(LuEvent::Begin, seen)),
            RingEvent::Fills(at, block) => self.with(at, |machine, seen| machine.fill(block, seen)),
            RingEvent::TaskEnds(at, number) => self.with(at, |machine, seen| machine.end(number, seen)),
            RingEvent::Gone(at, to, step) => self.gone(at, to, step),
            RingEvent::Arrives(from, at, frame) => {
                self.links.entry((from, at)).or_default().in_flight -= 1;
                self.with(at, |machine, seen| machine.take(frame, seen));
                self.pump(from, at);
            }
            RingEvent::Dies(at) => self.dies(at),
            RingEvent::Stops(at) => {
                self.seen.losses[1] += u64::from(!self.is_gone[at] && !self.machines[at].is_finished());
                self.is_gone[at] = true;
            }
        }
    }

    /// Lets a machine do something, unless it is gone; then schedules the tasks that begin, and sends what there is.
    fn with(&mut self, at: usize, act: impl FnOnce(&mut RingMachine, &mut LuRareEvents) -> Vec<u64>) {
        if self.is_gone[at] {
            return;
        }
        let begun = act(&mut self.machines[at], self.seen);
        for number in begun {
            let now = self.queue.now().seconds();
            let slow = self.slow[at].filter(|(from, end, _)| (*from..*end).contains(&now));
            self.seen.slowed += u64::from(slow.is_some());
            let times = slow.map_or(1.0, |(_, _, times)| times);
            let spread = self.scenario.task_spread;
            let unequal = 10f64.powf(self.random.between(-spread, spread));
            let seconds = self.scenario.task_s[at] * unequal * times;
            self.queue.add(seconds, RingEvent::TaskEnds(at, number));
        }
        let neighbours: Vec<usize> = self.links.keys().filter(|(from, _)| *from == at).map(|l| l.1).collect();
        neighbours.into_iter().for_each(|to| self.pump(at, to));
    }

    /// Writes the next frame to a neighbour if the link can take one.
    fn pump(&mut self, from: usize, to: usize) {
        let window = self.scenario.frames.1;
        let can_take = self.links.get(&(from, to)).is_some_and(|l| !l.is_writing && l.in_flight < window);
        if self.is_gone[from] || !can_take {
            return;
        }
        let Some((frame, last)) = self.machines[from].frame_to(to, self.seen) else { return };
        let typical = self.scenario.link_s[from];
        let (gone, travel) = (self.drawn(typical), self.drawn(typical));
        let now = self.queue.now().seconds();
        let link = self.links.entry((from, to)).or_default();
        let mut arrives = link.last_s.max(now + travel);
        if let Some((start, end)) = link.stall
            && (start..end).contains(&arrives)
        {
            arrives = end;
            self.seen.stalled += 1;
        }
        link.last_s = arrives + typical * 1e-6;
        (link.is_writing, link.in_flight) = (true, link.in_flight + 1);
        let is_lost = link.cut_s.is_some_and(|cut| arrives > cut);
        self.queue.add(gone, RingEvent::Gone(from, to, last));
        if !is_lost {
            self.queue.add(arrives - now, RingEvent::Arrives(from, to, frame));
        }
    }

    /// A frame has left its sender: it may make the next one.
    fn gone(&mut self, at: usize, to: usize, last: Option<usize>) {
        let link = self.links.entry((at, to)).or_default();
        // A link with a dead end takes nothing more.
        if link.cut_s.is_some_and(|cut| self.queue.now().seconds() > cut) {
            return;
        }
        link.is_writing = false;
        match last {
            Some(step) => self.with(at, |machine, seen| machine.handle(LuEvent::Passed(step), seen)),
            None => self.pump(at, to),
        }
    }

    /// A machine dies: its links break a little later, and then the primary ends the run.
    fn dies(&mut self, at: usize) {
        self.seen.losses[0] += 1;
        self.is_gone[at] = true;
        let now = self.queue.now().seconds();
        let pairs: Vec<(usize, usize)> =
            self.links.keys().copied().filter(|l| l.0 == at || l.1 == at).collect();
        for pair in pairs {
            let later = self.drawn(self.scenario.link_s[at]);
            self.links.entry(pair).or_default().cut_s = Some(now + later);
        }
        let notices = self.drawn(20.0 * self.scenario.link_s[at] + self.scenario.task_s[at]);
        for other in (0..self.machines.len()).filter(|other| *other != at) {
            let seconds = notices + self.drawn(self.scenario.link_s[other]);
            self.queue.add(seconds, RingEvent::Stops(other));
        }
    }
}

/// A number from a frame, for the hash.
fn weight(frame: &RingFrame) -> u64 {
    match frame {
        RingFrame::Spent(count) => mixed(*count as u64),
        RingFrame::Panel { step, first, elements, pivots } => {
            let sum = elements.iter().fold(mixed((*step << 20 | *first) as u64), |sum, x| mixed(sum ^ *x));
            pivots.iter().fold(sum, |sum, pivot| mixed(sum ^ *pivot as u64)) & 0xffff_ffff
        }
    }
}
