//! `bramble plan lu`: how workers would solve a system or factor a matrix, how long it would take and why, without doing it.
//!
//! Place in the flow: the same as `solve`, `lu` and `bench hpl` on workers up to the plan; then `show` prints it. A cluster file
//! (`described.rs`) takes the place of real machines.
//!
//! Invariants: real workers are contacted, measured and planned for exactly as by these verbs, so the run would have the plan
//! that is shown. No element of a matrix is read.
//!
//! Deliberately absent: a plan for the threads of this process, which have nothing to decide.

mod described;
mod show;
mod subject;

pub use described::lu_machines;

use crate::args::kernel_of_factors;
use crate::on_workers::{OpenTeam, display, sessions};
use bramble_cluster::args::{MachineArgs, kernel};
use bramble_cluster::team::{GatheredTeam, TeamSpec};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::Choice;
use bramble_primary::{ClusterOptions, SystemPlan, SystemRequest};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::size;
use clap::Args;
use show::PlannedSystem;
use std::ffi::OsString;
use std::path::PathBuf;
use subject::PlanSubject;

/// The options of `plan lu`.
#[derive(Args, Debug)]
pub struct PlanLuArgs {
    /// The order N of a system that the workers generate, as for bench hpl; or the square matrix A of solve or lu
    #[arg(value_name = "N|A")]
    pub(crate) a: OsString,
    /// The right-hand sides B, as for solve; A alone is factored, as by lu
    pub(crate) b: Option<OsString>,
    /// Plan for solve --refine: factors in f32
    #[arg(long, requires = "b")]
    pub(crate) refine: bool,
    /// With N: plan for bench hpl --mxp
    #[arg(long)]
    pub(crate) mxp: bool,
    /// Columns NB of a panel (default: as the cost model says)
    #[arg(long, visible_alias = "block", value_name = "NB", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) nb: Option<u16>,
    /// Panels that each worker keeps, 1 to 16 (default: as the cost model says)
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) depth: Option<u8>,
    /// With N: how many workers take part, the first ones (default: as is fastest)
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: Option<u16>,
    /// How many workers may be lost during the run: the system has to fit on the others, too
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) survive: u8,
    /// Memory of each worker that the system may take, such as 512M or 4G (default: what it offers)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Kernel of the products: auto, reference, simd, openblas or blis
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    pub(crate) kernel: Choice,
    /// File that describes machines, which need not exist (docs/cluster-file.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workers", "hostfile", "awaited", "local"])]
    pub(crate) cluster: Option<PathBuf>,
    /// Print one JSON object instead of text (docs/json.md)
    #[arg(long)]
    pub(crate) json: bool,
    /// The machines.
    #[command(flatten)]
    pub machines: MachineArgs,
}

/// Runs the verb.
pub fn plan_lu(args: &PlanLuArgs) -> Result<Exit, Failure> {
    kernel_of_factors(args.kernel)?;
    let subject = PlanSubject::of(args)?;
    let plan = match &args.cluster {
        Some(file) => described::plan(args, &subject, file)?,
        None => match done_or_signal(on_workers(args, &subject))? {
            Completion::Signal(exit) => return Ok(exit),
            Completion::Done(plan) => plan,
        },
    };
    let planned = PlannedSystem { subject: &subject, plan, survives: args.survive };
    if args.json {
        return bramble_report::out(format!("{}\n", planned.json()).as_bytes());
    }
    bramble_report::out(planned.text().as_bytes())
}

/// The plan for real workers, which are measured.
async fn on_workers(args: &PlanLuArgs, subject: &PlanSubject) -> Result<SystemPlan, Failure> {
    let spec = match TeamSpec::of(&args.machines.team())? {
        TeamSpec::Alone => {
            return Err(Failure::usage(
                "plan lu: name machines with -w, --hostfile, --await, --local or --cluster; without workers, the threads of one \
                 process have nothing to plan, and 'bench hpl --size N' measures and predicts their time",
            ));
        }
        spec => spec,
    };
    let source = subject.source()?;
    let (order, _) = source.shape()?;
    let (wanted, options) = ((args.kernel, subject.dtype(), order as u64), ClusterOptions::default());
    let mut team =
        OpenTeam::open((spec, &args.machines.team()), wanted, display(args.json, args.json), options).await?;
    let request = SystemRequest {
        source,
        dtype: subject.dtype(),
        width: args.nb.map(|nb| usize::from(nb).min(order)),
        depth: args.depth.map(usize::from),
        workers: args.nodes.map(usize::from),
        outlives_losses: false,
        survive: usize::from(args.survive),
        kernel: team.kernel.clone(),
        sessions: sessions(args.memory)?,
    };
    let planned = team.cluster.plan_system(&request, &team.display).await;
    let is_local = team.is_local;
    team.close().await;
    planned.map_err(|e| GatheredTeam::failure(is_local, e))
}
