//! LU on a ring of machines in modelled time: tasks take as long as the cost model says, panels take time on links.
//!
//! Place in the flow: after the plan (`plan::LuCluster`), instead of a run on real workers; `bramble sim lu`.
//!
//! Invariants: each machine is a real `LuNode` with the sizes and limits of the worker's shell, and has the checksum column.
//! Its thread time is split without rest: tasks, waits by their cause, and the time after its last panel. The same arguments
//! give the same run, event by event.
//!
//! Deliberately absent: elements, faults, how columns come to the machines, congestion in the switch. The back-substitution is
//! the model's, not simulated.
//!
//! Units: seconds, bytes.

use super::report::{LuSimMachine, LuSimReport};
use super::timed_machine::TimedMachine;
use crate::clock::EventQueue;
use bramble_plan::{LuMachine, LuPlan};
use bramble_schedule::lu::{LuEvent, LuTask};
use bramble_wire::limits::LU_FRAME_BYTES;
use std::ops::Range;

/// Bytes of an element.
const ELEMENT: u64 = 8;

/// The system that is factored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LuSimSystem {
    /// Rows, and columns that are eliminated.
    pub order: usize,
    /// Right-hand sides.
    pub extra: usize,
}

/// Sizes of a system in blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizes {
    pub(super) system: LuSimSystem,
    pub(super) width: usize,
}

impl BlockSizes {
    /// Panels.
    pub(super) fn panels(&self) -> usize {
        self.system.order.div_ceil(self.width)
    }

    /// Columns of a block; the right-hand sides are the last.
    pub(super) fn columns(&self, block: usize) -> usize {
        match block < self.panels() {
            true => self.width.min(self.system.order - block * self.width),
            false => self.system.extra,
        }
    }

    /// Rows of a panel.
    pub(super) fn rows(&self, step: usize) -> usize {
        self.system.order - step * self.width
    }

    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self, step: usize) -> u64 {
        (self.rows(step) * self.columns(step)) as u64 * ELEMENT
    }
}

/// What happens.
enum TimedEvent {
    /// A task ends at a machine.
    Ends(usize, LuTask),
    /// A machine has written a frame of a panel to the next one: these bytes of it.
    Written(usize, usize, Range<u64>),
    /// A frame of a panel arrives at a machine.
    Arrives(usize, usize, Range<u64>),
    /// A machine learns what the next one has spent.
    Spent(usize, usize),
}

/// The machines of a plan.
struct TimedRing<'a> {
    sizes: BlockSizes,
    queue: EventQueue<TimedEvent>,
    /// What the cost model knows of each machine, in the order of the ring.
    known: Vec<&'a LuMachine>,
    machines: Vec<TimedMachine>,
    events: u64,
}

/// About how many events a simulation takes at most: two for each frame of a panel on each link; and
/// one for each block and step, and a few for each panel at each machine.
pub fn lu_sim_events(system: LuSimSystem, plan: &LuPlan) -> f64 {
    let sizes = BlockSizes { system, width: plan.width };
    let machines = plan.deal.machines.len();
    let frames: u64 =
        (0..sizes.panels()).map(|step| sizes.panel_bytes(step) / LU_FRAME_BYTES as u64 + 1).sum();
    let links = machines.saturating_sub(1) as f64;
    let each = plan.deal.owners.len() as f64 / 2.0 + 3.0 * machines as f64 + 2.0;
    2.0 * frames as f64 * links + sizes.panels() as f64 * each
}

/// Simulates a plan for these machines. Panics if the plan is not for them: a bug of the caller.
pub fn simulate_lu(system: LuSimSystem, plan: &LuPlan, machines: &[LuMachine]) -> LuSimReport {
    let sizes = BlockSizes { system, width: plan.width };
    let known: Vec<&LuMachine> = plan.deal.machines.iter().map(|at| &machines[*at]).collect();
    let timed = |me: usize| {
        TimedMachine::new(sizes, &plan.deal.owners, (known.len(), me), known[me].threads, plan.depth)
    };
    let machines = (0..known.len()).map(timed).collect();
    let mut ring = TimedRing { sizes, queue: EventQueue::new(0), known, machines, events: 0 };
    ring.run();
    let elimination_seconds = ring.queue.now().seconds();
    let back_seconds = plan.estimate.back_seconds;
    let of = |(at, machine): (usize, &TimedMachine)| LuSimMachine {
        machine: plan.deal.machines[at],
        columns: plan.deal.columns[at],
        time: machine.time(elimination_seconds),
        bytes_in: machine.bytes_in,
        bytes_out: machine.bytes_out,
    };
    LuSimReport {
        seconds: elimination_seconds + back_seconds,
        elimination_seconds,
        back_seconds,
        machines: ring.machines.iter().enumerate().map(of).collect(),
        events: ring.events,
    }
}

impl TimedRing<'_> {
    fn run(&mut self) {
        for at in 0..self.machines.len() {
            self.handle(at, LuEvent::Begin);
            let own = self.machines[at].ring.columns();
            own.into_iter().for_each(|block| self.handle(at, LuEvent::Filled(block)));
        }
        while let Some(event) = self.queue.next() {
            self.events += 1;
            match event {
                TimedEvent::Ends(at, task) => self.handle(at, LuEvent::Ended(task)),
                TimedEvent::Spent(at, count) => self.handle(at, LuEvent::NextSpent(count)),
                TimedEvent::Written(at, step, bytes) => {
                    self.machines[at].written(bytes.end - bytes.start);
                    if bytes.end == self.sizes.panel_bytes(step) {
                        self.handle(at, LuEvent::Passed(step));
                    }
                    self.pump(at);
                }
                TimedEvent::Arrives(at, step, bytes) => self.arrives(at, step, &bytes),
            }
        }
        let is_over = self.machines.iter().all(TimedMachine::is_finished);
        assert!(is_over, "the ring stands still, at an event {} of its simulation", self.events);
    }

    fn arrives(&mut self, at: usize, step: usize, bytes: &Range<u64>) {
        if bytes.start == 0 {
            self.handle(at, LuEvent::Arriving(step));
        }
        self.machines[at].come(step, bytes.end);
        if bytes.end == self.sizes.panel_bytes(step) {
            self.handle(at, LuEvent::Arrived(step));
        }
        self.pump(at);
    }

    /// Passes an event to a machine; schedules the tasks that begin and what goes to its neighbours.
    fn handle(&mut self, at: usize, event: LuEvent) {
        let now = self.queue.now().seconds();
        let (begun, tell) = self.machines[at].handle(event, now);
        for task in begun {
            let seconds = self.task_seconds(at, &task);
            self.machines[at].count_task(&task, seconds);
            self.queue.add(seconds, TimedEvent::Ends(at, task));
        }
        if let Some(count) = tell {
            let before = (at + self.machines.len() - 1) % self.machines.len();
            self.queue.add(self.latency(before, at), TimedEvent::Spent(before, count));
        }
        self.pump(at);
    }

    fn task_seconds(&self, at: usize, task: &LuTask) -> f64 {
        let (known, sizes) = (self.known[at], self.sizes);
        match task {
            LuTask::Panel(step) => known.panel_seconds(sizes.rows(*step), sizes.columns(*step)),
            LuTask::Update { step, blocks } => {
                let columns = self.machines[at].columns_of(sizes, blocks.clone());
                known.update_seconds(sizes.rows(*step), sizes.columns(*step), columns)
            }
        }
    }

    /// Half of the longer round trip of two machines.
    fn latency(&self, one: usize, other: usize) -> f64 {
        self.known[one].round_trip_s.max(self.known[other].round_trip_s) / 2.0
    }

    /// Writes the next frame to the next machine, if the link is free and elements are here.
    fn pump(&mut self, at: usize) {
        let Some((step, bytes)) = self.machines[at].next_frame(self.sizes, LU_FRAME_BYTES as u64) else {
            return;
        };
        let next = (at + 1) % self.machines.len();
        let rate = |of: usize| self.known[of].bytes_per_s.unwrap_or(f64::INFINITY);
        let seconds = (bytes.end - bytes.start) as f64 / rate(at).min(rate(next));
        let latency = self.latency(at, next);
        self.queue.add(seconds, TimedEvent::Written(at, step, bytes.clone()));
        self.queue.add(seconds + latency, TimedEvent::Arrives(next, step, bytes));
    }
}
