//! Which tiles of a wrong C are wrong.
//!
//! Place in the flow: after a check has failed, so that only those are computed again that have to be.
//!
//! C is halved along the side that has more tiles, and each half is checked as a product of its own (rows of A, columns of
//! B), until what is wrong is one tile. Each check is a call of `verify`, so what it finds wrong is wrong.
//!
//! Invariants: whatever is wrong in C is in what is named, unless a check has missed it that would miss it in the whole,
//! too. Where C is wrong and neither half can be shown to be, both are named: so the answer is never empty. Random vectors
//! are others in each check. Checks of parts cost less than computing these parts again.
//!
//! Deliberately absent: products with levels of Strassen–Winograd above tiles. Their bounds are those of rows and columns that
//! lie far apart, and a part alone would be convicted innocently.

use super::random::Random;
use super::{Check, Effort, verify};
use crate::{Matrix, MatrixError, Rect, Span};

/// Seeds of parts come from this stream.
const PARTS_STREAM: u64 = 1 << 33;

/// Of a C that failed the check, cut into tiles of so many rows and columns: rectangles of tiles (counted in tiles) in which
/// everything has to be computed again. `check.levels` has to be 0.
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

/// Whether a rectangle of C is surely wrong, where `c` is what is in it; `check.c` is not read. `check.levels` has to be 0.
pub fn part_is_wrong(check: &Check<'_>, rect: Rect, c: &Matrix) -> Result<bool, MatrixError> {
    let depth = Span::new(0, check.a.shape().cols);
    let a = check.a.part(Rect::new(rect.rows, depth));
    let b = check.b.part(Rect::new(depth, rect.cols));
    let c0 = check.c0.map(|c0| c0.part(rect));
    let part = Check { a: &a, b: &b, c, c0: c0.as_ref(), ..*check };
    Ok(!verify(&part)?.passed)
}

/// The two halves along the longer side; nothing where that is one.
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
