//! Measures a TCP link without and with encryption: wall time, and CPU time of each end.
//!
//! `cargo run --release -p bramble-link --example link_speed [-- [--json] [MIB] [ROUNDS]]`
//!
//! Two threads, each with an event loop, and one socket between them over loopback: frames of 1 MiB go one way,
//! from memory larger than any cache, checksummed at both ends as in a product. The cases alternate; figures are
//! medians. CPU seconds per GB include the kernel's, nearly all of which the sender pays on loopback; the cost of
//! encryption is the difference to the plain link. GB are 10⁹ bytes.
#![allow(clippy::print_stdout)] // A program for people.

mod common;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bramble_link::{
    ArrivedBody, Body, BodyOwner, BodyPlacer, CHUNK_BYTES_MAX, ClusterKey, Frame, FrameLimits, Landing, Link,
    LinkError, NoBodies, Reach, Security, SharedRegion, tcp_connect,
};
use common::{noise, thread_cpu_s};
use tokio::net::TcpListener;

/// Larger than any cache.
const SOURCE_FRAMES: usize = 64;

/// The kind of link.
#[derive(Clone, Copy)]
enum Case {
    Plain,
    Sealed,
    SealedWithoutAes,
}

/// The cost of one transfer.
struct Taken {
    cipher: &'static str,
    wall_s: f64,
    sender_cpu_s: f64,
    receiver_cpu_s: f64,
}

fn main() -> Result<(), LinkError> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let json = words.iter().any(|word| word == "--json");
    let mut numbers = words.iter().filter_map(|word| word.parse::<usize>().ok());
    let (frames, rounds) = (numbers.next().unwrap_or(1024).max(1), numbers.next().unwrap_or(5).max(1));
    let source: BodyOwner = Arc::new(noise(SOURCE_FRAMES * CHUNK_BYTES_MAX));
    let cases = [Case::Plain, Case::Sealed, Case::SealedWithoutAes];
    let mut taken: [Vec<Taken>; 3] = Default::default();
    for round in 0..=rounds {
        for (case, kept) in cases.into_iter().zip(&mut taken) {
            let one = transfer(case, frames, &source)?;
            // The first round warms up.
            if round > 0 {
                kept.push(one);
            }
        }
    }
    if !json {
        let cpu = "CPU s/GB";
        println!("{:<18} {:>6} {:>16} {:>18}", "link", "GB/s", format!("sender {cpu}"), "receiver");
    }
    let gb = (frames * CHUNK_BYTES_MAX) as f64 / 1e9;
    for kept in &taken {
        let speed = median(kept.iter().map(|t| gb / t.wall_s));
        let sender = median(kept.iter().map(|t| t.sender_cpu_s / gb));
        let receiver = median(kept.iter().map(|t| t.receiver_cpu_s / gb));
        let name = kept[0].cipher;
        if json {
            let head = format!(r#""schema":"bramble.link-speed/1","cipher":"{name}","rounds":{rounds}"#);
            let cpu = format!(r#""sender_cpu_s_per_gb":{sender:.3},"receiver_cpu_s_per_gb":{receiver:.3}"#);
            println!(r#"{{{head},"gb_per_s":{speed:.3},{cpu}}}"#);
        } else {
            println!("{name:<18} {speed:>6.2} {sender:>16.2} {receiver:>18.2}");
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn security(case: Case) -> Result<Security, LinkError> {
    let key = ClusterKey::from_bytes([7; ClusterKey::BYTES]);
    match case {
        Case::Plain => Ok(Security::open(Reach::Loopback, 0, "example")),
        Case::Sealed => Security::sealed(key, 0, "example"),
        Case::SealedWithoutAes => Security::sealed_without_aes(key, 0, "example"),
    }
}

/// Sends that number of frames through a new link.
fn transfer(case: Case, frames: usize, source: &BodyOwner) -> Result<Taken, LinkError> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let source = source.clone();
    let sending = std::thread::Builder::new().name("sender".to_owned());
    let sender = sending.spawn(move || run(send(case, frames, source, address)))?;
    let received = run(receive(case, frames, listener));
    let sent = sender.join().unwrap_or_else(|_| panic!("the sending thread panicked"));
    let (began, sender_cpu_s) = sent?;
    let (ended, receiver_cpu_s, cipher) = received?;
    Ok(Taken { cipher, wall_s: (ended - began).as_secs_f64(), sender_cpu_s, receiver_cpu_s })
}

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap_or_else(|e| panic!("no event loop: {e}")).block_on(future)
}

async fn send(
    case: Case,
    frames: usize,
    source: BodyOwner,
    address: SocketAddr,
) -> Result<(Instant, f64), LinkError> {
    let stream = tcp_connect(address, Duration::from_secs(5)).await?;
    let mut link = security(case)?.dial(stream).await?;
    open(&mut link);
    let (began, cpu_s) = (Instant::now(), thread_cpu_s());
    for frame in 0..frames {
        let start = frame % SOURCE_FRAMES * CHUNK_BYTES_MAX;
        let region = SharedRegion::new(source.clone(), start, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX, 1);
        link.sender.send(Frame::new(1, vec![0; 32], Body::Shared(region))).await?;
    }
    let cpu_s = thread_cpu_s() - cpu_s;
    link.sender.close().await?;
    Ok((began, cpu_s))
}

async fn receive(
    case: Case,
    frames: usize,
    listener: std::net::TcpListener,
) -> Result<(Instant, f64, &'static str), LinkError> {
    let (stream, _) = TcpListener::from_std(listener)?.accept().await?;
    // If one end has no AES instructions, both work without them.
    let case = if matches!(case, Case::Plain) { case } else { Case::Sealed };
    let mut link = security(case)?.accept(stream).await?;
    open(&mut link);
    let cpu_s = thread_cpu_s();
    let mut place = OnePlace(vec![0; CHUNK_BYTES_MAX]);
    for _ in 0..frames {
        if let ArrivedBody::Landed(landing) = link.receiver.receive(&mut place).await?.body {
            let landing: Box<dyn Any> = landing.into_any();
            place.0 = *landing.downcast::<Vec<u8>>().unwrap_or_else(|_| panic!("another landing"));
        }
    }
    let (ended, cpu_s) = (Instant::now(), thread_cpu_s() - cpu_s);
    match link.receiver.receive(&mut NoBodies).await {
        Err(LinkError::Closed) => Ok((ended, cpu_s, link.cipher.unwrap_or("not encrypted"))),
        other => other.map(|frame| panic!("a frame too many: {frame:?}")),
    }
}

fn open(link: &mut Link) {
    link.receiver.set_limits(FrameLimits::SESSION);
}

/// One buffer that receives every body.
struct OnePlace(Vec<u8>);

impl BodyPlacer for OnePlace {
    fn place(&mut self, _kind: u8, _head: &[u8], _body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Ok(Box::new(std::mem::take(&mut self.0)))
    }
}
