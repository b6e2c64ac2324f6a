//! Spot checks: the primary checks a tile while the product runs, when the state machine asks for it (`Action::Look`).
//!
//! Place in the flow: the core copies the tile before any other machine can write to it (`Core::copy_for_spot_check`); the
//! supervisor has the copy checked on a thread of its own, and reports the result (`PrimaryEvent::SpotChecked`).
//!
//! Invariants: the event loop copies one tile and does not wait. A spot check that outlasts the product delays nothing: it
//! reads a copy, and its thread ends with the process.
//!
//! Deliberately absent: the choice of tiles and the consequences (`schedule/src/primary/spots.rs`).

use super::{Core, RunFailure};
use crate::inspector::Inspector;
use bramble_matrix::{Buffer, Layout, Matrix, Rect, Shape};
use bramble_schedule::primary::PrimaryEvent;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Tiles with fewer rows are not checked: the check compares each row's residual with those of the other rows.
pub(super) const ROWS_MIN: u64 = 16;

/// A tile to be checked; `copy` is `None` if there was no memory for one.
pub(super) struct SpotCheck {
    rect: Rect,
    copy: Option<Buffer>,
}

/// The spot check that is under way.
#[derive(Default)]
pub(super) struct SpotChecker {
    found: Option<oneshot::Receiver<Option<bool>>>,
    checks: u64,
}

impl SpotChecker {
    /// Starts a spot check.
    pub(super) fn begin(&mut self, spot_check: SpotCheck, inspector: &Arc<Inspector>, core: &Core) {
        self.checks += 1;
        let (says, found) = oneshot::channel();
        self.found = Some(found);
        let (inspector, round, dtype) = (inspector.clone(), self.checks, core.output.dtype());
        let work = move || {
            let is_wrong = spot_check.copy.and_then(|copy| {
                let shape = Shape::new(spot_check.rect.rows.len(), spot_check.rect.cols.len());
                let tile =
                    Matrix::from_shared("a tile of C", Arc::new(copy), 0, shape, dtype, Layout::RowMajor);
                inspector.is_wrong(spot_check.rect, &tile.ok()?, round).ok()
            });
            // The receiver is gone when the product is over.
            let _ = says.send(is_wrong);
        };
        // If no thread can be started, the sender is dropped, which `over` reports as no result.
        drop(std::thread::Builder::new().name("look".to_owned()).spawn(work));
    }

    /// Waits for the current spot check: whether the tile is wrong, `None` if unknown. Pending for ever if none is under way.
    pub(super) async fn result(&mut self) -> Option<bool> {
        let Some(found) = &mut self.found else { return std::future::pending().await };
        let is_wrong = found.await.unwrap_or(None);
        self.found = None;
        is_wrong
    }
}

impl Core {
    /// Handles the result of a spot check. If an operand's file has changed, no machine is blamed and the run fails.
    pub(super) fn spot_checked(&mut self, is_wrong: Option<bool>, inspector: &Inspector) {
        if is_wrong == Some(true)
            && let Err(e) = inspector.unchanged("when a tile was found to be wrong", true)
        {
            self.failed.get_or_insert_with(|| RunFailure { why: e.to_string(), is_changed: true });
            return self.changed.notify_one();
        }
        self.dispatch(PrimaryEvent::SpotChecked(is_wrong));
    }

    /// Copies a tile for a spot check.
    pub(super) fn copy_for_spot_check(&mut self, rect: Rect) {
        let lent = self.output.lease(rect);
        let bytes = lent.lines().saturating_mul(lent.line_bytes());
        let mut copy = Buffer::untouched(bytes).ok();
        if let Some(copy) = &mut copy {
            let lines = copy.bytes_mut().chunks_exact_mut(lent.line_bytes().max(1));
            lines.enumerate().for_each(|(at, line)| line.copy_from_slice(lent.line(at)));
        }
        self.checks.spot_check = Some(SpotCheck { rect, copy });
        self.changed.notify_one();
    }
}
