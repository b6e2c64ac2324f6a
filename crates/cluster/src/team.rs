//! The machines of a product: from the command line to one link per machine, including one to this process's own
//! compute threads.
//!
//! Place in the flow: before sessions are opened, for the verbs multiply, plan, sim and nodes alike.
//!
//! Invariant: this machine's own threads are a worker like any other, over a link that shares memory.

use crate::args::{LinkKind, TeamArgs};
use crate::connect::{ClusterSpec, ConnectedWorkers, LateWorkers};
use crate::hostfile;
use crate::hosts::Host;
use crate::local::{LocalConfig, LocalTransport, LocalWorkers};
use crate::ranks::{Allotment, Ranks, allotment};
use crate::trust;
use crate::turned_away::TurnedAway;
use bramble_kernel::{Choice, KernelError, Workload};
use bramble_link::LocalFuture;
use bramble_link::{LocalKind, World, thread_pair};
use bramble_matrix::DType;
use bramble_primary::{MachineLink, MachineLinks};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::size_text;
use bramble_worker::{Config, SessionLedger, available_memory, default_threads, host_name, serve_link};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::mpsc;

/// Connected workers that wait until the running product takes them in.
const COMERS_MAX: usize = 16;

/// The machines that the command line names.
pub enum TeamSpec {
    /// This process alone.
    Alone,
    /// Worker processes that this process starts on this machine (`--local`).
    Local(LocalConfig),
    /// Workers that are dialled or that dial in.
    Cluster(ClusterSpec),
    /// The other processes of the same mpirun.
    Ranks(Rc<World>),
}

/// Links to all workers that could be reached.
pub struct GatheredTeam {
    /// The links, and the names of machines without one.
    pub ends: MachineLinks,
    /// Errors of the workers that could not be reached.
    pub missing: Vec<Failure>,
    /// Accepts and dials workers while the product runs.
    later: Option<LateWorkers>,
    /// Connections at `--listen` that were refused.
    pub turned_away: Option<Rc<RefCell<TurnedAway>>>,
    /// The kernel that workers are asked to use.
    pub kernel: String,
    /// Compute threads of this machine.
    pub threads: usize,
    /// Whether the workers are processes of this machine.
    pub is_local: bool,
    /// The local worker processes; dropping this ends them.
    pub processes: LocalWorkers,
}

/// The product or factorisation that the machines are gathered for.
#[derive(Clone, Copy)]
pub struct Purpose {
    /// The kernel that the user wants.
    pub kernel: Choice,
    /// The type of the elements.
    pub dtype: DType,
    /// Floating-point operations: few do not justify a long comparison of kernels.
    pub flops: f64,
    /// Whether they are those of products or of a factorisation.
    pub work: Workload,
}

impl TeamSpec {
    /// The machines that the command line names.
    pub fn of(args: &TeamArgs) -> Result<Self, Failure> {
        if let Some(bytes) = args.memory.filter(|bytes| *bytes <= Config::PROGRAM_BYTES) {
            let (given, least) = (size_text(bytes), size_text(Config::PROGRAM_BYTES));
            return Err(Failure::usage(format!(
                "--memory {given}: must be more than {least}, which the program alone needs; give it more, as in 256M"
            )));
        }
        let cores = default_threads();
        if args.link == Some(LinkKind::Mpi) {
            // An MPI job of one process computes alone.
            return Ok(args.ranks.others().map_or(Self::Alone, Self::Ranks));
        }
        if let Some(workers) = args.machines.local {
            let way = match args.link {
                Some(LinkKind::Thread) => {
                    let text = "--link thread: --local starts processes; leave --local out to use threads";
                    return Err(Failure::usage(text));
                }
                None | Some(LinkKind::Tcp) => LocalTransport::Loopback,
                Some(LinkKind::Pipe) => LocalTransport::Inherited(LocalKind::Pipe),
                Some(LinkKind::Shm) => LocalTransport::Inherited(LocalKind::Shm),
                Some(LinkKind::Mpi) => unreachable!("refused before, and taken care of above"),
            };
            return Ok(Self::Local(LocalConfig {
                workers,
                way,
                threads: args.threads.map_or_else(|| (cores / usize::from(workers)).max(1), usize::from),
                memory_bytes: args.memory.unwrap_or_else(|| available_memory() / u64::from(workers)),
                cores,
            }));
        }
        let hosts = named_hosts(args)?;
        let awaited = args.machines.awaited.unwrap_or(0);
        if !hosts.is_empty() || awaited > 0 {
            if let Some(link) = args.link.filter(|link| *link != LinkKind::Tcp) {
                let link = link.name();
                let text = format!(
                    "--link {link}: workers of --workers, --hostfile and --await use TCP; --link is for --local N"
                );
                return Err(Failure::usage(text));
            }
            let security = trust::security(&args.machines.trust)?;
            return Ok(Self::Cluster(ClusterSpec {
                hosts,
                awaited,
                patience: args.machines.await_timeout,
                listen: args.machines.listen,
                security,
            }));
        }
        match args.link {
            None | Some(LinkKind::Thread) => {}
            Some(LinkKind::Tcp) => {
                return Err(Failure::usage("--link tcp: needs workers; add --local N or --workers HOSTS"));
            }
            Some(link) => {
                let link = link.name();
                return Err(Failure::usage(format!("--link {link}: needs worker processes; add --local N")));
            }
        }
        Ok(Self::Alone)
    }

    /// Connects to all machines; errors of unreachable workers are in `missing`. Has to run inside a `LocalSet`.
    pub fn gather_some<'f>(
        self,
        args: &'f TeamArgs,
        purpose: Purpose,
    ) -> LocalFuture<'f, Result<GatheredTeam, Failure>> {
        Box::pin(async move {
            let mut kernel = purpose.kernel;
            let is_local = matches!(self, Self::Local(_));
            let allotment = match &self {
                Self::Ranks(world) => Some(allotment(world, args.threads, args.memory)),
                Self::Alone | Self::Local(_) | Self::Cluster(_) => None,
            };
            let mut processes = LocalWorkers::default();
            let ConnectedWorkers { ends: workers, missing, later, turned_away } = match self {
                Self::Alone => ConnectedWorkers::default(),
                Self::Local(share) => {
                    let (started, meeting) = LocalWorkers::start(share).await?;
                    processes = started;
                    // All local workers run on this machine, so one kernel probe serves them all; it runs while they
                    // start.
                    kernel = probed(purpose)?;
                    let links = processes.meet(meeting).await?;
                    let end = |link| MachineLink { link, threads_max: 0, was_dialled: false };
                    let ends = links.into_iter().map(end).collect();
                    ConnectedWorkers { ends, ..ConnectedWorkers::default() }
                }
                Self::Cluster(cluster) => cluster.meet().await?,
                Self::Ranks(world) => ConnectedWorkers {
                    ends: Ranks::meet(&world, args.threads)?,
                    ..ConnectedWorkers::default()
                },
            };
            let allotment = allotment.unwrap_or_else(|| own(args, is_local));
            let (local, threads) = (own_threads(allotment, !workers.is_empty()), allotment.threads);
            Ok(GatheredTeam {
                ends: MachineLinks { local, workers, alike: is_local, missing: Vec::new(), later: None },
                missing,
                later,
                turned_away,
                kernel: kernel.to_string(),
                threads,
                is_local,
                processes,
            })
        })
    }

    /// Connects to all machines, or returns the first error. With `--degraded`, unreachable workers are only listed.
    pub fn gather<'f>(
        self,
        args: &'f TeamArgs,
        purpose: Purpose,
    ) -> LocalFuture<'f, Result<GatheredTeam, Failure>> {
        Box::pin(async move {
            let mut gathered = self.gather_some(args, purpose).await?;
            let is_final = |f: &Failure| !args.degraded || f.exit != Exit::Unreachable;
            if let Some(at) = gathered.missing.iter().position(is_final) {
                return Err(gathered.missing.swap_remove(at));
            }
            gathered.ends.missing = gathered.missing.drain(..).map(|f| f.text).collect();
            Ok(gathered)
        })
    }
}

impl GatheredTeam {
    /// From now on, the product can take in more workers: new ones dial in, and lost ones, whose names come on
    /// `lost`, are dialled again. Has to run inside a `LocalSet`.
    pub fn expect_more(&mut self, lost: mpsc::UnboundedReceiver<String>) {
        let Some(later) = self.later.take() else { return };
        let (to, ends) = mpsc::channel(COMERS_MAX);
        self.ends.later = Some(ends);
        tokio::task::spawn_local(later.serve(lost, to));
    }

    /// The failure of a product on these machines. Local worker processes are never "unreachable", so their failures
    /// have exit code 1.
    pub fn failure(is_local: bool, failure: impl Into<Failure>) -> Failure {
        match failure.into() {
            Failure { exit: Exit::Unreachable, text } if is_local => Failure::failed(text),
            failure => failure,
        }
    }
}

/// The workers that an option or the variable names.
fn named_hosts(args: &TeamArgs) -> Result<Vec<Host>, Failure> {
    // Any of these options overrides the variable, which clap cannot express.
    let is_named = args.machines.workers.is_some()
        || args.machines.hostfile.is_some()
        || args.machines.awaited.is_some();
    let from_environment = match is_named {
        false => std::env::var("BRAMBLE_HOSTS").ok().filter(|list| !list.is_empty()),
        true => None,
    };
    match (&args.machines.workers, &from_environment, &args.machines.hostfile) {
        (Some(list), _, _) => hostfile::from_list("--workers", list),
        (None, Some(list), _) => hostfile::from_list("BRAMBLE_HOSTS", list),
        (None, None, Some(file)) => hostfile::from_file(file),
        (None, None, None) => Ok(Vec::new()),
    }
}

/// Threads and memory of this process, if it is not one of an mpirun.
fn own(args: &TeamArgs, is_local: bool) -> Allotment {
    let threads =
        if is_local { default_threads() } else { args.threads.map_or_else(default_threads, usize::from) };
    let memory_bytes = match args.memory {
        Some(bytes) if !is_local => bytes,
        _ => available_memory(),
    };
    // Local worker processes use the same cores, so this process is pinned only without them.
    let pin_from = (!is_local && threads <= default_threads()).then_some(0);
    Allotment { threads, memory_bytes, pin_from }
}

/// Runs this process's own compute threads as a worker, over a thread link.
fn own_threads(allotment: Allotment, has_others: bool) -> MachineLink {
    let Allotment { threads, memory_bytes, pin_from } = allotment;
    let config =
        Config { threads, memory_bytes, kernel: None, pin_from, gives_way: has_others, name: host_name() };
    let (here, there) = thread_pair("primary", "this machine");
    tokio::task::spawn_local(async move {
        // The primary's end of the link reports how the session ended.
        let _ = serve_link(there, None, &config, &SessionLedger::new()).await;
    });
    MachineLink { link: here, threads_max: 0, was_dialled: false }
}

/// The kernel that `auto` resolves to on this machine.
fn probed(purpose: Purpose) -> Result<Choice, Failure> {
    let Purpose { kernel, dtype, flops, work } = purpose;
    let pick = bramble_kernel::pick_by_wall(work, kernel, dtype, flops).map_err(|e| no_kernel(&e))?;
    pick.kernel.name().parse().map_err(|e| Failure::failed(format!("{e}")))
}

/// Refuses a kernel that this machine does not have, before anything is started.
pub fn check_kernel(kernel: Choice, dtype: DType) -> Result<(), Failure> {
    if kernel != Choice::Auto {
        bramble_kernel::pick(kernel, dtype, 0.0).map_err(|e| no_kernel(&e))?;
    }
    Ok(())
}

/// A kernel that does not go with the type of the elements is a mistake of the command line; one that is not installed is
/// none.
fn no_kernel(e: &KernelError) -> Failure {
    let text = format!("--kernel: {e}");
    if matches!(e, KernelError::Unsupported { .. }) { Failure::usage(text) } else { Failure::failed(text) }
}
