//! Block multiplication: C is cut by its shape into blocks that threads take from a queue, and each block into
//! pieces that a base kernel multiplies.
//!
//! Place in the flow: behind [`Kernel`] like any other; `strassen` uses it if it has several threads.
//!
//! Invariants: the assignment of blocks to threads changes no bit. A piece of the depth is a multiple of `simd`'s
//! slices and never leaves a rest of one or two, so with `simd` as base the bits are those of `simd` itself.
//!
//! The cut follows the two criteria of the block method for machines with several processors: as many blocks as
//! threads, in one direction, if C is more than twice as long as it is wide; otherwise in both directions, so that
//! a thread that finishes early finds another block.

use std::ops::Range;
use std::sync::Arc;

use bramble_matrix::DType;

use crate::parts::{part, part_mut, pieces};
use crate::threads::{even, grid_mut, share};
use crate::{AnyProduct, Kernel, KernelElement, Product};

/// Default edge of the pieces: the largest step of a product of tiles.
pub(crate) const EDGE: usize = 1024;
/// Thinner blocks would take less time than the start of a thread.
const THINNEST: usize = 32;

/// The kernel, with its base.
pub(crate) struct Blocked {
    pub(crate) name: String,
    pub(crate) base: Arc<dyn Kernel>,
    pub(crate) edge: usize,
    pub(crate) threads: usize,
}

impl Kernel for Blocked {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, dtype: DType) -> bool {
        self.base.supports(dtype)
    }

    fn multiply(&self, product: AnyProduct<'_>) {
        any(&*self.base, (self.threads, self.edge), &|| false, product);
    }

    fn scratch_bytes(&self) -> usize {
        self.base.scratch_bytes()
    }
}

/// Computes a product on `threads` threads, including the calling one, with `base` for its pieces. `is_stopped` is asked before
/// each piece; after a yes, C has unspecified elements.
pub fn multiply_unless_stopped(
    base: &dyn Kernel,
    threads: usize,
    is_stopped: &(dyn Fn() -> bool + Sync),
    product: AnyProduct<'_>,
) {
    any(base, (threads, EDGE), is_stopped, product);
}

fn any(
    base: &dyn Kernel,
    how: (usize, usize),
    is_stopped: &(dyn Fn() -> bool + Sync),
    product: AnyProduct<'_>,
) {
    match product {
        AnyProduct::F32(p) => in_blocks(base, how, is_stopped, p),
        AnyProduct::F64(p) => in_blocks(base, how, is_stopped, p),
        AnyProduct::I32(p) => in_blocks(base, how, is_stopped, p),
        AnyProduct::I64(p) => in_blocks(base, how, is_stopped, p),
    }
}

/// Rows and columns of blocks of an m × n matrix C, for that many threads.
fn cut(m: usize, n: usize, threads: usize) -> (usize, usize) {
    let most = |len: usize| (len / THINNEST).clamp(1, threads.max(1));
    match (m > 2 * n, n > 2 * m) {
        _ if threads <= 1 => (1, 1),
        (true, _) => (most(m), 1),
        (_, true) => (1, most(n)),
        _ => (most(m), most(n)),
    }
}

/// Computes a product on `threads` threads, including the calling one.
pub(crate) fn multiply<T: KernelElement>(
    base: &dyn Kernel,
    threads: usize,
    edge: usize,
    product: Product<'_, T>,
) {
    in_blocks(base, (threads, edge), &|| false, product);
}

fn in_blocks<T: KernelElement>(
    base: &dyn Kernel,
    (threads, edge): (usize, usize),
    is_stopped: &(dyn Fn() -> bool + Sync),
    product: Product<'_, T>,
) {
    let Some(product) = product.settle() else { return };
    let (across, along) = cut(product.m(), product.n(), threads);
    let rows: Vec<Range<usize>> = even(product.m(), across).collect();
    let cols: Vec<Range<usize>> = even(product.n(), along).collect();
    let Product { alpha, a, b, beta, c } = product;
    let mut targets = grid_mut(c, &rows, &cols).into_iter();
    let mut blocks = Vec::with_capacity(across * along);
    for row in &rows {
        for col in &cols {
            let Some(c) = targets.next() else { unreachable!("a target for each block") };
            let (a, b) = (part(a, row.clone(), 0..a.cols()), part(b, 0..b.rows(), col.clone()));
            blocks.push(Product { alpha, a, b, beta, c });
        }
    }
    share(threads, blocks, |block| in_pieces(base, edge, is_stopped, block));
}

/// One block: C(i, j) += A(i, k) B(k, j) for all its pieces.
fn in_pieces<T: KernelElement>(
    base: &dyn Kernel,
    edge: usize,
    is_stopped: &(dyn Fn() -> bool + Sync),
    mut p: Product<'_, T>,
) {
    for rows in pieces(p.m(), edge) {
        for cols in pieces(p.n(), edge) {
            for depth in depths(p.k(), edge) {
                if is_stopped() {
                    return;
                }
                let beta = if depth.start == 0 { p.beta } else { T::ONE };
                let a = part(p.a, rows.clone(), depth.clone());
                let b = part(p.b, depth, cols.clone());
                let c = part_mut(&mut p.c, rows.clone(), cols.clone());
                base.multiply(T::any(Product::new(p.alpha, a, b, beta, c)));
            }
        }
    }
}

/// Pieces of the depth; a rest of one or two belongs to the piece before it.
fn depths(k: usize, edge: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = k - start;
        let len = if rest.saturating_sub(2) <= edge { rest } else { edge };
        start += len;
        (len > 0).then(|| start - len..start)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_that_is_stopped_leaves_the_pieces_that_it_has_not_begun() {
        use bramble_matrix::{View, ViewMut};
        use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
        let (a, b) = (vec![1i32; 3 * 2 * EDGE], vec![1i32; 2 * EDGE * 3]);
        let after = |pieces: usize| {
            let (mut c, asked) = (vec![7i32; 9], AtomicUsize::new(0));
            let (a, b) = (View::row_major(&a, 3, 2 * EDGE), View::row_major(&b, 2 * EDGE, 3));
            let product = Product::new(1, a, b, 0, ViewMut::row_major(&mut c, 3, 3));
            let is_stopped = || asked.fetch_add(1, Relaxed) >= pieces;
            multiply_unless_stopped(&crate::reference::ReferenceKernel, 1, &is_stopped, product.into());
            c
        };
        let edge = EDGE as i32;
        assert_eq!([after(0), after(1), after(2)], [vec![7; 9], vec![edge; 9], vec![2 * edge; 9]]);
    }

    #[test]
    fn long_and_wide_matrices_are_cut_one_way_and_square_ones_both() {
        assert_eq!((cut(1000, 400, 4), cut(400, 1000, 4), cut(800, 400, 4)), ((4, 1), (1, 4), (4, 4)));
        assert_eq!((cut(5000, 5000, 1), cut(40, 5000, 3), cut(70, 70, 4)), ((1, 1), (1, 3), (2, 2)));
    }

    #[test]
    fn pieces_of_the_depth_cover_it_and_leave_no_crumbs() {
        for k in 1..200 {
            let mut end = 0;
            for piece in depths(k, 16) {
                assert_eq!(piece.start, end);
                assert!(piece.len() > 2 || k <= 2, "{k}: {piece:?}");
                end = piece.end;
            }
            assert_eq!(end, k);
        }
    }
}
