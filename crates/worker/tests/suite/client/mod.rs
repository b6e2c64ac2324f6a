//! A primary whose messages a test chooses, and small matrices for it.

#![allow(dead_code, reason = "each test file uses a part")]

use bramble_link::{
    Arrived, ArrivedBody, Body, BodyPlacer, Frame, FrameLimits, Landing, Link, SharedRegion, tcp_connect,
    tcp_link,
};
use bramble_matrix::{DType, Layout};
use bramble_wire::message::{
    Hello, Job, Kind, MatrixHeader, MatrixSource, Operation, StoreHead, Then, Wants, Welcome, decode_error,
    decode_number,
};
use bramble_worker::{Config, SessionLedger, WorkerError, serve_link};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, LocalSet};

/// The number of a product, if a test chooses no other.
pub(crate) const NUMBER: u32 = 0x1234_5677;

pub(crate) fn config(memory_mib: u64) -> Config {
    let name = "worker".to_owned();
    Config { threads: 2, memory_bytes: memory_mib << 20, kernel: None, pin_from: None, gives_way: true, name }
}

pub(crate) fn hello(name: &str, memory_bytes: u64) -> Hello {
    Hello {
        session: NUMBER,
        dtype: DType::F64,
        alpha: 1.0,
        beta: 0.0,
        flops: 16.0,
        threads_max: 0,
        memory_bytes,
        wants: Wants::default(),
        kernel: "simd".to_owned(),
        version: "test".to_owned(),
        name: name.to_owned(),
    }
}

/// A primary whose messages the test chooses.
pub(crate) struct Client {
    pub(crate) link: Link,
    pub(crate) session: JoinHandle<Result<(), WorkerError>>,
}

/// Lands bodies in memory of their own.
pub(crate) struct Anywhere;

impl BodyPlacer for Anywhere {
    fn place(&mut self, _kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Ok(Box::new(vec![0u8; body_bytes]))
    }
}

impl Client {
    /// Connects to a worker with that ledger.
    pub(crate) async fn connect(config: &Config, ledger: &SessionLedger) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (config, ledger) = (config.clone(), ledger.clone());
        let session = tokio::task::spawn_local(async move {
            let (stream, _) = listener.accept().await.unwrap();
            serve_link(tcp_link(stream).unwrap(), None, &config, &ledger).await
        });
        let stream = tcp_connect(address, Duration::from_secs(5)).await.unwrap();
        Self { link: tcp_link(stream).unwrap(), session }
    }

    pub(crate) async fn send(&mut self, kind: Kind, head: Vec<u8>, body: Body) {
        self.link.sender.send(Frame::new(kind.code(), head, body)).await.unwrap();
    }

    pub(crate) async fn receive(&mut self) -> (Kind, Arrived) {
        let arrived = self.link.receiver.receive(&mut Anywhere).await.unwrap();
        (Kind::from_code(arrived.kind).unwrap(), arrived)
    }

    /// Opens a session; the error is the worker's message.
    pub(crate) async fn greet(&mut self, hello: &Hello) -> Result<Welcome, String> {
        self.send(Kind::Hello, hello.encode(), Body::Empty).await;
        let (kind, arrived) = self.receive().await;
        if kind == Kind::Error {
            return Err(decode_error(&arrived.head).unwrap());
        }
        self.link.sender.set_session(hello.session);
        self.link.receiver.set_session(hello.session);
        self.link.receiver.set_limits(FrameLimits::SESSION);
        Ok(Welcome::decode(&arrived.head).unwrap())
    }

    pub(crate) async fn store(&mut self, matrices: Vec<MatrixHeader>, jobs: Vec<Job>, body: Vec<u8>) {
        let body =
            if body.is_empty() { Body::Empty } else { Body::Shared(SharedRegion::whole(Arc::new(body))) };
        self.send(Kind::Store, StoreHead { matrices, jobs }.encode(), body).await;
    }

    /// The elements of the next result, and the credit received before and after it.
    pub(crate) async fn result(&mut self) -> (Vec<f64>, u64) {
        let (mut elements, mut credit) = (Vec::new(), 0);
        while elements.is_empty() || credit < 2 * (512 + 32) + 512 {
            let (kind, arrived) = self.receive().await;
            match (kind, arrived.body) {
                (Kind::Credit, _) => credit += decode_number(&arrived.head).unwrap(),
                (Kind::Result, ArrivedBody::Landed(landing)) => {
                    let bytes = landing.into_any().downcast::<Vec<u8>>().unwrap();
                    elements = bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
                }
                (kind, _) => panic!("a message of kind {kind:?}"),
            }
        }
        (elements, credit)
    }

    /// The error that ends the session.
    pub(crate) async fn error(&mut self) -> String {
        let (kind, arrived) = self.receive().await;
        assert_eq!(kind, Kind::Error);
        decode_error(&arrived.head).unwrap()
    }
}

pub(crate) fn matrix(id: u32, uses: u16, source: MatrixSource) -> MatrixHeader {
    MatrixHeader {
        id,
        rows: 2,
        cols: 2,
        first_line: 0,
        lines: 2,
        uses,
        dtype: DType::F64,
        layout: Layout::RowMajor,
        source,
    }
}

pub(crate) const JOB: Job =
    Job { operation: Operation::Multiply, a: 1, b: 2, c: 3, step: 0, epoch: 0, then: Then::Return };

/// A multiple of the identity.
pub(crate) fn times(x: f64) -> Vec<u8> {
    [x, 0.0, 0.0, x].into_iter().flat_map(f64::to_le_bytes).collect()
}

/// Runs a test on one event loop, as a worker does.
pub(crate) fn run(test: impl Future<Output = ()>) {
    run_within(Duration::from_secs(30), test);
}

/// The same for a test that may take that long.
pub(crate) fn run_within(patience: Duration, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(patience, test).await.expect("the test takes too long");
    });
    runtime.shutdown_background();
}
