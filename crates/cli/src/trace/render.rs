//! An event log as JSON in the form of Chrome's trace viewer, which Perfetto opens.
//!
//! Invariants: of two spans of one track none begins before the other has ended. Tracks, counters and what is in
//! `otherData` are said in docs/trace.md; scripts may rely on them.
//!
//! Units there: microseconds; three digits behind the point count.

use bramble_primary::Report;
use bramble_primary::log::{ClockSample, Event, Frame, Log, Operation, Phase, State, Story, What, Work};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Number of the primary's process; machines follow.
const PRIMARY: u64 = 1;
/// Numbers of tracks that each process has; more than threads and others together.
const TRACKS: u64 = 10_000;
/// Tracks of a process, by their numbers in it; compute threads follow.
const STATE: u64 = 0;
/// See `STATE`.
const SENT: u64 = 1;
/// See `STATE`.
const RECEIVED: u64 = 2;
/// See `STATE`.
const COMPUTE: u64 = 10;

/// One entry of the list.
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

/// What is shown of a job.
#[derive(Serialize)]
struct JobArgs {
    matrix: u32,
    step: u32,
    /// First row and column in C, of a tile that came back.
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

/// Where entries go, one a line.
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

    /// Viewers call it by both names.
    fn counter(&mut self, pid: u64, names: [&str; 2], at_ns: u64, value: u64) -> io::Result<()> {
        let [name, of] = names;
        let args = BTreeMap::from([(of, value)]);
        self.add(&Entry { name, cat: None, ph: "C", ts: micros(at_ns), dur: None, pid, tid: None, args })
    }

    /// Says something about a process or a track.
    fn about(&mut self, what: &'static str, pid: u64, tid: Option<u64>, args: Value) -> io::Result<()> {
        self.add(&Entry { name: what, cat: None, ph: "M", ts: 0.0, dur: None, pid, tid, args })
    }
}

/// A row of spans.
#[derive(Clone, Copy)]
struct Track {
    pid: u64,
    number: u64,
    cat: &'static str,
}

impl Track {
    /// Viewers take numbers of tracks to be those of threads, which no two processes share.
    fn tid(self) -> u64 {
        self.pid * TRACKS + self.number
    }
}

/// A tenth of a nanosecond too much: viewers cut instead of rounding, and spans that follow each other would overlap.
fn micros(ns: u64) -> f64 {
    (ns as f64 + 0.1) / 1e3
}

fn process(machine: u16) -> u64 {
    PRIMARY + 1 + u64::from(machine)
}

/// Writes the whole object.
pub(super) fn render(log: &Log, report: &Report, primary: &str, out: &mut impl Write) -> io::Result<()> {
    let machines: Vec<u16> = (0..).take(log.machines().len()).collect();
    let stories = machines.iter().map(|m| Story::of(log, *m)).collect::<io::Result<Vec<Story>>>()?;
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

/// What is known of the whole.
fn other(log: &Log, report: &Report, stories: &[Story]) -> Value {
    let clock = |sample: &Option<ClockSample>| match sample {
        Some(s) => json!({"offset_ns": s.offset_ns, "uncertainty_ns": s.uncertainty_ns}),
        None => Value::Null,
    };
    let machines = log.machines().iter().zip(stories).map(|(m, story)| {
        let states: Map<String, Value> = State::ALL
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
        "product": format!("{}x{}x{} {}", report.m, report.k, report.n, report.dtype.name()),
        "strategy": report.strategy,
        "seconds": report.seconds,
        "dropped_events": log.dropped(),
        "machines": machines.collect::<Vec<Value>>(),
    })
}

/// Names of processes and tracks, and their order.
fn names<W: Write>(log: &Log, primary: &str, list: &mut List<'_, W>) -> io::Result<()> {
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

/// What the primary was busy with; each phase ends where the next begins, the last with the last event.
fn phases<W: Write>(log: &Log, list: &mut List<'_, W>) -> io::Result<()> {
    let (mut begun, mut last_ns): (Vec<(u64, Phase)>, u64) = (Vec::new(), 0);
    log.read(|event| {
        if let What::Phase(phase) = event.what {
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

/// Jobs, frames and counters.
fn events<W: Write>(log: &Log, list: &mut List<'_, W>) -> io::Result<()> {
    let mut tiles = BTreeMap::new();
    log.read(|event| {
        if let What::Tile { matrix, row, col } = event.what {
            tiles.insert((event.machine, matrix), (row, col));
        }
        Ok(())
    })?;
    let kinds: Vec<String> = (0..=u8::MAX).map(|kind| Frame { kind, bytes: 0, took_ns: 0 }.name()).collect();
    log.read(|event| one(event, &tiles, &kinds, list))
}

fn one<W: Write>(
    event: &Event,
    tiles: &BTreeMap<(u16, u32), (u64, u64)>,
    kinds: &[String],
    list: &mut List<'_, W>,
) -> io::Result<()> {
    let (pid, at) = (process(event.machine), event.at_ns);
    let frame = |list: &mut List<'_, W>, number: u64, frame: &Frame| {
        let track = Track { pid, number, cat: "frame" };
        let (name, args) = (&kinds[usize::from(frame.kind)], FrameArgs { bytes: frame.bytes });
        list.span(track, name, (at, at.saturating_add(frame.took_ns)), args)
    };
    match event.what {
        What::Sent(f) => frame(list, SENT, &f),
        What::Received(f) => frame(list, RECEIVED, &f),
        What::Computed { work, returns, thread, matrix, step, took_ns } => {
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
        What::Stands(stands) => {
            list.counter(pid, ["credit left", "bytes"], at, stands.credit_left_bytes)?;
            list.counter(pid, ["in the link", "bytes"], at, stands.in_link_bytes)
        }
        What::Phase(_) | What::Tile { .. } => Ok(()),
    }
}
