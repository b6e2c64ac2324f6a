//! Sums and differences, compared with plain loops: every layout, every type, gaps and poison.

use crate::common;
use bramble_kernel::{KernelElement, Sign, combine};
use common::{Float, Layout, Operand};

const SIGNS: [Sign; 2] = [Sign::Plus, Sign::Minus];

fn wanted<T: KernelElement>(sign: Sign, x: T, y: T, beta: T, old: T) -> T {
    let sum = if sign == Sign::Plus { x.plus(y) } else { x.minus(y) };
    if beta == T::ZERO { sum } else { beta.times(old).plus(sum) }
}

fn check<T: KernelElement>(rows: usize, cols: usize, layouts: [Layout; 3], sign: Sign, beta: f64) {
    let [in_a, in_b, in_c] = layouts;
    let a = Operand::<T>::noise(rows, cols, in_a, 1);
    let b = Operand::<T>::noise(rows, cols, in_b, 2);
    let old = Operand::<T>::noise(rows, cols, in_c, 3);
    let (mut c, beta) = (old.clone(), T::from_f64(beta));
    combine(a.view(), sign, b.view(), beta, c.view_mut());
    for i in 0..rows {
        for j in 0..cols {
            let want = wanted(sign, a.view().at(i, j), b.view().at(i, j), beta, old.view().at(i, j));
            assert_eq!(c.view().at(i, j), want, "{rows}x{cols} {layouts:?} {sign:?} at ({i}, {j})");
        }
    }
    for ((new, old), is_element) in c.data.iter().zip(&old.data).zip(old.elements()) {
        assert!(is_element || new == old, "{rows}x{cols} {layouts:?}: wrote a gap");
    }
}

fn all_layouts<T: KernelElement>() {
    let mut turn = 0;
    for (rows, cols) in [(0, 5), (5, 0), (1, 1), (1, 70), (70, 1), (7, 33), (32, 32), (65, 64), (33, 97)] {
        for at in 0..125 {
            let layouts = [at, at / 5, at / 25].map(|t| Layout::ALL[t % 5]);
            turn += 1;
            let beta = [0.0, 1.0, -1.0, 2.5][turn % 4];
            check::<T>(rows, cols, layouts, SIGNS[turn / 4 % 2], beta);
        }
    }
}

#[test]
fn every_layout_gives_what_plain_loops_give_to_the_bit() {
    all_layouts::<f32>();
    all_layouts::<f64>();
    all_layouts::<i32>();
    all_layouts::<i64>();
}

#[test]
fn a_beta_of_zero_never_reads_c_and_special_values_pass() {
    for layout in Layout::ALL {
        let inf = Operand::filled(40, 40, layout.other(), f64::INFINITY);
        let one = Operand::filled(40, 40, layout, 1.0);
        let mut c = Operand::filled(40, 40, layout, f64::nan());
        combine(inf.view(), Sign::Minus, one.view(), 0.0, c.view_mut());
        assert!((0..40).all(|i| c.view().at(i, 39 - i) == f64::INFINITY));
        combine(inf.view(), Sign::Minus, inf.view(), 0.0, c.view_mut());
        assert!((0..40).all(|i| c.view().at(i, i).is_nan()));
    }
}

#[test]
#[should_panic(expected = "B and C have one shape")]
fn shapes_that_differ_are_a_bug_of_the_caller() {
    let (a, b) = (Operand::filled(3, 4, Layout::Rows, 1.0), Operand::filled(4, 3, Layout::Rows, 1.0));
    let mut c = Operand::filled(3, 4, Layout::Rows, 0.0);
    combine(a.view(), Sign::Plus, b.view(), 1.0, c.view_mut());
}
