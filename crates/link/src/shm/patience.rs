//! How long an end that finds nothing to do keeps looking before it sleeps.
//!
//! To sleep and be woken costs some microseconds at each end, in a virtual machine twenty and more; to look on costs a core
//! meanwhile. Where a core has nothing else to do and what is waited for comes soon, it pays; where others want to run, as
//! compute threads do, the core is theirs.
//!
//! Invariants: nobody looks on for long while more threads want to run than there are cores, nor on a machine with one; other
//! tasks of the event loop have their turns meanwhile, and so have others on this core. A wait that was shorter than
//! `WINDOW_MAX`, wakings included, makes the next look longer; a longer one makes it shorter, so waits that are always long
//! cost little. (The rule by which KVM polls before it halts a processor: `halt_poll_ns` in Linux's virt/kvm/kvm_main.c.)
//!
//! Deliberately absent: knowing whose cores are wanted. What the system counts is of the whole machine.

use crate::to_u64;
use std::cell::Cell;
use std::fs::File;
use std::hint::spin_loop;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The longest look: more than two sleeping ends in a virtual machine take to wake each other.
const WINDOW_MAX: Duration = Duration::from_micros(250);
/// The shortest.
const WINDOW_LEAST: Duration = Duration::from_micros(10);
/// Looks between two turns of the event loop: about a microsecond.
const LOOKS: u32 = 64;
/// Turns before the system is asked how many threads want to run, which takes a microsecond, too.
const TURNS_UNASKED: u32 = 2;
/// So long holds what it said.
const COUNT_HOLDS: Duration = Duration::from_micros(20);

/// The patience of one direction.
pub(super) struct Patience {
    window: Cell<Duration>,
    /// When the wait that is on now began.
    began: Cell<Option<Instant>>,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { window: Cell::new(WINDOW_LEAST), began: Cell::new(None) }
    }

    /// Looks for something for a while; whether it came. If not, `slept` is to be told after the sleep.
    pub(super) async fn pays(&self, came: impl Fn() -> bool, has_spare_cores: impl Fn() -> bool) -> bool {
        // A wait in which this end was woken in vain goes on: it has been looked on for.
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
                // The other end may be waiting for this core, though another one is free.
                std::thread::yield_now();
            }
            tokio::task::yield_now().await;
        }
        self.began.set(None);
        true
    }

    /// This end has slept; whether what it waited for is there now, or it was woken for something else.
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

/// Whether no more threads of the machine want to run, this one among them, than there are cores for this process. Where
/// others have cores of their own, as beside a container, the answer may be no though some are free.
pub(super) fn has_spare_cores() -> bool {
    static LOADAVG: OnceLock<Option<(File, u64)>> = OnceLock::new();
    let loadavg = LOADAVG.get_or_init(|| {
        let cores = to_u64(std::thread::available_parallelism().map_or(1, usize::from));
        File::open("/proc/loadavg").ok().filter(|_| cores > 1).map(|file| (file, cores))
    });
    let Some((file, cores)) = loadavg else { return false };
    wants_to_run(file).is_some_and(|threads| threads <= *cores)
}

/// Threads that run or could: the first number of the fourth field, as in `0.20 0.18 0.12 1/80 11206`.
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
    fn patience_goes_when_it_does_not_pay_and_comes_back_when_it_would() {
        let patience = Patience::new();
        for _ in 0..20 {
            patience.learn(WINDOW_MAX);
        }
        assert_eq!(patience.window.get(), WINDOW_MAX);
        let mut looked = Duration::ZERO;
        for _ in 0..20 {
            looked += patience.window.get();
            patience.learn(WINDOW_MAX + Duration::from_nanos(1));
        }
        assert_eq!(patience.window.get(), WINDOW_LEAST);
        assert!(looked <= 2 * WINDOW_MAX + 20 * WINDOW_LEAST, "{looked:?}");
    }

    #[tokio::test]
    async fn what_is_there_is_seen_at_once() {
        let looks = Cell::new(0);
        let there = || looks.replace(looks.get() + 1) == 0;
        assert!(Patience::new().pays(there, || unreachable!("nobody has to wait")).await);
        assert_eq!(looks.get(), 1);
    }

    #[tokio::test]
    async fn who_looks_in_vain_leaves_the_core_to_others_and_else_looks_for_all_of_its_window() {
        let patience = Patience::new();
        patience.window.set(Duration::from_secs(3600));
        assert!(!patience.pays(|| false, || false).await, "others want the core");
        let patience = Patience::new();
        patience.window.set(Duration::from_millis(2));
        let asked = Cell::new(0);
        let is_spare = || {
            asked.set(asked.get() + 1);
            true
        };
        let began = Instant::now();
        assert!(!patience.pays(|| false, is_spare).await && began.elapsed() >= patience.window.get());
        assert!(asked.get() > 0);
    }

    #[tokio::test]
    async fn a_waking_in_vain_teaches_nothing_and_begins_no_new_look() {
        let patience = Patience::new();
        patience.window.set(2 * WINDOW_LEAST);
        assert!(!patience.pays(|| false, || true).await);
        patience.slept(false);
        assert_eq!(patience.window.get(), 2 * WINDOW_LEAST);
        let looks = Cell::new(0);
        let vain = || {
            looks.set(looks.get() + 1);
            false
        };
        assert!(!patience.pays(vain, || true).await);
        assert_eq!(looks.get(), 1, "it was looked on for already");
        std::thread::sleep(WINDOW_MAX);
        patience.slept(true);
        assert_eq!(patience.window.get(), WINDOW_LEAST);
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
