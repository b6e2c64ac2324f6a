//! Status of a peer, for logs and tests: what it may be sent, what it was given, what delays its next
//! message. No decision depends on it.

/// What the next message to a peer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Room in the link.
    Link,
    /// Credit: a panel is ready, but the worker has no memory for it.
    Credit,
    /// A partial sum of earlier steps, or older blocks, which some worker has yet to return.
    Sum,
    /// Tiles: every block that the worker may hold at once was sent whole, or no block is left.
    Tiles,
    /// Nothing: the worker has returned all its work, and there is no more for it now.
    Nothing,
}

impl WaitsFor {
    /// All variants, in the order of their numbers in the event log.
    pub const ALL: [Self; 5] = [Self::Link, Self::Credit, Self::Sum, Self::Tiles, Self::Nothing];
}

/// Status of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Bytes of matrices that it may be sent now.
    pub credit_left_bytes: u64,
    /// Bytes of store messages that its link was given and has not yet accepted.
    pub in_link_bytes: u64,
    /// Jobs that it was given since the start.
    pub jobs_given: u32,
    /// Tiles that it has returned completely since the start.
    pub tiles_back: u32,
    /// What the next message waits for.
    pub next: WaitsFor,
}
