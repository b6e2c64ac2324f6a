//! What the primary keeps beside each placed matrix: its sources as an expression, and the sums that checks have computed.
//!
//! Place in the flow: `machines.rs` makes it when an array is recorded; products and checks look it up.
//!
//! Invariant: the leaves of an expression are matrices that this process can read.
//!
//! Deliberately absent: which machine holds which part (`bramble_arrays`).

use super::{ClusterArrays, MakeSubject};
use crate::inspector::{LazySketch, OperandSketch};
use crate::product::{ProductOperand, Request};
use bramble_arrays::{ArrayError, PlacedOperand};
use bramble_matrix::Matrix;
use bramble_sessions::PrimaryError;
use bramble_verify::{KnownSums, LazyLines, SourceExpression};
use std::sync::Arc;

/// Operands of at most this many bytes stay in memory here as sources of the arrays that were made from them.
const SMALL_BYTES: u64 = 1 << 20;

/// The sources and sums of a placed matrix.
pub(crate) struct KeptSource {
    /// Sketches of the matrix and of its transpose, for the check of products.
    pub(crate) sketches: [Arc<LazySketch>; 2],
    /// The sums of the rows of the matrix and of its transpose, for the check of reductions.
    pub(crate) lines: [LazyLines; 2],
    /// The array as an expression of matrices that this process can read.
    pub(crate) expression: Arc<SourceExpression>,
}

impl KeptSource {
    /// Of a matrix that was put.
    pub(super) fn of_put(matrix: &Matrix) -> Self {
        let lines: [LazyLines; 2] = Default::default();
        let expression = Arc::new(SourceExpression::Leaf(matrix.clone(), Some(lines.clone())));
        Self { sketches: Default::default(), lines, expression }
    }

    /// Of an array that was made from `matrices`. Fetched operands are leaves of its expression if they are small, or their own
    /// chain of sources is long.
    pub(super) fn of_made(
        made: &MakeSubject,
        matrices: &[Matrix],
        arrays: &ClusterArrays,
    ) -> Result<Self, ArrayError<PrimaryError>> {
        let leaf = |(operand, matrix): (&ProductOperand, &Matrix)| {
            let is_small = matrix.shape().bytes(matrix.dtype()).is_some_and(|bytes| bytes <= SMALL_BYTES);
            let array = operand.placed.and_then(|placed| arrays.get::<PrimaryError>(placed.array).ok());
            let is_far = array.is_some_and(|array| array.kept.expression.is_far());
            if is_small || is_far { matrix.clone() } else { operand.matrix.clone() }
        };
        let leaves: Vec<Matrix> = made.operands().into_iter().zip(matrices).map(leaf).collect();
        let expression = Arc::new(expression_here(made, &leaves, arrays)?.kept());
        Ok(Self { sketches: Default::default(), lines: Default::default(), expression })
    }

    /// The array has passed its check: these are the sums of its rows and columns.
    pub(super) fn passed(&mut self, lines: [Arc<KnownSums>; 2]) {
        self.expression = Arc::new(self.expression.passed(lines));
    }
}

/// The expression of an operation, down to matrices that this process can read. Fetched operands are leaves of it.
pub(super) fn expression_here(
    made: &MakeSubject,
    matrices: &[Matrix],
    arrays: &ClusterArrays,
) -> Result<SourceExpression, ArrayError<PrimaryError>> {
    let mut matrices = matrices.iter();
    let mut of = |operand: &ProductOperand| -> Result<Arc<SourceExpression>, ArrayError<PrimaryError>> {
        let matrix = matrices.next().filter(|matrix| operand.matrix.is_remote() && !matrix.is_remote());
        let Some(PlacedOperand { array, transposed }) = operand.placed.filter(|_| matrix.is_none()) else {
            let matrix = matrix.unwrap_or(&operand.matrix);
            return Ok(Arc::new(SourceExpression::Leaf(matrix.clone(), None)));
        };
        let expression = &arrays.get(array)?.kept.expression;
        Ok(if transposed { Arc::new(expression.transposed()) } else { expression.clone() })
    };
    // Operands are asked for in their order.
    Ok(match made {
        MakeSubject::Product { alpha, a, b, plus } => {
            let product = SourceExpression::Product { alpha: *alpha, a: of(a)?, b: of(b)? };
            match plus {
                None => product,
                Some((beta, c)) => {
                    SourceExpression::Sum { x: (1.0, Arc::new(product)), y: Some((*beta, of(c)?)) }
                }
            }
        }
        MakeSubject::Sum { x, y } => {
            let x = (x.0, of(&x.1)?);
            let y = match y {
                Some((beta, y)) => Some((*beta, of(y)?)),
                None => None,
            };
            SourceExpression::Sum { x, y }
        }
    })
}

/// The sketch of a placed operand, the right one if both are.
pub(crate) fn sketch_of(request: &Request, arrays: &ClusterArrays) -> Option<OperandSketch> {
    let (operand, is_of_left) = match (request.b.placed, request.a.placed) {
        (Some(right), _) => (right, false),
        (None, left) => (left?, true),
    };
    let array = arrays.get::<PrimaryError>(operand.array).ok()?;
    // For a left operand it is the sketch of Aᵀ.
    let is_turned = operand.transposed != is_of_left;
    Some(OperandSketch { sketch: array.kept.sketches[usize::from(is_turned)].clone(), is_of_left })
}
