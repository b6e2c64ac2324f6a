//! Products made with levels of Strassen–Winograd: right ones never fail, faults above the norm-wise bound are found.

use super::*;

/// A matrix as contiguous rows.
#[derive(Clone)]
struct Grid<T> {
    rows: usize,
    cols: usize,
    elements: Vec<T>,
}

impl<T: Element> Grid<T> {
    fn of(elements: &[T], (rows, cols): (usize, usize), width: usize) -> Self {
        let elements = (0..rows * cols).map(|at| elements[at / cols * width + at % cols]).collect();
        Self { rows, cols, elements }
    }

    fn quarter(&self, row: usize, col: usize) -> Self {
        let (rows, cols) = (self.rows / 2, self.cols / 2);
        Self::of(&self.elements[row * rows * self.cols + col * cols..], (rows, cols), self.cols)
    }

    fn plus(&self, other: &Self) -> Self {
        self.with(other, T::ONE)
    }

    fn minus(&self, other: &Self) -> Self {
        self.with(other, T::from_f64(-1.0))
    }

    fn with(&self, other: &Self, sign: T) -> Self {
        let elements =
            self.elements.iter().zip(&other.elements).map(|(a, b)| a.plus(sign.times(*b))).collect();
        Self { elements, ..*self }
    }

    /// Classical below `levels` levels of the recipe; `pairs` adds by halves instead of in order.
    fn times(&self, other: &Self, levels: u32, pairs: bool) -> Self {
        if levels == 0 {
            let terms = |i: usize, j: usize| -> Vec<T> {
                (0..self.cols)
                    .map(|l| self.elements[i * self.cols + l].times(other.elements[l * other.cols + j]))
                    .collect()
            };
            let elements = (0..self.rows * other.cols)
                .map(|at| terms(at / other.cols, at % other.cols))
                .map(
                    |terms| {
                        if pairs { halves(&terms) } else { terms.iter().fold(T::ZERO, |s, x| s.plus(*x)) }
                    },
                )
                .collect();
            return Self { rows: self.rows, cols: other.cols, elements };
        }
        let [a11, a12, a21, a22] = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(i, j)| self.quarter(i, j));
        let [b11, b12, b21, b22] = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(i, j)| other.quarter(i, j));
        let s1 = a21.plus(&a22);
        let s2 = s1.minus(&a11);
        let s3 = a11.minus(&a21);
        let s4 = a12.minus(&s2);
        let t1 = b12.minus(&b11);
        let t2 = b22.minus(&t1);
        let t3 = b22.minus(&b12);
        let t4 = t2.minus(&b21);
        let m = [(&a11, &b11), (&a12, &b21), (&s4, &b22), (&a22, &t4), (&s1, &t1), (&s2, &t2), (&s3, &t3)]
            .map(|(s, t)| s.times(t, levels - 1, pairs));
        let u2 = m[0].plus(&m[5]);
        let u3 = u2.plus(&m[6]);
        let u4 = u2.plus(&m[4]);
        let quarters = [m[0].plus(&m[1]), u4.plus(&m[2]), u3.minus(&m[3]), u3.plus(&m[4])];
        let half = m[0].cols;
        let at = |i: usize, j: usize| {
            let quarter = &quarters[i / m[0].rows * 2 + j / half];
            quarter.elements[i % m[0].rows * half + j % half]
        };
        let elements = (0..self.rows * other.cols).map(|x| at(x / other.cols, x % other.cols)).collect();
        Self { rows: self.rows, cols: other.cols, elements }
    }
}

fn halves<T: Element>(terms: &[T]) -> T {
    match terms {
        [] => T::ZERO,
        [x] => *x,
        _ => halves(&terms[..terms.len() / 2]).plus(halves(&terms[terms.len() / 2..])),
    }
}

impl<T: Element> Case<T> {
    /// Sets C to the product by levels of Strassen–Winograd, with what is left over added classically.
    fn by_strassen(self, levels: u32, pairs: bool) -> Self {
        let mut case = Self { levels, ..self.multiplied() };
        let core = |side: usize| side >> levels << levels;
        let (m, k, n) = (core(case.m), core(case.k), core(case.n));
        if m.min(k).min(n) == 0 {
            return case;
        }
        let product =
            Grid::of(&case.a, (m, k), case.k).times(&Grid::of(&case.b, (k, n), case.n), levels, pairs);
        for (at, sum) in product.elements.into_iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let rim = (k..case.k)
                .fold(T::ZERO, |s, l| s.plus(case.a[i * case.k + l].times(case.b[l * case.n + j])));
            case.c[i * case.n + j] = case.finish(i * case.n + j, sum.plus(rim));
        }
        case
    }
}

/// Kinds of data: how an element of A (`left`) or of B is made.
const KINDS: [&str; 12] = [
    "random",
    "positive",
    "graded rows",
    "graded columns",
    "graded depth",
    "scaled rows",
    "scaled columns",
    "scaled at random",
    "cancelling",
    "one part",
    "tenths",
    "tiny",
];

fn element<T: Element>(kind: &str, left: bool, random: &mut Random, i: usize, j: usize) -> T {
    let x = random.signed();
    // Position along C's side, and along the depth.
    let (side, depth) = if left { (i, j) } else { (j, i) };
    let scaled = |seed: usize| 2f64.powi((Random::new(seed as u64, 77).next() % 41) as i32 - 20);
    T::from_f64(match kind {
        "random" => x,
        "positive" => x.abs(),
        "graded rows" if left => x * 0.7f64.powi(side as i32),
        "graded columns" if !left => x * 0.7f64.powi(side as i32),
        "graded depth" => x * if left { 0.8f64.powi(depth as i32) } else { 1.25f64.powi(depth as i32) },
        "scaled rows" if left => x * scaled(side),
        "scaled columns" if !left => x * scaled(side),
        "scaled at random" => x * 2f64.powi(random.below(41) as i32 - 20),
        // A's halves are opposite, B's are equal: all of C is rounding.
        "cancelling" if left => (1.0 - 2.0 * (depth % 2) as f64) * (1.0 + side as f64 * 1e-3),
        "cancelling" => 1.0 + (depth / 2 + side) as f64 * 1e-3,
        "one part" => {
            if side < 9 && depth < 9 {
                x
            } else {
                0.0
            }
        }
        "tenths" => 0.1,
        "tiny" => x * if T::DTYPE == DType::F32 { 2f64.powi(-64) } else { 2f64.powi(-512) },
        _ => x,
    })
}

const SIZES: [(usize, usize, usize); 8] =
    [(16, 16, 16), (17, 23, 19), (8, 64, 24), (40, 9, 33), (5, 3, 6), (33, 130, 18), (64, 8, 8), (1, 40, 9)];

fn case_of<T: Element>(kind: &str, size: (usize, usize, usize), seed: u64) -> Case<T> {
    let (mut ra, mut rb) = (Random::new(seed, 1), Random::new(seed, 2));
    let mut case = Case::new(
        size,
        |i, j| element(kind, true, &mut ra, i, j),
        |i, j| element(kind, false, &mut rb, i, j),
    );
    if seed % 3 == 1 {
        (case.alpha, case.beta) = (-0.7, 0.3);
        case.c0 = Some((0..size.0 * size.2).map(|_| T::from_f64(rb.signed())).collect());
    }
    case
}

/// Checks right products of every kind; how many were checked, how many were arbitrated, and the largest ratio.
fn no_strassen_product_fails<T: Element>(seeds: u64) -> (u32, u32, f64) {
    let (mut products, mut arbitrated, mut worst) = (0, 0, 0f64);
    for seed in 0..seeds {
        for kind in KINDS {
            for size in SIZES {
                for levels in 1..=3 {
                    let case = case_of::<T>(kind, size, seed).by_strassen(levels, seed % 2 == 1);
                    let effort = if seed.is_multiple_of(2) { Effort::Full } else { Effort::Fast };
                    let verdict = case.verify(effort, seed);
                    assert!(verdict.passed, "{kind} {size:?} {levels} levels, seed {seed}: {verdict:?}");
                    products += 1;
                    arbitrated += u32::from(verdict.arbitrated_rows > 0);
                    worst = worst.max(if kind == "random" { verdict.worst_ratio } else { 0.0 });
                }
            }
        }
    }
    (products, arbitrated, worst)
}

#[test]
fn no_f32_strassen_product_fails() {
    let found = no_strassen_product_fails::<f32>(4);
    println!("products, arbitrated, worst ratio of random data: {found:?}");
    assert!(found.0 > 1000 && found.2 < 0.5, "{found:?}");
}

#[test]
fn no_f64_strassen_product_fails() {
    let found = no_strassen_product_fails::<f64>(4);
    println!("products, arbitrated, worst ratio of random data: {found:?}");
    assert!(found.0 > 1000 && found.2 < 0.5, "{found:?}");
}
