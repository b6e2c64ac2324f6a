//! State machine of a worker's session: which matrices are stored, which jobs wait for which matrices, which
//! may run, what is sent back.
//!
//! Place in the flow: the worker's shell calls `handle` with each event (a store message was announced or has
//! landed, a thread or the link has finished something) and carries out the actions.
//!
//! Invariants: stored bytes never exceed the grant. A job runs when both operands are complete, the initial
//! elements of its target are present, and every earlier job of that target is done. The jobs of a target (a
//! tile, or an operand that jobs make) run one at a time, in increasing order of step. An operand is freed by
//! the last of the uses that it was announced with. A job that could run waits only as `send_backpressure` and
//! `addition_throttle` say, while other jobs run or tiles are being sent. The size of this state is bounded by the grant: every
//! matrix is charged at least `MATRIX_BYTES_MIN`, and every job `USE_BYTES` at each of its operands. Jobs
//! that wait for each other for ever cost nothing but their own session's grant.
//!
//! Deliberately absent: plans (a worker sees jobs only), the memory itself, and time, except in `Silence`,
//! which is independent of the rest.

mod addition_throttle;
mod priority;
mod relay;
mod send_backpressure;
mod silence;
mod start;
mod stored;
mod validate;

use self::addition_throttle::AdditionThrottle;
pub use self::priority::{Priority, PriorityQueue};
use self::send_backpressure::SendBackpressure;
pub use self::silence::Silence;
pub use self::start::{StartLimits, TaskLength};
use self::stored::Stored;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;
use bramble_base::Layout;
use bramble_wire::ProtocolError;
use bramble_wire::message::{
    Forward, Job, MatrixHeader, MatrixSource, Missing, Operation, PieceHead, StoreHead, Then,
};

/// Something that the shell has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// Provide memory for this matrix before its body lands.
    Reserve(MatrixHeader),
    /// Generate the elements of this matrix, then report `Filled`.
    Fill(u32),
    /// Run a job, then report `Finished`.
    Start(RunnableJob),
    /// Send the tile back, then report `Returned`.
    Return {
        /// Id of the tile.
        tile: u32,
        /// Number of the attempt at this tile.
        epoch: u32,
        /// First step in the sum.
        step_start: u32,
        /// First step after the sum.
        step_end: u32,
    },
    /// Drop a matrix.
    Release(u32),
    /// Tell the primary that this many bytes are free.
    Credit(u64),
    /// Send a complete matrix to another worker, then report `Passed`, even if that failed.
    Pass(Forward),
    /// Tell the primary that the worker that should relay a matrix does not deliver it.
    Missing(Missing),
}

/// Something that happened at the worker.
#[derive(Clone, Copy, Debug)]
pub enum WorkerEvent<'a> {
    /// The head of a store message has arrived: its matrices need memory.
    Announced(&'a StoreHead),
    /// The elements of an announced tile are in the primary's own memory. Comes before `Landed`.
    Leased(u32),
    /// The body of an announced store message has landed.
    Landed(&'a StoreHead),
    /// A generated operand has its elements.
    Filled(u32),
    /// The running job of a tile, or of an operand that jobs make, is done.
    Finished(&'a Job),
    /// A tile has been sent back.
    Returned(u32),
    /// The primary orders this worker to pass matrices on.
    Relay(&'a [Forward]),
    /// A matrix was passed on, or could not be.
    Passed(&'a Forward),
    /// Lines from another worker have landed, after `expects` allowed them.
    Piece(&'a PieceHead),
    /// The link to another worker has ended, so nothing more arrives over it.
    PeerLost(u32),
}

/// A job that may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnableJob {
    /// The job.
    pub job: Job,
    /// Whether the target's elements count: false for the first job of a vacant matrix, which overwrites
    /// them.
    pub reads_tile: bool,
    /// Whether the target holds the old C, to be scaled by β.
    pub scales_tile: bool,
}

/// State of one session.
pub struct Worker {
    grant_bytes: u64,
    held_bytes: u64,
    held_bytes_max: u64,
    matrices: BTreeMap<u32, Stored>,
    /// Other workers whose links have ended.
    lost: BTreeSet<u32>,
    /// Number of matrices that the shell is passing on.
    passing: usize,
    /// Tiles in the primary's own memory.
    leased: BTreeSet<u32>,
    /// Jobs that wait for the link.
    backpressure: SendBackpressure,
    /// Additions that wait for the compute threads.
    throttle: AdditionThrottle,
}

impl Worker {
    /// A session that may store `grant_bytes` of matrices.
    pub fn new(grant_bytes: u64, limits: StartLimits) -> Self {
        Self {
            grant_bytes,
            held_bytes: 0,
            held_bytes_max: 0,
            matrices: BTreeMap::new(),
            lost: BTreeSet::new(),
            passing: 0,
            leased: BTreeSet::new(),
            backpressure: SendBackpressure::new(limits),
            throttle: AdditionThrottle::new(limits.additions),
        }
    }

    /// The highest charge so far: the memory that a primary has needed here.
    pub fn held_bytes_max(&self) -> u64 {
        self.held_bytes_max
    }

    /// Handles one event and returns the actions. An error means that the primary broke the protocol.
    pub fn handle(&mut self, event: WorkerEvent<'_>) -> Result<Vec<WorkerAction>, ProtocolError> {
        self.handle_all([event])
    }

    /// Handles events that came together. Additions start after the last event, so that the one of highest
    /// priority starts first.
    pub fn handle_all<'a>(
        &mut self,
        events: impl IntoIterator<Item = WorkerEvent<'a>>,
    ) -> Result<Vec<WorkerAction>, ProtocolError> {
        let mut actions = Vec::new();
        for event in events {
            self.handle_one(event, &mut actions)?;
        }
        self.start_additions(&mut actions);
        Ok(actions)
    }

    fn handle_one(
        &mut self,
        event: WorkerEvent<'_>,
        actions: &mut Vec<WorkerAction>,
    ) -> Result<(), ProtocolError> {
        match event {
            WorkerEvent::Announced(store) => self.reserve(store, actions)?,
            WorkerEvent::Leased(tile) => self.leased(tile),
            WorkerEvent::Landed(store) => self.landed(store, actions)?,
            WorkerEvent::Filled(id) => self.complete(id, actions),
            WorkerEvent::Finished(job) => self.finished(job, actions),
            WorkerEvent::Returned(tile) => self.returned(tile, actions),
            WorkerEvent::Relay(forwards) => self.relay(forwards, actions)?,
            WorkerEvent::Passed(forward) => self.passed(forward, actions),
            WorkerEvent::Piece(piece) => self.piece(piece, actions),
            WorkerEvent::PeerLost(peer) => self.peer_lost(peer, actions),
        }
        Ok(())
    }

    /// Checks the head of a store message and charges the memory of its matrices.
    fn reserve(&mut self, store: &StoreHead, actions: &mut Vec<WorkerAction>) -> Result<(), ProtocolError> {
        for header in &store.matrices {
            let known = self.matrices.get_mut(&header.id);
            may_be(header, known.as_deref())?;
            if let Some(known) = known {
                known.announce(header)?;
                continue;
            }
            self.matrices.insert(header.id, Stored::new(header)?);
            let held = self.held_bytes.checked_add(header.charged_bytes());
            let Some(held) = held.filter(|held| *held <= self.grant_bytes) else {
                let (id, need, grant) = (header.id, header.charged_bytes(), self.grant_bytes);
                let what = format!("matrix {id} of {need} bytes exceeds the grant of {grant} bytes");
                return Err(ProtocolError::new(what));
            };
            self.held_bytes = held;
            self.held_bytes_max = self.held_bytes_max.max(held);
            actions.push(WorkerAction::Reserve(*header));
            if header.source == MatrixSource::Relayed && self.lost.contains(&header.first_line) {
                self.miss(header.id, actions);
            }
        }
        Ok(())
    }

    /// A tile is in the primary's own memory: nothing of it will be sent.
    fn leased(&mut self, tile: u32) {
        if self.matrices.contains_key(&tile) {
            self.leased.insert(tile);
        }
    }

    /// The body of an announced store message has landed.
    fn landed(&mut self, store: &StoreHead, actions: &mut Vec<WorkerAction>) -> Result<(), ProtocolError> {
        for header in &store.matrices {
            let Some(matrix) = self.matrices.get_mut(&header.id) else { continue };
            if header.source == MatrixSource::Relayed {
                continue;
            }
            matrix.lines += header.lines;
            if header.source == MatrixSource::Generated {
                actions.push(WorkerAction::Fill(header.id));
            } else if matrix.is_target() {
                self.try_start(header.id, actions);
            } else {
                self.wake(header.id, actions);
            }
        }
        for job in &store.jobs {
            self.queue(*job)?;
            self.try_start(job.c, actions);
        }
        Ok(())
    }

    /// The running job of a target is done.
    fn finished(&mut self, job: &Job, actions: &mut Vec<WorkerAction>) {
        self.release_start(job);
        let Some(target) = self.matrices.get_mut(&job.c) else { return };
        target.finish(job.then == Then::Return);
        if job.then == Then::Return {
            actions.push(WorkerAction::Return {
                tile: job.c,
                epoch: target.epoch,
                step_start: target.steps.map_or(job.step, |(first, _)| first),
                // Cannot saturate: `check` refuses the last step number.
                step_end: job.step.saturating_add(1),
            });
        }
        for id in [job.a, job.b] {
            self.used(id, actions);
        }
        if job.then == Then::Close {
            self.complete(job.c, actions);
        }
        self.try_start(job.c, actions);
    }

    /// The tile was sent back; its memory is free.
    fn returned(&mut self, tile: u32, actions: &mut Vec<WorkerAction>) {
        self.tile_sent(tile, actions);
        self.forget(tile, actions);
    }

    /// Checks and queues a job.
    fn queue(&mut self, job: Job) -> Result<(), ProtocolError> {
        self.check(&job)?;
        for id in [job.a, job.b] {
            let Some(operand) = self.matrices.get_mut(&id) else { continue };
            operand.promised += 1;
            if !operand.is_whole() {
                operand.wait(job.c);
            }
        }
        if let Some(target) = self.matrices.get_mut(&job.c) {
            target.queue(job, job.then != Then::Continue);
        }
        Ok(())
    }

    fn check(&self, job: &Job) -> Result<(), ProtocolError> {
        let refuse = |what: &str| Err(ProtocolError::new(format!("a job for matrix {}: {what}", job.c)));
        let operand = |id: u32| self.matrices.get(&id).filter(|m| !m.is_tile());
        let (Some(a), Some(b)) = (operand(job.a), operand(job.b)) else {
            return refuse("an operand of it is not stored here");
        };
        let Some(c) = self.matrices.get(&job.c) else {
            return refuse("its target is not stored here");
        };
        if !c.is_tile() && !c.is_made() {
            return refuse("it writes an operand that no job makes");
        }
        if job.a == job.b || job.a == job.c || job.b == job.c {
            return refuse("it uses one operand twice, or reads its target");
        }
        if !fit(job.operation, &a.header, &b.header, &c.header) {
            return refuse("the shapes or types of its matrices do not fit");
        }
        match job.then {
            Then::Return if !c.is_tile() => return refuse("it sends back an operand"),
            Then::Close if c.is_tile() => return refuse("it closes a tile, which no job reads"),
            Then::Continue | Then::Return | Then::Close => {}
        }
        if c.ended {
            return refuse("it comes after the job that sent it back, or closed it");
        }
        // A result names the first step after its sum.
        if job.step == u32::MAX {
            return refuse("its step is the greatest possible number");
        }
        if c.steps.is_some_and(|(_, last)| last >= job.step) {
            return refuse("its step is not after the one before");
        }
        if a.promised == a.header.uses || b.promised == b.header.uses {
            return refuse("an operand of it was announced for fewer jobs");
        }
        Ok(())
    }

    /// Starts the target's next job if nothing is missing.
    fn try_start(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        let Some(job) = self.matrices.get(&id).and_then(Stored::next) else { return };
        let whole = |id: &u32| self.matrices.get(id).is_some_and(Stored::is_whole);
        if whole(&job.a)
            && whole(&job.b)
            && let Some(run) = self.matrices.get_mut(&id).and_then(Stored::start)
        {
            self.start_or_wait(run, actions);
        }
    }

    /// An operand was generated, or made by jobs.
    fn complete(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        if let Some(operand) = self.matrices.get_mut(&id) {
            operand.complete = true;
            self.wake(id, actions);
        }
    }

    /// If an operand is now complete, starts the jobs and relay orders that waited for it.
    fn wake(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        let Some(operand) = self.matrices.get_mut(&id).filter(|m| m.is_whole()) else { return };
        let waiting = operand.take_waiting();
        for target in waiting.targets {
            self.try_start(target, actions);
        }
        for forward in waiting.orders {
            self.pass(forward, actions);
        }
    }

    /// One use of an operand is over; the last one frees it.
    fn used(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        let Some(operand) = self.matrices.get_mut(&id) else { return };
        operand.used += 1;
        if operand.used == operand.header.uses {
            self.forget(id, actions);
        }
    }

    /// A matrix is no longer needed.
    fn forget(&mut self, id: u32, actions: &mut Vec<WorkerAction>) {
        if let Some(gone) = self.matrices.remove(&id) {
            let bytes = gone.header.charged_bytes();
            self.held_bytes -= bytes;
            self.leased.remove(&id);
            actions.push(WorkerAction::Release(id));
            actions.push(WorkerAction::Credit(bytes));
        }
    }
}

/// Checks the announcement of a matrix, or of more lines of a known one.
fn may_be(header: &MatrixHeader, known: Option<&Stored>) -> Result<(), ProtocolError> {
    let (id, source, is_tile) = (header.id, header.source, header.uses == 0);
    let by_rows = header.layout == Layout::RowMajor;
    let is_other = known.is_some_and(|known| known.is_tile() != is_tile);
    let is_foreign =
        matches!(source, MatrixSource::Generated | MatrixSource::Relayed | MatrixSource::Resident);
    let what = if is_tile && (is_other || is_foreign || !by_rows) {
        format!("tile {id} is an operand, or generated, or relayed, or resident, or not by rows")
    } else if !is_tile && (is_other || source == MatrixSource::Partial) {
        format!("operand {id} is a tile, or the sum of one")
    } else if source == MatrixSource::Vacant && !by_rows {
        format!("operand {id} is made by jobs, but not by rows")
    } else {
        return Ok(());
    };
    Err(ProtocolError::new(what))
}

/// Whether shapes and types of the matrices fit the operation.
fn fit(operation: Operation, a: &MatrixHeader, b: &MatrixHeader, c: &MatrixHeader) -> bool {
    let shapes = match operation {
        Operation::Multiply => a.rows == c.rows && b.cols == c.cols && a.cols == b.rows,
        Operation::Add | Operation::Subtract => a.shape() == c.shape() && b.shape() == c.shape(),
    };
    shapes && a.dtype == c.dtype && b.dtype == c.dtype
}
