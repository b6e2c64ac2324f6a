//! Calls on placed matrices: put, make, fetch, reduce, free; and what follows if a machine with a part is lost.
//!
//! Place in the flow: each call asks the primary's `Cluster`, restores lost parts, and asks again.
//!
//! Invariants: an array exists after all its parts are held, and if it was made, after its check.
//!
//! Deliberately absent: which bytes travel, and how parts are made (`primary`).

use crate::elementwise::{ScaledMatrix, scaled_sum};
use crate::here::reduced;
use crate::unchanged::{long_enough, unchanged};
use crate::{Client, ClientError};
use bramble_arrays::{GivesUp, LossRetries, UnfinishedArray};
use bramble_matrix::{DType, Matrix, Output, Rect, ReducedMatrix, Reduction, Sealed, Shape};
use bramble_plan::Placement;
use bramble_primary::LocalFuture;
use bramble_primary::{
    ArrayId, FactorsCheck, FactorsRequest, MakeReport, MakeRequest, MakeSubject, NodeReport, PlacedOperand,
    PrimaryError, ProductOperand, PutReport, PutRequest, ReduceReport, ReduceRequest, ReduceSubject,
    SolutionCheck, SystemFactors, SystemProgress, SystemRequest, SystemSolution, SystemSource, off_loop,
};
use bramble_report::exit::Failure;
use bramble_report::losses;
use std::sync::Arc;

/// Machines measure their speed for `Client::nodes` as for a product of this many operations.
const NODES_FLOPS: f64 = 1e11;

/// Name of a result that the caller gives no name.
pub const UNNAMED: &str = "the result";

/// An array that a call has made.
pub struct NewArray {
    /// The array.
    pub array: ArrayId,
    /// It as an operand.
    pub operand: ProductOperand,
    /// How it was made.
    pub report: MakeReport,
}

impl Client {
    /// Places a matrix on the machines; `placement`: how it is spread, automatically if `None`.
    pub fn put<'f>(
        &'f mut self,
        matrix: Matrix,
        placement: Option<Placement>,
    ) -> LocalFuture<'f, Result<(ArrayId, PutReport), ClientError>> {
        Box::pin(async move {
            let elements = matrix.shape().elements().unwrap_or(u64::MAX);
            let put = PutRequest {
                kernel: self.kernels.name(matrix.dtype(), 2.0 * elements as f64)?,
                placement,
                who: self.who(),
                sessions: self.sessions()?,
                matrix,
            };
            let watch = self.display();
            let result = self.cluster.put(put, &watch).await;
            watch.done();
            Ok(result?)
        })
    }

    /// Makes an array at the machines; `name` stands for it in messages.
    pub fn make<'f>(
        &'f mut self,
        name: &'f str,
        subject: MakeSubject,
        placement: Option<Placement>,
    ) -> LocalFuture<'f, Result<NewArray, ClientError>> {
        Box::pin(async move {
            let mut unfinished = None;
            let made = self.make_until_done(name, subject, placement, &mut unfinished).await;
            if let Some(unfinished) = unfinished.take() {
                let sessions = self.sessions()?;
                self.cluster.free_unfinished(unfinished, &sessions).await;
            }
            made
        })
    }

    async fn make_until_done(
        &mut self,
        name: &str,
        subject: MakeSubject,
        placement: Option<Placement>,
        unfinished: &mut Option<UnfinishedArray>,
    ) -> Result<NewArray, ClientError> {
        long_enough(subject.operands().into_iter().map(|operand| &operand.matrix))?;
        let kernel = self.kernels.name(subject.dtype(), subject.flops())?;
        let mut retries = LossRetries::default();
        loop {
            let request = MakeRequest {
                name: name.to_owned(),
                subject: subject.clone(),
                placement: placement.clone(),
                kernel: kernel.clone(),
                who: self.who(),
                sessions: self.sessions()?,
                check: self.check()?,
                relays: self.options.cut.may_relay(),
            };
            let watch = self.display();
            let result = self.cluster.make(request, unfinished, &watch).await;
            watch.done();
            match result {
                Err(PrimaryError::PartLost(why)) => self.restore(&why, &mut retries).await?,
                Err(PrimaryError::Wrong(text)) => {
                    return Err(ClientError::Wrong(format!("{text}; nothing was kept")));
                }
                result => {
                    let (array, report) = result?;
                    let matrix = Matrix::remote(name, report.put.shape, report.put.dtype);
                    let placed = Some(PlacedOperand { array, transposed: false });
                    return Ok(NewArray { array, operand: ProductOperand { matrix, placed }, report });
                }
            }
        }
    }

    /// Fetches a rectangle of an array, all of it if `None`, into the output that `output` opens.
    pub fn fetch<'f>(
        &'f mut self,
        array: ArrayId,
        rect: Option<Rect>,
        output: &'f dyn Fn(Shape, DType) -> Result<Output, ClientError>,
    ) -> LocalFuture<'f, Result<Sealed, ClientError>> {
        Box::pin(async move {
            let (shape, dtype) = self.cluster.shape_of(array)?;
            let rect = rect.unwrap_or_else(|| shape.rect());
            let mut retries = LossRetries::default();
            loop {
                let (to, sessions, who) = (output(rect.shape(), dtype)?, self.sessions()?, self.who());
                let watch = self.display();
                let result = self.cluster.fetch((array, rect), to, who, &sessions, &watch).await;
                watch.done();
                match result {
                    Err(PrimaryError::PartLost(why)) => self.restore(&why, &mut retries).await?,
                    result => return Ok(result?.seal()?),
                }
            }
        })
    }

    /// Makes a result at the machines and fetches it. No array is left.
    pub fn make_and_fetch<'f>(
        &'f mut self,
        subject: MakeSubject,
        output: &'f dyn Fn(Shape, DType) -> Result<Output, ClientError>,
    ) -> LocalFuture<'f, Result<(Sealed, MakeReport), ClientError>> {
        Box::pin(async move {
            let made = self.make(UNNAMED, subject, None).await?;
            let fetched = self.fetch(made.array, None, output).await;
            self.free(made.array).await?;
            Ok((fetched?, made.report))
        })
    }

    /// The machines reduce a matrix or a product of which they hold an operand.
    pub fn reduce<'f>(
        &'f mut self,
        reduction: Reduction,
        subject: ReduceSubject,
    ) -> LocalFuture<'f, Result<(Vec<ReducedMatrix>, ReduceReport), ClientError>> {
        Box::pin(async move {
            let (subject, made) = self.made_first(subject).await?;
            let reduced = self.reduce_once(reduction, subject).await;
            if let Some(made) = &made {
                self.free(made.array).await?;
            }
            let (results, mut report) = reduced?;
            if let Some(NewArray { report: making, .. }) = made {
                (report.is_checked, report.rows_recomputed) = (making.is_checked, making.lines_recomputed);
                report.bytes_sent += making.put.bytes_sent;
            }
            Ok((results, report))
        })
    }

    /// A product of which only machines have an operand is made as a whole first.
    async fn made_first(
        &mut self,
        subject: ReduceSubject,
    ) -> Result<(ReduceSubject, Option<NewArray>), ClientError> {
        match subject {
            ReduceSubject::Product { alpha, a, b } if a.matrix.is_remote() || b.matrix.is_remote() => {
                let made = self.make(UNNAMED, MakeSubject::Product { alpha, a, b, plus: None }, None).await?;
                Ok((ReduceSubject::Matrix(made.operand.clone()), Some(made)))
            }
            other => Ok((other, None)),
        }
    }

    async fn reduce_once(
        &mut self,
        reduction: Reduction,
        subject: ReduceSubject,
    ) -> Result<(Vec<ReducedMatrix>, ReduceReport), ClientError> {
        if let ReduceSubject::Product { a, b, .. } = &subject {
            long_enough([&a.matrix, &b.matrix])?;
        }
        let kernel = self.kernels.name(subject.dtype(), subject.flops())?;
        let mut retries = LossRetries::default();
        loop {
            let request = ReduceRequest {
                reduction,
                subject: subject.clone(),
                kernel: kernel.clone(),
                who: self.who(),
                sessions: self.sessions()?,
                check: self.check()?,
            };
            let watch = self.display();
            let result = self.cluster.reduce(request, &watch).await;
            watch.done();
            match result {
                Err(PrimaryError::PartLost(why)) => self.restore(&why, &mut retries).await?,
                result => return Ok(result?),
            }
        }
    }

    /// This process reduces a matrix that it can read.
    pub fn reduce_here<'f>(
        &'f self,
        reduction: Reduction,
        matrix: Matrix,
    ) -> LocalFuture<'f, Result<Vec<ReducedMatrix>, ClientError>> {
        Box::pin(async move {
            let threads = self.threads;
            let reduce = move || unchanged(&[&matrix], || reduced(&matrix, reduction, threads));
            Ok(off_loop("reducing a matrix", reduce).await??)
        })
    }

    /// This process computes αX, or αX + βY, of matrices that it can read.
    pub fn sum_here<'f>(
        &'f self,
        x: ScaledMatrix,
        y: Option<ScaledMatrix>,
        output: Output,
    ) -> LocalFuture<'f, Result<Sealed, ClientError>> {
        Box::pin(async move {
            let threads = self.threads;
            let sealed = off_loop("adding matrices", move || -> Result<Sealed, Failure> {
                let sources: Vec<&Matrix> = std::iter::once(&x).chain(&y).map(|(_, matrix)| matrix).collect();
                unchanged(&sources, || scaled_sum(&x, y.as_ref(), &output, threads))?;
                Ok(output.seal()?)
            });
            Ok(sealed.await??)
        })
    }

    /// The machines, this process first, with their speeds for that element type.
    pub fn nodes<'f>(&'f mut self, dtype: DType) -> LocalFuture<'f, Result<Vec<NodeReport>, ClientError>> {
        Box::pin(async move {
            let kernel = self.kernels.name(dtype, NODES_FLOPS)?;
            let sessions = self.sessions()?;
            let watch = self.display();
            let result = self.cluster.nodes((kernel, dtype), &sessions, &watch).await;
            watch.done();
            Ok(result?)
        })
    }

    /// The workers solve A X = B, also if up to `survive` of them are lost. `check` says whether X solves it; if not, the workers
    /// that have computed wrongly are named in the solution.
    pub fn solve<'f>(
        &'f mut self,
        (a, b): (Matrix, Matrix),
        survive: usize,
        check: SolutionCheck,
    ) -> LocalFuture<'f, Result<SystemSolution, ClientError>> {
        Box::pin(async move {
            let kernel = self.kernels.name_for_factors(DType::F64, a.shape().rows)?;
            let source = SystemSource::Given { a, b };
            let request = SystemRequest {
                source,
                dtype: DType::F64,
                width: None,
                depth: None,
                workers: None,
                outlives_losses: true,
                survive,
                kernel,
                sessions: self.sessions()?,
            };
            let watch = self.display();
            let result = self.cluster.solve(request, check, &watch, &tell_loss).await;
            watch.done();
            Ok(result?)
        })
    }

    /// The workers factor A, also if up to `survive` of them are lost, and the factors come into `home`, which has A's shape and
    /// f32 or f64. `check` says whether they are right; if not, the workers that have computed wrongly are named in the result.
    pub fn factor<'f>(
        &'f mut self,
        (a, home): (Matrix, Arc<Output>),
        survive: usize,
        check: FactorsCheck,
    ) -> LocalFuture<'f, Result<SystemFactors, ClientError>> {
        Box::pin(async move {
            let kernel = self.kernels.name_for_factors(DType::F64, a.shape().rows)?;
            let request = FactorsRequest {
                a,
                width: None,
                depth: None,
                survive,
                kernel,
                sessions: self.sessions()?,
                home,
            };
            let watch = self.display();
            let result = self.cluster.factor(request, check, &watch, &tell_loss).await;
            watch.done();
            Ok(result?)
        })
    }

    /// Forgets an array; its memory goes back to the machines.
    pub fn free<'f>(&'f mut self, array: ArrayId) -> LocalFuture<'f, Result<(), ClientError>> {
        Box::pin(async move {
            let sessions = self.sessions()?;
            self.cluster.free(array, &sessions).await;
            Ok(())
        })
    }

    /// Puts the parts of lost machines on the others, if the call may run again.
    pub(crate) async fn restore(&mut self, why: &str, retries: &mut LossRetries) -> Result<(), ClientError> {
        retries.again().map_err(gave_up)?;
        if !self.options.progress.is_quiet {
            bramble_report::say(&format!(
                "bramble: {why}; it is placed on other machines, and the task goes on"
            ));
        }
        self.has_restored = true;
        let (sessions, check) = (self.sessions()?, self.check()?);
        let (who, relays) = (self.who(), self.options.cut.may_relay());
        let kernel = self.options.cut.kernel().to_string();
        let watch = self.display();
        let restored = self.cluster.restore((&kernel, who, relays), &sessions, check, &watch).await;
        watch.done();
        match restored {
            Err(PrimaryError::PartLost(reason)) => retries.unrestored(reason),
            other => other?,
        }
        Ok(())
    }
}

/// Tells of a worker that an elimination has outlived.
fn tell_loss(state: SystemProgress<'_>) {
    if let SystemProgress::Lost(loss, left) = state {
        bramble_report::say(&losses::told(loss, left));
    }
}

fn gave_up(why: GivesUp) -> ClientError {
    match why {
        GivesUp::Unrestored(why) => PrimaryError::PartLost(why).into(),
        GivesUp::TooOften(times) => {
            Failure::failed(format!("machines with parts were lost {times} times in this task")).into()
        }
    }
}
