//! Floating-point products by a BLAS library that was opened at run time.
//!
//! Place in the flow: behind [`Kernel`]; [`library`] finds and checks the library.
//!
//! Invariants: the library is set to one thread before its first product; every number passed to it fits 32 bits;
//! operands that it cannot express (no stride of 1, or overlapping lines) are copied first. The library gets only
//! an `alpha` of 1 or -1: BLIS multiplies A by alpha beforehand, which overflows where A B does not. Any other
//! alpha is applied to the finished elements of A B here.
//!
//! Deliberately absent: any other BLAS routine, and 64-bit-integer builds of the libraries.
#![allow(unsafe_code)] // Foreign functions take pointers.

mod library;

use std::ffi::c_int;

use bramble_matrix::{DType, Element, View, ViewMut};

use crate::combine::walk;
use crate::parts::{part, part_mut, pieces, scale};
use crate::{AnyProduct, Kernel, KernelName, Product};

pub(crate) use library::open;
pub use library::{keep_libraries_out, leave, quiet_blas_threads, survive_file_size_limit};

/// `cblas_sgemm` or `cblas_dgemm`: order, transpositions of A and B, m, n, k, alpha, A, its leading
/// dimension, B, its leading dimension, beta, C, its leading dimension.
type Gemm<T> = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    T,
    *const T,
    c_int,
    *const T,
    c_int,
    T,
    *mut T,
    c_int,
);

const ROW_MAJOR: c_int = 101;
const NO_TRANS: c_int = 111;
const TRANS: c_int = 112;

/// Edge of the pieces of a product whose operands can be passed without a copy: far inside 32 bits.
const PIECE: usize = 1 << 24;
/// Edge of the pieces of a product whose operands must be copied: bounds the copies to 24 MiB.
const COPIED_PIECE: usize = 1024;

/// Copies of operands, and the buffer that the libraries keep per calling thread (OpenBLAS: up to 32 MiB on
/// x86-64).
const SCRATCH_BYTES: usize = (24 + 32) << 20;

/// An opened library. Never closed: its functions are used until the process ends.
#[derive(Debug)]
pub(crate) struct Blas {
    name: KernelName,
    single: Gemm<f32>,
    double: Gemm<f64>,
}

impl Kernel for Blas {
    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn supports(&self, dtype: DType) -> bool {
        self.name.supports(dtype)
    }

    fn multiply(&self, product: AnyProduct<'_>) {
        match product {
            AnyProduct::F32(p) => multiply(self.single, p),
            AnyProduct::F64(p) => multiply(self.double, p),
            AnyProduct::I32(_) | AnyProduct::I64(_) => {
                panic!("{} does not multiply {}", self.name, product.dtype())
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        SCRATCH_BYTES
    }
}

/// The description of an operand for the library, row-major: transposition and leading dimension. `None` if it has
/// none.
fn form(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<(c_int, c_int)> {
    // The stride along a length of 1 is never used, so any suitable one may be given.
    let row_stride = if rows <= 1 { cols.max(1) } else { row_stride };
    let straight = (col_stride == 1 || cols <= 1) && row_stride >= cols.max(1);
    if straight {
        return c_int::try_from(row_stride).ok().map(|ld| (NO_TRANS, ld));
    }
    let col_stride = if cols <= 1 { rows.max(1) } else { col_stride };
    let mirrored = (row_stride == 1 || rows <= 1) && col_stride >= rows.max(1);
    mirrored.then_some(col_stride).and_then(|ld| c_int::try_from(ld).ok()).map(|ld| (TRANS, ld))
}

fn form_of<T>(v: View<'_, T>) -> Option<(c_int, c_int)> {
    form(v.rows(), v.cols(), v.row_stride(), v.col_stride())
}

fn form_of_mut<T>(v: &ViewMut<'_, T>) -> Option<(c_int, c_int)> {
    form(v.rows(), v.cols(), v.row_stride(), v.col_stride())
}

/// Computes a product, in pieces if necessary.
fn multiply<T: Element>(gemm: Gemm<T>, product: Product<'_, T>) {
    let Some(p) = product.settle() else { return };
    let mirrored = matches!(form_of_mut(&p.c), Some((TRANS, _)));
    let mut p = if mirrored { p.transposed() } else { p };
    let as_they_lie = form_of(p.a).is_some() && form_of(p.b).is_some() && form_of_mut(&p.c).is_some();
    let is_sign = p.alpha == T::ONE || p.alpha == T::ZERO.minus(T::ONE);
    // The old C must not be scaled by alpha, so A B is computed into a square of its own.
    let is_apart = !is_sign && p.beta != T::ZERO;
    let step = if as_they_lie && !is_apart { PIECE } else { COPIED_PIECE };
    let mut copies = Copies::default();
    for rows in pieces(p.m(), step) {
        for cols in pieces(p.n(), step) {
            let c = part_mut(&mut p.c, rows.clone(), cols.clone());
            let operands = (part(p.a, rows.clone(), 0..p.a.cols()), part(p.b, 0..p.b.rows(), cols));
            if is_sign {
                piece(gemm, step, p.alpha, operands, p.beta, c, &mut copies);
            } else if is_apart {
                apart(gemm, step, p.alpha, operands, p.beta, c, &mut copies);
            } else {
                let mut c = c;
                piece(gemm, step, T::ONE, operands, T::ZERO, c.reborrow(), &mut copies);
                scale(&mut c, p.alpha);
            }
        }
    }
}

/// Memory for copied operands, and for A B if it is computed apart from C.
#[derive(Debug)]
struct Copies<T> {
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
}

impl<T> Default for Copies<T> {
    fn default() -> Self {
        Self { a: Vec::new(), b: Vec::new(), c: Vec::new() }
    }
}

/// One piece of C, over all ranges of k. The first of them scales C.
fn piece<T: Element>(
    gemm: Gemm<T>,
    step: usize,
    alpha: T,
    (a, b): (View<'_, T>, View<'_, T>),
    beta: T,
    mut c: ViewMut<'_, T>,
    copies: &mut Copies<T>,
) {
    if matches!(form_of_mut(&c), Some((NO_TRANS, _))) {
        return depths(gemm, step, alpha, (a, b), beta, &mut c, (&mut copies.a, &mut copies.b));
    }
    // Neither stride is 1: multiply into a copy, and move it back.
    let (m, n) = (c.rows(), c.cols());
    copies.c.clear();
    copies.c.resize(m * n, T::ZERO);
    if beta != T::ZERO {
        for (at, x) in copies.c.iter_mut().enumerate() {
            *x = *c.at_mut(at / n, at % n);
        }
    }
    let mut copy = ViewMut::row_major(&mut copies.c, m, n);
    depths(gemm, step, alpha, (a, b), beta, &mut copy, (&mut copies.a, &mut copies.b));
    for (at, x) in copies.c.iter().enumerate() {
        *c.at_mut(at / n, at % n) = *x;
    }
}

/// `c = beta * c + alpha * (a * b)`, where the library computes a * b only.
fn apart<T: Element>(
    gemm: Gemm<T>,
    step: usize,
    alpha: T,
    (a, b): (View<'_, T>, View<'_, T>),
    beta: T,
    c: ViewMut<'_, T>,
    copies: &mut Copies<T>,
) {
    let (m, n) = (c.rows(), c.cols());
    copies.c.clear();
    copies.c.resize(m * n, T::ZERO);
    let mut made = ViewMut::row_major(&mut copies.c, m, n);
    depths(gemm, step, T::ONE, (a, b), T::ZERO, &mut made, (&mut copies.a, &mut copies.b));
    let made = View::row_major(&copies.c, m, n);
    if beta == T::ONE {
        walk(made, made, c, |c, x, _| *c = c.plus(alpha.times(x)));
    } else {
        walk(made, made, c, |c, x, _| *c = beta.times(*c).plus(alpha.times(x)));
    }
}

/// All ranges of k, one after another, into a C that the library can write.
fn depths<T: Element>(
    gemm: Gemm<T>,
    step: usize,
    alpha: T,
    (a, b): (View<'_, T>, View<'_, T>),
    beta: T,
    c: &mut ViewMut<'_, T>,
    (copy_a, copy_b): (&mut Vec<T>, &mut Vec<T>),
) {
    for depth in pieces(a.cols(), step) {
        let beta = if depth.start == 0 { beta } else { T::ONE };
        let left = expressible(part(a, 0..a.rows(), depth.clone()), copy_a);
        let right = expressible(part(b, depth, 0..b.cols()), copy_b);
        call(gemm, alpha, left, right, beta, c);
    }
}

/// The same elements in a form that the library can read: directly, or copied.
fn expressible<'v, T: Element>(v: View<'v, T>, copy: &'v mut Vec<T>) -> View<'v, T> {
    if form_of(v).is_some() {
        return v;
    }
    copy.clear();
    for i in 0..v.rows() {
        copy.extend((0..v.cols()).map(|j| v.at(i, j)));
    }
    View::row_major(copy, v.rows(), v.cols())
}

/// Calls the library. Panics for operands that it cannot express.
fn call<T: Element>(
    gemm: Gemm<T>,
    alpha: T,
    a: View<'_, T>,
    b: View<'_, T>,
    beta: T,
    c: &mut ViewMut<'_, T>,
) {
    let (m, n, k) = (a.rows(), b.cols(), a.cols());
    assert!(b.rows() == k && c.rows() == m && c.cols() == n);
    let int = |x: usize| c_int::try_from(x).expect("pieces are far smaller than 2^31");
    let fits = "operands were copied until they could be expressed";
    let (trans_a, ld_a) = form_of(a).expect(fits);
    let (trans_b, ld_b) = form_of(b).expect(fits);
    let (trans_c, ld_c) = form_of_mut(c).expect(fits);
    assert_eq!(trans_c, NO_TRANS);
    // SAFETY: `form` has described each operand correctly, the dimensions agree as just checked, C is borrowed
    // exclusively, and the function has this signature: the library was tested with it.
    unsafe {
        gemm(
            ROW_MAJOR,
            trans_a,
            trans_b,
            int(m),
            int(n),
            int(k),
            alpha,
            a.as_ptr(),
            ld_a,
            b.as_ptr(),
            ld_b,
            beta,
            c.as_mut_ptr(),
            ld_c,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_describe_rows_columns_and_nothing_else() {
        assert_eq!(form(3, 4, 4, 1), Some((NO_TRANS, 4)));
        assert_eq!(form(3, 4, 9, 1), Some((NO_TRANS, 9)));
        assert_eq!(form(3, 4, 1, 3), Some((TRANS, 3)));
        assert_eq!(form(3, 4, 8, 2), None);
        assert_eq!(form(3, 4, 2, 1), None, "lines overlap");
        assert_eq!(form(3, 4, 0, 1), None, "one row for all");
        assert_eq!(form(1, 4, 0, 1), Some((NO_TRANS, 4)));
        assert_eq!(form(3, 1, 5, 0), Some((NO_TRANS, 5)));
        assert_eq!(form(1, 4, 7, 3), Some((TRANS, 3)));
        assert_eq!(form(2, 4, 1 << 40, 1), None, "too far apart for 32 bits");
    }
}
