//! Contents of one panel: its matrices, the operand sums that are made of them, and the jobs that become
//! possible.
//!
//! Place in the flow: the panel stream chooses the next panel; this file assigns ids, shapes and use counts.
//! Without Strassen–Winograd levels, a cell of C is one tile and a panel is one matrix; with levels, the
//! recipe says which matrices are added (`bramble_plan::Recipe`).
//!
//! Invariants: every matrix is announced with exactly the number of uses that jobs make of it; every job
//! follows the announcements of its matrices.

use super::outgoing::{BodyMatrix, Delivery, Operands, Which, small, small_index, uses};
use super::relay::PanelRole;
use super::work::BlockWork;
use bramble_base::number::{to_u64, to_usize};
use bramble_base::{Layout, Rect, Span};
use bramble_plan::{Block, OperandRecipe, OperandSource, Plan, Recipe, Region, ResultTerm, Term};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, Operation, Then};

/// A panel of the current step, for one row or column of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    /// Panel of A for this row of cells.
    A(u64),
    /// Panel of B for this column of cells.
    B(u64),
}

/// Ids of one panel: of the matrices that are sent, and of the sums that are made of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    pub(super) panels: u32,
    pub(super) sums: u32,
    /// Distance between the ids of two of its sums; the sums of other panels of the step lie in between.
    pub(super) stride: u32,
}

impl Ids {
    fn of(self, term: Term) -> u32 {
        match term {
            Term::Panel(at) => self.panels.wrapping_add(count(at)),
            Term::Sum(at) => self.sums.wrapping_add(count(at).wrapping_mul(self.stride)),
        }
    }
}

fn count(at: usize) -> u32 {
    small(to_u64(at))
}

/// First ids of a block: of its tiles and, with levels, of its products and of the sums of products.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockIds {
    pub(super) tiles: u32,
    pub(super) products: u32,
    pub(super) parts: u32,
}

/// Context that stays constant while a block is sent.
pub(super) struct PanelContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) operands: &'a Operands,
    pub(super) recipe: &'a Recipe,
    pub(super) work: &'a BlockWork,
    pub(super) ids: BlockIds,
    /// Whether tiles of C are leased in place (over links that share memory), unless they hold partial sums
    /// that have to wait.
    pub(super) leases: bool,
    /// Whether the worker holds the parts of placed operands that the block needs.
    pub(super) is_owner: bool,
}

impl PanelContext<'_> {
    pub(super) fn region(&self) -> &Region {
        &self.plan.regions[self.block().region]
    }

    fn block(&self) -> &Block {
        &self.work.block
    }

    fn q(&self) -> u64 {
        self.region().q()
    }

    /// Index of a cell in its block.
    fn at(&self, i: u64, j: u64) -> u64 {
        let cells = self.block().cells;
        (i - cells.rows.start) * cells.cols.len() + j - cells.cols.start
    }

    fn tile_id(&self, i: u64, j: u64, u: u64, v: u64) -> u32 {
        let q = self.q();
        self.ids.tiles.wrapping_add(small(self.at(i, j) * q * q + u * q + v))
    }

    fn product_id(&self, i: u64, j: u64, product: usize) -> u32 {
        if self.region().levels == 0 {
            return self.tile_id(i, j, 0, 0);
        }
        let products = to_u64(self.recipe.products());
        self.ids.products.wrapping_add(small(self.at(i, j) * products + to_u64(product)))
    }

    fn part_id(&self, i: u64, j: u64, part: ResultTerm) -> u32 {
        match part {
            ResultTerm::Product(product) => self.product_id(i, j, product),
            ResultTerm::Sum(sum) => match self.recipe.results.tiles.iter().position(|t| *t == part) {
                Some(tile) => {
                    self.ids.tiles.wrapping_add(small(self.at(i, j) * self.q() * self.q() + to_u64(tile)))
                }
                None => {
                    let sums = to_u64(self.recipe.results.sums.len());
                    self.ids.parts.wrapping_add(small(self.at(i, j) * sums + to_u64(sum)))
                }
            },
        }
    }

    /// The last step of the block outside the rim; `None` if it has only rim steps.
    fn last_core(&self) -> Option<u64> {
        let core = self.region().grid.steps();
        (self.block().steps.start < core).then(|| self.block().steps.end.min(core) - 1)
    }

    /// The steps that a worker must report with the result of a cell.
    pub(super) fn result_steps(&self, i: u64, j: u64) -> Span {
        match self.last_core() {
            Some(last) if self.region().levels > 0 => Span::new(last, self.block().steps.end),
            _ => self.work.steps_of(i, j),
        }
    }

    /// Prepares a panel, its operand sums, and the jobs that combine it with the panels of the cells
    /// `others`. `other` gives the ids of these panels.
    pub(super) fn deliver(
        &self,
        panel: Panel,
        step: u64,
        ids: Ids,
        (others, role): (Span, PanelRole),
        other: &dyn Fn(u64) -> Ids,
    ) -> Delivery {
        let mut delivery = Delivery::default();
        let rim = self.region().is_rim(step);
        self.panels(panel, step, ids, role, &mut delivery);
        if !rim {
            self.side_sums(panel, step, ids, &mut delivery);
        }
        for there in others.iter() {
            let (i, j, a, b) = match panel {
                Panel::A(i) => (i, there, ids, other(there)),
                Panel::B(j) => (there, j, other(there), ids),
            };
            if rim {
                self.rim_jobs(i, j, step, a, b, &mut delivery);
            } else {
                self.jobs(i, j, step, a, b, &mut delivery);
            }
        }
        delivery
    }

    /// Number of cells that use a panel.
    fn across(&self, panel: Panel, step: u64) -> u64 {
        let cells = self.work.cells_at(step);
        match panel {
            Panel::A(_) => cells.cols.len(),
            Panel::B(_) => cells.rows.len(),
        }
    }

    fn side(&self, panel: Panel) -> &OperandRecipe {
        match panel {
            Panel::A(_) => &self.recipe.left,
            Panel::B(_) => &self.recipe.right,
        }
    }

    /// Number of ids that a panel takes: (matrices, sums).
    pub(super) fn id_counts(&self, panel: Panel, step: u64) -> (u32, u32) {
        let q = small(self.q());
        if self.region().is_rim(step) { (q, 0) } else { (q * q, count(self.side(panel).sums.len())) }
    }

    /// Announces the matrices of a panel, which the primary sends or the member in `role` passes on.
    fn panels(&self, panel: Panel, step: u64, ids: Ids, role: PanelRole, delivery: &mut Delivery) {
        let (q, region) = (self.q(), self.region());
        let rim = region.is_rim(step);
        let which = match panel {
            Panel::A(_) => Which::A,
            Panel::B(_) => Which::B,
        };
        let (layout, operand) = self.operands.panels(which == Which::B, self.is_owner);
        let source = match operand {
            OperandSource::Sent => MatrixSource::Data,
            OperandSource::Generated => MatrixSource::Generated,
            OperandSource::Resident => MatrixSource::Resident,
        };
        let across = to_usize(small(self.across(panel, step)));
        for at in 0..(if rim { q } else { q * q }) {
            let (rect, uses_made) = match (panel, rim) {
                (Panel::A(i), true) => (region.a_panel(i, step, at, 0), across * to_usize(small(q))),
                (Panel::B(j), true) => (region.b_panel(step, j, 0, at), across * to_usize(small(q))),
                (Panel::A(i), false) => {
                    (region.a_panel(i, step, at / q, at % q), self.uses_of(panel, at, across))
                }
                (Panel::B(j), false) => {
                    (region.b_panel(step, j, at / q, at % q), self.uses_of(panel, at, across))
                }
            };
            let id = ids.panels.wrapping_add(small(at));
            let uses = uses(uses_made + usize::from(role.keeps()));
            let header = MatrixHeader { uses, ..self.header(id, rect, layout, source) };
            if let Some(peer) = role.from {
                let first_line = small_index(peer);
                delivery.vacant.push(MatrixHeader { source: MatrixSource::Relayed, first_line, ..header });
                delivery.relayed.push(BodyMatrix { header, which, rect, leased: false });
            } else {
                delivery.stored.push(BodyMatrix { header, which, rect, leased: false });
            }
        }
    }

    fn uses_of(&self, panel: Panel, at: u64, across: usize) -> usize {
        if self.region().levels == 0 {
            return across;
        }
        self.uses(panel, Term::Panel(to_usize(small(at))), across)
    }

    fn uses(&self, panel: Panel, term: Term, across: usize) -> usize {
        let side = self.side(panel);
        side.uses_in_sums(term) + side.uses_in_products(term) * across
    }

    /// Announces the sums of a panel's matrices that the recipe needs, with their jobs.
    fn side_sums(&self, panel: Panel, step: u64, ids: Ids, delivery: &mut Delivery) {
        let across = to_usize(small(self.across(panel, step)));
        let region = self.region();
        let rect = match panel {
            Panel::A(i) => region.a_panel(i, step, 0, 0),
            Panel::B(j) => region.b_panel(step, j, 0, 0),
        };
        for (at, sum) in self.side(panel).sums.iter().enumerate() {
            let term = Term::Sum(at);
            let header = self.header(ids.of(term), rect, Layout::RowMajor, MatrixSource::Vacant);
            delivery.vacant.push(MatrixHeader { uses: uses(self.uses(panel, term, across)), ..header });
            delivery.jobs.push(Job {
                operation: if sum.subtracts { Operation::Subtract } else { Operation::Add },
                a: ids.of(sum.a),
                b: ids.of(sum.b),
                c: ids.of(term),
                step: 0,
                epoch: self.work.attempt,
                then: Then::Close,
            });
        }
    }

    /// Adds the jobs for the products of a cell in one step and, after the last step, for its results.
    fn jobs(&self, i: u64, j: u64, step: u64, a: Ids, b: Ids, delivery: &mut Delivery) {
        let levels = self.region().levels;
        let first = step == self.block().steps.start;
        if first && levels == 0 {
            self.tile(i, j, 0, 0, delivery);
        }
        // Only cells without levels can lose their last steps to a thief.
        let last = match levels {
            0 => self.work.steps_of(i, j).end == step + 1,
            _ => self.last_core() == Some(step),
        };
        let rect = self.region().tile(i, j, 0, 0);
        let factors = self.recipe.left.factors.iter().zip(&self.recipe.right.factors);
        for (product, (left, right)) in factors.enumerate() {
            let id = self.product_id(i, j, product);
            if first && levels > 0 {
                let header = self.header(id, rect, Layout::RowMajor, MatrixSource::Vacant);
                let uses = uses(self.recipe.results.uses(ResultTerm::Product(product)));
                delivery.vacant.push(MatrixHeader { uses, ..header });
            }
            let then = match (last, levels) {
                (false, _) => Then::Continue,
                (true, 0) => Then::Return,
                (true, _) => Then::Close,
            };
            delivery.jobs.push(Job {
                operation: Operation::Multiply,
                a: a.of(*left),
                b: b.of(*right),
                c: id,
                step: small(step),
                epoch: self.work.attempt,
                then,
            });
        }
        if last && levels > 0 {
            self.results(i, j, step, delivery);
        }
    }

    /// Adds the jobs that combine the products of a cell into its tiles.
    fn results(&self, i: u64, j: u64, step: u64, delivery: &mut Delivery) {
        let q = self.q();
        let rect = self.region().tile(i, j, 0, 0);
        let ends = step + 1 == self.block().steps.end;
        for (at, sum) in self.recipe.results.sums.iter().enumerate() {
            let part = ResultTerm::Sum(at);
            let tile = self.recipe.results.tiles.iter().position(|t| *t == part).map(to_u64);
            match tile {
                Some(tile) => self.tile(i, j, tile / q, tile % q, delivery),
                None => {
                    let header =
                        self.header(self.part_id(i, j, part), rect, Layout::RowMajor, MatrixSource::Vacant);
                    let uses = uses(self.recipe.results.uses(part));
                    delivery.vacant.push(MatrixHeader { uses, ..header });
                }
            }
            delivery.jobs.push(Job {
                operation: if sum.subtracts { Operation::Subtract } else { Operation::Add },
                a: self.part_id(i, j, sum.a),
                b: self.part_id(i, j, sum.b),
                c: self.part_id(i, j, part),
                step: small(step),
                epoch: self.work.attempt,
                then: match (tile, ends) {
                    (None, _) => Then::Close,
                    (Some(_), true) => Then::Return,
                    (Some(_), false) => Then::Continue,
                },
            });
        }
    }

    /// Adds the jobs of a rim step, which multiply each tile of a cell separately.
    fn rim_jobs(&self, i: u64, j: u64, step: u64, a: Ids, b: Ids, delivery: &mut Delivery) {
        let q = self.q();
        for (u, v) in (0..q).flat_map(|u| (0..q).map(move |v| (u, v))) {
            if self.last_core().is_none() {
                self.tile(i, j, u, v, delivery);
            }
            delivery.jobs.push(Job {
                operation: Operation::Multiply,
                a: a.panels.wrapping_add(small(u)),
                b: b.panels.wrapping_add(small(v)),
                c: self.tile_id(i, j, u, v),
                step: small(step),
                epoch: self.work.attempt,
                then: Then::Return,
            });
        }
    }

    /// Announces a tile of C.
    fn tile(&self, i: u64, j: u64, u: u64, v: u64, delivery: &mut Delivery) {
        let rect = self.region().tile(i, j, u, v);
        let continues_sum = self.work.continues_sum;
        // A tile whose result will be dropped starts at zero and must not be computed in C.
        let is_skipped = self.work.is_committed(small(u * self.q() + v));
        let begins = self.block().steps.start == 0 && !is_skipped;
        let (source, which) = match (continues_sum, begins && self.operands.reads_c) {
            (true, _) => (MatrixSource::Partial, Which::Sum),
            (false, true) => (MatrixSource::Data, Which::C),
            (false, false) => (MatrixSource::Vacant, Which::C),
        };
        let header = self.header(self.tile_id(i, j, u, v), rect, Layout::RowMajor, source);
        // A partial sum of later steps has to wait for the earlier ones, so it is not computed in C itself.
        let leased = self.leases && (continues_sum || begins);
        if leased || source != MatrixSource::Vacant {
            delivery.stored.insert(0, BodyMatrix { header, which, rect, leased });
        } else {
            delivery.vacant.push(header);
        }
    }

    fn header(&self, id: u32, rect: Rect, layout: Layout, source: MatrixSource) -> MatrixHeader {
        let shape = rect.shape();
        let mut header = MatrixHeader {
            id,
            rows: small(shape.rows),
            cols: small(shape.cols),
            first_line: 0,
            lines: 0,
            uses: 0,
            dtype: self.plan.problem.dtype,
            layout,
            source,
        };
        header.lines = header.lines_total().0;
        header
    }
}

/// Number of ids that the cells of a block take: (tiles, products, sums of products).
pub(super) fn block_ids(region: &Region, recipe: &Recipe, block: &Block) -> (u32, u32, u32) {
    let cells = block.count();
    let many = |each: usize| small(cells * to_u64(each));
    let tiles = small(cells * region.q() * region.q());
    if region.levels == 0 {
        (tiles, 0, 0)
    } else {
        (tiles, many(recipe.products()), many(recipe.results.sums.len()))
    }
}
