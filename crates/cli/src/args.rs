//! The command line: a contract that scripts rely on. Completions and the man page come from here too.

mod product;

pub(crate) use product::{
    MultiplyArgs, NodesArgs, OperandArgs, PlanArgs, PlanCommand, PlanVerbArgs, SimArgs, SimCommand,
    SimLuArgs, sizes,
};

use bramble_batch::BatchArgs;
use bramble_bench::BenchCommand;
use bramble_cluster::args::{TrustArgs, kernel, socket_address};
use bramble_kernel::Choice;
use bramble_lab::LabCommand;
use bramble_report::quantity::size;
use bramble_solve::{LuArgs, SolveArgs};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::any::TypeId;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// One machine for matrix multiplication out of many small ones.
#[derive(Parser, Debug)]
#[command(name = "bramble", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Multiply two matrices: C = alpha A B + beta C
    #[command(after_help = MULTIPLY_HELP)]
    Multiply(Box<MultiplyArgs>),
    /// Run many tasks over connections that stay open: products, sums and copies of matrices, one a line
    #[command(after_help = BATCH_HELP)]
    Batch(Box<BatchArgs>),
    /// Solve A X = B by LU with partial pivoting, on this machine or on workers
    #[command(after_help = SOLVE_HELP)]
    Solve(Box<SolveArgs>),
    /// Factor a matrix into L and U with partial pivoting, on this machine or on workers
    #[command(after_help = LU_HELP)]
    Lu(Box<LuArgs>),
    /// Show how a product would be computed, how long it would take and why, with a picture; or LU; computes nothing
    #[command(after_help = PLAN_HELP)]
    Plan(Box<PlanVerbArgs>),
    /// Simulate a product on a cluster: its time, and what failing machines would cost; or LU; computes nothing
    #[command(after_help = SIM_HELP)]
    Sim(Box<SimArgs>),
    /// Show the contents of a matrix file: shape, element type, and the tensors of a .safetensors file
    #[command(after_help = MATRIX_HELP)]
    Matrix(MatrixArgs),
    /// Show which rows of X are most alike, from the C = X times X transposed that multiply wrote
    #[command(after_help = NEAREST_HELP)]
    Nearest(NearestArgs),
    /// Show which machines answer, with their speed, memory and links
    #[command(after_help = NODES_HELP)]
    Nodes(Box<NodesArgs>),
    /// Run a worker, which computes for the primaries that connect to it
    Worker(WorkerArgs),
    /// Create, show or locate the cluster key, the secret that all machines of a cluster share
    #[command(subcommand)]
    Key(KeyCommand),
    /// Create a test cluster of network namespaces on this machine (Linux, root)
    #[command(subcommand, after_help = LAB_HELP)]
    Lab(LabCommand),
    /// Measure this machine (kernels, threads, links, process start), and make reports of the measurements
    #[command(subcommand, after_help = BENCH_HELP)]
    Bench(BenchCommand),
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff); read it with: bramble man | man -l -
    Man,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Create a key on this machine, and show how to copy it to others
    New {
        /// Replace the existing key
        #[arg(long)]
        force: bool,
    },
    /// Print the key; anyone with the key can use the cluster
    Show {
        /// Print the key's short public id instead, to compare machines
        #[arg(long)]
        id: bool,
    },
    /// Print the path of the key file
    Path,
}

const MULTIPLY_HELP: &str = "Matrices: A.npy, A.mtx, model.safetensors:tensor, random:ROWSxCOLS:DTYPE:SEED, \
identity:N:DTYPE; 'bramble matrix FILE' lists what is in a file\n\
Exit codes: 0 done; 1 failed; 2 wrong usage; 3 done, but a machine was lost, missing or wrong; 4 verification \
failed; 5 a worker is unreachable; 6 done, but part of C could not be verified; 129 terminal closed; 130 interrupted; \
143 terminated";

const BATCH_HELP: &str = "Tasks: y.npy = x.npy @ W.npy; H = 2.5 * A.npy @ B.npy.T + C.npy; S = H - C.npy; S -> S.npy; \
free H; W = put W.npy shard=1 (the workers hold W, and results of it that have a name); I, V = topk(x.npy @ W, 10); rowsum, \
colsum, norm, max, min. A name without a dot or slash keeps a result for later lines; signs stand between spaces; # begins a \
comment (docs/batch.md)\n\
Example: echo 'C.npy = A.npy @ B.npy' | bramble batch - -w pi1,pi2\n\
Exit codes: as for multiply, of the first task that failed, else of the worst result";

const SOLVE_HELP: &str = "Example: bramble solve A.npy b.npy -o x.npy\n\
Exit codes: 0 solved; 1 failed, also where A is singular; 2 wrong usage; 4 the solution is not accurate enough and was not \
kept; 5 a worker is unreachable or was lost; 129 terminal closed; 130 interrupted; 143 terminated";

const LU_HELP: &str = "Example: bramble lu A.npy -o LU.npy; in Python: \
scipy.linalg.lu_solve((numpy.load('LU.npy'), numpy.load('LU.pivots.npy')), b)\n\
Exit codes: as for solve; a singular matrix is factored, with a warning";

const MATRIX_HELP: &str = "Example: bramble matrix model.safetensors\nExit codes: 0 shown, whether Bramble can \
multiply it or not; 1 unreadable";

const NEAREST_HELP: &str = "Example: bramble multiply X.npy X.npy --transpose-b -o C.npy; \
bramble nearest C.npy --rows 7,31\nExit codes: 0 shown; 1 unreadable; 2 no such row";

const PLAN_HELP: &str = "Matrices: as for multiply; their elements are not read, so random:100000x100000:f64:1 costs \
nothing\n\
Machines: workers that you name are contacted and measured; those of a --cluster file need not exist; without \
either, this machine alone";

const SIM_HELP: &str = "Product and machines: as for plan. The schedule of multiply runs under a virtual clock, with \
simulated machines and links; equal arguments give equal output.\n\
Examples: bramble sim 20000x20000x20000 --cluster cluster.toml --faults kill:w3@50%\n          \
bramble sim 20000x20000x20000:f32 --cluster cluster.toml --seeds 100\n          \
bramble sim lu 52416 --cluster cluster.toml";

const NODES_HELP: &str =
    "Exit codes: 0 all machines answered; 5 a machine did not (the others are shown all the same)";

const LAB_HELP: &str = "Start with: bramble lab up four; bramble lab run -- multiply A.npy B.npy; bramble lab down\n\
Exit codes: run and exec exit with the code of their command";

const BENCH_HELP: &str = "Rates count 2 m n k operations for a product, whatever the kernel does; times are medians \
of runs that take turns.\nExamples: bramble bench kernel --size 1024,8192 --kernel simd,strassen --plot rates.svg; \
bramble bench threads\n  \
bramble bench kernel --json >> pi.jsonl; bramble bench report --compare pi.jsonl pc.jsonl -o both.html";

#[derive(Args, Debug)]
pub(crate) struct MatrixArgs {
    /// A matrix as for multiply, or a .safetensors file without a tensor name; - reads standard input
    pub(crate) matrix: OsString,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NearestArgs {
    /// The product of a matrix and its own transpose
    #[arg(value_name = "C.npy")]
    pub(crate) c: OsString,
    /// Print the rows most similar to these rows (numbers or labels); without it, the most similar pair of rows, and how
    /// well rows group by label
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) rows: Vec<String>,
    /// File with the labels of the rows, one per line
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Address to listen on; port 0 picks a free port. Any address but loopback needs a cluster key
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400", value_parser = socket_address)]
    pub(crate) listen: SocketAddr,
    /// Connect to this primary (multiply --await) instead, with retries until it listens; serve one product, then
    /// exit
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "listen", value_parser = host_and_port)]
    pub(crate) join: Option<String>,
    /// Serve the parent process over the link that replaces standard input, then exit
    #[arg(long, hide = true, conflicts_with_all = ["listen", "join"])]
    pub(crate) inherited: bool,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Compute threads (default: one per core)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory limit, such as 512M or 4G (default: three quarters of the free memory)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Kernel to use, whichever the primary requests
    #[arg(long, value_name = "K", value_parser = kernel)]
    pub(crate) kernel: Option<Choice>,
    /// First core to pin compute threads to
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) pin_from: usize,
    /// Do not pin compute threads to cores
    #[arg(long, conflicts_with = "pin_from")]
    pub(crate) no_pin: bool,
    /// Print a systemd unit for a worker, with instructions to install it, and exit
    #[arg(long)]
    pub(crate) print_systemd: bool,
    /// Print only errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl Cli {
    /// Reads a command line.
    pub(crate) fn read_from(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut command = with_signs(Self::command());
        let mut matches = command.try_get_matches_from_mut(words)?;
        Self::from_arg_matches_mut(&mut matches).map_err(|e| e.format(&mut command))
    }
}

/// Lets every numeric option accept a value that begins with `-`. To a user, -1e-3 is a number, and -1 is a number
/// out of range; without this, clap takes both for unknown options.
fn with_signs(command: clap::Command) -> clap::Command {
    let is_number = |arg: &clap::Arg| {
        let value = arg.get_value_parser().type_id();
        !arg.is_positional()
            && arg.get_action().takes_values()
            && NUMBERS.iter().any(|number| value == number())
    };
    let with_sign = move |arg: clap::Arg| match is_number(&arg) {
        true => arg.allow_hyphen_values(true),
        false => arg,
    };
    command.mut_args(with_sign).mut_subcommands(with_signs)
}

/// The value types of numeric options.
const NUMBERS: [fn() -> TypeId; 8] = [
    TypeId::of::<u8>,
    TypeId::of::<u16>,
    TypeId::of::<u32>,
    TypeId::of::<u64>,
    TypeId::of::<usize>,
    TypeId::of::<i64>,
    TypeId::of::<f64>,
    TypeId::of::<Duration>,
];

/// Checks the form `HOST:PORT`; the host name is resolved at each connection attempt.
fn host_and_port(text: &str) -> Result<String, String> {
    let parts = text.rsplit_once(':').filter(|(host, port)| {
        let is_host = !host.is_empty() && (!host.contains(':') || host.ends_with(']'));
        is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    parts.map(|_| text.to_owned()).ok_or_else(|| "use HOST:PORT, as in pi1:7401 or [::1]:7401".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        with_signs(Cli::command()).debug_assert();
    }

    #[test]
    fn numbers_may_have_signs_in_every_form() {
        for text in ["-1e-3", "-.5", "-1e+3", "-2", "+.5"] {
            let read =
                Cli::read_from(["bramble", "multiply", "A", "B", "-o", "C", "--alpha", text, "--beta", text]);
            let Ok(Cli { command: Command::Multiply(args) }) = read else { panic!("{text}") };
            assert_eq!((args.alpha, args.beta), (text.parse().unwrap(), text.parse().unwrap()));
        }
        for option in
            ["--threads", "--tile", "--memory", "--credits", "--await", "--local", "--await-timeout"]
        {
            let e = Cli::read_from(["bramble", "multiply", "A", "B", option, "-1"]).unwrap_err().to_string();
            assert!(e.contains("'-1' for '") && e.contains(option), "{e}");
        }
    }

    #[test]
    fn a_host_to_join_has_a_port() {
        for good in ["pi1:7401", "10.0.0.1:1", "[::1]:65535"] {
            assert_eq!(host_and_port(good), Ok(good.to_owned()));
        }
        for bad in ["", "pi1", ":7401", "pi1:0", "pi1:70000", "::1", "pi1:port"] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}
