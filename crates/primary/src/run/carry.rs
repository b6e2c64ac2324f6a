//! The two tasks of each link: what goes to a worker, and what comes from it.
//!
//! Invariants: frames leave in the order in which the core gave them; what arrives goes through the core before
//! the next is read.

use super::Core;
use bramble_link::{Frame, HEADER_BYTES, Landing, Place, Receiver, Section, Sender};
use bramble_schedule::message::{Kind, ResultHead};
use bramble_schedule::primary::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// How long what a worker said last may take to be read, after nothing more can be sent to it.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Sends what the core has for a worker, in order, and closes the link after the last of it.
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
            Ok(()) if is_store => core.borrow_mut().happened(Event::Sent { peer, bytes }),
            Ok(()) => {}
            Err(e) => {
                // Why it left may be among what has come from it and was not read yet.
                tokio::time::sleep(LAST_WORDS).await;
                let mut core = core.borrow_mut();
                let why = core.describe(e);
                return core.cut(peer, why);
            }
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
    let (meter, cut) = (core.borrow().meter.clone(), core.borrow().peers[peer].cut.clone());
    loop {
        let before = receiver.bytes_received();
        // What is landing goes with the receiving that is dropped.
        let arrived = tokio::select! {
            biased;
            () = cut.notified() => return core.borrow_mut().gone(peer, String::new()),
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
            return core.gone(peer, why);
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
        let mut core = self.core.borrow_mut();
        core.recorder.arriving(self.peer);
        core.place(self.peer, &head, body_bytes)
    }
}
