//! Integer products are checked exactly.

use super::*;

fn full_range<T: Element>(size: (usize, usize, usize), seed: u64) -> Case<T> {
    let (mut ra, mut rb) = (Random::new(seed, 1), Random::new(seed, 2));
    let mut case =
        Case::new(size, |_, _| T::from_i64(ra.next() as i64), |_, _| T::from_i64(rb.next() as i64));
    (case.alpha, case.beta) = (-3.0, 5.0);
    case.c0 = Some((0..size.0 * size.2).map(|_| T::from_i64(ra.next() as i64)).collect());
    case.multiplied()
}

fn single_faults_are_always_found<T: Element>(bits: u32) {
    for seed in 0..30 {
        let mut case = full_range::<T>((17, 12, 23), seed);
        for layouts in ALL_LAYOUTS {
            for effort in [Effort::Fast, Effort::Full] {
                let verdict = case.verify_as(layouts, effort, seed, 2);
                assert!(verdict.passed && verdict.worst_ratio == 0.0, "{verdict:?}");
            }
        }
        for bit in 0..bits {
            let at = (seed as usize * 31 + bit as usize * 7) % case.c.len();
            let right = case.c[at];
            case.c[at] = right.plus(T::from_i64(1i64 << bit));
            let fault = case.verify(Effort::Fast, seed).fault.unwrap();
            assert_eq!((fault.row as usize, fault.col as usize), (at / 23, at % 23));
            case.c[at] = right;
        }
    }
}

#[test]
fn every_single_fault_of_i32_is_found() {
    single_faults_are_always_found::<i32>(32);
}

#[test]
fn every_single_fault_of_i64_is_found() {
    single_faults_are_always_found::<i64>(64);
}

#[test]
fn faults_of_several_elements_are_found() {
    for seed in 0..200 {
        let mut case = full_range::<i32>((9, 5, 40), seed);
        let mut random = Random::new(seed, 7);
        let delta = (random.next() as i32) >> 8;
        case.c[40] = case.c[40].wrapping_add(delta | 1);
        case.c[47] = case.c[47].wrapping_sub(delta | 1);
        let fault = case.verify(Effort::Fast, seed).fault.unwrap();
        assert_eq!((fault.row, fault.col), (1, 0), "opposite faults must not cancel");
    }
    // Two sign bits of one row cancel for every odd vector; full effort has others.
    let mut case = full_range::<i32>((100, 5, 40), 1);
    case.c[40] ^= i32::MIN;
    case.c[47] ^= i32::MIN;
    assert!(case.verify(Effort::Fast, 3).passed && !case.verify(Effort::Full, 3).passed);
}

#[test]
fn factors_and_empty_sums() {
    let case = full_range::<i64>((3, 0, 4), 1);
    assert!(case.passes());
    assert!(!Case { beta: 4.0, ..case.clone() }.passes());
    let case = full_range::<i64>((3, 2, 4), 1);
    assert!(!Case { alpha: 0.0, ..case.clone() }.passes());
    assert!(!Case { beta: 0.0, ..case.clone() }.passes());
    let a = matrix(1, 1, &[1i32], Layout::RowMajor);
    let check = Check {
        a: &a,
        b: &a,
        c: &a,
        c0: None,
        alpha: 0.5,
        beta: 0.0,
        levels: 1,
        tiles: &[],
        effort: Effort::Fast,
        seed: 1,
        threads: 1,
    };
    assert!(verify(&check).is_err());
}
