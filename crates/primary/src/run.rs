//! Carrying out a plan: one task that reads and one that writes for each link, one state machine.
//!
//! Invariants: everything lives on one event loop; the state machine decides, this file carries. No wait is
//! without a deadline: the machine's ticks find silent workers.

mod carry;
mod notes;
mod relay;

use crate::PrimaryError;
use crate::account::{IoUse, MachineReport, Progress, report_stubs, take_account};
use crate::aside::{AsideLines, Asides, bytes_of, copy_lines};
use crate::bodies::{Bodies, Tile};
use crate::log::{Log, Phase, Recorder};
use crate::neighbours::Met;
use crate::product::Watch;
use bramble_link::{Arrived, ArrivedBody, Body, Frame, Landing, LinkError, Meter, Section};
use bramble_matrix::number::to_usize;
use bramble_matrix::{Buffer, Lent, Output, Rect};
use bramble_schedule::ProtocolError;
use bramble_schedule::message::{Bye, Kind, Pong, ResultHead, decode_error, decode_number, encode_number};
use bramble_schedule::primary::{Action, Event, Operands, PeerInfo, Place, Primary};
use carry::{read, write};
pub(crate) use notes::Terms;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long workers have for their goodbyes; what they computed is here already.
const GOODBYE: Duration = Duration::from_secs(2);
/// Links may take this long to close.
const CLOSING: Duration = Duration::from_millis(200);

/// One worker while the product runs.
struct Peer {
    name: String,
    to: Option<mpsc::UnboundedSender<Frame>>,
    shares_memory: bool,
    bytes_sent: Rc<Cell<u64>>,
    bytes_received: Rc<Cell<u64>>,
    /// What the opening of the session had sent and received: greetings and measurements are not the product's.
    before: (u64, u64),
    /// Counts bytes as they come, and what it said when it was last looked at.
    arriving: Rc<Cell<u64>>,
    arrived_bytes: u64,
    goodbye: Option<Bye>,
}

impl Peer {
    /// Bytes of the product that were sent to it.
    fn sent(&self) -> u64 {
        self.bytes_sent.get().saturating_sub(self.before.0)
    }

    /// Bytes of the product that came from it.
    fn received(&self) -> u64 {
        self.bytes_received.get().saturating_sub(self.before.1)
    }
}

/// What all tasks of a product share.
struct Core {
    state: Primary,
    bodies: Bodies,
    output: Arc<Output>,
    /// Hints to the disk under way, each on a thread of its own: a busy disk makes them wait.
    hints: JoinSet<()>,
    peers: Vec<Peer>,
    /// Tiles of which some rows have landed, by peer and id.
    partial: BTreeMap<(usize, u32), Lent>,
    /// Sums that wait for those before them.
    asides: Asides,
    /// Tiles that are missing in each row of tiles; empty where C is not cut into one grid of tiles.
    tiles_left_in_row: Vec<u64>,
    began: Instant,
    /// Time that this process has run, and when it was last looked at.
    clock: Duration,
    looked: Instant,
    first_job: Option<Instant>,
    finished: Option<Instant>,
    failed: Option<String>,
    changed: Rc<Notify>,
    meter: Rc<Meter>,
    recorder: Recorder,
}

/// What a run gives back.
pub(crate) struct Ran {
    pub(crate) output: Output,
    pub(crate) seconds: f64,
    pub(crate) first_job: Instant,
    pub(crate) machines: Vec<MachineReport>,
    /// What was decided: who did what.
    pub(crate) state: Primary,
    /// Most bytes of sums that were put aside.
    pub(crate) aside_bytes_max: usize,
    /// What this thread's processor time went to, if that was asked.
    pub(crate) io: Option<IoUse>,
    pub(crate) log: Option<Log>,
}

/// Runs a plan on the sessions of its members, in their order, some of which have links with each other.
pub(crate) async fn run(
    plan: bramble_plan::Plan,
    operands: Operands,
    bodies: Bodies,
    output: Output,
    met: Met,
    watch: &dyn Watch,
    mut terms: Terms,
) -> Result<Ran, PrimaryError> {
    let Met { sessions, neighbours, report: _ } = met;
    let machines = report_stubs(&plan, &sessions);
    terms.recorder.peers(&sessions);
    let infos = sessions
        .iter()
        .zip(&plan.members)
        .zip(neighbours)
        .map(|((s, member), neighbours)| PeerInfo {
            name: s.name.clone(),
            // The plan's promise; what the worker granted is at least that.
            credit_bytes: member.memory_bytes.min(s.welcome.memory_bytes),
            shares_memory: s.link.shares_memory,
            neighbours,
            work_per_s: s.welcome.gflops * 1e9 / 2.0,
            is_reserve: false,
        })
        .collect();
    let changed = Rc::new(Notify::new());
    let tiles_left_in_row = tiles_by_row(&plan)?;
    let state = Primary::new(plan, operands, infos);
    let core = Rc::new(RefCell::new(Core {
        tiles_left_in_row,
        state: if terms.steals { state } else { state.without_stealing() },
        bodies,
        output: Arc::new(output),
        hints: JoinSet::new(),
        peers: Vec::new(),
        partial: BTreeMap::new(),
        asides: Asides::default(),
        began: Instant::now(),
        clock: Duration::ZERO,
        looked: Instant::now(),
        first_job: None,
        finished: None,
        failed: None,
        changed: changed.clone(),
        meter: Rc::new(Meter::new(terms.account)),
        recorder: terms.recorder,
    }));
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    for (index, session) in sessions.into_iter().enumerate() {
        // Bounded by who fills it: stores by the link's window, pings by the silence after which a peer is lost.
        let (to, frames) = mpsc::unbounded_channel();
        let (sent, received) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let before = (session.link.sender.bytes_sent(), session.link.receiver.bytes_received());
        core.borrow_mut().peers.push(Peer {
            name: session.name,
            to: Some(to),
            shares_memory: session.link.shares_memory,
            bytes_sent: sent.clone(),
            bytes_received: received.clone(),
            before,
            arriving: session.link.receiver.arriving(),
            arrived_bytes: 0,
            goodbye: None,
        });
        writers.spawn_local(write(session.link.sender, frames, core.clone(), index, sent));
        readers.spawn_local(read(session.link.receiver, core.clone(), index, received));
    }
    core.borrow_mut().recorder.phase(Phase::Computing);
    core.borrow_mut().happened(Event::Start);
    supervise(&core, &changed, watch).await;
    goodbyes(&core, &changed).await;
    // Writers that have nothing left to send close their links, which tells the other ends that this was the end.
    core.borrow_mut().peers.iter_mut().for_each(|p| p.to = None);
    let _ = tokio::time::timeout(CLOSING, async { while writers.join_next().await.is_some() {} }).await;
    writers.shutdown().await;
    readers.shutdown().await;
    let core = Rc::into_inner(core).map(RefCell::into_inner);
    let Some(mut core) = core else {
        return Err(PrimaryError::Failed("a task outlived its product".to_owned()));
    };
    while core.hints.join_next().await.is_some() {}
    core.ran(machines)
}

/// Ticks until the product is over, one way or the other.
async fn supervise(core: &Rc<RefCell<Core>>, changed: &Notify, watch: &dyn Watch) {
    loop {
        let _ = tokio::time::timeout(TICK, changed.notified()).await;
        let mut core = core.borrow_mut();
        if core.finished.is_some() || core.failed.is_some() {
            watch.progress(&core.progress());
            return;
        }
        core.hear();
        core.happened(Event::Tick);
        watch.progress(&core.progress());
    }
}

/// Says goodbye to every worker and takes its account, for a while.
async fn goodbyes(core: &Rc<RefCell<Core>>, changed: &Notify) {
    if core.borrow().failed.is_some() {
        return;
    }
    core.borrow_mut().say_goodbye();
    let deadline = tokio::time::Instant::now() + GOODBYE;
    while core.borrow().peers.iter().any(|p| p.goodbye.is_none() && p.to.is_some()) {
        if tokio::time::timeout_at(deadline, changed.notified()).await.is_err() {
            return;
        }
    }
}

impl Core {
    /// One event through the state machine, and what comes of it.
    fn happened(&mut self, event: Event) {
        self.pass_time();
        let now = self.clock;
        let actions = self.meter.within(Section::Scheduling, || self.state.handle(event, now));
        self.recorder.look(&self.state);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Send(peer, message) => {
                    self.first_job.get_or_insert_with(Instant::now);
                    let whole_lines = self.peers[peer].shares_memory;
                    self.recorder.given(peer, &message.head);
                    let body = || self.bodies.body(&message, &self.output, whole_lines);
                    match self.meter.within(Section::Encoding, body) {
                        Ok(body) => self.send(peer, Kind::Store, message.head.encode(), body),
                        Err(e) => self.fail(e.to_string()),
                    }
                }
                Action::Relay(peer, forwards) => self.order(peer, &forwards),
                Action::Parted { peer, other } => self.parted(peer, other),
                Action::Ping(peer, nonce) => self.send(peer, Kind::Ping, encode_number(nonce), Body::Empty),
                Action::Merge { peer, tile, rect } => {
                    let c = self.output.lend(rect);
                    assert!(
                        self.asides.merge((peer, tile), c),
                        "tile {tile} of peer {peer} was not put aside"
                    );
                }
                Action::Committed(rect) => self.committed(rect),
                Action::Finished => {
                    self.finished = Some(Instant::now());
                    self.changed.notify_one();
                }
                Action::Fail(why) => self.fail(why),
                Action::Cut { .. } | Action::Put { .. } => {
                    unreachable!("without `recovering` no link is cut and no tile staged")
                }
            }
        }
    }

    /// Lets time pass for the state machine, but not more than a few ticks at once: while this process was held
    /// up (a busy disk, a suspended laptop) nobody could be heard, and nobody was silent.
    fn pass_time(&mut self) {
        self.clock += self.looked.elapsed().min(TICK * 5);
        self.looked = Instant::now();
    }

    /// A worker whose bytes come is alive, also in the middle of a long frame on a slow link.
    fn hear(&mut self) {
        for peer in 0..self.peers.len() {
            let bytes = self.peers[peer].arriving.get();
            if std::mem::replace(&mut self.peers[peer].arrived_bytes, bytes) != bytes {
                self.happened(Event::Alive { peer });
            }
        }
    }

    fn fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
        self.changed.notify_one();
    }

    fn send(&self, peer: usize, kind: Kind, head: Vec<u8>, body: Body) {
        if let Some(to) = &self.peers[peer].to {
            // A writer that is gone has reported its loss.
            let _ = to.send(Frame::new(kind.code(), head, body));
        }
    }

    /// A row of tiles that is complete may go to the disk while the next is computed.
    fn committed(&mut self, rect: Rect) {
        let tile_rows = self.state.plan().regions.first().map_or(1, |r| r.grid.tile_rows.max(1));
        let row = usize::try_from(rect.rows.start / tile_rows);
        let Some(left) = row.ok().and_then(|row| self.tiles_left_in_row.get_mut(row)) else { return };
        *left -= 1;
        if *left == 0 {
            let output = self.output.clone();
            self.hints.spawn_blocking(move || output.start_writeback(rect.rows));
        }
    }

    fn describe(&self, e: LinkError) -> String {
        match e {
            LinkError::Closed => "it closed the connection".to_owned(),
            other => other.to_string(),
        }
    }

    fn lost(&mut self, peer: usize, e: &LinkError) {
        let why = e.to_string();
        self.happened(Event::Lost { peer, why });
    }

    fn place(&mut self, peer: usize, head: &ResultHead, bytes: usize) -> Result<Box<dyn Landing>, String> {
        let destination = self.state.expect(peer, head).map_err(|e| e.0)?;
        let rect = destination.rect;
        let line_bytes = to_usize(head.lines).checked_mul(self.line_bytes(rect)).filter(|b| *b == bytes);
        if line_bytes.is_none() {
            return Err(format!("{} rows of tile {} came with {bytes} bytes", head.lines, head.c));
        }
        if destination.place == Place::Aside {
            let buffer = self.aside(peer, head, rect)?;
            let from = to_usize(head.first_line) * self.line_bytes(rect);
            return Ok(Box::new(AsideLines { buffer, from, len: bytes }));
        }
        let lent = match self.partial.remove(&(peer, head.c)) {
            Some(lent) => lent,
            None => self.output.lend(rect),
        };
        let first = to_usize(head.first_line);
        Ok(Box::new(Tile::rows(lent, first..first + to_usize(head.lines))))
    }

    /// Bytes of one row of a rectangle of C.
    fn line_bytes(&self, rect: Rect) -> usize {
        let row = Rect::new(bramble_matrix::Span::new(0, 1), rect.cols);
        bytes_of(row, self.output.dtype()).unwrap_or(usize::MAX)
    }

    /// The buffer for lines that have to wait.
    fn aside(&mut self, peer: usize, head: &ResultHead, rect: Rect) -> Result<Buffer, String> {
        let bytes = bytes_of(rect, self.output.dtype()).ok_or("a tile that is larger than memory")?;
        self.asides.take((peer, head.c), bytes).map_err(|e| e.to_string())
    }

    fn arrived(&mut self, peer: usize, arrived: Arrived) -> Result<(), ProtocolError> {
        match Kind::from_code(arrived.kind)? {
            Kind::Result => {
                let head = ResultHead::decode(&arrived.head)?;
                self.recorder.landing(peer, &head, || self.state.expect(peer, &head).ok());
                self.keep(peer, &head, arrived.body)?;
                self.happened(Event::Landed { peer, head });
            }
            Kind::Credit => {
                let bytes = decode_number(&arrived.head)?;
                self.happened(Event::Credit { peer, bytes });
            }
            Kind::Pong => {
                self.recorder.answered(peer, Pong::decode(&arrived.head)?);
                self.happened(Event::Alive { peer });
            }
            Kind::Log => {
                self.recorder.worked(peer, &arrived.head)?;
                self.happened(Event::Alive { peer });
            }
            Kind::Bye => {
                self.peers[peer].goodbye = Some(Bye::decode(&arrived.head)?);
                self.changed.notify_one();
            }
            Kind::Missing | Kind::Reached => self.relayed(peer, &arrived)?,
            // A complete product is not lost by what somebody says while leaving.
            Kind::Error if self.finished.is_some() => drop(decode_error(&arrived.head)?),
            Kind::Error => {
                let text = decode_error(&arrived.head)?;
                self.fail(format!("worker {}: {text}", self.peers[peer].name));
            }
            Kind::Hello
            | Kind::Welcome
            | Kind::Store
            | Kind::Ping
            | Kind::Relay
            | Kind::Neighbour
            | Kind::Join
            | Kind::Piece => {
                let what = format!("a message of kind {} has no place here", arrived.kind);
                return Err(ProtocolError::new(what));
            }
        }
        Ok(())
    }

    /// Lines of a result have come, or the memory that was lent for them.
    fn keep(&mut self, peer: usize, head: &ResultHead, body: ArrivedBody) -> Result<(), ProtocolError> {
        let landing = match body {
            ArrivedBody::Landed(landing) | ArrivedBody::Lent(landing) => landing.into_any(),
            ArrivedBody::Shared(region) => return self.keep_shared(peer, head, &region),
            ArrivedBody::Empty => return Err(ProtocolError::new("it sent a result without rows")),
        };
        let landing = match landing.downcast::<Buffer>() {
            Ok(buffer) => {
                self.asides.put((peer, head.c), *buffer);
                return Ok(());
            }
            Err(other) => other,
        };
        let lent = landing.downcast::<Lent>();
        let lent = lent.map_err(|_| ProtocolError::new("it returned memory that is no part of C"))?;
        let rows = lent.rect().rows.len();
        if u64::from(head.first_line) + u64::from(head.lines) < rows {
            self.partial.insert((peer, head.c), *lent);
        } else {
            drop(lent);
        }
        Ok(())
    }

    /// Lines of a sum that this process's own threads made, where they lie.
    fn keep_shared(
        &mut self,
        peer: usize,
        head: &ResultHead,
        region: &bramble_link::Region,
    ) -> Result<(), ProtocolError> {
        let destination = self.state.expect(peer, head)?;
        if destination.place != Place::Aside {
            return Err(ProtocolError::new("it returned a copy of what was lent to it"));
        }
        let mut buffer = self.aside(peer, head, destination.rect).map_err(ProtocolError::new)?;
        let from = to_usize(head.first_line) * self.line_bytes(destination.rect);
        if !copy_lines(&mut buffer, from, region) {
            return Err(ProtocolError::new("it returned more than a tile"));
        }
        self.asides.put((peer, head.c), buffer);
        Ok(())
    }

    fn progress(&self) -> Progress {
        let plan = self.state.plan();
        let tiles = plan.tiles();
        let tiles_done = tiles - self.state.tiles_left();
        let flops = plan.problem.flops();
        let wire = |bytes: fn(&Peer) -> u64| self.peers.iter().filter(|p| !p.shares_memory).map(bytes).sum();
        Progress {
            tiles_done,
            tiles,
            fraction: self.state.progress(),
            flops,
            bytes_sent: wire(Peer::sent),
            bytes_received: wire(Peer::received),
            elapsed: self.first_job.map_or(Duration::ZERO, |t| t.elapsed()),
        }
    }

    fn ran(self, machines: Vec<MachineReport>) -> Result<Ran, PrimaryError> {
        if let Some(why) = self.failed {
            return Err(PrimaryError::Failed(why));
        }
        let first_job = self.first_job.unwrap_or(self.began);
        let finished = self.finished.unwrap_or_else(Instant::now);
        let mut machines = machines;
        for moved in self.state.moved() {
            machines[moved.from].share -= moved.part;
            machines[moved.to].share += moved.part;
        }
        for (machine, peer) in machines.iter_mut().zip(self.peers) {
            if !peer.shares_memory {
                (machine.bytes_in, machine.bytes_out) = (peer.sent(), peer.received());
            }
            take_account(machine, &peer.goodbye.unwrap_or_default(), self.meter.spent().is_some());
        }
        let seconds = finished.saturating_duration_since(first_job).as_secs_f64();
        let output = Arc::into_inner(self.output);
        let output = output.ok_or_else(|| PrimaryError::Failed("a hint outlived its product".to_owned()))?;
        let aside_bytes_max = self.asides.bytes_max();
        let (io, log) = (self.meter.spent().map(|spent| IoUse::of(&spent)), self.recorder.into_log());
        Ok(Ran { output, seconds, first_job, machines, state: self.state, aside_bytes_max, io, log })
    }
}

/// How many tiles each row of tiles has, where C is one grid of tiles.
fn tiles_by_row(plan: &bramble_plan::Plan) -> Result<Vec<u64>, PrimaryError> {
    let [region] = plan.regions[..] else { return Ok(Vec::new()) };
    if region.levels > 0 {
        return Ok(Vec::new());
    }
    let grid = region.grid;
    let too_many =
        || PrimaryError::Failed(format!("{} rows of tiles are too many for this machine", grid.rows()));
    let rows = usize::try_from(grid.rows()).map_err(|_| too_many())?;
    let mut left = Vec::new();
    left.try_reserve_exact(rows).map_err(|_| too_many())?;
    left.resize(rows, grid.cols());
    Ok(left)
}
