//! An independent record of C: the steps of k in each tile, the partial sums that wait, the leased tiles.
//!
//! Invariants: a tile's steps come one after the other, each once, whether they land in C or are merged; only its
//! holder touches a leased tile; waiting partial sums never exceed the plan's prediction.

use bramble_matrix::{Rect, Span};
use bramble_plan::Plan;
use bramble_schedule::primary::{ResultDestination, ResultPlace};
use bramble_wire::message::ResultHead;
use std::collections::BTreeMap;

/// A tile of C.
struct Tile {
    rect: Rect,
    region: usize,
    /// Its cell.
    cell: (u64, u64),
    /// All steps of k.
    steps: u64,
    /// Steps 0..done are in C.
    done: u64,
    committed: bool,
}

/// A partial sum that waits beside C.
struct Aside {
    rect: Rect,
    steps: Span,
    rows: u64,
}

/// See the head of this file.
pub(super) struct CBook {
    /// By first row and first column.
    tiles: BTreeMap<(u64, u64), Tile>,
    /// By peer and id.
    asides: BTreeMap<(usize, u32), Aside>,
    aside_bytes: u64,
    aside_bytes_max: u64,
    element_bytes: u64,
    lent: Vec<(usize, u32, Rect)>,
    missing: usize,
}

impl CBook {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut tiles = BTreeMap::new();
        let mut elements = 0;
        for (at, region) in plan.regions.iter().enumerate() {
            let (q, cells) = (region.q(), region.cells());
            for (i, j) in cells.rows.iter().flat_map(|i| cells.cols.iter().map(move |j| (i, j))) {
                for (u, v) in (0..q).flat_map(|u| (0..q).map(move |v| (u, v))) {
                    let rect = region.tile(i, j, u, v);
                    assert!(rect.fits(plan.problem.result_shape()), "{rect} is not in C");
                    elements += rect.rows.len() * rect.cols.len();
                    let steps = region.steps();
                    let tile = Tile { rect, region: at, cell: (i, j), steps, done: 0, committed: false };
                    let before = tiles.insert((rect.rows.start, rect.cols.start), tile);
                    assert!(before.is_none(), "two tiles at {rect}");
                }
            }
        }
        // Together with the check of `commit`, this shows that C is covered once.
        assert_eq!(elements, plan.problem.m * plan.problem.n, "elements of all tiles");
        assert_eq!(tiles.len() as u64, plan.tiles());
        Self {
            missing: tiles.len(),
            tiles,
            asides: BTreeMap::new(),
            aside_bytes: 0,
            aside_bytes_max: plan.predicted.primary_memory_bytes,
            element_bytes: plan.problem.element_bytes(),
            lent: Vec::new(),
        }
    }

    /// Tiles that are not committed.
    pub(super) fn missing(&self) -> usize {
        self.missing
    }

    /// No partial sum and no lease remains.
    pub(super) fn check_end(&self) {
        assert_eq!((self.missing, self.asides.len(), self.aside_bytes), (0, 0, 0), "left over at the end");
        assert!(self.lent.is_empty(), "lent at the end");
    }

    fn tile(&mut self, rect: Rect) -> &mut Tile {
        let tile = self.tiles.get_mut(&(rect.rows.start, rect.cols.start));
        let tile = tile.unwrap_or_else(|| panic!("{rect} is no tile"));
        assert_eq!(tile.rect, rect, "the tile's place");
        assert!(!tile.committed, "tile {rect} after its end");
        tile
    }

    /// The steps of the member's block that has this tile and ends at the result's last step. Where work has `moved`
    /// between members, the block may be any member's, or end sooner: then the result's own steps are taken.
    pub(super) fn steps_of(
        &mut self,
        plan: &Plan,
        peer: usize,
        rect: Rect,
        head: &ResultHead,
        moved: bool,
    ) -> Span {
        let region = self.tile(rect).region;
        if moved && plan.regions[region].levels == 0 {
            return Span::new(u64::from(head.step_start), u64::from(head.step_end));
        }
        let tile = self.tile(rect);
        let (last, (i, j)) = (u64::from(head.step_end) - 1, tile.cell);
        let members = if moved { &plan.members[..] } else { &plan.members[peer..=peer] };
        let mut mine = members.iter().flat_map(|m| &m.shares).filter(|s| {
            let here = s.region == tile.region && s.cells.rows.contains(i) && s.cells.cols.contains(j);
            here && s.steps.contains(last)
        });
        let (Some(share), None) = (mine.next(), mine.next()) else {
            panic!("step {last} of {rect} is not in one share of peer {peer}")
        };
        let each = share.block.steps;
        let start = share.steps.start + (last - share.steps.start) / each * each;
        let steps = Span::new(start, (start + each).min(share.steps.end));
        assert_eq!(steps.end, last + 1, "steps of {rect} end within a block");
        let levels = plan.regions[tile.region].levels;
        assert!(
            if levels == 0 { head.step_start == steps.start as u32 } else { true },
            "{head:?} of {steps}"
        );
        steps
    }

    /// Lines have arrived. True where they were the last of this tile from this peer.
    pub(super) fn landed(
        &mut self,
        peer: usize,
        head: &ResultHead,
        to: ResultDestination,
        steps: Span,
    ) -> bool {
        let (rect, key) = (to.rect, (peer, head.c));
        let whole = u64::from(head.first_line) + u64::from(head.lines) == rect.rows.len();
        if to.place == ResultPlace::InC {
            self.not_lent(rect, Some(key));
            let tile = self.tile(rect);
            assert_eq!(tile.done, steps.start, "{steps} of {rect} land in C");
            if whole {
                tile.done = steps.end;
                self.lent.retain(|(peer, id, _)| (*peer, *id) != key);
            }
            return whole;
        }
        let done = self.tile(rect).done;
        assert!(done <= steps.start, "{steps} of {rect} wait beside C, but 0..{done} are in");
        assert!(
            self.lent.iter().all(|(peer, id, _)| (*peer, *id) != key),
            "a waiting partial sum was leased"
        );
        let fresh = Aside { rect, steps, rows: 0 };
        if let std::collections::btree_map::Entry::Vacant(entry) = self.asides.entry(key) {
            entry.insert(fresh);
            // The shell allocates a buffer for the whole sum with its first lines.
            self.aside_bytes += rect.rows.len() * rect.cols.len() * self.element_bytes;
        }
        let most = self.aside_bytes_max;
        assert!(self.aside_bytes <= most, "{} bytes wait beside C, {most} were predicted", self.aside_bytes);
        let aside = self.asides.get_mut(&key).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((aside.rect, aside.steps, aside.rows), (rect, steps, u64::from(head.first_line)));
        aside.rows += u64::from(head.lines);
        whole
    }

    /// A waiting partial sum is added.
    pub(super) fn merge(&mut self, peer: usize, id: u32, rect: Rect) {
        let aside = self.asides.remove(&(peer, id));
        let aside = aside.unwrap_or_else(|| panic!("sum {id} of peer {peer} does not wait beside C"));
        assert_eq!((aside.rect, aside.rows), (rect, rect.rows.len()), "a sum is added whole, in its place");
        self.aside_bytes -= rect.rows.len() * rect.cols.len() * self.element_bytes;
        self.not_lent(rect, None);
        let tile = self.tile(rect);
        assert_eq!(tile.done, aside.steps.start, "{} of {rect} are added", aside.steps);
        tile.done = aside.steps.end;
    }

    pub(super) fn commit(&mut self, rect: Rect) {
        let tile = self.tile(rect);
        assert_eq!(tile.done, tile.steps, "steps of the tile {rect}");
        tile.committed = true;
        self.missing -= 1;
        self.not_lent(rect, None);
    }

    /// A tile's own memory is leased to a peer.
    pub(super) fn lend(&mut self, peer: usize, id: u32, rect: Rect) {
        self.not_lent(rect, None);
        self.tile(rect);
        self.lent.push((peer, id, rect));
    }

    /// The partial sum is read, to be sent.
    pub(super) fn read_sum(&self, part: Rect) {
        self.not_lent(part, None);
        let mut within = self.tiles.values().filter(|t| !t.rect.disjoint(part));
        let (Some(tile), None) = (within.next(), within.next()) else { panic!("{part} is in one tile") };
        assert!(tile.done > 0 && !tile.committed, "the sum {part} is sent with {} steps", tile.done);
    }

    fn not_lent(&self, rect: Rect, but: Option<(usize, u32)>) {
        for (peer, id, lent) in &self.lent {
            assert!(but == Some((*peer, *id)) || lent.disjoint(rect), "{rect} is leased to peer {peer}");
        }
    }
}
