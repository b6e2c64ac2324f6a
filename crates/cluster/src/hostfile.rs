//! Reads lists of workers from options and hostfiles, with errors that name the option.

use crate::hosts::{HOSTS_MAX, Host, parse_file, parse_workers};
use crate::text_file;
use bramble_report::exit::Failure;
use std::path::Path;

/// Enough for ten thousand workers.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The workers of a list from an option or a variable; `given_by` names it in errors.
pub fn from_list(given_by: &str, text: &str) -> Result<Vec<Host>, Failure> {
    parse_workers(text, HOSTS_MAX).map_err(|why| Failure::usage(format!("{given_by} {why}")))
}

/// The workers of `--hostfile`.
pub fn from_file(path: &Path) -> Result<Vec<Host>, Failure> {
    let name = path.display();
    let text = text_file::read(path, FILE_BYTES_MAX, "a list of workers")
        .map_err(|why| Failure::usage(format!("--hostfile {name}: {why}")))?;
    parse_file(&text, HOSTS_MAX).map_err(|(line, why)| {
        let place = if line > 0 { format!(":{line}") } else { String::new() };
        Failure::usage(format!("--hostfile {name}{place}: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_option_the_file_and_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "pi[1-2]\npi1 slots=many\n").unwrap();
        let error = from_file(&path).unwrap_err().text;
        assert!(error.starts_with("--hostfile ") && error.contains("hosts:2: slots=many"), "{error}");
        std::fs::write(&path, "pi[1-2]\n").unwrap();
        assert_eq!(from_file(&path).unwrap().len(), 2);
        assert!(
            from_list("--workers", "a,,b").unwrap_err().text.starts_with("--workers a,,b: an empty name")
        );
    }
}
