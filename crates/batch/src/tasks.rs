//! Carries out the tasks of a batch, one after another, over one open cluster.
//!
//! Place in the flow: `mod.rs` passes each parsed task in, and prints the outcome that comes out.
//!
//! Invariants: a task that fails leaves the cluster, the kept matrices and existing files as they were. A result is complete,
//! and if it is a product verified, before it is kept or gets its file name.
//!
//! Deliberately absent: a journal. A batch that is interrupted starts again with the task that was not finished.

use super::BatchArgs;
use super::language::{BatchOperand, BatchTask, Expression, MatrixReference, ResultTarget, ScaledOperand};
use super::rect::WrittenRect;
use bramble_client::{Client, ClientError, ClientProduct, ScaledMatrix};
use bramble_matrix::{DType, Matrix, Output, Sealed, Shape};
use bramble_primary::{
    ArrayId, MakeReport, PlacedOperand, ProductOperand, PutReport, ReduceReport, Report, off_loop,
};
use bramble_record::journal::left::begin_without_journal;
use bramble_report::exit::{Exit, Failure};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// The result of a task.
pub(crate) enum BatchOutcome {
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

/// The open cluster, and the matrices that tasks have kept.
pub(crate) struct TaskRunner<'a> {
    pub(crate) args: &'a BatchArgs,
    pub(crate) client: Client,
    pub(crate) kept: BTreeMap<String, KeptMatrix>,
}

impl<'a> TaskRunner<'a> {
    /// Runs tasks over an open cluster.
    pub(crate) fn new(args: &'a BatchArgs, client: Client) -> Self {
        Self { args, client, kept: BTreeMap::new() }
    }

    /// Carries out one task.
    pub(crate) async fn run(&mut self, task: &BatchTask) -> Result<BatchOutcome, Failure> {
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
            BatchTask::Write(name, rect, path) => {
                self.write(name, *rect, &ResultTarget::File(path.clone())).await
            }
            BatchTask::Put(name, matrix, placement) => self.put(name, matrix, placement.clone()).await,
            BatchTask::Reduce(targets, reduction, what) => self.reduce(targets, *reduction, what).await,
            BatchTask::Free(name) => self.free(name).await,
        }
    }

    /// Ends the sessions with the machines.
    pub(crate) async fn close(self) {
        self.client.close().await;
    }

    /// C = αAB + βD.
    pub(crate) async fn product(
        &mut self,
        target: &ResultTarget,
        alpha: f64,
        (a, b): (&BatchOperand, &BatchOperand),
        plus: Option<&ScaledOperand>,
    ) -> Result<BatchOutcome, Failure> {
        let began = Instant::now();
        let OpenedProduct { a, b, plus } = self.open_product(alpha, (a, b), plus).await?;
        let plus = plus.map(|(beta, c)| (beta, c.matrix));
        let output = |shape, dtype| Ok(output(target, shape, dtype)?);
        let product = ClientProduct { alpha, a, b, plus };
        let finished = match self.client.multiply(&product, &output, (began, &Rc::default())).await {
            Err(ClientError::Wrong(text)) => {
                return Err(Failure {
                    exit: Exit::Unverified,
                    text: format!("{text}; {target} was not kept"),
                });
            }
            result => result.map_err(|e| self.client.failure(e))?,
        };
        let digest = self.keep(target, finished.sealed).await?;
        Ok(BatchOutcome::Product(Box::new(finished.report), digest))
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

    /// C = αX, or αX + βY.
    async fn sum(
        &mut self,
        target: &ResultTarget,
        x: &ScaledOperand,
        y: Option<&ScaledOperand>,
    ) -> Result<BatchOutcome, Failure> {
        let (x, y) = self.open_sum(x, y).await?;
        let here = |(factor, operand): ScaledTerm| -> ScaledMatrix { (factor, operand.matrix) };
        self.write_sum(here(x), y.map(here), target).await
    }

    /// C = αX, or αX + βY, of matrices that this process can read.
    async fn write_sum(
        &mut self,
        x: ScaledMatrix,
        y: Option<ScaledMatrix>,
        target: &ResultTarget,
    ) -> Result<BatchOutcome, Failure> {
        let (shape, dtype) = (x.1.shape(), x.1.dtype());
        let output = output(target, shape, dtype)?;
        let sealed = self.client.sum_here(x, y, output).await.map_err(|e| self.client.failure(e))?;
        let digest = self.keep(target, sealed).await?;
        Ok(BatchOutcome::Sum(shape, dtype, digest))
    }

    /// Writes a kept matrix, or a rectangle of it.
    async fn write(
        &mut self,
        name: &str,
        rect: Option<WrittenRect>,
        target: &ResultTarget,
    ) -> Result<BatchOutcome, Failure> {
        let KeptMatrix { matrix, array } = self.kept.get(name).cloned().ok_or_else(|| self.unknown(name))?;
        let shape = matrix.shape();
        let rect =
            rect.map_or_else(|| Ok(shape.rect()), |rect| rect.of(name, shape)).map_err(Failure::failed)?;
        match array {
            Some(array) if matrix.is_remote() => self.write_remote(array, rect, target).await,
            _ => self.write_sum((1.0, matrix.part(rect)), None, target).await,
        }
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
