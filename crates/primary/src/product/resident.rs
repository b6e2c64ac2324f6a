//! Products with placed operands: where their operands are, and their plan.
//!
//! Place in the flow: `one_product` asks here instead of the planner's search; everything else is as in any product.
//!
//! Invariant: a placed operand that is read in place is neither sent nor generated, and lies by rows in its parts.

use super::planned::described;
use super::{ProductOperand, Request};
use crate::cluster::{Cluster, ClusterArrays, digest_of, primary_error};
use crate::gathering::Participants;
use crate::{resume, strassen};
use bramble_arrays::{ArrayOrigin, ResidentOperands, ResidentPanels, changed};
use bramble_matrix::{Layout, Matrix};
use bramble_plan::{Decision, Machine, OperandSource, Problem, UnusedMachine, decide_resident};
use bramble_schedule::primary::{Lost, Operands, UnplacedOperand};
use bramble_sessions::PrimaryError;

/// The plan for operands that are placed, and the kernel of all machines.
pub(super) async fn choose_resident(
    request: &mut Request,
    problem: &Problem,
    (resident, cluster): (&ResidentOperands, &Cluster),
    gathered: &mut Participants,
    measured: Option<strassen::Measured>,
) -> Result<(Decision, String), PrimaryError> {
    request.wish = gathered.wish;
    let everybody = std::iter::once(&gathered.local).chain(&gathered.workers);
    strassen::check_own_kernels(request, problem, everybody, measured).await?;
    let kernel = resume::fitting_kernel(gathered, None, problem)?;
    let Participants { local, workers, nic_bytes_per_s, .. } = &*gathered;
    let connections: Vec<u64> =
        std::iter::once(local).chain(workers).map(|session| session.known.number).collect();
    let ownership = resident.ownership(&cluster.arrays, &connections).map_err(primary_error)?;
    let Some(ownership) = ownership else {
        unreachable!("operands that do not lie together are not both resident")
    };
    let primary = Machine { nic_bytes_per_s: *nic_bytes_per_s, ..local.machine(None, false) };
    let machines = described(workers, request.sessions.credits, cluster.alike);
    let decision = decide_resident(problem, &ownership, request.cut, &primary, &machines, &request.wish);
    let mut decision = decision.map_err(|e| e.with_credits(request.sessions.credits))?;
    let reason = "it holds no part of the operand";
    let unasked = gathered.unasked.drain(..).map(|name| UnusedMachine { name, reason: reason.to_owned() });
    decision.left_out.extend(unasked);
    Ok((decision, kernel))
}

/// A problem whose placed operands are read where they lie.
pub(super) fn with_resident(problem: Problem, resident: Option<&ResidentOperands>) -> Problem {
    let source =
        |is_placed: bool, source: OperandSource| if is_placed { OperandSource::Resident } else { source };
    let (left, right) = resident.map_or((false, false), |r| (r.left.is_some(), r.right.is_some()));
    Problem { a_source: source(left, problem.a_source), b_source: source(right, problem.b_source), ..problem }
}

/// The panels of operands that are read where they lie.
pub(super) fn resident_panels(
    resident: Option<&ResidentOperands>,
    arrays: &ClusterArrays,
) -> Result<[Option<ResidentPanels>; 2], PrimaryError> {
    resident.map_or(Ok([None, None]), |resident| resident.panels(arrays)).map_err(primary_error)
}

/// The operands' layouts, and whether each is generated.
pub(super) fn operand_layouts(request: &Request, problem: &Problem) -> Operands {
    // Parts lie by rows, whatever the order of the source.
    let layout = |operand: &ProductOperand, source: OperandSource| match operand.placed {
        Some(placed) if source == OperandSource::Resident && placed.transposed => Layout::ColMajor,
        Some(_) if source == OperandSource::Resident => Layout::RowMajor,
        _ => operand.matrix.layout(),
    };
    let unplaced = |matrix: &Matrix| {
        let source = OperandSource::generated_if(matrix.generator().is_some());
        (!matrix.is_remote()).then(|| UnplacedOperand { layout: matrix.layout(), source })
    };
    Operands {
        a_layout: layout(&request.a, problem.a_source),
        b_layout: layout(&request.b, problem.b_source),
        a_source: problem.a_source,
        b_source: problem.b_source,
        unplaced: [unplaced(&request.a.matrix), unplaced(&request.b.matrix)],
        reads_c: problem.reads_c,
    }
}

/// Checks that the sources of lost parts still have the elements that were placed, where work of their machines was reassigned:
/// the primary has sent panels from these sources. `numbers`: the connections of the peers.
pub(super) async fn check_lost_parts(
    resident: Option<&ResidentOperands>,
    arrays: &ClusterArrays,
    (losses, numbers): (&[Lost], &[u64]),
) -> Result<(), PrimaryError> {
    let Some(resident) = resident else { return Ok(()) };
    let reassigned = losses.iter().filter(|lost| lost.items > 0);
    let lost: Vec<u64> = reassigned.filter_map(|lost| numbers.get(lost.peer).copied()).collect();
    for operand in [resident.left, resident.right].into_iter().flatten() {
        let array = arrays.get(operand.array).map_err(primary_error)?;
        let (ArrayOrigin::Put(source), Some(_)) = (&array.origin, array.layout.axis) else { continue };
        for (part, recorded) in array.layout.parts.iter().zip(&array.parts) {
            if !lost.contains(&array.holders[part.machine]) {
                continue;
            }
            let digest = digest_of(source.clone(), part.rect).await?;
            if digest.is_some_and(|digest| digest != recorded.digest) {
                return Err(primary_error(changed(part.rect, source)));
            }
        }
    }
    Ok(())
}
