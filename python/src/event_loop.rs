//! The thread of an open cluster: it keeps connections alive and carries out calls, one after another, whatever Python does.
//!
//! Place in the flow: `cluster.rs` passes calls in, and waits for their results with the interpreter released.
//!
//! Invariants: machines are answered while Python computes. Only the end of a call waits for the interpreter, to release arrays
//! that were operands. A caller that is interrupted gets its exception at
//! once; the call then ends by itself, a product as soon as it can be stopped, any call when the cluster is closed. What it
//! returns is dropped, which frees an array.

use crate::arguments::ClusterArgs;
use crate::failure::{ended, exception, failed};
use crate::long_call::LongCall;
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
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

/// How often a waiting caller looks for signals.
const LOOK: Duration = Duration::from_millis(50);

/// The future of a call.
pub(crate) type CallFuture<'c> = Pin<Box<dyn Future<Output = ()> + 'c>>;
/// A call.
type Call = Box<dyn for<'c> FnOnce(&'c mut Client) -> CallFuture<'c> + Send>;

/// The thread, and the way to it.
pub(crate) struct EventLoop {
    /// `None` after the cluster was closed.
    calls: Mutex<Option<mpsc::UnboundedSender<Call>>>,
    /// Arrays without a reference in Python. They are freed before the next call, which may need their memory.
    unused: mpsc::UnboundedSender<ArrayId>,
    /// Whether the cluster is closed; without a sender it is, too.
    closing: watch::Sender<bool>,
    /// The thread, and a channel that breaks when it ends.
    thread: Mutex<Option<(JoinHandle<()>, Receiver<()>)>>,
    process: u32,
    /// Shows calls that take long.
    show: Option<Py<PyAny>>,
}

impl EventLoop {
    /// Starts the thread and opens the cluster. `show` is called with the progress of calls that take long.
    pub(crate) fn open(
        py: Python<'_>,
        words: Vec<String>,
        key: Option<String>,
        show: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (calls, incoming) = mpsc::unbounded_channel();
        let (ready, mut is_open) = sync_channel(1);
        let (alive, over) = sync_channel(0);
        let (unused, to_free) = mpsc::unbounded_channel();
        let (closing, is_closing) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("bramble cluster".to_owned())
            .spawn(move || {
                let _alive = alive;
                serve((&words, key), &ready, (incoming, to_free), is_closing);
            })
            .map_err(|e| exception(py, "BrambleError", &format!("no thread can be started: {e}")))?;
        let this = Self {
            calls: Mutex::new(Some(calls)),
            unused,
            closing,
            thread: Mutex::new(Some((thread, over))),
            process: std::process::id(),
            show,
        };
        let waited = wait_for(py, &mut is_open);
        if waited.is_err() {
            // So that an address that it listens on is free again.
            this.close(py)?;
        }
        match waited? {
            Some(Ok(())) => Ok(this),
            Some(Err(failure)) => Err(ended(py, &failure)),
            None => Err(broken(py)),
        }
    }

    /// Carries out a call, and waits for its result. The call gets a `Stop` that is asked if the caller is interrupted.
    pub(crate) fn call<R, F>(&self, py: Python<'_>, work: F) -> PyResult<R>
    where
        R: Send + 'static,
        F: for<'c> FnOnce(
                &'c mut Client,
                Rc<Stop>,
            ) -> Pin<Box<dyn Future<Output = Result<R, ClientError>> + 'c>>
            + Send
            + 'static,
    {
        let (to, mut result) = sync_channel(1);
        let (interrupt, mut interrupted) = oneshot::channel::<()>();
        let is_closing = self.closing.subscribe();
        let mut shown = LongCall::new(self.show.as_ref());
        let board = shown.board();
        let call: Call = Box::new(move |client| {
            Box::pin(async move {
                if interrupted.try_recv().is_ok() {
                    return;
                }
                let stop = Rc::new(Stop::default());
                client.show_on(board);
                tokio::select! {
                    done = work(client, stop.clone()) => {
                        // Nobody waits after an interrupt.
                        let _ = to.send(done);
                    }
                    () = abandoned(interrupted, &stop, is_closing) => {}
                }
            })
        });
        self.send(py, call)?;
        let waited = wait_and_look(py, &mut result, &mut |py| shown.look(py));
        let waited = shown.end(py).and(waited);
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
        if self.is_elsewhere() {
            return;
        }
        // Without the thread nothing is placed any more.
        let _ = self.unused.send(array);
    }

    /// Says goodbye to all machines, and waits for the end of the thread. Later calls are refused. An interrupt ends the wait.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        // A fork has neither the thread nor the connections.
        if self.is_elsewhere() {
            return Ok(());
        }
        drop(self.calls.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.closing.send_replace(true);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((thread, mut over)) = thread {
            wait_for(py, &mut over)?;
            // A panic of the thread was printed, and there is nothing left to end.
            py.detach(|| drop(thread.join()));
        }
        Ok(())
    }

    /// Whether calls are refused.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_elsewhere() || self.calls.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Raises what a call would: the cluster was closed, or belongs to another process.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.calls(py).map(drop)
    }

    fn send(&self, py: Python<'_>, call: Call) -> PyResult<()> {
        self.calls(py)?.send(call).map_err(|_| broken(py))
    }

    fn calls(&self, py: Python<'_>) -> PyResult<mpsc::UnboundedSender<Call>> {
        if self.is_elsewhere() {
            let text = "this process is a fork of the one that opened the cluster, whose connections it must not use; open a \
                        cluster after the fork, or start processes with the method spawn";
            return Err(exception(py, "ForkedProcess", text));
        }
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        calls.ok_or_else(|| exception(py, "ClusterClosed", "the cluster is closed; open another one"))
    }

    /// Whether this is a fork of the process of the thread. Its copies of the locks may be held for ever.
    fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }
}

/// Asks a call to stop when its caller is interrupted, and ends when the cluster is closed after that.
async fn abandoned(interrupted: oneshot::Receiver<()>, stop: &Stop, mut closing: watch::Receiver<bool>) {
    if interrupted.await.is_err() {
        return std::future::pending().await;
    }
    stop.ask();
    closed(&mut closing).await;
}

/// Waits until the cluster is closed, or its last reference is gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error means the latter.
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

/// Waits with the interpreter released; an interrupt is an error, `None` a thread that broke off.
pub(crate) fn wait_for<R: Send>(py: Python<'_>, result: &mut Receiver<R>) -> PyResult<Option<R>> {
    wait_and_look(py, result, &mut |_| Ok(()))
}

/// The same; `look` is called again and again.
fn wait_and_look<R: Send>(
    py: Python<'_>,
    result: &mut Receiver<R>,
    look: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<Option<R>> {
    loop {
        let waiting = &mut *result;
        match py.detach(move || waiting.recv_timeout(LOOK)) {
            Ok(value) => return Ok(Some(value)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                look(py)?;
            }
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
    (words, key): (&[String], Option<String>),
    ready: &SyncSender<Result<(), Failure>>,
    (mut calls, mut unused): (mpsc::UnboundedReceiver<Call>, mpsc::UnboundedReceiver<ArrayId>),
    mut closing: watch::Receiver<bool>,
) {
    let work = async {
        let args = ClusterArgs::of(words, key.as_deref())?;
        let mut client = tokio::select! {
            opened = Client::open(TeamSpec::of(&args.team)?, &args.team, args.options()) => opened?,
            // The caller was interrupted.
            () = closed(&mut closing) => return Ok(()),
        };
        // As above: then no call comes, and the cluster closes.
        let _ = ready.send(Ok(()));
        loop {
            tokio::select! {
                biased;
                Some(array) = unused.recv() => {
                    // A machine that cannot be reached has lost its part anyway.
                    let _ = client.free(array).await;
                }
                call = calls.recv() => match call {
                    Some(call) => call(&mut client).await,
                    None => break,
                },
                () = client.attend() => {}
            }
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
