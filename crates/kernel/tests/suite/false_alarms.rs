//! No correct product fails verification, for any kernel: every kernel, element type, effort, alpha and beta; a
//! third of the products are badly scaled.
//!
//! 2,000 in each run of the tests, and 100,000 with
//! `cargo test --release -p bramble-kernel --test suite -- false_alarms --ignored --nocapture`.
//! The output lists library kernels that are not installed here and therefore not tested.
#![allow(clippy::print_stdout)]

use bramble_kernel::{Choice, Kernel, KernelElement, Product, open_on};
use bramble_matrix::{Buffer, DType, Element, Layout, Matrix, Shape, SharedBytes, View, ViewMut, Winograd};
use bramble_verify::{Check, Effort, TileLevels, verify};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const KERNELS: [&str; 7] =
    ["simd", "openblas", "blis", "strassen:simd:8", "strassen:openblas:12", "reference", "blocked:simd:24"];
/// The least sides that Strassen's method multiplies classically, in the names above.
const CUTOFFS: [(&str, u64); 2] = [("strassen:simd:8", 8), ("strassen:openblas:12", 12)];

/// How operands are scaled badly; the other two thirds are `EVEN`.
const SCALINGS: [&str; 12] = [
    "rows",
    "columns",
    "rows and columns",
    "graded rows",
    "graded columns",
    "depth",
    "one column",
    "one row",
    "elements",
    "cancelling",
    "near underflow",
    "near overflow",
];
const EVEN: [&str; 5] = ["uniform", "positive", "tenths", "sparse", "integers"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Uniform in -1..1.
    fn signed(&mut self) -> f64 {
        self.next() as i64 as f64 / 2f64.powi(63)
    }

    fn power(&mut self, most: u64) -> f64 {
        2f64.powi(self.below(2 * most + 1) as i32 - most as i32)
    }

    fn powers(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.power(20)).collect()
    }
}

/// One product; everything follows from the seed.
#[derive(Debug)]
struct Case {
    seed: u64,
    dtype: DType,
    kernel: &'static str,
    scaling: &'static str,
    sides: [usize; 3],
    /// Where the depth is cut into two steps.
    cut: usize,
    alpha: f64,
    beta: f64,
    effort: Effort,
}

impl Case {
    fn of(seed: u64, kernels: &[&'static str]) -> (Self, Random) {
        let mut random = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        // Scaling is of floats only.
        let is_bad = seed.is_multiple_of(3);
        let dtypes = [DType::F32, DType::F64, DType::F32, DType::F64, DType::I32, DType::I64];
        let dtype = dtypes[random.below(if is_bad { 4 } else { 6 }) as usize];
        let able: Vec<&str> = kernels
            .iter()
            .copied()
            .filter(|k| dtype.is_float() || !(k.contains("blas") || k.contains("blis")))
            .collect();
        let kernel = able[random.below(able.len() as u64) as usize];
        let list: &[&str] = if is_bad { &SCALINGS } else { &EVEN };
        let mut scaling = list[random.below(list.len() as u64) as usize];
        // Sums and differences of Strassen's method may overflow where the product does not; such cases are
        // excluded.
        if scaling == "near overflow" && kernel.starts_with("strassen") {
            scaling = "elements";
        }
        let mut side = |most: u64| 1 + random.below(most) as usize;
        let sides = match side(8) {
            1 => [side(48), 1, side(48)],
            2 => [side(8), side(400), side(8)],
            3 => [side(4), side(30), side(200)],
            4 => [side(200), side(30), side(4)],
            5 => [side(96), side(8), side(96)],
            _ => [side(80), side(80), side(80)],
        };
        let is_extreme = scaling.starts_with("near");
        // No step is deeper than the first.
        let cut = if is_extreme { sides[1] } else { sides[1] + 1 - side((sides[1] / 2).max(1) as u64) };
        let factors = [(1.0, 0.0), (1.0, 0.0), (2.0, -1.0), (-3.0, 2.0)];
        let (mut alpha, mut beta) = factors[if is_extreme { 0 } else { random.below(4) as usize }];
        if dtype.is_float() && beta != 0.0 {
            (alpha, beta) = (alpha * 1.1, beta * 0.3);
        }
        let effort = if random.below(2) == 0 { Effort::Fast } else { Effort::Full };
        (Self { seed, dtype, kernel, scaling, sides, cut, alpha, beta, effort }, random)
    }

    /// Elements of A and B.
    fn operands(&self, random: &mut Random) -> [Vec<f64>; 2] {
        let [m, k, n] = self.sides;
        if !self.dtype.is_float() {
            // Products wrap.
            return [m * k, k * n].map(|len| (0..len).map(|_| (random.next() as i32).into()).collect());
        }
        let (rows, cols, depth) = (random.powers(m), random.powers(n), random.powers(k));
        let (tiny, huge, bits) = match self.dtype {
            DType::F32 => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX), 100.0),
            _ => (f64::MIN_POSITIVE, f64::MAX, 900.0),
        };
        let pace = |count: usize| (bits / count as f64).min(1.0);
        let special = [random.below(m as u64) as usize, random.below(n as u64) as usize];
        let large = if self.dtype == DType::F32 { 1e6 } else { 1e16 };
        let (low, high) =
            (tiny.sqrt() * random.power(6), (huge / k as f64).sqrt() * 2f64.powi(-(random.below(4) as i32)));
        let mut element = |is_a: bool, i: usize, j: usize| {
            let x = random.signed();
            // The row of A or the column of B, and the term.
            let (line, term) = if is_a { (i, j) } else { (j, i) };
            x * match self.scaling {
                "rows" if is_a => rows[line],
                "columns" if !is_a => cols[line],
                "rows and columns" => {
                    if is_a {
                        rows[line]
                    } else {
                        cols[line]
                    }
                }
                "graded rows" if is_a => 2f64.powf(-(line as f64 * pace(m)).floor()),
                "graded columns" if !is_a => 2f64.powf(-(line as f64 * pace(n)).floor()),
                "depth" => {
                    if is_a {
                        depth[term]
                    } else {
                        1.0 / depth[term]
                    }
                }
                "one row" if is_a && line == special[0] => large,
                "one column" if !is_a && line == special[1] => large,
                "elements" => random.power(20),
                "near underflow" => low,
                "near overflow" => high,
                "positive" => x.signum(),
                "tenths" => 0.1 / x,
                "sparse" => f64::from(u8::from(random.below(10) == 0)),
                "integers" => (8.0 * x).round() / x,
                _ => 1.0,
            }
        };
        let mut a: Vec<f64> = (0..m * k).map(|at| element(true, at / k, at % k)).collect();
        let mut b: Vec<f64> = (0..k * n).map(|at| element(false, at / n, at % n)).collect();
        if self.scaling == "cancelling" {
            for (l, i) in (k / 2..k / 2 * 2).flat_map(|l| (0..m).map(move |i| (l, i))) {
                a[i * k + l] = a[i * k + l - k / 2];
            }
            for (l, j) in (k / 2..k / 2 * 2).flat_map(|l| (0..n).map(move |j| (l, j))) {
                b[l * n + j] = -b[(l - k / 2) * n + j] * (1.0 + 1e-4 * b[l * n + j]);
            }
        }
        [a, b]
    }
}

fn matrix<T: Element>(rows: usize, cols: usize, data: &[T]) -> Matrix {
    let mut buffer = Buffer::zeroed(size_of_val(data)).unwrap();
    buffer.elements_mut::<T>().copy_from_slice(data);
    let owner: SharedBytes = Arc::new(buffer);
    let shape = Shape::new(rows as u64, cols as u64);
    Matrix::from_shared("product", owner, 0, shape, T::DTYPE, Layout::RowMajor).unwrap()
}

fn made_of<T: Element>(x: f64) -> T {
    if T::DTYPE.is_float() { T::from_f64(x) } else { T::from_i64(x as i64) }
}

/// Multiplies in two steps, like a plan with two panels, and verifies; returns the number of elements that could
/// not be checked.
fn check<T: KernelElement>(case: &Case, kernel: &dyn Kernel, mut random: Random) -> u64 {
    let [m, k, n] = case.sides;
    let [a, b] = case.operands(&mut random).map(|x| x.into_iter().map(made_of::<T>).collect::<Vec<T>>());
    let old: Vec<T> = (0..m * n).map(|_| made_of(8.0 * random.signed())).collect();
    let mut c = old.clone();
    for (from, to) in [(0, case.cut), (case.cut, k)] {
        if from == to {
            continue;
        }
        let left: Vec<T> = (0..m).flat_map(|i| a[i * k + from..i * k + to].iter().copied()).collect();
        let left = View::row_major(&left, m, to - from);
        let right = View::row_major(&b[from * n..to * n], to - from, n);
        let beta = if from == 0 { made_of(case.beta) } else { T::ONE };
        let tile = ViewMut::row_major(&mut c, m, n);
        kernel.multiply(T::any(Product::new(made_of(case.alpha), left, right, beta, tile)));
    }
    let tiles: Vec<TileLevels> = CUTOFFS
        .iter()
        .filter(|(name, _)| *name == case.kernel)
        .map(|&(_, cutoff)| TileLevels {
            tile_rows: m as u64,
            tile_cols: n as u64,
            depth: case.cut as u64,
            rules: Winograd { cutoff },
        })
        .collect();
    let (a, b, c, c0) = (matrix(m, k, &a), matrix(k, n, &b), matrix(m, n, &c), matrix(m, n, &old));
    let verdict = verify(&Check {
        a: &a,
        b: &b,
        c: &c,
        c0: Some(&c0),
        alpha: case.alpha,
        beta: case.beta,
        levels: 0,
        tiles: &tiles,
        effort: case.effort,
        seed: case.seed ^ 0x5eed,
        threads: 1,
    })
    .unwrap();
    assert!(verdict.passed, "{case:?}: {verdict:?}");
    assert!(verdict.worst_ratio <= 1.0, "{case:?}: {verdict:?}");
    verdict.unverified.elements
}

/// Checks that many products on all threads.
fn right_products_pass(count: u64) {
    let is_here = |name: &&str| match open_on(name.parse::<Choice>().unwrap(), 1) {
        Ok(_) => true,
        Err(error) => {
            println!("left out: {error}");
            false
        }
    };
    let kernels: Vec<&str> = KERNELS.into_iter().filter(is_here).collect();
    let (next, partial, unverified) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                break;
            }
            let (case, random) = Case::of(seed, &kernels);
            let kernel = open_on(case.kernel.parse::<Choice>().unwrap(), 1).unwrap();
            let left = match case.dtype {
                DType::F32 => check::<f32>(&case, &*kernel, random),
                DType::F64 => check::<f64>(&case, &*kernel, random),
                DType::I32 => check::<i32>(&case, &*kernel, random),
                DType::I64 => check::<i64>(&case, &*kernel, random),
            };
            partial.fetch_add(u64::from(left > 0), Ordering::Relaxed);
            unverified.fetch_add(left, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    println!(
        "{count} right products of {} passed; of {} of them {} elements could not be checked",
        kernels.join(", "),
        partial.into_inner(),
        unverified.into_inner()
    );
}

#[test]
fn two_thousand_right_products_pass() {
    right_products_pass(2_000);
}

#[test]
#[ignore = "minutes, in a release build"]
fn a_hundred_thousand_right_products_pass() {
    right_products_pass(100_000);
}
