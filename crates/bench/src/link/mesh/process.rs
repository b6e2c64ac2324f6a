//! Ends in child processes: this program again, with the hidden verb `bench child`.
//!
//! Invariants: no child outlives the measurement. Its standard input is a socket to the parent, and it ends when that
//! socket closes; a child that still runs at the end is killed and reaped. It receives its identity and its
//! connections over the socket. Ctrl-C reaches only the parent.

use super::half::Half;
use super::handed::{Identity, give, take};
use super::{LinkName, Links, MeshEnd, each_with_each};
use crate::link::conduct::serve;
use bramble_cluster::program;
use bramble_link::LinkError;
use bramble_report::exit::{Exit, Failure};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for a child to receive its identity.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Children that have not ended after this time are killed.
const END_DEADLINE: Duration = Duration::from_millis(1500);

/// The child processes, by rank from 1 on.
pub(crate) struct Processes {
    children: Vec<Child>,
    /// Sockets to the children; a child ends when its socket closes.
    parents: Vec<UnixStream>,
}

impl Processes {
    /// Starts all ends but end 0; returns end 0 and the processes.
    pub(crate) fn start(link: LinkName, ends: usize) -> Result<(MeshEnd, Self), Failure> {
        let failed = |e: io::Error| Failure::failed(format!("bench link: ends of {}: {e}", link.name()));
        let halves = each_with_each(ends, |_, _| Half::pair(link)).map_err(failed)?;
        let mut processes = Self { children: Vec::new(), parents: Vec::new() };
        let mut halves = halves.into_iter();
        let first = halves.next().unwrap_or_default();
        for (rank, own) in (1..).zip(halves) {
            let own = own.into_iter().flatten().collect();
            processes.one(Identity { link, rank, ends }, own).map_err(failed)?;
        }
        let opened = first.into_iter().enumerate();
        let links: Result<Links, LinkError> =
            opened.map(|(other, half)| half.map(|half| half.open(other)).transpose()).collect();
        let links = links.map_err(|e| Failure::failed(format!("bench link: {}: {e}", link.name())))?;
        Ok((MeshEnd::new(0, links), processes))
    }

    fn one(&mut self, who: Identity, halves: Vec<Half>) -> io::Result<()> {
        let (parent, child) = UnixStream::pair()?;
        give(&parent, who, halves)?;
        let mut command = hidden("end")?;
        command.stdin(OwnedFd::from(child));
        self.children.push(command.spawn()?);
        self.parents.push(parent);
        Ok(())
    }

    /// The first process that has ended, if one has.
    pub(crate) fn gone(&mut self) -> Option<String> {
        self.children.iter_mut().zip(1..).find_map(|(child, rank)| match child.try_wait() {
            Ok(Some(status)) => Some(format!("the process that was end {rank} ended ({status})")),
            _ => None,
        })
    }

    /// Ends all children; fails if one of them did not end successfully.
    pub(crate) fn end(mut self) -> Result<(), Failure> {
        self.parents.clear();
        let deadline = Instant::now() + END_DEADLINE;
        for (child, rank) in self.children.iter_mut().zip(1..) {
            match reap(child, deadline) {
                Some(status) if status.success() => {}
                Some(status) => {
                    let text = format!("bench link: the process that was end {rank} ended with {status}");
                    return Err(Failure::failed(text));
                }
                None => {
                    let text = format!("bench link: the process that was end {rank} had to be killed");
                    return Err(Failure::failed(text));
                }
            }
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.parents.clear();
        let deadline = Instant::now() + END_DEADLINE;
        for child in &mut self.children {
            reap(child, deadline);
        }
    }
}

/// The command of this program as a child process with a purpose.
pub(crate) fn hidden(purpose: &str) -> io::Result<Command> {
    let mut command = program::command()?;
    command.args(["bench", "child", purpose]).stdout(Stdio::null());
    // Ctrl-C reaches the whole group of a terminal; children end with their parent instead.
    command.process_group(0);
    Ok(command)
}

/// Waits for a child until `deadline`, then kills it; returns its status if it ended by itself.
pub(crate) fn reap(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            // An error here means that the child has ended.
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// The child process: follows end 0 until it closes its links, or the parent ends.
pub(crate) fn run_end() -> Result<Exit, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("an end of bench link: {e}"));
    let parent = io::stdin().as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    let parent = UnixStream::from(parent);
    let told = parent.set_read_timeout(Some(START_DEADLINE)).and_then(|()| take(&parent));
    let (who, halves) = told.map_err(|e| failed(&format!("only bench link can start this: {e}")))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(&e))?;
    let served = runtime.block_on(async {
        let mut halves = halves.into_iter();
        let mut link = |rank: usize| match rank == who.rank {
            true => Ok(None),
            false => halves.next().map(|half| half.open(rank)).transpose(),
        };
        let links = (0..who.ends).map(&mut link).collect::<Result<Links, LinkError>>()?;
        if links.iter().flatten().count() + 1 != who.ends {
            return Err(LinkError::Foreign("links are missing".to_owned()));
        }
        tokio::select! {
            served = serve(MeshEnd::new(who.rank, links)) => served,
            gone = closed(parent) => gone.map_err(LinkError::from),
        }
    });
    match served {
        Ok(()) => Ok(Exit::Done),
        // The parent reports which end failed first.
        Err(LinkError::Closed | LinkError::Broken(_)) => Ok(Exit::Failed),
        Err(e) => Err(failed(&e)),
    }
}

/// Waits until the parent closes the socket or ends.
async fn closed(parent: UnixStream) -> io::Result<()> {
    parent.set_nonblocking(true)?;
    let parent = tokio::net::UnixStream::from_std(parent)?;
    loop {
        parent.readable().await?;
        match parent.try_read(&mut [0; 1]) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // The parent sends nothing more over this socket.
            _ => return Ok(()),
        }
    }
}
