//! A call that takes long shows its progress.
//!
//! Place in the flow: the thread of the cluster writes on the call's board; the caller, which waits, looks at it and has the
//! package show it (`_progress.py`).
//!
//! Invariant: nothing is shown in the first second, and whatever is shown is removed at the end of the call.

use bramble_report::progress::ProgressBoard;
use pyo3::prelude::*;
use std::time::{Duration, Instant};

/// How long a call takes before anything is shown …
const LONG: Duration = Duration::from_secs(1);
/// … and how often it is shown anew.
const AGAIN: Duration = Duration::from_millis(250);

/// The progress of one call.
pub(crate) struct LongCall<'a> {
    show: Option<&'a Py<PyAny>>,
    board: ProgressBoard,
    began: Instant,
    next: Duration,
    is_shown: bool,
}

impl<'a> LongCall<'a> {
    /// A call that begins; `show` takes seconds, the part that is done and a text.
    pub(crate) fn new(show: Option<&'a Py<PyAny>>) -> Self {
        Self { show, board: ProgressBoard::default(), began: Instant::now(), next: LONG, is_shown: false }
    }

    /// Where the call writes.
    pub(crate) fn board(&self) -> ProgressBoard {
        self.board.clone()
    }

    /// Shows it, if it is time. Fails if Python was interrupted meanwhile.
    pub(crate) fn look(&mut self, py: Python<'_>) -> PyResult<()> {
        let (Some(show), elapsed) = (self.show, self.began.elapsed()) else { return Ok(()) };
        if elapsed >= self.next {
            self.next = elapsed + AGAIN;
            self.is_shown = true;
            let (done, text) = self.board.read().unzip();
            show.call1(py, (elapsed.as_secs_f64(), done, text))?;
        }
        Ok(())
    }

    /// Removes what was shown.
    pub(crate) fn end(self, py: Python<'_>) -> PyResult<()> {
        match self.show.filter(|_| self.is_shown) {
            Some(show) => show.call0(py).map(drop),
            None => Ok(()),
        }
    }
}
