//! Exit codes, which are a contract with scripts, and failures that carry one.

use bramble_matrix::MatrixError;
use bramble_plan::PlanError;
use bramble_primary::PrimaryError;
use clap::CommandFactory;
use std::ffi::OsString;

/// The exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done as asked.
    Done,
    /// /// Failed.
    Failed,
    /// The command line is invalid, or its options contradict each other.
    Usage,
    /// Done, but machines were lost, missing or wrong.
    Degraded,
    /// C is wrong and was not kept.
    Unverified,
    /// A worker could not be reached.
    Unreachable,
    /// Done, and no error was found, but part of C could not be verified.
    Partial,
    /// SIGINT.
    Interrupted,
    /// SIGTERM.
    Terminated,
    /// SIGHUP: the terminal was closed.
    HungUp,
}

impl Exit {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Degraded => 3,
            Self::Unverified => 4,
            Self::Unreachable => 5,
            Self::Partial => 6,
            Self::HungUp => 129,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// The message for a run that a signal ended.
    pub(crate) fn signal(self) -> Option<&'static str> {
        match self {
            Self::HungUp => Some("ended because its terminal was closed (SIGHUP)"),
            Self::Interrupted => Some("interrupted by a signal (SIGINT)"),
            Self::Terminated => Some("terminated by a signal (SIGTERM)"),
            Self::Done
            | Self::Failed
            | Self::Usage
            | Self::Degraded
            | Self::Unverified
            | Self::Unreachable
            | Self::Partial => None,
        }
    }
}

/// An error: its one-line message and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, text: text.into() }
    }

    pub(crate) fn unreachable(text: impl Into<String>) -> Self {
        Self { exit: Exit::Unreachable, text: text.into() }
    }
}

impl From<MatrixError> for Failure {
    fn from(e: MatrixError) -> Self {
        let exit = if matches!(e, MatrixError::Description { .. }) { Exit::Usage } else { Exit::Failed };
        Self { exit, text: e.to_string() }
    }
}

impl From<PrimaryError> for Failure {
    fn from(e: PrimaryError) -> Self {
        let exit = match e {
            PrimaryError::Unreachable { .. } => Exit::Unreachable,
            PrimaryError::Plan(
                PlanError::Grid(_) | PlanError::Refused { .. } | PlanError::Credits { .. },
            ) => Exit::Usage,
            PrimaryError::Wrong(_) => Exit::Unverified,
            PrimaryError::Stopped => Exit::Interrupted,
            PrimaryError::Failed(_)
            | PrimaryError::Changed(_)
            | PrimaryError::Matrix(_)
            | PrimaryError::Plan(_)
            | PrimaryError::Operands(_) => Exit::Failed,
        };
        Self { exit, text: e.to_string() }
    }
}

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
    let variable = variable_of(&crate::args::Cli::command(), &option)?;
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
pub(crate) fn usage(e: &clap::Error) -> u8 {
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
            crate::say(&format!("bramble: standard output: {e}"));
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
    if !crate::ranks::speaks() {
        return Exit::Usage.number();
    }
    let failure = Failure::usage(format!("{line}; see --help"));
    crate::say(&format!("bramble: {}", failure.text));
    crate::error_object::print_about(subject(e).as_deref(), &failure);
    Exit::Usage.number()
}
