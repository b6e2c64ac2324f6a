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
//! Deliberately absent: which machine gets which part (`plan/src/layout.rs`), and how the parts travel (`putting.rs`).

use super::Cluster;
use super::arrays::{ArrayId, PlacedArray, RecordedPart, place_of};
use super::checking::BegunCheck;
use super::making::live_connections;
use super::part::digest_of;
use super::putting::{Holders, free_numbers};
use crate::gathering::{OpenedSessions, open_all};
use crate::product::{CheckRequest, ProductObserver, SessionRequest};
use bramble_matrix::{DType, Matrix, Rect, Shape};
use bramble_plan::{ArrayLayout, Placement, Preference, ShardAxis};
use bramble_sessions::{LostConnection, Opening, PrimaryError, SecretSource, Session, open};
use bramble_wire::limits::ARRAYS_MAX;
use bramble_wire::message::Wants;
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
    /// Machines that were lost meanwhile, or since the last product.
    pub lost: Vec<String>,
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
        if self.arrays.len() >= ARRAYS_MAX / 2 {
            let why = format!("{} matrices are placed already: free some of them", ARRAYS_MAX / 2);
            return Err(PrimaryError::Operands(why));
        }
        let (sessions, mut lost) = self.holders(&sessions, (kernel, dtype, PROBED_FLOPS), who, watch).await?;
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
        lost.append(&mut holders.lost);
        let (bytes_sent, names) = (holders.bytes_sent, std::mem::take(&mut holders.names));
        self.idle.release(holders.slots.into_iter().flatten().collect()).await;
        let (layout, held) = result?;
        let array = PlacedArray::put(matrix, layout, held, connections);
        let report = array.report(&names, lost, bytes_sent, began.elapsed().as_secs_f64());
        Ok((self.arrays.add(array), report))
    }

    /// Puts the parts of lost machines on the other machines, for all placed matrices, and makes those again that were made:
    /// after `PrimaryError::PartLost`. `relays`: whether machines may pass operands to each other. A matrix that cannot be
    /// restored keeps no other from it; the error of the first is returned at the end.
    pub async fn restore(
        &mut self,
        (kernel, who, relays): (&str, Preference, bool),
        sessions: &SessionRequest,
        check: CheckRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(), PrimaryError> {
        let mut unrestored = None;
        for id in self.arrays.ids() {
            let dtype = self.arrays.get(id)?.layout.dtype;
            let (opened, _) =
                self.holders(sessions, (kernel.to_owned(), dtype, PROBED_FLOPS), who, watch).await?;
            let mut holders = self.known_holders(id, opened);
            let random = relays.then_some(sessions.random);
            let restored = self.restore_one(id, &mut holders, random, check, watch).await;
            self.idle.release(holders.slots.into_iter().flatten().collect()).await;
            match restored {
                Err(PrimaryError::PartLost(why)) => unrestored = unrestored.or(Some(why)),
                other => other?,
            }
        }
        unrestored.map_or(Ok(()), |why| Err(PrimaryError::PartLost(why)))
    }

    /// Rows, columns and element type of a placed matrix.
    pub fn shape_of(&self, id: ArrayId) -> Result<(Shape, DType), PrimaryError> {
        let layout = &self.arrays.get(id)?.layout;
        Ok((layout.shape, layout.dtype))
    }

    /// Frees a placed matrix: its machines give the memory back.
    pub async fn free(&mut self, id: ArrayId, sessions: &SessionRequest) {
        let Some(array) = self.arrays.remove(id) else { return };
        let numbers = array.numbers();
        self.numbers.begin_product(sessions.seed);
        let (connections, lost) = self.idle.take().await;
        lost.into_iter().for_each(|lost| self.idle.add_lost(lost));
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
            match freed {
                Ok(Ok(session)) => sessions.push(session),
                Ok(Err(PrimaryError::Unreachable { name, why })) => {
                    self.idle.add_lost(LostConnection { name, why });
                }
                // A task that fails loses its connection, as at the end of the process.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        self.idle.release(sessions).await;
    }

    /// Sessions with the machines that may hold parts: the workers and, if it has cores of its own, this process. The
    /// others end. And the names of machines that were lost. Machines measure their speed as for a product of `flops`.
    pub(super) async fn holders(
        &mut self,
        sessions: &SessionRequest,
        (kernel, dtype, flops): (String, DType, f64),
        who: Preference,
        watch: &dyn ProductObserver,
    ) -> Result<(Vec<Session>, Vec<String>), PrimaryError> {
        let opening = opening(sessions, kernel, dtype, flops);
        let OpenedSessions { local, mut workers, lost } = open_all(sessions, &opening, self, watch).await?;
        let holds_too = workers.is_empty() || who == Preference::Fastest && !self.alike;
        if holds_too {
            workers.insert(0, local);
        } else {
            self.idle.release(vec![local]).await;
        }
        Ok((workers, lost.into_iter().map(|lost| lost.name).collect()))
    }

    /// The machines of an array, by their numbers in its layout; new machines come last.
    pub(super) fn known_holders(&mut self, id: ArrayId, sessions: Vec<Session>) -> Holders {
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
        random: Option<SecretSource>,
        check: CheckRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(), PrimaryError> {
        if self.arrays.get(id)?.made.is_some() {
            self.make_again(id, holders, random, watch).await?;
        } else {
            self.put_again(id, holders, watch).await?;
        }
        let connections: Vec<u64> =
            holders.slots.iter().flatten().map(|session| session.known.number).collect();
        if let Some(array) = self.arrays.get_mut(id).filter(|array| array.layout.axis.is_none()) {
            array.keep_replicas(&|connection| connections.contains(&connection));
        }
        let array = self.arrays.get(id)?;
        if array.made.is_some() {
            let connections = live_connections(holders, &array.holders);
            let expression = array.expression.as_made();
            if let Some(begun) = BegunCheck::begin(expression, check) {
                self.check_array(id, (begun, None), (holders, &connections), watch).await?;
            }
        }
        Ok(())
    }

    /// Puts the missing parts of a matrix again that this process can read.
    async fn put_again(
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
        Ok(())
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
