//! The event log: what happened in a product, when, and at which machine. Traces are drawn from it.
//!
//! Place in the flow: the shell of the primary writes it while a product runs (`recorder`); when the product is over,
//! whoever made it reads it (`states`, and the program's trace).
//!
//! Invariants: one writer; events are appended and never changed. Memory is bounded: `CHUNK_EVENTS` are held, older ones
//! go to the file that was given for it. At most `EVENTS_MAX` are kept; what comes on top is counted.
//! Events of one machine come in the order in which the primary learned of them, not in that of their times.
//!
//! Deliberately absent: what an event means for anybody, elements of matrices, names of files. A product without a log
//! pays nothing for it.
//!
//! Units: nanoseconds since the program began its work, on the primary's clock; bytes.

mod clock;
mod recorder;
mod spool;
mod states;

pub use bramble_schedule::message::{Operation, Work};
pub use bramble_schedule::primary::{Next, Standing};
pub use clock::ClockSample;
pub(crate) use recorder::Recorder;
pub use states::{Span, State, Story};

use bramble_link::clock_ns;
use bramble_schedule::message::Kind;
use spool::Spool;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Events that are kept at most.
const EVENTS_MAX: u64 = 1 << 21;
/// The number of who is no machine of the log: nothing of it is kept.
const NOBODY: u16 = u16::MAX;
/// Events in memory.
const CHUNK_EVENTS: usize = 1 << 16;

/// What the primary is busy with.
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
    /// Goodbyes, with the accounts of workers.
    Closing,
    /// Checking C.
    Verifying,
    /// Bringing C to the disk.
    Keeping,
}

impl Phase {
    /// All of them, in their order.
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

    /// Its name.
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

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// The primary begins something else.
    Phase(Phase),
    /// The link to a machine took a frame.
    Sent(Frame),
    /// A frame came from a machine.
    Received(Frame),
    /// A machine's thread computed.
    Computed {
        /// What.
        work: Work,
        /// Whether its tile was sent back then.
        returns: bool,
        /// Which thread.
        thread: u16,
        /// Id of the matrix that was written.
        matrix: u32,
        /// Step of the job.
        step: u32,
        /// How long.
        took_ns: u64,
    },
    /// A tile comes back from a machine.
    Tile {
        /// Its id there.
        matrix: u32,
        /// Its first row in C.
        row: u64,
        /// Its first column.
        col: u64,
    },
    /// How a machine stands with the schedule has changed.
    Stands(Standing),
}

/// A frame on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of its kind.
    pub kind: u8,
    /// With its header.
    pub bytes: u64,
    /// From its first byte to its last, as far as the primary sees it.
    pub took_ns: u64,
}

impl Frame {
    /// What kind it is.
    pub fn name(&self) -> String {
        Kind::from_code(self.kind).map_or_else(|_| self.kind.to_string(), |k| format!("{k:?}").to_lowercase())
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// When it happened, or began.
    pub at_ns: u64,
    /// To whom: an index into the log's machines. Phases are the primary's, whatever it says.
    pub machine: u16,
    /// What.
    pub what: What,
}

/// A machine that events are about.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// Compute threads.
    pub threads: u16,
    /// How far its clock is from the primary's: when the session was opened, and when it ended.
    pub clocks: [Option<ClockSample>; 2],
    /// Records that it could not send.
    pub lost_records: u64,
}

/// The log of one product.
pub struct Log {
    began: Instant,
    /// The primary's clock then.
    began_ns: u64,
    machines: Vec<Machine>,
    chunk: Vec<Event>,
    spool: Spool,
    count: u64,
    dropped: u64,
    broken: Option<io::Error>,
}

impl Log {
    /// An empty log. `began` is the zero of its times, `spool` an empty file that is only its own.
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

    /// Who events are about.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Events that were not kept because there were too many.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Now, as events have it.
    pub fn now_ns(&self) -> u64 {
        self.time_ns(Instant::now())
    }

    /// A moment as events have it.
    pub fn time_ns(&self, when: Instant) -> u64 {
        u64::try_from(when.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Something begins at the primary, now.
    pub fn phase(&mut self, phase: Phase) {
        let at_ns = self.time_ns(Instant::now());
        self.append(Event { at_ns, machine: 0, what: What::Phase(phase) });
    }

    /// Adds a machine; gives its index.
    pub fn machine(&mut self, machine: Machine) -> u16 {
        self.machines.push(machine);
        u16::try_from(self.machines.len() - 1).unwrap_or(u16::MAX)
    }

    /// Adds an event; not of `NOBODY`. What cannot be written any more is an error of `read`.
    pub fn append(&mut self, event: Event) {
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

    /// Goes through all events, as often as it is called, with what is known by now of other clocks. An error where some
    /// were lost with their file, or `each` gives one.
    pub fn read(&self, mut each: impl FnMut(&Event) -> io::Result<()>) -> io::Result<()> {
        if let Some(e) = &self.broken {
            return Err(io::Error::new(e.kind(), format!("the event log: {e}")));
        }
        let mut spool = self.spool.reader()?;
        while let Some(event) = spool.next()? {
            each(&self.corrected(&event))?;
        }
        self.chunk.iter().try_for_each(|event| each(&self.corrected(event)))
    }

    /// A time that a machine's clock had, on that of events.
    fn time_of_clock(&self, machine: u16, worker_ns: u64) -> u64 {
        let sample = self.machines.get(usize::from(machine)).and_then(|m| m.clocks[0]);
        let offset = sample.map_or(0, |s| s.offset_ns);
        let ours = i128::from(worker_ns) + i128::from(offset) - i128::from(self.began_ns);
        u64::try_from(ours.max(0)).unwrap_or(u64::MAX)
    }

    /// Where a machine's clock was seen to go faster or slower than the primary's, an event of it is moved to where it
    /// belongs: by nothing at the first sample, by all of the difference at the last.
    fn corrected(&self, event: &Event) -> Event {
        let What::Computed { work, returns, thread, matrix, step, took_ns } = event.what else {
            return *event;
        };
        let Some(machine) = self.machines.get(usize::from(event.machine)) else { return *event };
        let place = |at_ns: u64| {
            at_ns.saturating_add_signed(clock::drift_ns(machine.clocks, self.began_ns.saturating_add(at_ns)))
        };
        // Both ends, or what came one after the other would overlap.
        let (at_ns, end_ns) = (place(event.at_ns), place(event.at_ns.saturating_add(took_ns)));
        let took_ns = end_ns.saturating_sub(at_ns);
        Event { at_ns, what: What::Computed { work, returns, thread, matrix, step, took_ns }, ..*event }
    }
}

/// A span of time as events have it.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
