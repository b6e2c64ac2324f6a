//! The primary's shell: carries out the actions of its state machine, for both modes.
//!
//! Place in the flow: replaces crates/primary/src/run. The modes move the messages, and have C: with elements in a trial,
//! with the time that adding takes in the timing mode.
//!
//! Invariants: nothing is sent to a peer whose link has ended. A result is added to C as a whole, once, and in its place.
//! Incomplete results of a peer are dropped before the state machine hears of its loss; whole ones are kept.

use bramble_matrix::Rect;
use bramble_schedule::primary::{InspectionTask, Outgoing, PrimaryAction, ResultDestination, ResultPlace};
use bramble_wire::message::Forward;
use std::collections::BTreeMap;

/// A message from the primary.
pub(crate) enum PrimaryMessage {
    Store(Outgoing),
    Relay(Vec<Forward>),
    /// A worker has no link to this one any more.
    Parted(usize),
    Ping(u64),
}

/// The primary's link with a peer.
#[derive(Default)]
pub(crate) struct PeerLink {
    /// Whether nothing more is sent.
    pub(crate) is_closed: bool,
    /// Whether the primary has ended it.
    pub(crate) is_cut: bool,
    /// Whether its reader has ended.
    pub(crate) is_gone: bool,
    /// Why it ends.
    pub(crate) why: Option<String>,
}

impl PeerLink {
    /// The reader has ended: the reason, or this one if none was given before; `None` if it had ended already.
    pub(crate) fn reader_ends(&mut self, otherwise: &str) -> Option<String> {
        if std::mem::replace(&mut self.is_gone, true) {
            return None;
        }
        self.is_closed = true;
        Some(self.why.take().unwrap_or_else(|| otherwise.to_owned()))
    }
}

/// A result that does not land in C at once.
pub(crate) struct PendingResult {
    pub(crate) rect: Rect,
    /// By rows; none if products have no elements.
    pub(crate) elements: Vec<f64>,
    pub(crate) is_whole: bool,
    is_staged: bool,
}

/// Results that do not land in C at once: partial sums that wait, and staged tiles, by peer and tile.
#[derive(Default)]
pub(crate) struct SimPendingResults {
    results: BTreeMap<(usize, u32), PendingResult>,
    /// Elements of the partial sums among them, now and at most.
    pub(crate) waiting: u64,
    pub(crate) waiting_max: u64,
}

impl SimPendingResults {
    pub(crate) fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// The result of which lines land; a new one has these elements.
    pub(crate) fn entry(
        &mut self,
        key: (usize, u32),
        to: &ResultDestination,
        elements: impl FnOnce() -> Vec<f64>,
    ) -> &mut PendingResult {
        let is_staged = to.place == ResultPlace::Staged;
        self.results.entry(key).or_insert_with(|| {
            self.waiting += if is_staged { 0 } else { area(to.rect) };
            self.waiting_max = self.waiting_max.max(self.waiting);
            PendingResult { rect: to.rect, elements: elements(), is_whole: false, is_staged }
        })
    }

    /// Takes a whole result, which is added to C in this place.
    fn take_whole(&mut self, (peer, tile): (usize, u32), rect: Rect, is_staged: bool) -> PendingResult {
        let result = self.results.remove(&(peer, tile));
        let result = result.unwrap_or_else(|| panic!("tile {tile} of w{peer} has no partial sum"));
        assert!(result.is_whole && result.is_staged == is_staged, "an incomplete sum is added");
        assert_eq!(result.rect, rect, "a sum is added in the wrong place");
        self.waiting -= if is_staged { 0 } else { area(rect) };
        result
    }

    /// Drops a peer's incomplete results; returns their number.
    pub(crate) fn drop_incomplete(&mut self, peer: usize) -> usize {
        let before = self.results.len();
        self.results.retain(|(from, _), result| *from != peer || result.is_whole);
        let sums = self.results.values().filter(|result| !result.is_staged);
        self.waiting = sums.map(|result| area(result.rect)).sum();
        before - self.results.len()
    }

    /// The number of staged tiles of a peer.
    pub(crate) fn staged_of(&self, peer: usize) -> usize {
        self.results.iter().filter(|((from, _), result)| *from == peer && result.is_staged).count()
    }
}

fn area(rect: Rect) -> u64 {
    rect.rows.len() * rect.cols.len()
}

/// How a mode carries out what the state machine of its primary decides.
pub(crate) trait PrimaryShell {
    /// The link with a peer.
    fn link(&mut self, peer: usize) -> &mut PeerLink;
    /// The results that wait.
    fn pending(&mut self) -> &mut SimPendingResults;
    /// Sends a message to a peer.
    fn say(&mut self, peer: usize, message: PrimaryMessage);
    /// Adds a partial sum to C, or puts a staged tile there.
    fn add(&mut self, peer: usize, result: PendingResult, is_staged: bool);
    /// Has the reader of a link end, which was cut for this reason.
    fn cut(&mut self, peer: usize, why: &str);
    /// A tile is committed.
    fn commit(&mut self, rect: Rect);
    /// Checks a tile while the product runs.
    fn spot_check(&mut self, rect: Rect);
    /// Begins a task of the inspection of C.
    fn take_task(&mut self, task: InspectionTask);
    /// All tiles are committed.
    fn finish(&mut self);
    /// The product has failed.
    fn fail(&mut self, why: String);

    /// Carries out an action.
    fn carry_out(&mut self, action: PrimaryAction) {
        match action {
            PrimaryAction::Send(peer, message) => self.say_to(peer, PrimaryMessage::Store(message)),
            PrimaryAction::Relay(peer, forwards) => self.say_to(peer, PrimaryMessage::Relay(forwards)),
            PrimaryAction::Parted { peer, other } => self.say_to(peer, PrimaryMessage::Parted(other)),
            PrimaryAction::Ping(peer, nonce) => self.say(peer, PrimaryMessage::Ping(nonce)),
            PrimaryAction::Merge { peer, tile, rect } => self.add_whole((peer, tile), rect, false),
            PrimaryAction::Put { peer, tile, rect } => self.add_whole((peer, tile), rect, true),
            PrimaryAction::Disconnect { peer, why } => {
                self.cut(peer, &why);
                let link = self.link(peer);
                (link.is_closed, link.is_cut) = (true, true);
                link.why.get_or_insert(why);
            }
            PrimaryAction::Committed(rect) => self.commit(rect),
            PrimaryAction::SpotCheck(rect) => self.spot_check(rect),
            PrimaryAction::Inspection(task) => self.take_task(task),
            PrimaryAction::Finished => self.finish(),
            PrimaryAction::Fail(why) => self.fail(why),
        }
    }

    fn say_to(&mut self, peer: usize, message: PrimaryMessage) {
        assert!(!self.link(peer).is_gone, "something is sent to w{peer}, which is gone");
        self.say(peer, message);
    }

    fn add_whole(&mut self, (peer, tile): (usize, u32), rect: Rect, is_staged: bool) {
        let result = self.pending().take_whole((peer, tile), rect, is_staged);
        self.add(peer, result, is_staged);
    }
}
