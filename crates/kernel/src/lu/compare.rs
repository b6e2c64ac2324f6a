//! Compares kernels by what a factorisation spends most of its time in: updates of columns with a panel.
//!
//! Place in the flow: `pick` chooses the kernel of a long factorisation with it, as that of a product with `rate`.
//!
//! Invariants: kernels take turns, so that a disturbance affects all of them alike, and the best turn of each counts. The columns
//! are too many for most caches, as in a factorisation: some kernels wait for C there, which products of 384 × 384 do not show.
//! Factors are so small that the columns stay finite.

use super::{LuElement, PackedPanel};
use crate::{Kernel, KernelClock};
use bramble_matrix::{DType, ViewMut};
use std::time::Duration;

/// Columns of the panel: those of most plans have 128 to 256.
const WIDTH: usize = 192;
/// Rows of the panel and of the columns.
const ROWS: usize = 2048;
/// Columns that are updated at a time, of twice as many.
const COLUMNS: usize = 512;
/// Turns of each kernel that count, after one in which memory is touched.
const TURNS: usize = 3;

/// Gflop/s of each kernel in updates, by `clock`. Takes 0.4 Gflop times four for each kernel, and 20 MB. Panics for integers.
pub(crate) fn compare_updates(kernels: &[&dyn Kernel], dtype: DType, clock: KernelClock<'_>) -> Vec<f64> {
    match dtype {
        DType::F32 => compare_of::<f32>(kernels, clock),
        DType::F64 => compare_of::<f64>(kernels, clock),
        DType::I32 | DType::I64 => panic!("a factorisation of {dtype:?}"),
    }
}

/// Operations of a comparison of that many kernels.
pub(crate) fn comparison_flops(kernels: usize) -> f64 {
    ((TURNS + 1) * kernels) as f64 * update_flops()
}

fn update_flops() -> f64 {
    (WIDTH * COLUMNS * (2 * (ROWS - WIDTH) + WIDTH)) as f64
}

fn compare_of<T: LuElement>(kernels: &[&dyn Kernel], clock: KernelClock<'_>) -> Vec<f64> {
    let factors = vec![T::from_f64(2f64.powi(-20)); ROWS * WIDTH];
    let Some(panel) = PackedPanel::received(factors, ROWS, (0..WIDTH).collect()) else { return Vec::new() };
    let (mut columns, mut scratch) = (vec![T::ONE; ROWS * 2 * COLUMNS], Vec::new());
    let mut best = vec![Duration::MAX; kernels.len()];
    for turn in 0..=TURNS {
        for (at, (kernel, best)) in kernels.iter().zip(&mut best).enumerate() {
            let first = (turn + at) % 2 * COLUMNS;
            let columns = ViewMut::new(&mut columns[first..], ROWS, COLUMNS, 2 * COLUMNS, 1);
            let began = clock();
            panel.update(*kernel, columns, &mut scratch);
            let taken = clock().saturating_sub(began);
            *best = if turn == 0 { *best } else { taken.min(*best) };
        }
    }
    let flops = update_flops();
    best.iter().map(|taken| flops / taken.as_secs_f64().max(1e-9) / 1e9).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Simd;
    use std::cell::Cell;

    #[test]
    fn the_best_turn_of_each_kernel_counts_by_the_clock_that_is_given() {
        // Two readings a turn, and the turns take 9, 9, 7, 7, 5, 5, 3, 3 milliseconds: those of two kernels in four turns.
        let (readings, now) = (Cell::new(0), Cell::new(0));
        let clock = || {
            let reading = readings.replace(readings.get() + 1);
            let passed = if reading % 2 == 1 { 9 - reading / 4 * 2 } else { 1 };
            now.set(now.get() + passed);
            Duration::from_millis(now.get())
        };
        let rates = compare_updates(&[&Simd, &Simd], DType::F32, &clock);
        assert_eq!((readings.get(), rates), (16, vec![update_flops() / 3e-3 / 1e9; 2]));
    }
}
