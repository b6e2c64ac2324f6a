//! `bramble worker`.

use crate::args::WorkerArgs;
use crate::exit::{Exit, Failure};
use crate::quantity::counted;
use crate::signals::Signals;
use crate::trust;
use bramble_link::{ClusterKey, Endpoint, LinkError, Security};
use bramble_worker::{Config, Ledger, WorkerError, available_memory, default_threads, host_name, serve_link};
use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// So many failed connections are told of at once, and then one in each `STRANGERS_EVERY`, so that a flood of
/// them fills no disk with lines.
const STRANGERS_AT_ONCE: u32 = 100;
/// See `STRANGERS_AT_ONCE`.
const STRANGERS_EVERY: Duration = Duration::from_secs(1);

/// Runs until a signal comes, or with `--join` until the session is over.
pub(crate) fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let config = Config {
        threads: args.threads.map_or_else(default_threads, usize::from),
        memory_bytes: args.memory.unwrap_or_else(available_memory),
        kernel: args.kernel,
        pin_from: (!args.no_pin).then_some(args.pin_from),
        gives_way: true,
        name: host_name(),
    };
    // Who was started by a primary tells that one.
    let is_own = args.join.is_none() && !args.inherited && args.memory.is_some();
    if let Some(why) = config.is_of_no_use().filter(|_| is_own) {
        return Err(Failure::usage(why));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::failed(format!("cannot start: {e}")))?;
    let local = tokio::task::LocalSet::new();
    let result = local.block_on(&runtime, serve(args, config));
    // Compute threads may be inside a kernel; the process does not wait for them.
    runtime.shutdown_background();
    result
}

/// How this worker meets primaries: with the one-time key of the process that started it, if one did.
fn security(args: &WorkerArgs) -> Result<Security, Failure> {
    match std::env::var(crate::local::KEY_VARIABLE) {
        Ok(text) => {
            let key = ClusterKey::parse(&text);
            let key = key.map_err(|e| Failure::failed(format!("{}: {e}", crate::local::KEY_VARIABLE)))?;
            Ok(trust::between_processes(key))
        }
        Err(_) => trust::security(&args.trust),
    }
}

async fn serve(args: &WorkerArgs, config: Config) -> Result<Exit, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut signals = Signals::new().map_err(broken)?;
    let quiet = args.quiet;
    let is_once = args.join.is_some() || args.inherited;
    // Whoever was started with its link has no use for a key.
    let security = if args.inherited { None } else { Some(security(args)?) };
    let is_too_far = |security: &Security| args.join.is_none() && !security.reaches(args.listen.ip());
    if args.trust.insecure && security.as_ref().is_some_and(is_too_far) {
        return Err(Failure::usage(format!(
            "--listen {}: with --insecure anyone on the network could use this machine: add --i-trust-this-network if \
             that may be, or listen on 127.0.0.1:{}",
            args.listen,
            args.listen.port()
        )));
    }
    let work = async {
        match (security, &args.join) {
            (None, _) => inherited(&config).await,
            (Some(security), Some(host)) => join(host, &security, &config, quiet).await,
            (Some(security), None) => {
                let (threads, memory) = (config.threads, config.memory_bytes >> 20);
                let trusted = trust::sentence(&security);
                let ready = move |address| {
                    // Scripts wait for this line.
                    let _ = crate::out(format!("listening on {address}\n").as_bytes());
                    if !quiet {
                        let threads = counted(threads as u64, "thread");
                        crate::say(&format!("{threads}, {memory} MiB; {trusted}; stop with Ctrl-C"));
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
            // The primary ended first: it has told its user why.
            Err(WorkerError::Link(_) | WorkerError::Primary(_)) if is_once => Ok(Exit::Failed),
            // The primary has read it and says it.
            Err(_) if is_once && quiet => Ok(Exit::Failed),
            Err(e) => Err(Failure::failed(e.to_string())),
        },
        exit = signals.next() => Ok(exit),
    }
}

/// Serves the process that started this one.
async fn inherited(config: &Config) -> Result<(), WorkerError> {
    let endpoint = Endpoint::inherited().map_err(|e| WorkerError::Here(format!("--inherited: {e}")))?;
    serve_link(endpoint.open("primary")?, None, config, &Ledger::new()).await
}

/// Dials the first address of a host that answers.
async fn join(host: &str, security: &Security, config: &Config, quiet: bool) -> Result<(), WorkerError> {
    let unknown =
        |e| WorkerError::Here(format!("--join {host}: no such machine, or no port (HOST:PORT): {e}"));
    let addresses = tokio::net::lookup_host(host).await.map_err(unknown)?;
    let mut last = WorkerError::Here(format!("--join {host}: no address"));
    for address in addresses {
        let connected = || {
            if !quiet {
                crate::say(&format!(
                    "connected to {address}; a primary (multiply --await N) begins when N have come, a worker never"
                ));
            }
        };
        match bramble_worker::join(address, security, config, connected).await {
            Err(WorkerError::Link(LinkError::Broken(e))) if e.kind() == ErrorKind::ConnectionRefused => {
                last = WorkerError::Here(format!(
                    "--join {address}: nobody waits there: begin the product first (bramble multiply … --await N)"
                ));
            }
            Err(WorkerError::Link(
                e @ (LinkError::Broken(_) | LinkError::Untrusted(_) | LinkError::Shut),
            )) => {
                last = WorkerError::Here(format!("--join {address}: {e}"));
            }
            other => return other,
        }
    }
    Err(last)
}

/// Tells how sessions ended.
struct Log {
    quiet: bool,
    /// When there was, or will be, room for all of `STRANGERS_AT_ONCE` again.
    calm: Cell<Instant>,
    untold: Cell<u64>,
}

impl Log {
    fn new(quiet: bool) -> Self {
        Self { quiet, calm: Cell::new(Instant::now()), untold: Cell::new(0) }
    }

    fn ended(&self, peer: SocketAddr, result: Result<(), WorkerError>) {
        match result {
            Ok(()) if self.quiet => {}
            Ok(()) => crate::say(&format!("served {peer}")),
            Err(WorkerError::Link(e)) => self.limited(&format!("connection of {peer}: {e}")),
            Err(e @ WorkerError::Protocol(_)) => self.limited(&format!("session of {peer}: {e}")),
            Err(e) => crate::say(&format!("bramble: session of {peer}: {e}")),
        }
    }

    /// Anybody can make a connection that fails, as often as he likes.
    fn limited(&self, what: &str) {
        let now = Instant::now();
        let calm = self.calm.get().max(now) + STRANGERS_EVERY;
        if calm > now + STRANGERS_EVERY * STRANGERS_AT_ONCE {
            return self.untold.set(self.untold.get() + 1);
        }
        self.calm.set(calm);
        let others = match self.untold.take() {
            0 => String::new(),
            untold => format!(" (and {untold} others before)"),
        };
        crate::say(&format!("bramble: {what}{others}"));
    }
}
