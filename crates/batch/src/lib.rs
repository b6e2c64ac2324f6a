//! `bramble batch`: tasks from a file or from standard input, over one open cluster (docs/batch.md).
//!
//! Place in the flow: reads lines, has `language` parse them and `tasks` carry them out, prints each outcome.
//!
//! Invariants: a file is parsed as a whole before any machine is contacted, so a mistake in its last line costs no work. From a
//! pipe, each task runs when its line arrives. An error names the line. Results that were there before a failure stay.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod language;
mod put;
mod rect;
mod reduce;
mod report;
mod stay;
mod tasks;
mod words;

pub use args::BatchArgs;
use language::{BatchTask, parse};
use report::{TaskLine, TaskTally};
use tasks::TaskRunner;

use bramble_client::{Client, ClientOptions};
use bramble_cluster::args::is_standard_stream;
use bramble_cluster::team::TeamSpec;
use bramble_cluster::text_file;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_report::exit::{Exit, Failure};
use bramble_report::progress::ProgressOptions;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::time::Instant;
use tokio::sync::mpsc;

/// Largest batch file.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Longest line of a batch that comes through a pipe.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Lines of a pipe that are read ahead.
const LINES_AHEAD: usize = 16;

/// A line with a task.
struct NumberedTask {
    number: usize,
    text: String,
    task: BatchTask,
}

/// Where the tasks come from.
enum TaskSource {
    /// All lines of a file, parsed.
    File(std::vec::IntoIter<NumberedTask>),
    /// Lines that arrive through a pipe.
    Pipe(mpsc::Receiver<io::Result<String>>),
}

/// Runs the verb.
pub fn run(args: &BatchArgs, began: Instant) -> Result<Exit, Failure> {
    let team = TeamSpec::of(&args.team)?;
    args.cut.check_relay(&args.team)?;
    let name = name_of(args);
    let source = source(args, &name)?;
    let work = async {
        let client = Client::open(team, &args.team, client_options(args)).await?;
        let mut runner = TaskRunner::new(args, client);
        let exit = run_all(args, &name, source, &mut runner, began).await;
        runner.close().await;
        exit
    };
    match done_or_signal(work)? {
        Completion::Done(exit) | Completion::Signal(exit) => Ok(exit),
    }
}

/// How a batch uses its cluster.
fn client_options(args: &BatchArgs) -> ClientOptions {
    ClientOptions {
        cut: args.cut.clone(),
        verify: args.verify,
        steals: !args.no_steal,
        account: args.verbose,
        degraded: args.team.degraded,
        progress: ProgressOptions {
            is_quiet: args.quiet,
            is_json: args.json,
            is_verbose: args.verbose,
            is_brief: !args.verbose,
            keeps_journal: false,
        },
    }
}

/// The batch as errors name it.
fn name_of(args: &BatchArgs) -> String {
    if is_standard_stream(&args.file) { "standard input".to_owned() } else { args.file.display().to_string() }
}

/// Opens the batch, and parses it if it is a file.
fn source(args: &BatchArgs, name: &str) -> Result<TaskSource, Failure> {
    if is_standard_stream(&args.file) {
        if io::stdin().is_terminal() && !args.quiet {
            bramble_report::say("bramble: reading tasks from the terminal; end them with Ctrl-D");
        }
        return Ok(TaskSource::Pipe(lines_of(io::stdin())));
    }
    let unreadable = |e: io::Error| Failure::failed(format!("{name}: cannot be read: {e}"));
    if !std::fs::metadata(&args.file).map_err(unreadable)?.is_file() {
        return Ok(TaskSource::Pipe(lines_of(File::open(&args.file).map_err(unreadable)?)));
    }
    let text = text_file::read(&args.file, FILE_BYTES_MAX, "a list of tasks")
        .map_err(|why| Failure::failed(format!("{name}: {why}")))?;
    parse_all(name, &text).map(|tasks| TaskSource::File(tasks.into_iter()))
}

/// Parses every line of a file, and checks that each name is kept before it is used.
fn parse_all(name: &str, text: &str) -> Result<Vec<NumberedTask>, Failure> {
    let mut tasks = Vec::new();
    let mut kept = BTreeSet::new();
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let number = at + 1;
        let wrong = |why: String| Failure::usage(format!("{name}, line {number}: {why}"));
        let Some(task) = parse(line).map_err(wrong)? else { continue };
        if let Some(unknown) = task.uses().into_iter().find(|used| !kept.contains(*used)) {
            return Err(wrong(format!(
                "{unknown}: no earlier line keeps a matrix under this name; write ./{unknown} for a file"
            )));
        }
        task.changes(&mut kept);
        tasks.push(NumberedTask { number, text: line.trim().to_owned(), task });
    }
    Ok(tasks)
}

/// Reads lines on a thread of its own, so that the connections to the workers stay alive meanwhile.
fn lines_of(input: impl Read + Send + 'static) -> mpsc::Receiver<io::Result<String>> {
    let (to, lines) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        let mut input = BufReader::new(input);
        loop {
            let mut line = String::new();
            let result = match (&mut input).take(LINE_BYTES_MAX).read_line(&mut line) {
                Ok(0) => return,
                Ok(read) if read as u64 == LINE_BYTES_MAX && !line.ends_with('\n') => {
                    Err(io::Error::other(format!("a line is longer than {LINE_BYTES_MAX} bytes")))
                }
                Ok(_) => Ok(line),
                Err(e) => Err(e),
            };
            let is_last = result.is_err();
            if to.blocking_send(result).is_err() || is_last {
                return;
            }
        }
    });
    lines
}

impl TaskSource {
    /// The next task; `None` after the last one.
    async fn next(&mut self, lines: &mut usize) -> Option<Result<NumberedTask, (usize, String, Failure)>> {
        match self {
            Self::File(tasks) => tasks.next().map(Ok),
            Self::Pipe(arriving) => loop {
                let line = arriving.recv().await?;
                *lines += 1;
                let number = *lines;
                let failed = |text: &str, why: Failure| Some(Err((number, text.to_owned(), why)));
                let line = match line {
                    Ok(line) => line,
                    Err(e) => return failed("", Failure::failed(format!("cannot be read: {e}"))),
                };
                let text = line.trim();
                match parse(text) {
                    Ok(None) => {}
                    Ok(Some(task)) => return Some(Ok(NumberedTask { number, text: text.to_owned(), task })),
                    Err(why) => return failed(text, Failure::usage(why)),
                }
            },
        }
    }
}

/// Runs the tasks until the last, or until one fails and `--keep-going` was not given.
async fn run_all(
    args: &BatchArgs,
    name: &str,
    mut source: TaskSource,
    runner: &mut TaskRunner<'_>,
    began: Instant,
) -> Result<Exit, Failure> {
    let (mut tally, mut lines) = (TaskTally::new(began), 0);
    // The exit codes of the failure that came first, and of the worst result.
    let (mut failed, mut worst) = (None, Exit::Done);
    while let Some(next) = tokio::select! {
        next = source.next(&mut lines) => next,
        () = runner.client.attend() => None,
    } {
        let since = Instant::now();
        let (number, text, result) = match next {
            Ok(NumberedTask { number, text, task }) => {
                let result = runner.run(&task).await;
                (number, text, result)
            }
            Err((number, text, failure)) => (number, text, Err(failure)),
        };
        let line = TaskLine { number, text: &text, took: since.elapsed() };
        tally.add(result.as_ref());
        match result {
            Ok(outcome) => {
                worst = worse(worst, report::exit_of(&outcome));
                report::warn(&outcome);
                match (args.json, args.quiet) {
                    (true, _) => {
                        bramble_report::out(format!("{}\n", report::json(&line, &outcome)).as_bytes())?
                    }
                    (false, true) => Exit::Done,
                    (false, false) => {
                        bramble_report::out(report::text(&line, &outcome, args.verbose).as_bytes())?
                    }
                };
            }
            Err(failure) => {
                let failure = Failure { text: format!("{name}, line {number}: {}", failure.text), ..failure };
                if !args.keep_going {
                    return Err(failure);
                }
                if args.json {
                    bramble_report::out(format!("{}\n", report::error_json(&line, &failure)).as_bytes())?;
                }
                bramble_report::say(&format!("bramble: {}", failure.text.replace('\n', " ")));
                failed.get_or_insert(failure.exit);
            }
        }
    }
    if !args.json && !args.quiet {
        bramble_report::out(tally.text().as_bytes())?;
    }
    let worst = if runner.client.has_restored() { worse(worst, Exit::Degraded) } else { worst };
    Ok(failed.unwrap_or(worst))
}

/// The exit code that tells more: an unverified part comes before a lost machine.
fn worse(one: Exit, other: Exit) -> Exit {
    let rank = |exit: Exit| match exit {
        Exit::Done => 0,
        Exit::Degraded => 1,
        _ => 2,
    };
    if rank(other) > rank(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_parsed_with_the_numbers_of_its_lines() {
        let tasks = parse_all("t", "\u{feff}# head\n\nH = a.npy @ b.npy\r\n  H -> c.npy\nfree H\n").unwrap();
        let seen: Vec<_> = tasks.iter().map(|task| (task.number, task.text.as_str())).collect();
        assert_eq!(seen, [(3, "H = a.npy @ b.npy"), (4, "H -> c.npy"), (5, "free H")]);
    }

    #[test]
    fn names_are_known_before_they_are_used() {
        for (text, line, name) in [
            ("H = a.npy @ W", 1, "W"),
            ("H = a.npy @ b.npy\nfree H\nc.npy = 2 * H", 3, "H"),
            ("H = a.npy + H", 1, "H"),
            ("\nW -> w.npy", 2, "W"),
            ("free W", 1, "W"),
        ] {
            let failure = parse_all("t", text).err().unwrap_or_else(|| panic!("{text}"));
            assert_eq!(failure.exit, Exit::Usage);
            assert!(
                failure.text.starts_with(&format!("t, line {line}: {name}: no earlier line")),
                "{}",
                failure.text
            );
        }
    }

    #[test]
    fn a_part_that_is_not_verified_comes_before_a_lost_machine() {
        assert_eq!(worse(Exit::Done, Exit::Degraded), Exit::Degraded);
        assert_eq!(worse(Exit::Degraded, Exit::Partial), Exit::Partial);
        assert_eq!(worse(Exit::Partial, Exit::Degraded), Exit::Partial);
    }
}
