//! A decision with the machines that it was made for: what text and JSON show of a plan.

use bramble_plan::{Decision, Limit, Machine, Plan};

/// A plan that was made, and what is known of its machines.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) decision: Decision,
    /// The primary, then the workers: what members index.
    pub(crate) machines: Vec<Machine>,
    /// Power of each of them, where it is known.
    pub(crate) watts: Vec<Option<f64>>,
    /// Seconds that planning took.
    pub(crate) plan_seconds: f64,
}

/// What a product is expected to cost in energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Energy {
    /// Power of the machines that compute.
    pub(crate) watts: f64,
    /// That, over the predicted seconds.
    pub(crate) joules: f64,
    pub(crate) gflops_per_watt: f64,
}

impl View {
    pub(crate) fn plan(&self) -> &Plan {
        &self.decision.plan
    }

    /// Names of the members.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.plan().members.iter().map(|m| self.machines[m.machine].name.as_str()).collect()
    }

    /// The energy, where the power of every machine that computes is known.
    pub(crate) fn energy(&self) -> Option<Energy> {
        let plan = self.plan();
        let watts = plan.members.iter().map(|m| self.watts[m.machine]).sum::<Option<f64>>()?;
        let joules = watts * plan.predicted.seconds;
        let gflops_per_watt = if joules > 0.0 { plan.problem.flops() / joules / 1e9 } else { 0.0 };
        (watts > 0.0).then_some(Energy { watts, joules, gflops_per_watt })
    }

    /// Predicted seconds over the bound's.
    pub(crate) fn ratio(&self) -> Option<f64> {
        let (predicted, bound) = (self.plan().predicted.seconds, self.plan().bound.seconds);
        (bound > 0.0).then(|| predicted / bound)
    }
}

/// What a limit is called where programs read it, and the machine that it names.
pub(crate) fn limit(limit: &Limit) -> (&'static str, Option<&str>) {
    match limit {
        Limit::Nothing => ("nothing", None),
        Limit::Compute(name) => ("compute", Some(name)),
        Limit::Link(name) => ("link", Some(name)),
        Limit::Egress => ("egress", None),
        Limit::Ingress => ("ingress", None),
        Limit::Primary => ("primary", None),
    }
}
