//! Keeps a journal of the tiles that are complete, so that another run can go on where this one ends.
//!
//! Place in the flow: `run` starts it with the product and tells it of each tile that is complete; it digests the operands, then
//! tiles, has data and journal synced, and hands the file back when the product is over.
//!
//! A tile is in the journal a moment after it was complete, and on the disk with the next interval.
//!
//! Invariants: one thread of its own does all that waits for a disk; the event loop never does. A tile is lent to it after it is
//! complete, and given back before the next. What waits is a bit for each tile. After an error nothing more
//! is written: what is in the journal stays valid.
//!
//! Deliberately absent: deciding when what is written (`bramble_schedule::journal`).

mod file;

pub use file::{Found, JournalFile, find, look};

use crate::PrimaryError;
use crate::product::Request;
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Digest128, Matrix, Output, Rect};
use bramble_plan::{Plan, Problem};
pub use bramble_schedule::journal::Journal;
use bramble_schedule::journal::{Action, Event, Head, Log, RECORD_BYTES};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the thread sleeps at most: a tile that is complete waits no longer for it.
const LOOK: Duration = Duration::from_millis(50);

/// Where the journal of a product is, and what is known of a run before.
#[derive(Debug)]
pub struct Journaling {
    /// The file.
    pub path: PathBuf,
    /// The run before, which this one goes on with.
    pub before: Option<Box<Journal>>,
    /// How long an interval is at least.
    pub every: Duration,
    /// Where this process is to die.
    pub steps: Steps,
}

/// Counts the points at which a run may end, and at one of them ends this process at once: to test that it may.
#[derive(Clone, Debug, Default)]
pub struct Steps(Option<Arc<AtomicI64>>);

impl Steps {
    /// Ends it at the nth.
    pub fn die_at(nth: i64) -> Self {
        Self(Some(Arc::new(AtomicI64::new(nth))))
    }

    fn one(&self) {
        if self.0.as_ref().is_some_and(|left| left.fetch_sub(1, Ordering::Relaxed) == 1) {
            // Nothing is left to be told if that fails.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

/// What a journal is about: that of `Head`, before the operands have been read.
pub(crate) struct Subject {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) old_c: Option<Matrix>,
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
    pub(crate) kernel: String,
    pub(crate) plan: Plan,
    /// How many may digest the operands when nobody computes.
    pub(crate) threads: usize,
}

impl Subject {
    pub(crate) fn of(request: &Request, problem: &Problem, kernel: String, plan: &Plan) -> Self {
        Self {
            a: request.a.clone(),
            b: request.b.clone(),
            old_c: request.old_c.clone().filter(|_| problem.reads_c),
            alpha: request.alpha,
            beta: request.beta,
            kernel,
            plan: plan.clone(),
            threads: request.threads,
        }
    }
}

/// How a keeper is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With one more interval of all that is complete.
    Last = 1,
    /// At once.
    Now = 2,
    /// At once, but not without a head: C is complete, and has to be known from the C that was read for it.
    Complete = 3,
}

/// What the event loop and the keeper's thread share.
struct Shared {
    /// Tiles that are complete and not digested yet, a bit each.
    tiles: Mutex<Vec<u64>>,
    ending: AtomicU8,
    /// Whether there is a journal that an interval can be appended to.
    is_writing: AtomicBool,
    failed: AtomicBool,
}

impl Shared {
    fn tiles(&self) -> MutexGuard<'_, Vec<u64>> {
        // A word is changed whole, or not.
        self.tiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self, how: Ending) -> bool {
        self.ending.load(Ordering::Relaxed) >= how as u8
    }

    /// Whether a head is no use any more.
    fn needs_no_head(&self) -> bool {
        self.is_ending(Ending::Last) && !self.is_ending(Ending::Complete)
    }

    /// A tile that waits, from some number on and around.
    fn next(&self, from: usize) -> Option<usize> {
        let mut words = self.tiles();
        let count = words.len();
        let found = (0..count).map(|at| (from / 64 + at) % count).find(|at| words[*at] != 0)?;
        let bit = to_usize(words[found].trailing_zeros());
        words[found] &= words[found] - 1;
        Some(found * 64 + bit)
    }
}

/// The event loop's end of it.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    thread: Thread,
    ended: oneshot::Receiver<Result<JournalFile, PrimaryError>>,
    numbers: Numbers,
    reads_c: bool,
}

/// Tiles of all regions in one row.
#[derive(Clone)]
struct Numbers {
    plan: Arc<Plan>,
    /// The first number of each region, and the end of the last.
    firsts: Vec<u64>,
}

impl Numbers {
    fn of(plan: Plan) -> Self {
        let mut firsts = vec![0];
        for region in &plan.regions {
            firsts.push(firsts.last().map_or(0, |first| first + region.tiles()));
        }
        Self { plan: Arc::new(plan), firsts }
    }

    fn count(&self) -> u64 {
        self.firsts.last().copied().unwrap_or(0)
    }

    fn number(&self, rect: Rect) -> Option<u64> {
        let (region, tile) = self.plan.tile_at(rect.rows.start, rect.cols.start)?;
        Some(self.firsts[region] + tile)
    }

    /// Region, number there, and place.
    fn tile(&self, number: u64) -> Option<(usize, u64, Rect)> {
        let region = self.firsts.partition_point(|first| *first <= number).checked_sub(1)?;
        let tile = number - self.firsts[region];
        Some((region, tile, self.plan.regions.get(region)?.tile_of(tile)?))
    }
}

impl Keeper {
    /// Takes the space of the journal, and begins.
    pub(crate) fn start(
        what: Journaling,
        subject: Subject,
        output: Arc<Output>,
    ) -> Result<Self, PrimaryError> {
        let numbers = Numbers::of(subject.plan.clone());
        let tiles = usize::try_from(numbers.count().div_ceil(64)).ok();
        let mut bits: Vec<u64> = Vec::new();
        let room = tiles.is_some_and(|words| bits.try_reserve_exact(words).is_ok());
        let Some(words) = tiles.filter(|_| room) else {
            return Err(PrimaryError::Failed(format!(
                "{} tiles are too many for this machine",
                numbers.count()
            )));
        };
        bits.resize(words, 0);
        let Journaling { path, before, every, steps } = what;
        // Each tile may have an end of its own, and a mark.
        let records =
            numbers.count().saturating_mul(3).saturating_add(2).saturating_mul(to_u64(RECORD_BYTES));
        let head = before.as_ref().map_or_else(|| head_bytes(&subject), |_| 0);
        let valid = before.as_ref().map_or(0, |journal| journal.valid_bytes);
        let file = JournalFile::open(&path, valid, head.saturating_add(records), steps)?;
        let shared = Arc::new(Shared {
            tiles: Mutex::new(bits),
            ending: AtomicU8::new(0),
            is_writing: AtomicBool::new(before.is_some()),
            failed: AtomicBool::new(false),
        });
        let reads_c = subject.old_c.is_some();
        let (says, ended) = oneshot::channel();
        let mut work = Work {
            shared: shared.clone(),
            output,
            file,
            numbers: numbers.clone(),
            every,
            began: Instant::now(),
        };
        let work = move || {
            let result = work.run(&subject, before.as_deref());
            work.shared.failed.store(result.is_err(), Ordering::Relaxed);
            // The output is given back before anybody hears of it.
            let Work { file, output, .. } = work;
            drop((output, subject));
            let _ = says.send(result.map(|()| file));
        };
        let thread = std::thread::Builder::new().name("keeper".to_owned()).spawn(work);
        let thread = thread.map_err(|e| PrimaryError::Failed(format!("cannot start a thread: {e}")))?;
        Ok(Self { shared, thread: thread.thread().clone(), ended, numbers, reads_c })
    }

    /// A tile is complete, and nobody else has it.
    pub(crate) fn committed(&self, rect: Rect) {
        let number = self.numbers.number(rect).and_then(|number| usize::try_from(number).ok());
        let Some(number) = number else { unreachable!("{rect} is no tile of the plan") };
        self.shared.tiles()[number / 64] |= 1 << (number % 64);
    }

    /// Whether what is complete could be kept.
    pub(crate) fn is_writing(&self) -> bool {
        self.shared.is_writing.load(Ordering::Relaxed)
    }

    /// Whether it has ended with an error.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// How it is to end when C is complete.
    pub(crate) fn ending_with_c(&self) -> Ending {
        if self.reads_c { Ending::Complete } else { Ending::Now }
    }

    /// Ends it, and gives the file back.
    pub(crate) async fn end(mut self, how: Ending) -> Result<JournalFile, PrimaryError> {
        self.tell(how);
        match (&mut self.ended).await {
            Ok(result) => result,
            Err(_) => Err(PrimaryError::Failed("the journal's thread died; please report it".to_owned())),
        }
    }

    fn tell(&self, how: Ending) {
        self.shared.ending.fetch_max(how as u8, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.tell(Ending::Now);
    }
}

/// Bytes of the head, whatever the digests will be.
fn head_bytes(subject: &Subject) -> u64 {
    let none = Digest128::default();
    to_u64(head(subject, none, none, subject.old_c.as_ref().map(|_| none)).encode().len())
}

fn head(subject: &Subject, a: Digest128, b: Digest128, old_c: Option<Digest128>) -> Head {
    let Subject { alpha, beta, kernel, plan, .. } = subject;
    let plan = plan.clone().unpredicted();
    Head { alpha: *alpha, beta: *beta, a, b, old_c, kernel: kernel.clone(), plan }
}

/// What the thread has.
struct Work {
    shared: Arc<Shared>,
    output: Arc<Output>,
    file: JournalFile,
    numbers: Numbers,
    every: Duration,
    began: Instant,
}

impl Work {
    fn run(&mut self, subject: &Subject, before: Option<&Journal>) -> Result<(), PrimaryError> {
        let log = match before {
            Some(journal) => Some(Log::resumed(journal, Duration::ZERO).every(self.every)),
            None => self.begin(subject)?,
        };
        let Some(mut log) = log else { return Ok(()) };
        let mut at = 0;
        let shared = self.shared.clone();
        while !shared.is_ending(Ending::Now) {
            let tile = shared.next(at);
            let event = match tile.and_then(|number| self.numbers.tile(to_u64(number))) {
                Some((region, tile, rect)) => {
                    let digest = self.output.lend(rect).digest();
                    Event::Committed { region, tile, digest }
                }
                None if shared.is_ending(Ending::Last) && log.is_quiet() => return Ok(()),
                None if shared.is_ending(Ending::Last) => Event::Stop,
                None => {
                    let wait = log.wakes().map_or(LOOK, |next| next.saturating_sub(self.began.elapsed()));
                    std::thread::park_timeout(wait.clamp(Duration::from_millis(1), LOOK));
                    Event::Tick
                }
            };
            at = tile.unwrap_or(at);
            let actions = log.handle(event, self.began.elapsed());
            self.carry_out(&mut log, actions)?;
        }
        Ok(())
    }

    /// Digests the operands and writes the head; `None` where the product was over before.
    fn begin(&mut self, subject: &Subject) -> Result<Option<Log>, PrimaryError> {
        // A product that is over before an interval needs no journal, and pays nothing for one, unless it reads the old C. One
        // that is expected to take longer has its journal as soon as it can be.
        let is_long = subject.plan.predicted.seconds >= self.every.as_secs_f64();
        let wait = if is_long { Duration::ZERO } else { self.every / 2 };
        while self.began.elapsed() < wait && !self.shared.is_ending(Ending::Complete) {
            std::thread::park_timeout(wait.saturating_sub(self.began.elapsed()));
            if self.shared.needs_no_head() {
                return Ok(None);
            }
        }
        let stop = || self.shared.needs_no_head();
        // When C is complete nobody else computes.
        let threads = if self.shared.is_ending(Ending::Complete) { subject.threads } else { 1 };
        let digest = |matrix: &Matrix| matrix.digest(threads, &stop);
        let (a, b) = (digest(&subject.a)?, digest(&subject.b)?);
        let old_c = subject.old_c.as_ref().map(digest).transpose()?;
        let (Some(a), Some(b), false) = (a, b, old_c == Some(None)) else { return Ok(None) };
        let (log, bytes) = Log::new(&head(subject, a, b, old_c.flatten()), self.began.elapsed());
        self.file.steps.one();
        self.file.append(&bytes)?;
        self.file.sync()?;
        self.file.sync_folder()?;
        self.shared.is_writing.store(true, Ordering::Relaxed);
        Ok(Some(log.every(self.every)))
    }

    fn carry_out(&mut self, log: &mut Log, mut actions: Vec<Action>) -> Result<(), PrimaryError> {
        while !actions.is_empty() {
            let mut next = Vec::new();
            for action in actions {
                let event = match action {
                    Action::SyncData => {
                        self.file.steps.one();
                        self.output.sync().map_err(PrimaryError::Matrix)?;
                        self.file.steps.one();
                        Event::DataSynced
                    }
                    Action::Append(bytes) => {
                        self.file.append(&bytes)?;
                        self.file.is_of_use_now();
                        self.output.keep(true);
                        continue;
                    }
                    Action::SyncLog => {
                        self.file.sync()?;
                        Event::LogSynced
                    }
                };
                next.extend(log.handle(event, self.began.elapsed()));
            }
            actions = next;
        }
        Ok(())
    }
}

/// Where the journal of a result is.
pub fn journal_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

#[cfg(test)]
mod tests;
