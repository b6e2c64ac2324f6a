//! Measures each link with each function at each size, in turns.
//!
//! Place in the flow: the verb provides the configuration; `mesh` creates the ends, `conduct` runs functions on them,
//! and `bare` measures the operating system alone. Points are reported as soon as they are measured.
//!
//! Invariants: for each function, size and number of ends, all links and their bare counterparts take turns; the
//! first run of each is checked, is a warm-up, and does not count; every run has a deadline.

use super::bare::{Bare, Bares};
use super::function::Function;
use super::mesh::{LinkName, Mesh};
use super::pairs::LinkRun;
use bramble_cluster::ranks::Ranks;
use bramble_report::exit::Failure;
use bramble_report::times::Times;
use bramble_worker::available_memory;
use std::time::Duration;

/// Operations are repeated for about this time per run, in seconds, so that the cost of clocks and orders is
/// negligible.
const RUN_SECONDS: f64 = 0.01;
/// Most repetitions in a run.
const REPEATS_MAX: f64 = 100_000.0;
/// Time limit of a run.
const RUN_DEADLINE: Duration = Duration::from_secs(60);
/// Time limit for ends to terminate.
const END_DEADLINE: Duration = Duration::from_secs(5);
/// Largest default size; the defaults are powers of four.
const SIZE_MAX: usize = 64 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct LinkBenchConfig {
    pub(crate) links: Vec<LinkName>,
    pub(crate) functions: Vec<Function>,
    /// Message sizes in bytes; empty for the defaults.
    pub(crate) sizes: Vec<usize>,
    /// Numbers of ends for collective functions.
    pub(crate) ends: Vec<usize>,
    pub(crate) rounds: u16,
    /// The processes of an mpirun.
    pub(crate) ranks: Ranks,
}

/// The measurement of one link, function and size.
#[derive(Clone, Debug)]
pub(crate) struct LinkPoint {
    pub(crate) link: LinkName,
    pub(crate) function: Function,
    pub(crate) bytes: usize,
    pub(crate) ends: usize,
    /// Repetitions (messages, windows or operations) in a run.
    pub(crate) repeats: u32,
    /// Seconds per message or operation, for each run.
    pub(crate) times: Times,
    /// The bare counterpart and its times.
    pub(crate) bare: Option<(Bare, Times)>,
}

impl LinkPoint {
    /// Bytes a second, by the median time.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.function.moved_bytes(self.bytes, self.ends) / self.times.median()
    }

    /// Speed relative to the bare counterpart.
    pub(crate) fn of_bare(&self) -> Option<f64> {
        self.bare.as_ref().map(|(_, bare)| bare.median() / self.times.median())
    }
}

/// Measures everything in the configuration. Has to run inside a `LocalSet`.
pub(crate) async fn all(wanted: &LinkBenchConfig, tell: &mut dyn Tell) -> Result<(), Failure> {
    let most = if wanted.functions.iter().all(|f| f.is_of_pairs()) {
        2
    } else {
        *wanted.ends.iter().max().unwrap_or(&2)
    };
    let mut meshes = Vec::new();
    for link in &wanted.links {
        meshes.push(Mesh::make(*link, most.max(2), &wanted.ranks).await?);
    }
    let mut bares = Bares::beside(wanted.ranks.clone());
    for function in &wanted.functions {
        let counts = if function.is_of_pairs() { &[2][..] } else { &wanted.ends };
        for ends in counts {
            for bytes in sizes(wanted, *function, *ends) {
                let run = LinkRun { function: *function, bytes, ends: *ends, repeats: 1 };
                let there = meshes.iter().map(|mesh| mesh.ends).min().unwrap_or(0);
                if let Err(why) = are_there(run, there).and_then(|()| fits(run, meshes.len())) {
                    tell.left_out(&format!(
                        "{} of {bytes} bytes among {ends} ends is skipped: {why}",
                        function.name()
                    ));
                    continue;
                }
                tell.points(point(&mut meshes, &mut bares, run, wanted.rounds).await?)?;
            }
        }
        tell.done(*function)?;
    }
    for mesh in meshes {
        mesh.end(END_DEADLINE).await?;
    }
    Ok(())
}

/// Receives the results.
pub(crate) trait Tell {
    /// The points of all links for one function, size and number of ends.
    fn points(&mut self, points: Vec<LinkPoint>) -> Result<(), Failure>;
    /// A measurement that is skipped, and why.
    fn left_out(&mut self, what: &str);
    /// All points of a function have been reported.
    fn done(&mut self, function: Function) -> Result<(), Failure>;
}

/// The sizes of a function: the user's, or powers of four; collective functions have a lower maximum.
fn sizes(wanted: &LinkBenchConfig, function: Function, ends: usize) -> Vec<usize> {
    if !wanted.sizes.is_empty() {
        return wanted.sizes.clone();
    }
    let most = if function.is_of_pairs() { SIZE_MAX } else { SIZE_MAX / ends };
    let powers = std::iter::successors(Some(1usize), |bytes| Some(bytes * 4));
    powers.take_while(|bytes| *bytes <= most).filter(|bytes| function.takes(*bytes)).collect()
}

/// Checks that there are enough ends.
fn are_there(run: LinkRun, ends: usize) -> Result<(), String> {
    if run.ends <= ends { Ok(()) } else { Err(format!("mpirun has started {ends} processes")) }
}

/// Checks that the function allows this message size, and that the buffers of all ends of all links fit in memory.
fn fits(run: LinkRun, links: usize) -> Result<(), String> {
    if !run.function.takes(run.bytes) {
        return Err("sums need multiples of 8 bytes".to_owned());
    }
    let one = run.function.source_bytes(run.bytes, run.ends);
    let bytes = one.saturating_mul(2).saturating_mul(run.ends).saturating_mul(links + 1) as u64;
    let free = available_memory();
    if bytes <= free {
        return Ok(());
    }
    Err(format!(
        "it needs {} MiB, and {} MiB are free; measure one link, or fewer ends",
        bytes >> 20,
        free >> 20
    ))
}

/// A warmed-up link, and its bare counterpart.
type WarmPair = (Warm, Option<(Bare, Warm)>);

/// A contestant after its warm-up.
struct Warm {
    repeats: u32,
    times: Vec<f64>,
}

/// Measures all links and their bare counterparts for one function, size and number of ends.
async fn point(
    meshes: &mut [Mesh],
    bares: &mut Bares,
    run: LinkRun,
    rounds: u16,
) -> Result<Vec<LinkPoint>, Failure> {
    let mut all = Vec::new();
    for mesh in &mut *meshes {
        // The first run is cold. If a run needs several repetitions, three more tell how many.
        let mut one = led(mesh, run, true).await?;
        if repeats(run, one) > 1 {
            one = led(mesh, LinkRun { repeats: 3, ..run }, false).await?;
        }
        let link = Warm { repeats: repeats(run, one), times: Vec::new() };
        let bare = Bare::of(mesh.link, run.function);
        let bare = match bare {
            None => None,
            Some(bare) => {
                bares.prepare(bare)?;
                let mut one = bares.run(bare, run).await?;
                if repeats(run, one) > 1 {
                    one = bares.run(bare, LinkRun { repeats: 3, ..run }).await?;
                }
                Some((bare, Warm { repeats: repeats(run, one), times: Vec::new() }))
            }
        };
        all.push((link, bare));
    }
    for _ in 0..rounds {
        for (mesh, (link, bare)) in meshes.iter_mut().zip(&mut all) {
            link.times.push(seconds(led(mesh, LinkRun { repeats: link.repeats, ..run }, false).await?));
            if let Some((bare, warm)) = bare {
                let time = bares.run(*bare, LinkRun { repeats: warm.repeats, ..run }).await?;
                warm.times.push(seconds(time));
            }
        }
    }
    for mesh in &mut *meshes {
        mesh.leader.clear();
    }
    let point = |(mesh, (link, bare)): (&Mesh, WarmPair)| LinkPoint {
        link: mesh.link,
        function: run.function,
        bytes: run.bytes,
        ends: run.ends,
        repeats: link.repeats,
        times: Times::new(link.times),
        bare: bare.map(|(bare, warm)| (bare, Times::new(warm.times))),
    };
    Ok(meshes.iter().zip(all).map(point).collect())
}

/// Repetitions for a run, from the time of one message or operation. A collective operation counts twice: the barrier
/// before it, whose time is not reported, takes about as long.
fn repeats(run: LinkRun, one: Duration) -> u32 {
    let messages = if run.function.is_of_pairs() { run.function.window(run.bytes) as f64 } else { 2.0 };
    (RUN_SECONDS / (seconds(one) * messages)).clamp(1.0, REPEATS_MAX) as u32
}

/// Seconds, but never 0, in case the clock did not advance.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().max(1e-9)
}

/// The process that ended unexpectedly. The links of a killed process close first, and its end is visible a little
/// later.
async fn gone_soon(mesh: &mut Mesh) -> Option<String> {
    for _ in 0..50 {
        if let Some(gone) = mesh.gone() {
            return Some(gone);
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    None
}

/// Leads one run, within its deadline.
async fn led(mesh: &mut Mesh, run: LinkRun, checks: bool) -> Result<Duration, Failure> {
    let why = match tokio::time::timeout(RUN_DEADLINE, mesh.leader.lead(run, checks)).await {
        Ok(Ok(time)) => return Ok(time),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("no end within {} s", RUN_DEADLINE.as_secs()),
    };
    let LinkRun { function, bytes, ends, .. } = run;
    let gone = gone_soon(mesh).await.map(|gone| format!("; {gone}")).unwrap_or_default();
    let what = format!("{} of {bytes} bytes among {ends} ends of {}", function.name(), mesh.link.name());
    Err(Failure::failed(format!("bench link: {what}: {why}{gone}")))
}
