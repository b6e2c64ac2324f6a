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
use super::tasks::{BatchOutcome, KeptMatrix, OpenedProduct, TaskRunner, output};
use bramble_client::NewArray;
use bramble_matrix::Rect;
use bramble_plan::Placement;
use bramble_primary::{ArrayId, MakeReport, MakeSubject, ProductOperand};
use bramble_report::exit::Failure;

impl TaskRunner<'_> {
    /// Makes the result of an expression at the machines, if it belongs there: if an operand is placed and the result has a name,
    /// or if only machines have an operand.
    pub(crate) async fn at_machines(
        &mut self,
        target: &ResultTarget,
        expression: &Expression,
    ) -> Result<Option<BatchOutcome>, Failure> {
        let is_named = matches!(target, ResultTarget::Name(_));
        let belongs_there = |kept: &KeptMatrix| kept.matrix.is_remote() || is_named && kept.array.is_some();
        if !expression.operands().into_iter().any(|operand| self.kept_of(operand).is_some_and(belongs_there))
        {
            return Ok(None);
        }
        let subject = self.make_subject(expression).await?;
        Ok(Some(match target {
            ResultTarget::Name(name) => BatchOutcome::Made(self.make_named(name, subject, None).await?),
            ResultTarget::File(_) => {
                let output = |shape, dtype| Ok(output(target, shape, dtype)?);
                let fetched = self.client.make_and_fetch(subject, &output).await;
                let (sealed, report) = fetched.map_err(|e| self.client.failure(e))?;
                let (shape, dtype) = (report.put.shape, report.put.dtype);
                BatchOutcome::Fetched(shape, dtype, self.keep(target, sealed).await?, Some(report))
            }
        }))
    }

    /// Spreads a placed matrix in another way.
    pub(crate) async fn redistribute(
        &mut self,
        name: &str,
        operand: ProductOperand,
        placement: Option<Placement>,
    ) -> Result<BatchOutcome, Failure> {
        let subject = MakeSubject::Sum { x: (1.0, operand), y: None };
        Ok(BatchOutcome::Made(self.make_named(name, subject, placement).await?))
    }

    /// Writes a rectangle of a kept matrix, of which only machines have the elements, to a file.
    pub(crate) async fn write_remote(
        &mut self,
        array: ArrayId,
        rect: Rect,
        target: &ResultTarget,
    ) -> Result<BatchOutcome, Failure> {
        let output = |shape, dtype| Ok(output(target, shape, dtype)?);
        let sealed =
            self.client.fetch(array, Some(rect), &output).await.map_err(|e| self.client.failure(e))?;
        let (shape, dtype) = (sealed.shape(), sealed.dtype());
        Ok(BatchOutcome::Fetched(shape, dtype, self.keep(target, sealed).await?, None))
    }

    async fn make_named(
        &mut self,
        name: &str,
        subject: MakeSubject,
        placement: Option<Placement>,
    ) -> Result<MakeReport, Failure> {
        let made = self.client.make(name, subject, placement).await;
        let NewArray { array, operand, report } = made.map_err(|e| self.client.failure(e))?;
        let kept = KeptMatrix { matrix: operand.matrix, array: Some(array) };
        self.keep_named(name.to_owned(), kept).await?;
        Ok(report)
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
