//! The primary in a trial: C, the frames of its messages, and the landing of results.
//!
//! Place in the flow: replaces the primary's shell (crates/primary/src/run), with elements.
//!
//! Invariants: a part of C is leased once at a time; partly received results of a machine are dropped before the state machine
//! hears of its loss; only its whole partial sums are kept.

use super::lanes::{AfterSend, FrameBody, LaneItem, TrialFrame};
use super::node::decoded;
use super::trial_data::{GARBAGE, at, places};
use super::{Trial, TrialEvent};
use crate::primary_shell::{PeerLink, PendingResult, PrimaryMessage, PrimaryShell, SimPendingResults};
use bramble_matrix::{Layout, Rect, Span};
use bramble_plan::OperandSource;
use bramble_schedule::primary::{
    InspectionTask, Outgoing, PrimaryEvent, ResultDestination, ResultPlace, Which,
};
use bramble_wire::message::{
    Generated, Kind, MatrixSource, Missing, Reached, ResidentView, ResultHead, decode_error, decode_number,
    encode_forwards, encode_number,
};
use std::collections::BTreeMap;

/// The shell's state for one machine.
#[derive(Default)]
pub(super) struct TrialSession {
    pub(super) link: PeerLink,
    /// The destination of the frame that is landing.
    place: Option<ResultDestination>,
}

/// The primary's memory.
pub(super) struct TrialShell {
    pub(super) c: Vec<f64>,
    /// Leased parts of C: those at machines that share memory, and tiles of which some rows have landed.
    lent: Vec<Rect>,
    partial: BTreeMap<(usize, u32), Rect>,
    pub(super) pending: SimPendingResults,
    pub(super) sessions: Vec<TrialSession>,
    /// Whether each element was committed.
    pub(super) committed: Vec<bool>,
    /// Whether the inspection has accepted C.
    pub(super) finished: bool,
    pub(super) failed: Option<String>,
}

impl TrialShell {
    pub(super) fn new(elements: usize, peers: usize) -> Self {
        Self {
            c: vec![GARBAGE; elements],
            lent: Vec::new(),
            partial: BTreeMap::new(),
            pending: SimPendingResults::default(),
            sessions: (0..peers).map(|_| TrialSession::default()).collect(),
            committed: vec![false; elements],
            finished: false,
            failed: None,
        }
    }

    pub(super) fn lease(&mut self, rect: Rect) {
        self.check_unleased(rect);
        self.lent.push(rect);
    }

    fn check_unleased(&self, rect: Rect) {
        assert!(self.lent.iter().all(|lent| lent.disjoint(rect)), "{rect} of C is leased already");
    }

    pub(super) fn take_back(&mut self, rect: Rect) {
        let at = self.lent.iter().position(|lent| *lent == rect);
        self.lent.swap_remove(at.unwrap_or_else(|| panic!("{rect} of C was not leased")));
    }
}

impl Trial {
    /// The time that the primary has run.
    pub(super) fn time(&mut self) -> std::time::Duration {
        self.process.clock.advance_to(self.process.watch.shows(self.event_queue.now()))
    }

    /// Passes one event to the primary's state machine and carries out the actions.
    pub(super) fn dispatch(&mut self, event: PrimaryEvent) {
        let is_new = matches!(event, PrimaryEvent::Lost { .. } | PrimaryEvent::Joined(_));
        let now = self.time();
        for action in self.primary.handle(event, now) {
            self.carry_out(action);
        }
        self.check(is_new);
    }

    /// The body of a store, as it is when it is passed to the link.
    fn body(&mut self, message: &Outgoing) -> FrameBody {
        let (Some(piece), Some(header)) = (message.piece, message.head.matrices.last()) else {
            return FrameBody::Empty;
        };
        let (p, rect) = (self.model.data.p, piece.rect);
        self.work.sums_sent += u64::from(piece.which == Which::Sum);
        if header.source == MatrixSource::Generated {
            let mut generator = [0; 16];
            generator[0] = u8::from(piece.which == Which::B);
            let generated = Generated { generator, row: rect.rows.start, col: rect.cols.start };
            return FrameBody::Bytes(generated.encode());
        }
        if header.source == MatrixSource::Resident {
            let array = u64::from(piece.which == Which::B);
            return FrameBody::Bytes(
                ResidentView::of(array, header.layout == Layout::ColMajor, rect).encode(),
            );
        }
        if piece.leased {
            self.shell.lease(rect);
            if header.source == MatrixSource::Data {
                places(rect, p.n).for_each(|place| self.shell.c[place] = self.model.data.old_c[place]);
            }
            return FrameBody::Lent(rect);
        }
        let count = rect.rows.len() * rect.cols.len();
        self.work.operand_elements += if matches!(piece.which, Which::A | Which::B) { count } else { 0 };
        let plan = &self.primary.plan().problem;
        let is_placed = match piece.which {
            Which::A => plan.a_source == OperandSource::Resident,
            Which::B => plan.b_source == OperandSource::Resident,
            Which::C | Which::Sum => false,
        };
        if is_placed {
            self.record.seen.parts_sent += 1;
            let at = usize::from(piece.which == Which::B);
            let layout = self.model.unplaced[at].map(|unplaced| unplaced.layout);
            assert_eq!(Some(header.layout), layout, "the layout of the primary's matrix");
        }
        let (from, cols) = match piece.which {
            Which::A => (&self.model.data.a, p.k),
            Which::B => (&self.model.data.b, p.n),
            Which::C => (&self.model.data.old_c, p.n),
            Which::Sum => {
                self.shell.check_unleased(rect);
                (&self.shell.c, p.n)
            }
        };
        let by_rows: Vec<f64> = places(rect, cols).map(|place| from[place]).collect();
        let (rows, cols) = (rect.shape().rows as usize, rect.shape().cols as usize);
        FrameBody::Elements(match header.layout {
            Layout::RowMajor => by_rows,
            Layout::ColMajor => {
                (0..cols).flat_map(|j| (0..rows).map(move |i| i * cols + j)).map(|at| by_rows[at]).collect()
            }
        })
    }

    /// A link has ended, and nothing from it is landing any more.
    pub(super) fn gone(&mut self, peer: usize, why: &str) {
        if self.is_over() {
            return;
        }
        let Some(why) = self.shell.sessions[peer].link.reader_ends(why) else { return };
        let (out, back) = (self.out(peer), self.back(peer));
        self.lanes[back].end();
        self.lanes[out].close(out, None, &mut self.event_queue);
        let landing: Vec<_> = self.shell.partial.keys().copied().filter(|(from, _)| *from == peer).collect();
        let incomplete = self.shell.pending.drop_incomplete(peer);
        self.record.seen.broken_off += (landing.len() + incomplete) as u64;
        for key in landing {
            if let Some(rect) = self.shell.partial.remove(&key) {
                self.shell.take_back(rect);
            }
        }
        self.check_loss(peer, &why);
        let is_missed = self.primary.tiles_left() > 0;
        self.dispatch(PrimaryEvent::Lost { peer, why });
        if is_missed {
            self.expect_neighbours_to_part(peer);
        }
        self.check_events_of_lost_machine(peer);
    }

    /// The next frame of a machine begins to land.
    pub(super) fn begin(&mut self, peer: usize, kind: Kind, head: &[u8]) {
        if kind != Kind::Result
            || self.nodes[peer].machine.shares_memory
            || self.shell.sessions[peer].link.is_cut
        {
            return;
        }
        let head = decoded(ResultHead::decode(head));
        let to = decoded(self.primary.expect(peer, &head));
        self.shell.sessions[peer].place = Some(to);
        let key = (peer, head.c);
        match to.place {
            ResultPlace::InC => {
                if !self.shell.partial.contains_key(&key) {
                    self.shell.lease(to.rect);
                    self.shell.partial.insert(key, to.rect);
                }
            }
            ResultPlace::Staged | ResultPlace::PartialSum => drop(self.staging_buffer(key, &to)),
            ResultPlace::Discarded => {}
        }
        self.put_lines_of(peer, &head, &to, None);
    }

    fn staging_buffer(&mut self, key: (usize, u32), to: &ResultDestination) -> &mut PendingResult {
        let count = (to.rect.rows.len() * to.rect.cols.len()) as usize;
        self.shell.pending.entry(key, to, || vec![GARBAGE; count])
    }

    /// Writes rows of a result to their destination; `None` marks rows whose bytes have not arrived.
    fn put_lines_of(
        &mut self,
        peer: usize,
        head: &ResultHead,
        to: &ResultDestination,
        elements: Option<&[f64]>,
    ) {
        let first = u64::from(head.first_line);
        let value = |at: usize| elements.map_or(GARBAGE, |elements| elements[at]);
        match to.place {
            ResultPlace::Discarded => {}
            ResultPlace::InC => {
                let start = to.rect.rows.start + first;
                let rows = Span::new(start, start + u64::from(head.lines));
                for (at, place) in places(Rect::new(rows, to.rect.cols), self.model.data.p.n).enumerate() {
                    self.shell.c[place] = value(at);
                }
            }
            ResultPlace::Staged | ResultPlace::PartialSum => {
                let cols = to.rect.cols.len() as usize;
                let is_whole = first + u64::from(head.lines) == to.rect.rows.len() && elements.is_some();
                let result = self.staging_buffer((peer, head.c), to);
                let lines = &mut result.elements[first as usize * cols..][..head.lines as usize * cols];
                lines.iter_mut().enumerate().for_each(|(at, element)| *element = value(at));
                result.is_whole |= is_whole;
            }
        }
    }

    /// A frame of a machine has arrived.
    pub(super) fn arrived(&mut self, peer: usize, frame: TrialFrame) {
        if self.shell.sessions[peer].link.is_cut {
            return;
        }
        match frame.kind {
            Kind::Result => self.landed(peer, &decoded(ResultHead::decode(&frame.head)), frame.body),
            Kind::Credit => {
                let bytes = decoded(decode_number(&frame.head));
                self.dispatch(PrimaryEvent::Credit { peer, bytes });
            }
            Kind::Pong => self.dispatch(PrimaryEvent::Alive { peer }),
            Kind::Missing => {
                let missing = decoded(Missing::decode(&frame.head));
                self.record.seen.missed += 1;
                self.dispatch(PrimaryEvent::Missing { peer, missing });
            }
            Kind::Reached => {
                let other = decoded(Reached::decode(&frame.head)).peer;
                self.dispatch(PrimaryEvent::Parted { peer, other });
            }
            Kind::Error => {
                let why = decoded(decode_error(&frame.head));
                self.gone(peer, &why);
            }
            other => panic!("a message of kind {other:?} has no place at the primary"),
        }
    }

    fn landed(&mut self, peer: usize, head: &ResultHead, body: FrameBody) {
        let to = decoded(self.primary.expect(peer, head));
        if let Some(before) = self.shell.sessions[peer].place.take() {
            assert_eq!(before, to, "the destination of a frame has changed while it landed");
        }
        let is_last = u64::from(head.first_line) + u64::from(head.lines) == to.rect.rows.len();
        match body {
            FrameBody::Lent(rect) => {
                assert_eq!(
                    (rect, to.place),
                    (to.rect, ResultPlace::InC),
                    "a lease returns as another result"
                );
                self.shell.take_back(rect);
                if let Some(lie) = self.lie_of(peer) {
                    self.shell.c[at(rect.rows.start, rect.cols.start, self.model.data.p.n)] += lie;
                }
            }
            FrameBody::Elements(elements) => {
                self.put_lines_of(peer, head, &to, Some(&elements));
                if is_last && let Some(rect) = self.shell.partial.remove(&(peer, head.c)) {
                    self.shell.take_back(rect);
                }
            }
            FrameBody::Empty | FrameBody::Bytes(_) => panic!("a result without elements"),
        }
        if is_last {
            let steps = u64::from(head.step_end - head.step_start);
            self.record.seen.staged += u64::from(to.place == ResultPlace::Staged);
            self.record.seen.thrown_away += u64::from(to.place == ResultPlace::Discarded);
            self.work.steps_back[peer] += steps;
        }
        self.dispatch(PrimaryEvent::Landed { peer, head: *head });
        if is_last && peer >= self.members.first_count {
            self.check_events_of_lost_machines();
        }
    }

    /// Handles an item that has arrived over a link.
    pub(super) fn take_at_primary(&mut self, peer: usize, item: LaneItem) {
        match item {
            LaneItem::Frame(frame) if frame.is_whole => self.arrived(peer, frame),
            LaneItem::Frame(_) | LaneItem::End => self.gone(peer, "it closed the connection"),
            LaneItem::Credit => unreachable!("it left as a frame"),
        }
    }
}

impl PrimaryShell for Trial {
    fn link(&mut self, peer: usize) -> &mut PeerLink {
        &mut self.shell.sessions[peer].link
    }

    fn pending(&mut self) -> &mut SimPendingResults {
        &mut self.shell.pending
    }

    /// Encodes a message, with the elements that it has now.
    fn say(&mut self, peer: usize, message: PrimaryMessage) {
        let (kind, head, body, after) = match message {
            PrimaryMessage::Store(message) => {
                let body = self.body(&message);
                self.work.jobs_sent[peer] += multiplications(&message);
                (Kind::Store, message.head.encode(), body, AfterSend::Sent(message.wire_bytes()))
            }
            PrimaryMessage::Relay(forwards) => {
                (Kind::Relay, encode_forwards(&forwards), FrameBody::Empty, AfterSend::Nothing)
            }
            PrimaryMessage::Parted(other) => {
                let reached = Reached { peer: other as u32, is_there: false, why: String::new() };
                (Kind::Reached, reached.encode(), FrameBody::Empty, AfterSend::Nothing)
            }
            PrimaryMessage::Ping(nonce) => {
                (Kind::Ping, encode_number(nonce), FrameBody::Empty, AfterSend::Nothing)
            }
        };
        if !self.shell.sessions[peer].link.is_closed {
            let lane = self.out(peer);
            self.send(lane, kind, head, body, after);
        }
    }

    fn add(&mut self, peer: usize, result: PendingResult, is_staged: bool) {
        self.shell.check_unleased(result.rect);
        let is_left_behind = !is_staged && self.shell.sessions[peer].link.is_gone;
        self.record.seen.left_behind += u64::from(is_left_behind);
        for (place, element) in places(result.rect, self.model.data.p.n).zip(result.elements) {
            self.shell.c[place] = if is_staged { element } else { self.shell.c[place] + element };
        }
    }

    fn cut(&mut self, peer: usize, why: &str) {
        self.record.seen.lost_as.silent += u64::from(why.contains("silent"));
        if why.contains("too slow") {
            self.record.seen.lost_as.too_slow += 1;
            self.checks.too_slow(peer);
        }
        if why.contains("spot-checked") {
            self.record.seen.lost_as.left_out += 1;
            self.check_exclusion(peer);
        }
        self.event_queue.add(0.0, TrialEvent::Reader(peer));
    }

    /// A committed tile must have the bits that the plan gives.
    fn commit(&mut self, rect: Rect) {
        self.shell.check_unleased(rect);
        for place in places(rect, self.model.data.p.n) {
            let first = !std::mem::replace(&mut self.shell.committed[place], true);
            assert!(first, "{rect} of C is committed twice");
        }
        self.journal_tile(rect);
        if self.is_lie(rect) {
            return;
        }
        for place in places(rect, self.model.data.p.n) {
            self.check_element(place, &format!("{rect} of C is committed"));
        }
    }

    fn spot_check(&mut self, rect: Rect) {
        self.begin_spot_check(rect);
    }

    fn take_task(&mut self, task: InspectionTask) {
        self.take_inspection_task(task);
    }

    fn finish(&mut self) {
        self.end_journal_writer();
    }

    fn fail(&mut self, why: String) {
        self.shell.failed = Some(why);
    }
}

/// The number of multiplications in a message.
fn multiplications(message: &Outgoing) -> u64 {
    use bramble_wire::message::Operation;
    message.head.jobs.iter().filter(|job| job.operation == Operation::Multiply).count() as u64
}
