//! Machines of an open cluster on one event loop: this process's threads, and workers over loopback. And products for them.

#![allow(dead_code, reason = "each test file uses a part")]

use bramble_cluster::random::random;
use bramble_link::{Link, LocalKind, local_pair, tcp_connect, tcp_link, thread_pair};
use bramble_matrix::{Buffer, DType, Generator, Layout, Matrix, Output, Rect, Shape, Span};
use bramble_plan::{Decision, PlanOptions, Preference, TileSize};
use bramble_primary::{
    CheckRequest, Finished, MachineLink, MachineLinks, PrimaryError, ProductObserver, ProductProgress,
    RelayReport, Request, Resumed, SessionRequest, Stop, TaskProgress, Unreachable,
};
use bramble_worker::{Config, SessionLedger, serve_link};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, LocalSet};

/// Runs a test on one event loop.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(120), test).await.expect("the test takes too long");
    });
    runtime.shutdown_background();
}

pub(crate) fn config(name: &str, memory_mib: u64) -> Config {
    let name = name.to_owned();
    Config {
        threads: 1,
        memory_bytes: memory_mib << 20,
        kernel: None,
        pin_from: None,
        gives_way: false,
        name,
    }
}

/// The primary's end of a link, and the task that serves the other end.
pub(crate) fn serve(here: Link, there: Link, memory_mib: u64) -> (MachineLink, AbortHandle) {
    let task = tokio::task::spawn_local(async move {
        let _ = serve_link(there, None, &config("worker", memory_mib), &SessionLedger::new()).await;
    });
    (MachineLink { link: here, threads_max: 0, was_dialled: false }, task.abort_handle())
}

/// A worker over TCP, with that name. Aborting its task kills it.
pub(crate) async fn worker(name: &str) -> (MachineLink, AbortHandle) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    let here = Link { peer: name.to_owned(), ..tcp_link(out.unwrap()).unwrap() };
    serve(here, tcp_link(accepted.unwrap().0).unwrap(), 512)
}

/// A worker over a link within this machine.
pub(crate) fn local_worker(kind: LocalKind, name: &str) -> (MachineLink, AbortHandle) {
    let (here, there) = local_pair(kind).unwrap();
    serve(here.open(name).unwrap(), there.open("primary").unwrap(), 512)
}

/// This process's own threads, and these workers.
pub(crate) fn machines(workers: Vec<MachineLink>) -> MachineLinks {
    let (here, there) = thread_pair("primary", "this machine");
    let (local, _) = serve(here, there, 512);
    MachineLinks { local, workers, alike: false, missing: Vec::new(), later: None }
}

/// A product of this shape, on the workers.
pub(crate) fn request(shape: [u64; 3], dtype: DType, kernel: &str, seed: u64) -> Request {
    let [m, k, n] = shape;
    Request {
        a: operand(Shape::new(m, k), dtype, seed).into(),
        b: operand(Shape::new(k, n), dtype, seed + 1).into(),
        old_c: None,
        alpha: 1.0,
        beta: 0.0,
        output: Output::anonymous(Shape::new(m, n), dtype).unwrap(),
        cut: TileSize { tile: Some(64), depth: Some(64) },
        kernel: kernel.to_owned(),
        wish: PlanOptions { who: Preference::Workers, reproducible: true, ..PlanOptions::AUTO },
        instead: None,
        sessions: sessions(),
        check: CheckRequest { effort: Default::default(), threads: 1, seed: 3 },
        began: Instant::now(),
        log: None,
        journal: None,
        stop: Rc::new(Stop::default()),
    }
}

/// Sessions of a call.
pub(crate) fn sessions() -> SessionRequest {
    let name = "test".to_owned();
    SessionRequest { seed: 77, random, name, credits: None, steals: true, account: false, degraded: false }
}

/// An operand in memory, so that its elements travel.
pub(crate) fn operand(shape: Shape, dtype: DType, seed: u64) -> Matrix {
    let bytes = usize::try_from(shape.bytes(dtype).unwrap()).unwrap();
    let mut buffer = Buffer::zeroed(bytes).unwrap();
    let whole = Rect::new(Span::new(0, shape.rows), Span::new(0, shape.cols));
    Generator::random(seed).fill(whole, dtype, Layout::RowMajor, buffer.bytes_mut());
    Matrix::from_shared("operand", Arc::new(buffer), 0, shape, dtype, Layout::RowMajor).unwrap()
}

/// The bytes of a C that has passed its check.
pub(crate) fn elements(finished: &Finished) -> Vec<u8> {
    assert!(finished.report.check.verify.verdict.passed);
    finished.sealed.bytes().to_vec()
}

/// Names of the machines that computed, sorted: their order in the plan depends on measured speeds.
pub(crate) fn at_work(finished: &Finished) -> Vec<String> {
    let machines = finished.report.machines.iter().filter(|machine| machine.share > 0.0);
    let mut names: Vec<String> = machines.map(|machine| machine.name.clone()).collect();
    names.sort();
    names
}

/// An action for one event of a product.
pub(crate) type Hook = RefCell<Option<Box<dyn FnOnce()>>>;

/// Remembers lost, joined and missing machines.
#[derive(Default)]
pub(crate) struct Watch {
    pub(crate) lost: RefCell<Vec<(String, String)>>,
    pub(crate) joined: RefCell<Vec<String>>,
    pub(crate) missing: RefCell<Vec<String>>,
    /// Called when the plan has been chosen.
    pub(crate) when_decided: Hook,
}

impl Watch {
    /// Calls `hook` when the next plan has been chosen.
    pub(crate) fn when_decided(&self, hook: impl FnOnce() + 'static) {
        *self.when_decided.borrow_mut() = Some(Box::new(hook));
    }
}

impl ProductObserver for Watch {
    fn decided(&self, _decision: &Decision) {
        let hook = self.when_decided.borrow_mut().take();
        hook.into_iter().for_each(|hook| hook());
    }
    fn introduced(&self, _relay: &RelayReport) {}
    fn tasks(&self, _progress: TaskProgress) {}
    fn parted(&self, _pair: &Unreachable) {}
    fn missing(&self, why: &str) {
        self.missing.borrow_mut().push(why.to_owned());
    }
    fn resumed(&self, _resumed: &Resumed) {}
    fn lost(&self, name: &str, why: &str, _helps: bool) {
        self.lost.borrow_mut().push((name.to_owned(), why.to_owned()));
    }
    fn wrong(&self, _makers: &[String], _tiles: usize, text: &str) {
        panic!("{text}");
    }
    fn joined(&self, name: &str) {
        self.joined.borrow_mut().push(name.to_owned());
    }
    fn turned_away(&self, why: &PrimaryError) {
        panic!("{why}");
    }
    fn progress(&self, _progress: &ProductProgress) {}
    fn verifying(&self) {}
}
