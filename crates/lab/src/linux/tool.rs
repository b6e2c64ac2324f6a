//! Runs `ip` and `tc`, with errors that name the package to install.
//!
//! Invariant: a child holds the lab's lock as its standard input while it runs, so that `down` waits for it even if
//! `up` is killed. It has its own process group, so that Ctrl-C reaches only `up`.

use bramble_report::exit::Failure;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Folders of system tools, which some PATHs lack.
const SYSTEM_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin";

/// A command that is also searched for in the folders of system tools.
pub(super) fn command(program: &str) -> Command {
    let mut path = std::env::var_os("PATH").filter(|path| !path.is_empty()).unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(OsString::from(SYSTEM_FOLDERS));
    let mut command = Command::new(program);
    command.env("PATH", path);
    command
}

/// Runs a tool and waits for it.
pub(super) fn run(lock: &File, program: &str, words: &[&str]) -> Result<(), Failure> {
    let wrong = |why: String| Failure::failed(format!("{program} {}: {why}", words.join(" ")));
    let held = lock.try_clone().map_err(|e| wrong(e.to_string()))?;
    let mut command = command(program);
    command.args(words).stdin(Stdio::from(held)).process_group(0);
    let output = command.output().map_err(|e| not_started(program, &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ");
    let advice = match said.contains("Operation not permitted") || said.contains("Permission denied") {
        true => "; root needs the capabilities SYS_ADMIN and NET_ADMIN: run a container with --privileged",
        false => "",
    };
    match said.is_empty() {
        true => Err(wrong(format!("{}", output.status))),
        false => Err(wrong(format!("{said}{advice}"))),
    }
}

/// Fails if a tool is not available.
pub(super) fn check(program: &str, version: &str) -> Result<(), Failure> {
    let mut command = command(program);
    command.arg(version).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(drop).map_err(|e| not_started(program, &e))
}

fn not_started(program: &str, e: &std::io::Error) -> Failure {
    let package = match program {
        "ip" => "it creates the network of a lab; install iproute2",
        "tc" => "it limits the links of a lab; install iproute2 (iproute-tc on Fedora), or leave `link` out",
        _ => "it gives machines of a lab their names; install util-linux",
    };
    match e.kind() {
        ErrorKind::NotFound => Failure::failed(format!("{program}: not found: {package}")),
        _ => Failure::failed(format!("{program}: cannot be run: {e}: {package}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_missing_is_named_with_what_to_install() {
        assert!(check("sh", "-c").is_ok());
        let missing = |program: &str| not_started(program, &ErrorKind::NotFound.into()).text;
        assert_eq!(missing("ip"), "ip: not found: it creates the network of a lab; install iproute2");
        assert!(missing("tc").contains("or leave `link` out"), "{}", missing("tc"));
        let failure = check("no-such-tool-of-anybody", "-V").unwrap_err().text;
        assert!(failure.starts_with("no-such-tool-of-anybody: not found: "), "{failure}");
    }

    #[test]
    fn what_a_tool_says_when_it_fails_is_told_in_one_line() {
        let null = File::open("/dev/null").unwrap();
        let failure = run(&null, "sh", &["-c", "echo one >&2; echo two >&2; exit 3"]).unwrap_err().text;
        assert!(failure.ends_with(": one, two"), "{failure}");
        let failure = run(&null, "sh", &["-c", "echo Operation not permitted >&2; exit 1"]).unwrap_err().text;
        assert!(failure.contains("--privileged"), "{failure}");
        assert!(run(&null, "sh", &["-c", "exit 3"]).unwrap_err().text.contains("exit status: 3"));
    }
}
