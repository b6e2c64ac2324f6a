//! Workers whose loss an elimination has outlived, as text and JSON.
//!
//! Place in the flow: `solve`, `lu` and `bench hpl` on workers, and the calls of the Python package.
//!
//! Invariant: a time of 0 is a loss before the first start, which has cost no part of a run.
//!
//! Deliberately absent: losses of products, which do not start again (`product`).

use crate::quantity::{counted, seconds};
use bramble_primary::{LuLoss, SystemLosses};
use serde_json::{Value, json};

/// When a worker was lost, and why.
pub fn when(loss: &LuLoss) -> String {
    match loss.at_s > 0.0 {
        true => format!("after {} ({})", seconds(loss.at_s), loss.why),
        false => format!("before the start ({})", loss.why),
    }
}

/// The line that tells of a loss at once; `left` workers are there.
pub fn told(loss: &LuLoss, left: usize) -> String {
    let again = if loss.at_s > 0.0 { "again " } else { "" };
    let left = counted(left as u64, "worker");
    format!("bramble: worker {} was lost {}; the elimination starts {again}on {left}", loss.name, when(loss))
}

/// A line of the report for each worker that was lost, and one for the time that this has cost.
pub fn lines(losses: &SystemLosses) -> Vec<String> {
    let of = |loss: &LuLoss| format!("lost      {} {}", loss.name, when(loss));
    let mut lines: Vec<String> = losses.workers.iter().map(of).collect();
    if losses.seconds > 0.0 {
        lines.push(format!(
            "again     the last elimination started {} after the first, and this time counts",
            seconds(losses.seconds)
        ));
    }
    lines
}

/// The workers that were lost as JSON.
pub fn object(losses: &SystemLosses) -> Value {
    let of = |loss: &LuLoss| json!({"name": loss.name, "why": loss.why, "at_s": loss.at_s});
    json!({
        "count": losses.workers.len(),
        "workers": losses.workers.iter().map(of).collect::<Vec<_>>(),
        "seconds": losses.seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_before_the_start_has_cost_nothing() {
        let loss = |at_s| LuLoss { name: "pi3:4747".to_owned(), why: "it was silent".to_owned(), at_s };
        let line = told(&loss(0.0), 1);
        assert!(
            line.ends_with("was lost before the start (it was silent); the elimination starts on 1 worker")
        );
        let line = told(&loss(2.5), 2);
        assert!(
            line.ends_with("lost after 2.50 s (it was silent); the elimination starts again on 2 workers")
        );
        let of = |at_s, seconds| SystemLosses { workers: vec![loss(at_s)], seconds };
        assert_eq!(lines(&of(0.0, 0.0)).len(), 1);
        assert_eq!(lines(&of(2.5, 4.0)).len(), 2);
        assert!(lines(&SystemLosses::default()).is_empty());
        assert_eq!(object(&of(2.5, 4.0))["workers"][0]["at_s"], 2.5);
    }
}
