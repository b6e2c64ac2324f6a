//! Places matrices on the machines of a cluster, puts lost parts again, and frees them.
//!
//! Place in the flow: between products. Each call opens a session with the machines that it concerns, as a product
//! does, and ends it: so the machines name their speed and the memory that they have left, and the connections stay
//! alive.
//!
//! Invariants: a matrix is placed as a whole or not at all. Parts whose machine is lost meanwhile go to the other
//! machines. A part is recorded when its machine has confirmed it, with the digest that this process has computed
//! from the source.
//!
//! Deliberately absent: which machine gets which part (`plan/src/layout.rs`), and one part's messages (`part.rs`).

use super::Cluster;
use super::arrays::{ArrayId, PlacedArray, RecordedPart, bytes_of, place_of};
use super::part::{PartToPut, digest_of, put_part};
use crate::PrimaryError;
use crate::gathering::{OpenedSessions, early_loss, open_all};
use crate::opening::{LostConnection, Opening, Session, open};
use crate::product::{ProductObserver, SessionRequest};
use bramble_link::{Body, Frame};
use bramble_matrix::{DType, Matrix, Rect, Shape};
use bramble_plan::{ArrayLayout, PartHolder, PlacedPart, Placement, Preference, ShardAxis};
use bramble_schedule::limits::ARRAYS_MAX;
use bramble_schedule::message::{Kind, Wants, encode_number};
use std::time::Instant;
use tokio::task::JoinSet;

/// Machines measure their speed as for a product of this many operations: longest, since a placement stays.
const PROBED_FLOPS: f64 = 1e11;

/// A matrix to place, and how.
pub struct PutRequest {
    /// The matrix. It is read again when a part is lost, and when a product is verified.
    pub matrix: Matrix,
    /// Where the parts lie; `None`: by its shape and size.
    pub placement: Option<Placement>,
    /// Kernel whose speed decides about the size of the parts, by name, or `auto`.
    pub kernel: String,
    /// Whether this process's own threads hold a part, too. They do not if they share cores with the workers.
    pub who: Preference,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
}

/// A matrix that was placed.
#[derive(Clone, Debug)]
pub struct PutReport {
    /// Rows and columns.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// The cut direction; `None` for replicas.
    pub axis: Option<ShardAxis>,
    /// The parts.
    pub parts: Vec<PartReport>,
    /// Bytes sent, all framing included.
    pub bytes_sent: u64,
    /// Seconds until all parts were confirmed.
    pub seconds: f64,
}

/// A part of a placed matrix.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// Its machine.
    pub machine: String,
    /// Its rectangle of the matrix.
    pub rect: Rect,
    /// Bytes of its elements.
    pub bytes: u64,
}

/// Machines that are given parts, by their number in the layout; a lost one is `None`.
struct Holders {
    slots: Vec<Option<Session>>,
    /// Memory that each has left for parts.
    left_bytes: Vec<u64>,
    bytes_sent: u64,
}

/// A part that is held: its rectangle and machine, and what is known of it.
type Held = (PlacedPart, RecordedPart);

impl Cluster {
    /// Places a matrix. After an error nothing of it is held anywhere.
    pub async fn put(
        &mut self,
        put: PutRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(ArrayId, PutReport), PrimaryError> {
        let began = Instant::now();
        let PutRequest { matrix, placement, kernel, who, sessions } = put;
        let (shape, dtype) = (matrix.shape(), matrix.dtype());
        if self.arrays.ids().len() >= ARRAYS_MAX / 2 {
            let why = format!("{} matrices are placed already: free some of them", ARRAYS_MAX / 2);
            return Err(PrimaryError::Operands(why));
        }
        let sessions = self.holders(&sessions, (kernel, &matrix, who), watch).await?;
        let connections = sessions.iter().map(|session| session.known.number).collect();
        let mut holders = Holders::new(sessions.into_iter().map(Some).collect());
        let offered = holders.offered();
        let placement = placement.unwrap_or_else(|| Placement::automatic(shape, dtype, &offered));
        let planned = ArrayLayout::new(shape, dtype, &placement, &offered);
        let result = match planned {
            Ok(layout) => {
                let parts = layout.parts.clone();
                let held = self.put_all(&matrix, &layout, &mut holders, parts, watch).await;
                held.map(|held| (layout, held))
            }
            Err(e) => Err(e.into()),
        };
        let bytes_sent = holders.bytes_sent;
        let names = holders.names();
        self.idle.release(holders.slots.into_iter().flatten().collect()).await;
        let (layout, held) = result?;
        let part = |(part, _): &Held| PartReport {
            machine: names[part.machine].clone(),
            rect: part.rect,
            bytes: bytes_of(part.rect.shape(), dtype),
        };
        let report = PutReport {
            shape,
            dtype,
            axis: layout.axis,
            parts: held.iter().map(part).collect(),
            bytes_sent,
            seconds: began.elapsed().as_secs_f64(),
        };
        let (parts, recorded) = held.into_iter().unzip();
        let layout = ArrayLayout { parts, ..layout };
        let sketches = Default::default();
        let array = PlacedArray { source: matrix, layout, parts: recorded, holders: connections, sketches };
        Ok((self.arrays.add(array), report))
    }

    /// Puts the parts of lost machines on the other machines, for all placed matrices: after `PrimaryError::PartLost`.
    pub async fn restore(
        &mut self,
        kernel: &str,
        who: Preference,
        sessions: &SessionRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(), PrimaryError> {
        for id in self.arrays.ids() {
            let source = self.arrays.get(id)?.source.clone();
            let opened = self.holders(sessions, (kernel.to_owned(), &source, who), watch).await?;
            let mut holders = self.known_holders(id, opened);
            let restored = self.restore_one(id, &mut holders, watch).await;
            self.idle.release(holders.slots.into_iter().flatten().collect()).await;
            restored?;
        }
        Ok(())
    }

    /// Frees a placed matrix: its machines give the memory back.
    pub async fn free(&mut self, id: ArrayId, sessions: &SessionRequest) {
        let Some(array) = self.arrays.remove(id) else { return };
        let numbers = array.numbers();
        self.numbers.begin_product(sessions.seed);
        let (connections, _lost) = self.idle.take().await;
        let opening = opening(sessions, "simd".to_owned(), array.layout.dtype, 0.0);
        let mut freeing = JoinSet::new();
        for connection in connections {
            let Some(numbers) = numbers.get(&connection.known.number).cloned() else {
                self.idle.add(connection);
                continue;
            };
            let (opening, session) = (opening.clone(), self.numbers.session());
            freeing.spawn_local(async move {
                let mut session = open(connection, &opening, session).await?;
                free_numbers(&mut session, &numbers).await;
                Ok::<_, PrimaryError>(session)
            });
        }
        let mut sessions = Vec::new();
        while let Some(freed) = freeing.join_next().await {
            // A machine that does not answer has lost its parts; the next product reports it.
            sessions.extend(freed.into_iter().flatten());
        }
        self.idle.release(sessions).await;
    }

    /// Sessions with the machines that may hold parts: the workers and, if it has cores of its own, this process. The
    /// others end.
    async fn holders(
        &mut self,
        sessions: &SessionRequest,
        (kernel, matrix, who): (String, &Matrix, Preference),
        watch: &dyn ProductObserver,
    ) -> Result<Vec<Session>, PrimaryError> {
        let opening = opening(sessions, kernel, matrix.dtype(), PROBED_FLOPS);
        let OpenedSessions { local, mut workers, .. } = open_all(sessions, &opening, self, watch).await?;
        let holds_too = workers.is_empty() || who == Preference::Fastest && !self.alike;
        if holds_too {
            workers.insert(0, local);
        } else {
            self.idle.release(vec![local]).await;
        }
        Ok(workers)
    }

    /// The machines of an array, by their numbers in its layout; new machines come last.
    fn known_holders(&mut self, id: ArrayId, sessions: Vec<Session>) -> Holders {
        let mut slots: Vec<Option<Session>> = Vec::new();
        if let Some(array) = self.arrays.get_mut(id) {
            for session in sessions {
                let machine = array.machine_of(session.known.number);
                slots.resize_with(array.holders.len(), || None);
                slots[machine] = Some(session);
            }
        }
        Holders::new(slots)
    }

    /// Puts the missing parts of one array again.
    async fn restore_one(
        &mut self,
        id: ArrayId,
        holders: &mut Holders,
        watch: &dyn ProductObserver,
    ) -> Result<(), PrimaryError> {
        let array = self.arrays.get(id)?;
        let is_there = |machine: usize| holders.slots.get(machine).is_some_and(Option::is_some);
        let (source, layout) = (array.source.clone(), array.layout.clone());
        let missing = layout.missing(&is_there);
        for part in &missing {
            let rect = layout.parts[*part].rect;
            unchanged(&source, rect, array.parts[*part]).await?;
        }
        // From the last to the first, so that the indices of the others stay.
        for part in missing.into_iter().rev() {
            let lost = |why: String| {
                let place = place_of(layout.parts[part].rect, layout.shape);
                PrimaryError::PartLost(format!(
                    "{place} of the placed matrix {} is lost, and cannot be put again: {why}",
                    source.name()
                ))
            };
            let pieces = layout.placed_again(part, &holders.offered()).map_err(|e| lost(e.to_string()))?;
            let held = self.put_all(&source, &layout, holders, pieces, watch).await?;
            if let Some(array) = self.arrays.get_mut(id) {
                array.replace(part, held);
            }
        }
        if let Some(array) = self.arrays.get_mut(id).filter(|array| array.layout.axis.is_none()) {
            let connections: Vec<u64> =
                holders.slots.iter().flatten().map(|session| session.known.number).collect();
            array.keep_replicas(&|connection| connections.contains(&connection));
        }
        Ok(())
    }

    /// Puts parts until all are held. Parts of a machine that is lost meanwhile are placed anew. After an error none is held.
    async fn put_all(
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

    /// Puts at most one of the parts that wait on each machine.
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
        let mut putting = JoinSet::new();
        for part in std::mem::take(&mut round.waiting) {
            let Some(session) = holders.slots[part.machine].take() else {
                round.waiting.push(part);
                continue;
            };
            let number = shared.unwrap_or_else(|| self.arrays.number());
            holders.charge(&part, layout);
            let to_put = PartToPut { source: source.clone(), rect: part.rect, number };
            putting.spawn_local(async move { (part, put_part(session, to_put).await) });
        }
        while let Some(put) = putting.join_next().await {
            match put {
                Ok((part, (Ok(used), outcome))) => {
                    holders.bytes_sent += used.sent;
                    holders.slots[part.machine] = Some(used.session);
                    match outcome {
                        Ok(recorded) => round.held.push((part, recorded)),
                        Err(why) => round.fail(PrimaryError::Failed(why)),
                    }
                }
                Ok((part, (Err(LostConnection { name, why }), _))) => {
                    early_loss(watch, name, why);
                    round.waiting.push(part);
                }
                Err(e) => round.fail(PrimaryError::Failed(format!("placing a part: {e}"))),
            }
        }
    }
}

/// What has become of the parts that are being put.
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
    fn new(slots: Vec<Option<Session>>) -> Self {
        let left = |slot: &Option<Session>| slot.as_ref().map_or(0, |session| session.welcome.hold_bytes);
        Self { left_bytes: slots.iter().map(left).collect(), slots, bytes_sent: 0 }
    }

    fn names(&self) -> Vec<String> {
        let name = |slot: &Option<Session>| slot.as_ref().map_or_else(String::new, |s| s.name.clone());
        self.slots.iter().map(name).collect()
    }

    /// What each machine can hold; a lost one nothing.
    fn offered(&self) -> Vec<PartHolder> {
        let of = |(slot, left): (&Option<Session>, &u64)| match slot {
            Some(session) => {
                PartHolder { name: session.name.clone(), gflops: session.welcome.gflops, memory_bytes: *left }
            }
            None => PartHolder { name: String::new(), gflops: 0.0, memory_bytes: 0 },
        };
        self.slots.iter().zip(&self.left_bytes).map(of).collect()
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
    let has_machines = offered.iter().any(|holder| holder.memory_bytes > 0);
    if layout.axis.is_none() && has_machines {
        return Ok(Vec::new());
    }
    Ok(one.placed_again(0, offered)?)
}

/// Frees parts at a machine. A link that breaks here is noticed by the goodbye that follows.
async fn free_numbers(session: &mut Session, numbers: &[u64]) {
    for number in numbers {
        let frame = Frame::new(Kind::Free.code(), encode_number(*number), Body::Empty);
        let _ = session.link.sender.send(frame).await;
    }
}

/// Checks that a lost part's source still has the elements that were placed.
async fn unchanged(source: &Matrix, rect: Rect, recorded: RecordedPart) -> Result<(), PrimaryError> {
    if digest_of(source.clone(), rect).await?.is_none_or(|digest| digest == recorded.digest) {
        return Ok(());
    }
    Err(PrimaryError::PartLost(format!(
        "{} of the placed matrix {name} is lost, and {name} was changed since it was placed: place it again",
        place_of(rect, source.shape()),
        name = source.name()
    )))
}

/// The hello of a session that only places or frees parts.
fn opening(sessions: &SessionRequest, kernel: String, dtype: DType, flops: f64) -> Opening {
    Opening {
        dtype,
        alpha: 1.0,
        beta: 0.0,
        flops,
        // The least that a session can have: parts have an account of their own.
        memory_bytes: 1,
        kernel,
        name: sessions.name.clone(),
        wants: Wants { log: false, account: false },
    }
}
