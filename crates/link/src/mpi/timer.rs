//! A short sleep of the event loop.
//!
//! Invariant: it wakes with a precision of microseconds where the system has timers with a descriptor (timerfd);
//! elsewhere it uses the event loop's own timer, whose precision is milliseconds.
//!
//! Deliberately absent: more than one sleep at a time.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
mod descriptor {
    use super::{Duration, io};
    use crate::local::watch::watched;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };
    use std::os::fd::OwnedFd;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub(crate) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub(crate) fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            Ok(Self(watched(timerfd_create(TimerfdClockId::Monotonic, flags)?, Interest::READABLE)?))
        }

        /// Sets the duration of the next sleep: less than a second.
        pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value = Timespec { tv_sec: 0, tv_nsec: i64::from(after.subsec_nanos()) };
            timerfd_settime(
                self.0.get_ref(),
                TimerfdTimerFlags::empty(),
                &Itimerspec { it_interval: never, it_value },
            )?;
            Ok(())
        }

        /// Sleeps.
        pub(crate) async fn rung(&self) -> io::Result<()> {
            // The counter is not read: setting the timer again resets it.
            self.0.readable().await?.clear_ready();
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod clock {
    use super::{Duration, io};
    use std::cell::Cell;

    pub(crate) struct Timer(Cell<Duration>);

    impl Timer {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(Cell::new(Duration::ZERO)))
        }

        /// Sets the duration of the next sleep.
        pub(crate) fn set(&self, after: Duration) -> io::Result<()> {
            self.0.set(after);
            Ok(())
        }

        /// Sleeps.
        pub(crate) async fn rung(&self) -> io::Result<()> {
            tokio::time::sleep(self.0.get()).await;
            Ok(())
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) use clock::Timer;
#[cfg(target_os = "linux")]
pub(super) use descriptor::Timer;
