//! Messages by MPI's functions alone, to compare the link with: no frames, windows or event loop.
//!
//! Place in the flow: a benchmark has two ranks do the same `Plain` at the same time, while their links rest.
//!
//! Invariants: every message is complete when this returns, so its memory is no longer used; links' messages stay under way.
//!
//! Deliberately absent: waiting for anything else meanwhile. This blocks its thread, as a program of MPI does.
#![allow(unsafe_code)] // Memory for messages is lent to the library.

use super::table::{Calls, Fault, Message};
use super::{PLAIN_SIGNAL_TAG as SIGNAL_TAG, PLAIN_TAG as TAG};
use std::time::{Duration, Instant};

/// Bytes of `Plain` in an order.
pub(super) const ORDER_BYTES: usize = 21;

/// What is done by turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// A message there and one back.
    PingPong,
    /// A window of messages there, and a signal back.
    OneWay,
    /// A window each way, at once.
    BothWays,
}

/// Messages between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// What is done.
    pub exchange: Exchange,
    /// Bytes of a message.
    pub bytes: usize,
    /// Messages of a window; those of a ping-pong are one.
    pub window: usize,
    /// How often.
    pub repeats: u32,
}

impl Plain {
    /// Does one side's part; gives the time of all, from when the other side was ready.
    pub(super) fn perform(self, calls: &dyn Calls, peer: i32, leads: bool) -> Result<Duration, Fault> {
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

    /// As it is in an order.
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

/// One side, for as long as it has this memory.
struct Side<'a> {
    calls: &'a dyn Calls,
    peer: i32,
    source: &'a [u8],
    sink: &'a mut [u8],
}

impl Side<'_> {
    /// Starts so many messages each way, all over the same memory as is usual in such measurements, and waits for them.
    fn window(&mut self, out: usize, into: usize) -> Result<(), Fault> {
        let before = self.calls.under_way();
        for _ in 0..into {
            let message = Message { bytes: self.sink.len(), peer: self.peer, tag: TAG };
            // SAFETY: the memory is borrowed here alone, and the messages are waited for below; what several leave there is
            // any of them. After an error the process uses the library no more, and this memory is never looked at.
            unsafe { self.calls.receive(self.sink.as_mut_ptr(), message) }?;
        }
        for _ in 0..out {
            let message = Message { bytes: self.source.len(), peer: self.peer, tag: TAG };
            // SAFETY: as above, and nobody writes there.
            unsafe { self.calls.send(self.source.as_ptr(), message, false) }?;
        }
        self.calls.wait(before)
    }

    /// Gives a signal, or waits for one.
    fn signal(&self, gives: bool) -> Result<(), Fault> {
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
            let plain = Plain { exchange, bytes: 1 << 26, window: 64, repeats: 70_000 };
            assert_eq!(Plain::decode(&plain.encode()), Some(plain));
        }
        assert_eq!(Plain::decode(&[9; ORDER_BYTES]), None);
        assert_eq!(Plain::decode(&[0; ORDER_BYTES - 1]), None);
    }
}
