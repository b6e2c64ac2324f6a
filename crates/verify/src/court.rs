//! Chooses the rows and columns that are recomputed element by element, and their order.
//!
//! Place: between the statistical test (`float`) and the judgement of elements (`judge`).
//!
//! Invariants: an alarm alone never fails a product. The work is bounded even where every row is a suspect and none is
//! wrong. Elements that remain unverified are counted, with the reason.

use super::MatrixError;
use super::float::Alarm;
use super::judge::{Conviction, Judged, judge_all, judge_rows};
use super::pass::Wild;
use super::random::sample;
use super::recompute::VerifyProblem;
use super::scalar::Real;
use super::tile::{Loader, parallel};
use super::{Effort, Unverified, Verdict};
use bramble_matrix::{Matrix, Rect, Shape, Span};

/// The number of alarmed rows that fast effort recomputes whatever their residual, worst first; also the most rows that
/// are recomputed because C lacks a NaN in them.
const ARBITRATED: usize = 32;
/// The budget where everything is suspect: `VerifyProblem::terms_max` terms, or one row in `SHARE` if that is more. One
/// recomputed term takes about as long as 32 terms of a good kernel.
const SHARE: u64 = 32;
/// The least number of rows or columns that the budget allows.
const LINES_MIN: u64 = 64;
/// Streams of the seed for three samples: of non-finite rows, of non-finite columns, of rows that may overflow.
const STREAMS: [u64; 3] = [1 << 33, 1 << 34, 1 << 35];

/// The findings so far.
#[derive(Default)]
pub(super) struct Record {
    /// The steps that the check took, for the verdict's `method`.
    pub(super) notes: Vec<String>,
    /// Largest ratio among rows and elements that are not wrong.
    pub(super) worst_ratio: f64,
    /// Alarmed rows recomputed so far.
    pub(super) arbitrated: u64,
    /// Rows that raised an alarm and were acquitted.
    acquitted: u64,
    /// Rows and columns with NaN or infinities that were judged by element.
    wild: u64,
    /// A wrong element.
    pub(super) conviction: Option<Conviction>,
    /// Elements that could not be verified.
    pub(super) unverified: Unverified,
    /// The first column of C in the part that is being checked.
    pub(super) first_col: u64,
}

impl Record {
    /// The verdict on these findings.
    pub(super) fn verdict(mut self, shape: Shape) -> Verdict {
        if self.wild > 0 {
            self.notes
                .push(format!("{} row(s) and column(s) with NaN or infinity judged by element", self.wild));
        }
        if self.acquitted > 0 {
            let rows = self.acquitted;
            self.notes.push(format!("{rows} row(s) that stood out are within the rigorous bound"));
        }
        let excess = self.conviction.as_ref().map(|c| c.excess);
        self.unverified.elements = self.unverified.elements.min(shape.elements().unwrap_or(u64::MAX));
        Verdict {
            method: self.notes.join(", "),
            passed: self.conviction.is_none(),
            worst_ratio: excess.unwrap_or(self.worst_ratio),
            arbitrated_rows: self.arbitrated,
            unverified: self.unverified,
            fault: self.conviction.map(Conviction::fault),
        }
    }

    fn convict(&mut self, mut conviction: Conviction) {
        conviction.col += self.first_col;
        self.conviction = Some(conviction);
    }

    fn skip(&mut self, elements: u64, why: &'static str) {
        self.unverified.add(elements, why);
    }
}

/// Judges suspect rows and columns element by element and records the findings.
pub(super) struct Court<'a> {
    pub(super) problem: &'a VerifyProblem,
    pub(super) seed: u64,
    pub(super) effort: Effort,
    pub(super) record: &'a mut Record,
}

const NOT_FINITE: &str = "NaN or infinity in the operands";
const MIXED: &str = "NaN or infinity may reach them through levels of Strassen–Winograd";
const OVERFLOW: &str = "sums may overflow in one order of summation and not in another";

impl Court<'_> {
    /// Judges the rows and columns that the statistical test left out because they hold NaN or infinities.
    pub(super) fn wild<T: Real>(&mut self, rows: &Wild, cols: &Wild) -> Result<(), MatrixError> {
        let shape = self.problem.c.shape();
        if self.problem.levels_most() > 0 {
            let (rows, cols) = (rows.lines.len() as u64, cols.lines.len() as u64);
            self.record.skip(rows * shape.cols + cols * (shape.rows - rows), MIXED);
            return Ok(());
        }
        self.record.wild += (rows.lines.len() + cols.lines.len()) as u64;
        self.wild_rows::<T>(self.problem, rows, STREAMS[0], false)?;
        if self.record.conviction.is_none() && !cols.lines.is_empty() {
            self.wild_rows::<T>(&self.problem.transposed(), cols, STREAMS[1], true)?;
        }
        Ok(())
    }

    /// A row of A with a NaN requires a row of C that is all NaN, which needs reading only. Rows with infinities are
    /// recomputed, or a sample of them where recomputing all exceeds the budget.
    fn wild_rows<T: Real>(
        &mut self,
        problem: &VerifyProblem,
        rows: &Wild,
        stream: u64,
        is_turned: bool,
    ) -> Result<(), MatrixError> {
        let others = not_all_nan::<T>(&problem.c, &rows.nans, problem.threads)?;
        let mut suspects: Vec<u64> = others;
        suspects.truncate(ARBITRATED);
        let rest: Vec<u64> =
            rows.lines.iter().copied().filter(|row| rows.nans.binary_search(row).is_err()).collect();
        let some = sample(self.seed, stream, rest.len() as u64, self.lines_max(problem));
        self.record.skip((rest.len() - some.len()) as u64 * problem.c.shape().cols, NOT_FINITE);
        suspects.extend(some.into_iter().map(|i| rest[i as usize]));
        let judged = judge_rows::<T>(problem, &suspects)?;
        if let Some(conviction) = judged.conviction {
            self.record.convict(if is_turned { conviction.transposed() } else { conviction });
        } else {
            self.record.skip(judged.unsure, OVERFLOW);
        }
        Ok(())
    }

    /// The budget in rows.
    fn lines_max(&self, problem: &VerifyProblem) -> u64 {
        let shape = problem.c.shape();
        let row = problem.depth.max(1).saturating_mul(shape.cols.max(1));
        (problem.terms_max / row).max(shape.rows / SHARE).max(LINES_MIN)
    }

    /// Judges alarmed rows, worst first: a fixed number whatever their residual (in full effort the whole budget), then all
    /// rows whose residual no rounding explains, then a sample of the rows that the test could not measure.
    pub(super) fn arbitrate<T: Real>(&mut self, alarms: &[Alarm]) -> Result<(), MatrixError> {
        let (measured, rest): (Vec<&Alarm>, Vec<&Alarm>) =
            alarms.iter().partition(|alarm| alarm.is_measured());
        let most = match self.effort {
            Effort::Full => usize::try_from(self.lines_max(self.problem)).unwrap_or(usize::MAX),
            Effort::Fast | Effort::Off => ARBITRATED,
        };
        let (first, others) = measured.split_at(measured.len().min(most));
        let rows: Vec<u64> = first.iter().map(|alarm| alarm.row).collect();
        self.judge_alarms::<T>(&rows)?;
        let certain: Vec<u64> = others.iter().filter(|a| a.rigorous > 1.0).map(|alarm| alarm.row).collect();
        self.judge_alarms::<T>(&certain)?;
        // Rounding in some order of summation can explain these residuals, so the rows are not recomputed.
        let explained = others.iter().map(|alarm| alarm.rigorous).filter(|ratio| *ratio <= 1.0);
        self.record.worst_ratio = explained.fold(self.record.worst_ratio, f64::max);
        let some = sample(self.seed, STREAMS[2], rest.len() as u64, self.lines_max(self.problem));
        let skipped = (rest.len() - some.len()) as u64;
        let rows: Vec<u64> = some.into_iter().map(|i| rest[i as usize].row).collect();
        self.judge_alarms::<T>(&rows)?;
        if self.record.conviction.is_none() {
            self.record.skip(skipped * self.problem.c.shape().cols, OVERFLOW);
            self.record.acquitted += measured.len() as u64;
        }
        Ok(())
    }

    fn judge_alarms<T: Real>(&mut self, rows: &[u64]) -> Result<(), MatrixError> {
        if self.record.conviction.is_none() {
            self.record.arbitrated += rows.len() as u64;
            self.judge::<T>(rows)?;
        }
        Ok(())
    }

    /// Judges all elements of these rows.
    pub(super) fn judge<T: Real>(&mut self, rows: &[u64]) -> Result<(), MatrixError> {
        let judged = judge_rows::<T>(self.problem, rows)?;
        self.keep(judged);
        Ok(())
    }

    /// Judges all elements in one pass over A and B (`direct`); `false` if a sum is not finite or near the largest number,
    /// so that this pass cannot judge it.
    pub(super) fn judge_cheaply<T: Real>(&mut self) -> Result<bool, MatrixError> {
        let judged = judge_all::<T>(self.problem)?;
        let is_done = judged.is_some();
        judged.into_iter().for_each(|judged| self.keep(judged));
        Ok(is_done)
    }

    fn keep(&mut self, judged: Judged) {
        let Judged { conviction, worst, unsure } = judged;
        if let Some(conviction) = conviction {
            self.record.convict(conviction);
        } else {
            self.record.worst_ratio = self.record.worst_ratio.max(worst);
            self.record.skip(unsure, OVERFLOW);
        }
    }
}

/// The rows, of those given, that hold an element other than NaN.
fn not_all_nan<T: Real>(c: &Matrix, rows: &[u64], threads: usize) -> Result<Vec<u64>, MatrixError> {
    const TOGETHER: usize = 64;
    const PIECE: u64 = 1 << 16;
    let cols = c.shape().cols;
    let found = parallel(rows.len().div_ceil(TOGETHER), threads, |loader: &mut Loader, part| {
        let mut found = Vec::new();
        for row in rows.iter().skip(part * TOGETHER).take(TOGETHER) {
            for start in (0..cols).step_by(PIECE as usize) {
                let rect = Rect::new(Span::new(*row, row + 1), Span::new(start, (start + PIECE).min(cols)));
                let (lines, _) = c.layout().lines(rect.shape());
                let tile = loader.load::<T>(c, rect, None)?;
                if (0..lines as usize).any(|i| tile.line::<T>(i).iter().any(|x| !x.to_f64().is_nan())) {
                    found.push(*row);
                    break;
                }
            }
        }
        Ok(found)
    })?;
    Ok(found.into_iter().flatten().collect())
}
