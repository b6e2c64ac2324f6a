//! The canonical grid: how C is cut into tiles and k into steps.
//!
//! Invariant: a function of m, n, k, the element type and the user's `--tile` and `--panel` only. Every machine
//! therefore makes the same kernel calls on the same elements in the same order, whichever machine owns a tile: so
//! C's bits do not depend on the cluster.

use crate::{Problem, ProductSide};
use bramble_base::{Rect, Span};

/// Tiles of C and steps of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    m: u64,
    n: u64,
    k: u64,
    /// Rows of a tile (the last row of tiles may be shorter).
    pub tile_rows: u64,
    /// Columns of a tile.
    pub tile_cols: u64,
    /// Depth of a step: columns of an A panel, rows of a B panel.
    pub depth: u64,
}

/// The user's tile size and step depth, in place of the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TileSize {
    /// Rows and columns of a tile.
    pub tile: Option<u64>,
    /// Depth of a step.
    pub depth: Option<u64>,
}

/// Why a grid cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GridError {
    /// A tile size or step depth outside the range of frames and ids.
    #[error("--{option} {value}: must be between 1 and {max}")]
    Option {
        /// `tile` or `panel`.
        option: &'static str,
        /// The value that the user gave.
        value: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// Matrices larger than any file, whose sizes would overflow.
    #[error(
        "{m} x {n} x {k}: a matrix may have at most {ELEMENTS_MAX} elements, and as many rows or columns"
    )]
    TooLarge {
        /// Rows of A and C.
        m: u64,
        /// Columns of B and C.
        n: u64,
        /// Columns of A, rows of B.
        k: u64,
    },
    /// More steps than a message can number.
    #[error(
        "k = {k} in steps of {depth} are more than {STEPS_MAX} steps; use a larger --panel, or none: the default is 512 \
         or 1024"
    )]
    TooManySteps {
        /// The depth that is cut: columns of A, rows of B, or with levels of Strassen one part of them.
        k: u64,
        /// Depth of a step.
        depth: u64,
    },
    /// More products of tiles than any run could finish.
    #[error(
        "{m} x {n} x {k} in tiles of {tile_rows} x {tile_cols} and steps of {depth} are more than {JOBS_MAX} products; \
         use a larger --tile or --panel"
    )]
    TooMany {
        /// Rows of A and C.
        m: u64,
        /// Columns of B and C.
        n: u64,
        /// Columns of A, rows of B.
        k: u64,
        /// Rows of a tile.
        tile_rows: u64,
        /// Columns of a tile.
        tile_cols: u64,
        /// Depth of a step.
        depth: u64,
    },
}

/// Most elements of a matrix, and most rows, columns and depth: exact in a double, and their bytes fit 64 bits.
const ELEMENTS_MAX: u64 = 1 << 53;
/// Most products of tiles: at a million per second they would take nine years.
const JOBS_MAX: u64 = 1 << 48;

/// Most steps: with one for the rim, each step and the end of the last one have a 32-bit number.
const STEPS_MAX: u64 = u32::MAX as u64 - 2;

/// Largest tile edge: a line of a tile has to fit a 1 MiB frame with 8-byte elements.
pub(crate) const TILE_MAX: u64 = 65_536;
/// Largest step depth, for the same reason.
pub(crate) const DEPTH_MAX: u64 = 65_536;
/// Tiles that a product should have at least, if it is large enough, so that a few machines with a few threads each
/// can share it evenly.
const TILES_WANTED: u64 = 64;
/// Default tile edges, with the number of tiles from which on each is used. At 512, packing costs a kernel less
/// than 2 %, so that edge is worth more than even parts. Larger edges only save messages, and are used if enough
/// tiles remain for parts that are even within 2 % among a few machines.
const EDGES: [(u64, u64); 3] = [(1024, 4 * TILES_WANTED), (512, TILES_WANTED), (256, 0)];
/// Smallest edge to which a tile is halved to have more of them.
const PART_EDGE_MIN: u64 = 64;
/// Elements of the two panels of a step of a thin tile: 1 to 4 MiB, which a thread reads in a tenth of a
/// millisecond or more.
const STEP_ELEMENTS: u64 = 1 << 19;
/// A product with fewer tiles is cut along k if one machine computes it alone.
const FEW_TILES: u64 = 16;
/// The depth up to which writing C takes longer than computing it; B then fits a cache for every row of tiles, too.
const SHALLOW: u64 = 64;
/// Minimum ratio of the depth of a part of k to its width: its sum then has at most a sixty-fourth of the elements
/// that it is made from.
const PART_DEPTH: u64 = 64;
/// The smallest default edge.
const EDGE_MIN: u64 = EDGES[2].0;

impl Grid {
    /// The grid for a product.
    pub fn new(problem: &Problem, cut: TileSize) -> Result<Self, GridError> {
        Self::of(problem.m, problem.n, problem.k, cut)
    }

    /// The grid for a product of those sizes, which may be a part of a larger one.
    pub fn of(m: u64, n: u64, k: u64, cut: TileSize) -> Result<Self, GridError> {
        let small = |x: u64, y: u64| x.checked_mul(y).is_some_and(|elements| elements <= ELEMENTS_MAX);
        let sides = [m, n, k].iter().all(|side| *side <= ELEMENTS_MAX);
        if !(sides && small(m, n) && small(m, k) && small(k, n)) {
            return Err(GridError::TooLarge { m, n, k });
        }
        let (tile_rows, tile_cols) = match cut.tile {
            Some(edge) if edge == 0 || edge > TILE_MAX => {
                return Err(GridError::Option { option: "tile", value: edge, max: TILE_MAX });
            }
            Some(edge) => (edge, edge),
            None => default_tile(m, n, k),
        };
        let depth = match cut.depth {
            Some(depth) if depth == 0 || depth > DEPTH_MAX => {
                return Err(GridError::Option { option: "panel", value: depth, max: DEPTH_MAX });
            }
            Some(depth) => depth,
            None => thin_depth([m, n], tile_rows, tile_cols)
                .unwrap_or_else(|| default_depth(tile_rows.min(tile_cols))),
        };
        let grid = Self {
            m,
            n,
            k,
            tile_rows: tile_rows.min(m.max(1)),
            tile_cols: tile_cols.min(n.max(1)),
            depth: depth.min(k.max(1)),
        };
        grid.counts()?;
        Ok(grid)
    }

    /// The grid for one of the parts into which levels of Strassen–Winograd cut a matrix: the same, but with four
    /// smaller tiles in place of a single one, so that more than one machine can have cells. Not below 64, where
    /// products are too short.
    pub(crate) fn shared(self, cut: TileSize) -> Result<Self, GridError> {
        let edge = self.m.max(self.n).div_ceil(2);
        if cut.tile.is_some() || self.tiles() > 1 || edge < PART_EDGE_MIN {
            return Ok(self);
        }
        Self::of(self.m, self.n, self.k, TileSize { tile: Some(edge), depth: Some(self.depth) })
    }

    /// The tile size with the steps of square products, if those of this grid are deeper because C is thin.
    pub(crate) fn shallower(&self, cut: TileSize) -> Option<TileSize> {
        let usual = default_depth(self.tile_rows.min(self.tile_cols));
        (cut.depth.is_none() && self.depth > usual).then_some(TileSize { depth: Some(usual), ..cut })
    }

    /// A grid from a stored plan; `None` if its values are impossible.
    pub(crate) fn checked(sides: [u64; 3], tile_rows: u64, tile_cols: u64, depth: u64) -> Option<Self> {
        let [m, n, k] = sides;
        let within = |x: u64, side: u64, max: u64| (1..=max.min(side.max(1))).contains(&x);
        let fits =
            within(tile_rows, m, TILE_MAX) && within(tile_cols, n, TILE_MAX) && within(depth, k, DEPTH_MAX);
        // Sizes first: the counts are computed from them.
        Self::of(m, n, k, TileSize { tile: Some(TILE_MAX), depth: Some(DEPTH_MAX) }).ok()?;
        let grid = Self { m, n, k, tile_rows, tile_cols, depth };
        (fits && grid.counts().is_ok()).then_some(grid)
    }

    /// The grid with a border of tiles, or of steps, at each multiple of `border`: along that side, the largest divisor that
    /// is at most the usual size. 0 is no border.
    pub(crate) fn with_borders(self, side: ProductSide, border: u64) -> Result<Self, GridError> {
        let mut grid = self;
        let size = match side {
            ProductSide::Rows => &mut grid.tile_rows,
            ProductSide::Cols => &mut grid.tile_cols,
            ProductSide::Depth => &mut grid.depth,
        };
        *size = largest_divisor(border, *size);
        grid.counts()?;
        Ok(grid)
    }

    /// Checks that its steps and products can be counted.
    fn counts(&self) -> Result<(), GridError> {
        if self.steps() > STEPS_MAX {
            return Err(GridError::TooManySteps { k: self.k, depth: self.depth });
        }
        let jobs = self.tiles().checked_mul(self.steps());
        if jobs.is_none_or(|jobs| jobs > JOBS_MAX) {
            let Self { m, n, k, tile_rows, tile_cols, depth } = *self;
            return Err(GridError::TooMany { m, n, k, tile_rows, tile_cols, depth });
        }
        Ok(())
    }

    /// Steps that one machine, computing the product alone, sums from zero before it adds the sum to C: all of
    /// them, or fewer if C has few tiles, so that its threads have parts of k to share. A function of the grid: the
    /// number of threads changes no bit.
    pub fn steps_of_a_sum(&self) -> u64 {
        let (steps, tiles) = (self.steps().max(1), self.tiles().max(1));
        if tiles >= FEW_TILES {
            return steps;
        }
        let deep = PART_DEPTH * self.tile_rows * self.tile_cols / (self.tile_rows + self.tile_cols).max(1);
        let least = deep.div_ceil(self.depth.max(1)).max(1);
        steps.div_ceil(TILES_WANTED / tiles).max(least).min(steps)
    }

    /// Number of tile rows.
    pub fn rows(&self) -> u64 {
        self.m.div_ceil(self.tile_rows)
    }
    /// Number of tile columns.
    pub fn cols(&self) -> u64 {
        self.n.div_ceil(self.tile_cols)
    }
    /// Number of steps of k.
    pub fn steps(&self) -> u64 {
        self.k.div_ceil(self.depth)
    }
    /// Number of tiles of C.
    pub fn tiles(&self) -> u64 {
        self.rows() * self.cols()
    }

    /// Rows of C in tile row `i`.
    pub fn row_span(&self, i: u64) -> Span {
        Span::new(i * self.tile_rows, ((i + 1) * self.tile_rows).min(self.m))
    }
    /// Columns of C in tile column `j`.
    pub fn col_span(&self, j: u64) -> Span {
        Span::new(j * self.tile_cols, ((j + 1) * self.tile_cols).min(self.n))
    }
    /// The part of k in step `s`.
    pub fn step_span(&self, s: u64) -> Span {
        Span::new(s * self.depth, ((s + 1) * self.depth).min(self.k))
    }

    /// Tile (i, j) of C.
    pub fn tile(&self, i: u64, j: u64) -> Rect {
        Rect::new(self.row_span(i), self.col_span(j))
    }
    /// The panel of A that tile row `i` needs in step `s`.
    pub fn a_panel(&self, i: u64, s: u64) -> Rect {
        Rect::new(self.row_span(i), self.step_span(s))
    }
    /// The panel of B that tile column `j` needs in step `s`.
    pub fn b_panel(&self, s: u64, j: u64) -> Rect {
        Rect::new(self.step_span(s), self.col_span(j))
    }

    /// Rows of C in a span of tile rows.
    pub fn rows_of(&self, tiles: Span) -> u64 {
        (tiles.end * self.tile_rows).min(self.m) - (tiles.start * self.tile_rows).min(self.m)
    }
    /// Rows of the matrix that the grid cuts.
    pub fn whole_rows(&self) -> u64 {
        self.m
    }
    /// Columns of the matrix that the grid cuts.
    pub fn whole_cols(&self) -> u64 {
        self.n
    }
    /// Depth that the grid cuts.
    pub fn whole_depth(&self) -> u64 {
        self.k
    }

    /// Depth of k in a span of steps.
    pub fn depth_of(&self, steps: Span) -> u64 {
        (steps.end * self.depth).min(self.k) - (steps.start * self.depth).min(self.k)
    }
    /// Columns of C in a span of tile columns.
    pub fn cols_of(&self, tiles: Span) -> u64 {
        (tiles.end * self.tile_cols).min(self.n) - (tiles.start * self.tile_cols).min(self.n)
    }
}

/// The largest divisor of `number` that is at most `most`; `most` if there is no border (0).
fn largest_divisor(number: u64, most: u64) -> u64 {
    if number == 0 || number.is_multiple_of(most) {
        return most;
    }
    // Each divisor d is paired with number / d; one of the two is at most the root.
    let small = (1..).take_while(|d| d * d <= number).filter(|d| number.is_multiple_of(*d));
    small.flat_map(|d| [d, number / d]).filter(|d| *d <= most).max().unwrap_or(1)
}

/// Small tiles have deep panels, so that a job stays worth sending. Beyond 512, where kernels cut k themselves,
/// more depth gains nothing, and two steps of panels take memory from the block of C.
fn default_depth(edge: u64) -> u64 {
    if edge <= EDGE_MIN { 1024 } else { 512 }
}

/// The depth of a step of a C with a side below 256: its panels have as many elements as those of a 256 x 256 tile.
/// Slices of 512 stay whole.
fn thin_depth([m, n]: [u64; 2], tile_rows: u64, tile_cols: u64) -> Option<u64> {
    if m.min(n) >= EDGE_MIN {
        return None;
    }
    let sides = tile_rows.min(m.max(1)) + tile_cols.min(n.max(1));
    let least = default_depth(tile_rows.min(tile_cols));
    Some((STEP_ELEMENTS / sides / 512 * 512).clamp(least, DEPTH_MAX))
}

/// The largest square tile that still leaves enough tiles; a flat or tall C gets longer tiles of about the same
/// area, so that a job stays worth sending. With a shallow k a product takes as long as writing C: then tiles are
/// whole rows of C, up to the length limit, so that memory and file are written in order.
fn default_tile(m: u64, n: u64, k: u64) -> (u64, u64) {
    let edge = EDGES
        .into_iter()
        .find(|(e, wanted)| m.div_ceil(*e).saturating_mul(n.div_ceil(*e)) >= *wanted)
        .map_or(EDGE_MIN, |(edge, _)| edge);
    if n < edge {
        (stretched(edge, n, m), edge)
    } else if m < edge {
        (edge, stretched(edge, m, n))
    } else if k <= SHALLOW {
        let cols = n.min(TILE_MAX);
        ((edge * edge / cols).clamp(1, edge), cols)
    } else {
        (edge, edge)
    }
}

/// Length of a tile whose other edge is only `short`: a multiple of `edge`, of about edge² elements, but leaving at
/// least the wanted number of tiles.
fn stretched(edge: u64, short: u64, long: u64) -> u64 {
    let by_area = edge / short.max(1);
    let by_count = long.div_ceil(edge) / TILES_WANTED;
    edge * by_area.min(by_count).clamp(1, 16)
}
