//! `bench hpl --official`: the official program on the same system and machines, for comparison.
//!
//! Place in the flow: after our own runs of an order. `files` has its input and its results, `layout` the grids of processes,
//! `launch` starts them. `xhpl` is used where it is on the path, else `hpcc`, which contains HPL and runs its other tests, too.
//!
//! Invariants: the same N; every layout with every NB, of which the fastest counts; the program works in a folder that is
//! removed. The workers of Bramble hold no matrix meanwhile.
//!
//! Deliberately absent: building these programs.

mod files;
mod launch;
mod layout;

use super::point::{HplPlace, HplPoint};
use bramble_report::exit::Failure;
use files::{input_text, results};
use launch::MpiLauncher;
use layout::{OfficialMachine, ProcessGrid, layouts};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::read_to_string;
use tempfile::TempDir;

/// NBs that are tried if the user names none: the usual ones.
const BLOCKS: [usize; 4] = [64, 128, 192, 256];

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

/// The official program, and where it runs.
#[derive(Debug)]
pub(super) struct Official {
    launcher: MpiLauncher,
    /// NBs that are tried.
    blocks: Vec<usize>,
}

impl Official {
    /// The program on the path, started by this command (`mpirun` without one), with these NBs or the usual ones.
    pub(super) fn find(command: Option<&str>, blocks: &[u16]) -> Result<Self, Failure> {
        let blocks = match blocks {
            [] => BLOCKS.to_vec(),
            given => given.iter().map(|nb| usize::from(*nb)).collect(),
        };
        Ok(Self { launcher: MpiLauncher::find(command)?, blocks })
    }

    /// Adds the best run with the same order on the same machines to each point. `is_here`: all workers are on this machine.
    pub(super) async fn beside(&self, points: &mut [HplPoint], is_here: bool) -> Result<(), Failure> {
        let mut known: BTreeMap<(usize, Vec<OfficialMachine>), OfficialRun> = BTreeMap::new();
        for point in points {
            let key = (point.order, machines(&point.place, is_here)?);
            point.official = Some(match known.entry(key) {
                Entry::Occupied(run) => run.get().clone(),
                Entry::Vacant(place) => {
                    let (order, machines) = place.key();
                    let run = self.best(*order, machines).await?;
                    place.insert(run).clone()
                }
            });
        }
        Ok(())
    }

    /// The best run for this order.
    async fn best(&self, order: usize, machines: &[OfficialMachine]) -> Result<OfficialRun, Failure> {
        let name = self.launcher.program.name();
        let folder = tempfile::Builder::new().prefix("bramble-hpl-").tempdir();
        let folder = folder.map_err(|e| Failure::failed(format!("--official: a folder for {name}: {e}")))?;
        let mut best: Option<OfficialRun> = None;
        let mut refused = String::new();
        for layout in layouts(machines) {
            let [p, q] = layout.grid;
            if let Some(why) = layout.refusal(order, machines) {
                bramble_report::say(&format!("bramble: {name} does not run on {p} x {q} processes: {why}"));
                refused = format!("; {why}: use a smaller --size");
                continue;
            }
            bramble_report::say(&format!("bramble: {name} runs on {p} x {q} processes"));
            for run in self.one_layout(&folder, order, layout).await? {
                best = best.filter(|best| best.gflops >= run.gflops).or(Some(run));
            }
        }
        best.ok_or_else(|| {
            Failure::failed(format!("--official: {name} has no result for N = {order}{refused}"))
        })
    }

    /// Runs the program once, which measures every NB.
    async fn one_layout(
        &self,
        folder: &TempDir,
        order: usize,
        layout: ProcessGrid,
    ) -> Result<Vec<OfficialRun>, Failure> {
        let program = self.launcher.program;
        let failed = |what: String| Failure::failed(format!("--official: {}: {what}", program.name()));
        let [input, output] = program.files();
        let path = |name: &str| folder.path().join(name);
        let _ = std::fs::remove_file(path(output));
        std::fs::write(path(input), input_text(order, &self.blocks, layout.grid))
            .map_err(|e| failed(e.to_string()))?;
        self.launcher.run(folder.path(), layout).await.map_err(failed)?;
        let text = read_to_string(path(output)).map_err(|e| {
            failed(format!(
                "{output}: {e}; its first process has to run on this machine, or TMPDIR has to name a folder that both see"
            ))
        })?;
        let (results, valid) = (results(&text), text.matches(" PASSED").count());
        if results.len() != self.blocks.len() || valid < self.blocks.len() {
            let (found, all) = (results.len().min(valid), self.blocks.len());
            return Err(failed(format!("printed {found} valid results instead of {all}")));
        }
        let run = |(nb, seconds, gflops)| OfficialRun {
            program: program.name(),
            nb,
            grid: layout.grid,
            threads: layout.threads,
            seconds,
            gflops,
        };
        Ok(results.into_iter().map(run).collect())
    }
}

/// The machines of a measurement; an error if one of them was lost.
fn machines(place: &HplPlace, is_here: bool) -> Result<Vec<OfficialMachine>, Failure> {
    let here =
        |threads| Ok(vec![OfficialMachine { name: "this machine".to_owned(), threads, offered_bytes: None }]);
    match place {
        HplPlace::Workers(_, losses) if !losses.workers.is_empty() => Err(Failure::failed(
            "--official: a worker was lost, so the official program would measure another cluster",
        )),
        HplPlace::Workers(plan, _) if !is_here => Ok(plan
            .shares
            .iter()
            .map(|share| OfficialMachine {
                name: share.name.clone(),
                threads: share.threads,
                offered_bytes: Some(share.offered_bytes),
            })
            .collect()),
        place => here(place.threads()),
    }
}
