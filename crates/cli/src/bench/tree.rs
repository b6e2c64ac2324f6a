//! `bramble bench tree`: Strassen–Winograd's method by processes, level by level, over each link between them.
//!
//! Place in the flow: starts `bramble multiply --local P --link KIND --strategy strassen:L` as anyone would, on operands in
//! files, and reads what that reports; the time is the product's own, without starting the processes and reading the files.
//!
//! Invariants: all levels and links of a size take turns; every product is verified, or there is no measurement; whatever was
//! started or written is gone with the verb.
//!
//! Deliberately absent: a process for each node of the tree. Workers are as many as are asked for, and each of them
//! computes as many of the 7^L products as it is fast.

use super::chart::{Chart, Ground, Series, drawing};
use super::machine;
use super::multiply::{Said, Verb};
use super::show::{Form, values};
use crate::args::{BenchTreeArgs, LinkKind};
use crate::exit::{Exit, Failure};
use crate::quantity::counted;
use crate::table;
use crate::times::Times;
use crate::until::{Ended, done_or_signal};
use serde_json::{Value, json};
use std::path::Path;

const VERB: Verb = Verb("bench tree");

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    size: u32,
    workers: u16,
    levels: u8,
    link: LinkKind,
}

/// What came of it.
#[derive(Clone, Debug)]
struct Point {
    case: Case,
    dtype: String,
    wall: Times,
    /// To all workers, and from them.
    bytes: [u64; 2],
}

impl Point {
    fn gflops(&self) -> f64 {
        2.0 * f64::from(self.case.size).powi(3) / self.wall.median() / 1e9
    }
}

/// Runs the verb.
pub(crate) fn run(args: &BenchTreeArgs) -> Result<Exit, Failure> {
    args.form.check_plot()?;
    let form = Form::of(&args.form.runs);
    crate::out(machine::head(form, CSV_HEAD).as_bytes())?;
    let mut points = Vec::new();
    if let Ended::Signal(exit) = done_or_signal(all(args, form, &mut points))? {
        return Ok(exit);
    }
    if form == Form::Table {
        crate::out((shown(&points).join("\n") + "\n").as_bytes())?;
    }
    let disturbed: usize = points.iter().map(|p| p.wall.outliers()).sum();
    if disturbed > 0 {
        let all: usize = points.iter().map(|p| p.wall.len()).sum();
        crate::say(&format!("bramble: {disturbed} of {all} runs took more than 1.2 times their median"));
    }
    args.form.write_plot(|| svg(&points))?;
    Ok(Exit::Done)
}

/// Measures everything, and tells as it comes.
async fn all(args: &BenchTreeArgs, form: Form, points: &mut Vec<Point>) -> Result<(), Failure> {
    let cores = u16::try_from(bramble_worker::default_threads()).unwrap_or(u16::MAX);
    let locals = if args.local.is_empty() { vec![cores] } else { args.local.clone() };
    for size in &args.size {
        let folder = VERB.operands(*size, args.dtype).await?;
        for workers in &locals {
            let case = |levels: u8| {
                args.link.iter().map(move |link| Case { size: *size, workers: *workers, levels, link: *link })
            };
            let cases: Vec<Case> = args.levels.iter().flat_map(|levels| case(*levels)).collect();
            let new = in_turns(args, &cases, folder.path()).await?;
            for point in &new {
                crate::out(line(form, point).as_bytes())?;
            }
            points.extend(new);
        }
    }
    Ok(())
}

/// All cases of a size and number of workers, round by round; the first warms up.
async fn in_turns(args: &BenchTreeArgs, cases: &[Case], folder: &Path) -> Result<Vec<Point>, Failure> {
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
        .map(|((case, seconds), bytes)| Point {
            case: *case,
            dtype: dtype.clone(),
            wall: Times::new(seconds),
            bytes,
        })
        .collect())
}

async fn product(args: &BenchTreeArgs, case: &Case, folder: &Path) -> Result<Said, Failure> {
    // Without levels it is the product as it is, by the strategy that the levels are over.
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

/// The first line of comma-separated values.
const CSV_HEAD: &str = "link,levels,workers,dtype,m,k,n,rounds,seconds,seconds_min,seconds_max,gflops,bytes_sent,bytes_received,\
outliers\n";

fn line(form: Form, point: &Point) -> String {
    match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    }
}

fn json(p: &Point) -> Value {
    let Case { size, workers, levels, link } = p.case;
    json!({
        "schema": "bramble.bench.tree/1",
        "link": link.name(), "levels": levels, "workers": workers, "dtype": p.dtype,
        "m": size, "k": size, "n": size, "rounds": p.wall.len(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "gflops": p.gflops(), "bytes_sent": p.bytes[0], "bytes_received": p.bytes[1],
        "outliers": p.wall.outliers(),
    })
}

/// The table: a size, number of workers and level on a line; for each link the time, how far runs are apart, and how many times
/// as fast it is as level 0, or the first that was measured.
fn shown(points: &[Point]) -> Vec<String> {
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
            let of_link = |p: &&Point| (p.case.size, p.case.workers, p.case.link) == (*size, *workers, *link);
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

/// The drawing: a panel for each number of workers, a line for each link and level over the size.
fn svg(points: &[Point]) -> String {
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

    fn point(link: LinkKind, levels: u8, seconds: f64) -> Point {
        let case = Case { size: 1000, workers: 2, levels, link };
        Point { case, dtype: "f64".to_owned(), wall: Times::new(vec![seconds]), bytes: [16, 8] }
    }

    fn points() -> Vec<Point> {
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
