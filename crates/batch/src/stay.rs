//! Results that stay at the machines: `H = A @ B`, `H = X + Y` and `H = put X` where an operand is placed there.
//!
//! Place in the flow: `tasks.rs` passes each expression in (`at_machines`), and itself computes expressions without placed
//! operands.
//!
//! Invariants: a named result stays at the machines that hold its operands; a result with a file name is fetched. A result is
//! checked before it gets its name. Results that only a file or a reduction needs are freed, also after an error.
//!
//! Deliberately absent: which bytes travel, and how parts are made (`primary`).

use super::language::{BatchOperand, Expression, ResultTarget};
use super::tasks::{KeptMatrix, OpenedProduct, RESTORES_MAX, TaskOutcome, TaskRunner, output};
use bramble_cluster::random::seed;
use bramble_matrix::{Matrix, Sealed};
use bramble_plan::Placement;
use bramble_primary::{
    ArrayId, CheckRequest, MakeReport, MakeRequest, MakeSubject, PlacedOperand, PrimaryError, ProductOperand,
};
use bramble_report::exit::{Exit, Failure};

/// Name of a result on the way to a file or a reduction.
const UNNAMED: &str = "the result";

impl TaskRunner<'_> {
    /// Makes the result of an expression at the machines, if it belongs there: if an operand is placed and the result has a name,
    /// or if only machines have an operand.
    pub(crate) async fn at_machines(
        &mut self,
        target: &ResultTarget,
        expression: &Expression,
    ) -> Result<Option<TaskOutcome>, Failure> {
        let is_named = matches!(target, ResultTarget::Name(_));
        let belongs_there = |kept: &KeptMatrix| kept.matrix.is_remote() || is_named && kept.array.is_some();
        if !expression.operands().into_iter().any(|operand| self.kept_of(operand).is_some_and(belongs_there))
        {
            return Ok(None);
        }
        let subject = self.make_subject(expression).await?;
        Ok(Some(match target {
            ResultTarget::Name(name) => TaskOutcome::Made(self.make_named(name, subject, None).await?),
            ResultTarget::File(_) => {
                let (array, report) = self.make(UNNAMED, subject, None).await?;
                let fetched = self.fetch(array, target).await;
                self.free_array(array).await?;
                let (shape, dtype) = (report.put.shape, report.put.dtype);
                TaskOutcome::Fetched(shape, dtype, fetched?, Some(report))
            }
        }))
    }

    /// Spreads a placed matrix in another way.
    pub(crate) async fn redistribute(
        &mut self,
        name: &str,
        operand: ProductOperand,
        placement: Option<Placement>,
    ) -> Result<TaskOutcome, Failure> {
        let subject = MakeSubject::Sum { x: (1.0, operand), y: None };
        Ok(TaskOutcome::Made(self.make_named(name, subject, placement).await?))
    }

    /// Writes a kept matrix, of which only machines have the elements, to a file.
    pub(crate) async fn write_remote(
        &mut self,
        array: ArrayId,
        target: &ResultTarget,
    ) -> Result<TaskOutcome, Failure> {
        let (shape, dtype) = self.cluster.shape_of(array).map_err(|e| self.failure(e))?;
        Ok(TaskOutcome::Fetched(shape, dtype, self.fetch(array, target).await?, None))
    }

    /// A product of which only machines have an operand, made there; to be freed after its use.
    pub(crate) async fn made_product(
        &mut self,
        alpha: f64,
        a: ProductOperand,
        b: ProductOperand,
    ) -> Result<(ArrayId, ProductOperand, MakeReport), Failure> {
        let (array, report) =
            self.make(UNNAMED, MakeSubject::Product { alpha, a, b, plus: None }, None).await?;
        let matrix = Matrix::remote(UNNAMED, report.put.shape, report.put.dtype);
        let placed = Some(PlacedOperand { array, transposed: false });
        Ok((array, ProductOperand { matrix, placed }, report))
    }

    /// Frees an array that has no name.
    pub(crate) async fn free_array(&mut self, array: ArrayId) -> Result<(), Failure> {
        let sessions = self.sessions()?;
        self.cluster.free(array, &sessions).await;
        Ok(())
    }

    async fn make_named(
        &mut self,
        name: &str,
        subject: MakeSubject,
        placement: Option<Placement>,
    ) -> Result<MakeReport, Failure> {
        let (array, report) = self.make(name, subject, placement).await?;
        let matrix = Matrix::remote(name, report.put.shape, report.put.dtype);
        self.keep_named(name.to_owned(), KeptMatrix { matrix, array: Some(array) }).await?;
        Ok(report)
    }

    /// Makes an array; again if a machine with a part of an operand is lost.
    async fn make(
        &mut self,
        name: &str,
        subject: MakeSubject,
        placement: Option<Placement>,
    ) -> Result<(ArrayId, MakeReport), Failure> {
        let kernel = self.kernel(subject.dtype(), subject.flops())?;
        for _ in 0..RESTORES_MAX {
            let request = MakeRequest {
                name: name.to_owned(),
                subject: subject.clone(),
                placement: placement.clone(),
                kernel: kernel.clone(),
                who: self.who(),
                sessions: self.sessions()?,
                check: self.check()?,
                relays: self.args.cut.may_relay(),
            };
            let watch = self.display();
            let result = self.cluster.make(request, &watch).await;
            watch.done();
            match result {
                Err(PrimaryError::PartLost(why)) => self.restore(&why).await?,
                Err(PrimaryError::Wrong(text)) => {
                    return Err(Failure {
                        exit: Exit::Unverified,
                        text: format!("{text}; nothing was kept"),
                    });
                }
                result => return result.map_err(|e| self.failure(e)),
            }
        }
        Err(Failure::failed(format!("machines with parts were lost {RESTORES_MAX} times in this task")))
    }

    /// Brings an array home, to a file; its digest, if that was asked for.
    async fn fetch(&mut self, array: ArrayId, target: &ResultTarget) -> Result<Option<String>, Failure> {
        let (shape, dtype) = self.cluster.shape_of(array).map_err(|e| self.failure(e))?;
        for _ in 0..RESTORES_MAX {
            let (to, sessions, who) = (output(target, shape, dtype)?, self.sessions()?, self.who());
            let watch = self.display();
            let result = self.cluster.fetch(array, to, who, &sessions, &watch).await;
            watch.done();
            match result {
                Err(PrimaryError::PartLost(why)) => self.restore(&why).await?,
                Err(PrimaryError::Wrong(text)) => return Err(Failure { exit: Exit::Unverified, text }),
                Err(e) => return Err(self.failure(e)),
                Ok(output) => {
                    let sealed: Sealed = output.seal()?;
                    return self.keep(target, sealed).await;
                }
            }
        }
        Err(Failure::failed(format!("machines with parts were lost {RESTORES_MAX} times in this task")))
    }

    /// How results are checked.
    pub(crate) fn check(&self) -> Result<CheckRequest, Failure> {
        Ok(CheckRequest { effort: self.args.verify, threads: self.threads, seed: seed()? })
    }

    /// The operands of an expression, of one type and of shapes that fit.
    async fn make_subject(&self, expression: &Expression) -> Result<MakeSubject, Failure> {
        Ok(match expression {
            Expression::Product { alpha, a, b, plus } => {
                let OpenedProduct { a, b, plus } = self.open_product(*alpha, (a, b), plus.as_ref()).await?;
                MakeSubject::Product { alpha: *alpha, a, b, plus }
            }
            Expression::Sum(x, y) => {
                let (x, y) = self.open_sum(x, y.as_ref()).await?;
                MakeSubject::Sum { x, y }
            }
        })
    }

    /// The kept matrix that an operand names.
    fn kept_of(&self, operand: &BatchOperand) -> Option<&KeptMatrix> {
        self.kept.get(operand.name()?)
    }
}
