//! `bramble bench product`: measures whole products, by this process alone and by worker processes over each link,
//! with one thread and with several.
//!
//! Place in the flow: runs `bramble multiply` from files to a file, and reads from its report the product's own time,
//! and that of the whole process, which includes starting workers, reading, verifying and writing.
//!
//! Invariants: all setups of a size take turns; every product is verified, or there is no measurement; processes and
//! files end with the verb.
//!
//! Source: this repeats a published table, "real-time speedup of a multithreaded algorithm over a serial algorithm":
//! times of serial and threaded workers over several networks, sizes 100 to 1600.
//!
//! Deliberately absent: kernels alone (`bench threads`) and other machines (`multiply -w`).

use super::machine;
use super::multiply::{MultiplyOutcome, Verb};
use super::show::{Form, values};
use crate::args::BenchProductArgs;
use bramble_cluster::args::LinkKind;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_report::chart::{Chart, Ground, Series, drawing};
use bramble_report::exit::{Exit, Failure};
use bramble_report::table;
use bramble_report::times::Times;
use serde_json::{Value, json};
use std::path::Path;

const VERB: Verb = Verb("bench product");

/// The processes that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProductSetup {
    /// This process alone.
    Alone,
    /// Worker processes over a link.
    Workers(u16, LinkKind),
}

impl ProductSetup {
    /// The name of the link in tables and JSON.
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

/// A measured case: size, setup and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProductCase {
    size: u32,
    way: ProductSetup,
    /// Threads of this process, or of each worker.
    threads: u16,
}

/// The measurement of a case.
#[derive(Clone, Debug)]
struct ProductPoint {
    case: ProductCase,
    dtype: String,
    /// Time of the product.
    wall: Times,
    /// Time of the whole process.
    total: Times,
    /// Bytes sent to all workers, and received from them.
    bytes: [u64; 2],
}

impl ProductPoint {
    fn gflops(&self) -> f64 {
        2.0 * f64::from(self.case.size).powi(3) / self.wall.median() / 1e9
    }
}

/// Runs the verb.
pub(crate) fn run(args: &BenchProductArgs) -> Result<Exit, Failure> {
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

/// All setups, with one thread and with several.
fn cases(args: &BenchProductArgs, size: u32) -> Vec<ProductCase> {
    let several = args.threads.unwrap_or_else(|| {
        // With one core, two threads share it.
        u16::try_from(bramble_worker::default_threads()).unwrap_or(u16::MAX).max(2)
    });
    let threads = if several > 1 { vec![1, several] } else { vec![1] };
    let over = args.link.iter().filter(|link| **link != LinkKind::Thread);
    let workers = over.map(|link| ProductSetup::Workers(args.local, *link));
    let alone = args.link.contains(&LinkKind::Thread).then_some(ProductSetup::Alone);
    let ways = alone.into_iter().chain(workers);
    ways.flat_map(|way| threads.iter().map(move |threads| ProductCase { size, way, threads: *threads }))
        .collect()
}

/// Measures all cases, and prints results as they come.
async fn all(args: &BenchProductArgs, form: Form, points: &mut Vec<ProductPoint>) -> Result<(), Failure> {
    for size in &args.size {
        let folder = VERB.operands(*size, args.dtype).await?;
        let new = in_turns(args, &cases(args, *size), folder.path()).await?;
        for point in &new {
            bramble_report::out(line(form, point).as_bytes())?;
        }
        points.extend(new);
    }
    Ok(())
}

/// Measures all cases of a size in rounds; the first round is a warm-up.
async fn in_turns(
    args: &BenchProductArgs,
    cases: &[ProductCase],
    folder: &Path,
) -> Result<Vec<ProductPoint>, Failure> {
    let mut said: Vec<Vec<MultiplyOutcome>> = vec![Vec::new(); cases.len()];
    for round in 0..=args.form.runs.rounds {
        for (case, said) in cases.iter().zip(&mut said) {
            let one = VERB.product(words(args, case, folder)).await?;
            if round > 0 {
                said.push(one);
            }
        }
    }
    let point = |(case, said): (&ProductCase, Vec<MultiplyOutcome>)| ProductPoint {
        case: *case,
        dtype: args.dtype.to_string(),
        wall: Times::new(said.iter().map(|said| said.seconds).collect()),
        total: Times::new(said.iter().map(|said| said.total_seconds).collect()),
        bytes: said.last().map_or([0; 2], |said| said.bytes),
    };
    Ok(cases.iter().zip(said).map(point).collect())
}

/// The options of a product.
fn words(args: &BenchProductArgs, case: &ProductCase, folder: &Path) -> Vec<std::ffi::OsString> {
    let mut words: Vec<std::ffi::OsString> = ["A.npy", "B.npy"].map(|name| folder.join(name).into()).to_vec();
    words.extend(["-o".into(), folder.join("C.npy").into()]);
    words.extend(["--threads".into(), case.threads.to_string().into()]);
    if let ProductSetup::Workers(workers, link) = case.way {
        // A named strategy makes the workers multiply even if this process alone would be faster.
        words.extend(["--strategy", "reuse", "--link", link.name()].map(Into::into));
        words.extend(["--local".into(), workers.to_string().into()]);
    }
    if let Some(kernel) = &args.kernel {
        words.extend(["--kernel".into(), kernel.to_string().into()]);
    }
    words
}

/// The head line of the CSV.
const CSV_HEAD: &str = "link,workers,threads,dtype,m,k,n,rounds,seconds,seconds_min,seconds_max,total_seconds,gflops,bytes_sent,\
bytes_received,outliers\n";

fn line(form: Form, point: &ProductPoint) -> String {
    match form {
        Form::Table => String::new(),
        Form::Csv => values(CSV_HEAD, &json(point)) + "\n",
        Form::Json => json(point).to_string() + "\n",
    }
}

fn json(p: &ProductPoint) -> Value {
    let ProductCase { size, way, threads } = p.case;
    json!({
        "schema": "bramble.bench.product/1",
        "link": way.link(), "workers": way.workers(), "threads": threads, "dtype": p.dtype,
        "m": size, "k": size, "n": size, "rounds": p.wall.count(),
        "seconds": p.wall.median(), "seconds_min": p.wall.min(), "seconds_max": p.wall.max(),
        "total_seconds": p.total.median(), "gflops": p.gflops(),
        "bytes_sent": p.bytes[0], "bytes_received": p.bytes[1], "outliers": p.wall.outliers(),
    })
}

/// The table: one size and setup per line, with the times of product and whole process, for one thread and for
/// several.
fn shown(points: &[ProductPoint]) -> Vec<String> {
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
    let row = |one: &ProductPoint| {
        let is_same = |p: &&ProductPoint| (p.case.size, p.case.way) == (one.case.size, one.case.way);
        let best = points.iter().filter(is_same).max_by_key(|p| p.case.threads).unwrap_or(one);
        let times = |of: fn(&ProductPoint) -> &Times| {
            let (one, best) = (of(one).median(), of(best).median());
            [format!("{one:.4}"), format!("{best:.4}"), format!("{:.2}", one / best)]
        };
        let name = [one.case.size.to_string(), one.case.way.name()];
        name.into_iter().chain(times(|p| &p.wall)).chain(times(|p| &p.total)).collect()
    };
    let rows: Vec<Vec<String>> = points.iter().filter(|p| p.case.threads == 1).map(row).collect();
    table::lines(&head.each_ref().map(String::as_str), &rows)
}

/// The plot: seconds of the product by size, one line per setup and number of threads.
fn svg(points: &[ProductPoint]) -> String {
    let mut ways: Vec<ProductSetup> = Vec::new();
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
    use crate::args::BenchCommand;
    use clap::Parser;

    #[derive(Parser)]
    struct Bench {
        #[command(subcommand)]
        command: BenchCommand,
    }

    fn point(way: ProductSetup, threads: u16, seconds: f64) -> ProductPoint {
        let case = ProductCase { size: 1000, way, threads };
        let (wall, total) = (Times::new(vec![seconds]), Times::new(vec![2.0 * seconds]));
        ProductPoint { case, dtype: "f64".to_owned(), wall, total, bytes: [16, 8] }
    }

    fn points() -> Vec<ProductPoint> {
        let shm = ProductSetup::Workers(2, LinkKind::Shm);
        vec![
            point(ProductSetup::Alone, 1, 2.0),
            point(ProductSetup::Alone, 4, 0.5),
            point(shm, 1, 1.5),
            point(shm, 4, 1.0),
        ]
    }

    #[test]
    fn a_setup_is_a_line_with_one_thread_and_with_several() {
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
    fn every_setup_multiplies_with_one_thread_and_with_several() {
        let words = ["bench", "product", "--link", "thread,pipe", "--local", "3", "--threads", "5"];
        let BenchCommand::Product(args) = Bench::parse_from(words).command else { panic!() };
        let all: Vec<_> = cases(&args, 64).iter().map(|c| (c.way.name(), c.threads)).collect();
        let want = [("this process", 1), ("this process", 5), ("3 workers, pipe", 1), ("3 workers, pipe", 5)];
        assert_eq!(all, want.map(|(name, threads)| (name.to_owned(), threads)));
    }
}
