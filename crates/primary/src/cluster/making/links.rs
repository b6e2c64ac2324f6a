//! Links between machines that pass blocks of operands to each other.
//!
//! Place in the flow: `parts.rs` asks for them before it plans the steps, within the sessions of the making. The links end with
//! these.
//!
//! Invariant: to a machine that cannot connect with all holders of an operand, this process sends that operand.
//!
//! Deliberately absent: links that outlast the sessions.

use super::parts::MakingPlan;
use crate::cluster::putting::Holders;
use crate::gathering::early_loss;
use crate::product::ProductObserver;
use bramble_plan::{PlacedPart, links_are_worth};
use bramble_sessions::{Pairing, PrimaryError, SecretSource, introduce};
use std::collections::{BTreeMap, BTreeSet};

/// The links between machines.
#[derive(Default)]
pub(super) struct BlockLinks {
    /// Pairs that pass blocks to each other, in both orders.
    pub(super) pairs: BTreeSet<(usize, usize)>,
    /// The numbers by which machines know each other.
    pub(super) peers: BTreeMap<usize, u32>,
}

/// Introduces machines to each other, if blocks have to pass between them that are worth it.
pub(super) async fn linked(
    plan: &MakingPlan<'_>,
    parts: &[PlacedPart],
    holders: &mut Holders,
    random: SecretSource,
    watch: &dyn ProductObserver,
) -> Result<BlockLinks, PrimaryError> {
    let travels = plan.travels(parts, &|_, _| true);
    if !links_are_worth(travels.values().copied().fold(0, u64::saturating_add)) {
        return Ok(BlockLinks::default());
    }
    let machines: Vec<usize> =
        (0..holders.slots.len()).filter(|machine| holders.slots[*machine].is_some()).collect();
    let member = |machine: &usize| machines.iter().position(|known| known == machine);
    let pair = |(to, from): &(usize, usize)| Some((member(to.min(from))?, member(to.max(from))?));
    let pairs: BTreeSet<(usize, usize)> = travels.keys().filter_map(pair).collect();
    let pairs: Vec<(usize, usize)> = pairs.into_iter().collect();
    let opened = holders.slots.iter_mut().filter_map(Option::take).collect();
    let met = introduce(Pairing::Stated(&pairs), opened, random).await?;
    let mut lost = None;
    for (machine, (session, dead)) in machines.iter().zip(met.sessions.into_iter().zip(met.dead)) {
        match dead {
            Some(why) => {
                let name = early_loss(watch, session.name, why).name;
                lost = Some(format!("{name} was lost while machines were introduced to each other"));
                holders.lost.push(name);
            }
            None => holders.slots[*machine] = Some(session),
        }
    }
    let mut found = BlockLinks::default();
    for (member, neighbours) in met.neighbours.iter().enumerate() {
        found.pairs.extend(neighbours.iter().map(|other| (machines[member], machines[*other])));
        found.peers.insert(machines[member], u32::try_from(member).unwrap_or(u32::MAX));
    }
    lost.map_or(Ok(found), |why| Err(PrimaryError::PartLost(why)))
}
