//! A mesh of ends, each linked to all others: creation and connection, for each kind of link.
//!
//! Place in the flow: `measure` creates a mesh per link, and gets end 0 and a handle to the other ends.
//!
//! Invariants: end 0 is in this process; the ends of `thread` are tasks of its event loop, as in a product; those of
//! all other links are processes, for `mpi` the ones that `mpirun` started. No stranger can be an end: child
//! processes get their connections from their parent. Each link is one variant of `LinkName` and one file here.

mod half;
mod handed;
mod mpi;
mod process;
mod tcp;
mod thread;

pub(crate) use mpi::follow;
pub(crate) use process::{hidden, reap, run_end};
pub(crate) use tcp::connected;
#[cfg(test)]
pub(crate) use thread::ends as thread_ends;

use super::conduct::{Leader, serve};
use super::end::MeshEnd;
use bramble_cluster::ranks::Ranks;
use bramble_link::LinkError;
use bramble_report::exit::Failure;
use clap::ValueEnum;
use process::Processes;
use std::time::Duration;

/// A kind of link that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum LinkName {
    /// Tasks of one process; bodies are passed by reference
    Thread,
    /// Processes over TCP on loopback, not encrypted
    Tcp,
    /// Processes over pipes
    Pipe,
    /// Processes over shared memory
    Shm,
    /// Processes that mpirun started, over MPI; only if named
    Mpi,
}

impl LinkName {
    /// All links, in the order of the output.
    pub(crate) const ALL: &[Self] = &[Self::Thread, Self::Tcp, Self::Pipe, Self::Shm, Self::Mpi];

    /// Whether this program creates the ends itself, so that the link can be measured without mpirun.
    pub(crate) fn is_made_here(self) -> bool {
        match self {
            Self::Thread | Self::Tcp => true,
            Self::Pipe | Self::Shm => cfg!(target_os = "linux"),
            Self::Mpi => false,
        }
    }

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Tcp => "tcp",
            Self::Pipe => "pipe",
            Self::Shm => "shm",
            Self::Mpi => "mpi",
        }
    }
}

/// End 0 of a link, and a handle to the other ends.
pub(crate) struct Mesh {
    pub(crate) link: LinkName,
    pub(crate) leader: Leader,
    /// Number of ends.
    pub(crate) ends: usize,
    others: Others,
}

enum Others {
    Tasks(Vec<tokio::task::JoinHandle<Result<(), LinkError>>>),
    Processes(Processes),
    /// Processes that mpirun started and ends.
    Ranks,
}

impl Mesh {
    /// Creates and connects `ends` ends. Has to run inside a `LocalSet`.
    pub(crate) async fn make(link: LinkName, ends: usize, ranks: &Ranks) -> Result<Self, Failure> {
        let mut ends = ends;
        let (end, others) = match link {
            link if !link.is_made_here() => {
                let end = mpi::lead(ranks)?;
                ends = ranks.size();
                (end, Others::Ranks)
            }
            LinkName::Thread => {
                let mut all = thread::ends(ends);
                let first = all.remove(0);
                (first, Others::Tasks(all.into_iter().map(|e| tokio::task::spawn_local(serve(e))).collect()))
            }
            link => {
                let (end, processes) = Processes::start(link, ends)?;
                (end, Others::Processes(processes))
            }
        };
        Ok(Self { link, leader: Leader::new(end), ends, others })
    }

    /// Ends the other ends, and waits for them.
    pub(crate) async fn end(mut self, patience: Duration) -> Result<(), Failure> {
        self.leader.close().await;
        match self.others {
            Others::Tasks(tasks) => {
                for task in tasks {
                    let ended = tokio::time::timeout(patience, task).await;
                    if !matches!(ended, Ok(Ok(Ok(())))) {
                        return Err(Failure::failed("bench link: an end of the link thread did not end"));
                    }
                }
                Ok(())
            }
            Others::Processes(processes) => processes.end(),
            Others::Ranks => Ok(()),
        }
    }

    /// The process that ended unexpectedly, if one did: the reason of a broken link.
    pub(crate) fn gone(&mut self) -> Option<String> {
        match &mut self.others {
            Others::Tasks(_) | Others::Ranks => None,
            Others::Processes(processes) => processes.gone(),
        }
    }
}

/// Links of one rank, by the rank of the other end.
type Links = Vec<Option<bramble_link::Link>>;

/// Creates a connection for each pair of ends. Returns for each rank its endpoints, by the rank of the other end,
/// with `None` at its own rank.
fn each_with_each<T, E>(
    ends: usize,
    mut pair: impl FnMut(usize, usize) -> Result<(T, T), E>,
) -> Result<Vec<Vec<Option<T>>>, E> {
    let mut all: Vec<Vec<Option<T>>> = (0..ends).map(|_| Vec::new()).collect();
    for one in 0..ends {
        let Some((own, later)) = all[one..].split_first_mut() else { break };
        own.push(None);
        for (other, theirs) in (one + 1..).zip(later) {
            let (left, right) = pair(one, other)?;
            own.push(Some(left));
            theirs.push(Some(right));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::each_with_each;

    #[test]
    fn each_is_connected_with_each_other() {
        let all =
            each_with_each::<_, ()>(4, |one, other| Ok(((one, other), (one, other)))).unwrap_or_default();
        for (rank, halves) in all.iter().enumerate() {
            let want = |other: usize| (other != rank).then_some((rank.min(other), rank.max(other)));
            assert_eq!(*halves, (0..4).map(want).collect::<Vec<_>>());
        }
        assert_eq!(all.len(), 4);
    }
}
