//! No correct product fails, whatever its data and the order of its sums.

use super::*;

/// The operations of the test's sums that `Element` lacks.
trait Float: Element {
    fn fused(self, a: Self, b: Self) -> Self;
}
impl Float for f32 {
    fn fused(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}
impl Float for f64 {
    fn fused(self, a: Self, b: Self) -> Self {
        a.mul_add(b, self)
    }
}

/// Orders in which kernels add.
#[derive(Clone, Copy, Debug)]
enum Order {
    Forward,
    Reversed,
    Blocked,
    Pairwise,
    Fused,
    /// beta C0 first, alpha folded into A, panel after panel added to C in memory.
    Panels,
}

const ORDERS: [Order; 6] =
    [Order::Forward, Order::Reversed, Order::Blocked, Order::Pairwise, Order::Fused, Order::Panels];

fn pairwise<T: Element>(terms: &[T]) -> T {
    match terms {
        [] => T::ZERO,
        [x] => *x,
        _ => pairwise(&terms[..terms.len() / 2]).plus(pairwise(&terms[terms.len() / 2..])),
    }
}

fn multiply<T: Float>(mut case: Case<T>, order: Order) -> Case<T> {
    let alpha = T::from_f64(case.alpha);
    for at in 0..case.m * case.n {
        let (i, j) = (at / case.n, at % case.n);
        let pairs: Vec<(T, T)> =
            (0..case.k).map(|l| (case.a[i * case.k + l], case.b[l * case.n + j])).collect();
        let terms: Vec<T> = pairs.iter().map(|(a, b)| a.times(*b)).collect();
        let total = |terms: &[T]| terms.iter().fold(T::ZERO, |sum, x| sum.plus(*x));
        case.c[at] = match order {
            Order::Forward => case.finish(at, total(&terms)),
            Order::Reversed => case.finish(at, terms.iter().rev().fold(T::ZERO, |sum, x| sum.plus(*x))),
            Order::Blocked => {
                let blocks: Vec<T> = terms.chunks(8).map(total).collect();
                case.finish(at, total(&blocks))
            }
            Order::Pairwise => case.finish(at, pairwise(&terms)),
            Order::Fused => case.finish(at, pairs.iter().fold(T::ZERO, |sum, (a, b)| sum.fused(*a, *b))),
            Order::Panels => {
                let start = case.c0.as_ref().map_or(T::ZERO, |c0| T::from_f64(case.beta).times(c0[at]));
                pairs.chunks(5).fold(start, |sum, panel| {
                    sum.plus(panel.iter().fold(T::ZERO, |s, (a, b)| s.fused(alpha.times(*a), *b)))
                })
            }
        };
    }
    case
}

/// Kinds of data; the first `CALM` must not even raise an alarm.
const KINDS: u64 = 11;
const CALM: u64 = 8;

fn element<T: Element>(kind: u64, random: &mut Random, i: usize, j: usize) -> T {
    let x = random.signed();
    let small = if T::DTYPE == DType::F32 { 2f64.powi(-126) } else { 2f64.powi(-1022) };
    T::from_f64(match kind {
        0 => x,
        1 => x.abs(),
        // One number in each row, one row in three.
        2 => f64::from(u8::from(j == i * 7 % 5)) * x,
        3 => f64::from(u8::from(i == j)) * x,
        4 => x * 2f64.powi(random.below(81) as i32 - 40),
        5 => f64::from(u8::from(random.below(10) == 0)) * x,
        // One column holds all nonzero elements.
        6 => x * if j == 1 { 1e8 } else { 1.0 },
        7 => x * small,
        8 => x * small.sqrt(),
        9 => 0.1,
        _ => 1.0 + x * 1e-3,
    })
}

const SIZES: [(usize, usize, usize); 14] = [
    (12, 12, 12),
    (1, 1, 1),
    (5, 1, 40),
    (7, 0, 6),
    (40, 3, 2),
    (2, 9, 60),
    (9, 33, 1),
    (1, 50, 9),
    (3, 2, 300),
    (3, 100, 5),
    (0, 4, 3),
    (4, 3, 0),
    (17, 20, 33),
    (1, 200, 1),
];

fn no_product_fails<T: Float>() {
    let mut products = 0;
    for round in 0..3u64 {
        for kind in 0..KINDS {
            for (s, size) in SIZES.into_iter().enumerate() {
                for order in ORDERS {
                    let seed = round * 1000 + kind * 100 + s as u64;
                    let (mut ra, mut rb) = (Random::new(seed, 1), Random::new(seed, 2));
                    let mut case = Case::<T>::new(
                        size,
                        |i, j| element(kind, &mut ra, i, j),
                        |i, j| element(if round == 1 { 0 } else { kind }, &mut rb, i, j),
                    );
                    (case.alpha, case.beta) = [(1.0, 0.0), (2.5, -1.0), (-0.1, 0.3)][round as usize];
                    if round > 0 {
                        let c0 = (0..size.0 * size.2).map(|x| element(kind, &mut rb, x, 1)).collect();
                        case.c0 = Some(c0);
                    }
                    let effort = if seed.is_multiple_of(3) { Effort::Full } else { Effort::Fast };
                    let case = multiply(case, order);
                    let verdict = case.verify(effort, seed);
                    let what = format!("{order:?} kind {kind} {size:?} round {round}: {verdict:?}");
                    assert!(verdict.passed, "{what}");
                    assert!(kind >= CALM || verdict.arbitrated_rows == 0, "{what}");
                    products += 1;
                }
            }
        }
    }
    assert!(products > 2500);
}

#[test]
fn no_f32_product_fails() {
    no_product_fails::<f32>();
}

#[test]
fn no_f64_product_fails() {
    no_product_fails::<f64>();
}

#[test]
fn residuals_of_random_data_stay_far_below_the_tolerance() {
    let mut worst = 0f64;
    for seed in 0..20 {
        for order in ORDERS {
            let ratio = |verdict: Verdict| verdict.worst_ratio;
            worst = worst
                .max(ratio(multiply(uniform::<f32>((30, 40, 50), seed), order).verify(Effort::Full, seed)));
            worst = worst
                .max(ratio(multiply(uniform::<f64>((30, 40, 50), seed), order).verify(Effort::Full, seed)));
        }
    }
    assert!(worst > 0.001 && worst < 0.35, "{worst}");
}

/// A product whose every element is the in-order sum of `k` times 0.1f32, which errs systematically.
pub(super) fn long_sum_of_tenths(m: usize, k: usize) -> Case<f32> {
    let mut case = Case::<f32>::new((m, k, 4), |_, _| 0.1, |_, _| 1.0);
    case.c.fill((0..k).fold(0.0, |sum, _| sum + 0.1));
    case
}

/// Errors far beyond √k u raise an alarm in every row, yet the product is correct.
/// At k = 1 the tolerance is smallest relative to the check's own rounding errors, those of products of f64 with r.
#[test]
fn what_the_check_itself_rounds_is_below_a_third_of_the_tolerance() {
    let mut worst: f64 = 0.0;
    for (n, seeds) in [(1, 2000), (2, 1000), (40, 200), (5000, 10)] {
        for seed in 0..seeds {
            // Constants with all bits of the significand in use, and random elements.
            let constant = uniform::<f64>((20, 1, 1), seed).a;
            let (mut even, odd) = (uniform::<f64>((20, 1, n), seed), uniform::<f64>((20, 1, n), seed));
            even.b = vec![constant[0]; n];
            for case in [even, odd] {
                let verdict = case.multiplied().verify(Effort::Fast, seed);
                assert!(verdict.passed, "{verdict:?}");
                worst = worst.max(verdict.worst_ratio);
            }
        }
    }
    println!("worst ratio {worst}");
    assert!(worst > 0.02 && worst < 1.0 / 3.0, "{worst}");
}

#[test]
fn long_sums_of_constants_are_acquitted() {
    for k in [60_000, 200_000] {
        let verdict = long_sum_of_tenths(34, k).verify_by_vectors(Effort::Full, 1);
        assert!(verdict.is_complete() && verdict.arbitrated_rows == 34, "{verdict:?}");
        // The ratio of acquitted elements is relative to the rigorous bound, which acquits them.
        assert!(verdict.worst_ratio > 0.1 && verdict.worst_ratio <= 1.0, "{verdict:?}");
        assert!(verdict.method.contains("rigorous"), "{verdict:?}");
    }
}

#[test]
fn flushing_underflow_to_zero_is_acquitted() {
    let mut case = uniform::<f32>((20, 30, 20), 4);
    for x in case.a.iter_mut().chain(&mut case.b) {
        *x *= 1e-19;
    }
    let mut case = case.multiplied();
    for c in &mut case.c {
        *c = if c.abs() < f32::MIN_POSITIVE { 0.0 } else { *c };
    }
    assert!(case.passes());
}

#[test]
fn numbers_whose_squares_leave_the_range_are_judged_as_well() {
    for scale in [1e-170, 1e160, 1e-200, 1e290] {
        let mut case = uniform::<f64>((20, 30, 20), 4);
        case.a.iter_mut().for_each(|x| *x *= scale);
        case.b.iter_mut().for_each(|x| *x *= 1e-60);
        let mut case = case.multiplied();
        let verdict = case.verify(Effort::Full, 3);
        assert!(verdict.passed && verdict.arbitrated_rows == 0 && verdict.worst_ratio > 1e-3, "{verdict:?}");
        case.c[77] *= 1.001;
        assert!(!case.passes());
        // The same with B as the small or large one.
        let mut case = uniform::<f64>((20, 30, 20), 5);
        case.b.iter_mut().for_each(|x| *x *= scale);
        let verdict = case.multiplied().verify(Effort::Full, 3);
        assert!(verdict.passed && verdict.arbitrated_rows == 0 && verdict.worst_ratio > 1e-3, "{verdict:?}");
    }
}
