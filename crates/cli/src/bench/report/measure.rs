//! What a line of JSON measured: of which kind, of what, and how much.
//!
//! Place in the flow: `read` has a line and its schema; what comes out is drawn, listed and compared.
//!
//! Invariants: two measures may be compared if their kind and their key are the same; whatever else is different between
//! them is `way`, which is shown. Values are finite and above zero: a line with others is no measurement.
//!
//! A schema is known here by a row of `SCHEMAS`; docs/json.md says what its fields are.

use super::schema::{self, Line};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 10⁹ operations a second.
    Gflops,
    BytesPerS,
    Seconds,
}

impl Unit {
    /// Whether more of it is faster.
    pub(crate) fn is_rate(self) -> bool {
        self != Self::Seconds
    }
}

/// Which pages have a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Both,
    /// Names in it are of one cluster only.
    OfOne,
    /// A page of one machine has the same numbers elsewhere.
    OfTwo,
}

/// One kind of measurement: a part of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) unit: Unit,
    pub(crate) pages: Pages,
    /// Whether the peaks of processors are drawn above it.
    pub(crate) has_peaks: bool,
}

/// Where a measure is in a drawing.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// What the panel is called.
    pub(crate) panel: String,
    /// What the line is called.
    pub(crate) line: String,
    /// The place on the lower axis, which is named.
    pub(crate) place: f64,
    pub(crate) axis: &'static str,
    pub(crate) mark: fn(f64) -> String,
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) kind: &'static Kind,
    /// What was measured: columns and what is in them.
    pub(crate) key: Vec<(&'static str, String)>,
    /// How, where that is not compared: of several ways the fastest is what the machine can do. Else empty.
    pub(crate) way: String,
    pub(crate) value: f64,
    /// From the slowest to the fastest run, as a part of the median.
    pub(crate) spread: Option<f64>,
    /// Runs that took much longer than the median, and all.
    pub(crate) outliers: Option<(u64, u64)>,
    /// What else held it up, as in "1 machine lost".
    pub(crate) trouble: Option<String>,
    /// What else is shown.
    pub(crate) more: Vec<(&'static str, String)>,
    pub(crate) spot: Option<Spot>,
    /// Lines that say it: the value is their median.
    pub(crate) lines: usize,
}

impl Measure {
    /// A measurement without anything but its number.
    pub(crate) fn new(kind: &'static Kind, key: Vec<(&'static str, String)>, value: f64) -> Self {
        let (way, more) = (String::new(), Vec::new());
        Self {
            kind,
            key,
            way,
            value,
            spread: None,
            outliers: None,
            trouble: None,
            more,
            spot: None,
            lines: 1,
        }
    }

    /// Whether something held it up: runs that took long, or far from each other.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.outliers.is_some_and(|(slow, _)| slow > 0)
            || self.spread.is_some_and(|spread| spread > SPREAD_MAX)
            || self.trouble.is_some()
    }

    /// Whether it is the most that a processor could do.
    pub(crate) fn is_peak(&self) -> bool {
        self.kind == &schema::PEAKS
    }

    /// How many times as fast it is as another.
    pub(crate) fn over(&self, other: &Self) -> f64 {
        if self.kind.unit.is_rate() { self.value / other.value } else { other.value / self.value }
    }
}

/// Runs further apart than this part of their median are marked.
pub(crate) const SPREAD_MAX: f64 = 0.25;

/// What a schema is to a report.
pub(crate) enum Meaning {
    /// Measurements.
    Measures(fn(&Line<'_>) -> Result<Vec<Measure>, String>),
    /// The machine.
    Machine,
    /// Bramble's, but nothing that was measured.
    Nothing,
}

/// Every schema that docs/json.md knows, without its version, which is 1.
const SCHEMAS: [(&str, Meaning); 13] = [
    ("bramble.machine", Meaning::Machine),
    ("bramble.bench.kernel", Meaning::Measures(schema::kernel)),
    ("bramble.bench.accumulate", Meaning::Measures(schema::accumulate)),
    ("bramble.bench.link", Meaning::Measures(schema::link)),
    ("bramble.bench.spawn", Meaning::Measures(schema::spawn)),
    ("bramble.bench.product", Meaning::Measures(schema::product)),
    ("bramble.bench.tree", Meaning::Measures(schema::tree)),
    ("bramble.multiply", Meaning::Measures(schema::multiply)),
    ("bramble.nodes", Meaning::Measures(schema::nodes)),
    ("bramble.plan", Meaning::Nothing),
    ("bramble.sim", Meaning::Nothing),
    ("bramble.lab", Meaning::Nothing),
    ("bramble.trace", Meaning::Nothing),
];
const VERSION: &str = "1";

/// What one line says.
#[derive(Debug)]
pub(crate) enum Said {
    Measures(Vec<Measure>),
    Machine(Value),
}

/// The versions of each known schema that were met.
pub(crate) type Versions = BTreeMap<&'static str, BTreeSet<String>>;

/// Reads a line. The error is what it is instead, without where.
pub(crate) fn said(line: &[u8], versions: &mut Versions) -> Result<Said, String> {
    let text = std::str::from_utf8(line).map_err(|_| "no text in UTF-8".to_owned())?;
    let value: Value = serde_json::from_str(text).map_err(|_| "no JSON".to_owned())?;
    let Some(schema) = value.get("schema").and_then(Value::as_str) else {
        return Err("no schema: not a line of Bramble's".to_owned());
    };
    let (name, version) = schema.rsplit_once('/').unwrap_or((schema, ""));
    let Some((name, meaning)) = SCHEMAS.iter().find(|(known, _)| *known == name) else {
        return Err(format!("the schema {} is not known to this version", short(schema)));
    };
    versions.entry(name).or_default().insert(short(version));
    if version != VERSION {
        let version = short(version);
        return Err(format!("version '{version}' of {name}; this program reads version {VERSION}"));
    }
    match meaning {
        Meaning::Measures(read) => {
            read(&Line(&value)).map(Said::Measures).map_err(|e| format!("{schema}: {e}"))
        }
        Meaning::Machine => Ok(Said::Machine(value)),
        Meaning::Nothing => Err(format!("{schema} is no measurement")),
    }
}

/// A text of a file as it may be told: short, without what moves a terminal's cursor.
pub(crate) fn short(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut out: String = clean(text).chars().take(CHARS_MAX).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}

/// A text without what moves a terminal's cursor.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Measures that say the same become one: the median.
pub(crate) fn merged(all: Vec<Measure>) -> Vec<Measure> {
    let mut groups: Vec<Vec<Measure>> = Vec::new();
    let mut at = BTreeMap::new();
    for measure in all {
        let name = (measure.kind.title, measure.key.clone(), measure.way.clone());
        match at.get(&name) {
            Some(&index) => {
                let group: &mut Vec<Measure> = &mut groups[index];
                // A peak is measured once and told by every line of its run.
                if group.iter().all(|m| m.value.total_cmp(&measure.value).is_ne()) {
                    group.push(measure);
                }
            }
            None => {
                at.insert(name, groups.len());
                groups.push(vec![measure]);
            }
        }
    }
    groups.into_iter().map(median).collect()
}

/// The one in the middle (the slower of two), which says how many there were, with what disturbed any of them.
fn median(mut group: Vec<Measure>) -> Measure {
    group.sort_by(|a, b| {
        if a.kind.unit.is_rate() { a.value.total_cmp(&b.value) } else { b.value.total_cmp(&a.value) }
    });
    let lines = group.len();
    let spread = group.iter().filter_map(|m| m.spread).max_by(f64::total_cmp);
    let outliers = group.iter().filter_map(|m| m.outliers).reduce(|a, b| (a.0 + b.0, a.1 + b.1));
    let trouble = group.iter().find_map(|m| m.trouble.clone());
    let middle = group.swap_remove((lines - 1) / 2);
    Measure { lines, spread, outliers, trouble, ..middle }
}
