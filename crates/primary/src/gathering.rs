//! Who takes part: sessions with every machine, its link measured, and those that know each other.
//!
//! Place in the flow: from links to the sessions of a plan's members, in front of and behind the decision.
//!
//! Invariants: a worker that does not answer is an error that names it, or, where that was asked for, is left out and named. One
//! that has answered and is then gone is lost, as it would be later: the others do the product.

use crate::PrimaryError;
use crate::account::{Loss, RelayReport};
use crate::levels;
use crate::measure::measure;
use crate::neighbours::{Met, Random, introduce};
use crate::opening::{Opening, Session, dismiss, one_kernel, open};
use crate::product::{Ends, Request, Watch};
use crate::run::{Comers, Kernels};
use bramble_matrix::Winograd;
use bramble_plan::{Decision, Plan, Problem, Wish, memory_to_ask};
use bramble_schedule::message::Wants;

/// Everybody who can take part.
pub(crate) struct Gathered {
    /// This process's own threads.
    pub(crate) local: Session,
    pub(crate) workers: Vec<Session>,
    /// What all links together carry, where that was measured.
    pub(crate) nic_bytes_per_s: Option<f64>,
    /// Workers that could not be had, one sentence each.
    pub(crate) missing: Vec<String>,
    /// Those that were lost since.
    pub(crate) lost: Vec<Loss>,
    /// Those who may come later.
    pub(crate) comers: Option<Comers>,
    /// How kernels among them cut products that multiply by Strassen's method, and what is wanted of a plan for these.
    pub(crate) rules: Vec<Winograd>,
    pub(crate) wish: Wish,
}

/// Opens and measures everybody.
pub(crate) async fn gather(
    request: &Request,
    problem: &Problem,
    mut ends: Ends,
    wants: Wants,
    watch: &dyn Watch,
) -> Result<Gathered, PrimaryError> {
    let mut missing = std::mem::take(&mut ends.missing);
    let later = ends.later.take();
    let session = (request.session_seed | 1).wrapping_add(2 + ends.workers.len() as u32 * 2);
    let opening = opening(request, problem, wants)?;
    let (local, mut workers, failed) = open_all(request, ends, &opening).await?;
    for e in failed {
        match e {
            PrimaryError::Unreachable { .. } if request.degraded => missing.push(e.to_string()),
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
    let (rules, wish) = levels::considered(&may_compute, problem.dtype, request.wish)?;
    let credits = request.credits.unwrap_or(u64::MAX);
    let kernels = Kernels { same: kernel, dtype: problem.dtype, rules: rules.clone() };
    let comers = later.map(|ends| Comers { ends, opening, session, credits, kernels });
    let (nic_bytes_per_s, silent) = measure(&mut workers).await?;
    let mut lost = Vec::new();
    for e in silent {
        let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
        watch.lost(&name, &why, true);
        lost.push(Loss { name, why, at_s: 0.0, parts: 0, part: 0.0 });
    }
    Ok(Gathered { local, workers, nic_bytes_per_s, missing, lost, comers, rules, wish })
}

/// What every worker is told first.
fn opening(request: &Request, problem: &Problem, wants: Wants) -> Result<Opening, PrimaryError> {
    // The grids do not depend on who answers, so what there is to hold is known before anybody is asked.
    let memory_bytes = memory_to_ask(problem, request.cut, &request.wish)?;
    Ok(Opening {
        dtype: problem.dtype,
        alpha: request.alpha,
        beta: request.beta,
        flops: problem.flops(),
        memory_bytes,
        kernel: request.kernel.clone(),
        name: request.name.clone(),
        wants,
    })
}

/// Opens the session with this machine's own threads, so that they are measured undisturbed (workers may be
/// processes beside us), then all others at the same time. Those that could not be opened come last.
async fn open_all(
    request: &Request,
    ends: Ends,
    opening: &Opening,
) -> Result<(Session, Vec<Session>, Vec<PrimaryError>), PrimaryError> {
    let first = request.session_seed | 1;
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

/// The sessions of a plan's members, in their order, and that with this process's own threads where it has no share: they wait
/// until nobody else is left. The others are dismissed.
pub(crate) async fn chosen(
    decision: &Decision,
    local: Session,
    workers: Vec<Session>,
) -> (Vec<Session>, Option<Session>) {
    // As in the decision: first the primary, then the workers.
    let mut slots: Vec<Option<Session>> = std::iter::once(local).chain(workers).map(Some).collect();
    let sessions = decision.plan.members.iter().filter_map(|m| slots[m.machine].take()).collect();
    let reserve = slots.first_mut().and_then(Option::take);
    dismiss(slots.into_iter().flatten().collect()).await;
    (sessions, reserve)
}

/// The sessions, and who of them can pass panels on to whom, where the plan wants that.
pub(crate) async fn acquainted(
    plan: &Plan,
    sessions: Vec<Session>,
    random: Random,
    watch: &dyn Watch,
) -> Result<Met, PrimaryError> {
    if !plan.relay {
        let (neighbours, dead) = (vec![Vec::new(); sessions.len()], vec![None; sessions.len()]);
        return Ok(Met { sessions, neighbours, dead, report: RelayReport::default() });
    }
    let met = introduce(plan, sessions, random).await?;
    watch.introduced(&met.report);
    Ok(met)
}
