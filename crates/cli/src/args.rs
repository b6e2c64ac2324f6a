//! The command line: a contract that scripts rely on. Completions and the man page come from here too.

mod bench;
mod lab;
mod product;

pub(crate) use bench::{
    BenchAccumulateArgs, BenchArgs, BenchChild, BenchCommand, BenchForm, BenchKernelArgs, BenchLinkArgs,
    BenchProductArgs, BenchReportArgs, BenchRuns, BenchSize, BenchSpawnArgs, BenchThreadsArgs, BenchTreeArgs,
};
#[cfg_attr(not(target_os = "linux"), allow(unused_imports))] // Labs are Linux's.
pub(crate) use lab::{
    LabCalledArgs, LabCommand, LabExecArgs, LabNameArgs, LabRunArgs, LabStatusArgs, LabUpArgs,
};
pub(crate) use product::{
    LinkKind, MultiplyArgs, NodesArgs, OperandArgs, PlanArgs, SimArgs, TeamArgs, TrustArgs,
    is_standard_stream, sizes,
};

use crate::quantity::size;
use bramble_kernel::Choice;
use clap::{Args, Parser, Subcommand};
use product::kernel;
use std::ffi::OsString;
use std::net::SocketAddr;

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
    /// Say how a product would be computed, what it would take and why, and draw it; computes nothing
    #[command(after_help = PLAN_HELP)]
    Plan(Box<PlanArgs>),
    /// Say how long a product would take on a cluster, and what it would cost if machines fail; computes nothing
    #[command(after_help = SIM_HELP)]
    Sim(Box<SimArgs>),
    /// Show what is in a matrix file: shape, element type, and the tensors of a .safetensors file; computes nothing
    #[command(after_help = MATRIX_HELP)]
    Matrix(MatrixArgs),
    /// Show which machines answer, and what they can do
    #[command(after_help = NODES_HELP)]
    Nodes(Box<NodesArgs>),
    /// Compute for primaries that connect
    Worker(WorkerArgs),
    /// Make, show or find the cluster key, the secret that all machines of a cluster share
    #[command(subcommand)]
    Key(KeyCommand),
    /// Make a cluster of network namespaces on this machine, to try one before there is one (Linux, root)
    #[command(subcommand, after_help = LAB_HELP)]
    Lab(LabCommand),
    /// Measure this machine (kernels, what threads are worth, links, ways to add), and make pages of it
    #[command(subcommand, after_help = BENCH_HELP)]
    Bench(BenchCommand),
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
identity:N:DTYPE; 'bramble matrix FILE' lists what is in a file\n\
Exit codes: 0 done, 1 failed, 2 usage, 3 done though a machine was lost or left out, 4 verification failed, \
5 a worker is unreachable, 130 interrupted, 143 terminated";

const MATRIX_HELP: &str = "Example: bramble matrix model.safetensors\nExit codes: 0 shown, whether it can be multiplied or \
not; 1 it cannot be read";

const PLAN_HELP: &str = "Matrices: as in multiply; they are not read, so random:100000x100000:f64:1 costs nothing\n\
Machines: real ones are asked and measured; those of --cluster need not exist; without any it is this machine alone";

const SIM_HELP: &str = "Product and machines as in plan. The schedule that multiply follows runs under a virtual clock, with \
simulated machines and links; stdout is the same each time.\n\
Examples: bramble sim 20000x20000x20000 --cluster cluster.toml --faults kill:w3@50%\n          \
bramble sim 20000x20000x20000:f32 --cluster cluster.toml --seeds 100";

const NODES_HELP: &str = "Exit codes: 0 all answered, 5 one did not (those that did are shown all the same)";

const LAB_HELP: &str = "Start with: bramble lab up four; bramble lab run -- multiply A.npy B.npy; bramble lab down\n\
Exit codes: run and exec have those of the command";

const BENCH_HELP: &str = "Rates are 2 m n k operations a product, whatever the kernel did; medians of runs that take \
turns.\nExamples: bramble bench kernel --size 1024,8192 --kernel simd,strassen --plot rates.svg; bramble bench threads\n  \
bramble bench kernel --json >> pi.jsonl; bramble bench report --compare pi.jsonl pc.jsonl -o both.html";

#[derive(Args, Debug)]
pub(crate) struct MatrixArgs {
    /// A matrix as multiply takes it, or a .safetensors file without the name of a tensor
    pub(crate) matrix: OsString,
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Address to listen on; port 0 takes any. Others than loopback need a cluster key
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7400")]
    pub(crate) listen: SocketAddr,
    /// Dial this primary (multiply --await) instead, serve it once, and end
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "listen")]
    pub(crate) join: Option<String>,
    /// Serve the process that started this one, over the link that it put in the place of standard input, and end
    #[arg(long, hide = true, conflicts_with_all = ["listen", "join"])]
    pub(crate) inherited: bool,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
