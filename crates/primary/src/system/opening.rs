//! How a run of a factorisation begins: sessions with the workers, the plan, and introductions.
//!
//! Place in the flow: `mod.rs`, `refined.rs` and `factors.rs` begin with it; they get a run whose workers know their neighbours.
//!
//! Invariants: nothing begins unless all columns fit, also after the losses that the run is to survive. After a loss only workers
//! of the first start take part. Workers that take no part are idle again, and so are the others at the end.

use super::links::RingLinks;
use super::planning::too_few;
use super::survive::RunClock;
use super::{SystemPlan, SystemPlanning, SystemProgress, SystemRequest, SystemRun, SystemSource};
use crate::PrimaryError;
use crate::cluster::Cluster;
use crate::gathering::{OpenedSessions, open_all};
use crate::product::ProductObserver;
use bramble_link::LocalFuture;
use bramble_matrix::DType;
use bramble_plan::{ComingColumns, LuMachine, LuPlan, LuTaskModel};
use bramble_schedule::lu::{LuAfterLoss, LuSurvival};
use bramble_sessions::{ConnectedPeers, IntroductionEnd, Opening, Pairing, Session, introduce, measure};
use bramble_wire::limits::LU_LIVE_MAX;
use bramble_wire::message::{LuBegin, LuOrigin, LuRing, LuSpeeds, Wants};

impl Cluster {
    /// The plan that [`Cluster::solve`] would make for this request, with workers that are measured as for it. Nothing of the
    /// system is sent to them.
    pub fn plan_system<'f>(
        &'f mut self,
        request: &'f SystemRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<SystemPlan, PrimaryError>> {
        Box::pin(async move {
            let mut survival = LuSurvival::new(request.survive);
            let workers = self.open_workers(request, (&mut survival, RunClock::new()), watch).await?;
            let lost = request.survive - survival.losses().len();
            let planned = plan(request, (&workers, self.nic_bytes_per_s), lost);
            self.idle.release(workers).await;
            planned.map(|(plan, _)| plan)
        })
    }

    /// An order that fills the memory of the workers, at most that of the request: the one with which [`Cluster::solve`] would
    /// have the highest rate. For systems that they generate. A worker that is lost meanwhile is an error: without it, another
    /// cluster would be filled.
    pub fn largest_system<'f>(
        &'f mut self,
        request: &'f SystemRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<usize, PrimaryError>> {
        Box::pin(async move {
            let mut no_loss = LuSurvival::new(0);
            let workers = self.open_workers(request, (&mut no_loss, RunClock::new()), watch).await?;
            let machines: Vec<LuMachine> = workers.iter().map(|worker| machine(request, worker)).collect();
            self.idle.release(workers).await;
            planning(request, (&machines, self.nic_bytes_per_s), request.survive)?.largest()
        })
    }

    /// The links of a run, and its plan. A worker that is lost while the workers are introduced to each other is survived as one
    /// that is lost later.
    pub(super) async fn open_run(
        &mut self,
        request: &SystemRequest,
        (survival, clock): (&mut LuSurvival, RunClock),
        watch: &dyn ProductObserver,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<(SystemRun, SystemPlan), PrimaryError> {
        loop {
            let (used, begin, plan) = self.plan_run(request, (survival, clock), watch, progress).await?;
            let (sessions, lost) = match introduced(used, request.sessions.random).await? {
                IntroducedRing::Linked(sessions) => {
                    let run = SystemRun {
                        links: RingLinks::start(sessions),
                        begin,
                        zero: None,
                        overflow: None,
                        exchanges: 0,
                        clock,
                        early_panels: 0,
                        is_judged: false,
                    };
                    return Ok((run, plan));
                }
                IntroducedRing::Failed(why, sessions) => {
                    self.idle.release(sessions).await;
                    return Err(why);
                }
                IntroducedRing::Lost(sessions, lost) => (sessions, lost),
            };
            self.idle.release(sessions).await;
            let told = survival.losses().len();
            again(survival, lost.into_iter(), clock)?;
            tell(survival, told, progress);
        }
    }

    /// Sessions with the workers of a run, in the order of the ring, its begin message, and its plan.
    async fn plan_run(
        &mut self,
        request: &SystemRequest,
        (survival, clock): (&mut LuSurvival, RunClock),
        watch: &dyn ProductObserver,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<(Vec<Session>, LuBegin, SystemPlan), PrimaryError> {
        let (order, extra) = request.source.shape()?;
        let (is_first, told) = (survival.left().is_empty(), survival.losses().len());
        let workers = self.open_workers(request, (survival, clock), watch).await?;
        tell(survival, told, progress);
        let lost = if is_first { request.survive - survival.losses().len() } else { 0 };
        let planned = plan(request, (&workers, self.nic_bytes_per_s), lost);
        let (plan, ring) = match planned {
            Ok(planned) => planned,
            Err(e) => {
                self.idle.release(workers).await;
                return Err(e);
            }
        };
        let (used, unused) = select(workers, &ring.deal.machines);
        self.idle.release(unused).await;
        progress(SystemProgress::Planned(&plan));
        let begin = LuBegin {
            order,
            width: ring.width,
            extra,
            dtype: request.dtype,
            live_max: ring.depth,
            origin: origin(&request.source),
            ring: LuRing { owners: ring.deal.owners, machines: used.len(), me: 0 },
        };
        Ok((used, begin, plan))
    }

    /// Ends a run: its connections are idle again, also after an error, but for that of the worker that caused it. The next run
    /// does not name the worker `told`: the user knows of its loss.
    pub(super) async fn end_run<T>(
        &mut self,
        mut run: SystemRun,
        result: &Result<T, PrimaryError>,
        told: Option<&str>,
    ) {
        if let Err(why) = result
            && self.idle.keeps()
        {
            run.links.part(why).await;
        }
        for session in run.links.end().await {
            match session {
                Ok(connection) => self.idle.add(connection),
                Err(lost) if told == Some(lost.name.as_str()) => {}
                Err(lost) => self.idle.add_lost(lost),
            }
        }
    }

    /// Sessions with all workers of the run, their links measured.
    async fn open_workers(
        &mut self,
        request: &SystemRequest,
        (survival, clock): (&mut LuSurvival, RunClock),
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Session>, PrimaryError> {
        let (order, extra) = request.source.shape()?;
        let (opening, is_first) = (opening(request, order, extra), survival.left().is_empty());
        let OpenedSessions { local, mut workers, lost, .. } =
            open_all(&request.sessions, &opening, self, watch).await?;
        let there = workers.len();
        let mut unused = vec![local];
        if is_first {
            unused.extend(workers.split_off(request.workers.unwrap_or(usize::MAX).min(there)));
        } else {
            unused.extend(workers.extract_if(.., |worker| !survival.takes_part(&worker.name)));
        }
        self.idle.release(unused).await;
        let (nic_bytes_per_s, silent) = measure(&mut workers, self.nic_bytes_per_s, |_| true).await?;
        self.nic_bytes_per_s = nic_bytes_per_s;
        let gone = lost.into_iter().map(|lost| PrimaryError::Unreachable { name: lost.name, why: lost.why });
        let refused = if is_first {
            first(request, (&workers, there), silent, gone.collect(), survival)
        } else {
            again(survival, silent.into_iter().chain(gone), clock)
        };
        match refused {
            Ok(()) => Ok(workers),
            Err(why) => {
                self.idle.release(workers).await;
                Err(why)
            }
        }
    }
}

/// Whether the first run may begin with these workers, and without the `silent` ones, whose links failed while they were
/// measured; `there` are connected.
fn first(
    request: &SystemRequest,
    (workers, there): (&[Session], usize),
    silent: Vec<PrimaryError>,
    gone: Vec<PrimaryError>,
    survival: &mut LuSurvival,
) -> Result<(), PrimaryError> {
    if let Some(wanted) = request.workers.filter(|wanted| *wanted > there) {
        let few = format!("{wanted} workers are to take part, and {there} are there");
        return Err(PrimaryError::Failed(few));
    }
    if let Some(gone) = gone.into_iter().next().filter(|_| workers.is_empty() || !request.outlives_losses) {
        return Err(gone);
    }
    if workers.is_empty() && silent.is_empty() {
        let none = "no worker takes part: name some with -w, --hostfile, --await or --local";
        return Err(PrimaryError::Failed(none.to_owned()));
    }
    let mut failed = Vec::new();
    for e in silent {
        let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
        failed.push((name, why));
    }
    let connected = workers.iter().map(|worker| worker.name.as_str());
    if survival.begins(connected.chain(failed.iter().map(|(name, _)| name.as_str()))) {
        for (name, why) in failed {
            if survival.lost(&name, &why, 0.0) == LuAfterLoss::Ends {
                return Err(PrimaryError::Failed(PrimaryError::Unreachable { name, why }.to_string()));
            }
        }
        return Ok(());
    }
    Err(too_few(survival.survives(), workers.len()))
}

/// Whether the next run may begin although these workers are lost, too. Workers without a part in it do not matter.
fn again(
    survival: &mut LuSurvival,
    lost: impl Iterator<Item = PrimaryError>,
    clock: RunClock,
) -> Result<(), PrimaryError> {
    for e in lost {
        let PrimaryError::Unreachable { name, why } = e else { return Err(e) };
        if survival.takes_part(&name) && survival.lost(&name, &why, clock.seconds()) == LuAfterLoss::Ends {
            return Err(PrimaryError::Unreachable { name, why });
        }
    }
    Ok(())
}

/// The hello for every worker.
fn opening(request: &SystemRequest, order: usize, extra: usize) -> Opening {
    let n = order as f64;
    let width = request.width.unwrap_or(256);
    // In f64 also for f32: whether factors in f64 would fit is asked, too.
    let whole = LuBegin::bytes_of_part((order, extra, width), DType::F64, LU_LIVE_MAX, order + extra, 64);
    Opening {
        dtype: request.dtype,
        alpha: 1.0,
        beta: 1.0,
        flops: 2.0 / 3.0 * n * n * n,
        memory_bytes: whole.max(1),
        kernel: request.kernel.clone(),
        name: request.sessions.name.clone(),
        wants: Wants { task_rates: true, ..Wants::default() },
    }
}

/// Where the workers get the columns of a system from.
fn origin(source: &SystemSource) -> LuOrigin {
    match source {
        SystemSource::Hpl(_) => LuOrigin::Hpl,
        SystemSource::HplMxp(_) => LuOrigin::HplMxp,
        SystemSource::Given { .. } => LuOrigin::Sent,
    }
}

/// The plan, as it is reported and as the planner makes it. An error unless the system also fits after this number of losses.
fn plan(
    request: &SystemRequest,
    (workers, nic_bytes_per_s): (&[Session], Option<f64>),
    losses: usize,
) -> Result<(SystemPlan, LuPlan), PrimaryError> {
    let machines: Vec<LuMachine> = workers.iter().map(|worker| machine(request, worker)).collect();
    let (mut plan, found) = planning(request, (&machines, nic_bytes_per_s), losses)?.plan()?;
    for (share, at) in plan.shares.iter_mut().zip(&found.deal.machines) {
        share.kernel = Some(workers[*at].welcome.kernel.clone());
    }
    Ok((plan, found))
}

/// The planner's input for a request on these machines, of which `losses` may be lost.
fn planning<'a>(
    request: &SystemRequest,
    (machines, nic_bytes_per_s): (&'a [LuMachine], Option<f64>),
    losses: usize,
) -> Result<SystemPlanning<'a>, PrimaryError> {
    let (order, extra) = request.source.shape()?;
    let coming = match request.source {
        SystemSource::Hpl(_) | SystemSource::HplMxp(_) => None,
        SystemSource::Given { .. } => Some(ComingColumns::over(nic_bytes_per_s, machines)),
    };
    Ok(SystemPlanning {
        order,
        extra,
        dtype: request.dtype,
        width: request.width,
        depth: request.depth,
        machines,
        keeps_all: request.workers.is_some(),
        coming,
        losses,
    })
}

fn machine(request: &SystemRequest, worker: &Session) -> LuMachine {
    let rate = worker.known.rate;
    let machine = LuMachine {
        name: worker.name.clone(),
        threads: usize::from(worker.welcome.threads),
        gflops: worker.welcome.gflops,
        memory_bytes: worker.welcome.memory_bytes.min(request.sessions.credits.unwrap_or(u64::MAX)),
        bytes_per_s: rate.map(|rate| rate.bytes_per_s),
        round_trip_s: rate.map_or(0.0, |rate| rate.round_trip_s),
        tasks: LuTaskModel::default(),
    };
    match worker.welcome.lu {
        Some(LuSpeeds { update_gflops, panel_gflops }) => {
            machine.with_task_rates(LuSpeeds::WIDTHS, update_gflops, panel_gflops)
        }
        None => machine,
    }
}

/// The sessions of these machines, by their numbers, and the others.
fn select(workers: Vec<Session>, used: &[usize]) -> (Vec<Session>, Vec<Session>) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for (at, session) in workers.into_iter().enumerate() {
        if used.contains(&at) { one.push(session) } else { other.push(session) }
    }
    (one, other)
}

/// What introductions in a ring have come to; with the sessions of the workers that are there.
enum IntroducedRing {
    /// All neighbours are linked.
    Linked(Vec<Session>),
    /// Workers were lost.
    Lost(Vec<Session>, Vec<PrimaryError>),
    /// No run is possible on these workers.
    Failed(PrimaryError, Vec<Session>),
}

/// Introduces the workers to their neighbours in the ring: all of them have to reach each other.
async fn introduced(
    sessions: Vec<Session>,
    random: crate::SecretSource,
) -> Result<IntroducedRing, PrimaryError> {
    let ConnectedPeers { sessions, neighbours, dead, report } =
        introduce(Pairing::Ring, sessions, random).await?;
    let (mut there, mut lost, mut broken) = (Vec::new(), Vec::new(), None);
    for (session, end) in sessions.into_iter().zip(dead) {
        match end {
            None => there.push(session),
            Some(IntroductionEnd { why, is_loss }) => {
                let e = PrimaryError::Unreachable { name: session.name, why };
                if is_loss { lost.push(e) } else { broken = broken.or(Some(e)) }
            }
        }
    }
    if let Some(e) = broken {
        return Ok(IntroducedRing::Failed(e, there));
    }
    if !lost.is_empty() {
        return Ok(IntroducedRing::Lost(there, lost));
    }
    let count = there.len();
    let apart = (0..count).map(|at| (at, (at + 1) % count)).find(|(at, next)| {
        at != next && !neighbours.get(*at).is_some_and(|neighbours| neighbours.contains(next))
    });
    let Some((at, next)) = apart else { return Ok(IntroducedRing::Linked(there)) };
    let why = report.unreachable.first().map_or("they have no addresses for each other", |found| &found.why);
    let e = PrimaryError::Failed(format!(
        "workers {} and {} cannot reach each other: {why}; in a factorisation panels go from worker to worker, so open their \
         ports to each other",
        there[at].name, there[next].name
    ));
    Ok(IntroducedRing::Failed(e, there))
}

/// Tells of the losses from this number on.
fn tell(survival: &LuSurvival, from: usize, progress: &dyn Fn(SystemProgress<'_>)) {
    let (losses, left) = (&survival.losses()[from..], survival.left().len());
    losses.iter().for_each(|loss| progress(SystemProgress::Lost(loss, left)));
}
