//! Carries out the tasks of a batch, one after another, over one open cluster.
//!
//! Place in the flow: `mod.rs` passes each parsed task in, and prints the outcome that comes out.
//!
//! Invariants: a task that fails leaves the cluster, the kept matrices and existing files as they were. A result is complete,
//! and if it is a product verified, before it is kept or gets its file name.
//!
//! Deliberately absent: a journal. A batch that is interrupted starts again with the task that was not finished.

use super::language::{BatchOperand, BatchTask, Expression, MatrixReference, ResultTarget, ScaledOperand};
use crate::args::BatchArgs;
use crate::multiply::{check_factor, sessions_of};
use bramble_cluster::random::seed;
use bramble_cluster::team::{GatheredTeam, check_kernel};
use bramble_kernel::{Choice, Pick};
use bramble_matrix::{DType, Matrix, Output, Sealed, Shape, Unfinished};
use bramble_primary::{CheckRequest, Cluster, Report, Request, Scaled, Stop, off_loop, scaled_sum};
use bramble_report::exit::{Exit, Failure};
use bramble_report::progress::{ProgressDisplay, ProgressOptions};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The result of a task.
pub(super) enum TaskOutcome {
    /// A product, with its report and the digest of its bytes, if that was asked for.
    Product(Box<Report>, Option<String>),
    /// A sum, or a copy: its shape, its type, and the digest of its bytes, if that was asked for.
    Sum(Shape, DType, Option<String>),
    /// A kept matrix was forgotten.
    Freed,
}

/// The open cluster, and the matrices that tasks have kept.
pub(super) struct TaskRunner<'a> {
    args: &'a BatchArgs,
    cluster: Cluster,
    kept: BTreeMap<String, Matrix>,
    kernels: KernelChoice,
    /// Compute threads of this machine.
    threads: usize,
    is_local: bool,
    /// Receives the name of each lost link.
    lost: mpsc::UnboundedSender<String>,
}

impl<'a> TaskRunner<'a> {
    /// Runs tasks over `cluster`. `threads`: compute threads of this machine; `is_local`: whether the workers are its processes.
    pub(super) fn new(
        args: &'a BatchArgs,
        cluster: Cluster,
        (threads, is_local): (usize, bool),
        lost: mpsc::UnboundedSender<String>,
    ) -> Self {
        let kernels = KernelChoice { asked: args.cut.kernel(), here: is_local, known: BTreeMap::new() };
        Self { args, cluster, kept: BTreeMap::new(), kernels, threads, is_local, lost }
    }

    /// Carries out one task.
    pub(super) async fn run(&mut self, task: &BatchTask) -> Result<TaskOutcome, Failure> {
        match task {
            BatchTask::Compute(target, Expression::Product { alpha, a, b, plus }) => {
                self.product(target, *alpha, (a, b), plus.as_ref()).await
            }
            BatchTask::Compute(target, Expression::Sum(x, y)) => self.sum(target, x, y.as_ref()).await,
            BatchTask::Write(name, path) => {
                let source = MatrixReference::Kept(name.clone());
                let matrix = BatchOperand { source, transposed: false };
                self.sum(&ResultTarget::File(path.clone()), &ScaledOperand { factor: 1.0, matrix }, None)
                    .await
            }
            BatchTask::Free(name) => match self.kept.remove(name) {
                Some(_) => Ok(TaskOutcome::Freed),
                None => Err(self.unknown(name)),
            },
        }
    }

    /// Ends the sessions with the machines.
    pub(super) async fn close(self) {
        self.cluster.close().await;
    }

    /// C = αAB + βD.
    async fn product(
        &mut self,
        target: &ResultTarget,
        alpha: f64,
        (a, b): (&BatchOperand, &BatchOperand),
        plus: Option<&ScaledOperand>,
    ) -> Result<TaskOutcome, Failure> {
        let began = Instant::now();
        let (left, right) = (self.open(a, Side::Left)?, self.open(b, Side::Right)?);
        let (sa, sb) = (left.shape(), right.shape());
        if sa.cols != sb.rows {
            return Err(Failure::failed(format!(
                "{a} is {sa} and {b} is {sb}: the columns of the first must equal the rows of the second{}",
                transpose_hint(a, b, sa, sb)
            )));
        }
        let shape = Shape::new(sa.rows, sb.cols);
        let old = plus.map(|term| self.addend(term, shape)).transpose()?;
        let dtype = left.promoted(&right);
        let dtype = old.as_ref().map_or(dtype, |(_, old)| dtype.promoted(old.dtype()));
        check_factor("the factor of the product", alpha, dtype)?;
        let beta = old.as_ref().map_or(0.0, |(beta, _)| *beta);
        check_factor("the factor of the matrix that is added", beta, dtype)?;
        self.args.cut.check(dtype)?;
        let flops = 2.0 * sa.rows as f64 * sa.cols as f64 * sb.cols as f64;
        let kernel = self.kernels.name(dtype, flops)?;
        let request = Request {
            a: left.converted(dtype)?,
            b: right.converted(dtype)?,
            old_c: old.map(|(_, old)| old.converted(dtype)).transpose()?,
            alpha,
            beta,
            output: output(target, shape, dtype)?,
            cut: self.args.cut.cut([sa.rows, sa.cols, sb.cols], dtype),
            kernel,
            wish: self.args.cut.wish(self.is_local),
            instead: None,
            sessions: sessions_of(
                self.args.cut.credits,
                !self.args.no_steal,
                self.args.verbose,
                self.args.team.degraded,
            )?,
            check: CheckRequest { effort: self.args.verify, threads: self.threads, seed: seed()? },
            began,
            log: None,
            journal: None,
            stop: Rc::new(Stop::default()),
        };
        let watch = self.display();
        let result = self.cluster.run(request, &watch).await;
        watch.done();
        let finished = result.map_err(|e| GatheredTeam::failure(self.is_local, e))?;
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

    /// C = αX, or αX + βY.
    async fn sum(
        &mut self,
        target: &ResultTarget,
        x: &ScaledOperand,
        y: Option<&ScaledOperand>,
    ) -> Result<TaskOutcome, Failure> {
        let first = self.open(&x.matrix, Side::Alone)?;
        let shape = first.shape();
        let second = y.map(|y| self.addend(y, shape)).transpose()?;
        let dtype = second.as_ref().map_or_else(|| first.dtype(), |(_, second)| first.promoted(second));
        for factor in [Some(x.factor), y.map(|y| y.factor)].into_iter().flatten() {
            check_factor("the factor of a matrix", factor, dtype)?;
        }
        let x: Scaled = (x.factor, first.converted(dtype)?);
        let y: Option<Scaled> = match second {
            Some((factor, second)) => Some((factor, second.converted(dtype)?)),
            None => None,
        };
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
    async fn keep(&mut self, target: &ResultTarget, sealed: Sealed) -> Result<Option<String>, Failure> {
        let json = self.args.json;
        let kept = match target {
            ResultTarget::Name(name) => Some((name.clone(), sealed.matrix()?)),
            ResultTarget::File(_) => None,
        };
        let digest = off_loop("keeping a result", move || -> Result<_, Failure> {
            let digest = json.then(|| crate::multiply::digest(sealed.bytes()));
            sealed.commit()?;
            Ok(digest)
        })
        .await??;
        self.kept.extend(kept);
        Ok(digest)
    }

    /// The matrix of an operand, with the element type of `--dtype`.
    fn open(&self, operand: &BatchOperand, side: Side) -> Result<Matrix, Failure> {
        let matrix = match &operand.source {
            MatrixReference::Kept(name) => self.kept.get(name).cloned().ok_or_else(|| self.unknown(name))?,
            MatrixReference::Described(form) if form == "-" => {
                return Err(Failure::failed("-: a batch reads no matrix from standard input; name a file"));
            }
            MatrixReference::Described(form) => Matrix::open(form)?,
        };
        // As in NumPy's matmul, a one-dimensional A is a row and a one-dimensional B a column.
        let matrix = if matrix.is_vector() && side == Side::Right { matrix.transposed() } else { matrix };
        let matrix = match self.args.dtype {
            Some(dtype) if dtype != matrix.dtype() => matrix.converted(dtype)?,
            _ => matrix,
        };
        Ok(if operand.transposed { matrix.transposed() } else { matrix })
    }

    /// The matrix that is added to another of `shape`, and its factor.
    fn addend(&self, term: &ScaledOperand, shape: Shape) -> Result<(f64, Matrix), Failure> {
        let matrix = self.open(&term.matrix, Side::Alone)?;
        if matrix.shape() == shape {
            return Ok((term.factor, matrix));
        }
        let (name, of) = (&term.matrix, matrix.shape());
        let is_transposed = Shape::new(of.cols, of.rows) == shape;
        let hint = if is_transposed { format!("; did you mean {name}.T?") } else { String::new() };
        Err(Failure::failed(format!(
            "{name} is {of} and is added to a matrix of {shape}: both need the same shape{hint}"
        )))
    }

    fn unknown(&self, name: &str) -> Failure {
        let known: Vec<&str> = self.kept.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none is".to_owned() } else { format!("{} are", known.join(", ")) };
        Failure::failed(format!(
            "{name}: no matrix is kept under this name ({known}); write ./{name} for a file"
        ))
    }

    /// The progress of one product.
    fn display(&self) -> ProgressDisplay {
        let shown = ProgressOptions {
            is_quiet: self.args.quiet,
            is_json: self.args.json,
            is_verbose: self.args.verbose,
            is_brief: !self.args.verbose,
            keeps_journal: false,
        };
        ProgressDisplay::new(shown, self.lost.clone())
    }
}

/// The place of an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// Not an operand of a product.
    Alone,
}

fn transpose_hint(a: &BatchOperand, b: &BatchOperand, sa: Shape, sb: Shape) -> String {
    match () {
        () if sa.cols == sb.cols && !b.transposed => format!("; did you mean {b}.T?"),
        () if sa.rows == sb.rows && !a.transposed => format!("; did you mean {a}.T?"),
        () => String::new(),
    }
}

/// Where a result is written: to a file, under a name that it gets when it is complete, or to memory.
fn output(target: &ResultTarget, shape: Shape, dtype: DType) -> Result<Output, Failure> {
    match target {
        ResultTarget::Name(_) => Ok(Output::anonymous(shape, dtype)?),
        ResultTarget::File(path) => {
            let unfinished = Unfinished::lock(path)?;
            if unfinished.has_begun()? {
                return Err(interrupted(path));
            }
            Ok(unfinished.restart(shape, dtype)?)
        }
    }
}

fn interrupted(path: &Path) -> Failure {
    let part = part_of(path);
    Failure::failed(format!(
        "{}: an interrupted run has left {}; continue that run with bramble multiply --resume, or remove the file",
        path.display(),
        part.display()
    ))
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// The kernel of each element type.
struct KernelChoice {
    asked: Choice,
    /// Whether all workers run on this machine, so that one comparison of kernels serves them all.
    here: bool,
    /// The kernel that `auto` chose for a type, and the largest number of operations that it was chosen for.
    known: BTreeMap<DType, (f64, Pick)>,
}

impl KernelChoice {
    /// The kernel's name for a product of `flops` operations. One comparison of kernels for a type holds for all its products;
    /// the decision not to compare holds only for smaller products.
    fn name(&mut self, dtype: DType, flops: f64) -> Result<String, Failure> {
        check_kernel(self.asked, dtype)?;
        if self.asked != Choice::Auto || !self.here {
            return Ok(self.asked.to_string());
        }
        let known =
            self.known.get(&dtype).filter(|(largest, pick)| flops <= *largest || !pick.rates.is_empty());
        if let Some((_, pick)) = known {
            return Ok(pick.kernel.name().to_owned());
        }
        let pick = bramble_kernel::pick(self.asked, dtype, flops)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
        let name = pick.kernel.name().to_owned();
        self.known.insert(dtype, (flops, pick));
        Ok(name)
    }
}
