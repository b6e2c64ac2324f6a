//! The contract of a kernel: one product of typed views, and the trait that every kernel implements.
//!
//! Place in the flow: the types that the shells pass to this crate.
//!
//! Invariant: the dimensions of a [`Product`] agree. They are checked in release builds too, because kernels pass
//! bare pointers and these numbers to code without checks.
//!
//! Deliberately absent: the choice of the kernel, and the allocation of the memory.

use bramble_matrix::{DType, Element, View, ViewMut};

use crate::parts::scale;

/// One product: `c = alpha * a * b + beta * c`, with a m×k, b k×n and c m×n.
#[derive(Debug)]
pub struct Product<'a, T> {
    pub(crate) alpha: T,
    pub(crate) a: View<'a, T>,
    pub(crate) b: View<'a, T>,
    pub(crate) beta: T,
    pub(crate) c: ViewMut<'a, T>,
}

impl<'a, T: Element> Product<'a, T> {
    /// The product of these operands. Panics if the dimensions disagree: a bug of the caller.
    pub fn new(alpha: T, a: View<'a, T>, b: View<'a, T>, beta: T, c: ViewMut<'a, T>) -> Self {
        assert_eq!(a.cols(), b.rows(), "A has as many columns as B has rows");
        assert_eq!(a.rows(), c.rows(), "A and C have equally many rows");
        assert_eq!(b.cols(), c.cols(), "B and C have equally many columns");
        Self { alpha, a, b, beta, c }
    }

    /// Rows of A and C.
    pub fn m(&self) -> usize {
        self.a.rows()
    }

    /// Columns of A, rows of B.
    pub fn k(&self) -> usize {
        self.a.cols()
    }

    /// Columns of B and C.
    pub fn n(&self) -> usize {
        self.b.cols()
    }

    /// Multiplications and additions together: `2 m n k`.
    pub fn flops(&self) -> f64 {
        2.0 * self.m() as f64 * self.n() as f64 * self.k() as f64
    }

    /// The transposed product: `Cᵀ = alpha * Bᵀ * Aᵀ + beta * Cᵀ`.
    pub fn transposed(self) -> Self {
        let Self { alpha, a, b, beta, c } = self;
        Self { alpha, a: b.transposed(), b: a.transposed(), beta, c: c.transposed() }
    }

    /// Handles the cases without multiplication (no rows or columns; k = 0 or alpha = 0, where C is only scaled and
    /// A and B are not read), and returns the product if it is none of these.
    pub(crate) fn settle(mut self) -> Option<Self> {
        if self.m() == 0 || self.n() == 0 {
            return None;
        }
        if self.k() == 0 || self.alpha == T::ZERO {
            scale(&mut self.c, self.beta);
            return None;
        }
        Some(self)
    }
}

/// A product of any of the four element types, so that [`Kernel`] can be used through a pointer.
#[derive(Debug)]
pub enum AnyProduct<'a> {
    /// Of `f32`.
    F32(Product<'a, f32>),
    /// Of `f64`.
    F64(Product<'a, f64>),
    /// Of `i32`.
    I32(Product<'a, i32>),
    /// Of `i64`.
    I64(Product<'a, i64>),
}

impl AnyProduct<'_> {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
        }
    }
}

/// The step of a factorisation right of a panel. With `l` = L1 over L2, of which L1 is a unit lower triangle, and `columns` =
/// B over C: `B := L1⁻¹ B`, then `C := C − L2 B`. Only the elements of L1 below its diagonal are read.
#[derive(Debug)]
pub struct PanelUpdate<'a, T> {
    l: View<'a, T>,
    columns: ViewMut<'a, T>,
}

impl<'a, T: Element> PanelUpdate<'a, T> {
    /// The step with these operands. Panics if L is wider than long, or the columns are not as long as it: bugs of the caller.
    pub fn new(l: View<'a, T>, columns: ViewMut<'a, T>) -> Self {
        assert!(l.cols() <= l.rows(), "a panel is at least as long as wide");
        assert_eq!(l.rows(), columns.rows(), "columns as long as the panel");
        Self { l, columns }
    }

    /// L, and the columns.
    pub fn parts(self) -> (View<'a, T>, ViewMut<'a, T>) {
        (self.l, self.columns)
    }
}

/// A step of a factorisation of either element type.
#[derive(Debug)]
pub enum AnyUpdate<'a> {
    /// Of `f32`.
    F32(PanelUpdate<'a, f32>),
    /// Of `f64`.
    F64(PanelUpdate<'a, f64>),
}

/// An element type that kernels multiply, so that generic code can build an [`AnyProduct`].
pub trait KernelElement: Element {
    /// The product as a value that any kernel takes.
    fn any(product: Product<'_, Self>) -> AnyProduct<'_>;
}

macro_rules! kernel_element {
    ($t:ty, $variant:ident) => {
        impl KernelElement for $t {
            fn any(product: Product<'_, Self>) -> AnyProduct<'_> {
                AnyProduct::$variant(product)
            }
        }
        impl<'a> From<Product<'a, $t>> for AnyProduct<'a> {
            fn from(product: Product<'a, $t>) -> Self {
                Self::$variant(product)
            }
        }
    };
}

kernel_element!(f32, F32);
kernel_element!(f64, F64);
kernel_element!(i32, I32);
kernel_element!(i64, I64);

/// A kernel multiplies on the calling thread (or on as many threads as it was opened with), as
/// `docs/kernel-contract.md` says.
pub trait Kernel: Send + Sync {
    /// The name on the command line and in reports.
    fn name(&self) -> &str;

    /// Whether products of that type are supported.
    fn supports(&self, dtype: DType) -> bool;

    /// Computes the product. Panics for an unsupported type: a bug of the caller.
    fn multiply(&self, product: AnyProduct<'_>);

    /// Does the step of a factorisation right of a panel, or returns false and does nothing if it has no faster way than
    /// products: the caller then does it with them.
    fn update(&self, _: AnyUpdate<'_>) -> bool {
        false
    }

    /// An upper estimate, in bytes, of the memory that one calling thread needs in addition to the operands.
    fn scratch_bytes(&self) -> usize;
}
