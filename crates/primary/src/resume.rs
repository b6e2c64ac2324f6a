//! Resuming the product of an earlier run: checks that the request is the same, and that the recorded tiles are intact.
//!
//! Place in the flow: before any machine computes. The operands are compared with the digests in the journal; every recorded
//! tile is read and digested.
//!
//! Invariants: nothing of the earlier run is used unchecked. A tile with another digest is recomputed. The plan is the
//! journal's, whichever machines compute: so the bits of C are the same.
//!
//! Deliberately absent: a new plan for the remaining work.

use crate::gathering::Participants;
use crate::product::{ProductObserver, Request};
use bramble_matrix::number::to_u64;
use bramble_matrix::{Digest128, Matrix, Output};
use bramble_plan::{Decision, Plan, Preference, Problem};
use bramble_schedule::journal::{Head, Journal};
use bramble_sessions::{PrimaryError, Session, off_loop};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Tiles of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Tiles of C that are intact.
    pub tiles_there: u64,
    /// Tiles of C.
    pub tiles: u64,
    /// Tiles with another digest than recorded: they are recomputed.
    pub tiles_damaged: u64,
    /// Tiles that had not been synced when the machine of the earlier run went down: they are recomputed, too.
    pub tiles_not_on_disk: u64,
}

/// Checks what the earlier run left. Damaged tiles are removed from its journal.
pub(crate) async fn check(
    mut request: Request,
    problem: &Problem,
    watch: &dyn ProductObserver,
) -> Result<Request, PrimaryError> {
    let Some(mut before) = request.journal.as_mut().and_then(|journal| journal.before.take()) else {
        return Ok(request);
    };
    same_product(&request, problem, &before.head)?;
    let (a, b, old_c, threads) =
        (request.a.matrix.clone(), request.b.matrix.clone(), request.old_c.clone(), request.check.threads);
    let head = before.head.clone();
    off_loop("looking at what is there", move || {
        same_operands(&head, [Some(&a), Some(&b), old_c.as_ref()], threads)
    })
    .await??;
    let output = request.output;
    let (output, journal, damaged) = off_loop("looking at what is there", move || {
        let differing = damaged(&output, &before, threads);
        before.tiles.retain(|tile, _| !differing.contains(tile));
        let not_on_disk = differing.intersection(&before.unsynced).count();
        before.missing.clone_from(&differing);
        (output, before, [differing.len() - not_on_disk, not_on_disk].map(to_u64))
    })
    .await?;
    request.output = output;
    let (tiles_there, tiles) = (to_u64(journal.tiles.len()), journal.head.plan.tiles());
    let [tiles_damaged, tiles_not_on_disk] = damaged;
    watch.resumed(&Resumed { tiles_there, tiles, tiles_damaged, tiles_not_on_disk });
    // The kernel of the earlier run; the rest of the kernel's description is compared when the machines have named theirs.
    if let Some(kernel) = journal.head.kernel.split(' ').next().filter(|name| !name.is_empty()) {
        kernel.clone_into(&mut request.kernel);
    }
    if let Some(journaling) = &mut request.journal {
        journaling.before = Some(journal);
    }
    Ok(request)
}

fn differs(what: impl std::fmt::Display) -> PrimaryError {
    PrimaryError::Operands(format!(
        "--resume: {what}; repeat the options and operands of the earlier run, or start over with --restart"
    ))
}

/// Compares the request with the journal's product.
fn same_product(request: &Request, problem: &Problem, head: &Head) -> Result<(), PrimaryError> {
    let Problem { m, n, k, dtype, .. } = head.plan.problem;
    if (m, n, k, dtype) != (problem.m, problem.n, problem.k, problem.dtype) {
        let (m2, n2, k2, dtype2) = (problem.m, problem.n, problem.k, problem.dtype);
        return Err(differs(format!(
            "the earlier run was {m} x {k} x {n} of {dtype}, this one is {m2} x {k2} x {n2} of {dtype2}"
        )));
    }
    for (name, was, is) in [("alpha", head.alpha, request.alpha), ("beta", head.beta, request.beta)] {
        if was.to_bits() != is.to_bits() {
            return Err(differs(format!("--{name} was {was}, and is {is} now")));
        }
    }
    let plan = &head.plan;
    if let Some(wanted) = request.wish.strategy.filter(|wanted| *wanted != plan.strategy) {
        return Err(differs(format!("--strategy was {}, and is {wanted} now", plan.strategy)));
    }
    if request.wish.elementwise && dtype.is_float() && plan.strategy.levels > 0 {
        return Err(differs(format!("--strategy was {}, which --elementwise rules out", plan.strategy)));
    }
    if request.wish.reproducible && !plan.keeps_bits() {
        return Err(differs("its plan was made without --reproducible"));
    }
    let Some(grid) = plan.regions.first().map(|region| region.grid) else { return Ok(()) };
    let edge = |wanted: Option<u64>, side: u64| wanted.map(|wanted| wanted.min(side.max(1)));
    let is_other = |wanted: Option<u64>, side, is| edge(wanted, side).is_some_and(|wanted| wanted != is);
    if is_other(request.cut.tile, grid.whole_rows(), grid.tile_rows) {
        return Err(differs(format!("--tile was {}", grid.tile_rows)));
    }
    if is_other(request.cut.depth, grid.whole_depth(), grid.depth) {
        return Err(differs(format!("--panel was {}", grid.depth)));
    }
    Ok(())
}

/// Compares the operands with the digests in the journal.
fn same_operands(head: &Head, now: [Option<&Matrix>; 3], threads: usize) -> Result<(), PrimaryError> {
    let was = [Some(head.a), Some(head.b), head.old_c];
    for ((was, matrix), what) in was.into_iter().zip(now).zip(["A", "B", "the old C"]) {
        let (Some(was), Some(matrix)) = (was, matrix) else { continue };
        if matrix.digest(threads, &|| false)? != Some(was) {
            let name = matrix.name();
            return Err(differs(format!(
                "{what} is not the same: {name} has other elements or another layout"
            )));
        }
    }
    Ok(())
}

/// Tiles whose digests differ from the journal's.
fn damaged(output: &Output, journal: &Journal, threads: usize) -> BTreeSet<(usize, u64)> {
    let tiles: Vec<((usize, u64), Digest128)> =
        journal.tiles.iter().map(|(tile, digest)| (*tile, *digest)).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(BTreeSet::new()));
    let work = || {
        while let Some((tile, digest)) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
            let region = &journal.head.plan.regions[tile.0];
            let is_right = region.tile_of(tile.1).is_some_and(|rect| output.lease(rect).digest() == *digest);
            if !is_right {
                found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(*tile);
            }
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The plan of the earlier run, as a decision.
pub(crate) fn decision(journal: &Journal, workers: usize) -> Decision {
    let (there, tiles) = (journal.tiles.len(), journal.head.plan.tiles());
    let sentence = format!("resumes: {there} of {tiles} tiles are done");
    let plan = Plan { relay: false, ..journal.head.plan.clone() };
    Decision { plan, alone: workers == 0, left_out: Vec::new(), sentence, considered: Vec::new() }
}

/// The machines that resume a product: all that are connected. This process's own threads are only a reserve if workers are there
/// and preferred.
pub(crate) fn resuming_machines(
    gathered: (Session, Vec<Session>),
    who: Preference,
) -> (Vec<Session>, Option<Session>) {
    let (local, mut sessions) = gathered;
    if who == Preference::Workers && !sessions.is_empty() {
        return (sessions, Some(local));
    }
    sessions.insert(0, local);
    (sessions, None)
}

/// The kernel of all machines, for the journal; empty if they differ, or if bits do not depend on it. Refuses machines, now and
/// later, whose kernel would not give the bits of the earlier run.
pub(crate) fn fitting_kernel(
    gathered: &mut Participants,
    before: Option<&Journal>,
    problem: &Problem,
) -> Result<String, PrimaryError> {
    let was = before.map(|journal| &journal.head.kernel).filter(|kernel| !kernel.is_empty());
    let all = || std::iter::once(&gathered.local).chain(&gathered.workers);
    let is_other = |kernel: &String| all().find(|session| session.welcome.kernel != *kernel);
    if let Some((was, other)) = was.and_then(|was| Some((was, is_other(was)?))) {
        return Err(PrimaryError::Failed(format!(
            "--resume: {} computes with the kernel {}, the earlier run did with {was}; leave it out, or start over with \
             --restart",
            other.name, other.welcome.kernel
        )));
    }
    let kernel = gathered.local.welcome.kernel.clone();
    let is_one = is_other(&kernel).is_none() && problem.dtype.is_float();
    if let (Some(join_terms), Some(was)) = (&mut gathered.join_terms, was) {
        join_terms.kernels.same = Some(was.clone());
    }
    Ok(if is_one { kernel } else { String::new() })
}
