//! The primary in the timing mode: its event loop, and the actions of its state machine.
//!
//! Place in the flow: between the links and the state machine, like the primary's shell.
//!
//! Invariants: the loop's tasks are done in order. Nothing is sent to or taken from a machine whose link was cut or has ended;
//! only its whole partial sums are kept.

use super::{LoopTask, PendingResult, PrimaryMessage, SimEnd, World, WorldEvent};
use crate::machine::WorkerMessage;
use bramble_matrix::Rect;
use bramble_schedule::message::ResultHead;
use bramble_schedule::primary::{PrimaryAction, PrimaryEvent, ResultPlace};

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
            LoopTask::Send(_, message) => message.frame_bytes() as f64 * self.setting.loop_s_per_byte,
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
                if self.sessions[peer].is_cut => {}
            LoopTask::Merge(_) => {}
            LoopTask::Sent(peer, bytes) => self.dispatch(PrimaryEvent::Sent { peer, bytes }),
            LoopTask::Send(peer, message) if self.ends[peer].shares_memory => {
                let sent = match &message {
                    PrimaryMessage::Store(message) => Some(message.wire_bytes()),
                    PrimaryMessage::Relay(_) | PrimaryMessage::Parted(_) => None,
                };
                self.stored(peer, message);
                self.host.event_loop.tasks.extend(sent.map(|bytes| LoopTask::Sent(peer, bytes)));
            }
            LoopTask::Send(peer, message) => {
                let bytes = message.frame_bytes();
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
        let key = (peer, head.c);
        if matches!(to.place, ResultPlace::PartialSum | ResultPlace::Staged) && head.first_line == 0 {
            let bytes = self.bytes_of(to.rect);
            let result = PendingResult { bytes, is_whole: false, is_staged: to.place == ResultPlace::Staged };
            assert!(self.pending.results.insert(key, result).is_none(), "a result has begun twice");
            if to.place == ResultPlace::PartialSum {
                self.pending.bytes += bytes;
                self.pending.bytes_max = self.pending.bytes_max.max(self.pending.bytes);
                let most = self.primary.plan().predicted.primary_memory_bytes;
                assert!(
                    self.pending.bytes <= most,
                    "{} bytes wait, {most} were predicted",
                    self.pending.bytes
                );
            }
        }
        if let Some(result) = self.pending.results.get_mut(&key) {
            result.is_whole = u64::from(head.first_line) + u64::from(head.lines) == to.rect.rows.len();
        }
        self.dispatch(PrimaryEvent::Landed { peer, head });
    }

    /// Removes a waiting result, and charges the time to copy or add it.
    fn take_pending(&mut self, peer: usize, tile: u32, rect: Rect, is_staged: bool) {
        let result = self.pending.results.remove(&(peer, tile));
        let result = result.unwrap_or_else(|| panic!("a missing sum is added"));
        assert!(result.is_whole && result.is_staged == is_staged, "an incomplete sum is added");
        assert_eq!(result.bytes, self.bytes_of(rect), "a sum is added in the wrong place");
        if !is_staged {
            self.pending.bytes -= result.bytes;
        }
        self.host.event_loop.tasks.push_front(LoopTask::Merge(result.bytes));
    }

    /// Drops a machine's incomplete results.
    pub(super) fn drop_incomplete(&mut self, peer: usize) {
        let keeps = |key: &(usize, u32), result: &PendingResult| key.0 != peer || result.is_whole;
        let dropped =
            self.pending.results.iter().filter(|(key, result)| !keeps(key, result) && !result.is_staged);
        self.pending.bytes -= dropped.map(|(_, result)| result.bytes).sum::<u64>();
        self.pending.results.retain(|key, result| keeps(key, result));
    }

    fn bytes_of(&self, rect: Rect) -> u64 {
        rect.rows.len() * rect.cols.len() * self.primary.plan().problem.element_bytes()
    }

    /// Passes one event to the primary's state machine and carries out the actions.
    pub(super) fn dispatch(&mut self, event: PrimaryEvent) {
        let now = self.event_queue.now();
        for action in self.primary.handle(event, now.duration()) {
            match action {
                PrimaryAction::Send(peer, message) => {
                    self.host
                        .event_loop
                        .tasks
                        .push_back(LoopTask::Send(peer, PrimaryMessage::Store(message)));
                }
                PrimaryAction::Relay(peer, forwards) => {
                    self.host
                        .event_loop
                        .tasks
                        .push_back(LoopTask::Send(peer, PrimaryMessage::Relay(forwards)));
                }
                PrimaryAction::Merge { peer, tile, rect } => self.take_pending(peer, tile, rect, false),
                PrimaryAction::Put { peer, tile, rect } => self.take_pending(peer, tile, rect, true),
                // Spot checks take no time here, and C is not inspected.
                PrimaryAction::SpotCheck(_) | PrimaryAction::Inspection(_) => {}
                PrimaryAction::Committed(rect) => {
                    let first = self.committed.tiles.insert((rect.rows.start, rect.cols.start));
                    assert!(first, "{rect} is committed twice");
                    self.committed.elements += rect.rows.len() * rect.cols.len();
                }
                PrimaryAction::Finished => {
                    self.ended = Some(SimEnd { seconds: self.finish(), failed: None });
                }
                PrimaryAction::Ping(..) => {}
                PrimaryAction::Parted { peer, other } => {
                    self.host.event_loop.tasks.push_back(LoopTask::Send(peer, PrimaryMessage::Parted(other)));
                }
                PrimaryAction::Disconnect { peer, why } => {
                    self.sessions[peer].is_cut = true;
                    self.sessions[peer].why.get_or_insert(why);
                    self.event_queue.add(0.0, WorldEvent::Gone(peer));
                }
                PrimaryAction::Fail(why) => {
                    assert!(self.recovers, "the product failed: {why}");
                    let seconds = self.event_queue.now().seconds();
                    self.ended = Some(SimEnd { seconds, failed: Some(why) });
                }
            }
        }
    }

    /// The time at which C is complete: after the remaining additions.
    fn finish(&self) -> f64 {
        let left = self.host.event_loop.tasks.iter().filter(|d| matches!(d, LoopTask::Merge(_)));
        self.event_queue.now().seconds() + left.map(|d| self.seconds(d)).sum::<f64>()
    }
}
