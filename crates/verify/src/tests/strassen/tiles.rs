//! Products whose tiles a kernel multiplied with levels of Strassen–Winograd, step by step.

use super::*;

/// Tiles and steps that leave edges, and cut-offs that give three levels in whole tiles and fewer at the edge.
const CUTS: [(u64, u64, u64); 4] = [(16, 16, 2), (24, 40, 5), (64, 9, 4), (11, 7, 1)];

impl<T: Element> Case<T> {
    /// Sets C to the product computed tile by tile: each step's product is computed separately and added to C, then the rim
    /// of the step's depth.
    fn by_tiles(self, (tile, depth, cutoff): (u64, u64, u64), pairs: bool) -> Self {
        let rules = Winograd { cutoff };
        let mut case = self;
        let old = case.c0.clone().filter(|_| case.beta != 0.0);
        case.c = match old {
            Some(c0) => c0.iter().map(|c| T::from_f64(case.beta).times(*c)).collect(),
            None => vec![T::ZERO; case.m * case.n],
        };
        case.tiles = vec![TileLevels { tile_rows: tile, tile_cols: tile, depth, rules }];
        let spans = |side: usize, len: u64| {
            let len = len as usize;
            (0..side).step_by(len).map(move |start| (start, side.min(start + len)))
        };
        let (m, n, k) = (case.m, case.n, case.k);
        for rows in spans(m, tile) {
            for cols in spans(n, tile) {
                for step in spans(k, depth) {
                    case.step(rows, cols, step, rules, pairs);
                }
            }
        }
        case
    }

    /// One product of a tile and a step, added to C.
    fn step(
        &mut self,
        (top, bottom): (usize, usize),
        (first, last): (usize, usize),
        (from, to): (usize, usize),
        rules: Winograd,
        pairs: bool,
    ) {
        let sides = [bottom - top, last - first, to - from];
        let levels = rules.levels(sides[0] as u64, sides[1] as u64, sides[2] as u64);
        let [m, n, k] = sides.map(|side| side >> levels << levels);
        let a = Grid::of(&self.a[top * self.k + from..], (m, k), self.k);
        let b = Grid::of(&self.b[from * self.n + first..], (k, n), self.n);
        let product = a.times(&b, levels, pairs);
        let alpha = T::from_f64(self.alpha);
        for i in top..bottom {
            for j in first..last {
                let at = i * self.n + j;
                let is_core = i - top < m && j - first < n;
                let (mut sum, start) = match is_core {
                    true => {
                        (self.c[at].plus(alpha.times(product.elements[(i - top) * n + j - first])), from + k)
                    }
                    false => (self.c[at], from),
                };
                for l in start..to {
                    sum = sum.plus(alpha.times(self.a[i * self.k + l].times(self.b[l * self.n + j])));
                }
                self.c[at] = sum;
            }
        }
    }
}

fn no_product_by_tiles_fails<T: Element>() {
    for seed in 0..3 {
        for kind in KINDS {
            for size in SIZES {
                for cut in CUTS {
                    let case = case_of::<T>(kind, size, seed).by_tiles(cut, seed % 2 == 1);
                    let verdict = case.verify(Effort::Full, seed);
                    assert!(verdict.passed, "{kind} {size:?} {cut:?}, seed {seed}: {verdict:?}");
                }
            }
        }
    }
}

#[test]
fn no_f32_product_by_tiles_fails() {
    no_product_by_tiles_fails::<f32>();
}

#[test]
fn no_f64_product_by_tiles_fails() {
    no_product_by_tiles_fails::<f64>();
}

#[test]
fn without_being_told_of_tiles_the_check_would_convict() {
    for kind in ["scaled rows", "scaled columns", "scaled at random", "graded rows"] {
        let mut case = case_of::<f32>(kind, (64, 64, 64), 2).by_tiles((32, 64, 8), false);
        let verdict = case.verify(Effort::Full, 3);
        assert!(
            verdict.passed && verdict.method.contains("2 level(s) of Strassen–Winograd inside tiles"),
            "{kind}"
        );
        case.tiles.clear();
        assert!(!case.verify(Effort::Full, 3).passed, "{kind}");
    }
}

#[test]
fn one_of_several_kernels_is_enough_to_acquit_and_none_of_them_is_not() {
    let other = TileLevels { tile_rows: 32, tile_cols: 32, depth: 64, rules: Winograd { cutoff: 16 } };
    let case = case_of::<f32>("scaled rows", (64, 64, 64), 2).by_tiles((32, 64, 8), false);
    let is_right = |tiles: Vec<TileLevels>| Case { tiles, ..case.clone() }.verify(Effort::Full, 3).passed;
    assert!(is_right(vec![other, case.tiles[0]]) && is_right(vec![case.tiles[0], other]));
    let classical = TileLevels { rules: Winograd { cutoff: 1000 }, ..other };
    assert!(!is_right(vec![classical]), "a cut-off that leaves no level is no excuse");
}

/// The error that theorem 23.3 of Higham's book allows, for each step.
fn norm_wise(case: &Case<f32>) -> f64 {
    let largest = |x: &[f32]| f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
    let TileLevels { depth, rules, .. } = case.tiles[0];
    let levels = rules.levels(depth, depth, depth);
    let (part, steps) = ((depth >> levels) as f64, (case.k as u64).div_ceil(depth) as f64);
    let units = 18f64.powi(levels as i32) * (part * part + 6.0 * part) * steps + steps * steps * depth as f64;
    units * f64::from(f32::EPSILON / 2.0) * largest(&case.a) * largest(&case.b)
}

#[test]
fn faults_above_the_norm_wise_bound_are_found_in_tiles_and_named() {
    for kind in ["random", "positive", "scaled rows", "scaled at random"] {
        for cutoff in [4, 8, 16] {
            let mut case = case_of::<f32>(kind, (48, 64, 56), 3).by_tiles((32, 32, cutoff), false);
            let (bound, mut random) = (norm_wise(&case), Random::new(5, 9));
            for factor in [2.0, 16.0] {
                for _ in 0..10 {
                    let at = random.below(case.c.len());
                    let right = case.c[at];
                    case.c[at] += (factor * bound) as f32;
                    let fault = case.verify(Effort::Fast, random.next()).fault.unwrap();
                    assert_eq!(
                        (fault.row as usize, fault.col as usize),
                        (at / case.n, at % case.n),
                        "{kind}"
                    );
                    case.c[at] = right;
                }
            }
        }
    }
}

#[test]
fn wild_numbers_spread_through_their_tile_and_no_further() {
    for (wild, left) in [(f32::NAN, true), (f32::INFINITY, false)] {
        let mut case = case_of::<f32>("random", (50, 43, 60), 3);
        match left {
            true => case.a[9 * 43 + 12] = wild,
            false => case.b[12 * 60 + 9] = wild,
        }
        let mut case = case.by_tiles((16, 16, 4), false);
        let verdict = case.verify(Effort::Full, 4);
        assert!(
            verdict.passed && !verdict.is_complete() && verdict.unverified.elements > 0,
            "{wild} {verdict:?}"
        );
        for (row, col) in [(30, 30), (10, 10)] {
            let right = case.c[row * 60 + col];
            case.c[row * 60 + col] += 30.0;
            let fault = case.verify(Effort::Fast, 4).fault.unwrap();
            assert_eq!((fault.row, fault.col), (row as u64, col as u64));
            case.c[row * 60 + col] = right;
        }
    }
}

#[test]
fn levels_above_tiles_and_inside_them_are_refused() {
    let mut case = case_of::<f64>("random", (32, 32, 32), 0).by_tiles((16, 16, 4), false);
    case.levels = 1;
    let (a, c) = (matrix(32, 32, &case.a, Layout::RowMajor), matrix(32, 32, &case.c, Layout::RowMajor));
    let check = Check {
        a: &a,
        b: &a,
        c: &c,
        c0: None,
        alpha: 1.0,
        beta: 0.0,
        levels: 1,
        tiles: &case.tiles,
        effort: Effort::Fast,
        seed: 1,
        threads: 1,
    };
    assert!(verify(&check).unwrap_err().to_string().contains("either alone"));
}
