//! Gaussian elimination with partial pivoting on residues modulo a prime: block columns as the machines do it, and unblocked.
//!
//! Place in the flow: `machine.rs` computes its tasks here; `trial.rs` compares the end with `reference`.
//!
//! Invariants: all sums are exact, so the factors do not depend on the order of additions or on the width of the blocks, and a
//! step that is left out, done twice or done with another panel changes them. The pivot of a column is its largest residue, the
//! topmost of equals: any fixed order of the residues would do. A column without a pivot keeps zeros below the diagonal.
//!
//! Deliberately absent: rounding, and speed.

/// A prime whose residues have products of 62 bits.
const PRIME: u64 = (1 << 31) - 1;

/// A factored panel as it travels: columns of equal length, from the panel's first row on, with its pivots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResiduePanel {
    pub(super) rows: usize,
    /// By columns: below the diagonal L, whose diagonal is 1, above it U.
    pub(super) elements: Vec<u64>,
    /// For each column the row with which its diagonal row was exchanged, counted from the first row.
    pub(super) pivots: Vec<usize>,
}

/// A residue from any number.
pub(super) fn residue(x: u64) -> u64 {
    x % PRIME
}

/// The sum of two residues.
pub(super) fn plus(a: u64, b: u64) -> u64 {
    (a + b) % PRIME
}

/// a − b c.
fn minus_product(a: u64, b: u64, c: u64) -> u64 {
    (a + PRIME - b * c % PRIME) % PRIME
}

/// The inverse of a residue that is not 0: a^(p − 2) (Fermat).
fn inverse(a: u64) -> u64 {
    let (mut result, mut power, mut exponent) = (1, a, PRIME - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * power % PRIME;
        }
        power = power * power % PRIME;
        exponent >>= 1;
    }
    result
}

/// The row of the pivot of a column, from row `from` on.
fn pivot_row(column: &[u64], from: usize) -> usize {
    (from..column.len()).fold(from, |best, row| if column[row] > column[best] { row } else { best })
}

impl ResiduePanel {
    /// Factors block columns of equal length.
    pub(super) fn factor(columns: &[&[u64]]) -> Self {
        let rows = columns.first().map_or(0, |column| column.len());
        let mut columns: Vec<Vec<u64>> = columns.iter().map(|column| column.to_vec()).collect();
        let mut pivots = Vec::new();
        for at in 0..columns.len() {
            let pivot = pivot_row(&columns[at], at);
            pivots.push(pivot);
            columns.iter_mut().for_each(|column| column.swap(at, pivot));
            let (left, right) = columns.split_at_mut(at + 1);
            let column = &mut left[at];
            if column[at] == 0 {
                continue;
            }
            let scale = inverse(column[at]);
            column[at + 1..].iter_mut().for_each(|x| *x = *x * scale % PRIME);
            for other in right {
                eliminate(other, at, column);
            }
        }
        Self { rows, elements: columns.concat(), pivots }
    }

    /// Applies this panel's exchanges and eliminations to a column right of it, from the panel's first row on.
    pub(super) fn update(&self, column: &mut [u64]) {
        assert_eq!(column.len(), self.rows, "a column as long as the panel");
        for (at, pivot) in self.pivots.iter().enumerate() {
            column.swap(at, *pivot);
        }
        for at in 0..self.pivots.len() {
            eliminate(column, at, &self.elements[at * self.rows..][..self.rows]);
        }
    }

    /// Whether a column had no pivot.
    pub(super) fn is_singular(&self) -> bool {
        (0..self.pivots.len()).any(|at| self.elements[at * self.rows + at] == 0)
    }
}

/// Solves for some columns of a right-hand side that begins with the first row of `x`: with L, whose diagonal is 1, from `first`
/// on; `columns` are whole, `top` is the row of the system with which `x` begins.
pub(super) fn solve_forward(columns: &[Vec<u64>], first: usize, top: usize, x: &mut [u64]) {
    for (at, column) in (first..).zip(columns) {
        eliminate(x, at - top, &column[top..]);
    }
}

/// The same with U, from the last column to the first; `x` begins with row 0.
pub(super) fn solve_back(columns: &[Vec<u64>], first: usize, x: &mut [u64]) {
    for (at, column) in (first..first + columns.len()).zip(columns).rev() {
        x[at] = x[at] * inverse(column[at]) % PRIME;
        let factor = x[at];
        x[..at].iter_mut().zip(column).for_each(|(x, u)| *x = minus_product(*x, *u, factor));
    }
}

/// The product of a matrix in columns and a vector.
pub(super) fn product(columns: &[Vec<u64>], x: &[u64]) -> Vec<u64> {
    let mut sums = vec![0; columns.first().map_or(0, Vec::len)];
    for (column, x) in columns.iter().zip(x) {
        sums.iter_mut().zip(column).for_each(|(sum, a)| *sum = plus(*sum, a * x % PRIME));
    }
    sums
}

/// Subtracts a multiple of a column of L from another column, below row `at`.
fn eliminate(column: &mut [u64], at: usize, l: &[u64]) {
    let factor = column[at];
    if factor != 0 {
        column.iter_mut().zip(l).skip(at + 1).for_each(|(x, l)| *x = minus_product(*x, *l, factor));
    }
}

/// The factors of a matrix, one column after another. The first `order` columns are eliminated. As in the machines, rows of L are
/// not exchanged after the end of their block column of `width` columns.
pub(super) fn reference(mut columns: Vec<Vec<u64>>, order: usize, width: usize) -> Vec<Vec<u64>> {
    for at in 0..order {
        let pivot = pivot_row(&columns[at], at);
        let block = at - at % width;
        columns[block..].iter_mut().for_each(|column| column.swap(at, pivot));
        if columns[at][at] == 0 {
            continue;
        }
        let scale = inverse(columns[at][at]);
        columns[at][at + 1..].iter_mut().for_each(|x| *x = *x * scale % PRIME);
        let l = columns[at].clone();
        columns[at + 1..].iter_mut().for_each(|column| eliminate(column, at, &l));
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SeededRandom;

    #[test]
    fn the_factors_multiply_to_the_matrix_with_its_rows_exchanged() {
        let (order, mut random) = (9, SeededRandom::new(1));
        let matrix: Vec<Vec<u64>> =
            (0..order).map(|_| (0..order).map(|_| residue(random.next())).collect()).collect();
        let factors = reference(matrix.clone(), order, order);
        let mut exchanged = matrix;
        let slices: Vec<&[u64]> = exchanged.iter().map(|column| &column[..]).collect();
        let panel = ResiduePanel::factor(&slices);
        assert_eq!(panel.elements, factors.concat(), "one panel is the whole matrix");
        for column in &mut exchanged {
            panel.pivots.iter().enumerate().for_each(|(at, pivot)| column.swap(at, *pivot));
        }
        for (col, column) in exchanged.iter().enumerate() {
            for (row, x) in column.iter().enumerate() {
                let l = |k: usize| if k == row { 1 } else { factors[k][row] };
                let sum = (0..=row.min(col)).fold(0, |sum, k| plus(sum, l(k) * factors[col][k] % PRIME));
                assert_eq!(sum, *x, "row {row}, column {col}");
            }
        }
    }

    #[test]
    fn every_residue_but_zero_has_an_inverse() {
        for x in [1, 2, 12_345, PRIME - 1] {
            assert_eq!(x * inverse(x) % PRIME, 1);
        }
    }
}
