//! The system of HPL-MxP against a direct transcription of its recurrence, and solutions of small orders.

use super::*;
use crate::LuPart;
use bramble_kernel::KernelName;
use bramble_matrix::DType;
use bramble_wire::message::{LuBegin, LuOrigin, LuRing};
use proptest::prelude::*;

/// The system as the reference implementation makes it: one draw after another, columns first.
fn transcribed(order: usize) -> (Vec<f64>, Vec<f64>) {
    fn draw(state: &mut u64) -> f64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state as f64 * 2f64.powi(-64) - 0.5
    }
    let (mut a, mut sums, mut state) = (vec![0.0f64; order * order], vec![0.0f64; order], 1u64);
    for j in 0..order {
        for i in 0..order {
            a[i * order + j] = draw(&mut state);
            sums[i] += a[i * order + j].abs();
        }
    }
    for i in 0..order {
        a[i * order + i] = sums[i] - a[i * order + i].abs();
    }
    let mut state = 2u64;
    (a, (0..order).map(|_| draw(&mut state)).collect())
}

fn kernels(dtype: DType, threads: usize) -> LuKernels {
    LuKernels::open(Some(KernelName::Simd), dtype, 0.0, threads).unwrap()
}

fn generated(order: usize, threads: usize) -> WorkingMatrix {
    let a = WorkingMatrix::zeros::<f64>(order, order).unwrap();
    generate(&a, threads);
    a
}

fn solved(order: usize, threads: usize) -> Result<MxpSolution, LuError> {
    let options = LuOptions { threads, block: 16 };
    let kernels = (&kernels(DType::F32, threads), &kernels(DType::F64, threads));
    solve(&generated(order, threads), &right_hand_side(order), kernels, options)
}

#[test]
fn the_first_elements_are_those_of_the_reference_implementation() {
    // 6364136223846793006 and its successor, divided by 2⁶⁴, less ½: by hand from the two lines of the generator.
    assert_eq!(right_hand_side(2)[0], 12_728_272_447_693_586_011u64 as f64 / 2f64.powi(64) - 0.5);
    let a = generated(5, 1).rows_of::<f64>().unwrap();
    let first_below = 6_364_136_223_846_793_006u64.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    assert_eq!(a[5], first_below as f64 / 2f64.powi(64) - 0.5);
}

/// The part of the first of two machines that share the columns of an order in blocks of this width.
fn part(order: usize, width: usize, me: usize) -> LuPart<f32> {
    let owners = (0..=order.div_ceil(width)).map(|block| block % 2).collect();
    let ring = LuRing { owners, machines: 2, me };
    let begin =
        LuBegin { order, width, extra: 1, dtype: DType::F32, live_max: 3, origin: LuOrigin::HplMxp, ring };
    let part = LuPart::new(&begin).unwrap();
    part.blocks().collect::<Vec<_>>().into_iter().for_each(|block| part.generate(block));
    part
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn machines_generate_the_same_elements_rounded_and_multiply_by_the_others(
        order in 1..200usize, width in 1..90usize, at in 0.0..1.0f64, len in 0.0..1.0f64, columns in 1..3usize,
    ) {
        let (a, b) = transcribed(order);
        let x: Vec<f64> = (0..order * columns).map(|at| (at * 7919 % 101) as f64 - 50.0).collect();
        let first = (at * order as f64) as usize;
        let rows = first..first + (len * (order - first + 1) as f64) as usize;
        let mut sum = vec![0.0; rows.len() * columns];
        for me in 0..2 {
            let part = part(order, width, me);
            for block in part.blocks() {
                let of_block = if block < order.div_ceil(width) {
                    block * width..order.min((block + 1) * width)
                } else {
                    order..order + 1
                };
                let element = |i: usize, j: usize| if j < order { a[i * order + j] } else { b[i] };
                let expected: Vec<f32> =
                    (0..order).flat_map(|i| of_block.clone().map(move |j| element(i, j) as f32)).collect();
                prop_assert_eq!(part.rows(block, 0..order).unwrap().unwrap(), expected);
            }
            let kernel = kernels(DType::F64, 1).one;
            prop_assert!(part.multiply(&*kernel, rows.clone(), &x[1..], columns).is_none(), "too few rows");
            prop_assert!(part.multiply(&*kernel, 0..order + 1, &x, columns).is_none(), "too many rows");
            let more = part.multiply(&*kernel, rows.clone(), &x, columns).unwrap();
            sum.iter_mut().zip(more).for_each(|(sum, x)| *sum += x);
        }
        for (i, row) in rows.zip(sum.chunks_exact(columns)) {
            for (column, found) in row.iter().enumerate() {
                let terms = (0..order).map(|j| a[i * order + j] * x[j * columns + column]);
                let size: f64 = terms.clone().map(f64::abs).sum();
                prop_assert!((terms.sum::<f64>() - found).abs() <= 1e-13 * (1.0 + size), "row {i}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_order_has_the_bits_of_the_reference_implementation(order in 1..120usize, threads in 1..5usize) {
        let (a, b) = transcribed(order);
        prop_assert_eq!(generated(order, threads).rows_of::<f64>().unwrap(), a);
        prop_assert_eq!(right_hand_side(order), b);
    }

    #[test]
    fn the_memory_grows_with_the_order(order in 1..20_000usize, threads in 1..9usize) {
        let options = LuOptions { threads, block: 64 };
        let (one, next) = (MxpMemory::of(order, options), MxpMemory::of(order + 1, options));
        prop_assert!(next.total() > one.total());
        // Both copies of the matrix are counted.
        prop_assert!(one.total() >= 12 * (order * order) as u64);
    }
}

#[test]
fn systems_of_all_small_orders_are_solved_without_exchanges_from_a_few_rows_on() {
    for order in ORDER_MIN..70 {
        let run = solved(order, 1 + order % 3).unwrap();
        let check = check(&run.found.x, 2, &kernels(DType::F64, 1));
        assert!(run.found.has_converged && check.is_valid(), "{order}: {run:?} {check:?}");
        assert!(
            run.found.iterations <= ITERATIONS_MAX && (order < 8 || run.exchanges == 0),
            "{order}: {run:?}"
        );
    }
}

#[test]
fn orders_below_the_smallest_are_singular() {
    for order in 1..ORDER_MIN {
        assert!(matches!(solved(order, 1), Err(LuError::Singular { .. })), "{order}");
    }
}

#[test]
fn the_check_finds_the_norms_and_a_wrong_element() {
    let order = 90;
    let (a, b) = transcribed(order);
    let run = solved(order, 2).unwrap();
    let right = check(&run.found.x, 3, &kernels(DType::F64, 1));
    let row = |i: usize| a[i * order..][..order].iter().map(|x| x.abs()).sum::<f64>();
    let col = |j: usize| (0..order).map(|i| a[i * order + j].abs()).sum::<f64>();
    let most = |of: &dyn Fn(usize) -> f64| (0..order).map(of).fold(0.0, f64::max);
    let is_near = |x: f64, y: f64| (x - y).abs() <= 1e-12 * y;
    assert!(is_near(right.norms.inf, most(&row)) && is_near(right.norms.one, most(&col)), "{right:?}");
    assert!(is_near(norm_inf(order, 3), right.norms.inf));
    assert_eq!(right.b_inf, most(&|i| b[i].abs()));
    for (at, by) in [(0, 1e-9), (order - 1, 1e-9), (7, f64::NAN)] {
        let mut x = run.found.x.clone();
        x[at] += by;
        assert!(!check(&x, 2, &kernels(DType::F64, 1)).is_valid(), "{at}");
    }
}

#[test]
fn the_solution_does_not_depend_on_the_threads() {
    let of = |threads| solved(130, threads).unwrap().found.x;
    assert_eq!(of(1), of(3));
}
