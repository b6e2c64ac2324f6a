//! Links between machines that pass blocks of operands to each other.
//!
//! Place in the flow: `parts.rs` asks for them before it plans the steps, within the sessions of the making. The links end with
//! these.
//!
//! Invariant: to a machine that cannot connect with all holders of an operand, this process sends that operand.
//!
//! Deliberately absent: links that outlast the sessions.

use super::MakingPlan;
use super::unfinished::UnfinishedPart;
use crate::{ArrayError, ArrayMachines, ArrayOperation};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use bramble_plan::links_are_worth;

/// The links between machines.
#[derive(Clone, Default)]
pub(super) struct BlockLinks {
    /// Pairs that pass blocks to each other, in both orders.
    pub(super) pairs: BTreeSet<(usize, usize)>,
    /// The numbers by which machines know each other.
    pub(super) peers: BTreeMap<usize, u32>,
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Introduces machines to each other, if blocks have to pass between them that are worth it.
    pub(super) async fn linked(
        &mut self,
        plan: &MakingPlan<M::Matrix>,
        parts: &[UnfinishedPart],
    ) -> Result<BlockLinks, ArrayError<M::Error>> {
        let travels = plan.travels(parts);
        if !links_are_worth(travels.values().copied().fold(0, u64::saturating_add)) {
            return Ok(BlockLinks::default());
        }
        let needed: BTreeSet<(usize, usize)> =
            travels.into_keys().chain(plan.pipeline_pairs(parts)).collect();
        let pairs: BTreeSet<(usize, usize)> =
            needed.iter().map(|(to, from)| (*to.min(from), *to.max(from))).collect();
        let pairs: Vec<(usize, usize)> = pairs.into_iter().collect();
        let met = self.machines.introduce(&pairs).await.map_err(ArrayError::Shell)?;
        met.lost.iter().for_each(|machine| self.holders.lose(*machine));
        if let Some(machine) = met.lost.first() {
            let name = self.holders.name(*machine);
            return Err(ArrayError::PartLost(format!(
                "{name} was lost while machines were introduced to each other"
            )));
        }
        Ok(BlockLinks { pairs: met.pairs, peers: met.peers })
    }
}
