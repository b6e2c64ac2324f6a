//! `cluster.toml`: describes machines, so that products can be planned for machines that do not exist.
//!
//! Place in the flow: `bramble plan --cluster`, instead of contacting real workers (docs/cluster-file.md).
//!
//! Invariants: a pure function from text to machines. Every value is checked, unknown keys are refused, machines have
//! unique names; an error is one line that names the machine and the key. No more machines are made than `hosts`
//! allows.
//!
//! Deliberately absent: addresses and ports, which `-w` and hostfiles have.

use crate::hosts::parse_list;
use crate::toml_keys::{self, Keys, all_differ, number, shown};
use bramble_matrix::DType;
use bramble_plan::{LinkRate, Machine, MemoryRate};
use std::path::Path;
use toml::Table;

/// Default rate of a link: that of gigabit Ethernet in one direction.
const LINK_MB_S: f64 = 117.5;
/// Default round-trip time of a small message.
const LATENCY_US: f64 = 200.0;

/// The contents of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterFile {
    /// The machine that has the matrices; `None` is this machine.
    pub primary: Option<DescribedMachine>,
    /// The workers.
    pub machines: Vec<DescribedMachine>,
}

/// The description of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct DescribedMachine {
    /// A name that no other machine of the file has.
    pub name: String,
    cores: u32,
    memory_bytes: u64,
    /// Gflop/s of all cores together, by element type; `None` if not given.
    gflops: Speeds,
    /// Peak Gflop/s of all cores together.
    peak_gflops: Speeds,
    link_bytes_per_s: Option<f64>,
    /// Memory bandwidth of all cores together; unlimited if it is missing.
    memory_rate: Option<MemoryRate>,
    round_trip_s: f64,
    /// Power while it computes, in watts.
    pub watts: Option<f64>,
}

impl DescribedMachine {
    /// The machine for products of an element type. The primary's link limits each worker's link, and all of them
    /// together.
    pub fn machine(&self, dtype: DType, primary: Option<&Self>) -> Machine {
        let gflops = self.gflops.of(dtype).unwrap_or_default();
        let own = self.link_bytes_per_s.unwrap_or(LINK_MB_S * 1e6);
        let most = primary.and_then(|p| p.link_bytes_per_s).unwrap_or(f64::INFINITY);
        Machine {
            name: self.name.clone(),
            threads: self.cores,
            gflops,
            peak_gflops: self.peak_gflops.of(dtype).unwrap_or(gflops).max(gflops),
            memory_bytes: self.memory_bytes,
            link: Some(LinkRate { bytes_per_s: own.min(most), round_trip_s: self.round_trip_s }),
            shares_cores: false,
            nic_bytes_per_s: self.link_bytes_per_s,
            memory_rate: self.memory_rate,
        }
    }
}

/// Gflop/s by element type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Speeds {
    f32: Option<f64>,
    f64: Option<f64>,
    i32: Option<f64>,
    i64: Option<f64>,
}

impl Speeds {
    fn slot(&mut self, dtype: DType) -> &mut Option<f64> {
        match dtype {
            DType::F32 => &mut self.f32,
            DType::F64 => &mut self.f64,
            DType::I32 => &mut self.i32,
            DType::I64 => &mut self.i64,
        }
    }

    /// The given speed, or an estimate from another type: f32 is twice as fast as f64, integers half as fast.
    fn of(&self, dtype: DType) -> Option<f64> {
        let from_integers = || self.i32.or(self.i64).map(|g| g * 2.0);
        let f64 = self.f64.or_else(|| self.f32.map(|g| g / 2.0)).or_else(from_integers);
        match dtype {
            DType::F32 => self.f32.or_else(|| f64.map(|g| g * 2.0)),
            DType::F64 => f64,
            DType::I32 => self.i32.or_else(|| f64.map(|g| g / 2.0)),
            DType::I64 => self.i64.or_else(|| f64.map(|g| g / 2.0)),
        }
    }
}

/// Reads a file. An error is one line that names the file.
pub fn read(path: &Path) -> Result<ClusterFile, String> {
    toml_keys::read(path, described)
}

fn described(table: &Table) -> Result<ClusterFile, String> {
    if let Some(key) = table.keys().find(|k| !["primary", "machines"].contains(&k.as_str())) {
        return Err(format!("{}: no such key; use [primary] and [[machines]]", shown(key)));
    }
    let primary = toml_keys::primary(table)?.map(primary).transpose()?;
    let mut machines = Vec::new();
    for (keys, names) in toml_keys::machines(table)? {
        let one = machine(&keys, String::new())?;
        machines.extend(names.into_iter().map(|name| DescribedMachine { name, ..one.clone() }));
    }
    if machines.is_empty() {
        return Err("it names no machines; add [[machines]] with name, cores, memory and gflops".to_owned());
    }
    all_differ(machines.iter().chain(&primary).map(|m: &DescribedMachine| m.name.as_str()))?;
    Ok(ClusterFile { primary, machines })
}

fn primary(table: &Table) -> Result<DescribedMachine, String> {
    let keys = Keys { who: "primary".to_owned(), table };
    let name = keys.text("name", one_name)?.unwrap_or_else(|| "primary".to_owned());
    machine(&keys, name)
}

fn one_name(text: &str) -> Result<String, String> {
    let mut hosts = parse_list(text, 1)?;
    hosts.pop().map(|h| h.name).ok_or_else(|| "must not be empty".to_owned())
}

/// Parses the keys of a machine.
const KEYS: [&str; 9] =
    ["name", "cores", "memory", "memory_gb_s", "gflops", "peak_gflops", "link_mb_s", "latency_us", "watts"];

fn machine(keys: &Keys<'_>, name: String) -> Result<DescribedMachine, String> {
    keys.only(&KEYS)?;
    let missing = |key: &'static str, why: &'static str| move || keys.wrong(key, why);
    Ok(DescribedMachine {
        name,
        gflops: speeds(keys, "gflops")?.ok_or_else(missing("gflops", "is missing, as in { f64 = 12 }"))?,
        cores: keys.whole("cores", 1, 1024)?.ok_or_else(missing("cores", "is missing"))?,
        memory_bytes: keys.size("memory")?.ok_or_else(missing("memory", "is missing, as in \"4G\""))?,
        peak_gflops: speeds(keys, "peak_gflops")?.unwrap_or_default(),
        link_bytes_per_s: keys.number("link_mb_s", 1e-3, 1e6)?.map(|mb| mb * 1e6),
        memory_rate: keys.number("memory_gb_s", 1e-3, 1e6)?.map(|gb| MemoryRate::stated(gb * 1e9)),
        round_trip_s: keys.number("latency_us", 0.0, 1e7)?.unwrap_or(LATENCY_US) / 1e6,
        watts: keys.number("watts", 0.0, 1e6)?,
    })
}

/// Parses speeds such as `{ f64 = 12, f32 = 24 }`.
fn speeds(keys: &Keys<'_>, key: &str) -> Result<Option<Speeds>, String> {
    let Some(value) = keys.table.get(key) else { return Ok(None) };
    let form = || keys.wrong(key, "use a table by element type, as in { f64 = 12, f32 = 24 }");
    let table = value.as_table().filter(|t| !t.is_empty()).ok_or_else(form)?;
    let mut speeds = Speeds::default();
    for (name, value) in table {
        let path = format!("{key}.{}", shown(name));
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name);
        let dtype = dtype.ok_or_else(|| keys.wrong(&path, "no such element type; use f32, f64, i32, i64"))?;
        let speed = number(value).filter(|x| (1e-3..=1e9).contains(x));
        let refuse = || keys.wrong(&path, "must be a number of Gflop/s, more than 0");
        *speeds.slot(dtype) = Some(speed.ok_or_else(refuse)?);
    }
    Ok(Some(speeds))
}

#[cfg(test)]
mod tests;
