//! Workers that relay matrices to each other, over real links: between two workers, and between one and a neighbour that
//! the test plays.

use bramble_link::{
    Arrived, ArrivedBody, Body, BodyPlacer, ClusterKey, Frame, FrameLimits, Landing, Link, NoBodies, Reach,
    Security, SharedRegion, tcp_connect,
};
use bramble_matrix::{DType, Layout};
use bramble_wire::limits::{NEIGHBOUR_SILENCE_MAX, PROTOCOL, lines_per_frame};
use bramble_wire::message::{
    Forward, Hello, Job, Join, Kind, MatrixHeader, MatrixSource, Missing, Neighbour, Operation, PieceHead,
    Reached, StoreHead, Then, Wants, Welcome, decode_error, decode_number, encode_forwards,
};
use bramble_worker::Config;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

const KEY: [u8; 20] = [6; 20];
const TICKET: [u8; 16] = [3; 16];
/// A matrix of two frames: 600 lines of 2048 bytes.
const ROWS: u32 = 600;
const COLS: u32 = 256;
const LINE_BYTES: usize = 2048;
/// Its id at the sending worker, and at the receiving one.
const HERE: u32 = 1;
const THERE: u32 = 7;

fn open() -> Security {
    Security::open(Reach::Loopback, PROTOCOL, "test")
}

fn proven() -> Security {
    Security::proven(ClusterKey::from_bytes([1; 20]), PROTOCOL, "test")
}

/// Runs a test on one event loop, as a worker does.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), test).await.expect("the test takes too long");
    });
    runtime.shutdown_background();
}

/// Starts a worker that listens.
async fn worker(security: Security) -> SocketAddr {
    let name = "worker".to_owned();
    let config =
        Config { threads: 1, memory_bytes: 256 << 20, kernel: None, pin_from: None, gives_way: true, name };
    let (tell, address) = oneshot::channel();
    tokio::task::spawn_local(async move {
        let ready = move |address| tell.send(address).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        bramble_worker::listen(any, security, config, ready, |_, _| ()).await.unwrap();
    });
    address.await.unwrap()
}

/// A session with a worker; the test chooses the primary's messages.
struct Session {
    link: Link,
    address: SocketAddr,
}

/// Lands bodies in memory of their own.
struct Anywhere;

impl BodyPlacer for Anywhere {
    fn place(&mut self, _kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Ok(Box::new(vec![0u8; body_bytes]))
    }
}

impl Session {
    /// Opens a session with a worker that is started for it.
    async fn start(security: Security) -> Self {
        let address = worker(security.clone()).await;
        let mut link = security.reach(address, Duration::from_secs(5)).await.unwrap();
        let hello = Hello {
            session: 9,
            dtype: DType::F64,
            alpha: 1.0,
            beta: 0.0,
            flops: 16.0,
            threads_max: 0,
            memory_bytes: 64 << 20,
            wants: Wants::default(),
            kernel: "simd".to_owned(),
            version: "test".to_owned(),
            name: "test".to_owned(),
        };
        link.sender.send(Frame::new(Kind::Hello.code(), hello.encode(), Body::Empty)).await.unwrap();
        let arrived = link.receiver.receive(&mut NoBodies).await.unwrap();
        let welcome = Welcome::decode(&arrived.head).unwrap();
        assert_eq!(welcome.port, address.port());
        link.sender.set_session(9);
        link.receiver.set_session(9);
        link.receiver.set_limits(FrameLimits::SESSION);
        Self { link, address }
    }

    async fn send(&mut self, kind: Kind, head: Vec<u8>, body: Body) {
        self.link.sender.send(Frame::new(kind.code(), head, body)).await.unwrap();
    }

    async fn introduce(&mut self, peer: u32, dials: Option<SocketAddr>) {
        let address = dials.map(|a| a.to_string()).unwrap_or_default();
        let neighbour =
            Neighbour { peer, me: 1 - peer, dials: dials.is_some(), key: KEY, ticket: TICKET, address };
        self.send(Kind::Neighbour, neighbour.encode(), Body::Empty).await;
    }

    async fn store(&mut self, matrices: Vec<MatrixHeader>, jobs: Vec<Job>, body: &[u8]) {
        let body = match body.is_empty() {
            true => Body::Empty,
            false => Body::Shared(SharedRegion::whole(Arc::new(body.to_vec()))),
        };
        self.send(Kind::Store, StoreHead { matrices, jobs }.encode(), body).await;
    }

    /// Lines `first..` of the matrix that all tests are about, from the primary.
    async fn lines(&mut self, header: MatrixHeader, first: u32) {
        let bytes = elements();
        let mut first_line = first;
        while first_line < ROWS {
            let lines = lines_per_frame(LINE_BYTES).min(ROWS - first_line);
            let from = first_line as usize * LINE_BYTES;
            let header = MatrixHeader { first_line, lines, source: MatrixSource::Data, ..header };
            self.store(vec![header], vec![], &bytes[from..from + lines as usize * LINE_BYTES]).await;
            first_line += lines;
        }
    }

    async fn announce(&mut self) {
        self.store(vec![MatrixHeader { source: MatrixSource::Relayed, ..matrix(THERE, 1) }], vec![], &[])
            .await;
    }

    async fn order(&mut self, forward: Forward) {
        self.send(Kind::Relay, encode_forwards(&[forward]), Body::Empty).await;
    }

    async fn next(&mut self) -> (Kind, Arrived) {
        let arrived = self.link.receiver.receive(&mut Anywhere).await.unwrap();
        let kind = Kind::from_code(arrived.kind).unwrap();
        if kind == Kind::Error {
            panic!("it gives up: {}", decode_error(&arrived.head).unwrap());
        }
        (kind, arrived)
    }

    async fn reached(&mut self) -> Reached {
        let (kind, arrived) = self.next().await;
        assert_eq!(kind, Kind::Reached);
        Reached::decode(&arrived.head).unwrap()
    }

    async fn missing(&mut self) -> Missing {
        let (kind, arrived) = self.next().await;
        assert_eq!(kind, Kind::Missing);
        Missing::decode(&arrived.head).unwrap()
    }

    async fn credit(&mut self) -> u64 {
        let (kind, arrived) = self.next().await;
        assert_eq!(kind, Kind::Credit);
        decode_number(&arrived.head).unwrap()
    }

    /// Multiplies the received matrix by the identity; returns the elements of the product.
    async fn product(&mut self) -> Vec<u8> {
        let side = COLS as usize;
        let identity = (0..side * side).map(|at| if at % (side + 1) == 0 { 1.0 } else { 0.0 });
        let body: Vec<u8> = identity.flat_map(f64::to_le_bytes).collect();
        let one = MatrixHeader { rows: COLS, lines: COLS, ..matrix(8, 1) };
        let tile = MatrixHeader { uses: 0, source: MatrixSource::Vacant, ..matrix(9, 0) };
        let job = Job {
            operation: Operation::Multiply,
            a: THERE,
            b: 8,
            c: 9,
            step: 0,
            epoch: 0,
            then: Then::Return,
        };
        self.store(vec![one, tile], vec![job], &body).await;
        let mut got = Vec::new();
        while got.len() < ROWS as usize * LINE_BYTES {
            match self.next().await {
                (Kind::Result, Arrived { body: ArrivedBody::Landed(landing), .. }) => {
                    got.extend(*landing.into_any().downcast::<Vec<u8>>().unwrap());
                }
                (kind, _) => assert_eq!(kind, Kind::Credit),
            }
        }
        got
    }
}

fn matrix(id: u32, uses: u16) -> MatrixHeader {
    MatrixHeader {
        id,
        rows: ROWS,
        cols: COLS,
        first_line: 0,
        lines: ROWS,
        uses,
        dtype: DType::F64,
        layout: Layout::RowMajor,
        source: MatrixSource::Data,
    }
}

fn elements() -> Vec<u8> {
    let elements = (0..ROWS * COLS).map(|x| f64::from(x.wrapping_mul(2_654_435_761) % 1000) * 0.37 - 100.0);
    elements.flat_map(f64::to_le_bytes).collect()
}

fn yes(peer: u32) -> Reached {
    Reached { peer, is_there: true, why: String::new() }
}

/// Two workers with a link: number 0 and number 1.
async fn pair(security: impl Fn() -> Security) -> (Session, Session) {
    let (mut zero, mut one) = (Session::start(security()).await, Session::start(security()).await);
    one.introduce(0, None).await;
    // The listening worker gets its order before the other dials.
    one.send(Kind::Ping, 1u64.to_le_bytes().to_vec(), Body::Empty).await;
    assert_eq!(one.next().await.0, Kind::Pong);
    zero.introduce(1, Some(one.address)).await;
    assert_eq!((zero.reached().await, one.reached().await), (yes(1), yes(0)));
    (zero, one)
}

#[test]
fn a_relayed_matrix_has_the_same_bytes_and_its_memory_is_freed() {
    run(async {
        for security in [open, proven] {
            let (mut zero, mut one) = pair(security).await;
            one.announce().await;
            zero.lines(matrix(HERE, 1), 0).await;
            zero.order(Forward { id: HERE, to: 1, id_there: THERE }).await;
            assert_eq!(zero.credit().await, matrix(HERE, 1).charged_bytes());
            assert_eq!(one.product().await, elements());
            for (session, moved) in [(&mut zero, (0, 1)), (&mut one, (1, 0))] {
                session.send(Kind::Bye, bramble_wire::message::Bye::default().encode(), Body::Empty).await;
                let bye = loop {
                    let (kind, arrived) = session.next().await;
                    if kind == Kind::Bye {
                        break bramble_wire::message::Bye::decode(&arrived.head).unwrap();
                    }
                };
                let bytes = (elements().len() + 2 * (16 + 12)) as u64;
                assert_eq!((bye.relayed_bytes_in, bye.relayed_bytes_out), (moved.0 * bytes, moved.1 * bytes));
            }
        }
    });
}

#[test]
fn lines_that_are_faster_than_their_announcement_wait_in_the_link() {
    run(async {
        let (mut zero, mut one) = pair(open).await;
        zero.lines(matrix(HERE, 1), 0).await;
        zero.order(Forward { id: HERE, to: 1, id_there: THERE }).await;
        // The lines are under way, and number 1 answers other messages meanwhile.
        tokio::time::sleep(Duration::from_millis(200)).await;
        one.send(Kind::Ping, 2u64.to_le_bytes().to_vec(), Body::Empty).await;
        assert_eq!(one.next().await.0, Kind::Pong);
        one.announce().await;
        assert_eq!(one.product().await, elements());
        assert_eq!(zero.credit().await, matrix(HERE, 1).charged_bytes());
    });
}

/// Number 1 is a worker, number 0 is the test: its link with number 1.
async fn with_test() -> (Session, Link) {
    let mut one = Session::start(open()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    one.introduce(0, Some(listener.local_addr().unwrap())).await;
    let mut link = open().accept(listener.accept().await.unwrap().0).await.unwrap();
    let join = link.receiver.receive(&mut NoBodies).await.unwrap();
    assert_eq!((join.kind, Join::decode(&join.head).unwrap().ticket), (Kind::Join.code(), TICKET));
    let answer = Frame::new(Kind::Join.code(), Join { ticket: TICKET }.encode(), Body::Empty);
    link.sender.send(answer).await.unwrap();
    assert_eq!(one.reached().await, yes(0));
    (one, link)
}

fn piece(first_line: u32, lines: u32) -> Frame {
    let from = first_line as usize * LINE_BYTES;
    let body = elements()[from..from + lines as usize * LINE_BYTES].to_vec();
    let head = PieceHead { id: THERE, first_line, lines }.encode();
    Frame::new(Kind::Piece.code(), head, Body::Shared(SharedRegion::whole(Arc::new(body))))
}

#[test]
fn lines_received_before_a_link_breaks_stay_and_the_primary_sends_the_rest() {
    run(async {
        let mut one = Session::start(open()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        one.introduce(0, Some(listener.local_addr().unwrap())).await;
        let (mut socket, _) = listener.accept().await.unwrap();
        one.announce().await;
        // By hand, so that a frame can end anywhere: the answer, 100 lines, and a part of 100 more.
        let join = Frame::new(Kind::Join.code(), Join { ticket: TICKET }.encode(), Body::Empty);
        let mut bytes = wire(&join);
        bytes.extend(wire(&piece(0, 100)));
        bytes.extend(&wire(&piece(100, 100))[..77_777]);
        tokio::io::AsyncWriteExt::write_all(&mut socket, &bytes).await.unwrap();
        assert_eq!(one.reached().await, yes(0));
        drop(socket);
        let lost = one.reached().await;
        assert!(!lost.is_there && lost.peer == 0, "{lost:?}");
        assert_eq!(one.missing().await, Missing { id: THERE, lines: 100 });
        one.lines(matrix(THERE, 1), 100).await;
        assert_eq!(one.product().await, elements());
    });
}

/// Advances the clock by a second, and lets woken tasks run.
async fn a_second_later() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1)).await;
    tokio::time::resume();
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[test]
fn a_silent_neighbour_loses_its_link_and_one_with_signs_of_life_keeps_it() {
    run(async {
        let (mut one, mut link) = with_test().await;
        one.announce().await;
        let max = NEIGHBOUR_SILENCE_MAX.as_secs();
        for _ in 0..max + 3 {
            a_second_later().await;
            let ping = Frame::new(Kind::Ping.code(), 0u64.to_le_bytes().to_vec(), Body::Empty);
            link.sender.send(ping).await.unwrap();
            // This worker sends them, too.
            assert_eq!(link.receiver.receive(&mut NoBodies).await.unwrap().kind, Kind::Ping.code());
        }
        link.sender.send(piece(0, 100)).await.unwrap();
        for _ in 0..max + 3 {
            a_second_later().await;
        }
        let lost = one.reached().await;
        assert!(
            !lost.is_there && lost.peer == 0 && lost.why.contains("nothing has arrived over it"),
            "{lost:?}"
        );
        assert_eq!(one.missing().await, Missing { id: THERE, lines: 100 });
        one.lines(matrix(THERE, 1), 100).await;
        assert_eq!(one.product().await, elements());
    });
}

#[test]
fn lines_that_wait_for_their_announcement_do_not_count_as_silence() {
    run(async {
        let (mut one, mut link) = with_test().await;
        link.sender.send(piece(0, 100)).await.unwrap();
        for _ in 0..NEIGHBOUR_SILENCE_MAX.as_secs() + 3 {
            a_second_later().await;
        }
        one.announce().await;
        let mut first_line = 100;
        while first_line < ROWS {
            link.sender.send(piece(first_line, 100)).await.unwrap();
            first_line += 100;
        }
        assert_eq!(one.product().await, elements());
    });
}

/// A frame as bytes.
fn wire(frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.header(0).encode().to_vec();
    bytes.extend_from_slice(&frame.head);
    if let Body::Shared(region) = &frame.body {
        bytes.extend_from_slice(region.run(0));
    }
    bytes
}

#[test]
fn after_the_primary_parts_a_pair_nothing_lands_from_its_link() {
    run(async {
        let (mut one, mut link) = with_test().await;
        one.announce().await;
        link.sender.send(piece(0, 100)).await.unwrap();
        let parted = Reached { peer: 0, is_there: false, why: String::new() };
        // The lines may have landed by then, or not.
        one.send(Kind::Reached, parted.encode(), Body::Empty).await;
        let Missing { id, lines } = one.missing().await;
        assert!(id == THERE && (lines == 0 || lines == 100), "{lines}");
        one.lines(matrix(THERE, 1), lines).await;
        assert_eq!(one.product().await, elements());
        assert!(link.receiver.receive(&mut NoBodies).await.is_err());
        // Orders for a lost neighbour end at once, and matrices expected from it are reported missing at once.
        one.lines(matrix(HERE, 1), 0).await;
        one.order(Forward { id: HERE, to: 0, id_there: 1 }).await;
        one.store(vec![MatrixHeader { source: MatrixSource::Relayed, ..matrix(20, 1) }], vec![], &[]).await;
        let mut missing = None;
        let mut credit = 0;
        while missing.is_none() || credit < matrix(HERE, 1).charged_bytes() {
            match one.next().await {
                (Kind::Credit, arrived) => credit += decode_number(&arrived.head).unwrap(),
                (kind, arrived) => {
                    assert_eq!(kind, Kind::Missing);
                    missing = Some(Missing::decode(&arrived.head).unwrap());
                }
            }
        }
        assert_eq!(missing, Some(Missing { id: 20, lines: 0 }));
    });
}

#[test]
fn a_neighbour_that_sends_unannounced_lines_loses_its_link_and_the_session_continues() {
    run(async {
        let join = || Frame::new(Kind::Join.code(), Join { ticket: TICKET }.encode(), Body::Empty);
        let empty = || Frame::new(Kind::Piece.code(), piece(0, 1).head, Body::Empty);
        let short = || {
            let body = Body::Shared(SharedRegion::whole(Arc::new(vec![0; LINE_BYTES])));
            Frame::new(Kind::Piece.code(), PieceHead { id: THERE, first_line: 0, lines: 2 }.encode(), body)
        };
        let late = || piece(1, 1);
        let bad: [(&dyn Fn() -> Frame, &str); 4] = [
            (&late, "not due"),
            (&short, "came with 2048 bytes"),
            (&empty, "without bytes"),
            (&join, "kind 15"),
        ];
        for (frame, why) in bad {
            let (mut one, mut link) = with_test().await;
            one.announce().await;
            link.sender.send(frame()).await.unwrap();
            let lost = one.reached().await;
            assert!(!lost.is_there && lost.why.contains(why), "{lost:?}");
            assert_eq!(one.missing().await, Missing { id: THERE, lines: 0 });
            one.lines(matrix(THERE, 1), 0).await;
            assert_eq!(one.product().await, elements());
        }
    });
}

/// A stranger sends a join: whether the worker answered before it closed the link.
async fn joins(stream: TcpStream, security: &Security, ticket: [u8; 16], key: Option<[u8; 20]>) -> bool {
    let link = match key {
        Some(key) => security.dial_introduced(stream, &ClusterKey::from_bytes(key)).await,
        None => security.dial(stream).await,
    };
    let Ok(mut link) = link else { return false };
    let frame = Frame::new(Kind::Join.code(), Join { ticket }.encode(), Body::Empty);
    link.sender.send(frame).await.is_ok()
        && link.receiver.receive(&mut NoBodies).await.is_ok_and(|a| a.kind == Kind::Join.code())
}

#[test]
fn joining_needs_the_ticket_and_with_keys_the_key_of_the_pair() {
    run(async {
        let connect = |session: &Session| tcp_connect(session.address, Duration::from_secs(5));
        // Without keys, a wrong ticket changes nothing.
        let mut one = Session::start(open()).await;
        one.introduce(0, None).await;
        assert!(!joins(connect(&one).await.unwrap(), &open(), [4; 16], None).await);
        assert!(joins(connect(&one).await.unwrap(), &open(), TICKET, None).await);
        assert_eq!(one.reached().await, yes(0));
        assert!(!joins(connect(&one).await.unwrap(), &open(), TICKET, None).await);

        // With keys, neither the ticket alone nor the cluster's key suffices.
        let mut one = Session::start(proven()).await;
        one.introduce(0, None).await;
        let other = Security::proven(ClusterKey::from_bytes([2; 20]), PROTOCOL, "test");
        assert!(!joins(connect(&one).await.unwrap(), &other, TICKET, None).await);
        assert!(!joins(connect(&one).await.unwrap(), &proven(), TICKET, None).await);
        assert!(!joins(connect(&one).await.unwrap(), &other, TICKET, Some([7; 20])).await);
        assert!(joins(connect(&one).await.unwrap(), &other, TICKET, Some(KEY)).await);
        assert_eq!(one.reached().await, yes(0));
        assert!(!joins(connect(&one).await.unwrap(), &other, TICKET, Some(KEY)).await);

        // A connection with the right key has one try at the ticket.
        let mut one = Session::start(proven()).await;
        one.introduce(0, None).await;
        assert!(!joins(connect(&one).await.unwrap(), &other, [4; 16], Some(KEY)).await);
        let lost = one.reached().await;
        assert!(!lost.is_there && lost.why.contains("used its ticket"), "{lost:?}");
        assert!(!joins(connect(&one).await.unwrap(), &other, TICKET, Some(KEY)).await);
    });
}

#[test]
fn an_unreachable_neighbour_is_reported_and_the_session_continues() {
    run(async {
        let mut one = Session::start(open()).await;
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        one.introduce(0, Some(nobody)).await;
        let lost = one.reached().await;
        assert!(!lost.is_there && lost.why.contains("refused"), "{lost:?}");
        one.announce().await;
        assert_eq!(one.missing().await, Missing { id: THERE, lines: 0 });
        one.lines(matrix(THERE, 1), 0).await;
        assert_eq!(one.product().await, elements());
    });
}
