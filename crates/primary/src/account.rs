//! Accounts of a product: the numbers behind the report, the JSON object and the progress bar.

use bramble_link::{Section, Spent};
use bramble_matrix::number::nearest_f64;
use bramble_plan::{Bound, Prediction, Problem, Sums, UnusedMachine};
use bramble_schedule::primary::Primary;
use bramble_sessions::{RelayReport, Session, Unreachable};
use bramble_verify::{Effort, Verdict};
use bramble_wire::message::{Bye, IoReport, ThreadReport};
use std::time::Duration;

/// Progress of a product.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductProgress {
    /// Tiles of C that are committed.
    pub tiles_done: u64,
    /// Tiles of C.
    pub tiles: u64,
    /// Part of the work that is done, 0 to 1.
    pub fraction: f64,
    /// Operations of the product.
    pub flops: f64,
    /// Bytes that the primary has sent.
    pub bytes_sent: u64,
    /// Bytes that the primary has received.
    pub bytes_received: u64,
    /// Time since the first job.
    pub elapsed: Duration,
}

/// Account of one compute thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadUse {
    /// Jobs, generated panels included.
    pub jobs: u64,
    /// Seconds in kernels.
    pub busy_s: f64,
    /// Seconds outside kernels since the thread started.
    pub idle_s: f64,
    /// Seconds of processor time, if that was asked for.
    pub cpu_s: Option<f64>,
}

/// Processor time of a thread that runs an event loop, by section, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IoUse {
    /// Giving bytes to the system, encryption included.
    pub sending_s: f64,
    /// Taking bytes from the system, checksums and decryption included.
    pub receiving_s: f64,
    /// Making bodies and heads, and checksums of frames that leave.
    pub encoding_s: f64,
    /// The state machine.
    pub scheduling_s: f64,
    /// The rest: the event loop, memory, and other sessions of the same thread.
    pub other_s: f64,
}

impl IoUse {
    fn new(sections_s: [f64; 4], cpu_s: f64) -> Self {
        let [sending_s, receiving_s, encoding_s, scheduling_s] = sections_s;
        let other_s = (cpu_s - sections_s.iter().sum::<f64>()).max(0.0);
        Self { sending_s, receiving_s, encoding_s, scheduling_s, other_s }
    }

    /// From a meter of this process.
    pub(crate) fn of(spent: &Spent) -> Self {
        let sections = [Section::Sending, Section::Receiving, Section::Encoding, Section::Scheduling];
        let seconds = |ns: u64| nearest_f64(ns) * 1e-9;
        Self::new(sections.map(|s| seconds(spent.of(s))), seconds(spent.cpu_ns))
    }

    /// From a worker's account.
    fn reported(io: &IoReport) -> Self {
        let us = [io.sending_us, io.receiving_us, io.encoding_us, io.scheduling_us];
        Self::new(us.map(micros), micros(io.cpu_us))
    }

    /// The sum of all sections.
    pub fn total_s(&self) -> f64 {
        self.sending_s + self.receiving_s + self.encoding_s + self.scheduling_s + self.other_s
    }
}

/// Microseconds in seconds.
fn micros(us: u64) -> f64 {
    nearest_f64(us) * 1e-6
}

/// Copies a worker's account into its report. `asked`: the worker was to account for processor time, too.
pub(crate) fn take_account(machine: &mut MachineReport, goodbye: &Bye, asked: bool) {
    machine.memory_bytes = goodbye.held_bytes_max;
    (machine.relayed_bytes_in, machine.relayed_bytes_out) =
        (goodbye.relayed_bytes_in, goodbye.relayed_bytes_out);
    let account = |t: &ThreadReport| ThreadUse {
        jobs: t.jobs,
        busy_s: micros(t.busy_us),
        idle_s: micros(t.idle_us),
        cpu_s: asked.then(|| micros(t.cpu_us)),
    };
    machine.threads = goodbye.threads.iter().map(account).collect();
    // Workers within this process have no event loop thread of their own: the primary's thread serves them.
    let has_its_own = machine.link_bytes_per_s.is_some();
    machine.io = (asked && has_its_own).then(|| IoUse::reported(&goodbye.io));
}

/// Report on one machine.
#[derive(Clone, Debug)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// The cipher of that link, where it is encrypted.
    pub encryption: Option<&'static str>,
    /// Kernel that the machine used.
    pub kernel: String,
    /// Measured speed of that kernel, Gflop/s.
    pub gflops: f64,
    /// The machine's part of the work, 0 to 1.
    pub share: f64,
    /// Bytes that the primary sent to it.
    pub bytes_in: u64,
    /// Bytes that the primary received from it.
    pub bytes_out: u64,
    /// Bytes that it received from other workers.
    pub relayed_bytes_in: u64,
    /// Bytes that it relayed to other workers.
    pub relayed_bytes_out: u64,
    /// Peak bytes of its buffers for matrices.
    pub memory_bytes: u64,
    /// Its compute threads.
    pub threads: Vec<ThreadUse>,
    /// Its event loop thread, if that was asked for; the primary's own is in the report.
    pub io: Option<IoUse>,
    /// Measured bandwidth of its link; `None` within the process.
    pub link_bytes_per_s: Option<f64>,
    /// Measured round trip.
    pub round_trip_s: Option<f64>,
}

/// Work that was stolen: from a machine that had not been sent it.
#[derive(Clone, Debug, PartialEq)]
pub struct MovedWork {
    /// The name of the machine that had the work (the victim).
    pub from: String,
    /// The name of the machine that did it (the thief).
    pub to: String,
    /// The number of steals.
    pub times: u64,
    /// Tiles times steps (with Strassen's method: cells times steps).
    pub tile_steps: u64,
    /// Part of all work, 0 to 1.
    pub part: f64,
}

/// A machine that was lost while the product ran.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineLoss {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// When, in seconds since the first job could be sent; 0 before that.
    pub at_s: f64,
    /// The number of pieces in which its work was reassigned.
    pub parts: u64,
    /// The reassigned part of all work, 0 to 1.
    pub part: f64,
}

/// A machine that joined while the product ran.
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedMachine {
    /// Its name.
    pub name: String,
    /// When, in seconds since the first job could be sent.
    pub at_s: f64,
}

/// Tiles that were wrong and have been recomputed by other machines.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongTiles {
    /// The machine that made them, or the machines that may have, where several did a part; empty for tiles of an earlier run.
    pub names: Vec<String>,
    /// The number of tiles.
    pub tiles: u64,
    /// The fault with which they were found.
    pub text: String,
}

/// Result and cost of the verification.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// The verdict.
    pub verdict: Verdict,
    /// Seconds that the verification took.
    pub seconds: f64,
}

/// Report on a finished product.
#[derive(Clone, Debug)]
pub struct Report {
    /// The product.
    pub problem: Problem,
    /// The plan that was followed, and why.
    pub plan: PlanReport,
    /// From the first job sent to the last tile landed, seconds.
    pub seconds: f64,
    /// Between the start of the process's work and the first job, seconds.
    pub opening_seconds: f64,
    /// Most bytes of partial sums that the primary held at once.
    pub partial_sum_bytes_max: u64,
    /// Bytes that the primary sent.
    pub bytes_sent: u64,
    /// Bytes that the primary received.
    pub bytes_received: u64,
    /// Processor time of the primary's own thread, if that was asked for.
    pub io: Option<IoUse>,
    /// Machines that had a part.
    pub machines: Vec<MachineReport>,
    /// Machines that came, were lost or had no part, and the work that moved.
    pub changes: TeamChanges,
    /// The verification of C.
    pub check: CheckReport,
    /// Links between workers, if the plan relays panels.
    pub relay: Option<RelayReport>,
}

/// The plan of a finished product.
#[derive(Clone, Debug)]
pub struct PlanReport {
    /// Its strategy.
    pub strategy: String,
    /// How partial sums over k were combined.
    pub sums: Sums,
    /// Tile rows, tile columns and step depth (of the first region).
    pub grid: [u64; 3],
    /// Summed peak of the cores that took part, Gflop/s.
    pub peak_gflops: f64,
    /// The physical bound.
    pub bound: Bound,
    /// The cost model's prediction.
    pub predicted: Prediction,
    /// Whether the primary computed alone.
    pub alone: bool,
    /// Why this plan was chosen.
    pub sentence: String,
    /// Names the strategy or kernel that replaced one that the user had ordered, and the reason.
    pub instead: Option<String>,
}

/// Changes among the machines of a product.
#[derive(Clone, Debug, Default)]
pub struct TeamChanges {
    /// Work that was stolen while the product ran.
    pub moved: Vec<MovedWork>,
    /// Machines that were lost.
    pub lost: Vec<MachineLoss>,
    /// Machines that joined.
    pub joined: Vec<JoinedMachine>,
    /// Machines that were named but could not be used, one sentence each.
    pub missing: Vec<String>,
    /// Machines without a share, and why.
    pub left_out: Vec<UnusedMachine>,
}

/// The verification of a finished product.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Its result.
    pub verify: VerifyReport,
    /// Tiles that were wrong and have been recomputed, by the machines that made them first.
    pub wrong: Vec<WrongTiles>,
    /// The machine that computed the element that is still wrong, if one is.
    pub suspect: Option<String>,
    /// How thoroughly C was to be checked.
    pub effort: Effort,
}

impl Report {
    /// Whether C was not checked at all.
    pub fn unverified(&self) -> bool {
        self.check.effort == Effort::Off
    }

    /// Operations: 2mnk.
    pub fn flops(&self) -> f64 {
        self.problem.flops()
    }

    /// Achieved speed, Gflop/s; 0 for empty products.
    pub fn gflops(&self) -> f64 {
        if self.seconds > 0.0 { self.flops() / self.seconds / 1e9 } else { 0.0 }
    }
}

/// Stolen work, with the machines' names.
pub(crate) fn moved(state: &Primary, machines: &[MachineReport]) -> Vec<MovedWork> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    let named = |m: bramble_schedule::primary::WorkMoves| MovedWork {
        from: name(m.from),
        to: name(m.to),
        times: m.times,
        tile_steps: m.tile_steps,
        part: m.part,
    };
    state.moved().into_iter().map(named).collect()
}

/// Machines that were lost, with their names.
pub(crate) fn losses(state: &Primary, machines: &[MachineReport]) -> Vec<MachineLoss> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    let named = |l: &bramble_schedule::primary::Lost| MachineLoss {
        name: name(l.peer),
        why: l.why.clone(),
        at_s: l.at.as_secs_f64(),
        parts: l.items,
        part: l.part,
    };
    state.losses().iter().map(named).collect()
}

/// Machines that joined, with their names.
pub(crate) fn joined(came: &[(usize, Duration)], machines: &[MachineReport]) -> Vec<JoinedMachine> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    came.iter().map(|(at, when)| JoinedMachine { name: name(*at), at_s: when.as_secs_f64() }).collect()
}

/// Reports of the machines before the product begins.
pub(crate) fn report_stubs(
    plan: &bramble_plan::Plan,
    members: usize,
    sessions: &[Session],
) -> Vec<MachineReport> {
    let share = |member| if member < members { plan.part_of_work(member) } else { 0.0 };
    sessions.iter().enumerate().map(|(member, session)| report_stub(session, share(member))).collect()
}

/// Report of one machine with the given share of the work.
pub(crate) fn report_stub(session: &Session, share: f64) -> MachineReport {
    MachineReport {
        name: session.name.clone(),
        link: session.link.name,
        encryption: session.link.cipher,
        kernel: session.welcome.kernel.clone(),
        gflops: session.welcome.gflops,
        share,
        bytes_in: 0,
        bytes_out: 0,
        relayed_bytes_in: 0,
        relayed_bytes_out: 0,
        memory_bytes: 0,
        threads: Vec::new(),
        io: None,
        link_bytes_per_s: session.known.rate.map(|r| r.bytes_per_s),
        round_trip_s: session.known.rate.map(|r| r.round_trip_s),
    }
}

/// The report after links broke while C was computed. Links of lost machines are not listed.
pub(crate) fn relay_after(
    before: RelayReport,
    parted: Vec<(usize, usize, String)>,
    state: &Primary,
    machines: &[MachineReport],
) -> RelayReport {
    let RelayReport { pairs, mut unreachable } = before;
    let known = unreachable.len();
    let is_lost = |peer: usize| state.losses().iter().any(|lost| lost.peer == peer);
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    let broken = parted.into_iter().filter(|(from, to, _)| !is_lost(*from) && !is_lost(*to));
    unreachable.extend(broken.map(|(from, to, why)| Unreachable { from: name(from), to: name(to), why }));
    RelayReport { pairs: pairs.saturating_sub(unreachable.len() - known), unreachable }
}
