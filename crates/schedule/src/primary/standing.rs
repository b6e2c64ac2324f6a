//! How a peer stands: what may be sent to it, what it was given, what holds up the next message. For those who watch;
//! nothing is decided by it.

/// What the next message for a peer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Room in its link.
    Link,
    /// Credit: a panel is ready and the worker has no memory for it.
    Credit,
    /// A sum of earlier steps, or older blocks, that others or itself have yet to give back.
    Sum,
    /// Tiles: all blocks that it may have at once were sent whole, or there are no more.
    Tiles,
    /// Nothing: all that it was given has come back, and there is no more for it now.
    Nothing,
}

impl Next {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Link, Self::Credit, Self::Sum, Self::Tiles, Self::Nothing];
}

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Bytes of matrices that may be sent to it now.
    pub credit_left_bytes: u64,
    /// Bytes of stores that its link was given and has not taken yet.
    pub in_link_bytes: u64,
    /// Jobs that it was given since the start.
    pub jobs_given: u32,
    /// Tiles that it has given back whole since the start.
    pub tiles_back: u32,
    /// What the next message waits for.
    pub next: Next,
}
