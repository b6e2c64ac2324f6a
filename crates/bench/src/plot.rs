//! The plot of kernel rates: Gflop/s by product size, one line per kernel, and the peak above them.

use super::chart::{Chart, Ground, Series, drawing};
use super::kernel::KernelPoint;
use crate::args::BenchPlot;
use bramble_matrix::DType;
use bramble_report::exit::Failure;
use rustix::fs::{Access, access};
use std::collections::BTreeMap;
use std::path::Path;

impl BenchPlot {
    /// Refuses an SVG path that cannot be written, before hours of measuring.
    ///
    /// # Errors
    ///
    /// If the name does not end in `.svg`, or the user may not write the file.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(path) = &self.file else { return Ok(()) };
        // A device or a pipe may have any name.
        let is_file = path.as_os_str() != "-" && (path.is_file() || !path.exists());
        if is_file && !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
            let what = "plots are SVG; give the file a name that ends in .svg";
            return Err(Failure::usage(format!("--plot {}: {what}", path.display())));
        }
        bramble_report::out_file::check("--plot", path)?;
        if path.exists() {
            return Ok(());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        access(folder.unwrap_or_else(|| Path::new(".")), Access::WRITE_OK)
            .map_err(|e| Failure::failed(format!("--plot {}: cannot be written: {e}", path.display())))
    }

    /// Writes the plot, if `--plot` is given.
    pub(crate) fn write(&self, svg: impl FnOnce() -> String) -> Result<(), Failure> {
        self.file
            .as_ref()
            .map_or(Ok(()), |path| bramble_report::out_file::write("--plot", path, svg().as_bytes()))
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

/// "1 thread", "4 threads".
pub(crate) fn threads(count: u64) -> String {
    match count {
        1 => "1 thread".to_owned(),
        count => format!("{count} threads"),
    }
}

fn panel(dtype: DType, points: &[&KernelPoint]) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for p in points {
        let name = format!("{}, {}", p.kernel, threads(p.threads as u64));
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
            .map(|(count, peak)| (format!("peak of {}", threads(*count as u64)), *peak))
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
