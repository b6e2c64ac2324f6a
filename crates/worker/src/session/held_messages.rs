//! Messages about placed matrices at a worker: put, get, free.
//!
//! Place in the flow: the loop that reads a connection passes such messages here; between products and within one alike. The link
//! first asks `place_part` for the memory of a body.
//!
//! Invariant: each put that is complete, or has no memory, is answered once; each get with all its elements; free with nothing.
//!
//! Deliberately absent: the parts themselves (`held.rs`), and sending the answers.

use crate::held::{FillPart, HeldStore, PutProgress};
use bramble_link::{Arrived, ArrivedBody, Body, Frame, Landing};
use bramble_wire::ProtocolError;
use bramble_wire::message::{GetHead, Kind, PlacedHead, PutHead, decode_number};

/// What a message about an array asks of the caller.
pub(super) enum HeldAnswer {
    /// Send these frames, if any, in order.
    Frames(Vec<Frame>),
    /// Run this on a compute thread, then pass the result to `HeldStore::filled` and send its answer (`placed_frame`).
    Fill(Box<FillPart>),
}

/// The memory for the body of a put message.
pub(super) fn place_part(
    store: &mut HeldStore,
    head: &[u8],
    body_bytes: usize,
) -> Result<Box<dyn Landing>, ProtocolError> {
    store.place(&PutHead::decode(head)?, body_bytes)
}

/// Handles a message of kind put, get or free.
pub(super) fn held_message(store: &mut HeldStore, arrived: Arrived) -> Result<HeldAnswer, ProtocolError> {
    match (Kind::from_code(arrived.kind)?, arrived.body) {
        (Kind::Put, body) => {
            let put = PutHead::decode(&arrived.head)?;
            let progress = match body {
                ArrivedBody::Landed(landing) => store.landed(&put, landing)?,
                ArrivedBody::Shared(region) => store.referred(&put, &region)?,
                ArrivedBody::Empty | ArrivedBody::Leased(_) => {
                    return Err(ProtocolError::new(format!(
                        "a part of array {} without elements",
                        put.array
                    )));
                }
            };
            Ok(match progress {
                PutProgress::Incomplete => HeldAnswer::Frames(Vec::new()),
                PutProgress::Done(placed) => HeldAnswer::Frames(vec![placed_frame(&placed)]),
                PutProgress::Fill(fill) => HeldAnswer::Fill(fill),
            })
        }
        (Kind::Get, ArrivedBody::Empty) => {
            Ok(HeldAnswer::Frames(store.get(&GetHead::decode(&arrived.head)?)?))
        }
        (Kind::Free, ArrivedBody::Empty) => {
            store.free(decode_number(&arrived.head)?)?;
            Ok(HeldAnswer::Frames(Vec::new()))
        }
        (kind, _) => Err(ProtocolError::new(format!("a message of kind {kind:?} is not about an array"))),
    }
}

/// The answer to a put message.
pub(super) fn placed_frame(placed: &PlacedHead) -> Frame {
    Frame::new(Kind::Placed.code(), placed.encode(), Body::Empty)
}
