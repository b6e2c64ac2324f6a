//! The network of a lab: a bridge in a namespace of its own, and for each machine a namespace with one interface.
//!
//! Invariants: the host's network is not changed, and the lab has no connection to the outside: no interface leads to
//! the host, and the only routes are to the lab's own addresses. The rate limit is set at both ends of a link, so it
//! applies in both directions.
//!
//! Deliberately absent: delay and loss (`netem`, which some kernels lack), and a switch slower than its ports.

use super::file::HUB;
use super::state::{Lab, LabMachine};
use super::tool;
use bramble_report::exit::Failure;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// The folder of `ip netns`.
const NAMESPACES: &str = "/var/run/netns";
/// The name of the interface in every machine.
pub(super) const INTERFACE: &str = "eth0";
/// Network prefix length.
const PREFIX: u8 = 24;

/// The address of a machine by its number; the primary has number 0.
pub(super) fn address(number: usize) -> Ipv4Addr {
    let last = u8::try_from(number + 1).unwrap_or_else(|_| panic!("a lab has no {number} machines"));
    Ipv4Addr::new(10, 77, 0, last)
}

/// The name of the namespace of a machine or of the hub.
pub(super) fn namespace(lab: &str, machine: &str) -> String {
    format!("bramble-{lab}-{machine}")
}

/// The path of a namespace.
pub(super) fn path(namespace: &str) -> PathBuf {
    PathBuf::from(NAMESPACES).join(namespace)
}

/// Creates the hub: the namespace with the bridge.
pub(super) fn make_hub(lock: &File, lab: &str) -> Result<(), Failure> {
    let hub = namespace(lab, HUB);
    let ip = |words: &[&str]| tool::run(lock, "ip", words);
    ip(&["netns", "add", &hub])?;
    ip(&["-n", &hub, "link", "add", HUB, "type", "bridge"])?;
    ip(&["-n", &hub, "link", "set", HUB, "up"])
}

/// Creates the namespace of a machine and its link to the hub.
pub(super) fn make_machine(lock: &File, lab: &Lab, number: usize) -> Result<(), Failure> {
    let LabMachine { namespace: own, address, limits, .. } = &lab.machines[number];
    let hub = namespace(&lab.name, HUB);
    let port = format!("port{number}");
    let address = format!("{address}/{PREFIX}");
    let ip = |words: &[&str]| tool::run(lock, "ip", words);
    ip(&["netns", "add", own])?;
    ip(&["link", "add", INTERFACE, "netns", own, "type", "veth", "peer", "name", &port, "netns", &hub])?;
    ip(&["-n", &hub, "link", "set", &port, "master", HUB, "up"])?;
    ip(&["-n", own, "address", "add", &address, "dev", INTERFACE])?;
    ip(&["-n", own, "link", "set", "lo", "up"])?;
    ip(&["-n", own, "link", "set", INTERFACE, "up"])?;
    let Some(bits_per_s) = limits.link_bits_per_s else { return Ok(()) };
    let (rate, burst) = (format!("{bits_per_s}bit"), format!("{}b", burst_bytes(bits_per_s)));
    for (space, device) in [(own, INTERFACE), (&hub, port.as_str())] {
        let words = ["-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", &rate];
        tool::run(lock, "tc", &[&words[..], &["burst", &burst, "latency", "20ms"]].concat())?;
    }
    Ok(())
}

/// The burst of the rate limiter: bytes that may be sent at full speed after a pause. Five milliseconds of a slow
/// link, 128 KiB of most links, a millisecond of a fast one; never less than a few packets.
fn burst_bytes(bits_per_s: u64) -> u64 {
    let bytes_per_s = bits_per_s / 8;
    (bytes_per_s / 200).clamp(16 << 10, 128 << 10).max(bytes_per_s / 1000)
}

/// All existing namespaces with the lab's name.
pub(super) fn there(lab: &str) -> Vec<String> {
    let prefix = namespace(lab, "");
    let Ok(entries) = std::fs::read_dir(NAMESPACES) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort();
    names
}

/// Removes a namespace with its interfaces.
pub(super) fn remove(lock: &File, namespace: &str) -> Result<(), Failure> {
    tool::run(lock, "ip", &["netns", "delete", namespace])
}

/// Moves the calling thread into a namespace.
pub(super) fn enter(namespace: &str) -> Result<(), Failure> {
    let wrong = |e: std::io::Error| Failure::failed(format!("namespace {namespace}: cannot be entered: {e}"));
    let file = File::open(path(namespace)).map_err(wrong)?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| wrong(e.into()))
}

/// Bytes that a machine's interface received and sent; `None` where it is gone.
pub(super) fn counters(namespace: &str) -> Option<(u64, u64)> {
    // On a separate thread, because a thread cannot return from the namespace.
    let reading = std::thread::scope(|scope| {
        let read = || {
            enter(namespace).ok()?;
            std::fs::read_to_string("/proc/thread-self/net/dev").ok()
        };
        scope.spawn(read).join().ok().flatten()
    });
    parse_counters(&reading?)
}

fn parse_counters(text: &str) -> Option<(u64, u64)> {
    let own = text.lines().find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))?;
    let fields: Vec<&str> = own.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse().ok();
    Some((number(0)?, number(8)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::file::MACHINES_MAX;

    #[test]
    fn every_machine_has_an_address_in_the_lab_s_network() {
        assert_eq!(address(0), Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(address(MACHINES_MAX), Ipv4Addr::new(10, 77, 0, 251));
    }

    #[test]
    fn a_burst_is_a_few_milliseconds_of_the_link() {
        let kib = |rate| burst_bytes(rate) >> 10;
        assert_eq!([kib(1_000_000), kib(200_000_000), kib(1_000_000_000)], [16, 122, 128]);
        assert_eq!(burst_bytes(10_000_000_000), 1_250_000);
    }

    #[test]
    fn counters_are_those_of_the_one_interface() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs\n    lo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n  \
                    eth0: 1234 9 0 0 0 0 0 0 5678 8 0 0 0 0 0 0\n";
        assert_eq!(parse_counters(text), Some((1234, 5678)));
        assert_eq!(parse_counters("lo: 1 2 3\n"), None);
    }
}
