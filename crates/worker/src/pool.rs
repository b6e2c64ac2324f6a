//! Compute threads: one a core, pinned, all taking tasks greedily from one queue.
//!
//! Invariants: the task with the least number is taken first; a task runs on one thread, start to end; where asked to,
//! threads give way to the one that moves bytes; tasks that nobody has begun are dropped when the pool is. A task that
//! panics is reported, never lost. A thread is started when there is work for it: small products need few.
//!
//! What is done is said at once, unless brief tasks follow it: then a thread keeps up to `KEPT_MAX` results, for `KEPT_FOR`
//! and one brief task more at the most. It keeps none while it waits, while another thread waits, during a task that is
//! not brief, or when it took the last task that there was. To be told of each addition by itself would cost the owner
//! more than the addition: it is woken for each, on a core that computes.
//!
//! Deliberately absent: any knowledge of jobs and matrices.

use bramble_link::thread_cpu_ns;
use bramble_schedule::message::ThreadReport;
use bramble_schedule::worker::{Turn, Turns};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How threads sit on their machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hosting {
    /// The first of the allowed cores to pin them to; `None` does not pin.
    pub(crate) pin_from: Option<usize>,
    /// Whether whoever else of this process wants a processor has it first.
    pub(crate) gives_way: bool,
}

/// Work for a thread. What it returns goes to the pool's owner.
pub(crate) type Task<R> = Box<dyn FnOnce() -> R + Send>;

/// Results that a thread keeps at most before it says them.
pub(crate) const KEPT_MAX: usize = 16;
/// For how long it keeps them before it takes another task.
const KEPT_FOR: Duration = Duration::from_millis(1);

/// How long a task takes, as far as that is known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Well below a millisecond.
    Brief,
    /// Any time.
    Any,
}

/// What waits, and who is there to take it.
struct Queue<R> {
    tasks: Turns<(Task<R>, Length)>,
    started: usize,
    idle: usize,
    closed: bool,
}

struct Shared<R> {
    queue: Mutex<Queue<R>>,
    more: Condvar,
    accounts: Vec<Account>,
    /// Whether the processor time of tasks is read, too.
    reads_cpu: bool,
    hosting: Hosting,
    done: Box<dyn Fn(Vec<Ended<R>>) + Send + Sync>,
}

/// A set of compute threads; dropping it lets each finish what it is doing and end.
pub(crate) struct Pool<R> {
    shared: Arc<Shared<R>>,
}

/// How a task ended, or its panic; where and when it ran.
pub(crate) struct Ended<R> {
    pub(crate) result: Result<R, String>,
    pub(crate) thread: usize,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

/// What a thread has done so far, nanoseconds.
#[derive(Default)]
struct Account {
    began: OnceLock<Instant>,
    jobs: AtomicU64,
    busy_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Account {
    fn report(&self) -> ThreadReport {
        let us = |ns: &AtomicU64| ns.load(Ordering::Relaxed) / 1000;
        let busy_us = us(&self.busy_ns);
        let since_us = self.began.get().map_or(0, |t| t.elapsed().as_micros() as u64);
        let idle_us = since_us.saturating_sub(busy_us);
        ThreadReport { jobs: self.jobs.load(Ordering::Relaxed), busy_us, idle_us, cpu_us: us(&self.cpu_ns) }
    }
}

impl<R: Send + 'static> Pool<R> {
    /// A pool of up to `threads` threads, each calling `done` with what its tasks give, in the order in which they ended
    /// on it; `reads_cpu` says that accounts tell of processor time.
    pub(crate) fn new(
        threads: usize,
        hosting: Hosting,
        reads_cpu: bool,
        done: impl Fn(Vec<Ended<R>>) + Send + Sync + 'static,
    ) -> Self {
        let accounts = (0..threads).map(|_| Default::default()).collect();
        let queue = Mutex::new(Queue { tasks: Turns::default(), started: 0, idle: 0, closed: false });
        let done = Box::new(done);
        Self { shared: Arc::new(Shared { queue, more: Condvar::new(), accounts, reads_cpu, hosting, done }) }
    }

    /// Queues a task in its turn, and starts a thread for it where none is idle and one may be. An error where the
    /// system refuses the first thread.
    pub(crate) fn submit(&self, task: Task<R>, turn: Turn, length: Length) -> std::io::Result<()> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.put((task, length), turn);
        if queue.idle < queue.tasks.count() && queue.started < self.shared.accounts.len() {
            let (shared, index) = (self.shared.clone(), queue.started);
            let thread = std::thread::Builder::new().name(format!("compute-{index}"));
            match thread.spawn(move || work(&shared, index)) {
                Ok(_) => queue.started += 1,
                Err(e) if queue.started == 0 => return Err(e),
                // The others will do it.
                Err(_) => {}
            }
        }
        self.shared.more.notify_one();
        Ok(())
    }

    /// What each thread has done so far.
    pub(crate) fn accounts(&self) -> Vec<ThreadReport> {
        self.shared.accounts.iter().map(Account::report).collect()
    }
}

impl<R> Drop for Pool<R> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.clear();
        queue.closed = true;
        self.shared.more.notify_all();
    }
}

/// What a thread has done and not said.
struct Kept<R> {
    ended: Vec<Ended<R>>,
    since: Option<Instant>,
}

impl<R> Kept<R> {
    fn keep(&mut self, ended: Ended<R>, now: Instant) {
        self.ended.push(ended);
        self.since.get_or_insert(now);
    }

    /// Whether it may be kept while such a task runs.
    fn may_stay(&self, length: Length) -> bool {
        let is_young = self.since.is_none_or(|since| since.elapsed() < KEPT_FOR);
        length == Length::Brief && is_young && self.ended.len() < KEPT_MAX
    }

    fn say(&mut self, shared: &Shared<R>) {
        if self.since.take().is_some() {
            (shared.done)(std::mem::take(&mut self.ended));
        }
    }
}

/// The next task, `None` when the pool is gone; before, or before waiting for it, what was kept and may not stay is said.
fn next<R>(shared: &Shared<R>, kept: &mut Kept<R>) -> Option<Task<R>> {
    let lock = || shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut queue = lock();
    loop {
        if queue.closed {
            return None;
        }
        if let Some((task, length)) = queue.tasks.take() {
            let has_more = queue.tasks.count() > 0 && queue.idle == 0;
            drop(queue);
            if !has_more || !kept.may_stay(length) {
                kept.say(shared);
            }
            return Some(task);
        }
        if kept.since.is_some() {
            drop(queue);
            kept.say(shared);
            queue = lock();
            continue;
        }
        queue.idle += 1;
        queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

fn work<R>(shared: &Shared<R>, index: usize) {
    if let Some(first) = shared.hosting.pin_from {
        pin(first + index);
    }
    if cfg!(target_os = "linux") && shared.hosting.gives_way {
        // Of this thread alone there; elsewhere it would be the process. Not being able to is no error: then all take turns.
        let _ = rustix::process::nice(GIVES_WAY_BY);
    }
    let account = &shared.accounts[index];
    account.began.get_or_init(Instant::now);
    let mut kept = Kept { ended: Vec::new(), since: None };
    while let Some(task) = next(shared, &mut kept) {
        let cpu_before = if shared.reads_cpu { thread_cpu_ns() } else { 0 };
        let began = Instant::now();
        // A bug in a kernel must end the session with a name, not leave the primary waiting.
        let result = catch_unwind(AssertUnwindSafe(task)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
        });
        let took = began.elapsed();
        account.jobs.fetch_add(1, Ordering::Relaxed);
        account.busy_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        if shared.reads_cpu {
            account.cpu_ns.fetch_add(thread_cpu_ns() - cpu_before, Ordering::Relaxed);
        }
        kept.keep(Ended { result, thread: index, began, took }, began + took);
    }
}

/// How much nicer a thread is that gives way: when both want a processor it has a quarter of it.
const GIVES_WAY_BY: i32 = 5;

/// Binds the calling thread to the `index`-th of the cores that it may use. Not being able to is no error:
/// the thread then runs wherever the system puts it.
#[cfg(target_os = "linux")]
fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let cores = allowed_cores();
    if cores.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    one.set(cores[index % cores.len()]);
    let _ = sched_setaffinity(None, &one);
}

/// The numbers of the cores that this process may use; none where the system does not say.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// How many cores there are to pin threads to; 0 where that is not known, or not done.
#[cfg(target_os = "linux")]
pub fn pinnable_cores() -> usize {
    allowed_cores().len()
}

/// Other systems put threads where they want.
#[cfg(not(target_os = "linux"))]
pub fn pinnable_cores() -> usize {
    0
}

/// Other systems put threads where they want.
#[cfg(not(target_os = "linux"))]
fn pin(_index: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_task_is_done_and_a_panic_is_reported() {
        let (tx, rx) = mpsc::channel();
        let hosting = Hosting { pin_from: Some(0), gives_way: true };
        let pool = Pool::new(3, hosting, true, move |r: Vec<Ended<usize>>| tx.send(r).unwrap());
        for i in 0..100 {
            let length = if i % 3 == 0 { Length::Any } else { Length::Brief };
            let task = Box::new(move || if i == 50 { panic!("task {i}") } else { i });
            pool.submit(task, Turn(0), length).unwrap();
        }
        let ended: Vec<Ended<usize>> = rx.iter().flatten().take(100).collect();
        let accounts = pool.accounts();
        for (thread, account) in accounts.iter().enumerate() {
            let mine = || ended.iter().filter(|e| e.thread == thread);
            assert_eq!(mine().count() as u64, account.jobs);
            let busy: Duration = mine().map(|e| e.took).sum();
            assert!(busy.as_micros().abs_diff(u128::from(account.busy_us)) <= 1);
        }
        let mut results: Vec<Result<usize, String>> = ended.into_iter().map(|e| e.result).collect();
        results.sort();
        let want: Vec<Result<usize, String>> =
            (0..100).filter(|i| *i != 50).map(Ok).chain([Err("task 50".to_owned())]).collect();
        assert_eq!(results, want);
        assert_eq!(accounts.iter().map(|a| a.jobs).sum::<u64>(), 100);
    }

    /// One thread and a task that holds it while the others are put in: what comes after it is decided by the queue alone.
    fn after_a_gate(tasks: &[(usize, Turn, Length)]) -> Vec<Vec<usize>> {
        let (tx, rx) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        let (open, gate) = mpsc::channel::<()>();
        let done = move |r: Vec<Ended<usize>>| tx.send(r).unwrap();
        let pool = Pool::new(1, Hosting::default(), false, done);
        let held = move || begin.send(()).map_or(99, |()| gate.recv().map_or(99, |()| 0));
        pool.submit(Box::new(held), Turn(0), Length::Any).unwrap();
        begun.recv().unwrap();
        for (i, turn, length) in tasks.iter().copied() {
            pool.submit(Box::new(move || i), turn, length).unwrap();
        }
        open.send(()).unwrap();
        let mut batches: Vec<Vec<usize>> = Vec::new();
        while batches.iter().flatten().count() < tasks.len() + 1 {
            batches.push(rx.recv().unwrap().into_iter().map(|ended| ended.result.unwrap()).collect());
        }
        batches
    }

    #[test]
    fn the_least_number_is_taken_first_and_of_equal_ones_what_came_first() {
        let turns = [(5, Turn(7)), (3, Turn(2)), (4, Turn(2)), (1, Turn(0)), (2, Turn(1))];
        for length in [Length::Any, Length::Brief] {
            let order = after_a_gate(&turns.map(|(i, turn)| (i, turn, length)));
            assert_eq!(order.concat(), [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn results_are_kept_over_brief_tasks_only_and_never_many_of_them() {
        let all = |length: fn(usize) -> Length| -> Vec<(usize, Turn, Length)> {
            (1..=60).map(|i| (i, Turn(0), length(i))).collect()
        };
        let long = after_a_gate(&all(|_| Length::Any));
        assert!(long.iter().all(|batch| batch.len() == 1), "{long:?}");
        let brief = after_a_gate(&all(|_| Length::Brief));
        assert!(brief.iter().all(|batch| batch.len() <= KEPT_MAX), "{brief:?}");
        assert_eq!(brief.concat(), (0..=60).collect::<Vec<_>>());
        // A task that may take long begins with nothing kept: what came before it is not in its batch.
        let mixed = after_a_gate(&all(|i| if i.is_multiple_of(4) { Length::Any } else { Length::Brief }));
        for i in (4..=60).step_by(4) {
            assert!(mixed.iter().any(|batch| batch[0] == i), "{i}: {mixed:?}");
        }
    }

    #[test]
    fn what_has_been_kept_long_enough_is_said_before_the_next_task() {
        let mut kept = Kept { ended: Vec::new(), since: None };
        let now = Instant::now();
        assert!(kept.may_stay(Length::Brief));
        let ended = || Ended { result: Ok(1), thread: 0, began: now, took: Duration::ZERO };
        kept.keep(ended(), now);
        std::thread::sleep(KEPT_FOR);
        kept.keep(ended(), Instant::now());
        assert!(!kept.may_stay(Length::Brief));
    }
}
