//! The two tasks of each link: what goes to a worker, and what comes from it.
//!
//! Invariants: frames leave in the order in which the core gave them; what arrives goes through the core before
//! the next is read.

use super::Core;
use bramble_link::{Frame, HEADER_BYTES, Landing, Place, Receiver, Sender};
use bramble_schedule::message::{Kind, ResultHead};
use bramble_schedule::primary::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::sync::mpsc;

/// Sends what the core has for a worker, in order, and closes the link after the last of it.
pub(super) async fn write(
    mut sender: Box<dyn Sender>,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    core: Rc<RefCell<Core>>,
    peer: usize,
    sent: Rc<Cell<u64>>,
) {
    while let Some(frame) = frames.recv().await {
        let is_store = frame.kind == Kind::Store.code();
        let bytes = frame.wire_bytes() - HEADER_BYTES;
        let result = sender.send(frame).await;
        sent.set(sender.bytes_sent());
        let mut core = core.borrow_mut();
        match result {
            Ok(()) if is_store => core.happened(Event::Sent { peer, bytes }),
            Ok(()) => {}
            Err(e) => return core.lost(peer, &e),
        }
    }
    // Whoever is gone need not be told.
    let _ = sender.close().await;
}

/// Takes what a worker sends until it ends.
pub(super) async fn read(
    mut receiver: Box<dyn Receiver>,
    core: Rc<RefCell<Core>>,
    peer: usize,
    received: Rc<Cell<u64>>,
) {
    let mut placer = Placer { core: core.clone(), peer };
    loop {
        let arrived = receiver.receive(&mut placer).await;
        received.set(receiver.bytes_received());
        let mut core = core.borrow_mut();
        let result =
            arrived.map_err(|e| core.describe(e)).and_then(|a| core.arrived(peer, a).map_err(|e| e.0));
        if let Err(why) = result {
            core.peers[peer].to = None;
            core.happened(Event::Lost { peer, why });
            return core.changed.notify_one();
        }
    }
}

/// Says where the rows of results land: in the output.
struct Placer {
    core: Rc<RefCell<Core>>,
    peer: usize,
}

impl Place for Placer {
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        if Kind::from_code(kind).map_err(|e| e.0)? != Kind::Result {
            return Err(format!("a message of kind {kind} came with a body"));
        }
        let head = ResultHead::decode(head).map_err(|e| e.0)?;
        self.core.borrow_mut().place(self.peer, &head, body_bytes)
    }
}
