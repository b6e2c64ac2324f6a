//! The options of `bramble bench`.

mod accumulate;
mod product;
mod report;
mod tree;

pub(crate) use accumulate::BenchAccumulateArgs;
pub(crate) use product::BenchProductArgs;
pub(crate) use report::BenchReportArgs;
pub(crate) use tree::BenchTreeArgs;

use crate::{Function, LinkName, Spawned};
use bramble_cluster::args::{element_type, kernel};
use bramble_cluster::ranks::Ranks;
use bramble_kernel::Choice;
use bramble_matrix::DType;
use bramble_solve::hpl::BenchHplArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
#[allow(missing_docs)] // A comment here would become the help text of the verb.
pub enum BenchCommand {
    /// Measure kernels on this machine, relative to the peak of its processor
    Kernel(BenchKernelArgs),
    /// Measure the speed-up by threads: the same products with one thread and with several
    Threads(BenchThreadsArgs),
    /// Measure whole products by this process and by worker processes over each link, with one thread and with
    /// several
    Product(BenchProductArgs),
    /// Measure links between processes and threads of this machine, in the manner of MPI benchmarks
    #[command(after_help = LINK_HELP)]
    Link(BenchLinkArgs),
    /// Measure how long threads, processes and local workers take to start and to end
    Spawn(BenchSpawnArgs),
    /// Compare ways in which several threads add to one block: with an owner, locks, or atomic additions
    Accumulate(BenchAccumulateArgs),
    /// Measure Strassen's method by worker processes, for each level and link
    Tree(BenchTreeArgs),
    /// Solve a system by the rules of the High Performance Linpack benchmark, on this machine
    #[command(after_help = HPL_HELP)]
    Hpl(BenchHplArgs),
    /// Make an HTML page from measurements, with tables and plots; compare two machines
    Report(BenchReportArgs),
    /// Child process of bench; not for users
    #[command(hide = true)]
    Child { purpose: BenchChild },
}

/// The purpose of a child process of `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchChild {
    /// An end of a mesh of links.
    End,
    /// The other side of a plain stream, without Bramble.
    Bare,
    /// Only start and end.
    Nothing,
}

const LINK_HELP: &str = "Default sizes are powers of 4 up to 64M, for functions of several ends up to 64M divided by \
the number of ends. \"of bare\" is the speed relative to plain system calls without Bramble; 1 is as fast.\n\
Examples: bramble bench link --function latency,bandwidth --plot links.svg; bramble bench link --link tcp --size 8,1M";

const HPL_HELP: &str = "The matrix, the count of operations (2/3 N^3 + 3/2 N^2) and the check are those of HPL 2.3: LU with \
partial pivoting in f64. The text has the form of HPL's output, so that its readers understand it; times are UTC.\n\
Examples: bramble bench hpl --size 8000; bramble bench hpl --size 8000 --nb 64,128,192,256 --plot nb.svg\n\
Exit codes: 0 all solutions are valid; 1 failed; 2 wrong usage; 4 a solution is not valid";

/// The sizes of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BenchSize {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

/// Options of all measurements of kernels.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Element types, comma-separated: f32, f64, i32, i64
    #[arg(long, value_name = "LIST", default_value = "f64", value_delimiter = ',', value_parser = element_type)]
    pub(crate) dtype: Vec<DType>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

/// Options of all measurements with plots.
#[derive(Args, Debug)]
pub(crate) struct BenchForm {
    #[command(flatten)]
    pub(crate) runs: BenchRuns,
    #[command(flatten)]
    pub(crate) plot: BenchPlot,
}

/// The option of a plot.
#[derive(Args, Debug)]
pub(crate) struct BenchPlot {
    /// Write a plot of the measurements to this file
    #[arg(long = "plot", value_name = "FILE.svg")]
    pub(crate) file: Option<PathBuf>,
}

/// The number of runs, and the form of the output.
#[derive(Args, Debug)]
pub(crate) struct BenchRuns {
    /// Measured runs of each candidate; candidates take turns, after one warm-up run each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Print one JSON object per line for each measurement, instead of the table (docs/json.md)
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print comma-separated values instead of the table
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Args, Debug)]
pub struct BenchKernelArgs {
    /// Kernels, comma-separated (default: all available ones, and blocked and strassen on top of simd)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = kernel)]
    pub(crate) kernel: Vec<Choice>,
    /// Sizes, comma-separated: N for a square product, or MxKxN
    #[arg(long, value_name = "LIST", default_value = "256,512,1024,2048,4096", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<BenchSize>,
    /// Threads that share one product, comma-separated; single-threaded kernels then compute it in blocks
    #[arg(long, value_name = "LIST", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
}

#[derive(Args, Debug)]
pub struct BenchThreadsArgs {
    /// Kernels, comma-separated
    #[arg(long, value_name = "LIST", default_value = "blocked:reference,simd,strassen", value_delimiter = ',',
          value_parser = kernel)]
    pub(crate) kernel: Vec<Choice>,
    /// Sizes, comma-separated: N for a square product, or MxKxN
    #[arg(long, value_name = "LIST", default_value = "100,200,400,800,1600,3200", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<BenchSize>,
    /// Number of threads to compare with one thread (default: one per core)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
}

#[derive(Args, Debug)]
pub struct BenchLinkArgs {
    /// Links, comma-separated (default: all but mpi, which needs mpirun)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) link: Vec<LinkName>,
    /// The processes of the link mpi, filled in once MPI is initialised.
    #[arg(skip)]
    pub(crate) ranks: Ranks,
    /// Functions, comma-separated (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) function: Vec<Function>,
    /// Message sizes in bytes, comma-separated, such as 1,4K,64M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = message_size)]
    pub(crate) size: Vec<usize>,
    /// Numbers of ends for broadcast, reduce, all-reduce and all-to-all, comma-separated; the other functions have
    /// two ends
    #[arg(long, value_name = "LIST", default_value = "2,4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u8).range(2..=16))]
    pub(crate) ends: Vec<u8>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

#[derive(Args, Debug)]
pub struct BenchSpawnArgs {
    /// What to start, comma-separated (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) what: Vec<Spawned>,
    /// How many to start at once, comma-separated
    #[arg(long, value_name = "LIST", default_value = "1,4,8,16", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) count: Vec<u16>,
    #[command(flatten)]
    pub(crate) runs: BenchRuns,
}

/// Largest message.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

fn message_size(text: &str) -> Result<usize, String> {
    let bytes = bramble_report::quantity::size(text)?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MESSAGE_BYTES_MAX);
    bytes.ok_or_else(|| "a message has from 1 byte to 1G".to_owned())
}

/// Longest side: three matrices of this size exceed the memory of most machines.
const SIDE_MAX: usize = 1 << 17;

fn size(text: &str) -> Result<BenchSize, String> {
    let side = |text: &str| -> Result<usize, String> {
        let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let side = text.parse().ok().filter(|side| is_plain && (1..=SIDE_MAX).contains(side));
        side.ok_or_else(|| format!("use N or MxKxN, with sides from 1 to {SIDE_MAX}"))
    };
    match text.split('x').collect::<Vec<_>>()[..] {
        [n] => side(n).map(|n| BenchSize { m: n, k: n, n }),
        [m, k, n] => Ok(BenchSize { m: side(m)?, k: side(k)?, n: side(n)? }),
        _ => side("").map(|n| BenchSize { m: n, k: n, n }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_bytes_with_or_without_units() {
        assert_eq!(
            (message_size("1"), message_size("4K"), message_size("64MiB")),
            (Ok(1), Ok(4096), Ok(64 << 20))
        );
        for bad in ["", "0", "2G", "1.5.5K", "-1", "x", "99999999999999999999"] {
            assert!(message_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_square_or_three_sides() {
        assert_eq!(size("100"), Ok(BenchSize { m: 100, k: 100, n: 100 }));
        assert_eq!(size("1x2x3"), Ok(BenchSize { m: 1, k: 2, n: 3 }));
        for bad in ["", "0", "1x2", "1x2x3x4", "+4", "1000000", "x"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
