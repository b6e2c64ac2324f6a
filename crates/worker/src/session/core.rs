//! State that the tasks of one session share: state machine, store, compute threads, queue to the writer.
//!
//! Invariant: the state machine decides; its actions are carried out here, at once and without waiting.

use super::WorkerError;
use super::fetches::Fetches;
use super::held_messages::{HeldAnswer, held_message, placed_frame};
use super::lu::{LuDone, LuSession};
use super::making::{MadeStep, MakingQueue};
use super::outbox::Outbox;
use super::reductions::{ReductionStep, RunningReduction};
use super::relay::Neighbours;
use crate::held::{FilledPart, HeldStore};
use crate::job_recorder::{JobRecorder, io_report};
use crate::ledger::Grant;
use crate::memory::{Operand, ReturningLease, Store, StoreParts, TargetTile};
use crate::pool::{ComputePool, ComputeTask, EndedTask};
use bramble_kernel::{Kernel, KernelElement, Sign, factors};
use bramble_link::{Arrived, ArrivedBody, Body, Frame, Section, SectionMeter};
use bramble_matrix::{Buffer, DType, Generator, Rect, Span, TileLease};
use bramble_schedule::worker::{Priority, RunnableJob, TaskLength, Worker, WorkerAction, WorkerEvent};
use bramble_wire::ProtocolError;
use bramble_wire::message::{
    Bye, Generated, Hello, Job, Kind, MatrixHeader, MatrixSource, Operation, ResidentView, ResultHead,
    StoreHead, Then,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// Result of a task of the pool.
pub(super) enum TaskResult {
    Ran(RunnableJob, TargetTile),
    Filled(MatrixHeader, Buffer),
    /// A part of a placed matrix.
    Placed(FilledPart),
    /// A task of a factorisation.
    Factored(LuDone),
    /// A step of a reduction.
    Reduced(ReductionStep),
    /// A step that makes a part of an array.
    Made(MadeStep),
}

/// A task that is done, as the state machine is told.
enum DoneTask {
    Ran(Job),
    Filled(u32),
}

/// A frame to send, and what follows when it has been sent.
pub(super) struct OutgoingFrame {
    /// `None` for the accumulated credit, whose frame is made when it is sent.
    pub(super) frame: Option<Frame>,
    /// The tile whose last rows these are, with its buffer.
    pub(super) last_of: Option<(u32, Option<Arc<Buffer>>)>,
}

/// What a session does with arrays.
#[derive(Default)]
pub(super) struct ArrayWork {
    /// Reductions that are under way.
    pub(super) reductions: Vec<RunningReduction>,
    /// Parts that are being made.
    pub(super) making: MakingQueue,
    /// Rectangles that come from and go to neighbours.
    pub(super) fetches: Fetches,
}

/// State that the tasks of one session share.
pub(super) struct Core {
    pub(super) state: Worker,
    pub(super) store: Store,
    pub(super) pool: Rc<ComputePool<TaskResult>>,
    /// Returned with the session, or when the last compute thread has finished its task for it.
    pub(super) grant: Arc<Grant>,
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) hello: Hello,
    /// Parts of placed matrices, which all products of the connection share.
    pub(super) held: Rc<RefCell<HeldStore>>,
    /// Queue to the writer.
    pub(super) outbox: Outbox,
    /// The store message whose body is landing.
    pub(super) reserved: Option<StoreHead>,
    /// Whether the primary was heard, or took bytes, since this was last checked.
    pub(super) is_heard: bool,
    /// Whether the link wants checksums of bodies.
    pub(super) sums_bodies: bool,
    pub(super) neighbours: Neighbours,
    /// The factorisation that this session is about, if it is.
    pub(super) lu: Option<Box<dyn LuSession>>,
    /// Reductions, makings and fetches of arrays in `held`.
    pub(super) arrays: ArrayWork,
    /// Processor time of this thread by section, if the primary asked for it.
    pub(super) meter: Rc<SectionMeter>,
    /// Records of jobs, if the primary asked for them.
    pub(super) recorder: JobRecorder,
}

impl Core {
    pub(super) fn send(&self, kind: Kind, head: Vec<u8>, body: Body) {
        self.send_frame(Frame::new(kind.code(), head, body));
    }

    pub(super) fn send_frame(&self, frame: Frame) {
        self.outbox.enqueue(OutgoingFrame { frame: Some(frame), last_of: None });
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

    /// Passes one event to the state machine.
    pub(super) fn dispatch(&mut self, event: WorkerEvent<'_>) -> Result<Vec<WorkerAction>, ProtocolError> {
        self.meter.within(Section::Scheduling, || self.state.handle(event))
    }

    /// Checks the headers of a store's matrices.
    fn check(&self, store: &StoreHead) -> Result<(), ProtocolError> {
        if store.matrices.iter().any(|m| m.dtype != self.hello.dtype) {
            return Err(ProtocolError::new("a matrix of another element type than the session's"));
        }
        self.neighbours.check(&store.matrices)
    }

    /// Checks a store's head and reserves memory for its matrices.
    pub(super) fn reserve(&mut self, store: &StoreHead) -> Result<(), WorkerError> {
        self.check(store)?;
        let actions = self.dispatch(WorkerEvent::Announced(store))?;
        self.carry_out(actions)?;
        self.neighbours.announced.notify_waiters();
        Ok(())
    }

    /// A store message has arrived completely.
    pub(super) fn stored(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let store = match (self.reserved.take(), arrived.body) {
            (Some(store), ArrivedBody::Landed(landing)) => {
                if let Ok(parts) = landing.into_any().downcast::<StoreParts>() {
                    for (header, view) in parts.views(&store.matrices)? {
                        self.put_view(&header, &view)?;
                    }
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
        let actions = self.dispatch(WorkerEvent::Landed(&store))?;
        self.carry_out(actions)
    }

    /// A store message without bytes, or whose body is in the primary's memory. Such a body belongs to the last matrix; those
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
            return Err(ProtocolError::new("two matrices with elements have only one body").into());
        }
        let mut actions = self.dispatch(WorkerEvent::Announced(store))?;
        if header.source != MatrixSource::Generated {
            // The state machine counts it against the grant, but it needs no buffer.
            actions.retain(|action| *action != WorkerAction::Reserve(*header));
        }
        self.carry_out(actions)?;
        match body {
            ArrivedBody::Shared(region) if header.source == MatrixSource::Generated => {
                self.store.set_generated(header.id, Generated::decode(region.run(0))?);
            }
            ArrivedBody::Shared(region) if header.source == MatrixSource::Resident => {
                self.put_view(header, &ResidentView::decode(region.run(0))?)?;
            }
            ArrivedBody::Shared(_) if header.uses == 0 || header.source == MatrixSource::Vacant => {
                return Err(ProtocolError::new("a matrix that jobs write came in read-only memory").into());
            }
            ArrivedBody::Shared(region) => {
                self.store.put_operand(header.id, Operand::borrowed(header, region)?);
            }
            ArrivedBody::Leased(_) if header.uses > 0 => {
                return Err(ProtocolError::new("an operand in leased memory").into());
            }
            ArrivedBody::Leased(landing) => {
                let lent = landing.into_any().downcast::<TileLease>();
                let lent = lent.map_err(|_| ProtocolError::new("leased memory outside C"))?;
                self.store.put_tile(header.id, TargetTile::Leased(*lent));
                let actions = self.dispatch(WorkerEvent::Leased(header.id))?;
                self.carry_out(actions)?;
            }
            ArrivedBody::Empty | ArrivedBody::Landed(_) => {}
        }
        Ok(())
    }

    /// Makes an operand of a view into a part of a placed matrix.
    fn put_view(&mut self, header: &MatrixHeader, view: &ResidentView) -> Result<(), ProtocolError> {
        let operand = self.held.borrow().view(header, view)?;
        self.store.put_operand(header.id, operand);
        Ok(())
    }

    /// A message about arrays.
    pub(super) fn array_message(&mut self, kind: Kind, arrived: Arrived) -> Result<(), WorkerError> {
        match kind {
            Kind::Reduce => return self.reduce(arrived),
            Kind::Make => return self.make(arrived),
            Kind::Fetch => return self.fetch(arrived),
            _ => {}
        }
        let answer = held_message(&mut self.held.borrow_mut(), arrived)?;
        match answer {
            HeldAnswer::Frames(frames) => frames.into_iter().for_each(|frame| self.send_frame(frame)),
            HeldAnswer::Fill(fill) => {
                let task = Box::new(move || TaskResult::Placed(fill.run()));
                self.submit(task, Priority(0), TaskLength::Any)?;
            }
        }
        Ok(())
    }

    /// Takes results that compute threads reported together. They are one event for the state machine, so that the
    /// addition of highest priority among all that they make possible starts first.
    pub(super) fn collected(&mut self, batch: Vec<EndedTask<TaskResult>>) -> Result<(), WorkerError> {
        let mut done = Vec::with_capacity(batch.len());
        for ended in batch {
            self.record(&ended);
            match ended.result {
                Ok(TaskResult::Ran(run, target)) => {
                    self.store.put_tile(run.job.c, target);
                    done.push(DoneTask::Ran(run.job));
                }
                Ok(TaskResult::Placed(filled)) => {
                    let placed = self.held.borrow_mut().filled(filled);
                    placed.into_iter().for_each(|placed| self.send_frame(placed_frame(&placed)));
                }
                Ok(TaskResult::Reduced(step)) => self.reduced(step)?,
                Ok(TaskResult::Made(step)) => self.made(step)?,
                Ok(TaskResult::Factored(done)) => self.with_lu(|lu| lu.done(done))?,
                Ok(TaskResult::Filled(header, buffer)) => {
                    self.store.put_operand(header.id, Operand::Owned(header, buffer));
                    done.push(DoneTask::Filled(header.id));
                }
                Err(panic) => {
                    return Err(WorkerError::Here(format!("a compute thread failed: {panic}")));
                }
            }
        }
        let events = done.iter().map(|done| match done {
            DoneTask::Ran(job) => WorkerEvent::Finished(job),
            DoneTask::Filled(id) => WorkerEvent::Filled(*id),
        });
        let actions = self.meter.within(Section::Scheduling, || self.state.handle_all(events))?;
        self.carry_out(actions)
    }

    /// Carries out actions.
    pub(super) fn carry_out(&mut self, actions: Vec<WorkerAction>) -> Result<(), WorkerError> {
        self.store.set_limit(self.state.held_bytes_max());
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                WorkerAction::Reserve(header) => {
                    self.store.reserve(&header).map_err(|e| WorkerError::Here(e.to_string()))?;
                }
                WorkerAction::Fill(id) => self.fill(id)?,
                WorkerAction::Start(run) => self.start(run)?,
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    self.send_back(
                        tile,
                        ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 },
                    )?;
                }
                WorkerAction::Release(id) => self.store.release(id),
                WorkerAction::Credit(bytes) => self.outbox.give_credit(bytes),
                WorkerAction::Pass(forward) => actions.extend(self.pass(forward)?),
                WorkerAction::Missing(missing) => self.send(Kind::Missing, missing.encode(), Body::Empty),
            }
        }
        Ok(())
    }

    fn fill(&mut self, id: u32) -> Result<(), WorkerError> {
        let taken = self.store.take_generated(id);
        let Some((header, generated, mut buffer)) = taken else {
            return Err(ProtocolError::new(format!("matrix {id} has no generator description")).into());
        };
        let Some(generator) = Generator::from_bytes(&generated.generator) else {
            return Err(ProtocolError::new(format!("matrix {id} has an unknown generator")).into());
        };
        let span = |from: u64, len: u32| Some(Span::new(from, from.checked_add(u64::from(len))?));
        let (Some(rows), Some(cols)) = (span(generated.row, header.rows), span(generated.col, header.cols))
        else {
            return Err(ProtocolError::new(format!("matrix {id} lies outside its generator")).into());
        };
        let task: ComputeTask<TaskResult> = Box::new(move || {
            generator.fill(Rect::new(rows, cols), header.dtype, header.layout, buffer.bytes_mut());
            TaskResult::Filled(header, buffer)
        });
        self.submit(task, Priority(id), TaskLength::Any)
    }

    /// Submits a job to the compute threads.
    fn start(&mut self, run: RunnableJob) -> Result<(), WorkerError> {
        let missing = || WorkerError::Here(format!("an operand of matrix {} is missing", run.job.c));
        let a = self.store.operand(run.job.a).ok_or_else(missing)?;
        let b = self.store.operand(run.job.b).ok_or_else(missing)?;
        let target = self.store.take_tile(run.job.c).map_err(|e| WorkerError::Here(e.to_string()))?;
        let target = target.ok_or_else(missing)?;
        let beta = match run {
            RunnableJob { reads_tile: false, .. } => 0.0,
            RunnableJob { scales_tile: true, .. } => self.hello.beta,
            RunnableJob { .. } => 1.0,
        };
        let (kernel, operation) = (self.kernel.clone(), run.job.operation);
        let (shape, cols) = (a.shape(), b.shape().cols);
        let length = TaskLength::of(operation, shape.rows, shape.cols, cols);
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
            TaskResult::Ran(run, target)
        };
        self.submit(Box::new(task), Priority::of(&run.job), length)
    }

    pub(super) fn submit(
        &self,
        task: ComputeTask<TaskResult>,
        turn: Priority,
        length: TaskLength,
    ) -> Result<(), WorkerError> {
        let failed = |e| WorkerError::Here(format!("cannot start a compute thread: {e}"));
        let grant = self.grant.clone();
        let task = move || {
            let done = task();
            drop(grant);
            done
        };
        self.pool.submit(Box::new(task), turn, length).map_err(failed)
    }

    /// Queues a finished tile for sending, in frames of whole rows.
    fn send_back(&mut self, id: u32, head: ResultHead) -> Result<(), WorkerError> {
        let tile = self.store.take_tile(id).map_err(|e| WorkerError::Here(e.to_string()))?;
        let Some(tile) = tile else { return Err(WorkerError::Here(format!("tile {id} was lost"))) };
        let kind = Kind::Result.code();
        let mut whole = match tile {
            TargetTile::Whole(whole) => whole,
            TargetTile::Leased(lent) => {
                let lines = u32::try_from(lent.lines());
                let lines = lines.map_err(|_| WorkerError::Here(format!("tile {id} has 2^32 rows")))?;
                let head = ResultHead { lines, ..head };
                let frame = Frame::new(kind, head.encode(), Body::Leased(Box::new(ReturningLease(lent))));
                self.outbox.enqueue(OutgoingFrame { frame: Some(frame), last_of: Some((id, None)) });
                return Ok(());
            }
            TargetTile::Owned(..) => unreachable!("a tile is sent back after its last job"),
        };
        let last = whole.bodies.pop();
        for (first_line, lines, region) in whole.bodies {
            let head = ResultHead { first_line, lines, ..head };
            self.send(Kind::Result, head.encode(), Body::Shared(region));
        }
        if let Some((first_line, lines, region)) = last {
            let head = ResultHead { first_line, lines, ..head };
            let frame = Frame::new(kind, head.encode(), Body::Shared(region));
            self.outbox
                .enqueue(OutgoingFrame { frame: Some(frame), last_of: Some((id, Some(whole.buffer))) });
        }
        Ok(())
    }

    /// A tile has been sent.
    pub(super) fn returned(&mut self, tile: u32, buffer: Option<Arc<Buffer>>) -> Result<(), WorkerError> {
        match buffer.map(Arc::try_unwrap) {
            Some(Ok(buffer)) => self.store.recycle(buffer),
            // The primary in the same process still reads the buffer, and will free it.
            Some(Err(shared)) => self.store.forget_buffer(&shared),
            None => {}
        }
        let actions = self.dispatch(WorkerEvent::Returned(tile))?;
        self.carry_out(actions)
    }
}

fn compute<T: KernelElement>(
    operation: Operation,
    kernel: &dyn Kernel,
    alpha: f64,
    a: &Operand,
    b: &Operand,
    beta: f64,
    target: &mut TargetTile,
) {
    let (a, b, c) = (a.view(), b.view(), target.view_mut());
    match operation {
        Operation::Multiply => factors::multiply::<T>(kernel, alpha, [a, b], beta, c),
        Operation::Add => factors::sum::<T>([a, b], Sign::Plus, beta, c),
        Operation::Subtract => factors::sum::<T>([a, b], Sign::Minus, beta, c),
    }
}
