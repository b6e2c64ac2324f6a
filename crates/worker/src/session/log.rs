//! The session's side of the log that a primary may ask for: notes what has ended, sends batches now and then.

use super::WorkerError;
use super::core::{Core, Done};
use crate::pool::Ended;
use crate::record::ns;
use bramble_link::Body;
use bramble_schedule::limits::{CLOCK_NS_MAX, LOG_EVERY};
use bramble_schedule::message::{Kind, Then, Work, WorkRecord};
use std::cell::RefCell;
use std::rc::Rc;

impl Core {
    /// Notes a task that has ended.
    pub(super) fn record(&mut self, ended: &Ended<Done>) {
        if !self.recorder.is_on() {
            return;
        }
        let (work, returns, matrix, step) = match &ended.result {
            Ok(Done::Ran(run, ..)) => {
                let job = &run.job;
                (Work::Job(job.operation), job.then == Then::Return, job.c, job.step)
            }
            Ok(Done::Filled(header, _)) => (Work::Generate, false, header.id, 0),
            // The session ends with it.
            Err(_) => return,
        };
        let thread = u16::try_from(ended.thread).unwrap_or(u16::MAX);
        let (start_ns, took_ns) = (self.recorder.clock_ns(ended.began), ns(ended.took).min(CLOCK_NS_MAX));
        self.recorder.note(WorkRecord { work, returns, thread, matrix, step, start_ns, took_ns });
        if self.recorder.is_batch() {
            self.send_log(false);
        }
    }

    /// Sends what has gathered, as far as the link has room for it or all of it.
    pub(super) fn send_log(&mut self, at_any_rate: bool) {
        while let Some(head) = self.recorder.take(at_any_rate) {
            self.send(Kind::Log, head, Body::Empty);
        }
    }
}

/// Sends what has gathered, for as long as the session lasts.
pub(super) async fn send_regularly(core: Rc<RefCell<Core>>) -> Result<(), WorkerError> {
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        core.borrow_mut().send_log(false);
    }
}
