//! Command-line options of multiply, plan, sim and nodes. Groups of options that several verbs share are defined
//! once.

use bramble_cluster::args::{TeamArgs, element_type, is_standard_stream, kernel};
use bramble_cluster::cut::CutArgs;
use bramble_kernel::Choice;
use bramble_matrix::{DType, Shape};
use bramble_report::quantity::number;
use bramble_solve::PlanLuArgs;
use bramble_verify::Effort;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Transformations of the operands.
#[derive(Args, Debug)]
pub(crate) struct OperandArgs {
    /// Use A transposed
    #[arg(long)]
    pub(crate) transpose_a: bool,
    /// Use B transposed
    #[arg(long)]
    pub(crate) transpose_b: bool,
    /// Convert the operands to f32, f64, i32 or i64
    #[arg(long, value_name = "D", value_parser = element_type)]
    pub(crate) dtype: Option<DType>,
}

#[derive(Args, Debug)]
pub(crate) struct MultiplyArgs {
    /// Left operand A: a file, a generator such as random:1000x1000:f64:1, or - for a .npy or .mtx file on standard
    /// input
    pub(crate) a: OsString,
    /// Right operand B
    pub(crate) b: OsString,
    /// Write C to this .npy file (without -o, C is checked and dropped); - is standard output, and then the report goes
    /// to standard error
    #[arg(short, long, value_name = "C.npy")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) team: TeamArgs,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    #[command(flatten)]
    pub(crate) operands: OperandArgs,
    /// Scalar alpha of C = alpha A B + beta C
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = number)]
    pub(crate) alpha: f64,
    /// Scalar beta of C = alpha A B + beta C: factor of the C that is already in the output file
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number, requires = "output")]
    pub(crate) beta: f64,
    /// How thoroughly to verify C: off, fast, full
    #[arg(long, value_name = "EFFORT", default_value = "fast", value_parser = str::parse::<Effort>)]
    pub(crate) verify: Effort,
    /// Disable work stealing: fast machines do not take over work that the plan gave to slow ones
    #[arg(long)]
    pub(crate) no_steal: bool,
    #[command(flatten)]
    pub(crate) journal: JournalArgs,
    /// Print one JSON object instead of the report
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a timeline of all threads and links to this file; open it at ui.perfetto.dev
    #[arg(long, value_name = "FILE.json")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) refused: RefusedArgs,
    /// No progress, no report
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report each machine, and how its threads spent their time
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// What becomes of an interrupted run, and the journal of this one.
#[derive(Args, Debug)]
pub(crate) struct JournalArgs {
    /// Resume an interrupted run from the files that it left beside C (C.npy.part and C.npy.journal); operands and
    /// factors must be the same
    #[arg(long, requires = "output", conflicts_with = "restart")]
    pub(crate) resume: bool,
    /// Start over, and discard the files of an interrupted run
    #[arg(long, requires = "output")]
    pub(crate) restart: bool,
    /// Least time between two syncs of the journal, in milliseconds: for tests.
    #[arg(long, hide = true, env = "BRAMBLE_JOURNAL_MS", default_value_t = 2000)]
    pub(crate) journal_ms: u64,
    /// The step of journal writing at which this process kills itself: for tests.
    #[arg(long, hide = true, env = "BRAMBLE_DIE_AT", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) die_at: Option<i64>,
}

/// Options that multiply accepts only to refuse them with a clear message.
#[derive(Args, Debug)]
pub(crate) struct RefusedArgs {
    /// `bramble nearest` replaces it.
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide = true)]
    pub(crate) nearest: Vec<String>,
    /// As --nearest.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) labels: Option<PathBuf>,
    /// A cluster file describes machines and cannot compute.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) cluster: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Left operand A; or, without B, sizes MxKxN such as 4000x3000x5000 or 4000x3000x5000:f32
    #[arg(required_unless_present = "size")]
    pub(crate) a: Option<OsString>,
    /// Right operand B
    pub(crate) b: Option<OsString>,
    /// Sizes instead of operands: A is M x K, B is K x N, C is M x N
    #[arg(long, value_name = "MxKxN[:DTYPE]", value_parser = sizes, conflicts_with_all = ["a", "b"])]
    pub(crate) size: Option<Sizes>,
    /// File that describes machines, which need not exist (docs/cluster-file.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "hostfile", "awaited", "local"])]
    pub(crate) cluster: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) team: TeamArgs,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    #[command(flatten)]
    pub(crate) operands: OperandArgs,
    /// Scalar beta of C = A B + beta C; unless it is 0, the old C has to be sent, too
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = number)]
    pub(crate) beta: f64,
    /// Print one JSON object instead of the text and the picture
    #[arg(long)]
    pub(crate) json: bool,
}

/// The words of plan: a product, or `lu`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct PlanVerbArgs {
    #[command(subcommand)]
    pub(crate) command: Option<PlanCommand>,
    #[command(flatten)]
    pub(crate) product: PlanArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum PlanCommand {
    /// Show how workers would solve a system or factor a matrix, how long it would take and why; computes nothing
    #[command(after_help = PLAN_LU_HELP)]
    Lu(Box<PlanLuArgs>),
}

const PLAN_LU_HELP: &str = "The plan is that of 'bench hpl -w' for an order N, of 'solve -w' for A and B, and of 'lu -w' for A.\n\
Examples: bramble plan lu 20000 -w pi1,pi2,pi3,pi4\n          \
bramble plan lu A.npy b.npy --refine -w pi1,pi2\n          \
bramble plan lu 52416 --cluster examples/clusters/pi4x8.toml";

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SimCommand>,
    #[command(flatten)]
    pub(crate) product: PlanArgs,
    /// Faults to simulate: kind:wN@when, such as kill:w3@2.5s,slow:w1@1s..4s/50,join:w4@50%. Times count from the
    /// start; a percentage is of the time without faults. Kinds: kill, off, pause, busy, slow, join, restart
    /// (docs/simulator.md)
    #[arg(long, value_name = "FAULTS", conflicts_with = "seeds")]
    pub(crate) faults: Option<String>,
    /// Simulate this many random sets of faults, and report what they cost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) seeds: Option<u32>,
    /// First seed of --seeds: equal seeds give equal faults
    #[arg(long, value_name = "S", default_value_t = 0, requires = "seeds")]
    pub(crate) seed: u64,
    /// Disable work stealing: a machine keeps its work until it fails
    #[arg(long)]
    pub(crate) no_steal: bool,
    /// Processor time of the primary per byte sent or received, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 0.45, value_parser = nanoseconds)]
    pub(crate) move_ns: f64,
    /// Compute time that a worker loses per byte sent or received, in nanoseconds: one number for all workers, or one
    /// each, such as 2,2,4. For workers that compute on all their cores, or on a part of one
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = nanoseconds)]
    pub(crate) worker_move_ns: Vec<f64>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SimCommand {
    /// Simulate LU with partial pivoting, as 'bench hpl' on workers: its time, and what machines wait for; computes nothing
    #[command(after_help = SIM_LU_HELP)]
    Lu(SimLuArgs),
}

const SIM_LU_HELP: &str = "The machines of the file eliminate, without its primary, as the workers of 'bench hpl -w' do. \
Equal arguments give equal output (docs/simulator.md).\n\
Example: bramble sim lu 52416 --cluster examples/clusters/pi4x8.toml";

#[derive(Args, Debug)]
pub(crate) struct SimLuArgs {
    /// Order N of the system
    #[arg(value_name = "N")]
    pub(crate) order: u64,
    /// File that describes the machines, which need not exist (docs/cluster-file.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: PathBuf,
    /// Columns NB of a panel (default: as the cost model says)
    #[arg(long, value_name = "NB", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) nb: Option<u16>,
    /// How many of the machines take part, the first ones (default: as is fastest)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Option<u16>,
    /// Print one JSON object instead of text (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NodesArgs {
    #[command(flatten)]
    pub(crate) team: TeamArgs,
    /// Element type to measure: f32, f64, i32 or i64
    #[arg(long, value_name = "D", default_value = "f64", value_parser = element_type)]
    pub(crate) dtype: DType,
    /// Kernel: auto, reference, simd, openblas, blis, blocked:BASE:EDGE, strassen:BASE:CUTOFF
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Accepted only to refuse it with a clear message: a cluster file describes machines and cannot answer.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) cluster: Option<PathBuf>,
}

/// The sizes and the element type of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) m: u64,
    pub(crate) k: u64,
    pub(crate) n: u64,
    pub(crate) dtype: DType,
}

impl MultiplyArgs {
    /// The file that C is written to.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|path| !is_standard_stream(path))
    }

    /// Whether C goes to standard output.
    pub(crate) fn is_streamed(&self) -> bool {
        self.output.as_deref().is_some_and(is_standard_stream)
    }
}

/// Parses sizes such as `20000x20000x20000:f32`.
pub(crate) fn sizes(text: &str) -> Result<Sizes, String> {
    let (sides, dtype) = match text.split_once(':') {
        Some((sides, name)) => (sides, element_type(name)?),
        None => (text, DType::F64),
    };
    let form = || "use MxKxN or MxKxN:DTYPE, as in 20000x20000x20000:f32".to_owned();
    let side = |text: &str| -> Result<u64, String> {
        let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let side: u64 = text.parse().ok().filter(|_| is_plain).ok_or_else(form)?;
        let fits = (1..=Shape::SIDE_MAX).contains(&side);
        if fits { Ok(side) } else { Err(format!("{text}: a side is from 1 to {}", Shape::SIDE_MAX)) }
    };
    match sides.split('x').collect::<Vec<_>>()[..] {
        [m, k, n] => Ok(Sizes { m: side(m)?, k: side(k)?, n: side(n)?, dtype }),
        _ => Err(form()),
    }
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|ns| (0.0..=1e6).contains(ns));
    number.ok_or_else(|| "use a number of nanoseconds from 0 to 1000000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_three_sides_and_a_type() {
        let read = |text: &str| sizes(text).map(|s| (s.m, s.k, s.n, s.dtype));
        assert_eq!(read("2x3x4"), Ok((2, 3, 4, DType::F64)));
        assert_eq!(read("100000x1x7:f32"), Ok((100_000, 1, 7, DType::F32)));
        for bad in
            ["", "2x3", "2x3x4x5", "2x3x0", "2x3x-4", "2x3x4:f16", "2x3x+4", "2x3x99999999999", "ax2x3"]
        {
            assert!(sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn factors_are_finite_and_not_lost() {
        for (text, value) in [
            ("1e-46", 1e-46),
            ("-2.5", -2.5),
            ("1e39", 1e39),
            ("0.000e5", 0.0),
            ("-0", 0.0),
            ("5e-324", 5e-324),
        ] {
            assert_eq!(number(text), Ok(value), "{text}");
        }
        for bad in ["1e309", "-1e400", "inf", "nan", "1e-400", "0.01e-999", "two", ""] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }
}
