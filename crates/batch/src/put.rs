//! `NAME = put MATRIX …`: places a matrix on the machines; also `free`.
//!
//! Place in the flow: `language.rs` passes the words after `put` in; `tasks.rs` passes the tasks in.
//!
//! Invariants: a name refers to a placed matrix only after all its parts are held. The matrix that had the name
//! before is freed after that.

use super::language::BatchOperand;
use super::tasks::{BatchOutcome, KeptMatrix, TaskRunner};
use super::words::Word;
use bramble_plan::{Placement, ShardAxis, ShardUnits};
use bramble_report::exit::Failure;

const OPTIONS: &str = "after the matrix may stand shard=0 (cut between rows), shard=1 (between columns), replicate, and \
                       after shard units=2:1:1, one number for each machine";

/// The placement that the words after `put MATRIX` state; `None` if there are none.
pub(crate) fn placement_of(words: &[Word]) -> Result<Option<Placement>, String> {
    let (mut axis, mut units, mut replicates) = (None, None, false);
    for word in words {
        let Word::Plain(text) = word else { return Err(format!("{word}: has no place here; {OPTIONS}")) };
        match text.split_once('=') {
            None if text == "replicate" => replicates = true,
            Some(("shard", "0")) => axis = Some(ShardAxis::Rows),
            Some(("shard", "1")) => axis = Some(ShardAxis::Cols),
            Some(("units", list)) => units = Some(units_of(list)?),
            _ => return Err(format!("{text}: has no place here; {OPTIONS}")),
        }
    }
    match (axis, units, replicates) {
        (None, None, false) => Ok(None),
        (None, None, true) => Ok(Some(Placement::Replicate)),
        (Some(axis), None, false) => Ok(Some(Placement::Shard(axis, ShardUnits::BySpeed))),
        (Some(axis), Some(units), false) => Ok(Some(Placement::Shard(axis, ShardUnits::Stated(units)))),
        (None, Some(_), _) => Err(format!("units=: needs shard=0 or shard=1 beside it; {OPTIONS}")),
        (Some(_), _, true) => Err(format!("replicate: does not go with shard; {OPTIONS}")),
    }
}

fn units_of(list: &str) -> Result<Vec<u64>, String> {
    let units: Result<Vec<u64>, _> = list.split(':').map(str::parse).collect();
    units.map_err(|_| format!("units={list}: is no list of whole numbers such as 2:1:1; {OPTIONS}"))
}

impl TaskRunner<'_> {
    /// Places a matrix under a name.
    pub(crate) async fn put(
        &mut self,
        name: &str,
        operand: &BatchOperand,
        placement: Option<Placement>,
    ) -> Result<BatchOutcome, Failure> {
        let opened = self.open(operand, false).await?;
        if opened.placed.is_some() {
            return self.redistribute(name, opened, placement).await;
        }
        let matrix = opened.matrix;
        let (array, report) =
            self.client.put(matrix.clone(), placement).await.map_err(|e| self.client.failure(e))?;
        self.keep_named(name.to_owned(), KeptMatrix { matrix, array: Some(array) }).await?;
        Ok(BatchOutcome::Put(report))
    }

    /// Keeps a matrix under a name; the one that had it before is freed.
    pub(crate) async fn keep_named(&mut self, name: String, matrix: KeptMatrix) -> Result<(), Failure> {
        let before = self.kept.insert(name, matrix);
        self.release(before).await
    }

    /// Forgets a kept matrix.
    pub(crate) async fn free(&mut self, name: &str) -> Result<BatchOutcome, Failure> {
        let Some(kept) = self.kept.remove(name) else { return Err(self.unknown(name)) };
        self.release(Some(kept)).await?;
        Ok(BatchOutcome::Freed)
    }

    async fn release(&mut self, kept: Option<KeptMatrix>) -> Result<(), Failure> {
        if let Some(array) = kept.and_then(|kept| kept.array) {
            self.client.free(array).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::words;

    fn parsed(text: &str) -> Result<Option<Placement>, String> {
        placement_of(&words(text).unwrap())
    }

    #[test]
    fn placements_are_stated_by_axis_units_or_replicas() {
        let shard = |axis, units| Ok(Some(Placement::Shard(axis, units)));
        assert_eq!(parsed(""), Ok(None));
        assert_eq!(parsed("replicate"), Ok(Some(Placement::Replicate)));
        assert_eq!(parsed("shard=0"), shard(ShardAxis::Rows, ShardUnits::BySpeed));
        assert_eq!(parsed("shard=1"), shard(ShardAxis::Cols, ShardUnits::BySpeed));
        let units = ShardUnits::Stated(Vec::from([4, 2, 0, 1]));
        assert_eq!(parsed("shard=1 units=4:2:0:1"), shard(ShardAxis::Cols, units));
    }

    #[test]
    fn other_words_are_refused_with_the_words_that_may_stand_there() {
        for (text, culprit) in [
            ("shard=2", "shard=2"),
            ("sharded", "sharded"),
            ("units=1:1", "units="),
            ("shard=0 units=1:x", "units=1:x"),
            ("shard=0 units=-1:1", "units=-1:1"),
            ("replicate shard=0", "replicate"),
            ("+ V", "+"),
        ] {
            let e = parsed(text).expect_err(text);
            assert!(e.starts_with(culprit) && e.contains("shard=1 (between columns)"), "{text}: {e}");
        }
    }
}
