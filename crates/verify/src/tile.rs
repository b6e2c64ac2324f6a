//! Reading matrices tile by tile, and spreading row blocks over threads.
//!
//! Place: used by every pass of the check. A tile is read in place if its memory can be viewed as
//! elements, and copied to a small buffer otherwise (generated or converted matrices, and
//! tiles in which columns are masked).
//!
//! Invariants: the cut into blocks depends on the matrix alone, never on the number of threads, and each
//! block is computed by one thread, so that results do not depend on `threads`. A buffer holds at most
//! one tile of about 1 MiB (or one row, if that is longer).
//!
//! It does no arithmetic.

use bramble_matrix::{Buffer, Element, Layout, Lines, Matrix, MatrixError, Rect, Span};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Elements of a tile: 1 MiB of f64.
const TILE_ELEMENTS: u64 = 1 << 17;

/// A tile's elements: `lines` runs in the matrix's own layout.
pub(super) enum Tile<'a> {
    /// In the matrix's own memory.
    Lines(Lines),
    /// In the loader's buffer, without gaps.
    Copy {
        /// The elements' bytes.
        bytes: &'a [u8],
        /// Bytes of one line.
        line_bytes: usize,
    },
}

impl Tile<'_> {
    /// Line `i` as elements.
    pub(super) fn line<T: Element>(&self, i: usize) -> &[T] {
        match self {
            Self::Lines(lines) => bytemuck::cast_slice(lines.line(i)),
            Self::Copy { bytes, line_bytes } => {
                bytemuck::cast_slice(&bytes[i * line_bytes..(i + 1) * line_bytes])
            }
        }
    }

    /// All `len` elements as one slice, where lines follow each other without gaps.
    pub(super) fn whole<T: Element>(&self, len: usize) -> Option<&[T]> {
        let bytes = len * size_of::<T>();
        let all = match self {
            Self::Lines(lines) => {
                let has_gaps = lines.lines > 1 && lines.pitch_bytes != lines.line_bytes;
                if has_gaps || lines.lines * lines.line_bytes != bytes {
                    return None;
                }
                (*lines.owner).as_ref().get(lines.start..lines.start + bytes)?
            }
            Self::Copy { bytes: all, .. } => all.get(..bytes)?,
        };
        bytemuck::try_cast_slice(all).ok()
    }
}

/// One thread's buffer for tiles that have to be copied.
#[derive(Default)]
pub(super) struct Loader {
    buffer: Option<Buffer>,
    turned: Option<Buffer>,
}

impl Loader {
    /// The elements of a rectangle; those in columns where `mask` is true read as zero.
    pub(super) fn load<T: Element>(
        &mut self,
        matrix: &Matrix,
        rect: Rect,
        mask: Option<&[bool]>,
    ) -> Result<Tile<'_>, MatrixError> {
        if mask.is_none()
            && let Some(lines) = matrix.lines(rect)
            && usable_in_place::<T>(&lines)
        {
            return Ok(Tile::Lines(lines));
        }
        let (lines, len) = matrix.layout().lines(rect.shape());
        let line_bytes = len as usize * size_of::<T>();
        let bytes = self.room(lines as usize * line_bytes)?;
        matrix.read_block(rect, bytes)?;
        if let Some(mask) = mask {
            let mask = &mask[rect.cols.start as usize..rect.cols.end as usize];
            blank::<T>(bytemuck::cast_slice_mut(bytes), len as usize, matrix.layout(), mask);
        }
        Ok(Tile::Copy { bytes, line_bytes })
    }

    /// As `load`, but transposed: for matrices whose lines are too short for an inner loop.
    pub(super) fn load_turned<T: Element>(
        &mut self,
        matrix: &Matrix,
        rect: Rect,
        mask: Option<&[bool]>,
    ) -> Result<Tile<'_>, MatrixError> {
        let (lines, len) = matrix.layout().lines(rect.shape());
        let lines = lines as usize;
        let mut turned = sized(self.turned.take(), lines * len as usize * size_of::<T>())?;
        let tile = self.load::<T>(matrix, rect, mask)?;
        let out: &mut [T] = bytemuck::cast_slice_mut(turned.bytes_mut());
        for i in 0..lines {
            for (x, to) in tile.line::<T>(i).iter().zip(out[i..].iter_mut().step_by(lines)) {
                *to = *x;
            }
        }
        let bytes = self.turned.insert(turned).bytes_mut();
        Ok(Tile::Copy { bytes, line_bytes: lines * size_of::<T>() })
    }

    /// A buffer of exactly `len` bytes, reused where it is large enough.
    fn room(&mut self, len: usize) -> Result<&mut [u8], MatrixError> {
        let buffer = sized(self.buffer.take(), len)?;
        Ok(self.buffer.insert(buffer).bytes_mut())
    }

    /// Writes a rectangle to `out` as contiguous rows of widened elements, whatever the layout.
    pub(super) fn gather<T: Element, X: Element>(
        &mut self,
        matrix: &Matrix,
        rect: Rect,
        widen: impl Fn(T) -> X,
        out: &mut [X],
    ) -> Result<(), MatrixError> {
        let (lines, len) = matrix.layout().lines(rect.shape());
        if lines == 0 || len == 0 {
            return Ok(());
        }
        let tile = self.load::<T>(matrix, rect, None)?;
        let width = rect.cols.len() as usize;
        for i in 0..lines as usize {
            let line = tile.line::<T>(i);
            match matrix.layout() {
                Layout::RowMajor => {
                    for (to, from) in out[i * width..(i + 1) * width].iter_mut().zip(line) {
                        *to = widen(*from);
                    }
                }
                Layout::ColMajor => {
                    for (to, from) in out[i..].iter_mut().step_by(width).zip(line) {
                        *to = widen(*from);
                    }
                }
            }
        }
        Ok(())
    }
}

/// A buffer of exactly `len` bytes: `kept` if it is large enough, otherwise a new one.
fn sized(kept: Option<Buffer>, len: usize) -> Result<Buffer, MatrixError> {
    let mut buffer = match kept.filter(|buffer| buffer.capacity() >= len) {
        Some(buffer) => buffer,
        None => Buffer::zeroed(len)?,
    };
    buffer.set_len(len);
    Ok(buffer)
}

/// Whether every line of shared memory can be viewed as elements of `T`.
fn usable_in_place<T: Element>(lines: &Lines) -> bool {
    lines.lines > 0
        && (lines.lines == 1 || lines.pitch_bytes.is_multiple_of(size_of::<T>()))
        && bytemuck::try_cast_slice::<u8, T>(lines.line(0)).is_ok()
}

/// Zeroes the masked columns of a copied tile.
fn blank<T: Element>(elements: &mut [T], line: usize, layout: Layout, mask: &[bool]) {
    for (i, line) in elements.chunks_exact_mut(line.max(1)).enumerate() {
        match layout {
            Layout::ColMajor if mask[i] => line.fill(T::ZERO),
            Layout::ColMajor => {}
            Layout::RowMajor => {
                for (x, _) in line.iter_mut().zip(mask).filter(|(_, masked)| **masked) {
                    *x = T::ZERO;
                }
            }
        }
    }
}

/// The least number of blocks that a matrix is cut into if it has enough tiles, so that all threads have work.
const BLOCKS_MIN: u64 = 64;

/// How a matrix is cut: into bands of whole rows; each band into blocks, one for each segment of columns (several only if
/// there are few bands); and each block into tiles.
pub(super) struct Cut {
    rows: u64,
    cols: u64,
    band_rows: u64,
    tile_cols: u64,
    segments: u64,
}

impl Cut {
    /// The cut for a matrix's layout: long contiguous reads, and few enough rows that their sums stay in cache.
    pub(super) fn of(matrix: &Matrix) -> Self {
        let shape = matrix.shape();
        let band_rows = match matrix.layout() {
            Layout::RowMajor => (TILE_ELEMENTS / shape.cols.max(1)).clamp(16, 512),
            Layout::ColMajor => 512,
        };
        let band_rows = band_rows.min(shape.rows.max(1));
        let tile_cols = TILE_ELEMENTS / band_rows;
        let bands = shape.rows.div_ceil(band_rows).max(1);
        let segments = BLOCKS_MIN.div_ceil(bands).clamp(1, shape.cols.div_ceil(tile_cols).max(1));
        Self { rows: shape.rows, cols: shape.cols, band_rows, tile_cols, segments }
    }

    /// The tiles that cover a band of rows, left to right.
    pub(super) fn across(matrix: &Matrix, band: Span) -> impl Iterator<Item = Rect> {
        let cols = matrix.shape().cols;
        let width = (TILE_ELEMENTS / band.len().max(1)).max(1);
        let starts = (0..cols).step_by(width as usize);
        starts.map(move |start| Rect::new(band, Span::new(start, (start + width).min(cols))))
    }

    /// Number of bands.
    pub(super) fn bands(&self) -> usize {
        self.rows.div_ceil(self.band_rows) as usize
    }

    /// Number of blocks of each band.
    pub(super) fn segments(&self) -> usize {
        self.segments as usize
    }

    /// Number of blocks; those of a band follow each other.
    pub(super) fn blocks(&self) -> usize {
        self.bands() * self.segments()
    }

    /// The rows of a block.
    pub(super) fn rows(&self, block: usize) -> Span {
        let start = block as u64 / self.segments * self.band_rows;
        Span::new(start, (start + self.band_rows).min(self.rows))
    }

    /// The tiles of a block, left to right.
    pub(super) fn tiles(&self, block: usize) -> impl Iterator<Item = Rect> + '_ {
        let rows = self.rows(block);
        let (tiles, segment) = (self.cols.div_ceil(self.tile_cols), block as u64 % self.segments);
        (segment * tiles / self.segments..(segment + 1) * tiles / self.segments).map(move |t| {
            let start = t * self.tile_cols;
            Rect::new(rows, Span::new(start, (start + self.tile_cols).min(self.cols)))
        })
    }
}

/// Runs `work` for blocks `0..blocks` on up to `threads` threads; returns the results in block order, or the
/// error of the first block that failed.
pub(super) fn parallel<R: Send>(
    blocks: usize,
    threads: usize,
    work: impl Fn(&mut Loader, usize) -> Result<R, MatrixError> + Sync,
) -> Result<Vec<R>, MatrixError> {
    let slots: Vec<Mutex<Option<Result<R, MatrixError>>>> = (0..blocks).map(|_| Mutex::new(None)).collect();
    on_threads(blocks, threads, &|loader, block| {
        let result = work(loader, block);
        *slots[block].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    });
    let results = slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.map(|result| result.unwrap_or_else(|| panic!("every block was run"))).collect()
}

/// Calls `work` once for each of the blocks, on up to `threads` threads. Not generic: the compiler would make threads for each
/// of the dozens of types and kernels that `parallel` is called with.
fn on_threads(blocks: usize, threads: usize, work: &(dyn Fn(&mut Loader, usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut loader = Loader::default();
        loop {
            // Relaxed: the counter only hands out numbers; the join publishes the results.
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= blocks {
                return;
            }
            work(&mut loader, block);
        }
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.min(blocks)).map(|_| scope.spawn(run)).collect();
        run();
        for helper in helpers {
            if let Err(panic) = helper.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// A zeroed vector, or an error if the memory cannot be allocated.
pub(super) fn zeros<X: bytemuck::Zeroable>(len: usize) -> Result<Vec<X>, MatrixError> {
    let bytes = (len as u64).saturating_mul(size_of::<X>() as u64);
    bytemuck::allocation::try_zeroed_vec(len).map_err(|()| MatrixError::OutOfMemory { bytes })
}
