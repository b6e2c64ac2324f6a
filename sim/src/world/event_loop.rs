//! The primary in the timing mode: its event loop, and what its state machine says.
//!
//! Place in the flow: between what comes over links and the state machine, as the primary's shell is.
//!
//! Invariants: what waits for the loop is done in order. Nothing goes to a machine whose link was cut or has ended, and nothing
//! of it counts; of the sums that it had put aside only whole ones stay.

use super::{Aside, Duty, Happening, Message, World};
use crate::machine::Parcel;
use bramble_matrix::Rect;
use bramble_schedule::message::ResultHead;
use bramble_schedule::primary::{Action, Event, Place};

impl World<'_> {
    /// How many times as long things take on the primary's cores, for what runs there now.
    pub(super) fn slowness(&self) -> f64 {
        let mut wanted = if self.duty.is_some() { 1.0 } else { 0.0 };
        for (peer, end) in self.on_host.iter().map(|peer| (*peer, &self.ends[*peer])) {
            let moves = self.out.is_busy(peer) || self.back.is_busy(peer);
            let far = if moves { self.setting.far_s_per_byte * self.out.rate(peer) } else { 0.0 };
            wanted += f64::from(end.running) + far.min(1.0);
        }
        (wanted / self.cores).max(1.0)
    }

    /// The event loop goes on until it is busy or has nothing to do.
    pub(super) fn attend(&mut self) {
        while self.duty.is_none() {
            let Some(duty) = self.duties.pop_front() else { return };
            let seconds = self.seconds(&duty);
            if seconds > 0.0 {
                self.duty = Some(duty);
                let slowed = seconds * self.slowness();
                self.loop_busy_s += seconds;
                self.agenda.add(slowed, Happening::Loop);
            } else {
                self.perform(duty);
            }
        }
    }

    fn seconds(&self, duty: &Duty) -> f64 {
        match duty {
            Duty::Sent(..) => 0.0,
            Duty::Merge(bytes) => *bytes as f64 * self.setting.merge_s_per_byte,
            // The own threads' messages go by reference; a sum that waits is copied.
            Duty::Send(peer, _) if self.ends[*peer].shares_memory => 0.0,
            Duty::Send(_, message) => message.frame_bytes() as f64 * self.setting.loop_s_per_byte,
            Duty::Take(peer, parcel) => match parcel {
                Parcel::Result { bytes, .. } => *bytes as f64 * self.setting.loop_s_per_byte,
                _ if self.ends[*peer].shares_memory => 0.0,
                _ => parcel.wire_bytes() as f64 * self.setting.loop_s_per_byte,
            },
        }
    }

    pub(super) fn perform(&mut self, duty: Duty) {
        match duty {
            Duty::Send(peer, _) | Duty::Take(peer, _) | Duty::Sent(peer, _) if self.is_cut[peer] => {}
            Duty::Merge(_) => {}
            Duty::Sent(peer, bytes) => self.tell(Event::Sent { peer, bytes }),
            Duty::Send(peer, message) if self.ends[peer].shares_memory => {
                let sent = match &message {
                    Message::Store(message) => Some(message.wire_bytes()),
                    Message::Relay(_) | Message::Parted(_) => None,
                };
                self.stored(peer, message);
                self.duties.extend(sent.map(|bytes| Duty::Sent(peer, bytes)));
            }
            Duty::Send(peer, message) => {
                let bytes = message.frame_bytes();
                self.out.send(peer, message, bytes, &mut self.agenda);
            }
            Duty::Take(peer, Parcel::Credit(bytes)) => self.tell(Event::Credit { peer, bytes }),
            Duty::Take(peer, Parcel::Missing(missing)) => self.tell(Event::Missing { peer, missing }),
            Duty::Take(peer, Parcel::Parted(other)) => self.tell(Event::Parted { peer, other }),
            Duty::Take(peer, Parcel::Result { head, .. }) => self.take_result(peer, head),
        }
    }

    fn take_result(&mut self, peer: usize, head: ResultHead) {
        self.ends[peer].report.last_result_s = self.agenda.now().seconds();
        let expected = self.primary.expect(peer, &head);
        let to = expected.unwrap_or_else(|e| panic!("a worker broke the protocol: {e}"));
        let key = (peer, head.c);
        if matches!(to.place, Place::Aside | Place::Staged) && head.first_line == 0 {
            let bytes = self.bytes_of(to.rect);
            let aside = Aside { bytes, is_whole: false, is_staged: to.place == Place::Staged };
            assert!(self.asides.insert(key, aside).is_none(), "put aside twice");
            if to.place == Place::Aside {
                self.aside_bytes += bytes;
                self.aside_bytes_max = self.aside_bytes_max.max(self.aside_bytes);
                let most = self.primary.plan().predicted.primary_memory_bytes;
                assert!(self.aside_bytes <= most, "{} bytes wait, {most} were predicted", self.aside_bytes);
            }
        }
        if let Some(aside) = self.asides.get_mut(&key) {
            aside.is_whole = u64::from(head.first_line) + u64::from(head.lines) == to.rect.rows.len();
        }
        self.tell(Event::Landed { peer, head });
    }

    /// Takes what was put aside: its bytes are copied or added.
    fn add_aside(&mut self, peer: usize, tile: u32, rect: Rect, is_staged: bool) {
        let aside = self.asides.remove(&(peer, tile));
        let aside = aside.unwrap_or_else(|| panic!("a sum is added that is not there"));
        assert!(aside.is_whole && aside.is_staged == is_staged, "half a sum is added");
        assert_eq!(aside.bytes, self.bytes_of(rect), "a sum is added where it does not belong");
        if !is_staged {
            self.aside_bytes -= aside.bytes;
        }
        self.duties.push_front(Duty::Merge(aside.bytes));
    }

    /// Forgets the sums of a machine that are not whole.
    pub(super) fn drop_halves(&mut self, peer: usize) {
        let keeps = |key: &(usize, u32), aside: &Aside| key.0 != peer || aside.is_whole;
        let dropped = self.asides.iter().filter(|(key, aside)| !keeps(key, aside) && !aside.is_staged);
        self.aside_bytes -= dropped.map(|(_, aside)| aside.bytes).sum::<u64>();
        self.asides.retain(|key, aside| keeps(key, aside));
    }

    fn bytes_of(&self, rect: Rect) -> u64 {
        rect.rows.len() * rect.cols.len() * self.primary.plan().problem.element_bytes()
    }

    /// One event through the primary's state, and what comes of it.
    pub(super) fn tell(&mut self, event: Event) {
        let now = self.agenda.now();
        for action in self.primary.handle(event, now.duration()) {
            match action {
                Action::Send(peer, message) => {
                    self.duties.push_back(Duty::Send(peer, Message::Store(message)));
                }
                Action::Relay(peer, forwards) => {
                    self.duties.push_back(Duty::Send(peer, Message::Relay(forwards)));
                }
                Action::Merge { peer, tile, rect } => self.add_aside(peer, tile, rect, false),
                Action::Put { peer, tile, rect } => self.add_aside(peer, tile, rect, true),
                // What is looked at is not timed.
                Action::Look(_) => {}
                Action::Committed(rect) => {
                    let first = self.committed.insert((rect.rows.start, rect.cols.start));
                    assert!(first, "{rect} is committed twice");
                    self.committed_elements += rect.rows.len() * rect.cols.len();
                }
                Action::Finished => self.finished_s = Some(self.finish()),
                Action::Ping(..) => {}
                Action::Parted { peer, other } => {
                    self.duties.push_back(Duty::Send(peer, Message::Parted(other)));
                }
                Action::Cut { peer, why } => {
                    self.is_cut[peer] = true;
                    self.why[peer].get_or_insert(why);
                    self.agenda.add(0.0, Happening::Gone(peer));
                }
                Action::Fail(why) => {
                    assert!(self.recovers, "the product failed: {why}");
                    self.failed = Some(why);
                    self.finished_s = Some(self.agenda.now().seconds());
                }
            }
        }
    }

    /// The time at which C is there: after what is still to be added.
    fn finish(&self) -> f64 {
        let left = self.duties.iter().filter(|d| matches!(d, Duty::Merge(_)));
        self.agenda.now().seconds() + left.map(|d| self.seconds(d)).sum::<f64>()
    }
}
