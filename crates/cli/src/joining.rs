//! `bramble worker --join`: dials the primary until it is there, and serves it once.
//!
//! Place in the flow: from the command line to the one session of such a worker.
//!
//! Invariants: a cause that may go away by itself (no listener yet, a network or a name that is not there yet) is
//! tried again, ever less often, and said once; one that does not (another key, another protocol, a wrong address)
//! ends the process, and so does the end of a session. A worker that a product has started (`--local`) tries
//! once: it must not outlive that product.
//!
//! Deliberately absent: a limit to the tries. The program `timeout` sets one.

use bramble_link::{LinkError, Security};
use bramble_worker::{Config, WorkerError};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

/// The pause after the first try, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What a try came to, if it did not come to a session.
enum Failed {
    /// It may be otherwise later.
    ForNow(WorkerError),
    /// It will be the same the next time.
    ForGood(WorkerError),
}

/// Whether a connection that did not come about may do so later.
fn may_come_later(e: &LinkError) -> bool {
    match e {
        LinkError::Unreached(e) => !matches!(
            e.kind(),
            ErrorKind::InvalidInput | ErrorKind::PermissionDenied | ErrorKind::Unsupported
        ),
        // It broke before the other end had proven anything: that one may just end.
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

/// The wait after that many failed tries. `drawn` spreads workers that began at the same time, by a quarter either way.
fn pause(tries: u32, drawn: u64) -> Duration {
    let doubled = PAUSES.0.saturating_mul(1 << tries.saturating_sub(1).min(16));
    let part = (drawn % 1001) as f64 / 1000.0;
    doubled.min(PAUSES.1).mul_f64(0.75 + part / 2.0)
}

/// Dials until there is a session, and serves it.
pub(crate) async fn join(
    host: &str,
    security: &Security,
    config: &Config,
    quiet: bool,
    tries_again: bool,
) -> Result<(), WorkerError> {
    for tries in 1u32.. {
        match once(host, security, config, quiet).await {
            Ok(served) => return served,
            Err(Failed::ForNow(e)) if tries_again => {
                if tries == 1 {
                    // Said with --quiet, too: it is why nothing happens.
                    crate::say(&format!("bramble: {e}; trying again until a primary is there"));
                }
            }
            Err(Failed::ForNow(e) | Failed::ForGood(e)) => return Err(e),
        }
        tokio::time::sleep(pause(tries, crate::seed().unwrap_or_default())).await;
    }
    unreachable!("four thousand million tries take four thousand years")
}

/// Tries every address of a host once. What a session came to, or why there was none.
async fn once(
    host: &str,
    security: &Security,
    config: &Config,
    quiet: bool,
) -> Result<Result<(), WorkerError>, Failed> {
    let here = |what: String| WorkerError::Here(format!("--join {host}: {what}"));
    let addresses = match tokio::net::lookup_host(host).await {
        Ok(addresses) => addresses,
        Err(e) => return Err(Failed::ForNow(here(format!("its name is not known here: {e}")))),
    };
    let mut last = here("its name has no address".to_owned());
    for address in addresses {
        let is_connected = Cell::new(false);
        let connected = || {
            is_connected.set(true);
            if !quiet {
                crate::say(&format!(
                    "connected to {address}; a primary (multiply --await N) begins when N have come, a worker never"
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
    Err(Failed::ForNow(last))
}

/// Why there is no primary at an address yet.
fn not_yet(address: SocketAddr, e: &LinkError) -> WorkerError {
    let is_refused = matches!(e, LinkError::Unreached(e) if e.kind() == ErrorKind::ConnectionRefused);
    WorkerError::Here(match is_refused {
        true => format!(
            "--join {address}: no primary waits there; begin the product there (bramble multiply … --await N)"
        ),
        false => format!("--join {address}: {e}"),
    })
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
