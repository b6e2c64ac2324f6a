//! A machine of a ring in modelled time: its state machine, the panels that it has, and how its threads spend their time.
//!
//! Place in the flow: `timing.rs` passes events in, and schedules the tasks and frames that it gets.
//!
//! Invariant: the thread time up to the last event is split among tasks and waits without rest.
//!
//! Deliberately absent: how long a task or a frame takes.

use super::report::{LuThreadTime, LuWait};
use super::timing::BlockSizes;
use bramble_schedule::lu::{LuAction, LuEvent, LuNode, LuShape, LuTask};
use bramble_wire::message::LuRing;
use std::collections::BTreeMap;
use std::ops::Range;

/// Most columns of one update, as at the worker.
const COLUMNS_MAX: usize = 2048;

/// A machine.
pub(super) struct TimedMachine {
    node: LuNode,
    pub(super) ring: LuRing,
    panels: usize,
    threads: usize,
    /// Its blocks by their numbers in the whole matrix; the checksum is the last.
    columns: Vec<usize>,
    /// Bytes of each panel that are here, until it is dropped.
    here: BTreeMap<usize, u64>,
    /// Panels that are here as a whole.
    whole: usize,
    /// The panel that goes to the next machine, and how many of its bytes have gone.
    passing: Option<(usize, u64)>,
    is_writing: bool,
    running: usize,
    is_finished: bool,
    time: LuThreadTime,
    last_s: f64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

impl TimedMachine {
    pub(super) fn new(
        sizes: BlockSizes,
        owners: &[usize],
        (machines, me): (usize, usize),
        threads: usize,
        depth: usize,
    ) -> Self {
        let ring = LuRing { owners: owners.to_vec(), machines, me };
        let shape = LuShape {
            blocks: owners.len(),
            panels: sizes.panels(),
            threads,
            widest: (COLUMNS_MAX / sizes.width).max(1),
            live_max: depth,
        };
        Self {
            node: LuNode::new(shape, ring.clone(), true),
            columns: ring.columns(),
            ring,
            panels: shape.panels,
            threads,
            here: BTreeMap::new(),
            whole: 0,
            passing: None,
            is_writing: false,
            running: 0,
            is_finished: false,
            time: LuThreadTime::default(),
            last_s: 0.0,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Columns of these blocks, which are counted among its own.
    pub(super) fn columns_of(&self, sizes: BlockSizes, blocks: Range<usize>) -> usize {
        blocks.map(|block| self.columns.get(block).map_or(1, |column| sizes.columns(*column))).sum()
    }

    /// Passes an event to the state machine; the tasks that begin, and what the machine before this one has to be told.
    pub(super) fn handle(&mut self, event: LuEvent, now: f64) -> (Vec<LuTask>, Option<usize>) {
        self.wait_until(now);
        match &event {
            LuEvent::Ended(task) => {
                self.running -= 1;
                if let LuTask::Panel(step) = task {
                    self.whole = step + 1;
                    self.here.insert(*step, u64::MAX);
                }
            }
            LuEvent::Arrived(step) => {
                self.whole = step + 1;
                self.here.insert(*step, u64::MAX);
            }
            _ => {}
        }
        let actions = match self.node.handle(event) {
            Ok(actions) => actions,
            Err(e) => unreachable!("machines of a simulation keep the rules: {e}"),
        };
        let (mut begun, mut tell) = (Vec::new(), None);
        for action in actions {
            match action {
                LuAction::Start(task) => begun.push(task),
                LuAction::Pass(step) => self.passing = Some((step, 0)),
                LuAction::Drop(count) => self.here = self.here.split_off(&count),
                LuAction::TellSpent(count) => tell = Some(count),
                LuAction::Finished => self.is_finished = true,
            }
        }
        self.running += begun.len();
        (begun, tell)
    }

    /// Counts what idle threads have waited for since the last event.
    fn wait_until(&mut self, now: f64) {
        let idle = (now - self.last_s) * (self.threads - self.running) as f64;
        self.last_s = now;
        self.time.add(self.cause(), idle);
    }

    /// What an idle thread waits for.
    fn cause(&self) -> LuWait {
        if self.is_finished || self.whole == self.panels {
            LuWait::End
        } else if self.ring.owners[self.whole] == self.ring.me {
            LuWait::OwnPanel
        } else if self.here.contains_key(&self.whole) {
            LuWait::Link
        } else {
            LuWait::Others
        }
    }

    /// Counts the time of a task.
    pub(super) fn count_task(&mut self, task: &LuTask, seconds: f64) {
        match task {
            LuTask::Panel(_) => self.time.panel_s += seconds,
            LuTask::Update { .. } => self.time.update_s += seconds,
        }
    }

    /// The thread time up to the end of the elimination.
    pub(super) fn time(&self, end_s: f64) -> LuThreadTime {
        let mut time = self.time;
        time.add(self.cause(), (end_s - self.last_s) * (self.threads - self.running) as f64);
        time
    }

    /// The first `bytes` of a panel have come.
    pub(super) fn come(&mut self, step: usize, bytes: u64) {
        let before = self.here.insert(step, bytes).unwrap_or(0);
        self.bytes_in += bytes - before;
    }

    /// A frame has been written: the link is free.
    pub(super) fn written(&mut self, bytes: u64) {
        self.is_writing = false;
        self.bytes_out += bytes;
    }

    /// The next frame to the next machine, if the link is free and bytes are here that have not gone.
    pub(super) fn next_frame(&mut self, sizes: BlockSizes, most: u64) -> Option<(usize, Range<u64>)> {
        let (step, sent) = self.passing.filter(|_| !self.is_writing)?;
        let all = sizes.panel_bytes(step);
        let end = all.min(*self.here.get(&step)?).min(sent + most);
        if end <= sent {
            return None;
        }
        self.passing = (end < all).then_some((step, end));
        self.is_writing = true;
        Some((step, sent..end))
    }
}
