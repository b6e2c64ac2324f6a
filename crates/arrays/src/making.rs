//! Makes arrays from others at the machines, where the results stay.
//!
//! Place in the flow: `plan/src/making.rs` says where the result lies and what each machine does step by step; operands that it
//! does not hold come from other machines, which are introduced for that (`links.rs`), or from this process.
//!
//! Invariants: an array is recorded when all its parts are made, and kept when it has passed the check. After the loss of a
//! machine the others keep their parts, and the caller has the list of these (`UnfinishedArray`); after any other error no
//! machine holds any of it. An array that was made remembers from what, so that a part whose machine is lost is made again.
//!
//! Deliberately absent: which bytes travel where (`plan`), and the comparison of the check.

mod links;
mod parts;
mod pipeline;
mod spread;
mod unfinished;

use self::links::BlockLinks;
use self::parts::{MadeParts, PartsInMaking};
pub use self::unfinished::UnfinishedArray;
use self::unfinished::UnfinishedPart;
use crate::registry::Held;
use crate::{
    ArrayError, ArrayId, ArrayMachines, ArrayOperand, ArrayOperation, ArrayOrigin, KnownPart, PlacedArray,
    PlacedOperand, place_of,
};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};

use alloc::vec::Vec;
use bramble_base::{DType, MatrixInfo, Rect, Shape};
use bramble_plan::{ArrayLayout, MadeOperand, Making, MakingForm, PlacedPart, Placement};
use bramble_wire::message::{MakeStepForm, ResidentView};

/// Bytes of a block: large enough for the kernel, small enough that the first is there soon.
const BLOCK_BYTES: u64 = 16 << 20;
/// A block takes at most this fraction of the memory that a machine has left: those of two rounds are there at once, beside the
/// result.
const BLOCK_PART: u64 = 16;
/// A block has at least so many bytes, whatever the memory.
const BLOCK_BYTES_LEAST: u64 = 1 << 16;

/// What an array is made from.
#[derive(Clone)]
pub enum MadeFrom<X> {
    /// αAB, or αAB + βC.
    Product {
        /// α.
        alpha: f64,
        /// A.
        a: ArrayOperand<X>,
        /// B.
        b: ArrayOperand<X>,
        /// β and C.
        plus: Option<(f64, ArrayOperand<X>)>,
    },
    /// αX, or αX + βY.
    Sum {
        /// α and X.
        x: (f64, ArrayOperand<X>),
        /// β and Y.
        y: Option<(f64, ArrayOperand<X>)>,
    },
}

/// An array to make.
pub struct MakeOrder<'a, X> {
    /// Its name in messages.
    pub name: &'a str,
    /// The operation and its operands.
    pub subject: MadeFrom<X>,
    /// Where its parts lie; `None`: so that few bytes travel.
    pub placement: Option<&'a Placement>,
    /// Whether machines may pass operands to each other.
    pub relays: bool,
}

/// An array that was made.
#[derive(Clone, Copy, Debug)]
pub struct MadeArray {
    /// The array.
    pub id: ArrayId,
    /// Bytes of operands that machines sent to each other.
    pub bytes_between: u64,
    /// Lines that this process has computed again for the check; `None` if it was not checked.
    pub lines_recomputed: Option<u64>,
}

/// What machines need to make parts.
struct MakingPlan<X> {
    subject: MadeFrom<X>,
    making: Making,
    /// The parts of each operand, if it is placed, with its transposition.
    known: Vec<Option<(Vec<KnownPart>, bool)>>,
    links: BlockLinks,
    block_bytes: u64,
    /// Whether the parts are checked when they are made: they are all that the array has.
    is_checked: bool,
}

impl<X: MatrixInfo> MadeFrom<X> {
    /// The operands, in order: A, B and C; X and Y.
    pub fn operands(&self) -> Vec<&ArrayOperand<X>> {
        match self {
            Self::Product { a, b, plus, .. } => {
                [a, b].into_iter().chain(plus.as_ref().map(|(_, c)| c)).collect()
            }
            Self::Sum { x, y } => core::iter::once(&x.1).chain(y.as_ref().map(|(_, y)| y)).collect(),
        }
    }

    /// The operands that this process may have read. It sends placed ones, too, to machines that get no blocks from others.
    fn read_here(&self) -> impl Iterator<Item = &X> {
        let all = self.operands().into_iter().map(|operand| &operand.matrix);
        all.filter(|matrix| !matrix.is_remote())
    }

    fn operands_mut(&mut self) -> Vec<&mut ArrayOperand<X>> {
        match self {
            Self::Product { a, b, plus, .. } => {
                [a, b].into_iter().chain(plus.as_mut().map(|(_, c)| c)).collect()
            }
            Self::Sum { x, y } => core::iter::once(&mut x.1).chain(y.as_mut().map(|(_, y)| y)).collect(),
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

    /// Refuses operands of different types, products of depth 0, and shapes that do not belong together.
    fn consistent<E>(&self, name: &str) -> Result<(), ArrayError<E>> {
        let operands = self.operands();
        let shapes: Vec<Shape> = operands.iter().map(|operand| operand.matrix.shape()).collect();
        let dtype = self.dtype();
        if let Some(other) = operands.iter().find(|operand| operand.matrix.dtype() != dtype) {
            let (of, other) = (other.matrix.name(), other.matrix.dtype());
            return Err(ArrayError::Operands(format!("{of} is {other}, and {name} is made as {dtype}")));
        }
        let fits = match (self, &shapes[..]) {
            (Self::Product { .. }, [a, b]) => a.cols == b.rows,
            (Self::Product { .. }, [a, b, c]) => a.cols == b.rows && *c == Shape::new(a.rows, b.cols),
            (_, [x, y]) => x == y,
            _ => true,
        };
        if !fits {
            let all: Vec<String> = shapes.iter().map(Shape::to_string).collect();
            return Err(ArrayError::Operands(format!("{name} cannot be made from {}", all.join(" and "))));
        }
        if shapes[0].cols == 0 {
            let of = shapes[0];
            return Err(ArrayError::Operands(format!("{name} is made from {of}, which has no elements")));
        }
        Ok(())
    }
}

impl<M: ArrayMachines> ArrayOperation<'_, M> {
    /// Makes an array that stays at the machines. At least one operand should be placed. `unfinished`: the parts of it that
    /// machines hold from an earlier attempt; after `ArrayError::PartLost`, those that they hold by then.
    pub async fn make(
        &mut self,
        order: MakeOrder<'_, M::Matrix>,
        unfinished: &mut Option<UnfinishedArray>,
    ) -> Result<MadeArray, ArrayError<M::Error>> {
        let MakeOrder { name, subject, placement, relays } = order;
        self.arrays.admit()?;
        subject.operands().into_iter().try_for_each(|operand| operand.fits(self.arrays))?;
        subject.consistent(name)?;
        let (layout, mut making) = self.parts_to_make(&subject, placement, unfinished).await?;
        let made = match self.make_spread(&subject, &mut making, relays).await {
            Ok(made) => made,
            Err(e @ ArrayError::PartLost(_)) => {
                *unfinished = self.unfinished(layout, making.parts, making.bytes_between);
                return Err(e);
            }
            Err(e) => {
                self.free_opened(&making.parts).await;
                return Err(e);
            }
        };
        let MadeParts { held, matrices, begun } = made;
        let as_opened = subject.read_here().try_for_each(|matrix| self.still_as_opened(matrix));
        let kept = as_opened.and_then(|()| self.machines.kept_of_made(&subject, &matrices, self.arrays));
        let kept = match kept {
            Ok(kept) => kept,
            Err(e) => {
                self.free_parts(&held).await;
                return Err(e);
            }
        };
        let (parts, recorded) = held.into_iter().unzip();
        let id = self.arrays.add(PlacedArray {
            name: name.to_owned(),
            layout: ArrayLayout { parts, ..layout },
            parts: recorded,
            holders: self.holders.connections(),
            origin: ArrayOrigin::Made(Rc::new(subject)),
            kept,
        });
        let bytes_between = making.bytes_between;
        let Some((check, sums)) = begun else {
            return Ok(MadeArray { id, bytes_between, lines_recomputed: None });
        };
        match self.machines.check(check, sums, id, self.arrays, self.holders).await {
            Ok(lines) => Ok(MadeArray { id, bytes_between, lines_recomputed: Some(lines) }),
            Err(e) => {
                self.free(id).await;
                Err(e)
            }
        }
    }

    /// The layout of an array, and the parts to make: those of an unfinished one, or all.
    async fn parts_to_make(
        &mut self,
        subject: &MadeFrom<M::Matrix>,
        placement: Option<&Placement>,
        unfinished: &mut Option<UnfinishedArray>,
    ) -> Result<(ArrayLayout, PartsInMaking), ArrayError<M::Error>> {
        let mut found = None;
        if let Some(unfinished) = unfinished.take() {
            let bytes_between = unfinished.bytes_between;
            found = self.continued(unfinished).await.map(|(layout, parts)| (layout, parts, bytes_between));
        }
        let (layout, parts, bytes_between) = match found {
            Some(found) => found,
            None => {
                let plan = self.making_plan(subject.clone(), true)?;
                let layout = plan.making.layout(placement, &self.holders.offered(), plan.block_bytes)?;
                let parts = layout.parts.iter().copied().map(UnfinishedPart::new).collect();
                (layout, parts, 0)
            }
        };
        let is_replicated = layout.axis.is_none();
        Ok((layout, PartsInMaking { parts, is_replicated, bytes_between }))
    }

    /// Makes all parts. Operands of this process that several machines need are spread over these meanwhile.
    async fn make_spread(
        &mut self,
        subject: &MadeFrom<M::Matrix>,
        making: &mut PartsInMaking,
        relays: bool,
    ) -> Result<MadeParts<M>, ArrayError<M::Error>> {
        let plan = self.making_plan(subject.clone(), true)?;
        let layouts = if relays { self.to_spread(&plan, &making.parts) } else { Vec::new() };
        if layouts.is_empty() {
            return self.make_parts(plan, making, relays).await;
        }
        let (spread, arrays) = self.spread(subject.clone(), layouts).await?;
        let made = match self.making_plan(spread, true) {
            Ok(plan) => self.make_parts(plan, making, relays).await,
            Err(e) => Err(e),
        };
        for array in arrays {
            self.free(array).await;
        }
        made
    }

    /// Makes the missing parts of an array again.
    pub(crate) async fn make_again(&mut self, id: ArrayId, relays: bool) -> Result<(), ArrayError<M::Error>> {
        let array = self.arrays.get(id)?;
        let ArrayOrigin::Made(made) = &array.origin else { return Ok(()) };
        let (made, layout, name) = (made.clone(), array.layout.clone(), array.name.clone());
        let missing = array.missing(self.holders);
        if missing.is_empty() {
            return Ok(());
        }
        let subject = self.still_there((*made).clone(), &name)?;
        let mut pieces = Vec::new();
        for part in &missing {
            let of_part = layout.placed_again(*part, &self.holders.offered());
            pieces.extend(of_part.map_err(|why| {
                let place = place_of(layout.parts[*part].rect, layout.shape);
                ArrayError::PartLost(format!("{place} of {name} is lost, and cannot be made again: {why}"))
            })?);
        }
        // All at once: machines are introduced to each other once in a session.
        let plan = self.making_plan(subject.clone(), false)?;
        let parts = pieces.into_iter().map(UnfinishedPart::new).collect();
        let mut making = PartsInMaking { parts, is_replicated: layout.axis.is_none(), bytes_between: 0 };
        let mut held = match self.make_parts(plan, &mut making, relays).await {
            Ok(made) => made.held,
            Err(e) => {
                self.free_opened(&making.parts).await;
                return Err(e);
            }
        };
        // The other parts were made before the change.
        if let Some((of, change)) = subject.read_here().find_map(|matrix| {
            self.machines.change(matrix, false).map(|change| (matrix.name().to_owned(), change))
        }) {
            self.free_parts(&held).await;
            return Err(ArrayError::PartLost(format!(
                "a part of {name} is lost, and {of}, from which it was made, was changed since ({change}): make {name} again"
            )));
        }
        let connections = self.holders.connections();
        // From the last to the first, so that the indices of the others stay.
        for part in missing.into_iter().rev() {
            let rect = layout.parts[part].rect;
            let of_part: Vec<Held> = held.extract_if(.., |(piece, _)| !piece.rect.disjoint(rect)).collect();
            if let Some(array) = self.arrays.get_mut(id) {
                array.replace(part, of_part, &connections);
            }
        }
        Ok(())
    }

    /// The subject without references to operands that were freed: these are sent, if this process can read them.
    fn still_there(
        &self,
        mut subject: MadeFrom<M::Matrix>,
        name: &str,
    ) -> Result<MadeFrom<M::Matrix>, ArrayError<M::Error>> {
        for operand in subject.operands_mut() {
            let is_gone = operand.placed.is_some_and(|placed| self.arrays.get::<()>(placed.array).is_err());
            if is_gone && operand.matrix.is_remote() {
                return Err(ArrayError::PartLost(format!(
                    "a part of {name} is lost, and cannot be made again, since {}, from which it was made, was freed: make \
                     both again",
                    operand.matrix.name()
                )));
            }
            operand.placed = operand.placed.filter(|_| !is_gone);
        }
        Ok(subject)
    }

    /// What the operands are, and where.
    fn making_plan(
        &self,
        subject: MadeFrom<M::Matrix>,
        is_checked: bool,
    ) -> Result<MakingPlan<M::Matrix>, ArrayError<M::Error>> {
        let form = match subject {
            MadeFrom::Product { .. } => MakingForm::Product,
            MadeFrom::Sum { .. } => MakingForm::Sum,
        };
        let (mut operands, mut known) = (Vec::new(), Vec::new());
        for operand in subject.operands() {
            let shape = operand.matrix.shape();
            let Some(PlacedOperand { array, transposed }) = operand.placed else {
                operands.push(MadeOperand { shape, parts: Vec::new() });
                known.push(None);
                continue;
            };
            let parts = self.arrays.get(array)?.known_parts(self.holders)?;
            let turned = |rect: Rect| if transposed { rect.transposed() } else { rect };
            let as_used =
                parts.iter().map(|known| PlacedPart { rect: turned(known.part.rect), ..known.part });
            operands.push(MadeOperand { shape, parts: as_used.collect() });
            known.push(Some((parts, transposed)));
        }
        let making = Making::new(form, subject.dtype(), operands);
        let left = self.holders.live().into_iter().map(|machine| self.holders.left_bytes(machine));
        let block_bytes = BLOCK_BYTES.min(left.min().unwrap_or(0) / BLOCK_PART).max(BLOCK_BYTES_LEAST);
        Ok(MakingPlan { subject, making, known, links: BlockLinks::default(), block_bytes, is_checked })
    }

    /// Frees parts that are not recorded.
    pub(crate) async fn free_parts(&mut self, held: &[Held]) {
        for (part, recorded) in held.iter().filter(|(part, _)| self.holders.is_there(part.machine)) {
            self.machines.free(part.machine, &[recorded.number]).await;
        }
    }
}
