//! The two tasks of each link: one writes to the worker, one reads from it.
//!
//! Invariants: frames leave in the order in which the core queued them; each frame that arrives is handled by the core
//! before the next is read. A task that ends in order gives its half of the link back: the writer when its queue is closed and
//! empty, the reader after both goodbyes.

use super::Core;
use bramble_link::{BodyPlacer, Frame, HEADER_BYTES, Landing, Receiver, Section, Sender};
use bramble_schedule::primary::PrimaryEvent;
use bramble_wire::message::{Kind, ResultHead};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long the reader may still read what the worker sent last, after sending to it has failed.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Sends the frames that the core queues for a worker, in order, and gives the sender back after the last of them.
pub(super) async fn write(
    mut sender: Box<dyn Sender>,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    core: Rc<RefCell<Core>>,
    peer: usize,
    sent: Rc<Cell<u64>>,
) {
    let meter = core.borrow().meter.clone();
    while let Some(frame) = frames.recv().await {
        let kind = frame.kind;
        let is_store = kind == Kind::Store.code();
        let bytes = frame.wire_bytes() - HEADER_BYTES;
        let began = Instant::now();
        if sender.sums_bodies() {
            meter.seal(&frame);
        }
        let result = meter.timed(Section::Sending, sender.send(frame)).await;
        sent.set(sender.bytes_sent());
        core.borrow_mut().recorder.sent(peer, kind, bytes + HEADER_BYTES, began);
        match result {
            Ok(()) if is_store => core.borrow_mut().dispatch(PrimaryEvent::Sent { peer, bytes }),
            Ok(()) => {}
            Err(e) => {
                // The worker's own reason for leaving may have arrived and not been read yet.
                tokio::time::sleep(LAST_WORDS).await;
                let mut core = core.borrow_mut();
                let why = core.describe(e);
                return core.disconnect(peer, why);
            }
        }
    }
    if let Some(lent) = &mut core.borrow_mut().peers[peer].lent {
        lent.sender = Some(sender);
    }
}

/// Reads what a worker sends until both ends have said goodbye, or its link ends.
pub(super) async fn read(
    mut receiver: Box<dyn Receiver>,
    core: Rc<RefCell<Core>>,
    peer: usize,
    received: Rc<Cell<u64>>,
) {
    let mut placer = Placer { core: core.clone(), peer };
    let (meter, disconnect) = (core.borrow().meter.clone(), core.borrow().peers[peer].disconnect.clone());
    loop {
        let before = receiver.bytes_received();
        // Dropping the receive drops the partly received tile with it.
        let arrived = tokio::select! {
            biased;
            () = disconnect.notified() => return core.borrow_mut().link_ended(peer, String::new()),
            arrived = meter.timed(Section::Receiving, receiver.receive(&mut placer)) => arrived,
        };
        received.set(receiver.bytes_received());
        let mut core = core.borrow_mut();
        if let Ok(frame) = &arrived {
            core.recorder.received(peer, frame.kind, receiver.bytes_received() - before);
        }
        let result =
            arrived.map_err(|e| core.describe(e)).and_then(|a| core.arrived(peer, a).map_err(|e| e.0));
        if let Err(why) = result {
            return core.link_ended(peer, why);
        }
        if core.peers[peer].goodbye.is_some() {
            if let Some(lent) = &mut core.peers[peer].lent {
                lent.receiver = Some(receiver);
            }
            return;
        }
    }
}

/// Places the rows of results: in the output.
struct Placer {
    core: Rc<RefCell<Core>>,
    peer: usize,
}

impl BodyPlacer for Placer {
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        if Kind::from_code(kind).map_err(|e| e.0)? != Kind::Result {
            return Err(format!("a message of kind {kind} came with a body"));
        }
        let head = ResultHead::decode(head).map_err(|e| e.0)?;
        let mut core = self.core.borrow_mut();
        core.recorder.frame_started(self.peer);
        core.place(self.peer, &head, body_bytes)
    }
}
