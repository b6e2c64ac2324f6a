//! Faults are found: flipped bits, lost and repeated work, exchanged tiles.

use super::*;
use crate::scalar::Real;

/// Flips bits of single elements and returns the share that was found; the right element must be named.
fn share_found<T: Element>(bits: std::ops::Range<u32>, flip: impl Fn(T, u32) -> T) -> f64 {
    let (mut found, mut all) = (0u32, 0u32);
    for seed in 0..4 {
        let mut case = uniform::<T>((48, 64, 48), seed).multiplied();
        let mut random = Random::new(seed, 9);
        for bit in bits.clone() {
            for _ in 0..12 {
                let at = random.below(case.c.len());
                let right = case.c[at];
                case.c[at] = flip(right, bit);
                let verdict = case.verify(Effort::Fast, random.next());
                case.c[at] = right;
                all += 1;
                if let Some(fault) = verdict.fault {
                    assert_eq!((fault.row as usize, fault.col as usize), (at / case.n, at % case.n));
                    assert!((fault.expected - right.to_f64()).abs() < 1e-4);
                    found += 1;
                }
            }
        }
    }
    f64::from(found) / f64::from(all)
}

#[test]
fn flips_of_f32_exponents_and_signs_are_found() {
    let share = share_found(23..32, |x: f32, bit| f32::from_bits(x.to_bits() ^ 1 << bit));
    println!("f32 bits 23..32: {share}");
    assert!(share >= 0.98, "{share}");
}

#[test]
fn flips_of_high_f64_bits_are_found() {
    let share = share_found(32..64, |x: f64, bit| f64::from_bits(x.to_bits() ^ 1 << bit));
    println!("f64 bits 32..64: {share}");
    assert!(share >= 0.99, "{share}");
}

/// Applies `spoil` to correct products of each float type; every fault must be found.
fn spoiled(spoil: impl Fn(&mut Case<f32>), name: &str) {
    for seed in 0..10 {
        for effort in [Effort::Fast, Effort::Full] {
            let mut case = uniform::<f32>((64, 256, 64), seed).multiplied();
            spoil(&mut case);
            let verdict = case.verify(effort, seed);
            assert!(
                !verdict.passed && verdict.fault.is_some() && verdict.worst_ratio > 1.0,
                "{name} {verdict:?}"
            );
        }
    }
}

/// Adds `factor` times the terms `from..to` of the inner products to the upper left quarter of C.
fn add_panel(case: &mut Case<f32>, from: usize, to: usize, factor: f32) {
    for i in 0..case.m / 2 {
        for j in 0..case.n / 2 {
            let panel: f32 = (from..to).map(|l| case.a[i * case.k + l] * case.b[l * case.n + j]).sum();
            case.c[i * case.n + j] += factor * panel;
        }
    }
}

#[test]
fn lost_repeated_and_exchanged_work_is_found() {
    spoiled(|case| add_panel(case, 64, 128, -1.0), "lost panel");
    spoiled(|case| add_panel(case, 192, 256, 1.0), "repeated panel");
    spoiled(|case| add_panel(case, 17, 18, -1.0), "lost step");
    spoiled(|case| case.c[..32 * 64].fill(0.0), "rows never written");
    let swap = |case: &mut Case<f32>| {
        for i in 0..32 {
            for j in 0..32 {
                case.c.swap(i * 64 + j, (i + 32) * 64 + j + 32);
            }
        }
    };
    spoiled(swap, "exchanged tiles");
}

/// The number of seeds below `seeds` for which a check with one vector fails the case.
fn found_by<T: Element>(case: &Case<T>, seeds: u64) -> usize {
    (0..seeds).filter(|seed| !case.verify(Effort::Fast, *seed).passed).count()
}

/// With random signs alone, two exchanged columns would cancel in one case of two, in all rows at once. Equal faults in
/// an even number w of columns would cancel in one case of √(π w / 2): one of eight for w = 40.
#[test]
fn faults_that_are_alike_in_all_rows_do_not_cancel() {
    let mut case = uniform::<f64>((8, 8, 64), 1).multiplied();
    (0..8).for_each(|i| case.c.swap(i * 64 + 3, i * 64 + 60));
    assert_eq!(found_by(&case, 400), 400, "exchanged columns");
    for wide in [2, 12, 40] {
        let off_by = |case: &mut Case<f64>, by: f64| {
            for i in 0..80 {
                case.c[i * 64 + 7..i * 64 + 7 + wide].iter_mut().for_each(|x| *x += by);
            }
        };
        let mut case = uniform::<f64>((96, 30, 64), 2).multiplied();
        off_by(&mut case, 1.0);
        assert_eq!(found_by(&case, 400), 400, "{wide} columns off by 1");
    }
}

/// The documentation's promise for any pattern of faults: if one error is F tolerances, it is missed with a probability of
/// at most 2 / F. Two opposite errors in each row are the hardest case known; F is 20 here.
#[test]
fn the_chance_to_miss_a_fault_is_bounded_by_its_size() {
    let mut case = uniform::<f64>((8, 8, 64), 1);
    case.b.chunks_mut(64).for_each(|row| row[60] = row[3]);
    let mut case = case.multiplied();
    // The largest of the rows' tolerances: 8 u (√k Σ |a_il| ‖b_l‖ + ‖c_i‖).
    let norm = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>().sqrt();
    let tolerance = |i: usize| {
        let terms = (0..8).map(|l| case.a[i * 8 + l].abs() * norm(&case.b[l * 64..][..64]));
        8.0 * f64::UNIT * (8f64.sqrt() * terms.sum::<f64>() + norm(&case.c[i * 64..][..64]))
    };
    let by = 20.0 * (0..8).map(tolerance).fold(0.0, f64::max);
    for i in 0..8 {
        case.c[i * 64 + 3] += by;
        case.c[i * 64 + 60] -= by;
    }
    let found = found_by(&case, 1000);
    println!("found {found} of 1000");
    assert!(found >= 900 - 28, "{found} of 1000, three standard deviations below 900");
}

#[test]
fn an_operand_changed_on_its_way_is_found() {
    let mut used = uniform::<f64>((30, 40, 30), 2);
    let given = used.clone();
    used.b[77] = -used.b[77];
    let mut case = used.multiplied();
    case.b = given.b;
    assert!(!case.passes());
}

#[test]
fn wrong_factors_are_found() {
    let mut case = uniform::<f64>((20, 10, 30), 2);
    (case.alpha, case.beta) = (2.5, -1.0);
    case.c0 = Some((0..600).map(f64::from).collect());
    let case = case.multiplied();
    assert!(case.passes());
    for (alpha, beta) in [(2.5, 1.0), (2.5, 0.0), (1.0, -1.0), (0.0, -1.0), (2.5 + 1e-9, -1.0)] {
        assert!(!Case { alpha, beta, ..case.clone() }.passes(), "{alpha} {beta}");
    }
    let mut empty = Case::<f32>::new((3, 0, 4), |_, _| 0.0, |_, _| 0.0);
    assert!(empty.passes());
    empty.c[5] = 1e-20;
    assert!(!empty.passes(), "k = 0 makes zeros");
}

#[test]
fn a_fault_among_many_innocent_alarms_is_found() {
    let mut case = false_alarms::long_sum_of_tenths(80, 60_000);
    let verdict = case.verify_by_vectors(Effort::Full, 1);
    assert!(verdict.is_complete() && verdict.arbitrated_rows == 80, "{verdict:?}");
    assert_eq!(case.verify(Effort::Fast, 1).arbitrated_rows, 32);
    case.c[70 * 4 + 2] *= 1.1;
    let fault = case.verify_by_vectors(Effort::Full, 1).fault.unwrap();
    assert_eq!((fault.row, fault.col), (70, 2));
}

/// At this size a flip below the tolerance shows because its row stands out from the others.
#[test]
fn a_row_that_stands_out_is_looked_at() {
    let mut case = uniform::<f32>((64, 512, 512), 1).multiplied();
    let right = case.verify(Effort::Full, 1);
    assert!(right.passed && right.arbitrated_rows == 0 && right.worst_ratio < 0.01, "{right:?}");
    case.c[20 * 512 + 99] += 0.02;
    let verdict = case.verify(Effort::Fast, 1);
    assert!(verdict.arbitrated_rows == 1, "{verdict:?}");
    let fault = verdict.fault.unwrap();
    assert_eq!((fault.row, fault.col), (20, 99));
}

#[test]
fn full_effort_finds_what_is_not_zero_where_all_terms_are() {
    // Two blocks on the diagonal: elements beside them have terms of zero only.
    let block = |i: usize, j: usize| (i < 47) == (j < 47);
    let even = uniform::<f64>((94, 94, 94), 404);
    let mut case = Case::<f64>::new(
        (94, 94, 94),
        |i, l| if block(i, l) { even.a[i * 94 + l] } else { 0.0 },
        |l, j| if block(l, j) { even.b[l * 94 + j] } else { 0.0 },
    )
    .multiplied();
    assert!(case.verify(Effort::Full, 1).is_complete());
    // Far below the rounding of anything else in the row and the column.
    case.c[3 * 94 + 50] = 1e-300;
    let is_missed = |seed| case.verify_by_vectors(Effort::Full, seed).passed;
    assert!((0..5).any(is_missed), "only recomputing it shows it, unless its row is chosen");
    let fault = case.verify(Effort::Full, 1).fault.unwrap();
    assert_eq!((fault.row, fault.col), (3, 50));
}

#[test]
fn full_effort_recomputes_small_products_of_any_depth() {
    let mut case = uniform::<f64>((90, 90, 90), 826);
    let mut random = Random::new(826, 5);
    for x in case.a.iter_mut().chain(&mut case.b) {
        *x *= 2f64.powi(random.below(41) as i32 - 20);
    }
    let right = case.multiplied();
    for seed in 0..20 {
        let mut case = right.clone();
        let at = (seed as usize * 401) % 8100;
        let size: f64 = (0..90).map(|l| (case.a[at / 90 * 90 + l] * case.b[l * 90 + at % 90]).abs()).sum();
        case.c[at] += 17.0 * 93.0 * 2f64.powi(-53) * size;
        assert!(!case.verify(Effort::Full, seed).passed, "{seed}");
    }
}
