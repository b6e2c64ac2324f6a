//! One machine of a product: the worker's state machine, its matrices, the tasks of its threads, and its messages.
//!
//! Place in the flow: replaces the worker's shell (crates/worker/src/session), for both modes. It carries out the actions of
//! the state machine: reserves and releases matrices, queues tasks and messages. The modes move the messages, and let the tasks
//! take time; a trial computes elements, too.
//!
//! A fault may suspend or end it: then its threads begin nothing. If moving bytes takes time from computing, the next task
//! takes that much longer.
//!
//! Invariants: the threads take tasks greedily from one queue, additions first unless the setting says otherwise,
//! then first come, first served; a credit message contains all memory that was freed until it is sent;
//! the machine never holds more than its grant, and computes no further ahead than its limits (`jobs_ahead.rs`).

use crate::jobs_ahead::JobsAhead;
use crate::report::SimMachineReport;
use crate::setting::SimRates;
use bramble_matrix::Rect;
use bramble_matrix::number::to_usize;
use bramble_schedule::primary::Outgoing;
use bramble_schedule::worker::{
    Priority, PriorityQueue, RunnableJob, StartLimits, Worker, WorkerAction, WorkerEvent,
};
use bramble_wire::limits::lines_per_frame;
use bramble_wire::message::{
    Forward, Generated, MatrixHeader, Missing, Operation, PieceHead, ResultHead, StoreHead,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The value of elements that were never written, or partly overwritten: no sum of operands has it.
pub(crate) const GARBAGE: f64 = -77_777.125;

/// A task of a compute thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SimTask {
    Run(RunnableJob),
    Fill(u32),
}

/// A message of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerMessage {
    /// Rows of a tile: their bytes, and whether they are the last, so that the tile's memory is free when they have been sent.
    Result { head: ResultHead, bytes: usize, is_last: bool },
    /// Freed memory; the number is final when the frame has been sent.
    Credit(u64),
    /// A relayed matrix that will not come.
    Missing(Missing),
    /// The link to another worker is gone.
    Parted(u32),
}

impl WorkerMessage {
    /// Bytes on the wire.
    pub(crate) fn wire_bytes(&self) -> usize {
        match self {
            Self::Result { bytes, .. } => 16 + 24 + bytes,
            Self::Credit(_) | Self::Missing(_) => 16 + 8,
            Self::Parted(_) => 16 + 5,
        }
    }
}

/// How fast a machine computes.
pub(crate) struct SimSpeed {
    threads: u32,
    flops_per_s: f64,
    rates: SimRates,
    /// Seconds that it does not compute for each byte that it moves, and those not yet charged to a task.
    moves_s_per_byte: f64,
    owed_s: f64,
    /// How many times slower it computes, for each fault that slows it.
    pub(crate) busy: BTreeMap<usize, f64>,
}

impl SimSpeed {
    pub(crate) fn new(threads: u32, gflops: f64, rates: SimRates) -> Self {
        let (threads, flops_per_s) = (threads.max(1), gflops * 1e9);
        Self { threads, flops_per_s, rates, moves_s_per_byte: 0.0, owed_s: 0.0, busy: BTreeMap::new() }
    }

    /// The same, with the seconds of computing that moving a byte costs.
    pub(crate) fn moving(self, moves_s_per_byte: f64) -> Self {
        Self { moves_s_per_byte, ..self }
    }
}

/// The tasks of a machine's threads.
#[derive(Default)]
pub(crate) struct SimTasks {
    /// Whether additions are ordered by their operands, like multiplications.
    pub(crate) in_order: bool,
    queue: PriorityQueue<SimTask>,
    pub(crate) running: u32,
    /// Tasks that ended while the machine was suspended.
    pub(crate) deferred: Vec<SimTask>,
}

/// A matrix in a machine's memory.
pub(crate) struct HeldMatrix {
    pub(crate) header: MatrixHeader,
    /// By rows; none if products have no elements.
    pub(crate) elements: Vec<f64>,
    /// The part of C that it is, if it is in the primary's own memory.
    pub(crate) lent: Option<Rect>,
    pub(crate) generated: Option<Generated>,
}

/// The memory that a machine grants.
pub(crate) struct SimMemory {
    pub(crate) held: BTreeMap<u32, HeldMatrix>,
    /// Whether matrices have elements.
    has_elements: bool,
    held_bytes: u64,
    grant_bytes: u64,
}

/// Freed memory that has not been credited yet.
#[derive(Default)]
struct UnsentCredit {
    bytes: u64,
    /// Whether a message for it is queued.
    waits: bool,
}

/// One simulated worker.
pub(crate) struct SimWorker {
    pub(crate) worker: Worker,
    /// Whether it works in the primary's own memory.
    pub(crate) shares_memory: bool,
    /// Whether its threads run on the primary's cores.
    pub(crate) on_host: bool,
    pub(crate) speed: SimSpeed,
    pub(crate) tasks: SimTasks,
    pub(crate) jobs_ahead: JobsAhead,
    pub(crate) memory: SimMemory,
    /// Most lines of a result in one frame, if not those of the program.
    lines_max: Option<u32>,
    /// Whether it is running.
    pub(crate) lives: bool,
    /// It was killed or switched off, so it does not join again after a suspension.
    pub(crate) stays_away: bool,
    /// How many faults suspend it.
    pub(crate) stands: u32,
    /// Neighbours to which its link is gone.
    pub(crate) parted: BTreeSet<usize>,
    credit: UnsentCredit,
    /// Messages to be sent.
    pub(crate) leaving: VecDeque<WorkerMessage>,
    /// Relay orders to be carried out.
    pub(crate) passing: VecDeque<Forward>,
    pub(crate) report: SimMachineReport,
}

impl SimWorker {
    /// A machine that grants this memory, or works in the primary's own.
    pub(crate) fn new(grant_bytes: u64, shares_memory: bool, speed: SimSpeed, limits: StartLimits) -> Self {
        Self {
            worker: Worker::new(grant_bytes, limits),
            shares_memory,
            on_host: shares_memory,
            speed,
            tasks: SimTasks::default(),
            jobs_ahead: JobsAhead::new(limits),
            memory: SimMemory { held: BTreeMap::new(), has_elements: false, held_bytes: 0, grant_bytes },
            lines_max: None,
            lives: true,
            stays_away: false,
            stands: 0,
            parted: BTreeSet::new(),
            credit: UnsentCredit::default(),
            leaving: VecDeque::new(),
            passing: VecDeque::new(),
            report: SimMachineReport::default(),
        }
    }

    /// The same, with elements, and results of at most this many lines in a frame.
    pub(crate) fn with_elements(mut self, lines_max: u32) -> Self {
        self.memory.has_elements = true;
        self.lines_max = Some(lines_max);
        self
    }

    fn moved(&mut self, bytes: usize) {
        self.speed.owed_s += bytes as f64 * self.speed.moves_s_per_byte;
    }

    /// The machine is lost, with all its state.
    pub(crate) fn die(&mut self) {
        self.lives = false;
        self.worker = Worker::new(0, self.jobs_ahead.limits());
        self.jobs_ahead.clear();
        self.tasks.running = 0;
        self.tasks.queue.clear();
        self.tasks.deferred.clear();
        self.memory.held.clear();
        self.leaving.clear();
        self.passing.clear();
    }

    /// Tells the primary that the link to another worker is gone.
    pub(crate) fn say_parted(&mut self, other: usize) {
        self.leaving.push_back(WorkerMessage::Parted(u32::try_from(other).unwrap_or(u32::MAX)));
    }

    /// The link to another worker is gone.
    pub(crate) fn part(&mut self, other: usize) {
        self.dispatch(WorkerEvent::PeerLost(u32::try_from(other).unwrap_or(u32::MAX)));
    }

    /// A store message has arrived as a whole.
    pub(crate) fn stored(&mut self, message: &Outgoing) {
        self.moved(message.wire_bytes());
        self.announced(&message.head);
        if let (Some(tile), Some(piece)) = (message.head.matrices.last(), message.piece)
            && piece.leased
        {
            self.leased(tile.id, piece.rect);
        }
        self.landed(&message.head);
    }

    /// The head of a store message has arrived: its matrices need memory.
    pub(crate) fn announced(&mut self, head: &StoreHead) {
        self.dispatch(WorkerEvent::Announced(head));
    }

    /// A tile is a part of C, in the primary's own memory.
    pub(crate) fn leased(&mut self, tile: u32, rect: Rect) {
        self.held_mut(tile).lent = Some(rect);
        self.dispatch(WorkerEvent::Leased(tile));
    }

    /// The body of a store message has landed.
    pub(crate) fn landed(&mut self, head: &StoreHead) {
        self.dispatch(WorkerEvent::Landed(head));
    }

    /// Relay orders have arrived.
    pub(crate) fn ordered(&mut self, forwards: &[Forward]) {
        self.dispatch(WorkerEvent::Relay(forwards));
    }

    /// A matrix has been relayed.
    pub(crate) fn passed(&mut self, forward: &Forward) {
        if let Some(held) = self.memory.held.get(&forward.id) {
            self.moved(to_usize(u32::try_from(held.header.bytes()).unwrap_or(u32::MAX)));
        }
        self.dispatch(WorkerEvent::Passed(forward));
    }

    /// Lines from another worker have arrived; false if their matrix has not been announced yet.
    pub(crate) fn take(&mut self, from: usize, piece: &PieceHead) -> bool {
        let is_known = self.expects(from, piece);
        if is_known {
            self.piece(piece);
        }
        is_known
    }

    /// Whether lines from another worker may land: their matrix has been announced.
    pub(crate) fn expects(&self, from: usize, piece: &PieceHead) -> bool {
        let expected = self.worker.expects(u32::try_from(from).unwrap_or(u32::MAX), piece);
        expected.unwrap_or_else(|e| panic!("a worker broke the protocol: {e}")).is_some()
    }

    /// Lines from another worker have landed.
    pub(crate) fn piece(&mut self, piece: &PieceHead) {
        let line_bytes = self.lines_of(piece.id).1;
        self.moved(to_usize(piece.lines) * line_bytes);
        self.dispatch(WorkerEvent::Piece(piece));
    }

    /// (lines of a matrix, bytes of one line).
    pub(crate) fn lines_of(&self, id: u32) -> (u32, usize) {
        self.header(id).lines_total()
    }

    /// A thread has finished a task.
    pub(crate) fn done(&mut self, task: SimTask) {
        self.tasks.running -= 1;
        if let SimTask::Run(RunnableJob { job, .. }) = task
            && job.operation == Operation::Multiply
        {
            let (a, c) = (self.header(job.a), self.header(job.c));
            self.report.flops += 2.0 * f64::from(c.rows) * f64::from(c.cols) * f64::from(a.cols);
        }
        match task {
            SimTask::Run(run) => {
                self.jobs_ahead.finished(&run);
                self.dispatch(WorkerEvent::Finished(&run.job));
            }
            SimTask::Fill(id) => self.dispatch(WorkerEvent::Filled(id)),
        }
    }

    /// A frame has been sent; fills in the credit that it carries.
    pub(crate) fn left(&mut self, parcel: &mut WorkerMessage) {
        self.moved(parcel.wire_bytes());
        match parcel {
            WorkerMessage::Result { head, is_last: true, .. } => self.returned(head.c),
            WorkerMessage::Result { .. } | WorkerMessage::Missing(_) | WorkerMessage::Parted(_) => {}
            WorkerMessage::Credit(bytes) => *bytes = self.take_credit(),
        }
    }

    /// A tile has been sent.
    pub(crate) fn returned(&mut self, tile: u32) {
        self.jobs_ahead.sent(tile);
        self.dispatch(WorkerEvent::Returned(tile));
    }

    /// The memory that was freed until now, for the message that leaves.
    pub(crate) fn take_credit(&mut self) -> u64 {
        self.credit.waits = false;
        std::mem::take(&mut self.credit.bytes)
    }

    /// The next task for an idle thread, with the seconds that it takes if nothing slows it.
    pub(crate) fn begin(&mut self) -> Option<(SimTask, f64)> {
        if self.tasks.running >= self.speed.threads || self.stands > 0 || !self.lives {
            return None;
        }
        let task = self.tasks.queue.take()?;
        self.tasks.running += 1;
        let owed = std::mem::take(&mut self.speed.owed_s) * f64::from(self.speed.threads);
        Some((task, self.seconds(&task) + owed))
    }

    fn header(&self, id: u32) -> &MatrixHeader {
        &self.held(id).header
    }

    /// A matrix that is there.
    pub(crate) fn held(&self, id: u32) -> &HeldMatrix {
        self.memory.held.get(&id).unwrap_or_else(|| panic!("matrix {id} is used and is not there"))
    }

    /// The same, to be written.
    pub(crate) fn held_mut(&mut self, id: u32) -> &mut HeldMatrix {
        self.memory.held.get_mut(&id).unwrap_or_else(|| panic!("matrix {id} is written and is not there"))
    }

    fn seconds(&self, task: &SimTask) -> f64 {
        let threads = f64::from(self.speed.threads) * self.speed.busy.values().copied().fold(1.0, f64::max);
        match task {
            SimTask::Fill(id) => {
                threads * self.header(*id).bytes() as f64 / self.speed.rates.fill_bytes_per_s
            }
            SimTask::Run(run) => {
                let (a, c) = (self.header(run.job.a), self.header(run.job.c));
                let elements = f64::from(c.rows) * f64::from(c.cols);
                match run.job.operation {
                    Operation::Multiply => {
                        threads * 2.0 * elements * f64::from(a.cols) / self.speed.flops_per_s
                    }
                    Operation::Add | Operation::Subtract => {
                        let moved = if run.reads_tile { 4.0 } else { 3.0 };
                        threads * moved * c.bytes() as f64 / self.speed.rates.add_bytes_per_s
                    }
                }
            }
        }
    }

    /// Passes one event to the worker's state machine and carries out the actions.
    fn dispatch(&mut self, event: WorkerEvent<'_>) {
        let actions = self.worker.handle(event);
        for action in actions.unwrap_or_else(|e| panic!("the primary broke the protocol: {e}")) {
            match action {
                WorkerAction::Reserve(header) => {
                    self.reserve(header);
                    self.memory.held_bytes += header.charged_bytes();
                    assert!(
                        self.memory.held_bytes <= self.memory.grant_bytes,
                        "a machine holds more than its plan says"
                    );
                    self.report.held_bytes_max = self.report.held_bytes_max.max(self.memory.held_bytes);
                }
                WorkerAction::Fill(id) => {
                    self.report.fills += 1;
                    self.tasks.queue.put(SimTask::Fill(id), Priority(id));
                }
                WorkerAction::Start(run) => {
                    self.report.jobs += 1;
                    let target = self.held(run.job.c);
                    let (header, is_lent) = (target.header, target.lent.is_some());
                    self.jobs_ahead.started(&run, &header, is_lent);
                    let in_order = Priority(run.job.order());
                    let turn = if self.tasks.in_order { in_order } else { Priority::of(&run.job) };
                    self.tasks.queue.put(SimTask::Run(run), turn);
                }
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    let head = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    self.send_back(head);
                }
                WorkerAction::Pass(forward) => self.passing.push_back(forward),
                WorkerAction::Missing(missing) => self.leaving.push_back(WorkerMessage::Missing(missing)),
                WorkerAction::Release(id) => drop(self.memory.held.remove(&id)),
                WorkerAction::Credit(bytes) => {
                    self.memory.held_bytes -= bytes;
                    self.credit.bytes += bytes;
                    if !std::mem::replace(&mut self.credit.waits, true) {
                        self.leaving.push_back(WorkerMessage::Credit(0));
                    }
                }
            }
        }
    }

    fn reserve(&mut self, header: MatrixHeader) {
        let count = if self.memory.has_elements { to_usize(header.rows) * to_usize(header.cols) } else { 0 };
        let header = MatrixHeader { first_line: 0, ..header };
        let held = HeldMatrix { header, elements: vec![GARBAGE; count], lent: None, generated: None };
        self.memory.held.insert(header.id, held);
    }

    /// Queues a tile for sending in frames of whole rows; a leased tile as one message without bytes.
    fn send_back(&mut self, head: ResultHead) {
        let (rows, line_bytes) = self.header(head.c).lines_total();
        let is_lent = self.held(head.c).lent.is_some();
        let lines_max = self.lines_max.unwrap_or_else(|| lines_per_frame(line_bytes));
        let per_frame = if is_lent { rows } else { lines_max };
        let mut first_line = 0;
        while first_line < rows {
            let lines = per_frame.min(rows - first_line);
            let bytes = if is_lent { 0 } else { to_usize(lines) * line_bytes };
            let is_last = first_line + lines == rows;
            let head = ResultHead { first_line, lines, ..head };
            self.leaving.push_back(WorkerMessage::Result { head, bytes, is_last });
            first_line += lines;
        }
    }
}
