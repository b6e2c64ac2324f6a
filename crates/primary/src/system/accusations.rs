//! What the user is told of workers whose columns do not match their checksums.

use super::{SystemFactors, SystemSolution};

impl SystemSolution {
    /// Names the workers that have computed wrongly, one sentence each.
    pub fn accusations(&self) -> Vec<String> {
        sentences(&self.wrong)
    }
}

impl SystemFactors {
    /// Names the workers that have computed wrongly, one sentence each.
    pub fn accusations(&self) -> Vec<String> {
        sentences(&self.wrong)
    }
}

fn sentences(wrong: &[(String, f64)]) -> Vec<String> {
    let sentence = |(name, deviation): &(String, f64)| {
        format!(
            "worker {name} has computed wrongly: its columns differ from their checksums by {deviation:.0} times what \
             rounding explains; check its memory, clock and cooling"
        )
    };
    wrong.iter().map(sentence).collect()
}
