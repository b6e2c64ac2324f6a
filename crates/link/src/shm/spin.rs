//! How long an end without work polls before it sleeps.
//!
//! To sleep and be woken costs some microseconds at each end, twenty and more in a virtual machine; to poll costs a
//! core meanwhile. Polling pays if the core has nothing else to do and the awaited bytes come soon; if other
//! threads want to run, such as compute threads, they get the core.
//!
//! Invariants: no end polls for long while more threads want to run than there are cores, nor on a machine with one
//! core. Between polls the other tasks of the event loop run, and other threads of this core may run. A wait that
//! was shorter than `WINDOW_MAX`, wake-ups included, lengthens the next polling window; a longer wait shortens it,
//! so waits that are always long cost little. (The rule by which KVM polls before it halts a processor:
//! `halt_poll_ns` in Linux's virt/kvm/kvm_main.c.)
//!
//! Deliberately absent: which cores are wanted. The system's count of runnable threads is of the whole machine.

use crate::to_u64;
use std::cell::Cell;
use std::fs::File;
use std::hint::spin_loop;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest polling window: longer than two sleeping ends in a virtual machine take to wake each other.
const WINDOW_MAX: Duration = Duration::from_micros(250);
/// The shortest polling window.
const WINDOW_LEAST: Duration = Duration::from_micros(10);
/// Polls between two turns of the event loop: about a microsecond.
const LOOKS: u32 = 64;
/// Turns before the system is asked for the number of runnable threads, which takes a microsecond, too.
const TURNS_UNASKED: u32 = 2;
/// How long the answer of the system is used.
const COUNT_HOLDS: Duration = Duration::from_micros(20);

/// The polling policy of one direction.
pub(super) struct SpinPolicy {
    window: Cell<Duration>,
    /// Start of the current wait.
    began: Cell<Option<Instant>>,
}

impl SpinPolicy {
    pub(super) fn new() -> Self {
        Self { window: Cell::new(WINDOW_LEAST), began: Cell::new(None) }
    }

    /// Polls for a while; returns whether the condition became true. If not, call `slept` after the sleep.
    pub(super) async fn pays(&self, came: impl Fn() -> bool, has_spare_cores: impl Fn() -> bool) -> bool {
        // A wait continues after a spurious wake-up: its polling window has been used.
        let began = self.began.get().unwrap_or_else(Instant::now);
        self.began.set(Some(began));
        let mut asked: Option<Instant> = None;
        let mut turn = 0_u32;
        while !came() {
            let now = Instant::now();
            if now.duration_since(began) >= self.window.get() {
                return false;
            }
            let is_known = asked.is_some_and(|asked| now.duration_since(asked) < COUNT_HOLDS);
            if turn >= TURNS_UNASKED && !is_known {
                if !has_spare_cores() {
                    return false;
                }
                asked = Some(now);
            }
            turn += 1;
            for _ in 0..LOOKS {
                if came() {
                    self.began.set(None);
                    return true;
                }
                spin_loop();
            }
            if asked.is_some() {
                // The peer may be waiting for this core, even if another one is free.
                std::thread::yield_now();
            }
            tokio::task::yield_now().await;
        }
        self.began.set(None);
        true
    }

    /// Call after a sleep. `came`: whether the awaited condition is true now, or the wake-up was for something
    /// else.
    pub(super) fn slept(&self, came: bool) {
        if came && let Some(began) = self.began.take() {
            self.learn(began.elapsed());
        }
    }

    fn learn(&self, waited: Duration) {
        let window = self.window.get();
        let next = if waited <= WINDOW_MAX { window * 2 } else { window / 2 };
        self.window.set(next.clamp(WINDOW_LEAST, WINDOW_MAX));
    }
}

/// Whether at most as many threads of the machine are runnable, including this one, as this process has cores. If
/// other processes have cores of their own, as beside a container, the answer may be no although cores are free.
pub(super) fn has_spare_cores() -> bool {
    static LOADAVG: OnceLock<Option<(File, u64)>> = OnceLock::new();
    let loadavg = LOADAVG.get_or_init(|| {
        let cores = to_u64(std::thread::available_parallelism().map_or(1, usize::from));
        File::open("/proc/loadavg").ok().filter(|_| cores > 1).map(|file| (file, cores))
    });
    let Some((file, cores)) = loadavg else { return false };
    wants_to_run(file).is_some_and(|threads| threads <= *cores)
}

/// Runnable threads: the first number of the fourth field, as in `0.20 0.18 0.12 1/80 11206`.
fn wants_to_run(loadavg: &File) -> Option<u64> {
    let mut text = [0; 128];
    let bytes = loadavg.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..bytes]).ok()?;
    text.split_ascii_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framed::Stream;
    use crate::shm::Rings;
    use std::io::{IoSlice, IoSliceMut};

    #[test]
    fn the_polling_window_shrinks_when_it_does_not_pay_and_grows_when_it_would() {
        let spin = SpinPolicy::new();
        for _ in 0..20 {
            spin.learn(WINDOW_MAX);
        }
        assert_eq!(spin.window.get(), WINDOW_MAX);
        let mut looked = Duration::ZERO;
        for _ in 0..20 {
            looked += spin.window.get();
            spin.learn(WINDOW_MAX + Duration::from_nanos(1));
        }
        assert_eq!(spin.window.get(), WINDOW_LEAST);
        assert!(looked <= 2 * WINDOW_MAX + 20 * WINDOW_LEAST, "{looked:?}");
    }

    #[tokio::test]
    async fn what_is_there_is_seen_at_once() {
        let looks = Cell::new(0);
        let there = || looks.replace(looks.get() + 1) == 0;
        assert!(SpinPolicy::new().pays(there, || unreachable!("no wait is necessary")).await);
        assert_eq!(looks.get(), 1);
    }

    #[tokio::test]
    async fn who_looks_in_vain_leaves_the_core_to_others_and_else_looks_for_all_of_its_window() {
        let spin = SpinPolicy::new();
        spin.window.set(Duration::from_secs(3600));
        assert!(!spin.pays(|| false, || false).await, "other threads want the core");
        let spin = SpinPolicy::new();
        spin.window.set(Duration::from_millis(2));
        let asked = Cell::new(0);
        let is_spare = || {
            asked.set(asked.get() + 1);
            true
        };
        let began = Instant::now();
        assert!(!spin.pays(|| false, is_spare).await && began.elapsed() >= spin.window.get());
        assert!(asked.get() > 0);
    }

    #[tokio::test]
    async fn a_waking_in_vain_teaches_nothing_and_begins_no_new_look() {
        let spin = SpinPolicy::new();
        spin.window.set(2 * WINDOW_LEAST);
        assert!(!spin.pays(|| false, || true).await);
        spin.slept(false);
        assert_eq!(spin.window.get(), 2 * WINDOW_LEAST);
        let looks = Cell::new(0);
        let vain = || {
            looks.set(looks.get() + 1);
            false
        };
        assert!(!spin.pays(vain, || true).await);
        assert_eq!(looks.get(), 1, "its polling window has been used");
        std::thread::sleep(WINDOW_MAX);
        spin.slept(true);
        assert_eq!(spin.window.get(), WINDOW_LEAST);
    }

    #[tokio::test]
    async fn rings_learn_from_waits_that_they_slept_through() {
        let (left, right) = crate::shm::pair().unwrap();
        let (left, right) = (Rings::open(left).unwrap(), Rings::open(right).unwrap());
        left.reading.window.set(WINDOW_MAX);
        let mut byte = [0];
        let mut runs = [IoSliceMut::new(&mut byte)];
        let writes = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            right.write(&[IoSlice::new(&[7])]).await
        };
        let (read, written) = tokio::join!(left.read(&mut runs, 1), writes);
        assert_eq!((read.unwrap(), written.unwrap(), byte[0]), (1, 1, 7));
        assert_eq!(left.reading.window.get(), WINDOW_MAX / 2);
    }

    #[test]
    fn the_system_says_how_many_threads_want_to_run() {
        let file = File::open("/proc/loadavg").unwrap();
        assert!(wants_to_run(&file).unwrap() >= 1, "this thread runs");
    }
}
