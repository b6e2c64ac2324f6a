//! Link measurements as tables, as CSV and as JSON.
//!
//! Invariant: all three forms have the same numbers; docs/json.md describes the JSON fields.

use super::function::Function;
use super::measure::LinkPoint;
use super::mesh::LinkName;
use crate::show::{Form, values};
use bramble_report::quantity::size_text;
use bramble_report::table;
use serde_json::{Value, json};

/// The head line of the CSV.
pub(crate) const CSV_HEAD: &str = "link,function,algorithm,bytes,ends,window,rounds,repeats,seconds,seconds_min,seconds_max,\
bytes_per_s,messages_per_s,bare,bare_seconds,of_bare,outliers\n";

/// One line for each measurement; nothing in table form, since a table covers a whole function.
pub(crate) fn lines(form: Form, points: &[LinkPoint]) -> String {
    points
        .iter()
        .map(|point| match form {
            Form::Table => String::new(),
            Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
            Form::Json => json(point).to_string() + "\n",
        })
        .collect()
}

fn json(p: &LinkPoint) -> Value {
    json!({
        "schema": "bramble.bench.link/1",
        "link": p.link.name(), "function": p.function.name(), "algorithm": p.function.algorithm(p.bytes),
        "bytes": p.bytes, "ends": p.ends, "window": p.function.window(p.bytes),
        "rounds": p.times.count(), "repeats": p.repeats,
        "seconds": p.times.median(), "seconds_min": p.times.min(), "seconds_max": p.times.max(),
        "bytes_per_s": p.bytes_per_s(), "messages_per_s": 1.0 / p.times.median(),
        "bare": p.bare.as_ref().map(|(bare, _)| bare.name()),
        "bare_seconds": p.bare.as_ref().map(|(_, times)| times.median()),
        "of_bare": p.of_bare(),
        "outliers": p.times.outliers(),
    })
}

/// The title of a function's table.
fn title(function: Function) -> &'static str {
    match function {
        Function::Gap => "gap: how long one message occupies the sender, in windows of 64",
        Function::Latency => "latency: half of a round trip",
        Function::Bandwidth => "bandwidth: windows of 64 messages in one direction, each acknowledged",
        Function::TwoWay => "two-way: windows of 64 messages in both directions at once; bytes of both count",
        Function::Broadcast => "broadcast: from one end to all others, along a binomial tree",
        Function::Reduce => "reduce: sums of f64 from all ends at one end, along a binomial tree",
        Function::AllReduce => {
            "all-reduce: sums of f64 from all ends at all ends, by recursive doubling, above 64K \
        around a ring"
        }
        Function::AllToAll => {
            "all-to-all: a different message from each end to each other end, by pairwise exchange"
        }
    }
}

/// The table of a function: one size (and number of ends) per line, three columns per link.
pub(crate) fn table(function: Function, points: &[&LinkPoint]) -> Vec<String> {
    let mut links: Vec<LinkName> = Vec::new();
    let mut cases: Vec<(usize, usize)> = Vec::new();
    for p in points {
        if !links.contains(&p.link) {
            links.push(p.link);
        }
        if !cases.contains(&(p.ends, p.bytes)) {
            cases.push((p.ends, p.bytes));
        }
    }
    let unit = if function.is_a_rate() { "MB/s" } else { "µs" };
    let has_bare = |link: LinkName| points.iter().any(|p| p.link == link && p.bare.is_some());
    let mut head = vec!["bytes".to_owned()];
    if !function.is_of_pairs() {
        head.push("ends".to_owned());
    }
    for link in &links {
        head.extend([format!("{}, {unit}", link.name()), "spread".to_owned()]);
        if has_bare(*link) {
            head.push("of bare".to_owned());
        }
    }
    let row = |(ends, bytes): &(usize, usize)| {
        let mut row = vec![size_text(*bytes as u64)];
        if !function.is_of_pairs() {
            row.push(ends.to_string());
        }
        for link in &links {
            let point = points.iter().find(|p| (p.link, p.ends, p.bytes) == (*link, *ends, *bytes));
            let of = |text: fn(&LinkPoint) -> String| point.map_or_else(|| "-".to_owned(), |p| text(p));
            row.push(of(value));
            row.push(of(|p| format!("{:.0} %", 100.0 * p.times.spread())));
            if has_bare(*link) {
                row.push(of(|p| p.of_bare().map_or_else(|| "-".to_owned(), short)));
            }
        }
        row
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let mut out = vec![title(function).to_owned()];
    out.extend(table::lines(&head, &cases.iter().map(row).collect::<Vec<_>>()));
    let mut against: Vec<(LinkName, &str)> = Vec::new();
    for p in points {
        if let Some((bare, _)) = &p.bare
            && !against.contains(&(p.link, bare.name()))
        {
            against.push((p.link, bare.name()));
        }
    }
    if !against.is_empty() {
        let names: Vec<String> =
            against.iter().map(|(link, bare)| format!("{} by {bare}", link.name())).collect();
        out.push(format!(
            "  of bare: speed relative to the system's own calls; 1 is as fast ({})",
            names.join(", ")
        ));
    }
    out
}

/// The main figure of a function: 10^6 bytes a second, or microseconds.
fn value(p: &LinkPoint) -> String {
    short(if p.function.is_a_rate() { p.bytes_per_s() / 1e6 } else { p.times.median() * 1e6 })
}

/// Formats three significant digits, or all digits before the point.
fn short(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

/// Warnings about disturbed measurements.
pub(crate) fn warnings(points: &[LinkPoint]) -> Vec<String> {
    let runs: usize = points.iter().map(|p| p.times.count()).sum();
    let slow: usize = points.iter().map(|p| p.times.outliers()).sum();
    if slow == 0 {
        return Vec::new();
    }
    vec![format!(
        "bramble: {slow} of {runs} runs took more than 1.2 times their median: other programs may have been running, \
        or the system moved the ends between processors"
    )]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
pub(super) mod tests {
    use super::*;
    use crate::link::bare::Bare;
    use bramble_report::times::Times;

    pub(in crate::link) fn point(
        link: LinkName,
        function: Function,
        bytes: usize,
        seconds: f64,
    ) -> LinkPoint {
        LinkPoint {
            link,
            function,
            bytes,
            ends: if function.is_of_pairs() { 2 } else { 4 },
            repeats: 7,
            times: Times::new(vec![seconds, 1.1 * seconds, 1.5 * seconds]),
            bare: Bare::of(link, function).map(|bare| (bare, Times::new(vec![0.55 * seconds]))),
        }
    }

    #[test]
    fn all_forms_say_the_same() {
        for function in Function::ALL {
            let p = point(LinkName::Tcp, function, 1 << 20, 1e-3);
            let (csv, read) = (values(CSV_HEAD, &json(&p)), json(&p));
            assert_eq!(csv.split(',').count(), CSV_HEAD.split(',').count());
            for (name, text) in CSV_HEAD.trim().split(',').zip(csv.split(',')) {
                match &read[name] {
                    Value::Null => assert_eq!(text, "", "{name}"),
                    Value::String(said) => assert_eq!(said, text, "{name}"),
                    number => {
                        let (said, number): (f64, f64) = (text.parse().unwrap(), number.as_f64().unwrap());
                        assert!((said - number).abs() <= 1e-5 * number.abs(), "{name}: {text}");
                    }
                }
            }
            assert_eq!(read.as_object().unwrap().len(), CSV_HEAD.split(',').count() + 1);
        }
    }

    #[test]
    fn a_table_has_a_line_for_each_size_and_columns_for_each_link() {
        let of = |link, bytes| point(link, Function::Bandwidth, bytes, 1e-3);
        let points = [of(LinkName::Thread, 1024), of(LinkName::Tcp, 1024), of(LinkName::Tcp, 1 << 20)];
        let lines = table(Function::Bandwidth, &points.iter().collect::<Vec<_>>());
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(lines[1].contains("thread, MB/s") && lines[1].contains("tcp, MB/s"), "{lines:?}");
        assert!(
            lines[2].contains("1K") && lines[2].contains("0.93") && lines[2].contains("0.50"),
            "{lines:?}"
        );
        assert!(lines[3].contains("1M") && lines[3].contains("953") && lines[3].contains('-'), "{lines:?}");
        assert!(lines[4].contains("thread by memcpy, tcp by std tcp"), "{lines:?}");
        let points = [point(LinkName::Tcp, Function::AllToAll, 8, 1e-6)];
        let lines = table(Function::AllToAll, &points.iter().collect::<Vec<_>>());
        assert!(lines[1].contains("ends") && lines[2].contains("1.10") && lines.len() == 3, "{lines:?}");
    }

    #[test]
    fn what_was_disturbed_is_said() {
        let mut p = point(LinkName::Tcp, Function::Gap, 1, 1e-6);
        assert!(warnings(std::slice::from_ref(&p))[0].contains("1 of 3 runs"));
        p.times = Times::new(vec![1.0, 1.1]);
        assert!(warnings(&[p]).is_empty());
    }
}
