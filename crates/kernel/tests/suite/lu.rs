//! The kernels of LU, checked against their definition on all small sizes, layouts and kernels.

use crate::common;
use bramble_kernel::lu::{LuElement, PackedPanel, Triangle, exchange_rows, solve_triangle};
use bramble_kernel::{Kernel, KernelName, open};
use bramble_matrix::{View, ViewMut};
use common::{Float, Layout, Operand, noise};
use std::sync::Arc;

/// The kernels that multiply floats here.
fn kernels() -> Vec<Arc<dyn Kernel>> {
    KernelName::ALL.iter().filter_map(|name| open(*name).ok()).collect()
}

/// Elements by row, as f64.
fn plain<T: LuElement>(view: View<'_, T>) -> Vec<Vec<f64>> {
    (0..view.rows()).map(|i| (0..view.cols()).map(|j| view.at(i, j).to_f64()).collect()).collect()
}

/// The rows in their order after the exchanges.
fn exchanged(mut rows: Vec<Vec<f64>>, pivots: &[usize]) -> Vec<Vec<f64>> {
    pivots.iter().enumerate().for_each(|(i, p)| rows.swap(i, *p));
    rows
}

/// Asserts that the factors multiply to `a` with its rows exchanged, within the rounding of any order of summation (Higham,
/// "Accuracy and stability", theorem 9.3), and that no element of L exceeds 1.
fn assert_factors<T: LuElement>(a: &[Vec<f64>], factors: &[Vec<f64>], pivots: &[usize], what: &str) {
    let (rows, cols) = (a.len(), a.first().map_or(0, Vec::len));
    let square = rows.min(cols);
    assert_eq!(pivots.len(), square, "{what}");
    assert!(pivots.iter().enumerate().all(|(i, p)| i <= *p && *p < rows), "{what}: {pivots:?}");
    let want = exchanged(a.to_vec(), pivots);
    for i in 0..rows {
        for j in 0..cols {
            let terms = (0..=i.min(j).min(square - 1)).map(|k| {
                let l = if k == i { 1.0 } else { factors[i][k] };
                l * factors[k][j]
            });
            let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + f64::abs(x)));
            let bound = 2.0 * (square + 4) as f64 * T::UNIT * (size + want[i][j].abs());
            assert!((sum - want[i][j]).abs() <= bound, "{what} ({i}, {j}): {sum} for {}", want[i][j]);
            assert!(i <= j || factors[i][j].abs() <= 1.0 + 4.0 * T::UNIT, "{what} ({i}, {j})");
        }
    }
}

/// Asserts that no memory between the elements was changed.
fn assert_gaps<T: LuElement>(new: &Operand<T>, old: &Operand<T>, what: &str) {
    for ((new, old), is_element) in new.data.iter().zip(&old.data).zip(old.elements()) {
        assert!(is_element || new == old, "{what}: wrote a gap");
    }
}

fn factor<T: LuElement>(kernel: &dyn Kernel, a: &Operand<T>) {
    let what = format!("{} {}x{} {:?} {}", kernel.name(), a.rows, a.cols, a.layout, T::DTYPE);
    let mut made = a.clone();
    let panel = PackedPanel::factor(kernel, made.view_mut(), noise(3, 1));
    assert_factors::<T>(&plain(a.view()), &plain(made.view()), panel.pivots(), &what);
    assert_gaps(&made, a, &what);
    assert_eq!((panel.rows(), panel.width()), (a.rows, a.cols), "{what}");
    let kept = plain(panel.factors(0..a.rows));
    assert!(kept.iter().zip(plain(made.view())).all(|(k, m)| *k == m), "{what}");
    assert!(panel.diagonal().enumerate().all(|(j, d)| d.to_f64() == kept[j][j]), "{what}");
}

fn small_panels<T: LuElement>() {
    let mut turn = 0;
    for kernel in kernels() {
        for rows in 0..=18 {
            for cols in 0..=rows {
                turn += 1;
                factor(&*kernel, &Operand::<T>::noise(rows, cols, Layout::ALL[turn % 5], turn as u64));
            }
        }
        for (rows, cols) in [(33, 32), (70, 17), (200, 33), (129, 65), (600, 48), (1100, 40)] {
            turn += 1;
            factor(&*kernel, &Operand::<T>::noise(rows, cols, Layout::ALL[turn % 5], turn as u64));
        }
    }
}

#[test]
fn panels_of_all_small_sizes_f64() {
    small_panels::<f64>();
}

#[test]
fn panels_of_all_small_sizes_f32() {
    small_panels::<f32>();
}

#[test]
fn an_updated_block_continues_the_factorisation() {
    // A block column and the columns right of it, updated separately, are the factors of both together.
    for kernel in kernels() {
        for (rows, width, right) in [(1, 1, 3), (20, 7, 9), (60, 33, 1), (90, 40, 70), (17, 17, 5)] {
            for layout in Layout::ALL {
                let (mut left, mut rest) = (
                    Operand::<f64>::noise(rows, width, layout, 1),
                    Operand::<f64>::noise(rows, right, layout, 2),
                );
                let join = |l: &Operand<f64>, r: &Operand<f64>| {
                    let both = plain(l.view()).into_iter().zip(plain(r.view()));
                    both.map(|(l, r)| [l, r].concat()).collect::<Vec<_>>()
                };
                let (a, old) = (join(&left, &rest), rest.clone());
                let panel = PackedPanel::factor(&*kernel, left.view_mut(), Vec::new());
                panel.update(&*kernel, rest.view_mut(), &mut vec![9.0; 3]);
                assert_gaps(&rest, &old, "update");
                // Below the panel's rows lies a Schur complement, P A - L U.
                let (made, want) = (join(&left, &rest), exchanged(a, panel.pivots()));
                for i in 0..rows {
                    for j in width..width + right {
                        let l = |k: usize| if k == i { 1.0 } else { made[i][k] };
                        let terms = (0..width.min(i + 1)).map(|k| l(k) * made[k][j]);
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, t), x| (s + x, t + f64::abs(x)));
                        let below = if i < width { 0.0 } else { made[i][j] };
                        let bound =
                            200.0 * <f64 as LuElement>::UNIT * (size + want[i][j].abs() + below.abs());
                        assert!((sum + below - want[i][j]).abs() <= bound, "{} {i} {j}", kernel.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_column_of_zeros_has_a_pivot_of_zero_and_the_rest_is_factored() {
    let kernel = open(KernelName::Simd).unwrap();
    for zero in [0, 5, 16, 39] {
        let mut a = Operand::<f64>::noise(60, 40, Layout::Rows, 3);
        (0..60).for_each(|i| *a.view_mut().at_mut(i, zero) = 0.0);
        let mut made = a.clone();
        let panel = PackedPanel::factor(&*kernel, made.view_mut(), Vec::new());
        assert_eq!(panel.diagonal().position(|d| d == 0.0), Some(zero));
        assert_factors::<f64>(&plain(a.view()), &plain(made.view()), panel.pivots(), "zero column");
    }
}

#[test]
fn the_first_of_equal_pivots_is_taken() {
    let kernel = open(KernelName::Simd).unwrap();
    let mut a = [1.0, 5.0, -2.0, 6.0, 2.0, 7.0];
    let panel = PackedPanel::factor(&*kernel, ViewMut::row_major(&mut a, 3, 2), vec![7.0; 100]);
    assert_eq!(panel.pivots(), [1, 2]);
    assert_eq!(a, [-2.0, 6.0, -1.0, 13.0, -0.5, 8.0 * (1.0 / 13.0)]);
}

fn undefined_elements_stay_in_the_result<T: LuElement + Float>() {
    for kernel in kernels() {
        for at in [(0, 0), (30, 3), (59, 39), (7, 20)] {
            let mut a = Operand::<T>::noise(60, 40, Layout::Cols, 4);
            *a.view_mut().at_mut(at.0, at.1) = T::nan();
            PackedPanel::factor(&*kernel, a.view_mut(), Vec::new());
            assert!(plain(a.view()).iter().flatten().any(|x| x.is_nan()), "{} {at:?}", kernel.name());
        }
    }
}

#[test]
fn nan_is_not_lost() {
    undefined_elements_stay_in_the_result::<f32>();
    undefined_elements_stay_in_the_result::<f64>();
}

fn triangles<T: LuElement + Float>() {
    for kernel in kernels() {
        for (n, width) in
            (0..=20).flat_map(|n| [(n, 1), (n, 3)]).chain([(33, 40), (100, 7), (130, 130), (65, 0)])
        {
            for (which, layout) in
                [Triangle::UnitLower, Triangle::Upper].into_iter().flat_map(|w| Layout::ALL.map(|l| (w, l)))
            {
                // Small elements off the diagonal, so that the solutions stay of moderate size.
                let mut t = Operand::<T>::filled(n, n, layout, T::nan());
                for (at, x) in noise::<T>(n * n, 5).into_iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let is_inside = if which == Triangle::Upper { j >= i } else { j < i };
                    if is_inside {
                        let shift = if i == j { 2.0f64.copysign(x.to_f64()) } else { 0.0 };
                        *t.view_mut().at_mut(i, j) = T::from_f64(x.to_f64() / 4.0 + shift);
                    }
                }
                let b = Operand::<T>::noise(n, width, layout.other(), 6);
                let mut x = b.clone();
                solve_triangle(&*kernel, which, t.view(), x.view_mut());
                assert_gaps(&x, &b, "solve");
                for i in 0..n {
                    for j in 0..width {
                        let of = |k: usize| match which {
                            Triangle::UnitLower if k == i => 1.0,
                            Triangle::UnitLower if k > i => 0.0,
                            Triangle::Upper if k < i => 0.0,
                            _ => t.view().at(i, k).to_f64(),
                        };
                        let terms = (0..n)
                            .map(|k| if of(k) == 0.0 { 0.0 } else { of(k) * x.view().at(k, j).to_f64() });
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, t), v| (s + v, t + f64::abs(v)));
                        let want = b.view().at(i, j).to_f64();
                        let bound = 2.0 * (n + 4) as f64 * <T as LuElement>::UNIT * (size + want.abs());
                        assert!((sum - want).abs() <= bound, "{} {which:?} {n} {layout:?}", kernel.name());
                    }
                }
            }
        }
    }
}

#[test]
fn triangular_systems_of_all_small_sizes() {
    triangles::<f32>();
    triangles::<f64>();
}

#[test]
fn rows_are_exchanged_in_order_in_every_layout() {
    let pivots = [3, 1, 8, 3, 8, 5];
    for layout in Layout::ALL {
        for cols in [0, 1, 7, 40] {
            let old = Operand::<f32>::noise(9, cols, layout, 7);
            let mut new = old.clone();
            exchange_rows(&mut new.view_mut(), &pivots);
            assert_eq!(plain(new.view()), exchanged(plain(old.view()), &pivots), "{layout:?}");
            assert_gaps(&new, &old, "exchange");
        }
    }
}

#[test]
#[should_panic(expected = "inside the view")]
fn a_row_outside_is_refused() {
    exchange_rows(&mut ViewMut::row_major(&mut [0.0; 6], 3, 2), &[3]);
}
