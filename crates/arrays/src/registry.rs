//! The arrays of a cluster: which machine holds which part of each, and where its elements come from.
//!
//! Place in the flow: operations record arrays here; products and operations look up what they can read in place.
//!
//! Invariants: a part is recorded when its machine has confirmed it. Numbers of arrays, parts, blocks and questions come from one
//! counter that only rises. An array keeps its origin: a lost part is put or made again from it.
//!
//! Deliberately absent: elements.

use crate::{ArrayError, ArrayHolders, KnownPart, MadeFrom};
use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bramble_base::{Digest128, Rect, Shape, Span};
use bramble_plan::{ArrayLayout, PlacedPart};
use bramble_wire::limits::ARRAYS_MAX;

/// Names a placed matrix of a cluster. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrayId(u64);

/// A part that its machine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedPart {
    /// Its number at its machine. Replicas of an array share one.
    pub number: u64,
    /// Its digest, as the machine computed it.
    pub digest: Digest128,
}

/// A part that a machine holds: rectangle and machine, number and digest.
pub(crate) type Held = (PlacedPart, RecordedPart);

/// Where the elements of an array come from. `X`: a matrix of the shell.
pub enum ArrayOrigin<X> {
    /// It was put: this matrix has them.
    Put(X),
    /// Machines have made it with this operation.
    Made(Rc<MadeFrom<X>>),
}

/// A placed matrix. `K`: what the shell keeps beside it.
pub struct PlacedArray<X, K> {
    /// Its name in messages.
    pub name: String,
    /// Where its parts lie; machines are those of `holders`.
    pub layout: ArrayLayout,
    /// Number and digest of each part of the layout, in its order.
    pub parts: Vec<RecordedPart>,
    /// The connection of each machine of the layout, by its number.
    pub holders: Vec<u64>,
    /// Where its elements come from.
    pub origin: ArrayOrigin<X>,
    /// What the shell keeps beside it.
    pub kept: K,
}

impl<X, K> PlacedArray<X, K> {
    /// The error if the machine of a part is lost.
    pub fn lost<E>(&self, part: usize) -> ArrayError<E> {
        let shape = self.layout.shape;
        let rect = self.layout.parts.get(part).map_or_else(|| shape.rect(), |part| part.rect);
        ArrayError::PartLost(format!(
            "{} of the placed matrix {} was on a machine that is lost",
            place_of(rect, shape),
            self.name
        ))
    }

    /// The connection of a part's machine.
    pub(crate) fn holder(&self, part: &PlacedPart) -> u64 {
        self.holders[part.machine]
    }

    /// The machine of the layout with that connection; a new one if it has none.
    fn machine_of(&mut self, connection: u64) -> usize {
        let known = self.holders.iter().position(|holder| *holder == connection);
        known.unwrap_or_else(|| {
            self.holders.push(connection);
            self.holders.len() - 1
        })
    }

    /// Replaces a part by others, whose machines are numbered as in an operation; without others, the part is dropped.
    pub(crate) fn replace(&mut self, part: usize, by: Vec<Held>, connections: &[u64]) {
        let (mut parts, mut recorded) = (Vec::new(), Vec::new());
        for (part, record) in by {
            let machine = self.machine_of(connections[part.machine]);
            parts.push(PlacedPart { machine, ..part });
            recorded.push(record);
        }
        self.layout.parts.splice(part..=part, parts);
        self.parts.splice(part..=part, recorded);
    }

    /// Drops the replicas of machines that are gone.
    pub(crate) fn keep_replicas(&mut self, is_there: &dyn Fn(u64) -> bool) {
        let recorded = core::mem::take(&mut self.parts);
        let all = core::mem::take(&mut self.layout.parts).into_iter().zip(recorded);
        (self.layout.parts, self.parts) =
            all.filter(|(part, _)| is_there(self.holders[part.machine])).unzip();
    }

    /// The parts whose machines are lost and that no other machine holds, as indices into the layout.
    pub(crate) fn missing(&self, holders: &ArrayHolders) -> Vec<usize> {
        self.layout.missing(&|machine| holders.with_connection(self.holders[machine]).is_some())
    }

    /// The connections of all machines with a part, and the numbers of their parts.
    pub fn numbers(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut numbers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (part, recorded) in self.layout.parts.iter().zip(&self.parts) {
            numbers.entry(self.holder(part)).or_default().push(recorded.number);
        }
        numbers
    }

    /// The parts, with machines numbered as in an operation. Replicas on lost machines are left out; without a replica, a
    /// lost part is an error.
    pub fn known_parts<E>(&self, holders: &ArrayHolders) -> Result<Vec<KnownPart>, ArrayError<E>> {
        if let Some(missing) = self.missing(holders).first() {
            return Err(self.lost(*missing));
        }
        let parts = self.layout.parts.iter().zip(&self.parts);
        let known = parts.filter_map(|(part, recorded)| {
            let part = PlacedPart { machine: holders.with_connection(self.holder(part))?, ..*part };
            Some(KnownPart { part, number: recorded.number, digest: recorded.digest })
        });
        Ok(known.collect())
    }

    /// Whether the elements lie at machines only, made by an operation.
    pub fn is_made(&self) -> bool {
        matches!(self.origin, ArrayOrigin::Made(_))
    }
}

/// All placed matrices of a cluster.
pub struct PlacedArrays<X, K> {
    arrays: BTreeMap<ArrayId, PlacedArray<X, K>>,
    /// The last number of an array, a part, a block or a question.
    last: u64,
}

impl<X, K> Default for PlacedArrays<X, K> {
    fn default() -> Self {
        Self { arrays: BTreeMap::new(), last: 0 }
    }
}

impl<X, K> PlacedArrays<X, K> {
    /// A number that nothing has had.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether one more array may be placed.
    pub(crate) fn admit<E>(&self) -> Result<(), ArrayError<E>> {
        if self.arrays.len() < ARRAYS_MAX / 2 {
            return Ok(());
        }
        let most = (ARRAYS_MAX / 2).to_string();
        Err(ArrayError::Operands(format!("{most} matrices are placed already: free some of them")))
    }

    /// Records an array.
    pub(crate) fn add(&mut self, array: PlacedArray<X, K>) -> ArrayId {
        let id = ArrayId(self.number());
        self.arrays.insert(id, array);
        id
    }

    /// An array; an error if it was freed.
    pub fn get<E>(&self, id: ArrayId) -> Result<&PlacedArray<X, K>, ArrayError<E>> {
        self.arrays.get(&id).ok_or_else(|| {
            ArrayError::Operands("a placed matrix that was freed is used: place it again".to_owned())
        })
    }

    /// An array, to be changed.
    pub fn get_mut(&mut self, id: ArrayId) -> Option<&mut PlacedArray<X, K>> {
        self.arrays.get_mut(&id)
    }

    /// Forgets an array. Its machines still hold its parts.
    pub fn remove(&mut self, id: ArrayId) -> Option<PlacedArray<X, K>> {
        self.arrays.remove(&id)
    }

    /// All arrays, in the order in which they were placed.
    pub fn ids(&self) -> Vec<ArrayId> {
        self.arrays.keys().copied().collect()
    }
}

/// `rows 0 to 255` or `columns 256 to 511`, or both, of a matrix of that shape.
pub fn place_of(rect: Rect, shape: Shape) -> String {
    let span = |what: &str, span: Span| format!("{what} {} to {}", span.start, span.end.saturating_sub(1));
    match (rect.rows.len() == shape.rows, rect.cols.len() == shape.cols) {
        (true, true) => "all".to_owned(),
        (false, true) => span("rows", rect.rows),
        (true, false) => span("columns", rect.cols),
        (false, false) => format!("{} and {}", span("rows", rect.rows), span("columns", rect.cols)),
    }
}
