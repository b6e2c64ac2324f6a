//! Line charts with a logarithmic x axis, as SVG.
//!
//! Place in the flow: `plot` and `report` provide series of points; this file lays them out and draws them.
//!
//! Invariants: the SVG is self-contained (no script, font or external file); all texts are escaped; a point is
//! skipped if it is not a number, or not positive on a logarithmic axis.

use std::fmt::Write;

/// Size of a panel in pixels; it grows in height if its legend has many lines.
pub const WIDTH: f64 = 720.0;
/// See `WIDTH`.
pub const HEIGHT: f64 = 380.0;
/// Margins of the plot area: left, top, right (at least the room for line names), bottom.
pub const MARGIN: [f64; 4] = [70.0, 40.0, 210.0, 50.0];
/// Maximum width of the names.
const NAMES_MAX: f64 = 330.0;
/// Approximate width of a letter.
const LETTER: f64 = 6.5;
/// Distance between two names in the legend.
const NAME_STEP: f64 = 18.0;
/// Least distance between two marks of the x axis.
const MARK_STEP: f64 = 36.0;
/// Colours that colour-blind readers can tell apart, too (Okabe and Ito).
pub const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "currentColor", "#999933"];

/// The background of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// White, for an SVG file.
    White,
    /// The background of the enclosing page; texts and axes have the page's text colour.
    Page,
}

/// A series of points, drawn as a line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points: x and y.
    pub points: Vec<(f64, f64)>,
    /// Index of the colour; series with the same number share a colour.
    pub colour: usize,
    /// Whether the line is dashed.
    pub is_dashed: bool,
}

/// One panel.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Above the panel.
    pub title: String,
    /// Label of the x axis.
    pub below: String,
    /// Formats a mark of the x axis.
    pub mark: fn(f64) -> String,
    /// The lines.
    pub series: Vec<Series>,
    /// Whether the y axis is logarithmic, too.
    pub is_log: bool,
    /// Horizontal dashed lines: name and y value.
    pub levels: Vec<(String, f64)>,
}

/// The SVG of several charts, one below another.
pub fn drawing(charts: &[Chart], ground: Ground) -> String {
    let heights: Vec<f64> = charts.iter().map(Chart::height).collect();
    let height = if charts.is_empty() { HEIGHT } else { heights.iter().sum() };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"currentColor\">\n"
    );
    if ground == Ground::White {
        // Writing to a `String` cannot fail.
        let _ = writeln!(out, "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>");
    }
    let mut top = 0.0;
    for (chart, height) in charts.iter().zip(heights) {
        let _ = writeln!(out, "<g transform=\"translate(0 {top})\">");
        chart.draw(&mut out);
        out.push_str("</g>\n");
        top += height;
    }
    out + "</svg>\n"
}

/// Escapes a text for HTML and SVG, between tags or in an attribute. Characters that XML does not allow become
/// U+FFFD.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Maps values to positions in a panel.
struct Axes {
    /// Logarithms of the smallest and the largest x value.
    places: (f64, f64),
    /// The largest y value.
    top: f64,
    is_log: bool,
    /// Logarithm of the smallest y value, if the y axis is logarithmic.
    bottom: f64,
    /// Height of the panel.
    height: f64,
    /// Right end of the plot area, where the names begin.
    right: f64,
}

impl Axes {
    fn of(chart: &Chart) -> Self {
        let logs = || chart.points().map(|(x, _)| x.ln());
        let (low, high) = (logs().fold(f64::INFINITY, f64::min), logs().fold(f64::NEG_INFINITY, f64::max));
        let places = match (low.is_finite(), high > low) {
            (false, _) => (0.0, 1.0),
            (true, false) => (low - 0.5, low + 0.5),
            (true, true) => (low, high),
        };
        let values = chart.points().map(|(_, y)| y).chain(chart.levels.iter().map(|(_, y)| *y));
        let (least, top) =
            values.fold((f64::INFINITY, 0.0), |(least, top): (f64, f64), y| (least.min(y), top.max(y)));
        let top = if top > 0.0 { top * 1.05 } else { 1.0 };
        let bottom = least.min(top / 2.0).ln();
        let names = chart.series.iter().map(|s| &s.name).chain(chart.levels.iter().map(|(name, _)| name));
        let room = names.map(|name| name.chars().count() as f64 * LETTER + 12.0).fold(MARGIN[2], f64::max);
        let right = WIDTH - room.min(NAMES_MAX);
        Self { places, top, is_log: chart.is_log, bottom, height: chart.height(), right }
    }

    fn x(&self, place: f64) -> f64 {
        let (low, high) = self.places;
        MARGIN[0] + (place.ln() - low) / (high - low) * (self.right - MARGIN[0])
    }

    fn y(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value.ln() - self.bottom) / (self.top.ln() - self.bottom),
            false => value / self.top,
        };
        self.height - MARGIN[3] - part * (self.height - MARGIN[1] - MARGIN[3])
    }

    /// The marks of the y axis: value and text.
    fn heights(&self) -> Vec<(f64, String)> {
        if self.is_log {
            let [low, high] = [self.bottom / 10f64.ln(), self.top.log10()].map(|x| x.clamp(-300.0, 300.0));
            let exponents = low.ceil() as i32..=high.floor() as i32;
            return exponents
                .map(|exponent| (10f64.powi(exponent), format!("{:e}", 10f64.powi(exponent))))
                .collect();
        }
        let every = step(self.top);
        let digits = (-every.log10().floor()).max(0.0) as usize;
        let marks = (0..=(self.top / every).floor() as u32).map(|at| f64::from(at) * every);
        marks.map(|mark| (mark, format!("{mark:.digits$}"))).collect()
    }
}

/// A round step that divides a length into four to ten parts.
fn step(length: f64) -> f64 {
    let unit = 10f64.powf((length / 4.0).log10().floor());
    [5.0, 2.0].into_iter().map(|by| by * unit).find(|step| length / step >= 4.0).unwrap_or(unit)
}

impl Chart {
    /// Height of the panel: the names of series and levels need one line each.
    fn height(&self) -> f64 {
        let names = (self.series.len() + self.levels.len() + 1) as f64 * NAME_STEP;
        HEIGHT.max(MARGIN[1] + names + MARGIN[3])
    }

    /// All points that are drawn.
    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.series.iter().flat_map(|series| series.points.iter().copied()).filter(|p| self.draws(p))
    }

    /// Whether a point can be drawn: both are numbers, and positive where an axis is logarithmic.
    fn draws(&self, (x, y): &(f64, f64)) -> bool {
        x.is_finite() && *x > 0.0 && y.is_finite() && (*y > 0.0 || !self.is_log)
    }

    fn draw(&self, out: &mut String) {
        let axes = Axes::of(self);
        let (left, right) = (MARGIN[0], axes.right);
        let title = escaped(&self.title);
        let _ = writeln!(out, "<text x=\"{left}\" y=\"22\" font-size=\"15\">{title}</text>");
        for (mark, text) in axes.heights() {
            let y = axes.y(mark);
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"currentColor\" \
                 stroke-opacity=\"0.15\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                left - 8.0,
                y + 4.0
            );
        }
        self.marks(out, &axes);
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(left, right),
            axes.height - 12.0,
            escaped(&self.below)
        );
        self.lines(out, &axes);
    }

    /// The marks of the x axis, as many as fit.
    fn marks(&self, out: &mut String, axes: &Axes) {
        let mut places: Vec<f64> = self.points().map(|(x, _)| x).collect();
        places.sort_by(f64::total_cmp);
        let (mut last, y) = (f64::NEG_INFINITY, axes.height - MARGIN[3] + 18.0);
        for place in places {
            let x = axes.x(place);
            if x >= last + MARK_STEP {
                let text = escaped(&(self.mark)(place));
                let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{text}</text>");
                last = x;
            }
        }
    }

    /// Draws levels and series with their names.
    fn lines(&self, out: &mut String, axes: &Axes) {
        let right = axes.right;
        let mut levels: Vec<&(String, f64)> = self.levels.iter().filter(|(_, y)| y.is_finite()).collect();
        levels.sort_by(|a, b| b.1.total_cmp(&a.1));
        // Names of levels are at the height of their lines, or one below another; names of series are below them.
        let mut lowest = MARGIN[1] - NAME_STEP;
        let beside: Vec<f64> = levels
            .iter()
            .map(|(_, level)| {
                lowest = (axes.y(*level) + 4.0).max(lowest + NAME_STEP);
                lowest
            })
            .collect();
        let names = self.series.len() as f64 * NAME_STEP;
        let has_room = lowest + 6.0 + names <= axes.height - MARGIN[3];
        // If both do not fit, names of levels are drawn above their lines.
        let first = if has_room { lowest + 6.0 + NAME_STEP } else { MARGIN[1] + 4.0 };
        for ((name, level), beside) in levels.into_iter().zip(beside) {
            let y = axes.y(*level);
            let (x, text_y) = if has_room { (right + 8.0, beside) } else { (MARGIN[0] + 8.0, y - 4.0) };
            let _ = writeln!(
                out,
                "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"currentColor\" stroke-opacity=\"0.7\" \
                 stroke-dasharray=\"6 4\"/><text x=\"{x:.1}\" y=\"{text_y:.1}\" fill-opacity=\"0.7\">{}</text>",
                MARGIN[0],
                escaped(name)
            );
        }
        for (at, series) in self.series.iter().enumerate() {
            let colour = COLOURS[series.colour % COLOURS.len()];
            let dashes = if series.is_dashed { " stroke-dasharray=\"7 4\"" } else { "" };
            let mut own: Vec<(f64, f64)> = series
                .points
                .iter()
                .filter(|p| self.draws(p))
                .map(|(x, y)| (axes.x(*x), axes.y(*y)))
                .collect();
            own.sort_by(|a, b| a.0.total_cmp(&b.0));
            let path: Vec<String> = own.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/>",
                path.join(" ")
            );
            for (x, y) in own {
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let y = first + NAME_STEP * at as f64;
            let name = escaped(&series.name);
            let _ =
                writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{name}</text>", right + 8.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, levels: Vec<(String, f64)>) -> Chart {
        let series = vec![Series { name: "<a & \"b\">".to_owned(), points, ..Series::default() }];
        Chart {
            title: "t".to_owned(),
            below: "x".to_owned(),
            mark: |x| format!("{x}"),
            series,
            is_log: false,
            levels,
        }
    }

    #[test]
    fn ends_of_the_axes_are_the_ends_of_what_is_drawn() {
        let axes = Axes::of(&chart(vec![(100.0, 3.0), (200.0, 50.0)], vec![("peak".to_owned(), 100.0)]));
        assert!(
            (axes.x(100.0) - MARGIN[0]).abs() < 1e-9 && (axes.x(200.0) - (WIDTH - MARGIN[2])).abs() < 1e-9
        );
        assert!(axes.y(100.0) < axes.y(50.0) && (axes.y(0.0) - (HEIGHT - MARGIN[3])).abs() < 1e-9);
    }

    #[test]
    fn marks_are_round_and_neither_few_nor_many() {
        for length in [0.3, 1.0, 7.0, 99.0, 105.0, 2000.0] {
            let marks = length / step(length);
            assert!((4.0..=10.0).contains(&marks), "{length}: {marks}");
        }
        let drawn = drawing(&[chart(vec![(1.0, 0.7)], Vec::new())], Ground::White);
        assert!(drawn.contains(">0.3<") || drawn.contains(">0.6<"), "{drawn}");
        assert!(!drawn.contains("0.30000"), "{drawn}");
    }

    #[test]
    fn texts_are_escaped_and_points_that_are_not_numbers_are_skipped() {
        let points = vec![(0.0, 1.0), (-1.0, 1.0), (2.0, f64::NAN), (3.0, 1.0)];
        let drawn = drawing(&[chart(points, Vec::new())], Ground::Page);
        assert!(drawn.contains("&lt;a &amp; &quot;b&quot;&gt;") && !drawn.contains("<a "), "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 1);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf") && !drawn.contains("<rect"));
        assert_eq!(escaped("a\u{0}\u{1b}\n'"), "a\u{fffd}\u{fffd} &#39;");
    }

    #[test]
    fn logarithmic_heights_have_a_mark_for_each_power_of_ten() {
        let mut wide = chart(vec![(1.0, 0.002), (8.0, 30.0), (9.0, 0.0)], Vec::new());
        wide.is_log = true;
        let axes = Axes::of(&wide);
        let marks: Vec<String> = axes.heights().into_iter().map(|(_, text)| text).collect();
        assert_eq!(marks, ["1e-2", "1e-1", "1e0", "1e1"]);
        assert!((axes.y(0.002) - (HEIGHT - MARGIN[3])).abs() < 1e-9 && axes.y(30.0) < axes.y(3.0));
        assert_eq!(drawing(&[wide], Ground::Page).matches("<circle").count(), 2);
    }

    #[test]
    fn many_lines_make_a_panel_higher() {
        let mut many = chart(vec![(1.0, 1.0)], Vec::new());
        many.series = vec![many.series[0].clone(); 40];
        assert!(many.height() > 40.0 * NAME_STEP && many.height() > HEIGHT);
        assert!(drawing(&[], Ground::White).ends_with("</svg>\n"));
    }
}
