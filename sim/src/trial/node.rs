//! A worker in a trial: its state machine, its matrices, its threads, and what it sends.
//!
//! Place in the flow: does what the worker's shell does (crates/worker/src/session), with elements.
//!
//! Invariants: what is running when the machine stops is never done.

use super::joins::comer;
use super::links::{After, Body, Frame, Item};
use super::matter::{Before, GARBAGE, line_places, places};
use super::watch::Watch;
use super::{Happening, Trial};
use crate::clock::Time;
use crate::fault::FaultKind;
use bramble_matrix::{Rect, Span};
use bramble_schedule::clock::{Clock, WORKER_STEP};
use bramble_schedule::message::{
    Generated, Kind, MatrixHeader, Operation, Reached, ResultHead, StoreHead, decode_forwards, encode_number,
};
use bramble_schedule::primary::PeerInfo;
use bramble_schedule::worker::{Action, Event, Run, Silence, Turn, Turns, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What a compute thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Run(Run),
    Fill(u32),
}

/// A matrix in a worker's memory, by rows.
pub(super) struct Held {
    pub(super) header: MatrixHeader,
    pub(super) elements: Vec<f64>,
    /// It is a part of C, in the primary's own memory.
    lent: Option<Rect>,
    generated: Option<Generated>,
}

/// One worker.
pub(super) struct Node {
    pub(super) worker: Worker,
    pub(super) shares_memory: bool,
    threads: u32,
    flops_per_s: f64,
    queue: Turns<Task>,
    pub(super) running: u32,
    pub(super) held: BTreeMap<u32, Held>,
    credit: u64,
    credit_waits: bool,
    /// Neighbours to whom there is no link any more.
    pub(super) lost: BTreeSet<usize>,
    /// What it hears of those to whom there was one when it began, and how often it heard something.
    pub(super) ears: BTreeMap<usize, (Silence, u64)>,
    /// It runs, however slowly.
    pub(super) lives: bool,
    /// How many faults have it stand still, and what was done meanwhile.
    pub(super) stands: u32,
    pub(super) deferred: Vec<Task>,
    /// How many times slower it computes.
    pub(super) busy: BTreeMap<usize, f64>,
    /// How many faults have it give back what is wrong.
    pub(super) lies: u32,
    /// The primary was heard since that was last asked; and when it last was, by the session's clock.
    is_heard: bool,
    heard: Duration,
    pub(super) watch: Watch,
    clock: Clock,
    /// When the session began.
    began: Time,
    /// When it was last told of a matrix.
    pub(super) announced: Time,
}

impl Node {
    pub(super) fn new(info: &PeerInfo, threads: u32, gflops: f64) -> Self {
        Self {
            worker: Worker::new(info.credit_bytes),
            shares_memory: info.shares_memory,
            threads: threads.max(1),
            flops_per_s: gflops * 1e9,
            queue: Turns::default(),
            running: 0,
            held: BTreeMap::new(),
            credit: 0,
            credit_waits: false,
            lost: BTreeSet::new(),
            ears: info.neighbours.iter().map(|other| (*other, (Silence::new(0), 0))).collect(),
            lives: true,
            stands: 0,
            deferred: Vec::new(),
            busy: BTreeMap::new(),
            lies: 0,
            is_heard: true,
            heard: Duration::ZERO,
            watch: Watch::default(),
            clock: Clock::new(WORKER_STEP),
            began: Time::default(),
            announced: Time::default(),
        }
    }

    /// A place for one who may come in.
    pub(super) fn absent() -> Self {
        Self { lives: false, ..Self::new(&comer(0, 0, 1.0), 1, 1.0) }
    }

    /// Its session begins later than the product.
    pub(super) fn starts(&mut self, now: Time) {
        self.began = now;
    }

    /// What the session's clock shows, which counts from when it began.
    pub(super) fn shown(&self, now: Time) -> Duration {
        self.watch.shows(now) - self.began.duration()
    }

    /// For how long the primary has been silent, when its bytes move now or not.
    pub(super) fn silence(&mut self, now: Time, moves: bool) -> Duration {
        let shown = self.shown(now);
        let time = self.clock.look(shown);
        if std::mem::take(&mut self.is_heard) || moves {
            self.heard = time;
        }
        time - self.heard
    }

    fn seconds(&self, task: &Task) -> f64 {
        let per_thread =
            self.flops_per_s / f64::from(self.threads) / self.busy.values().copied().fold(1.0, f64::max);
        let elements = |id: u32| self.held.get(&id).map_or(0.0, |held| held.elements.len() as f64);
        let flops = match task {
            Task::Fill(id) => elements(*id),
            Task::Run(Run { job, .. }) => match job.operation {
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
    /// The head of a store is at a machine: it needs memory.
    pub(super) fn announce(&mut self, peer: usize, head: &StoreHead) {
        let actions = self.nodes[peer].worker.handle(Event::Announced(head));
        self.act(peer, actions.unwrap_or_else(|e| panic!("w{peer}: the primary broke the protocol: {e}")));
        self.nodes[peer].announced = self.agenda.now();
        for from in 0..self.nodes.len() {
            self.pump(self.across(from, peer));
        }
    }

    /// A message of the primary is at a machine.
    pub(super) fn hear(&mut self, peer: usize, frame: Frame, was_announced: bool) {
        self.nodes[peer].is_heard = true;
        match frame.kind {
            Kind::Store => self.store(peer, frame, was_announced),
            Kind::Relay => {
                let forwards = decoded(decode_forwards(&frame.head));
                let actions = self.nodes[peer].worker.handle(Event::Relay(&forwards));
                self.act(peer, decoded(actions));
            }
            Kind::Ping => {
                let lane = self.back(peer);
                self.send(lane, Kind::Pong, frame.head, Body::Empty, After::Nothing);
            }
            Kind::Reached => {
                let other = decoded(Reached::decode(&frame.head)).peer as usize;
                self.part(peer, other, false);
            }
            other => panic!("a message of kind {other:?} has no place at a worker"),
        }
    }

    fn store(&mut self, peer: usize, frame: Frame, was_announced: bool) {
        let head = decoded(StoreHead::decode(&frame.head));
        if !was_announced {
            self.announce(peer, &head);
        }
        if let Some(header) = head.matrices.last() {
            let held = self.nodes[peer].held.get_mut(&header.id);
            let held = held.unwrap_or_else(|| panic!("matrix {} is not there", header.id));
            match frame.body {
                Body::Empty => {}
                Body::Lent(rect) => held.lent = Some(rect),
                Body::Bytes(bytes) => held.generated = Some(decoded(Generated::decode(&bytes))),
                Body::Elements(elements) => {
                    let first = u64::from(header.first_line);
                    let lines = Span::new(first, first + u64::from(header.lines));
                    let places = line_places(header.layout, (header.rows, header.cols), lines);
                    places.zip(elements).for_each(|(place, element)| held.elements[place] = element);
                }
            }
        }
        let actions = self.nodes[peer].worker.handle(Event::Landed(&head));
        self.act(peer, decoded(actions));
    }

    /// Does what a worker's state asks for, and what its threads can do.
    pub(super) fn act(&mut self, peer: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Reserve(header) => {
                    let count = header.rows as usize * header.cols as usize;
                    let elements = vec![GARBAGE; count];
                    let header = MatrixHeader { first_line: 0, ..header };
                    let held = Held { header, elements, lent: None, generated: None };
                    self.nodes[peer].held.insert(header.id, held);
                }
                Action::Fill(id) => self.nodes[peer].queue.put(Task::Fill(id), Turn(id)),
                Action::Start(run) => self.nodes[peer].queue.put(Task::Run(run), Turn::of(&run.job)),
                Action::Return { tile, epoch, step_start, step_end } => {
                    let head = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 };
                    self.send_back(peer, head);
                }
                Action::Pass(forward) => self.pass(peer, forward),
                Action::Missing(missing) => {
                    let lane = self.back(peer);
                    self.send(lane, Kind::Missing, missing.encode(), Body::Empty, After::Nothing);
                }
                Action::Release(id) => drop(self.nodes[peer].held.remove(&id)),
                Action::Credit(bytes) => {
                    let node = &mut self.nodes[peer];
                    node.credit += bytes;
                    if !std::mem::replace(&mut node.credit_waits, true) {
                        let lane = self.back(peer);
                        self.lanes[lane].send(lane, Item::Credit, &mut self.agenda);
                    }
                }
            }
        }
        self.nodes[peer].worker.validate();
        self.compute(peer);
    }

    /// The frame for the credit that has gathered.
    pub(super) fn take_credit(&mut self, peer: usize) -> Frame {
        let node = &mut self.nodes[peer];
        node.credit_waits = false;
        let head = encode_number(std::mem::take(&mut node.credit));
        Frame::new(Kind::Credit, head, Body::Empty, After::Nothing)
    }

    /// Threads that are idle take what waits.
    fn compute(&mut self, peer: usize) {
        let node = &mut self.nodes[peer];
        while node.running < node.threads
            && let Some(task) = node.queue.take()
        {
            node.running += 1;
            let seconds = node.seconds(&task);
            self.agenda.add(seconds, Happening::Done(peer, task));
        }
    }

    /// A thread is done with a task.
    pub(super) fn done(&mut self, peer: usize, task: Task) {
        let node = &mut self.nodes[peer];
        if !node.lives {
            return;
        }
        if node.stands > 0 {
            return node.deferred.push(task);
        }
        node.running -= 1;
        let actions = match task {
            Task::Fill(id) => {
                self.fill(peer, id);
                self.nodes[peer].worker.handle(Event::Filled(id))
            }
            Task::Run(run) => {
                self.run_job(peer, &run);
                self.nodes[peer].worker.handle(Event::Finished(&run.job))
            }
        };
        self.act(peer, decoded(actions));
    }

    /// The elements of a generated matrix.
    fn fill(&mut self, peer: usize, id: u32) {
        let held = self.nodes[peer].held.get_mut(&id);
        let held = held.unwrap_or_else(|| panic!("matrix {id} is made and is not there"));
        let Some(Generated { generator, row, col }) = held.generated else {
            panic!("matrix {id} does not say how it is made")
        };
        let (from, cols) = match generator[0] {
            0 => (&self.matter.a, self.matter.p.k),
            _ => (&self.matter.b, self.matter.p.n),
        };
        let span = |first: u64, len: u32| Span::new(first, first + u64::from(len));
        let rect = Rect::new(span(row, held.header.rows), span(col, held.header.cols));
        held.elements = places(rect, cols).map(|place| from[place]).collect();
    }

    fn run_job(&mut self, peer: usize, run: &Run) {
        let job = &run.job;
        let held = &mut self.nodes[peer].held;
        let Some(mut target) = held.remove(&job.c) else {
            panic!("matrix {} is written and is not there", job.c)
        };
        let read = |id: u32| held.get(&id).unwrap_or_else(|| panic!("matrix {id} is read and is not there"));
        let (a, b) = (read(job.a), read(job.b));
        let before = match (run.reads_tile, run.scales_tile) {
            (false, _) => Before::Nothing,
            (true, true) => Before::OldC,
            (true, false) => Before::Sum,
        };
        if let Some(rect) = target.lent {
            target.elements = places(rect, self.matter.p.n).map(|place| self.shell.c[place]).collect();
        }
        let to = &mut target.elements;
        match job.operation {
            Operation::Multiply => {
                self.matter.multiply(&a.elements, &b.elements, a.header.cols as usize, before, to);
            }
            Operation::Add => self.matter.combine(&a.elements, &b.elements, false, before, to),
            Operation::Subtract => self.matter.combine(&a.elements, &b.elements, true, before, to),
        }
        self.jobs[peer] += u64::from(job.operation == Operation::Multiply);
        if let Some(rect) = target.lent {
            let places = places(rect, self.matter.p.n);
            places.zip(&target.elements).for_each(|(place, element)| self.shell.c[place] = *element);
        }
        held.insert(job.c, target);
    }

    /// A tile in frames of whole rows; one that was lent in one piece without bytes.
    fn send_back(&mut self, peer: usize, head: ResultHead) {
        let lane = self.back(peer);
        let held = &self.nodes[peer].held[&head.c];
        let (rows, cols) = (held.header.rows, held.header.cols as usize);
        if let Some(rect) = held.lent {
            let head = ResultHead { lines: rows, ..head };
            let after = After::Returned(head.c);
            return self.send(lane, Kind::Result, head.encode(), Body::Lent(rect), after);
        }
        let mut elements = held.elements.clone();
        if self.nodes[peer].lies > 0 {
            elements[0] += 1.0;
            self.looks.liars.insert(peer);
        }
        let mut first_line = 0;
        while first_line < rows {
            let lines = self.lines_per_frame.min(rows - first_line);
            let is_last = first_line + lines == rows;
            let part = first_line as usize * cols..(first_line + lines) as usize * cols;
            let body = Body::Elements(elements[part].to_vec());
            let after = if is_last { After::Returned(head.c) } else { After::Nothing };
            self.send(lane, Kind::Result, ResultHead { first_line, lines, ..head }.encode(), body, after);
            first_line += lines;
        }
    }

    /// A frame of a worker has left.
    pub(super) fn has_left(&mut self, peer: usize, after: After) {
        let event = match &after {
            After::Nothing | After::Sent(_) => return,
            After::Returned(tile) => Event::Returned(*tile),
            After::Passed(forward) => Event::Passed(forward),
        };
        let actions = self.nodes[peer].worker.handle(event);
        self.act(peer, decoded(actions));
    }

    /// A worker's session ends, with a last word or without; the system closes its links.
    pub(super) fn stop(&mut self, peer: usize, last: Option<String>) {
        if !self.nodes[peer].lives {
            return;
        }
        self.silence(peer);
        let last = last.map(|text| {
            let head = bramble_schedule::message::encode_error(&text);
            Frame::new(Kind::Error, head, Body::Empty, After::Nothing)
        });
        let (back, out) = (self.back(peer), self.out(peer));
        self.lanes[back].close(back, last, &mut self.agenda);
        self.lanes[out].end();
        for other in 0..self.nodes.len() {
            let (to, from) = (self.across(peer, other), self.across(other, peer));
            self.lanes[to].close(to, None, &mut self.agenda);
            self.lanes[from].end();
        }
    }

    /// A worker is not there any more.
    pub(super) fn silence(&mut self, peer: usize) {
        let node = &mut self.nodes[peer];
        node.lives = false;
        node.worker = Worker::new(0);
        node.queue.clear();
        node.running = 0;
        node.held.clear();
        node.deferred.clear();
    }

    /// A worker stands still.
    pub(super) fn stand(&mut self, peer: usize, stands: bool) {
        let count = &mut self.nodes[peer].stands;
        *count = if stands { *count + 1 } else { count.saturating_sub(1) };
        for lane in self.lanes_of(peer) {
            let is_sender = self.sender(lane) == Some(peer);
            self.lanes[lane].stand(lane, (is_sender, stands), &mut self.agenda);
        }
        if self.nodes[peer].stands == 0 {
            for task in std::mem::take(&mut self.nodes[peer].deferred) {
                self.agenda.add(0.0, Happening::Done(peer, task));
            }
            self.lanes_of(peer).into_iter().for_each(|lane| self.pump(lane));
        }
    }

    /// A worker computes so many times slower.
    pub(super) fn be_busy(&mut self, peer: usize, number: usize, kind: Option<FaultKind>) {
        match kind {
            Some(FaultKind::Busy(times)) => drop(self.nodes[peer].busy.insert(number, times)),
            _ => drop(self.nodes[peer].busy.remove(&number)),
        }
    }
}

/// What the other end's state machine made, and this end's has to take.
pub(super) fn decoded<T>(result: Result<T, bramble_schedule::ProtocolError>) -> T {
    result.unwrap_or_else(|e| panic!("an end broke the protocol: {e}"))
}
