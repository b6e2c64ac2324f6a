//! Description of the machine that measures.
//!
//! Place in the flow: the first line of `bench … --json`, and part of the line of `bench hpl --json`; `bench report` reads it.
//!
//! Invariant: facts that the system does not report are `null`, never guesses.

use serde_json::{Value, json};
use std::fs::read_to_string;

/// The schema's name; docs/json.md lists its fields.
pub const SCHEMA: &str = "bramble.machine/1";

/// Names of Arm cores by part number, from Arm's manuals: cores that small boards have.
const ARM_PARTS: [(&str, &str); 10] = [
    ("0xb76", "ARM1176"),
    ("0xc07", "Cortex-A7"),
    ("0xd03", "Cortex-A53"),
    ("0xd04", "Cortex-A35"),
    ("0xd05", "Cortex-A55"),
    ("0xd08", "Cortex-A72"),
    ("0xd0a", "Cortex-A75"),
    ("0xd0b", "Cortex-A76"),
    ("0xd0c", "Neoverse-N1"),
    ("0xd41", "Cortex-A78"),
];

/// The machine as a JSON object, from the system's files, the host's name and its cores.
pub fn object(host: &str, cores: usize) -> Value {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let named = ["/proc/device-tree/model", "/sys/class/dmi/id/product_name"].map(read);
    let system = rustix::system::uname();
    json!({
        "schema": SCHEMA,
        "host": host,
        "cpu": cpu(&read("/proc/cpuinfo")),
        "board": named.iter().find_map(|text| plain(text)),
        "architecture": system.machine().to_string_lossy(),
        "cores": cores,
        "memory_bytes": memory_bytes(&read("/proc/meminfo")),
        "system": format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        "bramble": env!("CARGO_PKG_VERSION"),
    })
}

/// The text of a system file, without its trailing NUL or newline; `None` if it is empty.
fn plain(text: &str) -> Option<String> {
    let text = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    (!text.is_empty()).then(|| text.to_owned())
}

/// The processor's name from /proc/cpuinfo; for Arm, the names of its kinds of cores.
fn cpu(info: &str) -> Option<String> {
    let values = |key: &'static str| {
        let pairs = info.lines().filter_map(|line| line.split_once(':'));
        pairs.filter(move |(name, _)| name.trim() == key).filter_map(|(_, value)| plain(value))
    };
    if let Some(name) = values("model name").next() {
        return Some(name);
    }
    let mut kinds: Vec<String> = Vec::new();
    for part in values("CPU part") {
        let known = ARM_PARTS.iter().find(|(number, _)| *number == part);
        let name = known.map_or_else(|| format!("Arm part {part}"), |(_, name)| (*name).to_owned());
        if !kinds.contains(&name) {
            kinds.push(name);
        }
    }
    (!kinds.is_empty()).then(|| kinds.join(" + "))
}

/// Total memory, from /proc/meminfo.
fn memory_bytes(info: &str) -> Option<u64> {
    let line = info.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_named_or_told_by_their_cores() {
        assert_eq!(cpu("processor\t: 0\nmodel name\t: Fast One\n").as_deref(), Some("Fast One"));
        let board = "CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n\nCPU part\t: 0xd0b\nCPU part\t: 0xfff\n";
        assert_eq!(cpu(board).as_deref(), Some("Cortex-A76 + Arm part 0xfff"));
        assert_eq!(cpu("nothing here"), None);
    }

    #[test]
    fn what_is_not_said_is_null() {
        assert_eq!(memory_bytes("MemTotal:  2 kB\n"), Some(2048));
        assert_eq!(memory_bytes("MemTotal: many\n"), None);
        assert_eq!(plain("Raspberry Pi 5\0").as_deref(), Some("Raspberry Pi 5"));
        assert_eq!(plain("\n\0"), None);
    }
}
