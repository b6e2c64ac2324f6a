//! The primary in a trial: its state machine, C, and where results land.
//!
//! Place in the flow: does what the primary's shell does (crates/primary/src/run), with elements.
//!
//! Invariants: a part of C is lent once; what is landing of a machine is dropped before the state machine hears that it is
//! lost; of what it had put aside only whole sums stay.

use super::links::{After, Body, Frame, Item};
use super::matter::{GARBAGE, places};
use super::node::decoded;
use super::{Happening, Trial};
use bramble_matrix::{Layout, Rect, Span};
use bramble_schedule::message::{
    Generated, Kind, Missing, Reached, ResultHead, Source, decode_error, decode_number, encode_forwards,
    encode_number,
};
use bramble_schedule::primary::{Action, Destination, Event, Outgoing, Place, Which};
use std::collections::BTreeMap;

/// A result that does not land in C.
pub(super) struct Aside {
    rect: Rect,
    elements: Vec<f64>,
    is_whole: bool,
    is_staged: bool,
}

/// What the shell knows of a machine.
#[derive(Default)]
pub(super) struct Session {
    /// Nothing is sent any more.
    is_closed: bool,
    /// Its reader has been told to end.
    pub(super) is_cut: bool,
    /// Its reader has ended.
    pub(super) is_gone: bool,
    why: Option<String>,
    /// Where the frame that is landing does.
    place: Option<Destination>,
}

/// The primary's memory.
pub(super) struct Shell {
    pub(super) c: Vec<f64>,
    /// Parts of C that somebody has: machines that share memory, and tiles of which some lines have landed.
    lent: Vec<Rect>,
    partial: BTreeMap<(usize, u32), Rect>,
    pub(super) asides: BTreeMap<(usize, u32), Aside>,
    pub(super) sessions: Vec<Session>,
    /// What has been committed, by element.
    pub(super) committed: Vec<bool>,
    /// All tiles were there when C was looked at last, and it was found right.
    pub(super) finished: bool,
    pub(super) failed: Option<String>,
}

impl Shell {
    pub(super) fn new(elements: usize, peers: usize) -> Self {
        Self {
            c: vec![GARBAGE; elements],
            lent: Vec::new(),
            partial: BTreeMap::new(),
            asides: BTreeMap::new(),
            sessions: (0..peers).map(|_| Session::default()).collect(),
            committed: vec![false; elements],
            finished: false,
            failed: None,
        }
    }

    pub(super) fn lend(&mut self, rect: Rect) {
        self.check_that_nobody_has(rect);
        self.lent.push(rect);
    }

    fn check_that_nobody_has(&self, rect: Rect) {
        assert!(self.lent.iter().all(|lent| lent.disjoint(rect)), "{rect} of C is lent to another");
    }

    pub(super) fn take_back(&mut self, rect: Rect) {
        let at = self.lent.iter().position(|lent| *lent == rect);
        self.lent.swap_remove(at.unwrap_or_else(|| panic!("{rect} of C was not lent")));
    }

    /// Elements of sums that wait, and of tiles that are staged.
    pub(super) fn aside_elements(&self) -> (u64, u64) {
        let of = |staged: bool| {
            let all = self.asides.values().filter(|aside| aside.is_staged == staged);
            all.map(|aside| aside.elements.len() as u64).sum()
        };
        (of(false), of(true))
    }

    /// How many tiles of a machine are staged.
    pub(super) fn staged_of(&self, peer: usize) -> usize {
        self.asides.iter().filter(|((from, _), aside)| *from == peer && aside.is_staged).count()
    }
}

impl Trial {
    /// The time that the primary has run.
    pub(super) fn time(&mut self) -> std::time::Duration {
        self.clock.look(self.watch.shows(self.agenda.now()))
    }

    /// One event through the primary's state, and what comes of it.
    pub(super) fn tell(&mut self, event: Event) {
        let is_new = matches!(event, Event::Lost { .. } | Event::Joined(_));
        let now = self.time();
        for action in self.primary.handle(event, now) {
            self.carry_out(action);
        }
        self.check(is_new);
    }

    fn carry_out(&mut self, action: Action) {
        if let Action::Send(peer, _) | Action::Relay(peer, _) | Action::Parted { peer, .. } = &action {
            assert!(!self.shell.sessions[*peer].is_gone, "something is sent to w{peer}, which is gone");
        }
        let none = After::Nothing;
        match action {
            Action::Send(peer, message) => {
                let body = self.body(&message);
                let after = After::Sent(message.wire_bytes());
                self.jobs_sent[peer] += multiplications(&message);
                self.say(peer, Kind::Store, message.head.encode(), body, after);
            }
            Action::Relay(peer, forwards) => {
                self.say(peer, Kind::Relay, encode_forwards(&forwards), Body::Empty, none);
            }
            Action::Parted { peer, other } => {
                let reached = Reached { peer: other as u32, is_there: false, why: String::new() };
                self.say(peer, Kind::Reached, reached.encode(), Body::Empty, none);
            }
            Action::Ping(peer, nonce) => self.say(peer, Kind::Ping, encode_number(nonce), Body::Empty, none),
            Action::Cut { peer, why } => self.cut(peer, why),
            Action::Put { peer, tile, rect } => {
                let aside = self.whole_aside(peer, tile, rect, true);
                let to = places(rect, self.matter.p.n).zip(aside.elements);
                to.for_each(|(place, element)| self.shell.c[place] = element);
            }
            Action::Merge { peer, tile, rect } => {
                self.seen.left_behind += u64::from(self.shell.sessions[peer].is_gone);
                let aside = self.whole_aside(peer, tile, rect, false);
                let to = places(rect, self.matter.p.n).zip(aside.elements);
                to.for_each(|(place, element)| self.shell.c[place] += element);
            }
            Action::Look(rect) => self.begin_a_spot(rect),
            Action::Committed(rect) => self.committed(rect),
            Action::Finished => self.end_keeper(),
            Action::Fail(why) => self.shell.failed = Some(why),
        }
    }

    fn whole_aside(&mut self, peer: usize, tile: u32, rect: Rect, is_staged: bool) -> Aside {
        self.shell.check_that_nobody_has(rect);
        let aside = self.shell.asides.remove(&(peer, tile));
        let aside = aside.unwrap_or_else(|| panic!("tile {tile} of w{peer} was not put aside"));
        assert!(aside.is_whole && aside.rect == rect && aside.is_staged == is_staged, "half a sum is added");
        aside
    }

    fn say(&mut self, peer: usize, kind: Kind, head: Vec<u8>, body: Body, after: After) {
        if !self.shell.sessions[peer].is_closed {
            let lane = self.out(peer);
            self.send(lane, kind, head, body, after);
        }
    }

    /// The body of a store, as it is when it is given to the link.
    fn body(&mut self, message: &Outgoing) -> Body {
        let (Some(piece), Some(header)) = (message.piece, message.head.matrices.last()) else {
            return Body::Empty;
        };
        let (p, rect) = (self.matter.p, piece.rect);
        if header.source == Source::Generated {
            let mut generator = [0; 16];
            generator[0] = u8::from(piece.which == Which::B);
            let generated = Generated { generator, row: rect.rows.start, col: rect.cols.start };
            return Body::Bytes(generated.encode());
        }
        if piece.lent {
            self.shell.lend(rect);
            if header.source == Source::Data {
                places(rect, p.n).for_each(|place| self.shell.c[place] = self.matter.old_c[place]);
            }
            return Body::Lent(rect);
        }
        let (from, cols) = match piece.which {
            Which::A => (&self.matter.a, p.k),
            Which::B => (&self.matter.b, p.n),
            Which::C => (&self.matter.old_c, p.n),
            Which::Sum => {
                self.shell.check_that_nobody_has(rect);
                (&self.shell.c, p.n)
            }
        };
        let by_rows: Vec<f64> = places(rect, cols).map(|place| from[place]).collect();
        let (rows, cols) = (rect.shape().rows as usize, rect.shape().cols as usize);
        Body::Elements(match header.layout {
            Layout::RowMajor => by_rows,
            Layout::ColMajor => {
                (0..cols).flat_map(|j| (0..rows).map(move |i| i * cols + j)).map(|at| by_rows[at]).collect()
            }
        })
    }

    /// Has a link ended: its reader will say that the machine is gone.
    fn cut(&mut self, peer: usize, why: String) {
        self.seen.silent += u64::from(why.contains("silent"));
        if why.contains("too slow") {
            self.seen.too_slow += 1;
            self.checks.too_slow(peer);
        }
        if why.contains("looked at") {
            self.seen.left_out += 1;
            self.check_liar(peer);
        }
        let session = &mut self.shell.sessions[peer];
        session.is_closed = true;
        session.is_cut = true;
        session.why.get_or_insert(why);
        self.agenda.add(0.0, Happening::Reader(peer));
    }

    /// A link has ended, and nothing of it is landing any more.
    pub(super) fn gone(&mut self, peer: usize, why: &str) {
        if self.is_over() || std::mem::replace(&mut self.shell.sessions[peer].is_gone, true) {
            return;
        }
        let session = &mut self.shell.sessions[peer];
        session.is_closed = true;
        let why = session.why.take().unwrap_or_else(|| why.to_owned());
        let (out, back) = (self.out(peer), self.back(peer));
        self.lanes[back].end();
        self.lanes[out].close(out, None, &mut self.agenda);
        let landing: Vec<_> = self.shell.partial.keys().copied().filter(|(from, _)| *from == peer).collect();
        let is_half = |(from, aside): (usize, &Aside)| from == peer && !aside.is_whole;
        let asides = self.shell.asides.iter().filter(|((from, _), aside)| is_half((*from, *aside))).count();
        self.seen.broken_off += (landing.len() + asides) as u64;
        for key in landing {
            if let Some(rect) = self.shell.partial.remove(&key) {
                self.shell.take_back(rect);
            }
        }
        self.shell.asides.retain(|(from, _), aside| *from != peer || aside.is_whole);
        self.check_loss(peer, &why);
        self.tell(Event::Lost { peer, why });
        self.check_that_the_gone_count_for_nothing(peer);
    }

    /// The next frame of a machine begins to land.
    pub(super) fn begin(&mut self, peer: usize, kind: Kind, head: &[u8]) {
        if kind != Kind::Result || self.nodes[peer].shares_memory || self.shell.sessions[peer].is_cut {
            return;
        }
        let head = decoded(ResultHead::decode(head));
        let to = decoded(self.primary.expect(peer, &head));
        self.shell.sessions[peer].place = Some(to);
        let key = (peer, head.c);
        match to.place {
            Place::InC => {
                if !self.shell.partial.contains_key(&key) {
                    self.shell.lend(to.rect);
                    self.shell.partial.insert(key, to.rect);
                }
            }
            Place::Staged | Place::Aside => drop(self.aside(key, &to)),
            Place::Nowhere => {}
        }
        self.put_lines_of(peer, &head, &to, None);
    }

    fn aside(&mut self, key: (usize, u32), to: &Destination) -> &mut Aside {
        let count = (to.rect.rows.len() * to.rect.cols.len()) as usize;
        let is_staged = to.place == Place::Staged;
        let fresh = || Aside { rect: to.rect, elements: vec![GARBAGE; count], is_whole: false, is_staged };
        self.shell.asides.entry(key).or_insert_with(fresh)
    }

    /// Lines of a result, or of what they were before they came, where they land.
    fn put_lines_of(&mut self, peer: usize, head: &ResultHead, to: &Destination, elements: Option<&[f64]>) {
        let first = u64::from(head.first_line);
        let value = |at: usize| elements.map_or(GARBAGE, |elements| elements[at]);
        match to.place {
            Place::Nowhere => {}
            Place::InC => {
                let start = to.rect.rows.start + first;
                let rows = Span::new(start, start + u64::from(head.lines));
                for (at, place) in places(Rect::new(rows, to.rect.cols), self.matter.p.n).enumerate() {
                    self.shell.c[place] = value(at);
                }
            }
            Place::Staged | Place::Aside => {
                let cols = to.rect.cols.len() as usize;
                let is_whole = first + u64::from(head.lines) == to.rect.rows.len() && elements.is_some();
                let aside = self.aside((peer, head.c), to);
                let lines = &mut aside.elements[first as usize * cols..][..head.lines as usize * cols];
                lines.iter_mut().enumerate().for_each(|(at, element)| *element = value(at));
                aside.is_whole |= is_whole;
            }
        }
    }

    /// A frame of a machine is there.
    pub(super) fn arrived(&mut self, peer: usize, frame: Frame) {
        if self.shell.sessions[peer].is_cut {
            return;
        }
        match frame.kind {
            Kind::Result => self.landed(peer, &decoded(ResultHead::decode(&frame.head)), frame.body),
            Kind::Credit => {
                let bytes = decoded(decode_number(&frame.head));
                self.tell(Event::Credit { peer, bytes });
            }
            Kind::Pong => self.tell(Event::Alive { peer }),
            Kind::Missing => {
                let missing = decoded(Missing::decode(&frame.head));
                self.seen.missed += 1;
                self.tell(Event::Missing { peer, missing });
            }
            Kind::Reached => {
                let other = decoded(Reached::decode(&frame.head)).peer;
                self.tell(Event::Parted { peer, other });
            }
            Kind::Error => {
                let why = decoded(decode_error(&frame.head));
                self.gone(peer, &why);
            }
            other => panic!("a message of kind {other:?} has no place at the primary"),
        }
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, body: Body) {
        let to = decoded(self.primary.expect(peer, head));
        if let Some(before) = self.shell.sessions[peer].place.take() {
            assert_eq!(before, to, "a frame lands elsewhere than it was said when it began to");
        }
        let is_last = u64::from(head.first_line) + u64::from(head.lines) == to.rect.rows.len();
        match body {
            Body::Lent(rect) => {
                assert_eq!(
                    (rect, to.place),
                    (to.rect, Place::InC),
                    "what was lent comes back as something else"
                );
                self.shell.take_back(rect);
            }
            Body::Elements(elements) => {
                self.put_lines_of(peer, head, &to, Some(&elements));
                if is_last && let Some(rect) = self.shell.partial.remove(&(peer, head.c)) {
                    self.shell.take_back(rect);
                }
            }
            Body::Empty | Body::Bytes(_) => panic!("a result without elements"),
        }
        if is_last {
            let steps = u64::from(head.step_end - head.step_start);
            self.seen.staged += u64::from(to.place == Place::Staged);
            self.seen.thrown_away += u64::from(to.place == Place::Nowhere);
            self.steps_back[peer] += steps;
        }
        self.tell(Event::Landed { peer, head: *head });
        if is_last && peer >= self.first_count {
            self.check_that_numbers_stay();
        }
    }

    /// A tile is complete: it is what the plan makes of it.
    fn committed(&mut self, rect: Rect) {
        self.shell.check_that_nobody_has(rect);
        for place in places(rect, self.matter.p.n) {
            let first = !std::mem::replace(&mut self.shell.committed[place], true);
            assert!(first, "{rect} of C is committed twice");
        }
        self.keep(rect);
        if self.may_be_wrong(rect) {
            return;
        }
        for place in places(rect, self.matter.p.n) {
            self.check_element(place, &format!("{rect} of C is committed"));
        }
    }

    /// What the primary's shell does with what comes of a link.
    pub(super) fn take_at_primary(&mut self, peer: usize, item: Item) {
        match item {
            Item::Frame(frame) if frame.is_whole => self.arrived(peer, frame),
            Item::Frame(_) | Item::End => self.gone(peer, "it closed the connection"),
            Item::Credit => unreachable!("it left as a frame"),
        }
    }
}

/// Products that a message asks for.
fn multiplications(message: &Outgoing) -> u64 {
    use bramble_schedule::message::Operation;
    message.head.jobs.iter().filter(|job| job.operation == Operation::Multiply).count() as u64
}
