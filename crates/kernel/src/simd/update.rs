//! The step of a factorisation right of a panel, in packed blocks: a triangular system whose solution is packed already when
//! the product begins.
//!
//! Place in the flow: `lu` asks for it ([`crate::Kernel::update`]); [`super::packed`] and its register tiles do the product.
//!
//! The triangle is halved until [`SMALL_TRIANGLE`] rows are left, as in `lu::triangle`, but for two vectors of columns at a
//! time: a strip of them stays in a first-level cache, and is a packed panel of B.
//!
//! Invariant: the bits of `lu::triangle` with the products of [`super::float`]: the same halves, so the same chains of fused
//! multiply-adds, and below [`SMALL_TRIANGLE`] rows the same differences.
//!
//! Deliberately absent: steps whose product `packed` leaves to the library, columns whose rows are not contiguous, and upper
//! triangles, which only a back-substitution has.
#![allow(unsafe_code)] // Scratch memory is shared by types, and tiles take pointers.

use bramble_matrix::{Element, View, ViewMut};

use super::float::DEPTH;
use super::inner::Fused;
use super::packed::{CACHE_LINE, COLS, ROWS, pack, sweep, takes};
use super::scratch::with_scratch;
use super::tile_float_x86::FloatTile;
use crate::PanelUpdate;
use crate::lu::{SMALL_TRIANGLE, upper_rows};
use crate::parts::{part, part_mut, pieces};
use crate::prefetch::prefetch;
use crate::threads::line_mut;

/// Most elements of [`SMALL_TRIANGLE`] rows of a strip: no tile is wider than 32 columns.
const STRIP_MAX: usize = SMALL_TRIANGLE * 32;

/// Does the step, or returns false and does nothing.
pub(super) fn update<T: Fused>(step: PanelUpdate<'_, T>) -> bool {
    let (l, columns) = step.parts();
    let (k, n) = (l.cols(), columns.cols());
    let fits = columns.col_stride() == 1 && takes::<T>(l.rows() - k, n, k);
    if fits && <T::Tile512 as FloatTile>::is_here() {
        blocked::<T::Tile512>(l, columns);
    } else if fits && <T::Tile256 as FloatTile>::is_here() {
        blocked::<T::Tile256>(l, columns);
    } else {
        return false;
    }
    true
}

/// The step with one kind of tile, whose instructions the machine has.
fn blocked<K: FloatTile>(l: View<'_, K::T>, mut columns: ViewMut<'_, K::T>) {
    let (rows, n, k) = (l.rows(), columns.cols(), l.cols());
    assert!(k <= DEPTH && columns.rows() == rows && columns.col_stride() == 1);
    let (triangle, below) = (part(l, 0..k, 0..k), part(l, k..rows, 0..k));
    let minus = K::T::ZERO.minus(K::T::ONE);
    let solve_and_multiply = |elements: &mut [K::T]| {
        let (packed_b, packed_a) = elements.split_at_mut(DEPTH * COLS);
        for cols in pieces(n, COLS) {
            pack_triangle::<K>(triangle, packed_a);
            let mut top = part_mut(&mut columns, 0..k, cols.clone());
            for (strip, x) in pieces(cols.len(), K::NR).zip(packed_b.chunks_exact_mut(K::NR * k)) {
                let mut strip = part_mut(&mut top, 0..k, strip);
                load::<K>(&mut strip, x);
                solve::<K>(packed_a, x);
                store::<K>(x, &mut strip);
            }
            for rows in pieces(rows - k, ROWS) {
                pack(part(below, rows.clone(), 0..k), K::MR, packed_a);
                let c = part_mut(&mut columns, k + rows.start..k + rows.end, cols.clone());
                sweep::<K>((k, minus, true), packed_a, packed_b, c);
            }
        }
    };
    let len = DEPTH * COLS + (DEPTH * ROWS).max(packed_len::<K>(k));
    // SAFETY: elements are floats.
    unsafe { with_scratch(len, solve_and_multiply) };
}

/// Elements of a packed triangle.
fn packed_len<K: FloatTile>(n: usize) -> usize {
    if n <= SMALL_TRIANGLE {
        return SMALL_TRIANGLE * SMALL_TRIANGLE;
    }
    let half = upper_rows(n);
    packed_len::<K>(half) + (n - half).next_multiple_of(K::MR) * half + packed_len::<K>(n - half)
}

/// Packs a unit lower triangle in the order in which it is used: its upper half, the square below that as an operand A, and its
/// lower half; the smallest ones by columns, with zeros elsewhere. Returns the number of packed elements.
fn pack_triangle<K: FloatTile>(t: View<'_, K::T>, packed: &mut [K::T]) -> usize {
    let n = t.rows();
    if n <= SMALL_TRIANGLE {
        let columns = packed[..SMALL_TRIANGLE * SMALL_TRIANGLE].chunks_exact_mut(SMALL_TRIANGLE).enumerate();
        for (j, column) in columns {
            let element = |i: usize| if j < i && i < n { t.at(i, j) } else { K::T::ZERO };
            column.iter_mut().enumerate().for_each(|(i, x)| *x = element(i));
        }
        return SMALL_TRIANGLE * SMALL_TRIANGLE;
    }
    let half = upper_rows(n);
    let mut used = pack_triangle::<K>(part(t, 0..half, 0..half), packed);
    pack(part(t, half..n, 0..half), K::MR, &mut packed[used..]);
    used += (n - half).next_multiple_of(K::MR) * half;
    used + pack_triangle::<K>(part(t, half..n, half..n), &mut packed[used..])
}

/// Solves with a packed triangle for a strip of `K::NR` columns, in rows. Returns the number of elements of the triangle.
fn solve<K: FloatTile>(packed: &[K::T], x: &mut [K::T]) -> usize {
    let n = x.len() / K::NR;
    if n <= SMALL_TRIANGLE {
        substitute::<K>(&packed[..SMALL_TRIANGLE * SMALL_TRIANGLE], x);
        return SMALL_TRIANGLE * SMALL_TRIANGLE;
    }
    let half = upper_rows(n);
    let (upper, lower) = x.split_at_mut(half * K::NR);
    let mut used = solve::<K>(packed, upper);
    let (minus, rest) = (K::T::ZERO.minus(K::T::ONE), ViewMut::row_major(lower, n - half, K::NR));
    sweep::<K>((half, minus, true), &packed[used..], upper, rest);
    used += (n - half).next_multiple_of(K::MR) * half;
    used + solve::<K>(&packed[used..], lower)
}

/// Solves with one of the smallest triangles; missing rows are zeros while it does.
fn substitute<K: FloatTile>(t: &[K::T], x: &mut [K::T]) {
    const { assert!(SMALL_TRIANGLE * K::NR <= STRIP_MAX) };
    assert!(t.len() == SMALL_TRIANGLE * SMALL_TRIANGLE && x.len() <= SMALL_TRIANGLE * K::NR);
    if x.len() == SMALL_TRIANGLE * K::NR {
        // SAFETY: a triangle and a strip of that many rows; our caller has checked that the machine has the tile's instructions.
        return unsafe { K::substitute(t.as_ptr(), x.as_mut_ptr()) };
    }
    let mut whole = [K::T::ZERO; STRIP_MAX];
    whole[..x.len()].copy_from_slice(x);
    // SAFETY: as above, and the copy has room for SMALL_TRIANGLE rows.
    unsafe { K::substitute(t.as_ptr(), whole.as_mut_ptr()) };
    x.copy_from_slice(&whole[..x.len()]);
}

/// Copies rows to a strip of `K::NR` columns, and asks for the next strip, whose rows no processor predicts. Missing columns are
/// zeros.
fn load<K: FloatTile>(rows: &mut ViewMut<'_, K::T>, x: &mut [K::T]) {
    for (i, line) in x.chunks_exact_mut(K::NR).enumerate() {
        let row = line_mut(rows, i);
        let next = row.as_ptr().wrapping_add(K::NR);
        (0..K::NR).step_by(CACHE_LINE / size_of::<K::T>()).for_each(|at| prefetch(next.wrapping_add(at)));
        let (here, missing) = line.split_at_mut(row.len());
        copy::<K>(row, here);
        missing.fill(K::T::ZERO);
    }
}

/// Copies a strip of `K::NR` columns to rows.
fn store<K: FloatTile>(x: &[K::T], rows: &mut ViewMut<'_, K::T>) {
    for (i, line) in x.chunks_exact(K::NR).enumerate() {
        let row = line_mut(rows, i);
        copy::<K>(&line[..row.len()], row);
    }
}

/// Copies elements, with a known length if they are all of a line: a call of `memmove` would take longer than the copy.
#[inline(always)]
fn copy<K: FloatTile>(from: &[K::T], to: &mut [K::T]) {
    if from.len() == K::NR {
        from[..K::NR].iter().zip(&mut to[..K::NR]).for_each(|(from, to)| *to = *from);
    } else {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lu::{LuElement, PackedPanel};
    use crate::{AnyProduct, Kernel};
    use bramble_matrix::DType;
    use proptest::prelude::*;

    /// The same products, and no step of its own.
    struct OnlyProducts;

    impl Kernel for OnlyProducts {
        fn name(&self) -> &str {
            "products"
        }

        fn supports(&self, _: DType) -> bool {
            true
        }

        fn multiply(&self, product: AnyProduct<'_>) {
            super::super::Simd.multiply(product);
        }

        fn scratch_bytes(&self) -> usize {
            0
        }
    }

    /// Numbers from -0.5 to 0.5.
    fn noise<T: LuElement>(len: usize, seed: u64) -> Vec<T> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_f64((state >> 11) as f64 / (1u64 << 53) as f64 - 0.5)
        };
        (0..len).map(|_| next()).collect()
    }

    /// Compares a step in packed blocks with one by products, to the bit, in a matrix whose rows are `gap` longer.
    fn check<T: LuElement + Fused>((rows, n, k): (usize, usize, usize), gap: usize) {
        let mut l = noise::<T>(rows * k, 1);
        // The diagonal and the elements above it are not read.
        (0..k).for_each(|j| l[j * rows..][..=j].fill(T::from_f64(f64::NAN)));
        let panel = PackedPanel::received(l, rows, (0..k).collect()).unwrap();
        let old = noise::<T>(rows * (n + gap), 2);
        let by = |step: &dyn Fn(ViewMut<'_, T>)| {
            let mut new = old.clone();
            step(ViewMut::new(&mut new, rows, n, n + gap, 1));
            new
        };
        let want = by(&|columns| panel.update(&OnlyProducts, columns, &mut Vec::new()));
        let l = panel.factors(0..rows);
        if <T::Tile512 as FloatTile>::is_here() {
            assert!(by(&|columns| blocked::<T::Tile512>(l, columns)) == want, "{rows} x {n} x {k}, AVX-512");
        }
        if <T::Tile256 as FloatTile>::is_here() {
            assert!(by(&|columns| blocked::<T::Tile256>(l, columns)) == want, "{rows} x {n} x {k}, AVX2");
            let whole = by(&|columns| panel.update(&super::super::Simd, columns, &mut Vec::new()));
            assert!(whole == want, "{rows} x {n} x {k}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn the_bits_are_those_of_the_way_by_products(
            // Products of less depth than 3 have other bits.
            below in 0..700usize, n in 1..1100usize, k in 3..140usize, gap in 0..9usize,
        ) {
            check::<f64>((k + below, n, k), gap);
            check::<f32>((k + below, n, k), gap);
        }
    }

    #[test]
    fn wide_panels_have_the_same_bits() {
        for k in [256, 300, DEPTH] {
            check::<f64>((k + 500, 1050, k), 3);
        }
    }

    #[test]
    fn small_steps_are_left_to_products_and_nothing_is_written() {
        let (l, mut columns) = (noise::<f64>(400 * 64, 1), noise::<f64>(400 * 100, 2));
        let old = columns.clone();
        let step =
            PanelUpdate::new(View::new(&l, 400, 64, 1, 400), ViewMut::row_major(&mut columns, 400, 100));
        assert!(!update(step) && columns == old);
    }
}
