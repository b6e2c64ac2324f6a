//! `bramble`: the command line around the crates of primary and worker.
//!
//! Place in the flow: first and last. It turns arguments into a request, and a report into text or JSON. The program `bramble`
//! and the Python package's command both call `run`.
//!
//! Invariants: results go to stdout, everything else to stderr; an error is one line that starts with `bramble:`, and
//! the exit code tells its kind; a signal ends everything within two seconds and leaves no file and no process
//! behind, or, if completed tiles of C are saved, within five seconds with these tiles and the command that resumes.
//!
//! Deliberately absent: anything that computes, plans or moves matrices.

mod args;
mod key;
mod lab;
mod matrix;
mod multiply;
mod nearest;
mod nodes;
mod operands;
mod plan;
mod ranks;
mod resume;
mod sim;
mod solve;
mod stream;
mod systemd;
mod usage;
mod worker;

use args::{Cli, Command, PlanCommand};
use bramble_cluster::ranks::{RankRole, Ranks};
use bramble_report::exit::{Exit, Failure};
use clap::CommandFactory;
use std::ffi::OsString;
use std::time::Instant;

/// Runs the command line `words`, of which the first names the program; returns the exit code. To be called before the process
/// starts threads; pass the code to `bramble_kernel::leave` afterwards.
pub fn run(words: Vec<OsString>) -> u8 {
    let began = Instant::now();
    // Before any thread exists: this sets environment variables that BLAS libraries read when they are loaded.
    bramble_kernel::quiet_blas_threads();
    bramble_kernel::survive_file_size_limit();
    let code = exit_code(words, began);
    // A failing flush cannot be reported any more.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    code
}

fn exit_code(words: Vec<OsString>, began: Instant) -> u8 {
    let cli = match Cli::read_from(words) {
        Ok(cli) => cli,
        Err(e) => return usage::report(&e),
    };
    let mut command = cli.command;
    let (result, ranks) = match ranks::enter(&mut command) {
        Ok((RankRole::Primary, ranks)) => (done(command, began), ranks),
        Ok((RankRole::Worker(exit), _)) => return exit.number(),
        Err(failure) => (Err(failure), Ranks::default()),
    };
    let code = match result {
        Ok(exit) => {
            // A person knows about the signal; a program that reads JSON gets an error object.
            exit.signal().into_iter().for_each(|text| {
                bramble_report::error_object::print(&Failure { exit, text: text.to_owned() })
            });
            exit.number()
        }
        Err(Failure { exit, text }) => {
            let text = format!("{text}{}", bramble_cluster::ranks::hint());
            bramble_report::say(&format!("bramble: {}", text.replace('\n', " ")));
            bramble_report::error_object::print(&Failure { exit, text });
            exit.number()
        }
    };
    ranks.leave(code);
    code
}

/// Runs the verb.
fn done(command: Command, began: Instant) -> Result<Exit, Failure> {
    match command {
        Command::Multiply(args) => multiply::run(&args, began),
        Command::Batch(args) => bramble_batch::run(&args, began),
        Command::Solve(args) => solve::solve(&args),
        Command::Lu(args) => solve::factor(&args),
        Command::Plan(args) => match &args.command {
            Some(PlanCommand::Lu(args)) => bramble_solve::plan_lu(args),
            None => plan::run(&args.product),
        },
        Command::Matrix(args) => matrix::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Nearest(args) => nearest::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Worker(args) if args.print_systemd => systemd::print(),
        Command::Worker(args) => worker::run(&args),
        Command::Key(command) => key::run(&command),
        Command::Lab(command) => lab::run(&command),
        Command::Bench(command) => bramble_bench::run(&command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bramble", &mut script);
            bramble_report::out(&script)
        }
        Command::Man => man(),
    }
}

/// Prints the man page, with a section for each verb.
fn man() -> Result<Exit, Failure> {
    let mut out = Vec::new();
    let io = |e: std::io::Error| Failure::failed(format!("man: {e}"));
    let command = Cli::command();
    let page = clap_mangen::Man::new(command.clone());
    page.render_title(&mut out).map_err(io)?;
    page.render_name_section(&mut out).map_err(io)?;
    page.render_synopsis_section(&mut out).map_err(io)?;
    page.render_description_section(&mut out).map_err(io)?;
    man_of_verbs(&command, "BRAMBLE", &mut out).map_err(io)?;
    page.render_version_section(&mut out).map_err(io)?;
    bramble_report::out(&out)
}

/// Writes a section for each verb below `command`, recursively.
fn man_of_verbs(command: &clap::Command, name: &str, out: &mut Vec<u8>) -> std::io::Result<()> {
    for verb in command.get_subcommands().filter(|v| !v.is_hide_set()) {
        let name = format!("{name} {}", verb.get_name().to_uppercase());
        let page = clap_mangen::Man::new(verb.clone());
        out.extend(format!(".SH \"{name}\"\n").bytes());
        page.render_description_section(out)?;
        page.render_options_section(out)?;
        man_of_verbs(verb, &name, out)?;
    }
    Ok(())
}
