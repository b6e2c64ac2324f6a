//! Compute threads: one for each core, pinned, all taking tasks greedily from one queue.
//!
//! Invariants: the task of highest priority (least number) is taken first; a task runs on one thread, start to end; if
//! configured, compute threads yield to the thread that moves bytes; dropping the pool drops tasks that have not begun. A
//! task that panics is reported, never lost. A thread is started when there is work for it: small products need few.
//!
//! A pool may serve one session after another, with the same threads. A session's tasks that have not begun are dropped with
//! it; the result of one that still runs goes to the session that submitted it, which no longer reads it.
//!
//! A result is reported at once, unless brief tasks follow: then a thread collects up to `UNREPORTED_MAX` results, for at
//! most `UNREPORTED_FOR` and one more brief task. It reports all before it waits, while another thread waits, before a task
//! that is not brief, and when it took the last task in the queue. Reporting each addition by itself would cost the session
//! more than the addition: its event loop would be woken for each, on a core that computes.
//!
//! Deliberately absent: any knowledge of jobs and matrices.

use bramble_link::thread_cpu_ns;
use bramble_schedule::worker::{Priority, PriorityQueue, TaskLength};
use bramble_wire::limits::BRIEF_ADDITIONS_PER_THREAD;
use bramble_wire::message::ThreadReport;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How compute threads are placed on the machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadPlacement {
    /// The first core to pin threads to, counted among the allowed ones; `None` does not pin.
    pub(crate) pin_from: Option<usize>,
    /// Whether other threads of this process have priority.
    pub(crate) gives_way: bool,
}

/// Work for a thread. Its result goes to the pool's owner.
pub(crate) type ComputeTask<R> = Box<dyn FnOnce() -> R + Send>;

/// Most results that a thread collects before it reports them.
const UNREPORTED_MAX: usize = 16;
/// How long it collects before it takes another task.
const UNREPORTED_FOR: Duration = Duration::from_millis(1);

// Additions that a thread does before it reports, and as many again while the event loop is busy.
const _: () = assert!(BRIEF_ADDITIONS_PER_THREAD >= 2 * UNREPORTED_MAX);

/// Waiting tasks, and the state of the threads.
struct Queue<R> {
    /// Tasks of `session`.
    tasks: PriorityQueue<(ComputeTask<R>, TaskLength)>,
    session: Arc<PoolSession<R>>,
    started: usize,
    idle: usize,
    closed: bool,
}

struct PoolState<R> {
    queue: Mutex<Queue<R>>,
    more: Condvar,
    threads_max: usize,
    hosting: ThreadPlacement,
}

/// One session's use of the threads.
struct PoolSession<R> {
    accounts: Vec<ThreadAccount>,
    /// Whether the processor time of tasks is measured, too.
    reads_cpu: bool,
    done: Box<dyn Fn(Vec<EndedTask<R>>) + Send + Sync>,
}

/// A set of compute threads; after it is dropped, each thread ends with its current task.
pub(crate) struct ComputePool<R> {
    shared: Arc<PoolState<R>>,
}

/// Result of a task, or its panic; where and when it ran.
pub(crate) struct EndedTask<R> {
    pub(crate) result: Result<R, String>,
    pub(crate) thread: usize,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
}

/// Account of a thread so far, in nanoseconds.
#[derive(Default)]
struct ThreadAccount {
    began: OnceLock<Instant>,
    jobs: AtomicU64,
    busy_ns: AtomicU64,
    cpu_ns: AtomicU64,
}

impl ThreadAccount {
    fn report(&self) -> ThreadReport {
        let us = |ns: &AtomicU64| ns.load(Ordering::Relaxed) / 1000;
        let busy_us = us(&self.busy_ns);
        let since_us = self.began.get().map_or(0, |t| t.elapsed().as_micros() as u64);
        let idle_us = since_us.saturating_sub(busy_us);
        ThreadReport { jobs: self.jobs.load(Ordering::Relaxed), busy_us, idle_us, cpu_us: us(&self.cpu_ns) }
    }
}

impl<R: Send + 'static> ComputePool<R> {
    /// A pool of up to `threads` threads, for its first session. Each thread calls `done` with the results of its tasks, in the
    /// order in which they ended; `reads_cpu`: accounts include processor time.
    pub(crate) fn new(
        threads: usize,
        hosting: ThreadPlacement,
        reads_cpu: bool,
        done: impl Fn(Vec<EndedTask<R>>) + Send + Sync + 'static,
    ) -> Self {
        let session = Arc::new(PoolSession::new(threads, 0, reads_cpu, done));
        let queue = Queue { tasks: PriorityQueue::default(), session, started: 0, idle: 0, closed: false };
        let (queue, more) = (Mutex::new(queue), Condvar::new());
        Self { shared: Arc::new(PoolState { queue, more, threads_max: threads, hosting }) }
    }

    /// Ends the current session and begins another with the same threads, and accounts of its own.
    pub(crate) fn begin_session(
        &self,
        reads_cpu: bool,
        done: impl Fn(Vec<EndedTask<R>>) + Send + Sync + 'static,
    ) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.clear();
        queue.session = Arc::new(PoolSession::new(self.shared.threads_max, queue.started, reads_cpu, done));
    }

    /// Drops the current session's tasks that have not begun.
    pub(crate) fn end_session(&self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).tasks.clear();
    }

    /// Most threads of this pool.
    pub(crate) fn threads_max(&self) -> usize {
        self.shared.threads_max
    }

    /// Queues a task, and starts a thread for it if none is idle and the limit allows. An error if the
    /// system refuses the first thread.
    pub(crate) fn submit(
        &self,
        task: ComputeTask<R>,
        turn: Priority,
        length: TaskLength,
    ) -> std::io::Result<()> {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.put((task, length), turn);
        if queue.idle < queue.tasks.count() && queue.started < self.shared.threads_max {
            let (shared, session, index) = (self.shared.clone(), queue.session.clone(), queue.started);
            let thread = std::thread::Builder::new().name(format!("compute-{index}"));
            match thread.spawn(move || run_thread(&shared, session, index)) {
                Ok(_) => queue.started += 1,
                Err(e) if queue.started == 0 => return Err(e),
                // The threads that are running will do it.
                Err(_) => {}
            }
        }
        self.shared.more.notify_one();
        Ok(())
    }

    /// The account of each thread in this session so far.
    pub(crate) fn accounts(&self) -> Vec<ThreadReport> {
        let queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.session.accounts.iter().map(ThreadAccount::report).collect()
    }
}

impl<R> PoolSession<R> {
    /// A session in which the first `started` threads are there from its beginning.
    fn new(
        threads: usize,
        started: usize,
        reads_cpu: bool,
        done: impl Fn(Vec<EndedTask<R>>) + Send + Sync + 'static,
    ) -> Self {
        let accounts: Vec<ThreadAccount> = (0..threads).map(|_| Default::default()).collect();
        for account in accounts.iter().take(started) {
            account.began.get_or_init(Instant::now);
        }
        Self { accounts, reads_cpu, done: Box::new(done) }
    }
}

impl<R> Drop for ComputePool<R> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.tasks.clear();
        queue.closed = true;
        self.shared.more.notify_all();
    }
}

/// Results that a thread has not reported yet, all of one session.
struct UnreportedResults<R> {
    session: Arc<PoolSession<R>>,
    ended: Vec<EndedTask<R>>,
    since: Option<Instant>,
}

impl<R> UnreportedResults<R> {
    fn add(&mut self, ended: EndedTask<R>, now: Instant) {
        self.ended.push(ended);
        self.since.get_or_insert(now);
    }

    /// Whether the results may wait until a task of that length has run.
    fn may_wait(&self, length: TaskLength) -> bool {
        let is_young = self.since.is_none_or(|since| since.elapsed() < UNREPORTED_FOR);
        length == TaskLength::Brief && is_young && self.ended.len() < UNREPORTED_MAX
    }

    fn report_all(&mut self) {
        if self.since.take().is_some() {
            (self.session.done)(std::mem::take(&mut self.ended));
        }
    }

    /// Reports results of another session, if there are any.
    fn enter(&mut self, session: Arc<PoolSession<R>>) {
        if !Arc::ptr_eq(&self.session, &session) {
            self.report_all();
            self.session = session;
        }
    }
}

/// The next task, `None` after the pool was dropped; reports collected results before it waits, or that may not wait for the
/// task. Afterwards `unreported` is of the task's session.
fn next<R>(shared: &PoolState<R>, unreported: &mut UnreportedResults<R>) -> Option<ComputeTask<R>> {
    let lock = || shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    let mut queue = lock();
    loop {
        if queue.closed {
            return None;
        }
        if let Some((task, length)) = queue.tasks.take() {
            let (has_more, session) = (queue.tasks.count() > 0 && queue.idle == 0, queue.session.clone());
            drop(queue);
            if !has_more || !unreported.may_wait(length) {
                unreported.report_all();
            }
            unreported.enter(session);
            return Some(task);
        }
        if unreported.since.is_some() {
            drop(queue);
            unreported.report_all();
            queue = lock();
            continue;
        }
        queue.idle += 1;
        queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle -= 1;
    }
}

fn run_thread<R>(shared: &PoolState<R>, session: Arc<PoolSession<R>>, index: usize) {
    if let Some(first) = shared.hosting.pin_from {
        pin(first + index);
    }
    if cfg!(target_os = "linux") && shared.hosting.gives_way {
        // On Linux this affects only the calling thread, elsewhere the process. A failure only means equal priorities.
        let _ = rustix::process::nice(GIVES_WAY_BY);
    }
    session.accounts[index].began.get_or_init(Instant::now);
    let mut unreported = UnreportedResults { session, ended: Vec::new(), since: None };
    while let Some(task) = next(shared, &mut unreported) {
        let session = unreported.session.clone();
        let account = &session.accounts[index];
        account.began.get_or_init(Instant::now);
        let cpu_before = if session.reads_cpu { thread_cpu_ns() } else { 0 };
        let began = Instant::now();
        // A bug in a kernel must end the session with a message, not leave the primary waiting.
        let result = catch_unwind(AssertUnwindSafe(task)).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
        });
        let took = began.elapsed();
        account.jobs.fetch_add(1, Ordering::Relaxed);
        account.busy_ns.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        if session.reads_cpu {
            account.cpu_ns.fetch_add(thread_cpu_ns() - cpu_before, Ordering::Relaxed);
        }
        unreported.add(EndedTask { result, thread: index, began, took }, began + took);
    }
}

/// Niceness of threads that yield: when both want a processor, such a thread gets a quarter of it.
const GIVES_WAY_BY: i32 = 5;

/// Binds the calling thread to the `index`-th of the cores that it may use. A failure is no error:
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

/// The numbers of the cores that this process may use; empty if unknown.
#[cfg(target_os = "linux")]
fn allowed_cores() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// How many cores threads can be pinned to; 0 if unknown or unsupported.
#[cfg(target_os = "linux")]
pub fn pinnable_cores() -> usize {
    allowed_cores().len()
}

/// Other systems place threads themselves.
#[cfg(not(target_os = "linux"))]
pub fn pinnable_cores() -> usize {
    0
}

/// Other systems place threads themselves.
#[cfg(not(target_os = "linux"))]
fn pin(_index: usize) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn every_task_is_done_and_a_panic_is_reported() {
        let (tx, rx) = mpsc::channel();
        let hosting = ThreadPlacement { pin_from: Some(0), gives_way: true };
        let pool = ComputePool::new(3, hosting, true, move |r: Vec<EndedTask<usize>>| tx.send(r).unwrap());
        for i in 0..100 {
            let length = if i % 3 == 0 { TaskLength::Any } else { TaskLength::Brief };
            let task = Box::new(move || if i == 50 { panic!("task {i}") } else { i });
            pool.submit(task, Priority(0), length).unwrap();
        }
        let ended: Vec<EndedTask<usize>> = rx.iter().flatten().take(100).collect();
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

    /// One thread, and a task that blocks it while the others are queued: the order after it depends on the queue alone.
    fn after_a_gate(tasks: &[(usize, Priority, TaskLength)]) -> Vec<Vec<usize>> {
        let (tx, rx) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        let (open, gate) = mpsc::channel::<()>();
        let done = move |r: Vec<EndedTask<usize>>| tx.send(r).unwrap();
        let pool = ComputePool::new(1, ThreadPlacement::default(), false, done);
        let held = move || begin.send(()).map_or(99, |()| gate.recv().map_or(99, |()| 0));
        pool.submit(Box::new(held), Priority(0), TaskLength::Any).unwrap();
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
    fn the_least_number_is_taken_first_and_equal_numbers_in_order_of_arrival() {
        let turns =
            [(5, Priority(7)), (3, Priority(2)), (4, Priority(2)), (1, Priority(0)), (2, Priority(1))];
        for length in [TaskLength::Any, TaskLength::Brief] {
            let order = after_a_gate(&turns.map(|(i, turn)| (i, turn, length)));
            assert_eq!(order.concat(), [0, 1, 2, 3, 4, 5]);
        }
    }

    #[test]
    fn results_are_collected_over_brief_tasks_only_and_never_many() {
        let all = |length: fn(usize) -> TaskLength| -> Vec<(usize, Priority, TaskLength)> {
            (1..=60).map(|i| (i, Priority(0), length(i))).collect()
        };
        let long = after_a_gate(&all(|_| TaskLength::Any));
        assert!(long.iter().all(|batch| batch.len() == 1), "{long:?}");
        let brief = after_a_gate(&all(|_| TaskLength::Brief));
        assert!(brief.iter().all(|batch| batch.len() <= UNREPORTED_MAX), "{brief:?}");
        assert_eq!(brief.concat(), (0..=60).collect::<Vec<_>>());
        // A task that may take long begins after all results were reported: the results before it are in another batch.
        let mixed =
            after_a_gate(&all(|i| if i.is_multiple_of(4) { TaskLength::Any } else { TaskLength::Brief }));
        for i in (4..=60).step_by(4) {
            assert!(mixed.iter().any(|batch| batch[0] == i), "{i}: {mixed:?}");
        }
    }

    #[test]
    fn results_that_waited_long_enough_are_reported_before_the_next_task() {
        let session = Arc::new(PoolSession::new(1, 0, false, |_: Vec<EndedTask<i32>>| ()));
        let mut unreported = UnreportedResults { session, ended: Vec::new(), since: None };
        let now = Instant::now();
        assert!(unreported.may_wait(TaskLength::Brief));
        let ended = || EndedTask { result: Ok(1), thread: 0, began: now, took: Duration::ZERO };
        unreported.add(ended(), now);
        std::thread::sleep(UNREPORTED_FOR);
        unreported.add(ended(), Instant::now());
        assert!(!unreported.may_wait(TaskLength::Brief));
    }

    #[test]
    fn a_session_gets_the_threads_of_the_one_before_and_none_of_its_results() {
        let (first_tx, first_rx) = mpsc::channel();
        let (second_tx, second_rx) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        let (open, gate) = mpsc::channel::<()>();
        let send = |tx: mpsc::Sender<usize>| {
            move |r: Vec<EndedTask<usize>>| r.into_iter().for_each(|e| tx.send(e.result.unwrap()).unwrap())
        };
        let pool = ComputePool::new(1, ThreadPlacement::default(), true, send(first_tx));
        let held = move || begin.send(()).map_or(99, |()| gate.recv().map_or(99, |()| 0));
        pool.submit(Box::new(held), Priority(0), TaskLength::Any).unwrap();
        begun.recv().unwrap();
        pool.submit(Box::new(|| 1), Priority(0), TaskLength::Any).unwrap();
        pool.end_session();
        pool.begin_session(true, send(second_tx));
        pool.submit(Box::new(|| 2), Priority(0), TaskLength::Any).unwrap();
        open.send(()).unwrap();
        assert_eq!(second_rx.recv(), Ok(2));
        // The session is over, and with it the sender of its results; the task that had not begun is dropped.
        assert_eq!(first_rx.iter().collect::<Vec<_>>(), [0]);
        let [account] = pool.accounts()[..] else { panic!("one thread") };
        assert_eq!(account.jobs, 1);
        assert_eq!(pool.shared.queue.lock().unwrap().started, 1);
    }
}
