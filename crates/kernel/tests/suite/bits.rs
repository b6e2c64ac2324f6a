//! The bits of `simd`: the exact sums and their order, unchanged by any cut or stride.

use crate::common;
use bramble_kernel::factors::multiply_in_slices;
use bramble_kernel::{Kernel, KernelElement, KernelName, Product, open, part};
use bramble_matrix::{View, ViewMut};
use common::{Float, Layout, Operand, noise};

/// Whether floats are multiplied and added in one rounding here.
fn fused() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

/// The slices of k that the contract names.
fn slices(k: usize) -> Vec<(usize, usize)> {
    let (mut start, mut all) = (0, Vec::new());
    while start < k {
        let rest = k - start;
        let len = if rest == 513 || rest == 514 { 256 } else { rest.min(512) };
        all.push((start, start + len));
        start += len;
    }
    all
}

/// Element (i, j) as the contract specifies it.
fn element<T: Float>(alpha: T, a: View<'_, T>, b: View<'_, T>, beta: T, c: T, i: usize, j: usize) -> T {
    let k = a.cols();
    let add = |x: T, y: T, z: T| if fused() { x.fused(y, z) } else { x.times(y).plus(z) };
    if k <= 2 {
        let mut sum = a.at(i, 0).times(b.at(0, j));
        if k == 2 {
            sum = sum.plus(a.at(i, 1).times(b.at(1, j)));
        }
        let new = alpha.times(sum);
        return if beta == T::ZERO { new } else { beta.times(c).plus(new) };
    }
    let mut out = if beta == T::ONE { c } else { beta.times(c) };
    for (at, (start, end)) in slices(k).into_iter().enumerate() {
        let sum = (start..end).fold(T::ZERO, |sum, d| add(a.at(i, d), b.at(d, j), sum));
        out = if at == 0 && beta == T::ZERO { alpha.times(sum) } else { add(alpha, sum, out) };
    }
    out
}

fn check_words<T: Float>() {
    let kernel = open(KernelName::Simd).unwrap();
    let shapes = [(1, 1), (1, 7), (9, 1), (2, 3), (16, 16), (17, 15), (5, 40), (67, 70)];
    for (m, n) in shapes {
        for k in [1, 2, 3, 8, 65, 512, 513, 514, 1030] {
            for layout in Layout::ALL {
                for (alpha, beta) in [(1.0, 0.0), (1.0, 1.0), (2.7, -1.3)] {
                    let (a, b) =
                        (Operand::<T>::noise(m, k, layout, 1), Operand::noise(k, n, layout.other(), 2));
                    let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
                    let old = noise::<T>(m * n, 3);
                    let mut c = old.clone();
                    let view = ViewMut::row_major(&mut c, m, n);
                    kernel.multiply(T::any(Product::new(alpha, a.view(), b.view(), beta, view)));
                    // Rows at the corners represent all: the chains are slow to compute here.
                    for (i, j) in [(0, 0), (m - 1, n - 1), (m / 2, n / 3), (0, n - 1), (m - 1, 0)] {
                        let want = element(alpha, a.view(), b.view(), beta, old[i * n + j], i, j);
                        let got = c[i * n + j];
                        assert!(got == want, "{m}x{n}x{k} {layout:?} ({i},{j}): {got:?} is not {want:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn each_element_is_the_sum_that_the_contract_words() {
    check_words::<f32>();
    check_words::<f64>();
}

/// The product done in tiles with edges at `cuts_m` and `cuts_n`.
fn tiled<T: KernelElement>(
    kernel: &dyn Kernel,
    (m, n, k): (usize, usize, usize),
    cuts_m: &[usize],
    cuts_n: &[usize],
    layout: Layout,
) -> Vec<T> {
    let (a, b) = (Operand::<T>::noise(m, k, layout, 1), Operand::<T>::noise(k, n, layout, 2));
    let mut c = noise::<T>(m * n, 3);
    for rows in cuts_m.windows(2) {
        for cols in cuts_n.windows(2) {
            let (a, b) = (a.view(), b.view());
            let a_part = View::new(
                &a.data()[rows[0] * a.row_stride()..],
                rows[1] - rows[0],
                k,
                a.row_stride(),
                a.col_stride(),
            );
            let b_part = View::new(
                &b.data()[cols[0] * b.col_stride()..],
                k,
                cols[1] - cols[0],
                b.row_stride(),
                b.col_stride(),
            );
            let c_part =
                ViewMut::new(&mut c[rows[0] * n + cols[0]..], rows[1] - rows[0], cols[1] - cols[0], n, 1);
            kernel.multiply(T::any(Product::new(T::from_f64(1.5), a_part, b_part, T::ONE, c_part)));
        }
    }
    c
}

fn check_cuts<T: KernelElement>() {
    let kernel = open(KernelName::Simd).unwrap();
    let shape = (131, 190, 700);
    for layout in [Layout::Rows, Layout::Cols] {
        let whole = tiled::<T>(&*kernel, shape, &[0, 131], &[0, 190], layout);
        let cuts = [
            (vec![0, 1, 2, 5, 64, 131], vec![0, 190]),
            (vec![0, 131], vec![0, 1, 3, 17, 100, 189, 190]),
            (vec![0, 16, 30, 33, 130, 131], vec![0, 15, 16, 32, 96, 190]),
        ];
        for (cuts_m, cuts_n) in cuts {
            assert_eq!(tiled::<T>(&*kernel, shape, &cuts_m, &cuts_n, layout), whole, "{cuts_m:?} {cuts_n:?}");
        }
    }
    let other = tiled::<T>(&*kernel, shape, &[0, 131], &[0, 190], Layout::Spread);
    assert_eq!(other, tiled::<T>(&*kernel, shape, &[0, 131], &[0, 190], Layout::Rows));
}

#[test]
fn cuts_across_rows_and_columns_change_no_bit() {
    check_cuts::<f32>();
    check_cuts::<f64>();
    check_cuts::<i32>();
    check_cuts::<i64>();
}

fn check_panels<T: Float>() {
    let kernel = open(KernelName::Simd).unwrap();
    let (m, n, k) = (40, 50, 2100);
    let (a, b) = (noise::<T>(m * k, 1), noise::<T>(k * n, 2));
    let run = |panel: usize| {
        let mut c = noise::<T>(m * n, 3);
        for start in (0..k).step_by(panel) {
            let depth = panel.min(k - start);
            let beta = if start == 0 { T::from_f64(0.3) } else { T::ONE };
            let (a, b) = (View::new(&a[start..], m, depth, k, 1), View::row_major(&b[start * n..], depth, n));
            let c = ViewMut::row_major(&mut c, m, n);
            kernel.multiply(T::any(Product::new(T::from_f64(1.1), a, b, beta, c)));
        }
        c
    };
    let whole = run(k);
    assert!(run(512) == whole && run(1024) == whole);
    assert!(run(500) != whole, "panels of other depths are allowed to differ, and the test can tell");
}

#[test]
fn panels_of_a_multiple_of_512_change_no_bit() {
    check_panels::<f32>();
    check_panels::<f64>();
}

/// Products in slices have the same bits wherever the depth is cut between slices, and for any cut of rows, thin ones included.
fn check_sliced<T: Float>() {
    const SLICE: usize = 256;
    let kernel = open(KernelName::Simd).unwrap();
    for (m, n, k) in [(40, 1, 1030), (40, 30, 770), (3, 17, 513), (50, 9, 258)] {
        for layout in Layout::ALL {
            let (a, b) = (Operand::<T>::noise(m, k, layout, 1), Operand::noise(k, n, layout.other(), 2));
            let made =
                |adds: bool, rows: std::ops::Range<usize>, depth: std::ops::Range<usize>, c: &mut [T]| {
                    let left = part(a.view(), rows.clone(), depth.clone());
                    let right = part(b.view(), depth, 0..n);
                    let c = ViewMut::row_major(&mut c[rows.start * n..rows.end * n], rows.len(), n);
                    multiply_in_slices(&*kernel, 1.5, [left, right], adds, SLICE, c);
                };
            let (mut whole, mut cut) = (vec![T::ZERO; m * n], vec![T::ZERO; m * n]);
            made(false, 0..m, 0..k, &mut whole);
            for rows in [0..m / 3, m / 3..m] {
                made(false, rows.clone(), 0..SLICE, &mut cut);
                made(true, rows, SLICE..k, &mut cut);
            }
            assert!(whole == cut, "{m}x{n}x{k} {layout:?}");
        }
    }
}

#[test]
fn products_in_slices_have_the_same_bits_wherever_the_depth_is_cut() {
    check_sliced::<f32>();
    check_sliced::<f64>();
}
