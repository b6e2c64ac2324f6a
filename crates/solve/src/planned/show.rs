//! A plan as text, and as the object `bramble.plan.lu/1` of docs/json.md.
//!
//! Place in the flow: `plan lu` plans, and prints one of the two.
//!
//! Invariant: both depend on the plan only.

use super::subject::PlanSubject;
use crate::on_workers::{block_line, left_out_lines};
use crate::workers_report::{bound_by, compared};
use bramble_plan::{lu_operations, mxp_seconds};
use bramble_primary::{SystemPlan, SystemShare};
use bramble_report::quantity::{bytes, counted, seconds};
use bramble_report::table;
use serde_json::{Value, json};

/// A letter for each machine, by its number in the ring.
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";
/// Letters in a line of owners.
const LINE: usize = 64;
/// Lines of owners that are printed.
const LINES_MAX: usize = 8;

/// A plan, with the run that it is for.
pub(super) struct PlannedSystem<'a> {
    pub(super) subject: &'a PlanSubject,
    pub(super) plan: SystemPlan,
    /// How many machines may be lost.
    pub(super) survives: u8,
}

impl PlannedSystem<'_> {
    /// The prediction, with the iteration of HPL-MxP.
    fn seconds(&self) -> f64 {
        let SystemPlan { order, estimate, .. } = &self.plan;
        match self.subject {
            PlanSubject::HplMxp(_) => mxp_seconds(*order, estimate, self.product_gflops()),
            PlanSubject::Hpl(_) | PlanSubject::Solve { .. } | PlanSubject::Factor { .. } => estimate.seconds,
        }
    }

    /// Predicted Gflop/s, by HPL's count of the operations.
    fn gflops(&self) -> f64 {
        lu_operations(self.plan.order) / self.seconds() / 1e9
    }

    /// The rate of all machines that take part, multiplying large matrices.
    fn product_gflops(&self) -> f64 {
        self.plan.shares.iter().map(|share| share.gflops).sum()
    }

    /// Seconds in which the machines update columns and factor panels.
    fn work_seconds(&self) -> f64 {
        let estimate = &self.plan.estimate;
        let waits = estimate.panel_wait_seconds + estimate.column_wait_seconds;
        (estimate.seconds - estimate.back_seconds - waits).max(0.0)
    }

    /// The text.
    pub(super) fn text(&self) -> String {
        let SystemPlan { order, width, shares, left_out, estimate, .. } = &self.plan;
        let (taking_part, all) = (shares.len(), shares.len() + left_out.len());
        let head =
            format!("{}: N = {order}, NB = {width}, {taking_part} of {all} machines", self.subject.verb());
        let mut out = vec![head, String::new()];
        out.extend(self.table());
        out.extend(left_out_lines(left_out));
        out.push(String::new());
        out.extend(owner_lines(&self.plan.owners));
        let (gflops, sum, predicted) = (self.gflops(), self.product_gflops(), self.seconds());
        out.extend([
            block_line(&self.plan),
            format!(
                "predicted {}, {gflops:.1} Gflop/s: {:.2} of the {sum:.1} that these machines multiply together",
                seconds(predicted),
                gflops / sum
            ),
            self.parts_line(),
            format!(
                "bound     no LU on these machines takes less than {} ({}); predicted is {:.2} times that",
                seconds(estimate.bound_seconds),
                bound_by(&self.plan),
                predicted / estimate.bound_seconds
            ),
        ]);
        out.extend(self.memory_lines());
        out.join("\n") + "\n"
    }

    /// The machines, with the letters that stand for them in the lines `owners`.
    fn table(&self) -> Vec<String> {
        let head = ["machine", "as", "threads", "Gflop/s", "link", "columns", "memory", "of", ""];
        let row = |(at, share): (usize, &SystemShare)| {
            let link = |rate: f64| format!("{:.1} MB/s", rate / 1e6);
            vec![
                share.name.clone(),
                letter(at).to_string(),
                share.threads.to_string(),
                format!("{:.1}", share.gflops),
                share.bytes_per_s.map_or_else(|| "-".to_owned(), link),
                share.columns.to_string(),
                bytes(share.bytes as f64),
                bytes(share.offered_bytes as f64),
                if share.is_full { "full" } else { "" }.to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = self.plan.shares.iter().enumerate().map(row).collect();
        table::lines(&head, &rows)
    }

    /// What the predicted time consists of.
    fn parts_line(&self) -> String {
        let estimate = &self.plan.estimate;
        let mut parts = vec![
            format!("{} in updates and panels", seconds(self.work_seconds())),
            format!("{} waiting for panels", seconds(estimate.panel_wait_seconds)),
        ];
        if matches!(self.subject, PlanSubject::Solve { .. } | PlanSubject::Factor { .. }) {
            parts.push(format!("{} waiting for columns", seconds(estimate.column_wait_seconds)));
        }
        parts.push(format!("{} in the back-substitution", seconds(estimate.back_seconds)));
        match self.subject {
            PlanSubject::HplMxp(_) => {
                parts.push(format!("{} in the iteration", seconds(self.seconds() - estimate.seconds)));
            }
            PlanSubject::Solve { is_refined: true, .. } => parts.push("corrections come on top".to_owned()),
            PlanSubject::Hpl(_) | PlanSubject::Solve { .. } | PlanSubject::Factor { .. } => {}
        }
        format!("parts     {}", parts.join(", "))
    }

    /// The machines without room for another block, and the losses that the plan allows for.
    fn memory_lines(&self) -> Vec<String> {
        let full: Vec<&str> =
            self.plan.shares.iter().filter(|share| share.is_full).map(|share| share.name.as_str()).collect();
        let mut lines = Vec::new();
        if !full.is_empty() {
            let has = if full.len() == 1 { "has" } else { "have" };
            lines.push(format!("memory    {} {has} no room for another block", full.join(", ")));
        }
        if self.survives > 0 {
            let losses = if self.survives == 1 { "loss" } else { "losses" };
            lines.push(format!("survives  {} {losses}: the system also fits on the others", self.survives));
        }
        lines
    }

    /// The object.
    pub(super) fn json(&self) -> Value {
        let SystemPlan { order, width, depth, shares, owners, left_out, estimate, .. } = &self.plan;
        let machine = |share: &SystemShare| {
            json!({
                "name": share.name, "threads": share.threads, "gflops": share.gflops, "columns": share.columns,
                "memory_bytes": share.bytes, "offered_bytes": share.offered_bytes, "full": share.is_full,
                "bytes_per_s": share.bytes_per_s, "kernel": share.kernel,
            })
        };
        json!({
            "schema": "bramble.plan.lu/1",
            "verb": self.subject.verb(),
            "n": order, "nb": width, "depth": depth, "dtype": self.subject.dtype().name(),
            "predicted": {"seconds": self.seconds(), "gflops": self.gflops()},
            "parts": {
                "work_seconds": self.work_seconds(),
                "panel_wait_seconds": estimate.panel_wait_seconds,
                "column_wait_seconds": estimate.column_wait_seconds,
                "back_seconds": estimate.back_seconds,
                "iteration_seconds": self.seconds() - estimate.seconds,
            },
            "bound": {"seconds": estimate.bound_seconds, "by": bound_by(&self.plan)},
            "product_gflops": self.product_gflops(),
            "machines": shares.iter().map(machine).collect::<Vec<_>>(),
            "owners": owners,
            "left_out": left_out,
            "compared": compared(&self.plan),
            "survives": self.survives,
        })
    }
}

fn letter(machine: usize) -> char {
    char::from(LETTERS[machine % LETTERS.len()])
}

/// The owner of each block column, from left to right; the last letter is the owner of the right-hand sides.
fn owner_lines(owners: &[usize]) -> Vec<String> {
    let letters: Vec<String> =
        owners.chunks(LINE).map(|line| line.iter().map(|owner| letter(*owner)).collect()).collect();
    let mut lines: Vec<String> = letters
        .iter()
        .take(LINES_MAX)
        .enumerate()
        .map(|(at, line)| format!("{:<10}{line}", if at == 0 { "owners" } else { "" }))
        .collect();
    if let more @ 1.. = owners.len().saturating_sub(LINE * LINES_MAX) {
        lines.push(format!(
            "{:<10}and so on: {} more, which --json names",
            "",
            counted(more as u64, "block")
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_letters_in_lines_that_end() {
        assert_eq!(owner_lines(&[0, 1, 0, 2]), ["owners    abac"]);
        let many = owner_lines(&vec![1; LINE * LINES_MAX + 3]);
        assert_eq!(many.len(), LINES_MAX + 1);
        assert!(many[LINES_MAX].contains("3 blocks"), "{many:?}");
    }
}
