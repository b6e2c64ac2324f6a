//! The ledger of one worker: memory, number of sessions, the lock for measurements, and results of measurements.
//!
//! Place in the flow: a session takes a grant between hello and welcome, and returns it when it ends. A connection between two
//! products holds a grant without memory for matrices: it counts as a session, and its compute threads keep scratch memory.
//!
//! Invariants: all grants, and the scratch memory of those sessions' kernels, never exceed the worker's
//! memory. A grant is returned however its session ends, and not before the last compute thread has dropped
//! the session's matrices. At most one measurement runs at a time, and none on the event loop.
//!
//! Parts of placed matrices are held beside the products: `HoldAccount` counts those of one connection, so that its memory
//! survives a product's end, and a refusal names the holders with their bytes.
//!
//! Deliberately absent: queues and fair shares. A session is granted what its product can use, as far as memory is left; a
//! session that finds none is told which primary holds it.

mod lease;

use crate::machine::Config;
use crate::session::WorkerError;
use crate::speeds::Speeds;
use bramble_wire::limits::{GRANT_BYTES_MIN, SESSIONS_MAX};
pub(crate) use lease::HoldActivity;
use lease::IDLE_LEASE;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a name in a refusal; a longer name is cut, so that the sentence stays whole.
const NAME_BYTES_MAX: usize = 60;
/// How long a request waits for the memory of connections that were idle for too long, before it takes what there is.
const FREEING: Duration = Duration::from_millis(100);
/// Holders that the refusal of a part names: more do not fit its text.
const NAMED_MAX: usize = 2;

/// State that the sessions of one worker share. Clones share the same ledger.
#[derive(Clone, Debug)]
pub struct SessionLedger {
    state: Arc<Mutex<State>>,
    measuring: Arc<tokio::sync::Mutex<()>>,
    speeds: Speeds,
    /// How long a connection may hold parts and be idle while another one needs the memory.
    idle_lease: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// Key of the next grant.
    next: u64,
    holders: BTreeMap<u64, Holder>,
    /// Parts of placed matrices, by connection; only connections that hold some.
    holds: BTreeMap<u64, Hold>,
}

impl State {
    /// All memory that is granted or held.
    fn in_use(&self) -> u64 {
        let products = self.holders.values().map(|h| h.granted_bytes.saturating_add(h.scratch_bytes));
        products.fold(self.held_bytes(), u64::saturating_add)
    }

    fn held_bytes(&self) -> u64 {
        self.holds.values().map(|hold| hold.bytes).fold(0, u64::saturating_add)
    }

    /// Memory that is left for parts, of `all` that the worker has. Products keep an eighth of all memory.
    fn left_to_hold(&self, all: u64) -> u64 {
        all.saturating_sub(self.in_use()).min((all - all / 8).saturating_sub(self.held_bytes()))
    }
}

/// The parts of placed matrices that one connection holds.
#[derive(Debug)]
struct Hold {
    who: SessionOwner,
    bytes: u64,
    since: Instant,
    activity: Arc<HoldActivity>,
}

/// A session with a grant, or a connection between two products.
#[derive(Debug)]
struct Holder {
    who: SessionOwner,
    granted_bytes: u64,
    /// Scratch memory of its kernel.
    scratch_bytes: u64,
    since: Instant,
}

/// The primary of a session, for messages: the name comes from the network and was checked as a text.
#[derive(Clone, Debug)]
pub(crate) struct SessionOwner {
    /// The primary's name for itself.
    pub(crate) name: String,
    /// The link's name for it.
    pub(crate) peer: String,
}

/// A session's request for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRequest {
    /// Most bytes of matrices that its product can use.
    pub(crate) wanted_bytes: u64,
    /// Scratch memory of its kernel.
    pub(crate) scratch_bytes: u64,
    /// Bytes that this worker has for all sessions.
    pub(crate) capacity_bytes: u64,
}

impl MemoryRequest {
    /// The smallest useful grant.
    fn least_bytes(&self) -> u64 {
        self.wanted_bytes.clamp(1, GRANT_BYTES_MIN)
    }
}

/// Memory granted to a session; returned when dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    ledger: SessionLedger,
    key: u64,
    bytes: u64,
}

impl Grant {
    /// Bytes of matrices.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A place for the same primary between two products: without memory for matrices, but with the scratch memory that
    /// compute threads keep.
    pub(crate) fn idle_place(&self) -> Self {
        let mut state = self.ledger.state();
        let (who, scratch_bytes) = match state.holders.get(&self.key) {
            Some(holder) => (holder.who.clone(), holder.scratch_bytes),
            None => unreachable!("a grant is in the ledger until it is dropped"),
        };
        let key = state.enter(Holder { who, granted_bytes: 0, scratch_bytes, since: Instant::now() });
        Self { ledger: self.ledger.clone(), key, bytes: 0 }
    }

    /// Scratch memory that compute threads may keep.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.ledger.state().holders.get(&self.key).map_or(0, |holder| holder.scratch_bytes)
    }

    /// The compute threads that kept scratch memory have ended.
    pub(crate) fn drop_scratch(&self) {
        if let Some(holder) = self.ledger.state().holders.get_mut(&self.key) {
            holder.scratch_bytes = 0;
        }
    }
}

impl State {
    fn enter(&mut self, holder: Holder) -> u64 {
        let key = self.next;
        self.next += 1;
        self.holders.insert(key, holder);
        key
    }

    /// Asks the connections whose parts have been idle for longer than the lease to end, except that of `own`;
    /// whether there is one.
    fn ask_idle(&self, own: Option<u64>, lease: Duration) -> bool {
        let others = self.holds.iter().filter(|(key, _)| Some(**key) != own);
        others.fold(false, |any, (_, hold)| hold.activity.ask_if_idle(lease) || any)
    }

    /// Sessions that have memory for matrices.
    fn computing(&self) -> usize {
        self.holders.values().filter(|holder| holder.granted_bytes > 0).count()
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.ledger.state().holders.remove(&self.key);
    }
}

/// Counts the parts of placed matrices that one connection holds.
#[derive(Debug)]
pub(crate) struct HoldAccount {
    ledger: SessionLedger,
    key: u64,
    who: SessionOwner,
    capacity_bytes: u64,
    activity: Arc<HoldActivity>,
}

/// Memory of one part of a placed matrix; returned when dropped.
#[derive(Debug)]
pub(crate) struct HoldGrant {
    ledger: SessionLedger,
    key: u64,
    bytes: u64,
}

impl HoldAccount {
    /// Memory for a part, or a sentence that names the holders of the memory.
    pub(crate) fn take(&self, bytes: u64) -> Result<HoldGrant, String> {
        let mut state = self.ledger.state();
        let left = state.left_to_hold(self.capacity_bytes);
        if bytes > left {
            let is_freed = state.ask_idle(Some(self.key), self.ledger.idle_lease);
            let holders: Vec<String> = state.holders.values().map(Holder::describe).collect();
            let holds = state.holds.values().map(Hold::describe);
            let mut named: Vec<String> = holders.into_iter().chain(holds).collect();
            named.truncate(NAMED_MAX);
            let named = if named.is_empty() { "nobody".to_owned() } else { named.join(", ") };
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            let next = if is_freed { "; parts of an idle primary are being freed: try again" } else { "" };
            return Err(format!(
                "a part of {} MiB does not fit: {} MiB are left, the rest is in use by {named}{next}",
                mib(bytes),
                left >> 20
            ));
        }
        let (who, since, activity) = (self.who.clone(), Instant::now(), self.activity.clone());
        let hold = state.holds.entry(self.key).or_insert(Hold { who, bytes: 0, since, activity });
        hold.bytes += bytes;
        Ok(HoldGrant { ledger: self.ledger.clone(), key: self.key, bytes })
    }
}

impl HoldAccount {
    /// The activity of the connection.
    pub(crate) fn activity(&self) -> &Arc<HoldActivity> {
        &self.activity
    }
}

impl HoldGrant {
    /// Bytes of the part.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for HoldGrant {
    fn drop(&mut self) {
        let mut state = self.ledger.state();
        if let Some(hold) = state.holds.get_mut(&self.key) {
            hold.bytes -= self.bytes;
            if hold.bytes == 0 {
                state.holds.remove(&self.key);
            }
        }
    }
}

impl Default for SessionLedger {
    fn default() -> Self {
        Self::new()
    }
}

impl SessionLedger {
    /// A ledger without sessions.
    pub fn new() -> Self {
        Self::with_idle_lease(IDLE_LEASE)
    }

    /// The same; a connection may hold parts and be idle for so long while another one needs the memory.
    pub fn with_idle_lease(idle_lease: Duration) -> Self {
        let (state, measuring, speeds) = Default::default();
        Self { state, measuring, speeds, idle_lease }
    }

    /// A panic elsewhere leaves the entries consistent: each change is one call.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Results of earlier measurements.
    pub(crate) fn speeds(&self) -> &Speeds {
        &self.speeds
    }

    /// Memory that is left for parts of placed matrices, on a worker with that much memory for matrices.
    pub(crate) fn left_to_hold(&self, capacity_bytes: u64) -> u64 {
        self.state().left_to_hold(capacity_bytes)
    }

    /// Whether at most one session has memory, so that no other session computes during a measurement.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().computing() <= 1
    }

    /// Grants the request, or the rest of the memory; `None` if that is too little or there are too many sessions.
    pub(crate) fn grant(&self, who: &SessionOwner, wish: MemoryRequest) -> Option<Grant> {
        let mut state = self.state();
        let in_use = state.in_use().saturating_add(wish.scratch_bytes);
        let bytes = wish.capacity_bytes.saturating_sub(in_use).min(wish.wanted_bytes);
        if state.holders.len() >= SESSIONS_MAX || bytes < wish.least_bytes() {
            return None;
        }
        let (granted_bytes, scratch_bytes, since) = (bytes, wish.scratch_bytes, Instant::now());
        let key = state.enter(Holder { who: who.clone(), granted_bytes, scratch_bytes, since });
        drop(state);
        Some(Grant { ledger: self.clone(), key, bytes })
    }

    /// The same, but waits up to `patience` while other sessions hold the memory: a session that has just ended, or whose
    /// primary was killed, may still be closing. The error names the holder; `memory_bytes` is the worker's whole memory.
    pub(crate) async fn grant_within(
        &self,
        patience: Duration,
        who: &SessionOwner,
        wish: MemoryRequest,
        memory_bytes: u64,
    ) -> Result<Grant, WorkerError> {
        let began = Instant::now();
        if self.is_short(wish) && self.state().ask_idle(None, self.idle_lease) {
            tokio::time::sleep(FREEING).await;
        }
        loop {
            if let Some(grant) = self.grant(who, wish) {
                return Ok(grant);
            }
            let is_freed = self.state().ask_idle(None, self.idle_lease);
            if !is_freed && self.state().holders.is_empty() || began.elapsed() >= patience {
                return Err(WorkerError::Here(self.refusal(memory_bytes)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether less memory is left than the request could use.
    fn is_short(&self, wish: MemoryRequest) -> bool {
        let in_use = self.state().in_use().saturating_add(wish.scratch_bytes);
        wish.capacity_bytes.saturating_sub(in_use) < wish.wanted_bytes.min(wish.capacity_bytes)
    }

    /// Names the largest holder, or says why there is no memory.
    fn refusal(&self, memory_bytes: u64) -> String {
        let state = self.state();
        let mib = memory_bytes >> 20;
        let products = state.holders.values().map(|holder| (holder.granted_bytes, holder.describe()));
        let holds = state.holds.values().map(|hold| (hold.bytes, hold.describe()));
        let all: Vec<(u64, String)> = products.chain(holds).collect();
        let Some((_, largest)) = all.iter().max_by_key(|(bytes, _)| *bytes) else {
            return format!(
                "--memory of {mib} MiB leaves nothing for matrices beside the program ({} MiB) and its kernel; give it more",
                Config::PROGRAM_BYTES >> 20
            );
        };
        let others = match all.len() - 1 {
            0 => String::new(),
            1 => " and one other".to_owned(),
            n => format!(" and {n} others"),
        };
        let holder = format!("{largest}{others}");
        if state.holders.len() >= SESSIONS_MAX {
            return format!("its {SESSIONS_MAX} sessions are taken by {holder}: try again later");
        }
        format!("its {mib} MiB are in use by {holder}: try again later, or start it with more --memory")
    }

    /// An account for the parts of placed matrices of one connection, on a worker with that much memory for matrices.
    pub(crate) fn hold_account(&self, who: &SessionOwner, capacity_bytes: u64) -> HoldAccount {
        let mut state = self.state();
        let key = state.next;
        state.next += 1;
        HoldAccount { ledger: self.clone(), key, who: who.clone(), capacity_bytes, activity: Arc::default() }
    }

    /// Runs a measurement on a thread of its own, when no other measurement runs. The lock is held until the measurement ends,
    /// even if the caller no longer waits for it.
    pub(crate) async fn measured<T: Send + 'static>(
        &self,
        measure: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkerError> {
        let turn = self.measuring.clone().lock_owned().await;
        let (done, measured) = tokio::sync::oneshot::channel();
        // Not the runtime's pool: that panics where the system gives it no thread.
        let thread = std::thread::Builder::new().name("measure".to_owned());
        let started = thread.spawn(move || {
            let measured = measure();
            drop(turn);
            // Sending fails where the caller has been dropped.
            let _ = done.send(measured);
        });
        let here = |why: String| WorkerError::Here(format!("cannot measure this machine: {why}"));
        started.map_err(|e| {
            here(format!(
                "no thread can be started: {e}; allow more processes (ulimit -u) or memory (ulimit -v)"
            ))
        })?;
        measured.await.map_err(|_| here("the measurement broke off".to_owned()))
    }
}

impl Holder {
    /// `laptop (10.0.0.5:41234, 480 MiB for 12 s)`.
    fn describe(&self) -> String {
        self.who.describe(self.granted_bytes, "", self.since)
    }
}

impl Hold {
    /// `laptop (10.0.0.5:41234, 480 MiB of placed matrices for 12 s)`.
    fn describe(&self) -> String {
        self.who.describe(self.bytes, " of placed matrices", self.since)
    }
}

impl SessionOwner {
    fn describe(&self, bytes: u64, what: &str, since: Instant) -> String {
        let mut name = self.name.clone();
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        let name = if name.is_empty() { "somebody" } else { &name };
        if bytes == 0 {
            return format!("{name} ({}, between two products)", self.peer);
        }
        let (mib, seconds) = (bytes.div_ceil(1 << 20), since.elapsed().as_secs());
        format!("{name} ({}, {mib} MiB{what} for {seconds} s)", self.peer)
    }
}

#[cfg(test)]
mod tests;
