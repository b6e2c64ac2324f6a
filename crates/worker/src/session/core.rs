//! What the tasks of one session share: the state machine, the store, the compute threads, the way out.
//!
//! Invariant: the state machine decides; what it asks for is done here, at once and without waiting.

use super::WorkerError;
use super::ahead::Ahead;
use super::ready::Ready;
use super::relay::Neighbours;
use crate::ledger::Grant;
use crate::memory::{Operand, Parts, Returning, Store, Tile};
use crate::pool::{Length, Pool, Task};
use crate::record::{Recorder, io_report};
use bramble_kernel::{Kernel, KernelElement, Sign, factors};
use bramble_link::{Arrived, ArrivedBody, Body, Frame, Meter, Section};
use bramble_matrix::{Buffer, DType, Generator, Lent, Rect, Span};
use bramble_schedule::ProtocolError;
use bramble_schedule::message::{
    Bye, Generated, Hello, Kind, MatrixHeader, Operation, ResultHead, Source, StoreHead, Then, encode_number,
};
use bramble_schedule::worker::{Action, Event, Run, Turn, Worker};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a task gives back.
pub(super) enum Done {
    /// With how long it was to take, where that was counted (`ready`).
    Ran(Run, Tile, Option<Length>),
    Filled(MatrixHeader, Buffer),
}

/// A frame to send, and what to do when it is gone.
pub(super) struct Leaving {
    /// `None` for the credit that has gathered by the time it leaves.
    pub(super) frame: Option<Frame>,
    /// The tile whose last lines these are, with its buffer.
    pub(super) last_of: Option<(u32, Option<Arc<Buffer>>)>,
}

/// What the tasks of one session share.
pub(super) struct Core {
    pub(super) state: Worker,
    pub(super) store: Store,
    pub(super) ahead: Ahead,
    pub(super) ready: Ready,
    pub(super) pool: Pool<Done>,
    /// Given back with the session, or when the last compute thread has finished what it was doing for it.
    pub(super) grant: Arc<Grant>,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) hello: Hello,
    /// To the writer; `None` when nothing more is to be said.
    pub(super) out: Option<mpsc::UnboundedSender<Leaving>>,
    /// Pongs that wait there. Tiles are bounded by the grant, so only these need a limit.
    pub(super) answers: Cell<usize>,
    /// Bytes that are free and not yet said to be; if any, a frame for them waits.
    pub(super) credit: Cell<u64>,
    /// The store message whose body is landing.
    pub(super) reserved: Option<StoreHead>,
    /// The primary was heard, or took something, since that was last asked.
    pub(super) is_heard: bool,
    /// The link wants checksums of the bodies that leave.
    pub(super) sums_bodies: bool,
    pub(super) neighbours: Neighbours,
    /// What the processor time of this thread goes to, if the primary wants to know.
    pub(super) meter: Rc<Meter>,
    /// When jobs ran, the same.
    pub(super) recorder: Recorder,
}

impl Core {
    pub(super) fn send(&self, kind: Kind, head: Vec<u8>, body: Body) {
        self.leave(Leaving { frame: Some(Frame::new(kind.code(), head, body)), last_of: None });
    }

    pub(super) fn leave(&self, leaving: Leaving) {
        let is_answer = leaving.frame.as_ref().is_some_and(|f| f.kind == Kind::Pong.code());
        if let Some(out) = &self.out
            && out.send(leaving).is_ok()
        {
            self.answers.set(self.answers.get() + usize::from(is_answer));
        }
    }

    /// Credit gathers while the link is busy, so that one frame at most waits for it.
    fn give_credit(&self, bytes: u64) {
        let before = self.credit.get();
        self.credit.set(before + bytes);
        if before == 0 {
            self.leave(Leaving { frame: None, last_of: None });
        }
    }

    /// The frame for the credit that has gathered.
    pub(super) fn take_credit(&self) -> Frame {
        Frame::new(Kind::Credit.code(), encode_number(self.credit.take()), Body::Empty)
    }

    pub(super) fn report(&self) -> Bye {
        Bye {
            threads: self.pool.accounts(),
            held_bytes_max: self.store.allocated_bytes_max(),
            io: io_report(&self.meter),
            relayed_bytes_in: self.neighbours.bytes_in,
            relayed_bytes_out: self.neighbours.bytes_out,
        }
    }

    /// One event through the state machine.
    pub(super) fn decide(&mut self, event: Event<'_>) -> Result<Vec<Action>, ProtocolError> {
        self.meter.within(Section::Scheduling, || self.state.handle(event))
    }

    /// Checks what a store's matrices say of themselves.
    fn check(&self, store: &StoreHead) -> Result<(), ProtocolError> {
        if store.matrices.iter().any(|m| m.dtype != self.hello.dtype) {
            return Err(ProtocolError::new("a matrix of another element type than the session's"));
        }
        self.neighbours.check(&store.matrices)
    }

    /// Checks a store's head and takes memory for its matrices.
    pub(super) fn reserve(&mut self, store: &StoreHead) -> Result<(), WorkerError> {
        self.check(store)?;
        let actions = self.decide(Event::Announced(store))?;
        self.act(actions)?;
        self.neighbours.announced.notify_waiters();
        Ok(())
    }

    /// A store message has come whole.
    pub(super) fn stored(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let store = match (self.reserved.take(), arrived.body) {
            (Some(store), ArrivedBody::Landed(landing)) => {
                if let Ok(parts) = landing.into_any().downcast::<Parts>() {
                    self.store.landed(*parts);
                }
                store
            }
            (_, body) => {
                let store = StoreHead::decode(&arrived.head)?;
                self.stored_by_reference(&store, body)?;
                store
            }
        };
        let actions = self.decide(Event::Landed(&store))?;
        self.act(actions)
    }

    /// A store message without bytes, or whose body is where the primary has it. Then that is the last matrix's; those
    /// before it have none.
    fn stored_by_reference(&mut self, store: &StoreHead, body: ArrivedBody) -> Result<(), WorkerError> {
        if matches!(body, ArrivedBody::Empty) {
            if store.body_bytes() > 0 {
                return Err(ProtocolError::new("a store message without its bytes").into());
            }
            return self.reserve(store);
        }
        let Some((header, others)) = store.matrices.split_last() else { return Ok(()) };
        self.check(store)?;
        if others.iter().any(|other| other.body_bytes() > 0) {
            return Err(ProtocolError::new("two matrices with elements, and one body").into());
        }
        let mut actions = self.decide(Event::Announced(store))?;
        if header.source != Source::Generated {
            // The state counts it against the grant, but no memory is taken for it.
            actions.retain(|action| *action != Action::Reserve(*header));
        }
        self.act(actions)?;
        match body {
            ArrivedBody::Shared(region) if header.source == Source::Generated => {
                self.store.set_generated(header.id, Generated::decode(region.run(0))?);
            }
            ArrivedBody::Shared(_) if header.uses == 0 || header.source == Source::Vacant => {
                return Err(ProtocolError::new("what jobs write came as memory that may only be read").into());
            }
            ArrivedBody::Shared(region) => {
                self.store.put_operand(header.id, Operand::borrowed(header, region)?);
            }
            ArrivedBody::Lent(_) if header.uses > 0 => {
                return Err(ProtocolError::new("an operand in lent memory").into());
            }
            ArrivedBody::Lent(landing) => {
                let lent = landing.into_any().downcast::<Lent>();
                let lent = lent.map_err(|_| ProtocolError::new("lent memory that is no part of C"))?;
                self.store.put_tile(header.id, Tile::Lent(*lent));
            }
            ArrivedBody::Empty | ArrivedBody::Landed(_) => {}
        }
        Ok(())
    }

    /// Does what the state machine asks for, and gives the compute threads what they may do now.
    pub(super) fn act(&mut self, actions: Vec<Action>) -> Result<(), WorkerError> {
        self.note(actions)?;
        self.feed()
    }

    /// Gives the compute threads what they may do now.
    pub(super) fn feed(&mut self) -> Result<(), WorkerError> {
        while let Some(run) = self.ready.next() {
            self.start(run, true)?;
        }
        Ok(())
    }

    /// Does what the state machine asks for, but for new sums, which wait until `feed`.
    pub(super) fn note(&mut self, actions: Vec<Action>) -> Result<(), WorkerError> {
        self.store.set_limit(self.state.held_bytes_max());
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Reserve(header) => {
                    self.store.reserve(&header).map_err(|e| WorkerError::Here(e.to_string()))?;
                }
                Action::Fill(id) => self.fill(id)?,
                Action::Start(run) => {
                    let new_bytes = self.store.vacant_bytes(run.job.c);
                    match self.ahead.admit(run, new_bytes) {
                        Some(run) if new_bytes > 0 && run.job.operation != Operation::Multiply => {
                            self.ready.put(run);
                        }
                        Some(run) => self.start(run, false)?,
                        None => {}
                    }
                }
                Action::Return { tile, epoch, step_start, step_end } => {
                    self.send_back(
                        tile,
                        ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 },
                    )?;
                }
                Action::Release(id) => self.store.release(id),
                Action::Credit(bytes) => self.give_credit(bytes),
                Action::Pass(forward) => actions.extend(self.pass(forward)?),
                Action::Missing(missing) => self.send(Kind::Missing, missing.encode(), Body::Empty),
            }
        }
        Ok(())
    }

    fn fill(&mut self, id: u32) -> Result<(), WorkerError> {
        let taken = self.store.take_generated(id);
        let Some((header, generated, mut buffer)) = taken else {
            return Err(ProtocolError::new(format!("matrix {id} does not say how it is made")).into());
        };
        let Some(generator) = Generator::from_bytes(&generated.generator) else {
            return Err(ProtocolError::new(format!("matrix {id} has an unknown generator")).into());
        };
        let span = |from: u64, len: u32| Some(Span::new(from, from.checked_add(u64::from(len))?));
        let (Some(rows), Some(cols)) = (span(generated.row, header.rows), span(generated.col, header.cols))
        else {
            return Err(ProtocolError::new(format!("matrix {id} lies outside its generator")).into());
        };
        let task: Task<Done> = Box::new(move || {
            generator.fill(Rect::new(rows, cols), header.dtype, header.layout, buffer.bytes_mut());
            Done::Filled(header, buffer)
        });
        self.submit(task, Turn(id), Length::Any)
    }

    /// Gives the compute threads a job, one of those that `ready` counts or not.
    fn start(&mut self, run: Run, is_counted: bool) -> Result<(), WorkerError> {
        let missing = || WorkerError::Here(format!("matrix {} lost one of its operands", run.job.c));
        let a = self.store.operand(run.job.a).ok_or_else(missing)?;
        let b = self.store.operand(run.job.b).ok_or_else(missing)?;
        let target = self.store.take_tile(run.job.c).map_err(|e| WorkerError::Here(e.to_string()))?;
        let target = target.ok_or_else(missing)?;
        let beta = match run {
            Run { reads_tile: false, .. } => 0.0,
            Run { scales_tile: true, .. } => self.hello.beta,
            Run { .. } => 1.0,
        };
        let (kernel, operation) = (self.kernel.clone(), run.job.operation);
        let length = length(operation, &a, &b);
        let counted = is_counted.then_some(length);
        let (dtype, alpha) = (self.hello.dtype, self.hello.alpha);
        let with_checksums = self.sums_bodies;
        let task = move || {
            let (mut target, kernel) = (target, &*kernel);
            match dtype {
                DType::F32 => compute::<f32>(operation, kernel, alpha, &a, &b, beta, &mut target),
                DType::F64 => compute::<f64>(operation, kernel, alpha, &a, &b, beta, &mut target),
                DType::I32 => compute::<i32>(operation, kernel, alpha, &a, &b, beta, &mut target),
                DType::I64 => compute::<i64>(operation, kernel, alpha, &a, &b, beta, &mut target),
            }
            let target = if run.job.then == Then::Return { target.whole(with_checksums) } else { target };
            Done::Ran(run, target, counted)
        };
        counted.into_iter().for_each(|length| self.ready.gone(length));
        self.submit(Box::new(task), Turn::of(&run.job), length)
    }

    fn submit(&self, task: Task<Done>, turn: Turn, length: Length) -> Result<(), WorkerError> {
        let failed = |e| WorkerError::Here(format!("cannot start a compute thread: {e}"));
        let grant = self.grant.clone();
        let task = move || {
            let done = task();
            drop(grant);
            done
        };
        self.pool.submit(Box::new(task), turn, length).map_err(failed)
    }

    /// Puts a finished tile on its way, in frames of whole rows.
    fn send_back(&mut self, id: u32, head: ResultHead) -> Result<(), WorkerError> {
        let tile = self.store.take_tile(id).map_err(|e| WorkerError::Here(e.to_string()))?;
        let Some(tile) = tile else { return Err(WorkerError::Here(format!("tile {id} was lost"))) };
        let kind = Kind::Result.code();
        let mut whole = match tile {
            Tile::Whole(whole) => whole,
            Tile::Lent(lent) => {
                let lines = u32::try_from(lent.lines());
                let lines = lines.map_err(|_| WorkerError::Here(format!("tile {id} has 2^32 rows")))?;
                let head = ResultHead { lines, ..head };
                let frame = Frame::new(kind, head.encode(), Body::Lent(Box::new(Returning(lent))));
                self.leave(Leaving { frame: Some(frame), last_of: Some((id, None)) });
                return Ok(());
            }
            Tile::Owned(..) => unreachable!("a tile is sent back after its last job"),
        };
        self.ahead.leaves(id, whole.header.bytes());
        let last = whole.bodies.pop();
        for (first_line, lines, region) in whole.bodies {
            let head = ResultHead { first_line, lines, ..head };
            self.send(Kind::Result, head.encode(), Body::Shared(region));
        }
        if let Some((first_line, lines, region)) = last {
            let head = ResultHead { first_line, lines, ..head };
            let frame = Frame::new(kind, head.encode(), Body::Shared(region));
            self.leave(Leaving { frame: Some(frame), last_of: Some((id, Some(whole.buffer))) });
        }
        Ok(())
    }

    /// A tile has left.
    pub(super) fn returned(&mut self, tile: u32, buffer: Option<Arc<Buffer>>) -> Result<(), WorkerError> {
        match buffer.map(Arc::try_unwrap) {
            Some(Ok(buffer)) => self.store.recycle(buffer),
            // The primary of the same process still reads it, and frees it.
            Some(Err(shared)) => self.store.part_with(&shared),
            None => {}
        }
        self.ahead.left(tile);
        while let Some(run) = self.ahead.next() {
            self.start(run, false)?;
        }
        let actions = self.decide(Event::Returned(tile))?;
        self.act(actions)
    }
}

/// Multiplications of a product that is brief: 200 µs where a core does 40 Gflop/s.
const BRIEF_MULTIPLICATIONS: u64 = 1 << 22;
/// Elements of a sum that is: as long where a core writes 5 GB/s.
const BRIEF_ELEMENTS: u64 = 1 << 17;

/// Whether a job is brief.
fn length(operation: Operation, a: &Operand, b: &Operand) -> Length {
    let (a, b) = (a.shape(), b.shape());
    let is_brief = match operation {
        Operation::Multiply => a.rows.saturating_mul(a.cols).saturating_mul(b.cols) <= BRIEF_MULTIPLICATIONS,
        Operation::Add | Operation::Subtract => a.rows.saturating_mul(a.cols) <= BRIEF_ELEMENTS,
    };
    if is_brief { Length::Brief } else { Length::Any }
}

fn compute<T: KernelElement>(
    operation: Operation,
    kernel: &dyn Kernel,
    alpha: f64,
    a: &Operand,
    b: &Operand,
    beta: f64,
    target: &mut Tile,
) {
    let (a, b, c) = (a.view(), b.view(), target.view_mut());
    match operation {
        Operation::Multiply => factors::multiply::<T>(kernel, alpha, [a, b], beta, c),
        Operation::Add => factors::sum::<T>([a, b], Sign::Plus, beta, c),
        Operation::Subtract => factors::sum::<T>([a, b], Sign::Minus, beta, c),
    }
}
