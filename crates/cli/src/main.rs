//! `bramble`: the command-line program around the crates of primary and worker.
//!
//! Place in the flow: first and last. It turns arguments into a request, and a report into text or JSON.
//!
//! Invariants: results go to stdout, everything else to stderr; an error is one line that starts with `bramble:`, and
//! the exit code tells its kind; a signal ends everything within two seconds and leaves no file and no process
//! behind, or, if completed tiles of C are saved, within five seconds with these tiles and the command that resumes.
//!
//! Deliberately absent: anything that computes, plans or moves matrices.

mod account;
mod args;
mod bench;
mod cluster;
mod cluster_file;
mod error_object;
mod exit;
mod hostfile;
mod hosts;
mod insight;
mod joining;
mod key;
#[cfg_attr(not(target_os = "linux"), path = "lab_elsewhere.rs")]
mod lab;
mod levels;
mod limited;
mod local;
mod matrix;
mod meter;
mod multiply;
mod nodes;
mod operands;
mod out_file;
mod plan;
mod progress;
mod quantity;
mod ranks;
mod report;
mod resume;
mod signals;
mod sim;
mod stream;
mod systemd;
mod table;
mod team;
mod text_file;
mod times;
mod toml_keys;
mod trace;
mod trust;
mod turned_away;
mod until;
mod worker;

use args::{Cli, Command};
use clap::CommandFactory;
use exit::{Exit, Failure};

fn main() {
    let code = run();
    // A failing flush cannot be reported any more.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    bramble_kernel::leave(code)
}

/// Runs the program; returns the exit code.
fn run() -> u8 {
    let began = std::time::Instant::now();
    // Before any thread exists: this sets environment variables that BLAS libraries read when they are loaded.
    bramble_kernel::quiet_blas_threads();
    bramble_kernel::survive_file_size_limit();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(e) => return exit::usage(&e),
    };
    let mut command = cli.command;
    let (result, ranks) = match ranks::enter(&mut command) {
        Ok((ranks::RankRole::Primary, ranks)) => (done(command, began), ranks),
        Ok((ranks::RankRole::Worker(exit), _)) => return exit.number(),
        Err(failure) => (Err(failure), ranks::Ranks::default()),
    };
    let code = match result {
        Ok(exit) => {
            // A person knows about the signal; a program that reads JSON gets an error object.
            exit.signal()
                .into_iter()
                .for_each(|text| error_object::print(&Failure { exit, text: text.to_owned() }));
            exit.number()
        }
        Err(Failure { exit, text }) => {
            let text = format!("{text}{}", ranks::hint());
            say(&format!("bramble: {}", text.replace('\n', " ")));
            error_object::print(&Failure { exit, text });
            exit.number()
        }
    };
    ranks.leave(code);
    code
}

/// Runs the verb.
fn done(command: Command, began: std::time::Instant) -> Result<Exit, Failure> {
    match command {
        Command::Multiply(args) => multiply::run(&args, began),
        Command::Plan(args) => plan::run(&args),
        Command::Matrix(args) => matrix::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Worker(args) if args.print_systemd => systemd::print(),
        Command::Worker(args) => worker::run(&args),
        Command::Key(command) => key::run(&command),
        Command::Lab(command) => lab::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bramble", &mut script);
            out(&script)
        }
        Command::Man => man(),
    }
}

/// Fills `bytes` with the system's random numbers.
#[cfg(target_os = "linux")]
fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// Fills `bytes` with the system's random numbers.
#[cfg(not(target_os = "linux"))]
fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// A random number.
fn seed() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    random(&mut bytes).map_err(|e| Failure::failed(format!("no random numbers: {e}")))?;
    Ok(u64::from_le_bytes(bytes))
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
    self::out(&out)
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

/// Writes to stdout. A closed pipe is not an error: its reader has read enough.
fn out(bytes: &[u8]) -> Result<Exit, Failure> {
    use std::io::{ErrorKind, Write};
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(format!("standard output: {e}"))),
        _ => Ok(Exit::Done),
    }
}

/// Writes the report of a verb: to stdout, or to stderr if the result itself goes to stdout.
fn tell(bytes: &[u8], is_result_on_stdout: bool) -> Result<(), Failure> {
    use std::io::Write;
    if is_result_on_stdout {
        let _ = std::io::stderr().write_all(bytes);
        return Ok(());
    }
    out(bytes).map(drop)
}

/// Writes a line to stderr. An error is ignored, since there is no place to report it.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}
