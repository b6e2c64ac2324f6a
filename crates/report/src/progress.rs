//! Progress of a running product on standard error: the decision and notices as lines, and on a terminal a progress
//! bar; or for a program that shows it in its own way, on a board.

use crate::meter::{PARTS, ProgressMeter};
use crate::quantity::{bytes, counted, seconds};
use bramble_plan::Decision;
use bramble_primary::{
    PrimaryError, ProductObserver, ProductProgress as State, RelayReport, Resumed, TaskProgress, TaskUnit,
    Unreachable,
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// An interrupted run loses the tiles that it is working on. The user is warned at the start if that is more than
/// this part of the work …
const MUCH_AT_ONCE: f64 = 0.1;
/// … and more than this time.
const LONG_S: f64 = 10.0;

/// What a run shows of its progress.
#[derive(Clone, Copy, Debug)]
pub struct ProgressOptions {
    /// Only warnings.
    pub is_quiet: bool,
    /// The result is one JSON object: no bar, and only lines about machines.
    pub is_json: bool,
    /// Also the grid, the memory, and every pair of workers without a link.
    pub is_verbose: bool,
    /// No lines about the plan: this product is one of many.
    pub is_brief: bool,
    /// Whether this run keeps a journal, so that another run can resume it.
    pub keeps_journal: bool,
}

/// What the bar would show, for a program that shows it in its own way, on another thread. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct ProgressBoard(Arc<Mutex<Option<(f64, String)>>>);

impl ProgressBoard {
    /// The part of the work that is done, 0 to 1, and the text beside it; `None` while no product runs.
    pub fn read(&self) -> Option<(f64, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, shown: Option<(f64, String)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}

/// The progress bar and the notices.
pub struct ProgressDisplay {
    bar: ProgressBar,
    board: Option<ProgressBoard>,
    meter: RefCell<ProgressMeter>,
    /// Whether the plan is described.
    says_plan: bool,
    /// Whether joining workers are named.
    names_comers: bool,
    verbose: bool,
    /// Whether this run keeps a journal, so that another run can resume it.
    keeps_journal: bool,
    /// Receives the name of each lost link.
    lost: UnboundedSender<String>,
}

impl ProgressDisplay {
    /// `lost` receives the name of each lost link.
    pub fn new(options: ProgressOptions, lost: UnboundedSender<String>) -> Self {
        let quiet = options.is_quiet || options.is_json;
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(PARTS), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Self {
            bar,
            board: None,
            meter: RefCell::default(),
            says_plan: !quiet && !options.is_brief,
            names_comers: !options.is_quiet,
            verbose: options.is_verbose,
            keeps_journal: options.keeps_journal,
            lost,
        }
    }

    /// The same, which also writes on a board.
    pub fn with_board(self, board: Option<ProgressBoard>) -> Self {
        Self { board, ..self }
    }

    /// Removes the bar, and clears the board.
    pub fn done(&self) {
        self.bar.finish_and_clear();
        self.post(None);
    }

    fn post(&self, shown: Option<(f64, String)>) {
        if let Some(board) = &self.board {
            board.write(shown);
        }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| crate::say(line));
    }
}

impl ProductObserver for ProgressDisplay {
    fn decided(&self, decision: &Decision) {
        if !self.says_plan {
            return;
        }
        self.say(&decision.sentence);
        let part = decision.plan.complete_together();
        let part_s = part * decision.plan.predicted.seconds;
        if self.keeps_journal && part > MUCH_AT_ONCE && part_s > LONG_S {
            self.say(&format!(
                "tiles of C are completed in batches of about {:.0} % of the work ({}): an interrupted run keeps the \
                completed batches and loses the current one",
                part * 100.0,
                seconds(part_s)
            ));
        }
        for machine in &decision.left_out {
            self.say(&format!("not used: {}: {}", machine.name, machine.reason));
        }
        if self.verbose {
            let plan = &decision.plan;
            for region in &plan.regions {
                let grid = &region.grid;
                let (tiles, steps) = (grid.tiles(), grid.steps());
                let (rows, cols, depth) = (grid.tile_rows, grid.tile_cols, grid.depth);
                let (tiles, steps) = (counted(tiles, "tile"), counted(steps, "step"));
                self.say(&format!("{tiles} of {rows}x{cols}, {steps} of {depth}"));
            }
            let memory = bytes(plan.predicted.worker_memory_bytes as f64);
            self.say(&format!("at most {memory} of matrices at any one machine"));
        }
    }

    fn introduced(&self, relay: &RelayReport) {
        let Some(first) = relay.unreachable.first() else { return };
        // Printed even with --quiet: the user may not know that these machines cannot reach each other.
        let (without, pairs) = (relay.unreachable.len(), relay.unreachable.len() + relay.pairs);
        self.say(&format!(
            "bramble: {without} of {pairs} pairs of workers have no link, such as {} and {} ({}): this machine sends \
            them the panels that they would have relayed",
            first.from, first.to, first.why
        ));
        if self.verbose {
            for pair in relay.unreachable.iter().skip(1) {
                self.say(&format!("no link: {} and {}: {}", pair.from, pair.to, pair.why));
            }
        }
    }

    fn parted(&self, pair: &Unreachable) {
        self.say(&format!(
            "bramble: the link between {} and {} broke ({}): this machine sent them the panels that they would have \
            relayed",
            pair.from, pair.to, pair.why
        ));
    }

    fn missing(&self, why: &str) {
        self.say(&format!("bramble: {why}; continuing without it (--degraded)"));
    }

    fn resumed(&self, resumed: &Resumed) {
        let recorded = resumed.tiles_there + resumed.tiles_damaged + resumed.tiles_not_on_disk;
        if resumed.tiles_damaged > 0 {
            // Printed even with --quiet: the result will be right, but the disk needs attention.
            let (damaged, all) = (resumed.tiles_damaged, counted(recorded, "tile"));
            self.say(&format!(
                "bramble: {damaged} of {all} of the interrupted run are damaged on the disk, and are \
            recomputed"
            ));
        }
        if resumed.tiles_not_on_disk > 0 {
            let (missing, all) = (resumed.tiles_not_on_disk, counted(recorded, "tile"));
            self.say(&format!(
                "bramble: {missing} of {all} had not reached the disk when this machine went down, and are recomputed"
            ));
        }
    }

    fn lost(&self, name: &str, why: &str, helps: bool) {
        // Printed even with --quiet: the result will be right, but the machine needs attention.
        self.say(&format!("bramble: worker {name} was lost: {why}; other machines take over its work"));
        if helps {
            // If the receiver is gone, lost workers are not dialled again.
            let _ = self.lost.send(name.to_owned());
        }
    }

    fn wrong(&self, makers: &[String], tiles: usize, text: &str) {
        let s = if tiles == 1 { "" } else { "s" };
        let by = match makers {
            [] => "computed by the interrupted run".to_owned(),
            [one] => format!("computed by {one}"),
            some => format!("computed by some of {}", some.join(", ")),
        };
        self.say(&format!(
            "bramble: {tiles} tile{s} of C may be wrong ({text}), {by}; other machines recompute"
        ));
    }

    fn joined(&self, name: &str) {
        if self.names_comers {
            self.say(&format!("worker {name} has joined"));
        }
    }

    fn turned_away(&self, why: &PrimaryError) {
        if self.names_comers {
            self.say(&format!("bramble: turned away: {why}"));
        }
        if let PrimaryError::Unreachable { name, .. } = why {
            let _ = self.lost.send(name.clone());
        }
    }

    fn progress(&self, state: &State) {
        if self.bar.is_hidden() && self.board.is_none() {
            return;
        }
        let shown = self.meter.borrow_mut().shown(state);
        self.post(Some((shown.position as f64 / PARTS as f64, shown.text.clone())));
        self.bar.set_message(shown.text);
        self.bar.set_position(shown.position);
    }

    fn tasks(&self, progress: TaskProgress) {
        if self.bar.is_hidden() && self.board.is_none() {
            return;
        }
        let TaskProgress { unit, done, of } = progress;
        let text = match unit {
            TaskUnit::PlacedBytes => format!("{} of {} placed", bytes(done as f64), bytes(of as f64)),
            TaskUnit::FetchedBytes => format!("{} of {} fetched", bytes(done as f64), bytes(of as f64)),
            TaskUnit::Answers => format!("{done}/{of} steps"),
        };
        let part = if of > 0 { done as f64 / of as f64 } else { 0.0 };
        self.post(Some((part, text.clone())));
        self.bar.set_message(text);
        self.bar.set_position((part * PARTS as f64) as u64);
    }

    fn verifying(&self) {
        self.post(Some((1.0, "verifying".to_owned())));
        self.bar.set_position(PARTS);
        self.bar.set_message("verifying");
        self.bar.tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_board_shows_bytes_and_steps_until_the_call_is_over() {
        let options = ProgressOptions {
            is_quiet: true,
            is_json: false,
            is_verbose: false,
            is_brief: true,
            keeps_journal: false,
        };
        let board = ProgressBoard::default();
        let (lost, _) = tokio::sync::mpsc::unbounded_channel();
        let display = ProgressDisplay::new(options, lost).with_board(Some(board.clone()));
        let of = |unit, done, of| TaskProgress { unit, done, of };
        for (progress, shown) in [
            (of(TaskUnit::PlacedBytes, 1_000_000, 4_000_000), (0.25, "1.00 MB of 4.00 MB placed")),
            (of(TaskUnit::FetchedBytes, 4_000_000, 4_000_000), (1.0, "4.00 MB of 4.00 MB fetched")),
            (of(TaskUnit::Answers, 3, 4), (0.75, "3/4 steps")),
            (of(TaskUnit::Answers, 0, 0), (0.0, "0/0 steps")),
        ] {
            display.tasks(progress);
            assert_eq!(board.read(), Some((shown.0, shown.1.to_owned())));
        }
        display.done();
        assert_eq!(board.read(), None);
    }
}
