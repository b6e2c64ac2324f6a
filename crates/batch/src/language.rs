//! The tasks that a batch file can hold, one on a line (docs/batch.md).
//!
//! Place in the flow: `mod.rs` reads lines and parses them here; `tasks.rs` carries the tasks out.
//!
//! Invariants: parsing opens no file. An error says which words are wrong and what to write instead; the caller adds the line's
//! number.
//!
//! Deliberately absent: shapes and element types, which are known only when a task starts: an earlier line may write its operand.

use super::put::placement_of;
use super::rect::{WrittenRect, path_of};
use super::reduce::reduction_of;
use super::words::{Word, words};
use bramble_matrix::Reduction;
use bramble_plan::Placement;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

/// A task: one line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BatchTask {
    /// `TARGET = EXPRESSION`.
    Compute(ResultTarget, Expression),
    /// `NAME = put MATRIX …`: places a matrix on the machines; `None`: by its shape and size.
    Put(String, BatchOperand, Option<Placement>),
    /// `TARGET = rowsum(MATRIX)` and the like; topk has two targets.
    Reduce(Vec<ResultTarget>, Reduction, ReducedTerm),
    /// `NAME -> PATH`, `NAME[ROWS, COLS] -> PATH`: writes a kept matrix, or a rectangle of it, to a file.
    Write(String, Option<WrittenRect>, PathBuf),
    /// `free NAME`: forgets a kept matrix.
    Free(String),
}

/// Where a result goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResultTarget {
    /// Kept under a name for later lines.
    Name(String),
    /// Written to a .npy file.
    File(PathBuf),
}

/// A matrix that a line uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchOperand {
    pub(crate) source: MatrixReference,
    pub(crate) transposed: bool,
}

/// Where an operand's elements are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MatrixReference {
    /// A matrix that an earlier line kept.
    Kept(String),
    /// A file or generator, in the forms of `bramble multiply`.
    Described(String),
}

/// FACTOR × MATRIX.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScaledOperand {
    pub(crate) factor: f64,
    pub(crate) matrix: BatchOperand,
}

/// What a function reduces: a matrix, or a product.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReducedTerm {
    /// A.
    Matrix(BatchOperand),
    /// αAB.
    Product { alpha: f64, a: BatchOperand, b: BatchOperand },
}

impl BatchOperand {
    /// The name of the kept matrix that it is.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.source {
            MatrixReference::Kept(name) => Some(name),
            MatrixReference::Described(_) => None,
        }
    }
}

impl Expression {
    /// All matrices.
    pub(crate) fn operands(&self) -> Vec<&BatchOperand> {
        match self {
            Self::Product { a, b, plus, .. } => {
                [a, b].into_iter().chain(plus.as_ref().map(|plus| &plus.matrix)).collect()
            }
            Self::Sum(x, y) => std::iter::once(&x.matrix).chain(y.as_ref().map(|y| &y.matrix)).collect(),
        }
    }
}

/// The right side of `=`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// αAB, or αAB + βC.
    Product { alpha: f64, a: BatchOperand, b: BatchOperand, plus: Option<ScaledOperand> },
    /// αX, or αX + βY, element by element.
    Sum(ScaledOperand, Option<ScaledOperand>),
}

/// A term of the sum: FACTOR × MATRIX, or FACTOR × MATRIX @ MATRIX.
struct Factored {
    factor: f64,
    left: BatchOperand,
    right: Option<BatchOperand>,
}

const FORM: &str = "use TARGET = A @ B, TARGET = A @ B + C, TARGET = A + B, TARGET = rowsum(A), \
                    NAME = put A, NAME -> FILE.npy, or free NAME";

/// Parses a line; `None` for one without a task.
pub(crate) fn parse(line: &str) -> Result<Option<BatchTask>, String> {
    let words = words(line)?;
    if let Some(reduction) = reduction_of(&words) {
        return reduction.map(Some);
    }
    if let Some(written) = WrittenRect::of_line(&words) {
        let (name, rect, path) = written?;
        return path_of(&name, path).map(|path| Some(BatchTask::Write(name, Some(rect), path)));
    }
    match &words[..] {
        [] => Ok(None),
        [Word::Plain(free), rest @ ..] if free == "free" && !is_assignment(&words) => match rest {
            [Word::Plain(name)] if is_name(name) => Ok(Some(BatchTask::Free(name.clone()))),
            _ => Err("free: takes one name; name a matrix that an earlier line kept".to_owned()),
        },
        [Word::Plain(name), Word::Sign("->"), path] => match path {
            _ if !is_name(name) => Err(format!(
                "{name} -> …: only a kept matrix can be written; give the result a name first, as in H = A @ B"
            )),
            path => path_of(name, path).map(|path| Some(BatchTask::Write(name.clone(), None, path))),
        },
        [target, Word::Sign("="), Word::Plain(put), rest @ ..] if put == "put" && is_put(rest) => {
            let mut reader = Reader { words: rest };
            let matrix = reader.operand()?;
            let placement = placement_of(reader.words)?;
            match target_of(target)? {
                ResultTarget::Name(name) => Ok(Some(BatchTask::Put(name, matrix, placement))),
                ResultTarget::File(path) => Err(format!(
                    "{} = put …: a placed matrix has a name, not a file; write W = put …",
                    path.display()
                )),
            }
        }
        [target, Word::Sign("="), expression @ ..] => {
            let target = target_of(target)?;
            let mut reader = Reader { words: expression };
            let expression = reader.expression()?;
            Ok(Some(BatchTask::Compute(target, expression)))
        }
        _ => Err(format!("this is no task; {FORM}; signs stand between spaces")),
    }
}

impl BatchTask {
    /// The names of kept matrices that the task reads or forgets.
    pub(crate) fn uses(&self) -> Vec<&str> {
        let operands = match self {
            Self::Write(name, ..) | Self::Free(name) => return vec![name],
            Self::Put(_, matrix, _) | Self::Reduce(_, _, ReducedTerm::Matrix(matrix)) => vec![matrix],
            Self::Reduce(_, _, ReducedTerm::Product { a, b, .. }) => vec![a, b],
            Self::Compute(_, expression) => expression.operands(),
        };
        operands.into_iter().filter_map(BatchOperand::name).collect()
    }

    /// Changes the names of kept matrices as the task will.
    pub(crate) fn changes(&self, kept: &mut BTreeSet<String>) {
        match self {
            Self::Compute(ResultTarget::Name(name), _) | Self::Put(name, ..) => {
                kept.insert(name.clone());
            }
            Self::Reduce(targets, ..) => kept.extend(targets.iter().filter_map(|target| match target {
                ResultTarget::Name(name) => Some(name.clone()),
                ResultTarget::File(_) => None,
            })),
            Self::Free(name) => {
                kept.remove(name);
            }
            Self::Compute(ResultTarget::File(_), _) | Self::Write(..) => {}
        }
    }
}

/// Whether a matrix follows `put`, which is otherwise a name.
fn is_put(rest: &[Word]) -> bool {
    matches!(rest.first(), Some(Word::Plain(_) | Word::Quoted(_)))
}

fn is_assignment(words: &[Word]) -> bool {
    matches!(words, [_, Word::Sign("="), ..])
}

pub(crate) fn target_of(word: &Word) -> Result<ResultTarget, String> {
    match word {
        Word::Quoted(path) => Ok(ResultTarget::File(PathBuf::from(path))),
        Word::Plain(text) if is_name(text) => Ok(ResultTarget::Name(text.clone())),
        Word::Plain(text) if text == "-" => {
            Err("-: results of a batch go to files or names; name one".to_owned())
        }
        Word::Plain(text) => Ok(ResultTarget::File(PathBuf::from(text))),
        Word::Sign(sign) => {
            Err(format!("{sign} = …: the result needs a name or a .npy file before the =; {FORM}"))
        }
    }
}

/// Whether a word is a name: a letter or `_`, then letters, digits and `_`. A file with such a name is written `./NAME`.
pub(crate) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The words of an expression that are not read yet.
pub(crate) struct Reader<'a> {
    pub(crate) words: &'a [Word],
}

impl Reader<'_> {
    fn expression(&mut self) -> Result<Expression, String> {
        let mut terms = vec![self.term()?];
        while let Some((word, rest)) = self.words.split_first() {
            let sign = match word {
                Word::Sign("+") => 1.0,
                Word::Sign("-") => -1.0,
                other => {
                    return Err(format!(
                        "{other}: has no place here; use +, - or @ between matrices, between spaces"
                    ));
                }
            };
            self.words = rest;
            let term = self.term()?;
            terms.push(Factored { factor: sign * term.factor, ..term });
        }
        combine(terms)
    }

    /// `[FACTOR *] MATRIX [@ MATRIX]`.
    fn term(&mut self) -> Result<Factored, String> {
        let factor = match self.words {
            [Word::Plain(number), Word::Sign("*"), rest @ ..] => {
                let parsed: Option<f64> = number.parse().ok().filter(|factor: &f64| factor.is_finite());
                self.words = rest;
                parsed.ok_or_else(|| {
                    format!("{number} * …: is not a finite number; write the factor first, as in 2.5 * A")
                })?
            }
            _ => 1.0,
        };
        let left = self.operand()?;
        let right = match self.words {
            [Word::Sign("@"), rest @ ..] => {
                self.words = rest;
                Some(self.operand()?)
            }
            _ => None,
        };
        if let [Word::Sign("@"), ..] = self.words {
            return Err(
                "A @ B @ C: one product a line; give the first product a name, as in H = A @ B".to_owned()
            );
        }
        if let [Word::Sign("*"), ..] = self.words {
            return Err(
                "*: multiplies by a number that stands first, as in 2.5 * A; use @ for a product of matrices"
                    .to_owned(),
            );
        }
        Ok(Factored { factor, left, right })
    }

    /// What stands between the parentheses of a function, or before its comma.
    pub(crate) fn reduced(&mut self) -> Result<ReducedTerm, String> {
        let Factored { factor, left, right } = self.term()?;
        match right {
            Some(right) => Ok(ReducedTerm::Product { alpha: factor, a: left, b: right }),
            None if factor == 1.0 => Ok(ReducedTerm::Matrix(left)),
            None => Err(format!("{factor} * {left}: a factor goes with a product, as in 2 * A @ B")),
        }
    }

    pub(crate) fn operand(&mut self) -> Result<BatchOperand, String> {
        let Some((word, rest)) = self.words.split_first() else {
            return Err(format!("a matrix is missing at the end; {FORM}"));
        };
        self.words = rest;
        let (source, transposed) = match word {
            Word::Sign(sign) => return Err(format!("{sign}: a matrix is missing before it; {FORM}")),
            Word::Quoted(path) => {
                let transposed = matches!(rest.first(), Some(Word::Plain(after)) if after == ".T");
                if transposed {
                    self.words = &rest[1..];
                }
                (MatrixReference::Described(path.clone()), transposed)
            }
            Word::Plain(text) => {
                let (text, transposed) =
                    text.strip_suffix(".T").map_or((&text[..], false), |text| (text, true));
                let source = match is_name(text) {
                    true => MatrixReference::Kept(text.to_owned()),
                    false => MatrixReference::Described(text.to_owned()),
                };
                (source, transposed)
            }
        };
        if matches!(self.words.first(), Some(Word::Sign("("))) {
            return Err(format!("{word}(…): there is no such operation; {FORM}"));
        }
        Ok(BatchOperand { source, transposed })
    }
}

/// The expression of the terms: at most one product and one matrix beside it, or at most two matrices.
fn combine(terms: Vec<Factored>) -> Result<Expression, String> {
    let mut products = Vec::new();
    let mut others = Vec::new();
    for Factored { factor, left, right } in terms {
        match right {
            Some(right) => products.push((factor, left, right)),
            None => others.push(ScaledOperand { factor, matrix: left }),
        }
    }
    let mut others = others.into_iter();
    let (first, second, third) = (others.next(), others.next(), others.next());
    let mut products = products.into_iter();
    match (products.next(), products.next(), first, second, third) {
        (Some((alpha, a, b)), None, plus, None, None) => Ok(Expression::Product { alpha, a, b, plus }),
        (None, None, Some(first), second, None) => Ok(Expression::Sum(first, second)),
        (_, Some(_), ..) => {
            Err("two products in one line; give the first a name, as in H = A @ B".to_owned())
        }
        _ => Err("too many matrices are added in one line; give a part of the sum a name, as in H = A + B"
            .to_owned()),
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sign(sign) => f.write_str(sign),
            Self::Plain(text) => f.write_str(text),
            Self::Quoted(text) => write!(f, "\"{text}\""),
        }
    }
}

impl fmt::Display for ResultTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for BatchOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (MatrixReference::Kept(text) | MatrixReference::Described(text)) = &self.source;
        write!(f, "{text}{}", if self.transposed { ".T" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(text: &str) -> BatchOperand {
        let (text, transposed) = text.strip_suffix(".T").map_or((text, false), |text| (text, true));
        let text_owned = text.to_owned();
        let source = if is_name(text) {
            MatrixReference::Kept(text_owned)
        } else {
            MatrixReference::Described(text_owned)
        };
        BatchOperand { source, transposed }
    }

    fn term(factor: f64, text: &str) -> ScaledOperand {
        ScaledOperand { factor, matrix: operand(text) }
    }

    fn parsed(line: &str) -> BatchTask {
        parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).unwrap_or_else(|| panic!("{line}: no task"))
    }

    #[test]
    fn products_have_factors_transposes_and_an_addend() {
        let product = |alpha: f64, a: &str, b: &str, plus: Option<ScaledOperand>| Expression::Product {
            alpha,
            a: operand(a),
            b: operand(b),
            plus,
        };
        let cases = [
            ("y.npy = x.npy @ W", ResultTarget::File("y.npy".into()), product(1.0, "x.npy", "W", None)),
            ("H = 2.5 * A @ B.T", ResultTarget::Name("H".into()), product(2.5, "A", "B.T", None)),
            (
                "H = A @ B - 2 * C",
                ResultTarget::Name("H".into()),
                product(1.0, "A", "B", Some(term(-2.0, "C"))),
            ),
            (
                "H = C + -1e-3 * A @ B",
                ResultTarget::Name("H".into()),
                product(-1e-3, "A", "B", Some(term(1.0, "C"))),
            ),
            ("H = C - A @ B", ResultTarget::Name("H".into()), product(-1.0, "A", "B", Some(term(1.0, "C")))),
            (
                "./H = m.safetensors:wte @ random:3x4:f32:1",
                ResultTarget::File("./H".into()),
                product(1.0, "m.safetensors:wte", "random:3x4:f32:1", None),
            ),
        ];
        for (line, target, expression) in cases {
            assert_eq!(parsed(line), BatchTask::Compute(target, expression), "{line}");
        }
    }

    #[test]
    fn sums_writing_and_freeing_are_tasks() {
        let kept = |expression| BatchTask::Compute(ResultTarget::Name("H".into()), expression);
        assert_eq!(parsed("H = W + V"), kept(Expression::Sum(term(1.0, "W"), Some(term(1.0, "V")))));
        assert_eq!(parsed("H = 3 * W.T"), kept(Expression::Sum(term(3.0, "W.T"), None)));
        assert_eq!(parsed("H -> \"a b.npy\" # note"), BatchTask::Write("H".into(), None, "a b.npy".into()));
        assert_eq!(parsed("free W"), BatchTask::Free("W".into()));
        assert_eq!(
            parsed("free = W"),
            BatchTask::Compute(ResultTarget::Name("free".into()), Expression::Sum(term(1.0, "W"), None))
        );
        assert_eq!(parse("   # nothing"), Ok(None));
    }

    #[test]
    fn a_matrix_is_placed_under_a_name() {
        let put = |of: &str, placement| BatchTask::Put("W".into(), operand(of), placement);
        assert_eq!(parsed("W = put m.safetensors:wte"), put("m.safetensors:wte", None));
        assert_eq!(parsed("W = put H.T replicate"), put("H.T", Some(Placement::Replicate)));
        assert_eq!(parsed("W = put \"H\".T").uses(), [""; 0]);
        assert_eq!(parsed("W = put H").uses(), ["H"]);
        assert!(
            matches!(parsed("W = put"), BatchTask::Compute(_, Expression::Sum(_, None))),
            "put is a name, too"
        );
        assert!(parse("w.npy = put x.npy").unwrap_err().contains("a placed matrix has a name"));
        assert!(parse("W = put x.npy + y.npy").unwrap_err().contains("has no place here"));
    }

    #[test]
    fn a_quoted_path_may_be_transposed_and_is_never_a_name() {
        let BatchTask::Compute(_, Expression::Sum(only, None)) = parsed("H = \"W\".T") else { panic!() };
        assert_eq!(
            only.matrix,
            BatchOperand { source: MatrixReference::Described("W".into()), transposed: true }
        );
        assert!(
            matches!(parsed("\"H\" = W"), BatchTask::Compute(ResultTarget::File(path), _) if path.as_os_str() == "H")
        );
    }

    #[test]
    fn errors_say_what_to_write() {
        let cases = [
            ("A @ B", "this is no task"),
            ("C=A@B", "signs stand between spaces"),
            ("C = A B", "B: has no place here"),
            ("C = A @", "missing at the end"),
            ("C = @ B", "missing before it"),
            ("C = A @ B @ D", "one product a line"),
            ("C = A @ B + D @ E", "two products"),
            ("C = A + B + D", "too many"),
            ("C = A @ B + D + E", "too many"),
            ("C = A * B", "not a finite number"),
            ("C = 1e999 * B", "not a finite number"),
            ("C = A @ B * 2", "stands first"),
            ("C = sort(A)", "no such operation"),
            ("free a.npy", "takes one name"),
            ("free", "takes one name"),
            ("a.npy -> b.npy", "only a kept matrix"),
            ("H -> @", "is no path"),
            ("@ = B", "needs a name or a .npy file"),
        ];
        for (line, expected) in cases {
            let e = parse(line).expect_err(line);
            assert!(e.contains(expected), "{line}: {e}");
        }
    }
}
