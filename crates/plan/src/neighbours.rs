//! Neighbours: which members of a plan are introduced to each other, so that they can relay panels.
//!
//! Place in the flow: after the plan. The primary's shell introduces these pairs before the product begins, and the
//! simulator gives them links. The schedule relays panels only between neighbours.
//!
//! Invariants: a pair is named once, with the lower number first, and no member is in more pairs than the limit. With no more
//! members than the limit every pair that can link is named: stolen work may need panels of any member. With more, only pairs
//! that may need the same panels are. A pair that could be named is missing only if one of the two has all its neighbours.
//!
//! Deliberately absent: which of the two dials, and links that fail.

use crate::Member;
use alloc::vec;
use alloc::vec::Vec;

/// The pairs of members that are introduced to each other, at most `neighbours_max` for each. `can_link` tells whether two
/// members can have a link; it is called once for each pair that is wanted.
pub fn neighbour_pairs(
    members: &[Member],
    neighbours_max: usize,
    mut can_link: impl FnMut(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let are_many = members.len() > neighbours_max;
    let mut counts = vec![0; members.len()];
    let mut pairs = Vec::new();
    for (second, other) in members.iter().enumerate() {
        for (first, one) in members.iter().enumerate().take(second) {
            let is_full = counts[first] >= neighbours_max || counts[second] >= neighbours_max;
            if is_full || are_many && !one.may_share(other) || !can_link(first, second) {
                continue;
            }
            counts[first] += 1;
            counts[second] += 1;
            pairs.push((first, second));
        }
    }
    pairs
}

/// The neighbours of each of `count` members, in the order of the pairs.
pub fn neighbours_of_each(pairs: &[(usize, usize)], count: usize) -> Vec<Vec<usize>> {
    let mut neighbours = vec![Vec::new(); count];
    for (first, second) in pairs {
        neighbours[*first].push(*second);
        neighbours[*second].push(*first);
    }
    neighbours
}
