//! `bramble`: the command line over the shells of primary and worker.
//!
//! Place in the flow: the first and the last. Arguments become a request, a report becomes text or JSON.
//!
//! Invariants: results on stdout, everything else on stderr; an error is one line that starts with
//! `bramble:`, and the exit code says of which kind it is; a signal ends everything within two seconds and
//! leaves no file and no process behind.
//!
//! Deliberately absent: anything that computes, plans or moves matrices.

mod args;
mod exit;
mod hostfile;
mod hosts;
mod insight;
mod local;
mod multiply;
mod progress;
mod report;
mod worker;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use exit::{Exit, Failure};
use std::process::ExitCode;

fn main() -> ExitCode {
    let began = std::time::Instant::now();
    // Before any thread exists: BLAS libraries read these when they are opened.
    bramble_kernel::quiet_blas_threads();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return exit::usage(&e),
    };
    let result = match cli.command {
        Command::Multiply(args) => multiply::run(&args, began),
        Command::Worker(args) => worker::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bramble", &mut script);
            out(&script)
        }
        Command::Man => man(),
    };
    match result {
        Ok(exit) => exit.code(),
        Err(failure) => {
            say(&format!("bramble: {}", failure.text.replace('\n', " ")));
            failure.exit.code()
        }
    }
}

/// Fills `bytes` with the system's random numbers.
fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// Prints the man page: the program's, and a section for each verb.
fn man() -> Result<Exit, Failure> {
    let mut out = Vec::new();
    let io = |e: std::io::Error| Failure::failed(format!("man: {e}"));
    let command = Cli::command();
    let page = clap_mangen::Man::new(command.clone());
    page.render_title(&mut out).map_err(io)?;
    page.render_name_section(&mut out).map_err(io)?;
    page.render_synopsis_section(&mut out).map_err(io)?;
    page.render_description_section(&mut out).map_err(io)?;
    for verb in command.get_subcommands().filter(|v| !v.is_hide_set()) {
        let name = verb.get_name().to_owned();
        let page = clap_mangen::Man::new(verb.clone());
        out.extend(format!(".SH \"BRAMBLE {}\"\n", name.to_uppercase()).bytes());
        page.render_description_section(&mut out).map_err(io)?;
        page.render_options_section(&mut out).map_err(io)?;
    }
    page.render_version_section(&mut out).map_err(io)?;
    self::out(&out)
}

/// Writes to stdout. Whoever closed it has read enough.
fn out(bytes: &[u8]) -> Result<Exit, Failure> {
    use std::io::{ErrorKind, Write};
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::failed(format!("standard output: {e}"))),
        _ => Ok(Exit::Done),
    }
}

/// Writes a line to stderr. If nobody can be told, there is nobody to tell that either.
fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{line}");
}
