//! Gets rectangles of arrays from the machines that hold them.
//!
//! Place in the flow: `Cluster::fetch` gets a whole array; `bramble_arrays` asks for operands that have to go through this
//! process, and `checking.rs` for lines to compare.
//!
//! Invariants: elements land in their place in the output. A machine that neither takes nor sends anything for `SILENCE_MAX` is
//! lost.
//!
//! Deliberately absent: conversion and transposition. Elements come as they are stored.

use super::machines::{OpenMachines, primary_error};
use super::part::silence;
use super::task_count::TaskCount;
use super::{ArrayId, Cluster};
use crate::bodies::TileRows;
use crate::product::{ProductObserver, SessionRequest};
use bramble_arrays::{ArrayOperation, RectToGet};
use bramble_link::LocalFuture;
use bramble_link::{ArrivedBody, Body, BodyPlacer, Frame, Landing, SharedRegion};
use bramble_matrix::{Digest128, Digester, Output, Rect, Shape, Span, TileLease};
use bramble_plan::Preference;
use bramble_sessions::{
    EndedJob, LostConnection, MachineJob, PrimaryError, Session, UsedSession, at_once, off_loop,
};
use bramble_wire::message::{GetHead, Kind, PartHead, PartPiece, decode_error, part_pieces};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

impl Cluster {
    /// Fetches a rectangle of an array into an output of its shape and type.
    pub fn fetch<'f>(
        &'f mut self,
        (id, rect): (ArrayId, Rect),
        output: Output,
        who: Preference,
        sessions: &'f SessionRequest,
        watch: &'f dyn ProductObserver,
    ) -> LocalFuture<'f, Result<Output, PrimaryError>> {
        Box::pin(async move {
            let (_, dtype) = self.shape_of(id)?;
            let (opened, _) = self.holders(sessions, ("simd".to_owned(), dtype, 0.0), who, watch).await?;
            let (mut machines, mut holders) = OpenMachines::new(opened, sessions.random, None, watch);
            let mut operation =
                ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
            let fetched = operation.fetch_rect(id, rect, Arc::new(output)).await;
            self.idle.release(machines.into_sessions()).await;
            whole_again(fetched.map_err(primary_error)?)
        })
    }
}

/// Gets rectangles, each from its machine, into an output.
pub(super) async fn get(
    slots: &mut [Option<Session>],
    wanted: Vec<(usize, RectToGet)>,
    output: &Arc<Output>,
    watch: &dyn ProductObserver,
) -> Result<Vec<EndedJob<()>>, PrimaryError> {
    let count = TaskCount::of_rects(&wanted, output.dtype());
    let mut of_machines: BTreeMap<usize, Vec<RectToGet>> = BTreeMap::new();
    for (machine, rect) in wanted {
        of_machines.entry(machine).or_default().push(rect);
    }
    let job = |(machine, rects): (usize, Vec<RectToGet>)| -> MachineJob<()> {
        let (output, count) = (output.clone(), count.clone());
        (machine, Box::new(move |session| Box::pin(get_rects(session, rects, output, count))))
    };
    count.told(watch, at_once(slots, of_machines.into_iter().map(job).collect())).await
}

/// Gets rectangles from one machine, one after another.
async fn get_rects(
    mut session: Session,
    rects: Vec<RectToGet>,
    output: Arc<Output>,
    count: Rc<TaskCount>,
) -> (Result<UsedSession, LostConnection>, ()) {
    let before = session.link.sender.bytes_sent();
    let (is_silent_link, dtype) = (session.link.shares_memory, output.dtype());
    let (sender, receiver) = (&mut *session.link.sender, &mut *session.link.receiver);
    let silence = silence(receiver.arriving(), sender.send_progress(), is_silent_link);
    let getting = async {
        for wanted in rects {
            let RectToGet { number, rect, .. } = wanted;
            let get = Frame::new(Kind::Get.code(), GetHead { array: number, rect }.encode(), Body::Empty);
            sender.send(get).await.map_err(|e| e.to_string())?;
            let coming =
                ComingPieces { wanted, pieces: part_pieces(rect, dtype).collect(), output: output.clone() };
            let coming = Rc::new(RefCell::new(coming));
            let mut placer = PiecePlacer(coming.clone());
            while !coming.borrow().pieces.is_empty() {
                let arrived = receiver.receive(&mut placer).await.map_err(|e| e.to_string())?;
                match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
                    Kind::Part => count.add(coming.borrow_mut().landed(&arrived.head, arrived.body)?),
                    Kind::Pong | Kind::Reached | Kind::Placed => {}
                    Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
                    other => return Err(format!("it sent a message of kind {other:?} instead of elements")),
                }
            }
        }
        Ok(())
    };
    let got = tokio::select! {
        biased;
        got = getting => got,
        why = silence => Err(why),
    };
    let used = match got {
        Ok(()) => {
            let sent = session.link.sender.bytes_sent().saturating_sub(before);
            Ok(UsedSession { session, sent })
        }
        Err(why) => Err(LostConnection { name: session.name, why }),
    };
    (used, ())
}

/// The pieces of a rectangle that have not come.
struct ComingPieces {
    wanted: RectToGet,
    pieces: VecDeque<PartPiece>,
    output: Arc<Output>,
}

impl ComingPieces {
    /// The next piece, if the message has it.
    fn next(&self, head: &[u8], body_bytes: usize) -> Result<PartPiece, String> {
        let head = PartHead::decode(head).map_err(|e| e.0)?;
        let is_next = |piece: &&PartPiece| {
            let bytes = piece.rect.shape().bytes(self.output.dtype());
            head.array == self.wanted.number && head.first == piece.first && bytes == Some(body_bytes as u64)
        };
        let next = self.pieces.front().filter(is_next).copied();
        next.ok_or_else(|| format!("it sent other elements of array {} than were asked for", head.array))
    }

    /// The place of a piece in the output.
    fn lease(&self, piece: PartPiece) -> TileLease {
        let RectToGet { rect, to: (row, col), .. } = self.wanted;
        let moved = |span: Span, from: u64, to: u64| Span::new(span.start - from + to, span.end - from + to);
        let rows = moved(piece.rect.rows, rect.rows.start, row);
        self.output.lease(Rect::new(rows, moved(piece.rect.cols, rect.cols.start, col)))
    }

    /// A piece has come; its bytes.
    fn landed(&mut self, head: &[u8], body: ArrivedBody) -> Result<u64, String> {
        match body {
            ArrivedBody::Landed(landing) => drop(landing),
            ArrivedBody::Shared(region) => {
                let piece = self.next(head, region.len())?;
                copy(&region, self.lease(piece))?;
            }
            ArrivedBody::Empty | ArrivedBody::Leased(_) => {
                return Err("it sent elements without bytes".to_owned());
            }
        }
        let piece = self.pieces.pop_front();
        Ok(piece.and_then(|piece| piece.rect.shape().bytes(self.output.dtype())).unwrap_or(0))
    }
}

/// Copies elements that lie in the memory of this process.
fn copy(region: &SharedRegion, mut to: TileLease) -> Result<(), String> {
    let line_bytes = to.line_bytes().max(1);
    let mut line = 0;
    for run in (0..region.runs).map(|run| region.run(run)) {
        if run.len() % line_bytes != 0 {
            return Err("it sent a part of a line".to_owned());
        }
        for bytes in run.chunks_exact(line_bytes) {
            to.line_mut(line).copy_from_slice(bytes);
            line += 1;
        }
    }
    Ok(())
}

/// Places pieces in the output.
struct PiecePlacer(Rc<RefCell<ComingPieces>>);

impl BodyPlacer for PiecePlacer {
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        match Kind::from_code(kind).map_err(|e| e.0)? {
            Kind::Part => {
                let coming = self.0.borrow();
                let piece = coming.next(head, body_bytes)?;
                Ok(Box::new(TileRows::new(coming.lease(piece))))
            }
            other => Err(format!("a message of kind {other:?} has no body here")),
        }
    }
}

/// The digest of a part in an output, as its machine computes it.
pub(super) async fn digest_at(output: Arc<Output>, rect: Rect) -> Result<Digest128, PrimaryError> {
    let work = move || {
        let lease = output.lease(rect);
        let mut digester = Digester::default();
        let Shape { rows, cols } = rect.shape();
        digester.update(&rows.to_le_bytes());
        digester.update(&cols.to_le_bytes());
        (0..lease.lines()).for_each(|line| digester.update(lease.line(line)));
        digester.digest()
    };
    off_loop("checking a part", work).await
}

/// The output, when all that wrote to it is done.
pub(super) fn whole_again(output: Arc<Output>) -> Result<Output, PrimaryError> {
    let shared = || PrimaryError::Failed("a part that was fetched is still being written".to_owned());
    Arc::try_unwrap(output).map_err(|_| shared())
}
