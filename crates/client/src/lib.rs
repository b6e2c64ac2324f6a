//! An open cluster as programs use it: calls that place, make, fetch and reduce matrices and compute products, and that run again
//! when a machine with a part of a placed matrix is lost.
//!
//! Place in the flow: `batch` and the Python package hold a `Client` and give names to its results; `Client` holds the primary's
//! `Cluster`, the kernel of each element type, and how results are checked.
//!
//! Invariants: a call returns a result that has passed its check, or an error; after an error the cluster and all placed
//! matrices are as before. A call that finds a part lost restores it and runs again, as often as
//! `LossRetries` allows; the making of an array goes on where it was.
//!
//! Deliberately absent: names of matrices, files, and the text of reports.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod calls;
mod elementwise;
mod error;
mod here;
mod kernels;
mod product;
mod unchanged;

pub use calls::{NewArray, UNNAMED};
pub use elementwise::ScaledMatrix;
pub use error::ClientError;
pub use product::{ClientProduct, Stop};

use bramble_cluster::args::TeamArgs;
use bramble_cluster::cut::CutArgs;
use bramble_cluster::local::LocalWorkers;
use bramble_cluster::random::{seed, session_request};
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec, check_kernel};
use bramble_kernel::{Choice, KernelName, Workload};
use bramble_matrix::DType;
use bramble_plan::Preference;
use bramble_primary::LocalFuture;
use bramble_primary::{CheckRequest, Cluster, ClusterOptions, SessionRequest};
use bramble_report::exit::Failure;
use bramble_report::progress::{ProgressBoard, ProgressDisplay, ProgressOptions};
use bramble_verify::Effort;
use kernels::KernelChoice;
use std::num::NonZeroUsize;
use tokio::sync::mpsc;

/// How a client uses its cluster.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How products are partitioned and computed.
    pub cut: CutArgs,
    /// How thoroughly results are checked.
    pub verify: Effort,
    /// Whether idle machines steal work that a slow one has not been sent.
    pub steals: bool,
    /// Whether processor time is accounted for.
    pub account: bool,
    /// Whether products run without workers that do not answer.
    pub degraded: bool,
    /// How the progress of a call is displayed.
    pub progress: ProgressOptions,
}

/// An open cluster. Must be used inside one `tokio::task::LocalSet`.
pub struct Client {
    cluster: Cluster,
    options: ClientOptions,
    kernels: KernelChoice,
    /// Compute threads of this machine.
    threads: NonZeroUsize,
    is_local: bool,
    has_restored: bool,
    /// Where the progress of calls is written.
    board: Option<ProgressBoard>,
    /// Receives the name of each lost link.
    lost: mpsc::UnboundedSender<String>,
    /// The local worker processes, which end when this is dropped.
    _processes: LocalWorkers,
}

impl Client {
    /// Connects to the machines that `args` name.
    pub fn open<'f>(
        team: TeamSpec,
        args: &'f TeamArgs,
        options: ClientOptions,
    ) -> LocalFuture<'f, Result<Self, Failure>> {
        Box::pin(async move {
            // Each product gets the kernel for its own element type later.
            let kernel = match options.cut.kernel() {
                Choice::Auto => Choice::Named(KernelName::Simd),
                named => named,
            };
            let purpose = Purpose { kernel, dtype: DType::F64, flops: 0.0, work: Workload::Products };
            check_kernel(kernel, DType::F64)?;
            let mut gathered = team.gather(args, purpose).await?;
            let (lost, told) = mpsc::unbounded_channel();
            gathered.expect_more(told);
            let watch = ProgressDisplay::new(options.progress, lost.clone());
            let GatheredTeam { ends, threads, is_local, processes, .. } = gathered;
            let mut cluster = Cluster::open(ends, ClusterOptions { keeps_links: true }, &watch).await?;
            let sessions = sessions(&options)?;
            let greeted = cluster.greet(&sessions, &watch).await;
            greeted.map_err(|e| GatheredTeam::failure(is_local, e))?;
            let kernels = KernelChoice::new(options.cut.kernel(), is_local);
            let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
            Ok(Self {
                cluster,
                options,
                kernels,
                threads,
                is_local,
                has_restored: false,
                board: None,
                lost,
                _processes: processes,
            })
        })
    }

    /// Greets workers that join, while no call is to be made. Never ends; to be dropped when a call is to be made.
    pub fn attend<'f>(&'f mut self) -> LocalFuture<'f, ()> {
        Box::pin(async move {
            if let Ok(sessions) = self.sessions() {
                self.cluster.attend(&sessions).await;
            }
            std::future::pending().await
        })
    }

    /// Ends the sessions with the machines.
    pub fn close(self) -> LocalFuture<'static, ()> {
        Box::pin(async move {
            self.cluster.close().await;
        })
    }

    /// The options of the cluster.
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Writes the progress of the next calls on a board.
    pub fn show_on(&mut self, board: ProgressBoard) {
        self.board = Some(board);
    }

    /// Whether parts of placed matrices were put again, since a machine was lost.
    pub fn has_restored(&self) -> bool {
        self.has_restored
    }

    /// A failure as this cluster reports it: local worker processes are never "unreachable".
    pub fn failure(&self, error: ClientError) -> Failure {
        GatheredTeam::failure(self.is_local, error)
    }

    /// How results are checked.
    fn check(&self) -> Result<CheckRequest, Failure> {
        Ok(CheckRequest { effort: self.options.verify, threads: self.threads.get(), seed: seed()? })
    }

    /// The sessions of a call with the machines.
    fn sessions(&self) -> Result<SessionRequest, Failure> {
        sessions(&self.options)
    }

    /// Whether this process's own threads compute, too.
    fn who(&self) -> Preference {
        self.options.cut.wish(self.is_local).who
    }

    /// The progress of one call.
    fn display(&self) -> ProgressDisplay {
        ProgressDisplay::new(self.options.progress, self.lost.clone()).with_board(self.board.clone())
    }
}

fn sessions(options: &ClientOptions) -> Result<SessionRequest, Failure> {
    let ClientOptions { cut, steals, account, degraded, .. } = options;
    session_request(cut.credits, *steals, *account, *degraded)
}
