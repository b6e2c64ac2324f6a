//! The command line: a contract that scripts rely on. Completions and the man page come from here too.

use bramble_kernel::Choice;
use bramble_matrix::{DType, Effort};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Compute for primaries that connect
    Worker(WorkerArgs),
    /// Make, show or find the cluster key, the secret that all machines of a cluster share
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the completion script of a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff); read it with: bramble man | man -l -
    Man,
}

#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make a key on this machine, and say how to give it to others
    New {
        /// Replace the key that is there
        #[arg(long)]
        force: bool,
    },
    /// Print the key; whoever reads it can use the cluster
    Show {
        /// Print its short public name instead, to compare machines
        #[arg(long)]
        id: bool,
    },
    /// Print which file the key is looked for in
    Path,
}

const MULTIPLY_HELP: &str = "Matrices: A.npy, A.mtx, model.safetensors:tensor, random:ROWSxCOLS:DTYPE:SEED, \
identity:N:DTYPE\nExit codes: 0 done, 1 failed, 2 usage, 4 verification failed, 5 a worker is unreachable, \
130 interrupted, 143 terminated";

/// Over what the frames to workers of `--local` go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkKind {
    /// Threads of this process (no workers)
    Thread,
    /// TCP
    Tcp,
}

/// How the product is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StrategyKind {
    /// What is predicted to be fastest, the primary alone included
    Auto,
    /// Workers keep blocks of C over the whole of k while panels stream past
    Reuse,
}

#[derive(Args, Debug)]
pub(crate) struct MultiplyArgs {
    /// Left operand
    pub(crate) a: String,
    /// Right operand
    pub(crate) b: String,
    /// Write C to this .npy file
    #[arg(short, long, value_name = "C.npy")]
    pub(crate) output: Option<PathBuf>,
    /// Workers: 'pi[1-8],10.0.0.7:7401' (default: the variable BRAMBLE_HOSTS, if there is one)
    #[arg(short, long, value_name = "HOSTS", conflicts_with_all = ["hostfile", "local"])]
    pub(crate) workers: Option<String>,
    /// File of workers: lines of NODESET [slots=N] [port=P]
    #[arg(long, value_name = "FILE", conflicts_with = "local")]
    pub(crate) hostfile: Option<PathBuf>,
    /// Wait for this many workers that dial in with bramble worker --join
    #[arg(long = "await", value_name = "N", conflicts_with = "local", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) awaited: Option<u16>,
    /// Where they dial in
    #[arg(long, value_name = "ADDRESS:PORT", requires = "awaited", default_value = "0.0.0.0:7401")]
    pub(crate) listen: SocketAddr,
    /// Start this many worker processes on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) local: Option<u16>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Link to the workers of --local
    #[arg(long, value_enum)]
    pub(crate) link: Option<LinkKind>,
    /// Compute threads (of each worker, with --local)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory that this machine's own computing may take (each worker's, with --local), as in 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Kernel: auto, reference, simd, openblas, blis
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// How to cut the product
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) strategy: StrategyKind,
    /// Rows and columns of a tile of C
    #[arg(long, value_name = "N")]
    pub(crate) tile: Option<u64>,
    /// Depth of a step of k
    #[arg(long, value_name = "N")]
    pub(crate) panel: Option<u64>,
    /// Most bytes that a worker is sent before it gives some back
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) credits: Option<u64>,
    /// Use A transposed
    #[arg(long)]
    pub(crate) transpose_a: bool,
    /// Use B transposed
    #[arg(long)]
    pub(crate) transpose_b: bool,
    /// Factor of the product
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) alpha: f64,
    /// Factor of the C that is already in the output file
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true, requires = "output")]
    pub(crate) beta: f64,
    /// Convert the operands to f32, f64, i32 or i64
    #[arg(long, value_name = "D", value_parser = dtype)]
    pub(crate) dtype: Option<DType>,
    /// How hard to check C: off, fast, full
    #[arg(long, value_name = "EFFORT", default_value = "fast", value_parser = effort)]
    pub(crate) verify: Effort,
    /// Print one JSON object instead of the report
    #[arg(long)]
    pub(crate) json: bool,
    /// For C = X times X transposed: print the rows most like these (numbers or labels)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) nearest: Vec<String>,
    /// What the rows are called, one a line (default: NAME.labels beside NAME.npy)
    #[arg(long, value_name = "FILE")]
    pub(crate) labels: Option<PathBuf>,
    /// No progress, no report
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// A line for each machine
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// What is done without a cluster key.
#[derive(Args, Debug)]
pub(crate) struct TrustArgs {
    /// No encryption, and nobody proves a key; within this machine, unless the network is trusted
    #[arg(long)]
    pub(crate) insecure: bool,
    /// With --insecure: reach other machines too, though anyone on the network can read, change and use
    #[arg(long, requires = "insecure")]
    pub(crate) i_trust_this_network: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Address to listen on; port 0 takes any. Others than loopback need a cluster key
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub(crate) listen: SocketAddr,
    /// Dial this primary (multiply --await) instead, serve it once, and end
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "listen")]
    pub(crate) join: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Compute threads (default: one a core)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory to use at most, as in 512M or 4G (default: three quarters of what is free)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Kernel to use, whatever the primary asks for
    #[arg(long, value_name = "K", value_parser = kernel)]
    pub(crate) kernel: Option<Choice>,
    /// First core to pin compute threads to
    #[arg(long, value_name = "CORE", default_value_t = 0)]
    pub(crate) pin_from: usize,
    /// Let the system place compute threads
    #[arg(long, conflicts_with = "pin_from")]
    pub(crate) no_pin: bool,
    /// Print a systemd unit for a worker, with how to install it, and end
    #[arg(long)]
    pub(crate) print_systemd: bool,
    /// Say nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

fn kernel(text: &str) -> Result<Choice, String> {
    text.parse().map_err(|e| format!("{e}"))
}

fn dtype(text: &str) -> Result<DType, String> {
    DType::parse(text).ok_or_else(|| "use f32, f64, i32 or i64".to_owned())
}

fn effort(text: &str) -> Result<Effort, String> {
    text.parse()
}

/// Bytes, with K, M, G or T (powers of 1024; `KB`, `MiB` and so on are taken too).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("use a number with K, M, G or T, as in 512M".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "use a number with K, M, G or T, as in 512M".to_owned())?;
    number.checked_mul(1 << shift).filter(|n| *n > 0).ok_or_else(|| "that is no size".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("100"), Ok(100));
        assert!(size("").is_err() && size("0").is_err() && size("5X").is_err());
        assert!(size("99999999999T").is_err());
    }
}
