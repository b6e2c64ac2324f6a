//! Options that name machines: which compute, over which links, with which key. Several verbs share them, and labs
//! read them, too.
//!
//! Place in the flow: the program parses the command line; `team` turns these options into links.

use crate::ranks::Ranks;
use bramble_kernel::Choice;
use bramble_link::ClusterKey;
use bramble_matrix::DType;
use bramble_report::quantity::{duration, size};
use bramble_worker::limits::AWAIT_MAX;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The link to the workers of `--local`, or to the processes of `mpirun`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// Threads of this process (no workers)
    Thread,
    /// TCP over loopback
    Tcp,
    /// Pipes
    Pipe,
    /// Shared memory
    Shm,
    /// MPI, between the processes that mpirun started: rank 0 is the primary (docs/mpi.md)
    Mpi,
}

impl LinkKind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Tcp => "tcp",
            Self::Pipe => "pipe",
            Self::Shm => "shm",
            Self::Mpi => "mpi",
        }
    }
}

/// The machines that compute, and how connections to them are secured.
#[derive(Args, Clone, Debug)]
pub struct MachineArgs {
    /// Workers: 'pi[1-8],10.0.0.7:7401' (default: the variable BRAMBLE_HOSTS, if there is one)
    #[arg(short, long, value_name = "HOSTS", conflicts_with_all = ["hostfile", "local"])]
    pub workers: Option<String>,
    /// File of workers: lines of NODESET [slots=N] [port=P]
    #[arg(long, value_name = "FILE", conflicts_with = "local")]
    pub hostfile: Option<PathBuf>,
    /// Wait for this many workers to connect with bramble worker --join
    #[arg(long = "await", value_name = "N", conflicts_with = "local", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub awaited: Option<u16>,
    /// How long to wait for the workers of --await, such as 90s, 10m or 12h
    #[arg(long, value_name = "TIME", requires = "awaited", default_value = "2m", value_parser = await_timeout)]
    pub await_timeout: Duration,
    /// Address that the workers of --await connect to
    #[arg(long, value_name = "ADDRESS:PORT", requires = "awaited", default_value = "0.0.0.0:7401", value_parser = socket_address)]
    pub listen: SocketAddr,
    /// Start this many worker processes on this machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub local: Option<u16>,
    /// How connections are secured.
    #[command(flatten)]
    pub trust: TrustArgs,
}

impl MachineArgs {
    /// The same machines with all of their threads and memory, for a verb without options for these. Local workers use
    /// TCP: they have addresses for each other.
    pub fn team(&self) -> TeamArgs {
        TeamArgs {
            machines: self.clone(),
            link: self.local.map(|_| LinkKind::Tcp),
            ranks: Ranks::default(),
            threads: None,
            memory: None,
            degraded: false,
        }
    }
}

/// The computing machines, and limits for this one.
#[derive(Args, Debug)]
pub struct TeamArgs {
    /// The machines.
    #[command(flatten)]
    pub machines: MachineArgs,
    /// Link to the workers of --local (default: tcp); mpi: the workers are the processes that mpirun started
    #[arg(long, value_name = "KIND", value_enum)]
    pub link: Option<LinkKind>,
    /// The processes of --link mpi, filled in once MPI is initialised.
    #[arg(skip)]
    pub ranks: Ranks,
    /// Compute threads of this machine (with --local: of each worker)
    #[arg(long, value_name = "T", env = "BRAMBLE_THREADS", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Memory limit of this machine's own computation (with --local: of each worker), such as 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Continue without workers that do not answer, name them, and exit with code 3
    #[arg(long)]
    pub degraded: bool,
}

/// Permissions to work without a cluster key.
#[derive(Args, Clone, Debug)]
pub struct TrustArgs {
    /// No encryption and no cluster key; only within this machine, unless --i-trust-this-network is given
    #[arg(long)]
    pub insecure: bool,
    /// With --insecure: use other machines, too, although anyone on the network can then read and change matrices and
    /// use the machines
    #[arg(long, requires = "insecure")]
    pub i_trust_this_network: bool,
    /// The cluster key, if a program has passed it in; no option has it, since other users can read command lines
    #[arg(skip)]
    pub key: Option<ClusterKey>,
}

/// Parses `--await-timeout`.
fn await_timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time <= AWAIT_MAX { Ok(time) } else { Err(format!("at most {} h", AWAIT_MAX.as_secs() / 3600)) }
}

/// Parses an address to listen on. A port alone is refused: it does not tell which machines may connect.
pub fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').unwrap_or(text);
    let is_port = port.parse::<u16>().is_ok();
    text.parse().map_err(|_| match is_port {
        true => format!(
            "a port needs an address: use 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} for the network"
        ),
        false => "use a numeric address and a port, such as 0.0.0.0:7400 or [::1]:7400".to_owned(),
    })
}

/// Parses the name of a kernel.
pub fn kernel(text: &str) -> Result<Choice, String> {
    text.parse().map_err(|e| format!("{e}"))
}

/// Parses the name of an element type.
pub fn element_type(text: &str) -> Result<DType, String> {
    DType::parse(text).ok_or_else(|| "use f32, f64, i32 or i64".to_owned())
}

/// Whether a name means standard input or output.
pub fn is_standard_stream(name: impl AsRef<std::ffi::OsStr>) -> bool {
    name.as_ref() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_answered_with_addresses_that_have_it() {
        assert_eq!(socket_address("[::1]:81").map(|a| a.to_string()), Ok("[::1]:81".to_owned()));
        for port in ["7510", ":7510"] {
            let why = socket_address(port).unwrap_err();
            assert!(why.contains("127.0.0.1:7510") && why.contains("0.0.0.0:7510"), "{why}");
        }
        for bad in ["", "localhost:1", "127.0.0.1", "1.2.3.4:70000"] {
            assert!(socket_address(bad).unwrap_err().starts_with("use a numeric"), "{bad}");
        }
    }
}
