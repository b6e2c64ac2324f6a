//! Runs of a factorisation that outlive lost workers: the elimination starts again on the others.
//!
//! Place in the flow: `mod.rs`, `refined.rs` and `factors.rs` say what one run does; this file opens and ends the run, and after
//! a loss opens the next run over the connections that are idle again. `schedule::lu::LuSurvival` decides.
//!
//! Invariants: the clock runs from the first start to the end. A worker that has broken a rule is not lost, and ends the run. No
//! run begins after the result was judged.
//!
//! Deliberately absent: use of the work before the loss (docs/decisions/0079).

use super::{SystemPlan, SystemProgress, SystemRequest, SystemRun};
use crate::PrimaryError;
use crate::cluster::Cluster;
use crate::product::ProductObserver;
use bramble_schedule::lu::{LuAfterLoss, LuLoss, LuSurvival};
use std::time::Instant;

/// The workers that a run has lost.
#[derive(Clone, Debug, Default)]
pub struct SystemLosses {
    /// The workers, in order.
    pub workers: Vec<LuLoss>,
    /// Seconds from each start that a loss has ended to the next: the part of the run that the losses have cost, but for the
    /// speed of the workers that were lost.
    pub seconds: f64,
}

/// When a run began, and when its eliminations started.
#[derive(Clone, Copy)]
pub(super) struct RunClock {
    began: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Seconds of runs that a loss has ended, from their start to the next.
    lost_s: f64,
    /// Whether a loss has ended the last run.
    has_lost: bool,
}

impl RunClock {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), first: None, last: None, lost_s: 0.0, has_lost: false }
    }

    /// An elimination starts; whether it is the first.
    pub(super) fn starts(&mut self) -> bool {
        let (now, is_first) = (Instant::now(), self.first.is_none());
        self.first.get_or_insert(now);
        if std::mem::take(&mut self.has_lost) {
            self.lost_s += self.at(now);
        }
        self.last = Some(now);
        is_first
    }

    /// Seconds since the first start; 0 before it.
    pub(super) fn seconds(&self) -> f64 {
        self.first.map_or(0.0, |first| first.elapsed().as_secs_f64())
    }

    /// Seconds up to the first start.
    pub(super) fn setup_seconds(&self) -> f64 {
        self.first.unwrap_or_else(Instant::now).duration_since(self.began).as_secs_f64()
    }

    /// Seconds from the last start to an instant; 0 before it.
    pub(super) fn at(&self, instant: Instant) -> f64 {
        self.last.map_or(0.0, |last| instant.duration_since(last).as_secs_f64())
    }
}

/// The runs that a request has led to, one after another, with one clock.
pub(super) struct SurvivingRuns {
    survival: LuSurvival,
    clock: RunClock,
}

impl SurvivingRuns {
    /// Before the first run; the number of losses holds for all runs together.
    pub(super) fn new(survives: usize) -> Self {
        Self { survival: LuSurvival::new(survives), clock: RunClock::new() }
    }

    /// The workers that the runs have lost.
    pub(super) fn losses(&self) -> SystemLosses {
        SystemLosses { workers: self.survival.losses().to_vec(), seconds: self.clock.lost_s }
    }
}

impl Cluster {
    /// Runs until one run has not lost a worker, or may not go on; its result.
    pub(super) async fn surviving<T>(
        &mut self,
        request: &SystemRequest,
        runs: &mut SurvivingRuns,
        watch: &dyn ProductObserver,
        progress: &dyn Fn(SystemProgress<'_>),
        work: &mut impl AsyncFnMut(&mut SystemRun, SystemPlan) -> Result<T, PrimaryError>,
    ) -> Result<T, PrimaryError> {
        let SurvivingRuns { survival, clock } = runs;
        // Each turn but the last loses a worker.
        loop {
            let (mut run, plan) = self.open_run(request, (survival, *clock), watch, progress).await?;
            let result = work(&mut run, plan).await;
            *clock = run.clock;
            let lost = run.links.loss().filter(|_| result.is_err() && !run.is_judged);
            let lost = lost.map(|(name, why)| (name.to_owned(), why.to_owned()));
            let follows = lost.as_ref().map(|(name, why)| survival.lost(name, why, clock.seconds()));
            let told = survival.losses().last().filter(|_| follows == Some(LuAfterLoss::Again));
            if let Some(loss) = told {
                progress(SystemProgress::Lost(loss, survival.left().len()));
            }
            self.end_run(run, &result, told.map(|loss| loss.name.as_str())).await;
            if follows != Some(LuAfterLoss::Again) {
                return result;
            }
            clock.has_lost = true;
        }
    }
}
