//! Boxes of C and k: by halving the longest side (CARMA), and by a mesh of equal places.

use super::Seat;
use super::partition::apportion;
use crate::Region;
use bramble_matrix::{Rect, Span};

/// Cells of a region and steps of k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cells3 {
    pub(crate) cells: Rect,
    pub(crate) steps: Span,
}

impl Cells3 {
    fn is_empty(&self) -> bool {
        self.cells.rows.is_empty() || self.cells.cols.is_empty() || self.steps.is_empty()
    }

    fn whole(region: &Region) -> Self {
        Self { cells: region.cells(), steps: Span::new(0, region.steps()) }
    }

    /// The parts before and from `at` cells (or steps) in direction `side`.
    fn split(self, side: usize, at: u64) -> (Self, Self) {
        let cut = |span: Span| (Span::new(span.start, span.start + at), Span::new(span.start + at, span.end));
        let (rows, cols) = (self.cells.rows, self.cells.cols);
        match side {
            0 => {
                let (a, b) = cut(rows);
                (Self { cells: Rect::new(a, cols), ..self }, Self { cells: Rect::new(b, cols), ..self })
            }
            1 => {
                let (a, b) = cut(cols);
                (Self { cells: Rect::new(rows, a), ..self }, Self { cells: Rect::new(rows, b), ..self })
            }
            _ => {
                let (a, b) = cut(self.steps);
                (Self { steps: a, ..self }, Self { steps: b, ..self })
            }
        }
    }

    /// Lengths in cells and steps, and in elements.
    fn lengths(&self, region: &Region) -> [(u64, u64); 3] {
        let q = region.q();
        [
            (self.cells.rows.len(), region.grid.rows_of(self.cells.rows) * q),
            (self.cells.cols.len(), region.grid.cols_of(self.cells.cols) * q),
            (self.steps.len(), region.depth_of(self.steps)),
        ]
    }
}

/// The box of each seat by recursive halving of the longest of m, n and k, machines and box in proportion (Demmel,
/// Eliahu, Fox, Kamil, Lipshitz, Schwartz, Spillinger, *Communication-optimal parallel recursive rectangular matrix
/// multiplication*, IPDPS 2013). A machine with more threads than its box has cells gets parts of k, one a thread.
pub(crate) fn cuboid(region: &Region, seats: &[Seat]) -> Vec<Vec<Cells3>> {
    let mut order: Vec<usize> = (0..seats.len()).filter(|i| seats[*i].weight > 0.0).collect();
    order.sort_by(|a, b| seats[*b].weight.total_cmp(&seats[*a].weight).then(a.cmp(b)));
    let mut result = vec![Vec::new(); seats.len()];
    let mut open = vec![(Cells3::whole(region), order)];
    while let Some((part, members)) = open.pop() {
        match members[..] {
            [] => {}
            _ if part.is_empty() => {}
            [seat] => result[seat] = for_threads(part, seats[seat].threads),
            _ => {
                let (left, right) = halves(&members, seats);
                let weight = |m: &[usize]| m.iter().map(|i| seats[*i].weight).sum::<f64>();
                let sides = part.lengths(region);
                // The longest side that has something to cut; the earlier one of equal sides.
                let side = (0..3).filter(|s| sides[*s].0 > 1).max_by_key(|s| (sides[*s].1, 2 - s));
                let Some(side) = side else {
                    result[members[0]] = vec![part];
                    continue;
                };
                let cells = apportion(sides[side].0, &[weight(&left), weight(&right)]);
                let (a, b) = part.split(side, cells[0]);
                open.push((b, right));
                open.push((a, left));
            }
        }
    }
    result
}

/// Members, fastest first, in two groups of about equal weight and, where all are equal, equal number.
fn halves(members: &[usize], seats: &[Seat]) -> (Vec<usize>, Vec<usize>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let (mut weight_left, mut weight_right) = (0.0, 0.0);
    for member in members {
        if weight_left <= weight_right {
            weight_left += seats[*member].weight;
            left.push(*member);
        } else {
            weight_right += seats[*member].weight;
            right.push(*member);
        }
    }
    (left, right)
}

/// A machine's box in parts of k, where it has fewer cells than threads.
fn for_threads(part: Cells3, threads: u32) -> Vec<Cells3> {
    let cells = part.cells.rows.len() * part.cells.cols.len();
    let parts = (u64::from(threads) / cells.max(1)).clamp(1, part.steps.len().max(1));
    let each = part.steps.len().div_ceil(parts);
    let spans = (0..parts).map(|p| {
        let start = (part.steps.start + p * each).min(part.steps.end);
        Span::new(start, (start + each).min(part.steps.end))
    });
    spans.filter(|s| !s.is_empty()).map(|steps| Cells3 { steps, ..part }).collect()
}

/// A mesh of a × b × c places over rows, columns and steps. The machines take places in turn; the lengths of a slab
/// are in proportion to the speed that is in it. With fewer places than machines the last machines get none.
pub(crate) fn mesh(region: &Region, weights: &[f64], places: [u32; 3]) -> Vec<Vec<Cells3>> {
    let whole = Cells3::whole(region);
    let lengths = whole.lengths(region).map(|l| l.0);
    let count = |side: usize| u64::from(places[side]).min(lengths[side].max(1)) as usize;
    let (a, b, c) = (count(0), count(1), count(2));
    let mut result = vec![Vec::new(); weights.len()];
    if weights.is_empty() || whole.is_empty() {
        return result;
    }
    // Fast machines stand together in a row of the mesh, so that rows can be high where they are fast.
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|x, y| weights[*y].total_cmp(&weights[*x]).then(x.cmp(y)));
    let machine = |i: usize, j: usize, l: usize| order[((i * b + j) * c + l) % order.len()];
    // How many places the machine that stands at a place has.
    let places_of = |place: usize| {
        let (each, more) = (a * b * c / order.len(), a * b * c % order.len());
        (each + usize::from(place % order.len() < more)) as f64
    };
    let speed = |i: usize, j: usize, l: usize| weights[machine(i, j, l)] / places_of((i * b + j) * c + l);
    let slab = |n: usize, of: &dyn Fn(usize) -> f64, side: usize| {
        apportion(lengths[side], &(0..n).map(of).collect::<Vec<f64>>())
    };
    let all = |f: &dyn Fn(usize, usize) -> f64, x: usize, y: usize| -> f64 {
        (0..x).flat_map(|p| (0..y).map(move |q| (p, q))).map(|(p, q)| f(p, q)).sum()
    };
    let rows = slab(a, &|i| all(&|j, l| speed(i, j, l), b, c), 0);
    let cols = slab(b, &|j| all(&|i, l| speed(i, j, l), a, c), 1);
    let steps = slab(c, &|l| all(&|i, j| speed(i, j, l), a, b), 2);
    let spans = |lengths: &[u64]| -> Vec<Span> {
        let mut at = 0;
        lengths
            .iter()
            .map(|len| {
                at += len;
                Span::new(at - len, at)
            })
            .collect()
    };
    let (rows, cols, steps) = (spans(&rows), spans(&cols), spans(&steps));
    for (i, down) in rows.iter().enumerate() {
        for (j, across) in cols.iter().enumerate() {
            for (l, deep) in steps.iter().enumerate() {
                let part = Cells3 { cells: Rect::new(*down, *across), steps: *deep };
                if !part.is_empty() {
                    result[machine(i, j, l)].push(part);
                }
            }
        }
    }
    result
}
