//! Messages by MPI's functions alone, as a baseline for the link: no frames, windows or event loop.
//!
//! Place in the flow: a benchmark lets two ranks run the same `PlainMessages` at the same time, while their links
//! are idle.
//!
//! Invariants: every message is complete when this returns, so its memory is free; messages of links stay in
//! flight.
//!
//! Deliberately absent: waiting for anything else. It blocks its thread, like an ordinary MPI program.
#![allow(unsafe_code)] // Memory for messages is lent to the library.

use super::table::{Calls, Message, MpiFault};
use super::{PLAIN_SIGNAL_TAG as SIGNAL_TAG, PLAIN_TAG as TAG};
use std::time::{Duration, Instant};

/// Length of encoded `PlainMessages`.
pub(super) const ORDER_BYTES: usize = 21;

/// A pattern of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A message there and a message back.
    PingPong,
    /// A window of messages there, and a signal back.
    OneWay,
    /// A window in each direction at once.
    BothWays,
}

/// An exchange of messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainMessages {
    /// The pattern.
    pub exchange: Exchange,
    /// Bytes per message.
    pub bytes: usize,
    /// Messages per window; a ping-pong has windows of one.
    pub window: usize,
    /// Number of repetitions.
    pub repeats: u32,
}

impl PlainMessages {
    /// Runs one side; returns the total time, from the moment when the peer was ready.
    pub(super) fn perform(self, calls: &dyn Calls, peer: i32, leads: bool) -> Result<Duration, MpiFault> {
        let (source, mut sink) = (vec![1; self.bytes], vec![2; self.bytes]);
        let mut side = Side { calls, peer, source: &source, sink: &mut sink };
        side.signal(!leads)?;
        let began = Instant::now();
        for _ in 0..self.repeats {
            match (self.exchange, leads) {
                (Exchange::PingPong, true) => {
                    side.window(1, 0)?;
                    side.window(0, 1)?;
                }
                (Exchange::PingPong, false) => {
                    side.window(0, 1)?;
                    side.window(1, 0)?;
                }
                (Exchange::OneWay, true) => {
                    side.window(self.window, 0)?;
                    side.signal(false)?;
                }
                (Exchange::OneWay, false) => {
                    side.window(0, self.window)?;
                    side.signal(true)?;
                }
                (Exchange::BothWays, _) => side.window(self.window, self.window)?,
            }
        }
        Ok(began.elapsed())
    }

    /// The encoding in an order.
    pub(super) fn encode(self) -> [u8; ORDER_BYTES] {
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX).to_le_bytes();
        let mut out = [0; ORDER_BYTES];
        out[0] = match self.exchange {
            Exchange::PingPong => 0,
            Exchange::OneWay => 1,
            Exchange::BothWays => 2,
        };
        out[1..5].copy_from_slice(&self.repeats.to_le_bytes());
        out[5..13].copy_from_slice(&number(self.bytes));
        out[13..].copy_from_slice(&number(self.window));
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [code, r0, r1, r2, r3, numbers @ ..]: [u8; ORDER_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| Some(u64::from_le_bytes(*numbers[at..].first_chunk()?));
        let exchange = match code {
            0 => Exchange::PingPong,
            1 => Exchange::OneWay,
            2 => Exchange::BothWays,
            _ => return None,
        };
        let (bytes, window) = (usize::try_from(number(0)?).ok()?, usize::try_from(number(8)?).ok()?);
        Some(Self { exchange, bytes, window, repeats: u32::from_le_bytes([r0, r1, r2, r3]) })
    }
}

/// One side, with its memory.
struct Side<'a> {
    calls: &'a dyn Calls,
    peer: i32,
    source: &'a [u8],
    sink: &'a mut [u8],
}

impl Side<'_> {
    /// Starts `out` sends and `into` receives, all with the same memory, as is usual in such benchmarks, and waits
    /// for them.
    fn window(&mut self, out: usize, into: usize) -> Result<(), MpiFault> {
        let before = self.calls.under_way();
        for _ in 0..into {
            let message = Message { bytes: self.sink.len(), peer: self.peer, tag: TAG };
            // SAFETY: the memory is borrowed exclusively, and the messages are awaited below; several of them may
            // write to it, and any result is valid. After an error this process uses the library no more, and never
            // reads this memory.
            unsafe { self.calls.receive(self.sink.as_mut_ptr(), message) }?;
        }
        for _ in 0..out {
            let message = Message { bytes: self.source.len(), peer: self.peer, tag: TAG };
            // SAFETY: as above, and this memory is only read.
            unsafe { self.calls.send(self.source.as_ptr(), message, false) }?;
        }
        self.calls.wait(before)
    }

    /// Sends a signal, or waits for one.
    fn signal(&self, gives: bool) -> Result<(), MpiFault> {
        let before = self.calls.under_way();
        let message = Message { bytes: 0, peer: self.peer, tag: SIGNAL_TAG };
        // SAFETY: no byte is read or written.
        unsafe {
            if gives {
                self.calls.send([].as_ptr(), message, false)
            } else {
                self.calls.receive([].as_mut_ptr(), message)
            }
        }?;
        self.calls.wait(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_were_written() {
        for exchange in [Exchange::PingPong, Exchange::OneWay, Exchange::BothWays] {
            let plain = PlainMessages { exchange, bytes: 1 << 26, window: 64, repeats: 70_000 };
            assert_eq!(PlainMessages::decode(&plain.encode()), Some(plain));
        }
        assert_eq!(PlainMessages::decode(&[9; ORDER_BYTES]), None);
        assert_eq!(PlainMessages::decode(&[0; ORDER_BYTES - 1]), None);
    }
}
