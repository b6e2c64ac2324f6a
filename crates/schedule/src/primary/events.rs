//! The events that the primary's state machine takes, and the actions that it answers with.
//!
//! Place in the flow: the shell turns reports of its links and clocks into events, and carries out the
//! actions in their order.

use super::inspection::{InspectionEvent, InspectionTask};
use super::outgoing::Outgoing;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::Rect;
use bramble_wire::message::{Forward, Missing, ResultHead};

/// A worker as the primary's state machine knows it.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Name of the worker, for messages.
    pub name: String,
    /// The worker's credit: bytes of matrices that it holds at most. Sending spends it,
    /// `PrimaryEvent::Credit` restores it.
    pub credit_bytes: u64,
    /// Whether the link shares memory: operands are passed by reference, and tiles of C are leased in place.
    pub shares_memory: bool,
    /// Operands that the worker reads in place, though its link does not share memory.
    pub referred: Referred,
    /// Members that this worker has a link with, for relaying panels.
    pub neighbours: Vec<usize>,
    /// Speed that the worker reported: elements of C times depth, per second. Used where the plan predicts
    /// nothing.
    pub work_per_s: f64,
    /// Measured rate of the link in each direction, bytes per second; `None` where it was not measured.
    pub link_bytes_per_s: Option<f64>,
    /// Whether the worker gets work only if no active worker can take it. Never set for members of the plan.
    pub is_reserve: bool,
}

/// Operands that are passed by reference: in whole panels of any size. They count against the credit like
/// sent ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Referred {
    /// The left operand.
    pub a: bool,
    /// The right operand.
    pub b: bool,
}

/// Where the rows of a result land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultPlace {
    /// In C; the old contents do not matter.
    InC,
    /// In a staging buffer, until `Put` names the peer and the tile. C holds the sum of earlier steps, which
    /// must survive if the worker is lost while its rows land.
    Staged,
    /// In a buffer for partial sums, until `Merge` names the peer and the tile.
    PartialSum,
    /// Dropped: C holds the complete tile already.
    Discarded,
}

/// Tile and landing place of the rows of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultDestination {
    /// The rectangle of the whole tile in C.
    pub rect: Rect,
    /// Where its rows land.
    pub place: ResultPlace,
}

/// Something that happened at the primary. Peers are numbered: members of the plan first, then workers that
/// joined. No number is reused.
#[derive(Clone, Debug)]
pub enum PrimaryEvent {
    /// All sessions are open: begin the product.
    Start,
    /// A link has accepted a frame.
    Sent {
        /// The receiver.
        peer: usize,
        /// Bytes of the frame's head and body.
        bytes: usize,
    },
    /// A worker has freed memory.
    Credit {
        /// The worker.
        peer: usize,
        /// Bytes that it freed.
        bytes: u64,
    },
    /// Rows of a tile have landed at their destination.
    Landed {
        /// The sender.
        peer: usize,
        /// The tile and the rows.
        head: ResultHead,
    },
    /// A heartbeat answer or any other message from a worker.
    Alive {
        /// The worker.
        peer: usize,
    },
    /// Counters of a link have moved, which shows that the peer is alive. `received` and `acknowledged` count from the
    /// start of the link.
    Flow {
        /// The peer at the other end.
        peer: usize,
        /// Bytes received from the peer.
        received: u64,
        /// Bytes of bodies that the peer's system has acknowledged.
        acknowledged: u64,
        /// Bytes that this system has accepted and the peer's system has not acknowledged.
        buffered: u64,
    },
    /// A worker did not receive a matrix that another worker should have relayed.
    Missing {
        /// The worker that lacks the matrix.
        peer: usize,
        /// The matrix, and how many of its lines have arrived.
        missing: Missing,
    },
    /// The link between two workers has ended.
    Parted {
        /// The worker that reports it.
        peer: usize,
        /// The worker at the other end.
        other: u32,
    },
    /// A link to a worker has ended, and its partial receives were dropped, so nothing of that peer can land
    /// any more. The last event of a peer.
    Lost {
        /// The lost peer.
        peer: usize,
        /// Reason, for messages.
        why: String,
    },
    /// The user stops the product: the primary sends nothing more, and results under way may still land.
    Stop,
    /// A worker has joined and becomes the next peer. It has no share in the plan; it gets work by stealing.
    Joined(PeerInfo),
    /// A task of the inspection (`PrimaryAction::Inspection`) is done.
    Inspection(InspectionEvent),
    /// Result of a spot check (`PrimaryAction::SpotCheck`): whether the tile is wrong; `None` if the check
    /// gave no answer.
    SpotChecked(Option<bool>),
    /// The inspection has ended: the product is over.
    Accepted,
    /// Time has passed.
    Tick,
}

/// Something that the shell has to do.
#[derive(Clone, Debug)]
pub enum PrimaryAction {
    /// Put a store message on a link.
    Send(usize, Outgoing),
    /// Order a worker to pass matrices on to other workers. Follows the store messages that announce them.
    Relay(usize, Vec<Forward>),
    /// Tell a worker that its link to another worker has ended.
    Parted {
        /// The worker to tell.
        peer: usize,
        /// The worker at the other end.
        other: usize,
    },
    /// Close the link to a worker; the shell reports `Lost` once it is closed.
    Disconnect {
        /// The worker.
        peer: usize,
        /// Reason, for messages.
        why: String,
    },
    /// Send a heartbeat with this nonce.
    Ping(usize, u64),
    /// Copy a tile from its staging buffer into C and free the buffer, before any other action on that tile.
    Put {
        /// The peer that sent the tile.
        peer: usize,
        /// Id of the tile at that peer.
        tile: u32,
        /// Rectangle of the tile in C.
        rect: Rect,
    },
    /// Add a buffered partial sum to C and free the buffer.
    Merge {
        /// The peer that sent the partial sum.
        peer: usize,
        /// Id of the tile at that peer.
        tile: u32,
        /// Rectangle of the tile in C.
        rect: Rect,
    },
    /// Check a complete tile that a single worker computed, then report `SpotChecked`. The shell must copy
    /// the tile at once: later actions may change C.
    SpotCheck(Rect),
    /// A tile of C is complete.
    Committed(Rect),
    /// All tiles of C are complete. With `Primary::inspected`, the first task of the inspection follows; if
    /// tiles are recomputed, `Finished` comes again.
    Finished,
    /// A task of the inspection: one at a time, to be carried out while nothing lands in C.
    Inspection(InspectionTask),
    /// The product cannot be completed.
    Fail(String),
}
