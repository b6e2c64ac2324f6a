//! Boxes of a mesh of a × b × c places over rows, columns and steps.

use super::boxes::Cells3;
use super::partition::apportion;
use crate::Region;
use crate::strategy::PLACES_MAX;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::{Rect, Span};

/// The places of a mesh, and the machine at each.
struct Mesh<'a> {
    places: [usize; 3],
    /// Machines, fastest first.
    order: Vec<usize>,
    weights: &'a [f64],
    everyone: bool,
}

impl Mesh<'_> {
    /// Fast machines are together in a row of the mesh, so that their rows can be higher.
    fn machine(&self, [i, j, l]: [usize; 3]) -> usize {
        self.order[self.number([i, j, l]) % self.order.len()]
    }

    fn number(&self, [i, j, l]: [usize; 3]) -> usize {
        (i * self.places[1] + j) * self.places[2] + l
    }

    /// The fraction of its machine's speed that a place has: a machine may have several places.
    fn speed(&self, at: [usize; 3]) -> f64 {
        let (all, machines) = (self.places.iter().product::<usize>(), self.order.len());
        let standing = all / machines + usize::from(self.number(at) % machines < all % machines);
        self.weights[self.machine(at)] / standing.max(1) as f64
    }

    fn all(&self) -> impl Iterator<Item = [usize; 3]> {
        let [a, b, c] = self.places;
        (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |l| [i, j, l])))
    }

    /// The spans of the slabs in direction `side`, with lengths in proportion to their speed.
    fn slabs(&self, side: usize, length: u64) -> Vec<Span> {
        let mut speeds = vec![0.0; self.places[side]];
        for at in self.all() {
            speeds[at[side]] += self.speed(at);
        }
        let mut end = 0;
        let slab = |len: u64| {
            end += len;
            Span::new(end - len, end)
        };
        apportion(length, &speeds, self.everyone).into_iter().map(slab).collect()
    }
}

/// The machines take places in turn; the length of a slab is in proportion to the speed of its machines. With fewer
/// places than machines the slowest get none. A direction has no more places than cells or steps.
pub(super) fn mesh(region: &Region, weights: &[f64], places: [u32; 3], everyone: bool) -> Vec<Vec<Cells3>> {
    let whole = Cells3::whole(region);
    let mut result = vec![Vec::new(); weights.len()];
    if weights.is_empty() || whole.is_empty() {
        return result;
    }
    let lengths = whole.lengths(region).map(|l| l.0);
    let mut left = PLACES_MAX;
    let places: [usize; 3] = core::array::from_fn(|side| {
        let count = places[side].max(1).min(left).min(u32::try_from(lengths[side]).unwrap_or(u32::MAX));
        left /= count;
        count as usize
    });
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|x, y| weights[*y].total_cmp(&weights[*x]).then(x.cmp(y)));
    let mesh = Mesh { places, order, weights, everyone };
    let slabs: [Vec<Span>; 3] = core::array::from_fn(|side| mesh.slabs(side, lengths[side]));
    for at in mesh.all() {
        let cells = Rect::new(slabs[0][at[0]], slabs[1][at[1]]);
        let part = Cells3 { cells, steps: slabs[2][at[2]] };
        if !part.is_empty() {
            result[mesh.machine(at)].push(part);
        }
    }
    result
}
