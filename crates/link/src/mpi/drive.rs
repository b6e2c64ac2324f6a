//! How often the library is asked.
//!
//! Place in the flow: one task of the event loop, for as long as there is one; beside it nothing else asks.
//!
//! To ask all the time costs a core; to ask seldom costs time with each message, and transfers of much data stand still
//! meanwhile, since the library moves them only when it is called. So: after a message has started or come, it is asked on
//! for some microseconds, longer while much is under way, as far as that has paid lately. Then this sleeps, and longer the
//! longer nothing comes: up to a quarter of a millisecond while much is under way, else up to a millisecond. An idle worker
//! takes about half a percent of a core.
//!
//! Invariants: other tasks have their turn between two questions. A message that starts ends the sleep.

use super::engine::Engine;
use super::timer::Timer;
use std::future::Future;
use std::io;
use std::rc::Weak;
use std::time::{Duration, Instant};

const SLEEP_MIN: Duration = Duration::from_micros(10);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// While much is under way.
const SLEEP_BULK_MAX: Duration = Duration::from_micros(250);
/// How long it is asked on without a pause, at most.
const PATIENCE_MAX: Duration = Duration::from_micros(40);
/// The same while much is under way: what a message of 1 MiB takes at 3 GB/s.
const PATIENCE_BULK_MAX: Duration = Duration::from_micros(350);
/// A sleep is this part of the time that was waited before it: so much later than it could a message is seen at most. Were it
/// as long as that time, two ends that answer each other would keep each other slow.
const SLEEP_PART: u32 = 8;

/// How long it is of use to go on asking.
struct Patience {
    now: Duration,
    most: Duration,
}

impl Patience {
    fn new(most: Duration) -> Self {
        Self { now: most, most }
    }

    /// Something came so long after it was waited for.
    fn came(&mut self, after: Duration) {
        if after <= self.most {
            self.now = self.most;
        }
    }

    /// Nothing came while it was asked on.
    fn was_vain(&mut self) {
        self.now = if self.now > self.most / 8 { self.now / 2 } else { Duration::ZERO };
    }
}

/// Asks until the engine is no more. `has_cores`: as many as processes, so that to ask on takes nobody's.
pub(super) fn drive(engine: Weak<Engine>, has_cores: bool) -> io::Result<impl Future<Output = ()>> {
    let timer = Timer::new()?;
    Ok(async move {
        // A timer that fails is asked for nothing more; then this asks all the time.
        while engine.strong_count() > 0 && asking(&engine, has_cores, &timer).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
}

async fn asking(engine: &Weak<Engine>, has_cores: bool, timer: &Timer) -> io::Result<()> {
    let mut patiences = [PATIENCE_MAX, PATIENCE_BULK_MAX].map(Patience::new);
    let (mut since, mut starts, mut is_over) = (Instant::now(), 0, false);
    loop {
        let Some(engine) = engine.upgrade() else { return Ok(()) };
        let has_bulk = engine.has_bulk();
        let patience = &mut patiences[usize::from(has_bulk)];
        let is_complete = engine.poll() > 0;
        let has_started = std::mem::replace(&mut starts, engine.starts()) != engine.starts();
        let waited = since.elapsed();
        if is_complete {
            patience.came(waited);
        }
        if is_complete || has_started {
            (since, is_over) = (Instant::now(), false);
        } else if is_over || waited >= patience.now {
            if !is_over {
                patience.was_vain();
                is_over = true;
            }
            let most = if has_bulk { SLEEP_BULK_MAX } else { SLEEP_MAX };
            timer.set((waited / SLEEP_PART).clamp(SLEEP_MIN, most))?;
            tokio::select! {
                biased;
                () = engine.started.notified() => {}
                rung = timer.rung() => rung?,
            }
            continue;
        } else if !has_cores {
            std::thread::yield_now();
        }
        drop(engine);
        tokio::task::yield_now().await;
    }
}
