//! What a batch prints: a line for each task, or one JSON object for each (docs/json.md).

use super::tasks::BatchOutcome;
use bramble_matrix::{DType, Shape};
use bramble_plan::ShardAxis;
use bramble_primary::{MakeReport, PartReport, PutReport, ReduceReport, Report};
use bramble_report::error_object;
use bramble_report::exit::{Exit, Failure};
use bramble_report::placed;
use bramble_report::product;
use bramble_report::quantity::{bytes, counted, seconds};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The name of a JSON object of a task.
const SCHEMA: &str = "bramble.batch/1";

/// A task as the report names it.
pub(crate) struct TaskLine<'a> {
    /// The number of its line, from 1.
    pub(crate) number: usize,
    /// The line without spaces around it.
    pub(crate) text: &'a str,
    /// How long it took, with opening its operands and keeping its result.
    pub(crate) took: Duration,
}

/// The exit code of a task that has a result.
pub(crate) fn exit_of(outcome: &BatchOutcome) -> Exit {
    match outcome {
        BatchOutcome::Product(report, _) => product::exit(report),
        BatchOutcome::Put(put) if !put.lost.is_empty() => Exit::Degraded,
        BatchOutcome::Made(made) | BatchOutcome::Fetched(.., Some(made)) if !made.put.lost.is_empty() => {
            Exit::Degraded
        }
        BatchOutcome::Sum(..)
        | BatchOutcome::Reduced(..)
        | BatchOutcome::Put(_)
        | BatchOutcome::Made(_)
        | BatchOutcome::Fetched(..)
        | BatchOutcome::Freed => Exit::Done,
    }
}

/// Names the machines whose tiles were wrong, also with `--quiet`: the result is right, but they need attention.
pub(crate) fn warn(outcome: &BatchOutcome) {
    if let BatchOutcome::Product(report, _) = outcome {
        report.check.wrong.iter().for_each(|wrong| bramble_report::say(&product::wrong_tiles(wrong)));
    }
}

/// The line of a task; with `is_verbose` also the report of its product.
pub(crate) fn text(line: &TaskLine<'_>, outcome: &BatchOutcome, is_verbose: bool) -> String {
    let (number, task, took) = (line.number, line.text, seconds(line.took.as_secs_f64()));
    match outcome {
        BatchOutcome::Product(report, _) => {
            let p = &report.problem;
            let verified = verified(report);
            let head = format!(
                "line {number}: {task}: {}x{} {}, k = {}, in {took}; {:.1} Gflop/s, first job after {}; {verified}\n",
                p.m,
                p.n,
                p.dtype,
                p.k,
                report.gflops(),
                seconds(report.opening_seconds),
            );
            let rest = is_verbose.then(|| product::text(report, task, true, line.took.as_secs_f64(), None));
            head + &rest.unwrap_or_default()
        }
        BatchOutcome::Sum(shape, dtype, _) => format!("line {number}: {task}: {shape} {dtype} in {took}\n"),
        BatchOutcome::Reduced(results, at) => {
            let one = |(shape, dtype, _): &(Shape, DType, Option<String>)| format!("{shape} {dtype}");
            let results = results.iter().map(one).collect::<Vec<_>>().join(" and ");
            let at = at.as_ref().map_or_else(String::new, reduced_where);
            format!("line {number}: {task}: {results} in {took}{at}\n")
        }
        BatchOutcome::Put(put) => {
            let (shape, dtype, parts) = (put.shape, put.dtype, parts(put));
            format!("line {number}: {task}: {shape} {dtype} in {took}; {parts}\n")
        }
        BatchOutcome::Made(made) => {
            let (shape, dtype, parts, how) =
                (made.put.shape, made.put.dtype, parts(&made.put), how_made(made));
            format!("line {number}: {task}: {shape} {dtype} in {took}; {parts}; {how}\n")
        }
        BatchOutcome::Fetched(shape, dtype, _, made) => {
            let how = made.as_ref().map_or_else(String::new, |made| format!("; {}", how_made(made)));
            format!("line {number}: {task}: {shape} {dtype} in {took}, from the machines that held it{how}\n")
        }
        BatchOutcome::Freed => format!("line {number}: {task}\n"),
    }
}

/// `columns at pi1 2048, pi2 1024`, or `whole at pi1, pi2`.
fn parts(put: &PutReport) -> String {
    let one = |part: &PartReport| match put.axis {
        None => part.machine.clone(),
        Some(ShardAxis::Rows) => format!("{} {}", part.machine, part.rect.rows.len()),
        Some(ShardAxis::Cols) => format!("{} {}", part.machine, part.rect.cols.len()),
    };
    let what = match put.axis {
        None => "whole",
        Some(ShardAxis::Rows) => "rows",
        Some(ShardAxis::Cols) => "columns",
    };
    format!("{what} at {}", put.parts.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// `56 MB sent, 3 MB between machines; checked`.
fn how_made(made: &MakeReport) -> String {
    let checked = checked(made.is_checked, made.lines_recomputed, "line");
    let (sent, between) = (bytes(made.put.bytes_sent as f64), bytes(made.bytes_between as f64));
    format!("{sent} sent, {between} between machines; {checked}")
}

fn checked(is_checked: bool, recomputed: u64, what: &str) -> String {
    match (is_checked, recomputed) {
        (false, _) => "not checked".to_owned(),
        (true, 0) => "checked".to_owned(),
        (true, lines) => format!("checked, {} computed again", counted(lines, what)),
    }
}

/// `, at 4 machines, 56 MB sent, 3 MB back; checked`.
fn reduced_where(at: &ReduceReport) -> String {
    let back: u64 = at.machines.iter().map(|(_, bytes)| bytes).sum();
    let checked = checked(at.is_checked, at.rows_recomputed, "row");
    let machines = counted(at.machines.len() as u64, "machine");
    format!(", at {machines}, {} sent, {} back; {checked}", bytes(at.bytes_sent as f64), bytes(back as f64))
}

fn verified(report: &Report) -> &'static str {
    match () {
        () if report.unverified() => "not verified (--verify off)",
        () if report.check.verify.verdict.is_complete() => "verified",
        () => "verified in part",
    }
}

/// The object of a task that has a result.
pub(crate) fn json(line: &TaskLine<'_>, outcome: &BatchOutcome) -> Value {
    let took = line.took.as_secs_f64();
    let mut object = head(line);
    let fields = match outcome {
        BatchOutcome::Product(report, digest) => {
            let digest = digest.as_deref().unwrap_or_default();
            json!({"kind": "product", "digest": digest, "product": product::json(report, took, digest)})
        }
        BatchOutcome::Sum(shape, dtype, digest) => {
            json!({"kind": "sum", "digest": digest, "rows": shape.rows, "cols": shape.cols, "dtype": dtype.name()})
        }
        BatchOutcome::Reduced(results, at) => {
            let mut all = Vec::new();
            for (Shape { rows, cols }, dtype, digest) in results {
                all.push(json!({"digest": digest, "rows": rows, "cols": cols, "dtype": dtype.name()}));
            }
            let mut fields = json!({"kind": "reduction", "results": all});
            if let Some(at) = at {
                placed::merge(&mut fields, placed::reduction_json(at));
            }
            fields
        }
        BatchOutcome::Put(put) => placed::put_json(put),
        BatchOutcome::Made(made) => placed::made_json(made),
        BatchOutcome::Fetched(shape, dtype, digest, made) => json!({
            "kind": "fetched",
            "digest": digest,
            "rows": shape.rows,
            "cols": shape.cols,
            "dtype": dtype.name(),
            "made": made.as_ref().map(placed::made_json),
        }),
        BatchOutcome::Freed => json!({"kind": "free"}),
    };
    placed::merge(&mut object, fields);
    object
}

/// The object of a task that failed.
pub(crate) fn error_json(line: &TaskLine<'_>, failure: &Failure) -> Value {
    let mut object = head(line);
    placed::merge(&mut object, json!({"kind": "error", "error": error_object::error(failure)}));
    object
}

fn head(line: &TaskLine<'_>) -> Value {
    json!({"schema": SCHEMA, "line": line.number, "task": line.text, "seconds": line.took.as_secs_f64()})
}

/// Counts of a batch.
pub(crate) struct TaskTally {
    began: Instant,
    kinds: BTreeMap<&'static str, u64>,
}

impl TaskTally {
    pub(crate) fn new(began: Instant) -> Self {
        Self { began, kinds: BTreeMap::new() }
    }

    /// Counts a task.
    pub(crate) fn add(&mut self, result: Result<&BatchOutcome, &Failure>) {
        let kind = match result {
            Ok(BatchOutcome::Product(..)) => "product",
            Ok(BatchOutcome::Sum(..)) => "sum",
            Ok(BatchOutcome::Reduced(..)) => "reduction",
            Ok(BatchOutcome::Put(_)) => "put",
            Ok(BatchOutcome::Made(_)) => "kept result",
            Ok(BatchOutcome::Fetched(..)) => "fetched result",
            Ok(BatchOutcome::Freed) => return,
            Err(_) => "failure",
        };
        *self.kinds.entry(kind).or_default() += 1;
    }

    /// The last line.
    pub(crate) fn text(&self) -> String {
        let counts: Vec<String> = self.kinds.iter().map(|(kind, count)| counted(*count, kind)).collect();
        let counts = if counts.is_empty() { "nothing to do".to_owned() } else { counts.join(", ") };
        format!("total {}: {counts}\n", seconds(self.began.elapsed().as_secs_f64()))
    }
}
