//! Carrying out a plan: one task that reads and one that writes for each link, one state machine.
//!
//! Invariants: everything lives on one event loop; the state machine decides, this file carries. No wait is
//! without a deadline: the machine's ticks find silent workers.

mod attend;
mod carry;
mod inspection;
mod joins;
mod kept;
mod land;
mod loss;
mod notes;
mod relay;
mod spots;

use crate::PrimaryError;
use crate::account::{IoUse, Joined, MachineReport, Progress, joined, report_stubs, take_account};
use crate::aside::Asides;
use crate::bodies::Bodies;
use crate::keeper::{JournalFile, Keeper};
use crate::log::{Log, Phase, Recorder};
use crate::neighbours::Met;
use crate::product::Watch;
use attend::{Attendants, ended, supervise};
use bramble_link::{Arrived, Body, Frame, Leaving, LinkError, Meter, Section};
use bramble_matrix::{Lent, Output, Rect};
use bramble_schedule::ProtocolError;
use bramble_schedule::clock::{Clock, PRIMARY_STEP};
use bramble_schedule::message::{Bye, Kind, Pong, ResultHead, decode_error, decode_number, encode_number};
use bramble_schedule::primary::{Action, Event, Operands, PeerInfo, Primary};
pub(crate) use inspection::Inspected;
pub(crate) use joins::{Comers, Kernels};
use joins::{Tasks, admit};
pub(crate) use kept::Before;
pub(crate) use notes::Terms;
use spots::{Look, Looking, ROWS_MIN};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long workers have for their goodbyes; what they computed is here already.
const GOODBYE: Duration = Duration::from_secs(2);
/// Of the work; less than a tile of any product, and more than what rounding leaves of a share that went to others.
const SHARE_MIN: f64 = 1e-12;
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
    /// Count bytes as they come and go, and what they said when they were last looked at.
    arriving: Rc<Cell<u64>>,
    leaving: Leaving,
    moved_bytes: (u64, u64),
    goodbye: Option<Bye>,
    /// Tells its reader to end, and why.
    cut: Rc<Notify>,
    why: Option<String>,
    writer: Option<AbortHandle>,
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
    /// What is reported of them.
    machines: Vec<MachineReport>,
    /// Tiles of which some rows have landed, by peer and id.
    partial: BTreeMap<(usize, u32), Lent>,
    /// Sums that wait for those before them.
    asides: Asides,
    /// Tiles that are missing in each row of tiles; empty where C is not cut into one grid of tiles.
    tiles_left_in_row: Vec<u64>,
    began: Instant,
    /// Time that this process has run.
    clock: Clock,
    first_job: Option<Instant>,
    finished: Option<Instant>,
    /// How long C was looked at before something was made again.
    inspecting: Duration,
    failed: Option<String>,
    /// Whether that is because the file of an operand was changed.
    is_changed: bool,
    /// Links between workers that broke: whose, and why.
    parted: Vec<(usize, usize, String)>,
    /// Machines that came in, and when.
    joined: Vec<(usize, Duration)>,
    /// When the user wanted it to end.
    stopped: Option<Duration>,
    /// Keeps the journal.
    keeper: Option<Keeper>,
    /// A tile that is to be looked at.
    look: Option<Look>,
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
    pub(crate) journal: Option<JournalFile>,
    /// What was found in C.
    pub(crate) inspected: Inspected,
    /// Links between workers that broke while C was made: whose, and why.
    pub(crate) parted: Vec<(usize, usize, String)>,
    /// Machines that came in meanwhile.
    pub(crate) joined: Vec<Joined>,
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
    let Met { sessions, neighbours, dead, report: _ } = met;
    let before = terms.before.take();
    // In a product that goes on nobody is a member of the plan.
    let members = if before.is_some() { &[] } else { &plan.members[..] };
    let working = before.as_ref().map_or(members.len(), |before| before.working);
    let machines = report_stubs(&plan, members.len(), &sessions);
    terms.recorder.peers(&sessions, working);
    let infos = sessions
        .iter()
        .zip(neighbours)
        .enumerate()
        .map(|(at, (s, neighbours))| PeerInfo {
            name: s.name.clone(),
            // The plan's promise; what the worker granted is at least that.
            credit_bytes: members
                .get(at)
                .map_or_else(|| terms.credits.unwrap_or(u64::MAX), |member| member.memory_bytes)
                .min(s.welcome.memory_bytes),
            shares_memory: s.link.shares_memory,
            referred: bodies.referred(&s.link),
            neighbours,
            work_per_s: s.welcome.gflops * 1e9 / 2.0,
            link_bytes_per_s: s.rate.map(|rate| rate.bytes_per_s),
            is_reserve: at >= working,
        })
        .collect();
    let changed = Rc::new(Notify::new());
    // Without hints for a product that goes on: the journal brings C to the disk, too.
    let tiles_left_in_row = if before.is_some() { Vec::new() } else { tiles_by_row(&plan)? };
    let state = kept::state(plan, operands, infos, before.as_ref(), terms.steals)?;
    let state = if terms.inspector.looks() { state.looking(ROWS_MIN) } else { state };
    let core = Rc::new(RefCell::new(Core {
        tiles_left_in_row,
        state,
        bodies,
        output: Arc::new(output),
        hints: JoinSet::new(),
        peers: Vec::new(),
        machines,
        partial: BTreeMap::new(),
        asides: Asides::default(),
        began: Instant::now(),
        clock: Clock::new(PRIMARY_STEP),
        first_job: None,
        finished: None,
        inspecting: Duration::ZERO,
        failed: None,
        is_changed: false,
        parted: Vec::new(),
        joined: Vec::new(),
        stopped: None,
        keeper: None,
        look: None,
        changed: changed.clone(),
        meter: Rc::new(Meter::new(terms.account)),
        recorder: terms.recorder,
    }));
    let mut tasks = Tasks::default();
    for (session, why) in sessions.into_iter().zip(&dead) {
        tasks.enlist(&core, session, why.is_some());
    }
    core.borrow_mut().keep_journal(terms.journal.take())?;
    core.borrow_mut().recorder.phase(Phase::Computing);
    core.borrow_mut().happened(Event::Start);
    for (index, why) in dead.into_iter().enumerate() {
        why.into_iter().for_each(|why| core.borrow_mut().gone(index, why));
    }
    let (admitted, came) = mpsc::channel(1);
    let admission = terms.comers.take().map(|comers| tokio::task::spawn_local(admit(comers, admitted)));
    let stop = terms.stop.clone();
    let inspector = terms.inspector.clone();
    let looking = Looking::default();
    let mut with =
        Attendants { changed: &changed, watch, stop: &stop, tasks, came, told: 0, inspector, looking };
    supervise(&core, &mut with).await;
    let (inspected, journal) = ended(&core, &mut with, &terms.inspector).await?;
    admission.iter().for_each(JoinHandle::abort);
    let Attendants { tasks, .. } = with;
    // Writers that have nothing left to send close their links, which tells the other ends that this was the end.
    core.borrow_mut().peers.iter_mut().for_each(|p| p.to = None);
    let Tasks { mut writers, mut readers } = tasks;
    let _ = tokio::time::timeout(CLOSING, async { while writers.join_next().await.is_some() {} }).await;
    writers.shutdown().await;
    readers.shutdown().await;
    let core = Rc::into_inner(core).map(RefCell::into_inner);
    let Some(mut core) = core else {
        return Err(PrimaryError::Failed("a task outlived its product".to_owned()));
    };
    while core.hints.join_next().await.is_some() {}
    core.ran(inspected, journal?)
}

impl Core {
    /// One event through the state machine, and what comes of it.
    fn happened(&mut self, event: Event) {
        let now = self.clock.look(self.began.elapsed());
        let actions = self.meter.within(Section::Scheduling, || self.state.handle(event, now));
        self.recorder.look(&self.state);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Send(peer, message) => {
                    self.first_job.get_or_insert_with(Instant::now);
                    self.recorder.given(peer, &message.head);
                    let body = || self.bodies.body(&message, &self.output);
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
                Action::Look(rect) => self.take_look(rect),
                Action::Committed(rect) => self.committed(rect),
                Action::Finished => {
                    self.finished = Some(Instant::now());
                    self.changed.notify_one();
                }
                Action::Fail(why) => self.fail(why),
                Action::Cut { peer, why } => self.cut(peer, why),
                Action::Put { peer, tile, rect } => {
                    let c = self.output.lend(rect);
                    assert!(self.asides.store((peer, tile), c), "tile {tile} of peer {peer} was not staged");
                }
            }
        }
    }

    /// A worker whose bytes come, or that takes ours, is alive, also in the middle of a long frame on a slow link.
    fn hear(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].to.is_none() {
                continue;
            }
            let (came, left) = (self.peers[peer].arriving.get(), (self.peers[peer].leaving)());
            let moved = (came, left.there);
            if std::mem::replace(&mut self.peers[peer].moved_bytes, moved) != moved {
                self.happened(Event::Flow { peer, came, gone: left.there, held: left.held });
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
        if let Some(keeper) = &self.keeper {
            keeper.committed(rect);
        }
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
            Kind::Error => return Err(ProtocolError::new(decode_error(&arrived.head)?)),
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

    fn ran(self, inspected: Option<Inspected>, journal: Option<JournalFile>) -> Result<Ran, PrimaryError> {
        if self.stopped.is_some() && self.finished.is_none() {
            return Err(PrimaryError::Stopped);
        }
        if let Some(why) = self.failed {
            return Err(if self.is_changed { PrimaryError::Changed(why) } else { PrimaryError::Failed(why) });
        }
        let Some(inspected) = inspected else { return Err(PrimaryError::Stopped) };
        let first_job = self.first_job.unwrap_or(self.began);
        let finished = self.finished.unwrap_or_else(Instant::now);
        let mut machines = self.machines;
        for (to, part) in self.state.taken_up() {
            machines[to].share += part;
        }
        for moved in self.state.moved() {
            machines[moved.from].share -= moved.part;
            machines[moved.to].share += moved.part;
        }
        // With what was made again it is more than one.
        let all: f64 = machines.iter().map(|machine| machine.share).sum();
        if all > 1.0 + 1e-9 {
            machines.iter_mut().for_each(|machine| machine.share /= all);
        }
        for (machine, peer) in machines.iter_mut().zip(self.peers) {
            if machine.share < SHARE_MIN {
                machine.share = 0.0;
            }
            if !peer.shares_memory {
                (machine.bytes_in, machine.bytes_out) = (peer.sent(), peer.received());
            }
            take_account(machine, &peer.goodbye.unwrap_or_default(), self.meter.spent().is_some());
        }
        let seconds =
            finished.saturating_duration_since(first_job).saturating_sub(self.inspecting).as_secs_f64();
        let output = Arc::into_inner(self.output);
        let output = output.ok_or_else(|| PrimaryError::Failed("a hint outlived its product".to_owned()))?;
        let aside_bytes_max = self.asides.bytes_max();
        let (io, log) = (self.meter.spent().map(|spent| IoUse::of(&spent)), self.recorder.into_log());
        let (state, parted) = (self.state, self.parted);
        let joined = joined(&self.joined, &machines);
        Ok(Ran {
            output,
            seconds,
            first_job,
            machines,
            state,
            aside_bytes_max,
            io,
            log,
            journal,
            inspected,
            parted,
            joined,
        })
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
