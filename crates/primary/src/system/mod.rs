//! Systems of equations on the workers of a cluster: LU by block columns, panels from worker to worker.
//!
//! Place in the flow: a session like that of a product. The workers say how fast they are and how much memory they
//! offer, `plan` deals the columns, neighbours in the ring are introduced, each worker gets or generates its columns,
//! all eliminate together (`schedule::lu`), and the right-hand sides go from owner to owner for the back-substitution.
//!
//! Invariants: nothing begins unless all columns fit. A worker that is lost ends the run with its name: its columns are nowhere
//! else. Every wait has a deadline. Afterwards the connections are idle again, also after an error, as far as they have survived.
//!
//! Deliberately absent: how good the solution is (the caller has the matrix), this process's own threads, and lost columns.

mod accusations;
mod fill;
mod links;

use crate::cluster::Cluster;
use crate::gathering::{OpenedSessions, open_all};
use crate::product::{ProductObserver, SessionRequest};
use crate::{PrimaryError, off_loop};
use bramble_link::{Body, Frame, SharedRegion};
use bramble_matrix::{DType, Matrix};
use bramble_plan::{ClusterEstimate, LuCluster, LuMachine, LuPlan, LuPlanError};
use bramble_sessions::{ConnectedPeers, Opening, Pairing, Session, introduce, measure};
use bramble_wire::limits::{LU_BLOCKS_MAX, LU_LIVE_MAX, LU_MACHINES_MAX, LU_ORDER_MAX, LU_WIDTH_MAX};
use bramble_wire::message::{Kind, LuBegin, LuRing, LuRows, LuStatus, Wants, lu_frames};
use links::{Heard, RingLinks};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Deviation from the checksums above which a worker is wrong, in units of the largest that rounding can cause.
const DEVIATION_MAX: f64 = 16.0;

/// The system to solve.
#[allow(clippy::large_enum_variant)] // There is one for each run.
pub enum SystemSource {
    /// That of the High Performance Linpack benchmark, of this order: the workers generate it.
    Hpl(usize),
    /// A X = B. A is square, and has as many rows as B; f32 or f64.
    Given {
        /// The matrix.
        a: Matrix,
        /// The right-hand sides.
        b: Matrix,
    },
}

/// A request to solve a system on the workers of a cluster.
pub struct SystemRequest {
    /// The system.
    pub source: SystemSource,
    /// Columns of a block; `None`: as the cost model says.
    pub width: Option<usize>,
    /// Number of workers that take part, the first ones; `None`: the fastest number.
    pub workers: Option<usize>,
    /// Kernel of the products, by name, or `auto`.
    pub kernel: String,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
}

/// Whether X solves the system. Runs on a thread of its own, while the links stay alive.
pub type SolutionCheck = Box<dyn FnOnce(&[f64]) -> bool + Send>;

/// What happens in a run, in order.
#[derive(Clone, Debug)]
pub enum SystemProgress<'a> {
    /// The owners of the columns, and the predicted time.
    Planned(&'a SystemPlan),
    /// All columns are there: the clock runs.
    Began,
    /// This part of the operations is done.
    Eliminated(f64),
}

/// The plan of a run, with names.
#[derive(Clone, Debug)]
pub struct SystemPlan {
    /// Rows.
    pub order: usize,
    /// Columns of a block.
    pub width: usize,
    /// The machines that take part, in the order of the ring.
    pub shares: Vec<SystemShare>,
    /// Machines that would make it slower.
    pub left_out: Vec<String>,
    /// The bound and the prediction.
    pub estimate: ClusterEstimate,
}

/// A machine's share.
#[derive(Clone, Debug)]
pub struct SystemShare {
    /// Its name.
    pub name: String,
    /// Compute threads.
    pub threads: usize,
    /// Its columns.
    pub columns: usize,
    /// All its threads together, multiplying large matrices, Gflop/s.
    pub gflops: f64,
    /// Memory that its part takes.
    pub bytes: u64,
}

/// The solution, and how it was found.
#[derive(Clone, Debug)]
pub struct SystemSolution {
    /// X, in rows.
    pub x: Vec<f64>,
    /// The plan.
    pub plan: SystemPlan,
    /// Seconds from the last column that was there to the last element of X.
    pub seconds: f64,
    /// Seconds before: connections, speeds, columns.
    pub setup_seconds: f64,
    /// The first column whose pivot is 0.
    pub zero: Option<usize>,
    /// The first column whose pivot is infinite or NaN.
    pub overflow: Option<usize>,
    /// Bytes that each worker received from others.
    pub relayed_bytes: Vec<u64>,
    /// Workers whose columns do not match their checksums, with the deviation in units of what rounding can explain; empty unless
    /// `check` said that X is wrong.
    pub wrong: Vec<(String, f64)>,
}

impl Cluster {
    /// Solves a system on the workers. `check` says whether X solves it: if not, the workers compare their columns with their
    /// checksums, which shows who has computed wrongly. X is returned in any case.
    pub async fn solve(
        &mut self,
        request: SystemRequest,
        check: SolutionCheck,
        watch: &dyn ProductObserver,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemSolution, PrimaryError> {
        let began = Instant::now();
        let (order, extra) = shape(&request.source)?;
        let workers = self.open_workers(&request, order, extra, watch).await?;
        let planned = plan(&request, order, extra, &workers);
        let (plan, ring, names) = match planned {
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
            live_max: LU_LIVE_MAX,
            is_generated: matches!(request.source, SystemSource::Hpl(_)),
            ring: LuRing { owners: ring.deal.owners, machines: used.len(), me: 0 },
        };
        let sessions = introduced(used, request.sessions.random, &names).await?;
        let mut run = SystemRun { links: RingLinks::start(sessions), begin, zero: None, overflow: None };
        let result = run.complete(&request.source, (plan, began), check, progress).await;
        let sessions = run.links.end(result.is_ok()).await;
        for session in sessions {
            match session {
                Ok(connection) => self.idle.add(connection),
                Err(lost) => self.idle.add_lost(lost),
            }
        }
        result
    }

    /// Sessions with all workers, their links measured.
    async fn open_workers(
        &mut self,
        request: &SystemRequest,
        order: usize,
        extra: usize,
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Session>, PrimaryError> {
        let n = order as f64;
        let width = request.width.unwrap_or(256);
        let whole = LuBegin::bytes_of_part((order, extra, width), order + extra, 64);
        let opening = Opening {
            dtype: DType::F64,
            alpha: 1.0,
            beta: 1.0,
            flops: 2.0 / 3.0 * n * n * n,
            memory_bytes: whole.max(1),
            kernel: request.kernel.clone(),
            name: request.sessions.name.clone(),
            wants: Wants { log: false, account: false },
        };
        let OpenedSessions { local, mut workers, lost, .. } =
            open_all(&request.sessions, &opening, self, watch).await?;
        let there = workers.len();
        let most = request.workers.unwrap_or(usize::MAX).min(there);
        let mut unused = workers.split_off(most);
        unused.push(local);
        self.idle.release(unused).await;
        let (nic_bytes_per_s, silent) = measure(&mut workers, self.nic_bytes_per_s, |_| true).await?;
        self.nic_bytes_per_s = nic_bytes_per_s;
        let mut failed = silent.into_iter().map(|e| e.to_string());
        let few = request.workers.filter(|wanted| *wanted > there);
        let few = few.map(|wanted| format!("{wanted} workers are to take part, and {there} are there"));
        let gone = lost.first().map(|lost| format!("worker {}: {}", lost.name, lost.why));
        let why = failed.next().or(gone).or(few).or_else(|| {
            let none = "no worker takes part: name some with -w, --hostfile, --await or --local";
            workers.is_empty().then(|| none.to_owned())
        });
        match why {
            Some(why) => {
                self.idle.release(workers).await;
                Err(PrimaryError::Failed(why))
            }
            None => Ok(workers),
        }
    }
}

/// Order and right-hand sides of a system.
fn shape(source: &SystemSource) -> Result<(usize, usize), PrimaryError> {
    let (order, extra) = match source {
        SystemSource::Hpl(order) => (*order as u64, 1),
        SystemSource::Given { a, b } => (a.shape().rows, b.shape().cols),
    };
    let within = |x: u64, most: usize| usize::try_from(x).ok().filter(|x| (1..=most).contains(x));
    let (Some(order), Some(extra)) = (within(order, LU_ORDER_MAX), within(extra, LU_WIDTH_MAX)) else {
        return Err(PrimaryError::Operands(format!(
            "a system of order {order} with {extra} right-hand sides: on workers, 1 to {LU_ORDER_MAX} rows and \
             1 to {LU_WIDTH_MAX} right-hand sides can be solved"
        )));
    };
    Ok((order, extra))
}

/// The plan, as it is reported and as the planner makes it, and the names of the workers that take part.
fn plan(
    request: &SystemRequest,
    order: usize,
    extra: usize,
    workers: &[Session],
) -> Result<(SystemPlan, LuPlan, Vec<String>), PrimaryError> {
    let machines: Vec<LuMachine> = workers.iter().map(|worker| machine(request, worker)).collect();
    let bytes = |width, columns, threads| LuBegin::bytes_of_part((order, extra, width), columns, threads);
    let cluster = LuCluster {
        order,
        extra,
        width: request.width,
        machines: &machines,
        keeps_all: request.workers.is_some(),
        bytes: &bytes,
    };
    let found = cluster.plan().map_err(|e| too_large(order, &e))?;
    if found.deal.owners.len() > LU_BLOCKS_MAX || found.deal.machines.len() > LU_MACHINES_MAX {
        return Err(PrimaryError::Operands(format!(
            "a system of order {order} in {} blocks on {} machines: at most {LU_BLOCKS_MAX} blocks and \
             {LU_MACHINES_MAX} machines; use wider blocks",
            found.deal.owners.len(),
            found.deal.machines.len()
        )));
    }
    let share = |(at, columns): (&usize, &usize)| {
        let machine = &machines[*at];
        SystemShare {
            name: machine.name.clone(),
            threads: machine.threads,
            columns: *columns,
            gflops: machine.gflops,
            bytes: bytes(found.width, *columns, machine.threads),
        }
    };
    let shares: Vec<SystemShare> = found.deal.machines.iter().zip(&found.deal.columns).map(share).collect();
    let names = shares.iter().map(|share| share.name.clone()).collect();
    let left_out = found.left_out.iter().map(|at| machines[*at].name.clone()).collect();
    let named = SystemPlan { order, width: found.width, shares, left_out, estimate: found.estimate };
    Ok((named, found, names))
}

fn machine(request: &SystemRequest, worker: &Session) -> LuMachine {
    let rate = worker.known.rate;
    LuMachine {
        name: worker.name.clone(),
        threads: usize::from(worker.welcome.threads),
        gflops: worker.welcome.gflops,
        memory_bytes: worker.welcome.memory_bytes.min(request.sessions.credits.unwrap_or(u64::MAX)),
        bytes_per_s: rate.map(|rate| rate.bytes_per_s),
        round_trip_s: rate.map_or(0.0, |rate| rate.round_trip_s),
    }
}

fn too_large(order: usize, e: &LuPlanError) -> PrimaryError {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let offers: Vec<String> =
        e.offers.iter().map(|(name, bytes)| format!("{name} offers {}", mib(*bytes))).collect();
    PrimaryError::Operands(format!(
        "a system of order {order} takes {} of memory, and {}: use a smaller one, or more machines",
        mib(e.needed),
        offers.join(", ")
    ))
}

/// The sessions of these machines, by their numbers, and the others.
fn select(workers: Vec<Session>, used: &[usize]) -> (Vec<Session>, Vec<Session>) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for (at, session) in workers.into_iter().enumerate() {
        if used.contains(&at) { one.push(session) } else { other.push(session) }
    }
    (one, other)
}

/// Introduces the workers to their neighbours in the ring: all of them have to reach each other.
async fn introduced(
    sessions: Vec<Session>,
    random: crate::SecretSource,
    names: &[String],
) -> Result<Vec<Session>, PrimaryError> {
    let count = sessions.len();
    let ConnectedPeers { sessions, neighbours, dead, report } =
        introduce(Pairing::Ring, sessions, random).await?;
    if let Some((at, why)) = dead.iter().enumerate().find_map(|(at, why)| Some((at, why.as_ref()?))) {
        return Err(PrimaryError::Unreachable { name: names[at].clone(), why: why.clone() });
    }
    let apart = (0..count).map(|at| (at, (at + 1) % count)).find(|(at, next)| {
        at != next && !neighbours.get(*at).is_some_and(|neighbours| neighbours.contains(next))
    });
    let Some((at, next)) = apart else { return Ok(sessions) };
    let why = report.unreachable.first().map_or("they have no addresses for each other", |found| &found.why);
    Err(PrimaryError::Failed(format!(
        "workers {} and {} cannot reach each other: {why}; in a factorisation panels go from worker to worker, so open their \
         ports to each other",
        names[at], names[next]
    )))
}

/// A run, with its links.
struct SystemRun {
    links: RingLinks,
    begin: LuBegin,
    zero: Option<usize>,
    overflow: Option<usize>,
}

impl SystemRun {
    async fn complete(
        &mut self,
        source: &SystemSource,
        (plan, began): (SystemPlan, Instant),
        check: SolutionCheck,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemSolution, PrimaryError> {
        self.prepare(source).await?;
        let (setup_seconds, clock) = (began.elapsed().as_secs_f64(), Instant::now());
        progress(SystemProgress::Began);
        self.links.tell_all(Kind::LuGo, &[]);
        let y = self.eliminate(progress).await?;
        let x = self.substitute(y).await?;
        let seconds = clock.elapsed().as_secs_f64();
        let x = Arc::new(x);
        let judged = x.clone();
        let checking = off_loop("checking the solution", move || check(&judged));
        let is_right = self.links.alive_during(checking).await?;
        let wrong = if is_right { Vec::new() } else { self.find_wrong().await? };
        let x = Arc::try_unwrap(x).unwrap_or_else(|x| x.to_vec());
        let relayed_bytes = self.links.goodbyes().await?;
        let (zero, overflow) = (self.zero, self.overflow);
        Ok(SystemSolution { x, plan, seconds, setup_seconds, zero, overflow, relayed_bytes, wrong })
    }

    /// Gives each worker its columns; returns when all have them.
    async fn prepare(&mut self, source: &SystemSource) -> Result<(), PrimaryError> {
        for me in 0..self.links.count() {
            let ring = LuRing { me, ..self.begin.ring.clone() };
            let begin = LuBegin { ring, ..self.begin.clone() };
            self.links.send(me, Frame::new(Kind::LuBegin.code(), begin.encode(), Body::Empty));
        }
        if let SystemSource::Given { a, b } = source {
            self.links.fill(&self.begin, a, b);
        }
        let mut waiting = self.links.count();
        while waiting > 0 {
            match self.links.next().await? {
                (_, Heard::Report(LuStatus::Ready)) => waiting -= 1,
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(())
    }

    /// Waits until all columns are eliminated; returns the right-hand sides as the elimination left them.
    async fn eliminate(&mut self, progress: &dyn Fn(SystemProgress<'_>)) -> Result<Vec<f64>, PrimaryError> {
        let (panels, mut waiting) = (self.begin.panels(), self.links.count());
        let mut y = Vec::new();
        while waiting > 0 || y.len() < self.begin.order * self.begin.extra {
            match self.links.next().await? {
                (_, Heard::Report(LuStatus::Factored(step))) => {
                    let left = 1.0 - (step + 1) as f64 / panels as f64;
                    progress(SystemProgress::Eliminated(1.0 - left.max(0.0).powi(3)));
                }
                (_, Heard::Report(LuStatus::Eliminated { zero, overflow })) => {
                    waiting -= 1;
                    let first = |one: Option<usize>, other: Option<usize>| one.into_iter().chain(other).min();
                    (self.zero, self.overflow) = (first(self.zero, zero), first(self.overflow, overflow));
                }
                (from, Heard::Rows(rows, body)) => {
                    let owner = self.begin.ring.owners.last() == Some(&from);
                    let is_next = owner && rows.blocks.is_empty() && self.take(&rows, &body, &mut y);
                    if !is_next {
                        return Err(self.links.out_of_place(from));
                    }
                }
                (from, Heard::Report(_)) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(y)
    }

    /// Appends the next rows; false for any others.
    fn take(&self, rows: &LuRows, body: &[u8], to: &mut Vec<f64>) -> bool {
        let (width, first) = (self.begin.extra, to.len());
        if first != rows.first * width || body.len() != rows.rows * width * size_of::<f64>() {
            return false;
        }
        to.resize(first + rows.rows * width, 0.0);
        bytemuck::cast_slice_mut(&mut to[first..]).copy_from_slice(body);
        true
    }

    /// The back-substitution: from the last block to the first, adjacent blocks of one owner together.
    async fn substitute(&mut self, y: Vec<f64>) -> Result<Vec<f64>, PrimaryError> {
        let (mut x, width) = (y, self.begin.extra);
        let mut end = self.begin.panels();
        while end > 0 {
            let owner = self.begin.ring.owners[end - 1];
            let start =
                self.begin.ring.owners[..end].iter().rposition(|at| *at != owner).map_or(0, |at| at + 1);
            let rows = self.begin.columns(end - 1).end;
            let solved = self.exchange(owner, start..end, x[..rows * width].to_vec()).await?;
            x[..rows * width].copy_from_slice(&solved);
            end = start;
        }
        Ok(x)
    }

    /// Lets the owner of some blocks solve for them.
    async fn exchange(
        &mut self,
        owner: usize,
        blocks: Range<usize>,
        x: Vec<f64>,
    ) -> Result<Vec<f64>, PrimaryError> {
        let width = self.begin.extra;
        let total = x.len() / width;
        let bytes: Arc<Vec<u8>> = Arc::new(bytemuck::cast_slice(&x).to_vec());
        for frame in lu_frames(total, width) {
            let head = LuRows { blocks: blocks.clone(), total, first: frame.start, rows: frame.len() };
            let line = width * size_of::<f64>();
            let (start, len) = (frame.start * line, frame.len() * line);
            let body = Body::Shared(SharedRegion::new(bytes.clone(), start, len, len, 1));
            self.links.send(owner, Frame::new(Kind::LuRows.code(), head.encode(), body));
        }
        let mut solved = Vec::new();
        while solved.len() < x.len() {
            match self.links.next().await? {
                (from, Heard::Rows(rows, body))
                    if from == owner && rows.blocks == blocks && self.take(&rows, &body, &mut solved) => {}
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(solved)
    }

    /// The workers whose columns do not match their checksums.
    async fn find_wrong(&mut self) -> Result<Vec<(String, f64)>, PrimaryError> {
        self.links.tell_all(Kind::LuCheck, &[]);
        let (mut wrong, mut waiting) = (Vec::new(), self.links.count());
        while waiting > 0 {
            match self.links.next().await? {
                (from, Heard::Report(LuStatus::Checked(deviation))) => {
                    waiting -= 1;
                    if deviation.is_nan() || deviation > DEVIATION_MAX {
                        wrong.push((self.links.name(from).to_owned(), deviation));
                    }
                }
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(wrong)
    }
}
