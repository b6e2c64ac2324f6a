//! A run of `bench hpl --mxp` on workers.
//!
//! Place in the flow: `cluster.rs` repeats runs. The workers generate their columns rounded to f32 and factor them; GMRES runs in
//! this process, and lets them multiply their columns, generated again in f64, and solve with the factors.
//!
//! Invariants: as in one process (`mxp.rs`). The clock runs from the last column that was generated to the solution; as the
//! columns are generated in f32, there is no conversion in it. X is checked here, with a matrix that this process generates
//! again.
//!
//! Deliberately absent: A in f64, which lies nowhere: it would take twice the memory of the factors.

use super::cluster::{CaseKey, MxpIteration, Run, request};
use super::mxp::check_smallest;
use super::mxp_report::MxpPoint;
use super::point::{HplEstimate, HplPlace};
use super::stamp::Stamp;
use super::{BenchHplArgs, checking};
use crate::on_workers::{OpenTeam, accuse, tell};
use crate::refined::DistantFactors;
use bramble_lu::hpl::HplCheck;
use bramble_lu::mxp::{self, ITERATIONS_MAX, MxpTimes};
use bramble_lu::{ExactMatrix, GmresSolution, LuError, LuKernels, MixedSystem, Residual};
use bramble_matrix::DType;
use bramble_plan::mxp_seconds;
use bramble_primary::{FirstSolution, SystemAtWorkers, SystemProgress, SystemSource, off_loop};
use bramble_report::exit::Failure;
use bramble_worker::default_threads;
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The matrix of HPL-MxP in f64, whose columns workers generate for each product.
struct DistantMatrix {
    system: SystemAtWorkers,
    norm_inf: f64,
}

impl ExactMatrix for DistantMatrix {
    fn norm_inf(&self) -> f64 {
        self.norm_inf
    }

    fn residual(&self, b: &[f64], x: &[f64], width: usize) -> Result<Residual, LuError> {
        let product = self.system.multiply(x.to_vec(), width).ok_or(LuError::FactorsGone)?;
        let elements = b.iter().zip(&product).map(|(b, product)| b - product).collect();
        Ok(Residual::of(elements, self.norm_inf, b, x, width))
    }
}

/// A corrected solution, judged.
struct Judged {
    iteration: MxpIteration,
    end: Stamp,
    check: HplCheck,
}

/// Corrects the first solution; `None` if the run has ended meanwhile.
fn corrected(
    first: FirstSolution,
    norm_inf: f64,
    (threads, checking): (usize, &LuKernels),
) -> Option<Judged> {
    let clock = Instant::now();
    let FirstSolution { x, factors, .. } = first;
    let (a, factors) = (DistantMatrix { system: factors.clone(), norm_inf }, DistantFactors(factors));
    let b = mxp::right_hand_side(x.len());
    let GmresSolution { x, iterations, .. } =
        MixedSystem { a: &a, factors: &factors }.gmres(&b, x, ITERATIONS_MAX).ok()?;
    let iteration = MxpIteration { seconds: clock.elapsed().as_secs_f64(), count: iterations };
    Some(Judged { iteration, end: Stamp::now(), check: mxp::check(&x, threads, checking) })
}

pub(super) async fn one_run(args: &BenchHplArgs, team: &mut OpenTeam, key: CaseKey) -> Result<Run, Failure> {
    let (order, ..) = key;
    check_smallest(order)?;
    let request = request(args, team, (SystemSource::HplMxp(order), DType::F32), key)?;
    let threads = default_threads();
    let checking = checking(threads)?;
    let norm_inf = off_loop("the norm of A", move || mxp::norm_inf(order, threads)).await?;
    let judged: Arc<Mutex<Option<Judged>>> = Arc::default();
    let found = judged.clone();
    let refinement = move |first: FirstSolution| {
        let judged = corrected(first, norm_inf, (threads, &checking));
        let is_valid = judged.as_ref().is_some_and(|judged| judged.check.is_valid());
        // A run that has lost a worker has found nothing, and the next one may have begun.
        if judged.is_some() {
            *found.lock().unwrap_or_else(PoisonError::into_inner) = judged;
        }
        is_valid
    };
    let start = Cell::new(Stamp::now());
    let progress = |state: SystemProgress<'_>| match state {
        SystemProgress::Began => start.set(Stamp::now()),
        state => tell(&state, false),
    };
    let solution = team.cluster.solve_mixed(request, Arc::new(refinement), &team.display, &progress).await?;
    accuse(&solution.accusations());
    if let Some(why) = LuError::of_pivots(solution.zero, solution.overflow) {
        return Err(Failure::failed(format!("--size {order}: {why}")));
    }
    let judged = judged.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Judged { iteration, end, check } =
        judged.ok_or_else(|| Failure::failed("the solution was not checked"))?;
    Ok(Run { solution, start: start.get(), end, check, iteration })
}

impl MxpPoint {
    /// The runs of a case on workers: the times, stamps and plan of the run with the median time, and the worst check. `None`
    /// without runs.
    pub(super) fn of_workers(mut runs: Vec<Run>) -> Option<Self> {
        let times = |run: &Run| MxpTimes {
            convert: 0.0,
            factor: run.solution.seconds,
            iterate: run.iteration.seconds,
        };
        let total = |run: &Run| times(run).total();
        let worst = |a: &&Run, b: &&Run| a.check.scaled_residual.total_cmp(&b.check.scaled_residual);
        let check = runs.iter().max_by(worst)?.check;
        runs.sort_by(|a, b| total(a).total_cmp(&total(b)));
        let (rounds, seconds_min, seconds_max) = (runs.len(), total(runs.first()?), total(runs.last()?));
        let middle = runs.swap_remove((rounds - 1) / 2);
        let (seconds, iterations) = (times(&middle), middle.iteration.count);
        let Run { solution, start, end, .. } = middle;
        let (plan, exchanges) = (solution.plan, solution.exchanges);
        let gflops = plan.shares.iter().map(|share| share.gflops).sum();
        let predicted = mxp_seconds(plan.order, &plan.estimate, gflops);
        let estimate = HplEstimate { seconds: predicted, ..HplEstimate::of_workers(&plan) };
        let memory_bytes = plan.shares.iter().map(|share| share.bytes).sum();
        let (order, block, place) = (plan.order, plan.width, HplPlace::Workers(plan, solution.losses));
        Some(Self {
            order,
            block,
            place,
            rounds,
            seconds,
            seconds_min,
            seconds_max,
            start,
            end,
            iterations,
            exchanges,
            check,
            estimate,
            memory_bytes,
        })
    }
}
