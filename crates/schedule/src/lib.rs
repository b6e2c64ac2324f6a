//! The two ends of a product as sans-IO state machines, and the messages between them.
//!
//! Place in the flow: after planning. The shells (`primary`, `worker`) pass events in and carry actions out;
//! a simulator can do the same.
//!
//! Invariants: all decisions go through `handle`. Every (tile, step) is added exactly once and in step order.
//! Memory at a worker never exceeds its grant: the primary spends credit before it sends, and the worker
//! checks it before it reserves. No call blocks.
//!
//! Deliberately absent: sockets, files, threads, clocks (time is an argument), kernels, matrix elements.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod clock;
pub mod journal;
pub mod lu;
pub mod primary;
pub mod worker;
