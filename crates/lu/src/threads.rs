//! Threads that share a list of items.
//!
//! Invariant: with one thread, or one item, the calling thread does everything.

use std::sync::{Mutex, PoisonError};

/// Calls `work` with each item on `threads` threads, and returns the results in the order of the items.
pub(crate) fn each<I: Send, R: Send>(threads: usize, items: Vec<I>, work: impl Fn(I) -> R + Sync) -> Vec<R> {
    let helpers = threads.min(items.len()).saturating_sub(1);
    if helpers == 0 {
        return items.into_iter().map(work).collect();
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(Vec::new());
    // A panic of a thread ends the scope; neither list is ever in an inconsistent state.
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take = || {
        while let Some((at, item)) = next() {
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    std::thread::scope(|scope| {
        (0..helpers).for_each(|_| drop(scope.spawn(take)));
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for threads in [1, 2, 5] {
            assert_eq!(
                each(threads, (0..40).collect(), |i: usize| i * i),
                (0..40).map(|i| i * i).collect::<Vec<_>>()
            );
        }
    }
}
