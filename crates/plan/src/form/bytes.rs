//! A plan as bytes, for the journal of a product: the assignment of work, without the prediction.
//!
//! Invariants: `decode(encode(plan))` is the plan without its prediction, bound and peak. For any bytes, `decode`
//! does not panic, uses memory in proportion to them, and returns only plans with the invariants of `Plan`: regions
//! that cover C, each (tile, step) in exactly one block, counts and sides within the limits of a grid, chained sums
//! without deadlock. Little-endian, every field of fixed width except the name of the strategy.
//!
//! Deliberately absent: plans with a placed operand, whose parts end with the connections: `decode` refuses them.
//! Versions: the format that contains the bytes has one.

use super::{BlockSize, Member, PanelOrder, Plan, Share, Sums};
use crate::memory::EDGE_MAX;
use crate::{Binding, Bound, Grid, LEVELS_MAX, OperandSource, Prediction, Problem, Region, Strategy};
use alloc::string::ToString;
use alloc::vec::Vec;
use bramble_base::{DType, Rect, Span};

/// Why bytes are no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPlan(&'static str);

const SHORT: InvalidPlan = InvalidPlan("the plan is cut short");

impl Plan {
    /// The plan without its prediction.
    pub fn unpredicted(self) -> Self {
        let bound = Bound { seconds: 0.0, by: Binding::Compute };
        Self { predicted: Prediction::default(), bound, peak_gflops: 0.0, ..self }
    }

    /// Encodes the plan.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let p = &self.problem;
        put(&mut out, [p.m, p.n, p.k]);
        out.extend([p.dtype.code(), p.reads_c.into(), source_code(p.a_source), source_code(p.b_source)]);
        let name = self.strategy.to_string();
        out.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        out.extend(name.as_bytes());
        out.extend([u8::from(self.sums == Sums::Chained), self.relay.into()]);
        let levels = self.regions.first().map_or(0, |region| region.levels);
        out.extend([
            u8::try_from(levels).unwrap_or(u8::MAX),
            u8::try_from(self.regions.len()).unwrap_or(u8::MAX),
        ]);
        for Region { grid, .. } in &self.regions {
            put(&mut out, [grid.tile_rows, grid.tile_cols, grid.depth]);
        }
        put(&mut out, [self.members.len() as u64]);
        for member in &self.members {
            let counts = [member.machine, member.blocks_at_once, member.shares.len()].map(|n| n as u64);
            put(&mut out, counts);
            put(&mut out, [member.memory_bytes]);
            member.shares.iter().for_each(|share| encode_share(share, &mut out));
        }
        out
    }

    /// Decodes a plan from exactly these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidPlan> {
        let mut fields = Fields { rest: bytes };
        let [m, n, k] = fields.numbers()?;
        let dtype = DType::from_code(fields.byte()?).ok_or(InvalidPlan("its element type is unknown"))?;
        let reads_c = fields.flag()?;
        let (a_source, b_source) = (fields.source()?, fields.source()?);
        let problem = Problem { m, n, k, dtype, reads_c, a_source, b_source };
        let strategy = fields.strategy()?;
        let sums = if fields.flag()? { Sums::Chained } else { Sums::Merged };
        let relay = fields.flag()?;
        let regions = regions(&mut fields, &problem)?;
        if sums == Sums::Chained && regions.iter().any(|region| region.levels > 0) {
            return Err(InvalidPlan("its sums are chained in cells of several tiles"));
        }
        let [count] = fields.numbers()?;
        let mut members = Vec::new();
        for _ in 0..count {
            members.push(member(&mut fields, &regions, sums)?);
        }
        if !fields.rest.is_empty() {
            return Err(InvalidPlan("the plan has extra bytes at its end"));
        }
        covers(&regions, &members)?;
        let plan = Self {
            problem,
            strategy,
            sums,
            relay,
            regions,
            members,
            ownership: None,
            predicted: Prediction::default(),
            bound: Bound { seconds: 0.0, by: Binding::Compute },
            peak_gflops: 0.0,
        };
        Ok(plan)
    }
}

fn put<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
}

const fn source_code(source: OperandSource) -> u8 {
    match source {
        OperandSource::Generated => 0,
        OperandSource::Sent => 1,
        OperandSource::Resident => 2,
    }
}

fn encode_share(share: &Share, out: &mut Vec<u8>) {
    let Share { region, cells, steps, block, order } = share;
    let (kind, group) = match *order {
        PanelOrder::Steps => (0, 0),
        PanelOrder::Columns(group) => (1, group),
        PanelOrder::Corner => (2, 0),
        PanelOrder::Ending(last) => (3, last),
    };
    out.extend([u8::try_from(*region).unwrap_or(u8::MAX), kind]);
    put(out, [group, cells.rows.start, cells.rows.end, cells.cols.start, cells.cols.end]);
    put(out, [steps.start, steps.end, block.rows, block.cols, block.steps]);
}

/// Regions are positioned by `Region::laid_out`, each with a grid of its own.
fn regions(fields: &mut Fields<'_>, problem: &Problem) -> Result<Vec<Region>, InvalidPlan> {
    let (levels, count) = (u32::from(fields.byte()?), usize::from(fields.byte()?));
    if levels > LEVELS_MAX {
        return Err(InvalidPlan("it has too many levels of Strassen's method"));
    }
    let grid = |m: u64, n: u64, k: u64| {
        let [tile_rows, tile_cols, depth] = fields.numbers()?;
        Grid::checked([m, n, k], tile_rows, tile_cols, depth).ok_or(InvalidPlan("its grid is impossible"))
    };
    let regions = Region::laid_out(problem, levels, grid)?;
    let regions =
        regions.ok_or(InvalidPlan("the matrices are too small for its levels of Strassen's method"))?;
    if regions.len() == count {
        Ok(regions)
    } else {
        Err(InvalidPlan("its regions are not those of its sizes"))
    }
}

fn member(fields: &mut Fields<'_>, regions: &[Region], sums: Sums) -> Result<Member, InvalidPlan> {
    let small = |n: u64| u32::try_from(n).ok().and_then(|n| usize::try_from(n).ok());
    let [machine, blocks_at_once, count, memory_bytes] = fields.numbers()?;
    let numbers = small(machine).zip(small(blocks_at_once).filter(|n| *n > 0));
    let (machine, blocks_at_once) = numbers.ok_or(InvalidPlan("one of its machines is impossible"))?;
    let (mut shares, mut reached): (Vec<Share>, u64) = (Vec::new(), 0);
    for _ in 0..count {
        let share = share(fields, regions)?;
        let all = regions[share.region].steps();
        // Chained sums end if a share has all of k, or one span of it and the shares are in the order of k.
        let has_all = share.steps == Span::new(0, all);
        if sums == Sums::Chained && !has_all && share.blocks() > 0 {
            if share.block.steps < share.steps.len() || share.steps.start < reached {
                return Err(InvalidPlan("its chained sums would wait for each other"));
            }
            reached = share.steps.start;
        }
        shares.push(share);
    }
    Ok(Member { machine, shares, memory_bytes, blocks_at_once })
}

fn share(fields: &mut Fields<'_>, regions: &[Region]) -> Result<Share, InvalidPlan> {
    const BAD: InvalidPlan = InvalidPlan("one of its shares is not in its regions");
    let (region, kind) = (usize::from(fields.byte()?), fields.byte()?);
    let [group] = fields.numbers()?;
    let (rows, cols, steps) = (fields.span()?, fields.span()?, fields.span()?);
    let [block_rows, block_cols, block_steps] = fields.numbers()?;
    let block = BlockSize { rows: block_rows, cols: block_cols, steps: block_steps };
    let cells = Rect::new(rows, cols);
    let of = regions.get(region).ok_or(BAD)?;
    let all = of.cells();
    let fits = rows.end <= all.rows.end && cols.end <= all.cols.end && steps.end <= of.steps();
    let edges = [block.rows, block.cols].iter().all(|edge| (1..=EDGE_MAX).contains(edge));
    if !fits || !edges || block.steps == 0 || block.steps > u64::from(u32::MAX) {
        return Err(BAD);
    }
    let order = match (kind, group) {
        (0, 0) => PanelOrder::Steps,
        (1, 1..) => PanelOrder::Columns(group),
        (2, 0) => PanelOrder::Corner,
        (3, _) => PanelOrder::Ending(group),
        _ => return Err(InvalidPlan("one of its orders is unknown")),
    };
    Ok(Share { region, cells, steps, block, order })
}

/// Each step of each cell is in one share: none overlap, and their sizes add up to the whole.
fn covers(regions: &[Region], members: &[Member]) -> Result<(), InvalidPlan> {
    let volume = |cells: Rect, steps: Span| {
        [cells.rows, cells.cols, steps].iter().map(|s| u128::from(s.len())).product()
    };
    for (at, region) in regions.iter().enumerate() {
        let mut shares: Vec<&Share> = members.iter().flat_map(|m| &m.shares).collect();
        shares.retain(|s| s.region == at && volume(s.cells, s.steps) > 0);
        shares.sort_by_key(|s| (s.cells.rows.start, s.cells.cols.start, s.steps.start));
        let mut open: Vec<&Share> = Vec::new();
        for share in &shares {
            open.retain(|other| other.cells.rows.end > share.cells.rows.start);
            let meets = |other: &&&Share| {
                !other.cells.disjoint(share.cells) && !other.steps.intersect(share.steps).is_empty()
            };
            if open.iter().any(|other| meets(&other)) {
                return Err(InvalidPlan("some work is assigned twice"));
            }
            open.push(share);
        }
        let had: u128 = shares.iter().map(|s| volume(s.cells, s.steps)).sum();
        if had != volume(region.cells(), Span::new(0, region.steps())) {
            return Err(InvalidPlan("some work is missing"));
        }
    }
    Ok(())
}

/// Takes fields from the front of the bytes.
struct Fields<'a> {
    rest: &'a [u8],
}

impl Fields<'_> {
    fn byte(&mut self) -> Result<u8, InvalidPlan> {
        let (first, rest) = self.rest.split_first().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*first)
    }

    fn flag(&mut self) -> Result<bool, InvalidPlan> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(InvalidPlan("one of its flags is neither 0 nor 1")),
        }
    }

    fn source(&mut self) -> Result<OperandSource, InvalidPlan> {
        match self.byte()? {
            0 => Ok(OperandSource::Generated),
            1 => Ok(OperandSource::Sent),
            2 => Err(InvalidPlan("one of its operands was placed on workers, which are gone")),
            _ => Err(InvalidPlan("one of its flags is neither 0 nor 1")),
        }
    }

    fn numbers<const N: usize>(&mut self) -> Result<[u64; N], InvalidPlan> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            let (first, rest) = self.rest.split_first_chunk::<8>().ok_or(SHORT)?;
            *number = u64::from_le_bytes(*first);
            self.rest = rest;
        }
        Ok(numbers)
    }

    fn span(&mut self) -> Result<Span, InvalidPlan> {
        let [start, end] = self.numbers()?;
        if start <= end {
            Ok(Span::new(start, end))
        } else {
            Err(InvalidPlan("one of its spans is reversed"))
        }
    }

    fn strategy(&mut self) -> Result<Strategy, InvalidPlan> {
        let len = usize::from(self.byte()?);
        let (name, rest) = self.rest.split_at_checked(len).ok_or(SHORT)?;
        self.rest = rest;
        let name = core::str::from_utf8(name).map_err(|_| InvalidPlan("its strategy is no text"))?;
        let strategy: Strategy = name.parse().map_err(|_| InvalidPlan("its strategy is unknown"))?;
        // Only the canonical name, so that each plan has one encoding.
        if strategy.to_string() == name { Ok(strategy) } else { Err(InvalidPlan("its strategy is unknown")) }
    }
}
