//! `TARGET = rowsum(MATRIX)` and the other reductions of a batch.
//!
//! Place in the flow: `language.rs` passes the words of a line in; `tasks.rs` passes the tasks in.
//!
//! Invariants: a word is a reduction only if a parenthesis follows it, so it may be a name, too. Both results of topk are
//! complete before either is kept.
//!
//! Deliberately absent: the reductions themselves (`matrix`, `primary`).

use super::language::{BatchTask, Reader, ReducedTerm, ResultTarget, target_of};
use super::tasks::{BatchOutcome, OpenedProduct, TaskRunner, output};
use super::words::Word;
use bramble_matrix::{Output, ReducedMatrix, Reduction, Sealed};
use bramble_primary::{ReduceSubject, off_loop};
use bramble_report::exit::Failure;

const FORM: &str = "use TARGET = rowsum(A), colsum(A), norm(A), max(A) or min(A), or INDICES, VALUES = topk(A, 10); \
                    A may be a product, as in topk(x @ W, 10)";
/// The name of a product while this process reduces it: no name of a user's has a space.
const WHOLE: &str = "the product";

/// The reduction that a line asks for; `None` if it asks for something else.
pub(crate) fn reduction_of(words: &[Word]) -> Option<Result<BatchTask, String>> {
    let at = words.iter().position(|word| *word == Word::Sign("="))?;
    let (targets, expression) = (&words[..at], &words[at + 1..]);
    match expression {
        [Word::Plain(name), Word::Sign("("), arguments @ ..] => {
            let reduction = named(name)?;
            Some(parsed(name, reduction, targets, arguments))
        }
        _ if targets.contains(&Word::Sign(",")) => {
            Some(Err(format!("only topk has two results before the =; {FORM}")))
        }
        _ => None,
    }
}

/// The reduction of that name; topk still without its count.
fn named(name: &str) -> Option<Reduction> {
    Some(match name {
        "rowsum" => Reduction::RowSum,
        "colsum" => Reduction::ColSum,
        "norm" => Reduction::Norm,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        "topk" => Reduction::TopK(0),
        _ => return None,
    })
}

fn parsed(
    name: &str,
    reduction: Reduction,
    targets: &[Word],
    arguments: &[Word],
) -> Result<BatchTask, String> {
    let is_topk = matches!(reduction, Reduction::TopK(_));
    let targets = match targets {
        [one] if !is_topk => vec![target_of(one)?],
        [indices, Word::Sign(","), values] if is_topk => vec![target_of(indices)?, target_of(values)?],
        _ if is_topk => return Err(format!("topk: has two results, columns and elements; {FORM}")),
        _ => return Err(format!("{name}: has one result; {FORM}")),
    };
    if let [first, second] = &targets[..]
        && first == second
    {
        return Err(format!("{first}: cannot hold both results of topk; name two targets"));
    }
    let mut reader = Reader { words: arguments };
    let what =
        reader.reduced().map_err(|e| format!("{name}(…): takes one matrix or product: {e}; {FORM}"))?;
    let reduction =
        match reader.words {
            [Word::Sign(")")] if !is_topk => reduction,
            [Word::Sign(","), Word::Plain(count), Word::Sign(")")] if is_topk => {
                Reduction::TopK(count.parse().ok().filter(|count| *count > 0).ok_or_else(|| {
                    format!("topk(…, {count}): the count is no whole number above 0; {FORM}")
                })?)
            }
            _ if is_topk => return Err(format!("topk(…): takes one matrix and a count; {FORM}")),
            _ => return Err(format!("{name}(…): takes one matrix, and nothing follows; {FORM}")),
        };
    Ok(BatchTask::Reduce(targets, reduction, what))
}

impl TaskRunner<'_> {
    /// Reduces a matrix or a product, and keeps the results.
    pub(crate) async fn reduce(
        &mut self,
        targets: &[ResultTarget],
        reduction: Reduction,
        what: &ReducedTerm,
    ) -> Result<BatchOutcome, Failure> {
        let subject = self.subject(what).await?;
        let (results, at) = match subject.is_placed() {
            true => {
                let reduced = self.client.reduce(reduction, subject).await;
                let (results, report) = reduced.map_err(|e| self.client.failure(e))?;
                (results, Some(report))
            }
            false => (self.reduced_here(reduction, what, subject).await?, None),
        };
        let mut outputs = Vec::new();
        for (target, result) in targets.iter().zip(&results) {
            outputs.push(output(target, result.shape, result.dtype)?);
        }
        let described: Vec<_> = results.iter().map(|result| (result.shape, result.dtype)).collect();
        let sealed = off_loop("writing a reduction", move || -> Result<Vec<Sealed>, Failure> {
            outputs.into_iter().zip(results).map(|(output, result)| written(output, &result)).collect()
        })
        .await??;
        let mut kept = Vec::new();
        for ((target, sealed), (shape, dtype)) in targets.iter().zip(sealed).zip(described) {
            kept.push((shape, dtype, self.keep(target, sealed).await?));
        }
        Ok(BatchOutcome::Reduced(kept, at))
    }

    /// The matrix or the product to reduce, with open operands of one type.
    async fn subject(&self, what: &ReducedTerm) -> Result<ReduceSubject, Failure> {
        let (alpha, a, b) = match what {
            ReducedTerm::Matrix(matrix) => return Ok(ReduceSubject::Matrix(self.open(matrix, false).await?)),
            ReducedTerm::Product { alpha, a, b } => (*alpha, a, b),
        };
        let OpenedProduct { a, b, .. } = self.open_product(alpha, (a, b), None).await?;
        Ok(ReduceSubject::Product { alpha, a, b })
    }

    /// This process reduces a matrix that it can read; a product is computed first, as in a line of its own.
    async fn reduced_here(
        &mut self,
        reduction: Reduction,
        what: &ReducedTerm,
        subject: ReduceSubject,
    ) -> Result<Vec<ReducedMatrix>, Failure> {
        let (matrix, name) = match (what, subject) {
            (ReducedTerm::Product { alpha, a, b }, _) => {
                let whole = ResultTarget::Name(WHOLE.to_owned());
                self.product(&whole, *alpha, (a, b), None).await?;
                let kept = self.kept.get(WHOLE).map(|kept| kept.matrix.clone());
                (kept.ok_or_else(|| self.unknown(WHOLE))?, Some(WHOLE))
            }
            (_, ReduceSubject::Matrix(of) | ReduceSubject::Product { a: of, .. }) => (of.matrix, None),
        };
        let results = self.client.reduce_here(reduction, matrix).await;
        if let Some(name) = name {
            self.free(name).await?;
        }
        results.map_err(|e| self.client.failure(e))
    }
}

/// A result in its output.
fn written(output: Output, result: &ReducedMatrix) -> Result<Sealed, Failure> {
    let row_bytes = result.shape.cols.saturating_mul(result.dtype.size_bytes() as u64);
    let mut lease = output.lease(result.shape.rect());
    if let Ok(row_bytes) = usize::try_from(row_bytes)
        && row_bytes > 0
    {
        for (row, bytes) in result.elements.bytes().chunks(row_bytes).enumerate() {
            lease.line_mut(row).copy_from_slice(bytes);
        }
    }
    drop(lease);
    Ok(output.seal()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{BatchOperand, MatrixReference, parse};
    use std::collections::BTreeSet;

    #[test]
    fn a_function_is_a_word_before_a_parenthesis() {
        let kept = |name: &str| ResultTarget::Name(name.to_owned());
        let w = |transposed| BatchOperand { source: MatrixReference::Kept("W".to_owned()), transposed };
        let reduce = |targets, reduction, operand| {
            Ok(Some(BatchTask::Reduce(targets, reduction, ReducedTerm::Matrix(operand))))
        };
        let product = ReducedTerm::Product { alpha: -2.0, a: w(true), b: w(false) };
        let parsed = parse("I, V = topk(-2 * W.T @ W, 3)");
        let targets = vec![kept("I"), kept("V")];
        assert_eq!(parsed, Ok(Some(BatchTask::Reduce(targets, Reduction::TopK(3), product))));
        assert_eq!(parse("S = rowsum(W.T) # note"), reduce(vec![kept("S")], Reduction::RowSum, w(true)));
        let file = ResultTarget::File("v.npy".into());
        assert_eq!(
            parse("I, v.npy = topk(W, 10)"),
            reduce(vec![kept("I"), file], Reduction::TopK(10), w(false))
        );
        for name in ["colsum", "norm", "max", "min"] {
            assert!(matches!(parse(&format!("{name} = {name}(\"a b\".T)")), Ok(Some(BatchTask::Reduce(..)))));
            assert!(matches!(parse(&format!("x.npy = {name} @ W")), Ok(Some(BatchTask::Compute(..)))));
        }
    }

    #[test]
    fn names_that_a_reduction_uses_and_keeps_are_known() {
        let task = parse("I, v.npy = topk(W, 10)").unwrap().unwrap();
        assert_eq!(task.uses(), ["W"]);
        let mut kept = BTreeSet::new();
        task.changes(&mut kept);
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), ["I"]);
    }

    #[test]
    fn errors_say_what_to_write() {
        for (line, expected) in [
            ("t = rowsum(W, 3)", "takes one matrix"),
            ("t = rowsum(2 * W)", "goes with a product"),
            ("t = max(A @ B @ C)", "one product a line"),
            ("t = max(A @ B + C)", "nothing follows"),
            ("t = max(W) + W", "nothing follows"),
            ("t = topk(W, 3)", "two results"),
            ("i, v = max(W)", "one result"),
            ("i, v = W", "only topk"),
            ("v, v = topk(W, 3)", "both results"),
            ("i, v = topk(W, -1)", "above 0"),
            ("i, v = topk(W)", "a count"),
            ("= max(W)", "one result"),
        ] {
            let e = parse(line).expect_err(line);
            assert!(
                e.contains(expected) && (e.contains("topk(A, 10)") || e.contains("name two targets")),
                "{line}: {e}"
            );
        }
    }
}
