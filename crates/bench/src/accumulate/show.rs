//! Measurements of ways to add, as a table, as CSV, as JSON and as a plot.
//!
//! Invariant: all forms have the same numbers; docs/json.md describes the JSON fields.

use super::AccumulatePoint;
use super::ways::ThreadTotals;
use crate::args::BenchSize;
use crate::show::{Form, size, values};
use bramble_report::chart::{Chart, Series};
use bramble_report::quantity::brief;
use bramble_report::quantity::counted;
use bramble_report::table as lines_of;
use serde_json::{Value, json};

/// The head line of the CSV: the JSON fields, without the schema and the activity of each thread.
pub(crate) const CSV_HEAD: &str = "way,kernel,dtype,m,k,n,jobs,threads,blocks,rounds,seconds,seconds_min,seconds_max,\
job_seconds,times_owner,gflops,adding,waiting,results,difference_max,outliers\n";

/// One line for each measurement; nothing in table form, since the table is printed at the end.
pub(crate) fn lines(form: Form, points: &[AccumulatePoint]) -> String {
    let one = |point: &AccumulatePoint| match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    };
    points.iter().map(one).collect()
}

fn adding(share: &ThreadTotals) -> f64 {
    share.add.as_secs_f64()
}

fn waiting(share: &ThreadTotals) -> f64 {
    share.wait.as_secs_f64()
}

fn json(p: &AccumulatePoint) -> Value {
    let BenchSize { m, k, n } = p.case.size;
    let thread = |share: &ThreadTotals| {
        json!({
            "jobs": share.jobs, "multiply_s": share.multiply.as_secs_f64(), "add_s": adding(share), "wait_s": waiting(share),
            "busy": p.busy(share),
        })
    };
    json!({
        "schema": "bramble.bench.accumulate/1",
        "way": p.way.name(), "kernel": p.case.kernel.to_string(), "dtype": p.dtype.name(), "m": m, "k": k, "n": n,
        "jobs": p.case.jobs, "threads": p.case.threads, "blocks": p.blocks, "rounds": p.wall.count(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "job_seconds": p.wall.median() / p.case.jobs as f64, "times_owner": p.times_owner, "gflops": p.gflops(),
        "adding": p.part(adding), "waiting": p.part(waiting),
        "results": p.results, "difference_max": p.difference, "outliers": p.wall.outliers(),
        "per_thread": p.threads.iter().map(thread).collect::<Vec<_>>(),
    })
}

/// The table: one measurement per line.
pub(crate) fn table(points: &[AccumulatePoint]) -> Vec<String> {
    let head = [
        "way",
        "type",
        "size",
        "jobs",
        "threads",
        "a block",
        "spread",
        "a job",
        "of owner",
        "Gflop/s",
        "adding",
        "waiting",
        "jobs by thread",
        "busy by thread",
        "results",
        "difference",
    ];
    let row = |p: &AccumulatePoint| {
        let by_thread =
            |of: &dyn Fn(&ThreadTotals) -> String| p.threads.iter().map(of).collect::<Vec<_>>().join(" ");
        let jobs: f64 = p.threads.iter().map(|share| share.jobs).sum();
        vec![
            p.way.to_string(),
            p.dtype.to_string(),
            size(p.case.size),
            p.case.jobs.to_string(),
            p.case.threads.to_string(),
            brief(p.wall.median()),
            percent(p.wall.spread()),
            brief(p.wall.median() / p.case.jobs as f64),
            format!("{:.3}", p.times_owner),
            format!("{:.1}", p.gflops()),
            percent(p.part(adding)),
            percent(p.part(waiting)),
            by_thread(&|share| percent(share.jobs / jobs.max(1.0))),
            by_thread(&|share| percent(p.busy(share))),
            p.results.to_string(),
            if p.difference == 0.0 { "0".to_owned() } else { format!("{:.1e}", p.difference) },
        ]
    };
    let mut out = lines_of::lines(&head, &points.iter().map(row).collect::<Vec<_>>());
    for text in [
        "of owner: time relative to the owner's in the same round, the median; above 1 is slower",
        "adding, waiting: fractions of the threads' time; an owner multiplies and adds in one operation",
        "results: number of distinct sums from the same jobs; difference: the largest from the owner's sums",
    ] {
        out.push(format!("  {text}"));
    }
    out
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Warnings about disturbed measurements.
pub(crate) fn warnings(points: &[AccumulatePoint]) -> Vec<String> {
    let runs: usize = points.iter().map(|p| p.wall.count()).sum();
    let slow: usize = points.iter().map(|p| p.wall.outliers()).sum();
    if slow == 0 {
        return Vec::new();
    }
    vec![format!(
        "bramble: {slow} of {runs} runs took more than 1.2 times their median: other programs may have been running"
    )]
}

/// The plot: rates by job size, one line per way; one panel per type, number of jobs and number of threads.
pub(crate) fn charts(points: &[AccumulatePoint]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for p in points {
        let title = format!(
            "{}, {} jobs a block, {}: Gflop/s",
            p.dtype,
            p.case.jobs,
            counted(p.case.threads as u64, "thread")
        );
        let at = charts.iter().position(|chart| chart.title == title).unwrap_or_else(|| {
            let (below, mark) = ("edge of a job".to_owned(), |edge: f64| format!("{edge:.0}"));
            charts.push(Chart { title, below, mark, series: Vec::new(), is_log: false, levels: Vec::new() });
            charts.len() - 1
        });
        let series = &mut charts[at].series;
        let line = series.iter().position(|line| line.name == p.way.name()).unwrap_or_else(|| {
            series.push(Series { name: p.way.to_string(), colour: series.len(), ..Series::default() });
            series.len() - 1
        });
        let BenchSize { m, k, n } = p.case.size;
        series[line].points.push(((m as f64 * k as f64 * n as f64).cbrt(), p.gflops()));
    }
    charts
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::super::AccumulateCase;
    use super::*;
    use crate::accumulate::AccumulateMethod;
    use bramble_kernel::Choice;
    use bramble_matrix::DType;
    use bramble_report::times::Times;
    use std::time::Duration;

    fn point(way: AccumulateMethod) -> AccumulatePoint {
        let ms = Duration::from_millis;
        AccumulatePoint {
            case: AccumulateCase {
                kernel: Choice::Auto,
                size: BenchSize { m: 100, k: 50, n: 100 },
                jobs: 4,
                threads: 2,
            },
            dtype: DType::F32,
            way,
            blocks: 10,
            wall: Times::new(vec![1e-3, 1.1e-3, 2e-3]),
            times_owner: 1.25,
            threads: vec![ThreadTotals { jobs: 60.0, multiply: ms(15), add: ms(4), wait: ms(1) }; 2],
            all_s: 0.02,
            results: 3,
            difference: 1e-6,
        }
    }

    #[test]
    fn all_forms_say_the_same() {
        let p = point(AccumulateMethod::Mutex);
        let (csv, read) = (values(CSV_HEAD, &json(&p)), json(&p));
        assert_eq!(csv.split(',').count(), CSV_HEAD.split(',').count());
        assert_eq!(read.as_object().unwrap().len(), CSV_HEAD.split(',').count() + 2);
        for (name, text) in CSV_HEAD.trim().split(',').zip(csv.split(',')) {
            match read[name].as_f64() {
                Some(number) => {
                    assert!((text.parse::<f64>().unwrap() - number).abs() <= 1e-5 * number, "{name}")
                }
                None => assert_eq!(read[name], text, "{name}"),
            }
        }
        assert_eq!((read["adding"].as_f64(), read["waiting"].as_f64()), (Some(0.2), Some(0.05)));
        let shown = table(&[p]).join("\n");
        for word in
            ["mutex", "100x50x100", "1.10 ms", "275 µs", "1.250", "20 %", "5 %", "50 % 50 %", "1.0e-6"]
        {
            assert!(shown.contains(word), "{word} in {shown}");
        }
    }

    #[test]
    fn every_way_is_a_line_and_what_was_disturbed_is_said() {
        let drawn = charts(&[
            point(AccumulateMethod::Owner),
            point(AccumulateMethod::Mutex),
            point(AccumulateMethod::Mutex),
        ]);
        assert_eq!((drawn.len(), drawn[0].series.len(), drawn[0].series[1].points.len()), (1, 2, 2));
        assert!(warnings(&[point(AccumulateMethod::Owner)])[0].contains("1 of 3 runs"));
    }
}
