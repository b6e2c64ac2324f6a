//! The worker's end: what is stored, which jobs wait for what, what may run, what is sent back.
//!
//! Place in the flow: the worker's shell calls `handle` with what happened (a store's head has come, its body
//! has landed, a thread or the link has got something done) and does what comes out.
//!
//! Invariants: bytes held never exceed the grant; a job runs when both operands are whole, the elements of what it
//! writes are there, and every earlier job of that is done; the jobs of a target (a tile, or an operand that
//! jobs make) run one at a time and in rising order; an operand is freed by the last of the uses that it was announced
//! with. What is remembered is bounded by the grant: every matrix counts for at least `MATRIX_BYTES_MIN`, every
//! job for `USE_BYTES` at both of its operands. Jobs that wait for each other wait, and cost nothing but their
//! session's own grant.
//!
//! Deliberately absent: plans (a worker sees jobs only), memory itself; time, but in `Silence`, which knows nothing else.

mod relay;
mod silence;
mod stored;
mod turns;
mod validate;

pub use self::silence::Silence;
use self::stored::Stored;
pub use self::turns::{Turn, Turns};
use crate::ProtocolError;
use crate::message::{Forward, Job, MatrixHeader, Missing, Operation, PieceHead, Source, StoreHead, Then};
use bramble_matrix::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// What the shell has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Have memory for this matrix before its body lands.
    Reserve(MatrixHeader),
    /// Make the elements of this generated matrix, then call `filled`.
    Fill(u32),
    /// Run a job, then call `finished`.
    Start(Run),
    /// Send the tile back, then call `returned`.
    Return {
        /// Id of the tile.
        tile: u32,
        /// Which attempt at it.
        epoch: u32,
        /// First step in the sum.
        step_start: u32,
        /// First step not in it.
        step_end: u32,
    },
    /// Forget a matrix.
    Release(u32),
    /// Tell the primary that so many bytes are free.
    Credit(u64),
    /// Send a whole matrix to another worker, then say `Passed`, also where that failed.
    Pass(Forward),
    /// Tell the primary that a matrix does not come from the worker that should have sent it.
    Missing(Missing),
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A store's head has come: its matrices need memory.
    Announced(&'a StoreHead),
    /// The body of a store that was announced has landed.
    Landed(&'a StoreHead),
    /// A generated operand has its elements.
    Filled(u32),
    /// The running job of a tile, or of an operand that jobs make, is done.
    Finished(&'a Job),
    /// A tile has left.
    Returned(u32),
    /// The primary has ordered matrices to be passed on.
    Relay(&'a [Forward]),
    /// A matrix has been passed on, or could not be.
    Passed(&'a Forward),
    /// Lines from another worker have landed; `expects` was asked before.
    Piece(&'a PieceHead),
    /// The link to another worker has ended; nothing more comes over it.
    PeerLost(u32),
}

/// A job that may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The job.
    pub job: Job,
    /// Whether the elements of what it writes count: false for the first job of a vacant matrix, which overwrites
    /// them.
    pub reads_tile: bool,
    /// Whether they are the old C and are to be scaled by β.
    pub scales_tile: bool,
}

/// The state of one session.
pub struct Worker {
    grant_bytes: u64,
    held_bytes: u64,
    held_bytes_max: u64,
    matrices: BTreeMap<u32, Stored>,
    /// Other workers that cannot be reached any more.
    lost: BTreeSet<u32>,
    /// Matrices that the shell is passing on.
    passing: usize,
}

impl Worker {
    /// A session that may hold `grant_bytes` of matrices.
    pub fn new(grant_bytes: u64) -> Self {
        Self {
            grant_bytes,
            held_bytes: 0,
            held_bytes_max: 0,
            matrices: BTreeMap::new(),
            lost: BTreeSet::new(),
            passing: 0,
        }
    }

    /// The most that was held at once so far, as it is charged: what a primary has ever needed here.
    pub fn held_bytes_max(&self) -> u64 {
        self.held_bytes_max
    }

    /// One event in, actions out. An error means that the primary broke the protocol.
    pub fn handle(&mut self, event: Event<'_>) -> Result<Vec<Action>, ProtocolError> {
        match event {
            Event::Announced(store) => self.reserve(store),
            Event::Landed(store) => self.landed(store),
            Event::Filled(id) => Ok(self.filled(id)),
            Event::Finished(job) => Ok(self.finished(job)),
            Event::Returned(tile) => Ok(self.returned(tile)),
            Event::Relay(forwards) => self.relay(forwards),
            Event::Passed(forward) => Ok(self.passed(forward)),
            Event::Piece(piece) => Ok(self.piece(piece)),
            Event::PeerLost(peer) => Ok(self.peer_lost(peer)),
        }
    }

    /// Checks a store's head and takes the memory that its matrices need.
    fn reserve(&mut self, store: &StoreHead) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
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
            actions.push(Action::Reserve(*header));
            if header.source == Source::Relayed && self.lost.contains(&header.first_line) {
                self.miss(header.id, &mut actions);
            }
        }
        Ok(actions)
    }

    /// The body of a store that was reserved has landed.
    fn landed(&mut self, store: &StoreHead) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
        for header in &store.matrices {
            let Some(matrix) = self.matrices.get_mut(&header.id) else { continue };
            if header.source == Source::Relayed {
                continue;
            }
            matrix.lines += header.lines;
            if header.source == Source::Generated {
                actions.push(Action::Fill(header.id));
            } else if matrix.is_target() {
                self.try_start(header.id, &mut actions);
            } else {
                self.wake(header.id, &mut actions);
            }
        }
        for job in &store.jobs {
            self.queue(*job)?;
            self.try_start(job.c, &mut actions);
        }
        Ok(actions)
    }

    /// A generated operand has its elements.
    fn filled(&mut self, id: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        self.complete(id, &mut actions);
        actions
    }

    /// The running job of that target is done.
    fn finished(&mut self, job: &Job) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(target) = self.matrices.get_mut(&job.c) else { return actions };
        target.finish(job.then == Then::Return);
        if job.then == Then::Return {
            actions.push(Action::Return {
                tile: job.c,
                epoch: target.epoch,
                step_start: target.steps.map_or(job.step, |(first, _)| first),
                // `queue` refuses the step that has none after it.
                step_end: job.step.saturating_add(1),
            });
        }
        for id in [job.a, job.b] {
            self.used(id, &mut actions);
        }
        if job.then == Then::Close {
            self.complete(job.c, &mut actions);
        }
        self.try_start(job.c, &mut actions);
        actions
    }

    /// The tile has left; its memory is free.
    fn returned(&mut self, tile: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        self.forget(tile, &mut actions);
        actions
    }

    /// Queues a job, if it keeps every rule.
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
            return refuse("what it writes is not stored here");
        };
        if !c.is_tile() && !c.is_made() {
            return refuse("it writes an operand that no job makes");
        }
        if job.a == job.b || job.a == job.c || job.b == job.c {
            return refuse("it uses one operand twice, or reads what it writes");
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
        // A result names the first step that is not in it.
        if job.step == u32::MAX {
            return refuse("its step has none after it");
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
    fn try_start(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(job) = self.matrices.get(&id).and_then(Stored::next) else { return };
        let whole = |id: &u32| self.matrices.get(id).is_some_and(Stored::is_whole);
        if whole(&job.a)
            && whole(&job.b)
            && let Some(target) = self.matrices.get_mut(&id)
        {
            actions.extend(target.start().map(Action::Start));
        }
    }

    /// An operand has been made, by a generator or by jobs.
    fn complete(&mut self, id: u32, actions: &mut Vec<Action>) {
        if let Some(operand) = self.matrices.get_mut(&id) {
            operand.complete = true;
            self.wake(id, actions);
        }
    }

    /// An operand may have become whole: whoever waited for it may start.
    fn wake(&mut self, id: u32, actions: &mut Vec<Action>) {
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
    fn used(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(operand) = self.matrices.get_mut(&id) else { return };
        operand.used += 1;
        if operand.used == operand.header.uses {
            self.forget(id, actions);
        }
    }

    /// A matrix is not needed any more.
    fn forget(&mut self, id: u32, actions: &mut Vec<Action>) {
        if let Some(gone) = self.matrices.remove(&id) {
            let bytes = gone.header.charged_bytes();
            self.held_bytes -= bytes;
            actions.push(Action::Release(id));
            actions.push(Action::Credit(bytes));
        }
    }
}

/// Whether a matrix may be announced so; it may be a part of one that is known.
fn may_be(header: &MatrixHeader, known: Option<&Stored>) -> Result<(), ProtocolError> {
    let (id, source, is_tile) = (header.id, header.source, header.uses == 0);
    let by_rows = header.layout == Layout::RowMajor;
    let is_other = known.is_some_and(|known| known.is_tile() != is_tile);
    let is_foreign = matches!(source, Source::Generated | Source::Relayed);
    let what = if is_tile && (is_other || is_foreign || !by_rows) {
        format!("tile {id} is an operand, or generated, or relayed, or not by rows")
    } else if !is_tile && (is_other || source == Source::Partial) {
        format!("operand {id} is a tile, or the sum of one")
    } else if source == Source::Vacant && !by_rows {
        format!("operand {id} is made by jobs, but not by rows")
    } else {
        return Ok(());
    };
    Err(ProtocolError::new(what))
}

/// Whether an operation can be done with matrices of these shapes and types.
fn fit(operation: Operation, a: &MatrixHeader, b: &MatrixHeader, c: &MatrixHeader) -> bool {
    let shapes = match operation {
        Operation::Multiply => a.rows == c.rows && b.cols == c.cols && a.cols == b.rows,
        Operation::Add | Operation::Subtract => a.shape() == c.shape() && b.shape() == c.shape(),
    };
    shapes && a.dtype == c.dtype && b.dtype == c.dtype
}
