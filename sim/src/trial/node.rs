//! A worker in a trial: its state machine, its matrices, its threads, and its messages.
//!
//! Place in the flow: replaces the worker's shell (crates/worker/src/session), with elements.
//!
//! Invariants: a task that runs when the machine stops never ends.

use super::end_clock::EndClock;
use super::jobs_ahead::JobsAhead;
use super::joins::joining_peer;
use super::lanes::{AfterSend, FrameBody, LaneItem, TrialFrame};
use super::trial_data::{GARBAGE, InitialValue, line_places, places};
use super::{Trial, TrialEvent};
use crate::clock::VirtualTime;
use crate::fault::FaultKind;
use bramble_matrix::{Rect, Span};
use bramble_schedule::clock::{StepClock, WORKER_STEP};
use bramble_schedule::message::{
    Generated, Kind, MatrixHeader, Operation, Reached, ResultHead, StoreHead, decode_forwards, encode_number,
};
use bramble_schedule::primary::PeerInfo;
use bramble_schedule::worker::{
    Priority, PriorityQueue, RunnableJob, Silence, StartLimits, Worker, WorkerAction, WorkerEvent,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A task of a compute thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrialTask {
    Run(RunnableJob),
    Fill(u32),
}

/// A matrix in a worker's memory, by rows.
pub(super) struct HeldMatrix {
    pub(super) header: MatrixHeader,
    pub(super) elements: Vec<f64>,
    /// The part of C that it is, if it is in the primary's own memory.
    lent: Option<Rect>,
    generated: Option<Generated>,
}

/// Memory that a worker has freed and not credited yet.
#[derive(Default)]
struct UnsentCredit {
    bytes: u64,
    /// Whether a frame for it is queued.
    waits: bool,
}

/// The compute threads of a worker, and their tasks.
pub(super) struct NodeTasks {
    threads: u32,
    flops_per_s: f64,
    queue: PriorityQueue<TrialTask>,
    pub(super) running: u32,
    /// Tasks that ended while the machine was suspended.
    pub(super) deferred: Vec<TrialTask>,
    /// How many times slower it computes, for each fault that slows it.
    pub(super) busy: BTreeMap<usize, f64>,
}

/// The clock of a worker's session, and when it heard the primary.
pub(super) struct SessionClock {
    pub(super) watch: EndClock,
    clock: StepClock,
    /// Start of the session.
    began: VirtualTime,
    /// Whether the primary was heard since the last check, and when it was last heard, by the session's clock.
    is_heard: bool,
    heard: Duration,
}

/// One simulated worker.
pub(super) struct Node {
    pub(super) worker: Worker,
    pub(super) shares_memory: bool,
    pub(super) tasks: NodeTasks,
    pub(super) jobs_ahead: JobsAhead,
    pub(super) held: BTreeMap<u32, HeldMatrix>,
    credit: UnsentCredit,
    /// Neighbours to which its link is gone.
    pub(super) lost: BTreeSet<usize>,
    /// Its first neighbours: how long each has been silent, and how often it was heard.
    pub(super) ears: BTreeMap<usize, (Silence, u64)>,
    /// Whether it runs, however slowly.
    pub(super) lives: bool,
    /// How many faults suspend it.
    pub(super) stands: u32,
    /// How many faults make it return wrong results.
    pub(super) lies: u32,
    pub(super) session: SessionClock,
    /// When it last got an announcement.
    pub(super) announced: VirtualTime,
}

impl Node {
    pub(super) fn new(info: &PeerInfo, (threads, gflops): (u32, f64), limits: StartLimits) -> Self {
        Self {
            worker: Worker::new(info.credit_bytes, limits),
            shares_memory: info.shares_memory,
            tasks: NodeTasks {
                threads: threads.max(1),
                flops_per_s: gflops * 1e9,
                queue: PriorityQueue::default(),
                running: 0,
                deferred: Vec::new(),
                busy: BTreeMap::new(),
            },
            jobs_ahead: JobsAhead::new(limits),
            held: BTreeMap::new(),
            credit: UnsentCredit::default(),
            lost: BTreeSet::new(),
            ears: info.neighbours.iter().map(|other| (*other, (Silence::new(0), 0))).collect(),
            lives: true,
            stands: 0,
            lies: 0,
            session: SessionClock {
                watch: EndClock::default(),
                clock: StepClock::new(WORKER_STEP),
                began: VirtualTime::default(),
                is_heard: true,
                heard: Duration::ZERO,
            },
            announced: VirtualTime::default(),
        }
    }

    /// A node for a machine that may join.
    pub(super) fn absent() -> Self {
        let limits = StartLimits::for_threads(1);
        Self { lives: false, ..Self::new(&joining_peer(0, 0, 1.0), (1, 1.0), limits) }
    }

    /// Sets the start of a session that begins later than the product.
    pub(super) fn starts(&mut self, now: VirtualTime) {
        self.session.began = now;
    }

    /// The session's clock, which counts from its start.
    pub(super) fn shown(&self, now: VirtualTime) -> Duration {
        self.session.watch.shows(now) - self.session.began.duration()
    }

    /// How long the primary has been silent; `moves`: its bytes are moving now.
    pub(super) fn silence(&mut self, now: VirtualTime, moves: bool) -> Duration {
        let shown = self.shown(now);
        let time = self.session.clock.advance_to(shown);
        if std::mem::take(&mut self.session.is_heard) || moves {
            self.session.heard = time;
        }
        time - self.session.heard
    }

    fn seconds(&self, task: &TrialTask) -> f64 {
        let per_thread = self.tasks.flops_per_s
            / f64::from(self.tasks.threads)
            / self.tasks.busy.values().copied().fold(1.0, f64::max);
        let elements = |id: u32| self.held.get(&id).map_or(0.0, |held| held.elements.len() as f64);
        let flops = match task {
            TrialTask::Fill(id) => elements(*id),
            TrialTask::Run(RunnableJob { job, .. }) => match job.operation {
                Operation::Multiply => {
                    let depth = self.held.get(&job.a).map_or(0.0, |a| f64::from(a.header.cols));
                    2.0 * elements(job.c) * depth
                }
                Operation::Add | Operation::Subtract => elements(job.c),
            },
        };
        flops / per_thread
    }
}

impl Trial {
    /// The head of a store has arrived: its matrices need memory.
    pub(super) fn announce(&mut self, peer: usize, head: &StoreHead) {
        let actions = self.nodes[peer].worker.handle(WorkerEvent::Announced(head));
        self.act(peer, actions.unwrap_or_else(|e| panic!("w{peer}: the primary broke the protocol: {e}")));
        self.nodes[peer].announced = self.event_queue.now();
        for from in 0..self.nodes.len() {
            self.pump(self.across(from, peer));
        }
    }

    /// A message of the primary has arrived.
    pub(super) fn receive_at_worker(&mut self, peer: usize, frame: TrialFrame, was_announced: bool) {
        self.nodes[peer].session.is_heard = true;
        match frame.kind {
            Kind::Store => self.store(peer, frame, was_announced),
            Kind::Relay => {
                let forwards = decoded(decode_forwards(&frame.head));
                let actions = self.nodes[peer].worker.handle(WorkerEvent::Relay(&forwards));
                self.act(peer, decoded(actions));
            }
            Kind::Ping => {
                let lane = self.back(peer);
                self.send(lane, Kind::Pong, frame.head, FrameBody::Empty, AfterSend::Nothing);
            }
            Kind::Reached => {
                let other = decoded(Reached::decode(&frame.head)).peer as usize;
                self.part(peer, other, false);
            }
            other => panic!("a message of kind {other:?} has no place at a worker"),
        }
    }

    fn store(&mut self, peer: usize, frame: TrialFrame, was_announced: bool) {
        let head = decoded(StoreHead::decode(&frame.head));
        if !was_announced {
            self.announce(peer, &head);
        }
        if let Some(header) = head.matrices.last() {
            let held = self.nodes[peer].held.get_mut(&header.id);
            let held = held.unwrap_or_else(|| panic!("matrix {} is not there", header.id));
            match frame.body {
                FrameBody::Empty => {}
                FrameBody::Lent(rect) => {
                    held.lent = Some(rect);
                    let actions = self.nodes[peer].worker.handle(WorkerEvent::Leased(header.id));
                    self.act(peer, decoded(actions));
                }
                FrameBody::Bytes(bytes) => held.generated = Some(decoded(Generated::decode(&bytes))),
                FrameBody::Elements(elements) => {
                    let first = u64::from(header.first_line);
                    let lines = Span::new(first, first + u64::from(header.lines));
                    let places = line_places(header.layout, (header.rows, header.cols), lines);
                    places.zip(elements).for_each(|(place, element)| held.elements[place] = element);
                }
            }
        }
        let actions = self.nodes[peer].worker.handle(WorkerEvent::Landed(&head));
        self.act(peer, decoded(actions));
    }

    /// Carries out actions, and starts tasks on idle threads.
    pub(super) fn act(&mut self, peer: usize, actions: Vec<WorkerAction>) {
        for action in actions {
            match action {
                WorkerAction::Reserve(header) => {
                    let count = header.rows as usize * header.cols as usize;
                    let elements = vec![GARBAGE; count];
                    let header = MatrixHeader { first_line: 0, ..header };
                    let held = HeldMatrix { header, elements, lent: None, generated: None };
                    self.nodes[peer].held.insert(header.id, held);
                }
                WorkerAction::Fill(id) => self.nodes[peer].tasks.queue.put(TrialTask::Fill(id), Priority(id)),
                WorkerAction::Start(run) => {
                    let node = &mut self.nodes[peer];
                    let target = &node.held[&run.job.c];
                    node.jobs_ahead.started(&run, &target.header, target.lent.is_some());
                    node.tasks.queue.put(TrialTask::Run(run), Priority::of(&run.job));
                }
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    let head = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    self.send_back(peer, head);
                }
                WorkerAction::Pass(forward) => self.pass(peer, forward),
                WorkerAction::Missing(missing) => {
                    let lane = self.back(peer);
                    self.send(lane, Kind::Missing, missing.encode(), FrameBody::Empty, AfterSend::Nothing);
                }
                WorkerAction::Release(id) => drop(self.nodes[peer].held.remove(&id)),
                WorkerAction::Credit(bytes) => {
                    let node = &mut self.nodes[peer];
                    node.credit.bytes += bytes;
                    if !std::mem::replace(&mut node.credit.waits, true) {
                        let lane = self.back(peer);
                        self.lanes[lane].send(lane, LaneItem::Credit, &mut self.event_queue);
                    }
                }
            }
        }
        self.nodes[peer].worker.validate();
        let (for_link, for_threads) = self.nodes[peer].worker.waiting();
        self.record.seen.waits.for_link += u64::from(for_link > 0);
        self.record.seen.waits.for_threads += u64::from(for_threads > 0);
        self.compute(peer);
    }

    /// The frame with the accumulated credit.
    pub(super) fn take_credit(&mut self, peer: usize) -> TrialFrame {
        let node = &mut self.nodes[peer];
        node.credit.waits = false;
        let head = encode_number(std::mem::take(&mut node.credit.bytes));
        TrialFrame::new(Kind::Credit, head, FrameBody::Empty, AfterSend::Nothing)
    }

    /// Starts tasks on idle threads.
    fn compute(&mut self, peer: usize) {
        let node = &mut self.nodes[peer];
        while node.tasks.running < node.tasks.threads
            && let Some(task) = node.tasks.queue.take()
        {
            node.tasks.running += 1;
            let seconds = node.seconds(&task);
            self.event_queue.add(seconds, TrialEvent::Done(peer, task));
        }
    }

    /// A thread has finished a task.
    pub(super) fn done(&mut self, peer: usize, task: TrialTask) {
        let node = &mut self.nodes[peer];
        if !node.lives {
            return;
        }
        if node.stands > 0 {
            return node.tasks.deferred.push(task);
        }
        node.tasks.running -= 1;
        let actions = match task {
            TrialTask::Fill(id) => {
                self.fill(peer, id);
                self.nodes[peer].worker.handle(WorkerEvent::Filled(id))
            }
            TrialTask::Run(run) => {
                self.run_job(peer, &run);
                self.nodes[peer].jobs_ahead.finished(&run);
                self.nodes[peer].worker.handle(WorkerEvent::Finished(&run.job))
            }
        };
        self.act(peer, decoded(actions));
    }

    /// Computes the elements of a generated matrix.
    fn fill(&mut self, peer: usize, id: u32) {
        let held = self.nodes[peer].held.get_mut(&id);
        let held = held.unwrap_or_else(|| panic!("matrix {id} is made and is not there"));
        let Some(Generated { generator, row, col }) = held.generated else {
            panic!("matrix {id} has no generator description")
        };
        let (from, cols) = match generator[0] {
            0 => (&self.model.data.a, self.model.data.p.k),
            _ => (&self.model.data.b, self.model.data.p.n),
        };
        let span = |first: u64, len: u32| Span::new(first, first + u64::from(len));
        let rect = Rect::new(span(row, held.header.rows), span(col, held.header.cols));
        held.elements = places(rect, cols).map(|place| from[place]).collect();
    }

    fn run_job(&mut self, peer: usize, run: &RunnableJob) {
        let job = &run.job;
        let held = &mut self.nodes[peer].held;
        let Some(mut target) = held.remove(&job.c) else {
            panic!("matrix {} is written and is not there", job.c)
        };
        let read = |id: u32| held.get(&id).unwrap_or_else(|| panic!("matrix {id} is read and is not there"));
        let (a, b) = (read(job.a), read(job.b));
        let before = match (run.reads_tile, run.scales_tile) {
            (false, _) => InitialValue::Nothing,
            (true, true) => InitialValue::OldC,
            (true, false) => InitialValue::Sum,
        };
        if let Some(rect) = target.lent {
            target.elements = places(rect, self.model.data.p.n).map(|place| self.shell.c[place]).collect();
        }
        let to = &mut target.elements;
        match job.operation {
            Operation::Multiply => {
                self.model.data.multiply(&a.elements, &b.elements, a.header.cols as usize, before, to);
            }
            Operation::Add => self.model.data.combine(&a.elements, &b.elements, false, before, to),
            Operation::Subtract => self.model.data.combine(&a.elements, &b.elements, true, before, to),
        }
        self.work.jobs[peer] += u64::from(job.operation == Operation::Multiply);
        if let Some(rect) = target.lent {
            let places = places(rect, self.model.data.p.n);
            places.zip(&target.elements).for_each(|(place, element)| self.shell.c[place] = *element);
        }
        held.insert(job.c, target);
    }

    /// Sends a tile in frames of whole rows; a leased tile as one message without bytes.
    fn send_back(&mut self, peer: usize, head: ResultHead) {
        let lane = self.back(peer);
        let held = &self.nodes[peer].held[&head.c];
        let (rows, cols) = (held.header.rows, held.header.cols as usize);
        if let Some(rect) = held.lent {
            let head = ResultHead { lines: rows, ..head };
            let after = AfterSend::Returned(head.c);
            return self.send(lane, Kind::Result, head.encode(), FrameBody::Lent(rect), after);
        }
        let mut elements = held.elements.clone();
        if let Some(lie) = self.lie_of(peer) {
            elements[0] += lie;
        }
        let mut first_line = 0;
        while first_line < rows {
            let lines = self.limits.lines_per_frame.min(rows - first_line);
            let is_last = first_line + lines == rows;
            let part = first_line as usize * cols..(first_line + lines) as usize * cols;
            let body = FrameBody::Elements(elements[part].to_vec());
            let after = if is_last { AfterSend::Returned(head.c) } else { AfterSend::Nothing };
            self.send(lane, Kind::Result, ResultHead { first_line, lines, ..head }.encode(), body, after);
            first_line += lines;
        }
    }

    /// What a worker with wrong results adds to the first element of each: another number at each machine, because two that
    /// agree would count as right.
    pub(super) fn lie_of(&mut self, peer: usize) -> Option<f64> {
        let lies = self.nodes[peer].lies > 0;
        lies.then(|| {
            self.inspection.liars.insert(peer);
            1.0 + peer as f64
        })
    }

    /// A frame of a worker has left.
    pub(super) fn has_left(&mut self, peer: usize, after: AfterSend) {
        let event = match &after {
            AfterSend::Nothing | AfterSend::Sent(_) => return,
            AfterSend::Returned(tile) => {
                self.nodes[peer].jobs_ahead.sent(*tile);
                WorkerEvent::Returned(*tile)
            }
            AfterSend::Passed(forward) => WorkerEvent::Passed(forward),
        };
        let actions = self.nodes[peer].worker.handle(event);
        self.act(peer, decoded(actions));
    }

    /// A worker's session ends, with an error message or without; the system closes its links.
    pub(super) fn stop(&mut self, peer: usize, last: Option<String>) {
        if !self.nodes[peer].lives {
            return;
        }
        self.remove_worker(peer);
        let last = last.map(|text| {
            let head = bramble_schedule::message::encode_error(&text);
            TrialFrame::new(Kind::Error, head, FrameBody::Empty, AfterSend::Nothing)
        });
        let (back, out) = (self.back(peer), self.out(peer));
        self.lanes[back].close(back, last, &mut self.event_queue);
        self.lanes[out].end();
        for other in 0..self.nodes.len() {
            let (to, from) = (self.across(peer, other), self.across(other, peer));
            self.lanes[to].close(to, None, &mut self.event_queue);
            self.lanes[from].end();
        }
    }

    /// A worker is gone, with all its state.
    pub(super) fn remove_worker(&mut self, peer: usize) {
        let node = &mut self.nodes[peer];
        node.lives = false;
        node.worker = Worker::new(0, node.jobs_ahead.limits());
        node.tasks.queue.clear();
        node.jobs_ahead.clear();
        node.tasks.running = 0;
        node.held.clear();
        node.tasks.deferred.clear();
    }

    /// Suspends or resumes a worker.
    pub(super) fn suspend(&mut self, peer: usize, stands: bool) {
        let count = &mut self.nodes[peer].stands;
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        for lane in self.lanes_of(peer) {
            let is_sender = self.sender(lane) == Some(peer);
            self.lanes[lane].stand(lane, (is_sender, stands), &mut self.event_queue);
        }
        if self.nodes[peer].stands == 0 {
            for task in std::mem::take(&mut self.nodes[peer].tasks.deferred) {
                self.event_queue.add(0.0, TrialEvent::Done(peer, task));
            }
            self.lanes_of(peer).into_iter().for_each(|lane| self.pump(lane));
        }
    }

    /// A fault makes a worker compute slower, or ends.
    pub(super) fn set_busy(&mut self, peer: usize, number: usize, kind: Option<FaultKind>) {
        match kind {
            Some(FaultKind::Busy(times)) => drop(self.nodes[peer].tasks.busy.insert(number, times)),
            _ => drop(self.nodes[peer].tasks.busy.remove(&number)),
        }
    }
}

/// Unwraps a result that the state machine of the other end must not make fail.
pub(super) fn decoded<T>(result: Result<T, bramble_schedule::ProtocolError>) -> T {
    result.unwrap_or_else(|e| panic!("an end broke the protocol: {e}"))
}
