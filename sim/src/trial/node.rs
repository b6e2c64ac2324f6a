//! A worker in a trial: the machine of `machine.rs`, its elements, and the frames of its messages.
//!
//! Place in the flow: between the lanes and the machine.
//!
//! Invariants: a task that runs when the machine stops never ends.

use super::end_clock::EndClock;
use super::lanes::{AfterSend, FrameBody, LaneItem, TrialFrame};
use super::trial_data::{InitialValue, line_places, places};
use super::{Trial, TrialEvent, WorkerLimits};
use crate::clock::VirtualTime;
use crate::fault::FaultKind;
use crate::machine::{SimSpeed, SimTask, SimWorker, WorkerMessage};
use crate::participants;
use crate::setting::SimRates;
use bramble_matrix::{Rect, Span};
use bramble_plan::Machine;
use bramble_schedule::clock::{StepClock, WORKER_STEP};
use bramble_schedule::primary::PeerInfo;
use bramble_schedule::worker::{RunnableJob, Silence};
use bramble_wire::message::{
    Generated, Kind, MatrixSource, Operation, Reached, ResultHead, StoreHead, decode_forwards, encode_number,
};
use std::collections::BTreeMap;
use std::time::Duration;

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
    pub(super) machine: SimWorker,
    /// Its first neighbours: how long each has been silent, and how often it was heard.
    pub(super) ears: BTreeMap<usize, (Silence, u64)>,
    /// How many faults make it return wrong results.
    pub(super) lies: u32,
    pub(super) session: SessionClock,
    /// When it last got an announcement.
    pub(super) announced: VirtualTime,
}

impl Node {
    pub(super) fn new(info: &PeerInfo, is: &Machine, limits: WorkerLimits) -> Self {
        let gflops = is.gflops;
        // An element that is added or generated takes as long as an operation.
        let rates = SimRates { add_bytes_per_s: 24e9 * gflops, fill_bytes_per_s: 8e9 * gflops };
        let speed = SimSpeed::new(is.threads, gflops, rates);
        let machine = SimWorker::new(info.credit_bytes, info.shares_memory, speed, limits.start_limits);
        Self {
            machine: machine.with_elements(limits.lines_per_frame),
            ears: info.neighbours.iter().map(|other| (*other, (Silence::new(0), 0))).collect(),
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
    pub(super) fn absent(is: &Machine, limits: WorkerLimits) -> Self {
        let mut absent = Self::new(&participants::joining(is), is, limits);
        absent.machine.lives = false;
        absent
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
}

impl Trial {
    /// The head of a store has arrived: its matrices need memory.
    pub(super) fn announce(&mut self, peer: usize, head: &StoreHead) {
        self.nodes[peer].machine.announced(head);
        self.advance(peer);
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
                self.nodes[peer].machine.ordered(&forwards);
                self.advance(peer);
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
            if let (MatrixSource::Resident, FrameBody::Bytes(bytes)) = (header.source, &frame.body) {
                let elements = self.placed_elements(peer, header, bytes);
                self.nodes[peer].machine.held_mut(header.id).elements = elements;
                self.nodes[peer].machine.landed(&head);
                return self.advance(peer);
            }
            let machine = &mut self.nodes[peer].machine;
            match frame.body {
                FrameBody::Empty => {}
                FrameBody::Lent(rect) => {
                    machine.leased(header.id, rect);
                    self.advance(peer);
                }
                FrameBody::Bytes(bytes) => {
                    machine.held_mut(header.id).generated = Some(decoded(Generated::decode(&bytes)))
                }
                FrameBody::Elements(elements) => {
                    let first = u64::from(header.first_line);
                    let lines = Span::new(first, first + u64::from(header.lines));
                    let places = line_places(header.layout, (header.rows, header.cols), lines);
                    let held = machine.held_mut(header.id);
                    places.zip(elements).for_each(|(place, element)| held.elements[place] = element);
                }
            }
        }
        self.nodes[peer].machine.landed(&head);
        self.advance(peer);
    }

    /// Sends what a worker has to send, and starts tasks on idle threads.
    pub(super) fn advance(&mut self, peer: usize) {
        while let Some(forward) = self.nodes[peer].machine.passing.pop_front() {
            self.pass(peer, forward);
        }
        while let Some(message) = self.nodes[peer].machine.leaving.pop_front() {
            self.send_back(peer, message);
        }
        let machine = &mut self.nodes[peer].machine;
        machine.worker.validate();
        let (for_link, for_threads) = machine.worker.waiting();
        self.record.seen.waits.for_link += u64::from(for_link > 0);
        self.record.seen.waits.for_threads += u64::from(for_threads > 0);
        while let Some((task, seconds)) = machine.begin() {
            self.event_queue.add(seconds, TrialEvent::Done(peer, task));
        }
    }

    /// The frame with the accumulated credit.
    pub(super) fn take_credit(&mut self, peer: usize) -> TrialFrame {
        let head = encode_number(self.nodes[peer].machine.take_credit());
        TrialFrame::new(Kind::Credit, head, FrameBody::Empty, AfterSend::Nothing)
    }

    /// A thread has finished a task.
    pub(super) fn done(&mut self, peer: usize, task: SimTask) {
        let machine = &mut self.nodes[peer].machine;
        if !machine.lives {
            return;
        }
        if machine.stands > 0 {
            return machine.tasks.deferred.push(task);
        }
        match &task {
            SimTask::Fill(id) => self.fill(peer, *id),
            SimTask::Run(run) => self.run_job(peer, run),
        }
        self.nodes[peer].machine.done(task);
        self.advance(peer);
    }

    /// Computes the elements of a generated matrix.
    fn fill(&mut self, peer: usize, id: u32) {
        let held = self.nodes[peer].machine.held_mut(id);
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
        let held = &mut self.nodes[peer].machine.memory.held;
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

    /// Sends a message to the primary, with the elements that it has now.
    fn send_back(&mut self, peer: usize, message: WorkerMessage) {
        let lane = self.back(peer);
        let (kind, head) = match message {
            WorkerMessage::Credit(_) => {
                return self.lanes[lane].send(lane, LaneItem::Credit, &mut self.event_queue);
            }
            WorkerMessage::Missing(missing) => (Kind::Missing, missing.encode()),
            WorkerMessage::Parted(other) => {
                let reached = Reached { peer: other, is_there: false, why: "it is gone".into() };
                (Kind::Reached, reached.encode())
            }
            WorkerMessage::Result { head, is_last, .. } => {
                let after = if is_last { AfterSend::Returned(head.c) } else { AfterSend::Nothing };
                let body = self.result_body(peer, &head);
                return self.send(lane, Kind::Result, head.encode(), body, after);
            }
        };
        self.send(lane, kind, head, FrameBody::Empty, AfterSend::Nothing);
    }

    /// Rows of a tile; a leased tile returns without bytes.
    fn result_body(&mut self, peer: usize, head: &ResultHead) -> FrameBody {
        let held = self.nodes[peer].machine.held(head.c);
        if let Some(rect) = held.lent {
            return FrameBody::Lent(rect);
        }
        let cols = held.header.cols as usize;
        let part = head.first_line as usize * cols..(head.first_line + head.lines) as usize * cols;
        let mut elements = held.elements[part].to_vec();
        if head.first_line == 0
            && let Some(lie) = self.lie_of(peer)
        {
            elements[0] += lie;
        }
        FrameBody::Elements(elements)
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
        match &after {
            AfterSend::Nothing | AfterSend::Sent(_) => return,
            AfterSend::Returned(tile) => self.nodes[peer].machine.returned(*tile),
            AfterSend::Passed(forward) => self.nodes[peer].machine.passed(forward),
        }
        self.advance(peer);
    }

    /// A worker's session ends, with an error message or without; the system closes its links.
    pub(super) fn stop(&mut self, peer: usize, last: Option<String>) {
        if !self.nodes[peer].machine.lives {
            return;
        }
        self.nodes[peer].machine.die();
        let last = last.map(|text| {
            let head = bramble_wire::message::encode_error(&text);
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

    /// Suspends or resumes a worker.
    pub(super) fn suspend(&mut self, peer: usize, stands: bool) {
        let count = &mut self.nodes[peer].machine.stands;
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        for lane in self.lanes_of(peer) {
            let is_sender = self.sender(lane) == Some(peer);
            self.lanes[lane].stand(lane, (is_sender, stands), &mut self.event_queue);
        }
        if self.nodes[peer].machine.stands == 0 {
            for task in std::mem::take(&mut self.nodes[peer].machine.tasks.deferred) {
                self.event_queue.add(0.0, TrialEvent::Done(peer, task));
            }
            self.advance(peer);
            self.lanes_of(peer).into_iter().for_each(|lane| self.pump(lane));
        }
    }

    /// A fault makes a worker compute slower, or ends.
    pub(super) fn set_busy(&mut self, peer: usize, number: usize, kind: Option<FaultKind>) {
        match kind {
            Some(FaultKind::Busy(times)) => drop(self.nodes[peer].machine.speed.busy.insert(number, times)),
            _ => drop(self.nodes[peer].machine.speed.busy.remove(&number)),
        }
    }
}

/// Unwraps a result that the state machine of the other end must not make fail.
pub(super) fn decoded<T>(result: Result<T, bramble_wire::ProtocolError>) -> T {
    result.unwrap_or_else(|e| panic!("an end broke the protocol: {e}"))
}
