//! Sends the columns of a system to one of its owners.
//!
//! Place in the flow: beside the other tasks of a run, one for each worker; the frames go into the queue of its link.
//!
//! Invariants: elements that are no numbers are refused with their place. A frame is made when the link has taken the
//! ones before.

use bramble_link::{Body, Frame, SharedRegion};
use bramble_matrix::number::to_u64;
use bramble_matrix::{DType, Element, Layout, Matrix, Rect, Span};
use bramble_sessions::PrimaryError;
use bramble_wire::message::{Kind, LuBegin, LuFill, lu_frames};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The columns of one owner.
pub(super) struct Filler {
    pub(super) begin: LuBegin,
    pub(super) a: Matrix,
    pub(super) b: Matrix,
    pub(super) owner: usize,
}

impl Filler {
    /// Sends all columns of the owner.
    pub(super) async fn send(self, to: mpsc::Sender<Frame>) -> Result<(), PrimaryError> {
        let owned = |(block, owner): (usize, &usize)| (*owner == self.owner).then_some(block);
        let blocks: Vec<usize> = self.begin.ring.owners.iter().enumerate().filter_map(owned).collect();
        for block in blocks {
            let is_right = block == self.begin.panels();
            let all = self.begin.columns(block);
            let (matrix, columns) = if is_right { (&self.b, 0..self.begin.extra) } else { (&self.a, all) };
            for rows in lu_frames(self.begin.order, self.begin.line_bytes(columns.len())) {
                let elements = read(matrix, rows.clone(), columns.clone())?;
                let head = LuFill { block, first: rows.start, rows: rows.len() };
                let bytes = bytes(&elements, self.begin.dtype);
                let body = Body::Shared(SharedRegion::whole(Arc::new(bytes)));
                if to.send(Frame::new(Kind::LuFill.code(), head.encode(), body)).await.is_err() {
                    // The link has ended, which its reader reports.
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Elements in the type of the system. Those beyond the range of f32 become infinite: a pivot shows them.
fn bytes(elements: &[f64], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => {
            let rounded: Vec<f32> = elements.iter().map(|x| f32::from_f64(*x)).collect();
            bytemuck::cast_slice(&rounded).to_vec()
        }
        _ => bytemuck::cast_slice(elements).to_vec(),
    }
}

/// A rectangle of a matrix, in rows.
fn read(matrix: &Matrix, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<f64>, PrimaryError> {
    let span = |range: &Range<usize>| Span::new(to_u64(range.start), to_u64(range.end));
    let rect = Rect::new(span(&rows), span(&columns));
    let count = rows.len() * columns.len();
    let elements: Vec<f64> = match matrix.dtype() {
        DType::F64 => {
            let mut elements = vec![0.0f64; count];
            matrix.read_block(rect, bytemuck::cast_slice_mut(&mut elements))?;
            elements
        }
        DType::F32 => {
            let mut elements = vec![0.0f32; count];
            matrix.read_block(rect, bytemuck::cast_slice_mut(&mut elements))?;
            elements.into_iter().map(f64::from).collect()
        }
        other => {
            let why = format!(
                "{}: a system of {other} elements cannot be solved; convert it with --dtype f64",
                matrix.name()
            );
            return Err(PrimaryError::Operands(why));
        }
    };
    let (height, width) = (rows.len(), columns.len());
    let elements = match matrix.layout() {
        Layout::RowMajor => elements,
        Layout::ColMajor => (0..count).map(|at| elements[at % width * height + at / width]).collect(),
    };
    match elements.iter().position(|x| !x.is_finite()) {
        None => Ok(elements),
        Some(at) => Err(PrimaryError::Operands(format!(
            "{}: element ({}, {}) is {}; a system has finite elements only",
            matrix.name(),
            rows.start + at / width,
            columns.start + at % width,
            elements[at]
        ))),
    }
}
