//! One step of Strassen's scheme in Winograd's form, as jobs over a real link: eight sums of operands, seven
//! products, seven sums of results; and tiles with initial elements. Over a link that moves bytes, and over one
//! that shares memory, where operands are read in place and tiles are leased.

use bramble_link::{
    ArrivedBody, Body, BodyPlacer, Frame, FrameLimits, Landing, Link, SharedRegion, tcp_connect, tcp_link,
    thread_pair,
};
use bramble_matrix::{Element, Layout, Output, Rect, Shape, Span, TileLease};
use bramble_wire::message::{
    Bye, Hello, Job, Kind, MatrixHeader, MatrixSource, Operation, ResultHead, StoreHead, Then, Wants,
    decode_error, decode_number,
};
use bramble_worker::{Config, SessionLedger, serve_link};
use std::any::Any;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::LocalSet;

/// A quarter of C, A and B: m × n, m × k, k × n.
const SIZE: (usize, usize, usize) = (13, 9, 17);
const ALPHA: f64 = 1.0;
const BETA: f64 = -3.0;

/// A matrix by rows.
#[derive(Clone, Debug, PartialEq)]
struct Matrix<T> {
    rows: usize,
    cols: usize,
    elements: Vec<T>,
}

impl<T: Element> Matrix<T> {
    /// Numbers that use all bits of an integer, and floats in [-1, 1).
    fn noise(rows: usize, cols: usize, seed: u64) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bits = (state ^ (state >> 33)) as i64;
            if T::DTYPE.is_float() { T::from_f64(bits as f64 / 2f64.powi(63)) } else { T::from_i64(bits) }
        };
        Self { rows, cols, elements: (0..rows * cols).map(|_| next()).collect() }
    }

    fn at(&self, i: usize, j: usize) -> T {
        self.elements[i * self.cols + j]
    }

    fn make(rows: usize, cols: usize, f: impl Fn(usize, usize) -> T) -> Self {
        Self { rows, cols, elements: (0..rows * cols).map(|at| f(at / cols, at % cols)).collect() }
    }

    fn transposed(&self) -> Self {
        Self::make(self.cols, self.rows, |i, j| self.at(j, i))
    }

    fn times(&self, other: &Self) -> Self {
        let dot = |i, j| (0..self.cols).fold(T::ZERO, |sum, d| sum.plus(self.at(i, d).times(other.at(d, j))));
        Self::make(self.rows, other.cols, dot)
    }

    fn bytes(&self) -> Vec<u8> {
        bytemuck::cast_slice(&self.elements).to_vec()
    }
}

/// Matrices to send, with their elements if they have any, and jobs.
struct Work<T> {
    matrices: BTreeMap<u32, (MatrixHeader, Option<Matrix<T>>)>,
    jobs: Vec<Job>,
}

impl<T: Element> Work<T> {
    fn new() -> Self {
        Self { matrices: BTreeMap::new(), jobs: Vec::new() }
    }

    fn header(id: u32, shape: (usize, usize), layout: Layout, source: MatrixSource) -> MatrixHeader {
        let (rows, cols) = (shape.0 as u32, shape.1 as u32);
        let lines = if layout == Layout::RowMajor { rows } else { cols };
        MatrixHeader { id, rows, cols, first_line: 0, lines, uses: 0, dtype: T::DTYPE, layout, source }
    }

    fn put(&mut self, id: u32, matrix: Matrix<T>, layout: Layout, source: MatrixSource) {
        let header = Self::header(id, (matrix.rows, matrix.cols), layout, source);
        self.matrices.insert(id, (header, Some(matrix)));
    }

    /// The only job of a new matrix.
    fn make(&mut self, operation: Operation, a: u32, b: u32, c: u32) {
        let shape = |id: &u32| (self.matrices[id].0.rows as usize, self.matrices[id].0.cols as usize);
        let made = if operation == Operation::Multiply { (shape(&a).0, shape(&b).1) } else { shape(&a) };
        self.matrices.insert(c, (Self::header(c, made, Layout::RowMajor, MatrixSource::Vacant), None));
        self.jobs.push(Job { operation, a, b, c, step: 0, epoch: 0, then: Then::Close });
    }

    /// Sets the uses of each matrix to the number of its readers; a matrix without readers is returned.
    fn settle(&mut self) {
        for (id, (header, _)) in &mut self.matrices {
            header.uses = self.jobs.iter().filter(|j| j.a == *id || j.b == *id).count() as u16;
        }
        for job in self.jobs.iter_mut().filter(|j| j.then == Then::Close) {
            let is_tile = self.matrices[&job.c].0.uses == 0;
            job.then = if is_tile { Then::Return } else { Then::Close };
        }
    }

    fn charged_bytes(&self) -> u64 {
        self.matrices.values().map(|(header, _)| header.charged_bytes()).sum()
    }

    /// One message for each matrix with elements, then one with all others and the jobs; so jobs arrive before the matrices
    /// that they read are made.
    fn messages(&self, tiles: Option<&Tiles>) -> Vec<(StoreHead, Body)> {
        let (mut messages, mut last) =
            (Vec::new(), StoreHead { jobs: self.jobs.clone(), ..StoreHead::default() });
        for (header, matrix) in self.matrices.values() {
            let lent = tiles.filter(|_| header.uses == 0).map(|tiles| tiles.lend(header.id, matrix.as_ref()));
            let body = match (lent, matrix) {
                (Some(lent), _) => Body::Leased(Box::new(Returning(lent))),
                (None, Some(matrix)) => Body::Shared(lines(matrix, header.layout, tiles.is_some())),
                (None, None) => {
                    last.matrices.push(*header);
                    continue;
                }
            };
            messages.push((StoreHead { matrices: vec![*header], jobs: Vec::new() }, body));
        }
        last.jobs.reverse();
        messages.push((last, Body::Empty));
        messages
    }
}

/// A matrix as a body: on links that share memory line by line, with a gap after each.
fn lines<T: Element>(matrix: &Matrix<T>, layout: Layout, gaps: bool) -> SharedRegion {
    let by_lines = if layout == Layout::RowMajor { matrix.clone() } else { matrix.transposed() };
    if !gaps {
        return SharedRegion::whole(Arc::new(by_lines.bytes()));
    }
    let wide = Matrix::make(by_lines.rows, by_lines.cols + 3, |i, j| {
        if j < by_lines.cols { by_lines.at(i, j) } else { T::from_i64(77) }
    });
    let buffer = {
        let mut buffer = bramble_matrix::Buffer::zeroed(wide.bytes().len()).unwrap();
        buffer.bytes_mut().copy_from_slice(&wide.bytes());
        buffer
    };
    let size = size_of::<T>();
    SharedRegion::new(Arc::new(buffer), 0, by_lines.cols * size, wide.cols * size, by_lines.rows)
}

/// An output from which tiles are leased, one below the other.
struct Tiles {
    output: Output,
    rows: u64,
    first: u32,
}

impl Tiles {
    fn lend<T: Element>(&self, id: u32, elements: Option<&Matrix<T>>) -> TileLease {
        let from = u64::from(id - self.first) * self.rows;
        let cols = Span::new(0, self.output.shape().cols);
        let mut lent = self.output.lease(Rect::new(Span::new(from, from + self.rows), cols));
        let mut view = lent.view_mut::<T>();
        for i in 0..view.rows() {
            for j in 0..view.cols() {
                // The contents of a vacant tile do not matter.
                *view.at_mut(i, j) = elements.map_or_else(|| T::from_i64(99), |old| old.at(i, j));
            }
        }
        lent
    }
}

struct Returning(TileLease);

impl Landing for Returning {
    fn len(&self) -> usize {
        self.0.lines() * self.0.line_bytes()
    }
    fn runs_mut<'a>(&'a mut self, _offset: usize, _max: usize, _out: &mut Vec<IoSliceMut<'a>>) {
        panic!("leased memory never crosses a link that moves bytes")
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        Box::new(self.0)
    }
}

struct Anywhere;

impl BodyPlacer for Anywhere {
    fn place(&mut self, _kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        Ok(Box::new(vec![0u8; body_bytes]))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Tcp,
    Thread,
}

/// Both ends of a link; the worker's end serves a session.
async fn worker(over: Over) -> Link {
    let name = "worker".to_owned();
    let config =
        Config { threads: 2, memory_bytes: 64 << 20, kernel: None, pin_from: None, gives_way: true, name };
    let (near, far) = match over {
        Over::Thread => thread_pair("primary", "worker"),
        Over::Tcp => {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let near = tcp_connect(address, Duration::from_secs(5)).await.unwrap();
            (tcp_link(near).unwrap(), tcp_link(listener.accept().await.unwrap().0).unwrap())
        }
    };
    tokio::task::spawn_local(async move { serve_link(far, None, &config, &SessionLedger::new()).await });
    near
}

/// Sends the work to a worker with exactly the memory that it needs; returns the tiles. All credit must
/// return, too.
async fn computed<T: Element>(over: Over, work: &Work<T>, tiles: Option<&Tiles>) -> BTreeMap<u32, Matrix<T>> {
    let mut link = worker(over).await;
    let hello = Hello {
        session: 7,
        dtype: T::DTYPE,
        alpha: ALPHA,
        beta: BETA,
        flops: 1e6,
        threads_max: 0,
        memory_bytes: work.charged_bytes(),
        wants: Wants::default(),
        kernel: "simd".to_owned(),
        version: "test".to_owned(),
        name: "test".to_owned(),
    };
    link.sender.send(Frame::new(Kind::Hello.code(), hello.encode(), Body::Empty)).await.unwrap();
    let welcome = link.receiver.receive(&mut Anywhere).await.unwrap();
    assert_eq!(Kind::from_code(welcome.kind).unwrap(), Kind::Welcome);
    link.sender.set_session(7);
    link.receiver.set_session(7);
    link.receiver.set_limits(FrameLimits::SESSION);
    for (head, body) in work.messages(tiles) {
        link.sender.send(Frame::new(Kind::Store.code(), head.encode(), body)).await.unwrap();
    }
    let (mut back, mut credit) = (BTreeMap::new(), 0);
    while credit < work.charged_bytes() {
        let arrived = link.receiver.receive(&mut Anywhere).await.unwrap();
        match Kind::from_code(arrived.kind).unwrap() {
            Kind::Credit => credit += decode_number(&arrived.head).unwrap(),
            Kind::Result => {
                let head = ResultHead::decode(&arrived.head).unwrap();
                let header = work.matrices[&head.c].0;
                assert_eq!((head.first_line, head.lines), (0, header.rows));
                let elements = elements(arrived.body);
                let (rows, cols) = (header.rows as usize, header.cols as usize);
                assert!(back.insert(head.c, Matrix { rows, cols, elements }).is_none());
            }
            Kind::Error => panic!("{}", decode_error(&arrived.head).unwrap()),
            other => panic!("a message of kind {other:?}"),
        }
    }
    assert_eq!(credit, work.charged_bytes());
    link.sender.send(Frame::new(Kind::Bye.code(), Bye::default().encode(), Body::Empty)).await.unwrap();
    let bye = Bye::decode(&link.receiver.receive(&mut Anywhere).await.unwrap().head).unwrap();
    assert_eq!(bye.threads.iter().map(|t| t.jobs).sum::<u64>(), work.jobs.len() as u64);
    back
}

fn elements<T: Element>(body: ArrivedBody) -> Vec<T> {
    match body {
        ArrivedBody::Landed(landing) => {
            let bytes = landing.into_any().downcast::<Vec<u8>>().unwrap();
            bytemuck::pod_collect_to_vec(&bytes)
        }
        ArrivedBody::Leased(landing) => {
            let mut lent = landing.into_any().downcast::<TileLease>().unwrap();
            let mut view = lent.view_mut::<T>();
            let (rows, cols) = (view.rows(), view.cols());
            (0..rows * cols).map(|at| *view.at_mut(at / cols, at % cols)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Runs a test on one event loop, as a worker does.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test takes too long");
    });
    runtime.shutdown_background();
}

/// Quarters of A are 1 to 4, those of B 5 to 8, those of C 50 to 53: each from left to right, from top to bottom.
fn strassen<T: Element>() -> (Work<T>, [Matrix<T>; 4]) {
    use Operation::{Add, Multiply, Subtract};
    let (m, k, n) = SIZE;
    let a: Vec<Matrix<T>> = (0..4).map(|seed| Matrix::noise(m, k, seed)).collect();
    let b: Vec<Matrix<T>> = (4..8).map(|seed| Matrix::noise(k, n, seed)).collect();
    let mut work = Work::new();
    for at in 0..4 {
        let layout = if at % 2 == 0 { Layout::RowMajor } else { Layout::ColMajor };
        work.put(1 + at as u32, a[at].clone(), layout, MatrixSource::Data);
        work.put(5 + at as u32, b[at].clone(), layout, MatrixSource::Data);
    }
    for (operation, x, y, made) in [
        (Add, 3, 4, 11),       // S1 = A21 + A22
        (Subtract, 11, 1, 12), // S2 = S1 − A11
        (Subtract, 1, 3, 13),  // S3 = A11 − A21
        (Subtract, 2, 12, 14), // S4 = A12 − S2
        (Subtract, 6, 5, 15),  // T1 = B12 − B11
        (Subtract, 8, 15, 16), // T2 = B22 − T1
        (Subtract, 8, 6, 17),  // T3 = B22 − B12
        (Subtract, 16, 7, 18), // T4 = T2 − B21
        (Multiply, 1, 5, 21),
        (Multiply, 2, 7, 22),
        (Multiply, 14, 8, 23),
        (Multiply, 4, 18, 24),
        (Multiply, 11, 15, 25),
        (Multiply, 12, 16, 26),
        (Multiply, 13, 17, 27),
        (Add, 21, 22, 50),      // C11 = P1 + P2
        (Add, 21, 26, 32),      // U2 = P1 + P6
        (Add, 32, 27, 33),      // U3 = U2 + P7
        (Add, 32, 25, 34),      // U4 = U2 + P5
        (Add, 34, 23, 51),      // C12 = U4 + P3
        (Subtract, 33, 24, 52), // C21 = U3 − P4
        (Add, 33, 25, 53),      // C22 = U3 + P5
    ] {
        work.make(operation, x, y, made);
    }
    work.settle();
    let quarter = |i: usize, j: usize| {
        let (left, right) = (a[2 * i].times(&b[j]), a[2 * i + 1].times(&b[2 + j]));
        Matrix::make(m, n, |r, c| left.at(r, c).plus(right.at(r, c)))
    };
    (work, [quarter(0, 0), quarter(0, 1), quarter(1, 0), quarter(1, 1)])
}

fn tiles_for<T: Element>(over: Over, count: u64, first: u32) -> Option<Tiles> {
    let (m, _, n) = SIZE;
    (over == Over::Thread).then(|| {
        let shape = Shape::new(count * m as u64, n as u64);
        Tiles { output: Output::anonymous(shape, T::DTYPE).unwrap(), rows: m as u64, first }
    })
}

fn exact<T: Element>(over: Over) {
    let (work, wanted) = strassen::<T>();
    run(async {
        let back = computed(over, &work, tiles_for::<T>(over, 4, 50).as_ref()).await;
        assert_eq!(back.values().cloned().collect::<Vec<_>>(), wanted, "{over:?} {}", T::DTYPE);
    });
}

fn near(over: Over) {
    let (work, wanted) = strassen::<f64>();
    run(async {
        let back = computed(over, &work, tiles_for::<f64>(over, 4, 50).as_ref()).await;
        assert_eq!(back.len(), 4);
        for (got, want) in back.values().zip(&wanted) {
            let pairs = got.elements.iter().zip(&want.elements);
            let off = pairs.map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            // Elements below 1; sums of 18 products, and a few additions of sums of four operands.
            assert!(off < 1e-13, "{over:?}: off by {off:e}");
        }
    });
}

#[test]
fn integers_are_exact_over_a_link_that_moves_bytes() {
    exact::<i64>(Over::Tcp);
    exact::<i32>(Over::Tcp);
}

#[test]
fn integers_are_exact_over_a_link_that_shares_memory() {
    exact::<i64>(Over::Thread);
    exact::<i32>(Over::Thread);
}

#[test]
fn floats_are_near_over_both() {
    near(Over::Tcp);
    near(Over::Thread);
}

/// Tiles that are vacant, hold the old C, and hold a sum: 60, 61 and 62, each written by a sum, a product and a
/// difference.
fn tiles_with_elements(over: Over) {
    let (m, k, n) = SIZE;
    let (a, b) = (Matrix::<i64>::noise(m, k, 1), Matrix::noise(k, n, 2));
    let (x, y, old) = (Matrix::noise(m, n, 3), Matrix::noise(m, n, 4), Matrix::noise(m, n, 5));
    let mut work = Work::new();
    work.put(1, a.clone(), Layout::ColMajor, MatrixSource::Data);
    work.put(2, b.clone(), Layout::RowMajor, MatrixSource::Data);
    work.put(3, x.clone(), Layout::ColMajor, MatrixSource::Data);
    work.put(4, y.clone(), Layout::RowMajor, MatrixSource::Data);
    let vacant = Work::<i64>::header(60, (m, n), Layout::RowMajor, MatrixSource::Vacant);
    work.matrices.insert(60, (vacant, None));
    work.put(61, old.clone(), Layout::RowMajor, MatrixSource::Data);
    work.put(62, old.clone(), Layout::RowMajor, MatrixSource::Partial);
    let (add, multiply, subtract) = (Operation::Add, Operation::Multiply, Operation::Subtract);
    // Jobs are sent in reverse; those of one tile must stay in order.
    for c in [60, 61, 62] {
        let job = |operation, a, b, step, then| Job { operation, a, b, c, step, epoch: 0, then };
        work.jobs.push(job(subtract, 4, 3, 9, Then::Return));
        work.jobs.push(job(multiply, 1, 2, 5, Then::Continue));
        work.jobs.push(job(add, 3, 4, 2, Then::Continue));
    }
    work.settle();
    let product = a.times(&b);
    let sum = |scale: i64| {
        Matrix::make(m, n, |i, j| {
            let (x, y) = (x.at(i, j), y.at(i, j));
            old.at(i, j).times(scale).plus(x.plus(y)).plus(product.at(i, j)).plus(y.minus(x))
        })
    };
    run(async {
        let back = computed(over, &work, tiles_for::<i64>(over, 3, 60).as_ref()).await;
        let wanted = [sum(0), sum(BETA as i64), sum(1)];
        assert_eq!(back.values().cloned().collect::<Vec<_>>(), wanted, "{over:?}");
    });
}

#[test]
fn tiles_are_overwritten_scaled_or_only_added_to() {
    tiles_with_elements(Over::Tcp);
    tiles_with_elements(Over::Thread);
}
