//! Puts the parts of one matrix on several machines at once.
//!
//! Place in the flow: `placing.rs` passes planned parts in; `part.rs` puts each.
//!
//! Invariants: all parts are held at the end, or none of them. A machine is given one part at a time. Parts of a machine
//! that is lost meanwhile are placed anew on the others.

use super::Cluster;
use super::arrays::RecordedPart;
use super::part::{PartToPut, put_part};
use crate::gathering::early_loss;
use crate::product::ProductObserver;
use bramble_link::{Body, Frame};
use bramble_matrix::Matrix;
use bramble_plan::{ArrayLayout, PartHolder, PlacedPart};
use bramble_sessions::{LostConnection, MachineJob, PrimaryError, Session, at_once};
use bramble_wire::message::{Kind, encode_number};
use std::collections::BTreeMap;

/// Machines that are given parts, by their number in the layout; a lost one is `None`.
pub(super) struct Holders {
    pub(super) slots: Vec<Option<Session>>,
    pub(super) names: Vec<String>,
    /// Memory that each has left for parts.
    left_bytes: Vec<u64>,
    pub(super) bytes_sent: u64,
    /// Names of the machines that were lost.
    pub(super) lost: Vec<String>,
}

/// A part that a machine holds: rectangle and machine, number and digest.
pub(super) type Held = (PlacedPart, RecordedPart);

impl Cluster {
    /// Puts parts until all are held. Parts of a machine that is lost meanwhile are placed anew. After an error none is held.
    pub(super) async fn put_all(
        &mut self,
        source: &Matrix,
        layout: &ArrayLayout,
        holders: &mut Holders,
        parts: Vec<PlacedPart>,
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Held>, PrimaryError> {
        let mut round = PutRound { waiting: parts, ..PutRound::default() };
        while !round.waiting.is_empty() && round.failed.is_none() {
            self.put_round(source, layout, holders, &mut round, watch).await;
            for part in round.take_lost(holders) {
                match placed_elsewhere(layout, part, &holders.offered()) {
                    Ok(again) => round.waiting.extend(again),
                    Err(e) => round.fail(e),
                }
            }
        }
        let PutRound { mut held, failed, .. } = round;
        let Some(e) = failed else {
            held.sort_by_key(|(part, _)| (part.rect.rows.start, part.rect.cols.start, part.machine));
            return Ok(held);
        };
        for (part, recorded) in held {
            if let Some(session) = &mut holders.slots[part.machine] {
                free_numbers(session, &[recorded.number]).await;
            }
        }
        Err(e)
    }

    /// Puts at most one of the parts that wait on each machine. Machines that are done, or have no part, are pinged meanwhile.
    async fn put_round(
        &mut self,
        source: &Matrix,
        layout: &ArrayLayout,
        holders: &mut Holders,
        round: &mut PutRound,
        watch: &dyn ProductObserver,
    ) {
        // Replicas have the same number.
        let shared = layout.axis.is_none().then(|| self.arrays.number());
        let (mut given, mut jobs) = (BTreeMap::new(), Vec::new());
        for part in std::mem::take(&mut round.waiting) {
            if holders.slots[part.machine].is_none() || given.contains_key(&part.machine) {
                round.waiting.push(part);
                continue;
            }
            let number = shared.unwrap_or_else(|| self.arrays.number());
            holders.charge(&part, layout);
            let to_put = PartToPut { source: source.clone(), rect: part.rect, number };
            let job: MachineJob<_> =
                (part.machine, Box::new(move |session| Box::pin(put_part(session, to_put))));
            jobs.push(job);
            given.insert(part.machine, part);
        }
        match at_once(&mut holders.slots, jobs).await {
            Ok(ended) => ended.into_iter().for_each(|ended| {
                let part = given.remove(&ended.machine);
                holders.returned(part, ended.result, round, watch);
            }),
            Err(e) => round.fail(e),
        }
    }
}

/// The progress of a put.
#[derive(Default)]
struct PutRound {
    waiting: Vec<PlacedPart>,
    held: Vec<Held>,
    /// The first error that no other machine can mend.
    failed: Option<PrimaryError>,
}

impl PutRound {
    fn fail(&mut self, e: PrimaryError) {
        self.failed.get_or_insert(e);
    }

    /// Takes out the parts whose machine is lost, whether it held them or was to get them.
    fn take_lost(&mut self, holders: &Holders) -> Vec<PlacedPart> {
        let is_lost = |part: &PlacedPart| holders.slots[part.machine].is_none();
        let waiting = self.waiting.extract_if(.., |part| is_lost(part));
        let mut lost: Vec<PlacedPart> = waiting.collect();
        lost.extend(self.held.extract_if(.., |(part, _)| is_lost(part)).map(|(part, _)| part));
        lost
    }
}

impl Holders {
    pub(super) fn new(slots: Vec<Option<Session>>) -> Self {
        let left = |slot: &Option<Session>| slot.as_ref().map_or(0, |session| session.welcome.hold_bytes);
        let name = |slot: &Option<Session>| {
            slot.as_ref().map_or_else(|| "another".to_owned(), |session| session.name.clone())
        };
        let (left_bytes, names) = (slots.iter().map(left).collect(), slots.iter().map(name).collect());
        Self { slots, names, left_bytes, bytes_sent: 0, lost: Vec::new() }
    }

    /// A machine has put its part, or could not, or was lost, with a part or without.
    fn returned(
        &mut self,
        part: Option<PlacedPart>,
        result: Result<(u64, Result<RecordedPart, String>), LostConnection>,
        round: &mut PutRound,
        watch: &dyn ProductObserver,
    ) {
        match (result, part) {
            (Err(LostConnection { name, why }), part) => {
                self.lost.push(early_loss(watch, name, why).name);
                round.waiting.extend(part);
            }
            (Ok((sent, Ok(recorded))), Some(part)) => {
                self.bytes_sent += sent;
                round.held.push((part, recorded));
            }
            (Ok((sent, outcome)), _) => {
                self.bytes_sent += sent;
                outcome.err().into_iter().for_each(|why| round.fail(PrimaryError::Failed(why)));
            }
        }
    }

    /// What each machine can hold; a lost one nothing.
    pub(super) fn offered(&self) -> Vec<PartHolder> {
        let of = |((slot, name), left): ((&Option<Session>, &String), &u64)| match slot {
            Some(session) => {
                PartHolder { name: name.clone(), gflops: session.welcome.gflops, memory_bytes: *left }
            }
            None => PartHolder { name: format!("{name} (lost)"), gflops: 0.0, memory_bytes: 0 },
        };
        self.slots.iter().zip(&self.names).zip(&self.left_bytes).map(of).collect()
    }

    /// A part takes its memory.
    fn charge(&mut self, part: &PlacedPart, layout: &ArrayLayout) {
        let left = &mut self.left_bytes[part.machine];
        *left = left.saturating_sub(layout.part_bytes(part));
    }
}

/// Where a part goes whose machine was lost while it was put. A replica goes nowhere if there are others.
fn placed_elsewhere(
    layout: &ArrayLayout,
    part: PlacedPart,
    offered: &[PartHolder],
) -> Result<Vec<PlacedPart>, PrimaryError> {
    let one = ArrayLayout { parts: vec![part], ..layout.clone() };
    // A machine that answered has a speed.
    let are_others = offered.iter().any(|holder| holder.gflops > 0.0);
    if layout.axis.is_none() && are_others {
        return Ok(Vec::new());
    }
    Ok(one.placed_again(0, offered)?)
}

/// Frees parts at a machine. A link that breaks here is noticed by the goodbye that follows.
pub(super) async fn free_numbers(session: &mut Session, numbers: &[u64]) {
    for number in numbers {
        let frame = Frame::new(Kind::Free.code(), encode_number(*number), Body::Empty);
        let _ = session.link.sender.send(frame).await;
    }
}
