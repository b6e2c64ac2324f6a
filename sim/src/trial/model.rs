//! The model: the bits that C must have, computed by one machine with the plan's own sums in the plan's order.
//!
//! Place in the flow: made before a trial; each committed tile is compared with it.
//!
//! Invariants: it knows the plan (the spans of k of each cell, and whether a span continues the sum before it or is added to
//! it) and the recipe of cells, but no blocks, machines, jobs or messages.

use super::trial_data::{InitialValue, TrialData, places};
use bramble_matrix::{Rect, Span};
use bramble_plan::{OperandRecipe, Plan, Recipe, Region, ResultTerm, Term};
use std::collections::BTreeMap;

/// A matrix by rows.
type Elements = Vec<f64>;

struct Cell<'a> {
    data: &'a TrialData,
    region: &'a Region,
    recipe: &'a Recipe,
    i: u64,
    j: u64,
}

/// C according to the plan.
pub(super) fn c_of(plan: &Plan, data: &TrialData) -> Elements {
    let mut spans: BTreeMap<(usize, u64, u64), Vec<(Span, bool)>> = BTreeMap::new();
    for block in plan.members.iter().flat_map(|member| member.blocks()) {
        let Rect { rows, cols } = block.cells;
        for (i, j) in rows.iter().flat_map(|i| cols.iter().map(move |j| (i, j))) {
            let cell = spans.entry((block.region, i, j)).or_default();
            cell.push((block.steps, plan.continues(&block)));
        }
    }
    let recipes: Vec<Recipe> = plan.regions.iter().map(|region| Recipe::new(region.levels)).collect();
    let mut c = data.old_c.clone();
    for ((region, i, j), mut spans) in spans {
        spans.sort_by_key(|(span, _)| span.start);
        let cell = Cell { data, region: &plan.regions[region], recipe: &recipes[region], i, j };
        for (span, goes_on) in spans {
            cell.add(span, goes_on, &mut c);
        }
    }
    c
}

impl Cell<'_> {
    /// Adds the sum of some steps to C.
    fn add(&self, steps: Span, goes_on: bool, c: &mut Elements) {
        let n = self.data.p.n;
        let reads_c = self.data.p.reads_c;
        let first = match (goes_on, steps.start) {
            (true, _) => InitialValue::Sum,
            (false, 0) if reads_c => InitialValue::OldC,
            (false, _) => InitialValue::Nothing,
        };
        let is_added = !goes_on && steps.start > 0;
        let q = self.region.q();
        for (at, mut made) in self.made(steps, first, c).into_iter().enumerate() {
            let at = at as u64;
            let rect = self.region.tile(self.i, self.j, at / q, at % q);
            if is_added {
                places(rect, n).zip(&mut made).for_each(|(place, sum)| *sum += c[place]);
            }
            places(rect, n).zip(&made).for_each(|(place, element)| c[place] = *element);
        }
    }

    /// The cell's tiles after these steps; `first` is their initial value.
    fn made(&self, steps: Span, first: InitialValue, c: &Elements) -> Vec<Elements> {
        let (data, region) = (self.data, self.region);
        let q = region.q();
        let tiles = (0..q * q).map(|at| region.tile(self.i, self.j, at / q, at % q));
        let old = |rect: Rect| places(rect, data.p.n).map(|place| c[place]).collect::<Elements>();
        let mut tiles: Vec<Elements> = tiles.map(old).collect();
        let core = Span::new(steps.start, steps.end.min(region.grid.steps()));
        let mut before = first;
        if region.levels == 0 {
            for step in core.iter() {
                self.multiply((step, 0, 0), (0, 0), before, &mut tiles[0]);
                before = InitialValue::Sum;
            }
            return tiles;
        }
        if !core.is_empty() {
            let products = self.products(core);
            self.put_together(&products, before, &mut tiles);
            before = InitialValue::Sum;
        }
        if steps.end > region.grid.steps() {
            for (at, tile) in (0..).zip(&mut tiles) {
                self.multiply((region.grid.steps(), at / q, at % q), (0, 0), before, tile);
            }
        }
        tiles
    }

    /// Multiplies tile (u, v)'s panels of one step.
    fn multiply(
        &self,
        (step, u, v): (u64, u64, u64),
        w: (u64, u64),
        before: InitialValue,
        tile: &mut Elements,
    ) {
        let a = self.region.a_panel(self.i, step, u, w.0);
        let b = self.region.b_panel(step, self.j, w.1, v);
        let depth = a.shape().cols as usize;
        self.data.multiply(&self.of_a(a), &self.of_b(b), depth, before, tile);
    }

    fn of_a(&self, rect: Rect) -> Elements {
        places(rect, self.data.p.k).map(|place| self.data.a[place]).collect()
    }

    fn of_b(&self, rect: Rect) -> Elements {
        places(rect, self.data.p.n).map(|place| self.data.b[place]).collect()
    }

    /// The recipe's products, each summed over the steps.
    fn products(&self, steps: Span) -> Vec<Elements> {
        let (region, q) = (self.region, self.region.q());
        let tile = region.tile(self.i, self.j, 0, 0).shape();
        let mut products = vec![vec![0.0; (tile.rows * tile.cols) as usize]; self.recipe.products()];
        for step in steps.iter() {
            let panels = |of: &dyn Fn(u64, u64) -> Elements| -> Vec<Elements> {
                (0..q * q).map(|at| of(at / q, at % q)).collect()
            };
            let a = panels(&|u, w| self.of_a(region.a_panel(self.i, step, u, w)));
            let b = panels(&|w, v| self.of_b(region.b_panel(step, self.j, w, v)));
            let (a, b) = (self.factors(&self.recipe.left, a), self.factors(&self.recipe.right, b));
            let depth = region.a_panel(self.i, step, 0, 0).shape().cols as usize;
            let before = if step == steps.start { InitialValue::Nothing } else { InitialValue::Sum };
            for (product, (a, b)) in products.iter_mut().zip(a.iter().zip(&b)) {
                self.data.multiply(a, b, depth, before, product);
            }
        }
        products
    }

    fn factors(&self, side: &OperandRecipe, panels: Vec<Elements>) -> Vec<Elements> {
        let mut sums: Vec<Elements> = Vec::new();
        let value = |sums: &[Elements], term: Term| match term {
            Term::Panel(at) => panels[at].clone(),
            Term::Sum(at) => sums[at].clone(),
        };
        for sum in &side.sums {
            let (a, b) = (value(&sums, sum.a), value(&sums, sum.b));
            let mut made = vec![0.0; a.len()];
            self.data.combine(&a, &b, sum.subtracts, InitialValue::Nothing, &mut made);
            sums.push(made);
        }
        side.factors.iter().map(|factor| value(&sums, *factor)).collect()
    }

    fn put_together(&self, products: &[Elements], before: InitialValue, tiles: &mut [Elements]) {
        let mut sums: Vec<Elements> = Vec::new();
        let value = |sums: &[Elements], part: ResultTerm| match part {
            ResultTerm::Product(at) => products[at].clone(),
            ResultTerm::Sum(at) => sums[at].clone(),
        };
        for (at, sum) in self.recipe.results.sums.iter().enumerate() {
            let (a, b) = (value(&sums, sum.a), value(&sums, sum.b));
            let tile = self.recipe.results.tiles.iter().position(|t| *t == ResultTerm::Sum(at));
            let mut made = tile.map_or_else(|| vec![0.0; a.len()], |tile| tiles[tile].clone());
            let before = if tile.is_some() { before } else { InitialValue::Nothing };
            self.data.combine(&a, &b, sum.subtracts, before, &mut made);
            if let Some(tile) = tile {
                tiles[tile].clone_from(&made);
            }
            sums.push(made);
        }
    }
}
