//! Messages that carry matrices: store (with jobs that use them) and result.

use super::{FieldReader, FieldWriter, ResidentView};
use crate::ProtocolError;
use crate::limits::{CHUNK_BYTES_MAX, JOBS_MAX, MATRICES_MAX, SIDE_MAX};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::number::{to_u64, to_usize};
use bramble_base::{DType, Layout, Shape};
use bramble_plan::charged_bytes;

/// Where a stored matrix's elements come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixSource {
    /// The body: `lines` lines from `first_line` on. For a tile these are the old C, which its first job
    /// scales by β.
    Data,
    /// Nowhere: its first job overwrites it. With uses it is an operand that jobs make, else a tile of C.
    Vacant,
    /// The receiver generates them: the body is a `Generated`.
    Generated,
    /// The body, for a tile that holds the sum of earlier steps, to which jobs only add.
    Partial,
    /// Another worker: the member of the plan whose number is `first_line`. All lines are announced at once.
    Relayed,
    /// A part of an array that the receiver holds: the body is a `ResidentView`. Only for operands.
    Resident,
}

/// A matrix in a store message: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixHeader {
    /// Its id in the session.
    pub id: u32,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub cols: u32,
    /// First line in this frame; for a relayed matrix, the number of the member that relays it.
    pub first_line: u32,
    /// Lines in this frame.
    pub lines: u32,
    /// Number of jobs that will read it and members that it will be passed on to; the last use frees it. 0
    /// for a tile of C.
    pub uses: u16,
    /// Element type.
    pub dtype: DType,
    /// Which direction is contiguous.
    pub layout: Layout,
    /// Where the elements come from.
    pub source: MatrixSource,
}

impl MatrixHeader {
    /// Rows × columns.
    pub fn shape(&self) -> Shape {
        Shape::new(u64::from(self.rows), u64::from(self.cols))
    }

    /// (lines of the whole matrix, bytes of one line).
    pub fn lines_total(&self) -> (u32, usize) {
        let (lines, elements) = match self.layout {
            Layout::RowMajor => (self.rows, self.cols),
            Layout::ColMajor => (self.cols, self.rows),
        };
        (lines, to_usize(elements).saturating_mul(self.dtype.size_bytes()))
    }

    /// Bytes of the whole matrix; `u64::MAX`, which exceeds every grant, on overflow.
    pub fn bytes(&self) -> u64 {
        (u64::from(self.rows) * u64::from(self.cols)).saturating_mul(to_u64(self.dtype.size_bytes()))
    }

    /// Its charge against the credit, equal at both ends: memory, bookkeeping, and the jobs that will use it.
    pub fn charged_bytes(&self) -> u64 {
        // A view takes no memory of its own.
        let bytes = if self.source == MatrixSource::Resident { 0 } else { self.bytes() };
        charged_bytes(bytes, u64::from(self.uses))
    }

    /// Bytes of the matrix in this frame's body.
    pub fn body_bytes(&self) -> u64 {
        match self.source {
            MatrixSource::Data | MatrixSource::Partial => {
                u64::from(self.lines).saturating_mul(to_u64(self.lines_total().1))
            }
            MatrixSource::Vacant | MatrixSource::Relayed => 0,
            MatrixSource::Generated => to_u64(Generated::BYTES),
            MatrixSource::Resident => to_u64(ResidentView::BYTES),
        }
    }

    fn write(&self, w: &mut FieldWriter) {
        w.u32(self.id);
        w.u32(self.rows);
        w.u32(self.cols);
        w.u32(self.first_line);
        w.u32(self.lines);
        w.u16(self.uses);
        let layout = u8::from(self.layout == Layout::ColMajor);
        let source = match self.source {
            MatrixSource::Data => 0,
            MatrixSource::Vacant => 1,
            MatrixSource::Generated => 2,
            MatrixSource::Partial => 3,
            MatrixSource::Relayed => 4,
            MatrixSource::Resident => 5,
        };
        w.u8(self.dtype.code() | layout << 2 | source << 3);
        w.u8(0);
    }

    fn read(r: &mut FieldReader<'_>) -> Result<Self, ProtocolError> {
        let (id, rows, cols) = (r.u32()?, r.u32()?, r.u32()?);
        let (first_line, lines, uses) = (r.u32()?, r.u32()?, r.u16()?);
        let (flags, reserved) = (r.u8()?, r.u8()?);
        let dtype = DType::from_code(flags & 3);
        let layout = if flags & 4 == 0 { Layout::RowMajor } else { Layout::ColMajor };
        let source = match flags >> 3 {
            0 => Some(MatrixSource::Data),
            1 => Some(MatrixSource::Vacant),
            2 => Some(MatrixSource::Generated),
            3 => Some(MatrixSource::Partial),
            4 => Some(MatrixSource::Relayed),
            5 => Some(MatrixSource::Resident),
            _ => None,
        };
        let (Some(dtype), Some(source), 0) = (dtype, source, reserved) else {
            return Err(ProtocolError::new("a matrix of unknown kind"));
        };
        if rows == 0 || cols == 0 || rows > SIDE_MAX || cols > SIDE_MAX {
            return Err(ProtocolError::new(format!("a stored matrix of {rows}x{cols}")));
        }
        let header = Self { id, rows, cols, first_line, lines, uses, dtype, layout, source };
        let (total, line_bytes) = header.lines_total();
        if line_bytes > CHUNK_BYTES_MAX {
            return Err(ProtocolError::new(format!(
                "a matrix whose lines of {line_bytes} bytes fit no frame"
            )));
        }
        let first = if source == MatrixSource::Relayed { 0 } else { first_line };
        let is_part = source != MatrixSource::Relayed || lines == total;
        if lines == 0 || !is_part || first.checked_add(lines).is_none_or(|end| end > total) {
            return Err(ProtocolError::new(format!("lines {first_line}+{lines} of a matrix of {total}")));
        }
        Ok(header)
    }
}

/// Body of a generated matrix: the generator and its position. 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The generator, as `matrix` encodes it.
    pub generator: [u8; 16],
    /// First row of the rectangle in the generated matrix.
    pub row: u64,
    /// First column.
    pub col: u64,
}

impl Generated {
    /// Bytes of the body.
    pub const BYTES: usize = 32;

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.raw(&self.generator);
        w.u64(self.row);
        w.u64(self.col);
        w.finish()
    }

    /// Reads the body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(body);
        let generated = Self { generator: r.array()?, row: r.u64()?, col: r.u64()? };
        r.end()?;
        Ok(generated)
    }
}

/// Operation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// α·A·B.
    Multiply,
    /// A + B.
    Add,
    /// A − B.
    Subtract,
}

impl Operation {
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Multiply => 0,
            Self::Add => 1,
            Self::Subtract => 2,
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Multiply),
            1 => Some(Self::Add),
            2 => Some(Self::Subtract),
            _ => None,
        }
    }
}

/// What happens to a matrix after a job that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// More jobs write it.
    Continue,
    /// It is a tile, and is sent back.
    Return,
    /// It is complete, and from now on an operand.
    Close,
}

/// One instruction: C += `operation` of two stored matrices. The first job of a vacant C overwrites it; the
/// first job of a C with the old elements scales them by β. 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The operation.
    pub operation: Operation,
    /// Id of the left operand.
    pub a: u32,
    /// Id of the right operand.
    pub b: u32,
    /// Id of the matrix that is written: a tile, or a vacant operand.
    pub c: u32,
    /// Number of this job among those that write C, which run in increasing order: for a tile, the step of k.
    pub step: u32,
    /// Number of the attempt at this tile.
    pub epoch: u32,
    /// What happens to C afterwards.
    pub then: Then,
}

impl Job {
    /// Order in which jobs became possible at the primary: ids count up, and a job is sent with the later of
    /// its operands. A thread that takes the job with the least number frees memory in the planned order, and
    /// finishes tiles earliest.
    pub fn order(&self) -> u32 {
        self.a.max(self.b)
    }

    fn write(&self, w: &mut FieldWriter) {
        w.u8(self.operation.code());
        w.u8(match self.then {
            Then::Continue => 0,
            Then::Return => 1,
            Then::Close => 2,
        });
        w.u16(0);
        w.u32(self.a);
        w.u32(self.b);
        w.u32(self.c);
        w.u32(self.step);
        w.u32(self.epoch);
    }

    fn read(r: &mut FieldReader<'_>) -> Result<Self, ProtocolError> {
        let (operation, then, reserved) = (r.u8()?, r.u8()?, r.u16()?);
        let after = match then {
            0 => Some(Then::Continue),
            1 => Some(Then::Return),
            2 => Some(Then::Close),
            _ => None,
        };
        let (Some(kind), Some(then), 0) = (Operation::from_code(operation), after, reserved) else {
            return Err(ProtocolError::new(format!("a job of unknown operation {operation}, {then}")));
        };
        let (a, b, c) = (r.u32()?, r.u32()?, r.u32()?);
        Ok(Self { operation: kind, a, b, c, step: r.u32()?, epoch: r.u32()?, then })
    }
}

/// Head of a store message. The body holds the bytes of its matrices one after another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreHead {
    /// Matrices, or parts of them.
    pub matrices: Vec<MatrixHeader>,
    /// Jobs that may use these and earlier matrices.
    pub jobs: Vec<Job>,
}

impl StoreHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.matrices.len() <= MATRICES_MAX && self.jobs.len() <= JOBS_MAX,
            "a store that is too long"
        );
        let mut w = FieldWriter::default();
        w.count(self.matrices.len());
        w.count(self.jobs.len());
        self.matrices.iter().for_each(|m| m.write(&mut w));
        self.jobs.iter().for_each(|j| j.write(&mut w));
        w.finish()
    }

    /// Decodes and checks a store head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (matrices, jobs) = (usize::from(r.u16()?), usize::from(r.u16()?));
        if matrices > MATRICES_MAX || jobs > JOBS_MAX {
            return Err(ProtocolError::new(format!("a store of {matrices} matrices and {jobs} jobs")));
        }
        // No capacity is reserved from the counts: an entry is decoded before it takes memory.
        let mut store = Self::default();
        for _ in 0..matrices {
            store.matrices.push(MatrixHeader::read(&mut r)?);
        }
        for _ in 0..jobs {
            store.jobs.push(Job::read(&mut r)?);
        }
        r.end()?;
        Ok(store)
    }

    /// Bytes that the body must have.
    pub fn body_bytes(&self) -> u64 {
        self.matrices.iter().map(MatrixHeader::body_bytes).sum()
    }
}

/// Head of a result message: some lines of a tile, and the steps in its sum. 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultHead {
    /// Id of the tile.
    pub c: u32,
    /// Number of the attempt at this tile.
    pub epoch: u32,
    /// First step in the sum.
    pub step_start: u32,
    /// First step after the sum.
    pub step_end: u32,
    /// First row in this frame.
    pub first_line: u32,
    /// Rows in this frame.
    pub lines: u32,
}

impl ResultHead {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        for x in [self.c, self.epoch, self.step_start, self.step_end, self.first_line, self.lines] {
            w.u32(x);
        }
        w.finish()
    }

    /// Decodes a result head.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let (c, epoch) = (r.u32()?, r.u32()?);
        let (step_start, step_end) = (r.u32()?, r.u32()?);
        let (first_line, lines) = (r.u32()?, r.u32()?);
        r.end()?;
        Ok(Self { c, epoch, step_start, step_end, first_line, lines })
    }
}
