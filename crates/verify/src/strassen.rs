//! The error bound of an element in a product with levels of Strassen–Winograd.
//!
//! Place: the second instance after `judge`. An element that exceeds the bound for classical products is compared here
//! with the error that the sums and products of its own cell may cause. docs/verification.md derives the formula.
//!
//! Invariants: the bound holds for every order of summation within each of the products, for every way to apply alpha and
//! beta, and for all operands. Where a sum may have overflowed, or a NaN or an infinity may have been mixed in, there is no
//! bound. Memory: two cells of q × q runs of `PIECE` elements for each level.
//!
//! The bound depends on the recipe (Winograd's form, 7 products and 15 additions) and on how matrices are cut: rows,
//! columns and depth into q = 2^levels equal parts, with the remainder multiplied classically. The whole product is cut in
//! this way, or each piece of a tile and step (`mixing`). Another recipe needs another bound.

use super::MatrixError;
use super::judge::Conviction;
use super::mixing::Parts;
use super::recompute::VerifyProblem;
use super::scalar::{Real, within};
use super::tile::{Loader, parallel, zeros};
use bramble_matrix::{Matrix, Rect, Span};

/// Elements of one part of the depth that are processed together.
const PIECE: u64 = 256;
/// The most additions per level in a sum: of parts of A, of parts of B, and of products (s4, t4 and c12 have three).
const ADDITIONS: u32 = 3;

/// Compares elements that exceed the bound for classical products with Strassen's bound. For each suspect: `Ok` if it
/// exceeds this bound too, otherwise `Err` with its error divided by the bound, infinite if there is no bound.
pub(super) fn appeal<T: Real>(
    problem: &VerifyProblem,
    suspects: &[Conviction],
) -> Result<Vec<Result<Conviction, f64>>, MatrixError> {
    parallel(suspects.len(), problem.threads, |loader, i| {
        let suspect = &suspects[i];
        let mut left = Ok(suspect.clone());
        // A correct element is within the bound of at least one of the ways in which a kernel may have computed it.
        for cells in cells(problem, suspect) {
            left = match allowed::<T>(problem, &cells, loader, suspect)? {
                None => return Ok(Err(f64::INFINITY)),
                Some(allowed) => left.and_then(|_| suspect.beyond(allowed)),
            };
        }
        Ok(left)
    })
}

/// For each way in which the element may have been computed, the cells whose results are added up to it.
fn cells<'a>(problem: &'a VerifyProblem, suspect: &Conviction) -> Vec<Vec<Cell<'a>>> {
    let (shape, whole) = (problem.c.shape(), |side: u64| Span::new(0, side));
    if problem.levels > 0 {
        let spans = [whole(shape.rows), whole(shape.cols), whole(problem.depth)];
        // Rows and columns outside the equal parts are computed classically, and the element exceeds that bound.
        let cell = Cell::of(problem, suspect, spans, problem.levels);
        return cell.filter(|cell| cell.levels > 0).into_iter().map(|cell| vec![cell]).collect();
    }
    let made = problem.tiles.iter().map(|tiles| {
        let rows = tiles.piece(shape.rows, tiles.tile_rows, suspect.row);
        let cols = tiles.piece(shape.cols, tiles.tile_cols, suspect.col);
        let steps = tiles.pieces(problem.depth, tiles.depth).into_iter();
        let cells = steps.filter_map(|depth| {
            let levels = tiles.rules.levels(rows.len(), cols.len(), depth.len());
            Cell::of(problem, suspect, [rows, cols, depth], levels)
        });
        cells.collect()
    });
    made.collect()
}

/// The largest error of an element that is the sum of these cells' results; `None` if there is no bound.
fn allowed<T: Real>(
    problem: &VerifyProblem,
    cells: &[Cell<'_>],
    loader: &mut Loader,
    suspect: &Conviction,
) -> Result<Option<f64>, MatrixError> {
    let (alpha, beta) = (problem.alpha.abs(), problem.beta.abs());
    let mut core = Bound::default();
    // Over the rims (the depth outside the equal parts, added classically): Σ |a b| and the number of terms.
    let (mut rim_size, mut rim_len, mut roundings) = (0.0, 0, 0.0f64);
    for cell in cells {
        let law = cell.law::<T>();
        core = core.beside(cell.core::<T>(&law, loader)?);
        rim_size += cell.rim_size::<T>(loader, suspect)?;
        rim_len += cell.rim().len();
        roundings = roundings.max(law.part + 9.0 * law.levels);
    }
    let base = match &problem.c0 {
        Some(c0) => run::<T>(loader, c0, Rect::new(one(suspect.row), one(suspect.col)))?[0].abs(),
        None => 0.0,
    };
    // Operations on the final sums: scaling, and the rim, whose terms may be added one by one. Each further cell adds four.
    let last = rim_len as f64 + 8.0 + 4.0 * cells.len().saturating_sub(1) as f64;
    let size = alpha * (core.size + rim_size) + beta * base;
    let rounding = alpha * (core.error + (last * rim_size) * T::UNIT) + last * T::UNIT * (size + base);
    let slack = 1.0 - 2.0 * (roundings + 2.0 * last) * T::UNIT;
    let largest = alpha.max(1.0) * (core.peak + rim_size) + beta.max(1.0) * base;
    if !within(largest, T::LARGEST / 4.0) || slack < 0.5 {
        return Ok(None);
    }
    let lost = (core.lost + 2.0 * last * T::SMALLEST) * alpha.max(1.0);
    Ok(Some(rounding / slack + lost))
}

/// The q × q elements of C that share the 7^levels products of one of them, for a span of the depth.
struct Cell<'a> {
    problem: &'a VerifyProblem,
    levels: u32,
    rows: Parts,
    cols: Parts,
    depth: Parts,
    /// The span of the depth.
    span: Span,
    /// The part that holds the element's row, and the offset in that part.
    row: (u64, u64),
    /// The same for the element's column.
    col: (u64, u64),
}

impl<'a> Cell<'a> {
    /// The cell of an element, in these rows and columns and over this span of the depth. An element beyond the equal
    /// parts gets a cell with 0 levels.
    fn of(
        problem: &'a VerifyProblem,
        suspect: &Conviction,
        [rows, cols, span]: [Span; 3],
        levels: u32,
    ) -> Option<Self> {
        let of = |levels: u32| {
            let [rows, cols, depth] = [rows, cols, span].map(|side| Parts::of(side, levels));
            let (row, col) = (rows.place(suspect.row)?, cols.place(suspect.col)?);
            Some(Self { problem, levels, rows, cols, depth, span, row, col })
        };
        of(levels).or_else(|| of(0))
    }

    fn law<T: Real>(&self) -> Law {
        let part = self.depth.len as f64;
        Law { unit: T::UNIT, lost: T::SMALLEST, part, levels: f64::from(self.levels) }
    }

    /// The bound of the element's sum of products, without the rim.
    fn core<T: Real>(&self, law: &Law, loader: &mut Loader) -> Result<Bound, MatrixError> {
        let mut products = vec![Product::default(); 7usize.pow(self.levels)];
        for start in (0..self.depth.len).step_by(PIECE as usize) {
            let piece = Span::new(start, (start + PIECE).min(self.depth.len));
            let (left, right) = (self.left::<T>(loader, piece)?, self.right::<T>(loader, piece)?);
            each_product(&left, &right, &mut |at, a, b| products[at].add(a, b), &mut 0);
        }
        let bounds: Vec<Bound> = products.iter().map(|p| law.product(p)).collect();
        let element = (self.row.0 << self.levels) + self.col.0;
        Ok(law.together(&mut bounds.iter().copied(), 1 << self.levels)[element as usize])
    }

    /// The rim: the end of the depth, outside the equal parts.
    fn rim(&self) -> Span {
        Span::new(self.span.start + self.depth.q * self.depth.len, self.span.end)
    }

    fn rim_size<T: Real>(&self, loader: &mut Loader, suspect: &Conviction) -> Result<f64, MatrixError> {
        let a = run::<T>(loader, &self.problem.a, Rect::new(one(suspect.row), self.rim()))?;
        let b = run::<T>(loader, &self.problem.b, Rect::new(self.rim(), one(suspect.col)))?;
        Ok(a.iter().zip(&b).map(|(a, b)| (a * b).abs()).sum())
    }

    /// A in the cell's rows and in a piece of each part of the depth.
    fn left<T: Real>(&self, loader: &mut Loader, piece: Span) -> Result<Runs, MatrixError> {
        self.runs::<T>(loader, &self.problem.a, piece, |u, w| {
            Rect::new(one(self.rows.index(u, self.row.1)), moved(piece, self.depth.index(w, 0)))
        })
    }

    /// B in a piece of each part of the depth and in the cell's columns.
    fn right<T: Real>(&self, loader: &mut Loader, piece: Span) -> Result<Runs, MatrixError> {
        self.runs::<T>(loader, &self.problem.b, piece, |w, v| {
            Rect::new(moved(piece, self.depth.index(w, 0)), one(self.cols.index(v, self.col.1)))
        })
    }

    fn runs<T: Real>(
        &self,
        loader: &mut Loader,
        matrix: &Matrix,
        piece: Span,
        place: impl Fn(u64, u64) -> Rect,
    ) -> Result<Runs, MatrixError> {
        let q = 1u64 << self.levels;
        let mut runs = Runs { q: q as usize, len: piece.len() as usize, values: vec![], sizes: vec![] };
        for at in 0..q * q {
            runs.values.extend(run::<T>(loader, matrix, place(at / q, at % q))?);
        }
        runs.sizes = runs.values.iter().map(|x| x.abs()).collect();
        Ok(runs)
    }
}

/// The elements of a part of a row or of a column.
fn run<T: Real>(loader: &mut Loader, matrix: &Matrix, rect: Rect) -> Result<Vec<f64>, MatrixError> {
    let mut run = zeros((rect.rows.len() * rect.cols.len()) as usize)?;
    loader.gather::<T, f64>(matrix, rect, T::widen, &mut run)?;
    Ok(run)
}

fn one(at: u64) -> Span {
    Span::new(at, at + 1)
}

fn moved(span: Span, by: u64) -> Span {
    Span::new(span.start + by, span.end + by)
}

/// q × q runs (parts of rows of A, or of columns of B) or sums of such runs: the values, and for each value Σ |x| over the
/// elements that it is the sum of.
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

/// Calls `meet` with the number and the two operands of every product, in the recipe's order.
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

/// Sums over the terms of one element of one product.
#[derive(Clone, Copy, Default)]
struct Product {
    /// Σ |s t| over the operands' elements s and t, which are sums of elements of A and of B.
    terms: f64,
    /// Σ ŝ t̂, where ŝ is the sum of the absolute values of the elements that s is the sum of, and t̂ likewise.
    sizes: f64,
    /// Σ (ŝ + t̂).
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
            // `max` drops a NaN; `sizes` and `sides` keep it.
            self.largest = self.largest.max(s.max(*t));
        }
    }
}

/// Bounds of the value and of the error of a product or a sum of products.
#[derive(Clone, Copy, Default)]
struct Bound {
    /// Bound of the exact absolute value.
    size: f64,
    /// Bound of the error from rounding.
    error: f64,
    /// Bound of the error from underflow.
    lost: f64,
    /// Bound of all intermediate values.
    peak: f64,
}

impl Bound {
    /// The bounds of both added up, without the rounding error of an addition.
    fn beside(self, other: Self) -> Self {
        Self {
            size: self.size + other.size,
            error: self.error + other.error,
            lost: self.lost + other.lost,
            peak: self.peak + other.peak,
        }
    }
}

/// The parameters of the arithmetic, and its error bounds.
struct Law {
    /// Unit roundoff.
    unit: f64,
    /// The most that an operation may lose to underflow.
    lost: f64,
    /// Terms of each product: the depth of one part.
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
            // The last summand is 0, or NaN if `sides` is infinite or NaN.
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

    /// The bounds of the cell's q × q elements from those of its products, in the recipe's order.
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
