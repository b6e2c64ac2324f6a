//! C is looked at while everybody is still here; what is wrong others make again.
//!
//! Place in the flow: when all tiles are there, and before goodbyes are said. A check that fails is followed by a search for
//! the wrong tiles; the schedule says who made them, and has the others make them again; then C is looked at anew.
//!
//! Invariants: nothing lands in C while it is read. Who is named for a tile is who made it before others made it differently, and
//! C then passed; where kernels differ, so that right tiles have other bits too, the check has shown that very tile to be wrong.
//! Where others make the same, or cannot make it, or nobody else is here, C stays wrong and is not kept. Rounds are counted.
//!
//! The files of the operands are compared with their state at the opening before a machine is accused or C is accepted.
//!
//! Deliberately absent: looking at parts of C while the product runs.

use super::Core;
use super::attend::{Attendants, supervise, while_alive};
use crate::PrimaryError;
use crate::account::{VerifyReport, Wrong};
use crate::inspector::{Inspector, Tiles};
use crate::log::Phase;
use bramble_matrix::Fault;
use bramble_matrix::number::to_u64;
use bramble_schedule::primary::Event;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was found.
pub(crate) struct Inspected {
    pub(crate) verify: VerifyReport,
    /// What was wrong and is right now, by who made it.
    pub(crate) wrong: Vec<Wrong>,
    /// Who made the element that is wrong still.
    pub(crate) suspect: Option<String>,
}

/// Rounds beyond one for each machine: with levels of Strassen's method what somebody made is located in two.
const MORE_ROUNDS: u64 = 3;

/// Tiles that were made again, with what was in them, and who may have made each.
struct Accused {
    before: Tiles,
    makers: BTreeMap<(usize, u64), Vec<usize>>,
    /// Those that the check has shown to be wrong.
    shown: BTreeSet<(usize, u64)>,
    text: String,
}

/// Looks at C until it is right or nobody can mend it. Nothing where the user ended it meanwhile.
pub(super) async fn inspect(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    inspector: &Arc<Inspector>,
) -> Result<Option<Inspected>, PrimaryError> {
    let (began, mut making) = (Instant::now(), Duration::ZERO);
    let mut verify = look(core, with, inspector, 0).await?;
    let mut accused: Vec<Accused> = Vec::new();
    let mut suspect = None;
    let rounds = to_u64(core.borrow().machines.len()).saturating_add(MORE_ROUNDS);
    for round in 1..=rounds {
        let Some(fault) = verify.verdict.fault.clone().filter(|_| !verify.verdict.passed) else { break };
        inspector.unchanged("when C was found to be wrong", true)?;
        suspect = core.borrow().maker_of(&fault);
        let Some(next) = accuse(core, with, inspector, (&fault, round), &accused).await? else { break };
        let tiles: Vec<(usize, u64)> = next.before.keys().copied().collect();
        let before = Instant::now();
        if !make_again(core, with, &next, suspect.as_deref()).await? {
            return Ok(None);
        }
        making += before.elapsed();
        let after = contents(core, with, tiles).await?;
        let is_other = after != next.before;
        accused.push(next);
        if !is_other {
            // Others make the same: whatever is wrong, nobody here did it alone.
            suspect = None;
            break;
        }
        verify = look(core, with, inspector, round).await?;
    }
    inspector.unchanged("when C was complete", !verify.verdict.passed)?;
    let wrong = if verify.verdict.passed { judged(core, with, accused).await? } else { Vec::new() };
    verify.seconds = began.elapsed().saturating_sub(making).as_secs_f64();
    Ok(Some(Inspected { suspect: suspect.filter(|_| !verify.verdict.passed), verify, wrong }))
}

/// Checks C.
async fn look(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    inspector: &Arc<Inspector>,
    round: u64,
) -> Result<VerifyReport, PrimaryError> {
    with.watch.verifying();
    core.borrow_mut().recorder.phase(Phase::Verifying);
    let c = core.borrow().output.matrix()?;
    while_alive(core, with, inspector.look(c, round)).await
}

/// Which tiles are wrong, and who may have made them so. Nothing where nobody else is here.
async fn accuse(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    inspector: &Arc<Inspector>,
    (fault, round): (&Fault, u64),
    before: &[Accused],
) -> Result<Option<Accused>, PrimaryError> {
    let (c, plan) = {
        let core = core.borrow();
        (core.output.matrix()?, core.state.plan().clone())
    };
    let mixes = plan.strategy.levels > 0;
    let found = plan.tile_at(fault.row, fault.col);
    let located = inspector.locate(c, plan, fault.clone(), round);
    let (mut tiles, shown) = while_alive(core, with, located).await?;
    let suspects: BTreeSet<usize> =
        before.iter().flat_map(|a| a.makers.values().flatten().copied()).collect();
    // Where one fault at a time is all that can be located: what else was made by who was wrong before is made again.
    let theirs = {
        let state = &core.borrow().state;
        let makers: BTreeSet<usize> = found.iter().flat_map(|tile| state.makers(&[*tile]).concat()).collect();
        let is_known = makers.iter().any(|maker| suspects.contains(maker)) || makers.is_empty() && round > 1;
        if mixes && is_known { state.tiles_of(&makers) } else { Vec::new() }
    };
    tiles.extend(contents(core, with, theirs).await?);
    let places: Vec<(usize, u64)> = tiles.keys().copied().collect();
    let makers = core.borrow().state.makers(&places);
    let all: Vec<usize> = makers.iter().flatten().copied().collect();
    if tiles.is_empty() || !core.borrow().state.has_others_than(&all) {
        return Ok(None);
    }
    let makers = places.into_iter().zip(makers).collect();
    Ok(Some(Accused { before: tiles, makers, shown, text: fault.text.clone() }))
}

/// What is in some tiles.
async fn contents(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    tiles: Vec<(usize, u64)>,
) -> Result<Tiles, PrimaryError> {
    let (c, plan) = {
        let core = core.borrow();
        (core.output.matrix()?, core.state.plan().clone())
    };
    while_alive(core, with, Inspector::contents(c, plan, tiles)).await
}

/// Others make tiles again. False where the user ended it meanwhile; an error where they cannot: what is in C then is of no use.
async fn make_again(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    accused: &Accused,
    suspect: Option<&str>,
) -> Result<bool, PrimaryError> {
    let tiles: Vec<(usize, u64)> = accused.makers.keys().copied().collect();
    let makers: BTreeSet<usize> = accused.makers.values().flatten().copied().collect();
    {
        let mut core = core.borrow_mut();
        let names: Vec<String> = makers.iter().map(|maker| core.machines[*maker].name.clone()).collect();
        with.watch.wrong(&names, tiles.len(), &accused.text);
        core.recorder.phase(Phase::Computing);
        // A row of tiles was complete once.
        core.tiles_left_in_row.clear();
        let looked = core.finished.take().map_or(Duration::ZERO, |finished| finished.elapsed());
        core.inspecting += looked;
        core.happened(Event::Wrong { tiles, makers: makers.into_iter().collect() });
    }
    supervise(core, with).await;
    let core = core.borrow();
    match &core.failed {
        Some(why) => {
            let by = suspect.map_or_else(String::new, |name| format!(", computed by {name}"));
            let text = &accused.text;
            Err(PrimaryError::Wrong(format!("C is wrong: {text}{by}; it could not be made again: {why}")))
        }
        None => Ok(core.finished.is_some()),
    }
}

/// Of tiles that are right now, those that were not, by who made them.
async fn judged(
    core: &Rc<RefCell<Core>>,
    with: &mut Attendants<'_>,
    accused: Vec<Accused>,
) -> Result<Vec<Wrong>, PrimaryError> {
    let tiles: BTreeSet<(usize, u64)> = accused.iter().flat_map(|a| a.before.keys().copied()).collect();
    if tiles.is_empty() {
        return Ok(Vec::new());
    }
    let right = contents(core, with, tiles.into_iter().collect()).await?;
    let core = core.borrow();
    let is_float = core.output.dtype().is_float();
    let is_one_kernel = core.machines.windows(2).all(|two| two[0].kernel == two[1].kernel);
    let mut found: BTreeMap<Vec<usize>, Wrong> = BTreeMap::new();
    for one in accused {
        let counts = |tile| is_one_kernel || !is_float || one.shown.contains(tile);
        let is_other = |tile, before| right.get(tile) != Some(before);
        let wrong = one.before.iter().filter(|(tile, before)| counts(tile) && is_other(tile, before));
        for (tile, _) in wrong {
            let makers = one.makers.get(tile).cloned().unwrap_or_default();
            let names = makers.iter().map(|maker| core.machines[*maker].name.clone()).collect();
            let none = Wrong { names, tiles: 0, text: one.text.clone() };
            found.entry(makers).or_insert(none).tiles += 1;
        }
    }
    Ok(found.into_values().collect())
}

impl Core {
    /// Who made an element, where one machine did.
    fn maker_of(&self, fault: &Fault) -> Option<String> {
        let owner = self.state.owner_of(fault.row, fault.col)?;
        Some(self.machines.get(owner)?.name.clone())
    }
}
