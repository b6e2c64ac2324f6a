//! `bramble lab`: the parser of the verb after `lab run`.

use crate::args::{Cli, Command};
use crate::usage;
use bramble_lab::{LabCommand, RunVerb};
use bramble_report::exit::{Exit, Failure};
use std::ffi::{OsStr, OsString};

/// Runs the verb.
pub(crate) fn run(command: &LabCommand) -> Result<Exit, Failure> {
    bramble_lab::run(command, parsed)
}

/// The verb and the machines that its options name.
fn parsed(words: &[OsString]) -> RunVerb {
    let whole = [OsStr::new("bramble")].into_iter().chain(words.iter().map(OsString::as_os_str));
    let command = match Cli::read_from(whole) {
        Ok(cli) => cli.command,
        Err(e) => {
            let is_help = usage::report(&e) == Exit::Done.number();
            return RunVerb::Answered(if is_help { Exit::Done } else { Exit::Usage });
        }
    };
    match command {
        Command::Multiply(args) => RunVerb::OnTeam(Box::new(args.team)),
        Command::Batch(args) => RunVerb::OnTeam(Box::new(args.team)),
        Command::Plan(args) if args.command.is_none() => RunVerb::OnTeam(Box::new(args.product.team)),
        Command::Nodes(args) => RunVerb::OnTeam(Box::new(args.team)),
        _ => RunVerb::Other,
    }
}
