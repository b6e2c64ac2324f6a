//! `bramble sim`: how long a product would take on a cluster, and what it would cost if machines fail. It computes nothing.
//!
//! Place in the flow: as plan up to the decision; then the state machines that multiply has run under a virtual clock
//! (`bramble_sim`), with simulated machines and links, once undisturbed and once for each set of faults.
//!
//! Invariants: what goes to stdout is a function of the arguments and, where machines are real, of what they measured of
//! themselves; how long it took to find out goes to stderr (and into two fields of the JSON object).
//!
//! Deliberately absent: whether C is right. The trials of the simulator and the tests of the program have that.

mod case;
mod json;
mod runs;
mod text;

use crate::args::SimArgs;
use crate::exit::{Exit, Failure};
use crate::plan;
use crate::quantity::seconds;
use crate::report::cpu_seconds;
use crate::until::{Ended, done_or_signal};
use case::Case;
use runs::{Runs, Wanted};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Jobs of all runs beyond which nobody would wait for the answer: about a microsecond or two each.
const JOBS_MAX: f64 = 5e8;

/// Runs the verb.
pub(crate) fn run(args: &SimArgs) -> Result<Exit, Failure> {
    let problem = plan::problem("sim", &args.product)?;
    // What cannot be read is said before anybody is asked.
    let joining = case::joining(args.faults.as_deref())?;
    let machines = match plan::machines(&args.product, &problem)? {
        Ended::Signal(exit) => return Ok(exit),
        Ended::Done(machines) => machines,
    };
    let case = Arc::new(Case::of(args, &problem, machines, &joining)?);
    let wanted = Wanted::of(args, &case)?;
    let runs = 1.0 + wanted.runs();
    let jobs = case.jobs() * runs;
    if jobs > JOBS_MAX {
        return Err(Failure::failed(format!(
            "sim: {jobs:.1e} jobs in {runs} runs would take long to simulate; use smaller sizes, a larger --tile and --panel, \
             or fewer --seeds"
        )));
    }
    let (began, cpu_s) = (Instant::now(), cpu_seconds());
    let runs = match done_or_signal(in_a_thread(case.clone(), wanted))? {
        Ended::Signal(exit) => return Ok(exit),
        Ended::Done(runs) => runs?,
    };
    let own = Own { seconds: began.elapsed().as_secs_f64(), cpu_s: cpu_seconds() - cpu_s };
    if args.product.json {
        crate::out(format!("{}\n", json::json(&case, &runs, own)).as_bytes())?;
    } else {
        crate::out(text::text(&case, &runs).as_bytes())?;
        crate::say(&speed(&runs, own));
    }
    match failed(&runs) {
        None => Ok(Exit::Done),
        // The object says so already, and there is one object.
        Some(why) if args.product.json => {
            crate::say(&format!("bramble: {}", why.replace('\n', " ")));
            Ok(Exit::Failed)
        }
        Some(why) => Err(Failure::failed(why)),
    }
}

/// Why there is no C, if there is none.
fn failed(runs: &Runs) -> Option<String> {
    if let Some(why) = &runs.undisturbed.failed {
        return Some(format!("sim: the product fails: {why}"));
    }
    let why = runs.disturbed.as_ref().and_then(|(_, run)| run.failed.as_ref())?;
    Some(format!("sim: with these faults the product fails: {why}"))
}

/// What the simulation took itself: a clock's seconds, and those of processors.
#[derive(Clone, Copy)]
struct Own {
    seconds: f64,
    cpu_s: f64,
}

/// How fast the simulation was itself.
fn speed(runs: &Runs, own: Own) -> String {
    let (simulated_s, events) = runs.simulated();
    let times = simulated_s / own.seconds.max(1e-9);
    let than = if times >= 1.0 { format!("{times:.1} times as fast as") } else { "slower than".to_owned() };
    let [simulated, real, cpu] = [simulated_s, own.seconds, own.cpu_s].map(seconds);
    format!("simulated {simulated} in {real}, {than} real time; {cpu} of processors for {events} events")
}

/// Simulates beside the event loop, which hears signals.
async fn in_a_thread(case: Arc<Case>, wanted: Wanted) -> Result<Result<Runs, Failure>, Failure> {
    let (told, tells) = oneshot::channel();
    std::thread::spawn(move || {
        // Who was interrupted does not wait for it.
        let _ = told.send(runs::all(&case, &wanted));
    });
    let bug =
        "sim: the simulation ended by a mistake of its own; the lines before say where: please report them";
    tells.await.map_err(|_| Failure::failed(bug))
}
