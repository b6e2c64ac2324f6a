//! From a request to its plan: sessions with the machines, and the decision which of them computes what.
//!
//! Place in the flow: the first half of `one_product`, and all of a plan without a product.
//!
//! Invariants: a plan without a product opens the same sessions, takes the same measurements and calls the same planner as a
//! product. After an error, and after such a plan, all connections are idle again.

use super::resident::{choose_resident, with_resident};
use super::{Request, problem};
use crate::bandwidth::memory_rate;
use crate::cluster::{Cluster, primary_error};
use crate::gathering::{Participants, gather};
use crate::product::ProductObserver;
use crate::{resume, strassen};
use bramble_arrays::ResidentOperands;
use bramble_plan::{Decision, Machine, MadeOperands, MemoryRate, PlanOptions, Problem};
use bramble_record::log::{EventRecorder, Phase};
use bramble_sessions::{PrimaryError, Session, even_speeds};
use bramble_wire::message::Wants;
use std::time::Instant;

/// The plan of a product that does not run.
#[derive(Clone, Debug)]
pub struct ProductPlan {
    /// The plan, and why it is this one.
    pub decision: Decision,
    /// The primary, then the workers; members of the plan are indices into this list.
    pub machines: Vec<Machine>,
    /// Time spent planning, in seconds.
    pub plan_seconds: f64,
}

/// A product whose machines wait for their work.
pub(super) struct PlannedProduct {
    pub(super) request: Request,
    pub(super) problem: Problem,
    /// The operands that are read where they lie, if any is placed.
    pub(super) resident: Option<ResidentOperands>,
    pub(super) gathered: Participants,
    pub(super) decision: Decision,
    /// The kernel of all machines, for the journal.
    pub(super) kernel: String,
    /// Time spent planning, in seconds.
    pub(super) plan_seconds: f64,
}

/// Plans a product as `one_product` does, and lets the machines go.
pub(crate) async fn plan_only(
    request: Request,
    cluster: &mut Cluster,
    watch: &dyn ProductObserver,
) -> Result<ProductPlan, PrimaryError> {
    let problem = problem(&request)?;
    let (m, n, k) = (problem.m, problem.n, problem.k);
    if problem.flops() == 0.0 || request.alpha == 0.0 {
        let why = format!("C is {m}x{n}, k = {k}: there is nothing to multiply, so nothing to plan");
        return Err(PrimaryError::Operands(why));
    }
    let planned = planned(request, problem, cluster, &mut EventRecorder::new(None), watch).await?;
    let PlannedProduct { request, gathered, decision, plan_seconds, .. } = planned;
    let Participants { local, mut workers, .. } = gathered;
    let mut machines = described(&workers, request.sessions.credits, cluster.alike);
    machines.insert(0, local.machine(None, false));
    workers.push(local);
    cluster.idle.release(workers).await;
    Ok(ProductPlan { decision, machines, plan_seconds })
}

/// Opens sessions with the machines, and plans a product that multiplies.
pub(super) async fn planned(
    request: Request,
    problem: Problem,
    cluster: &mut Cluster,
    recorder: &mut EventRecorder,
    watch: &dyn ProductObserver,
) -> Result<PlannedProduct, PrimaryError> {
    let resident = ResidentOperands::of([&request.a, &request.b], &cluster.arrays).map_err(primary_error)?;
    let problem = with_resident(problem, resident.as_ref());
    let (mut request, measured) = strassen::replace_unsafe_kernel(request, &problem).await?;
    recorder.phase(Phase::Opening);
    let wants = Wants { log: recorder.is_on(), account: request.sessions.account, task_rates: false };
    let mut gathered = gather(&request, &problem, resident.as_ref(), cluster, wants, watch).await?;
    let began = Instant::now();
    let chosen = match &resident {
        Some(resident) => {
            choose_resident(&mut request, &problem, (resident, &*cluster), &mut gathered, measured).await
        }
        None => choose(&mut request, &problem, &mut gathered, measured, cluster.alike, recorder).await,
    };
    let plan_seconds = began.elapsed().as_secs_f64();
    match chosen {
        Ok((decision, kernel)) => {
            Ok(PlannedProduct { request, problem, resident, gathered, decision, kernel, plan_seconds })
        }
        Err(e) => {
            let Participants { local, mut workers, .. } = gathered;
            workers.push(local);
            cluster.idle.release(workers).await;
            Err(e)
        }
    }
}

/// Chooses the plan, or takes that of the run that this one resumes; also the kernel of all machines, for the journal.
async fn choose(
    request: &mut Request,
    problem: &Problem,
    gathered: &mut Participants,
    measured: Option<strassen::Measured>,
    alike: bool,
    recorder: &mut EventRecorder,
) -> Result<(Decision, String), PrimaryError> {
    let making = MadeOperands { a: request.a.matrix.is_made(), b: request.b.matrix.is_made() };
    request.wish = PlanOptions { tiles_early: request.journal.as_ref().map(|_| making), ..gathered.wish };
    let everybody = std::iter::once(&gathered.local).chain(&gathered.workers);
    strassen::check_own_kernels(request, problem, everybody, measured).await?;
    let before = request.journal.as_ref().and_then(|journal| journal.before.as_deref());
    let kernel = resume::fitting_kernel(gathered, before, problem)?;
    recorder.phase(Phase::Planning);
    let Participants { local, workers, nic_bytes_per_s, .. } = &*gathered;
    // The plan of a product that is resumed is there already, and C is not empty.
    let memory_rate = if before.is_none() { memory_rate_here(request, problem, local) } else { None };
    let primary = Machine { nic_bytes_per_s: *nic_bytes_per_s, memory_rate, ..local.machine(None, false) };
    let machines = described(workers, request.sessions.credits, alike);
    let decision = match before {
        None => strassen::choose(request, problem, &primary, &machines).await?,
        Some(journal) => resume::decision(journal, workers.len()),
    };
    Ok((decision, kernel))
}

/// The workers as the plan sees them; equal ones (`--local`) have one speed.
pub(super) fn described(workers: &[Session], credits: Option<u64>, alike: bool) -> Vec<Machine> {
    let mut machines: Vec<Machine> = workers.iter().map(|s| s.machine(credits, alike)).collect();
    if alike {
        even_speeds(machines.iter_mut().collect());
    }
    machines
}

fn memory_rate_here(request: &Request, problem: &Problem, local: &Session) -> Option<MemoryRate> {
    let threads = usize::from(local.welcome.threads);
    memory_rate(problem, (&request.a.matrix, &request.b.matrix), &request.output, threads)
}
