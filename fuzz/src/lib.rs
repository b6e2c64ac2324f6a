//! Hostile bytes for every parser of Bramble. One file per target; each target is a plain function of
//! bytes that panics where a promise is broken, so that a fuzzer, a test and a debugger run the very same code.
//!
//! Place in the flow: outside the workspace. `fuzz_targets/` has the fuzzer's entry points, `tests/replay.rs` runs the
//! committed corpora on a stable compiler, `examples/corpus.rs` turns them into folders for the fuzzer and back.
//!
//! Invariants: a target takes memory within its bound (see `memory`), touches no file, socket, clock or
//! thread, and gives the same answer for the same bytes.
//!
//! Deliberately absent: code that the program needs. Nor has the program hooks for these targets, except
//! the feature `fuzzing` of `link`: the code before the proof of the key has no other entry point.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod bytes;
mod codec;
pub mod corpus;
mod files;
mod handshake;
mod hostfile;
mod journal;
pub mod memory;
mod primary_session;
mod worker_session;

pub use codec::codec;
pub use files::{mtx, npy, safetensors};
pub use handshake::handshake;
pub use hostfile::hostfile;
pub use journal::journal;
pub use primary_session::primary_session;
pub use worker_session::worker_session;

/// A function to fuzz.
pub struct Target {
    /// The name of the function, the binary and the corpus.
    pub name: &'static str,
    /// Takes any bytes; panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Valid inputs of every kind to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Longest input worth trying.
    pub input_bytes_max: usize,
}

/// Every target. A new one is a file, a line here, a binary in `Cargo.toml` and a corpus.
pub const TARGETS: [Target; 9] = [
    Target { name: "codec", run: codec, seeds: codec::seeds, input_bytes_max: 1024 },
    Target {
        name: "worker_session",
        run: worker_session,
        seeds: worker_session::seeds,
        input_bytes_max: 256,
    },
    Target {
        name: "primary_session",
        run: primary_session,
        seeds: primary_session::seeds,
        input_bytes_max: 256,
    },
    Target { name: "npy", run: npy, seeds: files::npy_seeds, input_bytes_max: 512 },
    Target { name: "mtx", run: mtx, seeds: files::mtx_seeds, input_bytes_max: 512 },
    Target { name: "safetensors", run: safetensors, seeds: files::safetensors_seeds, input_bytes_max: 512 },
    Target { name: "handshake", run: handshake, seeds: handshake::seeds, input_bytes_max: 1024 },
    Target { name: "hostfile", run: hostfile, seeds: hostfile::seeds, input_bytes_max: 256 },
    Target { name: "journal", run: journal, seeds: journal::seeds, input_bytes_max: 1024 },
];

/// Runs a target on the files that the command line names.
pub fn replay(run: fn(&[u8])) -> std::io::Result<()> {
    for path in std::env::args().skip(1) {
        let input = std::fs::read(&path)?;
        run(&input);
        println!("{path}: {} bytes, passed", input.len());
    }
    Ok(())
}
