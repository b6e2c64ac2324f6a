//! Finds the wrong tiles of a C that failed verification.
//!
//! Place in the flow: after a failed check, so that only wrong tiles are recomputed.
//!
//! C is halved along the side with more tiles, and each half is checked as a product of its own (its rows of A times its
//! columns of B). Wrong halves are halved again, down to single tiles. Each check is a call of `verify`, so a part that
//! fails is certainly wrong.
//!
//! Invariants: the tiles returned contain every fault in C, except faults that a check of the whole of C would miss as
//! well. If C is wrong and neither half can be shown to be wrong, both halves are returned, so the answer is never empty.
//! Each check uses new random vectors. Checking a part costs less than recomputing it.
//!
//! Deliberately absent: products with levels of Strassen–Winograd above tiles. The error bound of an element then depends
//! on rows and columns outside its part, so a check of the part alone would convict correct elements.

use super::random::Random;
use super::{Check, Effort, verify};
use bramble_matrix::{Matrix, MatrixError, Rect, Span};

/// The random stream of the seeds for checks of parts.
const PARTS_STREAM: u64 = 1 << 33;

/// Finds the wrong tiles of a C that failed the check; a tile has `rows` rows and `cols` columns. Returns rectangles in
/// units of tiles; every tile in them must be recomputed. `check.levels` must be 0.
pub fn wrong_tiles(check: &Check<'_>, (rows, cols): (u64, u64)) -> Result<Vec<Rect>, MatrixError> {
    let shape = check.c.shape();
    let all = Rect::new(
        Span::new(0, shape.rows.div_ceil(rows.max(1))),
        Span::new(0, shape.cols.div_ceil(cols.max(1))),
    );
    let mut seeds = Random::new(check.seed, PARTS_STREAM);
    let mut is_wrong = |tiles: Rect, effort: Effort| {
        let side = |span: Span, edge: u64, end: u64| Span::new(span.start * edge, (span.end * edge).min(end));
        let rect = Rect::new(side(tiles.rows, rows, shape.rows), side(tiles.cols, cols, shape.cols));
        let seed = seeds.next();
        part_is_wrong(&Check { effort, seed, ..*check }, rect, &check.c.part(rect))
    };
    let (mut open, mut found) = (vec![all], Vec::new());
    while let Some(tiles) = open.pop() {
        let Some(halves) = halves(tiles) else {
            found.push(tiles);
            continue;
        };
        let mut wrong = Vec::new();
        for effort in [Effort::Fast, Effort::Full] {
            for half in halves {
                if is_wrong(half, effort)? {
                    wrong.push(half);
                }
            }
            if !wrong.is_empty() {
                break;
            }
        }
        if wrong.is_empty() {
            found.push(tiles);
        }
        open.extend(wrong);
    }
    found.sort_unstable_by_key(|tiles| (tiles.rows.start, tiles.cols.start));
    Ok(found)
}

/// Whether the rectangle `rect` of C is certainly wrong if it holds `c`. `check.c` is not read; `check.levels` must be 0.
pub fn part_is_wrong(check: &Check<'_>, rect: Rect, c: &Matrix) -> Result<bool, MatrixError> {
    let depth = Span::new(0, check.a.shape().cols);
    let a = check.a.part(Rect::new(rect.rows, depth));
    let b = check.b.part(Rect::new(depth, rect.cols));
    let c0 = check.c0.map(|c0| c0.part(rect));
    let part = Check { a: &a, b: &b, c, c0: c0.as_ref(), ..*check };
    Ok(!verify(&part)?.passed)
}

/// The two halves along the longer side; `None` for a single tile.
fn halves(tiles: Rect) -> Option<[Rect; 2]> {
    let Rect { rows, cols } = tiles;
    let cut = |span: Span| {
        let middle = span.start + span.len() / 2;
        [Span::new(span.start, middle), Span::new(middle, span.end)]
    };
    match (rows.len(), cols.len()) {
        (0 | 1, 0 | 1) => None,
        (tall, wide) if tall >= wide => Some(cut(rows).map(|rows| Rect::new(rows, cols))),
        _ => Some(cut(cols).map(|cols| Rect::new(rows, cols))),
    }
}
