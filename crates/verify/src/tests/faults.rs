//! Faults of every class in products of every scaling: which share of them the check finds, by injection.
//!
//! `cargo test --release -p bramble-verify faults -- --ignored --nocapture` prints the table of docs/verification.md.
#![allow(clippy::print_stdout)] // The table is what the ignored test is for.

use super::*;

const SCALINGS: [&str; 6] = ["even", "rows", "columns", "both", "graded columns", "depth"];
const CLASSES: [&str; 8] =
    ["element", "row", "column", "tile", "zeroed columns", "swapped", "stale", "bit flip"];

/// The factor of line `i` of `count`.
fn scale(random: &mut Random, kind: &str, i: usize, count: usize) -> f64 {
    match kind {
        "graded" => 2f64.powi(-((i * 40 / count.max(1)) as i32)),
        _ => 2f64.powi(random.below(41) as i32 - 20),
    }
}

/// A right product whose rows, columns or depth are scaled by 2^±20, or graded by 2^-40 in all.
fn scaled<T: Element>((m, k, n): (usize, usize, usize), scaling: &str, seed: u64) -> Case<T> {
    let mut random = Random::new(seed, 77);
    let mut lines = |on: &[&str], count: usize| -> Vec<f64> {
        let kind = if scaling.starts_with("graded") { "graded" } else { "random" };
        let factor = |i| if on.contains(&scaling) { scale(&mut random, kind, i, count) } else { 1.0 };
        (0..count).map(factor).collect()
    };
    let (rows, cols) = (lines(&["rows", "both"], m), lines(&["columns", "both", "graded columns"], n));
    let depth = lines(&["depth"], k);
    let (mut ra, mut rb) = (Random::new(seed, 78), Random::new(seed, 79));
    Case::new(
        (m, k, n),
        |i, l| T::from_f64(ra.signed() * rows[i] * depth[l]),
        |l, j| T::from_f64(rb.signed() * cols[j] / depth[l]),
    )
    .multiplied()
}

/// (k + 3) u (|A||B|)_ij.
fn bound<T: Element>(case: &Case<T>, i: usize, j: usize) -> f64 {
    let unit = if T::DTYPE == DType::F32 { 2f64.powi(-24) } else { 2f64.powi(-53) };
    let terms =
        (0..case.k).map(|l| (case.a[i * case.k + l].to_f64() * case.b[l * case.n + j].to_f64()).abs());
    (case.k as f64 + 3.0) * unit * terms.sum::<f64>()
}

/// Puts a fault into C. Returns the largest error, in units of its element's bound.
fn spoil<T: Element>(case: &mut Case<T>, class: &str, random: &mut Random, times: f64) -> f64 {
    let (m, n) = (case.m, case.n);
    let (row, col) = (random.below(m), random.below(n));
    let places: Vec<(usize, usize)> = match class {
        "row" => (0..n).map(|j| (row, j)).collect(),
        "column" => (0..m).map(|i| (i, col)).collect(),
        "tile" => (0..64).map(|x| (row / 8 * 8 + x / 8, col / 8 * 8 + x % 8)).collect(),
        "zeroed columns" => (0..m).flat_map(|i| (0..n).step_by(2).map(move |j| (i, j))).collect(),
        _ => vec![(row, col)],
    };
    let places: Vec<_> = places.into_iter().filter(|(i, j)| *i < m && *j < n).collect();
    let before = case.c.clone();
    for (i, j) in places {
        let sign = if random.next() & 1 == 0 { times } else { -times };
        let (at, off) = (i * n + j, bound(case, i, j) * sign);
        let c = before[at].to_f64();
        case.c[at] = match class {
            "zeroed columns" => T::ZERO,
            "stale" => T::from_f64(c / 2.0),
            "swapped" => before[i * n + (j + 1) % n],
            "bit flip" => flipped(before[at], random),
            _ => T::from_f64(c + off),
        };
    }
    let off = |at: usize| (case.c[at].to_f64() - before[at].to_f64()).abs() / bound(case, at / n, at % n);
    (0..m * n).filter(|at| case.c[*at] != before[*at]).map(off).fold(0.0, f64::max)
}

/// One bit of the sign, the exponent or the upper half of the significand.
fn flipped<T: Element>(x: T, random: &mut Random) -> T {
    if T::DTYPE == DType::F32 {
        let bits = (x.to_f64() as f32).to_bits() ^ 1 << (31 - random.below(20));
        T::from_f64(f64::from(f32::from_bits(bits)))
    } else {
        T::from_f64(f64::from_bits(x.to_f64().to_bits() ^ 1 << (63 - random.below(37))))
    }
}

/// The number of faults of at least 16 bounds, and the number of these that were found.
fn rates<T: Real>(
    size: (usize, usize, usize),
    scaling: &str,
    class: &str,
    effort: Effort,
    count: u64,
) -> (u32, u32) {
    let right = scaled::<T>(size, scaling, count);
    assert!(right.verify_by_vectors(effort, 1).is_complete(), "{scaling}");
    let (mut all, mut found) = (0, 0);
    for seed in 0..count {
        let mut case = right.clone();
        let off = spoil(&mut case, class, &mut Random::new(seed, 80), 17.0);
        if off >= 16.0 {
            all += 1;
            found += u32::from(!case.verify_by_vectors(effort, seed).passed);
        }
    }
    (all, found)
}

/// Full effort must find every fault above 16 times the bound of its element.
#[test]
fn full_effort_finds_faults_of_every_class_in_every_scaling() {
    for scaling in SCALINGS {
        for class in CLASSES {
            for (all, found) in [
                rates::<f32>((40, 96, 200), scaling, class, Effort::Full, 5),
                rates::<f64>((40, 96, 200), scaling, class, Effort::Full, 5),
            ] {
                assert_eq!(found, all, "{scaling}, {class}");
            }
        }
    }
}

/// One large column must not hide faults in the remaining columns.
#[test]
fn a_large_column_hides_nothing() {
    for effort in [Effort::Fast, Effort::Full] {
        let mut case = uniform::<f32>((64, 128, 128), 1);
        case.b.iter_mut().skip(5).step_by(128).for_each(|x| *x *= 1e6);
        let mut case = case.multiplied();
        assert!(case.verify(effort, 3).is_complete());
        case.c.iter_mut().step_by(2).for_each(|x| *x = 0.0);
        assert!(!case.verify(effort, 3).passed, "{effort}");
        let mut case = uniform::<f64>((64, 128, 128), 1);
        case.b.iter_mut().skip(5).step_by(128).for_each(|x| *x *= 1e16);
        let mut case = case.multiplied();
        case.c.iter_mut().step_by(2).for_each(|x| *x = 0.0);
        assert!(!case.verify(effort, 3).passed, "{effort}");
    }
}

/// A large element of B that is multiplied by zeros only must not make its column count as large.
#[test]
fn what_meets_zeros_has_no_weight() {
    let mut case = uniform::<f32>((40, 64, 96), 2);
    case.a.iter_mut().skip(9).step_by(64).for_each(|x| *x = 0.0);
    case.b[9 * 96 + 17] = 1e30;
    let mut case = case.multiplied();
    assert!(case.passes());
    case.c[11 * 96 + 17] *= 1.01;
    assert!(!case.passes());
}

/// Fast effort measures only a sample of A: a column that is zero in all sampled rows must not count as zero.
#[test]
fn what_only_rows_beyond_the_sample_meet_has_weight() {
    let mut case = uniform::<f32>((4096, 2, 64), 4);
    // Only the last rows of A are nonzero in column 1, which multiplies the row of B with one large element.
    for (i, row) in case.a.chunks_mut(2).enumerate() {
        row[usize::from(i < 4064)] = 0.0;
    }
    case.b[64 + 5] = 1e10;
    let right = case.multiplied();
    let mut wrong = right.clone();
    wrong.c[4064 * 64..].iter_mut().step_by(2).for_each(|x| *x = 0.0);
    for layouts in ALL_LAYOUTS {
        for seed in 0..12 {
            let one = right.verify_as(layouts, Effort::Fast, seed, 1);
            assert!(one.is_complete(), "{one:?}");
            assert_eq!(one, right.verify_as(layouts, Effort::Fast, seed, 3));
            assert!(!wrong.verify_as(layouts, Effort::Fast, seed, 2).passed, "{layouts:?}, {seed}");
        }
    }
}

#[test]
#[ignore = "a measurement: minutes"]
fn table_of_rates() {
    let size = (64, 512, 512);
    println!("| scaling | effort | {} |", CLASSES.join(" | "));
    for scaling in SCALINGS {
        for effort in [Effort::Fast, Effort::Full] {
            let mut cells = Vec::new();
            for class in CLASSES {
                let parts = [
                    rates::<f32>(size, scaling, class, effort, 100),
                    rates::<f64>(size, scaling, class, effort, 100),
                ];
                let of = parts.map(|(all, found)| format!("{found}/{all}"));
                cells.push(of.join(", "));
            }
            println!("| {scaling} | {effort} | {} |", cells.join(" | "));
        }
    }
}
