//! Rates as a drawing: Gflop/s over the size of the product, a line for each kernel, and the peak above them.
//!
//! Invariant: a file that stands alone: no script, no font and nothing else from elsewhere.

use super::kernel::Point;
use bramble_matrix::DType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One panel, pixels.
pub(super) const WIDTH: f64 = 720.0;
pub(super) const HEIGHT: f64 = 380.0;
/// Around what is drawn: left, top, right (the names of the lines), bottom.
pub(super) const MARGIN: [f64; 4] = [70.0, 40.0, 210.0, 50.0];
/// Colours that can be told apart, by whoever sees few of them too (Okabe and Ito).
pub(super) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];

/// The edge of the cube of as many operations.
fn edge(p: &Point) -> f64 {
    (p.size.m as f64 * p.size.k as f64 * p.size.n as f64).cbrt()
}

/// The drawing: a panel for each element type.
pub(crate) fn svg(points: &[Point]) -> String {
    let mut types: Vec<DType> = points.iter().map(|p| p.dtype).collect();
    types.sort_unstable();
    types.dedup();
    let height = HEIGHT * types.len().max(1) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (at, dtype) in types.iter().enumerate() {
        let of_type: Vec<&Point> = points.iter().filter(|p| p.dtype == *dtype).collect();
        // Writing to a text cannot fail.
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", at as f64 * HEIGHT);
        panel(&mut out, *dtype, &of_type);
        out.push_str("</g>\n");
    }
    out + "</svg>\n"
}

/// Where numbers are on a panel.
struct Axes {
    /// Logarithms of the smallest and the largest size.
    sizes: (f64, f64),
    /// The largest rate.
    top: f64,
}

impl Axes {
    fn of(points: &[&Point]) -> Self {
        let logs = || points.iter().map(|p| edge(p).ln());
        let (low, high) = (logs().fold(f64::INFINITY, f64::min), logs().fold(f64::NEG_INFINITY, f64::max));
        let top = points.iter().map(|p| p.gflops().max(p.peak_gflops)).fold(0.0, f64::max);
        Self { sizes: if high > low { (low, high) } else { (low - 0.5, low + 0.5) }, top: top * 1.05 }
    }

    fn x(&self, edge: f64) -> f64 {
        let (low, high) = self.sizes;
        MARGIN[0] + (edge.ln() - low) / (high - low) * (WIDTH - MARGIN[0] - MARGIN[2])
    }

    fn y(&self, gflops: f64) -> f64 {
        HEIGHT - MARGIN[3] - gflops / self.top * (HEIGHT - MARGIN[1] - MARGIN[3])
    }
}

/// A round step that cuts a length into four to ten.
fn step(length: f64) -> f64 {
    let unit = 10f64.powf((length / 4.0).log10().floor());
    [5.0, 2.0].into_iter().map(|by| by * unit).find(|step| length / step >= 4.0).unwrap_or(unit)
}

fn panel(out: &mut String, dtype: DType, points: &[&Point]) {
    let axes = Axes::of(points);
    let (left, right) = (MARGIN[0], WIDTH - MARGIN[2]);
    let _ = writeln!(out, "<text x=\"{left}\" y=\"22\" font-size=\"15\">Products of {dtype}, Gflop/s</text>");
    let every = step(axes.top);
    let mut mark = 0.0;
    while mark <= axes.top {
        let y = axes.y(mark);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            left - 8.0,
            y + 4.0
        );
        mark += every;
    }
    let edges: BTreeMap<u64, f64> = points.iter().map(|p| (edge(p).round() as u64, edge(p))).collect();
    for (name, edge) in &edges {
        let (x, y) = (axes.x(*edge), HEIGHT - MARGIN[3] + 18.0);
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">edge of the product</text>",
        f64::midpoint(left, right),
        HEIGHT - 12.0
    );
    lines(out, &axes, points);
}

/// The line of each kernel and number of threads, and the peaks.
fn lines(out: &mut String, axes: &Axes, points: &[&Point]) {
    let mut names: Vec<(String, usize)> = Vec::new();
    for p in points {
        let name = (p.kernel.to_string(), p.threads);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let right = WIDTH - MARGIN[2];
    let peaks: BTreeMap<usize, f64> = points.iter().map(|p| (p.threads, p.peak_gflops)).collect();
    let plural =
        |threads: usize| if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    for (threads, peak) in &peaks {
        let y = axes.y(*peak);
        let _ = writeln!(
            out,
            "<line x1=\"{}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#555\" stroke-dasharray=\"6 4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">peak of {}</text>",
            MARGIN[0],
            right + 8.0,
            y + 4.0,
            plural(*threads)
        );
    }
    // Names below each other, under the peaks.
    let below = peaks.values().map(|peak| axes.y(*peak)).fold(MARGIN[1], f64::max) + 24.0;
    for (at, (kernel, threads)) in names.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let mut own: Vec<(f64, f64)> = points
            .iter()
            .filter(|p| p.threads == *threads && p.kernel.to_string() == *kernel)
            .map(|p| (axes.x(edge(p)), axes.y(p.gflops())))
            .collect();
        own.sort_by(|a, b| a.0.total_cmp(&b.0));
        let path: Vec<String> = own.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (x, y) in own {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let y = below + 18.0 * at as f64;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{kernel}, {}</text>",
            right + 8.0,
            plural(*threads)
        );
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use crate::args::BenchSize;
    use crate::times::Times;

    fn point(kernel: &str, dtype: DType, n: usize, seconds: f64) -> Point {
        Point {
            kernel: kernel.parse().unwrap(),
            dtype,
            size: BenchSize { m: n, k: n, n },
            threads: 1,
            wall: Times::new(vec![seconds]),
            cpu: Times::new(vec![seconds]),
            peak_gflops: 100.0,
            error: 0.1,
            workspace_bytes: 0,
        }
    }

    #[test]
    fn every_kernel_has_a_line_through_its_points_and_every_type_a_panel() {
        let points = [
            point("simd", DType::F32, 100, 1e-4),
            point("strassen", DType::F32, 100, 2e-4),
            point("simd", DType::F32, 200, 4e-4),
            point("simd", DType::F64, 100, 1e-3),
        ];
        let drawn = svg(&points);
        let count = |what: &str| drawn.matches(what).count();
        assert_eq!((count("<polyline"), count("<circle"), count("<g "), count("</g>")), (3, 4, 2, 2));
        assert!(drawn.contains("strassen:simd, 1 thread") && drawn.contains("peak of 1 thread"));
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        let axes = Axes::of(&[&points[0], &points[2]]);
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
    }

    #[test]
    fn nothing_measured_is_an_empty_drawing() {
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
