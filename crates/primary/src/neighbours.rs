//! Introducing workers to each other, so that a panel leaves the primary once and they pass it on.
//!
//! Place in the flow: after the plan, before the product. One end of each pair waits and the other dials; both say how it
//! went. Those who wait are told first, and nobody dials before all of them have answered a ping behind that.
//!
//! Invariants: a pair counts only if both ends say that they have a link. Every pair has a key and a ticket of its own. A
//! pair that does not come about costs a few seconds at most, is named, and is served by the primary. A worker that is lost
//! meanwhile has no neighbours, and the product goes on without it.
//!
//! Deliberately absent: what the pairs are for (the schedule decides), and links that break later (`run`).

use crate::PrimaryError;
use crate::account::{RelayReport, Unreachable};
use crate::opening::Session;
use bramble_link::{Body, Frame, NoBodies};
use bramble_plan::Plan;
use bramble_schedule::limits::{NEIGHBOURS_DEADLINE, NEIGHBOURS_MAX, WELCOME_DEADLINE};
use bramble_schedule::message::{Kind, Neighbour, Reached, decode_error, encode_number};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Fills bytes with what nobody can guess.
pub type Random = fn(&mut [u8]) -> io::Result<()>;

/// The sessions of a plan's members, and whom each of them has a link with.
pub(crate) struct Met {
    pub(crate) sessions: Vec<Session>,
    pub(crate) neighbours: Vec<Vec<usize>>,
    /// Why a session came to its end meanwhile.
    pub(crate) dead: Vec<Option<String>>,
    pub(crate) report: RelayReport,
}

/// Two workers that are to find each other.
struct Pair {
    dialler: Side,
    listener: Side,
    address: SocketAddr,
    key: [u8; 20],
    ticket: [u8; 16],
}

/// One of the two.
struct Side {
    member: usize,
    /// What it says of the link, once it has.
    says: Option<Result<(), String>>,
}

/// What the tasks of all members share.
struct Board {
    pairs: Vec<Pair>,
    /// What is to be sent to each member; `None` when all is over.
    inboxes: Vec<Option<mpsc::UnboundedSender<Frame>>>,
    /// Members that have not answered the first ping.
    unready: Vec<usize>,
    /// Members that have more to say.
    busy: Vec<usize>,
}

/// Introduces the members of a plan to each other, the sessions being in their order. Has to run inside a
/// `tokio::task::LocalSet`.
pub(crate) async fn introduce(
    plan: &Plan,
    sessions: Vec<Session>,
    random: Random,
) -> Result<Met, PrimaryError> {
    let (pairs, mut unreachable) = pairs(plan, &sessions, random)?;
    let names: Vec<String> = sessions.iter().map(|s| s.name.clone()).collect();
    let mut neighbours = vec![Vec::new(); sessions.len()];
    let (sessions, dead, pairs) = meet(sessions, pairs).await?;
    for pair in pairs {
        let (dialler, listener) = (pair.dialler.member, pair.listener.member);
        match (pair.dialler.says, pair.listener.says) {
            (Some(Ok(())), Some(Ok(()))) => {
                neighbours[dialler].push(listener);
                neighbours[listener].push(dialler);
            }
            (Some(Err(why)), _) | (_, Some(Err(why))) => unreachable.push((dialler, listener, why)),
            _ => unreachable.push((dialler, listener, "they did not say".to_owned())),
        }
    }
    let pairs = neighbours.iter().map(Vec::len).sum::<usize>() / 2;
    let named = |(from, to, why): Apart| {
        let name = |member: usize| names.get(member).cloned().unwrap_or_default();
        Unreachable { from: name(from), to: name(to), why }
    };
    let report = RelayReport { pairs, unreachable: unreachable.into_iter().map(named).collect() };
    Ok(Met { sessions, neighbours, dead, report })
}

/// Two members that cannot be introduced, and why.
type Apart = (usize, usize, String);

/// Those who may have panels in common, with secrets of their own; and those of them who cannot be introduced: who, to
/// whom, why.
fn pairs(plan: &Plan, sessions: &[Session], random: Random) -> Result<(Vec<Pair>, Vec<Apart>), PrimaryError> {
    let no_random = |e| PrimaryError::Failed(format!("no random numbers: {e}"));
    let (mut pairs, mut not) = (Vec::new(), Vec::new());
    let mut counts = vec![0; sessions.len()];
    for (j, second) in sessions.iter().enumerate() {
        for (i, first) in sessions.iter().enumerate().take(j) {
            // Threads of this process, and processes that it was linked with when they were started, have no addresses.
            let may_meet = first.link.addresses.is_some() && second.link.addresses.is_some();
            let is_full = counts[i] >= NEIGHBOURS_MAX || counts[j] >= NEIGHBOURS_MAX;
            let members = (plan.members.get(i), plan.members.get(j));
            let (Some(one), Some(other)) = members else { continue };
            if !may_meet || is_full || sessions.len() > NEIGHBOURS_MAX && !one.may_share(other) {
                continue;
            }
            let Some((dials, address)) = way(first, second) else {
                let why =
                    "both have dialled in, or are behind another machine's loopback: neither can be dialled";
                not.push((i, j, why.to_owned()));
                continue;
            };
            counts[i] += 1;
            counts[j] += 1;
            let (mut key, mut ticket) = ([0; 20], [0; 16]);
            random(&mut key).and_then(|()| random(&mut ticket)).map_err(no_random)?;
            let side = |member| Side { member, says: None };
            let (dialler, listener) =
                if dials == Dials::First { (side(i), side(j)) } else { (side(j), side(i)) };
            pairs.push(Pair { dialler, listener, address, key, ticket });
        }
    }
    Ok((pairs, not))
}

/// Which of two dials.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dials {
    First,
    Second,
}

/// Who of two dials the other, and where. Where the primary got through itself, others are likely to; else the one whose
/// number is lower dials. An address of loopback means something to those on loopback alone.
fn way(first: &Session, second: &Session) -> Option<(Dials, SocketAddr)> {
    let on_loopback =
        |s: &Session| s.link.addresses.is_some_and(|a| a.there.ip().to_canonical().is_loopback());
    let reaches = |dialler: &Session, listener: &Session| {
        listener.door.filter(|door| !door.ip().to_canonical().is_loopback() || on_loopback(dialler))
    };
    let (to_second, to_first) = (reaches(first, second), reaches(second, first));
    match (to_second, to_first) {
        (Some(door), None) => Some((Dials::First, door)),
        (None, Some(door)) => Some((Dials::Second, door)),
        (Some(_), Some(door)) if first.was_dialled && !second.was_dialled => Some((Dials::Second, door)),
        (Some(door), Some(_)) => Some((Dials::First, door)),
        (None, None) => None,
    }
}

/// Has all pairs meet, and takes what they say.
async fn meet(
    sessions: Vec<Session>,
    pairs: Vec<Pair>,
) -> Result<(Vec<Session>, Vec<Option<String>>, Vec<Pair>), PrimaryError> {
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
    let board = Rc::new(RefCell::new(Board { pairs, inboxes, unready: unready.clone(), busy }));
    board.borrow().tell_listeners();
    let mut attending = JoinSet::new();
    let mut dead = vec![None; sessions.len()];
    let mut slots: Vec<Option<Session>> = sessions.into_iter().map(Some).collect();
    for (member, frames) in unready.into_iter().zip(frames) {
        let Some(mut session) = slots[member].take() else { continue };
        let board = board.clone();
        attending.spawn_local(async move {
            let ended = attend(&mut session, member, frames, &board).await;
            if ended.is_err() {
                board.borrow_mut().gone(member);
            }
            (member, session, ended.err())
        });
    }
    while let Some(attended) = attending.join_next().await {
        let what = |e| PrimaryError::Failed(format!("introducing workers: {e}"));
        let (member, session, why) = attended.map_err(what)?;
        (slots[member], dead[member]) = (Some(session), why);
    }
    let pairs = std::mem::take(&mut board.borrow_mut().pairs);
    Ok((slots.into_iter().flatten().collect(), dead, pairs))
}

/// One member: sends what the board has for it, and reads until it has said all.
async fn attend(
    session: &mut Session,
    member: usize,
    mut frames: mpsc::UnboundedReceiver<Frame>,
    board: &RefCell<Board>,
) -> Result<(), String> {
    let (sender, receiver) = (&mut session.link.sender, &mut session.link.receiver);
    let reading = async {
        while !board.borrow().has_said_all(member) {
            let arrived = receiver.receive(&mut NoBodies).await.map_err(|e| e.to_string())?;
            match Kind::from_code(arrived.kind).map_err(|e| e.0)? {
                Kind::Pong => board.borrow_mut().ready(member),
                Kind::Reached => {
                    let reached = Reached::decode(&arrived.head).map_err(|e| e.0)?;
                    board.borrow_mut().said(member, reached);
                }
                Kind::Error => return Err(decode_error(&arrived.head).map_err(|e| e.0)?),
                other => return Err(format!("it was introduced to others and answered with {other:?}")),
            }
        }
        board.borrow_mut().has_said(member);
        Ok(())
    };
    let writing = async {
        while let Some(frame) = frames.recv().await {
            sender.send(frame).await.map_err(|e| e.to_string())?;
        }
        Ok::<(), String>(())
    };
    let late = async {
        tokio::time::sleep(WELCOME_DEADLINE).await;
        if board.borrow().unready.contains(&member) {
            return format!("it did not answer within {} s", WELCOME_DEADLINE.as_secs());
        }
        let deadline = WELCOME_DEADLINE + NEIGHBOURS_DEADLINE;
        tokio::time::sleep(deadline).await;
        if !board.borrow().has_said_all(member) {
            return format!("it did not say within {} s which workers it reaches", deadline.as_secs());
        }
        // It is others who are late; this ends with them.
        std::future::pending().await
    };
    tokio::select! {
        ended = async { tokio::try_join!(reading, writing) } => ended.map(|_| ()),
        why = late => Err(why),
    }
}

impl Pair {
    fn side(&self, member: usize) -> Option<&Side> {
        [&self.dialler, &self.listener].into_iter().find(|side| side.member == member)
    }

    /// The one with that number, and the other.
    fn sides(&mut self, member: usize) -> Option<(&mut Side, &mut Side)> {
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

impl Board {
    fn send(&self, member: usize, kind: Kind, head: Vec<u8>) {
        if let Some(Some(inbox)) = self.inboxes.get(member) {
            // A member that is gone ends all of this.
            let _ = inbox.send(Frame::new(kind.code(), head, Body::Empty));
        }
    }

    fn tell(&self, pair: &Pair, member: usize) {
        if let Some(neighbour) = pair.neighbour(member) {
            self.send(member, Kind::Neighbour, neighbour.encode());
        }
    }

    fn ping_all(&self, nonce: u64) {
        (0..self.inboxes.len()).for_each(|member| self.send(member, Kind::Ping, encode_number(nonce)));
    }

    /// Those who wait are told, and asked to say that they have heard.
    fn tell_listeners(&self) {
        self.pairs.iter().for_each(|pair| self.tell(pair, pair.listener.member));
        self.ping_all(0);
    }

    /// A member has heard. After the last one, the others are told.
    fn ready(&mut self, member: usize) {
        let before = self.unready.len();
        self.unready.retain(|other| *other != member);
        if before == 0 || !self.unready.is_empty() {
            return;
        }
        for pair in &mut self.pairs {
            // Whoever does not relay has said so by now.
            if let Some(Err(why)) = &pair.listener.says {
                pair.dialler.says = Some(Err(why.clone()));
            }
        }
        self.pairs.iter().filter(|p| p.dialler.says.is_none()).for_each(|p| self.tell(p, p.dialler.member));
        // Those who have nobody to dial any more get something to answer.
        self.ping_all(1);
    }

    /// A member has said whether it reaches another. Where it does not, the other need not wait, and keeps no link.
    fn said(&mut self, member: usize, reached: Reached) {
        let Reached { peer, is_there, why } = reached;
        let other = usize::try_from(peer).unwrap_or(usize::MAX);
        let all_told = self.unready.is_empty();
        let pair = self.pairs.iter_mut().find(|p| p.side(member).is_some() && p.side(other).is_some());
        let Some((own, others)) = pair.and_then(|p| p.sides(member)) else { return };
        if own.says.as_ref().is_some_and(|says| says.is_err()) {
            return;
        }
        own.says = Some(if is_there { Ok(()) } else { Err(why) });
        // Whoever has not been told to dial will not be.
        if !is_there && all_told && !matches!(others.says, Some(Err(_))) {
            self.part(other, member);
        }
    }

    /// Whether a member has said of all its pairs how they went.
    fn has_said_all(&self, member: usize) -> bool {
        let silent = |side: &Side| side.says.is_none();
        !self.unready.contains(&member) && !self.pairs.iter().filter_map(|p| p.side(member)).any(silent)
    }

    /// A member is lost: nobody waits for it any more.
    fn gone(&mut self, member: usize) {
        if let Some(inbox) = self.inboxes.get_mut(member) {
            *inbox = None;
        }
        let all_told = self.unready.is_empty();
        let mut waiting = Vec::new();
        for pair in &mut self.pairs {
            let is_dialler = pair.dialler.member == member;
            let Some((own, other)) = pair.sides(member) else { continue };
            own.says = Some(Err("it was lost".to_owned()));
            // Whoever has not been told to dial will not be.
            if (all_told || is_dialler) && !matches!(other.says, Some(Err(_))) {
                waiting.push(other.member);
            }
        }
        waiting.into_iter().for_each(|other| self.part(other, member));
        self.ready(member);
        self.has_said(member);
    }

    /// A member has said all; after the last one, nothing more is sent.
    fn has_said(&mut self, member: usize) {
        self.busy.retain(|other| *other != member);
        if self.busy.is_empty() {
            self.inboxes.clear();
        }
    }

    /// Tells a member that the other has no link.
    fn part(&self, member: usize, other: usize) {
        if let Ok(peer) = u32::try_from(other) {
            self.send(member, Kind::Reached, Reached { peer, is_there: false, why: String::new() }.encode());
        }
    }
}
