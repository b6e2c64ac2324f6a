//! A session in which this worker is one of several that factor a system of equations.
//!
//! Place in the flow: `schedule::lu::LuNode` decides, this file carries out: tasks to the compute threads, panels to
//! the next worker of the ring. The tasks of the link with the primary and of the links with neighbours pass messages
//! in.
//!
//! Invariants: the memory of the columns and panels is within the session's grant. A panel is passed on from a copy of
//! the bytes that have come, so none of its memory is lent while others write it. A frame of a panel is made only when
//! the link can take it.
//!
//! The columns are f32 or f64: the rest of the session sees [`LuSession`], behind which is a session of one type. Right-hand
//! sides are f64 in either case.
//!
//! Deliberately absent: the elements' arithmetic (crate `lu`), and links.

mod kinds;
mod panels;
mod returning;
mod right_hand_sides;

pub(in crate::session) use self::kinds::LuSession;

use self::kinds::begin;
use self::panels::{PanelHere, copy_bytes};
use self::right_hand_sides::RightHandSides;
use super::WorkerError;
use super::core::{Core, TaskResult};
use bramble_kernel::Kernel;
use bramble_kernel::lu::{LuElement, PackedPanel};
use bramble_link::{Arrived, ArrivedBody, Body, Frame};
use bramble_lu::LuPart;
use bramble_schedule::lu::{LuAction, LuEvent, LuNode, LuShape, LuTask};
use bramble_schedule::worker::{Priority, TaskLength};
use bramble_wire::ProtocolError;
use bramble_wire::message::{Kind, LuBegin, LuFill, LuPass, LuRows, LuStatus};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows that one task sums.
const ROWS_EACH: usize = 2048;
/// Most columns of one update: its part of U stays in a second-level cache.
const COLUMNS_MAX: usize = 2048;

/// The result of a task for a factorisation.
pub(in crate::session) enum LuDone {
    /// A block was generated, or rows were summed.
    Prepared,
    /// A task of the factorisation. A panel that it has factored is in the session.
    Task(LuTask),
    /// Right-hand sides were solved for some blocks.
    Solved(LuRows, Vec<f64>),
    /// Some rows of this worker's part of a product: the first, and their elements.
    Multiplied(usize, Vec<f64>),
    /// The columns were compared with their checksums.
    Checked(f64),
    /// The machine could not, for this reason.
    Failed(String),
}

/// A task to submit to the compute threads.
pub(in crate::session) type LuWork = (Box<dyn FnOnce() -> LuDone + Send>, Priority);

/// What a message or a result asks of the session.
#[derive(Default)]
pub(in crate::session) struct LuOutput {
    pub(in crate::session) work: Vec<LuWork>,
    /// Frames to the primary.
    pub(in crate::session) frames: Vec<Frame>,
    /// Whether a neighbour's link has something to send.
    pub(in crate::session) wakes: bool,
}

/// The first columns whose pivot is 0, and infinite or NaN.
#[derive(Clone, Copy, Default)]
struct BadPivots {
    zero: Option<usize>,
    overflow: Option<usize>,
}

/// Columns, panels and the state machine of a factorisation.
struct TypedSession<T> {
    begin: LuBegin,
    part: Arc<LuPart<T>>,
    node: LuNode,
    kernel: Arc<dyn Kernel>,
    panels: BTreeMap<usize, PanelHere<T>>,
    /// The panel that a task has just factored: a machine factors one at a time.
    factored: Arc<Mutex<Option<PackedPanel<T>>>>,
    /// Memory of panels that are spent.
    spare: Vec<Vec<T>>,
    /// The panel that goes to the next machine, and how many of its elements have gone.
    passing: Option<(usize, usize)>,
    /// What the machine before this one has to be told.
    tell: Option<usize>,
    /// For each own block, the rows of it that have come from the primary.
    filled: BTreeMap<usize, usize>,
    /// Tasks before generated columns are ready.
    preparing: usize,
    is_summed: bool,
    is_ready: bool,
    bad: BadPivots,
    right: RightHandSides,
    /// Frames of the factors that wait for the link; `None` before all columns are eliminated.
    returning: Option<usize>,
}

impl<T: LuElement> TypedSession<T> {
    fn begin(
        begin: LuBegin,
        kernel: Arc<dyn Kernel>,
        threads: usize,
        granted: u64,
    ) -> Result<(Self, LuOutput), WorkerError> {
        let columns: usize = begin.ring.columns().iter().map(|block| begin.columns(*block).len()).sum();
        let needed = begin.part_bytes(columns, threads);
        if needed > granted {
            let what = format!("a part of a system of {needed} bytes, where {granted} are granted");
            return Err(ProtocolError::new(what).into());
        }
        let part = LuPart::new(&begin).map_err(|e| WorkerError::Here(e.to_string()))?;
        let shape = LuShape {
            blocks: begin.ring.owners.len(),
            panels: begin.panels(),
            threads,
            widest: (COLUMNS_MAX / begin.width).max(1),
            live_max: begin.live_max,
        };
        let node = LuNode::new(shape, begin.ring.clone(), true);
        let filled = begin.ring.columns().into_iter().map(|block| (block, 0)).collect();
        let mut new = Self {
            begin,
            part: Arc::new(part),
            node,
            kernel,
            panels: BTreeMap::new(),
            factored: Arc::default(),
            spare: Vec::new(),
            passing: None,
            tell: None,
            filled,
            preparing: 0,
            is_summed: false,
            is_ready: false,
            bad: BadPivots::default(),
            right: RightHandSides::default(),
            returning: None,
        };
        let mut out = LuOutput::default();
        if new.begin.origin.is_generated() {
            for block in new.begin.ring.columns() {
                let part = new.part.clone();
                new.prepare(&mut out, move || part.generate(block));
            }
        }
        new.prepared(&mut out)?;
        Ok((new, out))
    }

    fn prepare(&mut self, out: &mut LuOutput, work: impl FnOnce() + Send + 'static) {
        self.preparing += 1;
        let work = move || {
            work();
            LuDone::Prepared
        };
        out.work.push((Box::new(work), Priority(0)));
    }

    /// Reports that tasks may begin: at once if columns come from the primary; if they are generated, when all are there, with
    /// their checksums.
    fn prepared(&mut self, out: &mut LuOutput) -> Result<(), WorkerError> {
        if self.preparing > 0 {
            return Ok(());
        }
        let is_generated = self.begin.origin.is_generated();
        if !is_generated || std::mem::replace(&mut self.is_summed, true) {
            self.is_ready = true;
            out.frames.push(report(LuStatus::Ready));
            let generated = self.begin.ring.columns().into_iter().filter(|_| is_generated);
            return generated.map(LuEvent::Filled).try_for_each(|event| self.dispatch(event, out));
        }
        for first in (0..self.begin.order).step_by(ROWS_EACH) {
            let (part, rows) = (self.part.clone(), first..self.begin.order.min(first + ROWS_EACH));
            self.prepare(out, move || part.sum(rows));
        }
        Ok(())
    }

    /// Rows of a block, each once and in their order; with the last of them tasks may begin on it.
    fn fill(&mut self, fill: &LuFill, body: &[u8], out: &mut LuOutput) -> Result<(), WorkerError> {
        let LuFill { block, first, rows } = *fill;
        let mut elements = vec![T::ZERO; body.len() / size_of::<T>()];
        let come = self
            .filled
            .get(&block)
            .copied()
            .filter(|come| !self.begin.origin.is_generated() && *come == first);
        let width = self.begin.columns(block).len();
        let is_as_told = rows > 0 && rows.checked_mul(width) == Some(elements.len());
        let fits = come.is_some() && is_as_told && copy_bytes(body, &mut elements);
        if !fits || !self.part.fill(block, first, &elements) {
            let what = format!("{rows} rows of block {block}, from {first} on, are not expected");
            return Err(ProtocolError::new(what).into());
        }
        let end = first + rows;
        self.part.add(block, first..end);
        self.filled.insert(block, end);
        if end == self.begin.order {
            self.dispatch(LuEvent::Filled(block), out)?;
        }
        Ok(())
    }

    /// Notes the first pivots that are 0 or no numbers.
    fn judge(&mut self, step: usize, panel: &PackedPanel<T>) {
        let first = self.begin.columns(step).start;
        for (at, pivot) in panel.diagonal().enumerate() {
            if pivot == T::ZERO {
                self.bad.zero = self.bad.zero.or(Some(first + at));
            } else if !pivot.is_number() {
                self.bad.overflow = self.bad.overflow.or(Some(first + at));
            }
        }
    }

    /// Passes an event to the state machine, and carries its actions out.
    fn dispatch(&mut self, event: LuEvent, out: &mut LuOutput) -> Result<(), WorkerError> {
        for action in self.node.handle(event)? {
            match action {
                LuAction::Start(task) => out.work.push(self.work(task)?),
                LuAction::Pass(step) => {
                    self.passing = Some((step, 0));
                    out.wakes = true;
                }
                LuAction::Drop(count) => self.forget(count),
                LuAction::TellSpent(count) => {
                    self.tell = Some(count);
                    out.wakes = true;
                }
                LuAction::Finished => self.finished(out)?,
            }
        }
        Ok(())
    }

    fn finished(&mut self, out: &mut LuOutput) -> Result<(), WorkerError> {
        let BadPivots { zero, overflow } = self.bad;
        self.returning = Some(0);
        // No panel follows: substitutions may use the memory.
        self.spare.clear();
        out.frames.push(report(LuStatus::Eliminated { zero, overflow }));
        let y = self.part.right_hand_sides().map_err(|e| WorkerError::Here(e.to_string()))?;
        if let Some(y) = y {
            let (panels, total, width) = (self.begin.panels(), self.begin.order, self.begin.extra);
            let all =
                LuRows { pass: LuPass::Back, blocks: panels..panels, width, total, first: 0, rows: total };
            self.send_rows(&all, y, out);
        }
        Ok(())
    }

    /// The work of a task.
    fn work(&mut self, task: LuTask) -> Result<LuWork, WorkerError> {
        let (part, kernel) = (self.part.clone(), self.kernel.clone());
        Ok(match &task {
            LuTask::Panel(step) => {
                let (step, memory) = (*step, self.spare.pop().unwrap_or_default());
                let factored = self.factored.clone();
                let work = move || {
                    let panel = part.panel(&*kernel, step, memory);
                    *factored.lock().unwrap_or_else(PoisonError::into_inner) = Some(panel);
                    LuDone::Task(task)
                };
                (Box::new(work), Priority(0))
            }
            LuTask::Update { step, blocks } => {
                let (step, blocks) = (*step, blocks.clone());
                let Some(PanelHere::Whole(panel)) = self.panels.get(&step) else {
                    return Err(WorkerError::Here(format!("panel {step} was lost")));
                };
                let panel = panel.clone();
                let work = move || {
                    part.update(&*kernel, &panel, step, blocks);
                    drop(panel);
                    LuDone::Task(task)
                };
                (Box::new(work), Priority(1))
            }
        })
    }
}

impl<T: LuElement> LuSession for TypedSession<T> {
    fn message(&mut self, kind: Kind, head: &[u8], body: Option<&[u8]>) -> Result<LuOutput, WorkerError> {
        let mut out = LuOutput::default();
        match (kind, body) {
            (Kind::LuGo, None) if self.is_ready => self.dispatch(LuEvent::Begin, &mut out)?,
            (Kind::LuFill, Some(body)) => self.fill(&LuFill::decode(head)?, body, &mut out)?,
            (Kind::LuRows, Some(body)) => self.take_rows(LuRows::decode(head)?, body, &mut out)?,
            (Kind::LuCheck, None) => {
                let part = self.part.clone();
                let check = move || match part.deviation() {
                    Ok(deviation) => LuDone::Checked(deviation),
                    Err(e) => LuDone::Failed(e.to_string()),
                };
                out.work.push((Box::new(check), Priority(0)));
            }
            (Kind::LuFetch, None) => out.frames.push(self.returned(LuFill::decode(head)?)?),
            (kind, _) => {
                return Err(
                    ProtocolError::new(format!("a message of kind {kind:?} has no place here")).into()
                );
            }
        }
        Ok(out)
    }

    fn done(&mut self, done: LuDone) -> Result<LuOutput, WorkerError> {
        let mut out = LuOutput::default();
        match done {
            LuDone::Prepared => {
                self.preparing -= 1;
                self.prepared(&mut out)?;
            }
            LuDone::Task(task) => {
                // An update may end while a panel waits here for the end of its own task.
                let is_panel = matches!(task, LuTask::Panel(_));
                let slot = || self.factored.lock().unwrap_or_else(PoisonError::into_inner).take();
                let panel = if is_panel { slot() } else { None };
                if let (LuTask::Panel(step), Some(panel)) = (&task, panel) {
                    self.judge(*step, &panel);
                    let pivots = panel.pivots().to_vec();
                    out.frames.push(report(LuStatus::Factored { step: *step, pivots }));
                    self.panels.insert(*step, PanelHere::Whole(Arc::new(panel)));
                }
                self.dispatch(LuEvent::Ended(task), &mut out)?;
            }
            LuDone::Solved(rows, x) => self.send_rows(&rows, x, &mut out),
            LuDone::Multiplied(first, part) => self.take_product(first, &part, &mut out),
            LuDone::Checked(deviation) => out.frames.push(report(LuStatus::Checked(deviation))),
            LuDone::Failed(why) => return Err(WorkerError::Here(why)),
        }
        Ok(out)
    }

    fn sent_rows(&mut self) {
        self.rows_have_left();
    }

    fn peers(&self) -> [u32; 2] {
        self.neighbours()
    }

    fn expects_panel(&self, peer: u32, head: &[u8], bytes: usize) -> Result<(), String> {
        self.check_panel(peer, head, bytes)
    }

    fn panel_bytes(&mut self, head: &[u8], bytes: &[u8]) -> Result<LuOutput, WorkerError> {
        self.take_panel(head, bytes)
    }

    fn spent(&mut self, peer: u32, head: &[u8]) -> Result<LuOutput, WorkerError> {
        self.next_has_spent(peer, head)
    }

    fn frame_to(&mut self, peer: u32) -> Option<(Frame, Option<usize>)> {
        self.next_frame(peer)
    }

    fn passed(&mut self, step: usize) -> Result<LuOutput, WorkerError> {
        self.has_passed(step)
    }
}

impl Core {
    /// Carries out what a factorisation asks for.
    fn lu_output(&mut self, out: LuOutput) -> Result<(), WorkerError> {
        for (work, turn) in out.work {
            self.submit(Box::new(move || TaskResult::Factored(work())), turn, TaskLength::Any)?;
        }
        out.frames.into_iter().for_each(|frame| self.send_frame(frame));
        if let Some(lu) = self.lu.as_ref().filter(|_| out.wakes) {
            lu.peers().into_iter().for_each(|peer| self.neighbours.wake(peer));
        }
        Ok(())
    }

    /// Passes something to the factorisation of this session; an error if there is none.
    pub(super) fn with_lu(
        &mut self,
        of: impl FnOnce(&mut dyn LuSession) -> Result<LuOutput, WorkerError>,
    ) -> Result<(), WorkerError> {
        let none = || ProtocolError::new("no factorisation has begun in this session");
        let out = of(&mut **self.lu.as_mut().ok_or_else(none)?)?;
        self.lu_output(out)
    }

    /// A message about a factorisation from the primary.
    pub(super) fn lu_message(&mut self, kind: Kind, arrived: Arrived) -> Result<(), WorkerError> {
        let body = landed(arrived.body)?;
        if kind != Kind::LuBegin {
            return self.with_lu(|lu| lu.message(kind, &arrived.head, body.as_deref()));
        }
        if self.lu.is_some() {
            return Err(ProtocolError::new("a second factorisation in one session").into());
        }
        let (threads, granted) = (self.pool.threads_max(), self.grant.bytes());
        let (lu, out) = begin(&arrived.head, self.kernel.clone(), threads, granted)?;
        self.lu = Some(lu);
        self.lu_output(out)
    }
}

/// The bytes of a body that has landed; `None` without a body.
pub(super) fn landed(body: ArrivedBody) -> Result<Option<Vec<u8>>, ProtocolError> {
    let foreign = || ProtocolError::new("bytes of a factorisation that came in other memory");
    match body {
        ArrivedBody::Empty => Ok(None),
        ArrivedBody::Landed(landing) => match landing.into_any().downcast::<Vec<u8>>() {
            Ok(bytes) => Ok(Some(*bytes)),
            Err(_) => Err(foreign()),
        },
        ArrivedBody::Shared(region) => {
            Ok(Some((0..region.runs).flat_map(|run| region.run(run)).copied().collect()))
        }
        ArrivedBody::Leased(_) => Err(foreign()),
    }
}

fn report(report: LuStatus) -> Frame {
    Frame::new(Kind::LuStatus.code(), report.encode(), Body::Empty)
}
