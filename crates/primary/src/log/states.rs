//! What each machine was doing at each moment of a product, from its event log.
//!
//! Place in the flow: after the product; traces draw it as one bar a machine.
//!
//! Invariants: from the first job to the last tile every moment of a machine has exactly one state, so the spans follow
//! each other without gaps and their lengths sum up to the whole. Rules in the order in which they are asked, with what
//! a person can do about it, are in docs/trace.md.

use super::{Event, Log, Phase, What};
use bramble_schedule::message::Work;
use bramble_schedule::primary::Next;
use std::io;

/// What a machine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// All its compute threads have a job.
    Computing,
    /// Some of them have.
    ComputingPartly,
    /// None has, and what the next job needs is on its way or still with others.
    WaitingForData,
    /// None has, and the primary may not send the next panel before memory is free.
    WaitingForCredit,
    /// None has, and finished tiles are on their way back.
    Sending,
    /// Nothing is left for it now.
    Idle,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Computing,
        Self::ComputingPartly,
        Self::WaitingForData,
        Self::WaitingForCredit,
        Self::Sending,
        Self::Idle,
    ];

    /// What to call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Computing => "computing (all threads)",
            Self::ComputingPartly => "computing (some threads)",
            Self::WaitingForData => "waiting for data",
            Self::WaitingForCredit => "waiting for credit",
            Self::Sending => "sending results",
            Self::Idle => "idle",
        }
    }
}

/// A state for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First moment.
    pub start_ns: u64,
    /// First moment after it.
    pub end_ns: u64,
    /// The state.
    pub state: State,
}

/// What one machine did while the product was computed.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Its states, one after another.
    pub spans: Vec<Span>,
    /// Jobs that it was given and has not begun, from each moment on.
    pub jobs_waiting: Vec<(u64, u64)>,
}

/// A change, and what it does to the numbers below.
#[derive(Clone, Copy)]
enum Change {
    /// A job ends; it returned its tile, or did not.
    Ends { returned: bool },
    /// How it stands with the schedule.
    Stands { link_is_busy: bool, next: Next, jobs_given: u32, tiles_back: u32 },
    /// A thread begins a job, or something else.
    Begins { is_job: bool },
}

impl Change {
    /// Of changes in the same moment, ends come first: one job may follow another at once.
    fn rank(self) -> u8 {
        match self {
            Self::Ends { .. } => 0,
            Self::Stands { .. } => 1,
            Self::Begins { .. } => 2,
        }
    }
}

/// What counts for the state of a machine.
struct Numbers {
    threads: u64,
    running: u64,
    begun: u64,
    given: u64,
    /// Tiles whose last job has ended, and those that the primary has.
    returned: u64,
    back: u64,
    link_is_busy: bool,
    next: Next,
}

impl Numbers {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Ends { returned } => {
                self.running = self.running.saturating_sub(1);
                self.returned += u64::from(returned);
            }
            Change::Begins { is_job } => {
                self.running += 1;
                self.begun += u64::from(is_job);
            }
            Change::Stands { link_is_busy, next, jobs_given, tiles_back } => {
                (self.link_is_busy, self.next) = (link_is_busy, next);
                (self.given, self.back) = (u64::from(jobs_given), u64::from(tiles_back));
            }
        }
    }

    fn jobs_waiting(&self) -> u64 {
        self.given.saturating_sub(self.begun)
    }

    fn state(&self) -> State {
        match self.running {
            0 if self.link_is_busy => State::WaitingForData,
            0 if self.returned > self.back => State::Sending,
            0 if self.next == Next::Credit => State::WaitingForCredit,
            0 if self.jobs_waiting() > 0 || matches!(self.next, Next::Link | Next::Sum) => {
                State::WaitingForData
            }
            0 => State::Idle,
            running if running < self.threads => State::ComputingPartly,
            _ => State::Computing,
        }
    }
}

impl Story {
    /// What a machine did.
    pub fn of(log: &Log, machine: u16) -> io::Result<Self> {
        let (mut from, mut to) = (None, None);
        let mut changes: Vec<(u64, Change)> = Vec::new();
        log.read(|event| {
            match event.what {
                What::Phase(Phase::Computing) => from = Some(event.at_ns),
                What::Phase(_) if from.is_some() => to = to.or(Some(event.at_ns)),
                _ if event.machine == machine => changes_of(event, &mut changes),
                _ => {}
            }
            Ok(())
        })?;
        let Some((from, to)) = from.zip(to) else { return Ok(Self::default()) };
        changes.sort_by_key(|(at, change)| (*at, change.rank()));
        let threads = log.machines().get(usize::from(machine)).map_or(1, |m| u64::from(m.threads));
        let next = Next::Nothing;
        let link_is_busy = false;
        let numbers =
            Numbers { threads, running: 0, begun: 0, given: 0, returned: 0, back: 0, link_is_busy, next };
        Ok(tell(numbers, from, to, &changes))
    }

    /// How long it was in a state.
    pub fn total_ns(&self, state: State) -> u64 {
        self.spans.iter().filter(|s| s.state == state).map(|s| s.end_ns - s.start_ns).sum()
    }
}

fn changes_of(event: &Event, changes: &mut Vec<(u64, Change)>) {
    match event.what {
        What::Computed { work, returns: returned, took_ns, .. } => {
            let is_job = work != Work::Generate;
            changes.push((event.at_ns, Change::Begins { is_job }));
            changes.push((event.at_ns.saturating_add(took_ns), Change::Ends { returned }));
        }
        What::Stands(s) => {
            let link_is_busy = s.in_link_bytes > 0;
            let (next, jobs_given, tiles_back) = (s.next, s.jobs_given, s.tiles_back);
            changes.push((event.at_ns, Change::Stands { link_is_busy, next, jobs_given, tiles_back }));
        }
        What::Phase(_) | What::Sent(_) | What::Received(_) | What::Tile { .. } => {}
    }
}

/// From changes in the order of time to spans.
fn tell(mut numbers: Numbers, from: u64, to: u64, changes: &[(u64, Change)]) -> Story {
    let mut story = Story::default();
    let mut now = from;
    let mut left = changes;
    loop {
        // All changes of a moment, then the state that they leave.
        let until_next = loop {
            match left.split_first() {
                Some(((at, change), rest)) if *at <= now => {
                    numbers.apply(*change);
                    left = rest;
                }
                Some(((at, _), _)) => break (*at).min(to),
                None => break to,
            }
        };
        let waiting = numbers.jobs_waiting();
        if story.jobs_waiting.last().map(|(_, count)| *count) != Some(waiting) {
            story.jobs_waiting.push((now, waiting));
        }
        if until_next <= now {
            return story;
        }
        let state = numbers.state();
        match story.spans.last_mut().filter(|last| last.state == state) {
            Some(last) => last.end_ns = until_next,
            None => story.spans.push(Span { start_ns: now, end_ns: until_next, state }),
        }
        now = until_next;
    }
}
