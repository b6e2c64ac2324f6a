//! Compute threads: one a core, pinned, all taking tasks greedily from one queue.
//!
//! Invariants: a task runs on one thread, start to end; a thread that finishes says so at once; tasks that
//! nobody has begun are dropped when the pool is. A task that panics is reported, never lost.
//!
//! Deliberately absent: any order but first come first served, and any knowledge of jobs and matrices.

use bramble_schedule::message::ThreadReport;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Work for a thread. What it returns goes to the pool's owner.
pub(crate) type Task<R> = Box<dyn FnOnce() -> R + Send>;

struct Shared<R> {
    queue: Mutex<(VecDeque<Task<R>>, bool)>,
    more: Condvar,
    accounts: Vec<(AtomicU64, AtomicU64)>,
}

/// A set of compute threads; dropping it lets each finish what it is doing and end.
pub(crate) struct Pool<R> {
    shared: Arc<Shared<R>>,
}

/// How a task ended.
pub(crate) type Ended<R> = Result<R, String>;

impl<R: Send + 'static> Pool<R> {
    /// Starts `threads` threads, each calling `done` with what its tasks give. `pin_from` is the first of
    /// the allowed cores to use.
    pub(crate) fn start(
        threads: usize,
        pin_from: Option<usize>,
        done: impl Fn(Ended<R>) + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let accounts = (0..threads).map(|_| Default::default()).collect();
        let queue = Mutex::new((VecDeque::new(), false));
        let pool = Self { shared: Arc::new(Shared { queue, more: Condvar::new(), accounts }) };
        for index in 0..threads {
            let (shared, done) = (pool.shared.clone(), done.clone());
            std::thread::Builder::new().name(format!("compute-{index}")).spawn(move || {
                if let Some(first) = pin_from {
                    pin(first + index);
                }
                work(&shared, index, &done);
            })?;
        }
        Ok(pool)
    }

    /// Queues a task.
    pub(crate) fn submit(&self, task: Task<R>) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.0.push_back(task);
        self.shared.more.notify_one();
    }

    /// What each thread has done so far.
    pub(crate) fn accounts(&self) -> Vec<ThreadReport> {
        let read = |(jobs, busy): &(AtomicU64, AtomicU64)| ThreadReport {
            jobs: jobs.load(Ordering::Relaxed),
            busy_us: busy.load(Ordering::Relaxed) / 1000,
        };
        self.shared.accounts.iter().map(read).collect()
    }
}

impl<R> Drop for Pool<R> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.0.clear();
        queue.1 = true;
        self.shared.more.notify_all();
    }
}

fn work<R>(shared: &Shared<R>, index: usize, done: &impl Fn(Ended<R>)) {
    loop {
        let task = {
            let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                if queue.1 {
                    return;
                }
                if let Some(task) = queue.0.pop_front() {
                    break task;
                }
                queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        };
        let began = Instant::now();
        // A bug in a kernel must end the session with a name, not leave the primary waiting.
        let result = catch_unwind(AssertUnwindSafe(task)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
        });
        let (jobs, busy) = &shared.accounts[index];
        jobs.fetch_add(1, Ordering::Relaxed);
        busy.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        done(result);
    }
}

/// Binds the calling thread to the `index`-th of the cores that it may use. Not being able to is no error:
/// the thread then runs wherever the system puts it.
fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    let _ = sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_task_is_done_and_a_panic_is_reported() {
        let (tx, rx) = mpsc::channel();
        let pool = Pool::start(3, Some(0), move |r: Ended<usize>| tx.send(r).unwrap()).unwrap();
        for i in 0..100 {
            pool.submit(Box::new(move || if i == 50 { panic!("task {i}") } else { i }));
        }
        let mut results: Vec<Ended<usize>> = rx.iter().take(100).collect();
        results.sort();
        let want: Vec<Ended<usize>> =
            (0..100).filter(|i| *i != 50).map(Ok).chain([Err("task 50".to_owned())]).collect();
        assert_eq!(results, want);
        assert_eq!(pool.accounts().iter().map(|a| a.jobs).sum::<u64>(), 100);
    }
}
