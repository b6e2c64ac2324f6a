//! A C that is recomputed at once: vectors, and corners of a few rows and columns.

use super::*;

/// (m, k, n): vectors, long and short, and corners; depths that are no multiples of anything.
const SIZES: [(usize, usize, usize); 8] = [
    (1, 300_001, 1),
    (1, 64, 1),
    (601, 1031, 1),
    (1, 1031, 601),
    (8, 5003, 8),
    (3, 4099, 5),
    (7, 2048, 2),
    (2, 65, 8),
];

fn every_element_is_looked_at<T: Element>(ulps: f64) {
    for (number, size) in (0u64..).zip(SIZES) {
        let mut case = uniform::<T>(size, number);
        case.alpha = 2.0;
        case.beta = -1.0;
        case.c0 = Some((0..size.0 * size.2).map(|i| T::from_i64(i as i64 % 5)).collect());
        let right = case.multiplied();
        for effort in [Effort::Fast, Effort::Full] {
            for layouts in ALL_LAYOUTS {
                let one = right.verify_as(layouts, effort, 5, 1);
                assert!(one.is_complete() && one.method == "all elements recomputed", "{size:?} {one:?}");
                assert!(one.worst_ratio <= 1.0);
                assert_eq!(one, right.verify_as(layouts, effort, 5, 3));
                let mut wrong = right.clone();
                let at = (7 * number as usize + 3) % wrong.c.len();
                // The sum of absolute values of uniform factors is about k / 4.
                let off = ulps * ((size.1 as f64 + 3.0) * size.1 as f64 + 20.0);
                wrong.c[at] = T::from_f64(wrong.c[at].to_f64() + off);
                let two = wrong.verify_as(layouts, effort, 5, 2);
                let fault = two.fault.clone().unwrap();
                assert_eq!((fault.row as usize, fault.col as usize), (at / size.2, at % size.2), "{size:?}");
                assert_eq!(two, wrong.verify_as(layouts, effort, 9, 1), "no random numbers are used");
            }
        }
    }
}

#[test]
fn every_element_of_a_vector_or_a_corner_is_looked_at() {
    every_element_is_looked_at::<f64>(2f64.powi(-53));
    every_element_is_looked_at::<f32>(2f64.powi(-24));
}

#[test]
fn an_element_of_a_vector_is_judged_by_its_own_bound_in_fast_effort() {
    // The row's norm is that of one element; the others are smaller by 2^40.
    let mut case = uniform::<f64>((300, 700, 1), 1);
    for row in 1..300 {
        case.a[row * 700..(row + 1) * 700].iter_mut().for_each(|x| *x *= 2f64.powi(-40));
    }
    let mut case = case.multiplied();
    let size: f64 = (0..700).map(|l| (case.a[299 * 700 + l] * case.b[l]).abs()).sum();
    case.c[299] += 3.0 * 703.0 * 2f64.powi(-53) * size;
    let verdict = case.verify(Effort::Fast, 7);
    assert_eq!(verdict.fault.unwrap().row, 299);
}

#[test]
fn integers_of_a_vector_or_a_corner_are_exact() {
    for size in SIZES {
        let of = |i: usize, l: usize| (i as i64 * 77 - l as i64 * 0x1234_5678_9abc) ^ 0x55;
        let right = Case::<i64>::new(size, of, of).multiplied();
        for layouts in ALL_LAYOUTS {
            assert!(right.verify_as(layouts, Effort::Fast, 1, 2).passed);
            let mut wrong = right.clone();
            let at = wrong.c.len() - 1;
            wrong.c[at] ^= i64::MIN;
            let fault = wrong.verify_as(layouts, Effort::Fast, 1, 2).fault.unwrap();
            assert_eq!((fault.row, fault.col), ((at / size.2) as u64, (at % size.2) as u64));
        }
    }
}

#[test]
fn nan_infinity_and_overflow_in_vectors_are_demanded_where_they_belong() {
    for (special, expected) in [(f64::NAN, f64::NAN), (f64::INFINITY, f64::INFINITY)] {
        let mut case = uniform::<f64>((5, 900, 1), 1);
        case.b.iter_mut().for_each(|x| *x = x.abs());
        case.a[2 * 900..].iter_mut().for_each(|x| *x = x.abs());
        case.a[2 * 900 + 450] = special;
        let mut case = case.multiplied();
        assert!(case.c[2] == expected || case.c[2].is_nan() && expected.is_nan());
        assert!(case.passes());
        case.c[2] = 1.0;
        assert!(!case.passes());
        case.c[2] = special;
        case.c[3] = special;
        assert!(!case.passes());
    }
    let mut case = Case::<f64>::new((3, 100, 1), |_, _| 1e154, |_, _| 1e154).multiplied();
    assert!(case.c[0].is_infinite() && case.passes());
    case.c[1] = 1.0;
    assert!(!case.passes());
}
