//! `bramble bench spawn`: measures how long threads, processes and workers take to start and to end.
//!
//! Place in the flow: complements `bench link`: the cost of a link before its first byte.
//!
//! Invariants: all instances of a run are started before the first is waited for; the kinds take turns; every thread
//! or process is joined or reaped before the next run, and none outlives the verb.
//!
//! Deliberately absent: other machines (`bench/startup.py` measures whole products).

use super::link::{hidden, reap};
use super::machine;
use super::show::{Form, values};
use crate::args::BenchSpawnArgs;
use bramble_cluster::local::{LocalConfig, LocalTransport, LocalWorkers};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_link::LocalKind;
use bramble_matrix::DType;
use bramble_primary::{MachineLink, PrimaryError, Survey, wait_for_welcomes};
use bramble_report::exit::{Exit, Failure};
use bramble_report::table;
use bramble_report::times::Times;
use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use serde_json::{Value, json};
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// What to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Spawned {
    /// Threads of this process, until they run
    Thread,
    /// Processes of this program, until they have written a byte
    Process,
    /// Local workers, as --local starts them, until their links are authenticated
    Worker,
    /// Local workers over TCP, until each has sent its Welcome with its speed; a product would measure links next
    Tcp,
    /// The same over pipes
    Pipe,
    /// The same over shared memory
    Shm,
}

impl Spawned {
    const ALL: [Self; 6] = [Self::Thread, Self::Process, Self::Worker, Self::Tcp, Self::Pipe, Self::Shm];

    /// Whether this system supports it.
    fn is_here(self) -> bool {
        cfg!(target_os = "linux") || !matches!(self, Self::Pipe | Self::Shm)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Process => "process",
            Self::Worker => "worker",
            Self::Tcp => "tcp",
            Self::Pipe => "pipe",
            Self::Shm => "shm",
        }
    }
}

/// Memory of a worker that computes nothing.
const WORKER_MEMORY_BYTES: u64 = 64 << 20;
/// Time limit for processes to start and to end.
const DEADLINE_SECONDS: i64 = 10;

/// The measurement of one kind and count.
#[derive(Clone, Debug)]
struct SpawnPoint {
    spawned: Spawned,
    count: u16,
    /// Seconds until all had started.
    start: Times,
    /// Seconds from then until all had ended.
    end: Times,
}

/// Runs the verb.
pub(crate) fn run(args: &BenchSpawnArgs) -> Result<Exit, Failure> {
    let form = Form::of(&args.runs);
    bramble_report::out(machine::head(form, CSV_HEAD).as_bytes())?;
    let all = || Spawned::ALL.into_iter().filter(|kind| kind.is_here()).collect();
    let kinds: Vec<Spawned> = if args.what.is_empty() { all() } else { args.what.clone() };
    if let Some(kind) = kinds.iter().find(|kind| !kind.is_here()) {
        let others = "use thread, process, worker or tcp";
        return Err(Failure::usage(format!("--what {}: that needs Linux; {others}", kind.name())));
    }
    let mut points = Vec::new();
    let work = async {
        for count in &args.count {
            let mut times: Vec<(Vec<f64>, Vec<f64>)> = kinds.iter().map(|_| Default::default()).collect();
            // The first round is a warm-up.
            for round in 0..=args.runs.rounds {
                for (kind, (start, end)) in kinds.iter().zip(&mut times) {
                    let [there, gone] = once(*kind, *count).await?;
                    if round > 0 {
                        start.push(there.as_secs_f64());
                        end.push(gone.as_secs_f64());
                    }
                }
            }
            let new = kinds.iter().zip(times).map(|(spawned, (start, end))| SpawnPoint {
                spawned: *spawned,
                count: *count,
                start: Times::new(start),
                end: Times::new(end),
            });
            for point in new {
                bramble_report::out(line(form, &point).as_bytes())?;
                points.push(point);
            }
        }
        Ok(())
    };
    if let Completion::Signal(exit) = done_or_signal(work)? {
        return Ok(exit);
    }
    if form == Form::Table {
        bramble_report::out((shown(&points).join("\n") + "\n").as_bytes())?;
    }
    Ok(Exit::Done)
}

/// Starts `count` instances, waits until all have started, and until all have ended; returns both durations.
async fn once(kind: Spawned, count: u16) -> Result<[Duration; 2], Failure> {
    match kind {
        Spawned::Thread => threads(count),
        Spawned::Process => processes(count),
        Spawned::Worker => workers(count, LocalTransport::Loopback, false).await,
        Spawned::Tcp => workers(count, LocalTransport::Loopback, true).await,
        Spawned::Pipe => workers(count, LocalTransport::Inherited(LocalKind::Pipe), true).await,
        Spawned::Shm => workers(count, LocalTransport::Inherited(LocalKind::Shm), true).await,
    }
}

fn threads(count: u16) -> Result<[Duration; 2], Failure> {
    let (says, hears) = std::sync::mpsc::channel();
    let began = Instant::now();
    let mut started = Vec::new();
    for _ in 0..count {
        let says = says.clone();
        let thread = std::thread::Builder::new().spawn(move || {
            // The receiver lives until all threads are joined.
            let _ = says.send(());
        });
        started.push(thread.map_err(|e| Failure::failed(format!("bench spawn: no thread: {e}")))?);
    }
    let there = hears.iter().take(usize::from(count)).count();
    let start = began.elapsed();
    let joined = started.into_iter().filter_map(|thread| thread.join().ok()).count();
    if (there, joined) != (usize::from(count), usize::from(count)) {
        return Err(Failure::failed("bench spawn: a thread did not run"));
    }
    Ok([start, began.elapsed() - start])
}

/// Child processes, killed and reaped on drop.
struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            reap(child, Instant::now());
        }
    }
}

fn processes(count: u16) -> Result<[Duration; 2], Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("bench spawn: a process: {e}"));
    let mut started = Started(Vec::new());
    let began = Instant::now();
    for _ in 0..count {
        let mut command = hidden("nothing").map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        started.0.push(command.spawn().map_err(failed)?);
    }
    for child in &mut started.0 {
        next(child).map_err(failed)?;
    }
    let start = began.elapsed();
    for child in &mut started.0 {
        // The end of its stream is the end of the process.
        next(child).map_err(failed)?;
        let status = child.wait().map_err(failed)?;
        if !status.success() {
            return Err(Failure::failed(format!("bench spawn: a process ended with {status}")));
        }
    }
    Ok([start, began.elapsed() - start])
}

/// Waits for the next byte of a process, or for the end of its stream.
fn next(child: &mut Child) -> std::io::Result<()> {
    let Some(out) = &mut child.stdout else { return Ok(()) };
    let limit = Timespec { tv_sec: DEADLINE_SECONDS, tv_nsec: 0 };
    if poll(&mut [PollFd::new(out, PollFlags::IN)], Some(&limit))? == 0 {
        let what = format!("no answer within {DEADLINE_SECONDS} s");
        return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, what));
    }
    out.read(&mut [0; 1]).map(drop)
}

/// The work of a child process: report that it has started, and end.
pub(super) fn run_nothing() -> Result<Exit, Failure> {
    bramble_report::out(b"\n")
}

async fn workers(count: u16, way: LocalTransport, until_welcome: bool) -> Result<[Duration; 2], Failure> {
    let began = Instant::now();
    let cores = bramble_worker::default_threads();
    let share = LocalConfig { workers: count, threads: 1, memory_bytes: WORKER_MEMORY_BYTES, cores, way };
    let (mut processes, meeting) = LocalWorkers::start(share).await?;
    let links = processes.meet(meeting).await?;
    let start;
    if until_welcome {
        let ends =
            links.into_iter().map(|link| MachineLink { link, threads_max: 0, was_dialled: false }).collect();
        let failed = |e: PrimaryError| Failure::failed(format!("bench spawn: a worker: {e}"));
        let goodbye = wait_for_welcomes(&nothing()?, ends).await.map_err(failed)?;
        start = began.elapsed();
        goodbye.await;
    } else {
        start = began.elapsed();
        // Workers end with their links.
        drop(links);
    }
    drop(processes);
    Ok([start, began.elapsed().saturating_sub(start)])
}

/// The survey for workers that compute nothing, so that they measure as little as possible.
fn nothing() -> Result<Survey, Failure> {
    Ok(Survey {
        dtype: DType::F64,
        flops: 0.0,
        memory_bytes: 1 << 20,
        credits: None,
        kernel: "auto".to_owned(),
        one_kernel: false,
        name: "bench".to_owned(),
        session_seed: bramble_cluster::random::seed()? as u32,
    })
}

/// The head line of the CSV.
const CSV_HEAD: &str =
    "what,count,rounds,start_s,start_s_min,start_s_max,end_s,end_s_min,end_s_max,outliers\n";

fn line(form: Form, point: &SpawnPoint) -> String {
    match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    }
}

fn json(p: &SpawnPoint) -> Value {
    json!({
        "schema": "bramble.bench.spawn/1",
        "what": p.spawned.name(), "count": p.count, "rounds": p.start.count(),
        "start_s": p.start.median(), "start_s_min": p.start.min(), "start_s_max": p.start.max(),
        "end_s": p.end.median(), "end_s_min": p.end.min(), "end_s_max": p.end.max(),
        "outliers": p.start.outliers(),
    })
}

/// The table: one count and kind per line, with the milliseconds to start, the spread of these times, and the
/// milliseconds to end.
fn shown(points: &[SpawnPoint]) -> Vec<String> {
    let row = |p: &SpawnPoint| {
        vec![
            p.count.to_string(),
            p.spawned.name().to_owned(),
            format!("{:.3}", 1e3 * p.start.median()),
            format!("{:.0} %", 100.0 * p.start.spread()),
            format!("{:.3}", 1e3 * p.end.median()),
        ]
    };
    let head = ["number", "what", "start, ms", "spread", "end, ms"];
    table::lines(&head, &points.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn threads_start_and_are_joined() {
        let [start, end] = threads(4).unwrap();
        assert!(start > Duration::ZERO && end > Duration::ZERO);
    }

    #[test]
    fn all_forms_say_the_same() {
        let p = SpawnPoint {
            spawned: Spawned::Worker,
            count: 8,
            start: Times::new(vec![0.25, 0.125, 0.5]),
            end: Times::new(vec![0.002]),
        };
        let (csv, read) = (values(CSV_HEAD, &json(&p)), json(&p));
        assert_eq!(
            csv,
            "worker,8,3,2.500000e-1,1.250000e-1,5.000000e-1,2.000000e-3,2.000000e-3,2.000000e-3,1"
        );
        assert_eq!((read["start_s"].as_f64(), read["end_s"].as_f64()), (Some(0.25), Some(0.002)));
        let lines = shown(&[p]);
        assert!(["8", "worker", "250.000", "150 %"].iter().all(|word| lines[1].contains(word)), "{lines:?}");
    }
}
