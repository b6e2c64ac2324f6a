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
use bramble_sessions::{LostConnection, PrimaryError, Session, Together};
use bramble_wire::message::{Kind, encode_number};
use tokio::task::JoinSet;

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
        let mut given = Vec::new();
        for part in std::mem::take(&mut round.waiting) {
            match holders.slots[part.machine].take() {
                Some(session) => given.push((part, session)),
                None => round.waiting.push(part),
            }
        }
        let together = Together::of(given.len());
        let mut putting = JoinSet::new();
        for (part, session) in given {
            let number = shared.unwrap_or_else(|| self.arrays.number());
            holders.charge(&part, layout);
            let to_put = PartToPut { source: source.clone(), rect: part.rect, number };
            let together = together.clone();
            putting.spawn_local(async move {
                let (used, outcome) = put_part(session, to_put).await;
                together.done();
                let (session, sent) = match used {
                    Ok(used) => (together.wait(used.session).await, used.sent),
                    Err(lost) => (Err(lost), 0),
                };
                (part.machine, session, Some((part, sent, outcome)))
            });
        }
        for (machine, slot) in holders.slots.iter_mut().enumerate() {
            if let Some(session) = slot.take() {
                let together = together.clone();
                putting.spawn_local(async move { (machine, together.wait(session).await, None) });
            }
        }
        while let Some(put) = putting.join_next().await {
            match put {
                Ok((machine, session, put)) => holders.returned(machine, session, put, round, watch),
                Err(e) => round.fail(PrimaryError::Failed(format!("placing a part: {e}"))),
            }
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

    /// A machine's session is back, or lost; and the part that it was given, the bytes sent for that, and what became of it.
    fn returned(
        &mut self,
        machine: usize,
        session: Result<Session, LostConnection>,
        put: Option<(PlacedPart, u64, Result<RecordedPart, String>)>,
        round: &mut PutRound,
        watch: &dyn ProductObserver,
    ) {
        let is_lost = session.is_err();
        match session {
            Ok(session) => self.slots[machine] = Some(session),
            Err(LostConnection { name, why }) => self.lost.push(early_loss(watch, name, why).name),
        }
        let Some((part, sent, outcome)) = put else { return };
        self.bytes_sent += sent;
        match outcome {
            _ if is_lost => round.waiting.push(part),
            Ok(recorded) => round.held.push((part, recorded)),
            Err(why) => round.fail(PrimaryError::Failed(why)),
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
