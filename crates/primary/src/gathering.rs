//! Gathers the participants: opens sessions, measures their links, introduces workers to each other.
//!
//! Place in the flow: from links to the sessions of a plan's members; partly before the planner's decision, partly after it.
//!
//! Invariants: a worker that does not answer is an error that names it, or, with `--degraded`, is left out by name. A worker that
//! answered and then disappears counts as lost, as it would later: the other machines do the product.

use crate::PrimaryError;
use crate::account::{MachineLoss, RelayReport};
use crate::levels;
use crate::measure::measure;
use crate::neighbours::{ConnectedPeers, SecretSource, introduce};
use crate::opening::{Opening, Session, dismiss, one_kernel, open};
use crate::product::{MachineLinks, ProductObserver, Request};
use crate::run::{AllowedKernels, JoinSource};
use bramble_matrix::Winograd;
use bramble_plan::{Decision, Plan, PlanOptions, Problem, memory_to_ask};
use bramble_schedule::message::Wants;

/// All sessions that can take part, and the conditions for the plan.
pub(crate) struct Participants {
    /// The session with this process's own threads.
    pub(crate) local: Session,
    pub(crate) workers: Vec<Session>,
    /// Measured bandwidth of all links together, if it was measured.
    pub(crate) nic_bytes_per_s: Option<f64>,
    /// Workers that could not be used, one sentence each.
    pub(crate) missing: Vec<String>,
    /// Workers that were lost after they had answered.
    pub(crate) lost: Vec<MachineLoss>,
    /// Machines that may join later.
    pub(crate) join_source: Option<JoinSource>,
    /// The rules by which Strassen kernels among the machines cut products, and the user's wish, adapted to them.
    pub(crate) rules: Vec<Winograd>,
    pub(crate) wish: PlanOptions,
}

/// Opens all sessions and measures their links.
pub(crate) async fn gather(
    request: &Request,
    problem: &Problem,
    mut ends: MachineLinks,
    wants: Wants,
    watch: &dyn ProductObserver,
) -> Result<Participants, PrimaryError> {
    let mut missing = std::mem::take(&mut ends.missing);
    let later = ends.later.take();
    let session = (request.sessions.seed | 1).wrapping_add(2 + ends.workers.len() as u32 * 2);
    let opening = opening(request, problem, wants)?;
    let (local, mut workers, failed) = open_all(request, ends, &opening).await?;
    for e in failed {
        match e {
            PrimaryError::Unreachable { .. } if request.sessions.degraded => missing.push(e.to_string()),
            other => return Err(other),
        }
    }
    missing.iter().for_each(|why| watch.missing(why));
    let has_one_kernel = request.wish.reproducible && problem.dtype.is_float();
    if has_one_kernel {
        one_kernel(&local, &workers)?;
    }
    let kernel = has_one_kernel.then(|| local.welcome.kernel.clone());
    let may_compute: Vec<&Session> = std::iter::once(&local).chain(&workers).collect();
    let (rules, wish) = levels::adapt_wish(&may_compute, problem.dtype, request.wish)?;
    let credits = request.sessions.credits.unwrap_or(u64::MAX);
    let kernels = AllowedKernels { same: kernel, dtype: problem.dtype, rules: rules.clone() };
    let join_source = later.map(|ends| JoinSource { ends, opening, session, credits, kernels });
    let (nic_bytes_per_s, silent) = measure(&mut workers).await?;
    let mut lost = Vec::new();
    for e in silent {
        let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
        watch.lost(&name, &why, true);
        lost.push(MachineLoss { name, why, at_s: 0.0, parts: 0, part: 0.0 });
    }
    Ok(Participants { local, workers, nic_bytes_per_s, missing, lost, join_source, rules, wish })
}

/// The hello for every worker.
fn opening(request: &Request, problem: &Problem, wants: Wants) -> Result<Opening, PrimaryError> {
    // The grid does not depend on which workers answer, so the memory to ask for is known before the first hello.
    let memory_bytes = memory_to_ask(problem, request.cut, &request.wish)?;
    Ok(Opening {
        dtype: problem.dtype,
        alpha: request.alpha,
        beta: request.beta,
        flops: problem.flops(),
        memory_bytes,
        kernel: request.kernel.clone(),
        name: request.sessions.name.clone(),
        wants,
    })
}

/// Opens the session with this machine's own threads first, so that their probe is undisturbed (workers may be processes on
/// the same machine), then all others concurrently. Returns this machine's, the others', and the errors.
async fn open_all(
    request: &Request,
    ends: MachineLinks,
    opening: &Opening,
) -> Result<(Session, Vec<Session>, Vec<PrimaryError>), PrimaryError> {
    let first = request.sessions.seed | 1;
    let local = open(ends.local, opening, first).await?;
    let mut tasks = Vec::new();
    for (i, end) in ends.workers.into_iter().enumerate() {
        let opening = opening.clone();
        let session = first.wrapping_add(2 + i as u32 * 2);
        tasks.push(tokio::task::spawn_local(async move { open(end, &opening, session).await }));
    }
    let (mut opened, mut failed) = (Vec::new(), Vec::new());
    for task in tasks {
        match task.await {
            Ok(Ok(session)) => opened.push(session),
            Ok(Err(e)) => failed.push(e),
            Err(e) => failed.push(PrimaryError::Failed(format!("opening a session: {e}"))),
        }
    }
    Ok((local, opened, failed))
}

/// The sessions of the plan's members, in their order, and that with this process's own threads if it has no share: it stays as a
/// reserve until no other machine is left. The other sessions are dismissed.
pub(crate) async fn select_sessions(
    decision: &Decision,
    local: Session,
    workers: Vec<Session>,
) -> (Vec<Session>, Option<Session>) {
    // In the decision's order: first the primary, then the workers.
    let mut slots: Vec<Option<Session>> = std::iter::once(local).chain(workers).map(Some).collect();
    let sessions = decision.plan.members.iter().filter_map(|m| slots[m.machine].take()).collect();
    let reserve = slots.first_mut().and_then(Option::take);
    dismiss(slots.into_iter().flatten().collect()).await;
    (sessions, reserve)
}

/// Introduces the members to each other if the plan relays panels.
pub(crate) async fn connect_members(
    plan: &Plan,
    sessions: Vec<Session>,
    random: SecretSource,
    watch: &dyn ProductObserver,
) -> Result<ConnectedPeers, PrimaryError> {
    if !plan.relay {
        let (neighbours, dead) = (vec![Vec::new(); sessions.len()], vec![None; sessions.len()]);
        return Ok(ConnectedPeers { sessions, neighbours, dead, report: RelayReport::default() });
    }
    let connected = introduce(plan, sessions, random).await?;
    watch.introduced(&connected.report);
    Ok(connected)
}
