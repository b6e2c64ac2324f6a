//! The ends of link `thread`: tasks of one event loop, as the primary's own threads are in a product.

use super::{MeshEnd, each_with_each};
use bramble_link::thread_pair;
use std::convert::Infallible;

/// Creates `ends` ends, each linked to all others.
pub(crate) fn ends(ends: usize) -> Vec<MeshEnd> {
    let pair = |one, other| Ok(thread_pair(&format!("end {one}"), &format!("end {other}")));
    let all = match each_with_each::<_, Infallible>(ends, pair) {
        Ok(all) => all,
        Err(never) => match never {},
    };
    all.into_iter().enumerate().map(|(rank, links)| MeshEnd::new(rank, links)).collect()
}
