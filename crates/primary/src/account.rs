//! What a product did: the numbers behind the report, the JSON object and the progress bar.

use crate::opening::Session;
use bramble_link::{Section, Spent};
use bramble_matrix::number::nearest_f64;
use bramble_matrix::{Effort, Verdict};
use bramble_plan::{Bound, LeftOut, Prediction, Sums};
use bramble_schedule::message::{Bye, IoReport, ThreadReport};
use bramble_schedule::primary::Primary;
use std::time::Duration;

/// How far a product is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Tiles of C that are there.
    pub tiles_done: u64,
    /// Tiles of C.
    pub tiles: u64,
    /// Part of the work that is done, 0 to 1.
    pub fraction: f64,
    /// Operations of the whole product.
    pub flops: f64,
    /// Bytes that have left the primary.
    pub bytes_sent: u64,
    /// Bytes that have come back.
    pub bytes_received: u64,
    /// Since the first job.
    pub elapsed: Duration,
}

/// What one compute thread did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadUse {
    /// Jobs (and generated panels).
    pub jobs: u64,
    /// Seconds in kernels.
    pub busy_s: f64,
    /// Seconds since it was started that it was not.
    pub idle_s: f64,
    /// Seconds of processor time, where that was asked.
    pub cpu_s: Option<f64>,
}

/// What the processor time of a thread that moves and decides went to, seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IoUse {
    /// Giving bytes to the system, encryption with it.
    pub sending_s: f64,
    /// Taking bytes from it, checksums and decryption with it.
    pub receiving_s: f64,
    /// Making bodies and heads, and checksums of what leaves.
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

    /// What a meter of this process counted.
    pub(crate) fn of(spent: &Spent) -> Self {
        let sections = [Section::Sending, Section::Receiving, Section::Encoding, Section::Scheduling];
        let seconds = |ns: u64| nearest_f64(ns) * 1e-9;
        Self::new(sections.map(|s| seconds(spent.of(s))), seconds(spent.cpu_ns))
    }

    /// What a worker says.
    fn reported(io: &IoReport) -> Self {
        let us = [io.sending_us, io.receiving_us, io.encoding_us, io.scheduling_us];
        Self::new(us.map(micros), micros(io.cpu_us))
    }

    /// All of it.
    pub fn total_s(&self) -> f64 {
        self.sending_s + self.receiving_s + self.encoding_s + self.scheduling_s + self.other_s
    }
}

/// Microseconds in seconds.
fn micros(us: u64) -> f64 {
    nearest_f64(us) * 1e-6
}

/// Takes what a worker said at the end. `asked` says that it was to account for processor time, too.
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
    // The threads of this process have no thread of their own that moves: the primary's does it.
    let has_its_own = machine.link_bytes_per_s.is_some();
    machine.io = (asked && has_its_own).then(|| IoUse::reported(&goodbye.io));
}

/// What one machine was and did.
#[derive(Clone, Debug)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// `thread` or `tcp`.
    pub link: &'static str,
    /// The cipher of that link, where it is encrypted.
    pub encryption: Option<&'static str>,
    /// Kernel that it used.
    pub kernel: String,
    /// Measured speed of that kernel, Gflop/s.
    pub gflops: f64,
    /// Part of the work that it did, 0 to 1.
    pub share: f64,
    /// Bytes that were sent to it.
    pub bytes_in: u64,
    /// Bytes that came from it.
    pub bytes_out: u64,
    /// Bytes that other workers passed on to it.
    pub relayed_bytes_in: u64,
    /// Bytes that it passed on to other workers.
    pub relayed_bytes_out: u64,
    /// Bytes of buffers that it had for matrices at most.
    pub memory_bytes: u64,
    /// Its compute threads.
    pub threads: Vec<ThreadUse>,
    /// Its thread that moves and decides, where that was asked; the primary's own is in the report.
    pub io: Option<IoUse>,
    /// Measured bytes a second of its link; `None` within the process.
    pub link_bytes_per_s: Option<f64>,
    /// Measured round trip.
    pub round_trip_s: Option<f64>,
}

/// Which workers could pass panels on to each other.
#[derive(Clone, Debug, Default)]
pub struct RelayReport {
    /// Pairs that have a link, to the end.
    pub pairs: usize,
    /// Pairs that have none: the primary serves them itself.
    pub unreachable: Vec<Unreachable>,
}

impl RelayReport {
    /// The same after links broke while C was made. Those of machines that were lost are no news.
    pub(crate) fn after(
        self,
        parted: Vec<(usize, usize, String)>,
        state: &Primary,
        machines: &[MachineReport],
    ) -> Self {
        let Self { pairs, mut unreachable } = self;
        let before = unreachable.len();
        let is_lost = |peer: usize| state.losses().iter().any(|lost| lost.peer == peer);
        let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
        let broken = parted.into_iter().filter(|(from, to, _)| !is_lost(*from) && !is_lost(*to));
        unreachable.extend(broken.map(|(from, to, why)| Unreachable { from: name(from), to: name(to), why }));
        Self { pairs: pairs.saturating_sub(unreachable.len() - before), unreachable }
    }
}

/// Two workers that have no link.
#[derive(Clone, Debug)]
pub struct Unreachable {
    /// One of them; it dialled, if anybody did.
    pub from: String,
    /// The other.
    pub to: String,
    /// Why.
    pub why: String,
}

/// Work that a machine had not been sent and another did.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The name of the machine whose it was.
    pub from: String,
    /// The name of the machine that did it.
    pub to: String,
    /// How often something moved.
    pub times: u64,
    /// Tiles times steps (with Strassen's method cells times steps).
    pub tile_steps: u64,
    /// Part of all work, 0 to 1.
    pub part: f64,
}

/// A machine that was lost while the product ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// When, seconds since the first job could be given; 0 before that.
    pub at_s: f64,
    /// In how many parts its work went to others.
    pub parts: u64,
    /// Part of all work that this was, 0 to 1.
    pub part: f64,
}

/// A machine that came in while the product ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Its name.
    pub name: String,
    /// When, seconds since the first job could be given.
    pub at_s: f64,
}

/// Tiles that were wrong. Others have made them again, and now C is right.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// Who made them: the machine, or those among which it is where several did a part; nobody of today for those of another run.
    pub names: Vec<String>,
    /// How many.
    pub tiles: u64,
    /// What was wrong with one that was found with them.
    pub text: String,
}

/// What verification found, and what it cost.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// The verdict.
    pub verdict: Verdict,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Everything that is known about a finished product.
#[derive(Clone, Debug)]
pub struct Report {
    /// Rows of C.
    pub m: u64,
    /// Columns of C.
    pub n: u64,
    /// Depth.
    pub k: u64,
    /// Element type.
    pub dtype: bramble_matrix::DType,
    /// Strategy of the plan.
    pub strategy: String,
    /// How sums over parts of k came together.
    pub sums: Sums,
    /// Tile rows, tile columns and step depth (of the first region).
    pub grid: [u64; 3],
    /// From the first job sent to the last tile landed, seconds.
    pub seconds: f64,
    /// Between the start of the process's work and the first job, seconds.
    pub opening_seconds: f64,
    /// Summed peak of the cores that took part, Gflop/s.
    pub peak_gflops: f64,
    /// The physical bound.
    pub bound: Bound,
    /// What the plan expected.
    pub predicted: Prediction,
    /// Most bytes of partial sums that the primary held.
    pub aside_bytes_max: u64,
    /// Bytes that left the primary, and that came back.
    pub bytes_sent: u64,
    /// See `bytes_sent`.
    pub bytes_received: u64,
    /// Whether the primary computed alone.
    pub alone: bool,
    /// Why.
    pub sentence: String,
    /// Names the strategy or kernel that replaced one that the user had ordered, and the reason.
    pub instead: Option<String>,
    /// What the processor time of the primary's own thread went to, where that was asked.
    pub io: Option<IoUse>,
    /// Machines that took part.
    pub machines: Vec<MachineReport>,
    /// Work that went from one to another while it ran.
    pub moved: Vec<Moved>,
    /// Machines that were lost.
    pub lost: Vec<Loss>,
    /// Machines that came in.
    pub joined: Vec<Joined>,
    /// Tiles that were wrong and were made again, by who made them first.
    pub wrong: Vec<Wrong>,
    /// Machines that were named and could not be had, one sentence each.
    pub missing: Vec<String>,
    /// Machines that did not, and why.
    pub left_out: Vec<LeftOut>,
    /// What verification found.
    pub verify: VerifyReport,
    /// The machine that computed the element that is wrong, if one is.
    pub suspect: Option<String>,
    /// Who could pass panels on to whom, where the plan wanted that.
    pub relay: Option<RelayReport>,
    /// How hard C was to be checked.
    pub effort: Effort,
}

impl Report {
    /// Whether nobody looked at C.
    pub fn unverified(&self) -> bool {
        self.effort == Effort::Off
    }

    /// Operations: 2mnk.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Achieved speed, Gflop/s; 0 for empty products.
    pub fn gflops(&self) -> f64 {
        if self.seconds > 0.0 { self.flops() / self.seconds / 1e9 } else { 0.0 }
    }
}

/// What moved between machines, with their names.
pub(crate) fn moved(state: &Primary, machines: &[MachineReport]) -> Vec<Moved> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    let named = |m: bramble_schedule::primary::Moved| Moved {
        from: name(m.from),
        to: name(m.to),
        times: m.times,
        tile_steps: m.tile_steps,
        part: m.part,
    };
    state.moved().into_iter().map(named).collect()
}

/// Machines that were lost, with their names.
pub(crate) fn losses(state: &Primary, machines: &[MachineReport]) -> Vec<Loss> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    let named = |l: &bramble_schedule::primary::Lost| Loss {
        name: name(l.peer),
        why: l.why.clone(),
        at_s: l.at.as_secs_f64(),
        parts: l.lots,
        part: l.part,
    };
    state.losses().iter().map(named).collect()
}

/// Machines that came in, with their names.
pub(crate) fn joined(came: &[(usize, Duration)], machines: &[MachineReport]) -> Vec<Joined> {
    let name = |at: usize| machines.get(at).map_or_else(String::new, |m| m.name.clone());
    came.iter().map(|(at, when)| Joined { name: name(*at), at_s: when.as_secs_f64() }).collect()
}

/// What is known of the machines before they have done anything.
pub(crate) fn report_stubs(
    plan: &bramble_plan::Plan,
    members: usize,
    sessions: &[Session],
) -> Vec<MachineReport> {
    let share = |member| if member < members { plan.part_of_work(member) } else { 0.0 };
    sessions.iter().enumerate().map(|(member, session)| report_stub(session, share(member))).collect()
}

/// The same of one machine that has such a part of the work.
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
        link_bytes_per_s: session.rate.map(|r| r.bytes_per_s),
        round_trip_s: session.rate.map(|r| r.round_trip_s),
    }
}
