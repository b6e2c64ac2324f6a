//! The cost model: seconds and bytes of a plan, and the physical bound that every run reports itself
//! against (docs/cost-model.md).
//!
//! Units: seconds, bytes, Gflop/s = 10^9 operations a second. Links are full duplex.

use crate::{Grid, Machine, Problem, Share, USE_BYTES, charged_bytes, reuse};
use bramble_matrix::Span;

/// What a plan is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// From the first byte sent to the last tile landed.
    pub seconds: f64,
    /// Matrix bytes that leave the primary.
    pub bytes_sent: u64,
    /// Matrix bytes that come back.
    pub bytes_received: u64,
    /// Most matrix bytes that any one worker holds at once.
    pub worker_memory_bytes: u64,
}

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

/// Bytes that a share moves: (to the machine, from it).
pub(crate) fn share_bytes(problem: &Problem, grid: &Grid, share: &Share) -> (u64, u64) {
    let size = problem.dtype.size_bytes() as u64;
    let shape = share.tiles.shape();
    let rows = grid.rows_of(share.tiles.rows);
    let cols = grid.cols_of(share.tiles.cols);
    // Each block needs its rows of A and its columns of B whole; nothing is kept from block to block.
    let a = rows * problem.k * shape.cols.div_ceil(share.block.cols.max(1));
    let b = cols * problem.k * shape.rows.div_ceil(share.block.rows.max(1));
    let c = rows * cols;
    let out =
        u64::from(problem.sends_a) * a + u64::from(problem.sends_b) * b + u64::from(problem.reads_c) * c;
    (out * size, c * size)
}

/// What all matrices that a share's machine will have stored by the end count for: every panel of every block,
/// sent or generated, and every tile.
pub(crate) fn share_stored_bytes(problem: &Problem, grid: &Grid, share: &Share) -> u64 {
    // Lengths of the tiles in a span, and how many have each: all are full but perhaps the last.
    let lengths = |tiles: Span, each: u64, total: u64| {
        let whole = tiles.len() * each;
        let short = whole - (whole.min(total - (tiles.start * each).min(total)));
        let full = tiles.len() - u64::from(short > 0);
        [(full, each), (u64::from(short > 0), each - short)]
    };
    let rows = lengths(share.tiles.rows, grid.tile_rows, problem.m);
    let cols = lengths(share.tiles.cols, grid.tile_cols, problem.n);
    let depths = lengths(Span::new(0, grid.steps()), grid.depth, problem.k);
    let size = problem.dtype.size_bytes() as u64;
    let sum = |downs: [(u64, u64); 2], acrosses: [(u64, u64); 2]| -> u64 {
        let pairs = downs.into_iter().flat_map(|down| acrosses.map(|across| (down, across)));
        pairs.map(|((n, rows), (p, cols))| n * p * charged_bytes(rows * cols * size, 0)).sum()
    };
    let (down, across) = share.blocks_each_way();
    let jobs = share.tiles.rows.len() * share.tiles.cols.len() * grid.steps();
    sum(rows, depths) * across + sum(depths, cols) * down + sum(rows, cols) + 2 * USE_BYTES * jobs
}

/// Matrix bytes that a share's machine holds at most: the tiles of its largest block, and as many panels as
/// its memory allows, but no more than two steps' are ever needed.
pub(crate) fn share_memory(problem: &Problem, grid: &Grid, share: &Share) -> u64 {
    let (step, tiles) = reuse::block_bytes(problem, grid, share.block);
    tiles.saturating_add(step.saturating_mul(2)).min(share.memory_bytes)
}

/// Seconds and bytes of a set of shares.
pub(crate) fn predict(problem: &Problem, grid: &Grid, machines: &[Machine], shares: &[Share]) -> Prediction {
    let mut prediction = Prediction::default();
    let mut slowest = 0.0f64;
    let mut start = 0.0f64;
    for share in shares {
        let machine = &machines[share.machine];
        let (out, back) = share_bytes(problem, grid, share);
        let c_elements = back as f64 / problem.dtype.size_bytes() as f64;
        let compute = 2.0 * c_elements * problem.k as f64 / (machine.gflops * 1e9);
        let memory = share_memory(problem, grid, share);
        prediction.worker_memory_bytes = prediction.worker_memory_bytes.max(memory);
        let Some(link) = machine.link else {
            slowest = slowest.max(compute);
            continue;
        };
        prediction.bytes_sent += out;
        prediction.bytes_received += back;
        let moving = out.max(back) as f64 / link.bytes_per_s;
        let last_tile = (grid.tile_rows * grid.tile_cols) as f64 * problem.dtype.size_bytes() as f64;
        slowest = slowest.max(compute.max(moving));
        let first_panels = ((grid.tile_rows + grid.tile_cols) * grid.depth) as f64
            * problem.dtype.size_bytes() as f64
            * shares.len() as f64;
        start = start.max((first_panels + last_tile) / link.bytes_per_s + 2.0 * link.round_trip_s);
    }
    let (egress, ingress) = primary_rates(machines, shares);
    let sending = prediction.bytes_sent as f64 / egress;
    let receiving = prediction.bytes_received as f64 / ingress;
    prediction.seconds = slowest.max(sending).max(receiving) + start;
    prediction
}

/// What the primary can send and receive, bytes a second: its one link is as fast as the fastest of the
/// links measured through it. Infinite where nothing leaves the process.
fn primary_rates(machines: &[Machine], shares: &[Share]) -> (f64, f64) {
    let rate = shares
        .iter()
        .filter_map(|s| machines[s.machine].link)
        .map(|l| l.bytes_per_s)
        .fold(f64::NEG_INFINITY, f64::max);
    if rate > 0.0 { (rate, rate) } else { (f64::INFINITY, f64::INFINITY) }
}

/// The bound T ≥ max((|A|+|B|)/egress, |C|/ingress, 2mnk/Σ peak).
pub(crate) fn bound(problem: &Problem, machines: &[Machine], shares: &[Share]) -> Bound {
    let (egress, ingress) = primary_rates(machines, shares);
    let peak: f64 = shares.iter().map(|s| machines[s.machine].peak_gflops).sum();
    let compute = if problem.flops() > 0.0 { problem.flops() / (peak * 1e9) } else { 0.0 };
    let terms = [
        (compute, Binding::Compute),
        (problem.operand_bytes() / egress, Binding::Egress),
        (problem.result_bytes() / ingress, Binding::Ingress),
    ];
    let (seconds, by) = terms.into_iter().fold((0.0, Binding::Compute), |a, b| if b.0 > a.0 { b } else { a });
    Bound { seconds, by }
}
