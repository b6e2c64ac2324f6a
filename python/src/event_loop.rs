//! The thread of an open cluster: it keeps connections alive and carries out calls, one after another, whatever Python does.
//!
//! Place in the flow: `cluster.rs` passes calls in, and waits for their results with the interpreter released.
//!
//! Invariants: the thread never needs the interpreter to answer a machine. A caller that is interrupted gets its exception at
//! once; the call then ends by itself, a product as soon as it can be stopped, and an array that nobody waits for is freed.

use crate::arguments::ClusterArgs;
use crate::failure::{ended, exception, failed};
use bramble_client::{Client, ClientError, Stop};
use bramble_cluster::team::TeamSpec;
use bramble_cluster::until::runtime;
use bramble_primary::ArrayId;
use bramble_report::exit::Failure;
use pyo3::prelude::*;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// How often a waiting caller looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// The future of a call.
pub(crate) type CallFuture<'c> = Pin<Box<dyn Future<Output = ()> + 'c>>;
/// A call.
type Call = Box<dyn for<'c> FnOnce(&'c mut Client) -> CallFuture<'c> + Send>;

/// What a call returns.
pub(crate) trait CallResult: Send + 'static {
    /// The array that has to be freed if nobody takes the result.
    fn array(&self) -> Option<ArrayId> {
        None
    }
}

impl CallResult for () {}

/// The thread, and the way to it.
pub(crate) struct EventLoop {
    calls: Mutex<Option<mpsc::UnboundedSender<Call>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    process: u32,
}

impl EventLoop {
    /// Starts the thread and opens the cluster.
    pub(crate) fn open(py: Python<'_>, words: Vec<String>) -> PyResult<Self> {
        let (calls, incoming) = mpsc::unbounded_channel();
        let (ready, mut is_open) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("bramble cluster".to_owned())
            .spawn(move || serve(&words, &ready, incoming))
            .map_err(|e| exception(py, "BrambleError", &format!("no thread can be started: {e}")))?;
        let this = Self {
            calls: Mutex::new(Some(calls)),
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        };
        match wait_for(py, &mut is_open)? {
            Some(Ok(())) => Ok(this),
            Some(Err(failure)) => Err(ended(py, &failure)),
            None => Err(broken(py)),
        }
    }

    /// Carries out a call, and waits for its result. The call gets a `Stop` that is asked if the caller is interrupted.
    pub(crate) fn call<R, F>(&self, py: Python<'_>, work: F) -> PyResult<R>
    where
        R: CallResult,
        F: for<'c> FnOnce(
                &'c mut Client,
                Rc<Stop>,
            ) -> Pin<Box<dyn Future<Output = Result<R, ClientError>> + 'c>>
            + Send
            + 'static,
    {
        let (to, mut result) = sync_channel(1);
        let (interrupt, interrupted) = oneshot::channel::<()>();
        let call: Call = Box::new(move |client| {
            Box::pin(async move {
                let stop = Rc::new(Stop::default());
                let watch = tokio::task::spawn_local(ask_when(interrupted, stop.clone()));
                let done = work(client, stop).await;
                watch.abort();
                give(client, to, done).await;
            })
        });
        self.send(py, call)?;
        let waited = wait_for(py, &mut result);
        if waited.is_err() {
            // The loop may be done with the call already.
            let _ = interrupt.send(());
        }
        match waited? {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => Err(failed(py, error)),
            None => Err(broken(py)),
        }
    }

    /// Has an array freed, without waiting. Nothing happens after the cluster was closed, or in another process.
    pub(crate) fn free_later(&self, array: ArrayId) {
        if self.process != std::process::id() {
            return;
        }
        let call: Call = Box::new(move |client| {
            Box::pin(async move {
                // A machine that cannot be reached has lost its part anyway.
                let _ = client.free(array).await;
            })
        });
        if let Some(calls) = &*self.calls.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = calls.send(call);
        }
    }

    /// Says goodbye to all machines, and waits for the end of the thread. Later calls are refused.
    pub(crate) fn close(&self, py: Python<'_>) {
        drop(self.calls.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| self.process == std::process::id()) {
            // A panic of the thread was printed, and there is nothing left to end.
            py.detach(|| drop(thread.join()));
        }
    }

    /// Whether calls are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    fn send(&self, py: Python<'_>, call: Call) -> PyResult<()> {
        if self.process != std::process::id() {
            let text = "this process is a fork of the one that opened the cluster, whose connections it must not use; open a \
                        cluster after the fork, or start processes with the method spawn";
            return Err(exception(py, "ForkedProcess", text));
        }
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        match &*calls {
            Some(calls) => calls.send(call).map_err(|_| broken(py)),
            None => Err(exception(py, "ClusterClosed", "the cluster is closed; open another one")),
        }
    }
}

/// Passes a result on; if nobody waits for it any more, its array is freed.
async fn give<R: CallResult>(
    client: &mut Client,
    to: SyncSender<Result<R, ClientError>>,
    done: Result<R, ClientError>,
) {
    if let Err(unwanted) = to.send(done)
        && let Ok(value) = unwanted.0
        && let Some(array) = value.array()
    {
        // As in `free_later`.
        let _ = client.free(array).await;
    }
}

async fn ask_when(interrupted: oneshot::Receiver<()>, stop: Rc<Stop>) {
    if interrupted.await.is_ok() {
        stop.ask();
    }
}

/// Waits with the interpreter released; an interrupt is an error, `None` a thread that broke off.
pub(crate) fn wait_for<R: Send>(py: Python<'_>, result: &mut Receiver<R>) -> PyResult<Option<R>> {
    loop {
        let waiting = &mut *result;
        match py.detach(move || waiting.recv_timeout(LOOK)) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
        }
    }
}

fn broken(py: Python<'_>) -> PyErr {
    exception(
        py,
        "ClusterClosed",
        "the thread of the cluster broke off; this is a bug of bramble, please report it",
    )
}

/// The thread.
fn serve(
    words: &[String],
    ready: &SyncSender<Result<(), Failure>>,
    mut calls: mpsc::UnboundedReceiver<Call>,
) {
    let work = async {
        let args = ClusterArgs::of(words)?;
        let mut client = Client::open(TeamSpec::of(&args.team)?, &args.team, args.options()).await?;
        // The caller may have been interrupted: then no call comes, and the cluster closes.
        let _ = ready.send(Ok(()));
        while let Some(call) = calls.recv().await {
            call(&mut client).await;
        }
        client.close().await;
        Ok(())
    };
    let ended = runtime().and_then(|runtime| {
        let ended = LocalSet::new().block_on(&runtime, work);
        runtime.shutdown_background();
        ended
    });
    if let Err(failure) = ended {
        // Nobody waits if the caller was interrupted.
        let _ = ready.send(Err(failure));
    }
}
