//! Rows of the factors on their way from this worker to the primary.
//!
//! Place in the flow: when all columns are eliminated, the primary asks for rows of this worker's blocks
//! (`schedule::lu::LuHome`); the writer tells when their frame has left.
//!
//! Invariants: rows leave as the elimination left them: exchanges of later panels are the primary's to apply to L. At most
//! `LU_FETCHES_MAX` frames of them wait for the link.

use super::TypedSession;
use super::panels::ElementBytes;
use crate::session::WorkerError;
use bramble_kernel::lu::LuElement;
use bramble_link::{Body, Frame, SharedRegion};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{CHUNK_BYTES_MAX, LU_FETCHES_MAX};
use bramble_wire::message::{Kind, LuFill};
use std::sync::Arc;

impl<T: LuElement> TypedSession<T> {
    /// The answer to a request for rows of a block.
    pub(super) fn returned(&mut self, asked: LuFill) -> Result<Frame, WorkerError> {
        let LuFill { block, first, rows } = asked;
        let refused = |why: &str| {
            WorkerError::from(ProtocolError::new(format!(
                "{rows} rows of block {block}, from {first} on, {why}"
            )))
        };
        let Some(waiting) = self.returning else {
            return Err(refused("are asked for before they are eliminated"));
        };
        if waiting >= LU_FETCHES_MAX {
            return Err(refused("are asked for, but those before are not read"));
        }
        let width = self.begin.columns(block).len();
        let fits =
            rows.checked_mul(width).is_some_and(|elements| elements <= CHUNK_BYTES_MAX / size_of::<T>());
        let end = first.checked_add(rows).filter(|_| fits);
        let elements = end.map(|end| self.part.rows(block, first..end)).transpose();
        let elements = elements.map_err(|e| WorkerError::Here(e.to_string()))?.flatten();
        let elements = elements.ok_or_else(|| refused("are not here"))?;
        self.returning = Some(waiting + 1);
        let body = Body::Shared(SharedRegion::whole(Arc::new(ElementBytes(elements))));
        Ok(Frame::new(Kind::LuFill.code(), asked.encode(), body))
    }

    /// A frame of rows has left.
    pub(super) fn rows_have_left(&mut self) {
        self.returning = self.returning.map(|waiting| waiting.saturating_sub(1));
    }
}
