//! Memory that MPI reads or writes while a message is under way.
//!
//! Place in the flow: `engine` starts each message with memory that is held here, and gets it back when the message is
//! complete.
//!
//! Invariants: what is held cannot be freed, moved or touched until it is released; what is never released is never freed.
//! It is borrowed for as long as it is held, so no owner of a body can change what it lends, whatever its kind.
//!
//! Deliberately absent: gathering and scattering. A body that is not in one run is copied into a buffer before it comes here.
#![allow(unsafe_code)] // The library uses memory between two calls, which no borrow can express.

use super::table::{Calls, Fault, Message};
use crate::{Landing, Region};

/// What a message is sent from, or received into.
pub(super) enum Payload {
    /// Bytes of this link's own.
    Buffer(Box<[u8]>),
    /// A body where it lies, in one run.
    Region(Region),
    /// The place of a body, in one run.
    Landing(Box<dyn Landing>),
}

/// The owner, out of reach.
enum Owner {
    Buffer(*mut [u8]),
    Region(*mut Region),
    Landing(*mut dyn Landing),
}

/// A payload while its message is under way.
///
/// Owners are pointers: whoever drops this without `release` leaks what it held, which the library may still use.
pub(super) struct Held(Owner);

/// Starts to send the first `message.bytes` of the payload; those are all of a region.
pub(super) fn send(
    calls: &dyn Calls,
    payload: Payload,
    message: Message,
    is_synchronous: bool,
) -> Result<Held, Fault> {
    let (held, bytes, length) = held(payload);
    assert!(message.bytes <= length, "{} bytes of {length}", message.bytes);
    // SAFETY: the memory is borrowed from an owner that is out of reach until `release`.
    unsafe { calls.send(bytes.cast_const(), message, is_synchronous) }.map(|()| held)
}

/// Starts to receive into the payload, whose length the message may not exceed.
pub(super) fn receive(calls: &dyn Calls, payload: Payload, message: Message) -> Result<Held, Fault> {
    assert!(!matches!(payload, Payload::Region(_)), "nothing is received into memory that others read");
    let (held, bytes, length) = held(payload);
    assert!(message.bytes <= length, "{} bytes into {length}", message.bytes);
    // SAFETY: the memory is borrowed, for writing and from nobody else, from an owner that is out of reach until `release`.
    unsafe { calls.receive(bytes, message) }.map(|()| held)
}

/// Whether all of a landing is one run of memory.
pub(super) fn is_one_run(landing: &mut dyn Landing) -> bool {
    let length = landing.len();
    let mut runs = Vec::with_capacity(2);
    landing.runs_mut(0, 2, &mut runs);
    runs.len() == 1 && runs[0].len() == length
}

/// Puts the owner out of reach; gives the address of its bytes, and how many they are. Panics where they are not one run.
fn held(payload: Payload) -> (Held, *mut u8, usize) {
    let (owner, bytes, length) = match payload {
        Payload::Buffer(buffer) => {
            let length = buffer.len();
            let buffer = Box::into_raw(buffer);
            (Owner::Buffer(buffer), buffer.cast(), length)
        }
        Payload::Region(region) => {
            assert!(region.runs == 1, "a region of {} runs", region.runs);
            let owner = Box::into_raw(Box::new(region));
            // SAFETY: it was made here, and is not freed before `release`; so this borrow lasts until then.
            let run: &'static [u8] = unsafe { &*owner }.run(0);
            (Owner::Region(owner), run.as_ptr().cast_mut(), run.len())
        }
        Payload::Landing(landing) => {
            let owner = Box::into_raw(landing);
            let mut runs = Vec::with_capacity(1);
            // SAFETY: it was made from a box, and nobody has it before `release`; so this borrow lasts until then.
            unsafe { &mut *owner }.runs_mut(0, 2, &mut runs);
            assert!(runs.len() == 1, "a landing of {} runs", runs.len());
            let (bytes, length) = (runs[0].as_mut_ptr(), runs[0].len());
            (Owner::Landing(owner), bytes, length)
        }
    };
    (Held(owner), bytes, length)
}

impl Held {
    /// Gives the payload back.
    ///
    /// # Safety
    /// The message is complete.
    unsafe fn release(self) -> Payload {
        match self.0 {
            // SAFETY: each is from a box, is given back once, and with the message all borrows of it have ended.
            Owner::Buffer(buffer) => Payload::Buffer(unsafe { Box::from_raw(buffer) }),
            // SAFETY: as above.
            Owner::Region(region) => Payload::Region(*unsafe { Box::from_raw(region) }),
            // SAFETY: as above.
            Owner::Landing(landing) => Payload::Landing(unsafe { Box::from_raw(landing) }),
        }
    }
}

/// Messages that are under way, in the order in which the library's table has their requests.
#[derive(Default)]
pub(super) struct UnderWay(Vec<(usize, Held)>);

impl UnderWay {
    /// The message that was started last.
    pub(super) fn push(&mut self, number: usize, held: Held) {
        self.0.push((number, held));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One that is complete, if one is: its number, the bytes that came, and its payload.
    pub(super) fn next_complete(
        &mut self,
        calls: &dyn Calls,
    ) -> Result<Option<(usize, usize, Payload)>, Fault> {
        let Some(complete) = calls.test_any()? else { return Ok(None) };
        let (number, held) = self.0.swap_remove(complete.index);
        // SAFETY: the library has said that the request at this place is complete; both lists grow and shrink alike.
        let payload = unsafe { held.release() };
        Ok(Some((number, complete.bytes, payload)))
    }
}
