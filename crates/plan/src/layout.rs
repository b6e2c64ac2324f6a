//! Where a placed matrix lies: which machine holds which rectangle of it.
//!
//! Place in the flow: a matrix (*array*) is put on the workers once and multiplied many times. `ArrayLayout` says which
//! part each of them holds; `Ownership` derives from it which part of a product each can compute.
//!
//! Cuts lie on a lattice of `LATTICE` rows or columns, so that a later product, whose tiles depend on its own shape,
//! finds the borders of the parts at borders of tiles. Parts are in proportion to the speeds of the machines, as far
//! as the memory that each has left allows.
//!
//! Invariants: each element is in exactly one part, or in each replica. Every border except the last is a multiple of
//! `LATTICE`. No part exceeds the memory of its machine. Parts lie one after another, those of a new layout in the order of the
//! machines, so the same machines give the same layout. A lost part is placed anew in pieces of its own: no other part moves.
//!
//! Deliberately absent: cuts in both directions, moving parts, and the array's elements.

use crate::charged_bytes;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::float::floor;
use bramble_base::{DType, Rect, Shape, Span};
use core::fmt;

/// Cuts are at multiples of this many rows or columns: the smallest default edge of a tile.
pub const LATTICE: u64 = 256;
/// An array of at most this many bytes is replicated: at 1 Gbit/s it is sent in a thirtieth of a second.
const SMALL_BYTES: u64 = 4 << 20;
/// A replicated array takes at most this fraction of the memory that a machine has left.
const REPLICA_PART: u64 = 8;

/// The direction in which an array is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardAxis {
    /// Each part has whole rows: some of the rows, all columns.
    Rows,
    /// Each part has whole columns: some of the columns, all rows.
    Cols,
}

/// How large the parts are, relative to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardUnits {
    /// In proportion to the speeds of the machines; a machine that has little memory left gets less.
    BySpeed,
    /// In these proportions, one number for each machine; 0 is no part.
    Stated(Vec<u64>),
}

/// How an array is spread over machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each element at one machine.
    Shard(ShardAxis, ShardUnits),
    /// The whole array at every machine that has room for it.
    Replicate,
}

impl Placement {
    /// The placement if the user states none. A small array, or one with fewer pieces than there are machines, is
    /// replicated: any machine can then compute any part of a product. Else the longer side is cut, columns if both
    /// are equal.
    pub fn automatic(shape: Shape, dtype: DType, holders: &[PartHolder]) -> Self {
        let longer = shape.rows.max(shape.cols);
        let bytes = shape.bytes(dtype).unwrap_or(u64::MAX);
        let is_small = bytes <= SMALL_BYTES || longer.div_ceil(LATTICE) < holders.len() as u64;
        let fits = |holder: &PartHolder| charged_bytes(bytes, 0) <= holder.memory_bytes / REPLICA_PART;
        if is_small && holders.iter().all(fits) {
            return Self::Replicate;
        }
        let axis = if shape.rows > shape.cols { ShardAxis::Rows } else { ShardAxis::Cols };
        Self::Shard(axis, ShardUnits::BySpeed)
    }
}

/// A machine that may hold a part of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct PartHolder {
    /// Its name in messages.
    pub name: String,
    /// Its speed on this element type, Gflop/s.
    pub gflops: f64,
    /// Bytes that it has left for parts.
    pub memory_bytes: u64,
}

/// A rectangle of an array at one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPart {
    /// Index into the machines that the layout was made for.
    pub machine: usize,
    /// The rectangle.
    pub rect: Rect,
}

/// Where the parts of an array lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayLayout {
    /// Rows and columns of the whole array.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
    /// The cut direction; `None` if each part is a replica of the whole.
    pub axis: Option<ShardAxis>,
    /// The parts, in the order of the machines; machines may have none.
    pub parts: Vec<PlacedPart>,
}

/// Why an array cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A matrix without elements, or too large for any machine.
    #[error(
        "an array of {0} cannot be placed: it needs 1 to {max} rows and columns, and less than 2^63 bytes",
        max = Shape::SIDE_MAX
    )]
    Shape(Shape),
    /// Not one number for each machine, or only zeros.
    #[error(
        "{units} units for {machines} machines: state one for each machine, and at least one that is not 0"
    )]
    Units {
        /// Stated numbers.
        units: usize,
        /// Machines.
        machines: usize,
    },
    /// It does not fit the memory.
    #[error("{0}")]
    NoRoom(NoRoomForArray),
}

/// An array that does not fit the memory that the machines have left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoomForArray {
    /// Its shape.
    pub shape: Shape,
    /// Bytes that its smallest piece takes: `LATTICE` rows or columns, or the whole if it is replicated.
    pub piece_bytes: u64,
    /// Bytes that all pieces take.
    pub need_bytes: u64,
    /// Each machine: name, the bytes that it should hold (0 if that is left to the memory), and the bytes that it has
    /// left.
    pub machines: Vec<(String, u64, u64)>,
}

impl fmt::Display for NoRoomForArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Self { shape, piece_bytes, need_bytes, machines } = self;
        let (need, piece) = (mib(*need_bytes), mib(*piece_bytes));
        write!(
            f,
            "an array of {shape} takes {need} MiB, in pieces of {piece} MiB, and the machines have left:"
        )?;
        for (at, (name, wanted, left)) in machines.iter().enumerate() {
            let comma = if at == 0 { " " } else { ", " };
            write!(f, "{comma}{name} {} MiB", left >> 20)?;
            if *wanted > 0 {
                write!(f, " for {} MiB", mib(*wanted))?;
            }
        }
        f.write_str("; free other arrays, or give the workers more --memory")
    }
}

impl ArrayLayout {
    /// Places an array on machines.
    pub fn new(
        shape: Shape,
        dtype: DType,
        placement: &Placement,
        holders: &[PartHolder],
    ) -> Result<Self, LayoutError> {
        let is_empty = shape.rows == 0 || shape.cols == 0;
        let Some(bytes) = shape.bytes(dtype).filter(|_| !is_empty && shape.check_sides().is_ok()) else {
            return Err(LayoutError::Shape(shape));
        };
        match placement {
            Placement::Replicate => Self::replicated(shape, dtype, charged_bytes(bytes, 0), holders),
            Placement::Shard(axis, units) => Self::sharded(shape, dtype, (*axis, units), holders),
        }
    }

    /// The whole array at every machine that has room for it.
    fn replicated(
        shape: Shape,
        dtype: DType,
        bytes: u64,
        holders: &[PartHolder],
    ) -> Result<Self, LayoutError> {
        let with_room = (0..holders.len()).filter(|at| bytes <= holders[*at].memory_bytes);
        let parts: Vec<PlacedPart> =
            with_room.map(|machine| PlacedPart { machine, rect: shape.rect() }).collect();
        if parts.is_empty() {
            let machines = holders.iter().map(|h| (h.name.clone(), 0, h.memory_bytes)).collect();
            let no_room = NoRoomForArray { shape, piece_bytes: bytes, need_bytes: bytes, machines };
            return Err(LayoutError::NoRoom(no_room));
        }
        Ok(Self { shape, dtype, axis: None, parts })
    }

    fn sharded(
        shape: Shape,
        dtype: DType,
        (axis, units): (ShardAxis, &ShardUnits),
        holders: &[PartHolder],
    ) -> Result<Self, LayoutError> {
        let (length, across) = match axis {
            ShardAxis::Rows => (shape.rows, shape.cols),
            ShardAxis::Cols => (shape.cols, shape.rows),
        };
        // The last piece may be shorter, and counts as a whole one.
        let piece_bytes =
            charged_bytes(LATTICE.min(length).saturating_mul(across) * dtype.size_bytes() as u64, 0);
        let pieces = length.div_ceil(LATTICE);
        let room: Vec<u64> = holders.iter().map(|h| h.memory_bytes / piece_bytes).collect();
        let no_room = |wanted: &dyn Fn(usize) -> u64| {
            let one = |(at, h): (usize, &PartHolder)| (h.name.clone(), wanted(at), h.memory_bytes);
            let machines = holders.iter().enumerate().map(one).collect();
            let need_bytes = pieces.saturating_mul(piece_bytes);
            LayoutError::NoRoom(NoRoomForArray { shape, piece_bytes, need_bytes, machines })
        };
        let counts = match units {
            ShardUnits::BySpeed => {
                let weights = known_speeds(holders);
                apportion(pieces, &weights, &room).ok_or_else(|| no_room(&|_| 0))?
            }
            ShardUnits::Stated(units) => {
                if units.len() != holders.len() || units.iter().all(|n| *n == 0) {
                    let (units, machines) = (units.len(), holders.len());
                    return Err(LayoutError::Units { units, machines });
                }
                let weights: Vec<f64> = units.iter().map(|n| *n as f64).collect();
                let any: Vec<u64> = units.iter().map(|n| if *n == 0 { 0 } else { u64::MAX }).collect();
                let counts = apportion(pieces, &weights, &any).unwrap_or_default();
                // Stated proportions are kept, or refused.
                if counts.iter().zip(&room).any(|(count, room)| count > room) {
                    return Err(no_room(&|at| counts[at].saturating_mul(piece_bytes)));
                }
                counts
            }
        };
        let mut parts = Vec::new();
        let mut first = 0;
        for (machine, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            let span = Span::new(first * LATTICE, ((first + count) * LATTICE).min(length));
            let rect = match axis {
                ShardAxis::Rows => Rect::new(span, Span::new(0, across)),
                ShardAxis::Cols => Rect::new(Span::new(0, across), span),
            };
            parts.push(PlacedPart { machine, rect });
            first += count;
        }
        Ok(Self { shape, dtype, axis: Some(axis), parts })
    }

    /// The part at a machine.
    pub fn part_at(&self, machine: usize) -> Option<&PlacedPart> {
        self.parts.iter().find(|part| part.machine == machine)
    }

    /// The parts whose machines are lost and that no other machine holds, as indices. A replica is missing only if it was
    /// the last one; then part 0 stands for the whole array.
    pub fn missing(&self, is_there: &dyn Fn(usize) -> bool) -> Vec<usize> {
        let lost = |(at, part): (usize, &PlacedPart)| (!is_there(part.machine)).then_some(at);
        let missing: Vec<usize> = self.parts.iter().enumerate().filter_map(lost).collect();
        match self.axis {
            None if missing.len() < self.parts.len() => Vec::new(),
            None => missing.into_iter().take(1).collect(),
            Some(_) => missing,
        }
    }

    /// Places a lost part anew: the pieces, in proportion to the speeds of the machines that are left. A lost machine
    /// among the `holders` has no memory.
    pub fn placed_again(&self, part: usize, holders: &[PartHolder]) -> Result<Vec<PlacedPart>, LayoutError> {
        let lost = self.parts[part].rect;
        let placement = match self.axis {
            Some(axis) => Placement::Shard(axis, ShardUnits::BySpeed),
            None => Placement::Replicate,
        };
        let pieces = Self::new(lost.shape(), self.dtype, &placement, holders)?.parts;
        let moved = |span: Span, by: u64| Span::new(span.start + by, span.end + by);
        let at_its_place = |piece: PlacedPart| {
            let (rows, cols) =
                (moved(piece.rect.rows, lost.rows.start), moved(piece.rect.cols, lost.cols.start));
            PlacedPart { rect: Rect::new(rows, cols), ..piece }
        };
        Ok(pieces.into_iter().map(at_its_place).collect())
    }

    /// Bytes that a part takes at its machine.
    pub fn part_bytes(&self, part: &PlacedPart) -> u64 {
        charged_bytes(part.rect.shape().bytes(self.dtype).unwrap_or(u64::MAX), 0)
    }
}

/// The speeds of the machines; one that is unknown counts as very slow, and if none is known, all are equal.
pub(crate) fn known_speeds(holders: &[PartHolder]) -> Vec<f64> {
    let is_known = |speed: &f64| speed.is_finite() && *speed > 0.0;
    let least = holders.iter().map(|h| h.gflops).filter(is_known).fold(f64::INFINITY, f64::min);
    let unknown = if least.is_finite() { least * 1e-3 } else { 1.0 };
    holders.iter().map(|h| if is_known(&h.gflops) { h.gflops } else { unknown }).collect()
}

/// Divides `pieces` so that the machine that takes longest for its number of them, at the speed `weights`, takes as
/// short as possible, and none has more than its `room`: all are filled to the same level, those with little room up to
/// their brim. Among equals the first machine gets the piece. `None` if there is not enough room.
pub(crate) fn apportion(pieces: u64, weights: &[f64], room: &[u64]) -> Option<Vec<u64>> {
    let all = room.iter().copied().fold(0, u64::saturating_add);
    if all < pieces {
        return None;
    }
    let at_level = |level: f64| -> Vec<u64> {
        let one = |(weight, room): (&f64, &u64)| (floor(weight * level) as u64).min(*room);
        weights.iter().zip(room).map(one).collect()
    };
    let total = |counts: &[u64]| counts.iter().copied().fold(0, u64::saturating_add);
    // The level by bisection from below: then at most about one piece for each machine is left.
    let slowest = weights.iter().zip(room).filter(|(_, room)| **room > 0).map(|(w, _)| *w);
    let (mut low, mut high) = (0.0, (pieces + 1) as f64 / slowest.fold(f64::INFINITY, f64::min));
    for _ in 0..BISECTIONS {
        let middle = low + (high - low) / 2.0;
        if total(&at_level(middle)) <= pieces { low = middle } else { high = middle }
    }
    let mut counts = if pieces == 0 { vec![0; room.len()] } else { at_level(low) };
    for _ in total(&counts)..pieces {
        let next_s = |at: &usize| (counts[*at] + 1) as f64 / weights[*at];
        let open = (0..room.len()).filter(|at| counts[*at] < room[*at]);
        let next = open.min_by(|a, b| next_s(a).total_cmp(&next_s(b)))?;
        counts[next] += 1;
    }
    Some(counts)
}

/// Halvings of the level: enough for every bit of a double, and more.
const BISECTIONS: u32 = 128;

#[cfg(test)]
mod tests;
