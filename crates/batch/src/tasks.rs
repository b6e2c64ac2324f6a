//! Carries out the tasks of a batch, one after another, over one open cluster.
//!
//! Place in the flow: `mod.rs` passes each parsed task in, and prints the outcome that comes out.
//!
//! Invariants: a task that fails leaves the cluster, the kept matrices and existing files as they were. A result is complete,
//! and if it is a product verified, before it is kept or gets its file name.
//!
//! Deliberately absent: a journal. A batch that is interrupted starts again with the task that was not finished.

use super::BatchArgs;
use super::elementwise::{Scaled, scaled_sum};
use super::language::{BatchOperand, BatchTask, Expression, MatrixReference, ResultTarget, ScaledOperand};
use super::progress_options;
use bramble_cluster::random::seed;
use bramble_cluster::team::{GatheredTeam, check_kernel};
use bramble_kernel::{AutoPicks, Choice};
use bramble_matrix::{DType, Matrix, Output, Sealed, Shape};
use bramble_plan::Preference;
use bramble_primary::{
    ArrayId, CheckRequest, Cluster, Finished, MakeReport, PlacedOperand, PrimaryError, ProductOperand,
    PutReport, ReduceReport, Report, Request, Stop, off_loop,
};
use bramble_record::journal::left::begin_without_journal;
use bramble_report::exit::{Exit, Failure};
use bramble_report::progress::ProgressDisplay;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The result of a task.
pub(crate) enum TaskOutcome {
    /// A product, with its report and the digest of its bytes, if that was asked for.
    Product(Box<Report>, Option<String>),
    /// A sum, or a copy: its shape, its type, and the digest of its bytes, if that was asked for.
    Sum(Shape, DType, Option<String>),
    /// A reduction: its results, each with its shape, its type, and the digest of its bytes, if that was asked for; and how the
    /// workers made it, if they did.
    Reduced(Vec<(Shape, DType, Option<String>)>, Option<ReduceReport>),
    /// A matrix was placed on the machines.
    Put(PutReport),
    /// A result that stays at the machines.
    Made(MakeReport),
    /// A result that came home from the machines: its shape, its type, the digest of its bytes, if that was asked for, and how it
    /// was made, if it was made for that.
    Fetched(Shape, DType, Option<String>, Option<MakeReport>),
    /// A kept matrix was forgotten.
    Freed,
}

/// A matrix that a task has kept.
#[derive(Clone)]
pub(crate) struct KeptMatrix {
    pub(crate) matrix: Matrix,
    /// Its parts on the machines, if it is placed there.
    pub(crate) array: Option<ArrayId>,
}

/// How often a product runs again after a machine with a part of a placed operand was lost.
pub(crate) const RESTORES_MAX: usize = 16;

/// The open cluster, and the matrices that tasks have kept.
pub(crate) struct TaskRunner<'a> {
    pub(crate) args: &'a BatchArgs,
    pub(crate) cluster: Cluster,
    pub(crate) kept: BTreeMap<String, KeptMatrix>,
    kernels: KernelChoice,
    /// Compute threads of this machine.
    pub(crate) threads: usize,
    is_local: bool,
    /// Whether parts of placed matrices were put again, since a machine was lost.
    pub(crate) has_restored: bool,
    /// Receives the name of each lost link.
    lost: mpsc::UnboundedSender<String>,
}

impl<'a> TaskRunner<'a> {
    /// Runs tasks over `cluster`. `threads`: compute threads of this machine; `is_local`: whether the workers are its processes.
    pub(crate) fn new(
        args: &'a BatchArgs,
        cluster: Cluster,
        (threads, is_local): (usize, bool),
        lost: mpsc::UnboundedSender<String>,
    ) -> Self {
        let kernels = KernelChoice { asked: args.cut.kernel(), here: is_local, picked: AutoPicks::default() };
        Self { args, cluster, kept: BTreeMap::new(), kernels, threads, is_local, has_restored: false, lost }
    }

    /// Carries out one task.
    pub(crate) async fn run(&mut self, task: &BatchTask) -> Result<TaskOutcome, Failure> {
        if let BatchTask::Compute(target, expression) = task
            && let Some(outcome) = self.at_machines(target, expression).await?
        {
            return Ok(outcome);
        }
        match task {
            BatchTask::Compute(target, Expression::Product { alpha, a, b, plus }) => {
                self.product(target, *alpha, (a, b), plus.as_ref()).await
            }
            BatchTask::Compute(target, Expression::Sum(x, y)) => self.sum(target, x, y.as_ref()).await,
            BatchTask::Write(name, path) => {
                if let Some(KeptMatrix { matrix, array: Some(array) }) = self.kept.get(name)
                    && matrix.is_remote()
                {
                    let (array, target) = (*array, ResultTarget::File(path.clone()));
                    return self.write_remote(array, &target).await;
                }
                let source = MatrixReference::Kept(name.clone());
                let matrix = BatchOperand { source, transposed: false };
                self.sum(&ResultTarget::File(path.clone()), &ScaledOperand { factor: 1.0, matrix }, None)
                    .await
            }
            BatchTask::Put(name, matrix, placement) => self.put(name, matrix, placement.clone()).await,
            BatchTask::Reduce(targets, reduction, what) => self.reduce(targets, *reduction, what).await,
            BatchTask::Free(name) => self.free(name).await,
        }
    }

    /// Ends the sessions with the machines.
    pub(crate) async fn close(self) {
        self.cluster.close().await;
    }

    /// C = αAB + βD.
    pub(crate) async fn product(
        &mut self,
        target: &ResultTarget,
        alpha: f64,
        (a, b): (&BatchOperand, &BatchOperand),
        plus: Option<&ScaledOperand>,
    ) -> Result<TaskOutcome, Failure> {
        let began = Instant::now();
        let OpenedProduct { a, b, plus } = self.open_product(alpha, (a, b), plus).await?;
        let shape = Shape::new(a.matrix.shape().rows, b.matrix.shape().cols);
        let (beta, old_c) = plus.map_or((0.0, None), |(beta, c)| (beta, Some(c.matrix)));
        let dtype = a.matrix.dtype();
        let product = ProductTask { a, b, old_c, alpha, beta, shape, dtype };
        let finished = self.compute(&product, target, began).await?;
        let verdict = &finished.report.check.verify.verdict;
        if !verdict.passed {
            finished.sealed.discard();
            let text =
                verdict.fault.as_ref().map_or_else(|| verdict.method.clone(), |fault| fault.text.clone());
            let text = format!("the result is wrong: {text}; {target} was not kept");
            return Err(Failure { exit: Exit::Unverified, text });
        }
        let digest = self.keep(target, finished.sealed).await?;
        Ok(TaskOutcome::Product(Box::new(finished.report), digest))
    }

    /// The operands of αAB + βC, of one type and of shapes that fit.
    pub(crate) async fn open_product(
        &self,
        alpha: f64,
        (a, b): (&BatchOperand, &BatchOperand),
        plus: Option<&ScaledOperand>,
    ) -> Result<OpenedProduct, Failure> {
        let (left, right) = self.factors(a, b).await?;
        let shape = Shape::new(left.matrix.shape().rows, right.matrix.shape().cols);
        let plus = match plus {
            Some(term) => Some(self.addend(term, shape).await?),
            None => None,
        };
        let dtype = left.matrix.promoted(&right.matrix);
        let dtype = plus.as_ref().map_or(dtype, |(_, c)| dtype.promoted(c.matrix.dtype()));
        dtype.check_factor("the factor of the product", alpha).map_err(Failure::usage)?;
        let beta = plus.as_ref().map_or(0.0, |(beta, _)| *beta);
        dtype.check_factor("the factor of the matrix that is added", beta).map_err(Failure::usage)?;
        self.args.cut.check(dtype)?;
        let plus = plus.map(|(beta, c)| Ok::<_, Failure>((beta, converted(c, dtype)?))).transpose()?;
        Ok(OpenedProduct { a: converted(left, dtype)?, b: converted(right, dtype)?, plus })
    }

    /// The operands of αX, or αX + βY, of one type and shape.
    pub(crate) async fn open_sum(
        &self,
        x: &ScaledOperand,
        y: Option<&ScaledOperand>,
    ) -> Result<(ScaledTerm, Option<ScaledTerm>), Failure> {
        let first = self.open(&x.matrix, false).await?;
        let second = match y {
            Some(y) => Some(self.addend(y, first.matrix.shape()).await?),
            None => None,
        };
        let dtype = second
            .as_ref()
            .map_or_else(|| first.matrix.dtype(), |(_, second)| first.matrix.promoted(&second.matrix));
        for factor in [Some(x.factor), y.map(|y| y.factor)].into_iter().flatten() {
            dtype.check_factor("the factor of a matrix", factor).map_err(Failure::usage)?;
        }
        let y = second.map(|(beta, y)| Ok::<_, Failure>((beta, converted(y, dtype)?))).transpose()?;
        Ok(((x.factor, converted(first, dtype)?), y))
    }

    /// The operands of a product, whose shapes fit.
    async fn factors(
        &self,
        a: &BatchOperand,
        b: &BatchOperand,
    ) -> Result<(ProductOperand, ProductOperand), Failure> {
        let (left, right) = (self.open(a, false).await?, self.open(b, true).await?);
        let (sa, sb) = (left.matrix.shape(), right.matrix.shape());
        if sa.cols == sb.rows {
            return Ok((left, right));
        }
        Err(Failure::failed(format!(
            "{a} is {sa} and {b} is {sb}: the columns of the first must equal the rows of the second{}",
            transpose_hint(a, b, sa, sb)
        )))
    }

    /// Computes C; again if a machine with a part of a placed operand is lost.
    async fn compute(
        &mut self,
        product: &ProductTask,
        target: &ResultTarget,
        began: Instant,
    ) -> Result<Finished, Failure> {
        let ProductTask { a, b, old_c, alpha, beta, shape, dtype } = product;
        let (m, k, n) = (shape.rows, a.matrix.shape().cols, shape.cols);
        let kernel = self.kernel(*dtype, 2.0 * m as f64 * k as f64 * n as f64)?;
        let mut restores = 0;
        loop {
            let request = Request {
                a: a.clone(),
                b: b.clone(),
                old_c: old_c.clone(),
                alpha: *alpha,
                beta: *beta,
                output: output(target, *shape, *dtype)?,
                cut: self.args.cut.cut([m, k, n], *dtype),
                kernel: kernel.clone(),
                wish: self.args.cut.wish(self.is_local),
                instead: None,
                sessions: self.sessions()?,
                check: CheckRequest { effort: self.args.verify, threads: self.threads, seed: seed()? },
                began,
                log: None,
                journal: None,
                stop: Rc::new(Stop::default()),
            };
            let watch = self.display();
            let result = self.cluster.run(request, &watch).await;
            watch.done();
            match result {
                Err(PrimaryError::PartLost(why)) if restores < RESTORES_MAX => self.restore(&why).await?,
                result => return result.map_err(|e| self.failure(e)),
            }
            restores += 1;
        }
    }

    /// C = αX, or αX + βY.
    async fn sum(
        &mut self,
        target: &ResultTarget,
        x: &ScaledOperand,
        y: Option<&ScaledOperand>,
    ) -> Result<TaskOutcome, Failure> {
        let (x, y) = self.open_sum(x, y).await?;
        let here = |(factor, operand): ScaledTerm| -> Scaled { (factor, operand.matrix) };
        let (x, y) = (here(x), y.map(here));
        let (shape, dtype) = (x.1.shape(), x.1.dtype());
        let output = output(target, shape, dtype)?;
        let threads = NonZeroUsize::new(self.threads).unwrap_or(NonZeroUsize::MIN);
        let sealed = off_loop("adding matrices", move || -> Result<Sealed, Failure> {
            scaled_sum(&x, y.as_ref(), &output, threads)?;
            Ok(output.seal()?)
        })
        .await??;
        let digest = self.keep(target, sealed).await?;
        Ok(TaskOutcome::Sum(shape, dtype, digest))
    }

    /// Gives a result its file name, or keeps it under its name. Syncing may take long, so a separate thread does it.
    pub(crate) async fn keep(
        &mut self,
        target: &ResultTarget,
        sealed: Sealed,
    ) -> Result<Option<String>, Failure> {
        let json = self.args.json;
        let kept = match target {
            ResultTarget::Name(name) => Some((name.clone(), sealed.matrix()?)),
            ResultTarget::File(_) => None,
        };
        let digest = off_loop("keeping a result", move || -> Result<_, Failure> {
            let digest = json.then(|| bramble_report::digest::digest(sealed.bytes()));
            sealed.commit()?;
            Ok(digest)
        })
        .await??;
        if let Some((name, matrix)) = kept {
            self.keep_named(name, KeptMatrix { matrix, array: None }).await?;
        }
        Ok(digest)
    }

    /// The matrix of an operand; `is_right`: it is B of a product.
    pub(crate) async fn open(
        &self,
        operand: &BatchOperand,
        is_right: bool,
    ) -> Result<ProductOperand, Failure> {
        let mut array = None;
        let matrix = match &operand.source {
            MatrixReference::Kept(name) => {
                let kept = self.kept.get(name).cloned().ok_or_else(|| self.unknown(name))?;
                array = kept.array;
                kept.matrix
            }
            MatrixReference::Described(form) if form == "-" => {
                return Err(Failure::failed("-: a batch reads no matrix from standard input; name a file"));
            }
            // Generators, tensors and `.npy` files are not read here.
            MatrixReference::Described(form) if form.contains(':') || form.ends_with(".npy") => {
                Matrix::open(form)?
            }
            MatrixReference::Described(form) => {
                // A large `.mtx` file takes long to read, and the machines have to be pinged meanwhile.
                let form = form.clone();
                off_loop("opening a matrix", move || Matrix::open(form)).await??
            }
        };
        // A vector on the right is a column, and parts lie as the vector was placed: as a row.
        let transposed = operand.transposed != (matrix.is_vector() && is_right);
        let placed = array.map(|array| PlacedOperand { array, transposed });
        Ok(ProductOperand {
            matrix: matrix.as_operand(is_right, self.args.dtype, operand.transposed)?,
            placed,
        })
    }

    /// The matrix that is added to another of `shape`, and its factor.
    async fn addend(&self, term: &ScaledOperand, shape: Shape) -> Result<ScaledTerm, Failure> {
        let operand = self.open(&term.matrix, false).await?;
        same_shape(&term.matrix, operand.matrix.shape(), shape)?;
        Ok((term.factor, operand))
    }

    pub(crate) fn unknown(&self, name: &str) -> Failure {
        let known: Vec<&str> = self.kept.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none is".to_owned() } else { format!("{} are", known.join(", ")) };
        Failure::failed(format!(
            "{name}: no matrix is kept under this name ({known}); write ./{name} for a file"
        ))
    }

    /// The kernel's name for a product of `flops` operations.
    pub(crate) fn kernel(&mut self, dtype: DType, flops: f64) -> Result<String, Failure> {
        self.kernels.name(dtype, flops)
    }

    /// Whether this process's own threads compute, too.
    pub(crate) fn who(&self) -> Preference {
        self.args.cut.wish(self.is_local).who
    }

    pub(crate) fn failure(&self, e: PrimaryError) -> Failure {
        GatheredTeam::failure(self.is_local, e)
    }

    /// The progress of one product.
    pub(crate) fn display(&self) -> ProgressDisplay {
        ProgressDisplay::new(progress_options(self.args), self.lost.clone())
    }
}

/// A factor and its matrix.
pub(crate) type ScaledTerm = (f64, ProductOperand);

/// The open operands of αAB + βC.
pub(crate) struct OpenedProduct {
    pub(crate) a: ProductOperand,
    pub(crate) b: ProductOperand,
    /// β and C.
    pub(crate) plus: Option<ScaledTerm>,
}

/// A product whose operands are open.
struct ProductTask {
    a: ProductOperand,
    b: ProductOperand,
    old_c: Option<Matrix>,
    alpha: f64,
    beta: f64,
    shape: Shape,
    dtype: DType,
}

/// The operand with elements of that type. A placed matrix has its own, so the cluster refuses another one.
fn converted(operand: ProductOperand, dtype: DType) -> Result<ProductOperand, Failure> {
    Ok(ProductOperand { matrix: operand.matrix.converted(dtype)?, ..operand })
}

/// Refuses a matrix that is added to another of another shape.
fn same_shape(name: &BatchOperand, of: Shape, shape: Shape) -> Result<(), Failure> {
    if of == shape {
        return Ok(());
    }
    let is_transposed = Shape::new(of.cols, of.rows) == shape;
    let hint = if is_transposed { format!("; did you mean {name}.T?") } else { String::new() };
    Err(Failure::failed(format!(
        "{name} is {of} and is added to a matrix of {shape}: both need the same shape{hint}"
    )))
}

fn transpose_hint(a: &BatchOperand, b: &BatchOperand, sa: Shape, sb: Shape) -> String {
    match () {
        () if sa.cols == sb.cols && !b.transposed => format!("; did you mean {b}.T?"),
        () if sa.rows == sb.rows && !a.transposed => format!("; did you mean {a}.T?"),
        () => String::new(),
    }
}

/// Where a result is written: to a file, under a name that it gets when it is complete, or to memory.
pub(crate) fn output(target: &ResultTarget, shape: Shape, dtype: DType) -> Result<Output, Failure> {
    match target {
        ResultTarget::Name(_) => Ok(Output::anonymous(shape, dtype)?),
        ResultTarget::File(path) => Ok(begin_without_journal(path, shape, dtype)?),
    }
}

/// The kernel of each element type.
struct KernelChoice {
    asked: Choice,
    /// Whether all workers run on this machine, so that one comparison of kernels serves them all.
    here: bool,
    picked: AutoPicks,
}

impl KernelChoice {
    /// The kernel's name for a product of `flops` operations.
    fn name(&mut self, dtype: DType, flops: f64) -> Result<String, Failure> {
        check_kernel(self.asked, dtype)?;
        if self.asked != Choice::Auto || !self.here {
            return Ok(self.asked.to_string());
        }
        if let Some(pick) = self.picked.known(dtype, flops) {
            return Ok(pick.kernel.name().to_owned());
        }
        let pick = bramble_kernel::pick(self.asked, dtype, flops)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
        let name = pick.kernel.name().to_owned();
        self.picked.remember(dtype, flops, pick);
        Ok(name)
    }
}
