//! Effects of time on all ends: ticks, silence limits, stalled frames.
//!
//! Invariants: the limits are those of `wire/src/limits.rs`, and as in reality any byte that moves counts as heard.

use super::{TICK_S, Trial, TrialEvent};
use bramble_schedule::primary::PrimaryEvent;
use bramble_wire::limits::{NEIGHBOUR_BEAT, PRIMARY_SILENCE_MAX, STALL_MAX};

/// Ticks between signs of life that workers send each other.
const TICKS_A_BEAT: u64 = (NEIGHBOUR_BEAT.as_millis() as f64 / 1e3 / TICK_S) as u64;

impl Trial {
    /// A tick at all ends.
    pub(super) fn tick(&mut self) {
        self.event_queue.add(TICK_S, TrialEvent::Tick);
        self.record.ticks += 1;
        let now = self.event_queue.now();
        for peer in 0..self.nodes.len() {
            // A worker whose bytes arrive, or that takes those of a body, is alive, even in a long frame.
            let is_heard = self.lanes[self.back(peer)].moves() || self.lanes[self.out(peer)].takes_a_body();
            if is_heard && !self.shell.sessions[peer].link.is_cut && self.process.stands == 0 {
                let lanes = (self.back(peer), self.out(peer));
                let (came, gone) =
                    (self.lanes[lanes.0].gone_after(TICK_S), self.lanes[lanes.1].gone_after(TICK_S));
                self.dispatch(PrimaryEvent::Flow { peer, received: came, acknowledged: gone, buffered: 0 });
            }
            let moves = self.lanes[self.out(peer)].moves();
            let node = &mut self.nodes[peer];
            let is_patient = node.machine.shares_memory || node.machine.stands > 0 || !node.machine.lives;
            if !is_patient && node.silence(now, moves) > PRIMARY_SILENCE_MAX {
                self.check_patience(peer);
                self.stop(peer, Some("the primary has been silent".into()));
            }
            if self.record.ticks.is_multiple_of(TICKS_A_BEAT) {
                self.listen(peer);
            }
        }
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].is_held() {
                self.lanes[lane].held_last = Some(now);
            }
            if self.has_stalled(lane) {
                self.lanes[lane].end();
                self.see_broken(lane);
            }
        }
        if self.process.stands == 0 {
            self.dispatch(PrimaryEvent::Tick);
            self.check_time();
        }
    }

    /// Whether a frame has stalled for too long, in transit or because it was not announced.
    fn has_stalled(&self, lane: usize) -> bool {
        let (now, lane_is) = (self.event_queue.now(), &self.lanes[lane]);
        let told = self.receiver(lane).map_or(lane_is.first_since, |peer| self.nodes[peer].announced);
        // A suspended end takes arrived frames before it reads its clock.
        let stands = match self.receiver(lane) {
            None if self.process.stands > 0 => 0.0,
            end => {
                let watch = end.map_or(&self.process.watch, |peer| &self.nodes[peer].session.watch);
                let leapt = watch.leapt_since(lane_is.first_since);
                now.seconds_from(lane_is.first_since) + leapt.as_secs_f64()
            }
        };
        let waits = stands.min(now.seconds_from(told));
        lane_is.is_in_a_frame() && stands > STALL_MAX.as_secs_f64()
            || lane_is.is_refused() && waits > PRIMARY_SILENCE_MAX.as_secs_f64()
    }
}
