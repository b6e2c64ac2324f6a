//! How often the library is polled.
//!
//! Place in the flow: one task of the event loop; no other code polls regularly.
//!
//! Constant polling costs a core; rare polling delays each message and stalls large transfers, which the library
//! only moves within its calls. So: after a message was started or completed, the task polls for some microseconds,
//! longer while large messages are in flight, if that has paid lately. Then it sleeps, longer the longer nothing
//! completes: up to a quarter of a millisecond while large messages are in flight, else up to a millisecond. An
//! idle worker uses about half a percent of a core.
//!
//! Invariants: other tasks run between two polls. The start of a message ends the sleep.

use super::engine::Engine;
use super::timer::Timer;
use std::future::Future;
use std::io;
use std::rc::Weak;
use std::time::{Duration, Instant};

const SLEEP_MIN: Duration = Duration::from_micros(10);
const SLEEP_MAX: Duration = Duration::from_millis(1);
/// Longest sleep while large messages are in flight.
const SLEEP_BULK_MAX: Duration = Duration::from_micros(250);
/// Longest polling without a pause.
const POLL_MAX: Duration = Duration::from_micros(40);
/// The same while large messages are in flight: the duration of a message of 1 MiB at 3 GB/s.
const POLL_BULK_MAX: Duration = Duration::from_micros(350);
/// A sleep is this fraction of the wait before it, which bounds the relative delay of a message. If it were as long
/// as the wait, two ends that answer each other would keep each other slow.
const SLEEP_PART: u32 = 8;

/// How long polling without a pause is worthwhile.
struct PollWindow {
    now: Duration,
    most: Duration,
}

impl PollWindow {
    fn new(most: Duration) -> Self {
        Self { now: most, most }
    }

    /// A message completed this long after the wait began.
    fn came(&mut self, after: Duration) {
        if after <= self.most {
            self.now = self.most;
        }
    }

    /// No message completed during the polling.
    fn was_vain(&mut self) {
        self.now = if self.now > self.most / 8 { self.now / 2 } else { Duration::ZERO };
    }
}

/// Polls until the engine is dropped. `has_cores`: as many cores as processes, so polling takes a core from no
/// process.
pub(super) fn drive(engine: Weak<Engine>, has_cores: bool) -> io::Result<impl Future<Output = ()>> {
    let timer = Timer::new()?;
    Ok(async move {
        // After an error of the timer this polls without sleeping.
        while engine.strong_count() > 0 && asking(&engine, has_cores, &timer).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
}

async fn asking(engine: &Weak<Engine>, has_cores: bool, timer: &Timer) -> io::Result<()> {
    let mut windows = [POLL_MAX, POLL_BULK_MAX].map(PollWindow::new);
    let (mut since, mut starts, mut is_over) = (Instant::now(), 0, false);
    loop {
        let Some(engine) = engine.upgrade() else { return Ok(()) };
        let has_bulk = engine.has_bulk();
        let window = &mut windows[usize::from(has_bulk)];
        let is_complete = engine.poll() > 0;
        let has_started = std::mem::replace(&mut starts, engine.starts()) != engine.starts();
        let waited = since.elapsed();
        if is_complete {
            window.came(waited);
        }
        if is_complete || has_started {
            (since, is_over) = (Instant::now(), false);
        } else if is_over || waited >= window.now {
            if !is_over {
                window.was_vain();
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
