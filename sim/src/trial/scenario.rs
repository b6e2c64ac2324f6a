//! A scenario: plan, machines, layouts and faults of a trial.
//!
//! Invariants: a scenario is a function of its seed.

use super::placement::TrialPlacement;
use super::trial_data::DIGITS_MAX;
use crate::fault::{FaultSite, Faults};
use crate::participants;
use crate::random::SeededRandom;
use bramble_matrix::DType;
use bramble_plan::{
    Base, LinkRate, Machine, MadeOperands, OperandSource, PanelOrder, Plan, PlanOptions, Preference, Problem,
    Relay, Strategy, TileSize, decide, neighbour_pairs,
};
use bramble_schedule::primary::PeerInfo;
use bramble_schedule::worker::StartLimits;
use bramble_wire::limits::NEIGHBOURS_MAX;
use std::fmt::{self, Display, Formatter};

/// The kind of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Any numbers: each sum is rounded, so bits depend on the order of additions.
    Rounded,
    /// Whole numbers: every sum is exact, so C is known without the plan.
    Whole,
    /// Step s adds 4^s to each element: the digits show which steps were added, and how often.
    Digits,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its seed.
    pub seed: u64,
    /// The plan.
    pub plan: Plan,
    /// The primary, the workers, and machines that may join; faults name a machine by its index here.
    pub machines: Vec<Machine>,
    /// The kind of elements.
    pub values: Values,
    /// Whether A is stored by columns.
    pub col_major: bool,
    /// Whether machines steal work.
    pub steals: bool,
    /// Whether the primary's own threads are a reserve.
    pub has_reserve: bool,
    /// Most rows of a result, and most lines of a relayed matrix, in one frame.
    pub lines_per_frame: u32,
    /// How far each machine computes ahead.
    pub start_limits: StartLimits,
    /// How many others a worker is introduced to.
    pub neighbours_max: usize,
    /// Pairs of machines that could not link with each other, lower index first.
    pub apart: Vec<(usize, usize)>,
    /// The faults.
    pub faults: Faults,
}

/// Attempts to draw a product that fits its machines.
const TRIES: u64 = 64;
/// Limits of a product in tiles and in steps.
pub(super) const TILES_MAX: u64 = 300;
/// See `TILES_MAX`.
pub(super) const STEPS_MAX: u64 = DIGITS_MAX;

impl Scenario {
    /// Draws a product of up to 48 rows, columns and depth on up to seven workers, and its faults.
    pub fn of(seed: u64) -> Self {
        for again in 0..TRIES {
            let mut random = SeededRandom::new(seed ^ (again << 48));
            if let Some(scenario) = Self::drawn(seed, &mut random) {
                return scenario;
            }
        }
        unreachable!("of {TRIES} products one fits its machines")
    }

    /// `None` if the product does not fit the machines.
    fn drawn(seed: u64, random: &mut SeededRandom) -> Option<Self> {
        let values = *random.one_of(&[Values::Rounded, Values::Rounded, Values::Whole, Values::Digits]);
        let (p, cut) = problem(values, random)?;
        let seconds = random.between(0.3, 6.0);
        let workers = 1 + random.index(7);
        let comers = random.index(3);
        let machines = machines(&p, seconds, (workers, comers), random);
        let levels = if values == Values::Digits || random.chance(0.7) { 0 } else { 1 + random.below(2) };
        let levels = u32::try_from(levels).unwrap_or(0);
        let wish = PlanOptions {
            strategy: Some(Strategy { base: base(random), levels }),
            who: *random.one_of(&[Preference::Workers, Preference::Workers, Preference::Fastest]),
            reproducible: levels == 0 && random.chance(0.3),
            elementwise: false,
            relay: *random.one_of(&[Relay::On, Relay::Off, Relay::Auto]),
            tiles_early: seed.is_multiple_of(2).then(MadeOperands::default),
        };
        let placement = TrialPlacement::of(seed, &p, workers);
        let mut plan = match &placement {
            Some(placement) => placement.plan(&p, cut, &machines[..=workers], &wish)?,
            None => decide(&p, cut, &machines[0], &machines[1..=workers], &wish).ok()?.plan,
        };
        if random.chance(0.4) {
            in_another_order(&mut plan, random);
        }
        let steals = random.chance(0.8);
        let (col_major, has_reserve) = (random.chance(0.3), random.chance(0.8));
        let lines_per_frame = *random.one_of(&[1, 2, 3, 5, u32::MAX]);
        let all_meet = random.chance(0.7);
        let pairs = (1..=workers).flat_map(|one| (one + 1..=workers).map(move |other| (one, other)));
        let apart = pairs.filter(|_| !all_meet && random.chance(0.3)).collect();
        let faults = if random.chance(0.05) {
            Faults::default()
        } else {
            Faults::of(random.next(), (workers, comers), plan.predicted.seconds.clamp(0.1, 20.0))
        };
        let faults = if placement.is_some() { without_deaths(faults) } else { faults };
        Some(Self {
            seed,
            plan,
            machines,
            values,
            col_major,
            steals,
            has_reserve,
            lines_per_frame,
            start_limits: start_limits(seed),
            neighbours_max: neighbours_max(seed),
            apart,
            faults,
        })
    }

    /// Whether two members can have a link with each other.
    pub(super) fn can_link(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.plan.members[one].machine, self.plan.members[other].machine);
        let moves = |machine: usize| self.machines[machine].link.is_some();
        moves(one) && moves(other) && !self.apart.contains(&(one.min(other), one.max(other)))
    }

    /// The pairs of members that the primary introduces to each other.
    pub(super) fn pairs(&self) -> Vec<(usize, usize)> {
        if !self.plan.relay {
            return Vec::new();
        }
        neighbour_pairs(&self.plan.members, self.neighbours_max, |one, other| self.can_link(one, other))
    }

    /// The machines as the primary knows them: the plan's members, and the reserve.
    pub(super) fn peers(&self) -> Vec<(usize, PeerInfo)> {
        participants::of(&self.plan, &self.machines, &self.pairs(), self.has_reserve)
    }
}

impl Display for Scenario {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Problem { m, n, k, reads_c, a_source, .. } = self.plan.problem;
        let grid = self.plan.regions.first().map(|r| r.grid);
        let (tile, depth) = grid.map_or((0, 0), |g| (g.tile_rows, g.depth));
        let order = self.plan.members.first().and_then(|m| m.shares.first()).map(|s| s.order);
        let flags = [
            ("relay", self.plan.relay),
            ("steals", self.steals),
            ("reserve", self.has_reserve),
            ("old C", reads_c),
            ("A generated", a_source == OperandSource::Generated),
            ("placed operand", self.plan.ownership.is_some()),
            ("A by columns", self.col_major),
        ];
        write!(
            f,
            "{m} x {n} x {k} in tiles of {tile}, steps of {depth}, by {}, sums {:?}, {} machines of {}, order {order:?}, {:?}",
            self.plan.strategy,
            self.plan.sums,
            self.plan.members.len(),
            self.machines.len(),
            self.values
        )?;
        flags.iter().filter(|(_, is)| *is).try_for_each(|(name, _)| write!(f, ", {name}"))
    }
}

/// A product with a placed operand dies with its primary: the parts end with the connections, so nothing is resumed.
fn without_deaths(mut faults: Faults) -> Faults {
    faults.0.retain(|fault| fault.site != FaultSite::Primary);
    faults
}

/// `None` if it has too many tiles or steps.
fn problem(values: Values, random: &mut SeededRandom) -> Option<(Problem, TileSize)> {
    let side = |random: &mut SeededRandom| 1 + random.below(48);
    let (m, n, k) = (side(random), side(random), side(random));
    let (tile, depth) = (1 + random.below(12), 1 + random.below(12));
    let tiles = m.div_ceil(tile) * n.div_ceil(tile);
    if tiles > TILES_MAX || k.div_ceil(depth) > STEPS_MAX {
        return None;
    }
    let reads_c = values != Values::Digits && random.chance(0.4);
    let p = Problem {
        m,
        n,
        k,
        dtype: DType::F64,
        reads_c,
        a_source: OperandSource::generated_if(!random.chance(0.8)),
        b_source: OperandSource::Sent,
    };
    Some((p, TileSize { tile: Some(tile), depth: Some(depth) }))
}

/// The primary, workers with links on which the product takes about `seconds`, and machines like these that may join.
fn machines(
    p: &Problem,
    seconds: f64,
    (workers, comers): (usize, usize),
    random: &mut SeededRandom,
) -> Vec<Machine> {
    let each = p.flops() / seconds / workers as f64 / 1e9;
    let bytes_per_s = (p.operand_bytes() + p.result_bytes()) / seconds * random.between(0.5, 8.0);
    let is_small = random.chance(0.3);
    let machine = |at: usize, random: &mut SeededRandom| Machine {
        name: format!("w{at}"),
        threads: 1 + u32::try_from(random.below(3)).unwrap_or(0),
        gflops: each * random.between(0.3, 2.0),
        peak_gflops: each * 4.0,
        memory_bytes: match (at, is_small) {
            (0, false) => 1 << 20,
            (0, true) => 500 + random.below(20_000),
            _ => 4_000 + random.below(300_000),
        },
        link: (at > 0).then(|| LinkRate {
            bytes_per_s: bytes_per_s * random.between(0.3, 2.0),
            round_trip_s: random.between(0.0001, 0.06),
        }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    };
    (0..=workers + comers).map(|at| machine(at, random)).collect()
}

/// How far machines compute ahead: mostly so little that jobs of such small products have to wait. Numbers of its own, so
/// that the rest of a scenario does not depend on it.
fn start_limits(seed: u64) -> StartLimits {
    let mut random = SeededRandom::new(seed ^ 0x57a2_7a11);
    if random.chance(0.3) {
        return StartLimits::for_threads(1);
    }
    let unsent_bytes = *random.one_of(&[0, 64, 300, 1000, 4000]);
    StartLimits { unsent_bytes, unsent_tiles: 1 + random.index(3), additions: 1 + random.index(4) }
}

/// How many others a worker is introduced to: in some trials fewer than there are. A number of its own, too.
fn neighbours_max(seed: u64) -> usize {
    let mut random = SeededRandom::new(seed ^ 0x4e16_4b02);
    if random.chance(0.8) { NEIGHBOURS_MAX } else { 1 + random.index(4) }
}

fn base(random: &mut SeededRandom) -> Base {
    let mut few = || 1 + u32::try_from(random.below(4)).unwrap_or(0);
    let sizes = [few(), few(), few()];
    let places = sizes.map(|size| size.min(3));
    // At most seven workers: meshes have at most three places in one direction.
    let all = Base::one_of_each(sizes).zip(Base::one_of_each(places)).flat_map(|(base, small)| match base {
        // Twice: most products use it.
        Base::Reuse => vec![base; 2],
        Base::Box3(..) | Base::Summa(..) => vec![small],
        _ => vec![base],
    });
    *random.one_of(&all.collect::<Vec<_>>())
}

/// Changes the order of the plan's blocks, which takes more memory.
fn in_another_order(plan: &mut Plan, random: &mut SeededRandom) {
    let some = 1 + random.below(6);
    let order = *random.one_of(&[PanelOrder::Columns(some), PanelOrder::Corner, PanelOrder::Ending(some)]);
    for member in &mut plan.members {
        member.shares.iter_mut().for_each(|share| share.order = order);
        member.memory_bytes = 1 << 30;
    }
}
