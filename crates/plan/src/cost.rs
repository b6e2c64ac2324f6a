//! The cost model: seconds and bytes of a plan, machine by machine (docs/cost-model.md has the formulas).
//!
//! Units: seconds, bytes, Gflop/s = 10^9 operations a second. Links are full duplex.
//!
//! Invariant: bytes and memory are what the schedule will really send and hold, frame by frame; seconds are a model.

use crate::memory::CellCharges;
use crate::winograd::Recipe;
use crate::{Machine, Member, Order, Problem, Region, Share, Sums, USE_BYTES};

/// Bytes of a frame's header.
const FRAME_BYTES: u64 = 16;
/// Bytes of a matrix's header, of a job, and of the head of a result.
const ENTRY_BYTES: u64 = 24;
/// Bytes of a store's counts.
const COUNT_BYTES: u64 = 4;
/// Longest body of a frame.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes that say how a panel is generated.
const GENERATED_BYTES: u64 = 32;

/// Processor seconds for each byte that leaves the primary or comes to it, on its one event loop.
pub(crate) const LOOP_S_PER_BYTE: f64 = 0.45e-9;
/// The same at the other end of a link, for workers on the primary's own cores.
pub(crate) const FAR_S_PER_BYTE: f64 = 0.4e-9;
/// Seconds to add a byte of a partial sum.
pub(crate) const ADD_S_PER_BYTE: f64 = 0.5e-9;

/// What one machine is expected to do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineCost {
    /// Operations.
    pub flops: f64,
    /// Bytes sent to it.
    pub bytes_out: u64,
    /// Bytes that it sends back.
    pub bytes_back: u64,
    /// Jobs.
    pub jobs: u64,
    /// Most bytes of matrices that it holds.
    pub memory_bytes: u64,
    /// Seconds in kernels.
    pub compute_s: f64,
    /// Seconds that its link needs in the direction that needs more.
    pub link_s: f64,
    /// Part of all work.
    pub part: f64,
}

/// What a plan is expected to take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// From the first byte sent to the last tile landed.
    pub seconds: f64,
    /// What holds it back.
    pub by: Limit,
    /// Bytes that leave the primary.
    pub bytes_sent: u64,
    /// Bytes that come back.
    pub bytes_received: u64,
    /// Most matrix bytes that any one worker holds at once.
    pub worker_memory_bytes: u64,
    /// Most bytes of partial sums that the primary holds, beside A, B and C.
    pub primary_memory_bytes: u64,
    /// Each member, in the plan's order.
    pub machines: Vec<MachineCost>,
}

/// What the predicted seconds come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// Nothing to do.
    #[default]
    Nothing,
    /// A machine's kernels.
    Compute(String),
    /// A machine's link.
    Link(String),
    /// What leaves the primary.
    Egress,
    /// What comes back to it.
    Ingress,
    /// The primary's own processor, which moves every byte.
    Primary,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Compute(name) => write!(f, "computing at {name}"),
            Self::Link(name) => write!(f, "the link to {name}"),
            Self::Egress => f.write_str("what the primary sends"),
            Self::Ingress => f.write_str("what the primary receives"),
            Self::Primary => f.write_str("the primary's processor, which moves all bytes"),
        }
    }
}

/// What a share moves and computes.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    flops: f64,
    out: u64,
    back: u64,
    jobs: u64,
    /// Matrix bytes of partial sums that come back and are added.
    merged: u64,
    /// Bytes of results of one block.
    block_back: f64,
    /// Steps of all its blocks, one after another.
    rounds: f64,
    /// Threads that can be busy at once.
    parallel: f64,
}

/// Frames for `count` matrices of `lines` lines, `bytes` in all.
fn frames(count: u64, bytes: u64) -> u64 {
    if count == 0 { 0 } else { count * (bytes / count).div_ceil(CHUNK_BYTES).max(1) }
}

fn load(
    problem: &Problem,
    region: &Region,
    recipe: &Recipe,
    sums: Sums,
    share: &Share,
    at_once: usize,
) -> Load {
    let e = problem.element_bytes();
    let (down, across, deep) = share.blocks_each_way();
    let (q, grid) = (region.q(), &region.grid);
    let (rows, cols) = (grid.rows_of(share.cells.rows) * q, grid.cols_of(share.cells.cols) * q);
    let depth = region.depth_of(share.steps);
    let (cells_down, cells_across) = (share.cells.rows.len(), share.cells.cols.len());
    let cells = cells_down * cells_across;
    let core = share.steps.end.min(grid.steps()) - share.steps.start.min(grid.steps());
    let rims = share.steps.len() - core;
    let (a_bytes, b_bytes, c_bytes) = (rows * depth * e * across, depth * cols * e * down, rows * cols * e);
    // Matrices and jobs.
    let a_panels = cells_down * across * (core * q * q + rims * q);
    let b_panels = cells_across * down * (core * q * q + rims * q);
    let made = |sums: usize| sums as u64;
    let made_panels = core
        * (cells_down * across * made(recipe.left.sums.len())
            + cells_across * down * made(recipe.right.sums.len()));
    let parts =
        if region.levels == 0 { 0 } else { made(recipe.products() + recipe.results.sums.len()) - q * q };
    let results = cells * q * q * deep;
    let first = u64::from(share.steps.start == 0);
    let continued = if sums == Sums::Chained { deep - first } else { 0 };
    let tile_bytes = c_bytes * (u64::from(problem.reads_c) * first + continued);
    let products = cells * (core * made(recipe.products()) + rims * q * q);
    let sums_made = if region.levels == 0 { 0 } else { cells * deep * made(recipe.results.sums.len()) };
    let jobs = products + sums_made + made_panels;
    let sent = |bytes: u64, panels: u64, travels: bool| match travels {
        true => bytes + frames(panels, bytes) * (FRAME_BYTES + COUNT_BYTES + ENTRY_BYTES),
        false => panels * (GENERATED_BYTES + FRAME_BYTES + COUNT_BYTES + ENTRY_BYTES),
    };
    let entries = results + made_panels + cells * deep * parts + jobs;
    let out = sent(a_bytes, a_panels, problem.sends_a)
        + sent(b_bytes, b_panels, problem.sends_b)
        + tile_bytes
        + frames(if tile_bytes > 0 { results } else { 0 }, tile_bytes) * (FRAME_BYTES + COUNT_BYTES)
        + entries * ENTRY_BYTES;
    // Results, and a credit for each operand that is used up and each tile that has left.
    let credits = a_panels + b_panels + results + made_panels + cells * deep * parts;
    let back = c_bytes * deep
        + frames(results, c_bytes * deep) * (FRAME_BYTES + ENTRY_BYTES)
        + credits * (FRAME_BYTES + 8) / CREDITS_A_FRAME;
    let block_cells = share.block.rows * share.block.cols;
    let saved = (7.0f64 / 8.0).powi(region.levels as i32);
    let merged = if sums == Sums::Merged { c_bytes * (deep - first.min(deep)) } else { 0 };
    let core_depth = grid.depth_of(bramble_matrix::Span::new(0, grid.steps())) * q;
    let rim_part = (depth.saturating_sub(core_depth)) as f64;
    Load {
        flops: 2.0 * rows as f64 * cols as f64 * ((depth as f64 - rim_part) * saved + rim_part)
            + adds(region, recipe, share, e),
        out,
        back,
        jobs,
        merged,
        block_back: c_bytes as f64 / (down * across).max(1) as f64,
        rounds: (down * across * share.steps.len()) as f64,
        parallel: (block_cells * made(recipe.products()).max(1)) as f64 * at_once as f64,
    }
}

/// Credits gather while the link is busy; about so many go in one frame.
const CREDITS_A_FRAME: u64 = 4;
/// An addition of matrices is bound by memory: it takes as long as so many multiply-adds of a kernel.
const FLOPS_AN_ADDITION: f64 = 80.0;

/// Additions of a share, in operations of a kernel that take as long.
fn adds(region: &Region, recipe: &Recipe, share: &Share, _element_bytes: u64) -> f64 {
    if region.levels == 0 {
        return 0.0;
    }
    let grid = &region.grid;
    let (down, across, deep) = share.blocks_each_way();
    let (rows, cols) = (grid.rows_of(share.cells.rows) as f64, grid.cols_of(share.cells.cols) as f64);
    let core =
        bramble_matrix::Span::new(share.steps.start.min(grid.steps()), share.steps.end.min(grid.steps()));
    let depth = grid.depth_of(core) as f64;
    let a = recipe.left.sums.len() as f64 * rows * depth * across as f64;
    let b = recipe.right.sums.len() as f64 * cols * depth * down as f64;
    let c = recipe.results.sums.len() as f64 * rows * cols * deep as f64;
    FLOPS_AN_ADDITION * (a + b + c)
}

/// What the recipes of the regions are; made once a plan.
pub(crate) fn recipes(regions: &[Region]) -> Vec<Recipe> {
    regions.iter().map(|r| Recipe::new(r.levels)).collect()
}

/// Seconds and bytes of members' shares.
pub(crate) fn predict(
    problem: &Problem,
    regions: &[Region],
    recipes: &[Recipe],
    sums: Sums,
    machines: &[Machine],
    members: &[Member],
) -> Prediction {
    let mut p = Prediction::default();
    let loads: Vec<Load> = members
        .iter()
        .map(|member| {
            let mut all = Load { parallel: f64::INFINITY, ..Load::default() };
            for share in &member.shares {
                let region = &regions[share.region];
                let one = load(problem, region, &recipes[share.region], sums, share, member.blocks_at_once);
                all = Load {
                    flops: all.flops + one.flops,
                    out: all.out + one.out,
                    back: all.back + one.back,
                    jobs: all.jobs + one.jobs,
                    merged: all.merged + one.merged,
                    block_back: one.block_back.max(all.block_back),
                    rounds: all.rounds + one.rounds,
                    parallel: if one.flops > all.flops { one.parallel } else { all.parallel },
                };
            }
            all
        })
        .collect();
    let work: f64 = loads.iter().map(|l| l.flops).sum();
    let mut totals = Totals::default();
    for (member, load) in members.iter().zip(&loads) {
        let machine = &machines[member.machine];
        let busy = (load.parallel / f64::from(machine.threads.max(1))).min(1.0);
        let compute_s = load.flops / (machine.gflops * 1e9 * busy.max(1e-3));
        let link_s = machine.link.map_or(0.0, |l| load.out.max(load.back) as f64 / l.bytes_per_s);
        p.machines.push(MachineCost {
            flops: load.flops,
            bytes_out: if machine.link.is_some() { load.out } else { 0 },
            bytes_back: if machine.link.is_some() { load.back } else { 0 },
            jobs: load.jobs,
            memory_bytes: member.memory_bytes,
            compute_s,
            link_s,
            part: if work > 0.0 { load.flops / work } else { 0.0 },
        });
        p.worker_memory_bytes = p.worker_memory_bytes.max(member.memory_bytes);
        totals.merged += load.merged;
        if machine.link.is_some() {
            p.bytes_sent += load.out;
            p.bytes_received += load.back;
            totals.far_s +=
                if machine.shares_cores { (load.out + load.back) as f64 * FAR_S_PER_BYTE } else { 0.0 };
        }
        if machine.shares_cores || machine.link.is_none() {
            totals.own_core_s += compute_s * f64::from(machine.threads);
        }
    }
    p.primary_memory_bytes = merge_memory(problem, regions, sums, members);
    seconds(&mut p, &totals, machines, members, &loads, regions, sums);
    p
}

#[derive(Default)]
struct Totals {
    merged: u64,
    /// Core seconds of computing on the primary's own cores, and of moving bytes at far ends that run there.
    own_core_s: f64,
    far_s: f64,
}

/// Partial sums that may have to wait for earlier ones: all but those from step 0, at worst.
fn merge_memory(problem: &Problem, regions: &[Region], sums: Sums, members: &[Member]) -> u64 {
    if sums == Sums::Chained {
        return 0;
    }
    let e = problem.element_bytes();
    let tile = |share: &Share| {
        let grid = &regions[share.region].grid;
        grid.tile_rows * grid.tile_cols * e
    };
    let of = |member: &Member, share: &Share| -> u64 {
        let region = &regions[share.region];
        let whole = share.steps.start == 0 && share.steps.end == region.steps();
        let (_, _, deep) = share.blocks_each_way();
        // Sums from step 0 on are made in C itself.
        if share.steps.start == 0 && deep == 1 {
            return 0;
        }
        if whole {
            // They come from one machine and nearly in order: what it has at once may wait.
            let block = share.block.rows * share.block.cols * region.q() * region.q();
            return (block * (member.blocks_at_once as u64 + 1) + 1) * tile(share);
        }
        region.elements(share.cells) * e * deep
    };
    members.iter().flat_map(|m| m.shares.iter().map(move |s| of(m, s))).sum()
}

/// The seconds, and what they come from.
fn seconds(
    p: &mut Prediction,
    totals: &Totals,
    machines: &[Machine],
    members: &[Member],
    loads: &[Load],
    regions: &[Region],
    sums: Sums,
) {
    let rate = primary_rate(machines, members);
    let sending = p.bytes_sent as f64 / rate;
    let receiving = p.bytes_received as f64 / rate;
    let cores = machines.first().map_or(1.0, |m| f64::from(m.threads.max(1)));
    let moved = (p.bytes_sent + p.bytes_received) as f64;
    let loop_s = moved * LOOP_S_PER_BYTE + totals.merged as f64 * ADD_S_PER_BYTE;
    let mut best = (0.0, Limit::Nothing);
    let mut consider = |seconds: f64, by: Limit| {
        if seconds > best.0 {
            best = (seconds, by);
        }
    };
    consider(sending, Limit::Egress);
    consider(receiving, Limit::Ingress);
    consider(loop_s, Limit::Primary);
    consider((totals.own_core_s + totals.far_s + loop_s) / cores, Limit::Primary);
    let (mut start, mut tail) = (0.0f64, 0.0f64);
    // Where sums are chained, machines with later parts of k wait for those with earlier ones.
    let mut chain: std::collections::BTreeMap<u64, f64> = std::collections::BTreeMap::new();
    let sharing = members.iter().filter(|m| machines[m.machine].link.is_some()).count() as f64;
    for ((member, load), cost) in members.iter().zip(loads).zip(&p.machines) {
        let machine = &machines[member.machine];
        consider(cost.compute_s, Limit::Compute(machine.name.clone()));
        consider(cost.link_s, Limit::Link(machine.name.clone()));
        let begins = member.shares.first().map_or(0, |s| s.steps.start);
        let entry = chain.entry(begins).or_default();
        *entry = entry.max(cost.compute_s.max(cost.link_s));
        let Some(link) = machine.link else { continue };
        let mine = link.bytes_per_s.min(rate / sharing.max(1.0));
        let grid = &regions[member.shares.first().map_or(0, |s| s.region)].grid;
        let e = load.block_back / 1.0f64.max(load.block_back) * 8.0;
        let first = ((grid.tile_rows + grid.tile_cols) * grid.depth) as f64 * e;
        start = start.max(first / mine + 2.0 * link.round_trip_s);
        // The last block's tiles are ready in the course of its last step, and then have to come home.
        let body = cost.compute_s.max(load.out as f64 / mine);
        let last = load.block_back / mine - body / load.rounds.max(1.0);
        tail = tail.max(last.max((grid.tile_rows * grid.tile_cols) as f64 * e / mine));
    }
    if sums == Sums::Chained && chain.len() > 1 {
        consider(chain.values().sum(), Limit::Nothing);
    }
    p.seconds = best.0 + start + tail;
    p.by = best.1;
}

/// What the primary can send and receive, bytes a second: its one link is as fast as the fastest of the
/// links measured through it. Infinite where nothing leaves the process.
pub(crate) fn primary_rate(machines: &[Machine], members: &[Member]) -> f64 {
    let rate = members
        .iter()
        .filter_map(|m| machines[m.machine].link)
        .map(|l| l.bytes_per_s)
        .fold(f64::NEG_INFINITY, f64::max);
    if rate > 0.0 { rate } else { f64::INFINITY }
}

/// What all matrices that workers will have been given count for, about: how far a product is shows in what they have
/// given back of it.
pub(crate) fn stored_bytes(problem: &Problem, regions: &[Region], members: &[Member]) -> u64 {
    let e = problem.element_bytes();
    let of = |share: &Share| {
        let region = &regions[share.region];
        let charges = CellCharges::of(region, e);
        let (down, across, deep) = share.blocks_each_way();
        let one = |rows, cols, steps| charges.need(crate::BlockSize { rows, cols, steps }, Order::Steps);
        let (rows, cols) = (share.cells.rows.len(), share.cells.cols.len());
        let a = one(rows, 0, 1).saturating_mul(share.steps.len()).saturating_mul(across);
        let b = one(0, cols, 1).saturating_mul(share.steps.len()).saturating_mul(down);
        let tiles = one(rows, cols, 0).saturating_mul(deep);
        let uses = rows.saturating_mul(cols).saturating_mul(share.steps.len()).saturating_mul(2 * USE_BYTES);
        a.saturating_add(b).saturating_add(tiles).saturating_add(uses)
    };
    members.iter().flat_map(|m| &m.shares).map(of).fold(0, u64::saturating_add)
}
