//! What `solve`, `lu` and `bench hpl` on workers have in common: the settings of a run, and what the user is told.

use bramble_cluster::args::TeamArgs;
use bramble_cluster::local::LocalWorkers;
use bramble_cluster::random::session_request;
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec};
use bramble_kernel::{Choice, Workload};
use bramble_matrix::DType;
use bramble_primary::{Cluster, ClusterOptions, SessionRequest, SystemPlan, SystemProgress};
use bramble_report::exit::Failure;
use bramble_report::progress::{ProgressDisplay, ProgressOptions};
use bramble_report::quantity::{counted, seconds};
use bramble_report::{losses, say};
use serde_json::Value;
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

/// Workers that are connected.
pub(crate) struct OpenTeam {
    pub(crate) cluster: Cluster,
    pub(crate) display: ProgressDisplay,
    pub(crate) kernel: String,
    /// Whether the workers are processes of this machine.
    pub(crate) is_local: bool,
    processes: LocalWorkers,
}

impl OpenTeam {
    /// Connects to the machines that the options name, for factors of a matrix of that order and element type.
    pub(crate) async fn open(
        (spec, machines): (TeamSpec, &TeamArgs),
        (kernel, dtype, order): (Choice, DType, u64),
        display: ProgressDisplay,
        options: ClusterOptions,
    ) -> Result<Self, Failure> {
        let n = order as f64;
        let purpose = Purpose { kernel, dtype, flops: 2.0 / 3.0 * n * n * n, work: Workload::Factorisation };
        let gathered = spec.gather(machines, purpose).await?;
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

/// Refuses options that mean nothing without workers.
pub(crate) fn refuse_alone(survive: u8, depth: Option<u8>) -> Result<(), Failure> {
    let refused = [(survive > 0, "--survive"), (depth.is_some(), "--depth")];
    match refused.into_iter().find(|(is_given, _)| *is_given) {
        Some((_, option)) => {
            let why = "needs workers; name some with -w, --hostfile, --await or --local";
            Err(Failure::usage(format!("{option}: {why}")))
        }
        None => Ok(()),
    }
}

/// Tells the user how a run goes on: losses always, what will take long unless `is_quiet`.
pub(crate) fn tell(state: &SystemProgress<'_>, is_quiet: bool) {
    match state {
        SystemProgress::Planned(plan) if !is_quiet => announce(plan),
        SystemProgress::Lost(loss, left) => say(&losses::told(loss, *left)),
        _ => {}
    }
}

/// A line for each machine that takes no part, since it would slow the run.
pub(crate) fn left_out_lines(names: &[String]) -> impl Iterator<Item = String> {
    names.iter().map(|name| format!("left out  {name}: with it, the run would take longer"))
}

/// The columns of a block and the panels that each worker keeps, with the predictions for narrower and wider blocks.
pub(crate) fn block_line(plan: &SystemPlan) -> String {
    let of = |(width, time): &(usize, f64)| format!("{} with {width}", seconds(*time));
    let narrower = plan.tried.iter().rfind(|(width, _)| *width < plan.width);
    let wider = plan.tried.iter().find(|(width, _)| *width > plan.width);
    let others: Vec<String> = narrower.into_iter().chain(wider).map(of).collect();
    let why = match others.is_empty() {
        true => String::new(),
        false => format!(": {} predicted, and {}", seconds(plan.estimate.seconds), others.join(", ")),
    };
    let panels = counted(plan.depth as u64, "panel");
    format!("blocks    of {} columns{why}; each worker keeps {panels}", plan.width)
}

/// A JSON object with the fields of both.
pub(crate) fn merged(mut object: Value, more: &Value) -> Value {
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        object.extend(more.clone());
    }
    object
}

/// Says what will take long.
fn announce(plan: &SystemPlan) {
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
