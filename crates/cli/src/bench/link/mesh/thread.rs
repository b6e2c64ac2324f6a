//! Ends that are tasks of one event loop, as this machine's own threads are in a product.

use super::{End, each_with_each};
use bramble_link::thread_pair;
use std::convert::Infallible;

/// So many ends, each linked to each other.
pub(crate) fn ends(ends: usize) -> Vec<End> {
    let pair = |one, other| Ok(thread_pair(&format!("end {one}"), &format!("end {other}")));
    let all = match each_with_each::<_, Infallible>(ends, pair) {
        Ok(all) => all,
        Err(never) => match never {},
    };
    all.into_iter().enumerate().map(|(rank, links)| End::new(rank, links)).collect()
}
