//! The journal writer: records complete tiles on disk, so that a later run can resume where this one ends.
//!
//! Place in the flow: `run` starts it with the product and reports each committed tile to it; its thread digests the
//! operands, then the tiles, syncs data and journal, and hands the file back when the product is over.
//!
//! A tile is in the journal a moment after it was committed, and on the disk with the next interval.
//!
//! Invariants: only its own thread waits for disks; the event loop never does. The thread leases one committed tile at a time.
//! The queue of waiting tiles is one bit for each tile. After an error nothing more is written: the journal so far stays valid.
//!
//! Deliberately absent: the decision when to write and sync (`bramble_schedule::journal`).

mod file;
pub mod left;

pub use file::{FoundJournal, JournalFile, find_journal, read_journal};

use crate::RecordError;
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Digest128, Matrix, Output, Rect};
use bramble_plan::Plan;
pub use bramble_schedule::journal::Journal;
use bramble_schedule::journal::{Head, JournalAction, JournalEvent, JournalLog, RECORD_BYTES};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Longest sleep of the thread, and so the longest that a committed tile waits for it.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Options of a product's journal, and the journal of an earlier run.
#[derive(Debug)]
pub struct JournalOptions {
    /// The file.
    pub path: PathBuf,
    /// The journal of the run that this one resumes.
    pub before: Option<Box<Journal>>,
    /// Shortest interval between two syncs.
    pub every: Duration,
    /// Called after each step on the disk.
    pub on_step: DiskStepHook,
}

/// Called after each step by which the journal or C reaches the disk: between two steps a process may be killed, and a later
/// run resumes from the steps that were done. The writer does not depend on what the hook does.
#[derive(Clone, Default)]
pub struct DiskStepHook(Option<Arc<dyn Fn() + Send + Sync>>);

impl DiskStepHook {
    /// Calls `hook`, on the thread that has done the step.
    pub fn new(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    fn call(&self) {
        self.0.iter().for_each(|hook| hook());
    }
}

impl fmt::Debug for DiskStepHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DiskStepHook").field(&self.0.is_some()).finish()
    }
}

/// The contents of the journal's `Head`, before the operands have been digested.
pub struct JournalSubject {
    /// The left operand.
    pub a: Matrix,
    /// The right operand.
    pub b: Matrix,
    /// The old C, if β ≠ 0.
    pub old_c: Option<Matrix>,
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// Class of kernels with equal bits; empty if machines have different classes.
    pub kernel: String,
    /// The plan.
    pub plan: Plan,
    /// Threads that may digest the operands when no worker computes.
    pub threads: usize,
}

/// How the journal writer has to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum JournalEnding {
    /// After one more interval with all tiles that are complete.
    Last = 1,
    /// At once.
    Now = 2,
    /// At once, but after the head is written: C is complete, and a later run has to tell it from the old C that was read for it.
    Complete = 3,
}

/// State shared by the event loop and the writer's thread.
struct WriterState {
    /// Tiles that are committed and not digested yet, one bit each.
    tiles: Mutex<Vec<u64>>,
    ending: AtomicU8,
    /// Whether the journal has its head, so that an interval can be appended.
    is_writing: AtomicBool,
    failed: AtomicBool,
}

impl WriterState {
    fn tiles(&self) -> MutexGuard<'_, Vec<u64>> {
        // A panic cannot leave a word half changed, so poisoning does not matter.
        self.tiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self, how: JournalEnding) -> bool {
        self.ending.load(Ordering::Relaxed) >= how as u8
    }

    /// Whether the product ends without need of a head.
    fn needs_no_head(&self) -> bool {
        self.is_ending(JournalEnding::Last) && !self.is_ending(JournalEnding::Complete)
    }

    /// Takes a waiting tile, searching from some number on and wrapping around.
    fn next(&self, from: usize) -> Option<usize> {
        let mut words = self.tiles();
        let count = words.len();
        let found = (0..count).map(|at| (from / 64 + at) % count).find(|at| words[*at] != 0)?;
        let bit = to_usize(words[found].trailing_zeros());
        words[found] &= words[found] - 1;
        Some(found * 64 + bit)
    }
}

/// The event loop's handle of the journal writer.
pub struct JournalWriter {
    shared: Arc<WriterState>,
    thread: Thread,
    ended: oneshot::Receiver<Result<JournalFile, RecordError>>,
    numbers: TileNumbers,
    reads_c: bool,
}

/// Numbers the tiles of all regions consecutively.
#[derive(Clone)]
struct TileNumbers {
    plan: Arc<Plan>,
    /// The first number of each region, and the end of the last.
    firsts: Vec<u64>,
}

impl TileNumbers {
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

    /// Region, tile number in the region, and rectangle.
    fn tile(&self, number: u64) -> Option<(usize, u64, Rect)> {
        let region = self.firsts.partition_point(|first| *first <= number).checked_sub(1)?;
        let tile = number - self.firsts[region];
        Some((region, tile, self.plan.regions.get(region)?.tile_of(tile)?))
    }
}

impl JournalWriter {
    /// Reserves the journal's space and starts the thread.
    pub fn start(
        what: JournalOptions,
        subject: JournalSubject,
        output: Arc<Output>,
    ) -> Result<Self, RecordError> {
        let numbers = TileNumbers::of(subject.plan.clone());
        let tiles = usize::try_from(numbers.count().div_ceil(64)).ok();
        let mut bits: Vec<u64> = Vec::new();
        let room = tiles.is_some_and(|words| bits.try_reserve_exact(words).is_ok());
        let Some(words) = tiles.filter(|_| room) else {
            return Err(RecordError::Journal(format!(
                "{} tiles are too many for this machine",
                numbers.count()
            )));
        };
        bits.resize(words, 0);
        let JournalOptions { path, before, every, on_step } = what;
        // Each tile may need an end record and a watermark of its own.
        let records =
            numbers.count().saturating_mul(3).saturating_add(2).saturating_mul(to_u64(RECORD_BYTES));
        let head = before.as_ref().map_or_else(|| head_bytes(&subject), |_| 0);
        let valid = before.as_ref().map_or(0, |journal| journal.valid_bytes);
        let file = JournalFile::open(&path, valid, head.saturating_add(records), on_step)?;
        let shared = Arc::new(WriterState {
            tiles: Mutex::new(bits),
            ending: AtomicU8::new(0),
            is_writing: AtomicBool::new(before.is_some()),
            failed: AtomicBool::new(false),
        });
        let reads_c = subject.old_c.is_some();
        let (says, ended) = oneshot::channel();
        let mut work = WriterThread {
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
            // The output is released before the event loop learns that the thread has ended.
            let WriterThread { file, output, .. } = work;
            drop((output, subject));
            let _ = says.send(result.map(|()| file));
        };
        let thread = std::thread::Builder::new().name("journal".to_owned()).spawn(work);
        let thread = thread.map_err(|e| RecordError::Journal(format!("cannot start a thread: {e}")))?;
        Ok(Self { shared, thread: thread.thread().clone(), ended, numbers, reads_c })
    }

    /// A tile is committed, and no other lease of it exists.
    pub fn committed(&self, rect: Rect) {
        let number = self.numbers.number(rect).and_then(|number| usize::try_from(number).ok());
        let Some(number) = number else { unreachable!("{rect} is no tile of the plan") };
        self.shared.tiles()[number / 64] |= 1 << (number % 64);
    }

    /// Whether complete tiles can be recorded.
    pub fn is_writing(&self) -> bool {
        self.shared.is_writing.load(Ordering::Relaxed)
    }

    /// Whether the thread has ended with an error.
    pub fn has_failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// How the writer has to end when C is complete.
    pub fn ending_with_c(&self) -> JournalEnding {
        if self.reads_c { JournalEnding::Complete } else { JournalEnding::Now }
    }

    /// Ends the thread, and returns the file.
    pub async fn end(mut self, how: JournalEnding) -> Result<JournalFile, RecordError> {
        self.tell(how);
        match (&mut self.ended).await {
            Ok(result) => result,
            Err(_) => Err(RecordError::Journal("the journal's thread died; please report it".to_owned())),
        }
    }

    fn tell(&self, how: JournalEnding) {
        self.shared.ending.fetch_max(how as u8, Ordering::Relaxed);
        self.thread.unpark();
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.tell(JournalEnding::Now);
    }
}

/// Bytes of the head, which do not depend on the digests.
fn head_bytes(subject: &JournalSubject) -> u64 {
    let none = Digest128::default();
    to_u64(head(subject, none, none, subject.old_c.as_ref().map(|_| none)).encode().len())
}

fn head(subject: &JournalSubject, a: Digest128, b: Digest128, old_c: Option<Digest128>) -> Head {
    let JournalSubject { alpha, beta, kernel, plan, .. } = subject;
    let plan = plan.clone().unpredicted();
    Head { alpha: *alpha, beta: *beta, a, b, old_c, kernel: kernel.clone(), plan }
}

/// State of the writer's thread.
struct WriterThread {
    shared: Arc<WriterState>,
    output: Arc<Output>,
    file: JournalFile,
    numbers: TileNumbers,
    every: Duration,
    began: Instant,
}

impl WriterThread {
    fn run(&mut self, subject: &JournalSubject, before: Option<&Journal>) -> Result<(), RecordError> {
        let log = match before {
            Some(journal) => Some(JournalLog::resumed(journal, Duration::ZERO).every(self.every)),
            None => self.begin(subject)?,
        };
        let Some(mut log) = log else { return Ok(()) };
        let mut at = 0;
        let shared = self.shared.clone();
        while !shared.is_ending(JournalEnding::Now) {
            let tile = shared.next(at);
            let event = match tile.and_then(|number| self.numbers.tile(to_u64(number))) {
                Some((region, tile, rect)) => {
                    let digest = self.output.lease(rect).digest();
                    JournalEvent::Committed { region, tile, digest }
                }
                None if shared.is_ending(JournalEnding::Last) && log.is_quiet() => return Ok(()),
                None if shared.is_ending(JournalEnding::Last) => JournalEvent::Stop,
                None => {
                    let wait =
                        log.wakes().map_or(SLEEP_MAX, |next| next.saturating_sub(self.began.elapsed()));
                    std::thread::park_timeout(wait.clamp(Duration::from_millis(1), SLEEP_MAX));
                    JournalEvent::Tick
                }
            };
            at = tile.unwrap_or(at);
            let actions = log.handle(event, self.began.elapsed());
            self.carry_out(&mut log, actions)?;
        }
        Ok(())
    }

    /// Digests the operands and writes the head; `None` if the product ended before.
    fn begin(&mut self, subject: &JournalSubject) -> Result<Option<JournalLog>, RecordError> {
        // A product that ends before the first interval needs no journal, and should not pay for one, unless it reads the
        // old C. One that is predicted to take longer gets its journal as early as possible.
        let is_long = subject.plan.predicted.seconds >= self.every.as_secs_f64();
        let wait = if is_long { Duration::ZERO } else { self.every / 2 };
        while self.began.elapsed() < wait && !self.shared.is_ending(JournalEnding::Complete) {
            std::thread::park_timeout(wait.saturating_sub(self.began.elapsed()));
            if self.shared.needs_no_head() {
                return Ok(None);
            }
        }
        let stop = || self.shared.needs_no_head();
        // When C is complete, no thread computes any more.
        let threads = if self.shared.is_ending(JournalEnding::Complete) { subject.threads } else { 1 };
        let digest = |matrix: &Matrix| matrix.digest(threads, &stop);
        let (a, b) = (digest(&subject.a)?, digest(&subject.b)?);
        let old_c = subject.old_c.as_ref().map(digest).transpose()?;
        let (Some(a), Some(b), false) = (a, b, old_c == Some(None)) else { return Ok(None) };
        let (log, bytes) = JournalLog::new(&head(subject, a, b, old_c.flatten()), self.began.elapsed());
        self.file.on_step.call();
        self.file.append(&bytes)?;
        self.file.sync()?;
        self.file.sync_folder()?;
        self.shared.is_writing.store(true, Ordering::Relaxed);
        Ok(Some(log.every(self.every)))
    }

    fn carry_out(
        &mut self,
        log: &mut JournalLog,
        mut actions: Vec<JournalAction>,
    ) -> Result<(), RecordError> {
        while !actions.is_empty() {
            let mut next = Vec::new();
            for action in actions {
                let event = match action {
                    JournalAction::SyncData => {
                        self.file.on_step.call();
                        self.output.sync().map_err(RecordError::Output)?;
                        self.file.on_step.call();
                        JournalEvent::DataSynced
                    }
                    JournalAction::Append(bytes) => {
                        self.file.append(&bytes)?;
                        self.file.mark_usable();
                        self.output.keep(true);
                        continue;
                    }
                    JournalAction::SyncLog => {
                        self.file.sync()?;
                        JournalEvent::LogSynced
                    }
                };
                next.extend(log.handle(event, self.began.elapsed()));
            }
            actions = next;
        }
        Ok(())
    }
}

/// The path of a result's journal.
pub fn journal_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".journal");
    name.into()
}

#[cfg(test)]
mod tests;
