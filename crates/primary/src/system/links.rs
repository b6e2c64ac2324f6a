//! The links with the workers of a factorisation: a writing and a reading task for each, heartbeats, goodbyes.
//!
//! Place in the flow: `mod.rs` sends frames and takes the workers' messages one at a time.
//!
//! Invariants: a worker that has sent nothing for `SILENCE_MAX`, whose link ends, or that breaks the rules, ends the
//! run with its name (`loss` tells a lost worker from one that has broken a rule); the others are told goodbye, so that their
//! connections serve again. Nothing follows a goodbye. A worker
//! that has lost its neighbour does not: the neighbour is silent itself soon, and is the
//! one to name; if it is not, the pair is named after `PAIR_PATIENCE`.

use super::fill::Filler;
use bramble_link::{
    Arrived, ArrivedBody, Body, BodyPlacer, DiscardedBody, Frame, Landing, LinkFacts, Receiver, Sender,
};
use bramble_matrix::Matrix;
use bramble_sessions::{
    Connection, GOODBYE, KnownConnection, LostConnection, PrimaryError, Session, idle, no_goodbye,
};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{NEIGHBOUR_SILENCE_MAX, PING_AFTER, SILENCE_MAX};
use bramble_wire::message::{
    Bye, Kind, LuBegin, LuFill, LuRows, LuStatus, Reached, decode_error, encode_number,
};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

/// How often silence is looked for.
const TICK: Duration = Duration::from_millis(200);
/// How long after a broken link between two workers the one that is gone has to show it: it is silent then for `SILENCE_MAX`.
const PAIR_PATIENCE: Duration = SILENCE_MAX;
/// Frames that may wait for a link.
const FRAMES_AHEAD: usize = 4;

const _: () = assert!(PAIR_PATIENCE.as_secs() <= NEIGHBOUR_SILENCE_MAX.as_secs());

/// What a worker has said.
pub(super) enum Heard {
    Report(LuStatus),
    Rows(LuRows, Vec<u8>),
    /// Rows of a block column of the factors.
    Columns(LuFill, Vec<u8>),
}

/// What a reading task has to say.
enum Event {
    Heard(Heard),
    Apart(Reached),
    Goodbye(Bye),
    /// The link has ended.
    Ended(String),
    /// The worker has broken a rule, or says why it cannot go on.
    Broken(String),
}

/// One worker.
struct RingPeer {
    name: String,
    known: KnownConnection,
    frames: mpsc::UnboundedSender<Frame>,
    /// Frames with columns: as few as keep the link busy, so that they are read as the link takes them.
    columns: Option<mpsc::Sender<Frame>>,
    writing: JoinHandle<Option<Box<dyn Sender>>>,
    reading: JoinHandle<Option<Box<dyn Receiver>>>,
    /// Bytes that have arrived, and when they were last more than before.
    arriving: Rc<Cell<u64>>,
    seen: (u64, Instant),
    link: LinkFacts,
    /// Its goodbye has come.
    has_parted: bool,
    /// Why its link has ended, or which rule it has broken.
    over: Option<String>,
}

/// The links of a run.
pub(super) struct RingLinks {
    peers: Vec<RingPeer>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    filling: JoinSet<Result<(), PrimaryError>>,
    /// When the last column went to its link, if columns are sent.
    filled: Option<Instant>,
    pinged: Instant,
    /// When silence was last looked for.
    looked: Instant,
    /// Two workers whose link has ended, when, and why.
    apart: Option<(usize, usize, Instant, String)>,
    /// The worker that was lost, and why: its link has ended, or it is silent. Not one that has broken a rule.
    loss: Option<(usize, String)>,
}

impl RingLinks {
    /// Starts the tasks of all links. The queues are bounded: reports by the panels, rows by one transfer at a time.
    pub(super) fn start(sessions: Vec<Session>) -> Self {
        let (to, events) = mpsc::unbounded_channel();
        let peers = sessions.into_iter().enumerate().map(|(at, session)| RingPeer::start(at, session, &to));
        let (peers, filling, pinged) = (peers.collect(), JoinSet::new(), Instant::now());
        Self { peers, events, filling, filled: None, pinged, looked: pinged, apart: None, loss: None }
    }

    pub(super) fn count(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn name(&self, at: usize) -> &str {
        &self.peers[at].name
    }

    /// Queues a frame.
    pub(super) fn send(&self, at: usize, frame: Frame) {
        // A writer that has ended is noticed by its reader.
        let _ = self.peers[at].frames.send(frame);
    }

    pub(super) fn tell_all(&self, kind: Kind, head: &[u8]) {
        (0..self.count()).for_each(|at| self.send(at, Frame::new(kind.code(), head.to_vec(), Body::Empty)));
    }

    /// Sends the columns of a system to their owners, beside all else.
    pub(super) fn fill(&mut self, begin: &LuBegin, a: &Matrix, b: &Matrix) {
        for (at, peer) in self.peers.iter_mut().enumerate() {
            let filler = Filler { begin: begin.clone(), a: a.clone(), b: b.clone(), owner: at };
            if let Some(columns) = peer.columns.take() {
                self.filling.spawn_local(filler.send(columns));
            }
        }
    }

    /// Whether some columns have not gone to their links.
    pub(super) fn is_filling(&self) -> bool {
        !self.filling.is_empty()
    }

    /// When the last column went to its link; `None` before, and if none is sent.
    pub(super) fn filled(&self) -> Option<Instant> {
        self.filled.filter(|_| !self.is_filling())
    }

    /// An error for a message that this run does not expect.
    pub(super) fn out_of_place(&self, at: usize) -> PrimaryError {
        let why = "it sent a message that has no place here".to_owned();
        PrimaryError::Unreachable { name: self.name(at).to_owned(), why }
    }

    /// An error for a message that breaks the rules.
    pub(super) fn broken(&self, at: usize, why: ProtocolError) -> PrimaryError {
        PrimaryError::Unreachable { name: self.name(at).to_owned(), why: why.0 }
    }

    /// The next thing that a worker says; an error if the run cannot go on.
    pub(super) async fn next(&mut self) -> Result<(usize, Heard), PrimaryError> {
        loop {
            match self.event().await? {
                (at, Event::Heard(heard)) => return Ok((at, heard)),
                (at, Event::Goodbye(_)) => return Err(self.out_of_place(at)),
                (at, Event::Ended(why)) => return Err(self.lost(at, why)),
                (at, Event::Broken(why)) => return Err(self.ended(at, &why)),
                (at, Event::Apart(reached)) => {
                    let other = usize::try_from(reached.peer).unwrap_or(usize::MAX);
                    if !reached.is_there && other < self.count() && self.apart.is_none() {
                        self.apart = Some((at, other, Instant::now(), reached.why));
                    }
                }
            }
        }
    }

    /// Keeps the links alive until some work is done. A link that ends meanwhile does not end the work.
    pub(super) async fn alive_during<T>(
        &mut self,
        work: impl Future<Output = Result<T, PrimaryError>>,
    ) -> Result<T, PrimaryError> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                event = self.event() => if event.is_err() {
                    return work.await;
                },
            }
        }
    }

    /// Waits for some work while no worker has anything to say; an error if one is lost, or says something all the same.
    pub(super) async fn quiet_during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, PrimaryError> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            said = self.next() => {
                let (at, _) = said?;
                Err(self.out_of_place(at))
            }
        }
    }

    /// The worker whose loss has ended the run, if a loss has: its name, and why it is lost.
    pub(super) fn loss(&self) -> Option<(&str, &str)> {
        self.loss.as_ref().map(|(at, why)| (self.name(*at), why.as_str()))
    }

    fn lost(&mut self, at: usize, why: String) -> PrimaryError {
        let error = self.ended(at, &why);
        self.loss = Some((at, why));
        error
    }

    fn ended(&self, at: usize, why: &str) -> PrimaryError {
        let why = format!("{why}; its columns are lost, so the run has ended");
        PrimaryError::Unreachable { name: self.name(at).to_owned(), why }
    }

    /// The next event; looks for silence and sends pings meanwhile.
    async fn event(&mut self) -> Result<(usize, Event), PrimaryError> {
        loop {
            // Also where events come faster than this.
            let since = self.looked.elapsed();
            if since >= TICK {
                self.looked = Instant::now();
                self.look()?;
            }
            tokio::select! {
                biased;
                Some(filled) = self.filling.join_next() => match filled {
                    Ok(Ok(())) => self.filled = Some(Instant::now()),
                    Ok(Err(e)) => return Err(e),
                    Err(e) => return Err(PrimaryError::Failed(format!("reading columns: {e}"))),
                },
                event = self.events.recv() => match event {
                    Some((at, event)) => {
                        self.note(at, &event);
                        return Ok((at, event));
                    }
                    None => return Err(PrimaryError::Failed("the links' tasks have ended".to_owned())),
                },
                () = tokio::time::sleep(TICK.saturating_sub(since)) => {}
            }
        }
    }

    fn note(&mut self, at: usize, event: &Event) {
        match event {
            Event::Goodbye(_) => self.peers[at].has_parted = true,
            Event::Ended(why) | Event::Broken(why) => self.peers[at].over = Some(why.clone()),
            Event::Heard(_) | Event::Apart(_) => {}
        }
    }

    /// Sends pings, and looks for workers that have fallen silent.
    fn look(&mut self) -> Result<(), PrimaryError> {
        let now = Instant::now();
        if now.duration_since(self.pinged) >= PING_AFTER / 2 {
            self.pinged = now;
            self.tell_all(Kind::Ping, &encode_number(0));
        }
        for at in 0..self.count() {
            let peer = &mut self.peers[at];
            let come = peer.arriving.get();
            if come != peer.seen.0 {
                peer.seen = (come, now);
            } else if now.duration_since(peer.seen.1) > SILENCE_MAX {
                let why = format!("it has been silent for {} s", SILENCE_MAX.as_secs());
                return Err(self.lost(at, why));
            }
        }
        match &self.apart {
            Some((one, other, since, why)) if now.duration_since(*since) > PAIR_PATIENCE => {
                Err(PrimaryError::Failed(format!(
                    "the link between workers {} and {} has ended: {why}; look at the network between them, and run again",
                    self.name(*one),
                    self.name(*other)
                )))
            }
            _ => Ok(()),
        }
    }

    /// Says goodbye to all workers; the bytes that each received from others.
    pub(super) async fn goodbyes(&mut self) -> Vec<u64> {
        self.tell_all(Kind::Bye, &Bye::default().encode());
        let (mut relayed, mut waiting) = (vec![0; self.count()], self.count());
        let deadline = Instant::now() + GOODBYE;
        while waiting > 0 && Instant::now() < deadline {
            match tokio::time::timeout(GOODBYE, self.event()).await {
                Ok(Ok((at, Event::Goodbye(bye)))) => {
                    relayed[at] = bye.relayed_bytes_in;
                    waiting -= 1;
                }
                // The result is here: a worker that is lost now is named by the next run.
                Ok(Ok(_) | Err(_)) => {}
                Err(_) => break,
            }
        }
        relayed
    }

    /// Says goodbye to the workers of a run that has failed for this reason, but for those that are over: for at most `GOODBYE`,
    /// it waits for their goodbyes.
    pub(super) async fn part(&mut self, failed: &PrimaryError) {
        if let PrimaryError::Unreachable { name, why } = failed
            && let Some(peer) = self.peers.iter_mut().find(|peer| peer.name == *name)
        {
            peer.over.get_or_insert_with(|| why.clone());
        }
        self.filling.shutdown().await;
        for at in (0..self.count()).filter(|at| self.peers[*at].over.is_none()) {
            self.send(at, Frame::new(Kind::Bye.code(), Bye::default().encode(), Body::Empty));
        }
        let deadline = tokio::time::Instant::now() + GOODBYE;
        while self.peers.iter().any(|peer| peer.over.is_none() && !peer.has_parted) {
            // What was under way does not matter any more.
            match tokio::time::timeout_at(deadline, self.events.recv()).await {
                Ok(Some((at, event))) => self.note(at, &event),
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Ends all tasks; the connections of the workers whose goodbyes have come are idle now.
    pub(super) async fn end(self) -> Vec<Result<Connection, LostConnection>> {
        let Self { peers, mut filling, .. } = self;
        filling.shutdown().await;
        let mut ended = Vec::new();
        for peer in peers {
            ended.push(peer.end().await);
        }
        ended
    }
}

impl RingPeer {
    fn start(at: usize, session: Session, to: &mpsc::UnboundedSender<(usize, Event)>) -> Self {
        let Session { link, known, name, .. } = session;
        let (link, sender, receiver) = link.split();
        let (arriving, to) = (receiver.arriving(), to.clone());
        let ((frames, leaving), (columns, filled)) = (mpsc::unbounded_channel(), mpsc::channel(FRAMES_AHEAD));
        Self {
            name,
            known,
            frames,
            columns: Some(columns),
            writing: tokio::task::spawn_local(write(sender, leaving, filled)),
            reading: tokio::task::spawn_local(read(receiver, at, to)),
            seen: (arriving.get(), Instant::now()),
            arriving,
            link,
            has_parted: false,
            over: None,
        }
    }

    /// The connection after both goodbyes. Without them the link is closed.
    async fn end(self) -> Result<Connection, LostConnection> {
        let Self { name, known, frames, columns, writing, reading, link, has_parted, over, .. } = self;
        drop((frames, columns));
        if !has_parted {
            writing.abort();
            reading.abort();
            let why = over.unwrap_or_else(|| "its factorisation was given up".to_owned());
            return Err(LostConnection { name, why });
        }
        let halves = async { (writing.await.ok().flatten(), reading.await.ok().flatten()) };
        match tokio::time::timeout(GOODBYE, halves).await {
            Ok((Some(sender), Some(receiver))) => Ok(idle(link.rejoin(sender, receiver), known)),
            _ => Err(LostConnection { name, why: no_goodbye() }),
        }
    }
}

/// Sends frames in order, and columns when no other frame waits, until the goodbye, or the queue of frames is closed; then
/// returns the sender.
async fn write(
    mut sender: Box<dyn Sender>,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    mut columns: mpsc::Receiver<Frame>,
) -> Option<Box<dyn Sender>> {
    loop {
        let frame = tokio::select! {
            biased;
            frame = frames.recv() => match frame {
                Some(frame) => frame,
                None => return Some(sender),
            },
            Some(frame) = columns.recv() => frame,
        };
        let is_last = frame.kind == Kind::Bye.code();
        sender.send(frame).await.ok()?;
        if is_last {
            return Some(sender);
        }
    }
}

/// Reads until the worker's goodbye, and returns the receiver then.
async fn read(
    mut receiver: Box<dyn Receiver>,
    at: usize,
    to: mpsc::UnboundedSender<(usize, Event)>,
) -> Option<Box<dyn Receiver>> {
    loop {
        let event = match message(&mut *receiver).await {
            Ok(None) => continue,
            Ok(Some(event)) => event,
            Err(event) => event,
        };
        let has_ended = matches!(event, Event::Ended(_) | Event::Broken(_));
        let is_last = matches!(event, Event::Goodbye(_));
        // The run that reads the events has ended if this fails.
        let _ = to.send((at, event));
        if has_ended {
            return None;
        }
        if is_last {
            return Some(receiver);
        }
    }
}

/// The next message that says something; or the event that ends the link.
async fn message(receiver: &mut dyn Receiver) -> Result<Option<Event>, Event> {
    let arrived = receiver.receive(&mut RowsPlacer).await.map_err(|e| match e.is_loss() {
        true => Event::Ended(e.to_string()),
        false => Event::Broken(e.to_string()),
    })?;
    said(arrived).map_err(Event::Broken)
}

/// What a message says.
fn said(arrived: Arrived) -> Result<Option<Event>, String> {
    let head = &arrived.head;
    let kind = Kind::from_code(arrived.kind).map_err(|e| e.0)?;
    Ok(Some(match kind {
        Kind::Pong | Kind::Credit => return Ok(None),
        Kind::LuStatus => Event::Heard(Heard::Report(LuStatus::decode(head).map_err(|e| e.0)?)),
        Kind::LuRows => {
            let rows = LuRows::decode(head).map_err(|e| e.0)?;
            Event::Heard(Heard::Rows(rows, elements(arrived.body)?))
        }
        Kind::LuFill => {
            let rows = LuFill::decode(head).map_err(|e| e.0)?;
            Event::Heard(Heard::Columns(rows, elements(arrived.body)?))
        }
        Kind::Reached => Event::Apart(Reached::decode(head).map_err(|e| e.0)?),
        Kind::Bye => Event::Goodbye(Bye::decode(head).map_err(|e| e.0)?),
        Kind::Error => return Err(decode_error(head).map_err(|e| e.0)?),
        other => return Err(format!("it sent a message of kind {other:?}")),
    }))
}

/// The bytes of rows.
fn elements(body: ArrivedBody) -> Result<Vec<u8>, String> {
    let bytes = match body {
        ArrivedBody::Landed(landing) => landing.into_any().downcast::<Vec<u8>>().ok().map(|body| *body),
        ArrivedBody::Shared(region) => {
            Some((0..region.runs).flat_map(|run| region.run(run)).copied().collect())
        }
        ArrivedBody::Empty | ArrivedBody::Leased(_) => None,
    };
    bytes.ok_or_else(|| "rows without their elements".to_owned())
}

/// Places rows in memory of their own.
struct RowsPlacer;

impl BodyPlacer for RowsPlacer {
    fn place(&mut self, kind: u8, _head: &[u8], body_bytes: usize) -> Result<Box<dyn Landing>, String> {
        match Kind::from_code(kind).map_err(|e| e.0)? {
            Kind::LuRows | Kind::LuFill => Ok(Box::new(vec![0; body_bytes])),
            Kind::Pong => Ok(Box::new(DiscardedBody::new(body_bytes))),
            other => Err(format!("a message of kind {other:?} came with a body")),
        }
    }
}
