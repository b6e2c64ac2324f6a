//! Gathers the participants: opens sessions, measures their links, introduces workers to each other.
//!
//! Place in the flow: from links to the sessions of a plan's members; partly before the planner's decision, partly after it.
//!
//! Invariants: a worker that does not answer is an error that names it, or, with `--degraded`, is left out by name. A worker that
//! answered and then disappears counts as lost, as it would later: the other machines do the product.

use crate::account::MachineLoss;
use crate::cluster::{Cluster, primary_error};
use crate::levels;
use crate::product::{ProductObserver, Request, SessionRequest};
use crate::run::{AllowedKernels, JoinTerms};
use bramble_arrays::ResidentOperands;
use bramble_matrix::Winograd;
use bramble_plan::{
    Decision, Plan, PlanOptions, Problem, memory_to_ask, memory_to_ask_resident, pays_to_measure_together,
};
use bramble_sessions::{
    ConnectedPeers, Connection, IdleConnections, LostConnection, Opening, Pairing, PrimaryError, RelayReport,
    SecretSource, Session, introduce, measure, one_kernel, open,
};
use bramble_wire::message::Wants;
use std::collections::BTreeSet;

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
    /// Workers that hold no part of a placed operand, and so were not asked.
    pub(crate) unasked: Vec<String>,
    /// Conditions for machines that join later, if any may.
    pub(crate) join_terms: Option<JoinTerms>,
    /// The rules by which Strassen kernels among the machines cut products, and the user's wish, adapted to them.
    pub(crate) rules: Vec<Winograd>,
    pub(crate) wish: PlanOptions,
}

/// Opens sessions with all machines of the cluster and measures links that are new. After an error the connections are idle
/// again.
pub(crate) async fn gather(
    request: &Request,
    problem: &Problem,
    resident: Option<&ResidentOperands>,
    cluster: &mut Cluster,
    wants: Wants,
    watch: &dyn ProductObserver,
) -> Result<Participants, PrimaryError> {
    let opening = opening(request, problem, (resident, &*cluster), wants)?;
    let holders = resident.map(|resident| resident.connections(&cluster.arrays)).transpose();
    let holders = holders.map_err(primary_error)?;
    let OpenedSessions { local, mut workers, mut lost, unasked } =
        open_some(&request.sessions, &opening, cluster, holders, watch).await?;
    let has_one_kernel = request.wish.reproducible && problem.dtype.is_float();
    let is_one = if has_one_kernel { one_kernel(&local, &workers) } else { Ok(()) };
    let may_compute: Vec<&Session> = std::iter::once(&local).chain(&workers).collect();
    let adapted = is_one.and_then(|()| levels::adapt_wish(&may_compute, problem.dtype, request.wish));
    let (rules, wish) = match adapted {
        Ok(adapted) => adapted,
        Err(e) => {
            workers.push(local);
            cluster.idle.release(workers).await;
            return Err(e);
        }
    };
    let same = has_one_kernel.then(|| local.welcome.kernel.clone());
    let credits = request.sessions.credits.unwrap_or(u64::MAX);
    let kernels = AllowedKernels { same, dtype: problem.dtype, rules: rules.clone() };
    let numbers = cluster.numbers.clone();
    let join_terms = cluster.idle.later.is_some().then_some(JoinTerms { opening, numbers, credits, kernels });
    let pays = |workers: &[Session]| {
        let gflops = workers.iter().map(|session| session.welcome.gflops).sum();
        let rates = workers.iter().filter_map(|session| session.known.rate).map(|rate| rate.bytes_per_s);
        pays_to_measure_together(problem, gflops, rates.sum())
    };
    let (nic_bytes_per_s, silent) = measure(&mut workers, cluster.nic_bytes_per_s, pays).await?;
    cluster.nic_bytes_per_s = nic_bytes_per_s;
    for e in silent {
        let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
        lost.push(early_loss(watch, name, why));
    }
    let missing = cluster.missing.clone();
    Ok(Participants { local, workers, nic_bytes_per_s, missing, lost, unasked, join_terms, rules, wish })
}

/// A machine that is lost before the product begins.
pub(crate) fn early_loss(watch: &dyn ProductObserver, name: String, why: String) -> MachineLoss {
    watch.lost(&name, &why, true);
    MachineLoss { name, why, at_s: 0.0, parts: 0, part: 0.0 }
}

/// The hello for every worker.
fn opening(
    request: &Request,
    problem: &Problem,
    (resident, cluster): (Option<&ResidentOperands>, &Cluster),
    wants: Wants,
) -> Result<Opening, PrimaryError> {
    // The grid does not depend on which workers answer, so the memory to ask for is known before the first hello.
    let memory_bytes = match resident {
        Some(resident) => {
            let ownership = resident.expected_ownership(&cluster.arrays).map_err(primary_error)?;
            memory_to_ask_resident(problem, &ownership, request.cut)?
        }
        None => memory_to_ask(problem, request.cut, &request.wish)?,
    };
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

/// Sessions with the machines that answered.
pub(crate) struct OpenedSessions {
    pub(crate) local: Session,
    pub(crate) workers: Vec<Session>,
    /// Machines that have served before, and do not answer any more.
    pub(crate) lost: Vec<MachineLoss>,
    /// The names of machines that were not asked.
    pub(crate) unasked: Vec<String>,
}

/// Opens sessions with all machines.
pub(crate) async fn open_all(
    sessions: &SessionRequest,
    opening: &Opening,
    cluster: &mut Cluster,
    watch: &dyn ProductObserver,
) -> Result<OpenedSessions, PrimaryError> {
    open_some(sessions, opening, cluster, None, watch).await
}

/// Opens the session with this machine's own threads first, so that their probe is undisturbed (workers may be processes on the
/// same machine), then all others concurrently; `only`: those with these connections. A machine that has never answered is an
/// error, or missing; one that has joined since the last product, and does not answer, is turned away.
async fn open_some(
    sessions: &SessionRequest,
    opening: &Opening,
    cluster: &mut Cluster,
    only: Option<BTreeSet<u64>>,
    watch: &dyn ProductObserver,
) -> Result<OpenedSessions, PrimaryError> {
    let is_first = cluster.numbers.begin_product(sessions.seed);
    let (mut connections, gone) = cluster.idle.take().await;
    let mut lost: Vec<MachineLoss> =
        gone.into_iter().map(|LostConnection { name, why }| early_loss(watch, name, why)).collect();
    let last_known = connections.last().map_or(0, |connection| connection.known.number);
    // Machines that join the first product are admitted while it runs.
    while let Some(Ok(end)) = cluster.idle.later.as_mut().filter(|_| !is_first).map(|later| later.try_recv())
    {
        connections.push(Connection::new(end, cluster.numbers.connection()));
    }
    let local = match open_own(&mut connections, opening, cluster).await {
        Ok(local) => local,
        Err(e) => {
            connections.into_iter().for_each(|connection| cluster.idle.add(connection));
            return Err(e);
        }
    };
    let is_asked =
        |connection: &Connection| only.as_ref().is_none_or(|only| only.contains(&connection.known.number));
    let (connections, others): (Vec<_>, Vec<_>) = connections.into_iter().partition(is_asked);
    let unasked = others.iter().map(|connection| connection.link.peer.clone()).collect();
    others.into_iter().for_each(|connection| cluster.idle.add(connection));
    let mut tasks = Vec::new();
    for connection in connections {
        let (known, opening, session) = (connection.known, opening.clone(), cluster.numbers.session());
        let task = tokio::task::spawn_local(async move { open(connection, &opening, session).await });
        tasks.push((known, task));
    }
    let (mut workers, mut failed) = (Vec::new(), Ok(()));
    for (known, task) in tasks {
        let opened =
            task.await.unwrap_or_else(|e| Err(PrimaryError::Failed(format!("opening a session: {e}"))));
        let was_attended = cluster.attended.remove(&known.number);
        let has_joined = was_attended || !is_first && known.number > last_known;
        match opened {
            Ok(session) => {
                if has_joined {
                    watch.joined(&session.name);
                }
                workers.push(session);
            }
            Err(PrimaryError::Unreachable { name, why }) if known.has_served => {
                lost.push(early_loss(watch, name, why));
            }
            Err(e) if has_joined => watch.turned_away(&e),
            Err(e @ PrimaryError::Unreachable { .. }) if sessions.degraded => {
                watch.missing(&e.to_string());
                cluster.missing.push(e.to_string());
            }
            Err(e) => failed = failed.and(Err(e)),
        }
    }
    if let Err(e) = failed {
        workers.push(local);
        cluster.idle.release(workers).await;
        return Err(e);
    }
    Ok(OpenedSessions { local, workers, lost, unasked })
}

/// The session with this process's own threads, whose connection is taken out.
async fn open_own(
    connections: &mut Vec<Connection>,
    opening: &Opening,
    cluster: &Cluster,
) -> Result<Session, PrimaryError> {
    if connections.first().is_none_or(|first| first.known.number != 0) {
        let why = "the compute threads of this process have ended: open the cluster again";
        return Err(PrimaryError::Failed(why.to_owned()));
    }
    open(connections.remove(0), opening, cluster.numbers.session()).await
}

/// The sessions of the plan's members, in their order, and that with this process's own threads if it has no share: it stays as a
/// reserve until no other machine is left. The other sessions end.
pub(crate) async fn select_sessions(
    decision: &Decision,
    local: Session,
    workers: Vec<Session>,
    idle: &mut IdleConnections,
) -> (Vec<Session>, Option<Session>) {
    // In the decision's order: first the primary, then the workers.
    let mut slots: Vec<Option<Session>> = std::iter::once(local).chain(workers).map(Some).collect();
    let sessions = decision.plan.members.iter().filter_map(|m| slots[m.machine].take()).collect();
    let reserve = slots.first_mut().and_then(Option::take);
    idle.release(slots.into_iter().flatten().collect()).await;
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
    let connected = introduce(Pairing::Plan(plan), sessions, random).await?;
    watch.introduced(&connected.report);
    Ok(connected)
}
