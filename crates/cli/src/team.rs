//! Who computes: from the command line to links with every machine, this one's own threads included.
//!
//! Place in the flow: before the opening of sessions, for products, plans and looks at the machines alike.
//!
//! Invariant: this machine's own threads are a worker like any other, over a link that shares memory.

use crate::args::{LinkKind, TeamArgs};
use crate::cluster::{Cluster, Later, Met};
use crate::exit::{Exit, Failure};
use crate::hostfile;
use crate::local::{LocalWorkers, Share, Way};
use crate::quantity::size_text;
use crate::ranks::{Allotment, Ranks, allotment};
use crate::trust;
use crate::turned_away::TurnedAway;
use bramble_kernel::Choice;
use bramble_link::{LocalKind, World, thread_pair};
use bramble_matrix::DType;
use bramble_primary::{End, Ends};
use bramble_worker::{Config, Ledger, available_memory, default_threads, host_name, serve_link};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::mpsc;

/// Workers that have come and that the product has not taken yet.
const COMERS_MAX: usize = 16;

/// Who computes, as the command line says.
pub(crate) enum Team {
    /// This process alone.
    Alone,
    /// Processes that it starts.
    Local(Share),
    /// Workers that listen or dial in.
    Cluster(Cluster),
    /// Those that were started with it.
    Ranks(Rc<World>),
}

/// Links with everybody who could be had.
pub(crate) struct Gathered {
    pub(crate) ends: Ends,
    /// Workers that could not be had, and why.
    pub(crate) missing: Vec<Failure>,
    /// Where more may come from while a product runs.
    later: Option<Later>,
    /// Connections at the door for workers that became none.
    pub(crate) turned_away: Option<Rc<RefCell<TurnedAway>>>,
    /// The kernel to ask for.
    pub(crate) kernel: String,
    /// Threads of this machine.
    pub(crate) threads: usize,
    /// Whether the workers are processes of this machine.
    pub(crate) is_local: bool,
    /// Those processes; they end with this.
    _processes: LocalWorkers,
}

/// What the machines are gathered for.
#[derive(Clone, Copy)]
pub(crate) struct Purpose {
    pub(crate) kernel: Choice,
    pub(crate) dtype: DType,
    /// Operations: few are not worth a long comparison of kernels.
    pub(crate) flops: f64,
}

impl Team {
    /// The machines that the command line names.
    pub(crate) fn of(args: &TeamArgs) -> Result<Self, Failure> {
        if let Some(bytes) = args.memory.filter(|bytes| *bytes <= Config::PROGRAM_BYTES) {
            let (given, least) = (size_text(bytes), size_text(Config::PROGRAM_BYTES));
            return Err(Failure::usage(format!(
                "--memory {given}: must be more than {least}, which the program alone needs; give it more, as in 256M"
            )));
        }
        let cores = default_threads();
        if args.link == Some(LinkKind::Mpi) {
            // Alone in its world it is this machine alone.
            return Ok(args.ranks.others().map_or(Self::Alone, Self::Ranks));
        }
        if let Some(workers) = args.local {
            let way = match args.link {
                Some(LinkKind::Thread) => {
                    let text = "--link thread: --local starts processes; leave --local away to use threads";
                    return Err(Failure::usage(text));
                }
                None | Some(LinkKind::Tcp) => Way::Loopback,
                Some(LinkKind::Pipe) => Way::Inherited(LocalKind::Pipe),
                Some(LinkKind::Shm) => Way::Inherited(LocalKind::Shm),
                Some(LinkKind::Mpi) => unreachable!("refused before, and taken care of above"),
            };
            return Ok(Self::Local(Share {
                workers,
                way,
                threads: args.threads.map_or_else(|| (cores / usize::from(workers)).max(1), usize::from),
                memory_bytes: args.memory.unwrap_or_else(|| available_memory() / u64::from(workers)),
                cores,
            }));
        }
        // A flag goes before the variable, so this is no business of the argument parser's.
        let is_named = args.workers.is_some() || args.hostfile.is_some() || args.awaited.is_some();
        let from_environment = match is_named {
            false => std::env::var("BRAMBLE_HOSTS").ok().filter(|list| !list.is_empty()),
            true => None,
        };
        let hosts = match (&args.workers, &from_environment, &args.hostfile) {
            (Some(list), _, _) => hostfile::from_list("--workers", list)?,
            (None, Some(list), _) => hostfile::from_list("BRAMBLE_HOSTS", list)?,
            (None, None, Some(file)) => hostfile::from_file(file)?,
            (None, None, None) => Vec::new(),
        };
        let awaited = args.awaited.unwrap_or(0);
        if !hosts.is_empty() || awaited > 0 {
            if let Some(link) = args.link.filter(|link| *link != LinkKind::Tcp) {
                let link = link.name();
                let text = format!(
                    "--link {link}: workers that are reached or awaited are so over TCP; --link is for --local N"
                );
                return Err(Failure::usage(text));
            }
            let security = trust::security(&args.trust)?;
            return Ok(Self::Cluster(Cluster {
                hosts,
                awaited,
                patience: args.await_timeout,
                listen: args.listen,
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

    /// Gets everyone together; whoever cannot be had is in `missing`. Has to run inside a `LocalSet`.
    pub(crate) async fn gather_some(self, args: &TeamArgs, purpose: Purpose) -> Result<Gathered, Failure> {
        let mut kernel = purpose.kernel;
        let is_local = matches!(self, Self::Local(_));
        let allotment = match &self {
            Self::Ranks(world) => Some(allotment(world, args.threads, args.memory)),
            Self::Alone | Self::Local(_) | Self::Cluster(_) => None,
        };
        let mut processes = LocalWorkers::default();
        let Met { ends: workers, missing, later, turned_away } = match self {
            Self::Alone => Met::default(),
            Self::Local(share) => {
                let (started, meeting) = LocalWorkers::start(share).await?;
                processes = started;
                // All are this machine: one probe, while they start, serves them all.
                kernel = probed(purpose)?;
                let links = processes.meet(meeting).await?;
                let end = |link| End { link, threads_max: 0, was_dialled: false };
                let ends = links.into_iter().map(end).collect();
                Met { ends, ..Met::default() }
            }
            Self::Cluster(cluster) => cluster.meet().await?,
            Self::Ranks(world) => Met { ends: Ranks::meet(&world, args.threads)?, ..Met::default() },
        };
        let allotment = allotment.unwrap_or_else(|| own(args, is_local));
        let (local, threads) = (own_threads(allotment, !workers.is_empty()), allotment.threads);
        Ok(Gathered {
            ends: Ends { local, workers, alike: is_local, missing: Vec::new(), later: None },
            missing,
            later,
            turned_away,
            kernel: kernel.to_string(),
            threads,
            is_local,
            _processes: processes,
        })
    }

    /// Gets everyone together, or says who cannot be had. With `--degraded` those who do not answer are left out.
    pub(crate) async fn gather(self, args: &TeamArgs, purpose: Purpose) -> Result<Gathered, Failure> {
        let mut gathered = self.gather_some(args, purpose).await?;
        let is_final = |f: &Failure| !args.degraded || f.exit != Exit::Unreachable;
        if let Some(at) = gathered.missing.iter().position(is_final) {
            return Err(gathered.missing.swap_remove(at));
        }
        gathered.ends.missing = gathered.missing.drain(..).map(|f| f.text).collect();
        Ok(gathered)
    }
}

impl Gathered {
    /// From now on, whoever comes is among the ends: those that dial in, and those that answer again after they were said to be
    /// lost. Has to run inside a `LocalSet`.
    pub(crate) fn expect_more(&mut self, lost: mpsc::UnboundedReceiver<String>) {
        let Some(later) = self.later.take() else { return };
        let (to, ends) = mpsc::channel(COMERS_MAX);
        self.ends.later = Some(ends);
        tokio::task::spawn_local(later.serve(lost, to));
    }

    /// A failure of these machines: processes of our own are no cluster that could be unreachable.
    pub(crate) fn failure(is_local: bool, failure: impl Into<Failure>) -> Failure {
        match failure.into() {
            Failure { exit: Exit::Unreachable, text } if is_local => Failure::failed(text),
            failure => failure,
        }
    }
}

/// What this process has of its machine, where it was not started with others.
fn own(args: &TeamArgs, is_local: bool) -> Allotment {
    let threads =
        if is_local { default_threads() } else { args.threads.map_or_else(default_threads, usize::from) };
    let memory_bytes = match args.memory {
        Some(bytes) if !is_local => bytes,
        _ => available_memory(),
    };
    // Worker processes of the same cores come and go; pinning is for a machine of one's own.
    let pin_from = (!is_local && threads <= default_threads()).then_some(0);
    Allotment { threads, memory_bytes, pin_from }
}

/// This machine's own threads as a worker.
fn own_threads(allotment: Allotment, has_others: bool) -> End {
    let Allotment { threads, memory_bytes, pin_from } = allotment;
    let config =
        Config { threads, memory_bytes, kernel: None, pin_from, gives_way: has_others, name: host_name() };
    let (here, there) = thread_pair("primary", "this machine");
    tokio::task::spawn_local(async move {
        // How it ended is seen at the other end.
        let _ = serve_link(there, None, &config, &Ledger::new()).await;
    });
    End { link: here, threads_max: 0, was_dialled: false }
}

/// `auto` resolved once.
fn probed(purpose: Purpose) -> Result<Choice, Failure> {
    let pick = bramble_kernel::pick(purpose.kernel, purpose.dtype, purpose.flops)
        .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    pick.kernel.name().parse().map_err(|e| Failure::failed(format!("{e}")))
}

/// A kernel that cannot be had here is said before anything is begun.
pub(crate) fn check_kernel(kernel: Choice, dtype: DType) -> Result<(), Failure> {
    if kernel != Choice::Auto {
        bramble_kernel::pick(kernel, dtype, 0.0).map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
    }
    Ok(())
}
