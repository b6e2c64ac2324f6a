//! Hostile ends over real sockets against real processes: strangers, members that lie, workers that lie.
//!
//! Each test says what the honest side does, and that it is alive and well afterwards: no panic, as many
//! descriptors as before, little memory, and an honest product with the right digest.
//!
//! Invariants: everything is on loopback; every loop is bounded; only processes that a test started are ended.
//!
//! Deliberately absent: claims about speed (bench/under_attack.py), and forms of single messages, which the
//! proptests of `schedule` and `link` go through by the thousand.

#![allow(clippy::unwrap_used)] // A test may panic.

mod beside;
mod catalogue;
mod client;
mod crowds;
mod garbage;
mod handles;
mod introductions;
mod liars;
mod relays;
mod remains;
mod strangers;
mod support;
mod worker;
