//! A panel of few columns: elimination column by column, where products of matrices would be too small to pay.
//!
//! Place in the flow: the end of the recursion in `panel`.
//!
//! Invariants: columns are contiguous, `pitch` elements apart. All columns before a column are subtracted from a piece of it
//! while the piece is in the first-level cache (left-looking), so each column is written once.

use super::LuElement;
use super::lines::subtract;

/// Most columns. Wider panels are split: products of matrices are faster from here on.
pub(super) const WIDEST: usize = 16;
/// Elements of a piece of a column: 4 KiB of `f64`.
const PIECE: usize = 512;

/// Factors `pivots.len()` columns of `rows` elements, `pitch` apart, and sets for each column the row that its diagonal row
/// was exchanged with. There are at most as many columns as rows.
pub(super) fn factor<T: LuElement>(panel: &mut [T], rows: usize, pitch: usize, pivots: &mut [usize]) {
    assert!(pivots.len() <= rows && rows <= pitch, "a panel at least as long as wide");
    pulp::Arch::new().dispatch(
        #[inline(always)]
        || {
            for c in 0..pivots.len() {
                let (left, right) = panel.split_at_mut(c * pitch);
                eliminate(left, &mut right[..rows], pitch, c);
                let from = c + largest(&right[c..rows]);
                pivots[c] = from;
                if from != c {
                    (0..pivots.len()).for_each(|j| panel.swap(j * pitch + c, j * pitch + from));
                }
                divide(&mut panel[c * pitch + c..c * pitch + rows]);
            }
        },
    );
}

/// Subtracts from column `c` its products with the columns before it, which are factored.
#[inline(always)]
fn eliminate<T: LuElement>(left: &[T], column: &mut [T], pitch: usize, c: usize) {
    let (upper, lower) = column.split_at_mut(c);
    for j in 0..c {
        let (done, rest) = upper.split_at_mut(j + 1);
        subtract(rest, done[j], &left[j * pitch + j + 1..j * pitch + c]);
    }
    for (at, piece) in lower.chunks_mut(PIECE).enumerate() {
        let (start, len) = (c + at * PIECE, piece.len());
        let line = |j: usize| &left[j * pitch + start..][..len];
        let mut j = 0;
        while j + 4 <= c {
            subtract_four(
                piece,
                [upper[j], upper[j + 1], upper[j + 2], upper[j + 3]],
                [0, 1, 2, 3].map(|i| line(j + i)),
            );
            j += 4;
        }
        while j < c {
            subtract(piece, upper[j], line(j));
            j += 1;
        }
    }
}

/// `y -= Σ a[i] x[i]`, in the order of `i`: one read and one write of `y` for four lines.
#[inline(always)]
fn subtract_four<T: LuElement>(y: &mut [T], a: [T; 4], [x0, x1, x2, x3]: [&[T]; 4]) {
    for ((((y, x0), x1), x2), x3) in y.iter_mut().zip(x0).zip(x1).zip(x2).zip(x3) {
        *y = y.minus(a[0].times(*x0)).minus(a[1].times(*x1)).minus(a[2].times(*x2)).minus(a[3].times(*x3));
    }
}

/// Index of the first element of largest absolute value; NaN counts as 0.
#[inline(always)]
fn largest<T: LuElement>(column: &[T]) -> usize {
    const LANES: usize = 16;
    let more = |most: T, x: T| if x.absolute() > most { x.absolute() } else { most };
    let mut most = [T::ZERO; LANES];
    let (chunks, rest) = column.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            most[lane] = more(most[lane], chunk[lane]);
        }
    }
    let most = rest.iter().chain(&most).fold(T::ZERO, |most, x| more(most, *x));
    column.iter().position(|x| x.absolute() == most).unwrap_or(0)
}

/// Divides the elements below the first by the first, unless it is 0.
#[inline(always)]
fn divide<T: LuElement>(column: &mut [T]) {
    let Some((&mut pivot, below)) = column.split_first_mut() else { return };
    if pivot == T::ZERO {
        return;
    }
    if pivot.absolute() >= T::SMALLEST {
        let by = T::ONE.over(pivot);
        below.iter_mut().for_each(|x| *x = x.times(by));
    } else {
        below.iter_mut().for_each(|x| *x = x.over(pivot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_largest_is_found_whatever_its_place_and_sign() {
        for len in 1..70 {
            for at in 0..len {
                let mut column = vec![1.0f64; len];
                column[at] = -3.0;
                column[len - 1] = 3.0f64.copysign(column[len - 1]);
                assert_eq!(largest(&column), at, "{len}");
            }
        }
        assert_eq!(largest(&[f64::NAN, 0.0, f64::NAN]), 1);
        assert_eq!(largest(&[f64::NAN; 3]), 0);
        assert_eq!(largest(&[1.0, f64::NEG_INFINITY, f64::INFINITY]), 1);
    }

    #[test]
    fn a_tiny_pivot_divides_without_overflow() {
        let tiny = f64::MIN_POSITIVE / 4.0;
        let mut column = [tiny, tiny / 2.0, -tiny];
        divide(&mut column);
        assert_eq!(column, [tiny, 0.5, -1.0]);
    }
}
