//! The calls of a client, drawn from the seed.
//!
//! Place in the flow: `client.rs` draws a call, runs it, and compares its result with the model.
//!
//! Invariant: a call that is drawn can succeed: shapes fit, and operands are placed.

use super::check::ClientArrays;
use super::matrix::{ArrayMatrix, index};
use super::scenario::ClientSetting;
use super::world::ArrayWorld;
use bramble_arrays::{ArrayId, ArrayOperand, ArrayOrigin, MadeFrom, PlacedOperand, ReducedFrom};
use bramble_matrix::{MatrixInfo, Reduction, Shape};
use bramble_plan::{Placement, ShardAxis, ShardUnits};

/// A matrix of so many elements is large: machines pass blocks of it to each other.
const LARGE_ELEMENTS: u64 = 1 << 17;
/// The long side of the operands of a deep product, at least; their short side, at most; and its multiplications.
const DEEP_LEAST: u64 = 1024;
const DEEP_SIDE: u64 = 128;
const DEEP_MOST: u64 = 1 << 25;
/// Rows of the first operand of a product whose second operand circulates.
const FEW_ROWS: u64 = 2;

/// How an array should be placed.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlacementWish {
    /// As the operation decides.
    Any,
    Replicate,
    BySpeed(ShardAxis),
    /// In proportions that are drawn when the machines are known.
    Stated(ShardAxis),
}

/// A call.
pub(super) enum ArrayCall {
    Put(ArrayMatrix, PlacementWish),
    Make(MadeFrom<ArrayMatrix>, PlacementWish),
    Fetch(ArrayId),
    Reduce(Reduction, ReducedFrom<ArrayMatrix>),
    Product(ArrayOperand<ArrayMatrix>, ArrayOperand<ArrayMatrix>),
    Free(ArrayId),
}

impl ArrayCall {
    /// It in words.
    pub(super) fn text(&self) -> String {
        let name = |one: &ArrayOperand<ArrayMatrix>| {
            let (place, shape) = (if one.placed.is_some() { "" } else { " from here" }, one.matrix.shape());
            format!("{} {shape}{place}", one.matrix.name())
        };
        match self {
            Self::Put(matrix, wish) => format!("put {} {} {wish:?}", matrix.name(), matrix.shape()),
            Self::Make(MadeFrom::Product { a, b, plus, .. }, wish) => {
                let plus = plus.as_ref().map(|(_, c)| format!(" + {}", name(c))).unwrap_or_default();
                format!("make {} @ {}{plus} {wish:?}", name(a), name(b))
            }
            Self::Make(MadeFrom::Sum { x, y }, wish) => {
                let y = y.as_ref().map(|(_, y)| format!(" + {}", name(y))).unwrap_or_default();
                format!("make {}{y} {wish:?}", name(&x.1))
            }
            Self::Fetch(id) => format!("fetch {id:?}"),
            Self::Reduce(reduction, ReducedFrom::Matrix(of)) => format!("{reduction:?} of {}", name(of)),
            Self::Reduce(reduction, ReducedFrom::Product { a, b, .. }) => {
                format!("{reduction:?} of {} @ {}", name(a), name(b))
            }
            Self::Product(a, b) => format!("product {} @ {}", name(a), name(b)),
            Self::Free(id) => format!("free {id:?}"),
        }
    }
}

impl PlacementWish {
    /// A wish. A large matrix is seldom placed by default, which would be everywhere.
    fn drawn(world: &mut ArrayWorld, is_large: bool) -> Self {
        let axis = *world.random.one_of(&[ShardAxis::Rows, ShardAxis::Cols]);
        if is_large && world.random.chance(0.5) {
            return *world.random.one_of(&[Self::Replicate, Self::BySpeed(axis)]);
        }
        match world.random.below(20) {
            0..=7 => Self::Any,
            8..=11 => Self::Replicate,
            12..=16 => Self::BySpeed(axis),
            _ => Self::Stated(axis),
        }
    }

    /// The placement on that many machines.
    pub(super) fn placement(self, machines: usize, world: &mut ArrayWorld) -> Option<Placement> {
        match self {
            Self::Any => None,
            Self::Replicate => Some(Placement::Replicate),
            Self::BySpeed(axis) => Some(Placement::Shard(axis, ShardUnits::BySpeed)),
            Self::Stated(axis) => {
                let mut units: Vec<u64> = (0..machines).map(|_| world.random.below(3)).collect();
                if units.iter().all(|unit| *unit == 0) {
                    units.fill(1);
                }
                Some(Placement::Shard(axis, ShardUnits::Stated(units)))
            }
        }
    }
}

/// Draws the calls of one client.
pub(super) struct CallDraw<'a> {
    pub(super) setting: &'a ClientSetting,
    pub(super) client: usize,
    pub(super) arrays: &'a ClientArrays,
    pub(super) world: &'a mut ArrayWorld,
    /// Matrices that were drawn so far.
    pub(super) named: &'a mut u64,
}

impl CallDraw<'_> {
    /// The next call.
    pub(super) fn call(&mut self) -> ArrayCall {
        let ids = self.arrays.ids();
        if ids.is_empty() || ids.len() < 2 && self.world.random.chance(0.7) {
            return self.put();
        }
        if self.setting.elements_max >= LARGE_ELEMENTS && self.world.random.chance(0.3) {
            return self.deep_product();
        }
        let one = *self.world.random.one_of(&ids);
        let drawn = match self.world.random.below(20) {
            0..=2 => None,
            3..=8 => self.make(),
            9..=10 => Some(ArrayCall::Fetch(one)),
            11..=13 => self.reduce(),
            14..=16 => self.product().map(|[a, b]| ArrayCall::Product(a, b)),
            17..=18 => {
                let x = self.operand(one, false);
                let wish = self.wish(x.matrix.shape());
                Some(ArrayCall::Make(MadeFrom::Sum { x: (1.0, x), y: None }, wish))
            }
            _ => Some(ArrayCall::Free(one)),
        };
        drawn.unwrap_or_else(|| self.put())
    }

    fn put(&mut self) -> ArrayCall {
        let shape = self.shape();
        let wish = self.wish(shape);
        ArrayCall::Put(self.matrix(shape), wish)
    }

    /// A shape of two of the sides, mostly with a long one.
    fn shape(&mut self) -> Shape {
        loop {
            let (one, other) = (self.side(), self.side());
            let longest = self.setting.sides.iter().copied().max().unwrap_or(1);
            let one = if self.world.random.chance(0.6) { longest } else { one };
            if one * other > self.setting.elements_max {
                continue;
            }
            return if self.world.random.chance(0.5) {
                Shape::new(one, other)
            } else {
                Shape::new(other, one)
            };
        }
    }

    fn side(&mut self) -> u64 {
        *self.world.random.one_of(&self.setting.sides)
    }

    /// A new matrix of this process.
    fn matrix(&mut self, shape: Shape) -> ArrayMatrix {
        let count = index(shape.elements().unwrap_or(0));
        let mut elements = Vec::with_capacity(count);
        while elements.len() < count {
            let mut word = self.world.random.next();
            for _ in 0..16 {
                elements.push((word % 7) as i64 - 3);
                word >>= 4;
            }
        }
        elements.truncate(count);
        *self.named += 1;
        let (name, dtype) = (format!("M{}", self.named), self.setting.dtype);
        if self.world.random.chance(0.2) {
            return ArrayMatrix::generated(&name, shape, dtype, elements);
        }
        let matrix = ArrayMatrix::here(&name, shape, dtype, elements);
        self.world.sources.extend(matrix.source().map(|source| (self.client, source)));
        matrix
    }

    /// An array as an operand.
    fn operand(&self, array: ArrayId, transposed: bool) -> ArrayOperand<ArrayMatrix> {
        let Ok(placed) = self.arrays.get::<String>(array) else { panic!("violation: an array is not there") };
        let matrix = match &placed.origin {
            ArrayOrigin::Put(matrix) => matrix.clone(),
            ArrayOrigin::Made(_) => {
                ArrayMatrix::remote(&placed.name, placed.layout.shape, placed.layout.dtype)
            }
        };
        let matrix = if transposed { matrix.turned() } else { matrix };
        ArrayOperand { matrix, placed: Some(PlacedOperand { array, transposed }) }
    }

    /// All arrays as operands, in both orientations.
    fn operands(&self) -> Vec<ArrayOperand<ArrayMatrix>> {
        let both = |id: ArrayId| [self.operand(id, false), self.operand(id, true)];
        self.arrays.ids().into_iter().flat_map(both).collect()
    }

    /// An operand of a shape for which the condition holds: placed if possible; a new one if `new` is a shape.
    fn fitting(
        &mut self,
        fits: &dyn Fn(Shape) -> bool,
        new: Option<Shape>,
    ) -> Option<ArrayOperand<ArrayMatrix>> {
        let placed: Vec<ArrayOperand<ArrayMatrix>> =
            self.operands().into_iter().filter(|one| fits(one.matrix.shape())).collect();
        let is_large = new.and_then(Shape::elements).is_some_and(|elements| elements >= LARGE_ELEMENTS);
        let chance = if is_large { 0.1 } else { 0.7 };
        if !placed.is_empty() && (new.is_none() || self.world.random.chance(chance)) {
            return Some(self.world.random.one_of(&placed).clone());
        }
        new.map(|shape| self.matrix(shape).into())
    }

    /// Two operands of a product, of which at least one is placed.
    fn product(&mut self) -> Option<[ArrayOperand<ArrayMatrix>; 2]> {
        let all = self.operands();
        let one = self.world.random.one_of(&all).clone();
        let Shape { rows, cols } = one.matrix.shape();
        let (most, side) = (self.setting.elements_max, self.side());
        let is_small = move |m: u64, k: u64, n: u64| m * n <= most && k * n <= most && m * k * n <= 1 << 20;
        if self.world.random.chance(0.5) {
            let new = is_small(rows, cols, side).then_some(Shape::new(cols, side));
            let fits = |shape: Shape| shape.rows == cols && is_small(rows, cols, shape.cols);
            let other = self.fitting(&fits, new)?;
            return Some([one, other]);
        }
        let new = is_small(side, rows, cols).then_some(Shape::new(side, rows));
        let fits = |shape: Shape| shape.cols == rows && is_small(shape.rows, rows, cols);
        let other = self.fitting(&fits, new)?;
        Some([other, one])
    }

    fn wish(&mut self, shape: Shape) -> PlacementWish {
        let is_large = shape.elements().is_some_and(|elements| elements >= LARGE_ELEMENTS);
        PlacementWish::drawn(self.world, is_large)
    }

    fn factor(&mut self) -> f64 {
        *self.world.random.one_of(&[1.0, 1.0, 2.0, -1.0, 3.0])
    }

    /// A product whose depth is the long side of both operands, which the machines hold cut alike; or a matrix for such products.
    fn deep_product(&mut self) -> ArrayCall {
        let all = self.operands();
        let is_deep = |one: &&ArrayOperand<ArrayMatrix>| {
            let placed = one.placed.and_then(|placed| self.arrays.get::<String>(placed.array).ok());
            let is_cut =
                placed.is_some_and(|array| array.layout.axis.is_some() && array.layout.parts.len() > 1);
            let Shape { rows, cols } = one.matrix.shape();
            is_cut && cols >= DEEP_LEAST && (DEEP_SIDE / 2..=DEEP_SIDE).contains(&rows)
        };
        let deep: Vec<_> = all.iter().filter(is_deep).cloned().collect();
        if deep.is_empty() {
            let long = self.setting.sides.iter().copied().max().unwrap_or(DEEP_LEAST);
            let matrix = self.matrix(Shape::new(long, DEEP_SIDE));
            return ArrayCall::Put(matrix, PlacementWish::BySpeed(ShardAxis::Rows));
        }
        if self.world.random.chance(0.5) {
            return self.circulating_product(&all);
        }
        let a = self.world.random.one_of(&deep).clone();
        let Shape { rows, cols } = a.matrix.shape();
        let fits = |one: &&ArrayOperand<ArrayMatrix>| {
            let shape = one.matrix.shape();
            shape.rows == cols && rows * cols * shape.cols <= DEEP_MOST
        };
        let fitting: Vec<_> = all.iter().filter(fits).cloned().collect();
        let b = self.world.random.one_of(&fitting).clone();
        let wish = self.wish(Shape::new(rows, b.matrix.shape().cols));
        ArrayCall::Make(MadeFrom::Product { alpha: self.factor(), a, b, plus: None }, wish)
    }

    /// A product of a few rows and a matrix that is cut along the depth: its parts come to the machine with the rows, one after
    /// another. Or a matrix of a few rows for it.
    fn circulating_product(&mut self, all: &[ArrayOperand<ArrayMatrix>]) -> ArrayCall {
        let long = self.setting.sides.iter().copied().max().unwrap_or(DEEP_LEAST);
        let with = |fits: &dyn Fn(Shape) -> bool| -> Vec<_> {
            all.iter().filter(|one| fits(one.matrix.shape())).cloned().collect()
        };
        let few = with(&|shape: Shape| shape.cols == long && shape.rows <= FEW_ROWS);
        let tall =
            with(&|shape: Shape| shape.rows == long && (DEEP_SIDE / 2..=DEEP_SIDE).contains(&shape.cols));
        if few.is_empty() || tall.is_empty() {
            let shape =
                if tall.is_empty() { Shape::new(long, DEEP_SIDE) } else { Shape::new(FEW_ROWS, long) };
            let matrix = self.matrix(shape);
            return ArrayCall::Put(matrix, PlacementWish::BySpeed(ShardAxis::Rows));
        }
        let (a, b) = (self.world.random.one_of(&few).clone(), self.world.random.one_of(&tall).clone());
        ArrayCall::Make(MadeFrom::Product { alpha: self.factor(), a, b, plus: None }, PlacementWish::Any)
    }

    fn make(&mut self) -> Option<ArrayCall> {
        let (alpha, beta) = (self.factor(), self.factor());
        if self.world.random.chance(0.55) {
            let [a, b] = self.product()?;
            let shape = Shape::new(a.matrix.shape().rows, b.matrix.shape().cols);
            let plus = match self.world.random.chance(0.3) {
                true => self.fitting(&|one| one == shape, Some(shape)).map(|c| (beta, c)),
                false => None,
            };
            let wish = self.wish(shape);
            return Some(ArrayCall::Make(MadeFrom::Product { alpha, a, b, plus }, wish));
        }
        let mut all = self.operands();
        if self.world.random.chance(0.7) {
            let most = all.iter().filter_map(|one| one.matrix.shape().elements()).max();
            all.retain(|one| one.matrix.shape().elements() == most);
        }
        let one = self.world.random.one_of(&all).clone();
        let shape = one.matrix.shape();
        let other = match self.world.random.chance(0.8) {
            true => self.fitting(&|one| one == shape, Some(shape)),
            false => None,
        };
        let (x, y) = match other {
            Some(other) if self.world.random.chance(0.5) => (other, Some((beta, one))),
            other => (one, other.map(|other| (beta, other))),
        };
        let wish = self.wish(shape);
        Some(ArrayCall::Make(MadeFrom::Sum { x: (alpha, x), y }, wish))
    }

    fn reduce(&mut self) -> Option<ArrayCall> {
        let kind = self.world.random.below(4);
        let subject = if self.world.random.chance(0.5) {
            let all = self.operands();
            ReducedFrom::Matrix(self.world.random.one_of(&all).clone())
        } else {
            let [a, b] = self.product()?;
            // An operand that travels comes from this process.
            let travels = |one: &ArrayOperand<ArrayMatrix>| one.matrix.is_remote();
            if travels(&a) && b.placed.is_some() || travels(&b) && a.placed.is_some() {
                return None;
            }
            ReducedFrom::Product { alpha: self.factor(), a, b }
        };
        let cols = subject.described().1.cols;
        let reduction = match kind {
            0 => Reduction::RowSum,
            1 => Reduction::ColSum,
            2 => Reduction::Max,
            _ => Reduction::TopK(1 + self.world.random.below(cols.min(3))),
        };
        Some(ArrayCall::Reduce(reduction, subject))
    }
}
