//! Renders an event log as JSON in the Chrome trace event format, which Perfetto opens.
//!
//! Invariants: spans of one track do not overlap. docs/trace.md describes tracks, counters and `otherData`; scripts
//! may rely on them.
//!
//! Units in the JSON: microseconds, with three significant decimals.

use bramble_primary::Report;
use bramble_record::log::{
    ClockSample, EventLog, FrameTransfer, LogEvent, LogEventKind, MachineHistory, MachineState, Operation,
    Phase, Work,
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Process number of the primary; machines follow.
const PRIMARY: u64 = 1;
/// Track numbers reserved for each process; more than it has tracks.
const TRACKS: u64 = 10_000;
/// Track numbers within a process; compute threads follow.
const STATE: u64 = 0;
/// See `STATE`.
const SENT: u64 = 1;
/// See `STATE`.
const RECEIVED: u64 = 2;
/// See `STATE`.
const COMPUTE: u64 = 10;

/// One trace event.
#[derive(Serialize)]
struct Entry<'a, A> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    args: A,
}

/// The arguments of a job's event.
#[derive(Serialize)]
struct JobArgs {
    matrix: u32,
    step: u32,
    /// First row and column in C, for a tile that was returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    col: Option<u64>,
    returned: bool,
}

#[derive(Serialize)]
struct FrameArgs {
    bytes: u64,
}

#[derive(Serialize)]
struct NoArgs {}

/// Writes events, one per line.
struct List<'a, W> {
    out: &'a mut W,
    is_empty: bool,
}

impl<W: Write> List<'_, W> {
    fn add<A: Serialize>(&mut self, entry: &Entry<'_, A>) -> io::Result<()> {
        self.out.write_all(if self.is_empty { b"\n" } else { b",\n" })?;
        self.is_empty = false;
        Ok(serde_json::to_writer(&mut *self.out, entry)?)
    }

    fn span<A: Serialize>(
        &mut self,
        track: Track,
        name: &str,
        span_ns: (u64, u64),
        args: A,
    ) -> io::Result<()> {
        let (start, end) = span_ns;
        let dur = Some(micros(end.saturating_sub(start)));
        let (ts, pid, tid) = (micros(start), track.pid, Some(track.tid()));
        self.add(&Entry { name, cat: Some(track.cat), ph: "X", ts, dur, pid, tid, args })
    }

    /// Writes a counter; viewers show both names.
    fn counter(&mut self, pid: u64, names: [&str; 2], at_ns: u64, value: u64) -> io::Result<()> {
        let [name, of] = names;
        let args = BTreeMap::from([(of, value)]);
        self.add(&Entry { name, cat: None, ph: "C", ts: micros(at_ns), dur: None, pid, tid: None, args })
    }

    /// Writes metadata of a process or track.
    fn about(&mut self, what: &'static str, pid: u64, tid: Option<u64>, args: Value) -> io::Result<()> {
        self.add(&Entry { name: what, cat: None, ph: "M", ts: 0.0, dur: None, pid, tid, args })
    }
}

/// A track of spans.
#[derive(Clone, Copy)]
struct Track {
    pid: u64,
    number: u64,
    cat: &'static str,
}

impl Track {
    /// A globally unique id: viewers treat tracks as threads, whose ids no two processes share.
    fn tid(self) -> u64 {
        self.pid * TRACKS + self.number
    }
}

/// Microseconds, plus a tenth of a nanosecond: viewers truncate instead of rounding, and adjacent spans would
/// overlap.
fn micros(ns: u64) -> f64 {
    (ns as f64 + 0.1) / 1e3
}

fn process(machine: u16) -> u64 {
    PRIMARY + 1 + u64::from(machine)
}

/// Writes the whole JSON object.
pub(super) fn render(log: &EventLog, report: &Report, primary: &str, out: &mut impl Write) -> io::Result<()> {
    let machines: Vec<u16> = (0..).take(log.machines().len()).collect();
    let stories =
        machines.iter().map(|m| MachineHistory::of(log, *m)).collect::<io::Result<Vec<MachineHistory>>>()?;
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{},", other(log, report, &stories))?;
    write!(out, "\"traceEvents\":[")?;
    let mut list = List { out, is_empty: true };
    names(log, primary, &mut list)?;
    phases(log, &mut list)?;
    for (machine, story) in machines.iter().zip(&stories) {
        let track = Track { pid: process(*machine), number: STATE, cat: "state" };
        for span in &story.spans {
            list.span(track, span.state.name(), (span.start_ns, span.end_ns), NoArgs {})?;
        }
        for (at_ns, count) in &story.jobs_waiting {
            list.counter(track.pid, ["jobs", "waiting"], *at_ns, *count)?;
        }
    }
    events(log, &mut list)?;
    out.write_all(b"\n]}\n")
}

/// The object `otherData`.
fn other(log: &EventLog, report: &Report, stories: &[MachineHistory]) -> Value {
    let clock = |sample: &Option<ClockSample>| match sample {
        Some(s) => json!({"offset_ns": s.offset_ns, "uncertainty_ns": s.uncertainty_ns}),
        None => Value::Null,
    };
    let machines = log.machines().iter().zip(stories).map(|(m, story)| {
        let states: Map<String, Value> = MachineState::ALL
            .iter()
            .map(|s| (s.name().to_owned(), json!(story.total_ns(*s) as f64 * 1e-9)))
            .collect();
        json!({
            "name": m.name, "link": m.link, "threads": m.threads, "lost_records": m.lost_records,
            "clock_at_start": clock(&m.clocks[0]), "clock_at_end": clock(&m.clocks[1]),
            "state_seconds": states,
        })
    });
    json!({
        "schema": "bramble.trace/1",
        "version": env!("CARGO_PKG_VERSION"),
        "product": format!("{}x{}x{} {}", report.problem.m, report.problem.k, report.problem.n, report.problem.dtype.name()),
        "strategy": report.plan.strategy,
        "seconds": report.seconds,
        "dropped_events": log.dropped(),
        "machines": machines.collect::<Vec<Value>>(),
    })
}

/// Writes names and order of processes and tracks.
fn names<W: Write>(log: &EventLog, primary: &str, list: &mut List<'_, W>) -> io::Result<()> {
    let process_name = |list: &mut List<'_, W>, pid: u64, name: String| {
        list.about("process_name", pid, None, json!({"name": name}))?;
        list.about("process_sort_index", pid, None, json!({"sort_index": pid}))
    };
    let track_name = |list: &mut List<'_, W>, pid: u64, number: u64, name: String| {
        let tid = Some(Track { pid, number, cat: "" }.tid());
        list.about("thread_name", pid, tid, json!({"name": name}))?;
        list.about("thread_sort_index", pid, tid, json!({"sort_index": number}))
    };
    process_name(list, PRIMARY, format!("primary {primary}"))?;
    track_name(list, PRIMARY, STATE, "phases".to_owned())?;
    for (machine, at) in log.machines().iter().zip(0..) {
        let pid = process(at);
        let whose = if machine.link == "thread" { "own threads of" } else { "worker" };
        process_name(list, pid, format!("{whose} {}", machine.name))?;
        track_name(list, pid, STATE, "state".to_owned())?;
        track_name(list, pid, SENT, "link: to it".to_owned())?;
        track_name(list, pid, RECEIVED, "link: from it".to_owned())?;
        for thread in 0..u64::from(machine.threads) {
            track_name(list, pid, COMPUTE + thread, format!("compute {thread}"))?;
        }
    }
    Ok(())
}

/// Writes the phases of the primary; each ends where the next begins, the last one with the last event.
fn phases<W: Write>(log: &EventLog, list: &mut List<'_, W>) -> io::Result<()> {
    let (mut begun, mut last_ns): (Vec<(u64, Phase)>, u64) = (Vec::new(), 0);
    log.read(|event| {
        if let LogEventKind::Phase(phase) = event.what {
            begun.push((event.at_ns, phase));
        }
        last_ns = last_ns.max(event.at_ns);
        Ok(())
    })?;
    let ends = begun.iter().skip(1).map(|(at_ns, _)| *at_ns).chain([log.now_ns().max(last_ns)]);
    let track = Track { pid: PRIMARY, number: STATE, cat: "phase" };
    for ((start, phase), end) in begun.iter().zip(ends) {
        list.span(track, phase.name(), (*start, end), NoArgs {})?;
    }
    Ok(())
}

/// Writes jobs, frames and counters.
fn events<W: Write>(log: &EventLog, list: &mut List<'_, W>) -> io::Result<()> {
    let mut tiles = BTreeMap::new();
    log.read(|event| {
        if let LogEventKind::Tile { matrix, row, col } = event.what {
            tiles.insert((event.machine, matrix), (row, col));
        }
        Ok(())
    })?;
    let kinds: Vec<String> =
        (0..=u8::MAX).map(|kind| FrameTransfer { kind, bytes: 0, took_ns: 0 }.name()).collect();
    log.read(|event| one(event, &tiles, &kinds, list))
}

fn one<W: Write>(
    event: &LogEvent,
    tiles: &BTreeMap<(u16, u32), (u64, u64)>,
    kinds: &[String],
    list: &mut List<'_, W>,
) -> io::Result<()> {
    let (pid, at) = (process(event.machine), event.at_ns);
    let frame = |list: &mut List<'_, W>, number: u64, frame: &FrameTransfer| {
        let track = Track { pid, number, cat: "frame" };
        let (name, args) = (&kinds[usize::from(frame.kind)], FrameArgs { bytes: frame.bytes });
        list.span(track, name, (at, at.saturating_add(frame.took_ns)), args)
    };
    match event.what {
        LogEventKind::Sent(f) => frame(list, SENT, &f),
        LogEventKind::Received(f) => frame(list, RECEIVED, &f),
        LogEventKind::Computed { work, returns, thread, matrix, step, took_ns } => {
            let track = Track { pid, number: COMPUTE + u64::from(thread), cat: "job" };
            let name = match work {
                Work::Job(Operation::Multiply) => "multiply",
                Work::Job(Operation::Add) => "add",
                Work::Job(Operation::Subtract) => "subtract",
                Work::Generate => "generate",
            };
            let place = tiles.get(&(event.machine, matrix));
            let (row, col) = (place.map(|p| p.0), place.map(|p| p.1));
            let args = JobArgs { matrix, step, row, col, returned: returns };
            list.span(track, name, (at, at.saturating_add(took_ns)), args)
        }
        LogEventKind::Stands(stands) => {
            list.counter(pid, ["credit left", "bytes"], at, stands.credit_left_bytes)?;
            list.counter(pid, ["in the link", "bytes"], at, stands.in_link_bytes)
        }
        LogEventKind::Phase(_) | LogEventKind::Tile { .. } => Ok(()),
    }
}
