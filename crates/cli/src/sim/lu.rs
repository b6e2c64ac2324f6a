//! `bramble sim lu`: simulates the factorisation of a system on the machines of a cluster file, without computing it.
//!
//! Place in the flow: the machines become those of `plan::LuCluster`, which deals the columns as for `bench hpl` on workers;
//! then the state machines of the workers run under a virtual clock (`bramble_sim::simulate_lu`).
//!
//! Invariants: the limits and the memory of a part are those of a real run. stdout depends on the arguments and the file only,
//! but for two fields of the JSON object.
//!
//! Deliberately absent: the primary, which takes no part in an elimination; faults.

use crate::args::SimLuArgs;
use bramble_cluster::cluster_file;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_matrix::DType;
use bramble_plan::{DEPTH_MIN, LuCluster, LuMachine, LuPlan, LuPlanError, LuTaskModel, Machine, PartSizes};
use bramble_report::exit::{Exit, Failure};
use bramble_report::product::cpu_seconds;
use bramble_report::quantity::{bytes, counted, seconds};
use bramble_report::sim::SimulationTime;
use bramble_report::sim::lu::{LuSimCase, json, text};
use bramble_sim::{LuSimSystem, lu_sim_events, simulate_lu};
use bramble_wire::limits::{LU_BLOCKS_MAX, LU_MACHINES_MAX, LU_ORDER_MAX};
use bramble_wire::message::LuBegin;
use std::time::Instant;
use tokio::sync::oneshot;

/// Right-hand sides.
const EXTRA: usize = 1;
/// Most events of a simulation. An event takes about a microsecond, so more would take too long.
const EVENTS_MAX: f64 = 3e8;
/// Most machines named in the error about memory.
const NAMED_MAX: usize = 4;

/// Runs the verb.
pub(super) fn run(args: &SimLuArgs) -> Result<Exit, Failure> {
    let order = usize::try_from(args.order).ok().filter(|order| (1..=LU_ORDER_MAX).contains(order));
    let order = order.ok_or_else(|| {
        Failure::usage(format!(
            "sim lu: N = {}: on workers, 1 to {LU_ORDER_MAX} rows can be solved",
            args.order
        ))
    })?;
    let machines = machines(args)?;
    let plan = plan(order, args, &machines)?;
    let system = LuSimSystem { order, extra: EXTRA };
    let events = lu_sim_events(system, &plan);
    if events > EVENTS_MAX {
        return Err(Failure::failed(format!(
            "sim lu: about {events:.1e} events would take long to simulate; use a smaller N, or fewer machines"
        )));
    }
    let part = |(at, columns): (&usize, &usize)| {
        part_bytes(
            order,
            PartSizes {
                depth: plan.depth,
                width: plan.width,
                columns: *columns,
                threads: machines[*at].threads,
            },
        )
    };
    let part_bytes = plan.deal.machines.iter().zip(&plan.deal.columns).map(part).collect();
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

/// The workers of the cluster file.
fn machines(args: &SimLuArgs) -> Result<Vec<LuMachine>, Failure> {
    let file = cluster_file::read(&args.cluster).map_err(|why| Failure::usage(format!("--cluster {why}")))?;
    let (name, there) = (args.cluster.display(), file.machines.len());
    let wanted = args.nodes.map(usize::from);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > there) {
        return Err(Failure::usage(format!(
            "--nodes {wanted}: --cluster {name} describes {}",
            counted(there as u64, "worker")
        )));
    }
    let taken = wanted.unwrap_or(there);
    if taken > LU_MACHINES_MAX {
        return Err(Failure::failed(format!(
            "--cluster {name} describes {there} workers, and at most {LU_MACHINES_MAX} eliminate together; use --nodes"
        )));
    }
    let machine = |described: &cluster_file::DescribedMachine| {
        // Panels go from worker to worker: the primary's link limits none of them.
        let Machine { name, threads, gflops, memory_bytes, link, .. } = described.machine(DType::F64, None);
        LuMachine {
            name,
            threads: threads as usize,
            gflops,
            memory_bytes,
            bytes_per_s: link.map(|link| link.bytes_per_s),
            round_trip_s: link.map_or(0.0, |link| link.round_trip_s),
            tasks: LuTaskModel::default(),
        }
    };
    Ok(file.machines.iter().take(taken).map(machine).collect())
}

/// Bytes of a part of the system at a worker.
fn part_bytes(order: usize, of: PartSizes) -> u64 {
    LuBegin::bytes_of_part((order, EXTRA, of.width), DType::F64, of.depth, of.columns, of.threads)
}

/// The plan that a run on such workers would have.
fn plan(order: usize, args: &SimLuArgs, machines: &[LuMachine]) -> Result<LuPlan, Failure> {
    let needed = |of: PartSizes| part_bytes(order, of);
    let cluster = LuCluster {
        order,
        extra: EXTRA,
        width: args.nb.map(|nb| usize::from(nb).min(order)),
        depth: None,
        element_bytes: DType::F64.size_bytes(),
        machines,
        keeps_all: args.nodes.is_some(),
        coming: None,
        bytes: &needed,
    };
    let plan = cluster.plan().map_err(|e| too_large(order, args, &e))?;
    match plan.deal.owners.len() {
        blocks if blocks > LU_BLOCKS_MAX => Err(Failure::failed(format!(
            "sim lu: N = {order} makes {blocks} blocks of {} columns, and at most {LU_BLOCKS_MAX} are possible; \
             use a larger --nb",
            plan.width
        ))),
        _ => Ok(plan),
    }
}

fn too_large(order: usize, args: &SimLuArgs, e: &LuPlanError) -> Failure {
    let offer = |(name, memory): &(String, u64)| format!("{name} offers {}", bytes(*memory as f64));
    let named: Vec<String> = e.offers.iter().take(NAMED_MAX).map(offer).collect();
    let more = match e.offers.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(", and {more} more machines"),
    };
    let panels = args.nb.map_or_else(String::new, |nb| {
        let least = PartSizes { depth: DEPTH_MIN, width: usize::from(nb).min(order), columns: 0, threads: 1 };
        let each = bytes(part_bytes(order, least) as f64);
        format!(" and, at each machine, {each} for panels of {nb} columns")
    });
    let columns = bytes(order as f64 * (order + EXTRA) as f64 * 8.0);
    Failure::failed(format!(
        "sim lu: a system of order {order} takes {columns}{panels}, and it does not fit: {}{more}; use a smaller one, \
         or more machines",
        named.join(", ")
    ))
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
