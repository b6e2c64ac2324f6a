//! Measures the operands, and replaces Strassen's method by a classical one if its sums could overflow.
//!
//! Place in the flow: a strategy with levels that the user named is examined before the machines are gathered; a kernel with
//! levels that the user named, before they are greeted; kernels that workers were started with, when the workers have named
//! them; and a plan with levels that `decide` chose, before it is used.
//!
//! Invariants: no machine multiplies with levels before the operands were measured. If the user's strategy or kernel is replaced,
//! the report says so, with the reason. Integers are exact with levels, and not measured.
//!
//! Deliberately absent: the rule itself (`plan/src/extent.rs`).

use crate::levels::{rules, rules_by_name};
use crate::product::Request;
use bramble_kernel::Choice;
use bramble_matrix::Winograd;
use bramble_plan::{Decision, Extent, Machine, PlanError, PlanOptions, Problem, TileSize, decide};
use bramble_sessions::{PrimaryError, Session, off_loop};
use bramble_verify::{Scaling, largest_element, scaling};

/// The measurements of the operands.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    scaling: Scaling,
    extent: Extent,
}

impl Measured {
    /// Reads all operands once.
    async fn of(request: &Request, problem: &Problem) -> Result<Self, PrimaryError> {
        let (a, b, threads) = (request.a.matrix.clone(), request.b.matrix.clone(), request.check.threads);
        let old_c = request.old_c.clone().filter(|_| problem.reads_c);
        let (scaling, old_c) = off_loop("looking at the operands", move || {
            let scaling = scaling(&a, &b, threads)?;
            let old_c = old_c.map_or(Ok((0.0, true)), |old_c| largest_element(&old_c, threads))?;
            Ok::<_, PrimaryError>((scaling, old_c))
        })
        .await??;
        let extent = Extent {
            dtype: problem.dtype,
            k: problem.k,
            a: scaling.largest[0],
            b: scaling.largest[1],
            old_c: old_c.0,
            alpha: request.alpha,
            beta: if problem.reads_c { request.beta } else { 0.0 },
            is_finite: scaling.is_finite && old_c.1,
        };
        Ok(Self { scaling, extent })
    }
}

/// Replaces a named strategy whose levels could overflow by the best classical one.
pub(crate) async fn replace_unsafe_strategy(
    mut request: Request,
    problem: &Problem,
) -> Result<Request, PrimaryError> {
    let named = request.wish.strategy.filter(|strategy| strategy.levels > 0);
    // With these the planner refuses such a strategy, with its own message.
    let is_refused = request.wish.elementwise || request.wish.reproducible;
    let Some(strategy) = named.filter(|_| problem.dtype.is_float() && !is_refused) else {
        return Ok(request);
    };
    let measured = Measured::of(&request, problem).await?;
    if let Some(why) = measured.extent.objection(strategy.levels) {
        request.instead =
            Some(format!("a classical strategy, not strassen:{}, because {why}", strategy.levels));
        request.wish = PlanOptions { strategy: None, elementwise: true, ..request.wish };
    }
    Ok(request)
}

/// Replaces a named kernel whose levels could overflow by its base kernel.
pub(crate) async fn replace_unsafe_kernel(
    mut request: Request,
    problem: &Problem,
) -> Result<(Request, Option<Measured>), PrimaryError> {
    let Some(rules) = rules_by_name(&request.kernel, problem.dtype) else { return Ok((request, None)) };
    let levels = most_levels(rules, problem);
    if levels == 0 {
        return Ok((request, None));
    }
    let measured = Measured::of(&request, problem).await?;
    if let Some(why) = measured.extent.objection(levels)
        && let Ok(Choice::Strassen { base, .. }) = request.kernel.parse()
    {
        request.instead = Some(format!("the kernel {base}, not {}, because {why}", request.kernel));
        request.kernel = base.to_string();
    }
    Ok((request, Some(measured)))
}

/// Refuses machines that were started with a kernel whose levels could overflow: they have no other.
pub(crate) async fn check_own_kernels(
    request: &Request,
    problem: &Problem,
    machines: impl Iterator<Item = &Session>,
    measured: Option<Measured>,
) -> Result<(), PrimaryError> {
    let mut known = measured;
    for session in machines {
        let kernel = &session.welcome.kernel;
        let levels = rules(kernel, problem.dtype).map_or(0, |rules| most_levels(rules, problem));
        if levels == 0 {
            continue;
        }
        let measured = match known {
            Some(measured) => measured,
            None => *known.insert(Measured::of(request, problem).await?),
        };
        if let Some(why) = measured.extent.objection(levels) {
            return Err(PrimaryError::Failed(format!(
                "{} computes with the kernel {kernel}, which cannot be used here: {why}; start that worker without --kernel, \
                 or leave it out",
                session.name
            )));
        }
    }
    Ok(())
}

/// Most levels that a kernel may use in any tile.
fn most_levels(rules: Winograd, problem: &Problem) -> u32 {
    rules.levels(problem.m, problem.n, problem.k)
}

/// Chooses the plan. If levels would be fastest for floats, the operands are measured first: sums must not overflow, and the
/// errors of levels are small only relative to the largest elements.
pub(crate) async fn choose(
    request: &Request,
    problem: &Problem,
    primary: &Machine,
    machines: &[Machine],
) -> Result<Decision, PrimaryError> {
    let named = |e: PlanError| e.with_credits(request.sessions.credits);
    let decide_as =
        |cut: TileSize, wish: &PlanOptions| decide(problem, cut, primary, machines, wish).map_err(named);
    let mut decision = decide_as(request.cut, &request.wish)?;
    let levels = decision.plan.strategy.levels;
    // A named strategy was examined before.
    if request.wish.strategy.is_none() && levels > 0 && problem.dtype.is_float() {
        let measured = Measured::of(request, problem).await?;
        let loses = || {
            measured
                .scaling
                .is_bad()
                .then(|| format!("which would lose small elements ({})", measured.scaling))
        };
        let why = measured.extent.objection(levels).map(|why| format!("because {why}")).or_else(loses);
        if let Some(why) = why {
            let classical = PlanOptions { elementwise: true, ..request.wish };
            decision = decide_as(request.cut, &classical)?;
            decision.sentence += &format!("; not by Strassen's method, {why}");
        }
    }
    if let Some(instead) = &request.instead {
        decision.sentence += &format!("; {instead}");
    }
    Ok(decision)
}
