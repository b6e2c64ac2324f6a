//! The plot of kernel rates: Gflop/s by product size, one line per kernel, and the peak above them.

use super::kernel::KernelPoint;
use crate::args::BenchPlot;
use bramble_matrix::DType;
use bramble_report::chart::{Chart, Ground, Series, drawing};
use bramble_report::exit::Failure;
use bramble_report::plot_file;
use bramble_report::quantity::counted;
use std::collections::BTreeMap;

impl BenchPlot {
    /// Refuses an SVG path that cannot be written, before hours of measuring.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.file.as_deref().map_or(Ok(()), plot_file::check)
    }

    /// Writes the plot, if `--plot` is given.
    pub(crate) fn write(&self, svg: impl FnOnce() -> String) -> Result<(), Failure> {
        self.file.as_deref().map_or(Ok(()), |path| plot_file::write(path, &svg()))
    }
}

/// Edge of the cube with the same number of operations.
fn edge(p: &KernelPoint) -> f64 {
    (p.size.m as f64 * p.size.k as f64 * p.size.n as f64).cbrt()
}

/// The plot: one panel per element type.
pub(crate) fn svg(points: &[KernelPoint]) -> String {
    let mut types: Vec<DType> = points.iter().map(|p| p.dtype).collect();
    types.sort_unstable();
    types.dedup();
    let of_type =
        |dtype: &DType| panel(*dtype, &points.iter().filter(|p| p.dtype == *dtype).collect::<Vec<_>>());
    drawing(&types.iter().map(of_type).collect::<Vec<_>>(), Ground::White)
}

fn panel(dtype: DType, points: &[&KernelPoint]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for p in points {
        let name = format!("{}, {}", p.kernel, counted(p.threads as u64, "thread"));
        let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
            series.push(Series { name, colour: series.len(), ..Series::default() });
            series.len() - 1
        });
        series[at].points.push((edge(p), p.gflops()));
    }
    let peaks: BTreeMap<usize, f64> = points.iter().map(|p| (p.threads, p.peak_gflops)).collect();
    Chart {
        title: format!("Products of {dtype}, Gflop/s"),
        below: "edge of the product".to_owned(),
        mark: |edge| format!("{edge:.0}"),
        series,
        is_log: false,
        levels: peaks
            .iter()
            .map(|(count, peak)| (format!("peak of {}", counted(*count as u64, "thread")), *peak))
            .collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use crate::args::BenchSize;
    use bramble_report::times::Times;

    fn point(kernel: &str, dtype: DType, n: usize, seconds: f64) -> KernelPoint {
        KernelPoint {
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
    }

    #[test]
    fn nothing_measured_is_an_empty_drawing() {
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
