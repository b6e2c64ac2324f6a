//! Echoes frames between two machines: the share of the line that a link uses in both directions at once, and its
//! cost.
//!
//! `echo --listen ADDRESS:PORT` on one machine, `echo --connect ADDRESS:PORT [--seconds N]` on the other;
//! `--sealed` on both encrypts, with a public key. Frames have 1 MiB, from memory larger than any cache, and both
//! ends compute checksums as in a product.
//!
//! Prints a line of JSON per second and one for the whole run: bytes in each direction (headers included), bytes
//! per second, CPU seconds of the thread, and the resident memory. CPU time and memory are 0 on systems other than
//! Linux. `bench/echo.py` runs it beside iperf3.
#![allow(clippy::print_stdout)] // A program for people and scripts.

mod common;

use bramble_link::echo::{self, EchoTotals};
use bramble_link::{BodyOwner, CHUNK_BYTES_MAX, ClusterKey, LinkError, Reach, Security};
use common::{noise, thread_cpu_s};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Larger than any cache.
const SOURCE_BODIES: usize = 64;
/// Time limit for a connection and for an answer.
const CONNECT: Duration = Duration::from_secs(10);

struct Options {
    listen: bool,
    address: SocketAddr,
    lasting: Duration,
    sealed: bool,
}

fn main() -> Result<(), String> {
    let options = options(&std::env::args().skip(1).collect::<Vec<_>>())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| format!("no event loop: {e}"))?;
    runtime.block_on(run(options)).map_err(|e| e.to_string())
}

fn options(words: &[String]) -> Result<Options, String> {
    let usage = || "usage: echo --listen|--connect ADDRESS:PORT [--seconds N] [--sealed]".to_owned();
    let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let listen = after("--listen").is_some();
    let address = after("--listen").or_else(|| after("--connect")).and_then(|text| text.parse().ok());
    let seconds = after("--seconds").map_or(Ok(10), |text| text.parse()).map_err(|_| usage())?;
    let (address, sealed) = (address.ok_or_else(usage)?, words.iter().any(|word| word == "--sealed"));
    Ok(Options { listen, address, lasting: Duration::from_secs(seconds), sealed })
}

async fn run(options: Options) -> Result<(), LinkError> {
    let security = if options.sealed {
        Security::sealed(ClusterKey::from_bytes([7; ClusterKey::BYTES]), 0, "example")?
    } else {
        Security::open(Reach::Anywhere, 0, "example")
    };
    if options.listen {
        let listener = TcpListener::bind(options.address).await?;
        println!("listening on {}", listener.local_addr()?);
        let link = security.accept(listener.accept().await?.0).await?;
        let (mut seconds, cpu_s) = (Seconds::default(), thread_cpu_s());
        let moved = echo::serve(link, &mut |moved| seconds.over(moved)).await?;
        say("whole", EchoTotals::default(), moved, thread_cpu_s() - cpu_s);
    } else {
        let source: BodyOwner = Arc::new(noise(SOURCE_BODIES * CHUNK_BYTES_MAX));
        let link = security.reach(options.address, CONNECT).await?;
        let (mut seconds, cpu_s) = (Seconds::default(), thread_cpu_s());
        let each = &mut |moved| seconds.over(moved);
        let moved = echo::drive(link, source, CHUNK_BYTES_MAX, options.lasting, each).await?;
        say("whole", EchoTotals::default(), moved, thread_cpu_s() - cpu_s);
    }
    Ok(())
}

/// The counters at the end of the last second.
#[derive(Default)]
struct Seconds {
    moved: EchoTotals,
    cpu_s: Option<f64>,
}

impl Seconds {
    fn over(&mut self, moved: EchoTotals) {
        let cpu_s = thread_cpu_s();
        say("second", self.moved, moved, cpu_s - self.cpu_s.unwrap_or(cpu_s));
        (self.moved, self.cpu_s) = (moved, Some(cpu_s));
    }
}

fn say(what: &str, before: EchoTotals, now: EchoTotals, cpu_s: f64) {
    let seconds = (now.elapsed - before.elapsed).as_secs_f64();
    let (sent, received) = (now.bytes_sent - before.bytes_sent, now.bytes_received - before.bytes_received);
    let per_s = |bytes: u64| bytes as f64 / seconds.max(1e-9);
    let (sent_per_s, received_per_s) = (per_s(sent), per_s(received));
    let head =
        format!(r#""schema":"bramble.echo/1","what":"{what}","at_s":{:.3}"#, now.elapsed.as_secs_f64());
    let bytes = format!(r#""bytes_sent":{sent},"bytes_received":{received}"#);
    let rates = format!(r#""sent_per_s":{sent_per_s:.0},"received_per_s":{received_per_s:.0}"#);
    let cost = format!(r#""cpu_s":{cpu_s:.6},"resident_kib":{}"#, resident_kib());
    println!("{{{head},\"seconds\":{seconds:.3},{bytes},{rates},{cost}}}");
}

/// Resident memory of this process, KiB.
fn resident_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
