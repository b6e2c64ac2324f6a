//! The options of `solve` and `lu`.

use bramble_cluster::args::{MachineArgs, TeamArgs, element_type, kernel};
use bramble_kernel::{Choice, KernelName};
use bramble_matrix::DType;
use bramble_report::exit::Failure;
use bramble_report::quantity::size;
use bramble_worker::default_threads;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Options of both verbs.
#[derive(Args, Debug)]
pub(crate) struct FactorArgs {
    /// Compute in f32 or f64 (default: that of the matrices; integers are solved in f64)
    #[arg(long, value_name = "D", value_parser = element_type)]
    pub(crate) dtype: Option<DType>,
    /// Compute threads (default: one per core); with workers: threads of this process, which checks the result; with --local:
    /// threads of each worker
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory limit, such as 512M or 4G (default: three quarters of the free memory)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Kernel of the products: auto, reference, simd, openblas or blis
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// Columns of a panel (default: by the order of the matrix)
    #[arg(long, value_name = "NB", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) block: Option<u16>,
    /// With workers: panels that each of them keeps, 1 to 16 (default: 3, or more while the matrix comes, if that is faster and
    /// fits)
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) depth: Option<u8>,
    /// With workers: how many may be lost during the run; the elimination starts again on the others, 0 to 8
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) survive: u8,
    /// Print one JSON object instead of text (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but warnings and errors
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

impl FactorArgs {
    /// The machines, with these threads.
    pub(crate) fn team(&self, machines: &MachineArgs) -> TeamArgs {
        TeamArgs { threads: self.threads, ..machines.team() }
    }

    /// Threads of this process, if workers compute.
    pub(crate) fn own_threads(&self, machines: &MachineArgs) -> usize {
        match (self.threads, machines.local) {
            (Some(threads), None) => usize::from(threads),
            _ => default_threads(),
        }
    }

    /// The kernel of the products; `None` picks the fastest.
    pub(crate) fn kernel(&self) -> Result<Option<KernelName>, Failure> {
        kernel_of_factors(self.kernel)
    }
}

/// The kernel of a factorisation's products; `None` picks the fastest.
pub(crate) fn kernel_of_factors(choice: Choice) -> Result<Option<KernelName>, Failure> {
    match choice {
        Choice::Auto => Ok(None),
        Choice::Named(name) => Ok(Some(name)),
        Choice::Blocked { .. } | Choice::Strassen { .. } => Err(Failure::usage(format!(
            "--kernel {choice}: a factorisation cuts its products itself; use auto, reference, simd, openblas or blis"
        ))),
    }
}

/// The options of `solve`.
#[derive(Args, Debug)]
pub struct SolveArgs {
    /// The square matrix A: a file, a generator such as random:1000x1000:f64:1, or - for a .npy or .mtx file on standard
    /// input
    pub a: OsString,
    /// The right-hand sides B: a vector, or a matrix with one right-hand side in each column
    pub b: OsString,
    /// Write X to this .npy file; a vector B gives a vector X (without -o, X is checked and dropped)
    #[arg(short, long, value_name = "X.npy")]
    pub(crate) output: Option<PathBuf>,
    /// Factor in f32 and refine the solution to f64 accuracy: up to twice as fast in half the memory. A matrix for which this
    /// does not converge is factored in f64
    #[arg(long)]
    pub(crate) refine: bool,
    /// Do not estimate the condition number
    #[arg(long)]
    pub(crate) no_condition: bool,
    #[command(flatten)]
    pub(crate) factor: FactorArgs,
    /// The machines; without any, the threads of this process.
    #[command(flatten)]
    pub machines: MachineArgs,
}

impl SolveArgs {
    /// Memory that a matrix on standard input may take.
    pub fn memory(&self) -> Option<u64> {
        self.factor.memory
    }
}

/// The options of `lu`.
#[derive(Args, Debug)]
pub struct LuArgs {
    /// The matrix A, of any shape (on workers: square): a file, a generator such as random:1000x1000:f64:1, or - for a .npy or
    /// .mtx file on standard input
    pub a: OsString,
    /// Write L (below the diagonal) and U (on and above it) to this .npy file, and the exchanged rows to LU.pivots.npy beside it,
    /// as scipy.linalg.lu_factor returns them
    #[arg(short, long, value_name = "LU.npy")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) factor: FactorArgs,
    /// The machines; without any, the threads of this process.
    #[command(flatten)]
    pub machines: MachineArgs,
}

impl LuArgs {
    /// Memory that a matrix on standard input may take.
    pub fn memory(&self) -> Option<u64> {
        self.factor.memory
    }
}
