//! Systems of equations on the workers of a cluster: LU by block columns, panels from worker to worker.
//!
//! Place in the flow: a session like that of a product. The workers say how fast they are and how much memory they
//! offer, `plan` deals the columns, neighbours in the ring are introduced, each worker generates its columns or gets them while
//! all eliminate together (`schedule::lu`), and the right-hand sides go from owner to owner for the back-substitution,
//! or the workers return the factors (`factors.rs`). With factors in f32 the caller corrects the solution (`refined.rs`).
//!
//! Invariants: nothing begins unless all columns fit. A worker that is lost ends the elimination: its columns are nowhere
//! else. The elimination starts again on the others as often as the request allows (`survive.rs`), else the run ends with the
//! worker's name. Every wait has a deadline. Afterwards the connections are idle again, also after an error, as far as they have
//! survived.
//!
//! Deliberately absent: how good the solution is (the caller has the matrix), this process's own threads, and lost columns.

mod accusations;
mod factors;
mod fill;
mod links;
mod opening;
mod planning;
mod refined;
mod right_hand_sides;
mod survive;

pub use bramble_schedule::lu::LuLoss;
pub use factors::{FactorsCheck, FactorsRequest, SystemFactors};
pub use planning::{SystemPlan, SystemPlanning, SystemShare};
pub use refined::{FirstSolution, RefinedRequest, SolutionRefinement, SystemAtWorkers};
pub use survive::SystemLosses;

use crate::cluster::Cluster;
use crate::product::{ProductObserver, SessionRequest};
use crate::{PrimaryError, off_loop};
use bramble_link::LocalFuture;
use bramble_link::{Body, Frame};
use bramble_matrix::{DType, Matrix, MatrixError};
use bramble_schedule::lu::LuPivots;
use bramble_wire::limits::{LU_ORDER_MAX, LU_WIDTH_MAX};
use bramble_wire::message::{Kind, LuBegin, LuPass, LuRing, LuStatus};
use links::{Heard, RingLinks};
use std::sync::Arc;
use survive::{RunClock, SurvivingRuns};

/// Deviation from the checksums above which a worker is wrong, in units of the largest that rounding can cause.
const DEVIATION_MAX: f64 = 16.0;

/// The system to solve.
#[allow(clippy::large_enum_variant)] // There is one for each run.
pub enum SystemSource {
    /// That of the High Performance Linpack benchmark, of this order: the workers generate it.
    Hpl(usize),
    /// That of HPL-MxP, of this order, which the workers generate, too.
    HplMxp(usize),
    /// A X = B. A is square, and has as many rows as B; f32 or f64.
    Given {
        /// The matrix.
        a: Matrix,
        /// The right-hand sides.
        b: Matrix,
    },
}

impl SystemSource {
    /// A square matrix that is factored only: with a column of zeros, since the messages have at least one right-hand side.
    pub fn to_factor(a: Matrix) -> Result<Self, MatrixError> {
        Ok(Self::Given { b: factors::zeros(a.shape().rows)?, a })
    }

    /// Rows and right-hand sides, which are within the limits of the protocol.
    pub fn shape(&self) -> Result<(usize, usize), PrimaryError> {
        let (order, extra) = match self {
            Self::Hpl(order) | Self::HplMxp(order) => (*order as u64, 1),
            Self::Given { a, b } => (a.shape().rows, b.shape().cols),
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
}

/// A request to solve a system on the workers of a cluster.
pub struct SystemRequest {
    /// The system.
    pub source: SystemSource,
    /// Element type in which the workers eliminate: f32 or f64.
    pub dtype: DType,
    /// Columns of a block; `None`: as the cost model says.
    pub width: Option<usize>,
    /// Panels that each worker keeps; `None`: as the cost model says.
    pub depth: Option<usize>,
    /// Number of workers that take part, the first ones; `None`: the fastest number.
    pub workers: Option<usize>,
    /// Whether the run begins without workers that were lost since the last one; else they are an error.
    pub outlives_losses: bool,
    /// How many workers may be lost in the run: the elimination starts again on the others.
    pub survive: usize,
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
    /// All workers have room for their columns, and generated ones are there, for the first time: the clock runs.
    Began,
    /// A worker was lost; the elimination starts again on this number of workers.
    Lost(&'a LuLoss, usize),
    /// This part of the operations is done.
    Eliminated(f64),
}

/// The solution, and how it was found.
#[derive(Clone, Debug)]
pub struct SystemSolution {
    /// X, in rows; with refinement that before the corrections.
    pub x: Vec<f64>,
    /// The plan.
    pub plan: SystemPlan,
    /// Seconds to the last element of X: from the first column that is sent, or the last one that was generated; after a
    /// loss since the first start.
    pub seconds: f64,
    /// Seconds before: connections, speeds, generated columns.
    pub setup_seconds: f64,
    /// The transfer of the columns to the workers, which is a part of `seconds`.
    pub sent: SentColumns,
    /// The first column whose pivot is 0.
    pub zero: Option<usize>,
    /// The first column whose pivot is infinite or NaN.
    pub overflow: Option<usize>,
    /// Exchanges of rows: pivots that did not stand on the diagonal.
    pub exchanges: usize,
    /// Bytes that each worker received from others.
    pub relayed_bytes: Vec<u64>,
    /// Workers whose columns do not match their checksums, with the deviation in units of what rounding can explain; empty unless
    /// `check` said that X is wrong.
    pub wrong: Vec<(String, f64)>,
    /// The workers that were lost.
    pub losses: SystemLosses,
    /// Seconds after `seconds` in which a solution by factors in f32 was corrected.
    pub refine_seconds: f64,
    /// Whether factors in f32 and corrections gave the solution.
    pub is_refined: bool,
}

/// The way of a matrix to the workers, beside the elimination.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SentColumns {
    /// Seconds until the last column had gone to its link; 0 if the workers generate them.
    pub seconds: f64,
    /// Panels that were factored before.
    pub early_panels: usize,
}

impl Cluster {
    /// Solves a system on the workers. `check` says whether X solves it: if not, the workers compare their columns with their
    /// checksums, which shows who has computed wrongly. X is returned in any case.
    pub fn solve<'f>(
        &'f mut self,
        request: SystemRequest,
        check: SolutionCheck,
        watch: &'f dyn ProductObserver,
        progress: &'f dyn Fn(SystemProgress<'_>),
    ) -> LocalFuture<'f, Result<SystemSolution, PrimaryError>> {
        Box::pin(async move {
            let mut check = Some(check);
            let mut work = async |run: &mut SystemRun, plan: SystemPlan| {
                run.complete(&request.source, plan, &mut check, progress).await
            };
            let mut runs = SurvivingRuns::new(request.survive);
            let mut solution = self.surviving(&request, &mut runs, watch, progress, &mut work).await?;
            solution.losses = runs.losses();
            Ok(solution)
        })
    }
}

/// A run, with its links.
struct SystemRun {
    links: RingLinks,
    begin: LuBegin,
    zero: Option<usize>,
    overflow: Option<usize>,
    exchanges: usize,
    clock: RunClock,
    early_panels: usize,
    /// Whether the result was judged: then a loss does not start the elimination again.
    is_judged: bool,
}

impl SystemRun {
    async fn complete(
        &mut self,
        source: &SystemSource,
        plan: SystemPlan,
        check: &mut Option<SolutionCheck>,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemSolution, PrimaryError> {
        self.start(source, progress).await?;
        let (y, _) = self.eliminate(progress).await?;
        let x = self.substitute(y, LuPass::Back, self.begin.extra).await?;
        let seconds = self.clock.seconds();
        let x = Arc::new(x);
        let (judged, check) = (x.clone(), check.take());
        self.is_judged = true;
        let checking = off_loop("checking the solution", move || check.is_some_and(|check| check(&judged)));
        let is_right = self.links.alive_during(checking).await?;
        let wrong = if is_right { Vec::new() } else { self.find_wrong().await? };
        let x = Arc::try_unwrap(x).unwrap_or_else(|x| x.to_vec());
        Ok(self.solution(plan, x, seconds, wrong).await)
    }

    /// Parts from the workers; the solution.
    async fn solution(
        &mut self,
        plan: SystemPlan,
        x: Vec<f64>,
        seconds: f64,
        wrong: Vec<(String, f64)>,
    ) -> SystemSolution {
        let relayed_bytes = self.links.goodbyes().await;
        let (zero, overflow, setup_seconds) = (self.zero, self.overflow, self.clock.setup_seconds());
        let (sent, losses) = (self.sent(), SystemLosses::default());
        SystemSolution {
            x,
            plan,
            seconds,
            setup_seconds,
            sent,
            zero,
            overflow,
            exchanges: self.exchanges,
            relayed_bytes,
            wrong,
            losses,
            refine_seconds: 0.0,
            is_refined: false,
        }
    }

    /// How the columns went to the workers; after a loss those of the last start.
    fn sent(&self) -> SentColumns {
        let seconds = self.links.filled().map_or(0.0, |at| self.clock.at(at));
        SentColumns { seconds, early_panels: self.early_panels }
    }

    /// Lets all workers begin, and begins to send each its columns.
    async fn start(
        &mut self,
        source: &SystemSource,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<(), PrimaryError> {
        self.prepare().await?;
        if self.clock.starts() {
            progress(SystemProgress::Began);
        }
        self.links.tell_all(Kind::LuGo, &[]);
        if let SystemSource::Given { a, b } = source {
            self.links.fill(&self.begin, a, b);
        }
        Ok(())
    }

    /// Tells each worker the system; returns when all have room for their columns, and those that they generate. Before, a panel
    /// could come to a worker that knows of no system.
    async fn prepare(&mut self) -> Result<(), PrimaryError> {
        for me in 0..self.links.count() {
            let ring = LuRing { me, ..self.begin.ring.clone() };
            let begin = LuBegin { ring, ..self.begin.clone() };
            self.links.send(me, Frame::new(Kind::LuBegin.code(), begin.encode(), Body::Empty));
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

    /// Waits until all columns are eliminated; returns the right-hand sides as the elimination left them, and the exchanges of
    /// rows.
    async fn eliminate(
        &mut self,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<(Vec<f64>, LuPivots), PrimaryError> {
        let panels = self.begin.panels();
        let (mut pivots, mut y) = (LuPivots::new(&self.begin), Vec::new());
        while !pivots.is_complete() || y.len() < self.begin.order * self.begin.extra {
            match self.links.next().await? {
                (from, Heard::Report(LuStatus::Factored { step, pivots: rows })) => {
                    pivots.factored(from, step, &rows).map_err(|e| self.links.broken(from, e))?;
                    self.early_panels += usize::from(self.links.is_filling());
                    let left = 1.0 - (step + 1) as f64 / panels as f64;
                    progress(SystemProgress::Eliminated(1.0 - left.max(0.0).powi(3)));
                }
                (from, Heard::Report(LuStatus::Eliminated { zero, overflow })) => {
                    pivots.eliminated(from).map_err(|e| self.links.broken(from, e))?;
                    let first = |one: Option<usize>, other: Option<usize>| one.into_iter().chain(other).min();
                    (self.zero, self.overflow) = (first(self.zero, zero), first(self.overflow, overflow));
                }
                (from, Heard::Rows(rows, body)) => {
                    let owner = self.begin.ring.owners.last() == Some(&from);
                    let is_next =
                        owner && rows.blocks.is_empty() && self.take(&rows, &body, self.begin.extra, &mut y);
                    if !is_next {
                        return Err(self.links.out_of_place(from));
                    }
                }
                (from, Heard::Report(_) | Heard::Columns(..)) => return Err(self.links.out_of_place(from)),
            }
        }
        self.exchanges = pivots.exchanges();
        Ok((y, pivots))
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
