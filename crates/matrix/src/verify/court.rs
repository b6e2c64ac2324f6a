//! Which rows and columns are looked at element by element, and in which order.
//!
//! Place: between the statistical test (`float`) and the judgement of elements (`judge`).
//!
//! Invariants: an alarm alone never fails a product. Work is bounded by sampling wherever a whole matrix
//! of suspects may be innocent; whatever was only sampled is said in `notes`.

use super::MatrixError;
use super::float::Alarm;
use super::judge::{Conviction, judge_rows};
use super::random::sample;
use super::recompute::Problem;
use super::scalar::Real;

/// Alarmed rows that are recomputed whatever their residual.
const ARBITRATED: usize = 32;
/// Rows or columns that are sampled where all would be too many.
const SAMPLED: u64 = 64;
/// Streams of the seed for samples: of rows, of columns, of rows that may overflow.
const STREAMS: [u64; 3] = [1 << 33, 1 << 34, 1 << 35];

/// Judges suspects and keeps the record.
pub(super) struct Court<'a> {
    pub(super) problem: &'a Problem,
    pub(super) seed: u64,
    /// What was done, for the verdict's `method`.
    pub(super) notes: Vec<String>,
    /// Alarmed rows recomputed so far.
    pub(super) arbitrated: u64,
}

impl Court<'_> {
    /// Judges rows and columns that the statistical test had to leave out.
    pub(super) fn wild<T: Real>(
        &mut self,
        rows: &[u64],
        cols: &[u64],
    ) -> Result<Option<Conviction>, MatrixError> {
        if self.problem.levels_most() > 0 {
            if rows.len() + cols.len() > 0 {
                let (rows, cols) = (rows.len(), cols.len());
                self.notes.push(format!(
                    "{rows} row(s) and {cols} column(s) that NaN or infinity may reach not judged"
                ));
            }
            return Ok(None);
        }
        let rows = self.some_of(rows, "row(s) with NaN or infinity", STREAMS[0]);
        if let Some(conviction) = judge_rows::<T>(self.problem, &rows)? {
            return Ok(Some(conviction));
        }
        let cols = self.some_of(cols, "column(s) with NaN or infinity", STREAMS[1]);
        if cols.is_empty() {
            return Ok(None);
        }
        Ok(judge_rows::<T>(&self.problem.transposed(), &cols)?.map(Conviction::transposed))
    }

    /// Judges alarmed rows, worst first: a fixed number of any, then those that no rounding explains.
    pub(super) fn arbitrate<T: Real>(&mut self, alarms: &[Alarm]) -> Result<Option<Conviction>, MatrixError> {
        let (first, rest) = alarms.split_at(alarms.len().min(ARBITRATED));
        let mut rows: Vec<u64> = first.iter().map(|alarm| alarm.row).collect();
        if let Some(conviction) = self.judge::<T>(&rows)? {
            return Ok(Some(conviction));
        }
        // Where sums may overflow, all of C may rightly be infinite; elsewhere these rows are trouble, and
        // the first batch that has a fault ends it.
        let overflowing: Vec<u64> =
            rest.iter().filter(|alarm| alarm.certain && alarm.may_overflow).map(|alarm| alarm.row).collect();
        rows =
            rest.iter().filter(|alarm| alarm.certain && !alarm.may_overflow).map(|alarm| alarm.row).collect();
        rows.extend(self.some_of(&overflowing, "row(s) that may overflow", STREAMS[2]));
        let conviction = self.judge::<T>(&rows)?;
        if conviction.is_none() && !alarms.is_empty() {
            self.notes.push(format!("{} row(s) that stood out are within the rigorous bound", alarms.len()));
        }
        Ok(conviction)
    }

    fn judge<T: Real>(&mut self, rows: &[u64]) -> Result<Option<Conviction>, MatrixError> {
        self.arbitrated += rows.len() as u64;
        judge_rows::<T>(self.problem, rows)
    }

    /// All of a list, or a random sample of it; says what is done.
    fn some_of(&mut self, list: &[u64], what: &str, stream: u64) -> Vec<u64> {
        let all = list.len() as u64;
        match all {
            0 => {}
            1..=SAMPLED => self.notes.push(format!("{all} {what} judged by element")),
            _ => self.notes.push(format!("{SAMPLED} of {all} {what} judged by element, the others not")),
        }
        sample(self.seed, stream, all, SAMPLED).into_iter().map(|i| list[i as usize]).collect()
    }
}
