//! Strassen's method in Winograd's form with any base kernel: 7 products and 15 additions per level.
//!
//! Place in the flow: behind [`Kernel`]; [`schedule`] has the order of sums and products,
//! `bramble_matrix::Winograd` the rules for cutting a product.
//!
//! Invariants: integers are exact. Floats have a norm-wise error bound only (docs/verification.md), so this kernel
//! is used only if the user asks for it. The size of the workspace is known beforehand, allocated once, and at most
//! [`WORKSPACE_BYTES`]. An element's bits depend on the sizes of its product, and not on threads or strides, if
//! those of the base kernel do not.
//!
//! Odd sizes are peeled: the rest of a division by 2^levels is left to the base kernel. All levels are peeled at
//! once, so that all products have one size and the rest is one product of up to 7 lines in each direction, where
//! peeling level by level would take 1 + 7 + 49 products of one line.

mod schedule;
mod workspace;

use std::sync::Arc;

use bramble_matrix::{DType, Span, View, ViewMut, Winograd};

use crate::parts::{part, part_mut};
use crate::{AnyProduct, Kernel, KernelElement, Product, blocked};
use schedule::Crew;
pub(crate) use workspace::WORKSPACE_BYTES;
pub use workspace::workspace_bytes;

/// The default cut-off: the least side of parts at which saving a product is worth the additions of a level, as
/// measured with `bramble bench kernel` with `simd` as base (docs/performance.md).
pub const fn cutoff(dtype: DType) -> u64 {
    match dtype {
        DType::F32 | DType::F64 | DType::I64 => 1024,
        DType::I32 => 512,
    }
}

/// The kernel.
pub(crate) struct Strassen {
    pub(crate) name: String,
    pub(crate) base: Arc<dyn Kernel>,
    /// `None`: the default of the element type.
    pub(crate) cutoff: Option<u64>,
    pub(crate) threads: usize,
}

impl Kernel for Strassen {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, dtype: DType) -> bool {
        self.base.supports(dtype)
    }

    fn multiply(&self, product: AnyProduct<'_>) {
        match product {
            AnyProduct::F32(p) => self.pieces(p),
            AnyProduct::F64(p) => self.pieces(p),
            AnyProduct::I32(p) => self.pieces(p),
            AnyProduct::I64(p) => self.pieces(p),
        }
    }

    fn scratch_bytes(&self) -> usize {
        WORKSPACE_BYTES + self.base.scratch_bytes()
    }
}

impl Strassen {
    /// Cuts a product that is too large for the workspace.
    fn pieces<T: KernelElement>(&self, product: Product<'_, T>) {
        let Some(p) = product.settle() else { return };
        let mut p = if p.c.col_stride() != 1 { p.transposed() } else { p };
        if p.c.col_stride() != 1 {
            // Without contiguous rows, passes over the operands would cost more than a level saves.
            return blocked::multiply(&*self.base, self.threads, usize::MAX, p);
        }
        let range = |span: Span| span.start as usize..span.end as usize;
        let spans = |side: usize| Winograd::pieces(side as u64).map(range);
        for rows in spans(p.m()) {
            for cols in spans(p.n()) {
                for depth in spans(p.k()) {
                    let beta = if depth.start == 0 { p.beta } else { T::ONE };
                    let a = part(p.a, rows.clone(), depth.clone());
                    let b = part(p.b, depth, cols.clone());
                    let c = part_mut(&mut p.c, rows.clone(), cols.clone());
                    self.piece(Product::new(p.alpha, a, b, beta, c));
                }
            }
        }
    }

    /// One piece: the even core by levels, and the peeled rest by the base kernel.
    fn piece<T: KernelElement>(&self, mut p: Product<'_, T>) {
        let (m, n, k) = (p.m(), p.n(), p.k());
        let rules = Winograd { cutoff: self.cutoff.unwrap_or(cutoff(T::DTYPE)) };
        let levels = rules.levels(m as u64, n as u64, k as u64);
        if levels == 0 {
            return self.base(p.alpha, p.a, p.b, p.beta, p.c);
        }
        let even = |side: usize| side >> levels << levels;
        let (me, ne, ke) = (even(m), even(n), even(k));
        let crew = Crew { base: &*self.base, threads: self.threads, alpha: p.alpha };
        let (a, b) = (part(p.a, 0..me, 0..ke), part(p.b, 0..ke, 0..ne));
        let c = part_mut(&mut p.c, 0..me, 0..ne);
        let adds = p.beta != T::ZERO;
        workspace::with(workspace::elements([me, ne, ke], levels, adds), |work: &mut [T]| match adds {
            true => crew.add(a, b, p.beta, c, work, levels),
            false => crew.put(a, b, c, work, levels),
        });
        if ke < k {
            let (a, b) = (part(p.a, 0..me, ke..k), part(p.b, ke..k, 0..ne));
            self.base(p.alpha, a, b, T::ONE, part_mut(&mut p.c, 0..me, 0..ne));
        }
        if me < m {
            self.base(p.alpha, part(p.a, me..m, 0..k), p.b, p.beta, part_mut(&mut p.c, me..m, 0..n));
        }
        if ne < n {
            let (a, b) = (part(p.a, 0..me, 0..k), part(p.b, 0..k, ne..n));
            self.base(p.alpha, a, b, p.beta, part_mut(&mut p.c, 0..me, ne..n));
        }
    }

    /// A classical product.
    fn base<T: KernelElement>(&self, alpha: T, a: View<'_, T>, b: View<'_, T>, beta: T, c: ViewMut<'_, T>) {
        Crew { base: &*self.base, threads: self.threads, alpha }.multiply(a, b, beta, c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::ReferenceKernel;

    /// Marks memory that was never written.
    const UNTOUCHED: i64 = i64::MIN + 7;

    /// A product with exactly that many elements of workspace; whether it is right, and whether the last element
    /// was used.
    fn over([m, n, k]: [usize; 3], levels: u32, adds: bool, elements: usize) -> (bool, bool) {
        let numbers = |len: usize, by: i64| (0..len as i64).map(|i| i * by % 23 - 11).collect::<Vec<i64>>();
        let (a, b, old) = (numbers(m * k, 7), numbers(k * n, 5), numbers(m * n, 3));
        let (mut c, mut want, beta) = (old.clone(), old, i64::from(adds) * 3);
        let (a, b) = (View::row_major(&a, m, k), View::row_major(&b, k, n));
        crate::reference::multiply(Product::new(2, a, b, beta, ViewMut::row_major(&mut want, m, n)));
        let mut work = vec![UNTOUCHED; elements];
        let crew = Crew { base: &ReferenceKernel, threads: 1, alpha: 2 };
        match adds {
            true => crew.add(a, b, beta, ViewMut::row_major(&mut c, m, n), &mut work, levels),
            false => crew.put(a, b, ViewMut::row_major(&mut c, m, n), &mut work, levels),
        }
        (c == want, work.last() != Some(&UNTOUCHED))
    }

    #[test]
    fn the_workspace_is_what_was_said_to_the_last_element() {
        for size in [[8, 8, 8], [16, 8, 24], [8, 24, 16], [24, 16, 8]] {
            for (levels, adds) in [(1, false), (2, false), (3, false), (1, true), (2, true), (3, true)] {
                let elements = workspace::elements(size, levels, adds);
                assert_eq!(over(size, levels, adds, elements), (true, true), "{size:?} {levels} {adds}");
                let less = std::panic::catch_unwind(|| over(size, levels, adds, elements - 1));
                assert!(less.is_err(), "{size:?} {levels} {adds}: less was enough");
            }
        }
    }
}
