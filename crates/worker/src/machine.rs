//! This machine: cores, memory, name, and the speed of its kernel.

use crate::quota;
use crate::speeds::{ProbeEffort, Speed};
use bramble_kernel::{
    COMPARISON_SECONDS_MAX, Choice, Kernel, KernelError, Pick, PickTerms, Workload, pick_for,
};
use bramble_lu::probe_tasks;
use bramble_matrix::DType;
use bramble_matrix::number::to_u64;
use bramble_wire::message::LuSpeeds;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Compute threads.
    pub threads: usize,
    /// Memory for the whole worker process, bytes.
    pub memory_bytes: u64,
    /// Kernel to use; `None` leaves it to the primary.
    pub kernel: Option<Choice>,
    /// First core to pin compute threads to, counted among the allowed ones; `None` does not pin.
    pub pin_from: Option<usize>,
    /// Whether compute threads yield to the thread that moves bytes.
    pub gives_way: bool,
    /// Name of this worker.
    pub name: String,
}

impl Config {
    /// Memory that the program, its stack and a link need beside matrices and kernels.
    pub const PROGRAM_BYTES: u64 = 32 << 20;

    /// Why such a worker would be useless, and the next step; `None` if it is not.
    pub fn is_of_no_use(&self) -> Option<String> {
        let mib = Self::PROGRAM_BYTES >> 20;
        (self.capacity_bytes() == 0).then(|| {
            format!(
                "--memory: must be more than {mib}M, which the program alone needs; give it more, as in 256M"
            )
        })
    }

    /// Memory for sessions: all memory less the program's.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(Self::PROGRAM_BYTES)
    }

    /// Scratch memory of a session's kernel.
    pub(crate) fn scratch_bytes(kernel: &dyn Kernel, threads: usize) -> u64 {
        to_u64(kernel.scratch_bytes()).saturating_mul(to_u64(threads))
    }
}

/// Cores that this process may use, by affinity and cgroup quota.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory that is free now, bytes: Linux's estimate (on macOS two thirds of all memory, elsewhere 1 GiB), cut to the limit of its
/// control groups, and to three quarters so that the machine stays usable.
pub fn available_memory() -> u64 {
    let available = free_memory().unwrap_or(1 << 30);
    let limit = quota::memory_bytes().unwrap_or(u64::MAX);
    available.min(limit) / 4 * 3
}

#[cfg(not(target_os = "macos"))]
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// macOS has no single number for free memory, and it changes by the second.
#[cfg(target_os = "macos")]
fn free_memory() -> Option<u64> {
    let asked = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.memsize"]).output().ok()?;
    String::from_utf8(asked.stdout).ok()?.trim().parse::<u64>().ok().map(|bytes| bytes / 3 * 2)
}

/// This machine's name, for messages only.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Speed of `threads` threads running the kernel concurrently, and their cores' peak. Takes some 40 milliseconds with
/// the highest effort. If a quota limits the threads (`sustained` accounts for it), only processor time counts: throttling within
/// so few milliseconds is chance.
pub(crate) fn probe(pick: &Pick, dtype: DType, threads: usize, effort: ProbeEffort) -> Speed {
    const SECONDS: f64 = 0.004;
    const JOBS_SECONDS: f64 = 0.03;
    let clock = clock(is_limited(threads, quota::cpus()));
    let one = |seconds: f64| {
        let kernel = pick.kernel.clone();
        move || (bramble_kernel::rate(&*kernel, dtype, seconds, &clock), bramble_kernel::peak(dtype))
    };
    let jobs = || {
        let kernel = pick.kernel.clone();
        move || (bramble_kernel::job_rate(&*kernel, dtype, JOBS_SECONDS, &clock), bramble_kernel::peak(dtype))
    };
    let rates: Vec<(f64, f64)> = match effort {
        ProbeEffort::Peak => {
            let peak = bramble_kernel::peak(dtype);
            vec![(peak, peak); threads]
        }
        ProbeEffort::One => vec![one(SECONDS / 40.0)(); threads],
        ProbeEffort::All => std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(one(SECONDS))).collect();
            running.into_iter().filter_map(|t| t.join().ok()).collect()
        }),
        ProbeEffort::Jobs => std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(jobs())).collect();
            running.into_iter().filter_map(|t| t.join().ok()).collect()
        }),
    };
    let gflops = rates.iter().map(|r| r.0).sum::<f64>().max(1e-3);
    let peak = rates.iter().map(|r| r.1).sum::<f64>();
    Speed { gflops, peak_gflops: peak.max(gflops) }
}

/// The kernel for a session of `threads` threads, compared by processor time under a quota, within the time that a primary waits.
pub(crate) fn pick_kernel(
    (work, threads): (Workload, usize),
    choice: Choice,
    dtype: DType,
    flops: f64,
) -> Result<Pick, KernelError> {
    let clock = clock(is_limited(threads, quota::cpus()));
    let seconds_max = COMPARISON_SECONDS_MAX * share(threads, quota::cpus());
    pick_for(PickTerms { work, clock: &clock, seconds_max }, choice, dtype, flops)
}

/// An elimination that would take this machine alone less begins without measured tasks, seconds.
const LONG_S: f64 = 20.0;
/// Gflop/s of a thread, and the part of the time that it may run: with less, it would measure for longer than a primary waits.
const LEAST: (f64, f64) = (0.5, 0.04);

/// Whether an elimination of `flops` operations is long enough to measure its tasks; `gflops` is the speed of all threads.
pub(crate) fn measures_tasks(flops: f64, gflops: f64, threads: usize) -> bool {
    let (slowest, least) = LEAST;
    let each = gflops / u32::try_from(threads.max(1)).map_or(f64::MAX, f64::from);
    flops / gflops / 1e9 > LONG_S && each > slowest && share(threads, quota::recent_cpus()) > least
}

/// Rates of `threads` threads that run the tasks of a factorisation of `flops` operations concurrently, under this process's
/// quota, in at most `bytes`.
pub(crate) fn probe_lu(
    pick: &Pick,
    (dtype, flops): (DType, f64),
    threads: usize,
    bytes: u64,
) -> Option<LuSpeeds> {
    // Of 2/3 n³ operations.
    let n = (1.5 * flops).cbrt().min(f64::from(u32::MAX)) as usize;
    let clock = clock(is_limited(threads, quota::cpus()));
    let found = match dtype {
        DType::F32 => probe_tasks::<f32>(&*pick.kernel, n, threads, bytes, &clock),
        DType::F64 => probe_tasks::<f64>(&*pick.kernel, n, threads, bytes, &clock),
        DType::I32 | DType::I64 => None,
    }?;
    let share = share(threads, quota::recent_cpus());
    let (update_gflops, panel_gflops) =
        (found.update_gflops.map(|rate| rate * share), found.panel_gflops * share);
    Some(LuSpeeds { update_gflops, panel_gflops })
}

/// The part of a briefly measured speed that the process can sustain under its quota of processor time.
pub(crate) fn sustained(speed: Speed, threads: usize) -> Speed {
    within_quota(speed, threads, quota::recent_cpus())
}

fn within_quota(speed: Speed, threads: usize, cpus: Option<f64>) -> Speed {
    let share = share(threads, cpus);
    Speed { gflops: speed.gflops * share, peak_gflops: speed.peak_gflops * share }
}

/// The part of the time that `threads` threads may run.
fn share(threads: usize, cpus: Option<f64>) -> f64 {
    let wanted = u32::try_from(threads.max(1)).map_or(f64::MAX, f64::from);
    cpus.map_or(1.0, |cpus| (cpus / wanted).min(1.0))
}

fn is_limited(threads: usize, cpus: Option<f64>) -> bool {
    share(threads, cpus) < 1.0
}

/// A clock from an arbitrary zero: the calling thread's processor time, or the time of day.
fn clock(own: bool) -> impl Fn() -> Duration + Copy + Send + Sync {
    let id = if own { ClockId::ThreadCPUTime } else { ClockId::Monotonic };
    // Neither clock is ever negative.
    move || Duration::try_from(clock_gettime(id)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_kernel::KernelName;

    #[test]
    fn a_quota_reduces_the_speed_of_more_threads_than_it_allows() {
        let speed = Speed { gflops: 80.0, peak_gflops: 100.0 };
        let cut = |threads, cpus| within_quota(speed, threads, cpus).gflops;
        assert_eq!((cut(4, None), cut(4, Some(4.0)), cut(4, Some(16.0))), (80.0, 80.0, 80.0));
        assert_eq!((cut(4, Some(1.0)), cut(1, Some(0.5)), cut(2, Some(1.5))), (20.0, 40.0, 60.0));
        assert_eq!(within_quota(speed, 8, Some(2.0)).peak_gflops, 25.0);
    }

    #[test]
    fn time_off_the_processor_counts_only_by_the_wall_clock() {
        let (wall, own) = (clock(is_limited(1, None)), clock(is_limited(4, Some(2.0))));
        let before = (wall(), own());
        std::thread::sleep(Duration::from_millis(20));
        assert!(wall() - before.0 >= Duration::from_millis(20));
        assert!(own() - before.1 < Duration::from_millis(20));
        assert!(!is_limited(2, Some(2.0)));
    }

    #[test]
    fn every_effort_gives_a_speed_that_a_welcome_may_contain() {
        let pick = bramble_kernel::pick(Choice::Named(KernelName::Simd), DType::F32, 0.0).unwrap();
        for effort in [ProbeEffort::Peak, ProbeEffort::One, ProbeEffort::All, ProbeEffort::Jobs] {
            let speed = sustained(probe(&pick, DType::F32, 2, effort), 2);
            assert!(speed.gflops > 0.0 && speed.gflops.is_finite(), "{effort:?}: {speed:?}");
            assert!(
                speed.peak_gflops >= speed.gflops && speed.peak_gflops.is_finite(),
                "{effort:?}: {speed:?}"
            );
        }
    }
}
