//! Directory of the panels that several members need: such a panel leaves the primary once and then passes
//! from member to member.
//!
//! Place in the flow: the panel stream asks for a member's role before it prepares a panel (`role`), and
//! records the copy once it has begun to send it (`record_copy`). The directory answers with orders to
//! members that hold panels. Members pass a panel along a chain: the member that received it last holds it
//! for the next one.
//!
//! Two members share a panel when wave (number of the block among the member's blocks), region, order, side,
//! step, and row or column of cells are equal. Members process the blocks of a wave in the same order, so
//! they need shared panels in the same order. Work that was reassigned from a member (`reassigned`) needs no
//! panel there.
//!
//! Invariants: a receiver has been told to reserve memory before a sender gets its order. A retained matrix
//! is kept alive by one use, which exactly one order ends. No member waits for ever for a neighbour: a member
//! that is stalled because it retains panels for slower members drops the oldest of them
//! (`release_oldest_step`), and the primary sends those panels again when they are needed.
//!
//! Deliberately absent: the matrices themselves, and whether they have arrived.

use super::outgoing::small_index;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};
use bramble_wire::message::Forward;

/// Identity of a panel that members may share. Keys sort by age, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PanelKey {
    pub(super) wave: u64,
    pub(super) step: u64,
    pub(super) region: usize,
    pub(super) by_columns: bool,
    pub(super) is_b: bool,
    pub(super) index: u64,
}

/// How a member gets a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PanelRole {
    /// The member that passes the panel on; `None` if the primary sends it.
    pub(super) from: Option<usize>,
    /// Number of other members that still need the panel.
    pub(super) others: u32,
    /// Whether no member has received the panel before.
    is_first: bool,
}

impl PanelRole {
    /// The primary sends the panel, and no other member needs it.
    pub(super) const ALONE: Self = Self { from: None, others: 0, is_first: true };

    /// Whether this member retains the panel for another member.
    pub(super) fn keeps(self) -> bool {
        self.others > 0
    }

    fn first(others: u32) -> Self {
        Self { from: None, others, is_first: true }
    }

    fn later(from: Option<usize>, others: u32) -> Self {
        Self { from, others, is_first: false }
    }
}

/// A panel that some members have received and others still need.
#[derive(Clone, Debug)]
struct SharedPanel {
    /// The member that retains the panel, if any does, and the id of its first matrix there.
    holder: Option<(usize, u32)>,
    /// Number of matrices in the panel, and their charge in bytes.
    matrices: u32,
    bytes: u64,
    /// Members that still need the panel.
    waiting: Vec<usize>,
}

/// Work of a member's own share that other workers took over.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReassignedWork {
    /// Numbers of the blocks.
    pub(super) waves: Span,
    /// First step that was taken.
    pub(super) from: u64,
    /// Cells that the member keeps from that step on.
    pub(super) kept: Rect,
}

impl ReassignedWork {
    /// Whole blocks that other workers took over.
    pub(super) fn whole(waves: Span) -> Self {
        let none = Span::new(0, 0);
        Self { waves, from: 0, kept: Rect::new(none, none) }
    }

    /// Whether the member no longer needs this panel.
    fn covers(&self, key: &PanelKey) -> bool {
        let Rect { rows, cols } = self.kept;
        let is_kept = if key.is_b { cols.contains(key.index) } else { rows.contains(key.index) };
        let nothing_kept = rows.is_empty() || cols.is_empty();
        self.waves.contains(key.wave) && key.step >= self.from && (nothing_kept || !is_kept)
    }
}

/// The copy of a panel at one member.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelCopy {
    /// Id of its first matrix at the member.
    pub(super) first_id: u32,
    /// Number of matrices.
    pub(super) matrices: u32,
    /// Their charge in bytes.
    pub(super) bytes: u64,
}

/// All shared panels.
#[derive(Default)]
pub(super) struct PanelDirectory {
    /// For each member, the members that it has a link with.
    neighbours: Vec<BTreeSet<usize>>,
    /// Whether each member had any such link when the product began.
    relays: Vec<bool>,
    panels: BTreeMap<PanelKey, SharedPanel>,
    /// Index of `panels` by holder.
    kept: BTreeSet<(usize, PanelKey)>,
    orders: Vec<(usize, Forward)>,
    /// Work that was taken over, by member.
    reassigned_work: Vec<Vec<ReassignedWork>>,
}

impl PanelDirectory {
    pub(super) fn new(neighbours: Vec<BTreeSet<usize>>) -> Self {
        Self {
            relays: neighbours.iter().map(|n| !n.is_empty()).collect(),
            reassigned_work: vec![Vec::new(); neighbours.len()],
            neighbours,
            ..Self::default()
        }
    }

    /// Adds a worker that relays nothing.
    pub(super) fn add_member(&mut self) {
        self.neighbours.push(BTreeSet::new());
        self.relays.push(false);
        self.reassigned_work.push(Vec::new());
    }

    /// Whether a member relays panels.
    pub(super) fn relays(&self, member: usize) -> bool {
        self.relays.get(member).is_some_and(|relays| *relays)
    }

    /// How a member gets a panel. `sharers` are the other members that need it by the plan; they matter only
    /// for a panel that no member has received.
    pub(super) fn role(
        &self,
        member: usize,
        key: &PanelKey,
        sharers: impl Iterator<Item = usize>,
    ) -> PanelRole {
        if !self.relays(member) {
            return PanelRole::ALONE;
        }
        let Some(shared) = self.panels.get(key) else {
            return PanelRole::first(small_index(self.waiting(key, sharers).count()));
        };
        let neighbours = &self.neighbours[member];
        let from = shared.holder.map(|(holder, _)| holder).filter(|holder| neighbours.contains(holder));
        PanelRole::later(from, small_index(shared.waiting.iter().filter(|other| **other != member).count()))
    }

    /// The members among `sharers` that still need the panel.
    fn waiting(&self, key: &PanelKey, sharers: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
        sharers.filter(|mate| !self.reassigned_work[*mate].iter().any(|work| work.covers(key)))
    }

    /// Records that a member is being sent a panel in the given role.
    pub(super) fn record_copy(
        &mut self,
        member: usize,
        key: PanelKey,
        (role, sharers): (PanelRole, impl Iterator<Item = usize>),
        given: PanelCopy,
    ) {
        let PanelCopy { first_id, matrices, bytes } = given;
        let mut waiting: Vec<usize> = Vec::new();
        if role.is_first {
            waiting.extend(self.waiting(&key, sharers));
        } else if let Some(shared) = self.panels.remove(&key) {
            self.order_holder(&key, &shared, role.from.map(|_| (member, first_id)));
            waiting.extend(shared.waiting.iter().filter(|other| **other != member));
        }
        if !waiting.is_empty() {
            let holder = Some((member, first_id));
            self.panels.insert(key, SharedPanel { holder, matrices, bytes, waiting });
            self.kept.insert((member, key));
        }
    }

    /// Other workers took over a member's work: panels retained only for that work are released.
    pub(super) fn reassigned(&mut self, member: usize, work: ReassignedWork) {
        if !self.relays(member) {
            return;
        }
        self.reassigned_work[member].push(work);
        let mut unneeded = Vec::new();
        for (key, shared) in &mut self.panels {
            if work.covers(key) {
                shared.waiting.retain(|other| *other != member);
            }
            if shared.waiting.is_empty() {
                unneeded.push(*key);
            }
        }
        for key in unneeded {
            if let Some(shared) = self.panels.remove(&key) {
                self.order_holder(&key, &shared, None);
            }
        }
    }

    /// Whether a block is still entirely the member's own. A block that lost cells is out of step with the
    /// wave, so members retain no panels of it for each other.
    pub(super) fn is_own(&self, member: usize, wave: u64) -> bool {
        self.relays(member) && !self.reassigned_work[member].iter().any(|work| work.waves.contains(wave))
    }

    /// Removes a lost member: its retained panels are gone, and panels retained only for it are released.
    /// Returns the members that had a link with it.
    pub(super) fn remove_member(&mut self, member: usize) -> BTreeSet<usize> {
        for (_, shared) in self.panels.iter_mut() {
            shared.holder = shared.holder.filter(|(holder, _)| *holder != member);
        }
        self.kept.retain(|(holder, _)| *holder != member);
        self.reassigned(member, ReassignedWork::whole(Span::new(0, u64::MAX)));
        let neighbours = self.neighbours.get_mut(member).map(core::mem::take).unwrap_or_default();
        for other in &neighbours {
            self.neighbours[*other].remove(&member);
        }
        neighbours
    }

    /// Orders the holder of a panel to send it to the next member (named with the id of the first matrix
    /// there), or to release it.
    fn order_holder(&mut self, key: &PanelKey, shared: &SharedPanel, next: Option<(usize, u32)>) {
        let Some((holder, first)) = shared.holder else { return };
        self.kept.remove(&(holder, *key));
        for at in 0..shared.matrices {
            let (to, id_there) = match next {
                Some((member, first_there)) => (small_index(member), first_there.wrapping_add(at)),
                None => (Forward::NO_MEMBER, 0),
            };
            self.orders.push((holder, Forward { id: first.wrapping_add(at), to, id_there }));
        }
    }

    /// Charge of the panels that a member retains for others.
    pub(super) fn kept_bytes(&self, member: usize) -> u64 {
        self.kept_by(member).filter_map(|key| self.panels.get(key)).map(|shared| shared.bytes).sum()
    }

    fn kept_by(&self, member: usize) -> impl Iterator<Item = &PanelKey> {
        let mine =
            self.kept.range((member, PanelKey::LEAST)..).take_while(move |(holder, _)| *holder == member);
        // With column or corner order, most panels stay at the member anyway, and such blocks lose no cells
        // to other workers.
        mine.map(|(_, key)| key).filter(|key| !key.by_columns)
    }

    /// Makes a member release the oldest panels that it retains, those of one step. False if it retains none.
    pub(super) fn release_oldest_step(&mut self, member: usize) -> bool {
        let mut keys = self.kept_by(member).copied().peekable();
        let Some(oldest) = keys.peek().copied() else { return false };
        let keys: Vec<PanelKey> =
            keys.take_while(|k| (k.wave, k.step) == (oldest.wave, oldest.step)).collect();
        for key in keys {
            let Some(shared) = self.panels.remove(&key) else { continue };
            self.order_holder(&key, &shared, None);
            self.panels.insert(key, SharedPanel { holder: None, ..shared });
        }
        true
    }

    /// Removes the link between two members; false if there was none.
    pub(super) fn remove_link(&mut self, one: usize, other: usize) -> bool {
        let (Some(a), true) = (self.neighbours.get_mut(one), other != one) else { return false };
        let had = a.remove(&other);
        if let Some(b) = self.neighbours.get_mut(other) {
            b.remove(&one);
        }
        had
    }

    /// Takes the pending orders, by the member that carries them out.
    pub(super) fn take_orders(&mut self) -> BTreeMap<usize, Vec<Forward>> {
        let mut by_member: BTreeMap<usize, Vec<Forward>> = BTreeMap::new();
        for (member, forward) in self.orders.drain(..) {
            by_member.entry(member).or_default().push(forward);
        }
        by_member
    }

    /// Cross-checks, for tests and the simulator.
    pub(super) fn validate(&self) {
        assert!(self.orders.is_empty(), "orders were left behind");
        for (key, shared) in &self.panels {
            assert!(
                !shared.waiting.is_empty() && shared.matrices > 0,
                "{key:?} is retained, but no member needs it"
            );
            if let Some((holder, _)) = shared.holder {
                assert!(self.kept.contains(&(holder, *key)), "{key:?} is kept by {holder}");
            }
        }
        let held = self.panels.values().filter(|s| s.holder.is_some()).count();
        assert_eq!(held, self.kept.len(), "each holder is indexed once");
    }
}

impl PanelKey {
    /// The least key.
    const LEAST: Self = Self { wave: 0, step: 0, region: 0, by_columns: false, is_b: false, index: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARERS: [usize; 3] = [0, 1, 2];

    fn none() -> impl Iterator<Item = usize> {
        core::iter::empty()
    }

    fn directory(members: usize) -> PanelDirectory {
        PanelDirectory::new((0..members).map(|me| (0..members).filter(|o| *o != me).collect()).collect())
    }

    fn copy(first_id: u32, matrices: u32) -> PanelCopy {
        PanelCopy { first_id, matrices, bytes: 64 }
    }

    fn key(step: u64, index: u64) -> PanelKey {
        PanelKey { step, index, ..PanelKey::LEAST }
    }

    #[test]
    fn a_panel_goes_along_a_chain_and_is_then_forgotten() {
        let mut directory = directory(3);
        let panel = key(0, 0);
        assert_eq!(directory.role(1, &panel, [0, 2].into_iter()), PanelRole::first(2));
        directory.record_copy(
            1,
            panel,
            (PanelRole::first(2), SHARERS.into_iter().filter(|m| *m != 1)),
            copy(10, 2),
        );
        assert_eq!(directory.role(0, &panel, none()), PanelRole::later(Some(1), 1));
        directory.record_copy(0, panel, (PanelRole::later(Some(1), 1), none()), copy(20, 2));
        let orders = directory.take_orders();
        let passed = |id, to, id_there| Forward { id, to, id_there };
        assert_eq!(orders[&1], [passed(10, 0, 20), passed(11, 0, 21)]);
        assert_eq!(directory.role(2, &panel, none()), PanelRole::later(Some(0), 0));
        directory.record_copy(2, panel, (PanelRole::later(Some(0), 0), none()), copy(30, 2));
        assert_eq!(directory.take_orders()[&0], [passed(20, 2, 30), passed(21, 2, 31)]);
        directory.validate();
        assert!(directory.panels.is_empty());
        assert_eq!(directory.role(2, &panel, none()), PanelRole::ALONE);
    }

    #[test]
    fn a_member_without_a_link_to_the_holder_is_served_by_the_primary_and_holds_the_panel_next() {
        let mut directory = directory(3);
        assert!(directory.remove_link(0, 1) && !directory.remove_link(1, 0));
        let panel = key(0, 0);
        directory.record_copy(
            0,
            panel,
            (PanelRole::first(2), SHARERS.into_iter().filter(|m| *m != 0)),
            copy(5, 1),
        );
        assert_eq!(directory.role(1, &panel, none()), PanelRole::later(None, 1));
        directory.record_copy(1, panel, (PanelRole::later(None, 1), none()), copy(6, 1));
        assert_eq!(directory.take_orders()[&0], [Forward { id: 5, to: Forward::NO_MEMBER, id_there: 0 }]);
        assert_eq!(directory.role(2, &panel, none()), PanelRole::later(Some(1), 0));
        directory.record_copy(2, panel, (PanelRole::later(Some(1), 0), none()), copy(7, 1));
        assert!(directory.panels.is_empty() && directory.kept.is_empty());
    }

    #[test]
    fn panels_of_stolen_work_are_not_retained_for_the_victim() {
        let mut directory = directory(3);
        directory.record_copy(0, key(0, 0), (PanelRole::first(2), SHARERS.into_iter().skip(1)), copy(1, 1));
        directory.record_copy(0, key(1, 0), (PanelRole::first(1), [2].into_iter()), copy(2, 1));
        directory.record_copy(0, key(1, 1), (PanelRole::first(1), [2].into_iter()), copy(3, 1));
        let kept = Rect::new(Span::new(1, 2), Span::new(0, 3));
        directory.reassigned(2, ReassignedWork { waves: Span::new(0, 1), from: 0, kept });
        assert_eq!(directory.take_orders()[&0], [Forward { id: 2, to: Forward::NO_MEMBER, id_there: 0 }]);
        assert_eq!(directory.role(2, &key(1, 1), none()), PanelRole::later(Some(0), 0));
        // Panels of later steps are not retained for it at all.
        assert_eq!(directory.role(0, &key(2, 0), SHARERS.into_iter().skip(1)), PanelRole::first(1));
        directory.reassigned(1, ReassignedWork::whole(Span::new(0, 1)));
        assert_eq!(directory.take_orders()[&0], [Forward { id: 1, to: Forward::NO_MEMBER, id_there: 0 }]);
        directory.reassigned(2, ReassignedWork::whole(Span::new(0, 1)));
        assert_eq!(directory.take_orders()[&0], [Forward { id: 3, to: Forward::NO_MEMBER, id_there: 0 }]);
        directory.validate();
        assert!(directory.panels.is_empty() && directory.kept.is_empty());
    }

    #[test]
    fn panels_do_not_wait_for_a_lost_member_and_none_is_retained_for_it() {
        let mut directory = directory(3);
        let by_columns = PanelKey { by_columns: true, ..key(5, 0) };
        directory.record_copy(0, key(0, 0), (PanelRole::first(2), SHARERS.into_iter().skip(1)), copy(1, 1));
        directory.record_copy(0, by_columns, (PanelRole::first(1), [1].into_iter()), copy(2, 1));
        directory.record_copy(1, key(0, 1), (PanelRole::first(1), [0].into_iter()), copy(3, 1));
        directory.record_copy(2, key(0, 2), (PanelRole::first(2), SHARERS.into_iter().take(2)), copy(4, 1));
        assert!(directory.is_own(0, 7) && directory.is_own(1, 7));
        assert_eq!(directory.remove_member(0).into_iter().collect::<Vec<_>>(), [1, 2]);
        let orders = directory.take_orders();
        assert_eq!(orders.len(), 1, "{orders:?}");
        assert_eq!(orders[&1], [Forward { id: 3, to: Forward::NO_MEMBER, id_there: 0 }]);
        directory.validate();
        assert!(!directory.is_own(0, 7) && directory.is_own(1, 7));
        assert!(!directory.remove_link(1, 0) && !directory.remove_link(0, 1), "they know already");
        assert_eq!(directory.role(1, &key(0, 0), none()), PanelRole::later(None, 1));
        assert_eq!(directory.role(1, &by_columns, none()), PanelRole::later(None, 0));
        assert_eq!(directory.role(1, &key(0, 2), none()), PanelRole::later(Some(2), 0));
        // Panels recorded later are not retained for the lost member, even if the caller still lists it as a
        // sharer.
        assert_eq!(directory.role(1, &key(9, 9), [0, 2].into_iter()), PanelRole::first(1));
    }

    #[test]
    fn a_member_that_retains_too_much_releases_its_oldest_step() {
        let mut directory = directory(2);
        for step in 0..3 {
            for index in 0..2 {
                directory.record_copy(
                    0,
                    key(step, index),
                    (PanelRole::first(1), [1].into_iter()),
                    copy((step * 2 + index) as u32, 1),
                );
            }
        }
        assert!(directory.release_oldest_step(0) && !directory.release_oldest_step(1));
        let given_up: Vec<u32> = directory.take_orders()[&0].iter().map(|f| f.id).collect();
        assert_eq!(given_up, [0, 1]);
        directory.validate();
        assert_eq!(directory.role(1, &key(0, 1), none()), PanelRole::later(None, 0));
        directory.record_copy(1, key(0, 1), (PanelRole::later(None, 0), none()), copy(9, 1));
        assert_eq!(directory.role(1, &key(1, 0), none()), PanelRole::later(Some(0), 0));
        assert!(directory.take_orders().is_empty());
    }
}
