//! How far elements of a product may be off that was made with levels of Strassen–Winograd.
//!
//! Place: the second instance of `judge`. What breaks the bound for classical products is measured here against what
//! the sums and products of its own cell may have lost. docs/verification.md derives the formula.
//!
//! Invariants: the bound holds for every order of summation within a product, for every way to scale by alpha and
//! beta, and whatever the operands are; where something may have overflowed, or a NaN or an infinity may have come in,
//! there is none. Memory: two cells of q × q runs of `PIECE` elements for each level.
//!
//! It rests on the recipe (Winograd's form, 7 products and 15 additions) and on how matrices are cut: rows, columns and
//! depth into q = 2^levels equal parts, what is left over multiplied classically. Another recipe needs another bound.

use super::MatrixError;
use super::judge::Conviction;
use super::recompute::Problem;
use super::scalar::{Real, within};
use super::tile::{Loader, parallel, zeros};
use crate::{Matrix, Rect, Span};

/// Elements of the depth of one part that are looked at together.
const PIECE: u64 = 256;
/// Additions of a level that a part goes through at most, on each side and in the results: s4, t4 and c12 have three.
const ADDITIONS: u32 = 3;

/// How a matrix's side is cut into parts.
#[derive(Clone, Copy)]
pub(super) struct Parts {
    /// How many there are.
    q: u64,
    /// How long each is.
    len: u64,
}

impl Parts {
    pub(super) fn of(side: u64, levels: u32) -> Self {
        Self { q: 1 << levels, len: side >> levels }
    }

    /// Which part an index lies in and where in it; `None` beyond the parts.
    fn place(self, index: u64) -> Option<(u64, u64)> {
        (index < self.q * self.len).then(|| (index / self.len, index % self.len))
    }

    /// The indices at one place of every part.
    fn class(self, at: u64) -> impl Iterator<Item = u64> {
        (0..self.q).map(move |part| part * self.len + at)
    }

    /// Replaces each value by `factor` times the root of the sum of squares of its class; those beyond the parts stay.
    pub(super) fn spread(self, values: &mut [f64], factor: f64) {
        for at in 0..self.len {
            // The largest is taken out, so that squares stay in range; a NaN must not be lost.
            let of_class = || self.class(at).map(|i| values[i as usize]);
            let largest = of_class().fold(0.0, f64::max);
            let sum: f64 = of_class().map(|x| if x == 0.0 { 0.0 } else { (x / largest).powi(2) }).sum();
            let size = factor * largest * sum.sqrt();
            self.class(at).for_each(|i| values[i as usize] = size);
        }
    }

    /// The indices of all classes that have one of the list, and what is beyond the parts.
    pub(super) fn touched(self, list: &[u64]) -> Vec<u64> {
        let mut all = Vec::new();
        for index in list {
            match self.place(*index) {
                Some((_, at)) => all.extend(self.class(at)),
                None => all.push(*index),
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Of elements that break the bound for classical products, those that break Strassen's too.
pub(super) fn appeal<T: Real>(
    problem: &Problem,
    suspects: &[Conviction],
) -> Result<Vec<Option<Conviction>>, MatrixError> {
    parallel(suspects.len(), problem.threads, |loader, i| {
        let suspect = &suspects[i];
        let shape = problem.c.shape();
        let row = Parts::of(shape.rows, problem.levels).place(suspect.row);
        let col = Parts::of(shape.cols, problem.levels).place(suspect.col);
        let (Some(row), Some(col)) = (row, col) else { return Ok(Some(suspect.clone())) };
        let Some(allowed) = (Cell { problem, row, col }).allowed::<T>(loader, suspect)? else {
            return Ok(None);
        };
        Ok(suspect.beyond(allowed))
    })
}

/// The elements of C that are made from the same products as one of them.
struct Cell<'a> {
    problem: &'a Problem,
    /// The part of the element, and where in it.
    row: (u64, u64),
    /// See `row`.
    col: (u64, u64),
}

impl Cell<'_> {
    /// How far the element may be off; `None` where anything may be right.
    fn allowed<T: Real>(
        &self,
        loader: &mut Loader,
        suspect: &Conviction,
    ) -> Result<Option<f64>, MatrixError> {
        let Problem { alpha, beta, levels, depth, .. } = *self.problem;
        let part = depth >> levels;
        let rim = Span::new(part << levels, depth);
        let mut products = vec![Product::default(); 7usize.pow(levels)];
        for start in (0..part).step_by(PIECE as usize) {
            let piece = Span::new(start, (start + PIECE).min(part));
            let (left, right) = (self.left::<T>(loader, piece)?, self.right::<T>(loader, piece)?);
            each_product(&left, &right, &mut |at, a, b| products[at].add(a, b), &mut 0);
        }
        let law = Law { unit: T::UNIT, lost: T::SMALLEST, part: part as f64, levels: f64::from(levels) };
        let bounds: Vec<Bound> = products.iter().map(|p| law.product(p)).collect();
        let core = law.together(&mut bounds.iter().copied(), 1 << levels)
            [((self.row.0 << levels) + self.col.0) as usize];
        let a = self.run::<T>(loader, &self.problem.a, Rect::new(one(suspect.row), rim))?;
        let b = self.run::<T>(loader, &self.problem.b, Rect::new(rim, one(suspect.col)))?;
        let rim_size: f64 = a.iter().zip(&b).map(|(a, b)| (a * b).abs()).sum();
        let base = match &self.problem.c0 {
            Some(c0) => self.run::<T>(loader, c0, Rect::new(one(suspect.row), one(suspect.col)))?[0].abs(),
            None => 0.0,
        };
        // Sums, scaling and the rim, whose terms may be added one by one.
        let last = rim.len() as f64 + 8.0;
        let size = alpha.abs() * (core.size + rim_size) + beta.abs() * base;
        let rounding =
            alpha.abs() * (core.error + (last * rim_size) * law.unit) + last * law.unit * (size + base);
        let roundings = law.part + 9.0 * law.levels + 2.0 * last;
        let slack = 1.0 - 2.0 * roundings * law.unit;
        let largest = alpha.abs().max(1.0) * (core.peak + rim_size) + beta.abs().max(1.0) * base;
        if !within(largest, T::LARGEST / 4.0) || slack < 0.5 {
            return Ok(None);
        }
        let lost = (core.lost + 2.0 * last * law.lost) * alpha.abs().max(1.0);
        Ok(Some(rounding / slack + lost))
    }

    /// The parts of A that the cell's rows meet, in a piece of the depth.
    fn left<T: Real>(&self, loader: &mut Loader, piece: Span) -> Result<Runs, MatrixError> {
        let a = &self.problem.a;
        let (rows, depth) = self.parts(a);
        self.runs::<T>(loader, a, piece, |u, w| {
            let row = u * rows.len + self.row.1;
            Rect::new(one(row), moved(piece, w * depth.len))
        })
    }

    /// The parts of B that the cell's columns meet, in a piece of the depth.
    fn right<T: Real>(&self, loader: &mut Loader, piece: Span) -> Result<Runs, MatrixError> {
        let b = &self.problem.b;
        let (depth, cols) = self.parts(b);
        self.runs::<T>(loader, b, piece, |w, v| {
            let col = v * cols.len + self.col.1;
            Rect::new(moved(piece, w * depth.len), one(col))
        })
    }

    fn parts(&self, matrix: &Matrix) -> (Parts, Parts) {
        let (shape, levels) = (matrix.shape(), self.problem.levels);
        (Parts::of(shape.rows, levels), Parts::of(shape.cols, levels))
    }

    fn runs<T: Real>(
        &self,
        loader: &mut Loader,
        matrix: &Matrix,
        piece: Span,
        place: impl Fn(u64, u64) -> Rect,
    ) -> Result<Runs, MatrixError> {
        let q = 1u64 << self.problem.levels;
        let mut runs = Runs { q: q as usize, len: piece.len() as usize, values: vec![], sizes: vec![] };
        for at in 0..q * q {
            runs.values.extend(self.run::<T>(loader, matrix, place(at / q, at % q))?);
        }
        runs.sizes = runs.values.iter().map(|x| x.abs()).collect();
        Ok(runs)
    }

    /// A part of a row or of a column.
    fn run<T: Real>(
        &self,
        loader: &mut Loader,
        matrix: &Matrix,
        rect: Rect,
    ) -> Result<Vec<f64>, MatrixError> {
        let mut run = zeros((rect.rows.len() * rect.cols.len()) as usize)?;
        loader.gather::<T, f64>(matrix, rect, T::widen, &mut run)?;
        Ok(run)
    }
}

fn one(at: u64) -> Span {
    Span::new(at, at + 1)
}

fn moved(span: Span, by: u64) -> Span {
    Span::new(span.start + by, span.end + by)
}

/// q × q runs of one side: what they are, and Σ |x| over the elements that they are sums of.
struct Runs {
    q: usize,
    len: usize,
    values: Vec<f64>,
    sizes: Vec<f64>,
}

impl Runs {
    fn quarter(&self, row: usize, col: usize) -> Self {
        let (half, len) = (self.q / 2, self.len);
        let (mut values, mut sizes) = (Vec::new(), Vec::new());
        for line in row * half..(row + 1) * half {
            let from = (line * self.q + col * half) * len;
            values.extend_from_slice(&self.values[from..from + half * len]);
            sizes.extend_from_slice(&self.sizes[from..from + half * len]);
        }
        Self { q: half, len, values, sizes }
    }

    fn sum(&self, other: &Self, sign: f64) -> Self {
        let values = self.values.iter().zip(&other.values).map(|(a, b)| a + sign * b).collect();
        let sizes = self.sizes.iter().zip(&other.sizes).map(|(a, b)| a + b).collect();
        Self { q: self.q, len: self.len, values, sizes }
    }

    fn plus(&self, other: &Self) -> Self {
        self.sum(other, 1.0)
    }

    fn minus(&self, other: &Self) -> Self {
        self.sum(other, -1.0)
    }
}

/// Calls `meet` with the operands of every product, numbered in the recipe's order.
fn each_product(left: &Runs, right: &Runs, meet: &mut impl FnMut(usize, &Runs, &Runs), next: &mut usize) {
    if left.q == 1 {
        meet(*next, left, right);
        *next += 1;
        return;
    }
    let [a11, a12] = [left.quarter(0, 0), left.quarter(0, 1)];
    let [a21, a22] = [left.quarter(1, 0), left.quarter(1, 1)];
    let [b11, b12] = [right.quarter(0, 0), right.quarter(0, 1)];
    let [b21, b22] = [right.quarter(1, 0), right.quarter(1, 1)];
    let s1 = a21.plus(&a22);
    let s2 = s1.minus(&a11);
    let s3 = a11.minus(&a21);
    let s4 = a12.minus(&s2);
    let t1 = b12.minus(&b11);
    let t2 = b22.minus(&t1);
    let t3 = b22.minus(&b12);
    let t4 = t2.minus(&b21);
    let pairs = [(&a11, &b11), (&a12, &b21), (&s4, &b22), (&a22, &t4), (&s1, &t1), (&s2, &t2), (&s3, &t3)];
    for (left, right) in pairs {
        each_product(left, right, meet, next);
    }
}

/// What is known of an element of one product.
#[derive(Clone, Copy, Default)]
struct Product {
    /// Σ |s t| over the sums s and t as they are.
    terms: f64,
    /// Σ ŝ t̂, where ŝ is the sum of the absolute values of what s is the sum of.
    sizes: f64,
    /// Σ ŝ + t̂.
    sides: f64,
    /// The largest ŝ or t̂.
    largest: f64,
}

impl Product {
    fn add(&mut self, left: &Runs, right: &Runs) {
        for (s, t) in left.values.iter().zip(&right.values) {
            self.terms += (s * t).abs();
        }
        for (s, t) in left.sizes.iter().zip(&right.sizes) {
            self.sizes += s * t;
            self.sides += s + t;
            // `max` would drop a NaN, but the sum has it.
            self.largest = self.largest.max(s.max(*t));
        }
    }
}

/// How large a product or a sum of products may be, and how far off.
#[derive(Clone, Copy)]
struct Bound {
    /// Of the exact value.
    size: f64,
    /// By rounding.
    error: f64,
    /// By underflow.
    lost: f64,
    /// Of whatever is computed on the way.
    peak: f64,
}

/// The arithmetic.
struct Law {
    /// Unit roundoff.
    unit: f64,
    /// What an operation may lose to underflow.
    lost: f64,
    /// Terms of a product.
    part: f64,
    levels: f64,
}

impl Law {
    fn product(&self, p: &Product) -> Bound {
        let additions = f64::from(ADDITIONS) * self.levels;
        Bound {
            size: p.terms,
            error: self.unit * ((self.part + 3.0) * p.terms + (2.0 * additions + 2.0) * p.sizes),
            lost: self.lost * (2.0 * self.part + 4.0 + (additions + 1.0) * p.sides),
            // The last is 0, or NaN where a side was infinite.
            peak: p.sizes.max(p.largest) + p.sides * 0.0,
        }
    }

    fn sum(&self, a: Bound, b: Bound) -> Bound {
        let size = a.size + b.size;
        Bound {
            size,
            error: a.error + b.error + self.unit * size,
            lost: a.lost + b.lost + self.lost,
            peak: a.peak + b.peak,
        }
    }

    /// The q × q elements of the cell from its products, in the recipe's order.
    fn together(&self, products: &mut impl Iterator<Item = Bound>, q: usize) -> Vec<Bound> {
        if q == 1 {
            return products.next().into_iter().collect();
        }
        let m: Vec<Vec<Bound>> = (0..7).map(|_| self.together(products, q / 2)).collect();
        let add = |a: &[Bound], b: &[Bound]| -> Vec<Bound> {
            a.iter().zip(b).map(|(a, b)| self.sum(*a, *b)).collect()
        };
        let c11 = add(&m[0], &m[1]);
        let u2 = add(&m[0], &m[5]);
        let u3 = add(&u2, &m[6]);
        let u4 = add(&u2, &m[4]);
        let c12 = add(&u4, &m[2]);
        let c21 = add(&u3, &m[3]);
        let c22 = add(&u3, &m[4]);
        let half = q / 2;
        let quarters = [[&c11, &c12], [&c21, &c22]];
        (0..q * q)
            .map(|at| (at / q, at % q))
            .map(|(row, col)| quarters[row / half][col / half][row % half * half + col % half])
            .collect()
    }
}
