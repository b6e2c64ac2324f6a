//! The order of sums and products of one level, in few temporaries.
//!
//! C = alpha A B takes two, X1 and X2: table 1 of Boyer, Dumas, Pernet and Zhou, *Memory efficient scheduling of
//! Strassen–Winograd's matrix multiplication algorithm* (ISSAC 2009), section 2, which is GEMMW's (Douglas, Heroux,
//! Slishman and Smith, *J. Comput. Phys.* 110, 1994). C = beta C + alpha A B follows their table 2 (Huss-Lederman et al.,
//! *Supercomputing '96*) with a fourth temporary, Y: there, products are added to sums inside the recursion, here each
//! is made by itself and then added. So errors grow as verification reckons, and only the first level reads C.
//!
//! Invariants: every product is alpha times its factors; sums are those of `bramble_plan`'s recipe, in its signs. Sums that
//! read the same quarters are one pass over them: at large sizes memory is what a level costs.

use bramble_matrix::{View, ViewMut};

use crate::combine::walk;
use crate::threads::{banded, line_mut, quarters, quarters_mut};
use crate::{Kernel, KernelElement, Product, blocked};

/// The kernel and threads that multiply and add.
pub(super) struct Crew<'a, T> {
    pub(super) base: &'a dyn Kernel,
    pub(super) threads: usize,
    pub(super) alpha: T,
}

/// Rows and columns of a matrix in the workspace.
fn seen<T>(work: &[T], rows: usize, cols: usize) -> View<'_, T> {
    View::row_major(&work[..rows * cols], rows, cols)
}

/// The same, to be written.
fn room<T>(work: &mut [T], rows: usize, cols: usize) -> ViewMut<'_, T> {
    ViewMut::row_major(&mut work[..rows * cols], rows, cols)
}

impl<T: KernelElement> Crew<'_, T> {
    /// A classical product.
    pub(super) fn multiply(&self, a: View<'_, T>, b: View<'_, T>, beta: T, c: ViewMut<'_, T>) {
        let product = Product::new(self.alpha, a, b, beta, c);
        match self.threads {
            1 => self.base.multiply(T::any(product)),
            threads => blocked::multiply(self.base, threads, usize::MAX, product),
        }
    }

    /// `out = f(a, b)`, usually `a ± b`.
    fn sum(&self, out: ViewMut<'_, T>, a: View<'_, T>, b: View<'_, T>, f: impl Fn(T, T) -> T + Sync) {
        banded(self.threads, [out], [a, b], |[out], [a, b]| walk(a, b, out, |o, x, y| *o = f(x, y)));
    }

    /// `out = f(out, a)`.
    fn update(&self, out: ViewMut<'_, T>, a: View<'_, T>, f: impl Fn(T, T) -> T + Sync) {
        banded(self.threads, [out], [a], |[out], [a]| walk(a, a, out, |o, x, _| *o = f(*o, x)));
    }

    /// `f` on the elements of matrices of one shape, written ones first.
    fn pass<const W: usize, const R: usize>(
        &self,
        written: [ViewMut<'_, T>; W],
        read: [View<'_, T>; R],
        f: impl Fn([&mut T; W], [T; R]) + Sync,
    ) {
        banded(self.threads, written, read, |mut written, read| {
            let cols = written[0].cols();
            for i in 0..written[0].rows() {
                let mut out = written.each_mut().map(|view| &mut line_mut(view, i)[..cols]);
                let lines = read.map(|view| &view.data()[i * view.row_stride()..][..cols]);
                for j in 0..cols {
                    f(out.each_mut().map(|line| &mut line[j]), lines.map(|line| line[j]));
                }
            }
        });
    }

    /// C = alpha A B. Sides are multiples of 2^levels.
    pub(super) fn put(&self, a: View<'_, T>, b: View<'_, T>, c: ViewMut<'_, T>, work: &mut [T], levels: u32) {
        if levels == 0 {
            return self.multiply(a, b, T::ZERO, c);
        }
        let (m, n, k) = (a.rows() / 2, b.cols() / 2, a.cols() / 2);
        let ([a11, a12, a21, a22], [b11, b12, b21, b22]) = (quarters(a), quarters(b));
        let [mut c11, mut c12, mut c21, mut c22] = quarters_mut(c);
        let (x1, work) = work.split_at_mut(m * k.max(n));
        let (x2, work) = work.split_at_mut(k * n);
        let down = levels - 1;
        // S3 and T3, P7 to C21.
        self.sum(room(x1, m, k), a11, a21, T::minus);
        self.sum(room(x2, k, n), b22, b12, T::minus);
        self.put(seen(x1, m, k), seen(x2, k, n), c21.reborrow(), work, down);
        // S1 and T1, P5 to C22.
        self.sum(room(x1, m, k), a21, a22, T::plus);
        self.sum(room(x2, k, n), b12, b11, T::minus);
        self.put(seen(x1, m, k), seen(x2, k, n), c22.reborrow(), work, down);
        // S2 = S1 − A11 and T2 = B22 − T1, P6 to C12.
        self.update(room(x1, m, k), a11, T::minus);
        self.update(room(x2, k, n), b22, |t1, b| b.minus(t1));
        self.put(seen(x1, m, k), seen(x2, k, n), c12.reborrow(), work, down);
        // S4 = A12 − S2, P3 to C11. S4 is used up, and P1 takes its place.
        self.update(room(x1, m, k), a12, |s2, a| a.minus(s2));
        self.put(seen(x1, m, k), b22, c11.reborrow(), work, down);
        self.put(a11, b11, room(x1, m, n), work, down);
        // U2 = P1 + P6, U3 = U2 + P7 (here C21), U4 = U2 + P5, C22 = U3 + P5, C12 = U4 + P3.
        let all = [c11.reborrow(), c12.reborrow(), c21.reborrow(), c22.reborrow()];
        self.pass(all, [seen(x1, m, n)], |[p3, c12, c21, c22], [p1]| {
            let u2 = p1.plus(*c12);
            let u3 = u2.plus(*c21);
            let u4 = u2.plus(*c22);
            *c22 = u3.plus(*c22);
            *c12 = u4.plus(*p3);
            *c21 = u3;
        });
        // T4 = T2 − B21, P4 to C11: C21 = U3 − P4.
        self.update(room(x2, k, n), b21, T::minus);
        self.put(a22, seen(x2, k, n), c11.reborrow(), work, down);
        self.pass([c21, c11.reborrow()], [], |[c21, p4], []| *c21 = c21.minus(*p4));
        // P2 to C11: C11 = P1 + P2.
        self.put(a12, b21, c11.reborrow(), work, down);
        self.pass([c11], [seen(x1, m, n)], |[c11], [p1]| *c11 = p1.plus(*c11));
    }

    /// C = beta C + alpha A B. Sides are multiples of 2^levels, and there is one at least.
    pub(super) fn add(
        &self,
        a: View<'_, T>,
        b: View<'_, T>,
        beta: T,
        c: ViewMut<'_, T>,
        work: &mut [T],
        levels: u32,
    ) {
        let (m, n, k) = (a.rows() / 2, b.cols() / 2, a.cols() / 2);
        let ([a11, a12, a21, a22], [b11, b12, b21, b22]) = (quarters(a), quarters(b));
        let [mut c11, mut c12, mut c21, mut c22] = quarters_mut(c);
        let (x1, work) = work.split_at_mut(m * k);
        let (x2, work) = work.split_at_mut(k * n);
        let (y, work) = work.split_at_mut(m * n);
        let (z, work) = work.split_at_mut(m * n);
        let down = levels - 1;
        let scaled = |c: T| if beta == T::ONE { c } else { beta.times(c) };
        // S1 and T1, P5: in C12 and C22.
        self.sum(room(x1, m, k), a21, a22, T::plus);
        self.sum(room(x2, k, n), b12, b11, T::minus);
        self.put(seen(x1, m, k), seen(x2, k, n), room(y, m, n), work, down);
        self.pass([c12.reborrow(), c22.reborrow()], [seen(y, m, n)], |[c12, c22], [p5]| {
            *c12 = scaled(*c12).plus(p5);
            *c22 = scaled(*c22).plus(p5);
        });
        // S2 and T2, P6; and P1: U2 = P1 + P6 stays in Z, P1 is in C11.
        self.update(room(x1, m, k), a11, T::minus);
        self.update(room(x2, k, n), b22, |t1, b| b.minus(t1));
        self.put(seen(x1, m, k), seen(x2, k, n), room(z, m, n), work, down);
        self.put(a11, b11, room(y, m, n), work, down);
        self.pass([c11.reborrow(), room(z, m, n)], [seen(y, m, n)], |[c11, z], [p1]| {
            *c11 = scaled(*c11).plus(p1);
            *z = p1.plus(*z);
        });
        // P2: in C11.
        self.put(a12, b21, room(y, m, n), work, down);
        self.pass([c11], [seen(y, m, n)], |[c11], [p2]| *c11 = c11.plus(p2));
        // S4, P3: in C12, with U2.
        self.update(room(x1, m, k), a12, |s2, a| a.minus(s2));
        self.put(seen(x1, m, k), b22, room(y, m, n), work, down);
        self.pass([c12], [seen(y, m, n), seen(z, m, n)], |[c12], [p3, u2]| *c12 = c12.plus(p3).plus(u2));
        // T4, P4: in C21.
        self.update(room(x2, k, n), b21, T::minus);
        self.put(a22, seen(x2, k, n), room(y, m, n), work, down);
        self.pass([c21.reborrow()], [seen(y, m, n)], |[c21], [p4]| *c21 = scaled(*c21).minus(p4));
        // S3 and T3, P7: U3 = U2 + P7, in C21 and C22.
        self.sum(room(x1, m, k), a11, a21, T::minus);
        self.sum(room(x2, k, n), b22, b12, T::minus);
        self.put(seen(x1, m, k), seen(x2, k, n), room(y, m, n), work, down);
        self.pass([c21, c22], [seen(y, m, n), seen(z, m, n)], |[c21, c22], [p7, u2]| {
            let u3 = u2.plus(p7);
            *c21 = c21.plus(u3);
            *c22 = c22.plus(u3);
        });
    }
}
