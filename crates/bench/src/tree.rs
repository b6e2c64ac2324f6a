//! `bramble bench tree`: measures Strassen–Winograd's method by worker processes, for several levels and links.
//!
//! Place in the flow: runs `bramble multiply --local P --link KIND --strategy strassen:L` on operands in files, and
//! reads the time of the product from its report; starting processes and reading files do not count.
//!
//! Invariants: all levels and links of a size take turns; every product is verified, or there is no measurement;
//! processes and files end with the verb.
//!
//! Deliberately absent: one process per node of the tree. The user chooses the number of workers, and the plan
//! divides the 7^L products among them by speed.

use super::machine;
use super::multiply::{MultiplyOutcome, Verb};
use super::show::{Form, values};
use crate::args::BenchTreeArgs;
use bramble_cluster::args::LinkKind;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_report::chart::{Chart, Ground, Series, drawing};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::counted;
use bramble_report::table;
use bramble_report::times::Times;
use serde_json::{Value, json};
use std::path::Path;

const VERB: Verb = Verb("bench tree");

/// A measured case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TreeCase {
    size: u32,
    workers: u16,
    levels: u8,
    link: LinkKind,
}

/// The measurement of a case.
#[derive(Clone, Debug)]
struct TreePoint {
    case: TreeCase,
    dtype: String,
    wall: Times,
    /// Bytes sent to all workers, and received from them.
    bytes: [u64; 2],
}

impl TreePoint {
    fn gflops(&self) -> f64 {
        2.0 * f64::from(self.case.size).powi(3) / self.wall.median() / 1e9
    }
}

/// Runs the verb.
pub(crate) fn run(args: &BenchTreeArgs) -> Result<Exit, Failure> {
    args.form.plot.check()?;
    let form = Form::of(&args.form.runs);
    bramble_report::out(machine::head(form, CSV_HEAD).as_bytes())?;
    let mut points = Vec::new();
    if let Completion::Signal(exit) = done_or_signal(all(args, form, &mut points))? {
        return Ok(exit);
    }
    if form == Form::Table {
        bramble_report::out((shown(&points).join("\n") + "\n").as_bytes())?;
    }
    let disturbed: usize = points.iter().map(|p| p.wall.outliers()).sum();
    if disturbed > 0 {
        let all: usize = points.iter().map(|p| p.wall.count()).sum();
        bramble_report::say(&format!(
            "bramble: {disturbed} of {all} runs took more than 1.2 times their median"
        ));
    }
    args.form.plot.write(|| svg(&points))?;
    Ok(Exit::Done)
}

/// Measures all cases, and prints results as they come.
async fn all(args: &BenchTreeArgs, form: Form, points: &mut Vec<TreePoint>) -> Result<(), Failure> {
    let cores = u16::try_from(bramble_worker::default_threads()).unwrap_or(u16::MAX);
    let locals = if args.local.is_empty() { vec![cores] } else { args.local.clone() };
    for size in &args.size {
        let folder = VERB.operands(*size, args.dtype).await?;
        for workers in &locals {
            let case = |levels: u8| {
                args.link.iter().map(move |link| TreeCase {
                    size: *size,
                    workers: *workers,
                    levels,
                    link: *link,
                })
            };
            let cases: Vec<TreeCase> = args.levels.iter().flat_map(|levels| case(*levels)).collect();
            let new = in_turns(args, &cases, folder.path()).await?;
            for point in &new {
                bramble_report::out(line(form, point).as_bytes())?;
            }
            points.extend(new);
        }
    }
    Ok(())
}

/// Measures all cases of a size and number of workers in rounds; the first round is a warm-up.
async fn in_turns(
    args: &BenchTreeArgs,
    cases: &[TreeCase],
    folder: &Path,
) -> Result<Vec<TreePoint>, Failure> {
    let mut seconds = vec![Vec::new(); cases.len()];
    let mut bytes = vec![[0; 2]; cases.len()];
    for round in 0..=args.form.runs.rounds {
        for (at, case) in cases.iter().enumerate() {
            let said = product(args, case, folder).await?;
            if round > 0 {
                seconds[at].push(said.seconds);
                bytes[at] = said.bytes;
            }
        }
    }
    let dtype = args.dtype.to_string();
    let measured = cases.iter().zip(seconds).zip(bytes);
    Ok(measured
        .map(|((case, seconds), bytes)| TreePoint {
            case: *case,
            dtype: dtype.clone(),
            wall: Times::new(seconds),
            bytes,
        })
        .collect())
}

async fn product(args: &BenchTreeArgs, case: &TreeCase, folder: &Path) -> Result<MultiplyOutcome, Failure> {
    // Level 0 is the plain product, by the strategy that the levels are built on.
    let strategy = format!("strassen:{}", case.levels);
    let mut words: Vec<std::ffi::OsString> = ["A.npy", "B.npy"].map(|name| folder.join(name).into()).to_vec();
    words.extend(["--strategy", &strategy, "--link", case.link.name()].map(Into::into));
    words.extend(["--local".into(), case.workers.to_string().into()]);
    if let Some(threads) = args.threads {
        words.extend(["--threads".into(), threads.to_string().into()]);
    }
    if let Some(kernel) = &args.kernel {
        words.extend(["--kernel".into(), kernel.to_string().into()]);
    }
    VERB.product(words).await
}

/// The head line of the CSV.
const CSV_HEAD: &str = "link,levels,workers,dtype,m,k,n,rounds,seconds,seconds_min,seconds_max,gflops,bytes_sent,bytes_received,\
outliers\n";

fn line(form: Form, point: &TreePoint) -> String {
    match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    }
}

fn json(p: &TreePoint) -> Value {
    let TreeCase { size, workers, levels, link } = p.case;
    json!({
        "schema": "bramble.bench.tree/1",
        "link": link.name(), "levels": levels, "workers": workers, "dtype": p.dtype,
        "m": size, "k": size, "n": size, "rounds": p.wall.count(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "gflops": p.gflops(), "bytes_sent": p.bytes[0], "bytes_received": p.bytes[1],
        "outliers": p.wall.outliers(),
    })
}

/// The table: one size, number of workers and level per line; for each link the time, the spread, and the speed-up
/// over level 0, or over the first level measured.
fn shown(points: &[TreePoint]) -> Vec<String> {
    let mut links: Vec<LinkKind> = Vec::new();
    let mut rows: Vec<(u32, u16, u8)> = Vec::new();
    for p in points {
        if !links.contains(&p.case.link) {
            links.push(p.case.link);
        }
        let row = (p.case.size, p.case.workers, p.case.levels);
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let mut head = vec!["size".to_owned(), "workers".to_owned(), "levels".to_owned(), "products".to_owned()];
    for link in &links {
        head.extend([format!("{}, s", link.name()), "spread".to_owned(), "speed-up".to_owned()]);
    }
    let row = |(size, workers, levels): &(u32, u16, u8)| {
        let products = 7u32.pow(u32::from(*levels));
        let mut row = vec![size.to_string(), workers.to_string(), levels.to_string(), products.to_string()];
        for link in &links {
            let of_link =
                |p: &&TreePoint| (p.case.size, p.case.workers, p.case.link) == (*size, *workers, *link);
            let first = points.iter().filter(of_link).min_by_key(|p| p.case.levels);
            let own = points.iter().filter(of_link).find(|p| p.case.levels == *levels);
            let Some((first, own)) = first.zip(own) else { continue };
            row.push(format!("{:.3}", own.wall.median()));
            row.push(format!("{:.0} %", 100.0 * own.wall.spread()));
            row.push(format!("{:.2}", first.wall.median() / own.wall.median()));
        }
        row
    };
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    table::lines(&head, &rows.iter().map(row).collect::<Vec<_>>())
}

/// The plot: one panel per number of workers, one line per link and level, by size.
fn svg(points: &[TreePoint]) -> String {
    let mut workers: Vec<u16> = points.iter().map(|p| p.case.workers).collect();
    workers.dedup();
    let panel = |workers: &u16| {
        let mut series: Vec<Series> = Vec::new();
        for p in points.iter().filter(|p| p.case.workers == *workers) {
            let name = format!("{}, {}", p.case.link.name(), counted(p.case.levels.into(), "level"));
            let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
                let colour = usize::from(p.case.levels);
                let is_dashed = p.case.link == LinkKind::Pipe;
                series.push(Series { name, colour, is_dashed, ..Series::default() });
                series.len() - 1
            });
            series[at].points.push((f64::from(p.case.size), p.gflops()));
        }
        Chart {
            title: format!("Strassen–Winograd by {workers} worker processes, Gflop/s"),
            below: "edge of the product".to_owned(),
            mark: |edge| format!("{edge:.0}"),
            series,
            is_log: false,
            levels: Vec::new(),
        }
    };
    drawing(&workers.iter().map(panel).collect::<Vec<_>>(), Ground::White)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    fn point(link: LinkKind, levels: u8, seconds: f64) -> TreePoint {
        let case = TreeCase { size: 1000, workers: 2, levels, link };
        TreePoint { case, dtype: "f64".to_owned(), wall: Times::new(vec![seconds]), bytes: [16, 8] }
    }

    fn points() -> Vec<TreePoint> {
        let all = [
            (LinkKind::Pipe, 0, 2.0),
            (LinkKind::Shm, 0, 1.0),
            (LinkKind::Pipe, 2, 1.0),
            (LinkKind::Shm, 2, 0.25),
        ];
        all.into_iter().map(|(link, levels, seconds)| point(link, levels, seconds)).collect()
    }

    #[test]
    fn a_level_is_a_line_and_a_link_three_columns() {
        let lines = shown(&points());
        let cells = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells(0), "size workers levels products pipe, s spread speed-up shm, s spread speed-up");
        assert_eq!(cells(1), "1000 2 0 1 2.000 0 % 1.00 1.000 0 % 1.00");
        assert_eq!(cells(2), "1000 2 2 49 1.000 0 % 2.00 0.250 0 % 4.00");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn values_and_json_say_the_same_and_all_is_drawn() {
        let p = &points()[3];
        assert_eq!(
            values(CSV_HEAD, &json(p)),
            "shm,2,2,f64,1000,1000,1000,1,2.500000e-1,2.500000e-1,2.500000e-1,8.000000e0,16,8,0"
        );
        assert_eq!(json(p)["gflops"], 8.0);
        let drawn = svg(&points());
        assert_eq!(drawn.matches("<polyline").count(), 4);
        assert!(drawn.contains("shm, 2 levels") && drawn.contains("by 2 worker processes"));
    }
}
