//! Matrices of the simulator: elements that may change, and the arithmetic of the reference model.
//!
//! Place in the flow: clients place `ArrayMatrix`es; machines and the reference model compute with their elements.
//!
//! Invariants: elements are by rows. All arithmetic is that of i64, which wraps; arrays of f64 have small whole numbers, so their
//! element type is only a name here. A generated matrix never changes.
//!
//! Deliberately absent: which machine holds which part.

use bramble_matrix::{
    DType, Digest128, Digester, MatrixInfo, Rect, RectReduction, Reduction, Shape, Span, View,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Elements by rows.
pub(super) type Elements = Rc<Vec<i64>>;

/// The elements of a matrix that this process can read. A fault may change them.
pub(super) struct SourceElements {
    elements: RefCell<Elements>,
    changes: Cell<u64>,
}

/// Who has the elements.
#[derive(Clone)]
enum MatrixPlace {
    Here(Rc<SourceElements>),
    Generated(Elements),
    Remote,
}

/// A matrix of a client.
#[derive(Clone)]
pub(super) struct ArrayMatrix {
    name: Rc<str>,
    /// As it is stored.
    stored: Shape,
    dtype: DType,
    is_turned: bool,
    place: MatrixPlace,
}

impl SourceElements {
    /// Changes some elements.
    pub(super) fn change(&self, first: usize, count: usize) {
        let mut new: Vec<i64> = self.elements.borrow().to_vec();
        let len = new.len();
        (0..count.max(1)).for_each(|at| new[(first + at) % len] ^= 1 << (at % 3));
        *self.elements.borrow_mut() = Rc::new(new);
        self.changes.set(self.changes.get() + 1);
    }
}

impl ArrayMatrix {
    /// A matrix in this process's memory.
    pub(super) fn here(name: &str, stored: Shape, dtype: DType, elements: Vec<i64>) -> Self {
        let source = SourceElements { elements: RefCell::new(Rc::new(elements)), changes: Cell::new(0) };
        Self::new(name, stored, dtype, MatrixPlace::Here(Rc::new(source)))
    }

    /// A matrix from a generator.
    pub(super) fn generated(name: &str, stored: Shape, dtype: DType, elements: Vec<i64>) -> Self {
        Self::new(name, stored, dtype, MatrixPlace::Generated(Rc::new(elements)))
    }

    /// The stand-in for a matrix that only machines have.
    pub(super) fn remote(name: &str, stored: Shape, dtype: DType) -> Self {
        Self::new(name, stored, dtype, MatrixPlace::Remote)
    }

    fn new(name: &str, stored: Shape, dtype: DType, place: MatrixPlace) -> Self {
        Self { name: name.into(), stored, dtype, is_turned: false, place }
    }

    /// Its changeable elements, if it has some.
    pub(super) fn source(&self) -> Option<Rc<SourceElements>> {
        match &self.place {
            MatrixPlace::Here(source) => Some(source.clone()),
            MatrixPlace::Generated(_) | MatrixPlace::Remote => None,
        }
    }

    /// How often its elements were changed.
    pub(super) fn changes(&self) -> u64 {
        self.source().map_or(0, |source| source.changes.get())
    }

    fn stored_elements(&self) -> Elements {
        match &self.place {
            MatrixPlace::Here(source) => source.elements.borrow().clone(),
            MatrixPlace::Generated(elements) => elements.clone(),
            MatrixPlace::Remote => panic!("violation: {} is read here, but only machines have it", self.name),
        }
    }

    /// The elements of a rectangle of the matrix as it is used now.
    pub(super) fn read(&self, rect: Rect) -> Vec<i64> {
        assert!(
            rect.fits(self.shape()),
            "violation: {rect} of {} is read, which is {}",
            self.name,
            self.shape()
        );
        viewed(self.stored.rect(), &self.stored_elements(), rect, self.is_turned)
    }

    /// All elements as they are used now.
    pub(super) fn whole(&self) -> Elements {
        if self.is_turned { Rc::new(self.read(self.shape().rect())) } else { self.stored_elements() }
    }
}

impl MatrixInfo for ArrayMatrix {
    fn name(&self) -> &str {
        &self.name
    }
    fn shape(&self) -> Shape {
        if self.is_turned { self.stored.transposed() } else { self.stored }
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn is_remote(&self) -> bool {
        matches!(self.place, MatrixPlace::Remote)
    }
    fn is_generated(&self) -> bool {
        matches!(self.place, MatrixPlace::Generated(_))
    }
    fn turned(self) -> Self {
        Self { is_turned: !self.is_turned, ..self }
    }
}

/// Memory of a client for a matrix.
pub(super) struct ArrayOutput {
    pub(super) shape: Shape,
    pub(super) dtype: DType,
    pub(super) elements: Vec<i64>,
}

impl ArrayOutput {
    /// Elements that no matrix has.
    pub(super) fn new(shape: Shape, dtype: DType) -> Self {
        let elements = vec![i64::MIN + 1; index(shape.elements().unwrap_or(0))];
        Self { shape, dtype, elements }
    }

    /// The elements.
    pub(super) fn into_elements(self) -> Elements {
        Rc::new(self.elements)
    }
}

/// An index within the memory of this process.
pub(super) fn index(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

/// Whether a rectangle lies in another one.
pub(super) fn contains(outer: Rect, inner: Rect) -> bool {
    outer.rows.intersect(inner.rows) == inner.rows && outer.cols.intersect(inner.cols) == inner.cols
}

/// The elements of a rectangle from those of a rectangle around it; `is_turned`: `rect` is one of the transpose.
pub(super) fn viewed(around: Rect, elements: &[i64], rect: Rect, is_turned: bool) -> Vec<i64> {
    let stored = if is_turned { rect.transposed() } else { rect };
    let pitch = index(around.cols.len());
    let (down, left) =
        (index(stored.rows.start - around.rows.start), index(stored.cols.start - around.cols.start));
    let (rows, cols) = (index(stored.rows.len()), index(stored.cols.len()));
    let mut found = Vec::with_capacity(rows * cols);
    if is_turned {
        for col in left..left + cols {
            found.extend((down..down + rows).map(|row| elements[row * pitch + col]));
        }
    } else {
        for row in down..down + rows {
            found.extend_from_slice(&elements[row * pitch + left..][..cols]);
        }
    }
    found
}

/// Writes the elements of a rectangle into those of a rectangle around it.
pub(super) fn write(around: Rect, elements: &mut [i64], rect: Rect, new: &[i64]) {
    let (pitch, cols) = (index(around.cols.len()), index(rect.cols.len()));
    let (down, left) =
        (index(rect.rows.start - around.rows.start), index(rect.cols.start - around.cols.start));
    for (at, row) in new.chunks_exact(cols.max(1)).enumerate() {
        elements[(down + at) * pitch + left..][..cols].copy_from_slice(row);
    }
}

/// αAB.
pub(super) fn product(alpha: i64, [m, k, n]: [u64; 3], a: &[i64], b: &[i64]) -> Vec<i64> {
    let (m, k, n) = (index(m), index(k), index(n));
    let mut c = vec![0i64; m * n];
    for i in 0..m {
        let row = &mut c[i * n..][..n];
        for p in 0..k {
            let factor = a[i * k + p].wrapping_mul(alpha);
            for (sum, x) in row.iter_mut().zip(&b[p * n..][..n]) {
                *sum = sum.wrapping_add(factor.wrapping_mul(*x));
            }
        }
    }
    c
}

/// αX, or αX + βY.
pub(super) fn scaled_sum(alpha: i64, x: &[i64], y: Option<(i64, &[i64])>) -> Vec<i64> {
    let mut sum: Vec<i64> = x.iter().map(|x| x.wrapping_mul(alpha)).collect();
    if let Some((beta, y)) = y {
        sum.iter_mut().zip(y).for_each(|(sum, y)| *sum = sum.wrapping_add(y.wrapping_mul(beta)));
    }
    sum
}

/// A factor of an operation as an integer: factors are whole numbers here.
pub(super) fn factor(x: f64) -> i64 {
    assert!(x.fract() == 0.0 && x.abs() < 1e6, "violation: the factor {x} was not asked for");
    x as i64
}

/// The digest of a part, as a worker computes it.
pub(super) fn digest_of(shape: Shape, elements: &[i64]) -> Digest128 {
    let mut digester = Digester::default();
    digester.update(&shape.rows.to_le_bytes());
    digester.update(&shape.cols.to_le_bytes());
    let mut bytes = Vec::with_capacity(elements.len() * 8);
    elements.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
    digester.update(&bytes);
    digester.digest()
}

/// The bytes of the reduction of a rectangle, which has these elements.
pub(super) fn reduced_bytes(reduction: Reduction, rect: Rect, elements: &[i64]) -> Vec<u8> {
    let view = View::row_major(elements, index(rect.rows.len()), index(rect.cols.len()));
    RectReduction::of(reduction, rect, &view).to_bytes()
}

/// The rectangles in which a rectangle is sent: pieces of its rows.
pub(super) fn row_pieces(rect: Rect, count: u64) -> Vec<Rect> {
    let rows = rect.rows.len();
    let count = count.clamp(1, rows.max(1));
    let border = |at: u64| rect.rows.start + rows * at / count;
    (0..count).map(|at| Rect::new(Span::new(border(at), border(at + 1)), rect.cols)).collect()
}
