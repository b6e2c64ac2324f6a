//! Who has which panel for whom: panels that several members need leave the primary once.
//!
//! Place in the flow: a walk asks for its role before it makes a panel (`role`), and says so when it has begun it (`begun`);
//! what comes out are orders to those who have panels. Members pass panels on along a chain: who was given one last has it
//! for the next.
//!
//! Which panels are the same: those of the same wave (the number of the block among those that the member was given), region,
//! order, side, step, and row or column of cells. Members walk blocks of a wave in the same order, so two of them need
//! the panels that they share in the same order. What another took from a member (`lost`) that member does not need.
//!
//! Invariants: whoever is to receive has been told to reserve the memory before anybody is ordered to send, and every
//! matrix that is kept for others is kept by one use, which one order ends. Nobody waits for a neighbour for ever: a
//! member that gets no further because it keeps panels for slower ones is relieved of them (`relieve`), and those are
//! served by the primary when they come to it.
//!
//! Deliberately absent: the matrices, and whether they have arrived.

use super::outgoing::small_index;
use crate::message::Forward;
use bramble_matrix::{Rect, Span};
use std::collections::{BTreeMap, BTreeSet};

/// What names a panel of the plan. Older ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) wave: u64,
    pub(super) step: u64,
    pub(super) region: usize,
    pub(super) by_columns: bool,
    pub(super) is_b: bool,
    pub(super) index: u64,
}

/// How a member comes to a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Role {
    /// Who passes it on to this member; the primary sends it where nobody does.
    pub(super) from: Option<usize>,
    /// Members that will still need it.
    pub(super) others: u32,
    /// Whether nobody has been given it before.
    is_first: bool,
}

impl Role {
    /// The primary sends it, and nobody else needs it.
    pub(super) const ALONE: Self = Self { from: None, others: 0, is_first: true };

    /// Whether this member keeps it for another.
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

/// A panel that not all have who need it.
#[derive(Clone, Debug)]
struct Shared {
    /// Who passes it on, if anybody does, and the first of its ids there.
    holder: Option<(usize, u32)>,
    /// How many matrices it is, and what they count for.
    matrices: u32,
    bytes: u64,
    /// Members that still need it.
    waiting: Vec<usize>,
}

/// What a member had to do by the plan and others now do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// The blocks.
    pub(super) waves: Span,
    /// From which step on.
    pub(super) from: u64,
    /// The cells that it still has from there.
    pub(super) kept: Rect,
}

impl Loss {
    /// Blocks that were taken whole.
    pub(super) fn whole(waves: Span) -> Self {
        let none = Span::new(0, 0);
        Self { waves, from: 0, kept: Rect::new(none, none) }
    }

    /// Whether a panel is no longer needed.
    fn covers(&self, key: &Key) -> bool {
        let Rect { rows, cols } = self.kept;
        let is_kept = if key.is_b { cols.contains(key.index) } else { rows.contains(key.index) };
        let nothing_kept = rows.is_empty() || cols.is_empty();
        self.waves.contains(key.wave) && key.step >= self.from && (nothing_kept || !is_kept)
    }
}

/// A panel as a member has been given it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Id of the first of its matrices there.
    pub(super) first_id: u32,
    /// How many they are.
    pub(super) matrices: u32,
    /// What they count for.
    pub(super) bytes: u64,
}

/// All panels that are shared.
#[derive(Default)]
pub(super) struct Board {
    /// Members that each has a link with.
    neighbours: Vec<BTreeSet<usize>>,
    /// Members that had one with anybody when the product began.
    relays: Vec<bool>,
    panels: BTreeMap<Key, Shared>,
    /// The same by who keeps them.
    kept: BTreeSet<(usize, Key)>,
    orders: Vec<(usize, Forward)>,
    /// By member.
    losses: Vec<Vec<Loss>>,
}

impl Board {
    pub(super) fn new(neighbours: Vec<BTreeSet<usize>>) -> Self {
        Self {
            relays: neighbours.iter().map(|n| !n.is_empty()).collect(),
            losses: vec![Vec::new(); neighbours.len()],
            neighbours,
            ..Self::default()
        }
    }

    /// One more that passes nothing on.
    pub(super) fn joined(&mut self) {
        self.neighbours.push(BTreeSet::new());
        self.relays.push(false);
        self.losses.push(Vec::new());
    }

    /// Whether a member passes anything on.
    pub(super) fn relays(&self, member: usize) -> bool {
        self.relays.get(member).is_some_and(|relays| *relays)
    }

    /// How a member comes to a panel that by the plan `mates` need besides (asked only where nobody has it yet).
    pub(super) fn role(&self, member: usize, key: &Key, mates: impl Iterator<Item = usize>) -> Role {
        if !self.relays(member) {
            return Role::ALONE;
        }
        let Some(shared) = self.panels.get(key) else {
            return Role::first(small_index(self.waiting(key, mates).count()));
        };
        let neighbours = &self.neighbours[member];
        let from = shared.holder.map(|(holder, _)| holder).filter(|holder| neighbours.contains(holder));
        Role::later(from, small_index(shared.waiting.iter().filter(|other| **other != member).count()))
    }

    /// Those of some members that still have to be given a panel.
    fn waiting(&self, key: &Key, mates: impl Iterator<Item = usize>) -> impl Iterator<Item = usize> {
        mates.filter(|mate| !self.losses[*mate].iter().any(|loss| loss.covers(key)))
    }

    /// A member has been given a panel, in the role that it was told.
    pub(super) fn begun(
        &mut self,
        member: usize,
        key: Key,
        (role, mates): (Role, impl Iterator<Item = usize>),
        given: Given,
    ) {
        let Given { first_id, matrices, bytes } = given;
        let mut waiting: Vec<usize> = Vec::new();
        if role.is_first {
            waiting.extend(self.waiting(&key, mates));
        } else if let Some(shared) = self.panels.remove(&key) {
            self.take_from_holder(&key, &shared, role.from.map(|_| (member, first_id)));
            waiting.extend(shared.waiting.iter().filter(|other| **other != member));
        }
        if !waiting.is_empty() {
            let holder = Some((member, first_id));
            self.panels.insert(key, Shared { holder, matrices, bytes, waiting });
            self.kept.insert((member, key));
        }
    }

    /// Others now do what was a member's: what was kept for it alone is forgotten.
    pub(super) fn lost(&mut self, member: usize, loss: Loss) {
        if !self.relays(member) {
            return;
        }
        self.losses[member].push(loss);
        let mut unneeded = Vec::new();
        for (key, shared) in &mut self.panels {
            if loss.covers(key) {
                shared.waiting.retain(|other| *other != member);
            }
            if shared.waiting.is_empty() {
                unneeded.push(*key);
            }
        }
        for key in unneeded {
            if let Some(shared) = self.panels.remove(&key) {
                self.take_from_holder(&key, &shared, None);
            }
        }
    }

    /// Whether a block is still a member's own by the plan: others moved it about where it is not, and nobody keeps panels
    /// of it for others.
    pub(super) fn is_own(&self, member: usize, wave: u64) -> bool {
        self.relays(member) && !self.losses[member].iter().any(|loss| loss.waves.contains(wave))
    }

    /// A member is gone. Nobody has what it kept for others; what was kept for it alone is forgotten. The members that
    /// had a link with it.
    pub(super) fn gone(&mut self, member: usize) -> BTreeSet<usize> {
        for (_, shared) in self.panels.iter_mut() {
            shared.holder = shared.holder.filter(|(holder, _)| *holder != member);
        }
        self.kept.retain(|(holder, _)| *holder != member);
        self.lost(member, Loss::whole(Span::new(0, u64::MAX)));
        let neighbours = self.neighbours.get_mut(member).map(std::mem::take).unwrap_or_default();
        for other in &neighbours {
            self.neighbours[*other].remove(&member);
        }
        neighbours
    }

    /// The one that kept a panel sends it to the next member, by its first id there, or just forgets it.
    fn take_from_holder(&mut self, key: &Key, shared: &Shared, next: Option<(usize, u32)>) {
        let Some((holder, first)) = shared.holder else { return };
        self.kept.remove(&(holder, *key));
        for at in 0..shared.matrices {
            let (to, id_there) = match next {
                Some((member, first_there)) => (small_index(member), first_there.wrapping_add(at)),
                None => (Forward::NOBODY, 0),
            };
            self.orders.push((holder, Forward { id: first.wrapping_add(at), to, id_there }));
        }
    }

    /// What the panels count for that a member keeps for others.
    pub(super) fn kept_bytes(&self, member: usize) -> u64 {
        self.kept_by(member).filter_map(|key| self.panels.get(key)).map(|shared| shared.bytes).sum()
    }

    fn kept_by(&self, member: usize) -> impl Iterator<Item = &Key> {
        let mine = self.kept.range((member, Key::LEAST)..).take_while(move |(holder, _)| *holder == member);
        // In the other orders most panels stay in any case, and nobody takes cells from a block.
        mine.map(|(_, key)| key).filter(|key| !key.by_columns)
    }

    /// Frees a member of the oldest panels that it keeps for others, those of one step. False where it keeps none.
    pub(super) fn relieve(&mut self, member: usize) -> bool {
        let mut keys = self.kept_by(member).copied().peekable();
        let Some(oldest) = keys.peek().copied() else { return false };
        let keys: Vec<Key> = keys.take_while(|k| (k.wave, k.step) == (oldest.wave, oldest.step)).collect();
        for key in keys {
            let Some(shared) = self.panels.remove(&key) else { continue };
            self.take_from_holder(&key, &shared, None);
            self.panels.insert(key, Shared { holder: None, ..shared });
        }
        true
    }

    /// Two members have no link any more; false where they had none.
    pub(super) fn part(&mut self, one: usize, other: usize) -> bool {
        let (Some(a), true) = (self.neighbours.get_mut(one), other != one) else { return false };
        let had = a.remove(&other);
        if let Some(b) = self.neighbours.get_mut(other) {
            b.remove(&one);
        }
        had
    }

    /// Orders that have to go out now, by who carries them out.
    pub(super) fn take_orders(&mut self) -> BTreeMap<usize, Vec<Forward>> {
        let mut by_member: BTreeMap<usize, Vec<Forward>> = BTreeMap::new();
        for (member, forward) in self.orders.drain(..) {
            by_member.entry(member).or_default().push(forward);
        }
        by_member
    }

    /// Cross-checks; for tests and the simulator.
    pub(super) fn validate(&self) {
        assert!(self.orders.is_empty(), "orders were left behind");
        for (key, shared) in &self.panels {
            assert!(!shared.waiting.is_empty() && shared.matrices > 0, "{key:?} is needed by nobody");
            if let Some((holder, _)) = shared.holder {
                assert!(self.kept.contains(&(holder, *key)), "{key:?} is kept by {holder}");
            }
        }
        let held = self.panels.values().filter(|s| s.holder.is_some()).count();
        assert_eq!(held, self.kept.len(), "whoever keeps a panel is known once");
    }
}

impl Key {
    /// Comes before all others.
    const LEAST: Self = Self { wave: 0, step: 0, region: 0, by_columns: false, is_b: false, index: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATES: [usize; 3] = [0, 1, 2];

    fn nobody() -> impl Iterator<Item = usize> {
        std::iter::empty()
    }

    fn board(members: usize) -> Board {
        Board::new((0..members).map(|me| (0..members).filter(|o| *o != me).collect()).collect())
    }

    fn given(first_id: u32, matrices: u32) -> Given {
        Given { first_id, matrices, bytes: 64 }
    }

    fn key(step: u64, index: u64) -> Key {
        Key { step, index, ..Key::LEAST }
    }

    #[test]
    fn a_panel_goes_along_a_chain_and_is_then_forgotten() {
        let mut board = board(3);
        let panel = key(0, 0);
        assert_eq!(board.role(1, &panel, [0, 2].into_iter()), Role::first(2));
        board.begun(1, panel, (Role::first(2), MATES.into_iter().filter(|m| *m != 1)), given(10, 2));
        assert_eq!(board.role(0, &panel, nobody()), Role::later(Some(1), 1));
        board.begun(0, panel, (Role::later(Some(1), 1), nobody()), given(20, 2));
        let orders = board.take_orders();
        let passed = |id, to, id_there| Forward { id, to, id_there };
        assert_eq!(orders[&1], [passed(10, 0, 20), passed(11, 0, 21)]);
        assert_eq!(board.role(2, &panel, nobody()), Role::later(Some(0), 0));
        board.begun(2, panel, (Role::later(Some(0), 0), nobody()), given(30, 2));
        assert_eq!(board.take_orders()[&0], [passed(20, 2, 30), passed(21, 2, 31)]);
        board.validate();
        assert!(board.panels.is_empty());
        assert_eq!(board.role(2, &panel, nobody()), Role::ALONE);
    }

    #[test]
    fn who_cannot_reach_the_holder_is_served_by_the_primary_and_holds_it_next() {
        let mut board = board(3);
        assert!(board.part(0, 1) && !board.part(1, 0));
        let panel = key(0, 0);
        board.begun(0, panel, (Role::first(2), MATES.into_iter().filter(|m| *m != 0)), given(5, 1));
        assert_eq!(board.role(1, &panel, nobody()), Role::later(None, 1));
        board.begun(1, panel, (Role::later(None, 1), nobody()), given(6, 1));
        assert_eq!(board.take_orders()[&0], [Forward { id: 5, to: Forward::NOBODY, id_there: 0 }]);
        assert_eq!(board.role(2, &panel, nobody()), Role::later(Some(1), 0));
        board.begun(2, panel, (Role::later(Some(1), 0), nobody()), given(7, 1));
        assert!(board.panels.is_empty() && board.kept.is_empty());
    }

    #[test]
    fn what_others_have_taken_from_a_member_is_not_kept_for_it() {
        let mut board = board(3);
        board.begun(0, key(0, 0), (Role::first(2), MATES.into_iter().skip(1)), given(1, 1));
        board.begun(0, key(1, 0), (Role::first(1), [2].into_iter()), given(2, 1));
        board.begun(0, key(1, 1), (Role::first(1), [2].into_iter()), given(3, 1));
        let kept = Rect::new(Span::new(1, 2), Span::new(0, 3));
        board.lost(2, Loss { waves: Span::new(0, 1), from: 0, kept });
        assert_eq!(board.take_orders()[&0], [Forward { id: 2, to: Forward::NOBODY, id_there: 0 }]);
        assert_eq!(board.role(2, &key(1, 1), nobody()), Role::later(Some(0), 0));
        // What comes later is not kept in the first place.
        assert_eq!(board.role(0, &key(2, 0), MATES.into_iter().skip(1)), Role::first(1));
        board.lost(1, Loss::whole(Span::new(0, 1)));
        assert_eq!(board.take_orders()[&0], [Forward { id: 1, to: Forward::NOBODY, id_there: 0 }]);
        board.lost(2, Loss::whole(Span::new(0, 1)));
        assert_eq!(board.take_orders()[&0], [Forward { id: 3, to: Forward::NOBODY, id_there: 0 }]);
        board.validate();
        assert!(board.panels.is_empty() && board.kept.is_empty());
    }

    #[test]
    fn nobody_waits_for_who_is_gone_and_nothing_is_kept_for_it() {
        let mut board = board(3);
        let by_columns = Key { by_columns: true, ..key(5, 0) };
        board.begun(0, key(0, 0), (Role::first(2), MATES.into_iter().skip(1)), given(1, 1));
        board.begun(0, by_columns, (Role::first(1), [1].into_iter()), given(2, 1));
        board.begun(1, key(0, 1), (Role::first(1), [0].into_iter()), given(3, 1));
        board.begun(2, key(0, 2), (Role::first(2), MATES.into_iter().take(2)), given(4, 1));
        assert!(board.is_own(0, 7) && board.is_own(1, 7));
        assert_eq!(board.gone(0).into_iter().collect::<Vec<_>>(), [1, 2]);
        let orders = board.take_orders();
        assert_eq!(orders.len(), 1, "{orders:?}");
        assert_eq!(orders[&1], [Forward { id: 3, to: Forward::NOBODY, id_there: 0 }]);
        board.validate();
        assert!(!board.is_own(0, 7) && board.is_own(1, 7));
        assert!(!board.part(1, 0) && !board.part(0, 1), "they know already");
        assert_eq!(board.role(1, &key(0, 0), nobody()), Role::later(None, 1));
        assert_eq!(board.role(1, &by_columns, nobody()), Role::later(None, 0));
        assert_eq!(board.role(1, &key(0, 2), nobody()), Role::later(Some(2), 0));
        // What is begun later is not kept for it, even by who has known it as a mate.
        assert_eq!(board.role(1, &key(9, 9), [0, 2].into_iter()), Role::first(1));
    }

    #[test]
    fn who_keeps_too_much_for_others_is_relieved_of_the_oldest_step() {
        let mut board = board(2);
        for step in 0..3 {
            for index in 0..2 {
                board.begun(
                    0,
                    key(step, index),
                    (Role::first(1), [1].into_iter()),
                    given((step * 2 + index) as u32, 1),
                );
            }
        }
        assert!(board.relieve(0) && !board.relieve(1));
        let given_up: Vec<u32> = board.take_orders()[&0].iter().map(|f| f.id).collect();
        assert_eq!(given_up, [0, 1]);
        board.validate();
        assert_eq!(board.role(1, &key(0, 1), nobody()), Role::later(None, 0));
        board.begun(1, key(0, 1), (Role::later(None, 0), nobody()), given(9, 1));
        assert_eq!(board.role(1, &key(1, 0), nobody()), Role::later(Some(0), 0));
        assert!(board.take_orders().is_empty());
    }
}
