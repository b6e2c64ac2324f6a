//! Turns a line of JSON into measures: kind, key and value.
//!
//! Place in the flow: `read` passes lines in; the measures are drawn, listed and compared.
//!
//! Invariants: two measures are comparable if kind and key are equal; other differences are in `way`, which is shown.
//! Values are finite and positive; a line with any other value is refused.
//!
//! `SCHEMAS` has one row per known schema; docs/json.md describes the fields.

use super::schema::{self, Line};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 10⁹ operations a second.
    Gflops,
    BytesPerS,
    Seconds,
}

impl Unit {
    /// Whether larger is faster.
    pub(crate) fn is_rate(self) -> bool {
        self != Self::Seconds
    }
}

/// The pages that show a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Both,
    /// Only pages of one machine: its names mean nothing elsewhere.
    OfOne,
    /// Only comparisons: a page of one machine shows the same numbers in another section.
    OfTwo,
}

/// A kind of measurement: one section of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MeasureKind {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) unit: Unit,
    pub(crate) pages: Pages,
    /// Whether the processor's peaks are drawn in its plots.
    pub(crate) has_peaks: bool,
}

/// The position of a measure in a plot.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// Title of the panel.
    pub(crate) panel: String,
    /// Name of the line.
    pub(crate) line: String,
    /// The x value; `axis` names the x axis.
    pub(crate) place: f64,
    pub(crate) axis: &'static str,
    pub(crate) mark: fn(f64) -> String,
}

/// One measurement.
#[derive(Clone, Debug)]
pub(crate) struct Measure {
    pub(crate) kind: &'static MeasureKind,
    /// The identity of the measurement: names and contents of table columns.
    pub(crate) key: Vec<(&'static str, String)>,
    /// How it was measured, if ways are not compared: the fastest way counts for the machine. Else empty.
    pub(crate) way: String,
    pub(crate) value: f64,
    /// Difference between slowest and fastest run, relative to the median.
    pub(crate) spread: Option<f64>,
    /// Number of outliers, and of all runs.
    pub(crate) outliers: Option<(u64, u64)>,
    /// Other disturbances, such as "1 lost, 0 wrong, 0 missing".
    pub(crate) trouble: Option<String>,
    /// Further columns.
    pub(crate) more: Vec<(&'static str, String)>,
    pub(crate) spot: Option<Spot>,
    /// Number of lines with this measurement; the value is their median.
    pub(crate) lines: usize,
}

impl Measure {
    /// A measure with only a value.
    pub(crate) fn new(kind: &'static MeasureKind, key: Vec<(&'static str, String)>, value: f64) -> Self {
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

    /// Whether it was disturbed: by outliers, a wide spread, or other troubles.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.outliers.is_some_and(|(slow, _)| slow > 0)
            || self.spread.is_some_and(|spread| spread > SPREAD_MAX)
            || self.trouble.is_some()
    }

    /// Whether it is a processor's peak.
    pub(crate) fn is_peak(&self) -> bool {
        self.kind == &schema::PEAKS
    }

    /// Its speed over that of `other`.
    pub(crate) fn over(&self, other: &Self) -> f64 {
        if self.kind.unit.is_rate() { self.value / other.value } else { other.value / self.value }
    }
}

/// Measures with a larger spread are marked.
pub(crate) const SPREAD_MAX: f64 = 0.25;

/// What a report does with a schema.
pub(crate) enum Meaning {
    /// Its lines are measurements.
    Measures(fn(&Line<'_>) -> Result<Vec<Measure>, String>),
    /// Its lines describe the machine.
    Machine,
    /// A schema of Bramble without measurements.
    Nothing,
}

/// Every schema of docs/json.md, without its version, which is 1.
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

/// A parsed line.
#[derive(Debug)]
pub(crate) enum ParsedLine {
    Measures(Vec<Measure>),
    Machine(Value),
}

/// The versions found of each known schema.
pub(crate) type Versions = BTreeMap<&'static str, BTreeSet<String>>;

/// Parses a line. An error does not contain the line's position.
pub(crate) fn said(line: &[u8], versions: &mut Versions) -> Result<ParsedLine, String> {
    let text = std::str::from_utf8(line).map_err(|_| "no text in UTF-8".to_owned())?;
    let value: Value = serde_json::from_str(text).map_err(|_| "no JSON".to_owned())?;
    let Some(schema) = value.get("schema").and_then(Value::as_str) else {
        return Err("it has no schema, so Bramble did not print it".to_owned());
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
            read(&Line(&value)).map(ParsedLine::Measures).map_err(|e| format!("{schema}: {e}"))
        }
        Meaning::Machine => Ok(ParsedLine::Machine(value)),
        Meaning::Nothing => Err(format!("{schema} is no measurement")),
    }
}

/// A text from a file for a message: short, and without control characters.
pub(crate) fn short(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut out: String = clean(text).chars().take(CHARS_MAX).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        out.push('…');
    }
    out
}

/// A text without control characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Merges measures with equal kind, key and way into their median.
pub(crate) fn merged(all: Vec<Measure>) -> Vec<Measure> {
    let mut groups: Vec<Vec<Measure>> = Vec::new();
    let mut at = BTreeMap::new();
    for measure in all {
        let name = (measure.kind.title, measure.key.clone(), measure.way.clone());
        match at.get(&name) {
            Some(&index) => {
                let group: &mut Vec<Measure> = &mut groups[index];
                // Every line of a run repeats its peak, so equal values count once.
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

/// The median measure (of an even number, the slower of the middle two), with the number of lines and the
/// disturbances of all.
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
