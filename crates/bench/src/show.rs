//! Kernel measurements as a table, as CSV and as JSON.
//!
//! Invariant: all three forms have the same numbers; docs/json.md describes the JSON fields.

use super::kernel::KernelPoint;
use crate::args::{BenchRuns, BenchSize};
use bramble_report::table;
use serde_json::{Value, json};

/// The output form of measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Table,
    Csv,
    Json,
}

impl Form {
    pub(crate) fn of(runs: &BenchRuns) -> Self {
        match (runs.json, runs.csv) {
            (true, _) => Self::Json,
            (false, true) => Self::Csv,
            (false, false) => Self::Table,
        }
    }
}

/// The head line of the CSV.
pub(crate) const CSV_HEAD: &str = "kernel,dtype,m,k,n,threads,rounds,seconds,seconds_min,seconds_max,cpu_seconds,gflops,\
peak_gflops,of_peak,error_of_bound,workspace_bytes,outliers\n";

/// A CSV line from a JSON object: the fields that the head names, in its order. Missing fields are empty, floats have
/// seven digits.
pub(crate) fn values(head: &str, all: &Value) -> String {
    let text = |name: &str| match &all[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.6e}", number.as_f64().unwrap_or(f64::NAN)),
        other => other.to_string(),
    };
    head.trim_end().split(',').map(text).collect::<Vec<_>>().join(",")
}

/// One line for each measurement; nothing in table form, since the table is printed at the end.
pub(crate) fn lines(form: Form, points: &[KernelPoint]) -> String {
    points
        .iter()
        .map(|point| match form {
            Form::Table => String::new(),
            Form::Csv => csv(point) + "\n",
            Form::Json => json(point) + "\n",
        })
        .collect()
}

fn csv(p: &KernelPoint) -> String {
    let BenchSize { m, k, n } = p.size;
    let (rounds, seconds, min, max, cpu) =
        (p.wall.count(), p.wall.median(), p.wall.min(), p.wall.max(), p.cpu.median());
    format!(
        "{},{},{m},{k},{n},{},{rounds},{seconds:.6e},{min:.6e},{max:.6e},{cpu:.6e},{:.3},{:.3},{:.4},{:.3e},{},{}",
        p.kernel,
        p.dtype,
        p.threads,
        p.gflops(),
        p.peak_gflops,
        p.of_peak(),
        p.error,
        p.workspace_bytes,
        p.wall.outliers()
    )
}

fn json(p: &KernelPoint) -> String {
    let BenchSize { m, k, n } = p.size;
    json!({
        "schema": "bramble.bench.kernel/1",
        "kernel": p.kernel.to_string(), "dtype": p.dtype.to_string(), "m": m, "k": k, "n": n,
        "threads": p.threads, "rounds": p.wall.count(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "cpu_seconds": p.cpu.median(), "gflops": p.gflops(), "peak_gflops": p.peak_gflops,
        "of_peak": p.of_peak(), "error_of_bound": p.error, "workspace_bytes": p.workspace_bytes,
        "outliers": p.wall.outliers(),
    })
    .to_string()
}

pub(super) fn size(BenchSize { m, k, n }: BenchSize) -> String {
    if m == k && k == n { n.to_string() } else { format!("{m}x{k}x{n}") }
}

fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

/// The table of `bench kernel`: one measurement per line.
pub(crate) fn rates(points: &[KernelPoint]) -> Vec<String> {
    let head = [
        "kernel",
        "type",
        "size",
        "threads",
        "median",
        "spread",
        "Gflop/s",
        "by cpu",
        "of peak",
        "error",
        "workspace",
    ];
    let row = |p: &KernelPoint| {
        vec![
            p.kernel.to_string(),
            p.dtype.to_string(),
            size(p.size),
            p.threads.to_string(),
            seconds(p.wall.median()),
            format!("{:.0} %", 100.0 * p.wall.spread()),
            format!("{:.1}", p.gflops()),
            format!("{:.1}", p.cpu_gflops()),
            format!("{:.0} %", 100.0 * p.of_peak()),
            if p.dtype.is_float() { format!("{:.4}", p.error) } else { "exact".to_owned() },
            if p.workspace_bytes == 0 {
                "-".to_owned()
            } else {
                format!("{:.1} MiB", mib(p.workspace_bytes))
            },
        ]
    };
    let mut out = table::lines(&head, &points.iter().map(row).collect::<Vec<_>>());
    out.push(
        "  by cpu: Gflop/s by processor time of the threads, which excludes time that other programs take"
            .to_owned(),
    );
    out.push(
        "  error: the largest error in three rows, relative to the kernel's error bound (at most 1)"
            .to_owned(),
    );
    out
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The table of `bench threads`: one kernel and size per line, with one thread and with several.
pub(crate) fn threads(points: &[KernelPoint]) -> Vec<String> {
    let several = points.iter().map(|p| p.threads).max().unwrap_or(1);
    let many = format!("{several} threads");
    let head = ["kernel", "type", "size", "1 thread", &many, "times as fast", "Gflop/s", "of peak"];
    let mut rows = Vec::new();
    for one in points.iter().filter(|p| p.threads == 1) {
        let same = |p: &&KernelPoint| (p.kernel, p.dtype, p.size) == (one.kernel, one.dtype, one.size);
        let best = points.iter().filter(same).find(|p| p.threads == several).unwrap_or(one);
        rows.push(vec![
            one.kernel.to_string(),
            one.dtype.to_string(),
            size(one.size),
            seconds(one.wall.median()),
            seconds(best.wall.median()),
            format!("{:.2}", one.wall.median() / best.wall.median()),
            format!("{:.1}", best.gflops()),
            format!("{:.0} %", 100.0 * best.of_peak()),
        ]);
    }
    table::lines(&head, &rows)
}

/// Warnings about disturbed measurements.
pub(crate) fn warnings(points: &[KernelPoint]) -> Vec<String> {
    let mut out = Vec::new();
    let runs: usize = points.iter().map(|p| p.wall.count()).sum();
    let slow: usize = points.iter().map(|p| p.wall.outliers()).sum();
    if slow > 0 {
        out.push(format!(
            "bramble: {slow} of {runs} runs took more than 1.2 times their median: other programs may have been running"
        ));
    }
    let is_shared = |p: &&KernelPoint| p.threads == 1 && p.cpu.median() < 0.9 * p.wall.median();
    let shared = points.iter().filter(is_shared).count();
    if shared > 0 {
        out.push(format!(
            "bramble: at {shared} of {} measurements the processor was away for more than a tenth of the time; rates are \
             too low (--json and --csv have the processor time)",
            points.len()
        ));
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use bramble_matrix::DType;
    use bramble_report::times::Times;

    fn point(threads: usize, wall: [f64; 3], cpu: f64) -> KernelPoint {
        KernelPoint {
            kernel: "strassen:simd:64".parse().unwrap(),
            dtype: DType::F32,
            size: BenchSize { m: 1000, k: 500, n: 1000 },
            threads,
            wall: Times::new(wall.to_vec()),
            cpu: Times::new(vec![cpu]),
            peak_gflops: 200.0,
            error: 0.25,
            workspace_bytes: 3 << 20,
        }
    }

    #[test]
    fn all_forms_say_the_same() {
        let p = point(1, [0.01, 0.011, 0.02], 0.01);
        let csv = csv(&p);
        let read: Value = serde_json::from_str(&json(&p)).unwrap();
        for (name, text) in CSV_HEAD.trim().split(',').zip(csv.split(',')) {
            let value = &read[name];
            match value.as_f64() {
                Some(number) => {
                    let said: f64 = text.parse().unwrap();
                    assert!((said - number).abs() <= 1e-3 * number.abs(), "{name}: {text}, {value}");
                }
                None => assert_eq!(value.as_str(), Some(text), "{name}"),
            }
        }
        assert_eq!(csv.split(',').count(), CSV_HEAD.split(',').count());
        let table = rates(&[p]).join("\n");
        for word in
            ["strassen:simd:64", "1000x500x1000", "11.00 ms", "91 %", "90.9", "45 %", "0.2500", "3.0 MiB"]
        {
            assert!(table.contains(word), "{word} in {table}");
        }
    }

    #[test]
    fn threads_are_set_beside_one() {
        let lines = threads(&[point(1, [0.4; 3], 0.4), point(4, [0.1; 3], 0.4)]);
        assert!(
            lines[0].contains("4 threads") && lines[1].contains("400.00 ms") && lines[1].contains("4.00"),
            "{lines:?}"
        );
        assert_eq!(
            threads(&[point(1, [0.4; 3], 0.4)]).len(),
            2,
            "a machine with one core has its table, too"
        );
    }

    #[test]
    fn what_was_disturbed_is_said() {
        assert!(warnings(&[point(1, [0.1; 3], 0.1)]).is_empty());
        assert!(warnings(&[point(1, [0.1, 0.1, 0.5], 0.1)])[0].contains("1 of 3 runs"));
        assert!(warnings(&[point(1, [0.1; 3], 0.05)])[0].contains("1 of 1 measurements"));
    }
}
