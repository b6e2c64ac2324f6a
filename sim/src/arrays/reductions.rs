//! Reductions of a client: asks the machines, merges their answers, and compares the result with that of the model.
//!
//! Place in the flow: `client.rs` runs such a call as any other.
//!
//! Invariant: the answers cover the reduced matrix once.

use super::check::{is_corrupted, operand_value};
use super::client::{ArrayClient, CallOutcome};
use super::matrix::{ArrayMatrix, Elements, factor, index, product, reduced_bytes};
use bramble_arrays::{ArrayOperation, ReducedFrom};
use bramble_matrix::{MatrixInfo, Rect, RectReduction, Reducer, Reduction};
use std::rc::Rc;

impl ArrayClient {
    pub(super) async fn reduce(
        &mut self,
        reduction: Reduction,
        subject: &ReducedFrom<ArrayMatrix>,
    ) -> CallOutcome<()> {
        let (mut machines, mut holders) = self.open();
        let mut operation =
            ArrayOperation { arrays: &mut self.arrays, machines: &mut machines, holders: &mut holders };
        let answers = match operation.reduction_plan(reduction, subject) {
            Ok(plan) => operation.reduce(reduction, &plan).await.map(|parts| parts.answers),
            Err(e) => Err(e),
        };
        // Now: while the sessions end, a source may change.
        let value = self.value_of(subject);
        machines.close().await;
        self.check();
        let answers = answers?;
        if !self.is_corrupted(subject) {
            self.compare_reduced(reduction, subject, value, answers);
        }
        Ok(())
    }

    /// Whether a part of an operand was corrupted where it lies.
    fn is_corrupted(&self, subject: &ReducedFrom<ArrayMatrix>) -> bool {
        let operands = match subject {
            ReducedFrom::Matrix(of) => vec![of],
            ReducedFrom::Product { a, b, .. } => vec![a, b],
        };
        let world = self.world.borrow();
        operands.into_iter().filter_map(|one| one.placed).any(|placed| {
            let array = self.arrays.get::<String>(placed.array);
            array.is_ok_and(|array| is_corrupted(array, &world))
        })
    }

    /// The matrix to reduce.
    fn value_of(&self, subject: &ReducedFrom<ArrayMatrix>) -> Elements {
        match subject {
            ReducedFrom::Matrix(of) => operand_value(of, &self.arrays),
            ReducedFrom::Product { alpha, a, b } => {
                let (left, right) = (a.matrix.shape(), b.matrix.shape());
                let sides = [left.rows, left.cols, right.cols];
                let (a, b) = (operand_value(a, &self.arrays), operand_value(b, &self.arrays));
                Rc::new(product(factor(*alpha), sides, &a, &b))
            }
        }
    }

    /// Merges the answers of the machines, and compares the result with that of the model.
    fn compare_reduced(
        &self,
        reduction: Reduction,
        subject: &ReducedFrom<ArrayMatrix>,
        value: Elements,
        answers: Vec<(Rect, Vec<u8>)>,
    ) {
        let (name, shape, dtype) = subject.described();
        let is_product = matches!(subject, ReducedFrom::Product { .. });
        let merged = |reduction: Reduction, parts: Vec<(Rect, Vec<u8>)>| {
            let Ok(mut reducer) = Reducer::<i64>::new(reduction, &name, shape) else {
                panic!("violation: {name} cannot be reduced");
            };
            for (rect, bytes) in parts {
                let Some(part) = RectReduction::from_bytes(reduction, rect, &bytes) else {
                    panic!("violation: {name} has an answer of {} bytes for {rect}", bytes.len());
                };
                reducer.merge(part);
            }
            let results = reducer.finish().unwrap_or_default();
            results.iter().map(|result| result.elements.bytes().to_vec()).collect::<Vec<_>>()
        };
        let whole = |reduction: Reduction| {
            merged(reduction, vec![(shape.rect(), reduced_bytes(reduction, shape.rect(), &value))])
        };
        let elements: u64 = answers.iter().filter_map(|(rect, _)| rect.shape().elements()).sum();
        assert!(
            Some(elements) == shape.elements(),
            "violation: the answers for {name} cover {elements} elements"
        );
        let split = |(rect, mut bytes): (Rect, Vec<u8>)| {
            let sums = bytes.split_off(index(reduction.bytes_of(rect, dtype)));
            ((rect, bytes), (rect, sums))
        };
        let (reduced, sums): (Vec<_>, Vec<_>) = answers.into_iter().map(split).unzip();
        let is_right = merged(reduction, reduced) == whole(reduction)
            && (!is_product || merged(Reduction::RowSum, sums) == whole(Reduction::RowSum));
        assert!(is_right, "violation: {reduction:?} of {name} is wrong");
    }
}
