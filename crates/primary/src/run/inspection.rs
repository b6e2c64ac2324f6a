//! Inspection: the primary checks C while all workers are still connected; other workers recompute wrong tiles.
//!
//! Place in the flow: after every tile is committed, and before goodbyes. When the check fails, the primary locates the wrong
//! tiles; the schedule knows their makers and has other workers recompute the tiles; then C is checked again.
//!
//! Invariants: nothing lands in C while C is read. A machine is named for a tile only if another machine computed the
//! tile differently and C then passed; where kernels differ, so that correct tiles may differ in bits, too, only if the check
//! has shown that very tile to be wrong. If the recomputed tiles are the same, or cannot be computed, or no other machine is
//! connected, C stays wrong and is not kept. The number of rounds is limited.
//!
//! Before a machine is accused or C is accepted, the operands' files are compared with their state when they were opened.
//!
//! Deliberately absent: checks while the product runs (`run/spot_check.rs`).

use super::Core;
use super::supervise::{Supervisor, supervise, while_alive};
use crate::PrimaryError;
use crate::account::{VerifyReport, WrongTiles};
use crate::inspector::{Inspector, TileDigests};
use crate::log::Phase;
use bramble_matrix::number::to_u64;
use bramble_schedule::primary::PrimaryEvent;
use bramble_verify::Fault;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
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

/// Rounds beyond one for each machine: with levels of Strassen's method one machine's faults take two rounds to locate.
const MORE_ROUNDS: u64 = 3;

/// The suspect tiles of one round: their contents before they were recomputed, and the machines that may have made each.
struct SuspectTiles {
    before: TileDigests,
    makers: BTreeMap<(usize, u64), Vec<usize>>,
    /// Tiles that the check has shown to be wrong.
    proven_wrong: BTreeSet<(usize, u64)>,
    text: String,
}

/// Checks C until it is right or cannot be repaired. `None` if the user ended the run meanwhile.
pub(super) async fn inspect(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    inspector: &Arc<Inspector>,
) -> Result<Option<InspectionResult>, PrimaryError> {
    let (began, mut making) = (Instant::now(), Duration::ZERO);
    let mut verify = verify_c(core, supervisor, inspector, 0).await?;
    let mut suspect_tiles: Vec<SuspectTiles> = Vec::new();
    let mut suspect = None;
    let rounds = to_u64(core.borrow().machines.len()).saturating_add(MORE_ROUNDS);
    for round in 1..=rounds {
        let Some(fault) = verify.verdict.fault.clone().filter(|_| !verify.verdict.passed) else { break };
        inspector.unchanged("when C was found to be wrong", true)?;
        suspect = core.borrow().maker_of(&fault);
        let Some(next) =
            locate_suspects(core, supervisor, inspector, (&fault, round), &suspect_tiles).await?
        else {
            break;
        };
        let tiles: Vec<(usize, u64)> = next.before.keys().copied().collect();
        let before = Instant::now();
        if !recompute(core, supervisor, &next, suspect.as_deref()).await? {
            return Ok(None);
        }
        making += before.elapsed();
        let after = tile_digests(core, supervisor, tiles).await?;
        let is_other = after != next.before;
        suspect_tiles.push(next);
        if !is_other {
            // The recomputed tiles are the same: no single machine can be blamed for the fault.
            suspect = None;
            break;
        }
        verify = verify_c(core, supervisor, inspector, round).await?;
    }
    inspector.unchanged("when C was complete", !verify.verdict.passed)?;
    let wrong = if verify.verdict.passed {
        wrong_tiles_by_maker(core, supervisor, suspect_tiles).await?
    } else {
        Vec::new()
    };
    verify.seconds = began.elapsed().saturating_sub(making).as_secs_f64();
    Ok(Some(InspectionResult { suspect: suspect.filter(|_| !verify.verdict.passed), verify, wrong }))
}

/// Runs the verification of C.
async fn verify_c(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    inspector: &Arc<Inspector>,
    round: u64,
) -> Result<VerifyReport, PrimaryError> {
    supervisor.watch.verifying();
    core.borrow_mut().recorder.phase(Phase::Verifying);
    let c = core.borrow().output.matrix()?;
    while_alive(core, supervisor, inspector.verify(c, round)).await
}

/// Locates the wrong tiles and their possible makers. `None` if no other machine could recompute them.
async fn locate_suspects(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    inspector: &Arc<Inspector>,
    (fault, round): (&Fault, u64),
    before: &[SuspectTiles],
) -> Result<Option<SuspectTiles>, PrimaryError> {
    let (c, plan) = {
        let core = core.borrow();
        (core.output.matrix()?, core.state.plan().clone())
    };
    let mixes = plan.strategy.levels > 0;
    let found = plan.tile_at(fault.row, fault.col);
    let located = inspector.locate(c, plan, fault.clone(), round);
    let (mut tiles, proven_wrong) = while_alive(core, supervisor, located).await?;
    let suspects: BTreeSet<usize> =
        before.iter().flat_map(|a| a.makers.values().flatten().copied()).collect();
    // With levels of Strassen's method only one fault at a time can be located: so all other tiles of a machine that is a suspect
    // for the second time are recomputed, too.
    let theirs = {
        let state = &core.borrow().state;
        let makers: BTreeSet<usize> = found.iter().flat_map(|tile| state.makers(&[*tile]).concat()).collect();
        let is_known = makers.iter().any(|maker| suspects.contains(maker)) || makers.is_empty() && round > 1;
        if mixes && is_known { state.tiles_of(&makers) } else { Vec::new() }
    };
    tiles.extend(tile_digests(core, supervisor, theirs).await?);
    let places: Vec<(usize, u64)> = tiles.keys().copied().collect();
    let makers = core.borrow().state.makers(&places);
    let all: Vec<usize> = makers.iter().flatten().copied().collect();
    if tiles.is_empty() || !core.borrow().state.has_workers_besides(&all) {
        return Ok(None);
    }
    let makers = places.into_iter().zip(makers).collect();
    Ok(Some(SuspectTiles { before: tiles, makers, proven_wrong, text: fault.text.clone() }))
}

/// Digests of tiles.
async fn tile_digests(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    tiles: Vec<(usize, u64)>,
) -> Result<TileDigests, PrimaryError> {
    let (c, plan) = {
        let core = core.borrow();
        (core.output.matrix()?, core.state.plan().clone())
    };
    while_alive(core, supervisor, Inspector::tile_digests(c, plan, tiles)).await
}

/// Has other workers recompute the accused tiles. False if the user ended the run meanwhile; an error if the tiles cannot be
/// recomputed: C is useless then.
async fn recompute(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    suspect_tiles: &SuspectTiles,
    suspect: Option<&str>,
) -> Result<bool, PrimaryError> {
    let tiles: Vec<(usize, u64)> = suspect_tiles.makers.keys().copied().collect();
    let makers: BTreeSet<usize> = suspect_tiles.makers.values().flatten().copied().collect();
    {
        let mut core = core.borrow_mut();
        let names: Vec<String> = makers.iter().map(|maker| core.machines[*maker].name.clone()).collect();
        supervisor.watch.wrong(&names, tiles.len(), &suspect_tiles.text);
        core.recorder.phase(Phase::Computing);
        core.write_back.stop();
        let verifying = core.finished.take().map_or(Duration::ZERO, |finished| finished.elapsed());
        core.times.inspecting += verifying;
        core.dispatch(PrimaryEvent::Wrong { tiles, makers: makers.into_iter().collect() });
    }
    supervise(core, supervisor).await;
    let core = core.borrow();
    match &core.failed {
        Some(why) => {
            let by = suspect.map_or_else(String::new, |name| format!(", computed by {name}"));
            let text = &suspect_tiles.text;
            Err(PrimaryError::Wrong(format!("C is wrong: {text}{by}; it could not be recomputed: {why}")))
        }
        None => Ok(core.finished.is_some()),
    }
}

/// Compares the tiles of a C that is right with their contents before, and counts the formerly wrong ones, by maker.
async fn wrong_tiles_by_maker(
    core: &Rc<RefCell<Core>>,
    supervisor: &mut Supervisor<'_>,
    suspect_tiles: Vec<SuspectTiles>,
) -> Result<Vec<WrongTiles>, PrimaryError> {
    let tiles: BTreeSet<(usize, u64)> = suspect_tiles.iter().flat_map(|a| a.before.keys().copied()).collect();
    if tiles.is_empty() {
        return Ok(Vec::new());
    }
    let right = tile_digests(core, supervisor, tiles.into_iter().collect()).await?;
    let core = core.borrow();
    let is_float = core.output.dtype().is_float();
    let is_one_kernel = core.machines.windows(2).all(|two| two[0].kernel == two[1].kernel);
    let mut found: BTreeMap<Vec<usize>, WrongTiles> = BTreeMap::new();
    for one in suspect_tiles {
        let counts = |tile| is_one_kernel || !is_float || one.proven_wrong.contains(tile);
        let is_other = |tile, before| right.get(tile) != Some(before);
        let wrong = one.before.iter().filter(|(tile, before)| counts(tile) && is_other(tile, before));
        for (tile, _) in wrong {
            let makers = one.makers.get(tile).cloned().unwrap_or_default();
            let names = makers.iter().map(|maker| core.machines[*maker].name.clone()).collect();
            let none = WrongTiles { names, tiles: 0, text: one.text.clone() };
            found.entry(makers).or_insert(none).tiles += 1;
        }
    }
    Ok(found.into_values().collect())
}

impl Core {
    /// The machine that made an element, if a single machine did.
    fn maker_of(&self, fault: &Fault) -> Option<String> {
        let owner = self.state.owner_of(fault.row, fault.col)?;
        Some(self.machines.get(owner)?.name.clone())
    }
}
