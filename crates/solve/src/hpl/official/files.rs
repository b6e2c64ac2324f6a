//! The files that the official program reads and writes.
//!
//! Place in the flow: `mod.rs` writes the input before each start, and reads the results after it.
//!
//! Invariants: `OfficialProgram::found` prefers xhpl, since hpcc also runs its other tests. The algorithm of the input is that
//! of HPL's own example; only N, the NBs and the process grid differ.

use std::ffi::OsStr;
use std::path::PathBuf;

/// The official program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfficialProgram {
    /// HPL alone.
    Xhpl,
    /// HPC Challenge, which contains HPL.
    Hpcc,
}

impl OfficialProgram {
    /// The first of the programs on the path, with its folder.
    pub(super) fn found(path: &OsStr) -> Option<(Self, PathBuf)> {
        let at = |program: Self| folder_of(path, program.name()).map(|folder| (program, folder));
        [Self::Xhpl, Self::Hpcc].into_iter().find_map(at)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Xhpl => "xhpl",
            Self::Hpcc => "hpcc",
        }
    }

    /// The names of its input and its output.
    pub(super) fn files(self) -> [&'static str; 2] {
        match self {
            Self::Xhpl => ["HPL.dat", "HPL.out"],
            Self::Hpcc => ["hpccinf.txt", "hpccoutf.txt"],
        }
    }
}

/// The folder of the path that contains a file of this name.
pub(super) fn folder_of(path: &OsStr, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path).find(|folder| folder.join(name).is_file())
}

/// NB, seconds and Gflop/s of each line of results.
pub(super) fn results(text: &str) -> Vec<(usize, f64, f64)> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [variant, _, nb, _, _, seconds, gflops]
                if variant.starts_with("WR") || variant.starts_with("WC") =>
            {
                Some((nb.parse().ok()?, seconds.parse().ok()?, gflops.parse().ok()?))
            }
            _ => None,
        }
    };
    text.lines().filter_map(line).collect()
}

/// The input file: HPL's own example, with these sizes. hpcc reads more lines, for its transposition: the smallest.
pub(super) fn input_text(order: usize, blocks: &[usize], [p, q]: [usize; 2]) -> String {
    let list = blocks.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
    let lines = [
        "HPLinpack benchmark input file".to_owned(),
        "by bramble".to_owned(),
        "HPL.out output file name".to_owned(),
        "8 device out".to_owned(),
        "1 # of problem sizes".to_owned(),
        format!("{order} Ns"),
        format!("{} # of NBs", blocks.len()),
        format!("{list} NBs"),
        "0 PMAP".to_owned(),
        "1 # of process grids".to_owned(),
        format!("{p} Ps"),
        format!("{q} Qs"),
        "16.0 threshold".to_owned(),
    ];
    let algorithm = "1 # of panel fact\n2 PFACTs\n1 # of recursive stopping criterium\n4 NBMINs\n1 # of panels in recursion\n\
                     2 NDIVs\n1 # of recursive panel fact.\n1 RFACTs\n1 # of broadcast\n1 BCASTs\n1 # of lookahead depth\n\
                     1 DEPTHs\n2 SWAP\n64 swapping threshold\n0 L1\n0 U\n1 Equilibration\n8 memory alignment\n\
                     ##### separator\n0 additional sizes for PTRANS\n1200\n0 additional NBs for PTRANS\n40\n";
    lines.join("\n") + "\n" + algorithm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_results_are_read_and_no_others() {
        let text = "WR11C2R4        8000   128     1     1               2.94              1.160e+02\n\
                    WC00L2L2         500    64     2     3               0.10              8.5e-01\n\
                    W is a word of this line and it has seven words\nWall time\n";
        assert_eq!(results(text), [(128, 2.94, 116.0), (64, 0.1, 0.85)]);
    }

    #[test]
    fn the_input_has_the_lines_of_hpls_own() {
        let text = input_text(500, &[32, 64], [2, 3]);
        let line = |number: usize| text.lines().nth(number - 1).unwrap_or_default();
        assert_eq!([line(6), line(7), line(8)], ["500 Ns", "2 # of NBs", "32 64 NBs"]);
        assert_eq!([line(11), line(12), line(32)], ["2 Ps", "3 Qs", "##### separator"]);
    }
}
