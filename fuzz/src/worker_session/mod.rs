//! A worker's state machine, and a primary that says whatever it likes.
//!
//! The input is a list of events that a link allows: a store's head arrives (built from decisions, or raw bytes),
//! its body lands, a thread finishes a job or makes an operand, a tile leaves, operands are relayed to other workers or
//! arrive from them. The target carries out the worker's actions as its shell does. An independent record of
//! stored, filled and computed matrices checks the state machine.
//!
//! Promises: no panic; memory never beyond the grant; a job starts when, and only when, all its operands are
//! stored, once, and in step order; no matrix is read before it is whole or written after; no matrix in use is
//! released; freed bytes are credited, to the byte.

mod input;
mod relay;

use crate::bytes::Bytes;
use crate::memory::within;
use bramble_schedule::worker::{RunnableJob, StartLimits, Worker, WorkerAction, WorkerEvent};
use bramble_wire::message::{Forward, Job, MatrixHeader, MatrixSource, StoreHead, Then};
use input::{any_store, product, sums};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) use input::seeds;

/// Bytes that both records may take for a short input; matrices themselves are not allocated.
const BOUND_BYTES: usize = 256 << 10;
/// Events of one run.
const EVENTS_MAX: usize = 100;

/// A matrix in the independent record.
struct Stored {
    header: MatrixHeader,
    landed: u32,
    filled: bool,
    /// Jobs that write it and have not been started.
    queue: VecDeque<Job>,
    done: u32,
    running: bool,
    leaving: bool,
    /// Whether an operand that jobs make is whole.
    closed: bool,
}

impl Stored {
    /// Whether its elements have arrived; a vacant matrix needs none.
    fn there(&self) -> bool {
        match self.header.source {
            MatrixSource::Vacant => true,
            MatrixSource::Generated => self.filled,
            MatrixSource::Data | MatrixSource::Partial | MatrixSource::Relayed | MatrixSource::Resident => {
                self.landed == self.header.lines_total().0
            }
        }
    }

    fn may_be_read(&self) -> bool {
        let made = self.header.source != MatrixSource::Vacant || self.closed;
        self.header.uses > 0 && self.there() && made
    }

    fn may_be_written(&self) -> bool {
        let target = self.header.uses == 0 || self.header.source == MatrixSource::Vacant;
        target && self.there() && !self.running && !self.leaving && !self.closed
    }
}

struct Session {
    worker: Worker,
    grant_bytes: u64,
    held_bytes: u64,
    /// Freed and not yet credited.
    freed_bytes: u64,
    stored: BTreeMap<u32, Stored>,
    landing: Option<StoreHead>,
    running: Vec<Job>,
    filling: Vec<u32>,
    leaving: Vec<u32>,
    /// Orders that wait, and orders under way.
    orders: Vec<Forward>,
    passing: Vec<Forward>,
    /// Other workers whose links were lost.
    lost: BTreeSet<u32>,
}

/// Every job that could run starts at once, so that a job that is forgotten shows.
const NO_LIMITS: StartLimits =
    StartLimits { unsent_bytes: u64::MAX, unsent_tiles: 1 << 30, additions: 1 << 30 };

/// See the head of this file.
pub fn worker_session(data: &[u8]) {
    within(BOUND_BYTES, || {
        let mut bytes = Bytes::new(data);
        let grant_bytes = 1024 << (bytes.u8() % 12);
        let mut session = Session {
            worker: Worker::new(grant_bytes, NO_LIMITS),
            grant_bytes,
            held_bytes: 0,
            freed_bytes: 0,
            stored: BTreeMap::new(),
            landing: None,
            running: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
            orders: Vec::new(),
            passing: Vec::new(),
            lost: BTreeSet::new(),
        };
        for _ in 0..EVENTS_MAX {
            if bytes.is_empty() || !session.step(&mut bytes) {
                return;
            }
        }
    });
}

impl Session {
    /// One event; false where the primary has broken the protocol, which ends the session.
    fn step(&mut self, bytes: &mut Bytes<'_>) -> bool {
        let what = bytes.u8();
        let which = usize::from(what >> 3);
        match what % 8 {
            0 if !self.running.is_empty() => {
                let job = self.running.swap_remove(which % self.running.len());
                self.finish(&job)
            }
            1 if !self.filling.is_empty() => {
                let id = self.filling.swap_remove(which % self.filling.len());
                self.book(id).filled = true;
                self.handle(WorkerEvent::Filled(id))
            }
            2 if !self.leaving.is_empty() => {
                let tile = self.leaving.swap_remove(which % self.leaving.len());
                self.handle(WorkerEvent::Returned(tile))
            }
            7 => self.relaying(bytes),
            // Bodies follow their heads, so the next head arrives after this body has landed.
            _ if self.landing.is_some() => self.land(),
            3 => {
                let len = usize::from(bytes.u8());
                self.announce(bytes.take(len))
            }
            4 => {
                let store = product(bytes);
                self.announce(&store.encode())
            }
            5 => {
                let store = sums(bytes);
                self.announce(&store.encode())
            }
            _ => {
                let store = any_store(bytes);
                self.announce(&store.encode())
            }
        }
    }

    fn book(&mut self, id: u32) -> &mut Stored {
        self.stored.get_mut(&id).unwrap_or_else(|| panic!("matrix {id} is not stored"))
    }

    fn announce(&mut self, head: &[u8]) -> bool {
        let Ok(store) = StoreHead::decode(head) else { return false };
        let goes_on = self.handle(WorkerEvent::Announced(&store));
        self.landing = Some(store);
        goes_on
    }

    fn land(&mut self) -> bool {
        let Some(store) = self.landing.take() else { return true };
        for header in store.matrices.iter().filter(|m| m.source != MatrixSource::Relayed) {
            self.book(header.id).landed += header.lines;
        }
        // A broken rule may follow valid jobs, so their actions are lost with the session.
        for job in &store.jobs {
            if let Some(tile) = self.stored.get_mut(&job.c) {
                tile.queue.push_back(*job);
            }
        }
        self.handle(WorkerEvent::Landed(&store))
    }

    fn finish(&mut self, job: &Job) -> bool {
        let tile = self.book(job.c);
        tile.running = false;
        tile.done += 1;
        tile.leaving = job.then == Then::Return;
        tile.closed = job.then == Then::Close;
        self.handle(WorkerEvent::Finished(job))
    }

    fn handle(&mut self, event: WorkerEvent<'_>) -> bool {
        let Ok(actions) = self.worker.handle(event) else { return false };
        for action in actions {
            self.act(action);
        }
        self.worker.validate();
        assert_eq!(self.freed_bytes, 0, "freed bytes are not credited");
        self.nothing_is_forgotten();
        self.no_order_is_forgotten();
        true
    }

    fn act(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Reserve(header) => self.reserve(header),
            WorkerAction::Fill(id) => {
                let stored = self.book(id);
                assert!(stored.header.source == MatrixSource::Generated && !stored.filled, "fill {id}");
                assert!(!self.filling.contains(&id), "{id} is being filled");
                self.filling.push(id);
            }
            WorkerAction::Start(run) => self.start(run),
            WorkerAction::Return { tile, step_start, step_end, .. } => {
                let stored = self.book(tile);
                assert!(stored.leaving && !stored.running && stored.queue.is_empty(), "return {tile}");
                assert_eq!(stored.header.uses, 0, "operand {tile} is sent back");
                assert!(step_start < step_end, "steps {step_start}..{step_end}");
                self.leaving.push(tile);
            }
            WorkerAction::Release(id) => {
                let gone = self.stored.remove(&id).unwrap_or_else(|| panic!("{id} is released twice"));
                let in_use = self.running.iter().any(|j| j.a == id || j.b == id || j.c == id);
                let is_passed = self.passing.iter().any(|order| order.id == id);
                let moves = self.filling.contains(&id) || self.leaving.contains(&id) || is_passed;
                assert!(!in_use && !moves, "{id} is in use");
                self.held_bytes -= gone.header.charged_bytes();
                self.freed_bytes += gone.header.charged_bytes();
            }
            WorkerAction::Credit(bytes) => self.freed_bytes -= bytes,
            WorkerAction::Pass(order) => self.pass(order),
            WorkerAction::Missing(missing) => self.missing(missing),
        }
    }

    fn reserve(&mut self, header: MatrixHeader) {
        self.held_bytes += header.charged_bytes();
        assert!(self.held_bytes <= self.grant_bytes, "{} of {}", self.held_bytes, self.grant_bytes);
        let stored = Stored {
            header,
            landed: 0,
            filled: false,
            queue: VecDeque::new(),
            done: 0,
            running: false,
            leaving: false,
            closed: false,
        };
        assert!(self.stored.insert(header.id, stored).is_none(), "{} is reserved twice", header.id);
    }

    fn start(&mut self, run: RunnableJob) {
        assert!(self.ready(&run.job), "{:?} lacks something", run.job);
        let tile = self.book(run.job.c);
        assert_eq!(tile.queue.pop_front(), Some(run.job), "jobs of a tile keep their order");
        let source = tile.header.source;
        assert_eq!(run.reads_tile, source != MatrixSource::Vacant || tile.done > 0);
        assert_eq!(run.scales_tile, source == MatrixSource::Data && tile.done == 0);
        tile.running = true;
        self.running.push(run.job);
    }

    fn ready(&self, job: &Job) -> bool {
        let read = |id: &u32| self.stored.get(id).is_some_and(Stored::may_be_read);
        read(&job.a) && read(&job.b) && self.stored.get(&job.c).is_some_and(Stored::may_be_written)
    }

    /// Every job that can run, runs.
    fn nothing_is_forgotten(&self) {
        for tile in self.stored.values() {
            if let Some(job) = tile.queue.front() {
                assert!(!self.ready(job), "{job:?} is forgotten");
            }
        }
    }
}
