//! How long an end that finds nothing to do keeps looking before it sleeps.
//!
//! To sleep and be woken costs some microseconds at each end; to look on costs a core meanwhile. Where what is waited for
//! came soon lately, it pays; where it did not, the core is better left to those who compute.
//!
//! Invariants: never on a machine with one core; other tasks of the event loop have their turns meanwhile; after looking in
//! vain a few times there is next to none of it, but for a try now and then.
//!
//! Deliberately absent: clocks. A round is one to three microseconds, and a turn of the event loop.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::OnceLock;

/// Rounds at most.
const ROUNDS_MAX: u32 = 8;
/// Looks in a round.
const LOOKS: u32 = 64;
/// One in so many waits is tried when there is no patience left.
const TRIAL_EVERY: u32 = 32;

/// The patience of one direction.
pub(super) struct Patience {
    rounds: Cell<u32>,
    /// Waits since the last try.
    untried: Cell<u32>,
}

impl Patience {
    pub(super) fn new() -> Self {
        let rounds = if has_cores() { ROUNDS_MAX } else { 0 };
        Self { rounds: Cell::new(rounds), untried: Cell::new(0) }
    }

    /// Looks for something for a while; whether it came.
    pub(super) async fn pays(&self, came: impl Fn() -> bool) -> bool {
        for _ in 0..self.rounds() {
            for _ in 0..LOOKS {
                if came() {
                    self.rounds.set((self.rounds.get() * 2).clamp(1, ROUNDS_MAX));
                    return true;
                }
                spin_loop();
            }
            tokio::task::yield_now().await;
        }
        self.rounds.set(self.rounds.get() / 2);
        false
    }

    fn rounds(&self) -> u32 {
        if self.rounds.get() > 0 {
            return self.rounds.get();
        }
        self.untried.set(self.untried.get() + 1);
        if self.untried.get() < TRIAL_EVERY || !has_cores() {
            return 0;
        }
        self.untried.set(0);
        1
    }
}

/// Whether the other end can run at the same time.
fn has_cores() -> bool {
    static CORES: OnceLock<bool> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patience_goes_when_it_does_not_pay_and_comes_back_when_it_does() {
        if !has_cores() {
            return;
        }
        let patience = Patience::new();
        let looks = Cell::new(0);
        let vain = || {
            looks.set(looks.get() + 1);
            false
        };
        for _ in 0..100 * TRIAL_EVERY {
            assert!(!patience.pays(vain).await);
        }
        assert!(looks.get() <= (2 * ROUNDS_MAX + 100) * LOOKS, "{} looks", looks.get());
        for _ in 0..5 * TRIAL_EVERY {
            patience.pays(|| true).await;
        }
        assert_eq!(patience.rounds.get(), ROUNDS_MAX);
    }
}
