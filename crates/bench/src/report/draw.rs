//! The plots of a page: rates by size, and ratios of two machines.
//!
//! Invariant: axes are not extended beyond the measurements: their ends are the least and the greatest measured x
//! value.

use super::compare::{Compared, fastest, figures};
use super::measure::{Measure, MeasureKind, Pages, Unit};
use super::read::MeasuredMachine;
use bramble_report::chart::{Chart, Ground, Series, drawing, escaped};
use std::fmt::Write;

/// A panel with more lines would be unreadable and is not drawn.
const LINES_MAX: usize = 24;
/// Most panels per kind.
const PANELS_MAX: usize = 24;

/// The plots of a kind with the measures of all machines, one panel per type; empty without points.
pub(super) fn lines(kind: &'static MeasureKind, sources: &[&MeasuredMachine]) -> String {
    let mut charts: Vec<Chart> = Vec::new();
    // A line has the same colour for all machines.
    let mut names: Vec<String> = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        for one in shown(source, kind) {
            let Some(spot) = &one.spot else { continue };
            let colour = names.iter().position(|name| *name == spot.line).unwrap_or_else(|| {
                names.push(spot.line.clone());
                names.len() - 1
            });
            let title = format!("{}, {}", spot.panel, unit_name(kind.unit));
            let chart = match charts.iter().position(|chart| chart.title == title) {
                Some(at) => &mut charts[at],
                None if charts.len() == PANELS_MAX => continue,
                None => {
                    let (below, mark) = (spot.axis.to_owned(), spot.mark);
                    charts.push(Chart {
                        title,
                        below,
                        mark,
                        series: Vec::new(),
                        is_log: kind.unit == Unit::Seconds,
                        levels: levels(kind, one, sources),
                    });
                    let Some(chart) = charts.last_mut() else { unreachable!("it was just added") };
                    chart
                }
            };
            let name = match (sources.len(), spot.line.as_str()) {
                (1, line) => line.to_owned(),
                (_, "") => source.label.clone(),
                (_, line) => format!("{}: {line}", source.label),
            };
            let series = match chart.series.iter().position(|series| series.name == name) {
                Some(at) => &mut chart.series[at],
                None if chart.series.len() > LINES_MAX => continue,
                None => {
                    let colour = if spot.line.is_empty() { number } else { colour };
                    let is_dashed = number == 0 && sources.len() > 1;
                    chart.series.push(Series { name, points: Vec::new(), colour, is_dashed });
                    let Some(series) = chart.series.last_mut() else { unreachable!("it was just added") };
                    series
                }
            };
            series.points.push((spot.place, drawn(kind.unit, one.value)));
        }
    }
    charts.retain(|chart| chart.series.len() <= LINES_MAX);
    charts
        .iter()
        .map(|chart| format!("<figure>{}</figure>\n", drawing(std::slice::from_ref(chart), Ground::Page)))
        .collect()
}

/// The measures of a kind that are drawn: only the fastest way, if ways are not compared.
fn shown<'a>(source: &'a MeasuredMachine, kind: &'static MeasureKind) -> Vec<&'a Measure> {
    match kind.pages {
        Pages::OfTwo => fastest(&source.measures, kind),
        Pages::Both | Pages::OfOne => source.measures.iter().filter(|one| one.kind == kind).collect(),
    }
}

/// The peaks for a panel: those of its element type, if the kind has peaks.
fn levels(kind: &'static MeasureKind, of: &Measure, sources: &[&MeasuredMachine]) -> Vec<(String, f64)> {
    let dtype =
        |one: &Measure| one.key.iter().find(|(name, _)| *name == "type").map(|(_, dtype)| dtype.clone());
    let mut out = Vec::new();
    for source in sources.iter().filter(|_| kind.has_peaks) {
        let peaks = source.measures.iter().filter(|one| one.is_peak() && dtype(one) == dtype(of));
        let named = peaks.map(|one| {
            let threads = one.key.last().map_or("", |(_, threads)| threads.as_str());
            let whose = if sources.len() > 1 { format!("{}: ", source.label) } else { String::new() };
            let plural = if threads == "1" { "thread" } else { "threads" };
            (format!("{whose}peak of {threads} {plural}"), one.value)
        });
        let named: Vec<(String, f64)> = named.collect();
        // In a comparison, only the peak of the whole machine is drawn.
        match sources.len() {
            1 => out.extend(named),
            _ => out.extend(named.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))),
        }
    }
    out.truncate(LINES_MAX);
    out
}

/// The name of the y axis.
fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Gflops => "Gflop/s",
        Unit::BytesPerS => "MB/s",
        Unit::Seconds => "ms",
    }
}

fn drawn(unit: Unit, value: f64) -> f64 {
    match unit {
        Unit::Gflops => value,
        Unit::BytesPerS => value / 1e6,
        Unit::Seconds => value * 1e3,
    }
}

/// Layout of the ratio plot in pixels: width, position of the axis, and height of a row.
const WIDTH: f64 = 720.0;
/// See `WIDTH`.
const AXIS: (f64, f64) = (200.0, 560.0);
/// See `WIDTH`.
const ROW: f64 = 26.0;

/// The ratio plot: mean and range of the speed ratio for each kind, on a logarithmic axis.
pub(super) fn ratios(all: &[Compared<'_>]) -> String {
    let rows: Vec<(&str, [f64; 3])> =
        all.iter().filter_map(|c| c.ratios().map(|r| (c.kind.title, r))).collect();
    let logs = || rows.iter().flat_map(|(_, [_, least, greatest])| [least.ln(), greatest.ln()]).chain([0.0]);
    let (low, high) = (logs().fold(0.0, f64::min) - 0.1, logs().fold(0.0, f64::max) + 0.1);
    let x = |ratio: f64| AXIS.0 + (ratio.ln() - low) / (high - low) * (AXIS.1 - AXIS.0);
    let height = ROW * (rows.len() as f64 + 1.0);
    let mut out = format!(
        "<figure><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"currentColor\">\n"
    );
    let one = x(1.0);
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        out,
        "<line x1=\"{one:.1}\" y1=\"4\" x2=\"{one:.1}\" y2=\"{:.1}\" stroke=\"currentColor\" stroke-dasharray=\"6 4\"/>\
         <text x=\"{one:.1}\" y=\"{:.1}\" text-anchor=\"middle\">1</text>",
        height - ROW,
        height - 8.0
    );
    for (at, (title, [mean, least, greatest])) in rows.iter().enumerate() {
        let y = ROW * (at as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><line x1=\"{:.1}\" y1=\"{y:.1}\" x2=\"{:.1}\" \
             y2=\"{y:.1}\" stroke=\"#0072b2\" stroke-width=\"4\" stroke-opacity=\"0.5\"/><circle cx=\"{:.1}\" cy=\"{y:.1}\" \
             r=\"5\" fill=\"#0072b2\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            AXIS.0 - 12.0,
            y + 4.0,
            escaped(title),
            x(*least),
            x(*greatest),
            x(*mean),
            AXIS.1 + 12.0,
            y + 4.0,
            range(*mean, *least, *greatest)
        );
    }
    if rows.is_empty() { String::new() } else { out + "</svg></figure>\n" }
}

/// A mean, with its range if that differs.
fn range(mean: f64, least: f64, greatest: f64) -> String {
    match [mean, least, greatest].map(figures) {
        [mean, least, greatest] if least == greatest => mean,
        [mean, least, greatest] => format!("{mean} ({least} to {greatest})"),
    }
}
