//! `bramble bench product`: whole products, by this process alone and by worker processes over each link, with one thread
//! and with several.
//!
//! Place in the flow: starts `bramble multiply` as anyone would, from files to a file, and reads what that reports: the
//! product's own time, and that of the whole process, with starting workers, reading, verifying and writing.
//!
//! Invariants: all ways of a size take turns; every product is verified, or there is no measurement; whatever was started
//! or written is gone with the verb.
//!
//! Source: what serial and threaded workers take over several networks, sizes 100 to 1600 (the table of "real-time speedup
//! of a multithreaded algorithm over a serial algorithm" that this repeats).
//!
//! Deliberately absent: kernels (`bench threads` has them without anything around) and other machines (`multiply -w`).

use super::chart::{Chart, Ground, Series, drawing};
use super::machine;
use super::multiply::{Said, Verb};
use super::show::{Form, values};
use crate::args::{BenchProductArgs, LinkKind};
use crate::exit::{Exit, Failure};
use crate::table;
use crate::times::Times;
use crate::until::{Ended, done_or_signal};
use serde_json::{Value, json};
use std::path::Path;

const VERB: Verb = Verb("bench product");

/// Who multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// This process.
    Alone,
    /// Worker processes over a link.
    Workers(u16, LinkKind),
}

impl Way {
    /// As in tables and JSON.
    fn link(self) -> &'static str {
        match self {
            Self::Alone => LinkKind::Thread.name(),
            Self::Workers(_, link) => link.name(),
        }
    }

    fn workers(self) -> u16 {
        match self {
            Self::Alone => 0,
            Self::Workers(workers, _) => workers,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Alone => "this process".to_owned(),
            Self::Workers(1, link) => format!("1 worker, {}", link.name()),
            Self::Workers(workers, link) => format!("{workers} workers, {}", link.name()),
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    size: u32,
    way: Way,
    /// Of this process or of each worker.
    threads: u16,
}

/// What came of it.
#[derive(Clone, Debug)]
struct Point {
    case: Case,
    dtype: String,
    /// The product's own time.
    wall: Times,
    /// The whole process's.
    total: Times,
    /// To all workers, and from them.
    bytes: [u64; 2],
}

impl Point {
    fn gflops(&self) -> f64 {
        2.0 * f64::from(self.case.size).powi(3) / self.wall.median() / 1e9
    }
}

/// Runs the verb.
pub(crate) fn run(args: &BenchProductArgs) -> Result<Exit, Failure> {
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

/// Everyone who multiplies, with one thread and with several.
fn cases(args: &BenchProductArgs, size: u32) -> Vec<Case> {
    let several = args.threads.unwrap_or_else(|| {
        // Where there is one core, two threads share it, as they would have to.
        u16::try_from(bramble_worker::default_threads()).unwrap_or(u16::MAX).max(2)
    });
    let threads = if several > 1 { vec![1, several] } else { vec![1] };
    let over = args.link.iter().filter(|link| **link != LinkKind::Thread);
    let workers = over.map(|link| Way::Workers(args.local, *link));
    let alone = args.link.contains(&LinkKind::Thread).then_some(Way::Alone);
    let ways = alone.into_iter().chain(workers);
    ways.flat_map(|way| threads.iter().map(move |threads| Case { size, way, threads: *threads })).collect()
}

/// Measures everything, and tells as it comes.
async fn all(args: &BenchProductArgs, form: Form, points: &mut Vec<Point>) -> Result<(), Failure> {
    for size in &args.size {
        let folder = VERB.operands(*size, args.dtype).await?;
        let new = in_turns(args, &cases(args, *size), folder.path()).await?;
        for point in &new {
            crate::out(line(form, point).as_bytes())?;
        }
        points.extend(new);
    }
    Ok(())
}

/// All cases of a size, round by round; the first warms up.
async fn in_turns(args: &BenchProductArgs, cases: &[Case], folder: &Path) -> Result<Vec<Point>, Failure> {
    let mut said: Vec<Vec<Said>> = vec![Vec::new(); cases.len()];
    for round in 0..=args.form.runs.rounds {
        for (case, said) in cases.iter().zip(&mut said) {
            let one = VERB.product(words(args, case, folder)).await?;
            if round > 0 {
                said.push(one);
            }
        }
    }
    let point = |(case, said): (&Case, Vec<Said>)| Point {
        case: *case,
        dtype: args.dtype.to_string(),
        wall: Times::new(said.iter().map(|said| said.seconds).collect()),
        total: Times::new(said.iter().map(|said| said.total_seconds).collect()),
        bytes: said.last().map_or([0; 2], |said| said.bytes),
    };
    Ok(cases.iter().zip(said).map(point).collect())
}

/// The options of a product.
fn words(args: &BenchProductArgs, case: &Case, folder: &Path) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = ["A.npy", "B.npy"].map(|name| folder.join(name).into()).to_vec();
    words.extend(["-o".into(), folder.join("C.npy").into()]);
    words.extend(["--threads".into(), case.threads.to_string().into()]);
    if let Way::Workers(workers, link) = case.way {
        // Named, so that workers multiply also what this process would do sooner alone.
        words.extend(["--strategy", "reuse", "--link", link.name()].map(Into::into));
        words.extend(["--local".into(), workers.to_string().into()]);
    }
    if let Some(kernel) = &args.kernel {
        words.extend(["--kernel".into(), kernel.to_string().into()]);
    }
    words
}

/// The first line of comma-separated values.
const CSV_HEAD: &str = "link,workers,threads,dtype,m,k,n,rounds,seconds,seconds_min,seconds_max,total_seconds,gflops,bytes_sent,\
bytes_received,outliers\n";

fn line(form: Form, point: &Point) -> String {
    match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    }
}

fn json(p: &Point) -> Value {
    let Case { size, way, threads } = p.case;
    json!({
        "schema": "bramble.bench.product/1",
        "link": way.link(), "workers": way.workers(), "threads": threads, "dtype": p.dtype,
        "m": size, "k": size, "n": size, "rounds": p.wall.len(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "total_seconds": p.total.median(), "gflops": p.gflops(),
        "bytes_sent": p.bytes[0], "bytes_received": p.bytes[1], "outliers": p.wall.outliers(),
    })
}

/// The table: a size and a way on a line; with one thread and with several, the product's time and the whole process's.
fn shown(points: &[Point]) -> Vec<String> {
    let several = points.iter().map(|p| p.case.threads).max().unwrap_or(1);
    let head = [
        "size".to_owned(),
        "by".to_owned(),
        "1 thread, s".to_owned(),
        format!("{several} threads, s"),
        "times as fast".to_owned(),
        "whole process: 1".to_owned(),
        several.to_string(),
        "times as fast".to_owned(),
    ];
    let row = |one: &Point| {
        let is_same = |p: &&Point| (p.case.size, p.case.way) == (one.case.size, one.case.way);
        let best = points.iter().filter(is_same).max_by_key(|p| p.case.threads).unwrap_or(one);
        let times = |of: fn(&Point) -> &Times| {
            let (one, best) = (of(one).median(), of(best).median());
            [format!("{one:.4}"), format!("{best:.4}"), format!("{:.2}", one / best)]
        };
        let name = [one.case.size.to_string(), one.case.way.name()];
        name.into_iter().chain(times(|p| &p.wall)).chain(times(|p| &p.total)).collect()
    };
    let rows: Vec<Vec<String>> = points.iter().filter(|p| p.case.threads == 1).map(row).collect();
    table::lines(&head.each_ref().map(String::as_str), &rows)
}

/// The drawing: a line for each way and number of threads over the size, seconds of the product.
fn svg(points: &[Point]) -> String {
    let mut ways: Vec<Way> = Vec::new();
    let mut series: Vec<Series> = Vec::new();
    for p in points {
        let colour = ways.iter().position(|way| *way == p.case.way).unwrap_or_else(|| {
            ways.push(p.case.way);
            ways.len() - 1
        });
        let plural = if p.case.threads == 1 { "thread" } else { "threads" };
        let name = format!("{}, {} {plural}", p.case.way.name(), p.case.threads);
        let at = series.iter().position(|s| s.name == name).unwrap_or_else(|| {
            series.push(Series { name, colour, is_dashed: p.case.threads == 1, ..Series::default() });
            series.len() - 1
        });
        series[at].points.push((f64::from(p.case.size), p.wall.median()));
    }
    let chart = Chart {
        title: "Products, seconds".to_owned(),
        below: "edge of the product".to_owned(),
        mark: |edge| format!("{edge:.0}"),
        series,
        is_log: true,
        levels: Vec::new(),
    };
    drawing(&[chart], Ground::White)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use crate::args::{BenchCommand, Cli, Command};
    use clap::Parser;

    fn point(way: Way, threads: u16, seconds: f64) -> Point {
        let case = Case { size: 1000, way, threads };
        let (wall, total) = (Times::new(vec![seconds]), Times::new(vec![2.0 * seconds]));
        Point { case, dtype: "f64".to_owned(), wall, total, bytes: [16, 8] }
    }

    fn points() -> Vec<Point> {
        let shm = Way::Workers(2, LinkKind::Shm);
        vec![point(Way::Alone, 1, 2.0), point(Way::Alone, 4, 0.5), point(shm, 1, 1.5), point(shm, 4, 1.0)]
    }

    #[test]
    fn a_way_is_a_line_with_one_thread_and_with_several() {
        let lines = shown(&points());
        let cells = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            cells(0).starts_with("size by 1 thread, s 4 threads, s times as fast whole process"),
            "{}",
            lines[0]
        );
        assert_eq!(cells(1), "1000 this process 2.0000 0.5000 4.00 4.0000 1.0000 4.00");
        assert_eq!(cells(2), "1000 2 workers, shm 1.5000 1.0000 1.50 3.0000 2.0000 1.50");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn values_and_json_say_the_same_and_all_is_drawn() {
        let p = &points()[3];
        assert_eq!(
            values(CSV_HEAD, &json(p)),
            "shm,2,4,f64,1000,1000,1000,1,1.000000e0,1.000000e0,1.000000e0,2.000000e0,2.000000e0,16,8,0"
        );
        assert_eq!(json(&points()[0])["link"], "thread");
        let drawn = svg(&points());
        assert_eq!(drawn.matches("<polyline").count(), 4);
        assert!(drawn.contains("this process, 1 thread<") && drawn.contains("2 workers, shm, 4 threads"));
    }

    #[test]
    fn everyone_multiplies_with_one_thread_and_with_several() {
        let words =
            ["bramble", "bench", "product", "--link", "thread,pipe", "--local", "3", "--threads", "5"];
        let Command::Bench(BenchCommand::Product(args)) = Cli::parse_from(words).command else { panic!() };
        let all: Vec<_> = cases(&args, 64).iter().map(|c| (c.way.name(), c.threads)).collect();
        let want = [("this process", 1), ("this process", 5), ("3 workers, pipe", 1), ("3 workers, pipe", 5)];
        assert_eq!(all, want.map(|(name, threads)| (name.to_owned(), threads)));
    }
}
