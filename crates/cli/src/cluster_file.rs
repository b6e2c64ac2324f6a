//! `cluster.toml`: machines that are described, so that a product can be planned for them before they exist.
//!
//! Place in the flow: `bramble plan --cluster`, instead of asking real workers. docs/cluster-file.md is its page.
//!
//! Invariants: a text in, machines out. Every value is checked, every key is known, every machine has a name of its own;
//! an error is one line that names the machine and the key. No more machines are made than `hosts` allows.
//!
//! Deliberately absent: addresses and ports. A file describes machines, `-w` reaches them.

use crate::hosts::{HOSTS_MAX, parse_list};
use crate::quantity::size;
use bramble_matrix::DType;
use bramble_plan::{LinkRate, Machine};
use std::path::Path;
use toml::{Table, Value};

/// No description of ten thousand machines is longer.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// A machine's link, where the file says nothing: what gigabit Ethernet carries in one direction.
const LINK_MB_S: f64 = 117.5;
/// Time there and back of a small message, where the file says nothing.
const LATENCY_US: f64 = 200.0;

/// What a file describes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClusterFile {
    /// The machine that has the matrices; `None` is this one.
    pub(crate) primary: Option<Described>,
    /// The workers.
    pub(crate) machines: Vec<Described>,
}

/// A machine as it is described.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Described {
    pub(crate) name: String,
    cores: u32,
    memory_bytes: u64,
    /// Gflop/s of all cores together, by element type, as far as given.
    gflops: Speeds,
    /// The same of what the cores could do at most.
    peak_gflops: Speeds,
    link_bytes_per_s: Option<f64>,
    round_trip_s: f64,
    /// Power while it computes.
    pub(crate) watts: Option<f64>,
}

impl Described {
    /// The machine for products of that element type. No link is faster than that of the primary, through which all of
    /// them go, and all together are no faster either.
    pub(crate) fn machine(&self, dtype: DType, primary: Option<&Self>) -> Machine {
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
        }
    }
}

/// Gflop/s by element type, as far as they are known.
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

    /// What is given, or follows from another type: f32 is twice as fast as f64, integers half as fast.
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
pub(crate) fn read(path: &Path) -> Result<ClusterFile, String> {
    let name = path.display();
    let unreadable = |e: std::io::Error| format!("{name}: cannot be read: {e}");
    let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!("{name}: {bytes} bytes are no description of a cluster"));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|(line, why)| match line {
        0 => format!("{name}: {why}"),
        _ => format!("{name}:{line}: {why}"),
    })
}

/// The text of a file; errors come with a line's number, or with 0 and the machine and key that they are about.
fn parse(text: &str) -> Result<ClusterFile, (usize, String)> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let line =
            e.span().map_or(0, |s| text.as_bytes()[..s.start.min(text.len())].split(|b| *b == b'\n').count());
        (line, e.message().replace('\n', ", "))
    })?;
    described(&table).map_err(|why| (0, why))
}

fn described(table: &Table) -> Result<ClusterFile, String> {
    if let Some(key) = table.keys().find(|k| !["primary", "machines"].contains(&k.as_str())) {
        return Err(format!("{}: no such key; use [primary] and [[machines]]", shown(key)));
    }
    let primary = match table.get("primary") {
        None => None,
        Some(Value::Table(keys)) => Some(primary(keys)?),
        Some(_) => return Err("primary: use a table: [primary]".to_owned()),
    };
    let entries = match table.get("machines") {
        Some(Value::Array(entries)) => entries.as_slice(),
        None => &[],
        Some(_) => return Err("machines: use one table for each: [[machines]]".to_owned()),
    };
    let mut machines = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let Value::Table(keys) = entry else {
            return Err("machines: use one table for each: [[machines]]".to_owned());
        };
        add_machines(keys, index + 1, &mut machines)?;
    }
    if machines.is_empty() {
        return Err("it names no machines; add [[machines]] with name, cores, memory and gflops".to_owned());
    }
    let mut names: Vec<&str> = machines.iter().chain(&primary).map(|m: &Described| m.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("machine {}: two machines have this name", shown(pair[0]))),
        None => Ok(ClusterFile { primary, machines }),
    }
}

fn primary(table: &Table) -> Result<Described, String> {
    let name = match table.get("name") {
        None => "primary".to_owned(),
        Some(Value::String(name)) => one_name(name).map_err(|why| format!("primary: name: {why}"))?,
        Some(_) => return Err("primary: name: must be a text".to_owned()),
    };
    Keys { who: "primary".to_owned(), table }.machine(name)
}

fn one_name(text: &str) -> Result<String, String> {
    let mut hosts = parse_list(text, 1)?;
    hosts.pop().map(|h| h.name).ok_or_else(|| "must not be empty".to_owned())
}

/// The machines of one `[[machines]]` table: as many as its nodeset names.
fn add_machines(table: &Table, number: usize, machines: &mut Vec<Described>) -> Result<(), String> {
    let name = match table.get("name") {
        Some(Value::String(name)) => name,
        Some(_) => return Err(format!("machine number {number}: name: must be a text")),
        None => return Err(format!("machine number {number}: name: is missing")),
    };
    let who = format!("machine {}", shown(name));
    let hosts = parse_list(name, HOSTS_MAX - machines.len()).map_err(|why| format!("{who}: name: {why}"))?;
    let one = Keys { who, table }.machine(String::new())?;
    machines.extend(hosts.into_iter().map(|host| Described { name: host.name, ..one.clone() }));
    Ok(())
}

/// A text of the file for a message: short, and without control characters.
fn shown(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The keys of one machine, and what messages call it.
struct Keys<'a> {
    who: String,
    table: &'a Table,
}

/// Keys that a machine may have.
const KEYS: [&str; 8] =
    ["name", "cores", "memory", "gflops", "peak_gflops", "link_mb_s", "latency_us", "watts"];

impl Keys<'_> {
    fn machine(&self, name: String) -> Result<Described, String> {
        if let Some(key) = self.table.keys().find(|k| !KEYS.contains(&k.as_str())) {
            return Err(self.wrong(key, &format!("no such key; use {}", KEYS.join(", "))));
        }
        let gflops =
            self.speeds("gflops")?.ok_or_else(|| self.wrong("gflops", "is missing, as in { f64 = 12 }"))?;
        Ok(Described {
            name,
            cores: self.cores()?,
            memory_bytes: self.memory()?,
            gflops,
            peak_gflops: self.speeds("peak_gflops")?.unwrap_or_default(),
            link_bytes_per_s: self.number("link_mb_s", 1e-3, 1e6)?.map(|mb| mb * 1e6),
            round_trip_s: self.number("latency_us", 0.0, 1e7)?.unwrap_or(LATENCY_US) / 1e6,
            watts: self.number("watts", 0.0, 1e6)?,
        })
    }

    fn wrong(&self, key: &str, why: &str) -> String {
        format!("{}: {}: {why}", self.who, shown(key))
    }

    fn cores(&self) -> Result<u32, String> {
        let value = self.table.get("cores").ok_or_else(|| self.wrong("cores", "is missing"))?;
        let cores = value.as_integer().and_then(|n| u32::try_from(n).ok());
        cores
            .filter(|n| (1..=1024).contains(n))
            .ok_or_else(|| self.wrong("cores", "must be a whole number from 1 to 1024"))
    }

    fn memory(&self) -> Result<u64, String> {
        let bytes = match self.table.get("memory") {
            Some(Value::String(text)) => size(text),
            Some(Value::Integer(bytes)) => {
                u64::try_from(*bytes).ok().filter(|b| *b > 0).ok_or_else(|| "must be more than 0".to_owned())
            }
            Some(_) => Err("use a text with K, M, G or T, as in \"4G\"".to_owned()),
            None => Err("is missing, as in \"4G\"".to_owned()),
        };
        bytes.map_err(|why| self.wrong("memory", &why))
    }

    /// A number within limits, whole or not.
    fn number(&self, key: &str, least: f64, most: f64) -> Result<Option<f64>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        match number(value).filter(|x| (least..=most).contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, &format!("must be a number from {least} to {most}"))),
        }
    }

    /// `{ f64 = 12, f32 = 24 }`.
    fn speeds(&self, key: &str) -> Result<Option<Speeds>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let form = || self.wrong(key, "use a table by element type, as in { f64 = 12, f32 = 24 }");
        let table = value.as_table().filter(|t| !t.is_empty()).ok_or_else(form)?;
        let mut speeds = Speeds::default();
        for (name, value) in table {
            let path = format!("{key}.{}", shown(name));
            let dtype = DType::ALL.into_iter().find(|d| d.name() == name);
            let dtype =
                dtype.ok_or_else(|| self.wrong(&path, "no such element type; use f32, f64, i32, i64"))?;
            let speed = number(value).filter(|x| (1e-3..=1e9).contains(x));
            let refuse = || self.wrong(&path, "must be a number of Gflop/s, more than 0");
            *speeds.slot(dtype) = Some(speed.ok_or_else(refuse)?);
        }
        Ok(Some(speeds))
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

#[cfg(test)]
mod tests;
