//! Operands of this process that several machines need: spread over them first, so that they leave this process once.
//!
//! Place in the flow: before the parts of a new array are made. The machines then pass the pieces to each other, as those of any
//! other placed operand.
//!
//! Invariant: spread operands are freed when the parts are made, and after an error.
//!
//! Deliberately absent: generated operands, of which only a description is sent; and machines that cannot be linked.

use super::unfinished::UnfinishedPart;
use super::{MadeFrom, MakingPlan};
use crate::{ArrayError, ArrayId, ArrayMachines, ArrayOperation, PlacedOperand};
use alloc::vec::Vec;
use bramble_base::MatrixInfo;
use bramble_plan::{ArrayLayout, spreading_is_worth};

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// The numbers of the operands that should be spread, each with its layout.
    pub(super) fn to_spread(
        &self,
        plan: &MakingPlan<M::Matrix>,
        parts: &[UnfinishedPart],
    ) -> Vec<(usize, ArrayLayout)> {
        let mut found = Vec::new();
        if !parts.iter().all(|one| self.holders.may_link(one.part.machine)) {
            return found;
        }
        for (at, operand) in plan.subject.operands().into_iter().enumerate() {
            let matrix = &operand.matrix;
            let bytes = matrix.shape().bytes(matrix.dtype()).unwrap_or(u64::MAX);
            let is_here = operand.placed.is_none() && !matrix.is_generated();
            if is_here && spreading_is_worth(bytes, plan.bytes_sent(parts, at)) {
                // Without room for it beside the result, it is sent to each machine in blocks.
                let layout = plan.making.spread(at, &self.holders.offered());
                found.extend(layout.ok().map(|layout| (at, layout)));
            }
        }
        found
    }

    /// Spreads operands: the subject with these placed, and the arrays that they are.
    pub(super) async fn spread(
        &mut self,
        mut subject: MadeFrom<M::Matrix>,
        layouts: Vec<(usize, ArrayLayout)>,
    ) -> Result<(MadeFrom<M::Matrix>, Vec<ArrayId>), ArrayError<M::Error>> {
        let mut arrays = Vec::new();
        for (at, layout) in layouts {
            let matrix = subject.operands()[at].matrix.clone();
            match self.put_as(matrix, layout).await {
                Ok(array) => {
                    arrays.push(array);
                    subject.operands_mut()[at].placed = Some(PlacedOperand { array, transposed: false });
                }
                Err(e) => {
                    for array in arrays {
                        self.free(array).await;
                    }
                    return Err(e);
                }
            }
        }
        Ok((subject, arrays))
    }
}
