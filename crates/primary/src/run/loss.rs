//! Links that end before the product does.
//!
//! Place in the flow: code that finds a link broken asks for its end (`Core::disconnect`); the link's reader, which alone
//! holds the partly received tile, ends and reports the machine lost (`Core::link_ended`); the state machine reassigns the
//! machine's work.
//!
//! Invariants: when the state machine hears of a loss, no row of that machine is landing and no lease of its partial tiles
//! exists: the same tile may be leased to another machine at once. Complete results stay.

use super::Core;
use bramble_schedule::primary::PrimaryEvent;

impl Core {
    /// Asks a link's reader to end; it will report the machine lost, with this reason.
    pub(super) fn disconnect(&mut self, peer: usize, why: String) {
        let peer = &mut self.peers[peer];
        peer.to = None;
        peer.is_leaving = false;
        peer.why.get_or_insert(why);
        peer.disconnect.notify_one();
    }

    /// A link has ended, and no row from it is landing any more.
    pub(super) fn link_ended(&mut self, peer: usize, why: String) {
        self.peers[peer].to = None;
        self.peers[peer].is_leaving = false;
        if let Some(writer) = self.peers[peer].writer.take() {
            writer.abort();
        }
        self.landing.lost(peer);
        let why = self.peers[peer].why.take().unwrap_or(why);
        self.dispatch(PrimaryEvent::Lost { peer, why });
        self.changed.notify_one();
    }
}
