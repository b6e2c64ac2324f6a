//! The options of `bramble bench`.

mod accumulate;
mod product;
mod report;
mod tree;

pub(crate) use accumulate::BenchAccumulateArgs;
pub(crate) use product::BenchProductArgs;
pub(crate) use report::BenchReportArgs;
pub(crate) use tree::BenchTreeArgs;

use super::product::{element_type, kernel};
use crate::bench::{Function, LinkName, Spawned};
use crate::ranks::Ranks;
use bramble_kernel::Choice;
use bramble_matrix::DType;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Measure kernels on this machine, against the most that its processor could do
    Kernel(BenchKernelArgs),
    /// Measure what threads are worth: the same products by one thread and by several
    Threads(BenchThreadsArgs),
    /// Measure whole products: by this process, and by worker processes over each link, with one thread and with several
    Product(BenchProductArgs),
    /// Measure the links between processes and threads of this machine, as MPI's benchmarks do
    #[command(after_help = LINK_HELP)]
    Link(BenchLinkArgs),
    /// Measure how long it takes to start and to end threads, processes and local workers
    Spawn(BenchSpawnArgs),
    /// Measure what it costs that several threads add to one block: with an owner, locks, or atomic additions
    Accumulate(BenchAccumulateArgs),
    /// Measure Strassen's method by worker processes, level by level, over each link between them
    Tree(BenchTreeArgs),
    /// Make a page of what was measured, with tables and drawings; set two machines beside each other
    Report(BenchReportArgs),
    /// What bench starts as processes of its own; no command for people
    #[command(hide = true)]
    Child { purpose: BenchChild },
}

/// What a process of `bench` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchChild {
    /// An end of a link.
    End,
    /// The other side of a plain stream.
    Bare,
    /// To be there.
    Nothing,
}

const LINK_HELP: &str = "Sizes without --size are powers of 4 up to 64M; functions of several ends go up to 64M by the number of \
ends. \"of bare\" is the speed against the system's own calls without Bramble, 1 is as fast.\n\
Examples: bramble bench link --function latency,bandwidth --plot links.svg; bramble bench link --link tcp --size 8,1M";

/// A product's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BenchSize {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) n: usize,
}

/// What all measurements of kernels share.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// Element types, comma-separated: f32, f64, i32, i64
    #[arg(long, value_name = "LIST", default_value = "f64", value_delimiter = ',', value_parser = element_type)]
    pub(crate) dtype: Vec<DType>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

/// What all measurements with drawings share.
#[derive(Args, Debug)]
pub(crate) struct BenchForm {
    #[command(flatten)]
    pub(crate) runs: BenchRuns,
    /// Draw what was measured into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
}

/// How often all is measured, and how it is told.
#[derive(Args, Debug)]
pub(crate) struct BenchRuns {
    /// Runs that count, of whatever is compared; they take turns, and one more before all warms up
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Print a JSON object on a line for each measurement, instead of the table (docs/json.md)
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print comma-separated values instead of the table
    #[arg(long)]
    pub(crate) csv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct BenchKernelArgs {
    /// Kernels, comma-separated (default: those that are here, and blocked and strassen over simd)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = kernel)]
    pub(crate) kernel: Vec<Choice>,
    /// Sizes, comma-separated: N for a square product, or MxKxN
    #[arg(long, value_name = "LIST", default_value = "256,512,1024,2048,4096", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<BenchSize>,
    /// Threads that share one product, comma-separated; kernels of one thread do it block by block
    #[arg(long, value_name = "LIST", default_value = "1", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Vec<u16>,
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchThreadsArgs {
    /// Kernels, comma-separated
    #[arg(long, value_name = "LIST", default_value = "blocked:reference,simd,strassen", value_delimiter = ',',
          value_parser = kernel)]
    pub(crate) kernel: Vec<Choice>,
    /// Sizes, comma-separated: N for a square product, or MxKxN
    #[arg(long, value_name = "LIST", default_value = "100,200,400,800,1600,3200", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<BenchSize>,
    /// Threads beside the one that is always measured (default: one a core)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
}

#[derive(Args, Debug)]
pub(crate) struct BenchLinkArgs {
    /// Links, comma-separated (default: all but mpi, which needs an mpirun)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) link: Vec<LinkName>,
    /// The processes of the link mpi, once this one has met them.
    #[arg(skip)]
    pub(crate) ranks: Ranks,
    /// Functions, comma-separated (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) function: Vec<Function>,
    /// Bytes of a message, comma-separated, as in 1,4K,64M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = message_size)]
    pub(crate) size: Vec<usize>,
    /// Ends of broadcast, reduce, all-reduce and all-to-all, comma-separated; all other functions have two
    #[arg(long, value_name = "LIST", default_value = "2,4,8", value_delimiter = ',',
          value_parser = clap::value_parser!(u8).range(2..=16))]
    pub(crate) ends: Vec<u8>,
    #[command(flatten)]
    pub(crate) form: BenchForm,
}

#[derive(Args, Debug)]
pub(crate) struct BenchSpawnArgs {
    /// What to start, comma-separated (default: all)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) what: Vec<Spawned>,
    /// How many at once, comma-separated
    #[arg(long, value_name = "LIST", default_value = "1,4,8,16", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) count: Vec<u16>,
    #[command(flatten)]
    pub(crate) runs: BenchRuns,
}

/// Most bytes of a message.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

fn message_size(text: &str) -> Result<usize, String> {
    let bytes = crate::quantity::size(text)?;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MESSAGE_BYTES_MAX);
    bytes.ok_or_else(|| "a message has from 1 byte to 1G".to_owned())
}

/// Longest side: three matrices of it are more than most machines have.
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
