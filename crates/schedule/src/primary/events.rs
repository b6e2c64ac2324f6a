//! What goes in at the primary's one door, and what comes out of it.
//!
//! Place in the flow: the shell makes events of what its links and clocks say, and does the actions in their order.

use super::outgoing::Outgoing;
use crate::message::{Forward, Missing, ResultHead};
use bramble_matrix::Rect;

/// One machine of the plan, as the shell reaches it.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// What to call it.
    pub name: String,
    /// Bytes of matrices that it may be sent before it gives some back.
    pub credit_bytes: u64,
    /// Whether its link shares memory: operands go by reference, tiles of C are lent.
    pub shares_memory: bool,
    /// Operands that it reads where they lie, though its link does not share memory.
    pub referred: Referred,
    /// Members that it has a link with: they pass panels on to each other.
    pub neighbours: Vec<usize>,
    /// Elements of C times depth that it does in a second, by what it said: reckoned with where the plan says nothing.
    pub work_per_s: f64,
    /// Bytes a second of its link, each way, where they were measured.
    pub link_bytes_per_s: Option<f64>,
    /// It is given work only when nobody else can do it. Not for members of the plan.
    pub is_reserve: bool,
}

/// Which operands are not sent, but referred to: in whole panels, whatever their size. They count against the credit all the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Referred {
    /// The left one.
    pub a: bool,
    /// The right one.
    pub b: bool,
}

/// Where the lines of a result go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Into C: nothing that is there now counts.
    InC,
    /// Into a buffer until `Put` names the peer and the tile: C has the sum of earlier steps, which must not be lost with
    /// a machine that is lost while its lines land.
    Staged,
    /// Into a buffer until `Merge` names the peer and the tile.
    Aside,
    /// Nowhere: the tile is in C already.
    Nowhere,
}

/// Where lines of a result belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The whole tile, in C.
    pub rect: Rect,
    /// Where they land.
    pub place: Place,
}

/// What happened. Peers are indices: the plan's members, then others. None is used twice.
#[derive(Clone, Debug)]
pub enum Event {
    /// The session is open everywhere: begin.
    Start,
    /// A link has taken a frame whose body and head were that long.
    Sent {
        /// To whom.
        peer: usize,
        /// Bytes.
        bytes: usize,
    },
    /// A worker has freed memory.
    Credit {
        /// Who.
        peer: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Lines of a tile have landed where they belong.
    Landed {
        /// From whom.
        peer: usize,
        /// Which lines.
        head: ResultHead,
    },
    /// A pong, or any other sign of life.
    Alive {
        /// Who.
        peer: usize,
    },
    /// Bytes have come over a link, or its other end's system has taken some: a sign of life. Both count since the link began.
    Flow {
        /// Whose link.
        peer: usize,
        /// Bytes that came from there.
        came: u64,
        /// Bytes of bodies that are there.
        gone: u64,
        /// Bytes that this system has taken and that are not there.
        held: u64,
    },
    /// A matrix that another worker should have passed on does not come from there.
    Missing {
        /// Who misses it.
        peer: usize,
        /// Which, and what of it is there.
        missing: Missing,
    },
    /// A worker has no link to another any more.
    Parted {
        /// Who.
        peer: usize,
        /// To whom.
        other: u32,
    },
    /// A link has ended, and nothing of that peer can land any more: what was landing has been dropped. The last word of a peer.
    Lost {
        /// Which.
        peer: usize,
        /// Why.
        why: String,
    },
    /// The user wants to end: nothing more is sent, and what is under way may still land.
    Stop,
    /// A machine has come: the next peer. It has no part in the plan, and takes what others have too much of.
    Joined(PeerInfo),
    /// C was looked at, and is wrong: these tiles, by region and number, are made again by others than these peers, who may have
    /// made them. Only when all tiles were there (`Finished`).
    Wrong {
        /// Which tiles.
        tiles: Vec<(usize, u64)>,
        /// Who is given nothing more.
        makers: Vec<usize>,
    },
    /// A tile was looked at (`Action::Look`): whether it is wrong, or nothing where that could not be found out.
    Looked(Option<bool>),
    /// C is what is wanted: the product is over.
    Accepted,
    /// Time has passed.
    Tick,
}

/// What the shell has to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Give a link a store message.
    Send(usize, Outgoing),
    /// Tell a worker to pass matrices on; after the store messages before it.
    Relay(usize, Vec<Forward>),
    /// Tell a worker that the other has no link to it any more.
    Parted {
        /// Whom.
        peer: usize,
        /// The other.
        other: usize,
    },
    /// Close the link to a worker, and then say `Lost`.
    Cut {
        /// Which.
        peer: usize,
        /// Why.
        why: String,
    },
    /// Ask whether a worker is there.
    Ping(usize, u64),
    /// Copy a tile that was staged into C, and forget it; before anything else of that tile.
    Put {
        /// Who sent it.
        peer: usize,
        /// Under which id.
        tile: u32,
        /// Where it belongs.
        rect: Rect,
    },
    /// Add a tile that was put aside to C, and forget it.
    Merge {
        /// Who sent it.
        peer: usize,
        /// Under which id.
        tile: u32,
        /// Where it belongs.
        rect: Rect,
    },
    /// Look at a tile that one machine made, which is complete, and say `Looked`. What lies there now counts: others have it
    /// next.
    Look(Rect),
    /// A tile of C is complete.
    Committed(Rect),
    /// Every tile of C is there. With `Primary::inspected` it may be `Wrong`, and then come once more.
    Finished,
    /// The product cannot be finished.
    Fail(String),
}
