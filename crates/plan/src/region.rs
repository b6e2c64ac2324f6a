//! A rectangle of C that is cut by one grid, with the positions of its tiles and panels.
//!
//! Place in the flow: a plan covers C with regions: one, or with levels of Strassen up to three, since odd rows and
//! columns are peeled off (Huss-Lederman, Jacobson, Johnson, Tsao, Turnbull, *Implementation of Strassen's
//! algorithm for matrix multiplication*, 1996; here for all levels at once, so that all products have the same
//! size).
//!
//! A region with levels has cells instead of tiles. With q = 2^levels, its rows, columns and depth are cut into q
//! equal parts, and the grid cuts one such part: tile (i, j) of the grid stands for q × q tiles of C, one in each
//! part. The remainder of the depth is one more step, the rim, in which each tile of a cell is multiplied
//! separately.
//!
//! Invariants: the regions of a plan are disjoint and cover C; without levels a cell is a tile and there is no rim.

use crate::{Grid, GridError, Problem, TileSize};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// A part of C with its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First row in C and A.
    pub row: u64,
    /// First column in C and B.
    pub col: u64,
    /// The grid of one part.
    pub grid: Grid,
    /// Levels of Strassen–Winograd.
    pub levels: u32,
    /// The remainder of the depth: 0 to q − 1.
    pub rim: u64,
}

impl Region {
    /// The whole of C in tiles.
    pub fn whole(problem: &Problem, cut: TileSize) -> Result<Self, GridError> {
        Ok(Self { row: 0, col: 0, grid: Grid::new(problem, cut)?, levels: 0, rim: 0 })
    }

    /// Regions for that many levels: the core, the rest on its right, the rest below. `None` if the matrices are
    /// too small for that many levels.
    pub fn peeled(problem: &Problem, cut: TileSize, levels: u32) -> Result<Option<Vec<Self>>, GridError> {
        Self::laid_out(problem, levels, |m, n, k| {
            let grid = Grid::of(m, n, k, cut)?;
            // The peeled rest is not a part.
            let is_part =
                levels > 0 && (m, n, k) == (problem.m >> levels, problem.n >> levels, problem.k >> levels);
            if is_part { grid.shared(cut) } else { Ok(grid) }
        })
    }

    /// The same with any grids: `make` is called with the rows, columns and depth that a grid cuts.
    pub(crate) fn laid_out<E>(
        problem: &Problem,
        levels: u32,
        mut grid: impl FnMut(u64, u64, u64) -> Result<Grid, E>,
    ) -> Result<Option<Vec<Self>>, E> {
        if levels == 0 {
            let grid = grid(problem.m, problem.n, problem.k)?;
            return Ok(Some(vec![Self { row: 0, col: 0, grid, levels: 0, rim: 0 }]));
        }
        let (m, n, k) = (problem.m >> levels, problem.n >> levels, problem.k >> levels);
        if m == 0 || n == 0 || k == 0 {
            return Ok(None);
        }
        let core = grid(m, n, k)?;
        let (rows, cols) = (m << levels, n << levels);
        let mut regions = vec![Self { row: 0, col: 0, grid: core, levels, rim: problem.k - (k << levels) }];
        if cols < problem.n {
            let grid = grid(problem.m, problem.n - cols, problem.k)?;
            regions.push(Self { row: 0, col: cols, grid, levels: 0, rim: 0 });
        }
        if rows < problem.m {
            let grid = grid(problem.m - rows, cols, problem.k)?;
            regions.push(Self { row: rows, col: 0, grid, levels: 0, rim: 0 });
        }
        Ok(Some(regions))
    }

    /// Panels and tiles of a cell in each direction: 2^levels.
    pub fn q(&self) -> u64 {
        1 << self.levels
    }

    /// Steps of k, including the rim.
    pub fn steps(&self) -> u64 {
        self.grid.steps() + u64::from(self.rim > 0)
    }

    /// Whether a step is the rim.
    pub fn is_rim(&self, step: u64) -> bool {
        step == self.grid.steps()
    }

    /// Rows of one of the q parts.
    fn part_rows(&self) -> u64 {
        self.grid.whole_rows()
    }

    /// Tile (u, v) of cell (i, j), in C.
    pub fn tile(&self, i: u64, j: u64, u: u64, v: u64) -> Rect {
        Rect::new(self.rows(i, u), self.cols(j, v))
    }

    /// Panel (u, w) that cell row `i` needs of A in a step; in the rim only w = 0.
    pub fn a_panel(&self, i: u64, step: u64, u: u64, w: u64) -> Rect {
        Rect::new(self.rows(i, u), self.depth(step, w))
    }

    /// Panel (w, v) that cell column `j` needs of B in a step; in the rim only w = 0.
    pub fn b_panel(&self, step: u64, j: u64, w: u64, v: u64) -> Rect {
        Rect::new(self.depth(step, w), self.cols(j, v))
    }

    fn rows(&self, i: u64, u: u64) -> Span {
        moved(self.grid.row_span(i), self.row + u * self.part_rows())
    }

    fn cols(&self, j: u64, v: u64) -> Span {
        moved(self.grid.col_span(j), self.col + v * self.grid.whole_cols())
    }

    fn depth(&self, step: u64, w: u64) -> Span {
        let part = self.grid.whole_depth();
        if self.is_rim(step) {
            return Span::new(part << self.levels, (part << self.levels) + self.rim);
        }
        moved(self.grid.step_span(step), w * part)
    }

    /// Elements of C in a rectangle of cells.
    pub fn elements(&self, cells: Rect) -> u64 {
        self.grid.rows_of(cells.rows) * self.grid.cols_of(cells.cols) * self.q() * self.q()
    }

    /// All cells.
    pub fn cells(&self) -> Rect {
        Rect::new(Span::new(0, self.grid.rows()), Span::new(0, self.grid.cols()))
    }

    /// Depth of k, in elements, that a span of steps covers.
    pub fn depth_of(&self, steps: Span) -> u64 {
        let rim = if steps.end > self.grid.steps() && !steps.is_empty() { self.rim } else { 0 };
        let core = Span::new(steps.start.min(self.grid.steps()), steps.end.min(self.grid.steps()));
        self.grid.depth_of(core) * self.q() + rim
    }
}

fn moved(span: Span, by: u64) -> Span {
    Span::new(span.start + by, span.end + by)
}
