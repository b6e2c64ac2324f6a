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
//! Deliberately absent: plans (a worker sees jobs only), memory itself, time.

mod stored;
mod validate;

use self::stored::{Operand, Target, continues, starts};
use crate::ProtocolError;
use crate::message::{Job, MatrixHeader, Operation, Source, StoreHead, Then};
use bramble_matrix::Layout;
use std::collections::BTreeMap;

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
    /// What jobs read, or will read when it is made.
    operands: BTreeMap<u32, Operand>,
    /// What jobs write: tiles, and operands that are being made, which are among the operands too.
    targets: BTreeMap<u32, Target>,
}

impl Worker {
    /// A session that may hold `grant_bytes` of matrices.
    pub fn new(grant_bytes: u64) -> Self {
        Self { grant_bytes, held_bytes: 0, operands: BTreeMap::new(), targets: BTreeMap::new() }
    }

    /// One event in, actions out. An error means that the primary broke the protocol.
    pub fn handle(&mut self, event: Event<'_>) -> Result<Vec<Action>, ProtocolError> {
        match event {
            Event::Announced(store) => self.reserve(store),
            Event::Landed(store) => self.landed(store),
            Event::Filled(id) => Ok(self.filled(id)),
            Event::Finished(job) => Ok(self.finished(job)),
            Event::Returned(tile) => Ok(self.returned(tile)),
        }
    }

    /// Checks a store's head and takes the memory that its matrices need.
    fn reserve(&mut self, store: &StoreHead) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
        for header in &store.matrices {
            let is_new = match header.uses {
                0 => self.reserve_tile(header)?,
                _ => self.reserve_operand(header)?,
            };
            if is_new {
                let held = self.held_bytes.checked_add(header.charged_bytes());
                let Some(held) = held.filter(|held| *held <= self.grant_bytes) else {
                    let (id, need, grant) = (header.id, header.charged_bytes(), self.grant_bytes);
                    let what = format!("matrix {id} of {need} bytes exceeds the grant of {grant} bytes");
                    return Err(ProtocolError::new(what));
                };
                self.held_bytes = held;
                actions.push(Action::Reserve(*header));
            }
        }
        Ok(actions)
    }

    fn reserve_operand(&mut self, header: &MatrixHeader) -> Result<bool, ProtocolError> {
        if let Some(known) = self.operands.get_mut(&header.id) {
            continues(&known.header, header, &mut known.announced)?;
            return Ok(false);
        }
        let is_made = header.source == Source::Vacant;
        if header.source == Source::Partial || self.targets.contains_key(&header.id) {
            return Err(ProtocolError::new(format!("operand {} is a tile, or the sum of one", header.id)));
        }
        if is_made && header.layout != Layout::RowMajor {
            return Err(ProtocolError::new(format!(
                "operand {} is made by jobs, but not by rows",
                header.id
            )));
        }
        starts(header)?;
        if is_made {
            self.targets.insert(header.id, Target::new(header));
        }
        self.operands.insert(header.id, Operand::new(header));
        Ok(true)
    }

    fn reserve_tile(&mut self, header: &MatrixHeader) -> Result<bool, ProtocolError> {
        let by_rows = header.layout == Layout::RowMajor;
        if header.source == Source::Generated || !by_rows || self.operands.contains_key(&header.id) {
            let what = format!("tile {} is an operand, or generated, or not by rows", header.id);
            return Err(ProtocolError::new(what));
        }
        if let Some(known) = self.targets.get_mut(&header.id) {
            continues(&known.header, header, &mut known.announced)?;
            return Ok(false);
        }
        starts(header)?;
        self.targets.insert(header.id, Target::new(header));
        Ok(true)
    }

    /// The body of a store that was reserved has landed.
    fn landed(&mut self, store: &StoreHead) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
        for header in &store.matrices {
            if let Some(target) = self.targets.get_mut(&header.id) {
                target.lines += header.lines;
                self.try_start(header.id, &mut actions);
            } else if let Some(operand) = self.operands.get_mut(&header.id) {
                operand.lines += header.lines;
                if header.source == Source::Generated {
                    actions.push(Action::Fill(header.id));
                } else {
                    self.wake(header.id, &mut actions);
                }
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
        let Some(target) = self.targets.get_mut(&job.c) else { return actions };
        assert!(target.running, "matrix {} finished a job that was not started", job.c);
        target.running = false;
        target.done += 1;
        if job.then == Then::Return {
            target.leaving = true;
            let step_start = target.first_step.unwrap_or(job.step);
            actions.push(Action::Return {
                tile: job.c,
                epoch: target.epoch,
                step_start,
                // `queue` refuses the step that has none after it.
                step_end: job.step.saturating_add(1),
            });
        }
        for id in [job.a, job.b] {
            self.used(id, &mut actions);
        }
        if job.then == Then::Close {
            self.targets.remove(&job.c);
            self.complete(job.c, &mut actions);
        }
        self.try_start(job.c, &mut actions);
        actions
    }

    /// The tile has left; its memory is free.
    fn returned(&mut self, tile: u32) -> Vec<Action> {
        let Some(gone) = self.targets.remove(&tile) else { return Vec::new() };
        let bytes = gone.header.charged_bytes();
        self.held_bytes -= bytes;
        vec![Action::Release(tile), Action::Credit(bytes)]
    }

    /// Queues a job, if it keeps every rule.
    fn queue(&mut self, job: Job) -> Result<(), ProtocolError> {
        self.check(&job)?;
        for id in [job.a, job.b] {
            let Some(operand) = self.operands.get_mut(&id) else { continue };
            operand.promised += 1;
            if !operand.whole() {
                operand.waiting.push(job.c);
            }
        }
        if let Some(target) = self.targets.get_mut(&job.c) {
            target.queue(job, job.then != Then::Continue);
        }
        Ok(())
    }

    fn check(&self, job: &Job) -> Result<(), ProtocolError> {
        let refuse = |what: &str| Err(ProtocolError::new(format!("a job for matrix {}: {what}", job.c)));
        let (Some(a), Some(b)) = (self.operands.get(&job.a), self.operands.get(&job.b)) else {
            return refuse("an operand of it is not stored here");
        };
        let Some(target) = self.targets.get(&job.c) else {
            return match self.operands.get(&job.c) {
                Some(made) if made.is_made() => refuse("it comes after the job that closed it"),
                Some(_) => refuse("it writes an operand that no job makes"),
                None => refuse("what it writes is not stored here"),
            };
        };
        if job.a == job.b || job.a == job.c || job.b == job.c {
            return refuse("it uses one operand twice, or reads what it writes");
        }
        if !fit(job.operation, &a.header, &b.header, &target.header) {
            return refuse("the shapes or types of its matrices do not fit");
        }
        match job.then {
            Then::Return if !target.is_tile() => return refuse("it sends back an operand"),
            Then::Close if target.is_tile() => return refuse("it closes a tile, which no job reads"),
            Then::Continue | Then::Return | Then::Close => {}
        }
        if target.ended {
            return refuse("it comes after the job that sent it back, or closed it");
        }
        // A result names the first step that is not in it.
        if job.step == u32::MAX {
            return refuse("its step has none after it");
        }
        if target.last_queued.is_some_and(|last| last >= job.step) {
            return refuse("its step is not after the one before");
        }
        if a.promised == a.header.uses || b.promised == b.header.uses {
            return refuse("an operand of it was announced for fewer jobs");
        }
        Ok(())
    }

    /// Starts the target's next job if nothing is missing.
    fn try_start(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(target) = self.targets.get_mut(&id) else { return };
        let Some(job) = target.next() else { return };
        let whole = |id: &u32| self.operands.get(id).is_some_and(Operand::whole);
        if whole(&job.a) && whole(&job.b) {
            actions.extend(target.start().map(Action::Start));
        }
    }

    /// An operand has been made, by a generator or by jobs.
    fn complete(&mut self, id: u32, actions: &mut Vec<Action>) {
        if let Some(operand) = self.operands.get_mut(&id) {
            operand.complete = true;
            self.wake(id, actions);
        }
    }

    /// An operand has become whole: whoever waited for it may start.
    fn wake(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(operand) = self.operands.get_mut(&id) else { return };
        if !operand.whole() {
            return;
        }
        for target in std::mem::take(&mut operand.waiting) {
            self.try_start(target, actions);
        }
    }

    /// One use of an operand is over; the last one frees it.
    fn used(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(operand) = self.operands.get_mut(&id) else { return };
        operand.used += 1;
        if operand.used == operand.header.uses {
            let bytes = operand.header.charged_bytes();
            self.operands.remove(&id);
            self.held_bytes -= bytes;
            actions.push(Action::Release(id));
            actions.push(Action::Credit(bytes));
        }
    }
}

/// Whether an operation can be done with matrices of these shapes and types.
fn fit(operation: Operation, a: &MatrixHeader, b: &MatrixHeader, c: &MatrixHeader) -> bool {
    let shapes = match operation {
        Operation::Multiply => a.rows == c.rows && b.cols == c.cols && a.cols == b.rows,
        Operation::Add | Operation::Subtract => a.shape() == c.shape() && b.shape() == c.shape(),
    };
    shapes && a.dtype == c.dtype && b.dtype == c.dtype
}
