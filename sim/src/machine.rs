//! One machine of a plan: the worker's state, threads that take time, and what waits to leave.
//!
//! It may stand still, or be gone, by a fault: then its threads begin nothing.
//!
//! Where moving bytes takes of what computes, the next task that begins takes that much longer.
//!
//! Invariants: the threads take tasks greedily from one queue, additions first unless the setting says otherwise,
//! then first come, first served; the credit that has become free while a frame for it waits leaves in that
//! frame; the machine never holds more than it was granted.
//!
//! Deliberately absent: buffers. What is held is counted as it is charged.

use crate::report::MachineReport;
use crate::setting::Pace;
use bramble_matrix::number::to_usize;
use bramble_plan::Machine;
use bramble_schedule::limits::lines_per_frame;
use bramble_schedule::message::{Forward, MatrixHeader, Missing, Operation, PieceHead, ResultHead};
use bramble_schedule::primary::Outgoing;
use bramble_schedule::worker::{Action, Event, Run, Turn, Turns, Worker};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a compute thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    Run(Run),
    Fill(u32),
}

/// What leaves a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parcel {
    /// Lines of a tile: their bytes, and whether they are the last and its memory is free when they have left.
    Result { head: ResultHead, bytes: usize, is_last: bool },
    /// What is free; the number counts when the frame has left.
    Credit(u64),
    /// What another should have passed on does not come.
    Missing(Missing),
    /// There is no link to another worker any more.
    Parted(u32),
}

impl Parcel {
    /// Bytes on the wire.
    pub(crate) fn wire_bytes(&self) -> usize {
        match self {
            Self::Result { bytes, .. } => 16 + 24 + bytes,
            Self::Credit(_) | Self::Missing(_) => 16 + 8,
            Self::Parted(_) => 16 + 5,
        }
    }
}

/// One member of the plan.
pub(crate) struct End {
    worker: Worker,
    /// It works in the primary's own memory.
    pub(crate) shares_memory: bool,
    /// Its threads run on the primary's cores.
    pub(crate) on_host: bool,
    threads: u32,
    flops_per_s: f64,
    pace: Pace,
    /// Seconds that it does not compute for each byte that it moves, and those that it owes.
    moves_s_per_byte: f64,
    owed_s: f64,
    additions_first: bool,
    queue: Turns<Task>,
    pub(crate) running: u32,
    /// Whether it is there.
    pub(crate) lives: bool,
    /// It was killed or switched off, so it does not go on after it stood still.
    pub(crate) stays_away: bool,
    /// How many faults have it stand still, and what was done meanwhile.
    pub(crate) stands: u32,
    pub(crate) deferred: Vec<Task>,
    /// How many times slower it computes, for each fault that has it do so.
    pub(crate) busy: BTreeMap<usize, f64>,
    /// Neighbours to whom there is no link any more.
    pub(crate) parted: BTreeSet<usize>,
    /// What it has, with headers.
    held: BTreeMap<u32, MatrixHeader>,
    /// Tiles in the primary's own memory.
    lent: BTreeSet<u32>,
    held_bytes: u64,
    grant_bytes: u64,
    /// Free, and not yet said to be.
    pub(crate) credit: u64,
    credit_waits: bool,
    /// What is to leave now.
    pub(crate) leaving: VecDeque<Parcel>,
    /// What is to be passed on to others.
    pub(crate) passing: VecDeque<Forward>,
    pub(crate) report: MachineReport,
}

impl End {
    /// A machine by its number among the machines, and what it may hold.
    pub(crate) fn new(
        (number, grant_bytes): (usize, u64),
        machine: &Machine,
        pace: Pace,
        additions_first: bool,
    ) -> Self {
        Self {
            worker: Worker::new(grant_bytes),
            shares_memory: machine.link.is_none(),
            on_host: machine.link.is_none() || machine.shares_cores,
            threads: machine.threads.max(1),
            flops_per_s: machine.gflops * 1e9,
            pace,
            moves_s_per_byte: 0.0,
            owed_s: 0.0,
            additions_first,
            queue: Turns::default(),
            running: 0,
            lives: true,
            stays_away: false,
            stands: 0,
            deferred: Vec::new(),
            busy: BTreeMap::new(),
            parted: BTreeSet::new(),
            held: BTreeMap::new(),
            lent: BTreeSet::new(),
            held_bytes: 0,
            grant_bytes,
            credit: 0,
            credit_waits: false,
            leaving: VecDeque::new(),
            passing: VecDeque::new(),
            report: MachineReport { machine: number, ..MachineReport::default() },
        }
    }

    /// The same, where moving a byte takes so many seconds of all that it computes with.
    pub(crate) fn moving(mut self, s_per_byte: f64) -> Self {
        self.moves_s_per_byte = if self.shares_memory { 0.0 } else { s_per_byte };
        self
    }

    fn moved(&mut self, bytes: usize) {
        self.owed_s += bytes as f64 * self.moves_s_per_byte;
    }

    /// The machine is gone, with all that it had.
    pub(crate) fn die(&mut self) {
        self.lives = false;
        self.running = 0;
        self.queue.clear();
        self.deferred.clear();
        self.leaving.clear();
        self.passing.clear();
    }

    /// Tells the primary that there is no link to another any more.
    pub(crate) fn say_parted(&mut self, other: usize) {
        self.leaving.push_back(Parcel::Parted(u32::try_from(other).unwrap_or(u32::MAX)));
    }

    /// There is no link to another any more.
    pub(crate) fn part(&mut self, other: usize) {
        self.happened(Event::PeerLost(u32::try_from(other).unwrap_or(u32::MAX)));
    }

    /// A store message is there.
    pub(crate) fn stored(&mut self, message: &Outgoing) {
        self.moved(message.wire_bytes());
        if message.piece.is_some_and(|p| p.lent) {
            let tile = message.head.matrices.last();
            self.lent.extend(tile.map(|m| m.id));
        }
        self.happened(Event::Announced(&message.head));
        self.happened(Event::Landed(&message.head));
    }

    /// Orders of the primary are there.
    pub(crate) fn ordered(&mut self, forwards: &[Forward]) {
        self.happened(Event::Relay(forwards));
    }

    /// A matrix has been passed on.
    pub(crate) fn passed(&mut self, forward: &Forward) {
        if let Some(header) = self.held.get(&forward.id) {
            self.moved(to_usize(u32::try_from(header.bytes()).unwrap_or(u32::MAX)));
        }
        self.happened(Event::Passed(forward));
    }

    /// Lines from another worker are there; false where their matrix is not known yet.
    pub(crate) fn take(&mut self, from: usize, piece: &PieceHead) -> bool {
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        let expected = self.worker.expects(from, piece);
        let is_known = expected.unwrap_or_else(|e| panic!("a worker broke the protocol: {e}")).is_some();
        if is_known {
            let line_bytes = self.lines_of(piece.id).1;
            self.moved(to_usize(piece.lines) * line_bytes);
            self.happened(Event::Piece(piece));
        }
        is_known
    }

    /// (lines of a matrix, bytes of one).
    pub(crate) fn lines_of(&self, id: u32) -> (u32, usize) {
        self.header(id).lines_total()
    }

    /// A thread is done with a task.
    pub(crate) fn done(&mut self, task: Task) {
        self.running -= 1;
        if let Task::Run(Run { job, .. }) = task
            && job.operation == Operation::Multiply
        {
            let (a, c) = (self.header(job.a), self.header(job.c));
            self.report.flops += 2.0 * f64::from(c.rows) * f64::from(c.cols) * f64::from(a.cols);
        }
        match task {
            Task::Run(run) => self.happened(Event::Finished(&run.job)),
            Task::Fill(id) => self.happened(Event::Filled(id)),
        }
    }

    /// A frame has left; the credit that it carries is counted.
    pub(crate) fn left(&mut self, parcel: &mut Parcel) {
        self.moved(parcel.wire_bytes());
        match parcel {
            Parcel::Result { head, is_last: true, .. } => {
                self.lent.remove(&head.c);
                self.happened(Event::Returned(head.c));
            }
            Parcel::Result { .. } | Parcel::Missing(_) | Parcel::Parted(_) => {}
            Parcel::Credit(bytes) => {
                *bytes = std::mem::take(&mut self.credit);
                self.credit_waits = false;
            }
        }
    }

    /// The next task for a thread that is idle, with the seconds that it takes where nothing else runs.
    pub(crate) fn begin(&mut self) -> Option<(Task, f64)> {
        if self.running >= self.threads || self.stands > 0 || !self.lives {
            return None;
        }
        let task = self.queue.take()?;
        self.running += 1;
        let owed = std::mem::take(&mut self.owed_s) * f64::from(self.threads);
        Some((task, self.seconds(&task) + owed))
    }

    fn header(&self, id: u32) -> &MatrixHeader {
        self.held.get(&id).unwrap_or_else(|| panic!("matrix {id} is used and is not there"))
    }

    fn seconds(&self, task: &Task) -> f64 {
        let threads = f64::from(self.threads) * self.busy.values().copied().fold(1.0, f64::max);
        match task {
            Task::Fill(id) => threads * self.header(*id).bytes() as f64 / self.pace.fill_bytes_per_s,
            Task::Run(run) => {
                let (a, c) = (self.header(run.job.a), self.header(run.job.c));
                let elements = f64::from(c.rows) * f64::from(c.cols);
                match run.job.operation {
                    Operation::Multiply => threads * 2.0 * elements * f64::from(a.cols) / self.flops_per_s,
                    Operation::Add | Operation::Subtract => {
                        let moved = if run.reads_tile { 4.0 } else { 3.0 };
                        threads * moved * c.bytes() as f64 / self.pace.add_bytes_per_s
                    }
                }
            }
        }
    }

    /// One event through the worker's state, and what comes of it.
    fn happened(&mut self, event: Event<'_>) {
        let actions = self.worker.handle(event);
        for action in actions.unwrap_or_else(|e| panic!("the primary broke the protocol: {e}")) {
            match action {
                Action::Reserve(header) => {
                    self.held.insert(header.id, header);
                    self.held_bytes += header.charged_bytes();
                    assert!(self.held_bytes <= self.grant_bytes, "a machine holds more than its plan says");
                    self.report.held_bytes_max = self.report.held_bytes_max.max(self.held_bytes);
                }
                Action::Fill(id) => {
                    self.report.fills += 1;
                    self.queue.put(Task::Fill(id), Turn(id));
                }
                Action::Start(run) => {
                    self.report.jobs += 1;
                    let in_order = Turn(run.job.order());
                    let turn = if self.additions_first { Turn::of(&run.job) } else { in_order };
                    self.queue.put(Task::Run(run), turn);
                }
                Action::Return { tile, epoch, step_start, step_end } => {
                    let head = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    self.send_back(head);
                }
                Action::Pass(forward) => self.passing.push_back(forward),
                Action::Missing(missing) => self.leaving.push_back(Parcel::Missing(missing)),
                Action::Release(id) => drop(self.held.remove(&id)),
                Action::Credit(bytes) => {
                    self.held_bytes -= bytes;
                    self.credit += bytes;
                    if !std::mem::replace(&mut self.credit_waits, true) {
                        self.leaving.push_back(Parcel::Credit(0));
                    }
                }
            }
        }
    }

    /// A tile in frames of whole rows; one that was lent in one piece without bytes.
    fn send_back(&mut self, head: ResultHead) {
        let (rows, line_bytes) = self.header(head.c).lines_total();
        let is_lent = self.lent.contains(&head.c);
        let per_frame = if is_lent { rows } else { lines_per_frame(line_bytes) };
        let mut first_line = 0;
        while first_line < rows {
            let lines = per_frame.min(rows - first_line);
            let bytes = if is_lent { 0 } else { to_usize(lines) * line_bytes };
            let is_last = first_line + lines == rows;
            let head = ResultHead { first_line, lines, ..head };
            self.leaving.push_back(Parcel::Result { head, bytes, is_last });
            first_line += lines;
        }
    }
}
