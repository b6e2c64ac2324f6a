//! The inspector verifies C, and locates wrong tiles.
//!
//! Place in the flow: made from the request before its output is given away; used when all tiles are committed
//! (`run/inspection`), for spot checks, and by products without multiplications.
//!
//! Invariants: the operands are read from their source; of one that many products use, a sketch that was made from it
//! serves, too. Each round has new random vectors, which no worker knows. Nothing is written.
//!
//! Deliberately absent: which tiles are suspect, and what follows from a fault (`schedule/src/primary/inspection.rs`).

use crate::account::VerifyReport;
use crate::product::Request;
use bramble_matrix::{Digest128, Matrix, MatrixError, Rect};
use bramble_plan::Plan;
use bramble_sessions::{PrimaryError, off_loop};
use bramble_verify::{Check, Effort, Sketch, TileLevels, Verdict, part_is_wrong, verify, wrong_tiles};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Smaller matrices are checked on the calling thread: starting threads would take longer.
const INLINE_ELEMENTS: u64 = 1 << 18;

/// Difference between the seeds of two spot checks.
const SPOT_CHECK_SEED_STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// Digests of tiles, by region and tile number.
pub(crate) type TileDigests = BTreeMap<(usize, u64), Digest128>;
/// Tiles that the check has shown to be wrong, each by itself.
pub(crate) type ProvenWrong = BTreeSet<(usize, u64)>;

/// The parts of a request that the check needs.
pub(crate) struct Inspector {
    a: Matrix,
    b: Matrix,
    old_c: Option<Matrix>,
    alpha: f64,
    beta: f64,
    effort: Effort,
    threads: usize,
    seed: u64,
    levels: u32,
    tiles: Vec<TileLevels>,
    /// The sketch of an operand that many products use.
    sketch: Option<OperandSketch>,
}

/// The sketch of a matrix, made when the first product with it is checked.
#[derive(Debug, Default)]
pub(crate) struct LazySketch(Mutex<SketchState>);

#[derive(Debug, Default)]
enum SketchState {
    #[default]
    NotMade,
    /// The matrix holds NaN or infinities.
    Impossible,
    Made(Arc<Sketch>),
}

/// The sketch of an operand.
#[derive(Clone, Debug)]
pub(crate) struct OperandSketch {
    pub(crate) sketch: Arc<LazySketch>,
    /// Whether it is that of Aᵀ; else it is that of B.
    pub(crate) is_of_left: bool,
}

impl LazySketch {
    /// The sketch of `matrix`, which is always the same; other threads wait meanwhile.
    fn of(&self, matrix: &Matrix, seed: u64, threads: usize) -> Result<Option<Arc<Sketch>>, MatrixError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*state, SketchState::NotMade) {
            let made = Sketch::of(matrix, seed, threads)?;
            *state = made.map_or(SketchState::Impossible, |sketch| SketchState::Made(Arc::new(sketch)));
        }
        Ok(if let SketchState::Made(sketch) = &*state { Some(sketch.clone()) } else { None })
    }
}

impl Inspector {
    /// `levels`: Strassen levels of the plan; `tiles`: those of kernels inside tiles.
    pub(crate) fn of(
        request: &Request,
        levels: u32,
        tiles: Vec<TileLevels>,
        sketch: Option<OperandSketch>,
    ) -> Arc<Self> {
        Arc::new(Self {
            a: request.a.matrix.clone(),
            b: request.b.matrix.clone(),
            old_c: request.old_c.clone(),
            alpha: request.alpha,
            beta: request.beta,
            effort: request.check.effort,
            threads: request.check.threads,
            seed: request.check.seed,
            levels,
            tiles,
            sketch,
        })
    }

    /// An error if the file of an operand was changed since it was opened. `noticed` completes the message: "noticed …".
    /// `is_doubted`: C or a tile is wrong, and a machine would be accused next; then a mere change of the file's status
    /// counts, too.
    pub(crate) fn unchanged(&self, noticed: &str, is_doubted: bool) -> Result<(), PrimaryError> {
        let all = [Some(&self.a), Some(&self.b), self.old_c.as_ref()];
        let found = all.into_iter().flatten().find_map(|matrix| {
            let change = matrix.change().filter(|change| is_doubted || change.is_of_contents())?;
            Some((matrix.name(), change))
        });
        let Some((name, change)) = found else { return Ok(()) };
        Err(PrimaryError::Changed(format!(
            "{name} was changed while the product ran, as was noticed {noticed} ({change}): C is not kept, and no machine is \
             to blame; multiply again when nobody writes to it"
        )))
    }

    /// Whether C is checked at all.
    pub(crate) fn is_on(&self) -> bool {
        self.effort != Effort::Off
    }

    /// Checks C; large matrices on threads of their own.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        c: Matrix,
        round: u64,
    ) -> Result<VerifyReport, PrimaryError> {
        let began = Instant::now();
        let elements = |m: &Matrix| m.shape().elements().unwrap_or(u64::MAX);
        let small = elements(&self.a).max(elements(&self.b)).max(elements(&c)) < INLINE_ELEMENTS;
        let verdict = if small {
            self.verify_here(&Check { threads: 1, ..self.check(&c, round) })?
        } else {
            let this = self.clone();
            off_loop("verification", move || this.verify_here(&this.check(&c, round))).await??
        };
        Ok(VerifyReport { verdict, seconds: began.elapsed().as_secs_f64() })
    }

    /// Checks C on this thread and its helpers: by the sketch of an operand, if there is one; and with both operands,
    /// unless that has found everything right.
    fn verify_here(&self, check: &Check<'_>) -> Result<Verdict, MatrixError> {
        if let Some(OperandSketch { sketch, is_of_left }) =
            self.sketch.as_ref().filter(|_| check.effort == Effort::Fast)
        {
            let turned = |matrix: &Matrix| matrix.clone().transposed();
            let verdict = if *is_of_left {
                // Cᵀ = Bᵀ Aᵀ: the operand that stays is the right one again.
                let (a, b, c) = (turned(check.b), turned(check.a), turned(check.c));
                let c0 = check.c0.map(turned);
                let check = Check { a: &a, b: &b, c: &c, c0: c0.as_ref(), ..*check };
                by_sketch(sketch, &check)?
            } else {
                by_sketch(sketch, check)?
            };
            if let Some(verdict) = verdict {
                return Ok(verdict);
            }
        }
        verify(check)
    }

    /// The tiles of a wrong C that may be wrong, and the tiles that certainly are. For plans without levels of Strassen's
    /// method.
    pub(crate) async fn locate(
        self: &Arc<Self>,
        c: Matrix,
        plan: Plan,
        round: u64,
    ) -> Result<(Vec<(usize, u64)>, ProvenWrong), PrimaryError> {
        let this = self.clone();
        Ok(off_loop("verification", move || this.locate_tiles(&c, &plan, round)).await??)
    }

    /// Whether a tile by itself is certainly wrong; runs on this thread. For plans without levels of Strassen's method.
    pub(crate) fn is_wrong(&self, rect: Rect, tile: &Matrix, spot_check: u64) -> Result<bool, MatrixError> {
        let seed = self.seed.wrapping_add(spot_check.wrapping_mul(SPOT_CHECK_SEED_STEP));
        let check = Check { seed, effort: Effort::Fast, threads: 1, ..self.check(tile, 0) };
        part_is_wrong(&check, rect, tile)
    }

    /// Digests of tiles.
    pub(crate) async fn tile_digests(
        c: Matrix,
        plan: Plan,
        tiles: Vec<(usize, u64)>,
    ) -> Result<TileDigests, PrimaryError> {
        Ok(off_loop("verification", move || tile_digests(&c, &plan, tiles)).await??)
    }

    fn check<'a>(&'a self, c: &'a Matrix, round: u64) -> Check<'a> {
        Check {
            a: &self.a,
            b: &self.b,
            c,
            c0: self.old_c.as_ref(),
            alpha: self.alpha,
            beta: self.beta,
            levels: self.levels,
            tiles: &self.tiles,
            effort: self.effort,
            seed: self.seed.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            threads: self.threads,
        }
    }

    /// Locates the wrong tiles of a plan without levels, which has one grid.
    fn locate_tiles(
        &self,
        c: &Matrix,
        plan: &Plan,
        round: u64,
    ) -> Result<(Vec<(usize, u64)>, ProvenWrong), MatrixError> {
        let Some(region) = plan.regions.first() else { return Ok(Default::default()) };
        let edges = (region.grid.tile_rows, region.grid.tile_cols);
        let found = wrong_tiles(&self.check(c, round), edges)?;
        // A tile that was checked by itself is certainly wrong.
        let alone = found.iter().filter(|tiles| tiles.rows.len() == 1 && tiles.cols.len() == 1);
        let number = |i, j| (0, region.tile_number(i, j, 0, 0));
        let proven_wrong = alone.map(|one| number(one.rows.start, one.cols.start)).collect();
        let places =
            |tiles: Rect| tiles.rows.iter().flat_map(move |i| tiles.cols.iter().map(move |j| (i, j)));
        Ok((found.into_iter().flat_map(places).map(|(i, j)| number(i, j)).collect(), proven_wrong))
    }
}

/// The verdict by the sketch of B, if it serves.
fn by_sketch(sketch: &LazySketch, check: &Check<'_>) -> Result<Option<Verdict>, MatrixError> {
    let sketch = sketch.of(check.b, check.seed, check.threads)?;
    sketch.map_or(Ok(None), |sketch| sketch.verify(check))
}

fn tile_digests(c: &Matrix, plan: &Plan, tiles: Vec<(usize, u64)>) -> Result<TileDigests, MatrixError> {
    let mut found = TileDigests::new();
    for tile in tiles {
        let Some(rect) = plan.regions[tile.0].tile_of(tile.1) else { continue };
        found.insert(tile, c.part(rect).digest(1, &|| false)?.unwrap_or_default());
    }
    Ok(found)
}
