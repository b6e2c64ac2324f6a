//! The state of each machine at each moment of a product, derived from the event log.
//!
//! Place in the flow: after the product; traces draw it as one bar for each machine.
//!
//! Invariants: from the first job to the last tile a machine has exactly one state at every moment, so the spans follow
//! each other without gaps and their lengths add up to the whole. docs/trace.md lists the rules in the order in which they
//! apply, and what a user can do about each state.

use super::{EventLog, LogEvent, LogEventKind, Phase};
use bramble_schedule::primary::WaitsFor;
use bramble_wire::message::Work;
use std::io;

/// State of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineState {
    /// All its compute threads have a job.
    Computing,
    /// Some of its compute threads have a job.
    ComputingPartly,
    /// No thread has a job; the next job's data is on its way or still with the primary or another worker.
    WaitingForData,
    /// No thread has a job, and the primary may not send the next panel before memory is freed.
    WaitingForCredit,
    /// No thread has a job, and finished tiles are being sent.
    Sending,
    /// The machine has no work at present.
    Idle,
}

impl MachineState {
    /// All states.
    pub const ALL: [Self; 6] = [
        Self::Computing,
        Self::ComputingPartly,
        Self::WaitingForData,
        Self::WaitingForCredit,
        Self::Sending,
        Self::Idle,
    ];

    /// Name of the state, for people.
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

/// A period in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// First moment of the period.
    pub start_ns: u64,
    /// First moment after the period.
    pub end_ns: u64,
    /// The state.
    pub state: MachineState,
}

/// History of one machine while C was computed.
#[derive(Clone, Debug, Default)]
pub struct MachineHistory {
    /// Its states, in order of time.
    pub spans: Vec<StateSpan>,
    /// The number of jobs that it had been given and not begun, from each moment on.
    pub jobs_waiting: Vec<(u64, u64)>,
}

/// A change of the counters below.
#[derive(Clone, Copy)]
enum Change {
    /// A job ends; it returned its tile, or did not.
    Ends { returned: bool },
    /// The schedule's status changes.
    Stands { link_is_busy: bool, next: WaitsFor, jobs_given: u32, tiles_back: u32 },
    /// A thread begins a job or generates a panel.
    Begins { is_job: bool },
}

impl Change {
    /// Of changes at the same moment, ends come first: one job may follow another without a gap.
    fn rank(self) -> u8 {
        match self {
            Self::Ends { .. } => 0,
            Self::Stands { .. } => 1,
            Self::Begins { .. } => 2,
        }
    }
}

/// Counters from which a machine's state follows.
struct StateCounters {
    threads: u64,
    running: u64,
    begun: u64,
    given: u64,
    /// Tiles whose last job has ended, and tiles that have arrived at the primary.
    returned: u64,
    back: u64,
    link_is_busy: bool,
    next: WaitsFor,
}

impl StateCounters {
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

    fn state(&self) -> MachineState {
        match self.running {
            0 if self.link_is_busy => MachineState::WaitingForData,
            0 if self.returned > self.back => MachineState::Sending,
            0 if self.next == WaitsFor::Credit => MachineState::WaitingForCredit,
            0 if self.jobs_waiting() > 0 || matches!(self.next, WaitsFor::Link | WaitsFor::Sum) => {
                MachineState::WaitingForData
            }
            0 => MachineState::Idle,
            running if running < self.threads => MachineState::ComputingPartly,
            _ => MachineState::Computing,
        }
    }
}

impl MachineHistory {
    /// Derives a machine's history from the log.
    pub fn of(log: &EventLog, machine: u16) -> io::Result<Self> {
        let (mut from, mut to) = (None, None);
        let mut changes: Vec<(u64, Change)> = Vec::new();
        log.read(|event| {
            match event.what {
                LogEventKind::Phase(Phase::Computing) => from = Some(event.at_ns),
                LogEventKind::Phase(_) if from.is_some() => to = to.or(Some(event.at_ns)),
                _ if event.machine == machine => changes_of(event, &mut changes),
                _ => {}
            }
            Ok(())
        })?;
        let Some((from, to)) = from.zip(to) else { return Ok(Self::default()) };
        changes.sort_by_key(|(at, change)| (*at, change.rank()));
        let threads = log.machines().get(usize::from(machine)).map_or(1, |m| u64::from(m.threads));
        let next = WaitsFor::Nothing;
        let link_is_busy = false;
        let numbers = StateCounters {
            threads,
            running: 0,
            begun: 0,
            given: 0,
            returned: 0,
            back: 0,
            link_is_busy,
            next,
        };
        Ok(build_history(numbers, from, to, &changes))
    }

    /// Total time in a state.
    pub fn total_ns(&self, state: MachineState) -> u64 {
        self.spans.iter().filter(|s| s.state == state).map(|s| s.end_ns - s.start_ns).sum()
    }
}

fn changes_of(event: &LogEvent, changes: &mut Vec<(u64, Change)>) {
    match event.what {
        LogEventKind::Computed { work, returns: returned, took_ns, .. } => {
            let is_job = work != Work::Generate;
            changes.push((event.at_ns, Change::Begins { is_job }));
            changes.push((event.at_ns.saturating_add(took_ns), Change::Ends { returned }));
        }
        LogEventKind::Stands(s) => {
            let link_is_busy = s.in_link_bytes > 0;
            let (next, jobs_given, tiles_back) = (s.next, s.jobs_given, s.tiles_back);
            changes.push((event.at_ns, Change::Stands { link_is_busy, next, jobs_given, tiles_back }));
        }
        LogEventKind::Phase(_)
        | LogEventKind::Sent(_)
        | LogEventKind::Received(_)
        | LogEventKind::Tile { .. } => {}
    }
}

/// Turns changes, sorted by time, into spans.
fn build_history(
    mut numbers: StateCounters,
    from: u64,
    to: u64,
    changes: &[(u64, Change)],
) -> MachineHistory {
    let mut story = MachineHistory::default();
    let mut now = from;
    let mut left = changes;
    loop {
        // Apply all changes of a moment, then take the resulting state.
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
            None => story.spans.push(StateSpan { start_ns: now, end_ns: until_next, state }),
        }
        now = until_next;
    }
}
