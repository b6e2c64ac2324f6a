//! The factors on their way from the machines that have them to one place: which rows are asked for, and where they go.
//!
//! Place in the flow: the primary notes the exchanges of rows while the machines eliminate, then passes answers in, and
//! carries the requests out.
//!
//! Invariants: every element of every eliminated column is asked for once. At most `LU_FETCHES_MAX` requests to a
//! machine are unanswered; answers come in the order of the requests. A machine exchanges rows only in columns that are
//! not factored yet, so L has its rows in the order of its own panel and those before it; each row goes to the place that
//! the exchanges of the later panels give it.
//!
//! Deliberately absent: the elements, and whether they are right.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;
use bramble_wire::ProtocolError;
use bramble_wire::limits::LU_FETCHES_MAX;
use bramble_wire::message::{LuBegin, LuFill, lu_frames};
use core::ops::Range;

/// The exchanges of rows of a factorisation, as the owners of the panels report them.
#[derive(Clone, Debug)]
pub struct LuPivots {
    begin: LuBegin,
    /// For each column, the row with which its diagonal row was exchanged.
    rows: Vec<usize>,
    /// Panels whose exchanges are known.
    is_known: Vec<bool>,
    /// Machines that have eliminated their columns.
    is_done: Vec<bool>,
}

impl LuPivots {
    /// Exchanges of rows: pivots that did not stand on the diagonal.
    pub fn exchanges(&self) -> usize {
        self.rows.iter().enumerate().filter(|(row, pivot)| row != *pivot).count()
    }

    /// No exchange is known yet.
    pub fn new(begin: &LuBegin) -> Self {
        Self {
            rows: vec![0; begin.order],
            is_known: vec![false; begin.panels()],
            is_done: vec![false; begin.ring.machines],
            begin: begin.clone(),
        }
    }

    /// A machine has factored a panel. An error if it does not own that panel, has told it before, or exchanges rows that
    /// cannot be exchanged.
    pub fn factored(&mut self, from: usize, step: usize, pivots: &[usize]) -> Result<(), ProtocolError> {
        let is_due = self.is_known.get(step) == Some(&false) && self.begin.ring.owners[step] == from;
        if !is_due {
            return Err(ProtocolError::new(format!("it has factored panel {step}, which is not expected")));
        }
        let columns = self.begin.columns(step);
        let (top, below) = (columns.start, self.begin.order - columns.start);
        let fits = pivots.iter().enumerate().all(|(at, pivot)| (at..below).contains(pivot));
        if pivots.len() != columns.len() || !fits {
            return Err(ProtocolError::new(format!("panel {step} has wrong pivots")));
        }
        let places = &mut self.rows[columns];
        places.iter_mut().zip(pivots).for_each(|(place, pivot)| *place = top + pivot);
        self.is_known[step] = true;
        Ok(())
    }

    /// A machine has eliminated all of its columns. An error if it has said so before, or not told all of its exchanges.
    pub fn eliminated(&mut self, from: usize) -> Result<(), ProtocolError> {
        let columns = self.begin.ring.owners.iter().zip(&self.is_known);
        let has_told = columns.filter(|(owner, _)| **owner == from).all(|(_, is_known)| *is_known);
        if !has_told || self.is_done.get(from) != Some(&false) {
            return Err(ProtocolError::new("it has eliminated its columns, which is not expected"));
        }
        self.is_done[from] = true;
        Ok(())
    }

    /// Whether all machines have eliminated their columns.
    pub fn is_complete(&self) -> bool {
        self.is_done.iter().all(|is_done| *is_done)
    }

    /// For each column, the row with which its diagonal row was exchanged, from 0.
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Where the rows of a block column go, as its owner has them.
    fn places(&self, block: usize) -> Vec<usize> {
        let end = self.begin.columns(block).end;
        let mut rows: Vec<usize> = (0..self.begin.order).collect();
        for (row, other) in self.rows.iter().enumerate().skip(end) {
            rows.swap(row, *other);
        }
        let mut places = vec![0; rows.len()];
        rows.iter().enumerate().for_each(|(place, row)| places[*row] = place);
        places
    }
}

/// Where elements that have come go: their columns, and the row of each line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuPlaces<'a> {
    /// Columns of the matrix.
    pub columns: Range<usize>,
    /// The row of each line.
    pub rows: &'a [usize],
}

/// What one machine still has to send.
#[derive(Debug, Default)]
struct Source {
    /// Its blocks, from the one that is being asked for on; and the first row of that which was not asked for.
    blocks: VecDeque<usize>,
    row: usize,
    /// Requests without an answer.
    asked: VecDeque<LuFill>,
    /// The block of the last answer, and where its rows go.
    places: Option<(usize, Vec<usize>)>,
}

/// The state of the transfer.
#[derive(Debug)]
pub struct LuHome {
    pivots: LuPivots,
    sources: Vec<Source>,
}

impl LuHome {
    /// Nothing has been asked for. `pivots` are complete.
    pub fn new(pivots: LuPivots) -> Self {
        let mut sources: Vec<Source> = Vec::new();
        sources.resize_with(pivots.begin.ring.machines, Source::default);
        for block in 0..pivots.begin.panels() {
            sources[pivots.begin.ring.owners[block]].blocks.push_back(block);
        }
        Self { pivots, sources }
    }

    /// What a machine is asked for now.
    pub fn ask(&mut self, machine: usize) -> Vec<LuFill> {
        let (begin, source) = (&self.pivots.begin, &mut self.sources[machine]);
        let mut requests = Vec::new();
        while source.asked.len() < LU_FETCHES_MAX
            && let Some(block) = source.blocks.front().copied()
        {
            let line_bytes = begin.line_bytes(begin.columns(block).len());
            let rows = lu_frames(begin.order - source.row, line_bytes).next();
            let rows = rows.map_or(0, |rows| rows.len());
            let request = LuFill { block, first: source.row, rows };
            source.row += rows;
            if source.row == begin.order {
                source.blocks.pop_front();
                source.row = 0;
            }
            source.asked.push_back(request);
            requests.push(request);
        }
        requests
    }

    /// Elements have come from a machine. An error if they were not asked for next.
    pub fn arrived(
        &mut self,
        from: usize,
        answer: &LuFill,
        bytes: usize,
    ) -> Result<LuPlaces<'_>, ProtocolError> {
        let source = &mut self.sources[from];
        let columns = self.pivots.begin.columns(answer.block);
        let is_next = source.asked.front() == Some(answer);
        if !is_next || bytes != answer.rows * self.pivots.begin.line_bytes(columns.len()) {
            return Err(ProtocolError::new(format!(
                "it sent {bytes} bytes of rows {} and following of block {}, which were not asked for",
                answer.first, answer.block
            )));
        }
        source.asked.pop_front();
        if source.places.as_ref().is_none_or(|(block, _)| *block != answer.block) {
            source.places = Some((answer.block, self.pivots.places(answer.block)));
        }
        let rows = source.places.as_ref().map_or(&[][..], |(_, places)| places);
        Ok(LuPlaces { columns, rows: &rows[answer.first..answer.first + answer.rows] })
    }

    /// Whether all elements have come.
    pub fn is_over(&self) -> bool {
        self.sources.iter().all(|source| source.blocks.is_empty() && source.asked.is_empty())
    }

    /// The exchanges of rows, when all elements have come.
    pub fn into_pivots(self) -> Vec<usize> {
        self.pivots.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_base::DType;
    use bramble_wire::message::{LuOrigin, LuRing};
    use proptest::prelude::*;

    /// Bytes of an element.
    const ELEMENT: usize = 8;

    fn system(order: usize, width: usize, owners: &[usize], machines: usize) -> LuBegin {
        let blocks = order.div_ceil(width) + 1;
        let owners = owners.iter().cycle().take(blocks).map(|owner| owner % machines).collect();
        let ring = LuRing { owners, machines, me: 0 };
        LuBegin { order, width, extra: 1, dtype: DType::F64, live_max: 3, origin: LuOrigin::Sent, ring }
    }

    /// Tells all exchanges: those of a column are `draws`, as far as they are possible.
    fn told(begin: &LuBegin, draws: &[usize]) -> LuPivots {
        let mut pivots = LuPivots::new(begin);
        for step in 0..begin.panels() {
            let columns = begin.columns(step);
            let below = begin.order - columns.start;
            let draw = |at: usize| at + draws[(columns.start + at) % draws.len()] % (below - at);
            let of_panel: Vec<usize> = (0..columns.len()).map(draw).collect();
            pivots.factored(begin.ring.owners[step], step, &of_panel).unwrap();
        }
        (0..begin.ring.machines).for_each(|at| pivots.eliminated(at).unwrap());
        pivots
    }

    proptest! {
        /// Every element comes once, to where exchanges of whole rows would have brought it.
        #[test]
        fn rows_come_to_the_places_that_exchanges_give_them(
            order in 1..80usize, width in 1..20usize, owners in prop::collection::vec(0..4usize, 1..20),
            machines in 1..5usize, draws in prop::collection::vec(0..100usize, 1..80),
            choices in prop::collection::vec(any::<prop::sample::Index>(), 50),
        ) {
            let begin = system(order, width, &owners, machines);
            let pivots = told(&begin, &draws);
            prop_assert!(pivots.is_complete());
            // What the machines have: element (row, column) by its number, exchanged only by later panels than its own.
            let mut whole: Vec<Vec<usize>> =
                (0..order).map(|row| (0..order).map(|col| row * order + col).collect()).collect();
            for (row, other) in pivots.rows().iter().enumerate() {
                let right = begin.columns(row / width).start;
                let (one, two) = (whole[row].clone(), whole[*other].clone());
                whole[*other][..right].copy_from_slice(&one[..right]);
                whole[row][..right].copy_from_slice(&two[..right]);
            }
            let mut home = LuHome::new(pivots);
            let mut made = vec![vec![usize::MAX; order]; order];
            let mut open: Vec<VecDeque<LuFill>> = (0..machines).map(|at| home.ask(at).into()).collect();
            let mut choices = choices.iter().cycle();
            while !home.is_over() {
                let ready: Vec<usize> = (0..machines).filter(|at| !open[*at].is_empty()).collect();
                let at = ready[choices.next().map_or(0, |choice| choice.index(ready.len()))];
                prop_assert!(open[at].len() <= LU_FETCHES_MAX);
                let fill = open[at].pop_front().unwrap();
                let columns = begin.columns(fill.block);
                let places = home.arrived(at, &fill, fill.rows * columns.len() * ELEMENT).unwrap();
                prop_assert_eq!(&places.columns, &columns);
                for (line, row) in places.rows.iter().enumerate() {
                    for col in columns.clone() {
                        let old = core::mem::replace(&mut made[*row][col], (fill.first + line) * order + col);
                        prop_assert_eq!(old, usize::MAX, "an element came twice");
                    }
                }
                open[at].extend(home.ask(at));
            }
            prop_assert_eq!(made, whole);
        }
    }

    #[test]
    fn a_block_of_many_rows_comes_in_several_answers() {
        let begin = system(3000, 1500, &[0], 1);
        let mut home = LuHome::new(told(&begin, &[0]));
        let first = home.ask(0);
        assert_eq!(first.len(), LU_FETCHES_MAX);
        assert!(first.iter().all(|fill| fill.block == 0 && fill.rows * 1500 * ELEMENT <= 1 << 20));
        assert!(home.ask(0).is_empty(), "more than it may");
    }

    #[test]
    fn exchanges_that_are_none_are_refused() {
        let begin = system(20, 8, &[0, 1, 0, 1], 2);
        let mut pivots = LuPivots::new(&begin);
        let own: Vec<usize> = (0..8).collect();
        for (from, step, rows) in [
            (1, 0, own.clone()),                   // a panel of another machine
            (0, 3, own.clone()),                   // the right-hand sides
            (0, 9, own.clone()),                   // no panel
            (0, 0, own[1..].to_vec()),             // too few
            (0, 0, vec![0, 0, 2, 3, 4, 5, 6, 7]),  // a row above
            (0, 0, vec![20, 1, 2, 3, 4, 5, 6, 7]), // a row below all
        ] {
            assert!(pivots.factored(from, step, &rows).is_err(), "{from} {step} {rows:?}");
        }
        assert!(pivots.eliminated(0).is_err(), "its exchanges are not known");
        pivots.factored(0, 0, &own).unwrap();
        assert!(pivots.factored(0, 0, &own).is_err(), "twice");
        pivots.factored(0, 2, &[3, 2, 2, 3]).unwrap();
        assert!(pivots.eliminated(0).is_ok() && pivots.eliminated(0).is_err() && !pivots.is_complete());
        pivots.factored(1, 1, &own).unwrap();
        assert!(pivots.eliminated(1).is_ok() && pivots.eliminated(2).is_err() && pivots.is_complete());
        assert_eq!(pivots.rows()[16..], [19, 18, 18, 19]);
    }

    #[test]
    fn answers_that_were_not_asked_for_are_refused() {
        let begin = system(20, 8, &[0, 1, 0, 1], 2);
        let mut home = LuHome::new(told(&begin, &[1, 2, 3]));
        let none = LuFill { block: 0, first: 0, rows: 20 };
        assert!(home.arrived(0, &none, 20 * 8 * ELEMENT).is_err(), "before it was asked");
        let asked = home.ask(0);
        assert_eq!(asked, [none, LuFill { block: 2, ..none }]);
        assert!(home.arrived(1, &none, 20 * 8 * ELEMENT).is_err(), "of another machine");
        assert!(home.arrived(0, &asked[1], 20 * 4 * ELEMENT).is_err(), "out of order");
        assert!(home.arrived(0, &LuFill { rows: 19, ..none }, 19 * 8 * ELEMENT).is_err(), "too few rows");
        let huge = LuFill { block: usize::MAX, first: usize::MAX, rows: usize::MAX };
        assert!(home.arrived(0, &huge, 64).is_err());
        assert!(home.arrived(0, &none, 20 * 8 * ELEMENT - 1).is_err(), "a byte is missing");
        assert!(home.arrived(0, &none, 20 * 8 * ELEMENT).is_ok() && !home.is_over());
        assert!(home.arrived(0, &none, 20 * 8 * ELEMENT).is_err(), "twice");
    }
}
