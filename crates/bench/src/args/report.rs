//! The options of `bramble bench report`.

use clap::Args;
use std::path::PathBuf;

/// Longest name of a machine on a page.
const LABEL_CHARS_MAX: usize = 60;

#[derive(Args, Debug)]
pub struct BenchReportArgs {
    /// Files of one machine or cluster, with the output of bench, multiply or nodes with `--json`
    #[arg(value_name = "FILE.jsonl", required_unless_present = "compare", conflicts_with = "compare")]
    pub(crate) files: Vec<PathBuf>,
    /// Compare two machines or clusters: how much faster is which, at which measurements
    #[arg(long, num_args = 2, value_names = ["A.jsonl", "B.jsonl"])]
    pub(crate) compare: Vec<PathBuf>,
    /// The page to write: a self-contained HTML file
    #[arg(short, long, value_name = "FILE.html")]
    pub(crate) output: PathBuf,
    /// Name of the machine on the page; with --compare, give it twice, in the order of the files (default: the file
    /// name)
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub(crate) label: Vec<String>,
}

fn label(text: &str) -> Result<String, String> {
    let text = text.trim();
    let is_good =
        !text.is_empty() && text.chars().count() <= LABEL_CHARS_MAX && !text.contains(char::is_control);
    if is_good {
        Ok(text.to_owned())
    } else {
        Err(format!("use 1 to {LABEL_CHARS_MAX} characters on one line"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_on_one_line() {
        assert_eq!(label(" Pi <5> "), Ok("Pi <5>".to_owned()));
        for bad in ["", "  ", "a\nb", &"x".repeat(61)] {
            assert!(label(bad).is_err(), "{bad:?}");
        }
    }
}
