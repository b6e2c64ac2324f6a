//! Messages of a factorisation that several machines do together.
//!
//! Place in the flow: after hello, welcome and introductions. The primary tells each worker the whole system
//! (`LuBegin`). Each worker reports when it has room for its columns, or has generated them (`LuStatus`); then all may begin
//! (`LuGo`), and columns that are not generated come (`LuFill`). Each reports again when its columns are eliminated.
//! Panels go from worker to worker (`LuPanelHead`). Then right-hand sides go through the workers that own the columns
//! (`LuRows`), or the primary asks for the factors, which come under the heads of its requests (`LuFill`).
//!
//! Invariants: as for all messages. A panel's elements are by columns, right-hand sides and filled columns by rows. Columns and
//! panels have the element type of the system, right-hand sides between primary and workers are f64.
//!
//! Deliberately absent: whether a panel, or rows, are expected.

use super::{FieldReader, FieldWriter};
use crate::ProtocolError;
use crate::limits::{
    CHUNK_BYTES_MAX, LU_BLOCKS_MAX, LU_LIVE_MAX, LU_MACHINES_MAX, LU_ORDER_MAX, LU_WIDTH_MAX,
};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::DType;
use bramble_base::number::{to_u64, to_usize};
use core::ops::Range;

/// Bytes of an element of a right-hand side.
const RIGHT_ELEMENT: u64 = 8;
/// Bytes of a cache line.
const CACHE_LINE: u64 = 64;

/// The machines, and the owner of each block column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuRing {
    /// The owner of each block column.
    pub owners: Vec<usize>,
    /// Number of machines.
    pub machines: usize,
    /// This machine.
    pub me: usize,
}

impl LuRing {
    /// The next machine.
    pub fn next(&self) -> usize {
        (self.me + 1) % self.machines
    }

    /// The machine before this one.
    pub fn previous(&self) -> usize {
        (self.me + self.machines - 1) % self.machines
    }

    /// The block columns of this machine, ascending.
    pub fn columns(&self) -> Vec<usize> {
        self.owners.iter().enumerate().filter(|(_, owner)| **owner == self.me).map(|(at, _)| at).collect()
    }
}

/// The system that the machines factor together: order, block columns, owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuBegin {
    /// Rows, and columns that are eliminated.
    pub order: usize,
    /// Columns of a block; the last one may have fewer.
    pub width: usize,
    /// Right-hand sides: columns right of the eliminated ones, all in one block.
    pub extra: usize,
    /// Element type of the columns, their factors and the panels: f32 or f64.
    pub dtype: DType,
    /// Most panels that a machine keeps.
    pub live_max: usize,
    /// Where the columns come from.
    pub origin: LuOrigin,
    /// The owners of the block columns, and this machine. The right-hand sides are the last block.
    pub ring: LuRing,
}

/// Where the columns of a system come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LuOrigin {
    /// From the primary.
    Sent,
    /// Each worker generates its own: the system of the High Performance Linpack benchmark.
    Hpl,
    /// The same for the system of HPL-MxP.
    HplMxp,
}

impl LuOrigin {
    /// Whether the workers generate the columns.
    pub fn is_generated(self) -> bool {
        self != Self::Sent
    }

    fn code(self) -> u8 {
        match self {
            Self::Sent => 0,
            Self::Hpl => 1,
            Self::HplMxp => 2,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Sent, Self::Hpl, Self::HplMxp].into_iter().find(|origin| origin.code() == code)
    }
}

impl LuBegin {
    /// Block columns that are eliminated.
    pub fn panels(&self) -> usize {
        self.order.div_ceil(self.width)
    }

    /// Columns of a block.
    pub fn columns(&self, block: usize) -> Range<usize> {
        match block < self.panels() {
            true => block * self.width..((block + 1) * self.width).min(self.order),
            false => self.order..self.order + self.extra,
        }
    }

    /// `part_bytes` of any machine: of a system of `order` equations with `extra` right-hand sides, in blocks of `width`
    /// columns, if it keeps `live_max` panels.
    pub fn bytes_of_part(
        (order, extra, width): (usize, usize, usize),
        dtype: DType,
        live_max: usize,
        columns: usize,
        threads: usize,
    ) -> u64 {
        let ring = LuRing { owners: Vec::new(), machines: 1, me: 0 };
        let begin = Self { order, width, extra, dtype, live_max, origin: LuOrigin::Sent, ring };
        begin.part_bytes(columns, threads)
    }

    /// Bytes that a machine with `columns` of the columns and so many threads needs, without its kernel's own memory.
    pub fn part_bytes(&self, columns: usize, threads: usize) -> u64 {
        let (order, width, columns) = (to_u64(self.order), to_u64(self.width), to_u64(columns));
        let element = to_u64(self.dtype.size_bytes());
        // Rows begin an odd number of cache lines apart. One column more is the checksum of the others.
        let pitch = (((columns + 1) * element).div_ceil(CACHE_LINE) | 1) * CACHE_LINE;
        // A panel arrives while the others are kept, and frames of one are on their way.
        let panels = (to_u64(self.live_max) + 2) * order * width;
        let scratch = to_u64(threads) * (columns + width) * width;
        order * pitch + element * (panels + scratch) + RIGHT_ELEMENT * 2 * order * to_u64(self.extra)
    }

    /// Bytes of `columns` elements of a row.
    pub fn line_bytes(&self, columns: usize) -> usize {
        columns * self.dtype.size_bytes()
    }

    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(to_u64(self.order));
        w.u32(u32::try_from(self.width).unwrap_or(u32::MAX));
        w.u32(u32::try_from(self.extra).unwrap_or(u32::MAX));
        w.u8(self.dtype.code());
        w.u8(u8::try_from(self.live_max).unwrap_or(u8::MAX));
        w.u8(self.origin.code());
        w.u16(u16::try_from(self.ring.machines).unwrap_or(u16::MAX));
        w.u16(u16::try_from(self.ring.me).unwrap_or(u16::MAX));
        w.count(self.ring.owners.len());
        self.ring.owners.iter().for_each(|owner| w.u8(u8::try_from(*owner).unwrap_or(u8::MAX)));
        w.finish()
    }

    /// Decodes and checks the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (order, width, extra) = (to_usize_of(r.u64()?), to_usize(r.u32()?), to_usize(r.u32()?));
        let (code, live_max, origin) = (r.u8()?, usize::from(r.u8()?), r.u8()?);
        let dtype = DType::from_code(code).filter(|dtype| dtype.is_float());
        let dtype = dtype.ok_or_else(|| ProtocolError::new(format!("a system of element type {code}")))?;
        let origin = LuOrigin::from_code(origin)
            .ok_or_else(|| ProtocolError::new(format!("a system whose columns have origin {origin}")))?;
        let (machines, me, count) = (usize::from(r.u16()?), usize::from(r.u16()?), usize::from(r.u16()?));
        if count > LU_BLOCKS_MAX {
            return Err(ProtocolError::new(format!("a system in {count} blocks")));
        }
        let mut owners = Vec::new();
        for _ in 0..count {
            owners.push(usize::from(r.u8()?));
        }
        r.end()?;
        let has_sizes = (1..=LU_ORDER_MAX).contains(&order)
            && (1..=LU_WIDTH_MAX).contains(&width)
            && (1..=LU_WIDTH_MAX).contains(&extra)
            && (1..=LU_LIVE_MAX).contains(&live_max);
        let is_ring = (1..=LU_MACHINES_MAX).contains(&machines)
            && me < machines
            && owners.iter().all(|owner| *owner < machines);
        let blocks = order.div_ceil(width.max(1)) + 1;
        if !has_sizes || !is_ring || blocks > LU_BLOCKS_MAX || owners.len() != blocks {
            return Err(ProtocolError::new(format!(
                "a system of order {order} in {count} blocks of {width} on {machines} machines"
            )));
        }
        let ring = LuRing { owners, machines, me };
        Ok(Self { order, width, extra, dtype, live_max, origin, ring })
    }
}

/// Head of a fill message: rows of a block column. 20 bytes. A request for rows has the same head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuFill {
    /// The block.
    pub block: usize,
    /// First row.
    pub first: usize,
    /// Rows in this frame.
    pub rows: usize,
}

impl LuFill {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u32(u32::try_from(self.block).unwrap_or(u32::MAX));
        w.u64(to_u64(self.first));
        w.u64(to_u64(self.rows));
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let fill =
            Self { block: to_usize(r.u32()?), first: to_usize_of(r.u64()?), rows: to_usize_of(r.u64()?) };
        r.end()?;
        Ok(fill)
    }
}

/// Head of a panel message, worker to worker: consecutive elements of a panel. The first frame brings the pivots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuPanelHead {
    /// The step.
    pub step: usize,
    /// The body's first element, counted by columns of the panel.
    pub first: usize,
    /// For each column, the row with which its diagonal row was exchanged, counted from the panel's first row; none after the
    /// first frame.
    pub pivots: Vec<usize>,
}

impl LuPanelHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u32(u32::try_from(self.step).unwrap_or(u32::MAX));
        w.u64(to_u64(self.first));
        write_pivots(&mut w, &self.pivots);
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (step, first, pivots) = (to_usize(r.u32()?), to_usize_of(r.u64()?), read_pivots(&mut r)?);
        r.end()?;
        Ok(Self { step, first, pivots })
    }
}

fn write_pivots(w: &mut FieldWriter, pivots: &[usize]) {
    w.count(pivots.len());
    pivots.iter().for_each(|pivot| w.u32(u32::try_from(*pivot).unwrap_or(u32::MAX)));
}

fn read_pivots(r: &mut FieldReader<'_>) -> Result<Vec<usize>, ProtocolError> {
    let count = usize::from(r.u16()?);
    if count > LU_WIDTH_MAX {
        return Err(ProtocolError::new(format!("a panel of {count} columns")));
    }
    (0..count).map(|_| r.u32().map(to_usize)).collect()
}

/// Head of a report, worker to primary.
#[derive(Clone, Debug, PartialEq)]
pub enum LuStatus {
    /// The worker has room for its columns, or has generated them.
    Ready,
    /// The worker has factored a panel.
    Factored {
        /// Its step.
        step: usize,
        /// As in [`LuPanelHead`].
        pivots: Vec<usize>,
    },
    /// All columns of the worker are eliminated.
    Eliminated {
        /// The first column of the system whose pivot is 0, among those of this worker.
        zero: Option<usize>,
        /// The first whose pivot is infinite or NaN.
        overflow: Option<usize>,
    },
    /// How far the sums of the worker's columns are from their checksums, in units of the largest deviation by rounding.
    Checked(f64),
}

impl LuStatus {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        let column = |column: Option<usize>| column.map_or(u64::MAX, to_u64);
        match self {
            Self::Ready => w.u8(0),
            Self::Eliminated { zero, overflow } => {
                w.u8(1);
                w.u64(column(*zero));
                w.u64(column(*overflow));
            }
            Self::Checked(deviation) => {
                w.u8(2);
                w.f64(*deviation);
            }
            Self::Factored { step, pivots } => {
                w.u8(3);
                w.u64(to_u64(*step));
                write_pivots(&mut w, pivots);
            }
        }
        w.finish()
    }

    /// Decodes the head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let column = |x: u64| (x != u64::MAX).then(|| to_usize_of(x));
        let report = match r.u8()? {
            0 => Self::Ready,
            1 => Self::Eliminated { zero: column(r.u64()?), overflow: column(r.u64()?) },
            2 => Self::Checked(r.f64()?),
            3 => Self::Factored { step: to_usize_of(r.u64()?), pivots: read_pivots(&mut r)? },
            other => return Err(ProtocolError::new(format!("a report of kind {other}"))),
        };
        r.end()?;
        Ok(report)
    }
}

/// The frames in which `count` lines of this many bytes each travel, as ranges of lines. Each frame has at least one line: a line
/// is at most `LU_WIDTH_MAX` elements.
pub fn lu_frames(count: usize, line_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (CHUNK_BYTES_MAX / line_bytes.max(1)).max(1);
    (0..count).step_by(each).map(move |first| first..count.min(first + each))
}

/// Larger than all sizes of a system if it is none of this machine.
pub(super) fn to_usize_of(x: u64) -> usize {
    usize::try_from(x).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn begin() -> LuBegin {
        let ring = LuRing { owners: vec![0, 1, 0, 1], machines: 2, me: 1 };
        LuBegin {
            order: 300,
            width: 128,
            extra: 2,
            dtype: DType::F64,
            live_max: 3,
            origin: LuOrigin::Hpl,
            ring,
        }
    }

    #[test]
    fn messages_survive_encoding() {
        for dtype in [DType::F32, DType::F64] {
            let begin = LuBegin { dtype, ..begin() };
            assert_eq!(LuBegin::decode(&begin.encode()), Ok(begin));
        }
        assert_eq!((begin().columns(2), begin().columns(3)), (256..300, 300..302));
        let fill = LuFill { block: 3, first: 1 << 33, rows: 7 };
        assert_eq!(LuFill::decode(&fill.encode()), Ok(fill));
        for pivots in [vec![], vec![0, 5, 1 << 20]] {
            let panel = LuPanelHead { step: 9, first: 1 << 34, pivots };
            assert_eq!(LuPanelHead::decode(&panel.encode()), Ok(panel));
        }
        let eliminated = LuStatus::Eliminated { zero: None, overflow: Some(4) };
        let factored = LuStatus::Factored { step: 7, pivots: vec![0, 9, 1 << 20] };
        for report in [LuStatus::Ready, factored, eliminated, LuStatus::Checked(0.5)] {
            assert_eq!(LuStatus::decode(&report.encode()), Ok(report));
        }
    }

    #[test]
    fn systems_without_sense_are_refused() {
        type Change = fn(&mut LuBegin);
        let changes: [Change; 10] = [
            |b| b.dtype = DType::I64,
            |b| b.order = 0,
            |b| b.order = 1 << 40,
            |b| b.width = 0,
            |b| b.width = 1 << 20,
            |b| b.extra = 0,
            |b| b.live_max = 0,
            |b| b.ring.me = 2,
            |b| b.ring.owners[1] = 2,
            |b| b.ring.owners.truncate(3),
        ];
        for (at, change) in changes.iter().enumerate() {
            let mut bad = begin();
            change(&mut bad);
            assert!(LuBegin::decode(&bad.encode()).is_err(), "{at}");
        }
        for (code, is_known) in [(0, true), (1, true), (2, true), (3, false)] {
            let mut other = begin().encode();
            other[18] = code;
            assert_eq!(LuBegin::decode(&other).is_ok(), is_known, "origin {code}");
        }
        assert!(LuStatus::decode(&[4]).is_err());
        let mut factored = LuStatus::Factored { step: 1, pivots: vec![2; 3] }.encode();
        factored[9] = 4;
        assert!(LuStatus::decode(&factored).is_err(), "a pivot is missing");
        let wide = LuStatus::Factored { step: 1, pivots: vec![0; LU_WIDTH_MAX + 1] };
        assert!(LuStatus::decode(&wide.encode()).is_err());
    }

    #[test]
    fn frames_cover_all_lines() {
        let frames: Vec<_> = lu_frames(300_000, 8).collect();
        assert_eq!(frames, [0..131_072, 131_072..262_144, 262_144..300_000]);
        assert_eq!(lu_frames(300_000, 4).map(|f| f.len()).collect::<Vec<_>>(), [262_144, 37_856]);
        assert_eq!(lu_frames(3, 8 * LU_WIDTH_MAX).map(|f| f.len()).sum::<usize>(), 3);
    }

    #[test]
    fn a_part_in_f32_takes_half_of_the_memory() {
        let bytes = |dtype| LuBegin::bytes_of_part((10_000, 1, 128), dtype, 3, 2500, 4);
        let ratio = bytes(DType::F32) as f64 / bytes(DType::F64) as f64;
        assert!((0.49..0.51).contains(&ratio), "{ratio}");
    }
}
