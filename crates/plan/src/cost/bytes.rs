//! The bytes that a share moves, frame by frame: matrices, jobs, results, credit (docs/wire-format.md).
//!
//! Invariant: the same numbers as the schedule's, except for credits, which accumulate while a link is busy, and
//! for operands in column order, whose lines are cut at other places.

use super::FRAMES_A_CREDIT;
use super::relay::{Panels, Passed};
use crate::winograd::Recipe;
use crate::{Problem, Region, Share, Sums};
use bramble_base::Span;
use bramble_base::float::{powi, round};

/// Length of a frame's header.
const FRAME_BYTES: u64 = 16;
/// Length of a matrix's header, of a job, and of the head of a result.
const ENTRY_BYTES: u64 = 24;
/// Length of a store's counts.
const COUNT_BYTES: u64 = 4;
/// Length of a credit.
const CREDIT_BYTES: u64 = 8;
/// Longest body of a frame.
const CHUNK_BYTES: u64 = 1 << 20;
/// Length of the head of relayed lines.
const PIECE_BYTES: u64 = 12;
/// Length of an empty list of relay orders, and of one order.
const ORDERS_BYTES: u64 = 2;
const ORDER_BYTES: u64 = 12;
/// Length of the description of a generated panel.
const GENERATED_BYTES: u64 = 32;

/// What a share moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Operations of products.
    pub(crate) flops: f64,
    /// Elements that Strassen's method adds.
    pub(crate) added: f64,
    /// Bytes to the worker.
    pub(crate) out: u64,
    /// Bytes returned by the worker.
    pub(crate) back: u64,
    /// Bytes of C in `back`.
    pub(crate) results: u64,
    pub(crate) jobs: u64,
    /// Bytes of partial sums that the primary adds.
    pub(crate) merged: u64,
}

/// Matrices with their bytes and frames.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Matrices {
    count: u64,
    bytes: u64,
    frames: u64,
}

impl Matrices {
    /// `count` matrices of `lines` lines of `line_bytes` bytes.
    fn alike(count: u64, lines: u64, line_bytes: u64) -> Self {
        if count == 0 || lines == 0 || line_bytes == 0 {
            return Self::default();
        }
        let frames = lines.div_ceil((CHUNK_BYTES / line_bytes).max(1));
        let bytes = lines.saturating_mul(line_bytes).saturating_mul(count);
        Self { count, bytes, frames: frames.saturating_mul(count) }
    }

    fn times(self, times: u64) -> Self {
        let by = |x: u64| x.saturating_mul(times);
        Self { count: by(self.count), bytes: by(self.bytes), frames: by(self.frames) }
    }

    /// Part number `at` of `count` even parts; the first parts take the remainder.
    pub(super) fn part(self, at: u64, count: u64) -> Self {
        let part = |x: u64| x / count + u64::from(at < x % count);
        Self { count: part(self.count), bytes: part(self.bytes), frames: part(self.frames) }
    }

    /// The rest without a part.
    pub(super) fn minus(self, part: Self) -> Self {
        Self {
            count: self.count - part.count,
            bytes: self.bytes - part.bytes,
            frames: self.frames - part.frames,
        }
    }

    /// About `factor` times as much.
    pub(super) fn scaled(self, factor: f64) -> Self {
        let by = |x: u64| round(x as f64 * factor) as u64;
        Self { count: by(self.count), bytes: by(self.bytes), frames: by(self.frames) }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            bytes: self.bytes.saturating_add(other.bytes),
            frames: self.frames.saturating_add(other.frames),
        }
    }

    /// Bytes of the stores that contain them, or the descriptions of generated ones.
    fn stored(self, travels: bool) -> u64 {
        let head = FRAME_BYTES + COUNT_BYTES + ENTRY_BYTES;
        if travels {
            self.bytes.saturating_add(self.frames.saturating_mul(head))
        } else {
            self.count.saturating_mul(head + GENERATED_BYTES)
        }
    }
}

/// Bytes of a member's shared panels, by sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Relayed {
    /// Bytes that the primary need not send to it.
    pub(crate) spared: u64,
    /// Bytes that the primary sends in addition: announcements of relayed panels, and relay orders.
    pub(crate) told: u64,
    /// Bytes from other members.
    pub(crate) taken: u64,
    /// Bytes to other members.
    pub(crate) given: u64,
}

impl Relayed {
    pub(crate) fn of(passed: &Passed) -> Self {
        let Passed { taken, given, .. } = passed;
        let frames =
            |m: &Matrices| m.bytes.saturating_add(m.frames.saturating_mul(FRAME_BYTES + PIECE_BYTES));
        let announced = taken.panels * (FRAME_BYTES + COUNT_BYTES) + taken.matrices.count * ENTRY_BYTES;
        let ordered = given.panels * (FRAME_BYTES + ORDERS_BYTES) + given.matrices.count * ORDER_BYTES;
        Self {
            spared: taken.matrices.stored(true),
            told: announced + ordered,
            taken: frames(&taken.matrices),
            given: frames(&given.matrices),
        }
    }
}

/// The panels of A for some rows of cells, or of B for some columns, in some steps.
pub(super) fn panels(problem: &Problem, region: &Region, is_a: bool, lines: Span, steps: Span) -> Panels {
    let (e, q, grid) = (problem.element_bytes(), region.q(), &region.grid);
    let core = core_of(region, steps);
    let depth = pieces(core, grid.depth, grid.whole_depth());
    let rim = if steps.len() > core.len() { [(1, region.rim), (0, 0)] } else { [(0, 0); 2] };
    let of = |depth: [(u64, u64); 2]| {
        if is_a {
            rectangles(pieces(lines, grid.tile_rows, grid.whole_rows()), depth, e)
        } else {
            rectangles(depth, pieces(lines, grid.tile_cols, grid.whole_cols()), e)
        }
    };
    Panels {
        matrices: of(depth).times(q * q).plus(of(rim).times(q)),
        panels: lines.len().saturating_mul(steps.len()),
    }
}

/// A span cut into pieces of `each` up to `whole`: (number of whole ones, length), (1 if there is a shorter one,
/// its length).
fn pieces(span: Span, each: u64, whole: u64) -> [(u64, u64); 2] {
    let all = span.len();
    let length = |at: u64| ((at + 1) * each).min(whole) - (at * each).min(whole);
    if all == 0 {
        return [(0, 0), (0, 0)];
    }
    let last = length(span.end - 1);
    if last == each { [(all, each), (0, 0)] } else { [(all - 1, each), (1, last)] }
}

/// All rectangles from the pieces of two sides.
fn rectangles(lines: [(u64, u64); 2], across: [(u64, u64); 2], element_bytes: u64) -> Matrices {
    let pairs = lines.into_iter().flat_map(|l| across.into_iter().map(move |a| (l, a)));
    let one = |((count, lines), (times, length)): ((u64, u64), (u64, u64))| {
        Matrices::alike(count.saturating_mul(times), lines, length * element_bytes)
    };
    pairs.map(one).fold(Matrices::default(), Matrices::plus)
}

/// What a share moves and computes.
pub(crate) fn load(problem: &Problem, region: &Region, recipe: &Recipe, sums: Sums, share: &Share) -> Load {
    let e = problem.element_bytes();
    let (q, grid) = (region.q(), &region.grid);
    let (down, across, deep) = share.blocks_each_way();
    let (cells_down, cells_across) = (share.cells.rows.len(), share.cells.cols.len());
    let rows = pieces(share.cells.rows, grid.tile_rows, grid.whole_rows());
    let cols = pieces(share.cells.cols, grid.tile_cols, grid.whole_cols());
    let core = core_of(region, share.steps);
    let depth = pieces(core, grid.depth, grid.whole_depth());
    let rim = if share.steps.len() > core.len() { [(1, region.rim), (0, 0)] } else { [(0, 0); 2] };
    let of_side =
        |core: Matrices, rim: Matrices, times: u64| core.times(q * q).plus(rim.times(q)).times(times);
    let a = of_side(rectangles(rows, depth, e), rectangles(rows, rim, e), across);
    let b = of_side(rectangles(depth, cols, e), rectangles(rim, cols, e), down);
    let tiles = rectangles(rows, cols, e).times(q * q);
    let counts = Counts::of(region, recipe, share, (cells_down, cells_across));
    // The old C is sent before the first steps, and a sum that the member continues is sent before later steps.
    let first = u64::from(share.steps.start == 0 && deep > 0);
    let with_elements = match sums {
        Sums::Chained => deep - first + if problem.reads_c { first } else { 0 },
        Sums::Merged if problem.reads_c => first,
        Sums::Merged => 0,
    };
    let sent_tiles = tiles.times(with_elements);
    let vacant = (counts.vacant + counts.tiles).saturating_sub(sent_tiles.count);
    let out = a
        .stored(problem.a_source.is_sent())
        .saturating_add(b.stored(problem.b_source.is_sent()))
        .saturating_add(if sent_tiles.count > 0 { sent_tiles.stored(true) } else { 0 })
        .saturating_add((vacant + counts.jobs).saturating_mul(ENTRY_BYTES));
    let results = tiles.times(deep);
    let freed = a.count.saturating_add(b.count).saturating_add(counts.vacant).saturating_add(results.count);
    let back = results
        .bytes
        .saturating_add(results.frames.saturating_mul(FRAME_BYTES + ENTRY_BYTES))
        .saturating_add(freed.saturating_mul(FRAME_BYTES + CREDIT_BYTES) / FRAMES_A_CREDIT);
    let merged = if sums == Sums::Merged { tiles.times(deep - first).bytes } else { 0 };
    let rim_depth = rim[0].1 as f64;
    let saved = powi(7.0 / 8.0, region.levels);
    let per_depth = 2.0 * region.elements(share.cells) as f64;
    let core_depth = (grid.depth_of(core) * q) as f64;
    Load {
        flops: per_depth * (core_depth * saved + rim_depth),
        added: added(region, recipe, share, core),
        out,
        back,
        results: results.bytes,
        jobs: counts.jobs,
        merged,
    }
}

/// The steps except the rim.
fn core_of(region: &Region, steps: Span) -> Span {
    let all = region.grid.steps();
    Span::new(steps.start.min(all), steps.end.min(all))
}

/// Matrices without a body, and jobs.
struct Counts {
    /// Tiles of C, once for each part of k.
    tiles: u64,
    /// Sums and products that stay at the worker.
    vacant: u64,
    jobs: u64,
}

impl Counts {
    fn of(region: &Region, recipe: &Recipe, share: &Share, (rows, cols): (u64, u64)) -> Self {
        let (q, core) = (region.q(), core_of(region, share.steps));
        let (down, across, deep) = share.blocks_each_way();
        let count = |n: usize| n as u64;
        let products = count(recipe.products());
        let (a_sums, b_sums) = (count(recipe.left.sums.len()), count(recipe.right.sums.len()));
        let cells = rows.saturating_mul(cols);
        let rim = share.steps.len() - core.len();
        let made = core.len().saturating_mul(
            rows.saturating_mul(across)
                .saturating_mul(a_sums)
                .saturating_add(cols.saturating_mul(down).saturating_mul(b_sums)),
        );
        // Blocks that have more than the rim combine their products into tiles.
        let joined = core.len().div_ceil(share.block.steps.max(1)).min(deep);
        let c_sums = count(recipe.results.sums.len());
        let parts = if region.levels == 0 { 0 } else { products + c_sums - q * q };
        let each = core.len() * products + rim * q * q + joined * c_sums;
        Self {
            tiles: cells.saturating_mul(deep).saturating_mul(q * q),
            vacant: made.saturating_add(cells.saturating_mul(joined).saturating_mul(parts)),
            jobs: made.saturating_add(cells.saturating_mul(each)),
        }
    }
}

/// Elements that Strassen's method adds.
fn added(region: &Region, recipe: &Recipe, share: &Share, core: Span) -> f64 {
    if region.levels == 0 {
        return 0.0;
    }
    let grid = &region.grid;
    let (down, across, _) = share.blocks_each_way();
    let (rows, cols) = (grid.rows_of(share.cells.rows) as f64, grid.cols_of(share.cells.cols) as f64);
    let depth = grid.depth_of(core) as f64;
    let joined = core.len().div_ceil(share.block.steps.max(1)) as f64;
    let a = recipe.left.sums.len() as f64 * rows * depth * across as f64;
    let b = recipe.right.sums.len() as f64 * cols * depth * down as f64;
    let c = recipe.results.sums.len() as f64 * rows * cols * joined;
    a + b + c
}
