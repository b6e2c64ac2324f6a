//! What the sessions of one worker share: its memory, their number, the turn to measure, and what was measured.
//!
//! Place in the flow: a session takes its part between hello and welcome, and gives it back when it ends.
//!
//! Invariants: what is granted, and what the kernels of those sessions need beside it, never exceed the worker's
//! memory; a grant comes back whatever way its session ends, and not before the last compute thread has let go of
//! the session's matrices. At most one measurement runs at a time, and none on the event loop.
//!
//! Deliberately absent: queues and shares. Who comes first is granted what its product can use; who finds nothing
//! is told who has it.

use crate::machine::Config;
use crate::session::WorkerError;
use crate::speeds::Speeds;
use bramble_schedule::limits::{GRANT_BYTES_MIN, SESSIONS_MAX};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a name in a refusal; the rest of a longer one is left out, so that the sentence stays whole.
const NAME_BYTES_MAX: usize = 60;

/// What the sessions of one worker share. Clones are the same ledger.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    state: Arc<Mutex<State>>,
    measuring: Arc<tokio::sync::Mutex<()>>,
    speeds: Speeds,
}

#[derive(Debug, Default)]
struct State {
    /// Key of the next grant.
    next: u64,
    holders: BTreeMap<u64, Holder>,
}

/// A session that has memory.
#[derive(Debug)]
struct Holder {
    who: Who,
    granted_bytes: u64,
    /// What its kernel needs beside the matrices.
    scratch_bytes: u64,
    since: Instant,
}

/// A primary, for messages: names come from the other end and were checked as texts.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// What it calls itself.
    pub(crate) name: String,
    /// What its link calls it.
    pub(crate) peer: String,
}

/// What a session would like to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// The most that its product can use.
    pub(crate) wanted_bytes: u64,
    /// What its kernel needs beside it.
    pub(crate) scratch_bytes: u64,
    /// What this worker has for all sessions.
    pub(crate) capacity_bytes: u64,
}

impl Wish {
    /// The least that is worth a session.
    fn least_bytes(&self) -> u64 {
        self.wanted_bytes.clamp(1, GRANT_BYTES_MIN)
    }
}

/// Memory of a session, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    ledger: Ledger,
    key: u64,
    bytes: u64,
}

impl Grant {
    /// Bytes of matrices.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.ledger.state().holders.remove(&self.key);
    }
}

impl Ledger {
    /// Nobody has anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A panic elsewhere leaves the entries whole: each change is one call.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was measured so far.
    pub(crate) fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// Whether at most one session has memory, so that nobody computes while it measures.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().holders.len() <= 1
    }

    /// What is wanted or what is left, if that is worth it and there is room for a session.
    pub(crate) fn take(&self, who: &Who, wish: Wish) -> Option<Grant> {
        let mut state = self.state();
        let used = |h: &Holder| h.granted_bytes.saturating_add(h.scratch_bytes);
        let in_use = state.holders.values().map(used).fold(wish.scratch_bytes, u64::saturating_add);
        let bytes = wish.capacity_bytes.saturating_sub(in_use).min(wish.wanted_bytes);
        if state.holders.len() >= SESSIONS_MAX || bytes < wish.least_bytes() {
            return None;
        }
        let key = state.next;
        state.next += 1;
        let (granted_bytes, scratch_bytes, since) = (bytes, wish.scratch_bytes, Instant::now());
        state.holders.insert(key, Holder { who: who.clone(), granted_bytes, scratch_bytes, since });
        drop(state);
        Some(Grant { ledger: self.clone(), key, bytes })
    }

    /// The same, but waits up to `patience` where others have it: a primary that has just ended, or was killed, is
    /// still being cleared away. The error says who has it; `memory_bytes` is all that the worker has.
    pub(crate) async fn take_within(
        &self,
        patience: Duration,
        who: &Who,
        wish: Wish,
        memory_bytes: u64,
    ) -> Result<Grant, WorkerError> {
        let began = Instant::now();
        loop {
            if let Some(grant) = self.take(who, wish) {
                return Ok(grant);
            }
            if self.state().holders.is_empty() || began.elapsed() >= patience {
                return Err(WorkerError::Here(self.refusal(memory_bytes)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Who has the memory, or why there is none.
    fn refusal(&self, memory_bytes: u64) -> String {
        let state = self.state();
        let mib = memory_bytes >> 20;
        let Some(largest) = state.holders.values().max_by_key(|h| h.granted_bytes) else {
            return format!(
                "--memory of {mib} MiB leaves nothing for matrices beside the program ({} MiB) and its kernel; give it more",
                Config::PROGRAM_BYTES >> 20
            );
        };
        let others = match state.holders.len() - 1 {
            0 => String::new(),
            1 => " and one other".to_owned(),
            n => format!(" and {n} others"),
        };
        let holder = format!("{}{others}", largest.describe());
        if state.holders.len() >= SESSIONS_MAX {
            return format!("its {SESSIONS_MAX} sessions are taken by {holder}: try again later");
        }
        format!("its {mib} MiB are in use by {holder}: try again later, or start it with more --memory")
    }

    /// Runs a measurement on a thread of its own when no other one runs. A turn is over when the measurement is,
    /// even if nobody waits for it any more.
    pub(crate) async fn measured<T: Send + 'static>(
        &self,
        measure: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let turn = self.measuring.clone().lock_owned().await;
        let measuring = tokio::task::spawn_blocking(move || {
            let measured = measure();
            drop(turn);
            measured
        });
        measuring.await.map_err(|e| WorkerError::Here(format!("cannot measure this machine: {e}")))
    }
}

impl Holder {
    /// `laptop (10.0.0.5:41234, 480 MiB for 12 s)`.
    fn describe(&self) -> String {
        let mut name = self.who.name.clone();
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        let name = if name.is_empty() { "somebody" } else { &name };
        let (mib, seconds) = (self.granted_bytes.div_ceil(1 << 20), self.since.elapsed().as_secs());
        format!("{name} ({}, {mib} MiB for {seconds} s)", self.who.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MIB: u64 = 1 << 20;

    fn who(name: &str) -> Who {
        Who { name: name.to_owned(), peer: "10.0.0.5:41234".to_owned() }
    }

    fn wish(wanted_bytes: u64) -> Wish {
        Wish { wanted_bytes, scratch_bytes: 0, capacity_bytes: 512 * MIB }
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn each_gets_what_it_wants_or_what_is_left_and_gives_it_back() {
        let ledger = Ledger::new();
        let first = ledger.take(&who("a"), wish(500 * MIB)).unwrap();
        let second = ledger.take(&who("b"), wish(500 * MIB)).unwrap();
        assert_eq!((first.bytes(), second.bytes()), (500 * MIB, 12 * MIB));
        assert!(ledger.take(&who("c"), wish(500 * MIB)).is_none());
        assert!(!ledger.is_quiet());
        drop(first);
        assert!(ledger.is_quiet());
        assert_eq!(ledger.take(&who("c"), wish(100 * MIB)).unwrap().bytes(), 100 * MIB);
        drop(second);
        assert!(ledger.state().holders.is_empty());
    }

    #[test]
    fn what_kernels_need_beside_the_matrices_counts() {
        let ledger = Ledger::new();
        let wish = Wish { scratch_bytes: 200 * MIB, ..wish(100 * MIB) };
        let _first = ledger.take(&who("a"), wish).unwrap();
        assert_eq!(ledger.take(&who("b"), wish).unwrap().bytes(), 12 * MIB);
    }

    #[test]
    fn little_is_only_granted_to_those_who_want_little() {
        let ledger = Ledger::new();
        let _most = ledger.take(&who("a"), wish(512 * MIB - 4096)).unwrap();
        assert!(ledger.take(&who("b"), wish(2 * MIB)).is_none());
        assert_eq!(ledger.take(&who("b"), wish(4000)).unwrap().bytes(), 4000);
    }

    #[test]
    fn a_panic_gives_it_back_too() {
        let ledger = Ledger::new();
        let other = ledger.clone();
        let panicked = std::thread::spawn(move || {
            let _grant = other.take(&who("a"), wish(MIB));
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert!(ledger.state().holders.is_empty());
    }

    #[test]
    fn sessions_have_a_limit_and_a_name() {
        let ledger = Ledger::new();
        let grants: Vec<Grant> =
            (0..SESSIONS_MAX).map(|_| ledger.take(&who("a"), wish(100)).unwrap()).collect();
        assert!(ledger.take(&who("b"), wish(100)).is_none());
        assert_eq!(
            ledger.refusal(512 * MIB),
            "its 16 sessions are taken by a (10.0.0.5:41234, 1 MiB for 0 s) and 15 others: try again later"
        );
        drop(grants);
        assert!(ledger.take(&who("b"), wish(100)).is_some());
    }

    #[test]
    fn a_refusal_names_the_largest_holder_and_counts_the_others() {
        let ledger = Ledger::new();
        let refused = |ledger: &Ledger| {
            let patience = Duration::from_millis(1);
            let (who, wish) = (who("late"), wish(600 * MIB));
            wait(ledger.take_within(patience, &who, wish, 512 * MIB)).unwrap_err().to_string()
        };
        let small = ledger.take(&who("phone"), wish(32 * MIB)).unwrap();
        let _large = ledger.take(&who("laptop"), wish(480 * MIB)).unwrap();
        assert_eq!(
            refused(&ledger),
            "its 512 MiB are in use by laptop (10.0.0.5:41234, 480 MiB for 0 s) and one other: try again later, \
             or start it with more --memory"
        );
        drop(small);
        let _long = ledger.take(&who(&"é".repeat(120)), wish(32 * MIB)).unwrap();
        assert!(refused(&ledger).len() <= 255);
        let none = Wish { capacity_bytes: 0, ..wish(1) };
        let alone =
            wait(Ledger::new().take_within(Duration::MAX, &who("a"), none, 0)).unwrap_err().to_string();
        assert!(alone.contains("leaves nothing for matrices"), "{alone}");
    }

    #[test]
    fn memory_that_comes_back_within_the_patience_is_taken() {
        let ledger = Ledger::new();
        let first = ledger.take(&who("a"), wish(512 * MIB)).unwrap();
        let clearing = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(first);
        });
        let patience = Duration::from_secs(30);
        assert!(wait(ledger.take_within(patience, &who("b"), wish(MIB), 512 * MIB)).is_ok());
        clearing.join().unwrap();
    }

    #[test]
    fn measurements_take_turns_and_a_panic_in_one_is_an_error() {
        let (ledger, running) = (Ledger::new(), Arc::new(AtomicUsize::new(0)));
        let measure = |running: Arc<AtomicUsize>| {
            ledger.measured(move || {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                std::thread::sleep(Duration::from_millis(10));
                running.fetch_sub(1, Ordering::SeqCst);
            })
        };
        wait(async {
            let (a, b) = tokio::join!(measure(running.clone()), measure(running.clone()));
            assert!(a.is_ok() && b.is_ok());
            assert!(ledger.measured(|| assert_eq!(1, 2, "on purpose")).await.is_err());
            assert!(measure(running.clone()).await.is_ok());
        });
    }
}
