//! Bodies of store messages: references to bytes of an operand, or bytes made for the message.
//!
//! Invariants: native elements are sent from the operand's own memory, or not at all if the receiver can map the file.
//! Converted and transposed pieces are cached for a short while, together with each body's checksum, so that several receivers
//! share one encoding.

use bramble_arrays::ResidentPanels;
use bramble_link::{Body, Landing, Link, SharedRegion};
use bramble_matrix::{Buffer, Layout, Matrix, MatrixError, Output, Rect, TileLease};
use bramble_schedule::primary::{BodyPiece, Outgoing, Referred, Which};
use bramble_wire::message::{Generated, MatrixSource};
use std::any::Any;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

/// Size of the cache in bodies: enough for a few workers at slightly different steps …
const REMEMBERED: usize = 16;
/// … and its limit in bytes, for bodies that had to be made.
const REMEMBERED_BYTES: usize = 16 << 20;

/// The operands of a product, and recently made bodies.
pub(crate) struct Bodies {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    /// The parts of A and B, if these are placed.
    placed: [Option<ResidentPanels>; 2],
    recent: VecDeque<(Which, Rect, SharedRegion)>,
}

impl Bodies {
    pub(crate) fn new(
        a: Matrix,
        b: Matrix,
        old_c: Option<Matrix>,
        placed: [Option<ResidentPanels>; 2],
    ) -> Self {
        Self { a, b, old_c, placed, recent: VecDeque::new() }
    }

    /// Operands that may be sent by reference to their file over this link.
    pub(crate) fn referred(&self, link: &Link) -> Referred {
        let may_be = |matrix: &Matrix| link.refers_to_files && matrix.file().is_some();
        Referred { a: may_be(&self.a), b: may_be(&self.b) }
    }

    /// The body of a message; adjacent runs of bytes are merged into one.
    pub(crate) fn body(&mut self, message: &Outgoing, output: &Output) -> Result<Body, MatrixError> {
        let Some(piece) = message.piece else { return Ok(Body::Empty) };
        if piece.leased {
            let mut lent = output.lease(piece.rect);
            if piece.which == Which::C
                && let Some(old) = &self.old_c
            {
                copy_old(old, &mut lent)?;
            }
            return Ok(Body::Leased(Box::new(TileRows::new(lent))));
        }
        if piece.which == Which::Sum {
            return current_sum(&piece, output);
        }
        match message.head.matrices.last().map(|m| m.source) {
            Some(MatrixSource::Generated) => return Ok(self.generated(&piece)),
            Some(MatrixSource::Resident) => return Ok(self.resident(&piece)),
            _ => {}
        }
        let known = self.recent.iter().find(|(which, rect, _)| *which == piece.which && *rect == piece.rect);
        if let Some((_, _, region)) = known {
            return Ok(Body::Shared(region.clone()));
        }
        let region = self.region(&piece)?;
        self.recent.push_back((piece.which, piece.rect, region.clone()));
        let bytes =
            |recent: &VecDeque<(Which, Rect, SharedRegion)>| recent.iter().map(|r| r.2.len()).sum::<usize>();
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

    fn generated(&self, piece: &BodyPiece) -> Body {
        let generator = self.operand(piece.which).generator();
        let Some(generator) = generator else { unreachable!("the plan says generated") };
        let rect = piece.rect;
        let how = Generated { generator: generator.to_bytes(), row: rect.rows.start, col: rect.cols.start };
        Body::Shared(SharedRegion::whole(Arc::new(how.encode())))
    }

    fn resident(&self, piece: &BodyPiece) -> Body {
        let at = if piece.which == Which::A { 0 } else { 1 };
        let view = self.placed[at].as_ref().and_then(|panels| panels.view(piece.rect));
        let Some(view) = view else { unreachable!("borders of parts are borders of panels") };
        Body::Shared(SharedRegion::whole(Arc::new(view.encode())))
    }

    fn region(&self, piece: &BodyPiece) -> Result<SharedRegion, MatrixError> {
        let matrix = self.operand(piece.which);
        // The old C is sent by rows, whatever the order of its file.
        if piece.which == Which::C {
            return rows_of(matrix, piece.rect);
        }
        if let Some(region) = in_place(matrix, piece.rect) {
            return Ok(match matrix.file() {
                Some(file) => region.of_file(file.clone()),
                None => region,
            });
        }
        let mut buffer = Buffer::zeroed(piece.bytes)?;
        matrix.read_block(piece.rect, buffer.bytes_mut())?;
        let (lines, _) = matrix.layout().lines(piece.rect.shape());
        Ok(copied(buffer, to_index(lines)))
    }
}

/// A rectangle by rows, whatever the order of its file, as bytes that another process cannot map: it keeps a copy.
pub(crate) fn rows_of(matrix: &Matrix, rect: Rect) -> Result<SharedRegion, MatrixError> {
    let is_by_rows = matrix.layout() == Layout::RowMajor;
    if let Some(region) = in_place(matrix, rect).filter(|_| is_by_rows) {
        return Ok(region);
    }
    let bytes = rect.shape().bytes(matrix.dtype()).unwrap_or(u64::MAX);
    let mut buffer = Buffer::zeroed(to_index(bytes))?;
    if is_by_rows {
        matrix.read_block(rect, buffer.bytes_mut())?;
    } else {
        read_by_rows(matrix, rect, buffer.bytes_mut())?;
    }
    Ok(copied(buffer, to_index(rect.rows.len())))
}

/// A rectangle in the matrix's own memory, unless its elements have to be made.
fn in_place(matrix: &Matrix, rect: Rect) -> Option<SharedRegion> {
    let lines = matrix.lines(rect)?;
    let region =
        SharedRegion::new(lines.owner, lines.start, lines.line_bytes, lines.pitch_bytes, lines.lines);
    Some(region.merged())
}

/// A buffer of that many equal lines.
fn copied(buffer: Buffer, lines: usize) -> SharedRegion {
    let line_bytes = buffer.bytes().len() / lines.max(1);
    SharedRegion::new(Arc::new(buffer), 0, line_bytes, line_bytes, lines)
}

/// A dimension of a piece, as an index into memory.
fn to_index(side: u64) -> usize {
    usize::try_from(side).unwrap_or_else(|_| panic!("a piece with {side} lines is said to be in memory"))
}

/// Reads a rectangle of a column-major matrix as rows.
fn read_by_rows(matrix: &Matrix, rect: Rect, dst: &mut [u8]) -> Result<(), MatrixError> {
    let size = matrix.dtype().size_bytes();
    let (rows, cols) = (to_index(rect.rows.len()), to_index(rect.cols.len()));
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

/// Copies the old C into a tile that is about to be leased.
fn copy_old(old: &Matrix, lent: &mut TileLease) -> Result<(), MatrixError> {
    let rect = lent.rect();
    let mut rows = Buffer::zeroed(lent.lines() * lent.line_bytes())?;
    if old.layout() == Layout::RowMajor {
        old.read_block(rect, rows.bytes_mut())?;
    } else {
        read_by_rows(old, rect, rows.bytes_mut())?;
    }
    let line_bytes = lent.line_bytes().max(1);
    for (line, row) in lent.lines_mut(0..to_index(rect.rows.len())).zip(rows.bytes().chunks_exact(line_bytes))
    {
        line.copy_from_slice(row);
    }
    Ok(())
}

/// A copy of a sum in C, for a worker that continues it.
fn current_sum(piece: &BodyPiece, output: &Output) -> Result<Body, MatrixError> {
    let mut lent = output.lease(piece.rect);
    let mut buffer = Buffer::zeroed(piece.bytes)?;
    let line_bytes = lent.line_bytes().max(1);
    for (line, row) in lent
        .lines_mut(0..to_index(piece.rect.rows.len()))
        .zip(buffer.bytes_mut().chunks_exact_mut(line_bytes))
    {
        row.copy_from_slice(line);
    }
    Ok(Body::Shared(SharedRegion::whole(Arc::new(buffer))))
}

/// Rows of a tile of the output, as the memory in which a link lands them.
pub(crate) struct TileRows {
    lent: TileLease,
    lines: std::ops::Range<usize>,
}

impl TileRows {
    /// All rows.
    pub(crate) fn new(lent: TileLease) -> Self {
        Self { lines: 0..lent.lines(), lent }
    }

    /// Some rows.
    pub(crate) fn rows(lent: TileLease, lines: std::ops::Range<usize>) -> Self {
        Self { lent, lines }
    }
}

impl Landing for TileRows {
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
