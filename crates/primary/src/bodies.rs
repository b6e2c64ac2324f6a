//! Bodies of store messages: where the bytes of a piece lie, or how they are made.
//!
//! Invariants: native elements leave from the operand's own memory, or are left there where the other end can map its
//! file. What had to be made (converted, transposed) is kept a short while, so that several receivers share it, and so is
//! each body's checksum: one encoding for all.

use bramble_link::{Body, Landing, Link, Region};
use bramble_matrix::{Buffer, Layout, Lent, Matrix, MatrixError, Output, Rect};
use bramble_schedule::message::{Generated, Source};
use bramble_schedule::primary::{Outgoing, Piece, Referred, Which};
use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Bodies remembered: enough for a few workers at slightly different places …
const REMEMBERED: usize = 16;
/// … and little enough memory, where they had to be made.
const REMEMBERED_BYTES: usize = 16 << 20;

/// The operands of a product, as bodies are made from them.
pub(crate) struct Bodies {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    recent: VecDeque<(Which, Rect, Region)>,
}

impl Bodies {
    pub(crate) fn new(a: Matrix, b: Matrix, old_c: Option<Matrix>) -> Self {
        Self { a, b, old_c, recent: VecDeque::new() }
    }

    /// Which operands may be referred to over this link.
    pub(crate) fn referred(&self, link: &Link) -> Referred {
        let may_be = |matrix: &Matrix| link.refers_to_files && matrix.file().is_some();
        Referred { a: may_be(&self.a), b: may_be(&self.b) }
    }

    /// The body of a message; runs without gaps between them are one.
    pub(crate) fn body(&mut self, message: &Outgoing, output: &Output) -> Result<Body, MatrixError> {
        let Some(piece) = message.piece else { return Ok(Body::Empty) };
        if piece.lent {
            let mut lent = output.lend(piece.rect);
            if piece.which == Which::C
                && let Some(old) = &self.old_c
            {
                copy_old(old, &mut lent)?;
            }
            return Ok(Body::Lent(Box::new(Tile::new(lent))));
        }
        if piece.which == Which::Sum {
            return sum_so_far(&piece, output);
        }
        if message.head.matrices.last().is_some_and(|m| m.source == Source::Generated) {
            return Ok(self.generated(&piece));
        }
        let known = self.recent.iter().find(|(which, rect, _)| *which == piece.which && *rect == piece.rect);
        if let Some((_, _, region)) = known {
            return Ok(Body::Shared(region.clone()));
        }
        let region = self.region(&piece)?;
        self.recent.push_back((piece.which, piece.rect, region.clone()));
        let bytes =
            |recent: &VecDeque<(Which, Rect, Region)>| recent.iter().map(|r| r.2.len()).sum::<usize>();
        while self.recent.len() > REMEMBERED
            || (self.recent.len() > 1 && bytes(&self.recent) > REMEMBERED_BYTES)
        {
            self.recent.pop_front();
        }
        Ok(Body::Shared(region))
    }

    fn operand(&self, which: Which) -> &Matrix {
        match (which, &self.old_c) {
            (Which::A, _) => &self.a,
            (Which::B, _) => &self.b,
            (Which::C, Some(old)) => old,
            (Which::C, None) => unreachable!("tiles of C are sent only where the old C is read"),
            (Which::Sum, _) => unreachable!("sums are taken from the output"),
        }
    }

    fn generated(&self, piece: &Piece) -> Body {
        let generator = self.operand(piece.which).generator();
        let Some(generator) = generator else { unreachable!("the plan says generated") };
        let rect = piece.rect;
        let how = Generated { generator: generator.to_bytes(), row: rect.rows.start, col: rect.cols.start };
        Body::Shared(Region::whole(Arc::new(how.encode())))
    }

    fn region(&self, piece: &Piece) -> Result<Region, MatrixError> {
        let matrix = self.operand(piece.which);
        // The old C travels by rows whatever its file has.
        let as_it_lies = piece.which != Which::C || matrix.layout() == Layout::RowMajor;
        if as_it_lies && let Some(lines) = matrix.lines(piece.rect) {
            let region =
                Region::new(lines.owner, lines.start, lines.line_bytes, lines.pitch_bytes, lines.lines);
            // What jobs write is a copy of the old C, whatever that is in.
            let file = if piece.which == Which::C { None } else { matrix.file() };
            let region = region.merged();
            return Ok(match file {
                Some(file) => region.of_file(file.clone()),
                None => region,
            });
        }
        let mut buffer = Buffer::zeroed(piece.bytes)?;
        if as_it_lies {
            matrix.read_block(piece.rect, buffer.bytes_mut())?;
        } else {
            read_by_rows(matrix, piece.rect, buffer.bytes_mut())?;
        }
        let (lines, _) = matrix.layout().lines(piece.rect.shape());
        let lines = here(if as_it_lies { lines } else { piece.rect.rows.len() });
        let line_bytes = piece.bytes / lines.max(1);
        Ok(Region::new(Arc::new(buffer), 0, line_bytes, line_bytes, lines))
    }
}

/// A side of a piece whose bytes are in memory.
fn here(side: u64) -> usize {
    usize::try_from(side).unwrap_or_else(|_| panic!("a piece with {side} lines is said to be in memory"))
}

/// Reads a rectangle of a column-major matrix row by row.
fn read_by_rows(matrix: &Matrix, rect: Rect, dst: &mut [u8]) -> Result<(), MatrixError> {
    let size = matrix.dtype().size_bytes();
    let (rows, cols) = (here(rect.rows.len()), here(rect.cols.len()));
    let mut columns = Buffer::zeroed(dst.len())?;
    matrix.read_block(rect, columns.bytes_mut())?;
    for (j, column) in columns.bytes().chunks_exact((rows * size).max(1)).enumerate() {
        for (i, element) in column.chunks_exact(size).enumerate() {
            let at = (i * cols + j) * size;
            dst[at..at + size].copy_from_slice(element);
        }
    }
    Ok(())
}

/// Puts the old C's elements into a tile that is about to be lent.
fn copy_old(old: &Matrix, lent: &mut Lent) -> Result<(), MatrixError> {
    let rect = lent.rect();
    let mut rows = Buffer::zeroed(lent.lines() * lent.line_bytes())?;
    if old.layout() == Layout::RowMajor {
        old.read_block(rect, rows.bytes_mut())?;
    } else {
        read_by_rows(old, rect, rows.bytes_mut())?;
    }
    let line_bytes = lent.line_bytes().max(1);
    for (line, row) in lent.lines_mut(0..here(rect.rows.len())).zip(rows.bytes().chunks_exact(line_bytes)) {
        line.copy_from_slice(row);
    }
    Ok(())
}

/// A copy of what is in C, for a worker that goes on from it.
fn sum_so_far(piece: &Piece, output: &Output) -> Result<Body, MatrixError> {
    let mut lent = output.lend(piece.rect);
    let mut buffer = Buffer::zeroed(piece.bytes)?;
    let line_bytes = lent.line_bytes().max(1);
    for (line, row) in
        lent.lines_mut(0..here(piece.rect.rows.len())).zip(buffer.bytes_mut().chunks_exact_mut(line_bytes))
    {
        row.copy_from_slice(line);
    }
    Ok(Body::Shared(Region::whole(Arc::new(buffer))))
}

/// Rows of a tile of the output, as a link lands bytes in them.
pub(crate) struct Tile {
    lent: Lent,
    lines: std::ops::Range<usize>,
}

impl Tile {
    /// All rows.
    pub(crate) fn new(lent: Lent) -> Self {
        Self { lines: 0..lent.lines(), lent }
    }

    /// Some rows.
    pub(crate) fn rows(lent: Lent, lines: std::ops::Range<usize>) -> Self {
        Self { lent, lines }
    }
}

impl Landing for Tile {
    fn len(&self) -> usize {
        self.lines.len() * self.lent.line_bytes()
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        let line_bytes = self.lent.line_bytes().max(1);
        let first = (self.lines.start + offset / line_bytes).min(self.lines.end);
        let last = (first + max).min(self.lines.end);
        let mut skip = offset % line_bytes;
        for line in self.lent.lines_mut(first..last) {
            out.push(IoSliceMut::new(&mut line[skip..]));
            skip = 0;
        }
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.lent)
    }
}
