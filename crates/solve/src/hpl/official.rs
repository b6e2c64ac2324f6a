//! `bench hpl --official`: the official program on the same system, for comparison.
//!
//! Place in the flow: after our own runs of an order. `xhpl` is used where it is on the path, else `hpcc`, which contains HPL and
//! runs its other tests, too; both under `mpirun`.
//!
//! Invariants: the same N; every layout of the threads as processes and threads, and every NB, of which the fastest counts;
//! the program works in a folder that is removed; it gets SIGTERM when the verb ends early, so that mpirun ends its processes.
//!
//! Deliberately absent: building these programs, and other machines.

use bramble_report::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;
use tokio::process::Command;

/// NBs that are tried if the user names none: the usual ones.
const BLOCKS: [usize; 4] = [64, 128, 192, 256];

/// The official program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Xhpl,
    Hpcc,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Xhpl => "xhpl",
            Self::Hpcc => "hpcc",
        }
    }

    /// The files that it reads and writes.
    fn files(self) -> [&'static str; 2] {
        match self {
            Self::Xhpl => ["HPL.dat", "HPL.out"],
            Self::Hpcc => ["hpccinf.txt", "hpccoutf.txt"],
        }
    }
}

/// The best run of the official program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OfficialRun {
    pub(super) program: &'static str,
    pub(super) nb: usize,
    /// Process rows and columns.
    pub(super) grid: [usize; 2],
    /// Threads of each process.
    pub(super) threads: usize,
    pub(super) seconds: f64,
    pub(super) gflops: f64,
}

impl OfficialRun {
    pub(super) fn json(&self) -> Value {
        json!({
            "program": self.program, "nb": self.nb, "p": self.grid[0], "q": self.grid[1], "threads": self.threads,
            "seconds": self.seconds, "gflops": self.gflops,
        })
    }

    /// The line of the report.
    pub(super) fn line(&self, ours: f64) -> String {
        let Self { program, nb, grid: [p, q], threads, gflops, .. } = self;
        let threads = bramble_report::quantity::counted(*threads as u64, "thread");
        format!(
            "official  {gflops:.1} Gflop/s by {program}, at best: NB {nb}, {p} x {q} processes of {threads}; \
             Bramble has {:.2} times that",
            ours / gflops
        )
    }
}

/// The first of the programs on the path; an error that says how to get one.
fn found() -> Result<Program, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let program = [Program::Xhpl, Program::Hpcc].into_iter().find(|program| is_there(program.name()));
    match program {
        Some(program) if is_there("mpirun") => Ok(program),
        Some(program) => Err(Failure::failed(format!(
            "--official: {} needs mpirun, which is not on the path",
            program.name()
        ))),
        None => Err(Failure::failed(
            "--official: neither xhpl nor hpcc is on the path; install hpcc with 'sudo apt install hpcc' (Debian, Ubuntu, \
             Raspberry Pi OS), or add the folder of xhpl to PATH",
        )),
    }
}

/// The process grids and threads of each process that use all threads.
fn layouts(threads: usize) -> Vec<([usize; 2], usize)> {
    let mut all = vec![([1, 1], threads)];
    if threads > 1 {
        all.extend([([1, threads], 1), ([threads, 1], 1)]);
        // The squarest grid, if it is another.
        let rows = (1..=threads)
            .take_while(|p| p * p <= threads)
            .filter(|p| threads.is_multiple_of(*p))
            .last()
            .unwrap_or(1);
        all.extend((rows > 1).then_some(([rows, threads / rows], 1)));
    }
    all
}

/// Fails early if the official program is not there.
pub(super) fn check() -> Result<(), Failure> {
    found().map(drop)
}

/// The best run of the official program for this order, with these NBs or the usual ones.
pub(super) async fn run(order: usize, threads: usize, blocks: &[usize]) -> Result<OfficialRun, Failure> {
    let program = found()?;
    let blocks = if blocks.is_empty() { &BLOCKS } else { blocks };
    let folder = tempfile::Builder::new().prefix("bramble-hpl-").tempdir();
    let folder =
        folder.map_err(|e| Failure::failed(format!("--official: a folder for {}: {e}", program.name())))?;
    let mut best: Option<OfficialRun> = None;
    for (grid, each) in layouts(threads) {
        let results = one_layout(program, &folder, order, blocks, grid, each).await?;
        for run in results {
            best = best.filter(|best| best.gflops >= run.gflops).or(Some(run));
        }
    }
    best.ok_or_else(|| Failure::failed(format!("--official: {} printed no result", program.name())))
}

/// Runs the program once, which measures every NB.
async fn one_layout(
    program: Program,
    folder: &TempDir,
    order: usize,
    blocks: &[usize],
    [p, q]: [usize; 2],
    threads: usize,
) -> Result<Vec<OfficialRun>, Failure> {
    let failed = |what: String| Failure::failed(format!("--official: {}: {what}", program.name()));
    let [input, output] = program.files().map(|name| folder.path().join(name));
    let _ = std::fs::remove_file(&output);
    std::fs::write(&input, input_text(order, blocks, [p, q])).map_err(|e| failed(e.to_string()))?;
    bramble_report::say(&format!("bramble: {} runs on {p} x {q} processes", program.name()));
    mpirun(program, folder.path(), p * q, threads).await.map_err(failed)?;
    let text = read_to_string(&output).map_err(|e| failed(format!("{}: {e}", shown(&output))))?;
    let results = results(&text);
    if results.len() != blocks.len() || text.matches(" PASSED").count() < blocks.len() {
        return Err(failed(format!("printed {} valid results instead of {}", results.len(), blocks.len())));
    }
    let run = |(nb, seconds, gflops)| OfficialRun {
        program: program.name(),
        nb,
        grid: [p, q],
        threads,
        seconds,
        gflops,
    };
    Ok(results.into_iter().map(run).collect())
}

fn shown(path: &Path) -> String {
    path.file_name().map_or_else(PathBuf::new, PathBuf::from).display().to_string()
}

/// Sends SIGTERM to mpirun when it is dropped before the program has ended.
struct Running(Option<Pid>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            // An error means that it has just ended.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Runs the program in that folder; an error has its last line.
async fn mpirun(program: Program, folder: &Path, processes: usize, threads: usize) -> Result<(), String> {
    let mut command = Command::new("mpirun");
    command.args(["-n", &processes.to_string(), program.name()]).current_dir(folder);
    for variable in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "MKL_NUM_THREADS"] {
        command.env(variable, threads.to_string());
    }
    // Open MPI binds each process to one core, and refuses root, unless it is told otherwise; others ignore these.
    command.env("OMPI_MCA_hwloc_base_binding_policy", "none").env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| format!("mpirun: {e}"))?;
    let mut running = Running(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    let done = child.wait_with_output().await.map_err(|e| format!("mpirun: {e}"))?;
    running.0 = None;
    if done.status.success() {
        return Ok(());
    }
    let said = [done.stderr, done.stdout].map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
    let last = said.iter().filter_map(|text| text.lines().last()).next().unwrap_or("it said nothing");
    Err(format!("{last} ({})", done.status))
}

/// NB, seconds and Gflop/s of each line of results.
fn results(text: &str) -> Vec<(usize, f64, f64)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [variant, _, nb, _, _, seconds, gflops]
                if variant.starts_with("WR") || variant.starts_with("WC") =>
            {
                Some((nb.parse().ok()?, seconds.parse().ok()?, gflops.parse().ok()?))
            }
            _ => None,
        }
    };
    text.lines().filter_map(line).collect()
}

/// The input file: HPL's own example, with these sizes. hpcc reads more lines, for its transposition: the smallest.
fn input_text(order: usize, blocks: &[usize], [p, q]: [usize; 2]) -> String {
    let list = blocks.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let lines = [
        "HPLinpack benchmark input file".to_owned(),
        "by bramble".to_owned(),
        "HPL.out output file name".to_owned(),
        "8 device out".to_owned(),
        "1 # of problem sizes".to_owned(),
        format!("{order} Ns"),
        format!("{} # of NBs", blocks.len()),
        format!("{list} NBs"),
        "0 PMAP".to_owned(),
        "1 # of process grids".to_owned(),
        format!("{p} Ps"),
        format!("{q} Qs"),
        "16.0 threshold".to_owned(),
    ];
    let algorithm = "1 # of panel fact\n2 PFACTs\n1 # of recursive stopping criterium\n4 NBMINs\n1 # of panels in recursion\n\
                     2 NDIVs\n1 # of recursive panel fact.\n1 RFACTs\n1 # of broadcast\n1 BCASTs\n1 # of lookahead depth\n\
                     1 DEPTHs\n2 SWAP\n64 swapping threshold\n0 L1\n0 U\n1 Equilibration\n8 memory alignment\n\
                     ##### separator\n0 additional sizes for PTRANS\n1200\n0 additional NBs for PTRANS\n40\n";
    lines.join("\n") + "\n" + algorithm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_uses_all_threads() {
        for threads in 1..=16 {
            let all = layouts(threads);
            assert!(all.iter().all(|([p, q], each)| p * q * each == threads), "{all:?}");
        }
        assert_eq!(layouts(1), [([1, 1], 1)]);
        assert_eq!(layouts(6).last(), Some(&([2, 3], 1)));
    }

    #[test]
    fn lines_of_results_are_read_and_no_others() {
        let text = "WR11C2R4        8000   128     1     1               2.94              1.160e+02\n\
                    WC00L2L2         500    64     2     3               0.10              8.5e-01\n\
                    W is a word of this line and it has seven words\nWall time\n";
        assert_eq!(results(text), [(128, 2.94, 116.0), (64, 0.1, 0.85)]);
    }

    #[test]
    fn the_input_has_the_lines_of_hpls_own() {
        let text = input_text(500, &[32, 64], [2, 3]);
        let line = |number: usize| text.lines().nth(number - 1).unwrap_or_default();
        assert_eq!([line(6), line(7), line(8)], ["500 Ns", "2 # of NBs", "32 64 NBs"]);
        assert_eq!([line(11), line(12), line(32)], ["2 Ps", "3 Qs", "##### separator"]);
    }
}
