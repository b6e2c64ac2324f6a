//! Which plan: the one with the least predicted time among all strategies and teams, the primary alone included, and
//! one sentence that says why.
//!
//! Invariants: every machine either has a share or is named in `left_out` with a reason. With equal predictions the
//! simpler plan is taken: alone before a team, fewer machines before more, `reuse` before the others; and within 4 % one
//! that gives the bits of one machine.

use crate::team::{Team, plan_team};
use crate::{Base, Cut, GridError, Machine, Plan, Problem, Region, Strategy, Sums};
use std::fmt::Write;

/// Who may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// Whatever is predicted to be fastest.
    Fastest,
    /// The workers, all of them, because the user asked for them.
    Workers,
}

/// What the user wants of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The strategy; `None` leaves it to the prediction.
    pub strategy: Option<Strategy>,
    /// Who may be chosen.
    pub who: Preference,
    /// The same bits whatever the strategy and the machines.
    pub reproducible: bool,
    /// No element less accurate than by the classical method.
    pub elementwise: bool,
}

impl Wish {
    /// Whatever is fastest.
    pub const AUTO: Self =
        Self { strategy: None, who: Preference::Fastest, reproducible: false, elementwise: false };

    /// How sums over parts of k come together.
    fn sums(&self) -> Sums {
        if self.reproducible { Sums::Chained } else { Sums::Merged }
    }
}

/// A machine without a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: String,
}

/// A plan that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// Its strategy.
    pub strategy: Strategy,
    /// Machines that would take part.
    pub machines: usize,
    /// Whether the primary is one of them.
    pub with_primary: bool,
    /// Predicted seconds.
    pub seconds: f64,
    /// Predicted bytes that leave the primary.
    pub bytes_sent: u64,
    /// Predicted bytes that come back.
    pub bytes_received: u64,
}

/// The chosen plan and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The plan. Its members index the machines: 0 is the primary, then the workers in their order.
    pub plan: Plan,
    /// Whether the primary computes alone.
    pub alone: bool,
    /// Workers that get nothing.
    pub left_out: Vec<LeftOut>,
    /// One sentence for the user.
    pub sentence: String,
    /// The best plan of each strategy that was looked at, fastest first.
    pub considered: Vec<Considered>,
}

/// Errors of planning.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum PlanError {
    /// `--tile`, `--panel`.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// Not even one block fits anywhere.
    #[error(
        "no machine has room for one block of {strategy}: {need_bytes} bytes are needed, the most that one offers is \
         {have_bytes}; use a smaller --tile or --panel, or give the workers more --memory"
    )]
    NoRoom {
        /// What was to be planned.
        strategy: Strategy,
        /// Bytes of the least block.
        need_bytes: u64,
        /// Bytes of the roomiest machine.
        have_bytes: u64,
    },
    /// The strategy cannot do what was asked.
    #[error("--strategy {strategy}: {why}")]
    Refused {
        /// Which.
        strategy: Strategy,
        /// Why, and what to do instead.
        why: String,
    },
}

/// Chooses. `primary` is this machine's own cores; `workers` may be empty.
pub fn decide(
    problem: &Problem,
    cut: Cut,
    primary: &Machine,
    workers: &[Machine],
    wish: &Wish,
) -> Result<Decision, PlanError> {
    // A primary whose speed is not known is taken for a very slow one.
    let gflops =
        if unusable(&Machine { link: None, ..primary.clone() }).is_some() { 1e-3 } else { primary.gflops };
    let mut machines = vec![Machine { link: None, gflops, ..primary.clone() }];
    machines.extend(workers.iter().cloned());
    let search = Search { problem, machines: &machines, wish, regions: regions(problem, cut, wish)? };
    let mut found = Found::default();
    let alone_too = wish.who == Preference::Fastest || workers.is_empty();
    if alone_too && (wish.strategy.is_none() || workers.is_empty()) {
        search.alone(&mut found);
    }
    search.teams(&mut found);
    let Some(best) = found.best() else { return Err(search.no_room()) };
    let alone = best.members.iter().all(|m| m.machine == 0);
    let left_out = search.left_out(&best, alone);
    let sentence = search.sentence(&best, &found, alone);
    Ok(Decision { alone, left_out, sentence, considered: found.considered(), plan: best })
}

/// The most memory that any one worker could use, whichever plan is chosen.
pub fn memory_to_ask(problem: &Problem, cut: Cut, wish: &Wish) -> Result<u64, PlanError> {
    let all = regions(problem, cut, wish)?;
    Ok(all.iter().map(|(_, r)| crate::memory_wanted(r, problem.element_bytes())).max().unwrap_or(0))
}

/// The regions of each number of levels that may be used.
fn regions(problem: &Problem, cut: Cut, wish: &Wish) -> Result<Vec<(u32, Vec<Region>)>, PlanError> {
    let levels: Vec<u32> = match wish.strategy {
        Some(strategy) => vec![strategy.levels],
        None if wish.reproducible || wish.elementwise => vec![0],
        None => vec![0, 1, 2],
    };
    let mut all = Vec::new();
    for levels in levels {
        match (Region::peeled(problem, cut, levels)?, wish.strategy) {
            (Some(regions), _) => all.push((levels, regions)),
            (None, None) => {}
            (None, Some(strategy)) => {
                let why = format!(
                    "{} x {} x {} cannot be halved {levels} times; use fewer levels",
                    problem.m, problem.n, problem.k
                );
                return Err(PlanError::Refused { strategy, why });
            }
        }
    }
    if let Some(strategy) = wish.strategy.filter(|s| s.levels > 0) {
        let classical = "use another strategy, or let Bramble choose";
        let why = match (wish.reproducible, wish.elementwise && problem.dtype.is_float()) {
            (true, _) => format!(
                "--reproducible asks for the bits of the classical sum, which it does not have; {classical}"
            ),
            (_, true) => format!(
                "its error is bounded by norms only, and elementwise accuracy was asked for; {classical}"
            ),
            _ => return Ok(all),
        };
        return Err(PlanError::Refused { strategy, why });
    }
    Ok(all)
}

/// What is looked through.
struct Search<'a> {
    problem: &'a Problem,
    machines: &'a [Machine],
    wish: &'a Wish,
    regions: Vec<(u32, Vec<Region>)>,
}

/// The plans that were found.
#[derive(Default)]
struct Found {
    plans: Vec<Plan>,
}

impl Found {
    /// The least predicted time; what was found first wins unless another is 0.1 % faster. A plan whose bits are those of
    /// one machine wins against one that cuts k, or multiplies floats by Strassen's method, unless that is faster by
    /// more than `WORTH_OTHER_BITS`.
    fn best(&self) -> Option<Plan> {
        let least = |plans: &mut dyn Iterator<Item = &Plan>| {
            let mut best: Option<Plan> = None;
            for plan in plans {
                if best.as_ref().is_none_or(|b| plan.predicted.seconds < b.predicted.seconds * 0.999) {
                    best = Some(plan.clone());
                }
            }
            best
        };
        let fastest = least(&mut self.plans.iter())?;
        let same_bits = least(&mut self.plans.iter().filter(|p| p.keeps_bits()));
        let is_near = |plan: &Plan| plan.predicted.seconds <= fastest.predicted.seconds * WORTH_OTHER_BITS;
        Some(same_bits.filter(is_near).unwrap_or(fastest))
    }

    fn alone_s(&self) -> Option<f64> {
        let alone = self.plans.iter().filter(|p| p.members.iter().all(|m| m.machine == 0));
        alone.map(|p| p.predicted.seconds).min_by(f64::total_cmp)
    }

    fn team_s(&self) -> Option<(f64, usize)> {
        let teams = self.plans.iter().filter(|p| p.members.iter().any(|m| m.machine != 0));
        let times = teams.map(|p| (p.predicted.seconds, p.members.len()));
        times.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn considered(&self) -> Vec<Considered> {
        let mut best: std::collections::BTreeMap<(Strategy, bool), Considered> =
            std::collections::BTreeMap::new();
        for plan in &self.plans {
            let alone = plan.members.iter().all(|m| m.machine == 0);
            let one = Considered {
                strategy: plan.strategy,
                machines: plan.members.len(),
                with_primary: plan.members.iter().any(|m| m.machine == 0),
                seconds: plan.predicted.seconds,
                bytes_sent: plan.predicted.bytes_sent,
                bytes_received: plan.predicted.bytes_received,
            };
            let entry = best.entry((plan.strategy, alone)).or_insert_with(|| one.clone());
            if one.seconds < entry.seconds {
                *entry = one;
            }
        }
        let mut all: Vec<Considered> = best.into_values().collect();
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        all
    }
}

impl Search<'_> {
    /// Cuts for a team of so many machines, the simplest first. Those of document 000 send more than `reuse` and stand
    /// beside it for comparison.
    fn bases(&self, machines: usize) -> Vec<Base> {
        if let Some(strategy) = self.wish.strategy {
            return vec![strategy.base];
        }
        let mut bases = vec![Base::Reuse, Base::Cuboid];
        if machines > 1 {
            bases.extend(meshes(machines));
            bases.extend([Base::Square(8), Base::Row(8), Base::Naive]);
        }
        bases
    }

    /// A plan for those machines; without the ones that have no room, where `drops` allows it.
    fn plan(&self, base: Base, levels: u32, regions: &[Region], ids: &[usize], drops: bool) -> Option<Plan> {
        let team = Team {
            problem: self.problem,
            machines: self.machines,
            strategy: Strategy { base, levels },
            sums: self.wish.sums(),
            regions,
        };
        let mut ids = ids.to_vec();
        while !ids.is_empty() {
            match plan_team(&team, &ids) {
                Ok(plan) => return Some(plan),
                Err(without_room) if drops => ids.retain(|id| *id != without_room),
                Err(_) => return None,
            }
        }
        None
    }

    /// Every plan of the primary alone.
    fn alone(&self, found: &mut Found) {
        for (levels, regions) in &self.regions {
            for base in self.bases(1) {
                if let Some(plan) = self.plan(base, *levels, regions, &[0], false) {
                    found.plans.push(plan);
                }
            }
        }
    }

    /// Workers, those that are worth most first.
    fn workers(&self) -> Vec<usize> {
        let speed = |id: &usize| self.machines[*id].gflops;
        let mut order: Vec<usize> =
            (1..self.machines.len()).filter(|id| unusable(&self.machines[*id]).is_none()).collect();
        order.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then(a.cmp(b)));
        order
    }

    /// Plans with workers: with all of them where the user asked for that, else with the best so many.
    fn teams(&self, found: &mut Found) {
        let order = self.workers();
        if order.is_empty() {
            return;
        }
        if self.wish.strategy.is_some() || self.wish.who == Preference::Workers {
            for (levels, regions) in &self.regions {
                for base in self.bases(order.len()) {
                    found.plans.extend(self.plan(base, *levels, regions, &order, true));
                }
            }
            return;
        }
        let Some((levels, regions)) = self.regions.first() else { return };
        let mut sizes = Vec::new();
        let mut best = (f64::INFINITY, 1, false);
        for size in sizes_up_to(order.len()) {
            sizes.push(size);
            for with_primary in [false, true] {
                let ids = ids_of(&order[..size], with_primary);
                let Some(plan) = self.plan(Base::Reuse, *levels, regions, &ids, true) else { continue };
                if plan.predicted.seconds < best.0 * 0.999 {
                    best = (plan.predicted.seconds, size, with_primary);
                }
                found.plans.push(plan);
            }
        }
        let some = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, best.1, order.len()];
        for size in some.into_iter().filter(|s| *s <= order.len()) {
            let ids = ids_of(&order[..size], best.2);
            for (levels, regions) in &self.regions {
                for base in self.bases(ids.len()).into_iter().filter(|b| *b != Base::Reuse || *levels > 0) {
                    let few = size == best.1 || !matches!(base, Base::Naive | Base::Row(_) | Base::Square(_));
                    if few && (*levels == 0 || size == best.1) {
                        found.plans.extend(self.plan(base, *levels, regions, &ids, true));
                    }
                }
            }
        }
    }

    /// Every worker without a share, and why.
    fn left_out(&self, best: &Plan, alone: bool) -> Vec<LeftOut> {
        let used: Vec<usize> = best.members.iter().map(|m| m.machine).collect();
        let regions = &best.regions;
        let mut left = Vec::new();
        for (id, machine) in self.machines.iter().enumerate().skip(1).filter(|(id, _)| !used.contains(id)) {
            let has_room =
                self.plan(best.strategy.base, best.strategy.levels, regions, &[id], false).is_some();
            let with_it = ids_of(&used, false).into_iter().chain([id]).collect::<Vec<_>>();
            let reason = if let Some(why) = unusable(machine) {
                why
            } else if !has_room {
                format!("its {} bytes of memory have no room for one block", machine.memory_bytes)
            } else if self.wish.strategy.is_some() || self.wish.who == Preference::Workers {
                "there are too few tiles, or places in the mesh, for a share of its own".to_owned()
            } else if left.len() < EXPLAINED_MAX
                && let Some(plan) =
                    self.plan(best.strategy.base, best.strategy.levels, regions, &with_it, false)
                && plan.predicted.seconds > best.predicted.seconds
            {
                let (with, without) = (seconds(plan.predicted.seconds), seconds(best.predicted.seconds));
                format!("it would not help: {with} with it, {without} without")
            } else if alone {
                "the primary alone is predicted to be faster".to_owned()
            } else {
                "it would not make the product faster".to_owned()
            };
            left.push(LeftOut { name: machine.name.clone(), reason });
        }
        left
    }

    fn sentence(&self, best: &Plan, found: &Found, alone: bool) -> String {
        let mut text = String::new();
        let by = |plan: &Plan| match plan.strategy {
            Strategy { base: Base::Reuse, levels: 0 } => String::new(),
            strategy => format!(" by {strategy}"),
        };
        let predicted = seconds(best.predicted.seconds);
        let primary = &self.machines[0];
        if alone {
            let plural = if primary.threads == 1 { "thread" } else { "threads" };
            text = format!("alone on {} {plural} of {}{}", primary.threads, primary.name, by(best));
            if let Some((t, machines)) = found.team_s() {
                let _ =
                    write!(text, ": {predicted} predicted, against {} with {}", seconds(t), count(machines));
            }
            return text;
        }
        let workers = best.members.iter().filter(|m| m.machine != 0).count();
        let too = if workers < best.members.len() { " and this machine" } else { "" };
        let against = match found.alone_s() {
            Some(t) => format!(", against {} on the primary alone", seconds(t)),
            None if self.wish.who == Preference::Fastest && self.wish.strategy.is_none() => {
                "; the product does not fit the primary alone".to_owned()
            }
            None => String::new(),
        };
        let _ = write!(text, "with {}{too}{}: {predicted} predicted{against}", count(workers), by(best));
        text
    }

    fn no_room(&self) -> PlanError {
        let strategy = self.wish.strategy.unwrap_or(Strategy::plain(Base::Reuse));
        let regions = self.regions.first().map(|r| r.1.as_slice()).unwrap_or_default();
        let need_bytes = crate::team::least_memory(self.problem, strategy.base, regions);
        let asked = match self.machines.len() {
            1 => self.machines,
            _ if self.wish.who == Preference::Workers => &self.machines[1..],
            _ => self.machines,
        };
        let have_bytes = asked.iter().map(|m| m.memory_bytes).max().unwrap_or(0);
        PlanError::NoRoom { strategy, need_bytes, have_bytes }
    }
}

/// Why a machine cannot be planned with.
fn unusable(machine: &Machine) -> Option<String> {
    let known = |x: f64| x.is_finite() && x > 0.0;
    let rate = machine.link.map_or(1.0, |l| l.bytes_per_s);
    if !known(machine.gflops) {
        return Some(format!("its speed, {} Gflop/s, is none to plan with", machine.gflops));
    }
    (!known(rate)).then(|| format!("the rate of its link, {rate} bytes/s, is none to plan with"))
}

/// How much faster a plan has to be predicted before it is worth other bits than those of one machine.
const WORTH_OTHER_BITS: f64 = 1.04;

/// Machines that are left out are told in numbers why, up to so many.
const EXPLAINED_MAX: usize = 32;

/// Team sizes worth trying: all up to 16, then in growing steps, and everybody.
fn sizes_up_to(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=most.min(16)).collect();
    let mut size = 16;
    while size < most {
        size = (size + size / 4).min(most);
        sizes.push(size);
    }
    sizes
}

/// Meshes of so many places: the squarest, and those with k cut so that what leaves the primary and what comes back
/// take equally long (a = b, c = 2a).
fn meshes(machines: usize) -> Vec<Base> {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut rows = machines.isqrt().max(1);
    while !machines.is_multiple_of(rows) {
        rows -= 1;
    }
    let mut bases = vec![Base::Summa(number(rows), number(machines / rows))];
    let side = (machines as f64 / 2.0).cbrt();
    for a in [side.floor() as usize, side.ceil() as usize] {
        if a > 0 && machines / (a * a) > 1 {
            bases.push(Base::Box3(number(a), number(a), number(machines / (a * a))));
        }
    }
    bases.dedup();
    bases
}

fn ids_of(workers: &[usize], with_primary: bool) -> Vec<usize> {
    let first = if with_primary { Some(0) } else { None };
    first.into_iter().chain(workers.iter().copied()).collect()
}

fn count(workers: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

fn seconds(t: f64) -> String {
    if t >= 1.0 { format!("{t:.1} s") } else { format!("{:.1} ms", t * 1e3) }
}
