//! A decision with the machines that it was made for, as text and JSON show it.

use bramble_plan::{Decision, Limit, Machine, Plan};

/// A plan and its machines.
#[derive(Clone, Debug)]
pub struct PlanView {
    /// The plan, and why it is this one.
    pub decision: Decision,
    /// The primary, then the workers; members of the plan are indices into this list.
    pub machines: Vec<Machine>,
    /// Power of each machine in watts; `None` if unknown.
    pub watts: Vec<Option<f64>>,
    /// Time spent planning, in seconds.
    pub plan_seconds: f64,
    /// Whether the elements were inspected, as a product does before it uses Strassen's method.
    pub is_inspected: bool,
}

/// The predicted energy of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Total power of the machines that compute.
    pub watts: f64,
    /// Power times predicted time.
    pub joules: f64,
    /// Gflop/s for each watt.
    pub gflops_per_watt: f64,
}

impl PlanView {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.decision.plan
    }

    /// Names of the members.
    pub fn names(&self) -> Vec<&str> {
        self.plan().members.iter().map(|m| self.machines[m.machine].name.as_str()).collect()
    }

    /// The energy; `None` unless the power of every machine that computes is known.
    pub fn energy(&self) -> Option<Energy> {
        let plan = self.plan();
        let watts = plan.members.iter().map(|m| self.watts[m.machine]).sum::<Option<f64>>()?;
        let joules = watts * plan.predicted.seconds;
        let gflops_per_watt = if joules > 0.0 { plan.problem.flops() / joules / 1e9 } else { 0.0 };
        (watts > 0.0).then_some(Energy { watts, joules, gflops_per_watt })
    }

    /// Predicted time divided by the lower bound.
    pub fn ratio(&self) -> Option<f64> {
        let (predicted, bound) = (self.plan().predicted.seconds, self.plan().bound.seconds);
        (bound > 0.0).then(|| predicted / bound)
    }
}

/// The name of a limit in JSON, and the machine that causes it.
pub fn limit(limit: &Limit) -> (&'static str, Option<&str>) {
    match limit {
        Limit::Nothing => ("nothing", None),
        Limit::Compute(name) => ("compute", Some(name)),
        Limit::Memory(name) => ("memory", Some(name)),
        Limit::Link(name) => ("link", Some(name)),
        Limit::Egress => ("egress", None),
        Limit::Ingress => ("ingress", None),
        Limit::Primary => ("primary", None),
    }
}
