//! `bramble worker --join`: dials a primary until it answers, and serves one session.
//!
//! Place in the flow: between the command line and the worker's only session.
//!
//! Invariants: a failure that may pass (no listener yet, no network or name yet) is retried with exponential back-off
//! and printed once; a permanent one (another key, another protocol, a wrong address) ends the process, and so does
//! the end of the session. A worker that a product started (`--local`) tries only once, so that it does not outlive
//! the product.
//!
//! Deliberately absent: a limit on retries. The program `timeout` sets one.

use bramble_link::LocalFuture;
use bramble_link::{LinkError, Security};
use bramble_worker::{Config, WorkerError};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// The pause after the first attempt, and the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Why an attempt did not open a session.
enum Failed {
    /// A later attempt may succeed.
    ForNow(WorkerError),
    /// No process listens at that address any more, or its end broke the connection.
    NobodyThere(WorkerError),
    /// Every later attempt would fail, too.
    ForGood(WorkerError),
}

/// Whether a later attempt may succeed after this error.
fn may_come_later(e: &LinkError) -> bool {
    match e {
        LinkError::Unreached(e) => !matches!(
            e.kind(),
            ErrorKind::InvalidInput | ErrorKind::PermissionDenied | ErrorKind::Unsupported
        ),
        // The connection broke before the other end proved the key: it may be a primary that is just ending.
        LinkError::Broken(_) | LinkError::Closed => true,
        LinkError::Shut
        | LinkError::Untrusted(_)
        | LinkError::Foreign(_)
        | LinkError::Damaged { .. }
        | LinkError::Stalled(_)
        | LinkError::Creeping(_)
        | LinkError::Refused(_) => false,
    }
}

/// The pause after this many failed attempts. `drawn` is random jitter of up to a quarter either way: it spreads
/// workers that started together.
fn pause(tries: u32, drawn: u64) -> Duration {
    let doubled = PAUSES.0.saturating_mul(1 << tries.saturating_sub(1).min(16));
    let part = (drawn % 1001) as f64 / 1000.0;
    doubled.min(PAUSES.1).mul_f64(0.75 + part / 2.0)
}

/// Dials until a session opens, and serves it.
pub fn join<'f>(
    host: &'f str,
    security: &'f Security,
    config: &'f Config,
    quiet: bool,
    tries_again: bool,
) -> LocalFuture<'f, Result<(), WorkerError>> {
    Box::pin(async move {
        for tries in 1u32.. {
            match once(host, security, config, quiet).await {
                Ok(served) => return served,
                Err(Failed::ForNow(e) | Failed::NobodyThere(e)) if tries_again => {
                    if tries == 1 {
                        // Printed even with --quiet: it tells why nothing happens.
                        bramble_report::say(&format!("bramble: {e}; trying again until a primary answers"));
                    }
                }
                // The product that has started this worker has ended: it needs none, and has told the user why.
                Err(Failed::NobodyThere(_)) => return Err(WorkerError::Link(LinkError::Closed)),
                Err(Failed::ForNow(e) | Failed::ForGood(e)) => return Err(e),
            }
            tokio::time::sleep(pause(tries, crate::random::seed().unwrap_or_default())).await;
        }
        unreachable!("four thousand million tries take four thousand years")
    })
}

/// Tries every address of a host once. Returns the result of the session, or why none opened.
async fn once(
    host: &str,
    security: &Security,
    config: &Config,
    quiet: bool,
) -> Result<Result<(), WorkerError>, Failed> {
    let here = |what: String| WorkerError::Here(format!("--join {host}: {what}"));
    let addresses = match tokio::net::lookup_host(host).await {
        Ok(addresses) => addresses,
        Err(e) => return Err(Failed::ForNow(here(format!("the name cannot be resolved: {e}")))),
    };
    let mut last = Failed::ForNow(here("the name has no address".to_owned()));
    for address in addresses {
        let is_connected = Cell::new(false);
        let connected = || {
            is_connected.set(true);
            if !quiet {
                bramble_report::say(&format!(
                    "connected to {address}; a primary (multiply --await N) starts once N workers have connected; if \
                    {address} is a worker, nothing will happen"
                ));
            }
        };
        match bramble_worker::join(address, security, config, connected).await {
            served if is_connected.get() => return Ok(served),
            Ok(()) => return Ok(Ok(())),
            Err(WorkerError::Link(e)) if may_come_later(&e) => last = not_yet(address, &e),
            Err(WorkerError::Link(e)) => {
                return Err(Failed::ForGood(WorkerError::Here(format!("--join {address}: {e}"))));
            }
            Err(e) => return Err(Failed::ForGood(e)),
        }
    }
    Err(last)
}

/// The error if no primary answers at an address yet.
fn not_yet(address: SocketAddr, e: &LinkError) -> Failed {
    let failed = |text: String| WorkerError::Here(format!("--join {address}: {text}"));
    match e {
        LinkError::Unreached(e) if e.kind() == ErrorKind::ConnectionRefused => Failed::NobodyThere(failed(
            "no primary listens there; begin the product there (bramble multiply … --await N)".to_owned(),
        )),
        LinkError::Broken(_) | LinkError::Closed => Failed::NobodyThere(failed(e.to_string())),
        LinkError::Unreached(cause) if cause.kind() == ErrorKind::ConnectionReset => {
            Failed::NobodyThere(failed(e.to_string()))
        }
        _ => Failed::ForNow(failed(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn what_may_change_is_tried_again_and_what_does_not_is_final() {
        for kind in [
            ErrorKind::ConnectionRefused,
            ErrorKind::HostUnreachable,
            ErrorKind::NetworkUnreachable,
            ErrorKind::TimedOut,
            ErrorKind::ConnectionReset,
        ] {
            assert!(may_come_later(&LinkError::Unreached(kind.into())), "{kind}");
        }
        assert!(may_come_later(&LinkError::Broken(Error::from(ErrorKind::ConnectionReset))));
        for kind in [ErrorKind::InvalidInput, ErrorKind::PermissionDenied, ErrorKind::Unsupported] {
            assert!(!may_come_later(&LinkError::Unreached(kind.into())), "{kind}");
        }
        let wrong_key = LinkError::Untrusted("it has another key".to_owned());
        let foreign = LinkError::Foreign("another protocol".to_owned());
        assert!([wrong_key, foreign, LinkError::Shut].iter().all(|e| !may_come_later(e)));
    }

    #[test]
    fn pauses_double_from_one_second_to_thirty_and_are_spread_by_a_quarter() {
        let middle: Vec<u64> = (1..8).map(|tries| pause(tries, 500).as_millis() as u64).collect();
        assert_eq!(middle, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(pause(u32::MAX, 500), Duration::from_secs(30));
        assert_eq!((pause(1, 0), pause(1, 1000)), (Duration::from_millis(750), Duration::from_millis(1250)));
        assert_eq!((pause(9, 1001), pause(9, 2001)), (pause(9, 0), pause(9, 1000)));
    }
}
