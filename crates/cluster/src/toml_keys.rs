//! Common parts of this program's TOML files: reading, typed keys, and errors that name the machine and the key.
//!
//! Place in the flow: `cluster_file` (machines for `plan`) and `lab::file` (machines of a lab) use this.
//!
//! Invariants: an error is one line. It names the file, and either the line or the machine and the key. Texts from a
//! file are shown shortened and without control characters.
//!
//! Deliberately absent: serde, whose errors would not name the machine.

use crate::hosts::{HOSTS_MAX, parse_list};
use crate::text_file;
use bramble_report::quantity::size;
use std::path::Path;
use toml::{Table, Value};

/// Enough for ten thousand machines.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a file, and converts its tables with `make`.
pub fn read<T>(path: &Path, make: impl FnOnce(&Table) -> Result<T, String>) -> Result<T, String> {
    let name = path.display();
    let text = text_file::read(path, FILE_BYTES_MAX, "a description of a cluster")
        .map_err(|why| format!("{name}: {why}"))?;
    parse(&text, make).map_err(|(line, why)| match line {
        0 => format!("{name}: {why}"),
        _ => format!("{name}:{line}: {why}"),
    })
}

/// The same from a text; an error comes with a line number, or with 0 if it names machine and key instead.
pub fn parse<T>(text: &str, make: impl FnOnce(&Table) -> Result<T, String>) -> Result<T, (usize, String)> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| {
        let line =
            e.span().map_or(0, |s| text.as_bytes()[..s.start.min(text.len())].split(|b| *b == b'\n').count());
        (line, e.message().replace('\n', ", "))
    })?;
    make(&table).map_err(|why| (0, why))
}

/// The table `[primary]`, if there is one.
pub fn primary(table: &Table) -> Result<Option<&Table>, String> {
    match table.get("primary") {
        None => Ok(None),
        Some(Value::Table(keys)) => Ok(Some(keys)),
        Some(_) => Err("primary: use a table: [primary]".to_owned()),
    }
}

/// The tables `[[machines]]`, each with its machine names: a nodeset has several.
pub fn machines(table: &Table) -> Result<Vec<(Keys<'_>, Vec<String>)>, String> {
    let form = || "machines: use one table for each: [[machines]]".to_owned();
    let entries = match table.get("machines") {
        Some(Value::Array(entries)) => entries.as_slice(),
        None => &[],
        Some(_) => return Err(form()),
    };
    let (mut kinds, mut room) = (Vec::new(), HOSTS_MAX);
    for (index, entry) in entries.iter().enumerate() {
        let table = entry.as_table().ok_or_else(form)?;
        let number = index + 1;
        let set = match table.get("name") {
            Some(Value::String(set)) => set,
            Some(_) => return Err(format!("machine number {number}: name: must be a text")),
            None => return Err(format!("machine number {number}: name: is missing")),
        };
        let who = format!("machine {}", shown(set));
        let hosts = parse_list(set, room).map_err(|why| format!("{who}: name: {why}"))?;
        room -= hosts.len();
        kinds.push((Keys { who, table }, hosts.into_iter().map(|host| host.name).collect()));
    }
    Ok(kinds)
}

/// Refuses two machines with the same name.
pub fn all_differ<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("machine {}: two machines have this name", shown(pair[0]))),
        None => Ok(()),
    }
}

/// A text from the file for a message: shortened, and without control characters.
pub fn shown(text: &str) -> String {
    text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A number, whole or not.
pub fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

/// The keys of one machine, and its name in messages. A missing key is `None`.
pub struct Keys<'a> {
    /// The machine, as messages name it.
    pub who: String,
    /// Its keys.
    pub table: &'a Table,
}

impl Keys<'_> {
    /// Refuses unknown keys.
    pub fn only(&self, known: &[&str]) -> Result<(), String> {
        match self.table.keys().find(|k| !known.contains(&k.as_str())) {
            Some(key) => Err(self.wrong(key, &format!("no such key; use {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// The error message for a key.
    pub fn wrong(&self, key: &str, why: &str) -> String {
        format!("{}: {}: {why}", self.who, shown(key))
    }

    /// A number within limits, whole or not.
    pub fn number(&self, key: &str, least: f64, most: f64) -> Result<Option<f64>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        match number(value).filter(|x| (least..=most).contains(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, &format!("must be a number from {least} to {most}"))),
        }
    }

    /// A whole number within limits.
    pub fn whole(&self, key: &str, least: u32, most: u32) -> Result<Option<u32>, String> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|n| u32::try_from(n).ok());
        let number = number.filter(|n| (least..=most).contains(n));
        let refuse = || self.wrong(key, &format!("must be a whole number from {least} to {most}"));
        number.map(Some).ok_or_else(refuse)
    }

    /// Bytes: a number, or a text with K, M, G or T.
    pub fn size(&self, key: &str) -> Result<Option<u64>, String> {
        let bytes = match self.table.get(key) {
            None => return Ok(None),
            Some(Value::String(text)) => size(text),
            Some(Value::Integer(bytes)) => {
                u64::try_from(*bytes).ok().filter(|b| *b > 0).ok_or_else(|| "must be more than 0".to_owned())
            }
            Some(_) => Err("use a text with K, M, G or T, as in \"4G\"".to_owned()),
        };
        bytes.map(Some).map_err(|why| self.wrong(key, &why))
    }

    /// The text of a key, parsed by `read`.
    pub fn text<T>(
        &self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let value = match self.table.get(key) {
            None => return Ok(None),
            Some(Value::String(text)) => read(text),
            Some(_) => Err("must be a text".to_owned()),
        };
        value.map(Some).map_err(|why| self.wrong(key, &why))
    }
}
