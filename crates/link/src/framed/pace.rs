//! How long a frame that has begun may take.
//!
//! Invariants: a frame that stands still, or creeps, ends its link with an error; so nobody can hold memory
//! and a connection for ever with a byte now and then. What has not begun may be waited for without end: the
//! schedule has limits for silence.

use super::broken;
use crate::{Limits, LinkError, to_u64};
use std::future::Future;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// Watches one frame.
pub(super) struct Pace {
    limits: Limits,
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// A frame begins.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, since: Instant::now(), bytes: 0 }
    }

    /// Bytes that some reading or writing moved, if that was soon enough.
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

    fn limits() -> Limits {
        Limits {
            stall: Duration::from_secs(20),
            bytes_per_s_min: 4096,
            rate_window: Duration::from_secs(30),
            ..Limits::SESSION
        }
    }

    /// Moves `bytes` every `every` until told to stop or 1 MiB is there.
    async fn frame(bytes: usize, every: Duration) -> Result<(), LinkError> {
        let (mut pace, mut done) = (Pace::new(limits()), 0);
        while done < 1 << 20 {
            done += pace
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
