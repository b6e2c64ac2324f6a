//! The search for plans: teams of the best workers, with and without the primary, by every strategy.
//!
//! Place in the flow: called by `decide`, which explains the result.
//!
//! Invariants: the search includes all workers by every strategy, and the primary alone, so the chosen plan is
//! predicted to be no slower than any of them, or at most 4 % slower if it keeps the bits of one machine. The work
//! grows with the number of machines, not with that of tiles.

use crate::cost::Costs;
use crate::memory::CellCharges;
use crate::team::{TeamInput, plan_team};
use crate::winograd::Recipe;
use crate::{Base, Considered, Machine, Plan, PlanOptions, Preference, Problem, Region, Relay, Strategy};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bramble_base::float::{cbrt, ceil, floor, sqrt};

/// C, cut for some number of levels.
struct Ground<'a> {
    levels: u32,
    regions: &'a [Region],
    recipes: Vec<Recipe>,
    charges: Vec<CellCharges>,
}

/// The input of the search.
pub(crate) struct Search<'a> {
    pub(crate) problem: &'a Problem,
    /// The machines, the primary first.
    pub(crate) machines: &'a [Machine],
    pub(crate) options: &'a PlanOptions,
    grounds: Vec<Ground<'a>>,
}

/// How much faster a plan has to be to justify other bits than those of one machine.
const WORTH_OTHER_BITS: f64 = 1.04;

/// The plans that were found.
#[derive(Default)]
pub(crate) struct SearchOutcome {
    plans: Vec<Plan>,
}

impl SearchOutcome {
    fn push(&mut self, plan: Option<Plan>) {
        self.plans.extend(plan);
    }

    /// Keeps only plans with as many machines as one without a cut of k could use: the user has asked for all
    /// workers.
    fn keep_fullest(&mut self) {
        let members = |p: &Plan| p.members.len();
        let whole = self.plans.iter().filter(|p| p.keeps_bits()).map(members).max();
        let most = whole.or_else(|| self.plans.iter().map(members).max()).unwrap_or(0);
        self.plans.retain(|p| members(p) >= most);
    }

    /// Drops plans whose workers could relay and do not, if one relays: the user has asked for relaying, and some
    /// strategies never relay.
    fn keep_relaying(&mut self) {
        let workers = |p: &Plan| p.members.iter().filter(|m| m.machine != 0).count();
        if self.plans.iter().any(|p| p.relay) {
            self.plans.retain(|p| p.relay || workers(p) < 2);
        }
    }

    /// The least predicted time; the first among equals.
    fn least(&self) -> Option<&Plan> {
        self.plans.iter().min_by(|a, b| a.predicted.seconds.total_cmp(&b.predicted.seconds))
    }

    /// The least predicted time among the plans that keep the bits of one machine.
    fn least_with_bits(&self) -> Option<&Plan> {
        let same_bits = self.plans.iter().filter(|p| p.keeps_bits());
        same_bits.min_by(|a, b| a.predicted.seconds.total_cmp(&b.predicted.seconds))
    }

    /// The plan to use: the least predicted time. But a plan with the bits of one machine wins against one that
    /// cuts k, or multiplies floats by Strassen's method, unless that is faster by more than `WORTH_OTHER_BITS`.
    pub(crate) fn best(&self) -> Option<Plan> {
        let fastest = self.least()?;
        let enough = fastest.predicted.seconds * WORTH_OTHER_BITS;
        let same_bits = self.least_with_bits().filter(|p| p.predicted.seconds <= enough);
        Some(same_bits.unwrap_or(fastest).clone())
    }

    pub(crate) fn alone_s(&self) -> Option<f64> {
        self.plans.iter().filter(|p| is_alone(p)).map(|p| p.predicted.seconds).min_by(f64::total_cmp)
    }

    /// Seconds and machines of the best team.
    pub(crate) fn team_s(&self) -> Option<(f64, usize)> {
        let teams = self.plans.iter().filter(|p| !is_alone(p));
        let times = teams.map(|p| (p.predicted.seconds, p.members.len()));
        times.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The best plan of each strategy, with the primary alone separately.
    pub(crate) fn considered(&self) -> Vec<Considered> {
        let mut best: BTreeMap<(Strategy, bool), Considered> = BTreeMap::new();
        for plan in &self.plans {
            let one = Considered {
                strategy: plan.strategy,
                machines: plan.members.len(),
                with_primary: plan.members.iter().any(|m| m.machine == 0),
                seconds: plan.predicted.seconds,
                bytes_sent: plan.predicted.bytes_sent,
                bytes_received: plan.predicted.bytes_received,
                bytes_relayed: plan.predicted.bytes_relayed,
            };
            let entry = best.entry((plan.strategy, is_alone(plan))).or_insert_with(|| one.clone());
            if one.seconds < entry.seconds {
                *entry = one;
            }
        }
        let mut all: Vec<Considered> = best.into_values().collect();
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        all
    }
}

fn is_alone(plan: &Plan) -> bool {
    plan.members.iter().all(|m| m.machine == 0)
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        problem: &'a Problem,
        machines: &'a [Machine],
        options: &'a PlanOptions,
        regions: &'a [(u32, Vec<Region>)],
    ) -> Self {
        let ground = |(levels, regions): &'a (u32, Vec<Region>)| {
            let recipes: Vec<Recipe> = regions.iter().map(|r| Recipe::new(r.levels)).collect();
            let charges =
                regions.iter().zip(&recipes).map(|(r, recipe)| CellCharges::of(r, problem, recipe)).collect();
            Ground { levels: *levels, regions, recipes, charges }
        };
        Self { problem, machines, options, grounds: regions.iter().map(ground).collect() }
    }

    /// Whether the user has asked for all workers.
    pub(crate) fn uses_all(&self) -> bool {
        self.options.strategy.is_some() || self.options.who == Preference::Workers
    }

    fn ground(&self, levels: u32) -> Option<&Ground<'a>> {
        self.grounds.iter().find(|g| g.levels == levels)
    }

    /// The first region of the strategy, with the charges of its cells.
    pub(crate) fn first_region(&self) -> Option<(&Region, &CellCharges)> {
        self.grounds.first().and_then(|g| g.regions.first().zip(g.charges.first()))
    }

    /// A plan for those machines; without the ones that have no room, if `drops` allows it.
    pub(crate) fn plan(&self, strategy: Strategy, ids: &[usize], drops: bool) -> Option<Plan> {
        let ground = self.ground(strategy.levels)?;
        let costs = Costs {
            problem: self.problem,
            regions: ground.regions,
            recipes: &ground.recipes,
            charges: &ground.charges,
            sums: self.options.sums(),
            machines: self.machines,
            relay: self.options.relay,
        };
        let team = TeamInput { costs: &costs, strategy, everyone: self.uses_all(), ownership: None };
        let mut ids = ids.to_vec();
        while !ids.is_empty() {
            match plan_team(&team, &ids) {
                Ok(plan) => return Some(plan),
                Err(without_room) if drops => ids.retain(|id| !without_room.contains(id)),
                Err(_) => return None,
            }
        }
        None
    }

    /// All plans of the primary alone.
    pub(crate) fn alone(&self, found: &mut SearchOutcome) {
        for ground in &self.grounds {
            for base in self.bases(1) {
                found.push(self.plan(Strategy { base, levels: ground.levels }, &[0], false));
            }
        }
    }

    /// Cuts for a team of that many machines, the simplest first.
    fn bases(&self, machines: usize) -> Vec<Base> {
        if let Some(strategy) = self.options.strategy {
            return vec![strategy.base];
        }
        let mut bases = vec![Base::Reuse, Base::Cuboid];
        if machines > 1 {
            bases.extend(meshes(self.problem, machines));
            bases.extend([Base::Square(8), Base::Square(4), Base::Row(8), Base::Row(4), Base::Naive]);
        }
        bases
    }

    /// The orders in which workers are enrolled: by speed, and by the least use of the primary's link for their
    /// work, 2 c / μ with c the seconds of a block on their link and μ² the blocks that they hold (Dongarra,
    /// Pineau, Robert, Shi, Vivien, INRIA RR-6053, 2006).
    fn orders(&self) -> Vec<Vec<usize>> {
        let usable = (1..self.machines.len()).filter(|id| unusable(&self.machines[*id]).is_none());
        let mut by_speed: Vec<usize> = usable.collect();
        let mut by_link = by_speed.clone();
        let speed = |id: &usize| self.machines[*id].gflops;
        by_speed.sort_by(|a, b| speed(b).total_cmp(&speed(a)).then(a.cmp(b)));
        let carried = |id: &usize| {
            let machine = &self.machines[*id];
            machine.link.map_or(f64::INFINITY, |l| l.bytes_per_s) * sqrt(machine.memory_bytes as f64)
        };
        by_link.sort_by(|a, b| {
            carried(b).total_cmp(&carried(a)).then(speed(b).total_cmp(&speed(a))).then(a.cmp(b))
        });
        if by_link == by_speed { vec![by_speed] } else { vec![by_speed, by_link] }
    }

    /// Plans with workers: with all of them if the user asked for that, else with the best ones. Only plans that
    /// relay, if the user asked for that and there are some.
    pub(crate) fn teams(&self, found: &mut SearchOutcome) {
        let orders = self.orders();
        let Some(all) = orders.first().filter(|order| !order.is_empty()) else { return };
        if self.uses_all() {
            self.by_every_strategy(all, found);
            found.keep_fullest();
        } else {
            self.best_teams(&orders, found);
        }
        if self.options.relay == Relay::On {
            found.keep_relaying();
        }
    }

    /// Plans with the best workers in each of these orders.
    fn best_teams(&self, orders: &[Vec<usize>], found: &mut SearchOutcome) {
        let mut teams: Vec<Vec<usize>> = Vec::new();
        let mut best: Option<(f64, Vec<usize>)> = None;
        for order in orders {
            for size in sizes_up_to(order.len()) {
                for with_primary in [false, true] {
                    let ids = ids_of(&order[..size], with_primary);
                    let plan = self.plan(Strategy::plain(Base::Reuse), &ids, true);
                    let seconds = plan.as_ref().map_or(f64::INFINITY, |p| p.predicted.seconds);
                    found.push(plan);
                    if best.as_ref().is_none_or(|b| seconds < b.0) {
                        best = Some((seconds, ids.clone()));
                    }
                    if size == order.len() || size.is_power_of_two() && with_primary {
                        teams.push(ids);
                    }
                }
            }
        }
        teams.extend(best.map(|b| b.1));
        for team in &teams {
            self.by_every_strategy(team, found);
        }
        self.improve(found, SearchOutcome::least);
        self.improve(found, SearchOutcome::least_with_bits);
    }

    /// A team by every strategy; Strassen's levels with the simplest cuts, and with the cut that is best without
    /// levels.
    fn by_every_strategy(&self, ids: &[usize], found: &mut SearchOutcome) {
        let mut best: Option<(f64, Base)> = None;
        for ground in &self.grounds {
            for base in self.bases(ids.len()) {
                let simple = matches!(base, Base::Reuse | Base::Cuboid) || self.options.strategy.is_some();
                if ground.levels > 0 && !simple && best.is_none_or(|b| b.1 != base) {
                    continue;
                }
                let plan = self.plan(Strategy { base, levels: ground.levels }, ids, true);
                // The primary must have room for the partial sums, unless the user has chosen the strategy.
                let fits = |p: &Plan| p.predicted.primary_memory_bytes <= self.machines[0].memory_bytes;
                let Some(plan) = plan.filter(|p| self.options.strategy.is_some() || fits(p)) else {
                    continue;
                };
                if ground.levels == 0 && best.is_none_or(|b| plan.predicted.seconds < b.0) {
                    best = Some((plan.predicted.seconds, base));
                }
                found.push(Some(plan));
            }
        }
    }

    /// Removes machines from the team that `best` finds, or adds some, for as long as that helps.
    fn improve(&self, found: &mut SearchOutcome, best: fn(&SearchOutcome) -> Option<&Plan>) {
        let of = best;
        for _ in 0..ROUNDS {
            let Some(best) = of(found) else { return };
            let (strategy, seconds) = (best.strategy, best.predicted.seconds);
            let ids: Vec<usize> = best.members.iter().map(|m| m.machine).collect();
            let mut last: Vec<usize> = (0..ids.len()).collect();
            let time = |at: &usize| best.predicted.machines[*at].seconds;
            last.sort_by(|a, b| time(b).total_cmp(&time(a)).then(a.cmp(b)));
            let tries = tries(ids.len());
            let without = last
                .iter()
                .take(tries)
                .filter(|_| ids.len() > 1)
                .map(|at| ids.iter().copied().filter(|id| *id != ids[*at]).collect::<Vec<usize>>());
            let more = self.unused(&ids).take(tries).map(|id| ids.iter().copied().chain([id]).collect());
            let teams: Vec<Vec<usize>> = without.chain(more).collect();
            for team in teams {
                found.push(self.plan(strategy, &team, true));
            }
            if of(found).is_none_or(|best| best.predicted.seconds >= seconds) {
                return;
            }
        }
    }

    /// Usable machines that are not in the team.
    pub(crate) fn unused(&self, ids: &[usize]) -> impl Iterator<Item = usize> {
        (0..self.machines.len())
            .filter(|id| !ids.contains(id) && (*id == 0 || unusable(&self.machines[*id]).is_none()))
    }
}

/// Rounds of removing and adding machines.
const ROUNDS: usize = 8;

/// How many machines are removed, and added, to see whether that helps; for these the reason has figures.
pub(crate) fn tries(members: usize) -> usize {
    if members > 128 { 2 } else { 8 }
}

/// Why planning cannot use a machine.
pub(crate) fn unusable(machine: &Machine) -> Option<String> {
    let known = |x: f64| x.is_finite() && x > 0.0;
    let rate = machine.link.map_or(1.0, |l| l.bytes_per_s);
    if !known(machine.gflops) {
        return Some(format!("its speed, {} Gflop/s, is none to plan with", machine.gflops));
    }
    (!known(rate)).then(|| format!("the rate of its link, {rate} bytes/s, is none to plan with"))
}

/// Team sizes to try: all up to 16, then in growing steps, and all machines.
fn sizes_up_to(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=most.min(16)).collect();
    let mut size = 16;
    while size < most {
        size = (size + size / 4).min(most);
        sizes.push(size);
    }
    sizes
}

/// Meshes with that many places to try: of all a × b × c the one that moves least, the one whose busier direction
/// moves least, and the best without a cut of k; and with fewer places a = b, c = 2a.
fn meshes(problem: &Problem, machines: usize) -> Vec<Base> {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (m, n, k) = (problem.m as f64, problem.n as f64, problem.k as f64);
    let moved = |[a, b, c]: [usize; 3]| (k * (m * b as f64 + n * a as f64), m * n * c as f64);
    let divisors = |of: usize| (1..=of).filter(move |d| of.is_multiple_of(*d));
    let all: Vec<[usize; 3]> = divisors(machines)
        .flat_map(|a| divisors(machines / a).map(move |b| [a, b, machines / a / b]))
        .collect();
    let least = |of: &dyn Fn([usize; 3]) -> f64| all.iter().copied().min_by(|x, y| of(*x).total_cmp(&of(*y)));
    let mut places = vec![
        least(&|at| moved(at).0 + moved(at).1),
        least(&|at| moved(at).0.max(moved(at).1)),
        least(&|at| if at[2] == 1 { moved(at).0 } else { f64::INFINITY }),
    ];
    let side = cbrt(machines as f64 / 2.0);
    for a in [floor(side) as usize, ceil(side) as usize] {
        places.push((a > 0 && machines / (a * a) > 1).then(|| [a, a, machines / (a * a)]));
    }
    let mut bases: Vec<Base> = Vec::new();
    for [a, b, c] in places.into_iter().flatten() {
        let base = if c == 1 {
            Base::Summa(number(a), number(b))
        } else {
            Base::Box3(number(a), number(b), number(c))
        };
        if !bases.contains(&base) {
            bases.push(base);
        }
    }
    bases
}

fn ids_of(workers: &[usize], with_primary: bool) -> Vec<usize> {
    let first = if with_primary { Some(0) } else { None };
    first.into_iter().chain(workers.iter().copied()).collect()
}
