//! NaN and infinities: correct where IEEE arithmetic produces them, faults everywhere else.

use super::*;

const WILD: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// A product with some wild entries in A, B or C0, computed as IEEE would.
fn wild_case<T: Element>(seed: u64) -> Case<T> {
    let mut case = uniform::<T>((20, 15, 25), seed);
    let mut random = Random::new(seed, 50);
    case.alpha = [1.0, -2.0][random.below(2)];
    if seed.is_multiple_of(3) {
        case.beta = -0.5;
        case.c0 = Some((0..500).map(|_| T::from_f64(random.signed())).collect());
    }
    for _ in 0..1 + random.below(4) {
        let wild = T::from_f64(WILD[random.below(3)]);
        let (at, which) = (random.next() as usize, random.below(3));
        let into = match (which, &mut case.c0) {
            (0, Some(c0)) => c0,
            (1, _) => &mut case.a,
            _ => &mut case.b,
        };
        let len = into.len();
        into[at % len] = wild;
        // Some zeros to meet the infinities: 0 * inf is NaN.
        case.a[(at >> 20) % 300] = T::ZERO;
        case.b[(at >> 40) % 375] = T::ZERO;
    }
    case.multiplied()
}

fn each_way<T: Element>() {
    for seed in 0..150 {
        let mut case = wild_case::<T>(seed);
        let layouts = ALL_LAYOUTS[seed as usize % 4];
        let right = case.verify_as(layouts, Effort::Fast, seed, 2);
        assert!(right.passed, "{seed}: {right:?}");
        assert!(case.verify(Effort::Full, seed).passed);
        let mut random = Random::new(seed, 51);
        for _ in 0..6 {
            let at = random.below(case.c.len());
            let kept = case.c[at];
            let wrong = [0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(4)];
            if kept.to_f64().total_cmp(&wrong).is_eq() || kept.to_f64().is_nan() && wrong.is_nan() {
                continue;
            }
            case.c[at] = T::from_f64(wrong);
            let verdict = case.verify_as(layouts, Effort::Fast, seed, 2);
            let fault = verdict.fault.unwrap_or_else(|| panic!("{seed}: {wrong} for {kept:?} at {at}"));
            assert_eq!((fault.row as usize, fault.col as usize), (at / case.n, at % case.n));
            case.c[at] = kept;
        }
    }
}

#[test]
fn wild_numbers_each_way_in_f32() {
    each_way::<f32>();
}

#[test]
fn wild_numbers_each_way_in_f64() {
    each_way::<f64>();
}

#[test]
fn finite_faults_are_found_beside_wild_numbers() {
    let mut case = uniform::<f32>((100, 20, 100), 1);
    case.b[5] = f32::NAN;
    case.a[90 * 20] = f32::INFINITY;
    let mut case = case.multiplied();
    case.c[10 * 100 + 40] += 0.001;
    let fault = case.verify(Effort::Fast, 1).fault.unwrap();
    assert_eq!((fault.row, fault.col), (10, 40));
}

#[test]
fn unread_operands_may_hold_anything() {
    let mut case = uniform::<f64>((4, 5, 6), 1);
    case.a[3] = f64::NAN;
    case.c0 = Some(vec![f64::NAN; 24]);
    (case.alpha, case.beta) = (0.0, 0.0);
    case.c = vec![0.0; 24];
    assert!(case.passes(), "neither A nor C0 is read");
    case.c[7] = f64::NAN;
    assert!(!case.passes());
    case.beta = 1.0;
    case.c = vec![f64::NAN; 24];
    assert!(case.passes() && case.verify(Effort::Full, 1).passed);
    case.c[7] = 0.0;
    assert!(!case.passes());
}

#[test]
fn sums_that_overflow_in_some_orders_are_counted_as_not_verified() {
    fn overflowing<T: Element>(huge: f64, rows: usize) {
        let mut case =
            Case::<T>::new((rows, 3, 2), |_, l| T::from_f64([huge, huge, -huge][l]), |_, _| T::from_f64(4.0));
        case = case.multiplied();
        assert!(case.c[0].to_f64().is_infinite() || case.c[0].to_f64().is_nan());
        let verdict = case.verify(Effort::Full, 1);
        // One order of summation gives NaN, another an infinity: such elements are reported as unverified, not as faults.
        assert!(verdict.passed && !verdict.is_complete(), "{verdict:?}");
        assert_eq!(verdict.unverified.elements, 2 * rows as u64);
        case.c.fill(T::from_f64(f64::INFINITY));
        assert!(case.verify(Effort::Fast, 7).is_complete(), "too large in every order");
        case.c.fill(T::from_f64(huge));
        assert!(!case.passes());
    }
    for rows in [3, 200] {
        overflowing::<f32>(1e38, rows);
        overflowing::<f64>(1e308, rows);
    }
    // An infinity where nothing can overflow, in many rows.
    let mut case = uniform::<f64>((200, 3, 4), 1).multiplied();
    case.c[700] = f64::INFINITY;
    assert!(!case.passes());
}

#[test]
fn many_wild_rows_and_columns_are_judged_or_counted() {
    let mut case = uniform::<f32>((150, 4, 200), 1);
    case.b[3 * 200..].fill(f32::NAN);
    let mut case = case.multiplied();
    let verdict = case.verify(Effort::Fast, 1);
    assert!(verdict.is_complete() && verdict.method.contains("200 row(s) and column(s)"), "{verdict:?}");
    case.c.fill(1.0);
    assert!(!case.passes());
    let mut case = uniform::<f32>((150, 4, 20), 1);
    case.a.iter_mut().step_by(4).for_each(|x| *x = f32::INFINITY);
    let mut case = case.multiplied();
    let verdict = case.verify(Effort::Fast, 1);
    assert!(verdict.is_complete() && verdict.method.contains("150 row(s) and column(s)"), "{verdict:?}");
    // Where recomputing exceeds the budget, a sample of rows is judged and the remaining elements are counted as unverified.
    let verdict = case.verify_within(1, Effort::Fast);
    assert!(verdict.passed && verdict.unverified.elements == (150 - 64) * 20, "{verdict:?}");
    case.c.fill(1.0);
    assert!(!case.passes());
    // A whole column of C0 is not finite: the test must leave out that column, not all rows.
    let mut case = uniform::<f32>((150, 4, 20), 1);
    case.beta = 1.0;
    let mut c0 = vec![1.0; 3000];
    c0.iter_mut().skip(7).step_by(20).for_each(|x| *x = f32::NAN);
    case.c0 = Some(c0);
    let mut case = case.multiplied();
    let verdict = case.verify(Effort::Fast, 1);
    assert!(verdict.passed && verdict.method.contains("1 row(s) and column(s)"), "{verdict:?}");
    case.c[149 * 20 + 3] += 1.0;
    assert_eq!(case.verify(Effort::Fast, 1).fault.unwrap().row, 149);
}

/// If all terms have one sign, every order of summation gives the same infinity, however large the sum is.
#[test]
fn sums_of_one_sign_that_overflow_have_to_be_infinite() {
    fn all_of<T: Element>(size: f64, k: usize) {
        let mut case =
            Case::<T>::new((40, k, 30), |_, _| T::from_f64(size), |_, _| T::from_f64(size)).multiplied();
        for effort in [Effort::Fast, Effort::Full] {
            assert!(case.c.iter().all(|c| c.to_f64() == f64::INFINITY));
            let verdict = case.verify(effort, 3);
            assert!(verdict.is_complete() && verdict.worst_ratio <= 1.0, "{verdict:?}");
            for wrong in [0.0, f64::NAN, f64::NEG_INFINITY, 1.0] {
                let right = case.c.clone();
                case.c.fill(T::from_f64(wrong));
                assert!(!case.verify(effort, 3).passed, "{wrong}");
                case.c.copy_from_slice(&right);
                case.c[17 * 30 + 7] = T::from_f64(wrong);
                let fault = case.verify(effort, 3).fault.unwrap();
                assert_eq!((fault.row, fault.col), (17, 7));
                case.c.copy_from_slice(&right);
            }
        }
    }
    all_of::<f32>(5e18, 64);
    all_of::<f64>(3e153, 64);
    all_of::<f64>(1e160, 3);
}

/// Near the largest number and below it nothing overflows in any order.
#[test]
fn sums_that_stay_below_the_largest_number_have_to_be_finite() {
    fn all_of<T: Element>(size: f64) {
        let mut case = Case::<T>::new(
            (20, 8, 20),
            |i, l| T::from_f64(if (i + l) % 3 == 0 { -size } else { size }),
            |_, _| T::from_f64(size),
        )
        .multiplied();
        for effort in [Effort::Fast, Effort::Full] {
            assert!(case.c.iter().all(|c| c.to_f64().is_finite()));
            let verdict = case.verify(effort, 3);
            assert!(verdict.is_complete(), "{verdict:?}");
            for wrong in [0.0, f64::NAN, f64::INFINITY] {
                let right = case.c[55];
                case.c[55] = T::from_f64(wrong);
                assert!(!case.verify(effort, 3).passed, "{wrong}");
                case.c[55] = right;
            }
        }
    }
    all_of::<f32>(5.5e18);
    all_of::<f64>(5e153);
}
