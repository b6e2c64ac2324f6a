//! `bramble worker`.

use crate::args::WorkerArgs;
use bramble_cluster::joining::join;
use bramble_cluster::limited::{self, Limited};
use bramble_cluster::signals::StopSignals;
use bramble_cluster::trust;
use bramble_link::{ClusterKey, Endpoint, Security};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::counted;
use bramble_worker::{
    Config, SessionLedger, WorkerError, available_memory, default_threads, host_name, pinnable_cores,
    serve_link,
};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// This many failed connections are logged at once, and then one in each `STRANGERS_EVERY`, so that a flood of
/// connections cannot fill a disk.
const STRANGERS_AT_ONCE: u32 = 100;
/// See `STRANGERS_AT_ONCE`.
const STRANGERS_EVERY: Duration = Duration::from_secs(1);

/// Runs until a signal comes, or with `--join` until the session ends.
pub(crate) fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let config = Config {
        threads: args.threads.map_or_else(default_threads, usize::from),
        memory_bytes: args.memory.unwrap_or_else(available_memory),
        kernel: args.kernel,
        pin_from: (!args.no_pin).then_some(args.pin_from),
        gives_way: true,
        name: host_name(),
    };
    // A worker that a primary started reports this to the primary instead.
    let is_own = args.join.is_none() && !args.inherited && args.memory.is_some();
    if let Some(why) = config.is_of_no_use().filter(|_| is_own) {
        return Err(Failure::usage(why));
    }
    if !args.no_pin {
        check_pin(args.pin_from, pinnable_cores())?;
    }
    let runtime = bramble_cluster::until::runtime()?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, serve(args, config));
    // Compute threads may be inside a kernel; the process does not wait for them.
    runtime.shutdown_background();
    result
}

/// Refuses a first core that does not exist.
fn check_pin(pin_from: usize, cores: usize) -> Result<(), Failure> {
    let last = match cores {
        // The number of cores is unknown, or this system cannot pin threads.
        0 => return Ok(()),
        cores => cores - 1,
    };
    match pin_from {
        core if core <= last => Ok(()),
        core => Err(Failure::usage(format!(
            "--pin-from {core}: this worker may use cores 0 to {last}; use one of these, or --no-pin"
        ))),
    }
}

/// The security of this worker's connections: by the one-time key of a parent process, if it has one.
fn security(args: &WorkerArgs) -> Result<Security, Failure> {
    match std::env::var(bramble_cluster::local::KEY_VARIABLE) {
        Ok(text) => {
            let key = ClusterKey::parse(&text);
            let key =
                key.map_err(|e| Failure::failed(format!("{}: {e}", bramble_cluster::local::KEY_VARIABLE)))?;
            Ok(trust::between_processes(key))
        }
        Err(_) => trust::security(&args.trust),
    }
}

async fn serve(args: &WorkerArgs, config: Config) -> Result<Exit, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut signals = StopSignals::new().map_err(broken)?;
    let quiet = args.quiet;
    // If a product started this process, the product's primary reports errors of the link.
    let is_of_a_product = args.inherited || std::env::var_os(bramble_cluster::local::KEY_VARIABLE).is_some();
    // A worker that inherits its link needs no key.
    let security = if args.inherited { None } else { Some(security(args)?) };
    let is_too_far = |security: &Security| args.join.is_none() && !security.reaches(args.listen.ip());
    if args.trust.insecure && security.as_ref().is_some_and(is_too_far) {
        return Err(Failure::usage(format!(
            "--listen {}: with --insecure anyone on the network could use this machine: add --i-trust-this-network \
            to allow that, or listen on 127.0.0.1:{}",
            args.listen,
            args.listen.port()
        )));
    }
    let work = async {
        match (security, &args.join) {
            (None, _) => inherited(&config).await,
            (Some(security), Some(host)) => join(host, &security, &config, quiet, !is_of_a_product).await,
            (Some(security), None) => {
                let (threads, memory) = (config.threads, config.memory_bytes >> 20);
                let trusted = trust::sentence(&security);
                let ready = move |address| {
                    // Scripts wait for this line.
                    let _ = bramble_report::out(format!("listening on {address}\n").as_bytes());
                    if !quiet {
                        let threads = counted(threads as u64, "thread");
                        bramble_report::say(&format!("{threads}, {memory} MiB; {trusted}; stop with Ctrl-C"));
                    }
                };
                let log = Rc::new(Log::new(quiet));
                let ended = move |peer, result| log.ended(peer, result);
                bramble_worker::listen(args.listen, security, config, ready, ended).await
            }
        }
    };
    tokio::select! {
        result = work => match result {
            Ok(()) => Ok(Exit::Done),
            Err(e) if is_of_a_product && !matches!(e, WorkerError::Here(_)) => Ok(Exit::Failed),
            Err(e @ (WorkerError::Link(_) | WorkerError::Protocol(_))) => {
                let primary = args.join.as_deref().unwrap_or("the primary");
                Err(Failure::failed(format!("the session with {primary} ended: {e}")))
            }
            Err(e) => Err(Failure::failed(e.to_string())),
        },
        exit = signals.next() => Ok(exit),
    }
}

/// Serves the parent process.
async fn inherited(config: &Config) -> Result<(), WorkerError> {
    let endpoint = Endpoint::inherited().map_err(|e| WorkerError::Here(format!("--inherited: {e}")))?;
    serve_link(endpoint.open("primary")?, None, config, &SessionLedger::new()).await
}

/// Logs how sessions end.
struct Log {
    quiet: bool,
    /// Strangers can cause any number of failed connections, so these lines are rate-limited.
    limited: RefCell<Limited>,
}

impl Log {
    fn new(quiet: bool) -> Self {
        Self { quiet, limited: RefCell::new(Limited::new(STRANGERS_AT_ONCE, STRANGERS_EVERY)) }
    }

    fn ended(&self, peer: SocketAddr, result: Result<(), WorkerError>) {
        match result {
            Ok(()) if self.quiet => {}
            Ok(()) => bramble_report::say(&format!("served {peer}")),
            Err(WorkerError::Link(e)) => self.limited(&format!("connection of {peer}: {e}")),
            Err(e @ WorkerError::Protocol(_)) => self.limited(&format!("session of {peer}: {e}")),
            Err(e) => bramble_report::say(&format!("bramble: session of {peer}: {e}")),
        }
    }

    fn limited(&self, what: &str) {
        if let Some(unsaid) = self.limited.borrow_mut().next(Instant::now()) {
            bramble_report::say(&format!("bramble: {what}{}", limited::before(unsaid)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_does_not_exist_is_refused_with_the_valid_range() {
        assert!(check_pin(1, 2).is_ok() && check_pin(99, 0).is_ok());
        let failure = check_pin(2, 2).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.text.contains("0 to 1"), "{}", failure.text);
    }
}
