//! What a person sees while a product runs: one sentence that says who computes, and on a terminal a bar.

use crate::args::MultiplyArgs;
use crate::meter::{Meter, PARTS};
use crate::quantity::{counted, seconds};
use bramble_plan::Decision;
use bramble_primary::{PrimaryError, Progress as State, RelayReport, Resumed, Unreachable, Watch};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;
use tokio::sync::mpsc::UnboundedSender;

/// What is lost with an interrupted run is told before where it is more than this part of the work …
const MUCH_AT_ONCE: f64 = 0.1;
/// … and of this time.
const LONG_S: f64 = 10.0;

/// The bar and the sentences.
pub(crate) struct Progress {
    bar: ProgressBar,
    meter: RefCell<Meter>,
    quiet: bool,
    /// Whether machines that come in are named.
    names_comers: bool,
    verbose: bool,
    /// Whether another run could go on from where this one ends.
    keeps_journal: bool,
    /// Told the name of each link that was lost.
    lost: UnboundedSender<String>,
}

impl Progress {
    pub(crate) fn new(args: &MultiplyArgs, lost: UnboundedSender<String>) -> Self {
        let quiet = args.quiet || args.json;
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(PARTS), target);
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} %  {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        let (names_comers, keeps_journal) = (!args.quiet, args.file().is_some());
        let meter = RefCell::default();
        Self { bar, meter, quiet, names_comers, verbose: args.verbose, keeps_journal, lost }
    }

    /// Takes the bar away.
    pub(crate) fn done(&self) {
        self.bar.finish_and_clear();
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| crate::say(line));
    }
}

impl Watch for Progress {
    fn decided(&self, decision: &Decision) {
        if self.quiet {
            return;
        }
        self.say(&decision.sentence);
        let part = decision.plan.complete_together();
        let part_s = part * decision.plan.predicted.seconds;
        if self.keeps_journal && part > MUCH_AT_ONCE && part_s > LONG_S {
            self.say(&format!(
                "tiles of C are complete in lots of about {:.0} % of the work ({}): a run that is interrupted keeps the lots \
                 before, not the one under way",
                part * 100.0,
                seconds(part_s)
            ));
        }
        for machine in &decision.left_out {
            self.say(&format!("left out: {}: {}", machine.name, machine.reason));
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
            let memory = plan.predicted.worker_memory_bytes as f64 / 1e6;
            self.say(&format!("at most {memory:.0} MB of matrices at any one machine"));
        }
    }

    fn introduced(&self, relay: &RelayReport) {
        let Some(first) = relay.unreachable.first() else { return };
        // Said in any case: whoever reads nothing else still has to know that the network is not as he thinks.
        let (without, pairs) = (relay.unreachable.len(), relay.unreachable.len() + relay.pairs);
        self.say(&format!(
            "bramble: {without} of {pairs} pairs of workers have no link, such as {} and {} ({}): this machine sends to \
             them itself what they would have passed on",
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
            "bramble: the link between {} and {} broke ({}): this machine sent to them itself what they would have passed on",
            pair.from, pair.to, pair.why
        ));
    }

    fn missing(&self, why: &str) {
        self.say(&format!("bramble: {why}; going on without it (--degraded)"));
    }

    fn resumed(&self, resumed: &Resumed) {
        let recorded = resumed.tiles_there + resumed.tiles_damaged + resumed.tiles_not_on_disk;
        if resumed.tiles_damaged > 0 {
            // Said in any case: the result will be right, and the disk still needs somebody to look at it.
            let (damaged, all) = (resumed.tiles_damaged, counted(recorded, "tile"));
            self.say(&format!("bramble: {damaged} of {all} are not what they were, and are made again"));
        }
        if resumed.tiles_not_on_disk > 0 {
            let (missing, all) = (resumed.tiles_not_on_disk, counted(recorded, "tile"));
            self.say(&format!(
                "bramble: {missing} of {all} had not reached the disk when this machine went down, and are made again"
            ));
        }
    }

    fn lost(&self, name: &str, why: &str, helps: bool) {
        // Said in any case: the result will be right, and the machine still needs somebody to look at it.
        self.say(&format!("bramble: worker {name} was lost: {why}; others do what it had to do"));
        if helps {
            // Where nobody listens, nobody is dialled again.
            let _ = self.lost.send(name.to_owned());
        }
    }

    fn wrong(&self, makers: &[String], tiles: usize, text: &str) {
        let s = if tiles == 1 { "" } else { "s" };
        let by = match makers {
            [] => "made before it was gone on with".to_owned(),
            [one] => format!("made by {one}"),
            some => format!("made by some of {}", some.join(", ")),
        };
        self.say(&format!(
            "bramble: {tiles} tile{s} of C may be wrong ({text}), {by}; others make that again"
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
        if self.bar.is_hidden() {
            return;
        }
        let shown = self.meter.borrow_mut().shown(state);
        self.bar.set_message(shown.text);
        self.bar.set_position(shown.position);
    }

    fn verifying(&self) {
        self.bar.set_position(PARTS);
        self.bar.set_message("verifying");
        self.bar.tick();
    }
}
