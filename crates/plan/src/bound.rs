//! What no run can beat (docs/cost-model.md): the physical bound of the machines, and what must be moved.

use crate::cost::primary_rate;
use crate::{Machine, Member, Problem};

/// What the lower bound comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Operations over the summed peak of the cores.
    Compute,
    /// Operands once over the primary's link.
    Egress,
    /// C once over the primary's link.
    Ingress,
}

impl Binding {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Egress => "egress",
            Self::Ingress => "ingress",
        }
    }
}

/// No run on these machines can be faster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Seconds.
    pub seconds: f64,
    /// Which term is the largest.
    pub by: Binding,
}

/// The bound T ≥ max((|A|+|B|)/egress, |C|/ingress, 2mnk/Σ peak). Where the primary computes too, only that which the
/// others' part of the operations needs has to leave it; the part is not known to a bound, so nothing has to.
pub(crate) fn bound(problem: &Problem, machines: &[Machine], members: &[Member], levels: u32) -> Bound {
    let rate = primary_rate(machines, members);
    let peak: f64 = members.iter().map(|m| machines[m.machine].peak_gflops).sum();
    let saved = (7.0f64 / 8.0).powi(levels as i32);
    let compute = if problem.flops() > 0.0 { problem.flops() * saved / (peak * 1e9) } else { 0.0 };
    let computes_too = members.iter().any(|m| machines[m.machine].link.is_none());
    let moved = if computes_too { 0.0 } else { 1.0 };
    let terms = [
        (compute, Binding::Compute),
        (moved * problem.operand_bytes() / rate, Binding::Egress),
        (moved * problem.result_bytes() / rate, Binding::Ingress),
    ];
    let (seconds, by) = terms.into_iter().fold((0.0, Binding::Compute), |a, b| if b.0 > a.0 { b } else { a });
    Bound { seconds, by }
}

/// Words that some machine of p equal ones must move for m × n × k with memory for S words each:
/// min{2mnk/(p√S) + S, 3 (mnk/p)^(2/3)} (Kwasniewski et al., *Red-blue pebbling revisited*, SC 2019, theorem 2).
pub fn words_each(m: f64, n: f64, k: f64, machines: f64, memory_words: f64) -> f64 {
    let mnk = m * n * k;
    let limited = 2.0 * mnk / (machines * memory_words.sqrt()) + memory_words;
    limited.min(3.0 * (mnk / machines).powf(2.0 / 3.0))
}
