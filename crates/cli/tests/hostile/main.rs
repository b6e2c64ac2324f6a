//! Hostile ends over real sockets against real processes: strangers, members that lie, workers that lie.
//!
//! Each test checks the behaviour of the honest side, and that it is healthy afterwards: no panic, as many
//! descriptors as before, little memory, and an honest product with the right digest.
//!
//! Invariants: everything is on loopback; every loop is bounded; tests end only processes that they started.
//!
//! Deliberately absent: claims about speed (bench/under_attack.py), and variants of single messages, which the
//! property tests of `schedule` and `link` cover.

#![allow(clippy::unwrap_used)] // A test may panic.

mod beside;
mod catalogue;
mod client;
mod crowds;
mod factorisations;
mod factors;
mod garbage;
mod handles;
mod introductions;
mod liars;
mod making;
mod placed;
mod reductions;
mod relays;
mod remains;
mod strangers;
mod support;
mod worker;
