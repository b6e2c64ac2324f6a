//! `bramble worker`.

use crate::args::WorkerArgs;
use crate::exit::{Exit, Failure};
use bramble_worker::{Config, WorkerError, available_memory, default_threads, host_name};
use tokio::signal::unix::{SignalKind, signal};

/// Runs until a signal comes, or with `--join` until the session is over.
pub(crate) fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let config = Config {
        threads: args.threads.map_or_else(default_threads, usize::from),
        memory_bytes: args.memory.unwrap_or_else(available_memory),
        kernel: args.kernel,
        pin_from: (!args.no_pin).then_some(args.pin_from),
        name: host_name(),
    };
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

/// What the primary that started this process knows it by; nothing where somebody else did.
fn join_token() -> Vec<u8> {
    std::env::var(crate::local::TOKEN_VARIABLE).unwrap_or_default().into_bytes()
}

async fn serve(args: &WorkerArgs, config: Config) -> Result<Exit, Failure> {
    let broken = |e: std::io::Error| Failure::failed(format!("cannot wait for signals: {e}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    let quiet = args.quiet;
    let work = async {
        match args.join {
            Some(address) => bramble_worker::join(address, &join_token(), &config).await,
            None => {
                let (threads, memory) = (config.threads, config.memory_bytes >> 20);
                let ready = move |address| {
                    // Scripts wait for this line.
                    let _ = crate::out(format!("listening on {address}\n").as_bytes());
                    if !quiet {
                        crate::say(&format!("{threads} threads, {memory} MiB; stop with Ctrl-C"));
                    }
                };
                let ended = move |peer, result: Result<(), WorkerError>| match result {
                    Ok(()) if quiet => {}
                    Ok(()) => crate::say(&format!("served {peer}")),
                    Err(e) => crate::say(&format!("bramble: session of {peer}: {e}")),
                };
                bramble_worker::listen(args.listen, config, ready, ended).await
            }
        }
    };
    tokio::select! {
        result = work => match result {
            Ok(()) => Ok(Exit::Done),
            // The primary ended first: it has told its user why.
            Err(WorkerError::Link(_) | WorkerError::Primary(_)) if args.join.is_some() => Ok(Exit::Failed),
            // The primary has read it and says it.
            Err(_) if args.join.is_some() && quiet => Ok(Exit::Failed),
            Err(e) => Err(Failure::failed(e.to_string())),
        },
        _ = interrupt.recv() => Ok(Exit::Interrupted),
        _ = terminate.recv() => Ok(Exit::Terminated),
    }
}
