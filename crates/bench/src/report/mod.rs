//! `bramble bench report`: makes one HTML page from measurements of a machine, or a comparison of two machines.
//!
//! Place in the flow: after the measurements. `read` reads the lines that `--json` printed, `measure` and `schema`
//! interpret them, `compare` pairs the measures of two machines, `page` and `draw` write the HTML.
//!
//! Invariants: lines that cannot be read are listed with file and line; every text from a file is escaped on the
//! page; the page gets its name only when it is complete.
//!
//! Deliberately absent: measuring. A page can be made on a machine that is not on it.

mod compare;
mod draw;
mod measure;
mod page;
mod read;
mod schema;

use crate::args::BenchReportArgs;
use bramble_report::exit::{Exit, Failure};
use read::{MeasuredMachine, source};
use std::ffi::OsStr;

/// Runs the verb.
pub(crate) fn run(args: &BenchReportArgs) -> Result<Exit, Failure> {
    let machines = args.compare.len().max(1);
    if args.label.len() > machines || (machines == 2 && args.label.len() == 1) {
        let times = if machines == 2 { "twice, once for each file" } else { "once" };
        return Err(Failure::usage(format!("--label: give it {times}, or leave it out")));
    }
    if let Some(same) = args.files.iter().chain(&args.compare).find(|file| **file == args.output) {
        return Err(Failure::usage(format!("-o {}: is also an input; choose another name", same.display())));
    }
    let (page, sources) = if let [first, second] = &args.compare[..] {
        let first = source(std::slice::from_ref(first), args.label.first())?;
        let second = source(std::slice::from_ref(second), args.label.get(1))?;
        let [first, second] = told_apart(first, second);
        let all = compare::compared(&first, &second);
        (page::of_two(&first, &second, &all), vec![first, second])
    } else {
        let one = source(&args.files, args.label.first())?;
        (page::of_one(&one), vec![one])
    };
    sources
        .iter()
        .flat_map(|source| &source.notes)
        .for_each(|note| bramble_report::say(&format!("bramble: {note}")));
    if args.output.as_os_str() == OsStr::new("-") {
        return bramble_report::out(page.as_bytes());
    }
    bramble_report::out_file::write("-o", &args.output, page.as_bytes())?;
    Ok(Exit::Done)
}

/// Gives two machines different names, and notes different versions of Bramble.
fn told_apart(mut first: MeasuredMachine, mut second: MeasuredMachine) -> [MeasuredMachine; 2] {
    if first.label == second.label {
        first.label += " (1)";
        second.label += " (2)";
    }
    let [of_first, of_second] = [&first, &second].map(|source| source.facts[read::BRAMBLE].join(", "));
    if !of_first.is_empty() && !of_second.is_empty() && of_first != of_second {
        first.notes.push(format!("the versions of Bramble differ: {of_first} and {of_second}"));
    }
    [first, second]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests;
