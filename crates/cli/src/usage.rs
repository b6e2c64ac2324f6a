//! Errors of the command line, in the form of all other errors: one line on stderr, and an object for `--json`.
//!
//! Place in the flow: instead of a verb, if the parser refuses the words or answers them itself (`--help`).

use crate::args::Cli;
use bramble_report::exit::{Exit, Failure};
use clap::CommandFactory;
use std::ffi::OsString;

/// The environment variable that gave an option its invalid value, if the option is not on the command line.
fn variable_behind(e: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(named)) = e.get(ContextKind::InvalidArg) else { return None };
    let option = named.split_whitespace().next()?.strip_prefix("--")?.to_owned();
    let is_it = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(&option))
    };
    if std::env::args_os().any(|word| is_it(&word)) {
        return None;
    }
    let variable = variable_of(&Cli::command(), &option)?;
    std::env::var_os(&variable).map(|_| variable)
}

/// The environment variable of an option, searched in `command` and the verbs below it.
fn variable_of(command: &clap::Command, option: &str) -> Option<String> {
    let here = command.get_arguments().find(|arg| arg.get_long() == Some(option) && arg.get_env().is_some());
    let name = here.and_then(|arg| arg.get_env()).map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| command.get_subcommands().find_map(|verb| variable_of(verb, option)))
}

/// The option or operand that a command-line error is about, as the help names it.
fn subject(e: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue};
    let kinds = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand];
    match kinds.into_iter().find_map(|kind| e.get(kind))? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(" ")),
        _ => None,
    }
}

/// The error for a numeric option without its number. Numbers may be negative, so clap takes the next option as the
/// value.
fn swallowed_option(e: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let text = |kind| match e.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_value = matches!(e.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    let (option, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    let is_option =
        value.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_alphabetic()));
    let is_number = value.parse::<f64>().is_ok();
    (is_value && is_option && !is_number)
        .then(|| format!("{option}: a number is missing: the next word is the option {value}"))
}

/// Prints help and version as clap renders them, and errors as one line; returns the exit code.
pub(crate) fn report(e: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    if matches!(
        e.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let is_missing = e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        let written = e.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout()));
        // A closed pipe is not an error: its reader has read enough.
        if let Err(e) = written
            && e.kind() != std::io::ErrorKind::BrokenPipe
            && !is_missing
        {
            bramble_report::say(&format!("bramble: standard output: {e}"));
            return Exit::Failed.number();
        }
        return if is_missing { Exit::Usage.number() } else { Exit::Done.number() };
    }
    let text = e.render().to_string();
    let words: Vec<&str> = text
        .lines()
        .take_while(|l| !l.starts_with("Usage:"))
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("For more information"))
        .collect();
    let line = words.join(" ");
    let line =
        swallowed_option(e).unwrap_or_else(|| line.strip_prefix("error: ").unwrap_or(&line).to_owned());
    let line = match variable_behind(e) {
        Some(variable) => format!("{variable} in the environment: {line}"),
        None => line,
    };
    if !bramble_cluster::ranks::speaks() {
        return Exit::Usage.number();
    }
    let failure = Failure::usage(format!("{line}; see --help"));
    bramble_report::say(&format!("bramble: {}", failure.text));
    bramble_report::error_object::print_about(subject(e).as_deref(), &failure);
    Exit::Usage.number()
}
