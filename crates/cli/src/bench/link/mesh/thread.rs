//! Ends that are tasks of one event loop, as this machine's own threads are in a product.

use super::{End, Links};
use bramble_link::thread_pair;

/// So many ends, each linked to each other.
pub(crate) fn ends(ends: usize) -> Vec<End> {
    let mut all: Vec<Links> = (0..ends).map(|_| (0..ends).map(|_| None).collect()).collect();
    for one in 0..ends {
        for other in one + 1..ends {
            let (left, right) = thread_pair(&format!("end {one}"), &format!("end {other}"));
            all[one][other] = Some(left);
            all[other][one] = Some(right);
        }
    }
    all.into_iter().enumerate().map(|(rank, links)| End::new(rank, links)).collect()
}
