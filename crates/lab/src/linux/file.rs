//! Reads the description of a lab: TOML, from a file or from the built-in examples (docs/lab.md).
//!
//! Place in the flow: in `lab up`, before anything is created.
//!
//! Invariants: a pure function from text to description. Every value is checked, unknown keys are refused, every
//! machine has a unique name that can be part of a file name; an error is one line that names the machine and the
//! key.
//!
//! Deliberately absent: addresses; the lab assigns them.

use bramble_cluster::toml_keys::{self, Keys, all_differ, shown};
use bramble_kernel::Choice;
use bramble_report::exit::Failure;
use bramble_report::quantity::rate;
use serde::{Deserialize, Serialize};
use std::path::Path;
use toml::{Table, Value};

/// The built-in examples.
const EXAMPLES: [(&str, &str); 4] = [
    ("four", include_str!("../../../../labs/four.toml")),
    ("mixed", include_str!("../../../../labs/mixed.toml")),
    ("tiny8", include_str!("../../../../labs/tiny8.toml")),
    ("slow-link", include_str!("../../../../labs/slow-link.toml")),
];

/// Most workers in a lab: with the primary they have to fit in a network of 254 addresses.
pub(super) const MACHINES_MAX: usize = 250;
/// The name of the primary.
pub(super) const PRIMARY: &str = "primary";
/// The name of the bridge's namespace, which no machine may have.
pub(super) const HUB: &str = "hub";
/// Longest name of a machine, which is part of the names of namespaces and control groups.
const NAME_BYTES_MAX: usize = 63;
/// Range of processor time, in processors: the kernel has no smaller quota, and no machine has more processors.
pub(super) const CORES: (f64, f64) = (0.01, 1024.0);
/// A worker needs 32 MiB besides matrices.
const MEMORY_MIN: u64 = 64 << 20;

/// The description of a lab.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Description {
    /// The file or example that it comes from.
    pub(super) from: String,
    /// Whether the lab has a cluster key, and thus encrypted links.
    pub(super) key: bool,
    pub(super) primary: MachineLimits,
    /// The workers, in the order of the file.
    pub(super) machines: Vec<(String, MachineLimits)>,
}

/// The limits of a machine; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MachineLimits {
    pub(super) link_bits_per_s: Option<u64>,
    /// Processor time, in processors.
    pub(super) cores: Option<f64>,
    pub(super) memory_bytes: Option<u64>,
    /// Compute threads; `None` is as many as the processor time allows.
    pub(super) threads: Option<u16>,
    /// Kernel; `None` leaves it to the primary.
    pub(super) kernel: Option<String>,
}

/// Reads a description: `what` is a path if it has a slash or ends in `.toml`, else the name of an example.
pub(super) fn read(what: &str) -> Result<Description, Failure> {
    let described = |from: &str| {
        let from = from.to_owned();
        move |table: &Table| described(table, from)
    };
    if what.contains('/') || what.ends_with(".toml") {
        return toml_keys::read(Path::new(what), described(what)).map_err(Failure::usage);
    }
    let Some((name, text)) = EXAMPLES.iter().find(|(name, _)| *name == what) else {
        let names: Vec<&str> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        return Err(Failure::usage(format!(
            "{}: no example of a lab has this name; there are {}. To use a file, give a path with a slash or ending \
            in .toml",
            shown(what),
            names.join(", ")
        )));
    };
    toml_keys::parse(text, described(name)).map_err(|(_, why)| Failure::usage(format!("{name}: {why}")))
}

fn described(table: &Table, from: String) -> Result<Description, String> {
    if let Some(key) = table.keys().find(|k| !["key", "primary", "machines"].contains(&k.as_str())) {
        return Err(format!("{}: no such key; use key, [primary] and [[machines]]", shown(key)));
    }
    let key = match table.get("key") {
        None => true,
        Some(Value::Boolean(key)) => *key,
        Some(_) => return Err("key: must be true or false".to_owned()),
    };
    let primary = match toml_keys::primary(table)? {
        Some(table) => {
            let keys = Keys { who: PRIMARY.to_owned(), table };
            keys.only(&["link", "cores", "memory", "threads"])?;
            limits(&keys)?
        }
        None => MachineLimits::default(),
    };
    let mut machines = Vec::new();
    for (keys, names) in toml_keys::machines(table)? {
        keys.only(&["name", "link", "cores", "memory", "threads", "kernel"])?;
        let limits = limits(&keys)?;
        if machines.len() + names.len() > MACHINES_MAX {
            return Err(keys.wrong("name", &format!("a lab has at most {MACHINES_MAX} machines")));
        }
        for name in names {
            fit_for_a_file(&name).map_err(|why| keys.wrong("name", &why))?;
            machines.push((name, limits.clone()));
        }
    }
    if machines.is_empty() {
        return Err("it names no machines; add [[machines]] with a name".to_owned());
    }
    all_differ(machines.iter().map(|(name, _)| name.as_str()))?;
    Ok(Description { from, key, primary, machines })
}

fn limits(keys: &Keys<'_>) -> Result<MachineLimits, String> {
    let memory_bytes = keys.size("memory")?;
    if memory_bytes.is_some_and(|bytes| bytes < MEMORY_MIN) {
        return Err(keys.wrong("memory", "must be at least 64M: a worker needs 32M beside matrices"));
    }
    let threads = keys.whole("threads", 1, 1024)?;
    Ok(MachineLimits {
        link_bits_per_s: keys.text("link", rate)?,
        cores: keys.number("cores", CORES.0, CORES.1)?,
        memory_bytes,
        threads: threads.and_then(|threads| u16::try_from(threads).ok()),
        kernel: keys.text("kernel", kernel)?,
    })
}

fn kernel(text: &str) -> Result<String, String> {
    match text.parse::<Choice>() {
        Ok(Choice::Auto) => Err("leave it out for auto".to_owned()),
        Ok(kernel) => Ok(kernel.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

/// Checks that a name can be part of the names of a namespace, a control group and a file, and be a host name.
fn fit_for_a_file(name: &str) -> Result<(), String> {
    if [PRIMARY, HUB].contains(&name) {
        return Err(format!("{name}: this name is reserved for the lab itself"));
    }
    let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    let edges = [name.as_bytes().first(), name.as_bytes().last()];
    let is_whole = edges.iter().all(|b| b.is_some_and(|b| b.is_ascii_alphanumeric()));
    if !is_plain || !is_whole || name.len() > NAME_BYTES_MAX || name.parse::<std::net::Ipv4Addr>().is_ok() {
        let form = "use letters, digits, dots and hyphens, 63 at most, as in pi1; the lab assigns addresses";
        return Err(format!("{}: {form}", shown(name)));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
