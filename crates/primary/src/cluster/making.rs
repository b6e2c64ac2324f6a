//! Makes arrays from others at the machines, where the results stay.
//!
//! Place in the flow: as placing: a session with each machine that may hold a part. `plan/src/making.rs` says where the result
//! lies and what each machine does step by step; operands that it does not hold come from other machines, which are introduced
//! for that, or from this process. `asking.rs` sends the steps, `checking.rs` compares sums of the result with those of its
//! sources.
//!
//! Invariants: an array is recorded when all its parts are made and have passed the check. After an error no machine holds any of
//! it. An array that was made remembers from what, so that a part whose machine is lost is made again.
//!
//! Deliberately absent: which bytes travel where (`plan`).

mod links;
mod parts;
mod spread;

use self::parts::MadeParts;
use super::Cluster;
use super::arrays::{ArrayId, PlacedArray, PlacedOperand, fits, place_of};
use super::putting::{Holders, free_numbers};
use crate::product::{CheckRequest, ProductObserver, ProductOperand, SessionRequest};
use bramble_matrix::{DType, Matrix, Shape};
use bramble_plan::{ArrayLayout, Placement, Preference};
use bramble_sessions::{PrimaryError, SecretSource};
use bramble_verify::SourceExpression;
use bramble_wire::limits::ARRAYS_MAX;
use bramble_wire::message::{MakeStepForm, ResidentView};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// Operands of at most this many bytes stay in memory here as sources of the arrays that were made from them.
const SMALL_BYTES: u64 = 1 << 20;

/// What an array is made from.
#[derive(Clone)]
pub enum MakeSubject {
    /// αAB, or αAB + βC.
    Product {
        /// α.
        alpha: f64,
        /// A.
        a: ProductOperand,
        /// B.
        b: ProductOperand,
        /// β and C.
        plus: Option<(f64, ProductOperand)>,
    },
    /// αX, or αX + βY.
    Sum {
        /// α and X.
        x: (f64, ProductOperand),
        /// β and Y.
        y: Option<(f64, ProductOperand)>,
    },
}

/// An array to make.
pub struct MakeRequest {
    /// Its name in messages.
    pub name: String,
    /// The operation and its operands. At least one operand should be placed.
    pub subject: MakeSubject,
    /// Where its parts lie; `None`: so that few bytes travel.
    pub placement: Option<Placement>,
    /// Kernel of products, by name, or `auto`.
    pub kernel: String,
    /// Whether this process's own threads hold parts, too.
    pub who: Preference,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
    /// How thoroughly the result is checked.
    pub check: CheckRequest,
    /// Whether machines may pass operands to each other.
    pub relays: bool,
}

/// How an array was made.
#[derive(Clone, Debug)]
pub struct MakeReport {
    /// Where it lies; with the bytes that this process sent, and the seconds.
    pub put: super::PutReport,
    /// Bytes of operands that machines sent to each other.
    pub bytes_between: u64,
    /// Whether the result was checked.
    pub is_checked: bool,
    /// Lines that this process has computed again, since their sums were doubtful.
    pub lines_recomputed: u64,
}

impl MakeSubject {
    pub(super) fn operands(&self) -> Vec<&ProductOperand> {
        match self {
            Self::Product { a, b, plus, .. } => {
                [a, b].into_iter().chain(plus.as_ref().map(|(_, c)| c)).collect()
            }
            Self::Sum { x, y } => std::iter::once(&x.1).chain(y.as_ref().map(|(_, y)| y)).collect(),
        }
    }

    fn operands_mut(&mut self) -> Vec<&mut ProductOperand> {
        match self {
            Self::Product { a, b, plus, .. } => {
                [a, b].into_iter().chain(plus.as_mut().map(|(_, c)| c)).collect()
            }
            Self::Sum { x, y } => std::iter::once(&mut x.1).chain(y.as_mut().map(|(_, y)| y)).collect(),
        }
    }

    /// Element type of the result.
    pub fn dtype(&self) -> DType {
        self.operands()[0].matrix.dtype()
    }

    /// Operations.
    pub fn flops(&self) -> f64 {
        match self {
            Self::Product { a, b, .. } => {
                let (a, b) = (a.matrix.shape(), b.matrix.shape());
                2.0 * a.rows as f64 * a.cols as f64 * b.cols as f64
            }
            Self::Sum { x, .. } => x.1.matrix.shape().elements().unwrap_or(u64::MAX) as f64,
        }
    }

    /// The form of a step whose operands are these.
    fn step(&self, views: &[ResidentView], depth: u64, adds: bool) -> MakeStepForm {
        match (self, views) {
            (Self::Product { alpha, .. }, [left, right, ..]) => {
                MakeStepForm::Product { left: *left, right: *right, depth, alpha: *alpha, adds }
            }
            (Self::Product { plus, .. }, views) => {
                MakeStepForm::Scaled { x: views[0], alpha: plus.as_ref().map_or(1.0, |(beta, _)| *beta) }
            }
            (Self::Sum { x: (alpha, _), y: Some((beta, _)) }, [x, y, ..]) => {
                MakeStepForm::Sum { x: *x, alpha: *alpha, y: *y, beta: *beta }
            }
            (Self::Sum { x: (alpha, _), .. }, views) => MakeStepForm::Scaled { x: views[0], alpha: *alpha },
        }
    }

    /// The expression of the operands' expressions, which are asked for in the order of the operands.
    fn expression(
        &self,
        mut of: impl FnMut(&ProductOperand) -> Result<Arc<SourceExpression>, PrimaryError>,
    ) -> Result<SourceExpression, PrimaryError> {
        Ok(match self {
            Self::Product { alpha, a, b, plus } => {
                let product = SourceExpression::Product { alpha: *alpha, a: of(a)?, b: of(b)? };
                match plus {
                    None => product,
                    Some((beta, c)) => {
                        SourceExpression::Sum { x: (1.0, Arc::new(product)), y: Some((*beta, of(c)?)) }
                    }
                }
            }
            Self::Sum { x, y } => {
                let x = (x.0, of(&x.1)?);
                let y = y.as_ref().map(|(beta, y)| Ok::<_, PrimaryError>((*beta, of(y)?))).transpose()?;
                SourceExpression::Sum { x, y }
            }
        })
    }
}

impl Cluster {
    /// Makes an array that stays at the machines. After an error nothing of it is held anywhere.
    pub async fn make(
        &mut self,
        request: MakeRequest,
        watch: &dyn ProductObserver,
    ) -> Result<(ArrayId, MakeReport), PrimaryError> {
        let began = Instant::now();
        let MakeRequest { name, subject, placement, kernel, who, sessions, check, relays } = request;
        if self.arrays.len() >= ARRAYS_MAX / 2 {
            let why = format!("{} matrices are placed already: free some of them", ARRAYS_MAX / 2);
            return Err(PrimaryError::Operands(why));
        }
        subject.operands().into_iter().try_for_each(|operand| fits(operand, &self.arrays))?;
        consistent(&subject, &name)?;
        let dtype = subject.dtype();
        let probe = (kernel, dtype, subject.flops());
        let (opened, mut lost) = self.holders(&sessions, probe, who, watch).await?;
        let connections: Vec<u64> = opened.iter().map(|session| session.known.number).collect();
        let mut holders = Holders::new(opened.into_iter().map(Some).collect());
        let random = relays.then_some(sessions.random);
        let made = self
            .make_on((&subject, placement.as_ref(), check), (&mut holders, &connections), random, watch)
            .await;
        let made = match made {
            Ok((layout, MadeParts { held, bytes_between, matrices, begun })) => {
                let expression = Arc::new(self.expression_kept(&subject, &matrices)?);
                let (parts, recorded) = held.into_iter().unzip();
                let array = PlacedArray {
                    source: Matrix::remote(name, layout.shape, dtype),
                    layout: ArrayLayout { parts, ..layout },
                    parts: recorded,
                    holders: connections.clone(),
                    sketches: Default::default(),
                    lines: Default::default(),
                    expression,
                    made: Some(Rc::new(subject)),
                };
                let id = self.arrays.add(array);
                let checked = match begun {
                    Some((begun, sums)) => {
                        let check = (begun, Some(sums));
                        self.check_array(id, check, (&mut holders, &connections), watch).await.map(Some)
                    }
                    None => Ok(None),
                };
                if checked.is_err() {
                    self.forget_made(id, &mut holders, &connections).await;
                }
                checked.map(|lines| (id, lines, bytes_between))
            }
            Err(e) => Err(e),
        };
        lost.append(&mut holders.lost);
        let names = std::mem::take(&mut holders.names);
        let bytes_sent = holders.bytes_sent;
        self.idle.release(holders.slots.into_iter().flatten().collect()).await;
        let (id, lines, bytes_between) = made?;
        let put = self.arrays.get(id)?.report(&names, lost, bytes_sent, began.elapsed().as_secs_f64());
        let report = MakeReport {
            put,
            bytes_between,
            is_checked: lines.is_some(),
            lines_recomputed: lines.unwrap_or(0),
        };
        Ok((id, report))
    }

    /// Frees the parts of an array that did not pass its check.
    async fn forget_made(&mut self, id: ArrayId, holders: &mut Holders, connections: &[u64]) {
        let Some(array) = self.arrays.remove(id) else { return };
        for (connection, numbers) in array.numbers() {
            let machine = connections.iter().position(|known| *known == connection);
            if let Some(session) = machine.and_then(|machine| holders.slots[machine].as_mut()) {
                free_numbers(session, &numbers).await;
            }
        }
    }

    /// Makes all parts over open sessions.
    async fn make_on(
        &mut self,
        (subject, placement, check): (&MakeSubject, Option<&Placement>, CheckRequest),
        (holders, connections): (&mut Holders, &[u64]),
        random: Option<SecretSource>,
        watch: &dyn ProductObserver,
    ) -> Result<(ArrayLayout, MadeParts), PrimaryError> {
        let plan = self.making_plan(subject, holders, connections, Some(check))?;
        let layout = plan.making.layout(placement, &holders.offered(), plan.block_bytes)?;
        let (parts, is_replicated) = (layout.parts.clone(), layout.axis.is_none());
        let layouts = match random {
            Some(_) => self.to_spread(&plan, &parts, holders),
            None => Vec::new(),
        };
        if layouts.is_empty() {
            let made =
                self.make_parts(plan, (parts, is_replicated), (holders, connections), random, watch).await;
            return made.map(|made| (layout, made));
        }
        let (spread, arrays) =
            self.spread(subject.clone(), layouts, (&mut *holders, connections), watch).await?;
        let made = match self.making_plan(&spread, holders, connections, Some(check)) {
            Ok(plan) => {
                self.make_parts(plan, (parts, is_replicated), (&mut *holders, connections), random, watch)
                    .await
            }
            Err(e) => Err(e),
        };
        self.forget_all(arrays, holders, connections).await;
        made.map(|made| (layout, made))
    }

    /// Makes the missing parts of an array again, over sessions with its machines.
    pub(super) async fn make_again(
        &mut self,
        id: ArrayId,
        holders: &mut Holders,
        random: Option<SecretSource>,
        watch: &dyn ProductObserver,
    ) -> Result<(), PrimaryError> {
        let array = self.arrays.get(id)?;
        let Some(made) = array.made.clone() else { return Ok(()) };
        let (layout, connections, name) =
            (array.layout.clone(), array.holders.clone(), array.source.name().to_owned());
        let is_there = |machine: usize| holders.slots.get(machine).is_some_and(Option::is_some);
        let missing = layout.missing(&is_there);
        let subject = self.still_there((*made).clone(), &name)?;
        let mut pieces = Vec::new();
        for part in &missing {
            let lost = |why: String| {
                let place = place_of(layout.parts[*part].rect, layout.shape);
                PrimaryError::PartLost(format!("{place} of {name} is lost, and cannot be made again: {why}"))
            };
            let of_part = layout.placed_again(*part, &holders.offered());
            pieces.extend(of_part.map_err(|e| lost(e.to_string()))?);
        }
        if missing.is_empty() {
            return Ok(());
        }
        // All at once: machines are introduced to each other once in a session.
        let live: Vec<u64> = live_connections(holders, &connections);
        let plan = self.making_plan(&subject, holders, &live, None)?;
        let made =
            self.make_parts(plan, (pieces, layout.axis.is_none()), (holders, &live), random, watch).await?;
        // From the last to the first, so that the indices of the others stay.
        let mut held = made.held;
        for part in missing.into_iter().rev() {
            let rect = layout.parts[part].rect;
            let of_part = held.extract_if(.., |(piece, _)| !piece.rect.disjoint(rect)).collect();
            if let Some(array) = self.arrays.get_mut(id) {
                array.replace(part, of_part);
            }
        }
        Ok(())
    }

    /// The subject without references to operands that were freed: these are sent, if this process can read them.
    fn still_there(&self, mut subject: MakeSubject, name: &str) -> Result<MakeSubject, PrimaryError> {
        for operand in subject.operands_mut() {
            let is_gone = operand.placed.is_some_and(|placed| self.arrays.get(placed.array).is_err());
            if is_gone && operand.matrix.is_remote() {
                return Err(PrimaryError::PartLost(format!(
                    "a part of {name} is lost, and cannot be made again, since {}, from which it was made, was freed: make \
                     both again",
                    operand.matrix.name()
                )));
            }
            operand.placed = operand.placed.filter(|_| !is_gone);
        }
        Ok(subject)
    }

    /// The expression of a subject that its array keeps. Fetched operands are leaves of it if they are small, or their own
    /// chain of sources is long.
    fn expression_kept(
        &self,
        subject: &MakeSubject,
        matrices: &[Matrix],
    ) -> Result<SourceExpression, PrimaryError> {
        let leaf = |(operand, matrix): (&ProductOperand, &Matrix)| {
            let is_small = matrix.shape().bytes(matrix.dtype()).is_some_and(|bytes| bytes <= SMALL_BYTES);
            if is_small || self.is_far(operand) { matrix.clone() } else { operand.matrix.clone() }
        };
        let leaves: Vec<Matrix> = subject.operands().into_iter().zip(matrices).map(leaf).collect();
        Ok(self.expression_here(subject, &leaves)?.kept())
    }

    /// Whether an operand stands at the end of a long chain of arrays.
    fn is_far(&self, operand: &ProductOperand) -> bool {
        let array = operand.placed.and_then(|placed| self.arrays.get(placed.array).ok());
        array.is_some_and(|array| array.expression.is_far())
    }

    /// The expression of a subject, down to matrices that this process can read. Fetched operands are leaves of it.
    pub(super) fn expression_here(
        &self,
        subject: &MakeSubject,
        matrices: &[Matrix],
    ) -> Result<SourceExpression, PrimaryError> {
        let mut matrices = matrices.iter();
        subject.expression(|operand| {
            let matrix = matrices.next().filter(|matrix| operand.matrix.is_remote() && !matrix.is_remote());
            let Some(PlacedOperand { array, transposed }) = operand.placed.filter(|_| matrix.is_none())
            else {
                let matrix = matrix.unwrap_or(&operand.matrix);
                return Ok(Arc::new(SourceExpression::Leaf(matrix.clone(), None)));
            };
            let expression = &self.arrays.get(array)?.expression;
            Ok(if transposed { Arc::new(expression.transposed()) } else { expression.clone() })
        })
    }
}

/// Refuses operands of different types, products of depth 0, and shapes that do not belong together.
fn consistent(subject: &MakeSubject, name: &str) -> Result<(), PrimaryError> {
    let operands = subject.operands();
    let shapes: Vec<Shape> = operands.iter().map(|operand| operand.matrix.shape()).collect();
    let dtype = subject.dtype();
    if let Some(other) = operands.iter().find(|operand| operand.matrix.dtype() != dtype) {
        let (of, other) = (other.matrix.name(), other.matrix.dtype());
        return Err(PrimaryError::Operands(format!("{of} is {other}, and {name} is made as {dtype}")));
    }
    let fits = match (subject, &shapes[..]) {
        (MakeSubject::Product { .. }, [a, b]) => a.cols == b.rows,
        (_, [x, y]) => x == y,
        _ => true,
    };
    if !fits {
        return Err(PrimaryError::Operands(format!(
            "{name} cannot be made from {} and {}",
            shapes[0], shapes[1]
        )));
    }
    if shapes[0].cols == 0 {
        return Err(PrimaryError::Operands(format!(
            "{name} is made from {}, which has no elements",
            shapes[0]
        )));
    }
    Ok(())
}

/// The connections of the machines that are there; for others a number that no connection has.
pub(super) fn live_connections(holders: &Holders, connections: &[u64]) -> Vec<u64> {
    let of = |(at, connection): (usize, &u64)| {
        if holders.slots.get(at).is_some_and(Option::is_some) { *connection } else { u64::MAX }
    };
    connections.iter().enumerate().map(of).collect()
}
