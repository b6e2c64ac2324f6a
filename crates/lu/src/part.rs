//! The columns of one machine, of several that factor a matrix together.
//!
//! Place in the flow: a worker fills them, runs the tasks that `schedule::lu::LuNode` starts, and solves with its part of the
//! factors. Panels come from it, and from other machines.
//!
//! Invariants: all rows of a block column are here. One column more holds the sum of all others; it is updated as they
//! are, so after the elimination it must be the sum of the machine's part of U (Huang & Abraham, "Algorithm-based fault
//! tolerance for matrix operations", IEEE Trans. Computers C-33, 1984).
//!
//! Deliberately absent: the order of the tasks, threads, messages.

use crate::hpl;
use crate::substitute::solve_one;
use crate::working::{self, WorkingMatrix};
use bramble_kernel::lu::{LuElement, PackedPanel, Triangle, scatter, solve_triangle};
use bramble_kernel::{Kernel, Product, part};
use bramble_matrix::{MatrixError, View, ViewMut};
use bramble_wire::message::LuBegin;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Columns that are generated, or rows that are summed, at a time.
const PIECE: usize = 64;

/// The columns of one machine.
pub struct LuPart {
    working: WorkingMatrix,
    begin: LuBegin,
    /// For each block of this machine: its number in the whole system, and its columns here. The checksum is not among them.
    blocks: Vec<(usize, Range<usize>)>,
    /// Scratch memory of the threads.
    scratch: Mutex<Vec<Vec<f64>>>,
}

impl LuPart {
    /// The columns of the machine that `begin` names, all 0. An error if the machine has too little memory.
    pub fn new(begin: &LuBegin) -> Result<Self, MatrixError> {
        let mut blocks = Vec::new();
        let mut end = 0;
        for column in begin.ring.columns() {
            let own = end..end + begin.columns(column).len();
            end = own.end;
            blocks.push((column, own));
        }
        let working = WorkingMatrix::zeros::<f64>(begin.order, end + 1)?;
        Ok(Self { working, begin: begin.clone(), blocks, scratch: Mutex::default() })
    }

    /// The blocks of this machine, by their numbers in the whole system.
    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().map(|(column, _)| *column)
    }

    /// Bytes of the columns.
    pub fn bytes(&self) -> u64 {
        working::bytes::<f64>(self.working.rows(), self.working.cols())
    }

    /// Columns of this machine, without the checksum.
    pub fn columns(&self) -> usize {
        self.working.cols() - 1
    }

    /// The columns here of a block of the system.
    fn own(&self, block: usize) -> Option<Range<usize>> {
        let at = self.blocks.binary_search_by_key(&block, |(column, _)| *column).ok()?;
        Some(self.blocks[at].1.clone())
    }

    /// The first row of a panel.
    fn top(&self, step: usize) -> usize {
        step * self.begin.width
    }

    /// Generates one of this machine's blocks of the system of the High Performance Linpack benchmark.
    pub fn generate(&self, block: usize) {
        let Some(own) = self.own(block) else { return };
        let order = self.begin.order;
        let mut elements = Vec::new();
        for (first, column) in self.begin.columns(block).step_by(PIECE).zip(own.clone().step_by(PIECE)) {
            let width = PIECE.min(own.end - column);
            elements.resize(order * width, 0.0);
            hpl::fill(order, first, &mut elements);
            let mut lease = self.working.lease(0..order, column..column + width);
            scatter(&elements, (width, 1), &mut lease.view_mut::<f64>());
        }
    }

    /// Takes rows of one of this machine's blocks. Returns false if it is no such block, or the rows do not fit.
    pub fn fill(&self, block: usize, first: usize, elements: &[f64]) -> bool {
        let Some(own) = self.own(block) else { return false };
        let rows = elements.len() / own.len();
        let fits = first.checked_add(rows).is_some_and(|end| end <= self.begin.order);
        if !fits || rows * own.len() != elements.len() {
            return false;
        }
        let width = own.len();
        scatter(elements, (width, 1), &mut self.working.lease(first..first + rows, own).view_mut::<f64>());
        true
    }

    /// Rows of one of this machine's blocks as they are now; `None` if it is no such block, or has no such rows. An error if a
    /// task is using the columns.
    pub fn rows(&self, block: usize, rows: Range<usize>) -> Result<Option<Vec<f64>>, MatrixError> {
        let is_here = rows.start < rows.end && rows.end <= self.begin.order;
        let Some(own) = self.own(block).filter(|_| is_here) else { return Ok(None) };
        let lines = self.working.lines()?;
        let view = lines.view::<f64>();
        let row = |i: usize| &view.data()[i * view.row_stride() + own.start..][..own.len()];
        Ok(Some(rows.flat_map(row).copied().collect()))
    }

    /// Adds rows of one of this machine's blocks to the checksum: each once, before any task has changed them. If the blocks
    /// come from left to right, the checksum is that of `sum`.
    pub fn add(&self, block: usize, rows: Range<usize>) {
        let Some(own) = self.own(block) else { return };
        let end = self.columns();
        let mut columns = self.working.lease(rows.clone(), own.clone());
        let mut checksum = self.working.lease(rows.clone(), end..end + 1);
        let (mut columns, mut checksum) = (columns.view_mut::<f64>(), checksum.view_mut::<f64>());
        for row in 0..rows.len() {
            let sum = checksum.at_mut(row, 0);
            (0..own.len()).for_each(|col| *sum += *columns.at_mut(row, col));
        }
    }

    /// Makes the checksum of the columns, for some rows.
    pub fn sum(&self, rows: Range<usize>) {
        let end = self.columns();
        let mut lease = self.working.lease(rows.clone(), 0..end + 1);
        let mut view = lease.view_mut::<f64>();
        for row in 0..rows.len() {
            let sum = (0..end).map(|col| *view.at_mut(row, col)).sum();
            *view.at_mut(row, end) = sum;
        }
    }

    /// Factors one of this machine's blocks, in memory of an earlier panel if that is large enough.
    pub fn panel(&self, kernel: &dyn Kernel, step: usize, memory: Vec<f64>) -> PackedPanel<f64> {
        let own = self.own(step).unwrap_or_default();
        let mut lease = self.working.lease(self.top(step)..self.begin.order, own);
        PackedPanel::factor(kernel, lease.view_mut(), memory)
    }

    /// Updates some of this machine's blocks, counted here and with the checksum as the last, with a panel.
    pub fn update(&self, kernel: &dyn Kernel, panel: &PackedPanel<f64>, step: usize, blocks: Range<usize>) {
        let first = self.blocks.get(blocks.start).map_or_else(|| self.columns(), |(_, own)| own.start);
        let last = self.blocks.get(blocks.end - 1).map_or_else(|| self.columns() + 1, |(_, own)| own.end);
        let spare = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = spare().pop().unwrap_or_default();
        let mut lease = self.working.lease(self.top(step)..self.begin.order, first..last);
        panel.update(kernel, lease.view_mut(), &mut scratch);
        spare().push(scratch);
    }

    /// A panel of another machine, from its elements and pivots; `None` if they are not those of this step.
    pub fn received(&self, step: usize, elements: Vec<f64>, pivots: Vec<usize>) -> Option<PackedPanel<f64>> {
        let is_as_wide = pivots.len() == self.begin.columns(step).len();
        let panel = PackedPanel::received(elements, self.begin.order.checked_sub(self.top(step))?, pivots);
        panel.filter(|_| is_as_wide)
    }

    /// Elements of a panel.
    pub fn panel_elements(&self, step: usize) -> usize {
        (self.begin.order - self.top(step)) * self.begin.columns(step).len()
    }

    /// The right-hand sides, in rows, if they are here.
    pub fn right_hand_sides(&self) -> Result<Option<Vec<f64>>, MatrixError> {
        self.rows(self.begin.panels(), 0..self.begin.order)
    }

    /// Solves for the columns of some adjacent blocks, all of this machine, from the last to the first: `x` has the
    /// rows up to the end of the last block, and is solved in those of the blocks and updated above them. Returns false
    /// if the blocks are not here.
    pub fn solve(
        &self,
        kernel: &dyn Kernel,
        blocks: Range<usize>,
        x: &mut [f64],
    ) -> Result<bool, MatrixError> {
        let width = self.begin.extra;
        let lines = self.working.lines()?;
        let view = lines.view::<f64>();
        for block in blocks.rev() {
            let (rows, Some(own)) = (self.begin.columns(block), self.own(block)) else { return Ok(false) };
            if block >= self.begin.panels() || x.len() < rows.end * width {
                return Ok(false);
            }
            let (above, solved) = x[..rows.end * width].split_at_mut(rows.start * width);
            let corner = part(view, rows.clone(), own.clone());
            match width {
                1 => solve_one(Triangle::Upper, corner, solved),
                _ => {
                    let x = ViewMut::row_major(solved, rows.len(), width);
                    solve_triangle(kernel, Triangle::Upper, corner, x);
                }
            }
            let (u, x) = (part(view, 0..rows.start, own), View::row_major(solved, rows.len(), width));
            let c = ViewMut::row_major(above, rows.start, width);
            kernel.multiply(Product::new(-1.0, u, x, 1.0, c).into());
        }
        Ok(true)
    }

    /// The largest difference between the checksum and the sum of this machine's part of U, in units of what rounding
    /// can explain. Infinite if an element is no number.
    pub fn deviation(&self) -> Result<f64, MatrixError> {
        let lines = self.working.lines()?;
        let view = lines.view::<f64>();
        let (mut worst, mut scale) = (0.0f64, 0.0f64);
        for row in 0..self.begin.order {
            let line = &view.data()[row * view.row_stride()..][..self.working.cols()];
            let (mut sum, mut size) = (-line[self.columns()], line[self.columns()].abs());
            for (block, own) in &self.blocks {
                // Left of the diagonal is L.
                let left = row.saturating_sub(self.begin.columns(*block).start).min(own.len());
                for x in &line[own.start + left..own.end] {
                    sum += x;
                    size += x.abs();
                }
            }
            (worst, scale) = (worst.max(sum.abs()), scale.max(size));
            if !sum.is_finite() {
                return Ok(f64::INFINITY);
            }
        }
        let rounding = <f64 as LuElement>::UNIT * self.begin.order as f64 * scale;
        Ok(if rounding > 0.0 { worst / rounding } else { worst })
    }
}
