//! Factors of a matrix, computed by the workers and brought home.
//!
//! Place in the flow: a run as in `mod.rs` up to the end of the elimination. Then this process asks each worker for its
//! columns (`schedule::lu::LuHome`), puts the rows of L where the later exchanges of rows have them, and the caller judges
//! the factors while the links stay alive.
//!
//! Invariants: all requests to a worker are answered in order. What has come is written at once, so little memory is needed
//! beside the output, which may be a mapped file.
//!
//! Deliberately absent: right-hand sides. The messages have at least one, so a column of zeros rides along.

use super::links::Heard;
use super::survive::SurvivingRuns;
use super::{SentColumns, SystemLosses, SystemPlan, SystemProgress, SystemRequest, SystemRun, SystemSource};
use crate::cluster::Cluster;
use crate::product::{ProductObserver, SessionRequest};
use crate::{PrimaryError, off_loop};
use bramble_link::LocalFuture;
use bramble_link::{Body, Frame};
use bramble_matrix::number::to_u64;
use bramble_matrix::{DType, Layout, Matrix, MatrixError, Output, Rect, Shape, Span};
use bramble_schedule::lu::{LuHome, LuPivots, LuPlaces};
use bramble_wire::message::Kind;
use std::sync::Arc;

/// A request to factor a square matrix on the workers of a cluster.
pub struct FactorsRequest {
    /// The matrix; f32 or f64.
    pub a: Matrix,
    /// Columns of a block; `None`: as the cost model says.
    pub width: Option<usize>,
    /// Panels that each worker keeps; `None`: as the cost model says.
    pub depth: Option<usize>,
    /// How many workers may be lost in the run.
    pub survive: usize,
    /// Kernel of the products, by name, or `auto`.
    pub kernel: String,
    /// The sessions with the machines.
    pub sessions: SessionRequest,
    /// Where L and U go; f32 or f64, of the shape of the matrix.
    pub home: Arc<Output>,
}

/// Whether the factors in the output are right, with these exchanges of rows. Runs on a thread of its own, while the links
/// stay alive.
pub type FactorsCheck = Box<dyn FnOnce(&[usize]) -> bool + Send>;

/// How factors were computed.
#[derive(Clone, Debug)]
pub struct SystemFactors {
    /// For each column, the row with which its diagonal row was exchanged, from 0.
    pub pivots: Vec<usize>,
    /// The plan.
    pub plan: SystemPlan,
    /// Seconds before the first column is sent: connections, speeds.
    pub setup_seconds: f64,
    /// Seconds of the elimination, from the first column that is sent; after a loss since the first start.
    pub seconds: f64,
    /// The transfer of the columns to the workers, which is a part of `seconds`.
    pub sent: SentColumns,
    /// Seconds in which the factors came home.
    pub home_seconds: f64,
    /// The first column whose pivot is 0.
    pub zero: Option<usize>,
    /// The first column whose pivot is infinite or NaN.
    pub overflow: Option<usize>,
    /// As in [`super::SystemSolution`].
    pub wrong: Vec<(String, f64)>,
    /// The workers that were lost.
    pub losses: SystemLosses,
}

impl Cluster {
    /// Factors a matrix on the workers, and brings the factors home. `check` says whether they are right: if not, the workers
    /// compare their columns with their checksums, which shows who has computed wrongly.
    pub fn factor<'f>(
        &'f mut self,
        request: FactorsRequest,
        check: FactorsCheck,
        watch: &'f dyn ProductObserver,
        progress: &'f dyn Fn(SystemProgress<'_>),
    ) -> LocalFuture<'f, Result<SystemFactors, PrimaryError>> {
        Box::pin(async move {
            let FactorsRequest { a, width, depth, survive, kernel, sessions, home } = request;
            let request = SystemRequest {
                source: SystemSource::to_factor(a)?,
                dtype: DType::F64,
                width,
                depth,
                workers: None,
                outlives_losses: true,
                survive,
                kernel,
                sessions,
            };
            let mut check = Some(check);
            let mut work = async |run: &mut SystemRun, plan: SystemPlan| {
                run.factors(&request.source, plan, &home, &mut check, progress).await
            };
            let mut runs = SurvivingRuns::new(request.survive);
            let mut factors = self.surviving(&request, &mut runs, watch, progress, &mut work).await?;
            factors.losses = runs.losses();
            Ok(factors)
        })
    }
}

/// One column of zeros.
pub(super) fn zeros(rows: u64) -> Result<Matrix, MatrixError> {
    let shape = Shape::new(rows, 1);
    let too_large = || MatrixError::TooLarge { name: "a column".to_owned(), shape, dtype: DType::F64 };
    let bytes =
        shape.bytes(DType::F64).and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(too_large)?;
    Matrix::from_shared("zeros", Arc::new(vec![0u8; bytes]), 0, shape, DType::F64, Layout::RowMajor)
}

impl SystemRun {
    async fn factors(
        &mut self,
        source: &SystemSource,
        plan: SystemPlan,
        home: &Output,
        check: &mut Option<FactorsCheck>,
        progress: &dyn Fn(SystemProgress<'_>),
    ) -> Result<SystemFactors, PrimaryError> {
        self.start(source, progress).await?;
        let (_, pivots) = self.eliminate(progress).await?;
        let seconds = self.clock.seconds();
        let (mut home_seconds, mut wrong) = (0.0, Vec::new());
        let pivots = match self.overflow {
            // Nothing that could be checked.
            Some(_) => pivots.rows().to_vec(),
            None => {
                let pivots = Arc::new(self.bring_home(pivots, home).await?);
                home_seconds = self.clock.seconds() - seconds;
                let (exchanged, check) = (pivots.clone(), check.take());
                self.is_judged = true;
                let checking =
                    off_loop("checking the factors", move || check.is_some_and(|check| check(&exchanged)));
                if !self.links.alive_during(checking).await? {
                    wrong = self.find_wrong().await?;
                }
                Arc::try_unwrap(pivots).unwrap_or_else(|pivots| pivots.to_vec())
            }
        };
        self.links.goodbyes().await;
        let (zero, overflow, setup_seconds) = (self.zero, self.overflow, self.clock.setup_seconds());
        let (sent, losses) = (self.sent(), SystemLosses::default());
        Ok(SystemFactors {
            pivots,
            plan,
            setup_seconds,
            seconds,
            sent,
            home_seconds,
            zero,
            overflow,
            wrong,
            losses,
        })
    }

    /// Asks all workers for their columns until all have come; returns the exchanges of rows.
    async fn bring_home(&mut self, pivots: LuPivots, home: &Output) -> Result<Vec<usize>, PrimaryError> {
        let mut state = LuHome::new(pivots);
        (0..self.links.count()).for_each(|at| self.ask(&mut state, at));
        while !state.is_over() {
            match self.links.next().await? {
                (from, Heard::Columns(head, body)) => {
                    let places = state.arrived(from, &head, body.len());
                    let places = places.map_err(|e| self.links.broken(from, e))?;
                    match home.dtype() {
                        DType::F32 => place(home, &places, &body, |bytes| {
                            (f64::from_le_bytes(bytes) as f32).to_ne_bytes()
                        }),
                        _ => place(home, &places, &body, |bytes| f64::from_le_bytes(bytes).to_ne_bytes()),
                    }
                    self.ask(&mut state, from);
                }
                (from, _) => return Err(self.links.out_of_place(from)),
            }
        }
        Ok(state.into_pivots())
    }

    fn ask(&self, state: &mut LuHome, at: usize) {
        for request in state.ask(at) {
            self.links.send(at, Frame::new(Kind::LuFetch.code(), request.encode(), Body::Empty));
        }
    }
}

/// Writes elements that have come to their rows of the output, each as `of` makes it.
fn place<const SIZE: usize>(
    home: &Output,
    places: &LuPlaces<'_>,
    body: &[u8],
    of: impl Fn([u8; 8]) -> [u8; SIZE],
) {
    let span = |start: usize, end: usize| Span::new(to_u64(start), to_u64(end));
    let columns = span(places.columns.start, places.columns.end);
    let line_bytes = places.columns.len() * size_of::<f64>();
    for (line, row) in body.chunks_exact(line_bytes).zip(places.rows) {
        let mut lease = home.lease(Rect::new(span(*row, row + 1), columns));
        let to = lease.line_mut(0).as_chunks_mut::<SIZE>().0;
        let elements = line.as_chunks::<8>().0;
        to.iter_mut().zip(elements).for_each(|(to, element)| *to = of(*element));
    }
}
