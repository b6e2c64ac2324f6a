//! Links that end before the product does.
//!
//! Place in the flow: whoever finds that a link is of no use has it cut (`Core::cut`); its reader, which alone holds what is
//! landing, ends and says that the machine is gone (`Core::gone`); the state machine gives its work to others.
//!
//! Invariants: nothing of a machine is landing, or held half-landed, when the state machine hears that it is lost: the same
//! tile may be lent to another machine at once. What it sent whole stays.

use super::Core;
use bramble_schedule::primary::Event;

impl Core {
    /// Has a link ended: its reader will say that the machine is gone, and that this is why.
    pub(super) fn cut(&mut self, peer: usize, why: String) {
        let peer = &mut self.peers[peer];
        peer.to = None;
        peer.why.get_or_insert(why);
        peer.cut.notify_one();
    }

    /// A link has ended, and nothing of it is landing any more.
    pub(super) fn gone(&mut self, peer: usize, why: String) {
        self.peers[peer].to = None;
        if let Some(writer) = self.peers[peer].writer.take() {
            writer.abort();
        }
        self.partial.retain(|(from, _), _| *from != peer);
        self.asides.lost(peer);
        let why = self.peers[peer].why.take().unwrap_or(why);
        self.happened(Event::Lost { peer, why });
        self.changed.notify_one();
    }
}
