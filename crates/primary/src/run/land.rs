//! Where the rows of results land, and what becomes of them when they have.
//!
//! Place in the flow: the reader of a link asks before the rows of a frame come (`place`), and again when they are there
//! (`keep`); then the state machine is told.
//!
//! Invariants: the state machine says where (`Primary::expect`), before and after. A tile of C is lent to one landing at a
//! time, between two frames of it too. What a broken link leaves in C is either made anew as a whole or was not landing in C.

use super::Core;
use crate::aside::{AsideLines, Nowhere, bytes_of, copy_lines};
use crate::bodies::Tile;
use bramble_link::{ArrivedBody, Landing};
use bramble_matrix::number::to_usize;
use bramble_matrix::{Buffer, Lent, Rect};
use bramble_schedule::ProtocolError;
use bramble_schedule::message::ResultHead;
use bramble_schedule::primary::{Destination, Place};

impl Core {
    /// Where the rows of a result are to land.
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
            Place::InC => {}
            Place::Nowhere => return Ok(Box::new(Nowhere(vec![0; bytes]))),
            Place::Aside | Place::Staged => {
                let buffer = self.aside(peer, head, &destination)?;
                let from = to_usize(head.first_line) * self.line_bytes(rect);
                return Ok(Box::new(AsideLines { buffer, from, len: bytes }));
            }
        }
        let lent = match self.partial.remove(&(peer, head.c)) {
            Some(lent) => lent,
            None => self.output.lend(rect),
        };
        let first = to_usize(head.first_line);
        Ok(Box::new(Tile::rows(lent, first..first + to_usize(head.lines))))
    }

    /// Bytes of one row of a rectangle of C.
    fn line_bytes(&self, rect: Rect) -> usize {
        let row = Rect::new(bramble_matrix::Span::new(0, 1), rect.cols);
        bytes_of(row, self.output.dtype()).unwrap_or(usize::MAX)
    }

    /// The buffer for lines that have to wait.
    fn aside(&mut self, peer: usize, head: &ResultHead, to: &Destination) -> Result<Buffer, String> {
        let bytes = bytes_of(to.rect, self.output.dtype()).ok_or("a tile that is larger than memory")?;
        let is_staged = to.place == Place::Staged;
        self.asides.take((peer, head.c), bytes, is_staged).map_err(|e| e.to_string())
    }

    /// Lines of a result have come, or the memory that was lent for them.
    pub(super) fn keep(
        &mut self,
        peer: usize,
        head: &ResultHead,
        body: ArrivedBody,
    ) -> Result<(), ProtocolError> {
        let landing = match body {
            ArrivedBody::Landed(landing) | ArrivedBody::Lent(landing) => landing.into_any(),
            // A file of another process may be cut short while it is read.
            ArrivedBody::Shared(_) if !self.peers[peer].shares_memory => {
                return Err(ProtocolError::new("it sent where a result lies instead of the result"));
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
        if landing.is::<Nowhere>() {
            return Ok(());
        }
        let lent = landing.downcast::<Lent>();
        let lent = lent.map_err(|_| ProtocolError::new("it returned memory that is no part of C"))?;
        let rows = lent.rect().rows.len();
        if u64::from(head.first_line) + u64::from(head.lines) < rows {
            self.partial.insert((peer, head.c), *lent);
        } else {
            drop(lent);
        }
        Ok(())
    }

    /// Lines of a sum that this process's own threads made, where they lie.
    fn keep_shared(
        &mut self,
        peer: usize,
        head: &ResultHead,
        region: &bramble_link::Region,
    ) -> Result<(), ProtocolError> {
        let destination = self.state.expect(peer, head)?;
        match destination.place {
            Place::Aside => {}
            Place::Nowhere => return Ok(()),
            Place::InC | Place::Staged => {
                return Err(ProtocolError::new("it returned a copy of what was lent to it"));
            }
        }
        if region.len() != to_usize(head.lines) * self.line_bytes(destination.rect) {
            return Err(ProtocolError::new("it returned other than the lines that it said"));
        }
        let mut buffer = self.aside(peer, head, &destination).map_err(ProtocolError::new)?;
        let from = to_usize(head.first_line) * self.line_bytes(destination.rect);
        if !copy_lines(&mut buffer, from, region) {
            return Err(ProtocolError::new("it returned more than a tile"));
        }
        self.put_back(peer, head, buffer)
    }

    fn put_back(&mut self, peer: usize, head: &ResultHead, buffer: Buffer) -> Result<(), ProtocolError> {
        let rows = self.state.expect(peer, head)?.rect.rows.len();
        let is_whole = u64::from(head.first_line) + u64::from(head.lines) >= rows;
        self.asides.put((peer, head.c), buffer, is_whole);
        Ok(())
    }
}
