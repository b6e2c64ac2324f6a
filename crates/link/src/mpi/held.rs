//! Memory that MPI reads or writes while a message is in flight.
//!
//! Place in the flow: `engine` starts each message with memory that is held here, and gets it back when the message
//! is complete.
//!
//! Invariants: held memory cannot be freed, moved or accessed until it is released; memory that is never released
//! is never freed. It is mutably borrowed while it is held, so no kind of owner can change it meanwhile.
//!
//! Deliberately absent: gathering and scattering. A body of several runs is copied into a buffer before it comes
//! here.
#![allow(unsafe_code)] // The library uses memory between two calls, which no borrow can express.

use super::table::{Calls, Message, MpiFault};
use crate::{Landing, SharedRegion};

/// The source of a send, or the target of a receive.
pub(super) enum Payload {
    /// A buffer of the link.
    Buffer(Box<[u8]>),
    /// A body in its own memory, in one run.
    SharedRegion(SharedRegion),
    /// The memory of a received body, in one run.
    Landing(Box<dyn Landing>),
}

/// The owner, inaccessible.
enum Owner {
    Buffer(*mut [u8]),
    SharedRegion(*mut SharedRegion),
    Landing(*mut dyn Landing),
}

/// A payload whose message is in flight.
///
/// Owners are raw pointers: dropping this without `release` leaks the payload, which the library may still use.
pub(super) struct HeldPayload(Owner);

/// Starts to send the first `message.bytes` bytes of the payload (all bytes, if it is a region).
pub(super) fn send(
    calls: &dyn Calls,
    payload: Payload,
    message: Message,
    is_synchronous: bool,
) -> Result<HeldPayload, MpiFault> {
    let (held, bytes, length) = held(payload);
    assert!(message.bytes <= length, "{} bytes of {length}", message.bytes);
    // SAFETY: the memory is borrowed from an owner that is inaccessible until `release`.
    unsafe { calls.send(bytes.cast_const(), message, is_synchronous) }.map(|()| held)
}

/// Starts to receive into the payload; the message may not be longer.
pub(super) fn receive(
    calls: &dyn Calls,
    payload: Payload,
    message: Message,
) -> Result<HeldPayload, MpiFault> {
    assert!(!matches!(payload, Payload::SharedRegion(_)), "a shared region cannot receive");
    let (held, bytes, length) = held(payload);
    assert!(message.bytes <= length, "{} bytes into {length}", message.bytes);
    // SAFETY: the memory is borrowed exclusively, from an owner that is inaccessible until `release`.
    unsafe { calls.receive(bytes, message) }.map(|()| held)
}

/// Whether all of a landing is one run of memory.
pub(super) fn is_one_run(landing: &mut dyn Landing) -> bool {
    let length = landing.len();
    let mut runs = Vec::with_capacity(2);
    landing.runs_mut(0, 2, &mut runs);
    runs.len() == 1 && runs[0].len() == length
}

/// Makes the owner inaccessible; returns the address of its bytes and their number. Panics if they are not one run.
fn held(payload: Payload) -> (HeldPayload, *mut u8, usize) {
    let (owner, bytes, length) = match payload {
        Payload::Buffer(buffer) => {
            let length = buffer.len();
            let buffer = Box::into_raw(buffer);
            (Owner::Buffer(buffer), buffer.cast(), length)
        }
        Payload::SharedRegion(region) => {
            assert!(region.runs == 1, "a region of {} runs", region.runs);
            let owner = Box::into_raw(Box::new(region));
            // SAFETY: the owner was boxed above and is not freed before `release`, so the borrow is valid until
            // then.
            let run: &'static [u8] = unsafe { &*owner }.run(0);
            (Owner::SharedRegion(owner), run.as_ptr().cast_mut(), run.len())
        }
        Payload::Landing(landing) => {
            let owner = Box::into_raw(landing);
            let mut runs = Vec::with_capacity(1);
            // SAFETY: the owner is from a box, and no other code has it before `release`, so the borrow is valid
            // until then.
            unsafe { &mut *owner }.runs_mut(0, 2, &mut runs);
            assert!(runs.len() == 1, "a landing of {} runs", runs.len());
            let (bytes, length) = (runs[0].as_mut_ptr(), runs[0].len());
            (Owner::Landing(owner), bytes, length)
        }
    };
    (HeldPayload(owner), bytes, length)
}

impl HeldPayload {
    /// Returns the payload.
    ///
    /// # Safety
    /// The message is complete.
    unsafe fn release(self) -> Payload {
        match self.0 {
            // SAFETY: each pointer is from a box and is converted back once; all borrows have ended with the
            // message.
            Owner::Buffer(buffer) => Payload::Buffer(unsafe { Box::from_raw(buffer) }),
            // SAFETY: as above.
            Owner::SharedRegion(region) => Payload::SharedRegion(*unsafe { Box::from_raw(region) }),
            // SAFETY: as above.
            Owner::Landing(landing) => Payload::Landing(unsafe { Box::from_raw(landing) }),
        }
    }
}

/// Messages in flight, in the order of their requests in the library's table.
#[derive(Default)]
pub(super) struct UnderWay(Vec<(usize, HeldPayload)>);

impl UnderWay {
    /// Adds the message that was started last.
    pub(super) fn push(&mut self, number: usize, held: HeldPayload) {
        self.0.push((number, held));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One completed message, if any: its number, the bytes that arrived, and its payload.
    pub(super) fn next_complete(
        &mut self,
        calls: &dyn Calls,
    ) -> Result<Option<(usize, usize, Payload)>, MpiFault> {
        let Some(complete) = calls.test_any()? else { return Ok(None) };
        let (number, held) = self.0.swap_remove(complete.index);
        // SAFETY: the library has reported that the request at this index is complete; both lists grow and shrink
        // alike.
        let payload = unsafe { held.release() };
        Ok(Some((number, complete.bytes, payload)))
    }
}
