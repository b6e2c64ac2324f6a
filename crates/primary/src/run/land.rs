//! Places arriving rows of results, and files them when they have landed.
//!
//! Place in the flow: the reader of a link asks for memory before the rows of a frame arrive (`place`), and reports them when
//! they have landed (`keep`); then the state machine gets the event.
//!
//! Invariants: the state machine chooses the destination (`Primary::expect`), before and after. A tile of C is leased to one
//! landing at a time, also between two of its frames. A broken link leaves a partial tile in C only where the whole tile will be
//! recomputed and overwritten.

use super::Core;
use crate::bodies::TileRows;
use crate::partial_sums::{DiscardedRows, PendingRows, bytes_of, copy_lines};
use bramble_link::{ArrivedBody, Landing};
use bramble_matrix::number::to_usize;
use bramble_matrix::{Buffer, Rect, TileLease};
use bramble_schedule::primary::{ResultDestination, ResultPlace};
use bramble_wire::ProtocolError;
use bramble_wire::message::ResultHead;

impl Core {
    /// The memory in which the rows of a result land.
    pub(super) fn place(
        &mut self,
        peer: usize,
        head: &ResultHead,
        bytes: usize,
    ) -> Result<Box<dyn Landing>, String> {
        let destination = self.state.expect(peer, head).map_err(|e| e.0)?;
        let rect = destination.rect;
        let line_bytes = to_usize(head.lines).checked_mul(self.line_bytes(rect)).filter(|b| *b == bytes);
        if line_bytes.is_none() {
            return Err(format!("{} rows of tile {} came with {bytes} bytes", head.lines, head.c));
        }
        match destination.place {
            ResultPlace::InC => {}
            ResultPlace::Discarded => return Ok(Box::new(DiscardedRows(vec![0; bytes]))),
            ResultPlace::PartialSum | ResultPlace::Staged => {
                let buffer = self.staging_buffer(peer, head, &destination)?;
                let from = to_usize(head.first_line) * self.line_bytes(rect);
                return Ok(Box::new(PendingRows { buffer, from, len: bytes }));
            }
        }
        let lent = match self.landing.partial.remove(&(peer, head.c)) {
            Some(lent) => lent,
            None => self.output.lease(rect),
        };
        let first = to_usize(head.first_line);
        Ok(Box::new(TileRows::rows(lent, first..first + to_usize(head.lines))))
    }

    /// Bytes of one row of a rectangle of C.
    fn line_bytes(&self, rect: Rect) -> usize {
        let row = Rect::new(bramble_matrix::Span::new(0, 1), rect.cols);
        bytes_of(row, self.output.dtype()).unwrap_or(usize::MAX)
    }

    /// The staging buffer of a result that may not land in C yet.
    fn staging_buffer(
        &mut self,
        peer: usize,
        head: &ResultHead,
        to: &ResultDestination,
    ) -> Result<Buffer, String> {
        let bytes = bytes_of(to.rect, self.output.dtype()).ok_or("a tile that is larger than memory")?;
        let is_staged = to.place == ResultPlace::Staged;
        self.landing.sums.take((peer, head.c), bytes, is_staged).map_err(|e| e.to_string())
    }

    /// Files rows that have landed, or memory whose lease the worker has returned.
    pub(super) fn keep(
        &mut self,
        peer: usize,
        head: &ResultHead,
        body: ArrivedBody,
    ) -> Result<(), ProtocolError> {
        let landing = match body {
            ArrivedBody::Landed(landing) | ArrivedBody::Leased(landing) => landing.into_any(),
            // A mapped file of another process may be truncated while it is read.
            ArrivedBody::Shared(_) if !self.peers[peer].shares_memory => {
                return Err(ProtocolError::new("it sent a reference to a result instead of the result"));
            }
            ArrivedBody::Shared(region) => return self.keep_shared(peer, head, &region),
            ArrivedBody::Empty => return Err(ProtocolError::new("it sent a result without rows")),
        };
        let landing = match landing.downcast::<Buffer>() {
            Ok(buffer) => {
                self.put_back(peer, head, *buffer)?;
                return Ok(());
            }
            Err(other) => other,
        };
        if landing.is::<DiscardedRows>() {
            return Ok(());
        }
        let lent = landing.downcast::<TileLease>();
        let lent = lent.map_err(|_| ProtocolError::new("it returned memory outside C"))?;
        let rows = lent.rect().rows.len();
        if u64::from(head.first_line) + u64::from(head.lines) < rows {
            self.landing.partial.insert((peer, head.c), *lent);
        } else {
            drop(lent);
        }
        Ok(())
    }

    /// Copies rows of a partial sum that this process's own compute threads left in their memory.
    fn keep_shared(
        &mut self,
        peer: usize,
        head: &ResultHead,
        region: &bramble_link::SharedRegion,
    ) -> Result<(), ProtocolError> {
        let destination = self.state.expect(peer, head)?;
        match destination.place {
            ResultPlace::PartialSum => {}
            ResultPlace::Discarded => return Ok(()),
            ResultPlace::InC | ResultPlace::Staged => {
                return Err(ProtocolError::new("it returned a copy instead of its lease"));
            }
        }
        if region.len() != to_usize(head.lines) * self.line_bytes(destination.rect) {
            return Err(ProtocolError::new("it returned more or fewer rows than it announced"));
        }
        let mut buffer = self.staging_buffer(peer, head, &destination).map_err(ProtocolError::new)?;
        let from = to_usize(head.first_line) * self.line_bytes(destination.rect);
        if !copy_lines(&mut buffer, from, region) {
            return Err(ProtocolError::new("it returned more than a tile"));
        }
        self.put_back(peer, head, buffer)
    }

    fn put_back(&mut self, peer: usize, head: &ResultHead, buffer: Buffer) -> Result<(), ProtocolError> {
        let rows = self.state.expect(peer, head)?.rect.rows.len();
        let is_whole = u64::from(head.first_line) + u64::from(head.lines) >= rows;
        self.landing.sums.put((peer, head.c), buffer, is_whole);
        Ok(())
    }
}
