//! The plot of link measurements: time or bytes a second by message size, both axes logarithmic, one line per link.
//!
//! Place in the flow: builds the series; `chart` draws them.
//!
//! Invariant: a link has the same colour in all panels, and its bare counterpart is a dashed line of that colour.

use super::function::Function;
use super::measure::LinkPoint;
use super::mesh::LinkName;
use bramble_report::chart::{Chart, Ground, Series, drawing};
use bramble_report::quantity::size_text;

/// The plot: one panel per function and number of ends.
pub(crate) fn svg(points: &[LinkPoint]) -> String {
    let mut panels: Vec<(Function, usize)> = Vec::new();
    for p in points {
        if !panels.contains(&(p.function, p.ends)) {
            panels.push((p.function, p.ends));
        }
    }
    let charts: Vec<Chart> = panels
        .iter()
        .map(|(function, ends)| {
            let own = points.iter().filter(|p| (p.function, p.ends) == (*function, *ends));
            panel(*function, *ends, &own.collect::<Vec<_>>())
        })
        .collect();
    drawing(&charts, Ground::White)
}

/// The y value: microseconds, or megabytes a second.
fn height(p: &LinkPoint, seconds: f64) -> f64 {
    if p.function.is_a_rate() {
        p.function.moved_bytes(p.bytes, p.ends) / seconds / 1e6
    } else {
        seconds * 1e6
    }
}

fn panel(function: Function, ends: usize, points: &[&LinkPoint]) -> Chart {
    let what = if function.is_a_rate() { "MB/s" } else { "µs" };
    let among = if function.is_of_pairs() { String::new() } else { format!(" among {ends} ends") };
    let mut series = Vec::new();
    for (colour, link) in LinkName::ALL.iter().enumerate() {
        let own: Vec<&&LinkPoint> = points.iter().filter(|p| p.link == *link).collect();
        if own.is_empty() {
            continue;
        }
        let place = |p: &LinkPoint, seconds: f64| (p.bytes as f64, height(p, seconds));
        let drawn = own.iter().map(|p| place(p, p.times.median())).collect();
        series.push(Series { name: link.name().to_owned(), points: drawn, colour, is_dashed: false });
        let bare = |p: &&&LinkPoint| p.bare.as_ref().map(|(_, times)| place(p, times.median()));
        if let Some((bare_is, _)) = own.iter().find_map(|p| p.bare.as_ref()) {
            let name = format!("- - {}", bare_is.name());
            let drawn = own.iter().filter_map(bare).collect();
            series.push(Series { name, points: drawn, colour, is_dashed: true });
        }
    }
    Chart {
        title: format!("{}{among}, {what}", function.name()),
        below: "bytes of a message".to_owned(),
        mark: |bytes| size_text(bytes as u64),
        series,
        is_log: true,
        levels: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::show::tests::point;

    #[test]
    fn every_link_has_a_line_and_every_function_a_panel() {
        let mut points = Vec::new();
        for (bytes, seconds) in [(1, 1e-6), (1024, 2e-6), (1 << 20, 1e-4)] {
            for link in [LinkName::Thread, LinkName::Tcp] {
                points.push(point(link, Function::Latency, bytes, seconds));
                points.push(point(link, Function::Broadcast, bytes, seconds));
            }
        }
        let drawn = svg(&points);
        let count = |what: &str| drawn.matches(what).count();
        // Broadcasts have no bare counterpart.
        assert_eq!((count("<g "), count("</g>"), count("<polyline")), (2, 2, 6));
        assert!(drawn.contains("latency, µs") && drawn.contains("broadcast among 4 ends, µs"));
        assert!(drawn.contains("- - std tcp") && drawn.contains(">1M<"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn what_is_drawn_is_what_was_measured_in_its_unit() {
        // The median is a tenth more.
        let points = [
            point(LinkName::Tcp, Function::Gap, 256, 1e-3),
            point(LinkName::Tcp, Function::Bandwidth, 1_000_000, 1e-3),
        ];
        let all: Vec<Chart> = points.iter().map(|p| panel(p.function, p.ends, &[p])).collect();
        let first = |chart: &Chart| chart.series[0].points[0];
        assert_eq!((all[0].title.as_str(), first(&all[0])), ("gap, µs", (256.0, 1100.0)));
        assert_eq!((all[1].title.as_str(), first(&all[1]).0), ("bandwidth, MB/s", 1e6));
        assert!((first(&all[1]).1 - 1000.0 / 1.1).abs() < 1e-6);
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
