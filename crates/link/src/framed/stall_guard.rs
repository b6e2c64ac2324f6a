//! Limits for the duration of a frame that has begun.
//!
//! Invariants: a frame that stalls, or is slower than the lowest accepted rate, ends its link with an error. So no
//! peer can hold memory and a connection for ever by sending a byte now and then. The wait for the start of a frame
//! has no limit here; the schedule limits silence.

use super::broken;
use crate::{FrameLimits, LinkError, to_u64};
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// Measures the progress of one frame.
pub(super) struct StallGuard {
    limits: FrameLimits,
    since: Instant,
    bytes: u64,
}

impl StallGuard {
    /// Start of a frame.
    pub(super) fn new(limits: FrameLimits) -> Self {
        Self { limits, since: Instant::now(), bytes: 0 }
    }

    /// Awaits one read or write and returns its number of bytes; an error if it is too late or the frame is too
    /// slow.
    pub(super) async fn keep(
        &mut self,
        moving: impl Future<Output = io::Result<usize>>,
    ) -> Result<usize, LinkError> {
        let Ok(moved) = tokio::time::timeout(self.limits.stall, moving).await else {
            return Err(LinkError::Stalled(self.limits.stall));
        };
        let moved = moved.map_err(broken)?;
        self.bytes += to_u64(moved);
        let elapsed = self.since.elapsed();
        if elapsed > self.limits.rate_window {
            if self.is_slow(elapsed) {
                return Err(LinkError::Creeping(self.limits.bytes_per_s_min));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(moved)
    }

    fn is_slow(&self, elapsed: Duration) -> bool {
        u128::from(self.bytes) * 1000 < u128::from(self.limits.bytes_per_s_min) * elapsed.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> FrameLimits {
        FrameLimits {
            stall: Duration::from_secs(20),
            bytes_per_s_min: 4096,
            rate_window: Duration::from_secs(30),
            ..FrameLimits::SESSION
        }
    }

    /// Moves `bytes` every `every` until told to stop or 1 MiB is there.
    async fn frame(bytes: usize, every: Duration) -> Result<(), LinkError> {
        let (mut guard, mut done) = (StallGuard::new(limits()), 0);
        while done < 1 << 20 {
            done += guard
                .keep(async {
                    tokio::time::sleep(every).await;
                    Ok(bytes)
                })
                .await?;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_stands_still_or_creeps_ends_and_a_slow_one_does_not() {
        let began = Instant::now();
        assert!(matches!(frame(1, Duration::from_secs(25)).await, Err(LinkError::Stalled(_))));
        assert_eq!(began.elapsed().as_secs(), 20);
        assert!(matches!(frame(1000, Duration::from_secs(1)).await, Err(LinkError::Creeping(_))));
        assert!(began.elapsed().as_secs() <= 20 + 31 + 1);
        frame(5000, Duration::from_secs(1)).await.unwrap();
    }
}
