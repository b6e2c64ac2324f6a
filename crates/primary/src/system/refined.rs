//! Systems whose columns are eliminated in f32 at the workers, and whose solution the caller corrects in f64.
//!
//! Place in the flow: a run as in `mod.rs` up to the first solution. Then the caller corrects it on a thread of its own; that
//! thread asks for solutions of further right-hand sides, and this file sends them through the factors, forward and back, while
//! the links stay alive. For HPL-MxP it asks for products with A, too. In `solve_refined` a solution that does not become good is
//! followed by a run in f64 over the same connections.
//!
//! Invariants: one question at a time. A worker that is lost while the solution is corrected is lost as in the elimination: its
//! factors are nowhere else. The thread ends with the run, as its next question is not answered; it may end after the next run
//! has begun.
//!
//! Deliberately absent: the corrections, and how good they have to be (crate `lu`).

use super::survive::SurvivingRuns;
use super::{
    SolutionCheck, SystemPlan, SystemProgress, SystemRequest, SystemRun, SystemSolution, SystemSource,
};
use crate::cluster::Cluster;
use crate::product::ProductObserver;
use crate::{PrimaryError, off_loop};
use bramble_link::LocalFuture;
use bramble_wire::message::LuPass;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A request to solve a system by factors in f32 and corrections.
pub struct RefinedRequest {
    /// The system in f32. Its right-hand sides have elements of at most 1, since the range of f32 is short.
    pub rounded: SystemRequest,
    /// The same in f64, with the right-hand sides as they are.
    pub full: SystemRequest,
    /// Corrects the first solution of `rounded`; `None` if f32 is known not to do.
    pub refinement: Option<SolutionRefinement>,
    /// Judges a solution of `full`.
    pub check: SolutionCheck,
}

/// Corrects a first solution; whether it has become as good as by factors in f64. Runs on a thread of its own, and after a loss
/// again with the next first solution.
pub type SolutionRefinement = Arc<dyn Fn(FirstSolution) -> bool + Send + Sync>;

/// The solution by factors in f32, and these factors.
pub struct FirstSolution {
    /// X, in rows.
    pub x: Vec<f64>,
    /// The factors.
    pub factors: SystemAtWorkers,
    /// The workers that have them: one after another, each solves with its own.
    pub workers: usize,
    /// Whether factors in f64 would fit in the memory of the workers.
    pub fits_in_f64: bool,
}

/// A system whose factors lie at the workers of a run. Its calls block the thread; `None`: the run has ended.
#[derive(Clone)]
pub struct SystemAtWorkers {
    questions: mpsc::Sender<Question>,
}

/// Kind of answer that a question asks for.
#[derive(Clone, Copy)]
enum Wanted {
    Solution,
    Product,
}

/// Right-hand sides, and where the answer goes.
struct Question {
    wanted: Wanted,
    x: Vec<f64>,
    width: usize,
    answer: oneshot::Sender<Vec<f64>>,
}

impl SystemAtWorkers {
    /// The solution of `width` right-hand sides in rows; at most as many as the system has.
    pub fn solve(&self, x: Vec<f64>, width: usize) -> Option<Vec<f64>> {
        self.ask(Wanted::Solution, x, width)
    }

    /// A X for at most as many columns of X, in rows, as the system has right-hand sides. Only for HPL-MxP, whose A the workers
    /// can generate again.
    pub fn multiply(&self, x: Vec<f64>, width: usize) -> Option<Vec<f64>> {
        self.ask(Wanted::Product, x, width)
    }

    fn ask(&self, wanted: Wanted, x: Vec<f64>, width: usize) -> Option<Vec<f64>> {
        let (answer, found) = oneshot::channel();
        self.questions.blocking_send(Question { wanted, x, width, answer }).ok()?;
        found.blocking_recv().ok()
    }
}

/// What the thread that corrects the solution does next.
enum Turn {
    Asks(Question),
    Ends(Result<bool, PrimaryError>),
}

impl Cluster {
    /// Solves a system by factors in f32 at the workers, which `refinement` corrects; where that does not do, by factors in f64.
    /// Losses are survived as in `solve`.
    pub fn solve_refined<'f>(
        &'f mut self,
        request: RefinedRequest,
        watch: &'f dyn ProductObserver,
        progress: &'f dyn Fn(SystemProgress<'_>),
    ) -> LocalFuture<'f, Result<SystemSolution, PrimaryError>> {
        Box::pin(async move {
            let RefinedRequest { rounded, full, refinement, check } = request;
            let mut runs = SurvivingRuns::new(full.survive);
            let mut accused = Vec::new();
            if let Some(refinement) = refinement {
                let first = self.corrected(&rounded, refinement, &mut runs, watch, progress).await?;
                if first.is_refined {
                    return Ok(first);
                }
                accused = first.wrong;
            }
            let mut check = Some(check);
            let mut work = async |run: &mut SystemRun, plan: SystemPlan| {
                run.complete(&full.source, plan, &mut check, progress).await
            };
            let solved = self.surviving(&full, &mut runs, watch, progress, &mut work).await;
            let mut solution = solved.map_err(|e| match e {
                PrimaryError::Operands(why) => PrimaryError::Operands(format!(
                    "factors in f32 do not do for this matrix, and in f64 {why}"
                )),
                other => other,
            })?;
            solution.losses = runs.losses();
            accused.retain(|(name, _)| !solution.wrong.iter().any(|(other, _)| other == name));
            solution.wrong.extend(accused);
            Ok(solution)
        })
    }
}

impl Cluster {
    /// Solves a system by factors in f32 at the workers, which `refinement` corrects, whether it becomes good or not: the
    /// solution says so. Losses are survived as in `solve_refined`.
    pub fn solve_mixed<'f>(
        &'f mut self,
        request: SystemRequest,
        refinement: SolutionRefinement,
        watch: &'f dyn ProductObserver,
        progress: &'f dyn Fn(SystemProgress<'_>),
    ) -> LocalFuture<'f, Result<SystemSolution, PrimaryError>> {
        Box::pin(async move {
            let mut runs = SurvivingRuns::new(request.survive);
            self.corrected(&request, refinement, &mut runs, watch, progress).await
        })
    }

    async fn corrected(
        &mut self,
        request: &SystemRequest,
        refinement: SolutionRefinement,
        runs: &mut SurvivingRuns,
        watch: &dyn ProductObserver,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemSolution, PrimaryError> {
        let mut work = async |run: &mut SystemRun, plan: SystemPlan| {
            run.refined(&request.source, plan, &refinement, progress).await
        };
        let mut solution = self.surviving(request, runs, watch, progress, &mut work).await?;
        solution.losses = runs.losses();
        Ok(solution)
    }
}

impl SystemRun {
    /// A run in f32. If a pivot is 0 or no number there is no first solution.
    async fn refined(
        &mut self,
        source: &SystemSource,
        plan: SystemPlan,
        refinement: &SolutionRefinement,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemSolution, PrimaryError> {
        self.start(source, progress).await?;
        let (y, _) = self.eliminate(progress).await?;
        if self.zero.is_some() || self.overflow.is_some() {
            let seconds = self.clock.seconds();
            return Ok(self.solution(plan, Vec::new(), seconds, Vec::new()).await);
        }
        let x = self.substitute(y, LuPass::Back, self.begin.extra).await?;
        let seconds = self.clock.seconds();
        let is_refined = self.correct(&x, plan.fits_in_f64, refinement.clone()).await?;
        self.is_judged = true;
        let refine_seconds = self.clock.seconds() - seconds;
        let wrong = if is_refined { Vec::new() } else { self.find_wrong().await? };
        let solution = self.solution(plan, x, seconds, wrong).await;
        Ok(SystemSolution { refine_seconds, is_refined, ..solution })
    }

    /// Lets the caller correct a solution, and answers its questions.
    async fn correct(
        &mut self,
        x: &[f64],
        fits_in_f64: bool,
        refinement: SolutionRefinement,
    ) -> Result<bool, PrimaryError> {
        let (questions, mut asked) = mpsc::channel(1);
        let (factors, workers) = (SystemAtWorkers { questions }, self.links.count());
        let first = FirstSolution { x: x.to_vec(), factors, workers, fits_in_f64 };
        let correcting = off_loop("correcting the solution", move || refinement(first));
        let mut correcting = std::pin::pin!(correcting);
        loop {
            let turn = async {
                tokio::select! {
                    biased;
                    Some(question) = asked.recv() => Turn::Asks(question),
                    ended = &mut correcting => Turn::Ends(ended),
                }
            };
            match self.links.quiet_during(turn).await? {
                Turn::Ends(ended) => return ended,
                Turn::Asks(Question { wanted, x, width, answer }) => {
                    let found = match wanted {
                        Wanted::Product => self.multiply(&x, width).await?,
                        Wanted::Solution => {
                            let y = self.substitute(x, LuPass::Forward, width).await?;
                            self.substitute(y, LuPass::Back, width).await?
                        }
                    };
                    // The thread waits for the answer unless it has ended.
                    let _ = answer.send(found);
                }
            }
        }
    }
}
