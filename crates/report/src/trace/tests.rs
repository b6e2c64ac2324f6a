//! Renders logs and parses the result: complete, in order, without overlaps.

use super::*;
use bramble_matrix::DType;
use bramble_plan::{Binding, Bound, OperandSource, Prediction, Problem, Sums};
use bramble_primary::{CheckReport, PlanReport, TeamChanges, ThreadUse, VerifyReport};
use bramble_record::log::{
    FrameTransfer, LogEvent, LogEventKind, LoggedMachine, MachineState, Operation, PeerStatus, Phase,
    WaitsFor, Work,
};
use bramble_verify::{Effort, Verdict};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

fn report() -> Report {
    let verdict = Verdict {
        passed: true,
        method: String::new(),
        worst_ratio: 0.0,
        arbitrated_rows: 0,
        unverified: Default::default(),
        fault: None,
    };
    let plan = PlanReport {
        strategy: "reuse".to_owned(),
        sums: Sums::Merged,
        grid: [1; 3],
        peak_gflops: 0.0,
        bound: Bound { seconds: 0.0, by: Binding::Compute },
        predicted: Prediction::default(),
        alone: false,
        sentence: String::new(),
        instead: None,
    };
    let problem = Problem {
        m: 2,
        n: 3,
        k: 4,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    };
    let verify = VerifyReport { verdict, seconds: 0.0 };
    Report {
        problem,
        plan,
        seconds: 1.0,
        opening_seconds: 0.0,
        partial_sum_bytes_max: 0,
        bytes_sent: 0,
        bytes_received: 0,
        io: None,
        machines: Vec::new(),
        changes: TeamChanges::default(),
        check: CheckReport { verify, wrong: Vec::new(), suspect: None, effort: Effort::Off },
        relay: None,
    }
}

/// A job: the pause before it, its duration, and its kind.
type Job = (u32, u32, u8);

/// A log of machines with these jobs, by machine and thread; and the corresponding times of their threads.
fn log(jobs: &[Vec<Vec<Job>>]) -> (EventLog, Vec<Vec<ThreadUse>>) {
    let mut log = EventLog::new(Instant::now(), tempfile::tempfile().unwrap());
    let mut accounts = Vec::new();
    for threads in jobs {
        let name = "a \"name\"".to_owned();
        let count = threads.len() as u16;
        let machine = log.machine(LoggedMachine {
            name,
            link: "tcp",
            threads: count,
            clocks: [None; 2],
            lost_records: 0,
        });
        let frame = FrameTransfer { kind: 3, bytes: 99, took_ns: 77 };
        let stands = PeerStatus {
            credit_left_bytes: 5,
            in_link_bytes: 6,
            jobs_given: 1000,
            tiles_back: 0,
            next: WaitsFor::Tiles,
        };
        for (at_ns, what) in [
            (5, LogEventKind::Phase(Phase::Computing)),
            (9, LogEventKind::Sent(frame)),
            (9, LogEventKind::Received(frame)),
            (9, LogEventKind::Stands(stands)),
            (9, LogEventKind::Tile { matrix: 1, row: 128, col: 64 }),
        ] {
            log.append(LogEvent { at_ns, machine, what });
        }
        let mut account = Vec::new();
        for (thread, jobs) in (0..).zip(threads) {
            let (mut now, mut busy) = (10, 0);
            for (pause, took, work) in jobs {
                let kinds = [Operation::Multiply, Operation::Add, Operation::Subtract];
                let work = kinds.get(usize::from(*work)).map_or(Work::Generate, |o| Work::Job(*o));
                let (at_ns, took_ns) = (now + u64::from(*pause), u64::from(*took));
                (now, busy) = (at_ns + took_ns, busy + took_ns);
                let what =
                    LogEventKind::Computed { work, returns: false, thread, matrix: 1, step: 2, took_ns };
                log.append(LogEvent { at_ns, machine, what });
            }
            let busy_s = Duration::from_nanos(busy).as_secs_f64();
            account.push(ThreadUse { jobs: jobs.len() as u64, busy_s, idle_s: 0.0, cpu_s: None });
        }
        accounts.push(account);
    }
    log.append(LogEvent { at_ns: 1 << 40, machine: 0, what: LogEventKind::Phase(Phase::Closing) });
    (log, accounts)
}

fn drawn(log: &EventLog) -> Value {
    let mut bytes = Vec::new();
    render::render(log, &report(), "here", &mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// A time of the trace in nanoseconds.
fn ns(time: &Value) -> u64 {
    (time.as_f64().unwrap() * 1e3).round() as u64
}

/// (start, end, name).
type Span = (u64, u64, String);

/// Spans by track: (start, end, category).
fn tracks(trace: &Value) -> BTreeMap<(u64, u64), Vec<Span>> {
    let mut tracks: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X") {
        let (pid, tid) = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let start = ns(&event["ts"]);
        let span = (start, start + ns(&event["dur"]), event["cat"].as_str().unwrap().to_owned());
        // Viewers truncate like this.
        assert_eq!((event["ts"].as_f64().unwrap() * 1e3) as u64, start);
        tracks.entry((pid, tid)).or_default().push(span);
    }
    tracks.values_mut().for_each(|spans| spans.sort());
    tracks
}

fn jobs() -> impl Strategy<Value = Vec<Vec<Vec<Job>>>> {
    let job = (0u32..9, 0u32..1_000_000_000, 0u8..4);
    let threads = proptest::collection::vec(proptest::collection::vec(job, 0..9), 1..4);
    proptest::collection::vec(threads, 0..4)
}

proptest! {
    #[test]
    fn spans_of_a_track_do_not_overlap_and_sum_up_to_the_account(jobs in jobs()) {
        let (log, accounts) = log(&jobs);
        let trace = drawn(&log);
        let tracks = tracks(&trace);
        for ((pid, tid), spans) in &tracks {
            prop_assert!(spans.is_sorted_by(|a, b| a.1 <= b.0), "track {tid} of {pid}: {spans:?}");
        }
        for (machine, threads) in accounts.iter().enumerate() {
            let pid = machine as u64 + 2;
            for (thread, account) in threads.iter().enumerate() {
                let spans = tracks.get(&(pid, pid * 10_000 + 10 + thread as u64));
                let spans: Vec<_> = spans.into_iter().flatten().filter(|s| s.2 == "job").collect();
                prop_assert_eq!(spans.len() as u64, account.jobs);
                let busy: u64 = spans.iter().map(|(start, end, _)| end - start).sum();
                prop_assert_eq!(busy, Duration::from_secs_f64(account.busy_s).as_nanos() as u64);
            }
            let states = &tracks[&(pid, pid * 10_000)];
            prop_assert!(states.windows(2).all(|pair| pair[0].1 == pair[1].0));
            let seconds = trace["otherData"]["machines"][machine]["state_seconds"].as_object().unwrap();
            prop_assert_eq!(seconds.len(), MachineState::ALL.len());
            let whole: f64 = seconds.values().map(|s| s.as_f64().unwrap()).sum();
            prop_assert!((whole * 1e9 - ((1u64 << 40) - 5) as f64).abs() < 1e3);
        }
    }
}

#[test]
fn tracks_have_names_and_jobs_their_place() {
    let trace = drawn(&log(&[vec![vec![(0, 5, 0)], vec![]]]).0);
    let events = trace["traceEvents"].as_array().unwrap();
    let named: Vec<&str> = events
        .iter()
        .filter(|e| e["name"] == "thread_name" || e["name"] == "process_name")
        .map(|e| e["args"]["name"].as_str().unwrap())
        .collect();
    let want = [
        "primary here",
        "phases",
        "worker a \"name\"",
        "state",
        "link: to it",
        "link: from it",
        "compute 0",
        "compute 1",
    ];
    assert_eq!(named, want);
    let job = events.iter().find(|e| e["cat"] == "job").unwrap();
    assert_eq!((&job["name"], ns(&job["ts"]), ns(&job["dur"])), (&"multiply".into(), 10, 5));
    assert_eq!(
        job["args"],
        serde_json::json!({"matrix": 1, "step": 2, "row": 128, "col": 64, "returned": false})
    );
    let frames: Vec<&Value> = events.iter().filter(|e| e["cat"] == "frame").collect();
    assert!(frames.len() == 2 && frames.iter().all(|f| f["name"] == "store" && f["args"]["bytes"] == 99));
    let counters = ["credit left", "in the link", "jobs"];
    for counter in counters {
        assert!(events.iter().any(|e| e["ph"] == "C" && e["name"] == counter), "{counter}");
    }
}

#[test]
fn under_the_name_is_what_was_there_until_the_trace_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (target, part) = (folder.path().join("t.json"), folder.path().join("t.json.part"));
    fs::write(&target, "old").unwrap();
    let (file, _) = TraceFile::create(&target, Instant::now()).unwrap();
    let other = TraceFile::create(&target, Instant::now());
    assert!(other.is_err_and(|e| e.text.contains("another run")));
    assert!(part.exists() && fs::read_dir(&folder).unwrap().count() == 2);
    drop(file);
    assert!(!part.exists() && fs::read(&target).unwrap() == b"old");
    let (file, log) = TraceFile::create(&target, Instant::now()).unwrap();
    file.keep(&log, &report(), "here").unwrap();
    assert!(!part.exists());
    let trace: Value = serde_json::from_slice(&fs::read(&target).unwrap()).unwrap();
    assert_eq!(trace["otherData"]["schema"], "bramble.trace/1");
    assert!(TraceFile::create(&folder.path().join("none/t.json"), Instant::now()).is_err());
    assert!(TraceFile::create(folder.path(), Instant::now()).is_err());
}
