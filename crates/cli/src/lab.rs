//! `bramble lab`: the parser of the verb after `lab run`.

use crate::args::{Cli, Command, PlanCommand};
use crate::usage;
use bramble_bench::BenchCommand;
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
    let (machines, words) = match command {
        Command::Multiply(args) => (args.team.machines, 1),
        Command::Batch(args) => (args.team.machines, 1),
        Command::Solve(args) => (args.machines, 1),
        Command::Lu(args) => (args.machines, 1),
        Command::Bench(BenchCommand::Hpl(args)) => (args.machines, 2),
        Command::Plan(args) => match args.command {
            Some(PlanCommand::Lu(args)) => (args.machines, 2),
            None => (args.product.team.machines, 1),
        },
        Command::Nodes(args) => (args.team.machines, 1),
        _ => return RunVerb::Other,
    };
    RunVerb::OnTeam { machines: Box::new(machines), words }
}
