//! The primary in the timing mode: its event loop, and the actions of its state machine.
//!
//! Place in the flow: between the links and the state machine, like the primary's shell.
//!
//! Invariants: the loop's tasks are done in order. Nothing is sent to or taken from a machine whose link was cut or has ended;
//! only its whole partial sums are kept.

use super::{LoopTask, SimEnd, World, WorldEvent, frame_bytes};
use crate::machine::WorkerMessage;
use crate::primary_shell::{PeerLink, PendingResult, PrimaryMessage, PrimaryShell, SimPendingResults};
use bramble_matrix::Rect;
use bramble_schedule::primary::{InspectionTask, PrimaryEvent, ResultPlace};
use bramble_wire::message::ResultHead;

impl World<'_> {
    /// By how much everything on the primary's cores is slowed by what runs there now.
    pub(super) fn slowness(&self) -> f64 {
        let mut wanted = if self.host.event_loop.current.is_some() { 1.0 } else { 0.0 };
        for (peer, end) in self.host.peers.iter().map(|peer| (*peer, &self.ends[*peer])) {
            let moves = self.links.out.is_busy(peer) || self.links.back.is_busy(peer);
            let far = if moves { self.setting.far_s_per_byte * self.links.out.rate(peer) } else { 0.0 };
            wanted += f64::from(end.tasks.running) + far.min(1.0);
        }
        (wanted / self.host.cores).max(1.0)
    }

    /// Runs tasks of the event loop until one takes time or none is left.
    pub(super) fn attend(&mut self) {
        while self.host.event_loop.current.is_none() {
            let Some(loop_task) = self.host.event_loop.tasks.pop_front() else { return };
            let seconds = self.seconds(&loop_task);
            if seconds > 0.0 {
                self.host.event_loop.current = Some(loop_task);
                let slowed = seconds * self.slowness();
                self.host.event_loop.busy_s += seconds;
                self.event_queue.add(slowed, WorldEvent::Loop);
            } else {
                self.perform(loop_task);
            }
        }
    }

    fn seconds(&self, loop_task: &LoopTask) -> f64 {
        match loop_task {
            LoopTask::Sent(..) => 0.0,
            LoopTask::Merge(bytes) => *bytes as f64 * self.setting.merge_s_per_byte,
            // Messages to the primary's own threads go by reference; a partial sum from them is copied.
            LoopTask::Send(peer, _) if self.ends[*peer].shares_memory => 0.0,
            LoopTask::Send(_, message) => frame_bytes(message) as f64 * self.setting.loop_s_per_byte,
            LoopTask::Take(peer, parcel) => match parcel {
                WorkerMessage::Result { bytes, .. } => *bytes as f64 * self.setting.loop_s_per_byte,
                _ if self.ends[*peer].shares_memory => 0.0,
                _ => parcel.wire_bytes() as f64 * self.setting.loop_s_per_byte,
            },
        }
    }

    pub(super) fn perform(&mut self, loop_task: LoopTask) {
        match loop_task {
            LoopTask::Send(peer, _) | LoopTask::Take(peer, _) | LoopTask::Sent(peer, _)
                if self.sessions[peer].link.is_cut => {}
            LoopTask::Merge(_) => {}
            LoopTask::Sent(peer, bytes) => self.dispatch(PrimaryEvent::Sent { peer, bytes }),
            LoopTask::Send(peer, message) if self.ends[peer].shares_memory => {
                let sent = match &message {
                    PrimaryMessage::Store(message) => Some(message.wire_bytes()),
                    PrimaryMessage::Relay(_) | PrimaryMessage::Parted(_) | PrimaryMessage::Ping(_) => None,
                };
                self.stored(peer, message);
                self.host.event_loop.tasks.extend(sent.map(|bytes| LoopTask::Sent(peer, bytes)));
            }
            LoopTask::Send(peer, message) => {
                let bytes = frame_bytes(&message);
                self.links.out.send(peer, message, bytes, &mut self.event_queue);
            }
            LoopTask::Take(peer, WorkerMessage::Credit(bytes)) => {
                self.dispatch(PrimaryEvent::Credit { peer, bytes })
            }
            LoopTask::Take(peer, WorkerMessage::Missing(missing)) => {
                self.dispatch(PrimaryEvent::Missing { peer, missing })
            }
            LoopTask::Take(peer, WorkerMessage::Parted(other)) => {
                self.dispatch(PrimaryEvent::Parted { peer, other })
            }
            LoopTask::Take(peer, WorkerMessage::Result { head, .. }) => self.take_result(peer, head),
        }
    }

    fn take_result(&mut self, peer: usize, head: ResultHead) {
        self.ends[peer].report.last_result_s = self.event_queue.now().seconds();
        let expected = self.primary.expect(peer, &head);
        let to = expected.unwrap_or_else(|e| panic!("a worker broke the protocol: {e}"));
        if matches!(to.place, ResultPlace::PartialSum | ResultPlace::Staged) {
            let last_line = u64::from(head.first_line) + u64::from(head.lines);
            let result = self.pending.entry((peer, head.c), &to, Vec::new);
            assert!(!result.is_whole, "a result has begun twice");
            result.is_whole = last_line == to.rect.rows.len();
            let (waiting, most) =
                (self.bytes(self.pending.waiting), self.primary.plan().predicted.primary_memory_bytes);
            assert!(waiting <= most, "{waiting} bytes wait, {most} were predicted");
        }
        self.dispatch(PrimaryEvent::Landed { peer, head });
    }

    fn bytes(&self, elements: u64) -> u64 {
        elements * self.primary.plan().problem.element_bytes()
    }

    /// Passes one event to the primary's state machine and carries out the actions.
    pub(super) fn dispatch(&mut self, event: PrimaryEvent) {
        let now = self.event_queue.now();
        for action in self.primary.handle(event, now.duration()) {
            self.carry_out(action);
        }
    }

    /// The time at which C is complete: after the remaining additions.
    fn end_seconds(&self) -> f64 {
        let left = self.host.event_loop.tasks.iter().filter(|d| matches!(d, LoopTask::Merge(_)));
        self.event_queue.now().seconds() + left.map(|d| self.seconds(d)).sum::<f64>()
    }
}

impl PrimaryShell for World<'_> {
    fn link(&mut self, peer: usize) -> &mut PeerLink {
        &mut self.sessions[peer].link
    }

    fn pending(&mut self) -> &mut SimPendingResults {
        &mut self.pending
    }

    fn say(&mut self, peer: usize, message: PrimaryMessage) {
        // Machines that run are heard without pings.
        if !matches!(message, PrimaryMessage::Ping(_)) {
            self.host.event_loop.tasks.push_back(LoopTask::Send(peer, message));
        }
    }

    /// Charges the time to copy or add a result.
    fn add(&mut self, _: usize, result: PendingResult, _: bool) {
        let Rect { rows, cols } = result.rect;
        let bytes = self.bytes(rows.len() * cols.len());
        self.host.event_loop.tasks.push_front(LoopTask::Merge(bytes));
    }

    fn cut(&mut self, peer: usize, _: &str) {
        self.event_queue.add(0.0, WorldEvent::Gone(peer));
    }

    fn commit(&mut self, rect: Rect) {
        let first = self.committed.tiles.insert((rect.rows.start, rect.cols.start));
        assert!(first, "{rect} is committed twice");
        self.committed.elements += rect.rows.len() * rect.cols.len();
    }

    /// Spot checks take no time here.
    fn spot_check(&mut self, _: Rect) {}

    /// C is not inspected.
    fn take_task(&mut self, _: InspectionTask) {}

    fn finish(&mut self) {
        self.ended = Some(SimEnd { seconds: self.end_seconds(), failed: None });
    }

    fn fail(&mut self, why: String) {
        assert!(self.recovers, "the product failed: {why}");
        let seconds = self.event_queue.now().seconds();
        self.ended = Some(SimEnd { seconds, failed: Some(why) });
    }
}
