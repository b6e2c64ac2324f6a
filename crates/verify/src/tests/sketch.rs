//! A sketch of B detects the faults that a check with B detects, and never passes a product that only the whole check
//! can judge.

use super::*;
use crate::Sketch;

/// The operands and C of a case, in memory.
fn matrices<T: Element>(case: &Case<T>, layouts: [Layout; 3]) -> [Matrix; 3] {
    [
        matrix(case.m, case.k, &case.a, layouts[0]),
        matrix(case.k, case.n, &case.b, layouts[1]),
        matrix(case.m, case.n, &case.c, layouts[2]),
    ]
}

fn check<'a, T>(case: &'a Case<T>, [a, b, c]: &'a [Matrix; 3], c0: Option<&'a Matrix>) -> Check<'a> {
    Check {
        a,
        b,
        c,
        c0,
        alpha: case.alpha,
        beta: case.beta,
        levels: case.levels,
        tiles: &case.tiles,
        effort: Effort::Fast,
        seed: 0,
        threads: 2,
    }
}

/// What a sketch of B says of the case.
fn sketched<T: Element>(case: &Case<T>, layouts: [Layout; 3], seed: u64) -> Option<Verdict> {
    let all = matrices(case, layouts);
    let c0 = case.c0.as_ref().map(|c0| matrix(case.m, case.n, c0, layouts[2]));
    let sketch = Sketch::of(&all[1], seed, 2).unwrap()?;
    sketch.verify(&check(case, &all, c0.as_ref())).unwrap()
}

fn is_quiet<T: Element>(case: &Case<T>) -> bool {
    sketched(case, [Layout::RowMajor; 3], 11).is_some_and(|verdict| verdict.passed)
}

const SIZES: [(usize, usize, usize); 5] =
    [(1, 300, 200), (64, 200, 333), (200, 33, 150), (3, 1, 500), (70, 400, 1)];

fn right_products_pass<T: Element>() {
    for (seed, size) in (1..).zip(SIZES) {
        let case = uniform::<T>(size, seed).multiplied();
        for layouts in ALL_LAYOUTS {
            let verdict = sketched(&case, layouts, seed).unwrap_or_else(|| panic!("{size:?} {layouts:?}"));
            assert!(verdict.is_complete() && verdict.worst_ratio < 1.0, "{verdict:?}");
        }
    }
}

#[test]
fn right_products_pass_without_reading_b_again() {
    right_products_pass::<f32>();
    right_products_pass::<f64>();
    right_products_pass::<i32>();
    right_products_pass::<i64>();
    // B need not even be the same afterwards.
    let case = uniform::<f64>((50, 60, 70), 1).multiplied();
    let all = matrices(&case, [Layout::RowMajor; 3]);
    let sketch = Sketch::of(&all[1], 4, 1).unwrap().unwrap();
    let [a, _, c] = &all;
    let other = [a.clone(), matrix(60, 70, &vec![0.0; 60 * 70], Layout::RowMajor), c.clone()];
    assert!(sketch.verify(&check(&case, &other, None)).unwrap().unwrap().passed);
}

#[test]
fn factors_count_and_an_old_c_only_for_integers() {
    let mut floats = uniform::<f32>((40, 90, 80), 2);
    floats.alpha = -2.5;
    assert!(is_quiet(&floats.clone().multiplied()));
    floats.beta = 1.0;
    floats.c0 = Some(vec![1.0; 40 * 80]);
    assert!(!is_quiet(&floats.multiplied()), "the old C may scale the columns");
    let mut integers = uniform::<i64>((40, 90, 80), 2);
    (integers.alpha, integers.beta, integers.c0) = (3.0, -2.0, Some((0..40 * 80).collect()));
    let integers = integers.multiplied();
    assert!(is_quiet(&integers));
    let mut wrong = integers;
    wrong.c[1234] ^= 1 << 40;
    assert!(!is_quiet(&wrong));
}

/// Every fault of an element by half of its value, in columns whose sizes differ by up to 10^6.
fn faults_are_seen<T: Real>(scale: impl Fn(usize) -> f64) {
    let mut case = uniform::<T>((60, 150, 90), 5);
    for (at, x) in case.b.iter_mut().enumerate() {
        *x = T::from_f64(x.to_f64() * scale(at % 90));
    }
    let case = case.multiplied();
    assert!(is_quiet(&case));
    let all = matrices(&case, [Layout::RowMajor; 3]);
    let sketch = Sketch::of(&all[1], 9, 1).unwrap().unwrap();
    let mut random = Random::new(3, 3);
    for _ in 0..300 {
        let mut wrong = case.clone();
        let (row, col) = (random.below(60), random.below(90));
        let at = row * 90 + col;
        // Elements near zero may be small beside the rounding errors of their row.
        if wrong.c[at].to_f64().abs() < 0.5 * scale(col) {
            continue;
        }
        wrong.c[at] = T::from_f64(wrong.c[at].to_f64() * 1.5);
        let all = matrices(&wrong, [Layout::RowMajor; 3]);
        let verdict = sketch.verify(&check(&wrong, &all, None)).unwrap();
        assert_eq!(verdict, None, "row {row}, column {col}");
    }
}

#[test]
fn faults_in_small_columns_are_seen() {
    faults_are_seen::<f32>(|_| 1.0);
    faults_are_seen::<f32>(|col| 10f64.powi((col % 7) as i32 - 3));
    faults_are_seen::<f64>(|col| if col == 7 { 1e12 } else { 1.0 });
}

/// A scales the rows of B: rows 0 to 31 of B are large in column 3 only, and A nearly leaves them out. Column 3 of C
/// is then as small as the others, but its weight is that of a large one, so a fault in it would pass.
#[test]
fn columns_that_a_scales_unevenly_are_left_to_the_full_check() {
    let mut case = uniform::<f64>((64, 320, 50), 8);
    for row in 0..32 {
        case.b[row * 50 + 3] *= 1e9;
    }
    assert!(is_quiet(&case.clone().multiplied()), "the columns of this A are alike");
    for (at, x) in case.a.iter_mut().enumerate() {
        if at % 320 < 32 {
            *x *= 1e-9;
        }
    }
    let case = case.multiplied();
    assert!(case.passes() && !is_quiet(&case));
    // With an A of zeros there, too.
    let mut zeros = case;
    for (at, x) in zeros.a.iter_mut().enumerate() {
        if at % 320 < 32 {
            *x = 0.0;
        }
    }
    assert!(!is_quiet(&zeros.multiplied()));
}

#[test]
fn nan_infinity_levels_and_other_efforts_are_left_to_the_full_check() {
    let case = uniform::<f64>((64, 64, 64), 4).multiplied();
    let mut wild = case.clone();
    wild.b[5] = f64::NAN;
    assert_eq!(sketched(&wild, [Layout::RowMajor; 3], 1), None);
    let mut wild = case.clone();
    wild.a[5] = f64::INFINITY;
    assert_eq!(sketched(&wild.multiplied(), [Layout::RowMajor; 3], 1), None);
    let mut levels = case.clone();
    levels.levels = 2;
    assert_eq!(sketched(&levels, [Layout::RowMajor; 3], 1), None);
    let all = matrices(&case, [Layout::RowMajor; 3]);
    let sketch = Sketch::of(&all[1], 1, 1).unwrap().unwrap();
    for effort in [Effort::Off, Effort::Full] {
        assert_eq!(sketch.verify(&Check { effort, ..check(&case, &all, None) }).unwrap(), None);
    }
    let other = uniform::<f64>((64, 65, 64), 4).multiplied();
    let others = matrices(&other, [Layout::RowMajor; 3]);
    assert_eq!(sketch.verify(&check(&other, &others, None)).unwrap(), None);
}
