//! The session's part of the event log: records tasks, sends the records in batches.

use super::WorkerError;
use super::core::{Core, TaskResult};
use crate::job_recorder::ns;
use crate::pool::EndedTask;
use bramble_link::Body;
use bramble_wire::limits::{CLOCK_NS_MAX, LOG_EVERY};
use bramble_wire::message::{Kind, Then, Work, WorkRecord};
use std::cell::RefCell;
use std::rc::Rc;

impl Core {
    /// Records a finished task.
    pub(super) fn record(&mut self, ended: &EndedTask<TaskResult>) {
        if !self.recorder.is_on() {
            return;
        }
        let (work, returns, matrix, step) = match &ended.result {
            Ok(TaskResult::Ran(run, ..)) => {
                let job = &run.job;
                (Work::Job(job.operation), job.then == Then::Return, job.c, job.step)
            }
            Ok(TaskResult::Filled(header, _)) => (Work::Generate, false, header.id, 0),
            // Placing, reducing and factoring belong to no product; a panic ends the session.
            Ok(
                TaskResult::Placed(_)
                | TaskResult::Factored(_)
                | TaskResult::Reduced(_)
                | TaskResult::Made(_),
            )
            | Err(_) => return,
        };
        let thread = u16::try_from(ended.thread).unwrap_or(u16::MAX);
        let (start_ns, took_ns) = (self.recorder.clock_ns(ended.began), ns(ended.took).min(CLOCK_NS_MAX));
        self.recorder.note(WorkRecord { work, returns, thread, matrix, step, start_ns, took_ns });
        if self.recorder.is_batch() {
            self.send_log(false);
        }
    }

    /// Sends the collected records; `at_any_rate`: all of them, else as far as the link has room.
    pub(super) fn send_log(&mut self, at_any_rate: bool) {
        while let Some(head) = self.recorder.take(at_any_rate) {
            self.send(Kind::Log, head, Body::Empty);
        }
    }
}

/// Sends collected records regularly, for as long as the session lasts.
pub(super) async fn send_regularly(core: Rc<RefCell<Core>>) -> Result<(), WorkerError> {
    loop {
        tokio::time::sleep(LOG_EVERY).await;
        core.borrow_mut().send_log(false);
    }
}
