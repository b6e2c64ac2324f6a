//! A plan for a given team: parts in proportion to speed, then evened until nobody is waited for long.
//!
//! Invariant: what comes out covers all regions; members are the machines that really have a share.

use crate::bound::bound;
use crate::cost::{Prediction, predict, recipes};
use crate::cut::{Seat, shares};
use crate::memory::CellCharges;
use crate::winograd::Recipe;
use crate::{Base, BlockSize, Machine, Member, Order, Plan, Problem, Region, Share, Strategy, Sums};

/// What a team is to do.
pub(crate) struct Team<'a> {
    pub(crate) problem: &'a Problem,
    pub(crate) machines: &'a [Machine],
    pub(crate) strategy: Strategy,
    pub(crate) sums: Sums,
    pub(crate) regions: &'a [Region],
}

/// Rounds of evening out.
const ROUNDS: usize = 4;
/// Beyond so many members one round has to do.
const MANY: usize = 64;

/// The best plan for the machines with those numbers; the number of one that has no room for its share.
pub(crate) fn plan_team(team: &Team<'_>, ids: &[usize]) -> Result<Plan, usize> {
    let seat = |id: &usize| {
        let seat = Seat::of(&team.machines[*id]);
        // Parts of k that wait for each other keep no threads busy.
        if team.sums == Sums::Chained { Seat { threads: 1, ..seat } } else { seat }
    };
    let mut seats: Vec<Seat> = ids.iter().map(seat).collect();
    let recipes = recipes(team.regions);
    let mut best: Option<(Prediction, Vec<Member>)> = None;
    let rounds = if ids.len() == 1 {
        1
    } else if ids.len() > MANY {
        2
    } else {
        ROUNDS
    };
    for _ in 0..rounds {
        let members = match members(team, ids, &seats) {
            Ok(members) => members,
            Err(seat) if best.is_none() => return Err(ids[seat]),
            Err(_) => break,
        };
        let predicted = predict(team.problem, team.regions, &recipes, team.sums, team.machines, &members);
        let even = even_out(&mut seats, ids, &members, &predicted);
        if best.as_ref().is_none_or(|(b, _)| predicted.seconds < b.seconds) {
            best = Some((predicted, members));
        }
        if even {
            break;
        }
    }
    let Some((predicted, members)) = best else { return Err(ids[0]) };
    Ok(finished(team, &recipes, predicted, members))
}

fn finished(team: &Team<'_>, _recipes: &[Recipe], predicted: Prediction, members: Vec<Member>) -> Plan {
    Plan {
        problem: *team.problem,
        strategy: team.strategy,
        sums: team.sums,
        regions: team.regions.to_vec(),
        bound: bound(team.problem, team.machines, &members, team.strategy.levels),
        peak_gflops: members.iter().map(|m| team.machines[m.machine].peak_gflops).sum(),
        predicted,
        members,
    }
}

/// Everybody's shares; the seat that has no room.
fn members(team: &Team<'_>, ids: &[usize], seats: &[Seat]) -> Result<Vec<Member>, usize> {
    let mut members: Vec<Member> = ids
        .iter()
        .map(|id| Member { machine: *id, shares: Vec::new(), memory_bytes: 0, blocks_at_once: 0 })
        .collect();
    for (at, region) in team.regions.iter().enumerate() {
        // What Strassen's method leaves at the edges is little: by rows or columns, as it comes.
        let base = if at == 0 { team.strategy.base } else { Base::Reuse };
        let all = shares(base, at, region, team.problem.element_bytes(), seats)?;
        for (member, mut shares) in members.iter_mut().zip(all) {
            member.shares.append(&mut shares);
        }
    }
    members.retain(|m| !m.shares.is_empty());
    set_memory(team, &mut members);
    Ok(members)
}

/// Sets what each member is given at once, from its shares: the most that it can use.
fn set_memory(team: &Team<'_>, members: &mut [Member]) {
    let element_bytes = team.problem.element_bytes();
    let charges: Vec<CellCharges> = team.regions.iter().map(|r| CellCharges::of(r, element_bytes)).collect();
    for member in members {
        let machine = &team.machines[member.machine];
        let blocks = member.shares.iter().map(Share::blocks).fold(0, u64::saturating_add);
        let (mut at_once, mut bytes) = (1, 0);
        for share in &member.shares {
            let (ahead, ideal) =
                charges[share.region].ideal(share.block, share.order, blocks, machine.threads);
            at_once = at_once.max(ahead);
            bytes = bytes.max(ideal);
        }
        member.memory_bytes = bytes.min(machine.memory_bytes);
        member.blocks_at_once = usize::try_from(at_once).unwrap_or(usize::MAX);
    }
}

/// Makes the parts of machines that would take longer than the mean smaller. True where there is nothing to gain.
fn even_out(seats: &mut [Seat], ids: &[usize], members: &[Member], predicted: &Prediction) -> bool {
    let times: Vec<f64> = predicted.machines.iter().map(|m| m.compute_s.max(m.link_s)).collect();
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let worst = times.iter().copied().fold(0.0, f64::max);
    if members.len() < 2 || worst <= mean * 1.02 || mean <= 0.0 {
        return true;
    }
    for (member, time) in members.iter().zip(&times) {
        let Some(seat) = ids.iter().position(|id| *id == member.machine) else { continue };
        seats[seat].weight *= (mean / time.max(mean * 1e-3)).clamp(0.25, 4.0);
    }
    false
}

/// The least memory that a block of a strategy needs.
pub(crate) fn least_memory(problem: &Problem, base: Base, regions: &[Region]) -> u64 {
    let Some(region) = regions.first() else { return 0 };
    let charges = CellCharges::of(region, problem.element_bytes());
    let (rows, cols, steps) = (region.grid.rows().min(1), region.grid.cols().min(1), region.steps());
    let (size, order) = match base {
        Base::Naive => (BlockSize { rows, cols, steps: 1 }, Order::Steps),
        Base::Row(n) => {
            let steps = u64::from(n).min(steps);
            (BlockSize { rows, cols: region.grid.cols(), steps }, Order::Columns)
        }
        Base::Square(n) => {
            let n = u64::from(n);
            let side = |most: u64| n.min(most);
            (
                BlockSize {
                    rows: side(region.grid.rows()),
                    cols: side(region.grid.cols()),
                    steps: side(steps),
                },
                Order::Steps,
            )
        }
        Base::Reuse | Base::Cuboid | Base::Box3(..) | Base::Summa(..) => {
            (BlockSize { rows, cols, steps }, Order::Steps)
        }
    };
    charges.need(size, order)
}
