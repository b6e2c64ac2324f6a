//! One session: from the primary's hello to its goodbye.
//!
//! Invariants: everything of a session lives on one event loop and is dropped with it; a broken rule, a
//! lost link or a failed task ends the session, never the worker. The session's state machine decides; this
//! file only carries.

use crate::machine::{Config, probe};
use crate::memory::{Operand, Parts, Returning, Store, Tile};
use crate::pool::{Ended, Pool, Task};
use bramble_kernel::{Choice, Kernel, KernelElement, Pick, Product};
use bramble_link::{
    Arrived, ArrivedBody, Body, Frame, Landing, Limits, Link, LinkError, NoBodies, Place, Receiver, Region,
    Sender, Vacant,
};
use bramble_matrix::{Buffer, DType, Generator, Lent, Rect, Span};
use bramble_schedule::ProtocolError;
use bramble_schedule::limits::{CHUNK_BYTES_MAX, HANDSHAKE_DEADLINE, PING_AFTER, SILENCE_MAX};
use bramble_schedule::message::{
    Bye, Generated, Hello, Kind, MatrixHeader, ResultHead, Source, StoreHead, Welcome, decode_error,
    decode_number, encode_error, encode_number,
};
use bramble_schedule::worker::{Action, Run, Worker};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

const _: () = assert!(CHUNK_BYTES_MAX == bramble_link::CHUNK_BYTES_MAX);

/// How long what is queued may take to leave when a session ends.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Frames that may wait while answers are added.
const ANSWERS_MAX: usize = 4096;

/// Why a session ended early.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The link.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The primary broke the protocol.
    #[error("the primary broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The primary gave up.
    #[error("the primary gave up: {0}")]
    Primary(String),
    /// This machine could not do its part.
    #[error("{0}")]
    Here(String),
}

/// What a task gives back.
enum Done {
    Multiplied(Run, Tile),
    Filled(MatrixHeader, Buffer),
}

/// A frame to send, and what to do when it is gone.
struct Leaving {
    frame: Frame,
    /// The tile whose last lines these are, with its buffer.
    last_of: Option<(u32, Option<Arc<Buffer>>)>,
}

/// What the tasks of one session share.
struct Core {
    state: Worker,
    store: Store,
    pool: Pool<Done>,
    kernel: Arc<dyn Kernel>,
    hello: Hello,
    /// To the writer; `None` when nothing more is to be said.
    out: Option<mpsc::UnboundedSender<Leaving>>,
    /// Frames that wait there. Tiles are bounded by the grant, so only answers need a limit.
    queued: Cell<usize>,
    /// The store message whose body is landing.
    reserved: Option<StoreHead>,
    heard: Instant,
}

/// Serves one primary over a link, from hello to goodbye. `in_use` counts the bytes granted to sessions.
pub async fn serve_link(mut link: Link, config: &Config, in_use: &Cell<u64>) -> Result<(), WorkerError> {
    let (hello, pick, grant) = match greet(&mut link, config, in_use).await {
        Ok(greeted) => greeted,
        Err(e) => {
            // The primary shall read why, if it still listens.
            let frame = Frame::new(Kind::Error.code(), encode_error(&e.to_string()), Body::Empty);
            let _ = link.sender.send(frame).await;
            return Err(e);
        }
    };
    let _held = Held { in_use, bytes: grant };
    welcome(&mut link, config, &hello, &pick, grant).await?;
    run(link, config, hello, pick, grant).await
}

/// Bytes granted to a session, given back when it ends in whatever way.
struct Held<'a> {
    in_use: &'a Cell<u64>,
    bytes: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.in_use.set(self.in_use.get() - self.bytes);
    }
}

/// Takes the hello, chooses a kernel, and takes the memory that is left: (hello, kernel, bytes granted).
async fn greet(
    link: &mut Link,
    config: &Config,
    in_use: &Cell<u64>,
) -> Result<(Hello, Pick, u64), WorkerError> {
    link.receiver.set_limits(Limits::STRANGER);
    let first = tokio::time::timeout(HANDSHAKE_DEADLINE, link.receiver.receive(&mut NoBodies)).await;
    let Ok(first) = first else {
        let seconds = HANDSHAKE_DEADLINE.as_secs();
        return Err(ProtocolError::new(format!("it said nothing for {seconds} s")).into());
    };
    let first = first?;
    if Kind::from_code(first.kind)? != Kind::Hello {
        return Err(ProtocolError::new("its first message is not a hello").into());
    }
    let hello = Hello::decode(&first.head)?;
    let choice: Choice = match config.kernel {
        Some(choice) => choice,
        None => hello.kernel.parse().map_err(|e| WorkerError::Here(format!("{e}")))?,
    };
    let pick = bramble_kernel::pick(choice, hello.dtype, hello.flops)
        .map_err(|e| WorkerError::Here(e.to_string()))?;
    let grant = config.grant_bytes(&*pick.kernel).saturating_sub(in_use.get());
    if grant == 0 {
        let mib = config.memory_bytes >> 20;
        return Err(WorkerError::Here(match in_use.get() {
            0 => format!(
                "--memory of {mib} MiB leaves nothing for matrices beside the program and its kernel; give it more"
            ),
            _ => format!(
                "its memory of {mib} MiB is in use by another primary; try again later, or start it with more --memory"
            ),
        }));
    }
    in_use.set(in_use.get() + grant);
    Ok((hello, pick, grant))
}

/// Measures this machine and says what it is.
async fn welcome(
    link: &mut Link,
    config: &Config,
    hello: &Hello,
    pick: &Pick,
    grant: u64,
) -> Result<(), WorkerError> {
    let threads = session_threads(config, hello);
    let (gflops, peak_gflops) = probe(pick, hello.dtype, threads);
    let welcome = Welcome {
        threads: threads as u16,
        memory_bytes: grant,
        gflops,
        peak_gflops,
        kernel: pick.kernel.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: config.name.clone(),
    };
    link.sender.set_session(0);
    link.sender.send(Frame::new(Kind::Welcome.code(), welcome.encode(), Body::Empty)).await?;
    link.sender.set_session(hello.session);
    link.receiver.set_session(hello.session);
    link.receiver.set_limits(Limits::SESSION);
    Ok(())
}

/// Threads of a session: the worker's, or fewer where the primary says so.
fn session_threads(config: &Config, hello: &Hello) -> usize {
    match hello.threads_max {
        0 => config.threads,
        most => config.threads.min(usize::from(most)),
    }
}

async fn run(link: Link, config: &Config, hello: Hello, pick: Pick, grant: u64) -> Result<(), WorkerError> {
    let (out, leaving) = mpsc::unbounded_channel();
    let (done_tx, mut done) = mpsc::unbounded_channel();
    let pool = Pool::start(session_threads(config, &hello), config.pin_from, move |result| {
        // The session may be over; then nobody wants the result.
        let _ = done_tx.send(result);
    })
    .map_err(|e| WorkerError::Here(format!("cannot start compute threads: {e}")))?;
    let core = Rc::new(RefCell::new(Core {
        state: Worker::new(grant),
        store: Store::new(grant),
        pool,
        kernel: pick.kernel,
        hello,
        out: Some(out),
        queued: Cell::new(0),
        reserved: None,
        heard: Instant::now(),
    }));
    let watched = !link.shares_memory;
    let (sender, receiver) = (link.sender, link.receiver);
    let mut writing = std::pin::pin!(write(sender, leaving, core.clone()));
    let mut written = false;
    let result = tokio::select! {
        r = read(receiver, core.clone()) => r,
        r = &mut writing => {
            written = true;
            r
        }
        r = collect(&mut done, core.clone()) => r,
        r = watch(core.clone()), if watched => r,
    };
    if let Err(e @ (WorkerError::Protocol(_) | WorkerError::Here(_))) = &result {
        core.borrow().send(Kind::Error, encode_error(&e.to_string()), Body::Empty);
    }
    // What is queued, an error message among it, may still leave; then the writer ends.
    core.borrow_mut().out = None;
    if !written {
        let _ = tokio::time::timeout(LAST_WORDS, writing).await;
    }
    result
}

/// Takes frames until the primary says goodbye.
async fn read(mut receiver: Box<dyn Receiver>, core: Rc<RefCell<Core>>) -> Result<(), WorkerError> {
    let mut placer = Placer(core.clone());
    let mut goodbye = false;
    loop {
        let arrived = match receiver.receive(&mut placer).await {
            // After the goodbyes, a closed link is the end.
            Err(LinkError::Closed) if goodbye => return Ok(()),
            Err(LinkError::Refused(why)) => return Err(ProtocolError::new(why).into()),
            other => other?,
        };
        core.borrow_mut().heard = Instant::now();
        match Kind::from_code(arrived.kind)? {
            Kind::Store => core.borrow_mut().stored(arrived)?,
            Kind::Ping => {
                let nonce = decode_number(&arrived.head)?;
                if core.borrow().queued.get() > ANSWERS_MAX {
                    return Err(ProtocolError::new("it asks, but does not take the answers").into());
                }
                core.borrow().send(Kind::Pong, encode_number(nonce), Body::Empty);
            }
            Kind::Bye => {
                goodbye = true;
                let report = core.borrow().report();
                core.borrow().send(Kind::Bye, report.encode(), Body::Empty);
            }
            Kind::Error => return Err(WorkerError::Primary(decode_error(&arrived.head)?)),
            Kind::Hello | Kind::Welcome | Kind::Result | Kind::Credit | Kind::Pong => {
                let what = format!("a message of kind {} has no place here", arrived.kind);
                return Err(ProtocolError::new(what).into());
            }
        }
    }
}

/// Sends what is ready, in order.
async fn write(
    mut sender: Box<dyn Sender>,
    mut leaving: mpsc::UnboundedReceiver<Leaving>,
    core: Rc<RefCell<Core>>,
) -> Result<(), WorkerError> {
    while let Some(Leaving { frame, last_of }) = leaving.recv().await {
        sender.send(frame).await?;
        let mut core = core.borrow_mut();
        core.heard = Instant::now();
        core.queued.set(core.queued.get() - 1);
        if let Some((tile, buffer)) = last_of {
            core.returned(tile, buffer)?;
        }
    }
    Ok(())
}

/// Takes what the compute threads have done.
async fn collect(
    done: &mut mpsc::UnboundedReceiver<Ended<Done>>,
    core: Rc<RefCell<Core>>,
) -> Result<(), WorkerError> {
    while let Some(result) = done.recv().await {
        let mut core = core.borrow_mut();
        let actions = match result {
            Ok(Done::Multiplied(run, tile)) => {
                core.store.put_tile(run.job.c, tile);
                core.state.finished(&run.job)
            }
            Ok(Done::Filled(header, buffer)) => {
                core.store.put_operand(header.id, Operand::Owned(header, buffer));
                core.state.filled(header.id)
            }
            Err(panic) => {
                return Err(WorkerError::Here(format!("a compute thread failed: {panic}")));
            }
        };
        core.act(actions)?;
    }
    Ok(())
}

/// Ends a session whose primary has fallen silent: it asks after two seconds of silence, so this is long.
async fn watch(core: Rc<RefCell<Core>>) -> Result<(), WorkerError> {
    loop {
        tokio::time::sleep(PING_AFTER).await;
        let silence = core.borrow().heard.elapsed();
        if silence > SILENCE_MAX + PING_AFTER {
            let what = format!("the primary has been silent for {} s", silence.as_secs());
            return Err(WorkerError::Here(what));
        }
    }
}

/// Says where the bodies of store messages and pings land.
struct Placer(Rc<RefCell<Core>>);

impl Place for Placer {
    fn place(&mut self, kind: u8, head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        match Kind::from_code(kind).map_err(|e| e.0)? {
            Kind::Store => {}
            Kind::Ping => return Ok(Box::new(Vacant::new(body_bytes))),
            other => return Err(format!("a message of kind {other:?} has no body")),
        }
        let store = StoreHead::decode(head).map_err(|e| e.0)?;
        if store.body_bytes() != body_bytes as u64 {
            return Err(format!("a store of {} bytes came with {body_bytes}", store.body_bytes()));
        }
        let mut core = self.0.borrow_mut();
        core.reserve(&store).map_err(|e| e.to_string())?;
        let parts = core.store.landing(&store.matrices).map_err(|e| e.to_string())?;
        core.reserved = Some(store);
        Ok(Box::new(parts))
    }
}

impl Core {
    fn send(&self, kind: Kind, head: Vec<u8>, body: Body) {
        self.leave(Leaving { frame: Frame::new(kind.code(), head, body), last_of: None });
    }

    fn leave(&self, leaving: Leaving) {
        if let Some(out) = &self.out
            && out.send(leaving).is_ok()
        {
            self.queued.set(self.queued.get() + 1);
        }
    }

    fn report(&self) -> Bye {
        Bye { threads: self.pool.accounts(), held_bytes_max: self.store.allocated_bytes_max() }
    }

    /// Checks a store's head and takes memory for its matrices.
    fn reserve(&mut self, store: &StoreHead) -> Result<(), WorkerError> {
        if store.matrices.iter().any(|m| m.dtype != self.hello.dtype) {
            return Err(ProtocolError::new("a matrix of another element type than the session's").into());
        }
        let actions = self.state.reserve(store)?;
        self.act(actions)
    }

    /// A store message has come whole.
    fn stored(&mut self, arrived: Arrived) -> Result<(), WorkerError> {
        let store = match (self.reserved.take(), arrived.body) {
            (Some(store), ArrivedBody::Landed(landing)) => {
                if let Ok(parts) = landing.into_any().downcast::<Parts>() {
                    self.store.landed(*parts);
                }
                store
            }
            (_, body) => {
                let store = StoreHead::decode(&arrived.head)?;
                self.stored_by_reference(&store, body)?;
                store
            }
        };
        let actions = self.state.landed(&store)?;
        self.act(actions)
    }

    /// A store message without bytes, or of a link that shares memory.
    fn stored_by_reference(&mut self, store: &StoreHead, body: ArrivedBody) -> Result<(), WorkerError> {
        if matches!(body, ArrivedBody::Empty) {
            if store.body_bytes() > 0 {
                return Err(ProtocolError::new("a store message without its bytes").into());
            }
            return self.reserve(store);
        }
        // The state counts these matrices against the grant, but no memory is taken for them.
        let actions = self.state.reserve(store)?;
        let Some(header) = store.matrices.last().copied() else { return Ok(()) };
        match body {
            ArrivedBody::Shared(region) if header.source == Source::Generated => {
                self.act(actions)?;
                self.store.set_generated(header.id, Generated::decode(region.run(0))?);
            }
            ArrivedBody::Shared(region) => {
                self.store.put_operand(header.id, Operand::borrowed(&header, region));
            }
            ArrivedBody::Lent(landing) => {
                let lent = landing.into_any().downcast::<Lent>();
                let lent = lent.map_err(|_| ProtocolError::new("lent memory that is no part of C"))?;
                self.store.put_tile(header.id, Tile::Lent(*lent));
            }
            ArrivedBody::Empty | ArrivedBody::Landed(_) => {}
        }
        Ok(())
    }

    /// Does what the state machine asks for.
    fn act(&mut self, actions: Vec<Action>) -> Result<(), WorkerError> {
        for action in actions {
            match action {
                Action::Reserve(header) => {
                    self.store.reserve(&header).map_err(|e| WorkerError::Here(e.to_string()))?;
                }
                Action::Fill(id) => self.fill(id)?,
                Action::Start(run) => self.start(run)?,
                Action::Return { tile, epoch, step_start, step_end } => {
                    self.send_back(
                        tile,
                        ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines: 0 },
                    )?;
                }
                Action::Release(id) => self.store.release(id),
                Action::Credit(bytes) => self.send(Kind::Credit, encode_number(bytes), Body::Empty),
            }
        }
        Ok(())
    }

    fn fill(&mut self, id: u32) -> Result<(), WorkerError> {
        let taken = self.store.take_generated(id);
        let Some((header, generated, mut buffer)) = taken else {
            return Err(ProtocolError::new(format!("matrix {id} does not say how it is made")).into());
        };
        let Some(generator) = Generator::from_bytes(&generated.generator) else {
            return Err(ProtocolError::new(format!("matrix {id} has an unknown generator")).into());
        };
        let span = |from: u64, len: u32| Some(Span::new(from, from.checked_add(u64::from(len))?));
        let (Some(rows), Some(cols)) = (span(generated.row, header.rows), span(generated.col, header.cols))
        else {
            return Err(ProtocolError::new(format!("matrix {id} lies outside its generator")).into());
        };
        let task: Task<Done> = Box::new(move || {
            generator.fill(Rect::new(rows, cols), header.dtype, header.layout, buffer.bytes_mut());
            Done::Filled(header, buffer)
        });
        self.pool.submit(task);
        Ok(())
    }

    fn start(&mut self, run: Run) -> Result<(), WorkerError> {
        let missing = || WorkerError::Here(format!("tile {} lost a matrix", run.job.c));
        let a = self.store.operand(run.job.a).ok_or_else(missing)?;
        let b = self.store.operand(run.job.b).ok_or_else(missing)?;
        let tile = self.store.take_tile(run.job.c).ok_or_else(missing)?;
        let kernel = self.kernel.clone();
        let beta = match run {
            Run { reads_tile: false, .. } => 0.0,
            Run { scales_tile: true, .. } => self.hello.beta,
            Run { .. } => 1.0,
        };
        let (dtype, alpha) = (self.hello.dtype, self.hello.alpha);
        self.pool.submit(Box::new(move || {
            let mut tile = tile;
            match dtype {
                DType::F32 => multiply::<f32>(&*kernel, alpha, &a, &b, beta, &mut tile),
                DType::F64 => multiply::<f64>(&*kernel, alpha, &a, &b, beta, &mut tile),
                DType::I32 => multiply::<i32>(&*kernel, alpha, &a, &b, beta, &mut tile),
                DType::I64 => multiply::<i64>(&*kernel, alpha, &a, &b, beta, &mut tile),
            }
            Done::Multiplied(run, tile)
        }));
        Ok(())
    }

    /// Puts a finished tile on its way, in frames of whole rows.
    fn send_back(&mut self, id: u32, head: ResultHead) -> Result<(), WorkerError> {
        let tile = self.store.take_tile(id);
        let Some(tile) = tile else { return Err(WorkerError::Here(format!("tile {id} was lost"))) };
        let kind = Kind::Result.code();
        let (header, buffer) = match tile {
            Tile::Owned(header, buffer) => (header, Arc::new(buffer)),
            Tile::Lent(lent) => {
                let head = ResultHead { lines: lent.lines() as u32, ..head };
                let frame = Frame::new(kind, head.encode(), Body::Lent(Box::new(Returning(lent))));
                self.leave(Leaving { frame, last_of: Some((id, None)) });
                return Ok(());
            }
        };
        let (lines, line_bytes) = header.lines_total();
        let per_frame = (CHUNK_BYTES_MAX / line_bytes).max(1) as u32;
        let mut first_line = 0;
        while first_line < lines {
            let count = per_frame.min(lines - first_line);
            let (start, len) = (first_line as usize * line_bytes, count as usize * line_bytes);
            let region = Region::new(buffer.clone(), start, len, len, 1);
            let frame = Frame::new(
                kind,
                ResultHead { first_line, lines: count, ..head }.encode(),
                Body::Shared(region),
            );
            first_line += count;
            let last_of = (first_line == lines).then(|| (id, Some(buffer.clone())));
            self.leave(Leaving { frame, last_of });
        }
        Ok(())
    }

    /// A tile has left.
    fn returned(&mut self, tile: u32, buffer: Option<Arc<Buffer>>) -> Result<(), WorkerError> {
        if let Some(Ok(buffer)) = buffer.map(Arc::try_unwrap) {
            self.store.recycle(buffer);
        }
        let actions = self.state.returned(tile);
        self.act(actions)
    }
}

fn multiply<T: KernelElement>(
    kernel: &dyn Kernel,
    alpha: f64,
    a: &Operand,
    b: &Operand,
    beta: f64,
    tile: &mut Tile,
) {
    let (alpha, beta) = (T::from_f64(alpha), T::from_f64(beta));
    kernel.multiply(T::any(Product::new(alpha, a.view(), b.view(), beta, tile.view_mut())));
}
