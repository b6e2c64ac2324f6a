//! The event log: what happened in a product, when, and at which machine. Traces are drawn from it.
//!
//! Place in the flow: the primary's shell writes it while a product runs (`recorder`); afterwards the program's trace and
//! `states` read it.
//!
//! Invariants: one writer; events are appended and never changed. Memory is bounded: `CHUNK_EVENTS` are held, older ones
//! move to a file that the caller provides. At most `EVENTS_MAX` are kept; further ones are only counted.
//! Events of one machine are in the order in which the primary learned of them, not in that of their times.
//!
//! Deliberately absent: interpretation of events, elements of matrices, names of files. A product without a log
//! pays nothing for it.
//!
//! Units: nanoseconds on the primary's clock since the program began its work; bytes.

mod clock;
mod recorder;
mod spool;
mod states;

pub use bramble_schedule::primary::{PeerStatus, WaitsFor};
pub use bramble_wire::message::{Operation, Work};
pub use clock::ClockSample;
pub use recorder::EventRecorder;
pub use states::{MachineHistory, MachineState, StateSpan};

use bramble_link::clock_ns;
use bramble_wire::message::Kind;
use spool::Spool;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Most events that are kept.
const EVENTS_MAX: u64 = 1 << 21;
/// Index of a peer that is no machine of the log: its events are dropped.
const NOBODY: u16 = u16::MAX;
/// Most events in memory.
const CHUNK_EVENTS: usize = 1 << 16;

/// Activity of the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Dialling workers, or starting them.
    Reaching,
    /// Greeting and measuring machines.
    Opening,
    /// Choosing a plan.
    Planning,
    /// Having workers that relay find each other.
    Introducing,
    /// From the first job to the last tile.
    Computing,
    /// Goodbyes, and the workers' accounts.
    Closing,
    /// Checking C.
    Verifying,
    /// Syncing C to the disk and giving it its final name.
    Keeping,
}

impl Phase {
    /// All phases, in their usual order.
    pub const ALL: [Self; 8] = [
        Self::Reaching,
        Self::Opening,
        Self::Planning,
        Self::Introducing,
        Self::Computing,
        Self::Closing,
        Self::Verifying,
        Self::Keeping,
    ];

    /// Name of the phase, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reaching => "reaching workers",
            Self::Opening => "opening sessions",
            Self::Planning => "planning",
            Self::Introducing => "introducing workers",
            Self::Computing => "computing",
            Self::Closing => "closing sessions",
            Self::Verifying => "verifying",
            Self::Keeping => "keeping C",
        }
    }
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogEventKind {
    /// The primary begins a phase.
    Phase(Phase),
    /// The link to a machine took a frame.
    Sent(FrameTransfer),
    /// A frame came from a machine.
    Received(FrameTransfer),
    /// A machine's thread computed.
    Computed {
        /// The kind of work.
        work: Work,
        /// Whether its tile was then sent back.
        returns: bool,
        /// The thread.
        thread: u16,
        /// Id of the matrix that it wrote.
        matrix: u32,
        /// Step of the job.
        step: u32,
        /// Duration.
        took_ns: u64,
    },
    /// A tile arrives from a machine.
    Tile {
        /// Its id at that machine.
        matrix: u32,
        /// Its first row in C.
        row: u64,
        /// Its first column.
        col: u64,
    },
    /// The schedule's status of a machine has changed.
    Stands(PeerStatus),
}

/// The transfer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameTransfer {
    /// Number of its kind.
    pub kind: u8,
    /// Size, header included.
    pub bytes: u64,
    /// From the first byte to the last, as seen by the primary.
    pub took_ns: u64,
}

impl FrameTransfer {
    /// Name of the frame's kind.
    pub fn name(&self) -> String {
        Kind::from_code(self.kind).map_or_else(|_| self.kind.to_string(), |k| format!("{k:?}").to_lowercase())
    }
}

/// One event of the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogEvent {
    /// When it happened, or, if it lasted, began.
    pub at_ns: u64,
    /// The machine: an index into the log's machines. Phases are always the primary's.
    pub machine: u16,
    /// What happened.
    pub what: LogEventKind,
}

/// A machine with events in the log.
#[derive(Clone, Debug)]
pub struct LoggedMachine {
    /// Its name.
    pub name: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// Compute threads.
    pub threads: u16,
    /// Offset of its clock when the session was opened, and when it ended.
    pub clocks: [Option<ClockSample>; 2],
    /// Records of jobs that the machine had to drop.
    pub lost_records: u64,
}

/// The log of one product.
pub struct EventLog {
    began: Instant,
    /// The primary's clock at that time.
    began_ns: u64,
    machines: Vec<LoggedMachine>,
    chunk: Vec<LogEvent>,
    spool: Spool,
    count: u64,
    dropped: u64,
    broken: Option<io::Error>,
}

impl EventLog {
    /// An empty log. `began` is the zero of its times; `spool` is an empty file for this log only.
    pub fn new(began: Instant, spool: File) -> Self {
        let since = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Self {
            began,
            began_ns: clock_ns().saturating_sub(since),
            machines: Vec::new(),
            chunk: Vec::new(),
            spool: Spool::new(spool),
            count: 0,
            dropped: 0,
            broken: None,
        }
    }

    /// The machines of the log.
    pub fn machines(&self) -> &[LoggedMachine] {
        &self.machines
    }

    /// Events that were dropped because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The current time, in the log's unit.
    pub fn now_ns(&self) -> u64 {
        self.time_ns(Instant::now())
    }

    /// A time, in the log's unit.
    pub fn time_ns(&self, when: Instant) -> u64 {
        u64::try_from(when.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The primary begins a phase now.
    pub fn phase(&mut self, phase: Phase) {
        let at_ns = self.time_ns(Instant::now());
        self.append(LogEvent { at_ns, machine: 0, what: LogEventKind::Phase(phase) });
    }

    /// Adds a machine and returns its index.
    pub fn machine(&mut self, machine: LoggedMachine) -> u16 {
        self.machines.push(machine);
        u16::try_from(self.machines.len() - 1).unwrap_or(u16::MAX)
    }

    /// Adds an event, unless it is of `NOBODY`. If it cannot be written, the next `read` returns the error.
    pub fn append(&mut self, event: LogEvent) {
        if event.machine == NOBODY {
            return;
        }
        if self.count >= EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        self.count += 1;
        self.chunk.push(event);
        if self.chunk.len() >= CHUNK_EVENTS {
            if let Err(e) = self.spool.write(&self.chunk) {
                self.broken.get_or_insert(e);
            }
            self.chunk.clear();
        }
    }

    /// Visits all events, corrected with the clock samples so far; may be called repeatedly. An error if events
    /// were lost with their file, or if `each` returns one.
    pub fn read(&self, mut each: impl FnMut(&LogEvent) -> io::Result<()>) -> io::Result<()> {
        if let Some(e) = &self.broken {
            return Err(io::Error::new(e.kind(), format!("the event log: {e}")));
        }
        let mut spool = self.spool.reader()?;
        while let Some(event) = spool.next()? {
            each(&self.corrected(&event))?;
        }
        self.chunk.iter().try_for_each(|event| each(&self.corrected(event)))
    }

    /// Converts a reading of a machine's clock to the log's time.
    fn time_of_clock(&self, machine: u16, worker_ns: u64) -> u64 {
        let sample = self.machines.get(usize::from(machine)).and_then(|m| m.clocks[0]);
        let offset = sample.map_or(0, |s| s.offset_ns);
        let ours = i128::from(worker_ns) + i128::from(offset) - i128::from(self.began_ns);
        u64::try_from(ours.max(0)).unwrap_or(u64::MAX)
    }

    /// Corrects an event for a clock that was seen to run faster or slower than the primary's: by nothing at the first sample, by
    /// the whole difference at the last, linearly in between.
    fn corrected(&self, event: &LogEvent) -> LogEvent {
        let LogEventKind::Computed { work, returns, thread, matrix, step, took_ns } = event.what else {
            return *event;
        };
        let Some(machine) = self.machines.get(usize::from(event.machine)) else { return *event };
        let place = |at_ns: u64| {
            at_ns.saturating_add_signed(clock::drift_ns(machine.clocks, self.began_ns.saturating_add(at_ns)))
        };
        // Both ends are corrected; else consecutive events would overlap.
        let (at_ns, end_ns) = (place(event.at_ns), place(event.at_ns.saturating_add(took_ns)));
        let took_ns = end_ns.saturating_sub(at_ns);
        LogEvent {
            at_ns,
            what: LogEventKind::Computed { work, returns, thread, matrix, step, took_ns },
            ..*event
        }
    }
}

/// A duration in the log's unit.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
