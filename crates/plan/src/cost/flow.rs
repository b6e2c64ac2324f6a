//! How machines that want unequal amounts share the primary's one link: which bytes each has received at which
//! time.
//!
//! Place in the flow: between bytes and seconds. A machine can start early with the bytes that it gets early; a
//! machine that wants many bytes gets most of them late, after the others, and still has to compute with these.
//!
//! Invariants: slow links are fully used, and the others share the rest evenly; the primary's link is full until
//! only slow links are left; the bytes of a machine only grow.

use alloc::vec;
use alloc::vec::Vec;

/// Most moments that are computed: machines that finish at about the same time share one.
const MOMENTS_MAX: usize = 24;

/// The bytes of each machine, at the moments when some of them have received everything.
pub(super) struct SharedFlow {
    bytes: Vec<f64>,
    /// Time, and the bytes that each machine has received by then.
    moments: Vec<(f64, Vec<f64>)>,
}

impl SharedFlow {
    /// `bytes` per machine, over links with the given rates (`None`: no link), behind the primary's link.
    pub(super) fn new(links: &[Option<f64>], bytes: &[f64], primary: f64) -> Self {
        let mut order: Vec<usize> = (0..bytes.len()).filter(|i| links[*i].is_some()).collect();
        let cap = |i: usize| links[i].unwrap_or(f64::INFINITY);
        order.sort_by(|a, b| cap(*a).total_cmp(&cap(*b)).then(a.cmp(b)));
        order.retain(|i| bytes[*i] > 0.0 && cap(*i) > 0.0);
        let (mut now, mut got) = (0.0, vec![0.0; bytes.len()]);
        let mut moments = vec![(now, got.clone())];
        let all = order.len();
        while !order.is_empty() {
            let rates = fair(&order, &cap, primary);
            // The first machine to finish, with the next ones as needed to limit the number of moments.
            let mut ends: Vec<f64> =
                order.iter().zip(&rates).map(|(i, r)| (bytes[*i] - got[*i]) / r).collect();
            ends.sort_by(f64::total_cmp);
            let together = (all / MOMENTS_MAX).min(ends.len() - 1);
            let step = ends[together].max(ends[0]);
            now += step;
            for (i, rate) in order.iter().zip(&rates) {
                got[*i] = (got[*i] + rate * step).min(bytes[*i]);
            }
            order.retain(|i| got[*i] < bytes[*i] * (1.0 - 1e-9));
            moments.push((now, got.clone()));
        }
        Self { bytes: bytes.to_vec(), moments }
    }

    /// Seconds until a machine has received all of its bytes.
    pub(super) fn end_s(&self, machine: usize) -> f64 {
        let all = self.bytes[machine] * (1.0 - 1e-9);
        self.moments.iter().find(|m| m.1[machine] >= all).map_or(0.0, |m| m.0)
    }

    /// Seconds until a machine has done `work_s` of work that uses its bytes evenly, in order.
    pub(super) fn done_s(&self, machine: usize, work_s: f64) -> f64 {
        let all = self.bytes[machine].max(1.0);
        let after = |m: &(f64, Vec<f64>)| m.0 + work_s * (1.0 - m.1[machine] / all).max(0.0);
        let end = self.end_s(machine);
        self.moments.iter().filter(|m| m.0 <= end).map(after).fold(work_s, f64::max)
    }
}

/// The rate of each of some machines on the primary's link, in order of their links.
fn fair(order: &[usize], cap: &dyn Fn(usize) -> f64, primary: f64) -> Vec<f64> {
    let (mut left, mut sharers) = (primary, order.len());
    let share = |i: &usize| {
        let mine = cap(*i).min(left / sharers as f64);
        left -= mine;
        sharers -= 1;
        mine
    };
    order.iter().map(share).collect()
}

/// Seconds until all items, (start time, bytes) each, have passed a link: from some moment on the link is always
/// busy with the items from there on.
pub(super) fn queue_s(items: impl Iterator<Item = (f64, f64)>, bytes_per_s: f64) -> f64 {
    let mut items: Vec<(f64, f64)> = items.filter(|i| i.1 > 0.0).collect();
    items.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut after = 0.0;
    items.into_iter().fold(0.0, |longest, (ready_s, bytes)| {
        after += bytes / bytes_per_s;
        longest.max(ready_s + after)
    })
}

/// The rate of each member when all use the primary's link at once; infinite without a link.
pub(super) fn first_rates(links: &[Option<f64>], primary: f64) -> Vec<f64> {
    let cap = |at: usize| links[at].unwrap_or(f64::INFINITY);
    let mut order: Vec<usize> = (0..links.len()).filter(|at| links[*at].is_some()).collect();
    order.sort_by(|a, b| cap(*a).total_cmp(&cap(*b)).then(a.cmp(b)));
    let mut rates = vec![f64::INFINITY; links.len()];
    for (at, rate) in order.iter().zip(fair(&order, &cap, primary)) {
        rates[*at] = rate;
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(is: f64, should: f64) {
        assert!((is - should).abs() < 1e-6, "{is} instead of {should}");
    }

    #[test]
    fn who_wants_more_gets_it_late() {
        let flow = SharedFlow::new(&[Some(10.0), None, Some(10.0)], &[10.0, 99.0, 30.0], 10.0);
        near(flow.end_s(0), 2.0);
        near(flow.end_s(1), 0.0);
        near(flow.end_s(2), 4.0);
        // A third of the bytes after two seconds: two thirds of the work are left.
        near(flow.done_s(2, 6.0), 6.0);
        near(flow.done_s(2, 3.0), 4.0);
        near(flow.done_s(1, 5.0), 5.0);
        let late = SharedFlow::new(&[Some(10.0), Some(10.0)], &[90.0, 10.0], 10.0);
        near(late.done_s(0, 9.0), 2.0 + 8.0);
    }

    #[test]
    fn slow_links_are_filled_and_many_machines_are_done_together() {
        let flow = SharedFlow::new(&[Some(1.0), Some(10.0), Some(10.0)], &[10.0, 45.0, 45.0], 10.0);
        (0..3).for_each(|i| near(flow.end_s(i), 10.0));
        let bytes: Vec<f64> = (0..500).map(|i| 100.0 + f64::from(i)).collect();
        let flow = SharedFlow::new(&vec![Some(10.0); 500], &bytes, 100.0);
        assert!(flow.moments.len() <= 60, "{}", flow.moments.len());
        let all: f64 = bytes.iter().sum();
        assert!((flow.end_s(499) / (all / 100.0) - 1.0).abs() < 0.1, "{} {}", flow.end_s(499), all / 100.0);
    }

    #[test]
    fn what_comes_home_waits_for_what_is_ready_before_it() {
        let queue = |items: &[(f64, f64)]| queue_s(items.iter().copied(), 10.0);
        assert_eq!(queue(&[(1.0, 10.0), (9.0, 10.0)]), 10.0);
        assert_eq!(queue(&[(1.0, 100.0), (9.0, 10.0)]), 12.0);
        assert_eq!(queue(&[(3.0, 0.0)]), 0.0);
    }
}
