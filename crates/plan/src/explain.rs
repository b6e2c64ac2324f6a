//! Explanations of a decision: the reason for a plan, for a machine without a share, and for the lack of room.

use crate::search::{Search, SearchOutcome, tries, unusable};
use crate::team::least_memory;
use crate::{Base, Machine, Plan, PlanError, Preference, Strategy, UnusedMachine};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

impl Search<'_> {
    /// Every worker without a share, with the reason.
    pub(crate) fn left_out(&self, best: &Plan, alone: bool) -> Vec<UnusedMachine> {
        let used: Vec<usize> = best.members.iter().map(|m| m.machine).collect();
        let explained = tries(used.len());
        let mut left = Vec::new();
        for (id, machine) in self.machines.iter().enumerate().skip(1).filter(|(id, _)| !used.contains(id)) {
            let with_it: Vec<usize> = used.iter().copied().chain([id]).collect();
            let reason = if let Some(why) = unusable(machine) {
                why
            } else if self.plan(best.strategy, &[id], false).is_none() {
                format!("its {} bytes of memory have no room for one block", machine.memory_bytes)
            } else if self.uses_all() {
                "there are too few tiles, or places in the mesh, for a share of its own".to_owned()
            } else if left.len() < explained
                && let Some(plan) = self.plan(best.strategy, &with_it, false)
            {
                without_gain(machine, id, &plan, best)
            } else if alone {
                "the primary alone is predicted to be faster".to_owned()
            } else {
                "it would not make the product faster".to_owned()
            };
            left.push(UnusedMachine { name: machine.name.clone(), reason });
        }
        left
    }

    /// The decision in one sentence.
    pub(crate) fn sentence(&self, best: &Plan, found: &SearchOutcome, alone: bool) -> String {
        let by = match best.strategy {
            Strategy { base: Base::Reuse, levels: 0 } => String::new(),
            strategy => format!(" by {strategy}"),
        };
        let predicted = seconds(best.predicted.seconds);
        let primary = &self.machines[0];
        if alone {
            let plural = if primary.threads == 1 { "thread" } else { "threads" };
            let mut text = format!("alone on {} {plural} of {}{by}", primary.threads, primary.name);
            if let Some((t, machines)) = found.team_s() {
                let (t, machines) = (seconds(t), count(machines));
                let _ = write!(text, ": {predicted} predicted, against {t} with {machines}");
            }
            return text;
        }
        let workers = best.members.iter().filter(|m| m.machine != 0).count();
        let too = if workers < best.members.len() { " and this machine" } else { "" };
        let against = match found.alone_s() {
            Some(t) => format!(", against {} on the primary alone", seconds(t)),
            None if self.options.who == Preference::Fastest && self.options.strategy.is_none() => {
                "; the product does not fit the primary alone".to_owned()
            }
            None => String::new(),
        };
        format!("with {}{too}{by}: {predicted} predicted{against}", count(workers))
    }

    /// The error if nothing fits: the memory that would be needed.
    pub(crate) fn no_room(&self) -> PlanError {
        let strategy = self.options.strategy.unwrap_or(Strategy::plain(Base::Reuse));
        let first = self.first_region();
        let need_bytes = first.map_or(0, |(region, charges)| least_memory(strategy.base, region, charges));
        let asked = match self.machines.len() {
            1 => self.machines,
            _ if self.options.who == Preference::Workers => &self.machines[1..],
            _ => self.machines,
        };
        let have_bytes = asked.iter().map(|m| m.memory_bytes).max().unwrap_or(0);
        PlanError::NoRoom { strategy, need_bytes, have_bytes }
    }
}

/// Why a machine with enough memory has no share.
fn without_gain(machine: &Machine, id: usize, with_it: &Plan, without: &Plan) -> String {
    if with_it.members.iter().all(|m| m.machine != id) {
        let link = machine.link.map_or(0.0, |l| l.bytes_per_s / 1e6);
        return format!(
            "with {:.1} Gflop/s and {link:.1} MB/s its share would be less than one tile",
            machine.gflops
        );
    }
    let (with, without) = (seconds(with_it.predicted.seconds), seconds(without.predicted.seconds));
    format!("it would not help: {with} with it, {without} without")
}

fn count(workers: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

pub(crate) fn seconds(t: f64) -> String {
    if t >= 1.0 { format!("{t:.1} s") } else { format!("{:.1} ms", t * 1e3) }
}
