//! `--link mpi`: this process is one of several that an `mpirun` started with the same arguments.
//!
//! Place in the flow: before the verb runs. Rank 0 runs the verb as primary; the other ranks are workers, and read
//! and write no files.
//!
//! Invariants: all ranks initialise MPI before anything else can fail, and finalise it together, when rank 0 says so;
//! so no rank waits for one that has ended. Ranks on one machine divide its allowed processors and its memory among
//! themselves. An error is printed once: by rank 0, or, before MPI is initialised, by the first rank of each machine.
//! No rank waits forever in the MPI library: initialising, finalising and aborting have deadlines.
//!
//! Deliberately absent: continuing without a rank that has died. mpirun ends the whole job then.

use crate::args::{LinkKind, TeamArgs};
use crate::signals::StopSignals;
use bramble_link::{Late, Launch, Link, LinkError, RankOrder, World};
use bramble_primary::MachineLink;
use bramble_report::exit::{Exit, Failure};
use bramble_worker::{Config, SessionLedger, available_memory, default_threads, host_name, serve_link};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};

/// After a signal, rank 0 saves the completed tiles and then ends all ranks; the others wait this long before they
/// begin to leave on their own.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(6);

/// How long a rank waits for the others at the start, unless the variable below sets another time. mpirun starts the
/// ranks together, but the program file may take time to reach every machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// The environment variable that sets this time, in seconds.
const START_VARIABLE: &str = "BRAMBLE_MPI_START_S";

/// The ranks of this MPI job; empty if this process is not part of one.
#[derive(Clone, Debug, Default)]
pub struct Ranks(Option<Rc<World>>);

/// The part of this process in the MPI job.
pub enum RankRole {
    /// Rank 0, or a process outside MPI: it runs the verb.
    Primary,
    /// A worker that has finished; the process exits with this code.
    Worker(Exit),
}

/// The resources of its machine that a process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// Compute threads.
    pub threads: usize,
    /// Memory limit.
    pub memory_bytes: u64,
    /// The first processor to pin threads to, among those on which the process may run.
    pub pin_from: Option<usize>,
}

/// Joins the MPI job if the options of the machines ask for it. On a worker rank, this returns only when the job is
/// over.
pub fn enter_team(team: &mut TeamArgs) -> Result<(RankRole, Ranks), Failure> {
    if team.link != Some(LinkKind::Mpi) {
        return Ok((RankRole::Primary, Ranks::default()));
    }
    let named = [
        (team.machines.local.is_some(), "--local"),
        (team.machines.workers.is_some(), "--workers"),
        (team.machines.hostfile.is_some(), "--hostfile"),
        (team.machines.awaited.is_some(), "--await"),
    ];
    if let Some((_, option)) = named.iter().find(|(is_given, _)| *is_given) {
        let text =
            format!("--link mpi: the workers are the processes that mpirun started; leave {option} out");
        // Every rank finds this error; rank 0 prints it.
        let exit = Exit::Usage;
        return if is_first() {
            Err(Failure::usage(text))
        } else {
            Ok((RankRole::Worker(exit), Ranks::default()))
        };
    }
    let (role, ranks) = world(|world| serve(world, team.threads, sessions(world, team)))?;
    team.ranks = ranks.clone();
    Ok((role, ranks))
}

/// Joins the MPI job. All ranks but 0 do the work that `work` makes, and then leave.
pub fn enter<W: Future<Output = Option<Exit>>>(
    work: impl FnOnce(Rc<World>) -> W,
) -> Result<(RankRole, Ranks), Failure> {
    world(|world| serve(world, None, work(world.clone())))
}

/// Initialises MPI. All ranks but 0 do `work`, and then leave.
fn world(work: impl FnOnce(&Rc<World>) -> Option<Exit>) -> Result<(RankRole, Ranks), Failure> {
    let launch = Launch::of_environment();
    let patience = match start_patience(std::env::var(START_VARIABLE).ok().as_deref()) {
        Ok(patience) => patience,
        // Every rank finds this error; rank 0 prints it.
        Err(failure) if is_first() => return Err(failure),
        Err(failure) => return Ok((RankRole::Worker(failure.exit), Ranks::default())),
    };
    let world = match World::enter(launch, patience, when_late) {
        Ok(world) => Rc::new(world),
        Err(e) if launch.is_first_of_machine => return Err(Failure::failed(format!("--link mpi: {e}"))),
        Err(_) => return Ok((RankRole::Worker(Exit::Failed), Ranks::default())),
    };
    if world.size() == 1 && !launch.is_alone() {
        let text = "--link mpi: this process was not started by mpirun; use mpirun, as in: mpirun -n 4 bramble \
        multiply A.npy B.npy -o C.npy --link mpi";
        // With one rank, nothing can delay this.
        let _ = world.leave(Exit::Usage.number());
        return Err(Failure::usage(text));
    }
    if world.rank() == 0 {
        return Ok((RankRole::Primary, Ranks(Some(world))));
    }
    let exit = work(&world);
    // Rank 0 sees and prints any error.
    let is_left = world.leave(Exit::Failed.number()).is_ok();
    Ok((RankRole::Worker(exit.filter(|_| is_left).unwrap_or(Exit::Failed)), Ranks::default()))
}

/// How long a rank waits for the others at the start, from the value of the environment variable.
fn start_patience(value: Option<&str>) -> Result<Duration, Failure> {
    let Some(text) = value else { return Ok(START_PATIENCE) };
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    seconds.ok_or_else(|| {
        Failure::usage(format!(
            "{START_VARIABLE}={text}: give a whole number of seconds, at least 1, such as 120"
        ))
    })
}

/// Ends this process if a call of the MPI library still waits for other ranks at its deadline; mpirun then ends the
/// other ranks.
fn when_late(late: Late) {
    let (text, code) = late_text(late, Launch::of_environment().size);
    bramble_report::say(&format!("bramble: --link mpi: {text}"));
    // The report may already be in the buffer of standard output.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    bramble_kernel::leave(code)
}

/// The message for an MPI call that passed its deadline, and the exit code of this process.
fn late_text(late: Late, size: Option<usize>) -> (String, u8) {
    match late {
        Late::Entering(patience) => {
            let count = size.map_or_else(|| "all".to_owned(), |size| format!("all {size}"));
            let text = format!(
                "not {count} processes of the job have initialised MPI after {} s; check that every machine is up \
                and no process is stopped, or wait longer with {START_VARIABLE}=SECONDS",
                patience.as_secs()
            );
            (text, Exit::Failed.number())
        }
        Late::Leaving(code) => {
            let text = "another process of the job does not return from MPI_Finalize, so this one exits and mpirun ends the \
                        job; C is complete";
            (text.to_owned(), code)
        }
        Late::Aborting(code) => {
            ("mpirun does not react to MPI_Abort; this process exits without it".to_owned(), code)
        }
    }
}

/// Whether this process prints the errors of its job: rank 0, or a process outside a job.
fn is_first() -> bool {
    Launch::of_environment().rank.is_none_or(|rank| rank == 0)
}

/// The same if the command line could not be parsed.
pub fn speaks() -> bool {
    is_first() || !wants_mpi(std::env::args())
}

/// A hint for a failed product that mpirun started several times without `--link mpi`: the copies disturb each other.
pub fn hint() -> String {
    let is_product = std::env::args().nth(1).is_some_and(|verb| verb == "multiply");
    match Launch::of_environment().size.filter(|size| *size > 1) {
        Some(size) if is_product && !wants_mpi(std::env::args()) => {
            format!("; mpirun started {size} copies of this process: add --link mpi to make them one machine")
        }
        _ => String::new(),
    }
}

/// Number of ranks of this process's job, if the command line has `--link mpi`.
pub fn size() -> Option<usize> {
    Launch::of_environment().size.filter(|_| wants_mpi(std::env::args()))
}

fn wants_mpi(arguments: impl Iterator<Item = String>) -> bool {
    let mut arguments = arguments;
    arguments.any(|text| text == "mpi" || text == "--link=mpi")
}

impl Ranks {
    /// The MPI job, if it has other ranks.
    pub fn others(&self) -> Option<Rc<World>> {
        self.0.clone().filter(|world| world.size() > 1)
    }

    /// Number of ranks; 1 outside a job.
    pub fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |world| world.size())
    }

    /// Links to all other ranks. Has to run inside a `LocalSet`.
    pub fn meet(world: &World, threads: Option<u16>) -> Result<Vec<MachineLink>, Failure> {
        let failed = |e: LinkError| Failure::failed(format!("--link mpi: {e}"));
        drive(world, threads)?;
        world.tell(RankOrder::Serve).map_err(failed)?;
        let link = |rank| world.link(rank, &format!("rank {rank}")).map_err(failed);
        let end = |link: Link| MachineLink { link, threads_max: 0, was_dialled: false };
        (1..world.size()).map(|rank| link(rank).map(end)).collect()
    }

    /// Ends the job, after all results are printed.
    pub fn leave(&self, code: u8) {
        let Some(world) = &self.0 else { return };
        // Ranks that cannot be told are aborted by `leave`.
        let _ = world.tell(RankOrder::Done);
        if let Err(e) = world.leave(code) {
            bramble_report::say(&format!("bramble: --link mpi: {e}"));
        }
    }
}

/// Starts the task that moves MPI messages, on this thread's event loop.
pub fn drive(world: &World, threads: Option<u16>) -> Result<(), Failure> {
    let portion = world.portion();
    // With less than one processor per rank, polling for messages would take time from compute threads.
    let has_cores =
        portion.sharers <= default_threads() && threads.map_or(1, usize::from) <= default_threads();
    let driving = world.drive(has_cores).map_err(|e| Failure::failed(format!("--link mpi: {e}")))?;
    spawn_local(driving);
    Ok(())
}

/// The resources of this rank: the user's values, else an equal share of the machine.
pub fn allotment(world: &World, threads: Option<u16>, memory_bytes: Option<u64>) -> Allotment {
    let (portion, cores) = (world.portion(), default_threads());
    let threads = threads.map_or_else(|| (cores / portion.sharers).max(1), usize::from);
    let ranks = u64::try_from(portion.ranks).unwrap_or(1).max(1);
    Allotment {
        threads,
        memory_bytes: memory_bytes.unwrap_or_else(|| available_memory() / ranks),
        pin_from: (portion.sharers * threads <= cores).then_some(portion.place * threads),
    }
}

/// Runs the work of a worker rank to its end; `None` if it cannot run, or lost rank 0.
fn serve(world: &World, threads: Option<u16>, work: impl Future<Output = Option<Exit>>) -> Option<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let local = LocalSet::new();
    let exit = local.block_on(&runtime, async {
        drive(world, threads).ok()?;
        let mut signals = StopSignals::new().ok()?;
        let signalled = async {
            // All ranks get the signal, and rank 0 may have tiles to save first.
            let exit = signals.next().await;
            tokio::time::sleep(SIGNAL_PATIENCE).await;
            exit
        };
        tokio::select! {
            exit = work => exit,
            exit = signalled => Some(exit),
        }
    });
    drop(local);
    // Compute threads may be inside a kernel; the process does not wait for them.
    runtime.shutdown_background();
    exit
}

/// Serves sessions of rank 0, one after another.
async fn sessions(world: &World, args: &TeamArgs) -> Option<Exit> {
    let Allotment { threads, memory_bytes, pin_from } = allotment(world, args.threads, args.memory);
    let config = Config { threads, memory_bytes, kernel: None, pin_from, gives_way: true, name: host_name() };
    let ledger = SessionLedger::new();
    let mut order = world.told().await.ok()?;
    while order == RankOrder::Serve {
        let link = world.link(0, "primary").ok()?;
        tokio::select! {
            // The primary's end of the link reports how the session ended.
            _ = serve_link(link, None, &config, &ledger) => order = world.told().await.ok()?,
            told = world.told() => order = told.ok()?,
        }
    }
    Some(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_for_the_start_is_seconds() {
        assert_eq!(start_patience(None).unwrap(), START_PATIENCE);
        assert_eq!(start_patience(Some("7")).unwrap(), Duration::from_secs(7));
        for wrong in ["0", "", "-1", "1.5", "a minute"] {
            let failure = start_patience(Some(wrong)).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(
                failure.text.contains(START_VARIABLE) && failure.text.contains("seconds"),
                "{}",
                failure.text
            );
        }
    }

    #[test]
    fn who_is_late_in_leaving_does_not_change_the_exit_code() {
        for code in [0, 3, 130] {
            assert_eq!(late_text(Late::Leaving(code), Some(3)).1, code);
            assert_eq!(late_text(Late::Aborting(code), Some(3)).1, code);
        }
        let (text, code) = late_text(Late::Entering(Duration::from_secs(60)), Some(3));
        assert!(text.contains("60 s") && text.contains("all 3") && text.contains(START_VARIABLE), "{text}");
        assert_eq!(code, 1);
    }
}
