//! Introduces workers to each other, so that the primary sends a panel once and workers relay it.
//!
//! Place in the flow: after the plan, before the product. One worker of each pair listens and the other dials; both report the
//! result. Listeners are told first, and no worker dials before all listeners have answered a ping that followed their orders.
//!
//! Invariants: a pair counts only if both workers report a link. Every pair has a key and a ticket of its own. A pair that
//! fails costs a few seconds at most, is named, and gets its panels from the primary. A worker that is lost
//! meanwhile has no neighbours, and the product runs without it.
//!
//! Deliberately absent: the choice of the pairs (`plan/src/neighbours.rs`) and their use (the schedule decides), and links that
//! break later (`run`).

use crate::PrimaryError;
use crate::links::{RelayReport, Unreachable};
use crate::opening::Session;
use bramble_link::{Body, Frame, LinkError, NoBodies};
use bramble_plan::{Plan, neighbour_pairs};
use bramble_wire::ProtocolError;
use bramble_wire::limits::{NEIGHBOURS_DEADLINE, NEIGHBOURS_MAX, WELCOME_DEADLINE};
use bramble_wire::message::{Kind, Neighbour, Reached, decode_error, encode_number};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Fills bytes with random numbers that cannot be guessed.
pub type SecretSource = fn(&mut [u8]) -> io::Result<()>;

/// The sessions of a plan's members, and the neighbours that each has a link with.
pub struct ConnectedPeers {
    /// The sessions, in the order in which they were passed in.
    pub sessions: Vec<Session>,
    /// For each the others with which it has a link.
    pub neighbours: Vec<Vec<usize>>,
    /// Why a session ended meanwhile.
    pub dead: Vec<Option<IntroductionEnd>>,
    /// For the report.
    pub report: RelayReport,
}

impl ConnectedPeers {
    /// Adds sessions without work in the plan, which have no links to other workers.
    pub fn add_reserve(&mut self, reserve: Option<Session>) {
        self.sessions.extend(reserve);
        self.neighbours.resize(self.sessions.len(), Vec::new());
        self.dead.resize(self.sessions.len(), None);
    }
}

/// Why a worker's session ended while it was introduced.
#[derive(Clone, Debug)]
pub struct IntroductionEnd {
    /// The reason.
    pub why: String,
    /// Whether the worker was lost: its link ended, or it was silent. Else it has broken a rule, or refused.
    pub is_loss: bool,
}

impl IntroductionEnd {
    fn lost(why: String) -> Self {
        Self { why, is_loss: true }
    }

    fn broken(why: String) -> Self {
        Self { why, is_loss: false }
    }
}

impl From<LinkError> for IntroductionEnd {
    fn from(e: LinkError) -> Self {
        Self { why: e.to_string(), is_loss: e.is_loss() }
    }
}

impl From<ProtocolError> for IntroductionEnd {
    fn from(e: ProtocolError) -> Self {
        Self::broken(e.0)
    }
}

/// Two workers that are to link with each other.
struct Pair {
    dialler: PairSide,
    listener: PairSide,
    address: SocketAddr,
    key: [u8; 20],
    ticket: [u8; 16],
}

/// One worker of a pair.
struct PairSide {
    member: usize,
    /// The result that it reported, if it has.
    says: Option<Result<(), String>>,
}

/// State shared by the tasks of all members.
struct Introductions {
    pairs: Vec<Pair>,
    /// Messages to each member; `None` when no more will be sent.
    inboxes: Vec<Option<mpsc::UnboundedSender<Frame>>>,
    /// Members that have not answered the first ping.
    unready: Vec<usize>,
    /// Members that have not reported all their pairs.
    busy: Vec<usize>,
}

/// Which workers are introduced to each other.
#[derive(Clone, Copy)]
pub enum Pairing<'a> {
    /// Pairs that may relay panels of this plan.
    Plan(&'a Plan),
    /// Each with the next one, and the last with the first.
    Ring,
    /// These pairs.
    Stated(&'a [(usize, usize)]),
}

/// Introduces workers to each other; `sessions` are in the order of the plan's members, or of the ring. Must run inside a
/// `tokio::task::LocalSet`.
pub async fn introduce(
    pairing: Pairing<'_>,
    sessions: Vec<Session>,
    random: SecretSource,
) -> Result<ConnectedPeers, PrimaryError> {
    let (pairs, mut unreachable) = pairs(pairing, &sessions, random)?;
    let names: Vec<String> = sessions.iter().map(|s| s.name.clone()).collect();
    let mut neighbours = vec![Vec::new(); sessions.len()];
    let (sessions, dead, pairs) = establish_links(sessions, pairs).await?;
    for pair in pairs {
        let (dialler, listener) = (pair.dialler.member, pair.listener.member);
        match (pair.dialler.says, pair.listener.says) {
            (Some(Ok(())), Some(Ok(()))) => {
                neighbours[dialler].push(listener);
                neighbours[listener].push(dialler);
            }
            (Some(Err(why)), _) | (_, Some(Err(why))) => unreachable.push((dialler, listener, why)),
            _ => unreachable.push((dialler, listener, "they did not report a result".to_owned())),
        }
    }
    let pairs = neighbours.iter().map(Vec::len).sum::<usize>() / 2;
    let named = |(from, to, why): Unlinked| {
        let name = |member: usize| names.get(member).cloned().unwrap_or_default();
        Unreachable { from: name(from), to: name(to), why }
    };
    let report = RelayReport { pairs, unreachable: unreachable.into_iter().map(named).collect() };
    Ok(ConnectedPeers { sessions, neighbours, dead, report })
}

/// Two members that cannot be introduced, and why.
type Unlinked = (usize, usize, String);

/// The pairs of members that are to link, each with its secrets; and the pairs of which neither member can be
/// dialled.
fn pairs(
    pairing: Pairing<'_>,
    sessions: &[Session],
    random: SecretSource,
) -> Result<(Vec<Pair>, Vec<Unlinked>), PrimaryError> {
    let no_random = |e| PrimaryError::Failed(format!("no random numbers: {e}"));
    let (mut pairs, mut not, mut dials) = (Vec::new(), Vec::new(), Vec::new());
    let mut can_link = |i: usize, j: usize| {
        let (Some(first), Some(second)) = (sessions.get(i), sessions.get(j)) else { return false };
        // Threads of this process, and processes that were started with a link, have no addresses.
        if first.link.addresses.is_none() || second.link.addresses.is_none() {
            return false;
        }
        let dialler = choose_dialler(first, second);
        if dialler.is_none() {
            let why =
                "both have dialled in, or are behind another machine's loopback: neither can be dialled";
            not.push((i, j, why.to_owned()));
        }
        dials.extend(dialler);
        dialler.is_some()
    };
    let chosen = match pairing {
        Pairing::Plan(plan) => neighbour_pairs(&plan.members, NEIGHBOURS_MAX, can_link),
        Pairing::Ring => ring_pairs(sessions.len()).filter(|(i, j)| can_link(*i, *j)).collect(),
        Pairing::Stated(pairs) => pairs.iter().copied().filter(|(i, j)| can_link(*i, *j)).collect(),
    };
    for ((i, j), (dials, address)) in chosen.into_iter().zip(dials) {
        let (mut key, mut ticket) = ([0; 20], [0; 16]);
        random(&mut key).and_then(|()| random(&mut ticket)).map_err(no_random)?;
        let side = |member| PairSide { member, says: None };
        let (dialler, listener) = if dials == Dials::First { (side(i), side(j)) } else { (side(j), side(i)) };
        pairs.push(Pair { dialler, listener, address, key, ticket });
    }
    Ok((pairs, not))
}

/// The pairs of a ring, each once.
fn ring_pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let around = (count > 2).then_some((0, count.saturating_sub(1)));
    (1..count).map(|second| (second - 1, second)).chain(around)
}

/// Which worker of a pair dials.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dials {
    First,
    Second,
}

/// Which worker of a pair dials, and the address. A worker that the primary could dial is likely to be reachable for other
/// workers, too; if both are, the first dials. A loopback address is valid only for workers on that loopback.
fn choose_dialler(first: &Session, second: &Session) -> Option<(Dials, SocketAddr)> {
    let on_loopback =
        |s: &Session| s.link.addresses.is_some_and(|a| a.there.ip().to_canonical().is_loopback());
    let reaches = |dialler: &Session, listener: &Session| {
        listener.door.filter(|door| !door.ip().to_canonical().is_loopback() || on_loopback(dialler))
    };
    let (to_second, to_first) = (reaches(first, second), reaches(second, first));
    match (to_second, to_first) {
        (Some(door), None) => Some((Dials::First, door)),
        (None, Some(door)) => Some((Dials::Second, door)),
        (Some(_), Some(door)) if first.known.was_dialled && !second.known.was_dialled => {
            Some((Dials::Second, door))
        }
        (Some(door), Some(_)) => Some((Dials::First, door)),
        (None, None) => None,
    }
}

/// Introduces all pairs, and collects the results.
async fn establish_links(
    sessions: Vec<Session>,
    pairs: Vec<Pair>,
) -> Result<(Vec<Session>, Vec<Option<IntroductionEnd>>, Vec<Pair>), PrimaryError> {
    let mut inboxes: Vec<_> = sessions.iter().map(|_| None).collect();
    let takes_part = |member: usize| pairs.iter().any(|p| p.side(member).is_some());
    let unready: Vec<usize> = (0..sessions.len()).filter(|member| takes_part(*member)).collect();
    let mut frames = Vec::new();
    for member in &unready {
        // Bounded by the pairs: two messages for each, and two pings.
        let (to, from) = mpsc::unbounded_channel();
        inboxes[*member] = Some(to);
        frames.push(from);
    }
    let busy = unready.clone();
    let introductions =
        Rc::new(RefCell::new(Introductions { pairs, inboxes, unready: unready.clone(), busy }));
    introductions.borrow().introduce_listeners();
    let mut attending = JoinSet::new();
    let mut dead = vec![None; sessions.len()];
    let mut slots: Vec<Option<Session>> = sessions.into_iter().map(Some).collect();
    for (member, frames) in unready.into_iter().zip(frames) {
        let Some(mut session) = slots[member].take() else { continue };
        let introductions = introductions.clone();
        attending.spawn_local(async move {
            let ended = serve_member(&mut session, member, frames, &introductions).await;
            if ended.is_err() {
                introductions.borrow_mut().member_lost(member);
            }
            (member, session, ended.err())
        });
    }
    while let Some(attended) = attending.join_next().await {
        let what = |e| PrimaryError::Failed(format!("introducing workers: {e}"));
        let (member, session, why) = attended.map_err(what)?;
        (slots[member], dead[member]) = (Some(session), why);
    }
    let pairs = std::mem::take(&mut introductions.borrow_mut().pairs);
    Ok((slots.into_iter().flatten().collect(), dead, pairs))
}

/// Serves one member: sends its messages, and reads until it has reported all its pairs.
async fn serve_member(
    session: &mut Session,
    member: usize,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    introductions: &RefCell<Introductions>,
) -> Result<(), IntroductionEnd> {
    let (sender, receiver) = (&mut session.link.sender, &mut session.link.receiver);
    let reading = async {
        while !introductions.borrow().has_reported_all(member) {
            let arrived = receiver.receive(&mut NoBodies).await?;
            match Kind::from_code(arrived.kind)? {
                Kind::Pong => introductions.borrow_mut().member_ready(member),
                Kind::Reached => {
                    let reached = Reached::decode(&arrived.head)?;
                    introductions.borrow_mut().link_reported(member, reached);
                }
                Kind::Error => return Err(IntroductionEnd::broken(decode_error(&arrived.head)?)),
                other => {
                    let why = format!("it was introduced to others and answered with {other:?}");
                    return Err(IntroductionEnd::broken(why));
                }
            }
        }
        introductions.borrow_mut().member_done(member);
        Ok(())
    };
    let writing = async {
        while let Some(frame) = frames.recv().await {
            sender.send(frame).await?;
        }
        Ok::<(), IntroductionEnd>(())
    };
    let late = async {
        tokio::time::sleep(WELCOME_DEADLINE).await;
        if introductions.borrow().unready.contains(&member) {
            return format!("it did not answer within {} s", WELCOME_DEADLINE.as_secs());
        }
        let deadline = WELCOME_DEADLINE + NEIGHBOURS_DEADLINE;
        tokio::time::sleep(deadline).await;
        if !introductions.borrow().has_reported_all(member) {
            return format!("it did not report within {} s which workers it reaches", deadline.as_secs());
        }
        // The delay is another member's; this task ends together with that member's.
        std::future::pending().await
    };
    tokio::select! {
        ended = async { tokio::try_join!(reading, writing) } => ended.map(|_| ()),
        why = late => Err(IntroductionEnd::lost(why)),
    }
}

impl Pair {
    fn side(&self, member: usize) -> Option<&PairSide> {
        [&self.dialler, &self.listener].into_iter().find(|side| side.member == member)
    }

    /// The member's side of the pair, and the other worker's.
    fn sides(&mut self, member: usize) -> Option<(&mut PairSide, &mut PairSide)> {
        let Self { dialler, listener, .. } = self;
        match member {
            m if m == dialler.member => Some((dialler, listener)),
            m if m == listener.member => Some((listener, dialler)),
            _ => None,
        }
    }

    fn neighbour(&self, me: usize) -> Option<Neighbour> {
        let dials = me == self.dialler.member;
        let other = if dials { self.listener.member } else { self.dialler.member };
        Some(Neighbour {
            peer: u32::try_from(other).ok()?,
            me: u32::try_from(me).ok()?,
            dials,
            key: self.key,
            ticket: self.ticket,
            address: if dials { self.address.to_string() } else { String::new() },
        })
    }
}

impl Introductions {
    fn send(&self, member: usize, kind: Kind, head: Vec<u8>) {
        if let Some(Some(inbox)) = self.inboxes.get(member) {
            // The error does not matter: a lost member's task has ended.
            let _ = inbox.send(Frame::new(kind.code(), head, Body::Empty));
        }
    }

    fn send_introduction(&self, pair: &Pair, member: usize) {
        if let Some(neighbour) = pair.neighbour(member) {
            self.send(member, Kind::Neighbour, neighbour.encode());
        }
    }

    fn ping_all(&self, nonce: u64) {
        (0..self.inboxes.len()).for_each(|member| self.send(member, Kind::Ping, encode_number(nonce)));
    }

    /// Sends the listeners their orders, and pings all to learn when they have read them.
    fn introduce_listeners(&self) {
        self.pairs.iter().for_each(|pair| self.send_introduction(pair, pair.listener.member));
        self.ping_all(0);
    }

    /// A member has answered its ping. After the last answer the diallers get their orders.
    fn member_ready(&mut self, member: usize) {
        let before = self.unready.len();
        self.unready.retain(|other| *other != member);
        if before == 0 || !self.unready.is_empty() {
            return;
        }
        for pair in &mut self.pairs {
            // A listener that does not relay has reported that by now.
            if let Some(Err(why)) = &pair.listener.says {
                pair.dialler.says = Some(Err(why.clone()));
            }
        }
        self.pairs
            .iter()
            .filter(|p| p.dialler.says.is_none())
            .for_each(|p| self.send_introduction(p, p.dialler.member));
        // A member that has nothing to dial answers this ping instead.
        self.ping_all(1);
    }

    /// A member reports whether it has a link with another. If not, the other worker need not wait, and drops its end.
    fn link_reported(&mut self, member: usize, reached: Reached) {
        let Reached { peer, is_there, why } = reached;
        let other = usize::try_from(peer).unwrap_or(usize::MAX);
        let all_told = self.unready.is_empty();
        let pair = self.pairs.iter_mut().find(|p| p.side(member).is_some() && p.side(other).is_some());
        let Some((own, others)) = pair.and_then(|p| p.sides(member)) else { return };
        if own.says.as_ref().is_some_and(|says| says.is_err()) {
            return;
        }
        own.says = Some(if is_there { Ok(()) } else { Err(why) });
        // A dialler without orders will not get any, so it needs no message.
        if !is_there && all_told && !matches!(others.says, Some(Err(_))) {
            self.send_parted(other, member);
        }
    }

    /// Whether a member has reported all its pairs.
    fn has_reported_all(&self, member: usize) -> bool {
        let silent = |side: &PairSide| side.says.is_none();
        !self.unready.contains(&member) && !self.pairs.iter().filter_map(|p| p.side(member)).any(silent)
    }

    /// A member is lost: its pairs count as failed.
    fn member_lost(&mut self, member: usize) {
        if let Some(inbox) = self.inboxes.get_mut(member) {
            *inbox = None;
        }
        let all_told = self.unready.is_empty();
        let mut waiting = Vec::new();
        for pair in &mut self.pairs {
            let is_dialler = pair.dialler.member == member;
            let Some((own, other)) = pair.sides(member) else { continue };
            own.says = Some(Err("it was lost".to_owned()));
            // A dialler without orders will not get any, so it needs no message.
            if (all_told || is_dialler) && !matches!(other.says, Some(Err(_))) {
                waiting.push(other.member);
            }
        }
        waiting.into_iter().for_each(|other| self.send_parted(other, member));
        self.member_ready(member);
        self.member_done(member);
    }

    /// A member has reported all its pairs; after the last member, nothing more is sent.
    fn member_done(&mut self, member: usize) {
        self.busy.retain(|other| *other != member);
        if self.busy.is_empty() {
            self.inboxes.clear();
        }
    }

    /// Tells a member that its link with another has failed.
    fn send_parted(&self, member: usize, other: usize) {
        if let Ok(peer) = u32::try_from(other) {
            self.send(member, Kind::Reached, Reached { peer, is_there: false, why: String::new() }.encode());
        }
    }
}
