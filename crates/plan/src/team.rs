//! A plan for a given team: parts in proportion to speed, then balanced until no machine waits long for another.
//!
//! Invariant: the result covers all regions; its members are the machines that have a share.

use crate::bound::bound;
use crate::cost::{Costs, Prediction};
use crate::cut::{Cutting, Seat, shares};
use crate::memory::{CellCharges, EDGE_MAX};
use crate::{
    Base, BlockSize, Member, Ownership, PanelOrder, Plan, ProductSide, Region, Relay, Share, Strategy, Sums,
};
use alloc::vec::Vec;

/// The input of planning for a team.
pub(crate) struct TeamInput<'a> {
    pub(crate) costs: &'a Costs<'a>,
    pub(crate) strategy: Strategy,
    /// Every machine gets a share, if there are enough cells.
    pub(crate) everyone: bool,
    /// Which part each machine can compute, if an operand is placed.
    pub(crate) ownership: Option<&'a Ownership>,
}

/// Rounds of balancing.
const ROUNDS: usize = 4;
/// Blocks of half the size are used if they take less than this fraction of the time.
const HALVES_GAIN: f64 = 0.97;
/// Another order than step by step is used if it takes less than this fraction of the time: the rest of a block in
/// step order can be stolen by other machines.
const ORDER_GAIN: f64 = 0.88;
/// The same for an order that differs only in the last steps.
const ENDING_GAIN: f64 = 0.98;
/// How much longer `Ending` may take than the other orders.
const ENDING_EVEN: f64 = 1.02;
/// Most of such last steps.
const ENDING_MAX: u64 = 64;
/// How much longer a plan may take whose machines return their tiles band by band.
const BANDS_EVEN: f64 = 1.06;
/// A plan within this factor of the best counts as equally fast.
const EVEN: f64 = 1.01;
/// With more members than this, two rounds are enough, cells are not moved, and the relayed plan has the same parts
/// as the plain one.
const MANY: usize = 64;

/// The best plan for the machines with those numbers, relayed or not; or the numbers of the machines without room
/// for their shares.
pub(crate) fn plan_team(team: &TeamInput<'_>, ids: &[usize]) -> Result<Plan, Vec<usize>> {
    let (options, plain) = (team.costs.relay, shared_out(team, ids, false)?);
    if team.strategy.base.is_fixed() || !team.costs.may_relay(&plain.1) {
        return Ok(plan_of(team, plain, false));
    }
    let relayed = if ids.len() > MANY {
        (team.costs.predict(&plain.1, true), plain.1.clone())
    } else {
        // With relaying, other parts may be better, since shared panels cost the primary's link less.
        let Ok(relayed) = shared_out(team, ids, true) else { return Ok(plan_of(team, plain, false)) };
        relayed
    };
    let is_better = |a: &Prediction, b: &Prediction| {
        a.seconds < b.seconds || (a.seconds == b.seconds && a.bytes_sent < b.bytes_sent)
    };
    let wanted = options == Relay::On || is_better(&relayed.0, &plain.0);
    if wanted && relayed.0.bytes_relayed > 0 {
        Ok(plan_of(team, relayed, true))
    } else {
        Ok(plan_of(team, plain, false))
    }
}

type Shared = (Prediction, Vec<Member>);

/// All shares, with their predicted time.
fn shared_out(team: &TeamInput<'_>, ids: &[usize], relay: bool) -> Result<Shared, Vec<usize>> {
    let seats: Vec<Seat> = ids.iter().map(|id| team.seat(*id)).collect();
    let mut best = best_of(team, ids, seats.clone(), relay)?;
    // Blocks of half the size move more bytes, but the next block arrives while the last one is returned. A member
    // with a single block is sent its operands once, which is worth more to the others than a little time.
    let fixed = team.strategy.base.is_fixed();
    let several = |member: &Member| member.shares.iter().any(|s| s.blocks() > 1);
    if !fixed && best.1.iter().any(several) {
        let half = |seat: &Seat| Seat { block_bytes: seat.memory_bytes / 2, ..*seat };
        if let Ok(halves) = best_of(team, ids, seats.iter().map(half).collect(), relay)
            && halves.0.seconds < best.0.seconds * HALVES_GAIN
        {
            best = halves;
        }
    }
    let best = if fixed { best } else { in_other_orders(team, best, relay) };
    Ok(if team.has_given_boxes() { in_bands(team, (ids, &seats), best, relay) } else { best })
}

/// With a placed operand, narrow blocks across the operand that is sent move no more bytes than large ones. The tiles of one
/// are at the primary while the next is computed, and stay if their machine is lost: that is worth a little time.
fn in_bands(team: &TeamInput<'_>, (ids, seats): (&[usize], &[Seat]), whole: Shared, relay: bool) -> Shared {
    let of = |(region, charges): (&Region, &CellCharges)| match charges.sent_side() {
        Some(ProductSide::Rows) => region.grid.rows(),
        Some(ProductSide::Cols) => region.grid.cols(),
        Some(ProductSide::Depth) | None => 1,
    };
    let most = team.costs.regions.iter().zip(team.costs.charges).map(of).max().unwrap_or(1);
    let bands = |bands: u64| {
        let seats = seats.iter().map(|seat| Seat { bands, ..*seat }).collect();
        best_of(team, ids, seats, relay).ok()
    };
    let all = [2, 4, 8].into_iter().filter(|bands| *bands <= most).filter_map(bands);
    let fastest = all.min_by(|a, b| a.0.seconds.total_cmp(&b.0.seconds));
    fastest.filter(|(bands, _)| bands.seconds <= whole.0.seconds * BANDS_EVEN).unwrap_or(whole)
}

/// The same shares in other orders (by groups of columns, with the last steps by columns, or from a corner) if one
/// is faster: most of C then returns while the rest is computed, but panels of A, or of both operands, have to
/// stay.
fn in_other_orders(team: &TeamInput<'_>, best: Shared, relay: bool) -> Shared {
    let costs = team.costs;
    let by_steps_s = best.0.seconds;
    let shares = || best.1.iter().flat_map(|m| &m.shares);
    let columns = shares().map(|s| s.cells.cols.len()).max().unwrap_or(0);
    let steps = shares().map(|s| s.steps.len()).max().unwrap_or(0);
    if shares().any(|s| s.blocks() > 1) || columns < 2 {
        return best;
    }
    let fits = |share: &Share, member: &Member| {
        let memory_bytes = costs.machines[member.machine].memory_bytes;
        costs.charges[share.region].need(share.block, share.order) <= memory_bytes
    };
    let tried = |order: PanelOrder| -> Option<Shared> {
        let mut members = best.1.clone();
        for member in &mut members {
            member.shares.iter_mut().for_each(|s| s.order = order);
            set_memory(costs, member);
        }
        let all_fit = members.iter().all(|m| m.shares.iter().all(|s| fits(s, m)));
        all_fit.then(|| (costs.predict(&members, relay), members))
    };
    let doubled =
        |below: u64| core::iter::successors(Some(1), |n| Some(n * 2)).take_while(move |n| *n < below);
    let mut fastest: Option<Shared> = None;
    for order in doubled(columns).map(PanelOrder::Columns).chain([PanelOrder::Corner]) {
        let Some(shared) = tried(order) else { continue };
        // Results that return continuously block others less than results of which half return at the end.
        let even = if order == PanelOrder::Corner { EVEN } else { 1.0 };
        let least = fastest.as_ref().map_or(by_steps_s * ORDER_GAIN, |(f, _)| f.seconds * even);
        if shared.0.seconds < least {
            fastest = Some(shared);
        }
    }
    // More such steps as long as that is faster: from some number on, C returns as early as possible.
    let endings = doubled(steps.min(ENDING_MAX)).skip(1).flat_map(|n| [n, n + n / 2]).filter(|n| *n < steps);
    let mut ending: Option<Shared> = None;
    for shared in endings.map_while(|n| tried(PanelOrder::Ending(n))) {
        if ending.as_ref().is_some_and(|(e, _)| shared.0.seconds >= e.seconds) {
            break;
        }
        ending = Some(shared);
    }
    let least = fastest.as_ref().map_or(f64::INFINITY, |(f, _)| f.seconds * ENDING_EVEN);
    match ending.filter(|(e, _)| e.seconds < least.min(by_steps_s * ENDING_GAIN)) {
        Some(ending) => ending,
        None => fastest.unwrap_or(best),
    }
}

fn plan_of(team: &TeamInput<'_>, (predicted, members): Shared, relay: bool) -> Plan {
    let costs = team.costs;
    Plan {
        problem: *costs.problem,
        strategy: team.strategy,
        sums: costs.sums,
        relay,
        ownership: team.ownership.cloned(),
        regions: costs.regions.to_vec(),
        bound: bound(costs.problem, costs.machines, &members, team.strategy.levels),
        peak_gflops: members.iter().map(|m| costs.machines[m.machine].peak_gflops).sum(),
        predicted,
        members,
    }
}

impl TeamInput<'_> {
    /// Whether the parts of a placed operand determine the share of each machine: then speeds change nothing.
    fn has_given_boxes(&self) -> bool {
        self.ownership.is_some_and(|ownership| !ownership.is_replicated())
    }

    fn seat(&self, id: usize) -> Seat {
        let seat = Seat::of(&self.costs.machines[id]);
        // Chained parts of k wait for each other, and keep no threads busy.
        let threads = if self.costs.sums == Sums::Chained { 1 } else { seat.threads };
        Seat { threads, ..seat }
    }
}

/// The best of some rounds of balancing. A round with fewer machines than the first is not used: a caller that asks
/// for a team gets that team, and smaller ones are tried separately.
fn best_of(
    team: &TeamInput<'_>,
    ids: &[usize],
    mut seats: Vec<Seat>,
    relay: bool,
) -> Result<Shared, Vec<usize>> {
    let mut best: Option<Shared> = None;
    let rounds = match ids.len() {
        _ if team.has_given_boxes() => 1,
        0 | 1 => 1,
        some if some > MANY => 2,
        _ => ROUNDS,
    };
    for _ in 0..rounds {
        let members = match members(team, ids, &seats, false) {
            Ok(members) => members,
            Err(none) if best.is_none() => return Err(none.into_iter().map(|seat| ids[seat]).collect()),
            Err(_) => break,
        };
        if best.as_ref().is_some_and(|(_, first)| members.len() < first.len()) {
            break;
        }
        let (predicted, members) = levelled(team, ids, &seats, relay, members);
        let even = even_out(&mut seats, ids, &members, &predicted);
        if best.as_ref().is_none_or(|(b, _)| predicted.seconds < b.seconds) {
            best = Some((predicted, members));
        }
        if even {
            break;
        }
    }
    Ok(best.unwrap_or_default())
}

/// The members with their shares, or with cells moved among them if that is faster.
fn levelled(team: &TeamInput<'_>, ids: &[usize], seats: &[Seat], relay: bool, plain: Vec<Member>) -> Shared {
    let predicted = team.costs.predict(&plain, relay);
    if team.strategy.base.is_fixed() || team.has_given_boxes() || ids.len() < 2 || ids.len() > MANY {
        return (predicted, plain);
    }
    match members(team, ids, seats, true) {
        Ok(moved) if moved != plain && moved.len() >= plain.len() => {
            let with_moves = team.costs.predict(&moved, relay);
            if with_moves.seconds < predicted.seconds { (with_moves, moved) } else { (predicted, plain) }
        }
        _ => (predicted, plain),
    }
}

/// All shares; or the seats without room.
fn members(
    team: &TeamInput<'_>,
    ids: &[usize],
    seats: &[Seat],
    levels_out: bool,
) -> Result<Vec<Member>, Vec<usize>> {
    let mut members: Vec<Member> = ids
        .iter()
        .map(|id| Member { machine: *id, shares: Vec::new(), memory_bytes: 0, blocks_at_once: 0 })
        .collect();
    for (at, region) in team.costs.regions.iter().enumerate() {
        // The edges that Strassen's method leaves are small: any cut will do.
        let base = if at == 0 { team.strategy.base } else { Base::Reuse };
        let charges = &team.costs.charges[at];
        let everyone = team.everyone && at == 0;
        let is_alone = ids.len() == 1 && team.costs.machines[ids[0]].link.is_none();
        let sums_here = is_alone && team.costs.sums == Sums::Merged && region.levels == 0;
        let owned = team.ownership.and_then(|ownership| ownership.boxes(ids, region));
        let owned = owned.as_deref();
        let cutting = Cutting { base, region, charges, everyone, levels_out, sums_here, owned };
        let all = shares(&cutting, at, seats)?;
        for (member, mut shares) in members.iter_mut().zip(all) {
            member.shares.append(&mut shares);
        }
    }
    members.retain(|m| !m.shares.is_empty());
    members.iter_mut().for_each(|member| set_memory(team.costs, member));
    Ok(members)
}

/// Sets the memory and the number of blocks that a member is given at once: the most that its shares can use.
pub(crate) fn set_memory(costs: &Costs<'_>, member: &mut Member) {
    let machine = &costs.machines[member.machine];
    let blocks = member.shares.iter().map(Share::blocks).fold(0, u64::saturating_add);
    let mut at_once = 1;
    // (Bytes of a block, number of such blocks), the largest first.
    let mut sizes: Vec<(u64, u64)> = Vec::with_capacity(member.shares.len());
    for share in &member.shares {
        let charges = &costs.charges[share.region];
        let (ahead, bytes) = charges.ideal(share.block, share.order, blocks, machine.threads);
        at_once = at_once.max(ahead);
        sizes.push((bytes, share.blocks()));
    }
    sizes.sort_by_key(|size| core::cmp::Reverse(size.0));
    // The largest block counts only as often as it occurs: a machine with one large block and a strip is not given
    // several times the large size.
    let (mut bytes, mut left) = (0u64, at_once);
    for (size, count) in sizes {
        let count = count.min(left);
        (bytes, left) = (bytes.saturating_add(size.saturating_mul(count)), left - count);
    }
    member.memory_bytes = bytes.min(machine.memory_bytes);
    member.blocks_at_once = usize::try_from(at_once).unwrap_or(usize::MAX);
}

/// Shrinks the parts of machines that would take longer than the mean. True if nothing can be gained.
fn even_out(seats: &mut [Seat], ids: &[usize], members: &[Member], predicted: &Prediction) -> bool {
    let times: Vec<f64> = predicted.machines.iter().map(|m| m.seconds).collect();
    let mean = times.iter().sum::<f64>() / times.len().max(1) as f64;
    let worst = times.iter().copied().fold(0.0, f64::max);
    if members.len() < 2 || worst <= mean * 1.02 || mean <= 0.0 {
        return true;
    }
    let mut at = 0;
    for (member, time) in members.iter().zip(&times) {
        // Members are in the order of the seats.
        while at < ids.len() && ids[at] != member.machine {
            at += 1;
        }
        let Some(seat) = seats.get_mut(at) else { break };
        seat.weight *= (mean / time.max(mean * 1e-3)).clamp(0.25, 4.0);
    }
    false
}

/// The least memory that a block of a strategy needs.
pub(crate) fn least_memory(base: Base, region: &Region, charges: &CellCharges) -> u64 {
    let (rows, cols, steps) = (region.grid.rows().min(1), region.grid.cols().min(1), region.steps());
    let (size, order) = match base {
        Base::Naive => (BlockSize { rows, cols, steps: 1 }, PanelOrder::Steps),
        Base::Row(n) => {
            let steps = u64::from(n).min(steps);
            (BlockSize { rows, cols: region.grid.cols().min(EDGE_MAX), steps }, PanelOrder::Columns(1))
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
                PanelOrder::Steps,
            )
        }
        Base::Reuse | Base::Cuboid | Base::Box3(..) | Base::Summa(..) => {
            (BlockSize { rows, cols, steps }, PanelOrder::Steps)
        }
    };
    charges.need(size, order)
}
