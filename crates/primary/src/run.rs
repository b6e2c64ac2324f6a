//! Executes a plan: one task that reads and one that writes for each link, one state machine.
//!
//! Invariants: all tasks share one event loop; the state machine decides, this file only carries out. Every wait has a
//! deadline: the state machine detects silent workers by the ticks.

mod inspection;
mod joins;
mod land;
mod link_tasks;
mod links;
mod loss;
mod options;
mod relay;
mod resume_point;
mod setup;
mod spot_check;
mod state;
mod supervise;

use crate::account::{
    IoUse, JoinedMachine, MachineReport, ProductProgress, joined, report_stubs, take_account,
};
use crate::bodies::Bodies;
use crate::product::ProductObserver;
use bramble_link::{Arrived, Body, Frame, LinkError, Section, SectionMeter, SendProgressProbe};
use bramble_matrix::{Output, Rect};
use bramble_record::journal::{JournalFile, JournalWriter};
use bramble_record::log::{EventLog, EventRecorder, Phase};
use bramble_schedule::primary::{Operands, PeerInfo, Primary, PrimaryAction, PrimaryEvent};
use bramble_sessions::{ConnectedPeers, IdleConnections, IntroductionEnd, PrimaryError, off_loop};
use bramble_wire::ProtocolError;
use bramble_wire::message::{Bye, Kind, Pong, ResultHead, decode_error, decode_number, encode_number};
pub(crate) use inspection::InspectionResult;
pub(crate) use joins::{AllowedKernels, JoinTerms};
use joins::{Tasks, admit, end_admission};
use links::{LentLink, collect};
pub(crate) use options::RunOptions;
pub(crate) use resume_point::ResumePoint;
use setup::peer_infos;
use spot_check::{ROWS_MIN, SpotChecker};
use state::{LandingResults, ObservedEvents, RequestedChecks, RunFailure, RunTimes, WriteBack};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use supervise::{Supervisor, part, run_to_end};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

/// Interval between ticks of the state machine.
const TICK: Duration = Duration::from_millis(100);
/// Smallest reported share of the work: less than a tile of any product, and more than rounding leaves of a share that moved.
const SHARE_MIN: f64 = 1e-12;

/// One worker while the product runs.
struct Peer {
    name: String,
    to: Option<mpsc::UnboundedSender<Frame>>,
    shares_memory: bool,
    bytes_sent: Rc<Cell<u64>>,
    bytes_received: Rc<Cell<u64>>,
    /// Bytes sent and received before the product began: greetings and measurements are not part of it.
    before: (u64, u64),
    /// Counters of received and sent bytes, and their values at the last tick.
    arriving: Rc<Cell<u64>>,
    leaving: SendProgressProbe,
    moved_bytes: (u64, u64),
    /// Their values before the product.
    moved_before: (u64, u64),
    goodbye: Option<Bye>,
    /// A goodbye to it is queued or sent, and its link has not broken.
    is_leaving: bool,
    /// Asks the reader of this link to end, and the reason.
    disconnect: Rc<Notify>,
    why: Option<String>,
    writer: Option<AbortHandle>,
    /// Its link, until that is collected.
    lent: Option<LentLink>,
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

/// State that all tasks of a product share.
struct Core {
    state: Primary,
    bodies: Bodies,
    output: Arc<Output>,
    write_back: WriteBack,
    peers: Vec<Peer>,
    /// Their entries in the report.
    machines: Vec<MachineReport>,
    landing: LandingResults,
    times: RunTimes,
    finished: Option<Instant>,
    failed: Option<RunFailure>,
    observed: ObservedEvents,
    /// Writes the journal.
    journal_writer: Option<JournalWriter>,
    checks: RequestedChecks,
    changed: Rc<Notify>,
    meter: Rc<SectionMeter>,
    recorder: EventRecorder,
}

/// Result of a run.
pub(crate) struct RunOutcome {
    pub(crate) output: Output,
    pub(crate) seconds: f64,
    pub(crate) first_job: Instant,
    pub(crate) machines: Vec<MachineReport>,
    /// The final state of the schedule: which machine did which work.
    pub(crate) state: Primary,
    /// Most bytes of partial sums that the primary held at once.
    pub(crate) partial_sum_bytes_max: usize,
    /// This thread's processor time by section, if that was asked for.
    pub(crate) io: Option<IoUse>,
    pub(crate) log: Option<EventLog>,
    pub(crate) journal: Option<JournalFile>,
    /// Result of the inspection of C.
    pub(crate) inspected: InspectionResult,
    /// Links between workers that broke while C was computed: the two peers, and why.
    pub(crate) parted: Vec<(usize, usize, String)>,
    /// Machines that joined meanwhile.
    pub(crate) joined: Vec<JoinedMachine>,
}

/// A product that is ready to run.
pub(crate) struct PreparedProduct {
    pub(crate) plan: bramble_plan::Plan,
    pub(crate) operands: Operands,
    pub(crate) bodies: Bodies,
    pub(crate) output: Output,
    /// The sessions: those of the plan's members, in their order, and reserves.
    pub(crate) connected: ConnectedPeers,
}

/// Executes a plan on its members' sessions. Links that can serve again are in `idle` afterwards, also after an error.
pub(crate) async fn run(
    product: PreparedProduct,
    watch: &dyn ProductObserver,
    mut options: RunOptions,
    idle: &mut IdleConnections,
) -> Result<RunOutcome, PrimaryError> {
    let PreparedProduct { plan, operands, bodies, output, connected } = product;
    let ConnectedPeers { sessions, neighbours, dead, report: _ } = connected;
    let before = options.before.take();
    // A resumed product has no members: all its work starts unowned.
    let members = if before.is_some() { &[] } else { &plan.members[..] };
    let working = before.as_ref().map_or(members.len(), |before| before.working);
    let machines = report_stubs(&plan, members.len(), &sessions);
    options.recorder.peers(sessions.iter().map(|session| session.logged()), working);
    let infos = peer_infos(&sessions, neighbours, &bodies, members, (working, options.credits));
    let (write_back, state) = match initial_state(plan, operands, infos, before.as_ref(), &options) {
        Ok(initial) => initial,
        Err(e) => {
            idle.release(sessions).await;
            return Err(e);
        }
    };
    let changed = Rc::new(Notify::new());
    let core = Rc::new(RefCell::new(Core {
        state,
        bodies,
        output: Arc::new(output),
        write_back,
        peers: Vec::new(),
        machines,
        landing: LandingResults::default(),
        times: RunTimes::new(),
        finished: None,
        failed: None,
        observed: ObservedEvents::default(),
        journal_writer: None,
        checks: RequestedChecks::default(),
        changed: changed.clone(),
        meter: Rc::new(SectionMeter::new(options.account)),
        recorder: options.recorder,
    }));
    let mut tasks = Tasks::default();
    for (session, end) in sessions.into_iter().zip(&dead) {
        tasks.add_peer(&core, session, end.is_some());
    }
    let (admitted, joining) = mpsc::channel(1);
    let terms = options.join_terms.take().zip(idle.later.take());
    let admission = terms.map(|(terms, ends)| tokio::task::spawn_local(admit(ends, terms, admitted)));
    let mut supervisor = Supervisor {
        changed: &changed,
        watch,
        stop: &options.stop,
        tasks,
        joining,
        losses_reported: 0,
        inspector: options.inspector.clone(),
        spot_checker: SpotChecker::default(),
    };
    let result = run_to_end(&core, &mut supervisor, (options.journal.take(), dead)).await;
    if idle.keeps() {
        part(&core, &mut supervisor).await;
    }
    let Supervisor { tasks, joining, .. } = supervisor;
    end_admission(admission, joining, idle).await;
    let (mut core, connections) = collect(core, tasks, watch, idle.keeps()).await?;
    connections.into_iter().for_each(|connection| idle.add(connection));
    while core.write_back.hints.join_next().await.is_some() {}
    let (inspected, journal) = result?;
    core.into_outcome(inspected, journal?)
}

/// The state machine, and the hints for a plan.
fn initial_state(
    plan: bramble_plan::Plan,
    operands: Operands,
    infos: Vec<PeerInfo>,
    before: Option<&ResumePoint>,
    options: &RunOptions,
) -> Result<(WriteBack, Primary), PrimaryError> {
    let write_back = WriteBack::of(&plan, before.is_some())?;
    let state = resume_point::state(plan, operands, infos, before, options.steals)?;
    let state = if options.inspector.is_on() { state.with_spot_checks(ROWS_MIN) } else { state };
    Ok((write_back, state))
}

impl Core {
    /// Starts the state machine. `dead`: for each link, why it has broken already, if it has.
    fn start(&mut self, dead: Vec<Option<IntroductionEnd>>) {
        self.recorder.phase(Phase::Computing);
        self.dispatch(PrimaryEvent::Start);
        for (index, end) in dead.into_iter().enumerate() {
            end.into_iter().for_each(|end| self.link_ended(index, end.why));
        }
    }

    /// Passes one event to the state machine and carries out the actions that it returns.
    fn dispatch(&mut self, event: PrimaryEvent) {
        let now = self.times.advance();
        let actions = self.meter.within(Section::Scheduling, || self.state.handle(event, now));
        self.recorder.record_status(&self.state);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            match action {
                PrimaryAction::Send(peer, message) => {
                    self.times.first_job.get_or_insert_with(Instant::now);
                    self.recorder.store_sent(peer, &message.head);
                    let body = || self.bodies.body(&message, &self.output);
                    match self.meter.within(Section::Encoding, body) {
                        Ok(body) => self.send(peer, Kind::Store, message.head.encode(), body),
                        Err(e) => self.fail(e.to_string()),
                    }
                }
                PrimaryAction::Relay(peer, forwards) => self.order(peer, &forwards),
                PrimaryAction::Parted { peer, other } => self.parted(peer, other),
                PrimaryAction::Ping(peer, nonce) => {
                    self.send(peer, Kind::Ping, encode_number(nonce), Body::Empty)
                }
                PrimaryAction::Merge { peer, tile, rect } => {
                    let c = self.output.lease(rect);
                    assert!(
                        self.landing.sums.merge((peer, tile), c),
                        "tile {tile} of peer {peer} has no partial sum"
                    );
                }
                PrimaryAction::SpotCheck(rect) => self.copy_for_spot_check(rect),
                PrimaryAction::Committed(rect) => self.committed(rect),
                PrimaryAction::Finished => {
                    self.finished = Some(Instant::now());
                    self.changed.notify_one();
                }
                PrimaryAction::Inspection(task) => self.begin_task(task),
                PrimaryAction::Fail(why) => self.fail(why),
                PrimaryAction::Disconnect { peer, why } => self.disconnect(peer, why),
                PrimaryAction::Put { peer, tile, rect } => {
                    let c = self.output.lease(rect);
                    assert!(
                        self.landing.sums.store((peer, tile), c),
                        "tile {tile} of peer {peer} was not staged"
                    );
                }
            }
        }
    }

    /// Reports traffic since the last tick: a worker that sends or takes bytes is alive, even in a long frame on a slow link.
    fn report_traffic(&mut self) {
        for peer in 0..self.peers.len() {
            if self.peers[peer].to.is_none() {
                continue;
            }
            let (came, left) = (self.peers[peer].arriving.get(), (self.peers[peer].leaving)());
            let moved = (came, left.acknowledged);
            if std::mem::replace(&mut self.peers[peer].moved_bytes, moved) != moved {
                let before = self.peers[peer].moved_before;
                self.dispatch(PrimaryEvent::Flow {
                    peer,
                    received: came.wrapping_sub(before.0),
                    acknowledged: left.acknowledged.saturating_sub(before.1),
                    buffered: left.buffered,
                });
            }
        }
    }

    fn fail(&mut self, why: String) {
        self.failed.get_or_insert(RunFailure { why, is_changed: false });
        self.changed.notify_one();
    }

    fn send(&self, peer: usize, kind: Kind, head: Vec<u8>, body: Body) {
        if let Some(to) = &self.peers[peer].to {
            // If the writer has ended, its link's loss is reported already.
            let _ = to.send(Frame::new(kind.code(), head, body));
        }
    }

    /// Reports a committed tile to the journal writer, and starts the write-back of a row of tiles that is complete.
    fn committed(&mut self, rect: Rect) {
        if let Some(journal_writer) = &self.journal_writer {
            journal_writer.committed(rect);
        }
        let tile_rows = self.state.plan().regions.first().map_or(1, |r| r.grid.tile_rows.max(1));
        if self.write_back.completes_row(rect.rows.start / tile_rows)
            && self.output.wants_writeback(rect.rows)
        {
            let output = self.output.clone();
            self.write_back.hints.spawn(async move {
                // A hint to the system: C is synced in the end, also where there is no thread for it now.
                let _ = off_loop("writing C", move || output.start_writeback(rect.rows)).await;
            });
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
                self.recorder.tile_landed(peer, &head, || self.state.expect(peer, &head).ok());
                self.keep(peer, &head, arrived.body)?;
                self.dispatch(PrimaryEvent::Landed { peer, head });
            }
            Kind::Credit => {
                let bytes = decode_number(&arrived.head)?;
                self.dispatch(PrimaryEvent::Credit { peer, bytes });
            }
            Kind::Pong => {
                self.recorder.clock_answer(peer, Pong::decode(&arrived.head)?);
                self.dispatch(PrimaryEvent::Alive { peer });
            }
            Kind::Log => {
                self.recorder.add_job_records(peer, &arrived.head)?;
                self.dispatch(PrimaryEvent::Alive { peer });
            }
            Kind::Bye if !self.times.has_said_goodbye => {
                return Err(ProtocolError::new("it says goodbye in the middle of the product"));
            }
            Kind::Bye => {
                self.peers[peer].goodbye = Some(Bye::decode(&arrived.head)?);
                self.changed.notify_one();
            }
            Kind::Missing | Kind::Reached => self.relayed(peer, &arrived)?,
            // C is complete: errors of workers that leave do not matter.
            Kind::Error if self.finished.is_some() => drop(decode_error(&arrived.head)?),
            Kind::Error => return Err(ProtocolError::new(decode_error(&arrived.head)?)),
            Kind::Hello
            | Kind::Welcome
            | Kind::Store
            | Kind::Ping
            | Kind::Relay
            | Kind::Neighbour
            | Kind::Join
            | Kind::Piece
            | Kind::Free
            | Kind::Put
            | Kind::Placed
            | Kind::Get
            | Kind::Part
            | Kind::Reduce
            | Kind::Reduced
            | Kind::Make
            | Kind::Fetch
            | Kind::LuBegin
            | Kind::LuFill
            | Kind::LuGo
            | Kind::LuPanel
            | Kind::LuSpent
            | Kind::LuStatus
            | Kind::LuRows
            | Kind::LuCheck
            | Kind::LuFetch => {
                let what = format!("a message of kind {} has no place here", arrived.kind);
                return Err(ProtocolError::new(what));
            }
        }
        Ok(())
    }

    fn progress(&self) -> ProductProgress {
        let plan = self.state.plan();
        let tiles = plan.tiles();
        let tiles_done = tiles - self.state.tiles_left();
        let flops = plan.problem.flops();
        let wire = |bytes: fn(&Peer) -> u64| self.peers.iter().filter(|p| !p.shares_memory).map(bytes).sum();
        ProductProgress {
            tiles_done,
            tiles,
            fraction: self.state.progress(),
            flops,
            bytes_sent: wire(Peer::sent),
            bytes_received: wire(Peer::received),
            elapsed: self.times.first_job.map_or(Duration::ZERO, |t| t.elapsed()),
        }
    }

    fn into_outcome(
        self,
        inspected: Option<InspectionResult>,
        journal: Option<JournalFile>,
    ) -> Result<RunOutcome, PrimaryError> {
        if self.times.stopped.is_some() && self.finished.is_none() {
            return Err(PrimaryError::Stopped);
        }
        if let Some(failure) = self.failed {
            let is_part_lost = self.state.part_lost().is_some();
            return Err(if is_part_lost { PrimaryError::PartLost(failure.why) } else { failure.into() });
        }
        let Some(inspected) = inspected else { return Err(PrimaryError::Stopped) };
        let first_job = self.times.first_job.unwrap_or(self.times.began);
        let finished = self.finished.unwrap_or_else(Instant::now);
        let mut machines = self.machines;
        for (to, part) in self.state.reassigned_parts() {
            machines[to].share += part;
        }
        for moved in self.state.moved() {
            machines[moved.from].share -= moved.part;
            machines[moved.to].share += moved.part;
        }
        // Recomputed work counts twice.
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
            finished.saturating_duration_since(first_job).saturating_sub(self.times.inspecting).as_secs_f64();
        let output = Arc::into_inner(self.output);
        let output = output.ok_or_else(|| PrimaryError::Failed("a hint outlived its product".to_owned()))?;
        let partial_sum_bytes_max = self.landing.sums.bytes_max();
        let (io, log) = (self.meter.spent().map(|spent| IoUse::of(&spent)), self.recorder.into_log());
        let (state, parted) = (self.state, self.observed.parted);
        let joined = joined(&self.observed.joined, &machines);
        Ok(RunOutcome {
            output,
            seconds,
            first_job,
            machines,
            state,
            partial_sum_bytes_max,
            io,
            log,
            journal,
            inspected,
            parted,
            joined,
        })
    }
}
