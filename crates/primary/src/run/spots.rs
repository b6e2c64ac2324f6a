//! A tile is looked at while the product runs, when the state machine asks for it (`Action::Look`).
//!
//! Place in the flow: the tile is copied before anybody else has it (`Core::take_look`); whoever supervises the run has the copy
//! checked on a thread of its own, and says what came of it (`Event::Looked`).
//!
//! Invariants: the event loop copies one tile and does not wait. A look that is not over when the product is holds up nothing:
//! it has a copy, and its thread ends with the process.
//!
//! Deliberately absent: deciding which, and what follows (`schedule/src/primary/spots.rs`).

use super::Core;
use crate::inspector::Inspector;
use bramble_matrix::{Buffer, Layout, Matrix, Rect, Shape};
use bramble_schedule::primary::Event;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A tile with fewer rows tells too little: the check compares what is left of each with the others.
pub(super) const ROWS_MIN: u64 = 16;

/// A tile to be looked at; without a copy where there was no memory for one.
pub(super) struct Look {
    rect: Rect,
    copy: Option<Buffer>,
}

/// The look that is under way.
#[derive(Default)]
pub(super) struct Looking {
    found: Option<oneshot::Receiver<Option<bool>>>,
    looks: u64,
}

impl Looking {
    /// Begins a look.
    pub(super) fn begin(&mut self, look: Look, inspector: &Arc<Inspector>, core: &Core) {
        self.looks += 1;
        let (says, found) = oneshot::channel();
        self.found = Some(found);
        let (inspector, round, dtype) = (inspector.clone(), self.looks, core.output.dtype());
        let work = move || {
            let is_wrong = look.copy.and_then(|copy| {
                let shape = Shape::new(look.rect.rows.len(), look.rect.cols.len());
                let tile =
                    Matrix::from_shared("a tile of C", Arc::new(copy), 0, shape, dtype, Layout::RowMajor);
                inspector.is_wrong(look.rect, &tile.ok()?, round).ok()
            });
            // Nobody listens when the product is over.
            let _ = says.send(is_wrong);
        };
        // Where no thread can be had there is no look: its end of the channel is gone, and that is what is heard.
        drop(std::thread::Builder::new().name("look".to_owned()).spawn(work));
    }

    /// When the look that is under way is over: whether the tile is wrong, if that could be found out. Never where there is none.
    pub(super) async fn over(&mut self) -> Option<bool> {
        let Some(found) = &mut self.found else { return std::future::pending().await };
        let is_wrong = found.await.unwrap_or(None);
        self.found = None;
        is_wrong
    }
}

impl Core {
    /// A look is over. A tile is not taken for wrong where the file of an operand has changed: nothing that is made now is right.
    pub(super) fn looked(&mut self, is_wrong: Option<bool>, inspector: &Inspector) {
        if is_wrong == Some(true)
            && let Err(e) = inspector.unchanged("when a tile was found to be wrong", true)
        {
            self.is_changed = true;
            return self.fail(e.to_string());
        }
        self.happened(Event::Looked(is_wrong));
    }

    /// Copies a tile that is to be looked at.
    pub(super) fn take_look(&mut self, rect: Rect) {
        let lent = self.output.lend(rect);
        let bytes = lent.lines().saturating_mul(lent.line_bytes());
        let mut copy = Buffer::untouched(bytes).ok();
        if let Some(copy) = &mut copy {
            let lines = copy.bytes_mut().chunks_exact_mut(lent.line_bytes().max(1));
            lines.enumerate().for_each(|(at, line)| line.copy_from_slice(lent.line(at)));
        }
        self.look = Some(Look { rect, copy });
        self.changed.notify_one();
    }
}
