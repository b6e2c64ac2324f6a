//! Measures every link with every function at every size, in turns.
//!
//! Place in the flow: the verb says what; `mesh` makes the ends, `conduct` has them work, `bare` does what the system would;
//! points come out as soon as they are measured.
//!
//! Invariants: at one function, size and number of ends, all links and their bare counterparts take turns; the first run of each
//! is checked, warms up and does not count; every run has a deadline.

use super::bare::{Bare, Bares};
use super::function::Function;
use super::mesh::{LinkName, Mesh};
use super::pairs::Run;
use crate::exit::Failure;
use crate::ranks::Ranks;
use crate::times::Times;
use bramble_worker::available_memory;
use std::time::Duration;

/// A run is repeated until it takes about so long, seconds: clocks and orders are then little beside it.
const RUN_SECONDS: f64 = 0.01;
/// Most repeats of a run.
const REPEATS_MAX: f64 = 100_000.0;
/// A run has to be over by then.
const RUN_DEADLINE: Duration = Duration::from_secs(60);
/// Ends may take so long to end.
const END_DEADLINE: Duration = Duration::from_secs(5);
/// Largest of the sizes that are measured where none are named, powers of four.
const SIZE_MAX: usize = 64 << 20;

/// What is measured.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) links: Vec<LinkName>,
    pub(crate) functions: Vec<Function>,
    /// Bytes of messages; the usual ones if there are none.
    pub(crate) sizes: Vec<usize>,
    /// Numbers of ends of the functions that are not of pairs.
    pub(crate) ends: Vec<usize>,
    pub(crate) rounds: u16,
    /// Other processes that this one was started with.
    pub(crate) ranks: Ranks,
}

/// One link with one function at one size.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) link: LinkName,
    pub(crate) function: Function,
    pub(crate) bytes: usize,
    pub(crate) ends: usize,
    /// Messages, windows or operations of a run.
    pub(crate) repeats: u32,
    /// Seconds of a message or an operation, of each run.
    pub(crate) times: Times,
    /// The same without Bramble, and what that was.
    pub(crate) bare: Option<(Bare, Times)>,
}

impl Point {
    /// By the median.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.function.moved_bytes(self.bytes, self.ends) / self.times.median()
    }

    /// What part of the system's own speed that is.
    pub(crate) fn of_bare(&self) -> Option<f64> {
        self.bare.as_ref().map(|(_, bare)| bare.median() / self.times.median())
    }
}

/// Measures all. Has to run inside a `LocalSet`.
pub(crate) async fn all(wanted: &Wanted, tell: &mut dyn Tell) -> Result<(), Failure> {
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
                let run = Run { function: *function, bytes, ends: *ends, repeats: 1 };
                let there = meshes.iter().map(|mesh| mesh.ends).min().unwrap_or(0);
                if let Err(why) = are_there(run, there).and_then(|()| fits(run, meshes.len())) {
                    tell.left_out(&format!(
                        "{} of {bytes} bytes among {ends} ends is left out: {why}",
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

/// Who is told of points.
pub(crate) trait Tell {
    /// All links at one function, size and number of ends.
    fn points(&mut self, points: Vec<Point>) -> Result<(), Failure>;
    /// What is not measured, and why.
    fn left_out(&mut self, what: &str);
    /// A function is done.
    fn done(&mut self, function: Function) -> Result<(), Failure>;
}

/// The sizes of a function: those that are named, or powers of four, up to less where many ends move them.
fn sizes(wanted: &Wanted, function: Function, ends: usize) -> Vec<usize> {
    if !wanted.sizes.is_empty() {
        return wanted.sizes.clone();
    }
    let most = if function.is_of_pairs() { SIZE_MAX } else { SIZE_MAX / ends };
    let powers = std::iter::successors(Some(1usize), |bytes| Some(bytes * 4));
    powers.take_while(|bytes| *bytes <= most).filter(|bytes| function.takes(*bytes)).collect()
}

/// Whether there are as many ends.
fn are_there(run: Run, ends: usize) -> Result<(), String> {
    if run.ends <= ends { Ok(()) } else { Err(format!("mpirun has started {ends} processes")) }
}

/// Whether a message can be of that size, and all ends of all links have room for what they give and get.
fn fits(run: Run, links: usize) -> Result<(), String> {
    if !run.function.takes(run.bytes) {
        return Err("sums are of floats of 8 bytes".to_owned());
    }
    let one = run.function.source_bytes(run.bytes, run.ends);
    let bytes = one.saturating_mul(2).saturating_mul(run.ends).saturating_mul(links + 1) as u64;
    let free = available_memory();
    if bytes <= free {
        return Ok(());
    }
    Err(format!(
        "that takes {} MiB, and {} MiB are free; measure one link, or fewer ends",
        bytes >> 20,
        free >> 20
    ))
}

/// A link that is warm, and its bare counterpart.
type Pair = (Warm, Option<(Bare, Warm)>);

/// A contestant that is warm.
struct Warm {
    repeats: u32,
    times: Vec<f64>,
}

/// All links at one function, size and number of ends, with what they are compared with.
async fn point(meshes: &mut [Mesh], bares: &mut Bares, run: Run, rounds: u16) -> Result<Vec<Point>, Failure> {
    let mut all = Vec::new();
    for mesh in &mut *meshes {
        // The first is cold; a few more tell how many make a run, if one is not enough.
        let mut one = led(mesh, run, true).await?;
        if repeats(run, one) > 1 {
            one = led(mesh, Run { repeats: 3, ..run }, false).await?;
        }
        let link = Warm { repeats: repeats(run, one), times: Vec::new() };
        let bare = Bare::of(mesh.link, run.function);
        let bare = match bare {
            None => None,
            Some(bare) => {
                bares.prepare(bare)?;
                let mut one = bares.run(bare, run).await?;
                if repeats(run, one) > 1 {
                    one = bares.run(bare, Run { repeats: 3, ..run }).await?;
                }
                Some((bare, Warm { repeats: repeats(run, one), times: Vec::new() }))
            }
        };
        all.push((link, bare));
    }
    for _ in 0..rounds {
        for (mesh, (link, bare)) in meshes.iter_mut().zip(&mut all) {
            link.times.push(seconds(led(mesh, Run { repeats: link.repeats, ..run }, false).await?));
            if let Some((bare, warm)) = bare {
                let time = bares.run(*bare, Run { repeats: warm.repeats, ..run }).await?;
                warm.times.push(seconds(time));
            }
        }
    }
    for mesh in &mut *meshes {
        mesh.leader.clear();
    }
    let point = |(mesh, (link, bare)): (&Mesh, Pair)| Point {
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

/// How often it is done in a run, if one message or operation takes so long. A barrier before an operation, which does not
/// count, takes about as long again.
fn repeats(run: Run, one: Duration) -> u32 {
    let messages = if run.function.is_of_pairs() { run.function.window(run.bytes) as f64 } else { 2.0 };
    (RUN_SECONDS / (seconds(one) * messages)).clamp(1.0, REPEATS_MAX) as u32
}

/// Never 0, which a clock that stands still would give.
fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().max(1e-9)
}

/// What ended of its own. A process that is killed shuts its links first, and can be seen to have ended a little later.
async fn gone_soon(mesh: &mut Mesh) -> Option<String> {
    for _ in 0..50 {
        if let Some(gone) = mesh.gone() {
            return Some(gone);
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    None
}

/// One run, within its deadline.
async fn led(mesh: &mut Mesh, run: Run, checks: bool) -> Result<Duration, Failure> {
    let why = match tokio::time::timeout(RUN_DEADLINE, mesh.leader.lead(run, checks)).await {
        Ok(Ok(time)) => return Ok(time),
        Ok(Err(e)) => e.to_string(),
        Err(_) => format!("no end within {} s", RUN_DEADLINE.as_secs()),
    };
    let Run { function, bytes, ends, .. } = run;
    let gone = gone_soon(mesh).await.map(|gone| format!("; {gone}")).unwrap_or_default();
    let what = format!("{} of {bytes} bytes among {ends} ends of {}", function.name(), mesh.link.name());
    Err(Failure::failed(format!("bench link: {what}: {why}{gone}")))
}
