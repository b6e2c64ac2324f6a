//! The primary's silence: the limit after which a worker ends the connection, in a product and between two.

use super::WorkerError;
use bramble_schedule::clock::{StepClock, WORKER_STEP};
use bramble_wire::limits::{PING_AFTER, PRIMARY_SILENCE_MAX};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Waits until the primary has been silent for too long: it pings after two seconds of silence, so this limit is long. Bytes
/// of a partial frame count as a sign of life: on a slow link a megabyte takes long. `was_heard` tells of other signs of life
/// since it was last asked. Time in which this process was suspended does not count as silence.
pub(super) async fn primary_silence(
    mut was_heard: impl FnMut() -> bool,
    arriving: Rc<Cell<u64>>,
) -> WorkerError {
    let (began, mut clock) = (Instant::now(), StepClock::new(WORKER_STEP));
    let (mut seen, mut heard) = (arriving.get(), Duration::ZERO);
    loop {
        tokio::time::sleep(PING_AFTER).await;
        let now = clock.advance_to(began.elapsed());
        let moves = std::mem::replace(&mut seen, arriving.get()) != arriving.get();
        if was_heard() || moves {
            heard = now;
        }
        let silence = now.saturating_sub(heard);
        if silence > PRIMARY_SILENCE_MAX {
            return WorkerError::Here(format!("the primary has been silent for {} s", silence.as_secs()));
        }
    }
}
