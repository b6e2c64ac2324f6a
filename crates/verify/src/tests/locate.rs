//! Wrong tiles are named, and right ones are not.

use super::*;
use bramble_matrix::Rect;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Places of tiles, in rectangles of tiles.
fn tiles(found: &[Rect]) -> BTreeSet<(u64, u64)> {
    found.iter().flat_map(|r| r.rows.iter().flat_map(|i| r.cols.iter().map(move |j| (i, j)))).collect()
}

fn located<T: Element>(case: &Case<T>, edge: u64) -> BTreeSet<(u64, u64)> {
    let a = matrix(case.m, case.k, &case.a, Layout::ColMajor);
    let b = matrix(case.k, case.n, &case.b, Layout::RowMajor);
    let c = matrix(case.m, case.n, &case.c, Layout::RowMajor);
    let c0 = case.c0.as_ref().map(|c0| matrix(case.m, case.n, c0, Layout::ColMajor));
    let (alpha, beta, seed) = (case.alpha, case.beta, 5);
    let (levels, tiles_made, effort, threads) = (0, &[], Effort::Fast, 2);
    let c0 = c0.as_ref();
    let check =
        Check { a: &a, b: &b, c: &c, c0, alpha, beta, levels, tiles: tiles_made, effort, seed, threads };
    assert!(!verify(&check).unwrap().passed);
    tiles(&wrong_tiles(&check, (edge, edge)).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_wrong_tile_is_named_and_no_other(
        (m, n) in (1usize..60, 1usize..60), edge in 3u64..20, wrong in proptest::collection::vec(any::<(u32, u32)>(), 1..6),
    ) {
        let mut case = Case::new((m, 11, n), |i, l| (i * 7 + l) as f64 % 9.0 - 4.0, |l, j| (l + j * 5) as f64 % 7.0 - 3.0);
        case.c0 = Some((0..m * n).map(|x| x as f64 % 5.0).collect());
        (case.alpha, case.beta) = (0.5, -2.0);
        let mut case = case.multiplied();
        let mut want = BTreeSet::new();
        for (row, col) in wrong {
            let (row, col) = (row as usize % m, col as usize % n);
            // Each is another power of two: faults of one row are of different sizes.
            case.c[row * n + col] += f64::powi(2.0, 10 + want.len() as i32);
            want.insert((row as u64 / edge, col as u64 / edge));
        }
        prop_assert_eq!(located(&case, edge), want);
    }
}

#[test]
fn a_tile_of_integers_that_is_off_by_one_is_named() {
    let mut case = Case::new((40, 30, 50), |i, l| (i * l) as i64, |l, j| (l + j) as i64).multiplied();
    case.c[25 * 50 + 33] += 1;
    assert_eq!(located(&case, 8), BTreeSet::from([(3, 4)]));
}

#[test]
fn a_machine_that_returned_nothing_but_nan_or_zeros_is_found_out_tile_by_tile() {
    let right = Case::new((32, 20, 32), |i, l| (i + l) as f32, |l, j| (l * j) as f32 + 1.0).multiplied();
    for value in [f32::NAN, 0.0, f32::INFINITY] {
        let mut case = right.clone();
        for (at, x) in case.c.iter_mut().enumerate().filter(|(at, _)| at / 32 >= 16) {
            *x = if at % 32 < 24 { value } else { *x };
        }
        let want = (2..4).flat_map(|i| (0..3).map(move |j| (i, j))).collect();
        assert_eq!(located(&case, 8), want, "{value}");
    }
}
