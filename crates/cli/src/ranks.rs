//! `--link mpi`: this process is one of those that an `mpirun` has started, all with the same arguments.
//!
//! Place in the flow: before the verb. The first of them (rank 0) runs it as primary; the others are workers, and read
//! and write no files.
//!
//! Invariants: all enter before anything can fail, and all leave together, when the first one says so; so none waits for
//! one that is no more. Processes of one machine share out its processors, those on which each may run, and its memory.
//! An error is told once: by the first, or, where there is no world yet, by the first of each machine. None waits for ever in a
//! call of the MPI library: to enter, to leave and to end the job have deadlines.
//!
//! Deliberately absent: going on without a process that has died. Whoever has started them ends them all.

use crate::args::{BenchCommand, Command, LinkKind, TeamArgs};
use crate::bench::{LinkName, follow};
use crate::exit::{Exit, Failure};
use crate::signals::Signals;
use bramble_link::{Late, Launch, Link, LinkError, Order, World};
use bramble_primary::End;
use bramble_worker::{Config, Ledger, available_memory, default_threads, host_name, serve_link};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};

/// After a signal the first process keeps what is done, and then ends all; the others wait so long before they begin to leave.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(6);

/// How long a process waits for the others at the start, unless the variable below sets another time. They are started
/// together, but the program file has to get to every machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Seconds of it.
const START_VARIABLE: &str = "BRAMBLE_MPI_START_S";

/// The other processes of the job, if this one is of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks(Option<Rc<World>>);

/// What becomes of this process.
pub(crate) enum Role {
    /// It does what it was asked to.
    Primary,
    /// It was a worker, and ends like this.
    Worker(Exit),
}

/// What a process has of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allotment {
    pub(crate) threads: usize,
    pub(crate) memory_bytes: u64,
    /// Where its threads are pinned from on, among the processors on which it may run.
    pub(crate) pin_from: Option<usize>,
}

/// Enters the world, where the verb wants it. Workers are workers until the end in here.
pub(crate) fn enter(command: &mut Command) -> Result<(Role, Ranks), Failure> {
    let team = match command {
        Command::Multiply(args) => &mut args.team,
        Command::Plan(args) => &mut args.team,
        Command::Sim(args) => &mut args.product.team,
        Command::Nodes(args) => &mut args.team,
        Command::Bench(BenchCommand::Link(args)) if args.link.contains(&LinkName::Mpi) => {
            let (role, ranks) =
                world(|world| serve(world, None, async { follow(world).await.ok().map(|()| Exit::Done) }))?;
            args.ranks = ranks.clone();
            return Ok((role, ranks));
        }
        _ => return Ok((Role::Primary, Ranks::default())),
    };
    if team.link != Some(LinkKind::Mpi) {
        return Ok((Role::Primary, Ranks::default()));
    }
    let named = [
        (team.local.is_some(), "--local"),
        (team.workers.is_some(), "--workers"),
        (team.hostfile.is_some(), "--hostfile"),
        (team.awaited.is_some(), "--await"),
    ];
    if let Some((_, option)) = named.iter().find(|(is_given, _)| *is_given) {
        let text =
            format!("--link mpi: the workers are the processes that mpirun has started; leave {option} away");
        // Every process of a job sees that, and one says it.
        let exit = Exit::Usage;
        return if is_first() {
            Err(Failure::usage(text))
        } else {
            Ok((Role::Worker(exit), Ranks::default()))
        };
    }
    let (role, ranks) = world(|world| serve(world, team.threads, sessions(world, team)))?;
    team.ranks = ranks.clone();
    Ok((role, ranks))
}

/// Enters the world; all but the first process do that `work`.
fn world(work: impl FnOnce(&World) -> Option<Exit>) -> Result<(Role, Ranks), Failure> {
    let launch = Launch::of_environment();
    let patience = match start_patience(std::env::var(START_VARIABLE).ok().as_deref()) {
        Ok(patience) => patience,
        // Every process of a job sees that, and one says it.
        Err(failure) if is_first() => return Err(failure),
        Err(failure) => return Ok((Role::Worker(failure.exit), Ranks::default())),
    };
    let world = match World::enter(launch, patience, when_late) {
        Ok(world) => Rc::new(world),
        Err(e) if launch.is_first_of_machine => return Err(Failure::failed(format!("--link mpi: {e}"))),
        Err(_) => return Ok((Role::Worker(Exit::Failed), Ranks::default())),
    };
    if world.size() == 1 && !launch.is_alone() {
        let text = "--link mpi: nobody has started other processes; use mpirun, as in: mpirun -n 4 bramble multiply A.npy B.npy \
                    -o C.npy --link mpi";
        // Alone, there is nothing that could be in the way.
        let _ = world.leave(Exit::Usage.number());
        return Err(Failure::usage(text));
    }
    if world.rank() == 0 {
        return Ok((Role::Primary, Ranks(Some(world))));
    }
    let exit = work(&world);
    // What went wrong is seen by the first one, which says it.
    let is_left = world.leave(Exit::Failed.number()).is_ok();
    Ok((Role::Worker(exit.filter(|_| is_left).unwrap_or(Exit::Failed)), Ranks::default()))
}

/// How long a process waits for the others at the start, by the variable's value.
fn start_patience(value: Option<&str>) -> Result<Duration, Failure> {
    let Some(text) = value else { return Ok(START_PATIENCE) };
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    seconds.ok_or_else(|| {
        Failure::usage(format!("{START_VARIABLE}={text}: give seconds, a whole number from 1 on, as in 120"))
    })
}

/// Ends this process, whose thread is inside a call of the MPI library that waits for others; mpirun then ends those.
fn when_late(late: Late) {
    let (text, code) = late_text(late, Launch::of_environment().size);
    crate::say(&format!("bramble: --link mpi: {text}"));
    // The report may be there already.
    let _ = std::io::Write::flush(&mut std::io::stdout());
    bramble_kernel::leave(code)
}

/// The message for a deadline that has passed, and the exit code of this process.
fn late_text(late: Late, size: Option<usize>) -> (String, u8) {
    match late {
        Late::Entering(patience) => {
            let count = size.map_or_else(|| "all".to_owned(), |size| format!("all {size}"));
            let text = format!(
                "after {} s not {count} processes of the job have entered MPI; see that every machine is up and no process is \
                 stopped, or wait longer with {START_VARIABLE}=SECONDS",
                patience.as_secs()
            );
            (text, Exit::Failed.number())
        }
        Late::Leaving(code) => {
            let text = "another process of the job does not return from MPI_Finalize, so this one exits and mpirun ends the \
                        job; C is complete";
            (text.to_owned(), code)
        }
        Late::Aborting(code) => ("mpirun does not answer; this process ends without it".to_owned(), code),
    }
}

/// Whether this process speaks for the job that it is of, if it is of one.
fn is_first() -> bool {
    Launch::of_environment().rank.is_none_or(|rank| rank == 0)
}

/// The same for a command line that could not be read.
pub(crate) fn speaks() -> bool {
    is_first() || !wants_mpi(std::env::args())
}

/// What a product may lack that is one of several, as an mpirun starts them: they get in each other's way.
pub(crate) fn hint() -> String {
    let is_product = std::env::args().nth(1).is_some_and(|verb| verb == "multiply");
    match Launch::of_environment().size.filter(|size| *size > 1) {
        Some(size) if is_product && !wants_mpi(std::env::args()) => {
            format!(
                "; this is one of {size} processes that were started together: --link mpi makes one machine of them"
            )
        }
        _ => String::new(),
    }
}

/// Number of processes of the job that this one is of, if it was asked to be of one.
pub(crate) fn size() -> Option<usize> {
    Launch::of_environment().size.filter(|_| wants_mpi(std::env::args()))
}

fn wants_mpi(arguments: impl Iterator<Item = String>) -> bool {
    let mut arguments = arguments;
    arguments.any(|text| text == "mpi" || text == "--link=mpi")
}

impl Ranks {
    /// The world, where there are others.
    pub(crate) fn others(&self) -> Option<Rc<World>> {
        self.0.clone().filter(|world| world.size() > 1)
    }

    /// Processes of the job.
    pub(crate) fn size(&self) -> usize {
        self.0.as_ref().map_or(1, |world| world.size())
    }

    /// Links with all others. Has to run inside a `LocalSet`.
    pub(crate) fn meet(world: &World, threads: Option<u16>) -> Result<Vec<End>, Failure> {
        let failed = |e: LinkError| Failure::failed(format!("--link mpi: {e}"));
        drive(world, threads)?;
        world.tell(Order::Serve).map_err(failed)?;
        let link = |rank| world.link(rank, &format!("rank {rank}")).map_err(failed);
        let end = |link: Link| End { link, threads_max: 0, was_dialled: false };
        (1..world.size()).map(|rank| link(rank).map(end)).collect()
    }

    /// Ends the job, once all that was to be told is told.
    pub(crate) fn leave(&self, code: u8) {
        let Some(world) = &self.0 else { return };
        // Where others cannot be told any more, they are ended.
        let _ = world.tell(Order::Done);
        if let Err(e) = world.leave(code) {
            crate::say(&format!("bramble: --link mpi: {e}"));
        }
    }
}

/// Moves the world's messages, on the event loop of this thread.
pub(crate) fn drive(world: &World, threads: Option<u16>) -> Result<(), Failure> {
    let portion = world.portion();
    // With less than a processor for each process, to look for messages takes time from somebody who computes.
    let has_cores =
        portion.sharers <= default_threads() && threads.map_or(1, usize::from) <= default_threads();
    let driving = world.drive(has_cores).map_err(|e| Failure::failed(format!("--link mpi: {e}")))?;
    spawn_local(driving);
    Ok(())
}

/// What this process has of its machine, as far as the user does not say.
pub(crate) fn allotment(world: &World, threads: Option<u16>, memory_bytes: Option<u64>) -> Allotment {
    let (portion, cores) = (world.portion(), default_threads());
    let threads = threads.map_or_else(|| (cores / portion.sharers).max(1), usize::from);
    let ranks = u64::try_from(portion.ranks).unwrap_or(1).max(1);
    Allotment {
        threads,
        memory_bytes: memory_bytes.unwrap_or_else(|| available_memory() / ranks),
        pin_from: (portion.sharers * threads <= cores).then_some(portion.place * threads),
    }
}

/// Does work for the first process until that says that it is over; nothing where that is not to be had any more.
fn serve(world: &World, threads: Option<u16>, work: impl Future<Output = Option<Exit>>) -> Option<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let local = LocalSet::new();
    let exit = local.block_on(&runtime, async {
        drive(world, threads).ok()?;
        let mut signals = Signals::new().ok()?;
        let signalled = async {
            // The signal is for all of them, and the first one has something to keep.
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
    // Compute threads may be inside a kernel; nobody waits for them.
    runtime.shutdown_background();
    exit
}

/// One session after the other.
async fn sessions(world: &World, args: &TeamArgs) -> Option<Exit> {
    let Allotment { threads, memory_bytes, pin_from } = allotment(world, args.threads, args.memory);
    let config = Config { threads, memory_bytes, kernel: None, pin_from, gives_way: true, name: host_name() };
    let ledger = Ledger::new();
    let mut order = world.told().await.ok()?;
    while order == Order::Serve {
        let link = world.link(0, "primary").ok()?;
        tokio::select! {
            // How it ended is seen at the other end.
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
