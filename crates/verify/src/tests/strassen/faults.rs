//! Faults in products by Strassen–Winograd are found.

use super::*;

/// The error that theorem 23.3 of Higham's book allows every element, to first order, with the largest elements of A
/// and B: [18^L (n0² + 6 n0) − 6 n] u, with the depth as n.
fn norm_wise(case: &Case<f32>) -> f64 {
    let largest = |x: &[f32]| x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let (depth, part) = (case.k as f64, (case.k >> case.levels) as f64);
    let units = 18f64.powi(case.levels as i32) * (part * part + 6.0 * part) - 6.0 * depth;
    units * f64::from(f32::EPSILON / 2.0) * f64::from(largest(&case.a)) * f64::from(largest(&case.b))
}

#[test]
fn faults_above_the_norm_wise_bound_are_found_and_named() {
    for kind in ["random", "positive", "scaled rows", "scaled columns", "scaled at random", "graded rows"] {
        for levels in 1..=3 {
            let (mut found, mut all) = (0, 0);
            for seed in [0, 3, 5] {
                let mut case = case_of::<f32>(kind, (48, 64, 56), seed).by_strassen(levels, false);
                let bound = norm_wise(&case);
                let mut random = Random::new(seed, 9);
                for factor in [2.0, 8.0, 64.0] {
                    for _ in 0..10 {
                        let at = random.below(case.c.len());
                        let right = case.c[at];
                        case.c[at] += (factor * bound) as f32;
                        let verdict = case.verify(Effort::Fast, random.next());
                        case.c[at] = right;
                        all += 1;
                        if let Some(fault) = verdict.fault {
                            assert_eq!((fault.row as usize, fault.col as usize), (at / case.n, at % case.n));
                            found += 1;
                        }
                    }
                }
            }
            assert_eq!(found, all, "{kind}, {levels} levels");
        }
    }
}

/// Applies `spoil` to correct products; every fault must be found.
fn spoiled(name: &str, spoil: impl Fn(&mut Case<f32>)) {
    for levels in 1..=3 {
        for seed in [0, 2, 3, 5] {
            let mut case = case_of::<f32>("random", (64, 256, 64), seed).by_strassen(levels, false);
            spoil(&mut case);
            let verdict = case.verify(Effort::Fast, seed);
            assert!(!verdict.passed && verdict.fault.is_some(), "{name}, {levels} levels: {verdict:?}");
        }
    }
}

#[test]
fn lost_repeated_and_exchanged_work_is_found_with_levels() {
    spoiled("rows never written", |case| case.c[..32 * 64].fill(0.0));
    spoiled("exchanged tiles", |case| {
        for i in 0..32 {
            for j in 0..32 {
                case.c.swap(i * 64 + j, (i + 32) * 64 + j + 32);
            }
        }
    });
    spoiled("a lost panel", |case| {
        for i in 0..32 {
            for j in 0..32 {
                let panel: f32 = (64..128).map(|l| case.a[i * 256 + l] * case.b[l * 64 + j]).sum();
                case.c[i * 64 + j] -= panel;
            }
        }
    });
    spoiled("a sign in the recipe", |case| {
        // What c21 would be if the last product were added.
        let halves = [(0, 0), (0, 1), (1, 0), (1, 1)];
        let (a, b) = (Grid::of(&case.a, (64, 256), 256), Grid::of(&case.b, (256, 64), 64));
        let [_, _, _, a22] = halves.map(|(i, j)| a.quarter(i, j));
        let [b11, b12, b21, b22] = halves.map(|(i, j)| b.quarter(i, j));
        let product = a22.times(&b22.minus(&b12.minus(&b11)).minus(&b21), 0, false);
        for (at, x) in product.elements.iter().enumerate() {
            case.c[(32 + at / 32) * 64 + at % 32] += 2.0 * x;
        }
    });
}

#[test]
#[ignore = "minutes; the numbers of docs/verification.md"]
fn shares_of_flips_are_measured() {
    for (depth, cols, flips) in [(512, 512, 100), (2048, 2048, 50), (16384, 256, 50)] {
        for levels in 0..=3 {
            let mut case = case_of::<f32>("random", (32, depth, cols), 3).by_strassen(levels, false);
            let mut random = Random::new(9, 9);
            let mut shares = Vec::new();
            for bit in (15..32).rev() {
                let mut found = 0;
                for _ in 0..flips {
                    let at = random.below(case.c.len());
                    let right = case.c[at];
                    case.c[at] = f32::from_bits(right.to_bits() ^ 1 << bit);
                    found += u32::from(!case.verify(Effort::Fast, random.next()).passed);
                    case.c[at] = right;
                }
                shares.push(format!("{bit}: {:.0} %", 100.0 * f64::from(found) / f64::from(flips)));
            }
            println!("k = {depth}, n = {cols}, {levels} levels, f32 bits {}", shares.join(", "));
        }
    }
}
