//! `bramble sim`: simulates a product on a cluster, its time and the cost of failing machines, without computing it; `sim lu`
//! (`lu.rs`) simulates a factorisation.
//!
//! Place in the flow: the same as plan up to the decision; then the state machines of multiply run under a virtual
//! clock (`bramble_sim`), with simulated machines and links, once without faults and once for each set of faults.
//!
//! Invariants: stdout depends only on the arguments and, for real machines, on their measurements; the time that the
//! simulation itself took goes to stderr (and into two fields of the JSON object).
//!
//! Deliberately absent: the correctness of C. The trials of the simulator and the end-to-end tests check it.

mod case;
mod lu;
mod runs;

use crate::args::{SimArgs, SimCommand};
use crate::plan;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_report::exit::{Exit, Failure};
use bramble_report::product::cpu_seconds;
use bramble_report::quantity::seconds;
use bramble_report::sim::{Runs, SimCase, SimulationTime, json, text};
use runs::FaultSets;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Most jobs in all runs together. A job takes about a microsecond or two to simulate, so more would take too long.
const JOBS_MAX: f64 = 5e8;

/// Runs the verb.
pub(crate) fn run(args: &SimArgs) -> Result<Exit, Failure> {
    if let Some(SimCommand::Lu(args)) = &args.command {
        return lu::run(args);
    }
    let problem = plan::problem("sim", &args.product)?;
    // An unreadable `--faults` is refused before any machine is contacted.
    let joining = case::joining(args.faults.as_deref())?;
    let machines = match plan::machines(&args.product, &problem)? {
        Completion::Signal(exit) => return Ok(exit),
        Completion::Done(machines) => machines,
    };
    let case = Arc::new(case::make(args, &problem, machines, &joining)?);
    let wanted = FaultSets::of(args, &case)?;
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
        Completion::Signal(exit) => return Ok(exit),
        Completion::Done(runs) => runs?,
    };
    let own = SimulationTime { seconds: began.elapsed().as_secs_f64(), cpu_s: cpu_seconds() - cpu_s };
    if args.product.json {
        bramble_report::out(format!("{}\n", json::json(&case, &runs, own)).as_bytes())?;
    } else {
        bramble_report::out(text::text(&case, &runs).as_bytes())?;
        bramble_report::say(&speed(&runs, own));
    }
    match failed(&runs) {
        None => Ok(Exit::Done),
        // The JSON object already has the reason, and stdout gets only one object.
        Some(why) if args.product.json => {
            bramble_report::say(&format!("bramble: {}", why.replace('\n', " ")));
            Ok(Exit::Failed)
        }
        Some(why) => Err(Failure::failed(why)),
    }
}

/// Why a simulated product failed, if one did.
fn failed(runs: &Runs) -> Option<String> {
    if let Some(why) = &runs.undisturbed.failed {
        return Some(format!("sim: the product fails: {why}"));
    }
    let why = runs.disturbed.as_ref().and_then(|(_, run)| run.failed.as_ref())?;
    Some(format!("sim: with these faults the product fails: {why}"))
}

/// The line about the speed of the simulation itself.
fn speed(runs: &Runs, own: SimulationTime) -> String {
    let (simulated_s, events) = runs.simulated();
    let times = simulated_s / own.seconds.max(1e-9);
    let than = if times >= 1.0 { format!("{times:.1} times as fast as") } else { "slower than".to_owned() };
    let [simulated, real, cpu] = [simulated_s, own.seconds, own.cpu_s].map(seconds);
    format!("simulated {simulated} in {real}, {than} real time; {cpu} of processor time for {events} events")
}

/// Simulates on a separate thread, while the event loop waits for signals.
async fn in_a_thread(case: Arc<SimCase>, wanted: FaultSets) -> Result<Result<Runs, Failure>, Failure> {
    let (told, tells) = oneshot::channel();
    std::thread::spawn(move || {
        // After a signal, the receiver is gone.
        let _ = told.send(runs::all(&case, &wanted));
    });
    let bug = "sim: the simulator panicked; this is a bug of Bramble: please report the lines above";
    tells.await.map_err(|_| Failure::failed(bug))
}
