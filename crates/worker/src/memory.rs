//! The matrix store of a session: operands and tiles by id, and spare buffers for reuse.
//!
//! Invariants: buffers in use and spare ones together stay within the most that the primary has needed at once so far. A matrix
//! that only jobs write has no buffer before its first job starts, and then gets the most recently returned one. An
//! operand is written before it is read and never afterwards. A matrix that jobs write, tile or operand, is in
//! one place at a time (in the store, at a compute thread, or in the link).

use bramble_kernel::KernelElement;
use bramble_link::{Landing, SharedRegion};
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Buffer, Layout, Lines, MatrixError, Shape, TileLease, View, ViewMut};
use bramble_wire::ProtocolError;
use bramble_wire::limits::lines_per_frame;
use bramble_wire::message::{Generated, MatrixHeader, MatrixSource, ResidentView};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;

/// An operand that has arrived completely.
#[derive(Debug)]
pub(crate) enum Operand {
    /// In a buffer of the store.
    Owned(MatrixHeader, Buffer),
    /// In memory that is not the store's: the primary is in the same process, or has the operand in a file that this process has
    /// mapped; or it is a view into a part of a placed matrix.
    Borrowed(Lines),
}

impl Operand {
    /// An operand in the memory that a link refers to. An error if that is not the whole operand, or misaligned.
    pub(crate) fn borrowed(header: &MatrixHeader, region: SharedRegion) -> Result<Self, ProtocolError> {
        let (lines, line_bytes) = header.lines_total();
        let is_all = header.first_line == 0 && header.lines == lines;
        let (lines, size) = (to_usize(lines), header.dtype.size_bytes());
        let runs = (region.runs, region.run_bytes);
        // Lines without gaps between them may arrive as one run.
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
            let what = format!(
                "matrix {id} of {shape} refers to memory of the wrong size or alignment ({region:?})"
            );
            return Err(ProtocolError::new(what));
        };
        let SharedRegion { owner, start, .. } = region;
        let (shape, layout, dtype) = (header.shape(), header.layout, header.dtype);
        Ok(Self::Borrowed(Lines { owner, start, line_bytes, pitch_bytes, lines, shape, layout, dtype }))
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Borrowed(lines) => lines.shape,
            Self::Owned(header, _) => header.shape(),
        }
    }

    /// The operand's elements.
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

/// The bytes of an operand in the store's own buffer, for relaying.
impl AsRef<[u8]> for Operand {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Owned(_, buffer) => buffer.bytes(),
            Self::Borrowed(_) => &[],
        }
    }
}

/// A matrix that jobs write: a tile of C, or an operand made by jobs.
pub(crate) enum TargetTile {
    /// In a buffer of the store, by rows.
    Owned(MatrixHeader, Buffer),
    /// The same after its last job: no job writes it any more.
    Whole(FinishedTile),
    /// A lease of the output itself, from the primary in the same process.
    Leased(TileLease),
}

impl TargetTile {
    /// The tile's elements.
    pub(crate) fn view_mut<T: KernelElement>(&mut self) -> ViewMut<'_, T> {
        match self {
            Self::Leased(lent) => lent.view_mut(),
            Self::Owned(header, buffer) => {
                ViewMut::row_major(buffer.elements_mut(), to_usize(header.rows), to_usize(header.cols))
            }
            Self::Whole(_) => unreachable!("no job comes after a tile's last"),
        }
    }

    /// The tile after its last job, divided into the bodies in which it will be sent, with checksums if the link wants
    /// them. The thread that has just written the elements does this, while its cache still has some of them.
    pub(crate) fn whole(self, with_checksums: bool) -> Self {
        let Self::Owned(header, buffer) = self else { return self };
        let (lines, line_bytes) = header.lines_total();
        let (buffer, per_frame) = (Arc::new(buffer), lines_per_frame(line_bytes));
        let (mut bodies, mut first) = (Vec::new(), 0);
        while first < lines {
            let count = per_frame.min(lines - first);
            let (start, len) = (to_usize(first) * line_bytes, to_usize(count) * line_bytes);
            let body = SharedRegion::new(buffer.clone(), start, len, len, 1);
            if with_checksums {
                body.checksum();
            }
            bodies.push((first, count, body));
            first += count;
        }
        Self::Whole(FinishedTile { buffer, bodies })
    }
}

/// A finished tile, ready to be sent.
pub(crate) struct FinishedTile {
    pub(crate) buffer: Arc<Buffer>,
    /// The bodies in order: first row, number of rows, and bytes of each.
    pub(crate) bodies: Vec<(u32, u32, SharedRegion)>,
}

/// A lease on its way back to the primary.
pub(crate) struct ReturningLease(pub(crate) TileLease);

impl Landing for ReturningLease {
    fn len(&self) -> usize {
        self.0.lines() * self.0.line_bytes()
    }
    fn runs_mut<'a>(&'a mut self, _offset: usize, _max: usize, _out: &mut Vec<IoSliceMut<'a>>) {
        unreachable!("leased memory never crosses a link that moves bytes")
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.0)
    }
}

/// The memory for one matrix's part of a store message's body.
pub(crate) struct StorePart {
    id: u32,
    buffer: Buffer,
    from: usize,
    len: usize,
}

/// The memory for a store message's body: parts of several matrices, one after another.
pub(crate) struct StoreParts(Vec<StorePart>);

impl Landing for StoreParts {
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

impl StoreParts {
    /// The matrices that are views into parts of placed matrices, with their descriptions.
    pub(crate) fn views(
        &self,
        matrices: &[MatrixHeader],
    ) -> Result<Vec<(MatrixHeader, ResidentView)>, ProtocolError> {
        let views = matrices.iter().filter(|header| header.source == MatrixSource::Resident);
        let landed =
            views.filter_map(|header| Some((header, self.0.iter().find(|part| part.id == header.id)?)));
        landed.map(|(header, part)| Ok((*header, ResidentView::decode(part.buffer.bytes())?))).collect()
    }
}

/// Most spare buffers: they are searched linearly.
const SPARES_MAX: usize = 4096;

/// A size from the wire as a size in memory; 32-bit machines cannot hold every size.
fn in_memory(bytes: u64) -> Result<usize, MatrixError> {
    usize::try_from(bytes).map_err(|_| MatrixError::OutOfMemory { bytes })
}

/// A matrix that is arriving, or has arrived and was not used yet.
struct ArrivingMatrix {
    header: MatrixHeader,
    /// `None` while bytes land in it.
    buffer: Option<Buffer>,
    /// Boxed, because most matrices have none, and small ones should take little memory.
    generated: Option<Box<Generated>>,
}

/// All matrices of a session.
pub(crate) struct Store {
    /// Most bytes that buffers in use and spare ones may take together.
    limit_bytes: u64,
    /// Bytes of all buffers, in use or spare.
    allocated_bytes: u64,
    allocated_bytes_max: u64,
    arriving: BTreeMap<u32, ArrivingMatrix>,
    operands: BTreeMap<u32, Arc<Operand>>,
    /// Matrices that jobs write, before their first job.
    vacant: BTreeMap<u32, MatrixHeader>,
    tiles: BTreeMap<u32, TargetTile>,
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

    /// Sets the limit of all buffers, spare ones included: the most that the primary has needed at once.
    pub(crate) fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// A buffer of `len` bytes: a spare one of exactly that size (panels and tiles have few sizes), else a new
    /// one, for which spare ones are freed if necessary.
    fn buffer(&mut self, len: usize) -> Result<Buffer, MatrixError> {
        let too_much = || MatrixError::OutOfMemory { bytes: to_u64(len) };
        let capacity = len.checked_next_multiple_of(64).ok_or_else(too_much)?;
        // The most recently returned buffer may still be in a cache.
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
        // Untouched: a compute thread writes a tile first, and so the page faults are its.
        let buffer = Buffer::untouched(len)?;
        self.allocated_bytes += to_u64(buffer.capacity());
        self.allocated_bytes_max = self.allocated_bytes_max.max(self.allocated_bytes);
        Ok(buffer)
    }

    /// Reserves memory for a matrix before its bytes arrive.
    pub(crate) fn reserve(&mut self, header: &MatrixHeader) -> Result<(), MatrixError> {
        if header.source == MatrixSource::Vacant {
            self.vacant.insert(header.id, *header);
            return Ok(());
        }
        if header.source == MatrixSource::Resident {
            // Its elements are in a part that this worker holds.
            return Ok(());
        }
        let buffer = self.buffer(in_memory(header.bytes())?)?;
        self.arriving
            .insert(header.id, ArrivingMatrix { header: *header, buffer: Some(buffer), generated: None });
        Ok(())
    }

    /// The memory for the bodies of these matrices. Each has been reserved.
    pub(crate) fn landing(&mut self, matrices: &[MatrixHeader]) -> Result<StoreParts, MatrixError> {
        let mut parts = Vec::new();
        for header in matrices.iter().filter(|h| h.body_bytes() > 0) {
            let len = in_memory(header.body_bytes())?;
            let (from, buffer) = match header.source {
                // A description: a few bytes, read before the matrix's own buffer is written.
                MatrixSource::Generated | MatrixSource::Resident => (0, Some(Buffer::zeroed(len)?)),
                MatrixSource::Data | MatrixSource::Partial | MatrixSource::Vacant | MatrixSource::Relayed => {
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
            parts.push(StorePart { id: header.id, buffer, from, len });
        }
        Ok(StoreParts(parts))
    }

    /// Puts the buffers back after their bodies have landed.
    pub(crate) fn landed(&mut self, parts: StoreParts) {
        for part in parts.0 {
            let Some(slot) = self.arriving.get_mut(&part.id) else { continue };
            if slot.buffer.is_none() {
                slot.buffer = Some(part.buffer);
            } else {
                slot.generated = Generated::decode(part.buffer.bytes()).ok().map(Box::new);
            }
        }
    }

    /// Takes out the buffer of an arriving matrix, for lines to land in; `None` if it is out already.
    pub(crate) fn take_arriving_buffer(&mut self, id: u32) -> Option<Buffer> {
        self.arriving.get_mut(&id)?.buffer.take()
    }

    /// Puts such a buffer back.
    pub(crate) fn put_back(&mut self, id: u32, buffer: Buffer) {
        match self.arriving.get_mut(&id) {
            Some(slot) => slot.buffer = Some(buffer),
            None => self.recycle(buffer),
        }
    }

    /// A generated matrix's description, and the buffer for it.
    pub(crate) fn take_generated(&mut self, id: u32) -> Option<(MatrixHeader, Generated, Buffer)> {
        let mut slot = self.arriving.remove(&id)?;
        Some((slot.header, *slot.generated?, slot.buffer.take()?))
    }

    /// Sets the description of a generated matrix (on links that share memory).
    pub(crate) fn set_generated(&mut self, id: u32, generated: Generated) {
        if let Some(slot) = self.arriving.get_mut(&id) {
            slot.generated = Some(Box::new(generated));
        }
    }

    pub(crate) fn put_operand(&mut self, id: u32, operand: Operand) {
        self.operands.insert(id, Arc::new(operand));
    }

    pub(crate) fn put_tile(&mut self, id: u32, tile: TargetTile) {
        self.tiles.insert(id, tile);
    }

    /// An operand for a job. It is complete, so it moves here from the arriving matrices or from the tiles.
    pub(crate) fn operand(&mut self, id: u32) -> Option<Arc<Operand>> {
        if let Some(mut slot) = self.arriving.remove(&id) {
            let operand = Operand::Owned(slot.header, slot.buffer.take()?);
            self.operands.insert(id, Arc::new(operand));
        }
        if let Some(TargetTile::Owned(header, buffer)) = self.tiles.remove(&id) {
            self.operands.insert(id, Arc::new(Operand::Owned(header, buffer)));
        }
        self.operands.get(&id).cloned()
    }

    /// Takes out a matrix for the next job that writes it or, if it is a finished tile, for sending.
    pub(crate) fn take_tile(&mut self, id: u32) -> Result<Option<TargetTile>, MatrixError> {
        if let Some(header) = self.vacant.remove(&id) {
            let buffer = self.buffer(in_memory(header.bytes())?)?;
            return Ok(Some(TargetTile::Owned(header, buffer)));
        }
        if let Some(slot) = self.arriving.remove(&id) {
            return Ok(slot.buffer.map(|buffer| TargetTile::Owned(slot.header, buffer)));
        }
        Ok(self.tiles.remove(&id))
    }

    /// Frees an operand that no job needs any more.
    pub(crate) fn release(&mut self, id: u32) {
        if let Some(operand) = self.operands.remove(&id)
            && let Ok(Operand::Owned(_, buffer)) = Arc::try_unwrap(operand)
        {
            self.recycle(buffer);
        }
    }

    /// Makes a buffer spare.
    pub(crate) fn recycle(&mut self, buffer: Buffer) {
        if self.spare.len() < SPARES_MAX {
            self.spare.push(buffer);
        } else {
            self.allocated_bytes -= to_u64(buffer.capacity());
        }
    }

    /// Forgets a buffer that another owner will free.
    pub(crate) fn forget_buffer(&mut self, buffer: &Buffer) {
        self.allocated_bytes -= to_u64(buffer.capacity());
    }

    /// Peak bytes of buffers, in use or spare: the memory that the process really took for matrices.
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
            source: MatrixSource::Data,
        }
    }

    fn region(start: usize, run_bytes: usize, pitch_bytes: usize, runs: usize) -> SharedRegion {
        let mut buffer = Buffer::zeroed(256).unwrap();
        buffer.elements_mut::<f64>().iter_mut().enumerate().for_each(|(i, x)| *x = i as f64);
        SharedRegion::new(Arc::new(buffer), start, run_bytes, pitch_bytes, runs)
    }

    #[test]
    fn a_borrowed_operand_has_its_lines_also_in_one_run() {
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
    fn a_finished_tile_consists_of_its_bodies_in_order_each_with_a_checksum() {
        // Rows of 768 KiB: one in each body.
        let (rows, cols) = (3, 3 << 15);
        let header = MatrixHeader { rows, cols, lines: rows, ..header(Layout::RowMajor) };
        let mut buffer = Buffer::zeroed(in_memory(header.bytes()).unwrap()).unwrap();
        buffer.elements_mut::<f64>().iter_mut().enumerate().for_each(|(i, x)| *x = i as f64);
        let want = buffer.bytes().to_vec();
        let TargetTile::Whole(whole) = TargetTile::Owned(header, buffer).whole(true) else {
            panic!("it is not on its way")
        };
        let placed: Vec<_> = whole.bodies.iter().map(|(first, count, _)| (*first, *count)).collect();
        assert_eq!(placed, [(0, 1), (1, 1), (2, 1)]);
        let bodies: Vec<&[u8]> = whole.bodies.iter().map(|(.., body)| body.run(0)).collect();
        assert_eq!(bodies.concat(), want);
        for (_, _, body) in &whole.bodies {
            let sum_of = SharedRegion::whole(Arc::new(body.run(0).to_vec())).checksum();
            assert_eq!(body.checksum(), sum_of);
        }
    }

    #[test]
    fn incomplete_or_misaligned_borrowed_operands_are_refused() {
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
