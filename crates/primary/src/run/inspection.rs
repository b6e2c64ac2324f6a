//! Inspection: the primary checks C while all workers are still connected; other workers recompute wrong tiles.
//!
//! Place in the flow: after every tile is committed, and before goodbyes. The state machine decides
//! (`schedule/src/primary/inspection.rs`) and gives one task after another: check C, locate wrong tiles, digest tiles, wait until
//! tiles are recomputed. This file carries them out and names machines.
//!
//! Invariants: nothing lands in C while C is read. Before a machine is accused or C is accepted, the operands' files are compared
//! with their state when they were opened.
//!
//! Deliberately absent: which tiles are suspect and which machines are accused; checks while the product runs
//! (`run/spot_check.rs`).

use super::Core;
use super::supervise::{Supervisor, supervise, while_alive};
use crate::account::{VerifyReport, WrongTiles};
use crate::inspector::Inspector;
use bramble_record::log::Phase;
use bramble_schedule::primary::{
    InspectionEnd, InspectionEvent, InspectionTask, InspectionVerdict, PrimaryEvent, Recomputation,
    WrongResults,
};
use bramble_sessions::PrimaryError;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Result of the inspection.
pub(crate) struct InspectionResult {
    pub(crate) verify: VerifyReport,
    /// Tiles that were wrong and have been recomputed, by the machines that made them.
    pub(crate) wrong: Vec<WrongTiles>,
    /// The machine that made the element that is still wrong.
    pub(crate) suspect: Option<String>,
}

/// What the checks of C have found so far.
struct Findings {
    began: Instant,
    /// Time in which tiles were recomputed.
    recomputing: Duration,
    /// Result of the last check.
    verify: Option<VerifyReport>,
    /// The wrong element of each round in words.
    texts: Vec<String>,
}

/// Checks C until it is right or cannot be repaired. `None` if the user ended the run meanwhile.
pub(super) async fn inspect(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    inspector: &Arc<Inspector>,
) -> Result<Option<InspectionResult>, PrimaryError> {
    let mut findings =
        Findings { began: Instant::now(), recomputing: Duration::ZERO, verify: None, texts: Vec::new() };
    loop {
        let Some(task) = core.borrow_mut().checks.inspection.take() else {
            unreachable!("C is complete, and the state machine has no task");
        };
        let event = match task {
            InspectionTask::Check { round } => findings.check(core, supervisor, inspector, round).await?,
            InspectionTask::Locate { round } => {
                let (c, plan) = core.borrow().c_and_plan()?;
                let located = while_alive(core, supervisor, inspector.locate(c, plan, round)).await?;
                let (tiles, proven_wrong) = located;
                InspectionEvent::Located { tiles, proven_wrong }
            }
            InspectionTask::Digest(tiles) => {
                let (c, plan) = core.borrow().c_and_plan()?;
                let digests = Inspector::tile_digests(c, plan, tiles);
                InspectionEvent::Digested(while_alive(core, supervisor, digests).await?)
            }
            InspectionTask::Recompute(recomputation) => {
                if !findings.recompute(core, supervisor, &recomputation).await? {
                    return Ok(None);
                }
                continue;
            }
            InspectionTask::Over(verdict) => {
                return findings.result(&core.borrow(), inspector, verdict).map(Some);
            }
        };
        core.borrow_mut().dispatch(PrimaryEvent::Inspection(event));
    }
}

impl Findings {
    /// Runs the verification of C.
    async fn check(
        &mut self,
        core: &Rc<RefCell<Core>>,
        supervisor: &mut Supervisor<'_>,
        inspector: &Arc<Inspector>,
        round: u64,
    ) -> Result<InspectionEvent, PrimaryError> {
        supervisor.watch.verifying();
        core.borrow_mut().recorder.phase(Phase::Verifying);
        let c = core.borrow().output.matrix()?;
        let verify = while_alive(core, supervisor, inspector.verify(c, round)).await?;
        let fault = verify.verdict.fault.as_ref().filter(|_| !verify.verdict.passed);
        if let Some(fault) = fault {
            inspector.unchanged("when C was found to be wrong", true)?;
            self.texts.push(fault.text.clone());
        }
        let fault = fault.map(|fault| (fault.row, fault.col));
        self.verify = Some(verify);
        let core = core.borrow();
        let is_one_kernel = core.machines.windows(2).all(|two| two[0].kernel == two[1].kernel);
        Ok(InspectionEvent::Checked { fault, is_one_kernel })
    }

    /// Waits until other workers have recomputed the suspect tiles. False if the user ended the run meanwhile; an error if the
    /// tiles cannot be recomputed: C is useless then.
    async fn recompute(
        &mut self,
        core: &Rc<RefCell<Core>>,
        supervisor: &mut Supervisor<'_>,
        recomputation: &Recomputation,
    ) -> Result<bool, PrimaryError> {
        let Recomputation { tiles, makers, suspect } = recomputation;
        let text = self.texts.last().map_or("", String::as_str);
        supervisor.watch.wrong(&core.borrow().names(makers), tiles.len(), text);
        let before = Instant::now();
        supervise(core, supervisor).await;
        self.recomputing += before.elapsed();
        let core = core.borrow();
        match &core.failed {
            Some(why) => {
                let by = core.names(suspect.as_slice()).pop();
                let by = by.map_or_else(String::new, |name| format!(", computed by {name}"));
                Err(PrimaryError::Wrong(format!("C is wrong: {text}{by}; it could not be recomputed: {why}")))
            }
            None => Ok(core.finished.is_some()),
        }
    }

    fn result(
        self,
        core: &Core,
        inspector: &Inspector,
        verdict: InspectionVerdict,
    ) -> Result<InspectionResult, PrimaryError> {
        let Some(mut verify) = self.verify else { unreachable!("the first task is a check") };
        let is_right = verdict.end == InspectionEnd::Right;
        inspector.unchanged("when C was complete", !is_right)?;
        let wrong = verdict.wrong.into_iter().map(|WrongResults { makers, tiles, round }| {
            let text = usize::try_from(round - 1).ok().and_then(|at| self.texts.get(at)).cloned();
            WrongTiles { names: core.names(&makers), tiles, text: text.unwrap_or_default() }
        });
        verify.seconds = self.began.elapsed().saturating_sub(self.recomputing).as_secs_f64();
        let suspect = core.names(verdict.suspect.as_slice()).pop();
        Ok(InspectionResult { verify, wrong: wrong.collect(), suspect })
    }
}

impl Core {
    /// Stores a task of the inspection. If tiles are recomputed, the product goes on.
    pub(super) fn begin_task(&mut self, task: InspectionTask) {
        if let InspectionTask::Recompute(_) = &task {
            self.recorder.phase(Phase::Computing);
            self.write_back.stop();
            self.times.inspecting +=
                self.finished.take().map_or(Duration::ZERO, |finished| finished.elapsed());
        }
        self.checks.inspection = Some(task);
    }

    fn c_and_plan(&self) -> Result<(bramble_matrix::Matrix, bramble_plan::Plan), PrimaryError> {
        Ok((self.output.matrix()?, self.state.plan().clone()))
    }

    fn names(&self, peers: &[usize]) -> Vec<String> {
        peers.iter().filter_map(|peer| Some(self.machines.get(*peer)?.name.clone())).collect()
    }
}
