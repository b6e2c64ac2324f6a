//! The columns of one machine, of several that factor a matrix together.
//!
//! Place in the flow: a worker fills them or has them generated (`generated.rs`), runs the tasks that `schedule::lu::LuNode`
//! starts, and solves with its part of the factors. Panels come from it, and from other machines.
//!
//! Invariants: all rows of a block column are here. One column more holds the sum of all others; it is updated as they
//! are, so after the elimination it must be the sum of the machine's part of U (Huang & Abraham, "Algorithm-based fault
//! tolerance for matrix operations", IEEE Trans. Computers C-33, 1984).
//!
//! Deliberately absent: the order of the tasks, threads, messages.

use crate::substitute::solve_one;
use crate::working::{self, WorkingMatrix};
use bramble_kernel::lu::{LuElement, PackedPanel, Triangle, dot_in_f64, scatter, solve_triangle};
use bramble_kernel::{Kernel, Product, part};
use bramble_matrix::{DType, MatrixError, View, ViewMut};
use bramble_schedule::lu::{LuExchange, apply_pivots};
use bramble_wire::message::{LuBegin, LuPass};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rows of a block that are converted to f64 at a time: they stay in a second-level cache.
const CONVERTED_ROWS: usize = 128;

mod generated;

/// The columns of one machine. Right-hand sides are solved in f64 for either element type.
pub struct LuPart<T> {
    working: WorkingMatrix,
    begin: LuBegin,
    /// For each block of this machine: its number in the whole system, and its columns here. The checksum is not among them.
    blocks: Vec<(usize, Range<usize>)>,
    /// The exchanges of rows of this machine's panels.
    pivots: Mutex<BTreeMap<usize, Vec<usize>>>,
    /// Scratch memory of the threads.
    scratch: Mutex<Vec<Vec<T>>>,
    /// The diagonal of the blocks that were generated for HPL-MxP: it takes a whole row to make one of its elements.
    diagonals: Mutex<BTreeMap<usize, Vec<f64>>>,
}

impl<T: LuElement> LuPart<T> {
    /// The columns of the machine that `begin` names, all 0. An error if the machine has too little memory.
    pub fn new(begin: &LuBegin) -> Result<Self, MatrixError> {
        let mut blocks = Vec::new();
        let mut end = 0;
        for column in begin.ring.columns() {
            let own = end..end + begin.columns(column).len();
            end = own.end;
            blocks.push((column, own));
        }
        let working = WorkingMatrix::zeros::<T>(begin.order, end + 1)?;
        let (pivots, scratch, diagonals) = Default::default();
        Ok(Self { working, begin: begin.clone(), blocks, pivots, scratch, diagonals })
    }

    /// The blocks of this machine, by their numbers in the whole system.
    pub fn blocks(&self) -> impl Iterator<Item = usize> {
        self.blocks.iter().map(|(column, _)| *column)
    }

    /// Bytes of the columns.
    pub fn bytes(&self) -> u64 {
        working::bytes::<T>(self.working.rows(), self.working.cols())
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

    /// Takes rows of one of this machine's blocks. Returns false if it is no such block, or the rows do not fit.
    pub fn fill(&self, block: usize, first: usize, elements: &[T]) -> bool {
        let Some(own) = self.own(block) else { return false };
        let rows = elements.len() / own.len();
        let fits = first.checked_add(rows).is_some_and(|end| end <= self.begin.order);
        if !fits || rows * own.len() != elements.len() {
            return false;
        }
        let width = own.len();
        scatter(elements, (width, 1), &mut self.working.lease(first..first + rows, own).view_mut::<T>());
        true
    }

    /// Rows of one of this machine's blocks as they are now; `None` if it is no such block, or has no such rows. An error if a
    /// task is using the columns.
    pub fn rows(&self, block: usize, rows: Range<usize>) -> Result<Option<Vec<T>>, MatrixError> {
        let is_here = rows.start < rows.end && rows.end <= self.begin.order;
        let Some(own) = self.own(block).filter(|_| is_here) else { return Ok(None) };
        let lines = self.working.lines()?;
        let view = lines.view::<T>();
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
        let (mut columns, mut checksum) = (columns.view_mut::<T>(), checksum.view_mut::<T>());
        for row in 0..rows.len() {
            let sum = checksum.at_mut(row, 0);
            (0..own.len()).for_each(|col| *sum = sum.plus(*columns.at_mut(row, col)));
        }
    }

    /// Makes the checksum of the columns, for some rows.
    pub fn sum(&self, rows: Range<usize>) {
        let end = self.columns();
        let mut lease = self.working.lease(rows.clone(), 0..end + 1);
        let mut view = lease.view_mut::<T>();
        for row in 0..rows.len() {
            let sum = (0..end).fold(T::ZERO, |sum, col| sum.plus(*view.at_mut(row, col)));
            *view.at_mut(row, end) = sum;
        }
    }

    /// Factors one of this machine's blocks, in memory of an earlier panel if that is large enough.
    pub fn panel(&self, kernel: &dyn Kernel, step: usize, memory: Vec<T>) -> PackedPanel<T> {
        let own = self.own(step).unwrap_or_default();
        let mut lease = self.working.lease(self.top(step)..self.begin.order, own);
        let panel = PackedPanel::factor(kernel, lease.view_mut(), memory);
        self.pivots().insert(step, panel.pivots().to_vec());
        panel
    }

    /// Updates some of this machine's blocks, counted here and with the checksum as the last, with a panel.
    pub fn update(&self, kernel: &dyn Kernel, panel: &PackedPanel<T>, step: usize, blocks: Range<usize>) {
        let first = self.blocks.get(blocks.start).map_or_else(|| self.columns(), |(_, own)| own.start);
        let last = self.blocks.get(blocks.end - 1).map_or_else(|| self.columns() + 1, |(_, own)| own.end);
        let spare = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = spare().pop().unwrap_or_default();
        let mut lease = self.working.lease(self.top(step)..self.begin.order, first..last);
        panel.update(kernel, lease.view_mut(), &mut scratch);
        spare().push(scratch);
    }

    /// A panel of another machine, from its elements and pivots; `None` if they are not those of this step.
    pub fn received(&self, step: usize, elements: Vec<T>, pivots: Vec<usize>) -> Option<PackedPanel<T>> {
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
        let rows = self.rows(self.begin.panels(), 0..self.begin.order)?;
        Ok(rows.map(|rows| rows.iter().map(|x| x.to_f64()).collect()))
    }

    /// Solves for the columns of some adjacent blocks, all of this machine, for `width` right-hand sides: `x` has the rows of
    /// [`LuExchange::of`], and is solved in those of the blocks and updated in the others. Returns false if the blocks are not
    /// here, or `x` has other rows.
    pub fn solve(
        &self,
        kernel: &dyn Kernel,
        (pass, blocks): (LuPass, Range<usize>),
        x: &mut [f64],
        width: usize,
    ) -> Result<bool, MatrixError> {
        let visit = LuExchange::of(&self.begin, pass, blocks);
        let visit = visit.filter(|visit| visit.owner == self.begin.ring.me);
        let Some(LuExchange { blocks, rows, .. }) = visit else { return Ok(false) };
        if width == 0 || x.len() != rows.len() * width {
            return Ok(false);
        }
        let lines = self.working.lines()?;
        let view = lines.view::<T>();
        let mut in_order: Vec<usize> = blocks.collect();
        if pass == LuPass::Back {
            in_order.reverse();
        }
        let mut columns = Vec::new();
        for block in in_order {
            let Some(own) = self.own(block) else { return Ok(false) };
            let of_block = self.begin.columns(block);
            let (start, end) = ((of_block.start - rows.start) * width, (of_block.end - rows.start) * width);
            let (which, others) = match pass {
                LuPass::Forward => (Triangle::UnitLower, of_block.end..self.begin.order),
                LuPass::Back => (Triangle::Upper, 0..of_block.start),
                LuPass::Multiply => return Ok(false),
            };
            if pass == LuPass::Forward {
                let pivots = self.pivots();
                let Some(pivots) = pivots.get(&block) else { return Ok(false) };
                apply_pivots(&mut x[start..], width, pivots);
            }
            let (above, rest) = x.split_at_mut(start);
            let (solved, below) = rest.split_at_mut(end - start);
            solve_corner(kernel, which, part(view, of_block, own.clone()), solved, width, &mut columns);
            let target = if pass == LuPass::Forward { below } else { above };
            let factor = part(view, others, own);
            subtract_products(kernel, factor, solved, target, width, &mut columns);
        }
        Ok(true)
    }

    fn pivots(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<usize>>> {
        self.pivots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest difference between the checksum and the sum of this machine's part of U, in units of what rounding
    /// can explain. Infinite if an element is no number.
    pub fn deviation(&self) -> Result<f64, MatrixError> {
        let lines = self.working.lines()?;
        let view = lines.view::<T>();
        let (mut worst, mut scale) = (0.0f64, 0.0f64);
        for row in 0..self.begin.order {
            let line = &view.data()[row * view.row_stride()..][..self.working.cols()];
            let checksum = line[self.columns()].to_f64();
            let (mut sum, mut size) = (-checksum, checksum.abs());
            for (block, own) in &self.blocks {
                // Left of the diagonal is L.
                let left = row.saturating_sub(self.begin.columns(*block).start).min(own.len());
                for x in line[own.start + left..own.end].iter().map(|x| x.to_f64()) {
                    sum += x;
                    size += x.abs();
                }
            }
            (worst, scale) = (worst.max(sum.abs()), scale.max(size));
            if !sum.is_finite() {
                return Ok(f64::INFINITY);
            }
        }
        let rounding = T::UNIT * self.begin.order as f64 * scale;
        Ok(if rounding > 0.0 { worst / rounding } else { worst })
    }
}

/// A part of a factor in f64: as it is, or converted into `memory`.
fn in_f64<'a, T: LuElement>(factor: View<'a, T>, memory: &'a mut Vec<f64>) -> View<'a, f64> {
    let (rows, cols) = (factor.rows(), factor.cols());
    if T::DTYPE == DType::F64 {
        return View::new(
            bytemuck::cast_slice(factor.data()),
            rows,
            cols,
            factor.row_stride(),
            factor.col_stride(),
        );
    }
    memory.clear();
    (0..rows).for_each(|i| memory.extend(line(factor, i).iter().map(|x| x.to_f64())));
    View::row_major(memory, rows, cols)
}

/// A row of a part of the columns, which lie in rows.
fn line<'a, T: LuElement>(of: View<'a, T>, row: usize) -> &'a [T] {
    &of.data()[row * of.row_stride()..][..of.cols()]
}

/// `x = T⁻¹ x` for the triangle of a block.
fn solve_corner<T: LuElement>(
    kernel: &dyn Kernel,
    which: Triangle,
    corner: View<'_, T>,
    x: &mut [f64],
    width: usize,
    memory: &mut Vec<f64>,
) {
    let rows = corner.rows();
    let corner = in_f64(corner, memory);
    match width {
        1 => solve_one(which, corner, x),
        _ => solve_triangle(kernel, which, corner, ViewMut::row_major(x, rows, width)),
    }
}

/// `target −= factor x`. A factor that has to be converted to f64 goes into dot products for one right-hand side, and else is
/// converted by pieces of rows. Factors in f64 have the bits of one process.
fn subtract_products<T: LuElement>(
    kernel: &dyn Kernel,
    factor: View<'_, T>,
    x: &[f64],
    target: &mut [f64],
    width: usize,
    memory: &mut Vec<f64>,
) {
    let (rows, cols) = (factor.rows(), factor.cols());
    if width == 1 && T::DTYPE != DType::F64 {
        target.iter_mut().enumerate().for_each(|(i, y)| *y -= dot_in_f64(line(factor, i), x));
        return;
    }
    let each = if T::DTYPE == DType::F64 { rows } else { CONVERTED_ROWS };
    let x = View::row_major(x, cols, width);
    for first in (0..rows).step_by(each.max(1)) {
        let some = first..rows.min(first + each);
        let c = ViewMut::row_major(&mut target[first * width..some.end * width], some.len(), width);
        let factor = in_f64(part(factor, some, 0..cols), memory);
        kernel.multiply(Product::new(-1.0, factor, x, 1.0, c).into());
    }
}
