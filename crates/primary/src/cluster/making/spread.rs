//! Operands of this process that several machines need: spread over them first, so that they leave this process once.
//!
//! Place in the flow: before the parts of a new array are made. The machines then pass the pieces to each other, as those of any
//! other placed operand.
//!
//! Invariant: spread operands are freed when the parts are made, and after an error.
//!
//! Deliberately absent: generated operands, of which only a description is sent; and machines that cannot be linked.

use super::MakeSubject;
use super::parts::MakingPlan;
use crate::cluster::Cluster;
use crate::cluster::arrays::{ArrayId, PlacedArray, PlacedOperand};
use crate::cluster::putting::Holders;
use crate::product::ProductObserver;
use bramble_plan::{ArrayLayout, PlacedPart, spreading_is_worth};
use bramble_sessions::PrimaryError;

impl Cluster {
    /// The numbers of the operands that should be spread, each with its layout.
    pub(super) fn to_spread(
        &self,
        plan: &MakingPlan<'_>,
        parts: &[PlacedPart],
        holders: &Holders,
    ) -> Vec<(usize, ArrayLayout)> {
        let may_link = |part: &PlacedPart| {
            holders.slots[part.machine].as_ref().is_some_and(|session| session.link.addresses.is_some())
        };
        let mut found = Vec::new();
        if !parts.iter().all(may_link) {
            return found;
        }
        for (at, operand) in plan.subject().operands().into_iter().enumerate() {
            let matrix = &operand.matrix;
            let bytes = matrix.shape().bytes(matrix.dtype()).unwrap_or(u64::MAX);
            let is_here = operand.placed.is_none() && matrix.generator().is_none();
            if is_here && spreading_is_worth(bytes, plan.bytes_sent(parts, at)) {
                // Without room for it beside the result, it is sent to each machine in blocks.
                found.extend(plan.making.spread(at, &holders.offered()).ok().map(|layout| (at, layout)));
            }
        }
        found
    }

    /// Spreads operands: the subject with these placed, and the arrays that they are.
    pub(super) async fn spread(
        &mut self,
        mut subject: MakeSubject,
        layouts: Vec<(usize, ArrayLayout)>,
        (holders, connections): (&mut Holders, &[u64]),
        watch: &dyn ProductObserver,
    ) -> Result<(MakeSubject, Vec<ArrayId>), PrimaryError> {
        let mut arrays = Vec::new();
        for (at, layout) in layouts {
            let matrix = subject.operands()[at].matrix.clone();
            let parts = layout.parts.clone();
            let held = match self.put_all(&matrix, &layout, holders, parts, watch).await {
                Ok(held) => held,
                Err(e) => {
                    self.forget_all(arrays, holders, connections).await;
                    return Err(e);
                }
            };
            let array = self.arrays.add(PlacedArray::put(matrix, layout, held, connections.to_vec()));
            arrays.push(array);
            subject.operands_mut()[at].placed = Some(PlacedOperand { array, transposed: false });
        }
        Ok((subject, arrays))
    }

    /// Frees arrays over open sessions.
    pub(super) async fn forget_all(
        &mut self,
        arrays: Vec<ArrayId>,
        holders: &mut Holders,
        connections: &[u64],
    ) {
        for array in arrays {
            self.forget_made(array, holders, connections).await;
        }
    }
}
