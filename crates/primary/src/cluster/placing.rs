//! Places matrices on the machines of a cluster, puts lost parts again, and frees them.
//!
//! Place in the flow: between products. Each call opens a session with the machines that it concerns, as a product
//! does, and ends it: so the machines name their speed and the memory that they have left, and the connections stay
//! alive.
//!
//! Invariant: after an error the cluster is as before, except for machines that were lost.
//!
//! Deliberately absent: what is sent to which machine, and what follows if one is lost (`bramble_arrays`).

use super::machines::{OpenMachines, primary_error};
use super::part::free_numbers;
use super::{ArrayId, Cluster, PROBED_FLOPS, PlacedMatrix};
use crate::gathering::{OpenedSessions, open_all};
use crate::product::{CheckRequest, ProductObserver, SessionRequest};
use bramble_arrays::{ArrayOperation, Restoring, UnfinishedArray};
use bramble_link::LocalFuture;
use bramble_matrix::{DType, Matrix, Rect, Shape};
use bramble_plan::{ArrayLayout, PlacedPart, Placement, Preference, ShardAxis};
use bramble_sessions::{LostConnection, Opening, PrimaryError, Session, open};
use bramble_wire::message::Wants;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::task::JoinSet;

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

/// Where an array lies, for the user. `names` are those of the machines of its layout.
pub(super) fn put_report(
    array: &PlacedMatrix,
    names: &[String],
    (lost, bytes_sent, seconds): (Vec<String>, u64, f64),
) -> PutReport {
    let ArrayLayout { shape, dtype, axis, .. } = array.layout;
    let part = |part: &PlacedPart| PartReport {
        machine: names.get(part.machine).cloned().unwrap_or_default(),
        rect: part.rect,
        bytes: part.rect.shape().bytes(dtype).unwrap_or(u64::MAX),
    };
    let parts = array.layout.parts.iter().map(part).collect();
    PutReport { shape, dtype, axis, parts, lost, bytes_sent, seconds }
}

impl Cluster {
    /// Places a matrix. After an error nothing of it is held anywhere.
    pub fn put<'f>(
        &'f mut self,
        put: PutRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<(ArrayId, PutReport), PrimaryError>> {
        Box::pin(async move {
            let began = Instant::now();
            let PutRequest { matrix, placement, kernel, who, sessions } = put;
            let probe = (kernel, matrix.dtype(), PROBED_FLOPS);
            let (opened, mut lost) = self.holders(&sessions, probe, who, watch).await?;
            let (mut machines, mut holders) = OpenMachines::new(opened, sessions.random, None, watch);
            let mut operation =
                ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
            let put = operation.put(matrix, placement.as_ref()).await.map_err(primary_error);
            lost.extend(holders.lost());
            let bytes_sent = machines.bytes_sent;
            self.idle.release(machines.into_sessions()).await;
            let id = put?;
            let array = self.arrays.get(id).map_err(primary_error)?;
            let told = (lost, bytes_sent, began.elapsed().as_secs_f64());
            Ok((id, put_report(array, &holders.names(), told)))
        })
    }

    /// Puts the parts of lost machines on the other machines, for all placed matrices, and makes those again that were made:
    /// after `PrimaryError::PartLost`. `relays`: whether machines may pass operands to each other. A matrix that cannot be
    /// restored keeps no other from it; the error of the first is returned at the end.
    pub fn restore<'f>(
        &'f mut self,
        (kernel, who, relays): (&'f str, Preference, bool),
        sessions: &'f SessionRequest,
        check: CheckRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<(), PrimaryError>> {
        Box::pin(async move {
            let mut restoring = Restoring::all(&self.arrays);
            while let Some(id) = restoring.next_array() {
                let (_, dtype) = self.shape_of(id)?;
                let (opened, _) =
                    self.holders(sessions, (kernel.to_owned(), dtype, PROBED_FLOPS), who, watch).await?;
                let (mut machines, mut holders) =
                    OpenMachines::new(opened, sessions.random, Some(check), watch);
                let mut operation = ArrayOperation {
                    arrays: &mut self.arrays,
                    machines: &mut machines,
                    holders: &mut holders,
                };
                let restored = operation.restore(id, relays).await;
                self.idle.release(machines.into_sessions()).await;
                restoring.restored(restored, &holders).map_err(primary_error)?;
            }
            restoring.end().map_err(primary_error)
        })
    }

    /// Rows, columns and element type of a placed matrix.
    pub fn shape_of(&self, id: ArrayId) -> Result<(Shape, DType), PrimaryError> {
        let layout = &self.arrays.get(id).map_err(primary_error)?.layout;
        Ok((layout.shape, layout.dtype))
    }

    /// Frees a placed matrix: its machines give the memory back.
    pub fn free<'f>(&'f mut self, id: ArrayId, sessions: &'f SessionRequest) -> LocalFuture<'f, ()> {
        Box::pin(async move {
            let Some(array) = self.arrays.remove(id) else { return };
            self.free_numbered(array.numbers(), array.layout.dtype, sessions).await;
        })
    }

    /// Frees what machines have made of an array that is given up.
    pub fn free_unfinished<'f>(
        &'f mut self,
        unfinished: UnfinishedArray,
        sessions: &'f SessionRequest,
    ) -> LocalFuture<'f, ()> {
        Box::pin(async move {
            self.free_numbered(unfinished.numbers(), unfinished.dtype(), sessions).await;
        })
    }

    /// Frees parts: connections, and numbers.
    async fn free_numbered(
        &mut self,
        numbers: BTreeMap<u64, Vec<u64>>,
        dtype: DType,
        sessions: &SessionRequest,
    ) {
        self.numbers.begin_product(sessions.seed);
        let (connections, lost) = self.idle.take().await;
        lost.into_iter().for_each(|lost| self.idle.add_lost(lost));
        let opening = opening(sessions, "simd".to_owned(), dtype, 0.0);
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
        let OpenedSessions { local, mut workers, lost, .. } =
            open_all(sessions, &opening, self, watch).await?;
        let holds_too = workers.is_empty() || who == Preference::Fastest && !self.alike;
        if holds_too {
            workers.insert(0, local);
        } else {
            self.idle.release(vec![local]).await;
        }
        Ok((workers, lost.into_iter().map(|lost| lost.name).collect()))
    }
}

/// The hello of a session without a product.
pub(super) fn opening(sessions: &SessionRequest, kernel: String, dtype: DType, flops: f64) -> Opening {
    Opening {
        dtype,
        alpha: 1.0,
        beta: 0.0,
        flops,
        // The least that a session can have: parts have an account of their own.
        memory_bytes: 1,
        kernel,
        name: sessions.name.clone(),
        wants: Wants::default(),
    }
}
