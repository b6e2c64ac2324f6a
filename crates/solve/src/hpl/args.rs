//! The options of `bramble bench hpl`.

use bramble_cluster::args::{MachineArgs, kernel};
use bramble_kernel::Choice;
use bramble_report::quantity::size;
use clap::Args;
use std::path::PathBuf;

/// The largest order.
pub(super) const SIZE_MAX: u32 = 1_000_000;

/// Parses an order.
fn order(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|order| (1..=SIZE_MAX).contains(order))
        .ok_or_else(|| format!("use 1 to {SIZE_MAX}"))
}

#[derive(Args, Debug)]
#[allow(missing_docs)] // A comment here would become the help text of the verb.
pub struct BenchHplArgs {
    /// Orders N of the system, comma-separated (default: N fills the memory of --memory, or of the workers)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = order)]
    pub(crate) size: Vec<u32>,
    /// Columns NB of a panel, comma-separated (default: by N); several make a sweep, whose plot --plot draws
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) nb: Vec<u16>,
    /// Without workers: threads, comma-separated (default: one per core)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    /// Kernel of the products: auto, simd, openblas or blis
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// Memory that the system may take, such as 512M or 4G; with workers, of each of them (default: three quarters of the free
    /// memory, or what the workers offer)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Measured runs of each case, in turns; their median counts
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Run the official program (xhpl, or the HPL inside hpcc) under mpirun on the same N, threads and machines, too, in every
    /// layout with every NB, and print its best beside ours
    #[arg(long)]
    pub(crate) official: bool,
    /// With --official: the command that starts the processes of MPI, to which '-n COUNT PROGRAM' is added; needed for workers
    /// on other machines, as in 'mpirun --hostfile hosts' (default: mpirun)
    #[arg(long, value_name = "COMMAND", requires = "official")]
    pub(crate) launcher: Option<String>,
    /// Run HPL-MxP instead of HPL: LU in f32, then GMRES in f64 until the solution is as accurate as HPL's, on a system of its
    /// own. Its figure is no result of HPL
    #[arg(long)]
    pub(crate) mxp: bool,
    /// Print one JSON object per line for each case, instead of the text (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
    /// With workers: how many of them take part, the first ones, comma-separated, such as 1,2,4,8 (default: as is fastest)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Vec<u16>,
    /// With workers: panels that each of them keeps, 1 to 16 (default: 3)
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) depth: Option<u8>,
    /// With workers: how many may be lost during a run; the elimination starts again on the others, 0 to 8, and the time of the
    /// run goes on
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) survive: u8,
    /// The machines; without any, the threads of this process.
    #[command(flatten)]
    pub machines: MachineArgs,
    /// Write a plot of the measurements to this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}
