//! Measures how unevenly the operands are scaled, to predict the accuracy that Strassen–Winograd may lose.
//!
//! Place: called when the strategy is chosen, before any operand is sent. In a classical product the error of each element
//! is relative to (|A||B|)ᵢⱼ; with levels of Strassen–Winograd the error of every element is relative to the largest
//! elements of A and B. If rows of A, columns of B or the depth are scaled unevenly, errors may exceed small elements of C.
//!
//! Invariants: each operand is read once (of a generated matrix only a corner, since it is evenly scaled); memory is one
//! number for each row and column, in each of four stripes per thread; the result does not depend on the number of
//! threads, and threads end with the call.
//!
//! It measures the largest element of each row and column, and no products: docs/verification.md lists the uneven scalings
//! that it does not detect.

use super::scalar::Real;
use super::tile::{Cut, Loader, parallel, zeros};
use super::{MatrixError, fits};
use bramble_matrix::{DType, Layout, Matrix, Rect, Shape, Span};

/// Rows and columns of the corner that is measured in place of a generated matrix.
const CORNER: u64 = 512;
/// Independent running maxima, for vectorisation.
const LANES: usize = 16;
/// Stripes of a matrix per thread.
const STRIPES: usize = 4;
/// How unevenly the operands of a product are scaled. Each ratio is at least 1; rows and columns of zeros do not count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Largest element of A divided by the smallest of its row maxima.
    pub rows: f64,
    /// Largest element of B divided by the smallest of its column maxima.
    pub cols: f64,
    /// The product of the largest elements of A and B, divided by the largest term aᵢₗ bₗⱼ that can occur.
    pub depth: f64,
    /// Largest absolute values in A and in B.
    pub largest: [f64; 2],
    /// Whether neither operand holds a NaN or an infinity.
    pub is_finite: bool,
}

impl Scaling {
    /// The most bits of accuracy that scaling may cost before a product counts as badly scaled.
    pub const BITS_MAX: f64 = 10.0;
    const EVEN: Self = Self { rows: 1.0, cols: 1.0, depth: 1.0, largest: [0.0; 2], is_finite: true };

    /// The base-2 logarithm of the factor by which, because of the scaling, the norm-wise bound of an element may exceed its
    /// elementwise bound.
    pub fn bits(&self) -> f64 {
        // The logarithms are added, since the product may overflow.
        self.rows.log2() + self.cols.log2() + self.depth.log2()
    }

    /// Whether the product should be computed classically, without levels of Strassen–Winograd.
    pub fn is_bad(&self) -> bool {
        !self.is_finite || self.bits() > Self::BITS_MAX
    }
}

impl std::fmt::Display for Scaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.is_finite {
            return f.write_str("there is a NaN or an infinity");
        }
        let Self { rows, cols, depth, .. } = self;
        let bits = self.bits();
        write!(
            f,
            "rows of A differ by {rows:.1e}, columns of B by {cols:.1e}, the depth by {depth:.1e}: {bits:.0} bits"
        )
    }
}

/// Measures how unevenly the operands of A B are scaled. Integers count as evenly scaled: their products are exact.
pub fn scaling(a: &Matrix, b: &Matrix, threads: usize) -> Result<Scaling, MatrixError> {
    fits(b, a.dtype(), Shape::new(a.shape().cols, b.shape().cols))?;
    match a.dtype() {
        DType::F32 => of::<f32>(a, b, threads),
        DType::F64 => of::<f64>(a, b, threads),
        DType::I32 | DType::I64 => Ok(Scaling::EVEN),
    }
}

/// The largest absolute value in a matrix, and whether all elements are finite. For integers (0, true): they are not read.
pub fn largest_element(matrix: &Matrix, threads: usize) -> Result<(f64, bool), MatrixError> {
    let sizes = match matrix.dtype() {
        DType::F32 => Sizes::<f64>::of::<f32>(matrix, threads)?,
        DType::F64 => Sizes::<f64>::of::<f64>(matrix, threads)?,
        DType::I32 | DType::I64 => return Ok((0.0, true)),
    };
    Ok((largest(&sizes.rows), !sizes.wild))
}

fn of<T: Magnitude>(a: &Matrix, b: &Matrix, threads: usize) -> Result<Scaling, MatrixError> {
    let (left, right) = (Sizes::<f64>::of::<T>(a, threads)?, Sizes::<f64>::of::<T>(b, threads)?);
    let (largest_a, largest_b) = (largest(&left.rows), largest(&right.cols));
    let all =
        Scaling { largest: [largest_a, largest_b], is_finite: !(left.wild || right.wild), ..Scaling::EVEN };
    if largest_a == 0.0 || largest_b == 0.0 {
        return Ok(all);
    }
    // Relative to the largest elements, so that products stay in range.
    let meet = left.cols.iter().zip(&right.rows).map(|(a, b)| (a / largest_a) * (b / largest_b));
    Ok(Scaling {
        rows: largest_a / smallest(&left.rows),
        cols: largest_b / smallest(&right.cols),
        depth: 1.0 / meet.fold(0.0, f64::max),
        ..all
    })
}

fn largest(sizes: &[f64]) -> f64 {
    sizes.iter().copied().fold(0.0, f64::max)
}

/// The smallest value above zero.
fn smallest(sizes: &[f64]) -> f64 {
    sizes.iter().copied().filter(|x| *x > 0.0).fold(f64::INFINITY, f64::min)
}

/// An element type that has an absolute value of its own.
trait Magnitude: Real {
    fn size(self) -> Self;
}

impl Magnitude for f32 {
    #[inline(always)]
    fn size(self) -> Self {
        self.abs()
    }
}

impl Magnitude for f64 {
    #[inline(always)]
    fn size(self) -> Self {
        self.abs()
    }
}

/// The largest absolute value of each row and each column, and whether there is a NaN or an infinity.
struct Sizes<X> {
    rows: Vec<X>,
    cols: Vec<X>,
    wild: bool,
}

impl Sizes<f64> {
    fn of<T: Magnitude>(matrix: &Matrix, threads: usize) -> Result<Self, MatrixError> {
        if matrix.layout() == Layout::ColMajor {
            // Elements are contiguous along columns: measure the transposed matrix and exchange the results.
            let Self { rows, cols, wild } = Self::of::<T>(&matrix.clone().transposed(), threads)?;
            return Ok(Self { rows: cols, cols: rows, wild });
        }
        let shape = matrix.shape();
        let found = if matrix.generator().is_some() {
            let corner = Shape::new(shape.rows.min(CORNER), shape.cols.min(CORNER));
            let mut sizes = Sizes::<T>::none(corner)?;
            sizes.add(&mut Loader::default(), matrix, corner.rect())?;
            sizes
        } else {
            Sizes::<T>::whole(matrix, threads.max(1))?
        };
        let wide = |sizes: Vec<T>| -> Vec<f64> { sizes.into_iter().map(T::to_f64).collect() };
        let mut sizes = Self { rows: wide(found.rows), cols: wide(found.cols), wild: found.wild };
        // All rows and columns of a generated matrix are of the same size.
        let most = largest(&sizes.rows);
        sizes.rows.resize(shape.rows as usize, most);
        sizes.cols.resize(shape.cols as usize, most);
        Ok(sizes)
    }
}

impl<T: Magnitude> Sizes<T> {
    fn none(shape: Shape) -> Result<Self, MatrixError> {
        Ok(Self { rows: zeros(shape.rows as usize)?, cols: zeros(shape.cols as usize)?, wild: false })
    }

    /// Measures a whole matrix, stripe by stripe.
    fn whole(matrix: &Matrix, threads: usize) -> Result<Self, MatrixError> {
        let cut = Cut::of(matrix);
        let blocks = cut.blocks();
        let stripes = blocks.min(STRIPES * threads);
        let found = parallel(stripes, threads, |loader, stripe| {
            let mut sizes = Self::none(matrix.shape())?;
            for block in stripe * blocks / stripes..(stripe + 1) * blocks / stripes {
                for tile in cut.tiles(block) {
                    sizes.add(loader, matrix, tile)?;
                }
            }
            Ok(sizes)
        })?;
        let mut all = Self::none(matrix.shape())?;
        for part in found {
            all.wild |= part.wild;
            for (to, from) in [(&mut all.rows, part.rows), (&mut all.cols, part.cols)] {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = larger(from, *to));
            }
        }
        Ok(all)
    }

    /// Includes a rectangle of contiguous rows.
    fn add(&mut self, loader: &mut Loader, matrix: &Matrix, rect: Rect) -> Result<(), MatrixError> {
        let tile = loader.load::<T>(matrix, rect, None)?;
        let along = part(&mut self.cols, rect.cols);
        if along.is_empty() {
            return Ok(());
        }
        for (i, size) in part(&mut self.rows, rect.rows).iter_mut().enumerate() {
            let (most, wild) = largest_of_line(tile.line::<T>(i), along);
            *size = larger(most, *size);
            self.wild |= wild;
        }
        Ok(())
    }
}

fn part<T>(sizes: &mut [T], span: Span) -> &mut [T] {
    &mut sizes[span.start as usize..span.end as usize]
}

/// `a` if it is larger, else `b`: one instruction. If `a` is NaN, the result is `b`.
#[inline(always)]
fn larger<T: PartialOrd>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

/// The largest absolute value in a line, and whether it holds a NaN or an infinity; raises the maxima in `along`, one for
/// each element of the line.
fn largest_of_line<T: Magnitude>(line: &[T], along: &mut [T]) -> (T, bool) {
    // A finite number times 0 is 0; NaN and infinities become NaN.
    let (mut most, mut zero) = ([T::ZERO; LANES], [T::ZERO; LANES]);
    let (head, tail) = line.as_chunks::<LANES>();
    let (along_head, along_tail) = along.as_chunks_mut::<LANES>();
    for (x, along) in head.iter().zip(along_head) {
        for i in 0..LANES {
            let size = x[i].size();
            most[i] = larger(size, most[i]);
            along[i] = larger(size, along[i]);
            zero[i] = zero[i].plus(size.times(T::ZERO));
        }
    }
    for (i, (x, along)) in tail.iter().zip(along_tail).enumerate() {
        let size = x.size();
        most[i] = larger(size, most[i]);
        *along = larger(size, *along);
        zero[i] = zero[i].plus(size.times(T::ZERO));
    }
    (most.into_iter().fold(T::ZERO, larger), zero.iter().any(|x| *x != T::ZERO))
}
