//! What links can do as a drawing: time or bytes a second over the size of a message, both logarithmic, a line for each link.
//!
//! Invariant: a file that stands alone: no script, no font and nothing else from elsewhere.

use super::function::Function;
use super::measure::Point;
use super::mesh::LinkName;
use crate::bench::plot::{COLOURS, HEIGHT, MARGIN, WIDTH};
use crate::quantity::size_text;
use std::fmt::Write;

/// The drawing: a panel for each function and number of ends.
pub(crate) fn svg(points: &[Point]) -> String {
    let mut panels: Vec<(Function, usize)> = Vec::new();
    for p in points {
        if !panels.contains(&(p.function, p.ends)) {
            panels.push((p.function, p.ends));
        }
    }
    let height = HEIGHT * panels.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (at, (function, ends)) in panels.iter().enumerate() {
        let own: Vec<&Point> = points.iter().filter(|p| (p.function, p.ends) == (*function, *ends)).collect();
        // Writing to a text cannot fail.
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", at as f64 * HEIGHT);
        panel(&mut out, *function, *ends, &own);
        out.push_str("</g>\n");
    }
    out + "</svg>\n"
}

/// What is drawn of a point, and of what it is compared with.
fn value(p: &Point) -> f64 {
    if p.function.is_a_rate() { p.bytes_per_s() } else { p.times.median() }
}

fn bare_value(p: &Point) -> Option<f64> {
    let (_, times) = p.bare.as_ref()?;
    let seconds = times.median();
    Some(if p.function.is_a_rate() { p.function.moved_bytes(p.bytes, p.ends) / seconds } else { seconds })
}

/// Where numbers are on a panel: logarithms of the least and the most, both ways.
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn of(points: &[&Point]) -> Self {
        let values = points.iter().flat_map(|p| [Some(value(p)), bare_value(p)]).flatten();
        let (low, high) = range(values.map(f64::log10));
        // Whole powers of ten.
        let y = (low.floor(), if high.ceil() > low.floor() { high.ceil() } else { low.floor() + 1.0 });
        let (low, high) = range(points.iter().map(|p| (p.bytes as f64).log2()));
        Self { x: if high > low { (low, high) } else { (low - 0.5, low + 0.5) }, y }
    }

    fn x(&self, bytes: f64) -> f64 {
        MARGIN[0] + (bytes.log2() - self.x.0) / (self.x.1 - self.x.0) * (WIDTH - MARGIN[0] - MARGIN[2])
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value.log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - MARGIN[3] - part * (HEIGHT - MARGIN[1] - MARGIN[3])
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

/// A power of ten with its unit.
fn mark(power: i32, is_a_rate: bool) -> String {
    let of_three = power.rem_euclid(3);
    let number = 10f64.powi(of_three);
    let units: &[(i32, &str)] = if is_a_rate {
        &[(0, "B/s"), (3, "kB/s"), (6, "MB/s"), (9, "GB/s"), (12, "TB/s")]
    } else {
        &[(-9, "ns"), (-6, "µs"), (-3, "ms"), (0, "s")]
    };
    let unit = units.iter().find(|(at, _)| *at == power - of_three);
    unit.map_or_else(|| format!("1e{power}"), |(_, unit)| format!("{number} {unit}"))
}

fn panel(out: &mut String, function: Function, ends: usize, points: &[&Point]) {
    let axes = Axes::of(points);
    let (left, right) = (MARGIN[0], WIDTH - MARGIN[2]);
    let what = if function.is_a_rate() { "bytes a second" } else { "time" };
    let among = if function.is_of_pairs() { String::new() } else { format!(" among {ends} ends") };
    let _ = writeln!(
        out,
        "<text x=\"{left}\" y=\"22\" font-size=\"15\">{}{among}: {what}</text>",
        function.name()
    );
    for power in axes.y.0 as i32..=axes.y.1 as i32 {
        let y = axes.y(10f64.powi(power));
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 4.0,
            mark(power, function.is_a_rate())
        );
    }
    let mut sizes: Vec<usize> = points.iter().map(|p| p.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for bytes in sizes {
        let (x, y) = (axes.x(bytes as f64), HEIGHT - MARGIN[3] + 18.0);
        let name = size_text(bytes as u64);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
    }
    let (x, y) = (f64::midpoint(left, right), HEIGHT - 12.0);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">bytes of a message</text>");
    lines(out, &axes, points);
}

/// The line of each link, and a dashed one of what it is compared with.
fn lines(out: &mut String, axes: &Axes, points: &[&Point]) {
    let mut name_y = MARGIN[1] + 12.0;
    for link in LinkName::ALL.iter().copied() {
        let own: Vec<&&Point> = points.iter().filter(|p| p.link == link).collect();
        if own.is_empty() {
            continue;
        }
        // The colour of a link is the same in all panels.
        let colour =
            COLOURS[LinkName::ALL.iter().position(|l| *l == link).unwrap_or_default() % COLOURS.len()];
        let mut line = |name: &str, dashes: &str, mut at: Vec<(f64, f64)>| {
            at.sort_by(|a, b| a.0.total_cmp(&b.0));
            let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>\
                 <text x=\"{:.1}\" y=\"{name_y:.1}\" fill=\"{colour}\">{name}</text>",
                path.join(" "),
                WIDTH - MARGIN[2] + 8.0
            );
            name_y += 18.0;
        };
        let place = |p: &Point, value: f64| (axes.x(p.bytes as f64), axes.y(value));
        line(link.name(), "", own.iter().map(|p| place(p, value(p))).collect());
        let bare: Vec<(f64, f64)> = own.iter().filter_map(|p| Some(place(p, bare_value(p)?))).collect();
        if let Some(name) = own.iter().find_map(|p| p.bare.as_ref()).map(|(bare, _)| bare.name()) {
            line(&format!("- - {name}"), " stroke-dasharray=\"5 4\"", bare);
        }
        for p in own {
            let (x, y) = place(p, value(p));
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::link::show::tests::point;

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
        // Broadcasts are compared with nothing.
        assert_eq!((count("<g "), count("</g>"), count("<polyline"), count("<circle")), (2, 2, 6, 12));
        assert!(drawn.contains("latency: time") && drawn.contains("broadcast among 4 ends: time"));
        assert!(drawn.contains("- - std tcp") && drawn.contains(">1 µs<") && drawn.contains(">1M<"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn both_axes_are_logarithmic() {
        let points =
            [point(LinkName::Tcp, Function::Gap, 1, 1e-6), point(LinkName::Tcp, Function::Gap, 256, 1e-3)];
        let axes = Axes::of(&points.iter().collect::<Vec<_>>());
        let middle = f64::midpoint(axes.x(1.0), axes.x(256.0));
        assert!((axes.x(16.0) - middle).abs() < 1e-9);
        assert!(axes.y(1e-6) - axes.y(1e-5) - (axes.y(1e-5) - axes.y(1e-4)) < 1e-9);
        assert!((axes.x(1.0) - MARGIN[0]).abs() < 1e-9);
    }

    #[test]
    fn marks_have_units_and_nothing_measured_is_an_empty_drawing() {
        assert_eq!(
            (mark(-6, false), mark(-5, false), mark(-1, false)),
            ("1 µs".into(), "10 µs".into(), "100 ms".into())
        );
        assert_eq!(
            (mark(9, true), mark(8, true), mark(-12, false)),
            ("1 GB/s".into(), "100 MB/s".into(), "1e-12".into())
        );
        assert!(svg(&[]).ends_with("</svg>\n"));
        let one = svg(&[point(LinkName::Tcp, Function::Bandwidth, 1, 1e-6)]);
        assert!(!one.contains("NaN") && !one.contains("inf"));
    }
}
