//! Machines as the command line names them: reads hostfiles, and says in an option's words what is wrong.

use crate::exit::Failure;
use crate::hosts::{HOSTS_MAX, Host, parse_file, parse_list};
use std::path::Path;

/// The machines of `--workers`.
pub(crate) fn from_list(text: &str) -> Result<Vec<Host>, Failure> {
    parse_list(text, HOSTS_MAX).map_err(|why| Failure::usage(format!("--workers {why}")))
}

/// The machines of `--hostfile`.
pub(crate) fn from_file(path: &Path) -> Result<Vec<Host>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("--hostfile {name}: cannot be read: {e}")))?;
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
        assert!(from_list("a,,b").unwrap_err().text.starts_with("--workers a,,b: an empty name"));
    }
}
