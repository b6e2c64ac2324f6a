//! The matrix store: operands and tiles by id, and the buffers that they leave behind for the next ones.
//!
//! Invariants: buffers in use and spare ones together stay within what the primary has needed at once so far; what only
//! jobs write has no buffer before its first job starts, and then the one that was given back last; an
//! operand is written before anyone reads it and never after; what jobs write, a tile or an operand that they make, is in
//! one place at a time (here, at a compute thread, or leaving).

use bramble_kernel::KernelElement;
use bramble_link::{Landing, Region};
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Buffer, Layout, Lent, Lines, MatrixError, Shape, View, ViewMut};
use bramble_schedule::ProtocolError;
use bramble_schedule::limits::lines_per_frame;
use bramble_schedule::message::{Generated, MatrixHeader, Source};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

/// An operand that is whole.
#[derive(Debug)]
pub(crate) enum Operand {
    /// In a buffer of ours.
    Owned(MatrixHeader, Buffer),
    /// Where the primary has it: in the memory of the same process, or in a file that this one has mapped.
    Borrowed(Lines),
}

impl Operand {
    /// The operand where a link says it is. An error where that is not all of it, or not where its elements can be read.
    pub(crate) fn borrowed(header: &MatrixHeader, region: Region) -> Result<Self, ProtocolError> {
        let (lines, line_bytes) = header.lines_total();
        let is_all = header.first_line == 0 && header.lines == lines;
        let (lines, size) = (to_usize(lines), header.dtype.size_bytes());
        let runs = (region.runs, region.run_bytes);
        // Lines without gaps between them may be one run.
        let pitch_bytes = match line_bytes.checked_mul(lines) {
            _ if runs == (lines, line_bytes) => Some(region.pitch_bytes),
            Some(all) if runs == (1, all) => Some(line_bytes),
            _ => None,
        };
        let first = (*region.owner).as_ref().as_ptr().addr().wrapping_add(region.start);
        let is_aligned =
            |pitch: &usize| first.is_multiple_of(size) && (lines == 1 || pitch.is_multiple_of(size));
        let Some(pitch_bytes) = pitch_bytes.filter(|pitch| is_all && is_aligned(pitch)) else {
            let (id, shape) = (header.id, header.shape());
            let what = format!("matrix {id} of {shape} is said to be where it cannot be ({region:?})");
            return Err(ProtocolError::new(what));
        };
        let Region { owner, start, .. } = region;
        let (shape, layout, dtype) = (header.shape(), header.layout, header.dtype);
        Ok(Self::Borrowed(Lines { owner, start, line_bytes, pitch_bytes, lines, shape, layout, dtype }))
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Borrowed(lines) => lines.shape,
            Self::Owned(header, _) => header.shape(),
        }
    }

    /// Its elements.
    pub(crate) fn view<T: KernelElement>(&self) -> View<'_, T> {
        match self {
            Self::Borrowed(lines) => lines.view(),
            Self::Owned(header, buffer) => {
                let (rows, cols) = (to_usize(header.rows), to_usize(header.cols));
                match header.layout {
                    Layout::RowMajor => View::row_major(buffer.elements(), rows, cols),
                    Layout::ColMajor => View::row_major(buffer.elements(), cols, rows).transposed(),
                }
            }
        }
    }
}

/// The bytes of an operand in a buffer of ours: what is passed on to other workers.
impl AsRef<[u8]> for Operand {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Owned(_, buffer) => buffer.bytes(),
            Self::Borrowed(_) => &[],
        }
    }
}

/// A tile of C, or an operand that jobs make, wherever it is accumulated.
pub(crate) enum Tile {
    /// In a buffer of ours, by rows.
    Owned(MatrixHeader, Buffer),
    /// The same after its last job, when nobody writes it any more.
    Whole(Whole),
    /// In the output itself, lent by the primary of the same process.
    Lent(Lent),
}

impl Tile {
    /// Its elements.
    pub(crate) fn view_mut<T: KernelElement>(&mut self) -> ViewMut<'_, T> {
        match self {
            Self::Lent(lent) => lent.view_mut(),
            Self::Owned(header, buffer) => {
                ViewMut::row_major(buffer.elements_mut(), to_usize(header.rows), to_usize(header.cols))
            }
            Self::Whole(_) => unreachable!("no job comes after a tile's last"),
        }
    }

    /// What it is after its last job: in the bodies in which it is going to leave, each with its checksum if the link wants
    /// one. Who has just written the elements makes it while a cache still has some of them.
    pub(crate) fn whole(self, with_checksums: bool) -> Self {
        let Self::Owned(header, buffer) = self else { return self };
        let (lines, line_bytes) = header.lines_total();
        let (buffer, per_frame) = (Arc::new(buffer), lines_per_frame(line_bytes));
        let (mut bodies, mut first) = (Vec::new(), 0);
        while first < lines {
            let count = per_frame.min(lines - first);
            let (start, len) = (to_usize(first) * line_bytes, to_usize(count) * line_bytes);
            let body = Region::new(buffer.clone(), start, len, len, 1);
            if with_checksums {
                body.checksum();
            }
            bodies.push((first, count, body));
            first += count;
        }
        Self::Whole(Whole { header, buffer, bodies })
    }
}

/// A tile that is going to leave.
pub(crate) struct Whole {
    pub(crate) header: MatrixHeader,
    pub(crate) buffer: Arc<Buffer>,
    /// In their order: the first row of each, how many, and their bytes.
    pub(crate) bodies: Vec<(u32, u32, Region)>,
}

/// Lent memory on its way back.
pub(crate) struct Returning(pub(crate) Lent);

impl Landing for Returning {
    fn len(&self) -> usize {
        self.0.lines() * self.0.line_bytes()
    }
    fn runs_mut<'a>(&'a mut self, _offset: usize, _max: usize, _out: &mut Vec<IoSliceMut<'a>>) {
        unreachable!("lent memory never crosses a link that moves bytes")
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.0)
    }
}

/// Where one part of a store message's body lands.
pub(crate) struct Part {
    id: u32,
    buffer: Buffer,
    from: usize,
    len: usize,
}

/// Where a store message's body lands: parts of several matrices, one after another.
pub(crate) struct Parts(Vec<Part>);

impl Landing for Parts {
    fn len(&self) -> usize {
        self.0.iter().map(|p| p.len).sum()
    }
    fn runs_mut<'a>(&'a mut self, offset: usize, max: usize, out: &mut Vec<IoSliceMut<'a>>) {
        let mut skip = offset;
        for part in &mut self.0 {
            if skip < part.len && out.len() < max {
                let end = part.from + part.len;
                out.push(IoSliceMut::new(&mut part.buffer.bytes_mut()[part.from + skip..end]));
            }
            skip = skip.saturating_sub(part.len);
        }
    }
    fn may_outlive_its_reader(&self) -> bool {
        true
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Spare buffers that are kept: they are searched one by one.
const SPARES_MAX: usize = 4096;

/// A size from the wire as one in memory, which is smaller on a 32-bit machine.
fn in_memory(bytes: u64) -> Result<usize, MatrixError> {
    usize::try_from(bytes).map_err(|_| MatrixError::OutOfMemory { bytes })
}

/// A matrix that is arriving, or has arrived and was not asked for yet.
struct Slot {
    header: MatrixHeader,
    /// `None` while bytes land in it.
    buffer: Option<Buffer>,
    /// In a box, since most have none, and many small matrices are to take little.
    generated: Option<Box<Generated>>,
}

/// Everything a session holds.
pub(crate) struct Store {
    /// What buffers in use and spare ones may take together.
    limit_bytes: u64,
    /// Bytes of all buffers, in use or spare.
    allocated_bytes: u64,
    allocated_bytes_max: u64,
    arriving: BTreeMap<u32, Slot>,
    operands: BTreeMap<u32, Arc<Operand>>,
    /// What no job has begun to write.
    vacant: BTreeMap<u32, MatrixHeader>,
    tiles: BTreeMap<u32, Tile>,
    spare: Vec<Buffer>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            limit_bytes: 0,
            allocated_bytes: 0,
            allocated_bytes_max: 0,
            arriving: BTreeMap::new(),
            operands: BTreeMap::new(),
            vacant: BTreeMap::new(),
            tiles: BTreeMap::new(),
            spare: Vec::new(),
        }
    }

    /// Sets how much buffers may take, spare ones included: what the primary has needed at once, as it is charged.
    pub(crate) fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// A buffer of `len` bytes: a spare one of just that size (panels and tiles have few sizes), else a new
    /// one, for which spare ones make room.
    fn buffer(&mut self, len: usize) -> Result<Buffer, MatrixError> {
        let too_much = || MatrixError::OutOfMemory { bytes: to_u64(len) };
        let capacity = len.checked_next_multiple_of(64).ok_or_else(too_much)?;
        // The last one that was given back: the caches may still have it.
        if let Some(found) = self.spare.iter().rposition(|b| b.capacity() == capacity) {
            let mut buffer = self.spare.remove(found);
            buffer.set_len(len);
            return Ok(buffer);
        }
        while self.allocated_bytes + to_u64(capacity) > self.limit_bytes
            && let Some(dropped) = self.spare.pop()
        {
            self.allocated_bytes -= to_u64(dropped.capacity());
        }
        // Tiles are written first by a compute thread, which then has their pages cleared.
        let buffer = Buffer::untouched(len)?;
        self.allocated_bytes += to_u64(buffer.capacity());
        self.allocated_bytes_max = self.allocated_bytes_max.max(self.allocated_bytes);
        Ok(buffer)
    }

    /// Takes memory for a matrix before its bytes come.
    pub(crate) fn reserve(&mut self, header: &MatrixHeader) -> Result<(), MatrixError> {
        if header.source == Source::Vacant {
            self.vacant.insert(header.id, *header);
            return Ok(());
        }
        let buffer = self.buffer(in_memory(header.bytes())?)?;
        self.arriving.insert(header.id, Slot { header: *header, buffer: Some(buffer), generated: None });
        Ok(())
    }

    /// Where the bodies of these matrices land. They were reserved, so each has a slot.
    pub(crate) fn landing(&mut self, matrices: &[MatrixHeader]) -> Result<Parts, MatrixError> {
        let mut parts = Vec::new();
        for header in matrices.iter().filter(|h| h.body_bytes() > 0) {
            let len = in_memory(header.body_bytes())?;
            let (from, buffer) = match header.source {
                // How it is made: a few bytes that are read before the matrix's own buffer is written.
                Source::Generated => (0, Some(Buffer::zeroed(len)?)),
                Source::Data | Source::Partial | Source::Vacant | Source::Relayed => {
                    let from = to_usize(header.first_line) * header.lines_total().1;
                    (from, self.arriving.get_mut(&header.id).and_then(|slot| slot.buffer.take()))
                }
            };
            let Some(buffer) = buffer else {
                return Err(MatrixError::format(
                    format!("matrix {}", header.id),
                    "comes twice in one message",
                ));
            };
            parts.push(Part { id: header.id, buffer, from, len });
        }
        Ok(Parts(parts))
    }

    /// The bodies have landed; puts their buffers back.
    pub(crate) fn landed(&mut self, parts: Parts) {
        for part in parts.0 {
            let Some(slot) = self.arriving.get_mut(&part.id) else { continue };
            if slot.buffer.is_none() {
                slot.buffer = Some(part.buffer);
            } else {
                slot.generated = Generated::decode(part.buffer.bytes()).ok().map(Box::new);
            }
        }
    }

    /// The buffer of a matrix that is arriving, for lines to land in; `None` where it is out already.
    pub(crate) fn lend(&mut self, id: u32) -> Option<Buffer> {
        self.arriving.get_mut(&id)?.buffer.take()
    }

    /// Takes it back.
    pub(crate) fn put_back(&mut self, id: u32, buffer: Buffer) {
        match self.arriving.get_mut(&id) {
            Some(slot) => slot.buffer = Some(buffer),
            None => self.recycle(buffer),
        }
    }

    /// How to make a generated matrix, and the memory for it.
    pub(crate) fn take_generated(&mut self, id: u32) -> Option<(MatrixHeader, Generated, Buffer)> {
        let mut slot = self.arriving.remove(&id)?;
        Some((slot.header, *slot.generated?, slot.buffer.take()?))
    }

    /// Notes how a generated matrix is made (on links that share memory).
    pub(crate) fn set_generated(&mut self, id: u32, generated: Generated) {
        if let Some(slot) = self.arriving.get_mut(&id) {
            slot.generated = Some(Box::new(generated));
        }
    }

    pub(crate) fn put_operand(&mut self, id: u32, operand: Operand) {
        self.operands.insert(id, Arc::new(operand));
    }

    pub(crate) fn put_tile(&mut self, id: u32, tile: Tile) {
        self.tiles.insert(id, tile);
    }

    /// An operand for a job. It is whole, so it is taken from where it arrived, or was made.
    pub(crate) fn operand(&mut self, id: u32) -> Option<Arc<Operand>> {
        if let Some(mut slot) = self.arriving.remove(&id) {
            let operand = Operand::Owned(slot.header, slot.buffer.take()?);
            self.operands.insert(id, Arc::new(operand));
        }
        if let Some(Tile::Owned(header, buffer)) = self.tiles.remove(&id) {
            self.operands.insert(id, Arc::new(Operand::Owned(header, buffer)));
        }
        self.operands.get(&id).cloned()
    }

    /// Bytes of what no job has begun to write.
    pub(crate) fn vacant_bytes(&self, id: u32) -> u64 {
        self.vacant.get(&id).map_or(0, MatrixHeader::bytes)
    }

    /// What a job writes, for the next of its jobs or, if it is a tile, for its way back.
    pub(crate) fn take_tile(&mut self, id: u32) -> Result<Option<Tile>, MatrixError> {
        if let Some(header) = self.vacant.remove(&id) {
            let buffer = self.buffer(in_memory(header.bytes())?)?;
            return Ok(Some(Tile::Owned(header, buffer)));
        }
        if let Some(slot) = self.arriving.remove(&id) {
            return Ok(slot.buffer.map(|buffer| Tile::Owned(slot.header, buffer)));
        }
        Ok(self.tiles.remove(&id))
    }

    /// An operand that no job needs any more.
    pub(crate) fn release(&mut self, id: u32) {
        if let Some(operand) = self.operands.remove(&id)
            && let Ok(Operand::Owned(_, buffer)) = Arc::try_unwrap(operand)
        {
            self.recycle(buffer);
        }
    }

    /// A buffer that nobody uses any more.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARES_MAX {
            self.spare.push(buffer);
        } else {
            self.allocated_bytes -= to_u64(buffer.capacity());
        }
    }

    /// A buffer that somebody else will free.
    pub(crate) fn part_with(&mut self, buffer: &Buffer) {
        self.allocated_bytes -= to_u64(buffer.capacity());
    }

    /// Most bytes in buffers, in use or spare, so far: what the process really took for matrices.
    pub(crate) fn allocated_bytes_max(&self) -> u64 {
        self.allocated_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_matrix::DType;

    fn header(layout: Layout) -> MatrixHeader {
        let (rows, cols, lines) = if layout == Layout::RowMajor { (3, 2, 3) } else { (2, 3, 3) };
        MatrixHeader {
            id: 1,
            rows,
            cols,
            first_line: 0,
            lines,
            uses: 1,
            dtype: DType::F64,
            layout,
            source: Source::Data,
        }
    }

    fn region(start: usize, run_bytes: usize, pitch_bytes: usize, runs: usize) -> Region {
        let mut buffer = Buffer::zeroed(256).unwrap();
        buffer.elements_mut::<f64>().iter_mut().enumerate().for_each(|(i, x)| *x = i as f64);
        Region::new(Arc::new(buffer), start, run_bytes, pitch_bytes, runs)
    }

    #[test]
    fn a_borrowed_operand_is_its_lines_also_where_they_are_one_run() {
        for layout in [Layout::RowMajor, Layout::ColMajor] {
            for (region, want) in
                [(region(8, 16, 40, 3), [1.0, 7.0, 12.0]), (region(8, 48, 48, 1), [1.0, 4.0, 6.0])]
            {
                let operand = Operand::borrowed(&header(layout), region).unwrap();
                let view = operand.view::<f64>();
                let at = |line: usize, i: usize| match layout {
                    Layout::RowMajor => view.at(line, i),
                    Layout::ColMajor => view.at(i, line),
                };
                assert_eq!([at(0, 0), at(1, 1), at(2, 1)], want, "{layout:?}");
            }
        }
    }

    #[test]
    fn a_whole_tile_is_its_bodies_in_their_order_each_with_its_own_sum() {
        // Rows of 768 KiB: one in each body.
        let (rows, cols) = (3, 3 << 15);
        let header = MatrixHeader { rows, cols, lines: rows, ..header(Layout::RowMajor) };
        let mut buffer = Buffer::zeroed(in_memory(header.bytes()).unwrap()).unwrap();
        buffer.elements_mut::<f64>().iter_mut().enumerate().for_each(|(i, x)| *x = i as f64);
        let want = buffer.bytes().to_vec();
        let Tile::Whole(whole) = Tile::Owned(header, buffer).whole(true) else {
            panic!("it is not on its way")
        };
        let placed: Vec<_> = whole.bodies.iter().map(|(first, count, _)| (*first, *count)).collect();
        assert_eq!(placed, [(0, 1), (1, 1), (2, 1)]);
        let bodies: Vec<&[u8]> = whole.bodies.iter().map(|(.., body)| body.run(0)).collect();
        assert_eq!(bodies.concat(), want);
        for (_, _, body) in &whole.bodies {
            let sum_of = Region::whole(Arc::new(body.run(0).to_vec())).checksum();
            assert_eq!(body.checksum(), sum_of);
        }
    }

    #[test]
    fn what_is_not_all_of_an_operand_or_cannot_be_read_is_refused() {
        let whole = header(Layout::RowMajor);
        let part = MatrixHeader { lines: 2, ..whole };
        let cases = [
            (whole, region(8, 16, 40, 2)),
            (whole, region(8, 24, 40, 3)),
            (whole, region(8, 40, 40, 1)),
            (whole, region(4, 16, 40, 3)),
            (whole, region(8, 16, 20, 3)),
            (part, region(8, 16, 40, 2)),
            (MatrixHeader { first_line: 1, ..part }, region(8, 16, 40, 2)),
        ];
        for (at, (header, region)) in cases.into_iter().enumerate() {
            assert!(Operand::borrowed(&header, region).is_err(), "case {at}");
        }
    }
}
