//! Plans for the machines of a cluster file, which need not exist.
//!
//! Place in the flow: `plan lu --cluster`, instead of contacting workers; `bramble sim lu` has the same machines.
//!
//! Invariant: workers with these speeds, links and memory would get the same plan, but for the tasks of a factorisation, which
//! real workers measure.

use super::PlanLuArgs;
use super::subject::PlanSubject;
use bramble_cluster::cluster_file::{self, ClusterFile, DescribedMachine};
use bramble_matrix::DType;
use bramble_plan::{ComingColumns, LuMachine, LuTaskModel, Machine};
use bramble_primary::{SystemPlan, SystemPlanning, SystemSource};
use bramble_report::exit::Failure;
use bramble_report::quantity::counted;
use std::path::Path;

/// The workers of a cluster file, the first `nodes` if that is given, with their rates for an element type.
pub fn lu_machines(path: &Path, nodes: Option<usize>, dtype: DType) -> Result<Vec<LuMachine>, Failure> {
    of_file(&read(path)?, path, nodes, dtype)
}

/// The plan for the machines of a file.
pub(super) fn plan(args: &PlanLuArgs, subject: &PlanSubject, path: &Path) -> Result<SystemPlan, Failure> {
    let file = read(path)?;
    let (dtype, nodes) = (subject.dtype(), args.nodes.map(usize::from));
    let mut machines = of_file(&file, path, nodes, dtype)?;
    for machine in &mut machines {
        machine.memory_bytes = machine.memory_bytes.min(args.memory.unwrap_or(u64::MAX));
    }
    let source = subject.source()?;
    let (order, extra) = source.shape()?;
    let nic_bytes_per_s =
        file.primary.as_ref().and_then(|primary| primary.machine(dtype, None).nic_bytes_per_s);
    let coming = match source {
        SystemSource::Hpl(_) | SystemSource::HplMxp(_) => None,
        SystemSource::Given { .. } => Some(ComingColumns::over(nic_bytes_per_s, &machines)),
    };
    let planning = SystemPlanning {
        order,
        extra,
        dtype,
        width: args.nb.map(|nb| usize::from(nb).min(order)),
        depth: args.depth.map(usize::from),
        machines: &machines,
        keeps_all: nodes.is_some(),
        coming,
        losses: usize::from(args.survive),
    };
    Ok(planning.plan().map(|(plan, _)| plan)?)
}

fn read(path: &Path) -> Result<ClusterFile, Failure> {
    cluster_file::read(path).map_err(|why| Failure::usage(format!("--cluster {why}")))
}

fn of_file(
    file: &ClusterFile,
    path: &Path,
    nodes: Option<usize>,
    dtype: DType,
) -> Result<Vec<LuMachine>, Failure> {
    let (name, there) = (path.display(), file.machines.len());
    if let Some(wanted) = nodes.filter(|wanted| *wanted > there) {
        return Err(Failure::usage(format!(
            "--nodes {wanted}: --cluster {name} describes {}",
            counted(there as u64, "worker")
        )));
    }
    let (taken, most) = (nodes.unwrap_or(there), SystemPlanning::MACHINES_MAX);
    if taken > most {
        return Err(Failure::failed(format!(
            "--cluster {name} describes {there} workers, and at most {most} eliminate together; use --nodes"
        )));
    }
    let machine = |described: &DescribedMachine| {
        // Panels go from worker to worker: the primary's link limits none of them.
        let Machine { name, threads, gflops, memory_bytes, link, .. } = described.machine(dtype, None);
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
