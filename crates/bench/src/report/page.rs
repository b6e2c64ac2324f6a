//! The page: self-contained HTML.
//!
//! Invariants: no script and no external resource, which the page's own security policy also forbids; every text from
//! a file or the command line is escaped by `text` or `escaped`; tags are nested correctly.

use super::compare::{Compared, figures, sentence};
use super::draw;
use super::measure::{Measure, MeasureKind, Pages, SPREAD_MAX, Unit};
use super::read::{FACTS, MeasuredMachine};
use super::schema::KINDS;
use bramble_report::chart::escaped;
use bramble_report::quantity;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// A table cell: a text that is not escaped yet, and whether it is marked.
type Cell = (String, bool);

fn cell(text: impl Into<String>) -> Cell {
    (text.into(), false)
}

/// The page of one machine or cluster.
pub(super) fn of_one(source: &MeasuredMachine) -> String {
    let mut body = facts(&[source]) + &disturbances(&[source]) + &notes(&[source]);
    for kind in KINDS.iter().filter(|kind| kind.pages != Pages::OfTwo) {
        let of_kind: Vec<&Measure> = source.measures.iter().filter(|one| one.kind == *kind).collect();
        if !of_kind.is_empty() {
            body += &section(kind, &(draw::lines(kind, &[source]) + &listed(&of_kind)));
        }
    }
    page(&source.label, &body)
}

/// The comparison of two machines.
pub(super) fn of_two(first: &MeasuredMachine, second: &MeasuredMachine, all: &[Compared<'_>]) -> String {
    let sources = [first, second];
    let mut body = summary(sources, all) + &facts(&sources) + &disturbances(&sources) + &notes(&sources);
    for compared in all {
        let mut inner = draw::lines(compared.kind, &sources);
        if !compared.pairs.is_empty() {
            inner += &beside(sources, compared);
        }
        for (source, only) in sources.iter().zip(&compared.only) {
            if !only.is_empty() {
                let _ =
                    write!(inner, "<h3>Measured on {} only</h3>\n{}", escaped(&source.label), listed(only));
            }
        }
        body += &section(compared.kind, &inner);
    }
    page(&format!("{} and {}", first.label, second.label), &body)
}

fn page(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title} – Bramble</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\
         <footer>Made by bramble {} from what its --json printed. Medians of runs; Gflop/s are 10⁹ operations a second.\
         </footer>\n</main>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn section(kind: &MeasureKind, inner: &str) -> String {
    format!(
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n{inner}</section>\n",
        escaped(kind.title),
        escaped(kind.about)
    )
}

/// The section with the speed ratios.
fn summary(sources: [&MeasuredMachine; 2], all: &[Compared<'_>]) -> String {
    let labels = sources.map(|source| source.label.as_str());
    let mut out = "<section>\n<h2>How much faster</h2>\n".to_owned();
    let measured: Vec<&Compared<'_>> = all.iter().filter(|c| !c.pairs.is_empty()).collect();
    if measured.is_empty() {
        out += "<p class=\"lead\">The machines have no measurement in common, so there is nothing to compare. The \
        measurements of each are below.</p>\n";
    } else {
        out += "<ul class=\"lead\">\n";
    }
    for one in &measured {
        let Some([mean, least, greatest]) = one.ratios() else { continue };
        let count = one.pairs.len();
        let range = match count {
            1 => "one measurement".to_owned(),
            // The sentence names the faster machine first, so the ratios are inverted.
            _ if mean < 0.995 => {
                format!("{} to {} times, {count} measurements", figures(1.0 / greatest), figures(1.0 / least))
            }
            _ => format!("{} to {} times, {count} measurements", figures(least), figures(greatest)),
        };
        let said = escaped(&sentence(mean, labels));
        let _ = writeln!(out, "<li><b>{}</b>: {said} ({range})</li>", escaped(one.kind.title));
    }
    if !measured.is_empty() {
        let _ = writeln!(
            out,
            "</ul>\n<p>Geometric mean, least and greatest ratio of the speed of {} to that of {}. Only equal \
            measurements are compared: same kernel, type, size and threads.</p>",
            escaped(labels[1]),
            escaped(labels[0])
        );
    }
    out += &draw::ratios(all);
    let [first, second] = labels.map(|label| format!("{label} only"));
    let head = ["kind", "both", "mean", "least", "greatest", &first, &second];
    let rows = all.iter().map(|one| {
        let ratios = one.ratios().map_or_else(|| ["–"; 3].map(str::to_owned), |ratios| ratios.map(figures));
        let only = one.only.iter().map(|only| only.len().to_string());
        let counts = [one.kind.title.to_owned(), one.pairs.len().to_string()];
        counts.into_iter().chain(ratios).chain(only).map(cell).collect()
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    out += &table(&head.map(str::to_owned), &rows);
    out + "</section>\n"
}

/// The section with the facts about the machines.
fn facts(sources: &[&MeasuredMachine]) -> String {
    let mut head = vec![String::new()];
    head.extend(sources.iter().map(|source| source.label.clone()));
    let row = |name: &str, cells: Vec<String>| -> Vec<Cell> {
        [name.to_owned()].into_iter().chain(cells).map(cell).collect()
    };
    let mut rows = Vec::new();
    for (at, (_, name)) in FACTS.iter().enumerate() {
        if sources.iter().any(|source| !source.facts[at].is_empty()) {
            rows.push(row(name, sources.iter().map(|source| source.facts[at].join(", ")).collect()));
        }
    }
    let unsaid = rows.is_empty();
    rows.push(row("files", sources.iter().map(|source| source.files.join(", ")).collect()));
    let mut out = format!("<section class=\"facts\">\n<h2>Machines</h2>\n{}", table(&head, &rows));
    if unsaid {
        out +=
            "<p>The files do not describe their machine: older versions of bench did not print that.</p>\n";
    }
    out + "</section>\n"
}

/// The section about disturbed measurements.
fn disturbances(sources: &[&MeasuredMachine]) -> String {
    let mut out = String::new();
    for source in sources {
        let own = || source.measures.iter().filter(|one| one.kind.pages != Pages::OfTwo);
        let marked = own().filter(|one| one.is_disturbed()).count();
        let (slow, runs) =
            own().filter_map(|one| one.outliers).fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let widest = own().filter_map(|one| one.spread).fold(0.0, f64::max);
        if runs > 0 || marked > 0 {
            let _ = writeln!(
                out,
                "<li>{}: {slow} of {runs} runs took more than 1.2 times their median; {marked} measurements are marked; the \
                 widest spread is {:.0} %</li>",
                escaped(&source.label),
                widest * 100.0
            );
        }
    }
    if out.is_empty() {
        return out;
    }
    format!(
        "<section>\n<h2>Disturbed measurements</h2>\n<ul>\n{out}</ul>\n<p>Marked are measurements with slow runs, \
        with a spread (slowest minus fastest, relative to the median) of more than {:.0} %, or with lost \
        machines.</p>\n</section>\n",
        SPREAD_MAX * 100.0
    )
}

fn notes(sources: &[&MeasuredMachine]) -> String {
    let items: String = sources
        .iter()
        .flat_map(|source| &source.notes)
        .map(|note| format!("<li>{}</li>\n", escaped(note)))
        .collect();
    if items.is_empty() {
        return items;
    }
    format!("<section class=\"notes\">\n<h2>Not on this page</h2>\n<ul>\n{items}</ul>\n</section>\n")
}

/// The table of one kind.
fn listed(all: &[&Measure]) -> String {
    let Some(first) = all.first() else { return String::new() };
    let (has_way, has_runs) = (all.iter().any(|m| !m.way.is_empty()), all.iter().any(|m| m.spread.is_some()));
    let (has_lines, has_trouble) = (all.iter().any(|m| m.lines > 1), all.iter().any(|m| m.trouble.is_some()));
    let mut head: Vec<String> = first.key.iter().map(|(name, _)| (*name).to_owned()).collect();
    let more = |names: &mut Vec<String>, is: bool, name: &str| names.extend(is.then(|| name.to_owned()));
    more(&mut head, has_way, "by");
    head.push(unit(first.kind.unit).to_owned());
    more(&mut head, has_runs, "spread");
    more(&mut head, has_runs, "slow runs");
    more(&mut head, has_lines, "lines");
    more(&mut head, has_trouble, "faults");
    head.extend(first.more.iter().map(|(name, _)| (*name).to_owned()));
    let row = |one: &&Measure| {
        let mut cells: Vec<Cell> = one.key.iter().map(|(_, what)| cell(what)).collect();
        cells.extend(has_way.then(|| cell(&one.way)));
        cells.push((value(one), one.is_disturbed()));
        if has_runs {
            cells.push((spread(one), one.spread.is_some_and(|spread| spread > SPREAD_MAX)));
            let slow = one.outliers.map_or_else(|| "–".to_owned(), |(slow, all)| format!("{slow} of {all}"));
            cells.push((slow, one.outliers.is_some_and(|(slow, _)| slow > 0)));
        }
        cells.extend(has_lines.then(|| cell(one.lines.to_string())));
        cells.extend(has_trouble.then(|| (one.trouble.clone().unwrap_or_default(), one.trouble.is_some())));
        cells.extend(one.more.iter().map(|(_, what)| cell(what)));
        cells
    };
    table(&head, &all.iter().map(row).collect::<Vec<_>>())
}

/// The table of paired measures and their ratios.
fn beside(sources: [&MeasuredMachine; 2], compared: &Compared<'_>) -> String {
    let Some(first) = compared.pairs.first() else { return String::new() };
    let has_way = compared.pairs.iter().any(|pair| pair.of.iter().any(|one| !one.way.is_empty()));
    let has_runs = compared.pairs.iter().any(|pair| pair.of.iter().any(|one| one.spread.is_some()));
    let mut head: Vec<String> = first.of[0].key.iter().map(|(name, _)| (*name).to_owned()).collect();
    for source in sources {
        head.push(format!("{}, {}", source.label, unit(compared.kind.unit)));
        head.extend(has_runs.then(|| "spread".to_owned()));
        head.extend(has_way.then(|| "by".to_owned()));
    }
    head.push("times as fast".to_owned());
    let row = |pair: &super::compare::MeasurePair<'_>| {
        let mut cells: Vec<Cell> = pair.of[0].key.iter().map(|(_, what)| cell(what)).collect();
        for one in pair.of {
            cells.push((value(one), one.is_disturbed()));
            cells.extend(
                has_runs.then(|| (spread(one), one.spread.is_some_and(|spread| spread > SPREAD_MAX))),
            );
            cells.extend(has_way.then(|| cell(&one.way)));
        }
        cells.push(cell(figures(pair.ratio)));
        cells
    };
    table(&head, &compared.pairs.iter().map(row).collect::<Vec<_>>())
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Gflops => "Gflop/s",
        Unit::BytesPerS => "bytes/s",
        Unit::Seconds => "time",
    }
}

fn value(one: &Measure) -> String {
    match one.kind.unit {
        Unit::Gflops => figures(one.value),
        Unit::BytesPerS => quantity::bytes(one.value) + "/s",
        Unit::Seconds => quantity::brief(one.value),
    }
}

fn spread(one: &Measure) -> String {
    one.spread.map_or_else(|| "–".to_owned(), |spread| format!("{:.0} %", spread * 100.0))
}

/// A table; this escapes the texts. Marked cells are recognisable without colours, too.
fn table(head: &[String], rows: &[Vec<Cell>]) -> String {
    let mut out = "<div class=\"wide\"><table>\n<thead><tr>".to_owned();
    // Writing to a `String` cannot fail.
    for name in head {
        let _ = write!(out, "<th>{}</th>", escaped(name));
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        for (text, is_marked) in row {
            let text = escaped(text);
            let _ = match is_marked {
                true => write!(out, "<td class=\"marked\">{text} <abbr title=\"disturbed\">!</abbr></td>"),
                false => write!(out, "<td>{text}</td>"),
            };
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}
