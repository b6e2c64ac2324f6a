//! What `solve`, `lu` and `bench hpl` on workers have in common: the settings of a run, and what the user is told.

use bramble_cluster::args::MachineArgs;
use bramble_cluster::local::LocalWorkers;
use bramble_cluster::random::session_request;
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec};
use bramble_kernel::Choice;
use bramble_matrix::DType;
use bramble_primary::{Cluster, ClusterOptions, SessionRequest, SystemPlan};
use bramble_report::exit::Failure;
use bramble_report::progress::{ProgressDisplay, ProgressOptions};
use bramble_report::quantity::{counted, seconds};
use bramble_report::say;
use tokio::sync::mpsc;

/// A run that takes longer is announced.
const LONG_S: f64 = 10.0;

/// The display of a run; machines that are lost end it, so nothing waits for them.
pub(crate) fn display(is_quiet: bool, is_json: bool) -> ProgressDisplay {
    let (lost, _) = mpsc::unbounded_channel();
    let options =
        ProgressOptions { is_quiet, is_json, is_verbose: false, is_brief: true, keeps_journal: false };
    ProgressDisplay::new(options, lost)
}

/// Workers that are connected, for systems that are computed in f64.
pub(crate) struct OpenTeam {
    pub(crate) cluster: Cluster,
    pub(crate) display: ProgressDisplay,
    pub(crate) kernel: String,
    /// Whether the workers are processes of this machine.
    pub(crate) is_local: bool,
    processes: LocalWorkers,
}

impl OpenTeam {
    /// Connects to the machines that the options name.
    pub(crate) async fn open(
        (spec, machines): (TeamSpec, &MachineArgs),
        kernel: Choice,
        display: ProgressDisplay,
        options: ClusterOptions,
    ) -> Result<Self, Failure> {
        let purpose = Purpose { kernel, dtype: DType::F64, flops: 0.0 };
        let gathered = spec.gather(&machines.team(), purpose).await?;
        let GatheredTeam { ends, kernel, is_local, processes, .. } = gathered;
        let cluster = Cluster::open(ends, options, &display).await?;
        Ok(Self { cluster, display, kernel, is_local, processes })
    }

    /// Closes the connections, and ends processes of this machine.
    pub(crate) async fn close(self) {
        self.cluster.close().await;
        drop(self.processes);
    }
}

/// The sessions of a run; each worker offers at most `memory` bytes.
pub(crate) fn sessions(memory: Option<u64>) -> Result<SessionRequest, Failure> {
    session_request(memory, false, false, false)
}

/// Says what will take long.
pub(crate) fn announce(plan: &SystemPlan) {
    if plan.estimate.seconds >= LONG_S {
        say(&format!(
            "bramble: N = {}, NB = {} on {}: {} predicted",
            plan.order,
            plan.width,
            counted(plan.shares.len() as u64, "worker"),
            seconds(plan.estimate.seconds)
        ));
    }
}

/// Names the workers that have computed wrongly.
pub(crate) fn accuse(accusations: &[String]) {
    for accusation in accusations {
        say(&format!("bramble: {accusation}"));
    }
}
