//! One product of cells by Strassen's method in Winograd's form, as a list of sums and products: 7 products and
//! 15 additions for each level (Winograd 1971; Higham, *Accuracy and Stability of Numerical Algorithms*, 23.1).
//!
//! Place in the flow: a region with levels has cells of q × q tiles (q = 2^levels). For each step of k the schedule
//! sends the q × q panels of a cell of A and of B, has the worker compute sums of panels, and multiplies them;
//! after the last step it has the worker combine the products into the tiles. This file lists these sums and
//! products.
//!
//! Invariants: each sum is written once (there are no assignments), so a matrix can be freed after its last use.
//! Without levels there are no sums, and the one product is the tile itself. Each sum comes after its operands.

/// A factor of a product, or an operand of a sum on the same side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// A panel of the operand: line of panels × q + index in the line.
    Panel(usize),
    /// A sum of this side.
    Sum(usize),
}

/// `a + b` or `a − b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum<T> {
    /// The left operand.
    pub a: T,
    /// The right operand.
    pub b: T,
    /// Whether `b` is subtracted.
    pub subtracts: bool,
}

/// The sums and factors from one cell of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandRecipe {
    /// The sums, in order.
    pub sums: Vec<Sum<Term>>,
    /// The factor of each product.
    pub factors: Vec<Term>,
    panels: usize,
    /// For each panel, then each sum: the number of sums and of products that use it. Counted once, because the
    /// primary reads it in every step.
    uses: Vec<[usize; 2]>,
}

/// A product, or a sum of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultTerm {
    /// A product.
    Product(usize),
    /// A sum of products.
    Sum(usize),
}

/// The sums that combine the products of one cell of C into its tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRecipe {
    /// The sums, in order.
    pub sums: Vec<Sum<ResultTerm>>,
    /// For each tile of the cell (line of tiles × q + index in the line): the product or sum that it is.
    pub tiles: Vec<ResultTerm>,
    products: usize,
    /// For each product, then each sum: the number of sums that use it.
    uses: Vec<usize>,
}

/// The multiplication of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// 2^levels: panels and tiles of a cell in each direction.
    pub q: usize,
    /// The left operand.
    pub left: OperandRecipe,
    /// The right operand.
    pub right: OperandRecipe,
    /// The tiles of C.
    pub results: ResultRecipe,
}

impl Recipe {
    /// The recipe with that many levels.
    pub fn new(levels: u32) -> Self {
        let q = 1usize << levels;
        let panels = |side: &mut OperandRecipe, scheme: &Scheme| {
            let all: Vec<Term> = (0..q * q).map(Term::Panel).collect();
            factors(side, scheme, &all);
            side.count();
        };
        let (mut left, mut right) = (OperandRecipe::empty(q * q), OperandRecipe::empty(q * q));
        panels(&mut left, &LEFT);
        panels(&mut right, &RIGHT);
        let mut sums = Vec::new();
        let mut next = 0;
        let tiles = put_together(&mut sums, &mut next, q);
        Self { q, left, right, results: ResultRecipe::new(sums, tiles, next) }
    }

    /// Number of products: 7^levels.
    pub fn products(&self) -> usize {
        self.left.factors.len()
    }
}

impl OperandRecipe {
    const fn empty(panels: usize) -> Self {
        Self { sums: Vec::new(), factors: Vec::new(), panels, uses: Vec::new() }
    }

    fn at(&self, term: Term) -> usize {
        match term {
            Term::Panel(panel) => panel,
            Term::Sum(sum) => self.panels + sum,
        }
    }

    /// Counts the uses, when all sums and factors are known.
    fn count(&mut self) {
        let mut uses = vec![[0; 2]; self.panels + self.sums.len()];
        self.sums.iter().flat_map(|s| [s.a, s.b]).for_each(|term| uses[self.at(term)][0] += 1);
        self.factors.iter().for_each(|term| uses[self.at(*term)][1] += 1);
        self.uses = uses;
    }

    /// The number of sums that use a panel or sum; its uses in products are counted separately.
    pub fn uses_in_sums(&self, term: Term) -> usize {
        self.uses[self.at(term)][0]
    }

    /// The number of products with a panel or sum as a factor.
    pub fn uses_in_products(&self, term: Term) -> usize {
        self.uses[self.at(term)][1]
    }
}

impl ResultRecipe {
    /// For that number of products.
    fn new(sums: Vec<Sum<ResultTerm>>, tiles: Vec<ResultTerm>, products: usize) -> Self {
        let mut new = Self { uses: vec![0; products + sums.len()], sums, tiles, products };
        for at in 0..new.sums.len() {
            for part in [new.sums[at].a, new.sums[at].b] {
                let of = new.at(part);
                new.uses[of] += 1;
            }
        }
        new
    }

    fn at(&self, part: ResultTerm) -> usize {
        match part {
            ResultTerm::Product(product) => product,
            ResultTerm::Sum(sum) => self.products + sum,
        }
    }

    /// The number of sums that use a product or sum.
    pub fn uses(&self, part: ResultTerm) -> usize {
        self.uses[self.at(part)]
    }
}

/// A quarter of the q × q panels of a cell.
fn quarter(all: &[Term], row: usize, col: usize) -> Vec<Term> {
    let q = all.len().isqrt();
    let half = q / 2;
    (0..half * half).map(|at| all[(row * half + at / half) * q + col * half + at % half]).collect()
}

use Factor::{Made, Quarter};
use alloc::vec;
use alloc::vec::Vec;

/// The factors of the seven products of a level on one side, by quarters.
struct Scheme {
    /// In the order of the products.
    factors: [Factor; 7],
    /// Each with the product before which it is made.
    sums: [(usize, Factor, Factor, bool); 4],
}

/// A quarter of an operand (row × 2 + column), or one of the scheme's sums.
#[derive(Clone, Copy)]
enum Factor {
    Quarter(usize),
    Made(usize),
}

/// In Winograd's numbering the order of the products is 1, 2, 5, 6, 3, 4, 7, and sums of a quarter's size are made
/// as late as possible: so at most two of them exist at once on each side, and three products wait to be combined
/// with later ones. Both sides make their sums before the same products, although the right side needs its third
/// sum one product later: sums of one number on both sides are then needed together, as code that alternates the
/// sides assumes.
const LEFT: Scheme = Scheme {
    factors: [Quarter(0), Quarter(1), Made(0), Made(1), Made(2), Quarter(3), Made(3)],
    sums: [
        (2, Quarter(2), Quarter(3), false),
        (3, Made(0), Quarter(0), true),
        (4, Quarter(1), Made(1), true),
        (6, Quarter(0), Quarter(2), true),
    ],
};
const RIGHT: Scheme = Scheme {
    factors: [Quarter(0), Quarter(2), Made(0), Made(1), Quarter(3), Made(2), Made(3)],
    sums: [
        (2, Quarter(1), Quarter(0), true),
        (3, Quarter(3), Made(0), true),
        (4, Made(1), Quarter(2), true),
        (6, Quarter(3), Quarter(1), true),
    ],
};

/// The factors of all products of a cell, and before each product the sums that the scheme makes there.
fn factors(side: &mut OperandRecipe, scheme: &Scheme, all: &[Term]) {
    if let [one] = all {
        side.factors.push(*one);
        return;
    }
    let quarters = [quarter(all, 0, 0), quarter(all, 0, 1), quarter(all, 1, 0), quarter(all, 1, 1)];
    let mut made: Vec<Vec<Term>> = Vec::with_capacity(scheme.sums.len());
    for (at, factor) in scheme.factors.iter().enumerate() {
        for (_, a, b, subtracts) in scheme.sums.iter().filter(|(before, ..)| *before == at) {
            let sum = sum(side, (of(&quarters, &made, *a), of(&quarters, &made, *b)), *subtracts);
            made.push(sum);
        }
        factors(side, scheme, of(&quarters, &made, *factor));
    }
}

fn of<'a>(quarters: &'a [Vec<Term>], made: &'a [Vec<Term>], factor: Factor) -> &'a [Term] {
    match factor {
        Quarter(at) => &quarters[at],
        Made(at) => &made[at],
    }
}

/// The sum of two quarters, panel by panel.
fn sum(side: &mut OperandRecipe, (a, b): (&[Term], &[Term]), subtracts: bool) -> Vec<Term> {
    let made = a.iter().zip(b).map(|(a, b)| {
        side.sums.push(Sum { a: *a, b: *b, subtracts });
        Term::Sum(side.sums.len() - 1)
    });
    made.collect()
}

/// The q × q tiles of a cell from its products, in the order in which `factors` numbers them.
fn put_together(sums: &mut Vec<Sum<ResultTerm>>, next: &mut usize, q: usize) -> Vec<ResultTerm> {
    if q == 1 {
        *next += 1;
        return vec![ResultTerm::Product(*next - 1)];
    }
    let [m1, m2, m5, m6, m3, m4, m7] = core::array::from_fn(|_| put_together(sums, next, q / 2));
    let mut add = |a: &[ResultTerm], b: &[ResultTerm], subtracts: bool| -> Vec<ResultTerm> {
        let made = a.iter().zip(b).map(|(a, b)| {
            sums.push(Sum { a: *a, b: *b, subtracts });
            ResultTerm::Sum(sums.len() - 1)
        });
        made.collect()
    };
    let c11 = add(&m1, &m2, false);
    let u2 = add(&m1, &m6, false);
    let u4 = add(&u2, &m5, false);
    let c12 = add(&u4, &m3, false);
    let u3 = add(&u2, &m7, false);
    let c21 = add(&u3, &m4, true);
    let c22 = add(&u3, &m5, false);
    let half = q / 2;
    let tile = |at: usize| {
        let (row, col) = (at / q, at % q);
        let quarter = [[&c11, &c12], [&c21, &c22]][row / half][col / half];
        quarter[row % half * half + col % half]
    };
    (0..q * q).map(tile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes the recipe on numbers: cells of q × q "panels" of one element.
    fn product(recipe: &Recipe, a: &[i64], b: &[i64]) -> Vec<i64> {
        let side = |side: &OperandRecipe, panels: &[i64]| -> Vec<i64> {
            let mut sums: Vec<i64> = Vec::new();
            let value = |sums: &[i64], term: Term| match term {
                Term::Panel(i) => panels[i],
                Term::Sum(i) => sums[i],
            };
            for s in &side.sums {
                let (a, b) = (value(&sums, s.a), value(&sums, s.b));
                sums.push(if s.subtracts { a - b } else { a + b });
            }
            side.factors.iter().map(|f| value(&sums, *f)).collect()
        };
        let (left, right) = (side(&recipe.left, a), side(&recipe.right, b));
        let products: Vec<i64> = left.iter().zip(right).map(|(a, b)| a * b).collect();
        let mut sums: Vec<i64> = Vec::new();
        let value = |sums: &[i64], part: ResultTerm| match part {
            ResultTerm::Product(i) => products[i],
            ResultTerm::Sum(i) => sums[i],
        };
        for s in &recipe.results.sums {
            let (a, b) = (value(&sums, s.a), value(&sums, s.b));
            sums.push(if s.subtracts { a - b } else { a + b });
        }
        recipe.results.tiles.iter().map(|t| value(&sums, *t)).collect()
    }

    #[test]
    fn the_recipe_is_a_product() {
        for levels in 0..=3 {
            let recipe = Recipe::new(levels);
            let q = recipe.q;
            let a: Vec<i64> = (0..q * q).map(|i| (i * 37 % 23) as i64 - 11).collect();
            let b: Vec<i64> = (0..q * q).map(|i| (i * 53 % 29) as i64 - 14).collect();
            let want: Vec<i64> =
                (0..q * q).map(|at| (0..q).map(|l| a[at / q * q + l] * b[l * q + at % q]).sum()).collect();
            assert_eq!(product(&recipe, &a, &b), want, "{levels} levels");
        }
    }

    #[test]
    fn a_level_has_seven_products_and_fifteen_additions() {
        let recipe = Recipe::new(1);
        let additions = recipe.left.sums.len() + recipe.right.sums.len() + recipe.results.sums.len();
        assert_eq!((recipe.products(), additions), (7, 15));
        assert_eq!(Recipe::new(3).products(), 343);
        let none = Recipe::new(0);
        assert_eq!((none.products(), none.left.sums.len(), none.results.sums.len()), (1, 0, 0));
    }

    /// One thread makes each sum when the first product or sum needs it, and frees it after its last use.
    #[test]
    fn few_sums_are_there_at_once() {
        let most = |side: &OperandRecipe| {
            let mut left: Vec<usize> = side.uses.iter().map(|uses| uses[0] + uses[1]).collect();
            let (mut made, mut there, mut most) = (0, 0, 0);
            let used = |left: &mut Vec<usize>, term: Term| {
                left[side.at(term)] -= 1;
                usize::from(left[side.at(term)] == 0 && matches!(term, Term::Sum(_)))
            };
            for factor in &side.factors {
                let needed = if let Term::Sum(sum) = factor { sum + 1 } else { 0 };
                while made < needed {
                    let Sum { a, b, .. } = side.sums[made];
                    (made, there) = (made + 1, there + 1);
                    most = most.max(there);
                    there -= used(&mut left, a) + used(&mut left, b);
                }
                there -= used(&mut left, *factor);
            }
            assert_eq!((made, there), (side.sums.len(), 0));
            most
        };
        for (levels, few) in [(1, 2), (2, 6), (3, 22)] {
            let recipe = Recipe::new(levels);
            assert!(
                most(&recipe.left) <= few && most(&recipe.right) <= few,
                "{levels} levels: {} and {}",
                most(&recipe.left),
                most(&recipe.right)
            );
        }
    }

    #[test]
    fn every_product_and_sum_is_used() {
        let recipe = Recipe::new(2);
        let sides = [&recipe.left, &recipe.right].map(|s| s.uses.iter().map(|u| u[0]).sum::<usize>());
        assert_eq!(sides, [2 * recipe.left.sums.len(), 2 * recipe.right.sums.len()]);
        let in_products: usize = recipe.left.uses.iter().map(|u| u[1]).sum();
        assert_eq!(in_products, recipe.products());
        assert_eq!(recipe.results.uses.iter().sum::<usize>(), 2 * recipe.results.sums.len());
        for side in [&recipe.left, &recipe.right] {
            for i in 0..side.sums.len() {
                let term = Term::Sum(i);
                assert!(side.uses_in_sums(term) + side.uses_in_products(term) > 0, "{i}");
            }
        }
        for i in 0..recipe.products() {
            assert!(recipe.results.uses(ResultTerm::Product(i)) > 0, "{i}");
        }
    }
}
