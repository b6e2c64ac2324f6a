//! Links to machines as the caller passes them in, numbers of connections and sessions, and the report about links between
//! machines.
//!
//! Place in the flow: `cluster` connects; an open cluster numbers connections and sessions.
//!
//! Invariant: no number of a connection or a session is given twice.
//!
//! Deliberately absent: connecting.

use bramble_link::Link;
use std::cell::Cell;
use std::time::Duration;

/// How long the primary waits for the workers' goodbyes; their results have arrived by then.
pub const GOODBYE: Duration = Duration::from_secs(2);
/// How long links may take to close.
pub const CLOSING: Duration = Duration::from_millis(200);

/// A link to one machine.
pub struct MachineLink {
    /// The link.
    pub link: Link,
    /// Most threads that this product may use there; 0 means no limit.
    pub threads_max: u16,
    /// Whether this process has made the connection.
    pub was_dialled: bool,
}

/// Links to all machines that can compute.
pub struct MachineLinks {
    /// This process's own threads.
    pub local: MachineLink,
    /// Workers.
    pub workers: Vec<MachineLink>,
    /// Whether the workers are known to be alike (processes of one machine): each then gets the mean of their measured speeds,
    /// because they disturb each other's short measurements.
    pub alike: bool,
    /// Unreachable workers, without which the product runs, one sentence each.
    pub missing: Vec<String>,
    /// Workers that join while the product runs.
    pub later: Option<tokio::sync::mpsc::Receiver<MachineLink>>,
}

/// Which workers could relay panels to each other.
#[derive(Clone, Debug, Default)]
pub struct RelayReport {
    /// Pairs that had a link to the end.
    pub pairs: usize,
    /// Pairs without a link: the primary sends their panels itself.
    pub unreachable: Vec<Unreachable>,
}

/// Two workers that have no link.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// The worker that dialled, if one of them did.
    pub from: String,
    /// The other worker of the pair.
    pub to: String,
    /// Why.
    pub why: String,
}

/// Numbers for connections and sessions; each is given once.
#[derive(Debug, Default)]
pub struct Numbers {
    connections: Cell<u64>,
    /// The next session's; 0 before the first product has begun.
    session: Cell<u32>,
}

impl Numbers {
    /// The number of a new connection. The first is that of this process's own threads.
    pub fn connection(&self) -> u64 {
        self.connections.replace(self.connections.get() + 1)
    }

    /// Begins a product; the first one's seed decides about all session numbers. Whether this is the first.
    pub fn begin_product(&self, seed: u32) -> bool {
        let is_first = self.session.get() == 0;
        if is_first {
            self.session.set(seed | 1);
        }
        is_first
    }

    /// The number of a new session. Odd, and so never 0, which frames outside a product carry.
    pub fn session(&self) -> u32 {
        self.session.replace(self.session.get().wrapping_add(2))
    }
}
