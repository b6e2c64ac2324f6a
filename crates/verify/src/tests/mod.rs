//! Tests of the check as a whole: products made in several ways, right and wrong.

mod detection;
mod direct;
mod false_alarms;
mod faults;
mod integers;
mod locate;
mod scaling;
mod sketch;
mod strassen;
mod wild;

use super::random::Random;
use super::scalar::Real;
use super::*;
use bramble_matrix::{Buffer, Element, Generator, Layout, SharedBytes};
use std::sync::Arc;

/// A product and everything that belongs to it; matrices as contiguous rows.
#[derive(Clone)]
struct Case<T> {
    m: usize,
    k: usize,
    n: usize,
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<T>,
    c0: Option<Vec<T>>,
    alpha: f64,
    beta: f64,
    levels: u32,
    tiles: Vec<TileLevels>,
}

/// Memory laid out as asked for from contiguous rows.
fn matrix<T: Element>(rows: usize, cols: usize, data: &[T], layout: Layout) -> Matrix {
    assert_eq!(data.len(), rows * cols);
    let mut buffer = Buffer::zeroed(size_of_val(data)).unwrap();
    for (i, x) in buffer.elements_mut::<T>().iter_mut().enumerate() {
        *x = match layout {
            Layout::RowMajor => data[i],
            Layout::ColMajor => data[i % rows * cols + i / rows],
        };
    }
    let owner: SharedBytes = Arc::new(buffer);
    Matrix::from_shared("test", owner, 0, Shape::new(rows as u64, cols as u64), T::DTYPE, layout).unwrap()
}

impl<T: Element> Case<T> {
    /// Operands made by the functions, and no C yet.
    fn new(
        (m, k, n): (usize, usize, usize),
        mut a: impl FnMut(usize, usize) -> T,
        mut b: impl FnMut(usize, usize) -> T,
    ) -> Self {
        let a = (0..m * k).map(|x| a(x / k, x % k)).collect();
        let b = (0..k * n).map(|x| b(x / n, x % n)).collect();
        Self {
            m,
            k,
            n,
            a,
            b,
            c: vec![T::ZERO; m * n],
            c0: None,
            alpha: 1.0,
            beta: 0.0,
            levels: 0,
            tiles: vec![],
        }
    }

    /// Sets C to the plain product in order of the inner index, then scaled.
    fn multiplied(mut self) -> Self {
        for i in 0..self.m {
            for j in 0..self.n {
                let mut sum = T::ZERO;
                for l in 0..self.k {
                    sum = sum.plus(self.a[i * self.k + l].times(self.b[l * self.n + j]));
                }
                self.c[i * self.n + j] = self.finish(i * self.n + j, sum);
            }
        }
        self
    }

    /// alpha sum + beta c0.
    fn finish(&self, at: usize, sum: T) -> T {
        let scaled = if self.alpha == 1.0 { sum } else { T::from_f64(self.alpha).times(sum) };
        match &self.c0 {
            Some(c0) if self.beta != 0.0 => scaled.plus(T::from_f64(self.beta).times(c0[at])),
            _ => scaled,
        }
    }

    fn verify_as(&self, layouts: [Layout; 3], effort: Effort, seed: u64, threads: usize) -> Verdict {
        let a = matrix(self.m, self.k, &self.a, layouts[0]);
        let b = matrix(self.k, self.n, &self.b, layouts[1]);
        let c = matrix(self.m, self.n, &self.c, layouts[2]);
        let c0 = self.c0.as_ref().map(|c0| matrix(self.m, self.n, c0, layouts[2]));
        let (alpha, beta, levels, tiles) = (self.alpha, self.beta, self.levels, &self.tiles);
        verify(&Check {
            a: &a,
            b: &b,
            c: &c,
            c0: c0.as_ref(),
            alpha,
            beta,
            levels,
            tiles,
            effort,
            seed,
            threads,
        })
        .unwrap()
    }

    /// The check with a budget of `terms_max` recomputed terms.
    fn verify_within(&self, terms_max: u64, effort: Effort) -> Verdict
    where
        T: Real,
    {
        self.verify_with(effort, 7, |problem| problem.terms_max = terms_max)
    }

    /// The check by random vectors, even for small products, which full effort would recompute.
    fn verify_by_vectors(&self, effort: Effort, seed: u64) -> Verdict
    where
        T: Real,
    {
        self.verify_with(effort, seed, |problem| problem.recomputed_max = 0)
    }

    fn verify_with(&self, effort: Effort, seed: u64, change: impl Fn(&mut VerifyProblem)) -> Verdict
    where
        T: Real,
    {
        let of = |rows, cols, data: &[T]| matrix(rows, cols, data, Layout::RowMajor);
        let (a, b) = (of(self.m, self.k, &self.a), of(self.k, self.n, &self.b));
        let c = of(self.m, self.n, &self.c);
        let check = Check {
            a: &a,
            b: &b,
            c: &c,
            c0: None,
            alpha: self.alpha,
            beta: self.beta,
            levels: self.levels,
            tiles: &self.tiles,
            effort,
            seed,
            threads: 1,
        };
        let mut problem = problem(&check).unwrap();
        change(&mut problem);
        float::verify::<T>(&problem, effort, seed).unwrap()
    }

    fn verify(&self, effort: Effort, seed: u64) -> Verdict {
        self.verify_as([Layout::RowMajor; 3], effort, seed, 1)
    }

    fn passes(&self) -> bool {
        self.verify(Effort::Fast, 7).passed
    }
}

impl Random {
    /// Uniform in -1..1.
    fn signed(&mut self) -> f64 {
        (self.next() as i64 as f64) / 2f64.powi(63)
    }

    /// Uniform below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// A random product of that size in `T`.
fn uniform<T: Element>(size: (usize, usize, usize), seed: u64) -> Case<T> {
    let (mut ra, mut rb) = (Random::new(seed, 100), Random::new(seed, 101));
    Case::new(size, |_, _| T::from_f64(ra.signed()), |_, _| T::from_f64(rb.signed()))
}

const ALL_LAYOUTS: [[Layout; 3]; 4] = [
    [Layout::RowMajor; 3],
    [Layout::ColMajor; 3],
    [Layout::RowMajor, Layout::ColMajor, Layout::RowMajor],
    [Layout::ColMajor, Layout::RowMajor, Layout::ColMajor],
];

#[test]
fn layouts_threads_and_effort_agree() {
    let mut case = uniform::<f64>((1100, 40, 700), 3).multiplied();
    for effort in [Effort::Fast, Effort::Full] {
        for layouts in ALL_LAYOUTS {
            let one = case.verify_as(layouts, effort, 5, 1);
            assert!(one.passed && one.worst_ratio < 0.3 && one.arbitrated_rows == 0, "{one:?}");
            for threads in [0, 2, 5] {
                assert_eq!(one, case.verify_as(layouts, effort, 5, threads));
            }
        }
    }
    case.c[600 * 700 + 333] += 1e-6;
    for layouts in ALL_LAYOUTS {
        let one = case.verify_as(layouts, Effort::Fast, 5, 1);
        let fault = one.fault.clone().unwrap();
        assert_eq!((fault.row, fault.col, one.passed), (600, 333, false));
        assert_eq!(one, case.verify_as(layouts, Effort::Fast, 5, 3));
    }
}

#[test]
fn off_looks_at_nothing_and_names_parse() {
    let mut case = uniform::<f32>((2, 2, 2), 1).multiplied();
    case.c[0] = 1e9;
    assert!(case.verify(Effort::Off, 1).passed);
    for effort in [Effort::Off, Effort::Fast, Effort::Full] {
        assert_eq!(effort.name().parse(), Ok(effort));
    }
    assert!("much".parse::<Effort>().is_err());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let (a, b) = (matrix(2, 3, &[1f32; 6], Layout::RowMajor), matrix(3, 2, &[1f32; 6], Layout::RowMajor));
    let c = matrix(2, 2, &[3f32; 4], Layout::RowMajor);
    let wide = matrix(2, 2, &[3f64; 4], Layout::RowMajor);
    let good = Check {
        a: &a,
        b: &b,
        c: &c,
        c0: None,
        alpha: 1.0,
        beta: 0.0,
        levels: 0,
        tiles: &[],
        effort: Effort::Fast,
        seed: 1,
        threads: 1,
    };
    assert!(verify(&good).unwrap().passed);
    for bad in [
        Check { a: &b, ..good },
        Check { b: &a, ..good },
        Check { c: &wide, ..good },
        Check { c0: Some(&a), beta: 1.0, ..good },
        Check { alpha: f64::NAN, ..good },
        Check { beta: f64::INFINITY, ..good },
    ] {
        assert!(verify(&bad).is_err());
    }
    assert!(verify(&Check { c0: Some(&a), ..good }).unwrap().passed, "C0 must not be read where beta is 0");
}

#[test]
fn operands_that_have_to_be_made_first_are_read_by_block() {
    let made = |generator, rows, cols| {
        Matrix::generated("made", generator, Shape::new(rows, cols), DType::F64).unwrap()
    };
    let random = Generator::random(5);
    for b in [random, random.transposed()] {
        let (a, b) = (made(Generator::identity(), 900, 900), made(b, 900, 700));
        let mut bytes = vec![0; 900 * 700 * 8];
        b.read_block(b.shape().rect(), &mut bytes).unwrap();
        let owner: SharedBytes = Arc::new(bytes);
        let in_memory = Matrix::from_shared("same", owner, 0, b.shape(), b.dtype(), b.layout()).unwrap();
        let (alpha, beta, effort) = (1.0, 0.0, Effort::Full);
        let check = |c| Check {
            a: &a,
            b: &b,
            c,
            c0: None,
            alpha,
            beta,
            levels: 0,
            tiles: &[],
            effort,
            seed: 1,
            threads: 2,
        };
        assert!(verify(&check(&b)).unwrap().passed);
        assert!(verify(&check(&in_memory)).unwrap().passed);
        let other = made(Generator::random(6), 900, 700);
        assert!(!verify(&check(&other)).unwrap().passed);
    }
}
