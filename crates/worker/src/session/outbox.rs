//! The queue of frames from a session to its writer.
//!
//! Place in the flow: the tasks of a session put frames in; the writer sends them in order.
//!
//! Invariants: at most one frame of credit waits. Tiles and jobs in the queue are bounded by the grant; the reader bounds the
//! pongs.

use super::core::OutgoingFrame;
use bramble_link::{Body, Frame};
use bramble_wire::message::{Kind, encode_number};
use std::cell::Cell;
use tokio::sync::mpsc;

/// The queue to the writer.
pub(super) struct Outbox {
    /// `None` when nothing more may be sent.
    queue: Option<mpsc::UnboundedSender<OutgoingFrame>>,
    /// Pongs in the queue. Tiles are bounded by the grant, so only pongs need a limit.
    answers: Cell<usize>,
    /// Freed bytes that have not been credited yet; if any, a frame for them is queued.
    credit: Cell<u64>,
}

impl Outbox {
    pub(super) fn new(queue: mpsc::UnboundedSender<OutgoingFrame>) -> Self {
        Self { queue: Some(queue), answers: Cell::new(0), credit: Cell::new(0) }
    }

    pub(super) fn enqueue(&self, leaving: OutgoingFrame) {
        let is_answer = leaving.frame.as_ref().is_some_and(|f| f.kind == Kind::Pong.code());
        if let Some(queue) = &self.queue
            && queue.send(leaving).is_ok()
        {
            self.answers.set(self.answers.get() + usize::from(is_answer));
        }
    }

    /// Pongs that wait.
    pub(super) fn answers(&self) -> usize {
        self.answers.get()
    }

    /// A pong has been sent.
    pub(super) fn answered(&self) {
        self.answers.set(self.answers.get() - 1);
    }

    /// Credit accumulates while the link is busy, so that at most one frame waits for it.
    pub(super) fn give_credit(&self, bytes: u64) {
        let before = self.credit.get();
        self.credit.set(before + bytes);
        if before == 0 {
            self.enqueue(OutgoingFrame { frame: None, last_of: None });
        }
    }

    /// The frame with the accumulated credit.
    pub(super) fn take_credit(&self) -> Frame {
        Frame::new(Kind::Credit.code(), encode_number(self.credit.take()), Body::Empty)
    }

    /// Nothing more may be sent; the writer ends when it has sent what waits.
    pub(super) fn close(&mut self) {
        self.queue = None;
    }
}
