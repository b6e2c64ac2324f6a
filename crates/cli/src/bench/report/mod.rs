//! `bramble bench report`: what was measured, as one page to keep, to print and to show; and two machines beside each other.
//!
//! Place in the flow: after the measurements. `read` takes the lines that `--json` printed, `measure` and `schema` say what
//! they mean, `compare` pairs those of two machines, `page` and `draw` write what is read.
//!
//! Invariants: what is not understood is named with its file and line; nothing of a file is on the page unescaped; the page
//! has its name only when it is whole.
//!
//! Deliberately absent: measuring. A page can be made on another machine than any that is on it.

mod compare;
mod draw;
mod measure;
mod page;
mod read;
mod schema;

use crate::args::BenchReportArgs;
use crate::exit::{Exit, Failure};
use read::{Source, source};
use std::ffi::OsStr;

/// Runs the verb.
pub(crate) fn run(args: &BenchReportArgs) -> Result<Exit, Failure> {
    let machines = args.compare.len().max(1);
    if args.label.len() > machines || (machines == 2 && args.label.len() == 1) {
        let times = if machines == 2 { "twice, once for each file" } else { "once" };
        return Err(Failure::usage(format!("--label: give it {times}, or not at all")));
    }
    if let Some(same) = args.files.iter().chain(&args.compare).find(|file| **file == args.output) {
        return Err(Failure::usage(format!("-o {}: is one of the files that are read", same.display())));
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
    sources.iter().flat_map(|source| &source.notes).for_each(|note| crate::say(&format!("bramble: {note}")));
    if args.output.as_os_str() == OsStr::new("-") {
        return crate::out(page.as_bytes());
    }
    crate::out_file::write("-o", &args.output, page.as_bytes())?;
    Ok(Exit::Done)
}

/// Two machines never have one name; versions of Bramble that are different are told.
fn told_apart(mut first: Source, mut second: Source) -> [Source; 2] {
    if first.label == second.label {
        first.label += " (1)";
        second.label += " (2)";
    }
    let [of_first, of_second] = [&first, &second].map(|source| source.facts[read::BRAMBLE].join(", "));
    if !of_first.is_empty() && !of_second.is_empty() && of_first != of_second {
        first.notes.push(format!("versions of Bramble are different: {of_first} and {of_second}"));
    }
    [first, second]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests;
