//! The worker's end: what is stored, which jobs wait for what, what may run, what is sent back.
//!
//! Place in the flow: the worker's shell calls `handle` with what happened (a store's head has come, its body
//! has landed, a thread or the link has got something done) and does what comes out.
//!
//! Invariants: bytes held never exceed the grant; a job runs when both operands are whole, its tile's
//! elements are there, and every earlier step of its tile is done; the steps of a tile run one at a time
//! and in rising order; an operand is freed by the last of the uses that it was announced with. What is
//! remembered is bounded by the grant: every matrix counts for at least `MATRIX_BYTES_MIN`, every job for
//! `USE_BYTES` at both of its operands.
//!
//! Deliberately absent: plans (a worker sees jobs only), memory itself, time.

use crate::ProtocolError;
use crate::message::{Job, MatrixHeader, Source, StoreHead};
use bramble_matrix::Layout;
use std::collections::{BTreeMap, VecDeque};

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
    /// The running job of a tile is done.
    Finished(&'a Job),
    /// A tile has left.
    Returned(u32),
}

/// A job that may run now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The job.
    pub job: Job,
    /// Whether the tile's elements count: false for the first job of a vacant tile, which overwrites them.
    pub reads_tile: bool,
    /// Whether they are the old C and are to be scaled by β.
    pub scales_tile: bool,
}

struct Operand {
    header: MatrixHeader,
    /// Lines that were announced by heads, and lines that have landed.
    announced: u32,
    lines: u32,
    filled: bool,
    promised: u16,
    used: u16,
    waiting: Vec<u32>,
}

impl Operand {
    fn whole(&self) -> bool {
        match self.header.source {
            Source::Generated => self.filled,
            Source::Data | Source::Vacant => self.lines == self.header.lines_total().0,
        }
    }
}

struct Tile {
    header: MatrixHeader,
    announced: u32,
    lines: u32,
    queue: VecDeque<Job>,
    first_step: Option<u32>,
    last_queued: Option<u32>,
    done: u32,
    epoch: u32,
    running: bool,
    /// The job that sends it back has come.
    closed: bool,
    leaving: bool,
}

/// The state of one session.
pub struct Worker {
    grant_bytes: u64,
    held_bytes: u64,
    operands: BTreeMap<u32, Operand>,
    tiles: BTreeMap<u32, Tile>,
}

impl Worker {
    /// A session that may hold `grant_bytes` of matrices.
    pub fn new(grant_bytes: u64) -> Self {
        Self { grant_bytes, held_bytes: 0, operands: BTreeMap::new(), tiles: BTreeMap::new() }
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
        if header.source == Source::Vacant || self.tiles.contains_key(&header.id) {
            return Err(ProtocolError::new(format!("operand {} is a tile, or has no elements", header.id)));
        }
        if let Some(known) = self.operands.get_mut(&header.id) {
            continues(&known.header, header, &mut known.announced)?;
            return Ok(false);
        }
        starts(header)?;
        let operand = Operand {
            header: *header,
            announced: header.lines,
            lines: 0,
            filled: false,
            promised: 0,
            used: 0,
            waiting: Vec::new(),
        };
        self.operands.insert(header.id, operand);
        Ok(true)
    }

    fn reserve_tile(&mut self, header: &MatrixHeader) -> Result<bool, ProtocolError> {
        let by_rows = header.layout == Layout::RowMajor;
        if header.source == Source::Generated || !by_rows || self.operands.contains_key(&header.id) {
            let what = format!("tile {} is an operand, or generated, or not by rows", header.id);
            return Err(ProtocolError::new(what));
        }
        if let Some(known) = self.tiles.get_mut(&header.id) {
            continues(&known.header, header, &mut known.announced)?;
            return Ok(false);
        }
        starts(header)?;
        let tile = Tile {
            header: *header,
            announced: header.lines,
            lines: 0,
            queue: VecDeque::new(),
            first_step: None,
            last_queued: None,
            done: 0,
            epoch: 0,
            running: false,
            closed: false,
            leaving: false,
        };
        self.tiles.insert(header.id, tile);
        Ok(true)
    }

    /// The body of a store that was reserved has landed.
    fn landed(&mut self, store: &StoreHead) -> Result<Vec<Action>, ProtocolError> {
        let mut actions = Vec::new();
        for header in &store.matrices {
            if let Some(tile) = self.tiles.get_mut(&header.id) {
                tile.lines += header.lines;
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
        if let Some(operand) = self.operands.get_mut(&id) {
            operand.filled = true;
            self.wake(id, &mut actions);
        }
        actions
    }

    /// The running job of that tile is done.
    fn finished(&mut self, job: &Job) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(tile) = self.tiles.get_mut(&job.c) else { return actions };
        assert!(tile.running, "tile {} finished a job that was not started", job.c);
        tile.running = false;
        tile.done += 1;
        if job.returns {
            tile.leaving = true;
            let step_start = tile.first_step.unwrap_or(job.step);
            actions.push(Action::Return {
                tile: job.c,
                epoch: tile.epoch,
                step_start,
                // `queue` refuses the step that has none after it.
                step_end: job.step.saturating_add(1),
            });
        }
        for id in [job.a, job.b] {
            self.used(id, &mut actions);
        }
        self.try_start(job.c, &mut actions);
        actions
    }

    /// The tile has left; its memory is free.
    fn returned(&mut self, tile: u32) -> Vec<Action> {
        let Some(gone) = self.tiles.remove(&tile) else { return Vec::new() };
        let bytes = gone.header.charged_bytes();
        self.held_bytes -= bytes;
        vec![Action::Release(tile), Action::Credit(bytes)]
    }

    fn queue(&mut self, job: Job) -> Result<(), ProtocolError> {
        let refuse = |what: &str| Err(ProtocolError::new(format!("a job for tile {}: {what}", job.c)));
        let (Some(tile), Some(a), Some(b)) =
            (self.tiles.get(&job.c), self.operands.get(&job.a), self.operands.get(&job.b))
        else {
            return refuse("a matrix of it is not stored here");
        };
        let (a, b, c) = (a.header, b.header, tile.header);
        if a.rows != c.rows
            || b.cols != c.cols
            || a.cols != b.rows
            || a.dtype != c.dtype
            || b.dtype != c.dtype
        {
            return refuse("the shapes or types of its matrices do not fit");
        }
        if job.a == job.b || tile.closed {
            return refuse("it comes after the tile was sent back, or uses one operand twice");
        }
        // A result names the first step that is not in it.
        if job.step == u32::MAX {
            return refuse("its step has none after it");
        }
        if tile.last_queued.is_some_and(|last| last >= job.step) {
            return refuse("its step is not after the one before");
        }
        for id in [job.a, job.b] {
            let Some(operand) = self.operands.get_mut(&id) else { continue };
            if operand.promised == operand.header.uses {
                return refuse("an operand of it was announced for fewer jobs");
            }
            operand.promised += 1;
            if !operand.whole() {
                operand.waiting.push(job.c);
            }
        }
        if let Some(tile) = self.tiles.get_mut(&job.c) {
            tile.first_step.get_or_insert(job.step);
            tile.last_queued = Some(job.step);
            tile.epoch = job.epoch;
            tile.closed = job.returns;
            tile.queue.push_back(job);
        }
        Ok(())
    }

    /// Starts the tile's next job if nothing is missing.
    fn try_start(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(tile) = self.tiles.get(&id) else { return };
        let Some(job) = tile.queue.front().copied() else { return };
        let there = tile.header.source == Source::Vacant || tile.lines == tile.header.lines_total().0;
        let whole = |id: &u32| self.operands.get(id).is_some_and(Operand::whole);
        if tile.running || tile.leaving || !there || !whole(&job.a) || !whole(&job.b) {
            return;
        }
        let first = tile.done == 0;
        let has_elements = tile.header.source == Source::Data;
        if let Some(tile) = self.tiles.get_mut(&id) {
            tile.queue.pop_front();
            tile.running = true;
        }
        actions.push(Action::Start(Run {
            job,
            reads_tile: !first || has_elements,
            scales_tile: first && has_elements,
        }));
    }

    /// An operand has become whole: whoever waited for it may start.
    fn wake(&mut self, id: u32, actions: &mut Vec<Action>) {
        let Some(operand) = self.operands.get_mut(&id) else { return };
        if !operand.whole() {
            return;
        }
        for tile in std::mem::take(&mut operand.waiting) {
            self.try_start(tile, actions);
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

    /// Cross-checks every collection; for tests and the simulator, after each event.
    pub fn validate(&self) {
        let operands: u64 = self.operands.values().map(|o| o.header.charged_bytes()).sum();
        let tiles: u64 = self.tiles.values().map(|t| t.header.charged_bytes()).sum();
        assert_eq!(self.held_bytes, operands + tiles, "bytes held are the sum of what is stored");
        assert!(self.held_bytes <= self.grant_bytes, "never more than the grant");
        for operand in self.operands.values() {
            assert!(operand.used <= operand.promised && operand.promised <= operand.header.uses);
            assert!(operand.used < operand.header.uses, "a used-up operand is gone");
        }
        for tile in self.tiles.values() {
            let steps: Vec<u32> = tile.queue.iter().map(|j| j.step).collect();
            assert!(steps.windows(2).all(|s| s[0] < s[1]), "queued steps rise");
            assert!(!(tile.running && tile.leaving));
        }
    }
}

/// A matrix that is new has to start at its first line.
fn starts(header: &MatrixHeader) -> Result<(), ProtocolError> {
    let partial = header.source != Source::Data && header.lines != header.lines_total().0;
    if header.first_line != 0 || partial {
        return Err(ProtocolError::new(format!("matrix {} does not start at its first line", header.id)));
    }
    Ok(())
}

/// A matrix that is known has to go on where it stopped, and be the same.
fn continues(known: &MatrixHeader, header: &MatrixHeader, announced: &mut u32) -> Result<(), ProtocolError> {
    let same = MatrixHeader { first_line: known.first_line, lines: known.lines, ..*header } == *known;
    if !same || header.first_line != *announced || header.source != Source::Data {
        return Err(ProtocolError::new(format!("matrix {} comes twice, or out of order", header.id)));
    }
    *announced += header.lines;
    Ok(())
}
