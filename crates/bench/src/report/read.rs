//! Reads files of JSON lines: measures, facts about the machine, and lines that could not be read.
//!
//! Invariants: no line is skipped silently; a file without a measurement is an error. Texts from files are untrusted:
//! they are shortened and stripped of control characters here, and escaped when written.

use super::measure::{Measure, ParsedLine, Versions, clean, merged, said, short};
use bramble_report::exit::Failure;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A larger file is not the output of a benchmark.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most reasons that are reported for a file.
const REASONS_MAX: usize = 20;
/// Most line numbers that are reported for a reason.
const LINES_MAX: usize = 5;

/// Facts about a machine: fields of `bramble.machine/1` and their labels.
pub(crate) const FACTS: [(&str, &str); 7] = [
    ("host", "host"),
    ("board", "board"),
    ("cpu", "processor"),
    ("cores", "cores"),
    ("memory_bytes", "memory"),
    ("system", "system"),
    ("bramble", "bramble"),
];

/// Index of Bramble's version in `FACTS`.
pub(super) const BRAMBLE: usize = FACTS.len() - 1;
/// Index of the host name in `FACTS`.
const HOST: usize = 0;

/// The contents of the files of one machine or cluster.
#[derive(Debug)]
pub(crate) struct MeasuredMachine {
    pub(crate) label: String,
    pub(crate) files: Vec<String>,
    /// For each of `FACTS`, all values found.
    pub(crate) facts: Vec<Vec<String>>,
    pub(crate) measures: Vec<Measure>,
    /// Notes about lines that were not read, and about contradictions.
    pub(crate) notes: Vec<String>,
}

/// Reads all files of one machine.
pub(crate) fn source(files: &[PathBuf], label: Option<&String>) -> Result<MeasuredMachine, Failure> {
    let mut of = MeasuredMachine {
        label: label.cloned().unwrap_or_else(|| stem(&files[0])),
        files: files.iter().map(|file| clean(&file.to_string_lossy())).collect(),
        facts: vec![Vec::new(); FACTS.len()],
        measures: Vec::new(),
        notes: Vec::new(),
    };
    let mut versions = Versions::new();
    for file in files {
        of.take(file, &mut versions)?;
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let list: Vec<&str> = versions.iter().map(String::as_str).collect();
        of.notes.push(format!("{}: versions {} of {name} are mixed", of.label, list.join(" and ")));
    }
    for (at, what) in [(HOST, "machines"), (BRAMBLE, "versions of Bramble")] {
        if of.facts[at].len() > 1 {
            let list = of.facts[at].join(", ");
            of.notes.push(format!("{}: lines of {} {what}: {list}", of.label, of.facts[at].len()));
        }
    }
    of.measures = merged(of.measures);
    Ok(of)
}

/// The file name without its extension.
fn stem(file: &Path) -> String {
    let stem = file.file_stem().map(|stem| short(&stem.to_string_lossy()));
    stem.filter(|stem| !stem.trim().is_empty()).unwrap_or_else(|| "machine".to_owned())
}

impl MeasuredMachine {
    /// Reads one file.
    fn take(&mut self, file: &Path, versions: &mut Versions) -> Result<(), Failure> {
        let name = clean(&file.to_string_lossy());
        let bytes = content(file).map_err(|e| Failure::failed(format!("{name}: {e}")))?;
        let mut faults = Faults::default();
        let (before, mut lines) = (self.measures.len(), 0);
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            lines += 1;
            match said(line, versions) {
                Ok(ParsedLine::Measures(new)) => self.measures.extend(new),
                Ok(ParsedLine::Machine(machine)) => self.learn(&machine),
                Err(reason) => faults.add(reason, at + 1),
            }
        }
        if self.measures.len() == before {
            let first = faults.told("").into_iter().next();
            let first = first.map_or_else(String::new, |first| first.replacen(", ", "; ", 1));
            return Err(Failure::failed(format!(
                "{name}: no measurement in its {lines} line(s); use the output of bench, multiply or nodes with \
                --json{first}"
            )));
        }
        self.notes.extend(faults.told(&name));
        Ok(())
    }

    /// Adds the facts of a machine line.
    fn learn(&mut self, machine: &Value) {
        for ((field, _), known) in FACTS.iter().zip(&mut self.facts) {
            let text = match &machine[*field] {
                Value::String(text) => Some(short(text)),
                Value::Number(number) if *field == "memory_bytes" => {
                    number.as_f64().map(bramble_report::quantity::bytes)
                }
                Value::Number(number) => Some(number.to_string()),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
            };
            known.extend(text.filter(|text| !known.contains(text)));
        }
    }
}

/// The contents of a file or pipe, if it is not too long.
fn content(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|e| e.to_string())?;
    opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "longer than {} MiB, so it is not the output of a benchmark",
            FILE_BYTES_MAX >> 20
        ));
    }
    Ok(bytes)
}

/// Reasons why lines were not read, with line numbers.
#[derive(Default)]
struct Faults {
    reasons: Vec<(String, Vec<usize>)>,
    /// Number of lines with further reasons.
    others: usize,
}

impl Faults {
    fn add(&mut self, reason: String, line: usize) {
        if let Some((_, lines)) = self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            lines.push(line);
        } else if self.reasons.len() < REASONS_MAX {
            self.reasons.push((reason, vec![line]));
        } else {
            self.others += 1;
        }
    }

    /// One sentence per reason.
    fn told(&self, file: &str) -> Vec<String> {
        let one = |(reason, lines): &(String, Vec<usize>)| {
            let named: Vec<String> = lines.iter().take(LINES_MAX).map(usize::to_string).collect();
            let more = match lines.len() - named.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let word = if lines.len() == 1 { "line" } else { "lines" };
            format!("{file}, {word} {}{more}: {reason}", named.join(", "))
        };
        let mut out: Vec<String> = self.reasons.iter().map(one).collect();
        if self.others > 0 {
            out.push(format!("{file}: {} more line(s) could not be read, for other reasons", self.others));
        }
        out
    }
}
