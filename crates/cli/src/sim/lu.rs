//! `bramble sim lu`: simulates the factorisation of a system on the machines of a cluster file, without computing it.
//!
//! Place in the flow: the columns are dealt to the machines of the file as to the workers of `bench hpl`; then the state machines
//! of the workers run under a virtual clock (`bramble_sim::simulate_lu`).
//!
//! Invariants: the limits and the memory of a part are those of a real run. stdout depends on the arguments and the file only,
//! but for two fields of the JSON object.
//!
//! Deliberately absent: the primary, which takes no part in an elimination; faults.

use crate::args::SimLuArgs;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_matrix::DType;
use bramble_plan::{LuMachine, LuPlan};
use bramble_primary::{PrimaryError, SystemPlan, SystemPlanning};
use bramble_report::exit::{Exit, Failure};
use bramble_report::product::cpu_seconds;
use bramble_report::quantity::seconds;
use bramble_report::sim::SimulationTime;
use bramble_report::sim::lu::{LuSimCase, json, text};
use bramble_sim::{LuSimSystem, lu_sim_events, simulate_lu};
use bramble_solve::lu_machines;
use bramble_wire::limits::LU_ORDER_MAX;
use std::time::Instant;
use tokio::sync::oneshot;

/// Right-hand sides.
const EXTRA: usize = 1;
/// Most events of a simulation. An event takes about a microsecond, so more would take too long.
const EVENTS_MAX: f64 = 3e8;

/// Runs the verb.
pub(super) fn run(args: &SimLuArgs) -> Result<Exit, Failure> {
    let order = usize::try_from(args.order).ok().filter(|order| (1..=LU_ORDER_MAX).contains(order));
    let order = order.ok_or_else(|| {
        Failure::usage(format!(
            "sim lu: N = {}: on workers, 1 to {LU_ORDER_MAX} rows can be solved",
            args.order
        ))
    })?;
    let machines = lu_machines(&args.cluster, args.nodes.map(usize::from), DType::F64)?;
    let (named, plan) = plan(order, args, &machines)?;
    let system = LuSimSystem { order, extra: EXTRA };
    let events = lu_sim_events(system, &plan);
    if events > EVENTS_MAX {
        return Err(Failure::failed(format!(
            "sim lu: about {events:.1e} events would take long to simulate; use a smaller N, or fewer machines"
        )));
    }
    let part_bytes = named.shares.iter().map(|share| share.bytes).collect();
    let (began, cpu_s) = (Instant::now(), cpu_seconds());
    let case = match done_or_signal(in_a_thread(system, plan, machines, part_bytes))? {
        Completion::Signal(exit) => return Ok(exit),
        Completion::Done(case) => case,
    };
    let own = SimulationTime { seconds: began.elapsed().as_secs_f64(), cpu_s: cpu_seconds() - cpu_s };
    if args.json {
        return bramble_report::out(format!("{}\n", json(&case, own)).as_bytes());
    }
    let [simulated, real] = [case.report.seconds, own.seconds].map(seconds);
    let line = format!("simulated {simulated} in {real}; {} events", case.report.events);
    let exit = bramble_report::out(text(&case).as_bytes());
    bramble_report::say(&line);
    exit
}

/// The plan that a run on such workers would have.
fn plan(
    order: usize,
    args: &SimLuArgs,
    machines: &[LuMachine],
) -> Result<(SystemPlan, LuPlan), PrimaryError> {
    SystemPlanning {
        order,
        extra: EXTRA,
        dtype: DType::F64,
        width: args.nb.map(|nb| usize::from(nb).min(order)),
        depth: None,
        machines,
        keeps_all: args.nodes.is_some(),
        coming: None,
        losses: 0,
    }
    .plan()
}

/// Simulates on a separate thread, while the event loop waits for signals.
async fn in_a_thread(
    system: LuSimSystem,
    plan: LuPlan,
    machines: Vec<LuMachine>,
    part_bytes: Vec<u64>,
) -> Result<LuSimCase, Failure> {
    let (told, tells) = oneshot::channel();
    std::thread::spawn(move || {
        let report = simulate_lu(system, &plan, &machines);
        // After a signal, the receiver is gone.
        let _ = told.send(LuSimCase { order: system.order, machines, part_bytes, plan, report });
    });
    let bug = "sim lu: the simulator panicked; this is a bug of Bramble: please report the lines above";
    tells.await.map_err(|_| Failure::failed(bug))
}
