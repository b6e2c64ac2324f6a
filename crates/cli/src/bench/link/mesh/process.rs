//! Ends that are processes: this program again, in a mode that is no verb.
//!
//! Invariants: no process outlives the measurement. Each has one socket to its parent as standard input and ends when that
//! closes, whatever it waits for; whoever is still there at the end is killed and waited for. A child learns from the
//! socket who it is and gets
//! its connections from there. Ctrl-C reaches the parent alone.

use super::half::Half;
use super::handed::{Identity, give, take};
use super::{End, LinkName, Links, each_with_each};
use crate::bench::link::conduct::serve;
use crate::exit::{Exit, Failure};
use bramble_link::LinkError;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A child has to be told who it is by then.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Children may take this long to end by themselves.
const END_DEADLINE: Duration = Duration::from_millis(1500);

/// Processes of ours, by rank from 1 on.
pub(crate) struct Processes {
    children: Vec<Child>,
    /// When these are closed, the children end.
    parents: Vec<UnixStream>,
}

impl Processes {
    /// Starts all ends but end 0, which is given, too.
    pub(crate) fn start(link: LinkName, ends: usize) -> Result<(End, Self), Failure> {
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
        Ok((End::new(0, links), processes))
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

    /// The first that has ended, if any.
    pub(crate) fn gone(&mut self) -> Option<String> {
        self.children.iter_mut().zip(1..).find_map(|(child, rank)| match child.try_wait() {
            Ok(Some(status)) => Some(format!("the process that was end {rank} ended ({status})")),
            _ => None,
        })
    }

    /// Ends them all; a failure if one of them did not end well.
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

/// This program again, for a purpose of its own.
pub(crate) fn hidden(purpose: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "child", purpose]).stdout(Stdio::null());
    // Ctrl-C reaches the whole group of a terminal; children end with their parent instead.
    command.process_group(0);
    Ok(command)
}

/// Waits for a child until then, and kills it if it is still there; gives how it ended by itself.
pub(crate) fn reap(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            // An error here means that it is gone.
            _ => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// What a child does: follows end 0 until that closes, or the parent is gone.
pub(crate) fn run_end() -> Result<Exit, Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::failed(format!("an end of bench link: {e}"));
    let parent = io::stdin().as_fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    let parent = UnixStream::from(parent);
    let told = parent.set_read_timeout(Some(START_DEADLINE)).and_then(|()| take(&parent));
    let (who, halves) = told.map_err(|e| failed(&format!("only bench link starts it: {e}")))?;
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
            served = serve(End::new(who.rank, links)) => served,
            gone = closed(parent) => gone.map_err(LinkError::from),
        }
    });
    match served {
        Ok(()) => Ok(Exit::Done),
        // Whoever went first is named by the parent, if that is still there.
        Err(LinkError::Closed | LinkError::Broken(_)) => Ok(Exit::Failed),
        Err(e) => Err(failed(&e)),
    }
}

/// Waits until the parent has closed, or is no more.
async fn closed(parent: UnixStream) -> io::Result<()> {
    parent.set_nonblocking(true)?;
    let parent = tokio::net::UnixStream::from_std(parent)?;
    loop {
        parent.readable().await?;
        match parent.try_read(&mut [0; 1]) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // Nothing is ever said here.
            _ => return Ok(()),
        }
    }
}
