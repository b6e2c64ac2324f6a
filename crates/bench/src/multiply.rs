//! Measures whole products: runs `bramble multiply` as a child process.
//!
//! Place in the flow: `tree` and `product` choose the options and get figures from the report of `multiply --json`.
//!
//! Invariants: operands are files in a temporary folder, removed on drop; a product that was not verified is an
//! error; dropping the future kills the child process.

use bramble_cluster::program;
use bramble_matrix::DType;
use bramble_report::exit::Failure;
use serde_json::Value;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of a product.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The measuring verb, by its name in messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verb(pub(super) &'static str);

/// The figures of one product, from its report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MultiplyOutcome {
    /// Seconds from the first byte sent to the last tile received.
    pub(super) seconds: f64,
    /// Seconds of the whole process: starting workers, opening operands, multiplying, verifying and writing C.
    pub(super) total_seconds: f64,
    /// Bytes sent to all workers, and received from them.
    pub(super) bytes: [u64; 2],
}

impl Verb {
    /// A folder with A.npy and B.npy, square and random.
    pub(super) async fn operands(self, size: u32, dtype: DType) -> Result<TempDir, Failure> {
        let folder = tempfile::Builder::new().prefix("bramble-bench-").tempdir();
        let folder = folder.map_err(|e| self.failed(&format!("a folder for operands: {e}")))?;
        for (name, seed) in [("A.npy", 1), ("B.npy", 2)] {
            // Written by multiplying with the identity matrix.
            let random = format!("random:{size}x{size}:{dtype}:{seed}");
            let one = format!("identity:{size}:{dtype}");
            let words = [&random, &one, "--verify", "off", "-o"].map(OsString::from);
            self.multiply(words.into_iter().chain([folder.path().join(name).into()])).await?;
        }
        Ok(folder)
    }

    /// Runs a product with these options.
    pub(super) async fn product(self, words: Vec<OsString>) -> Result<MultiplyOutcome, Failure> {
        self.said(&self.multiply(words.into_iter()).await?)
    }

    /// The figures of a report; an error if C was not verified.
    fn said(self, report: &Value) -> Result<MultiplyOutcome, Failure> {
        let strange = |what: &str| self.failed(&format!("the report of a product has no {what}"));
        if report["verify"]["passed"] != Value::Bool(true) {
            return Err(self.failed("a product was not verified"));
        }
        let time = |name: &str| report[name].as_f64().filter(|s| *s > 0.0).ok_or_else(|| strange(name));
        let count = |name: &str| report["primary"][name].as_u64().ok_or_else(|| strange(name));
        Ok(MultiplyOutcome {
            seconds: time("seconds")?,
            total_seconds: time("total_seconds")?,
            bytes: [count("bytes_sent")?, count("bytes_received")?],
        })
    }

    /// Runs this program's `multiply`; returns its report.
    async fn multiply(self, words: impl Iterator<Item = OsString>) -> Result<Value, Failure> {
        let failed = |e: &dyn std::fmt::Display| self.failed(&format!("bramble multiply: {e}"));
        let mut command = tokio::process::Command::from(program::command().map_err(|e| failed(&e))?);
        command.args(["multiply", "--json"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Local operands only: without these variables, no other machine takes part.
        command.env_remove("BRAMBLE_HOSTS").env_remove("BRAMBLE_THREADS").kill_on_drop(true);
        let done = tokio::time::timeout(DEADLINE, command.output()).await;
        let done = done.map_err(|_| failed(&"it took more than an hour"))?.map_err(|e| failed(&e))?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.lines().last().unwrap_or("it said nothing").trim_start_matches("bramble: ");
            return Err(failed(&format!("{last} ({})", done.status)));
        }
        serde_json::from_slice(&done.stdout).map_err(|e| failed(&e))
    }

    fn failed(self, what: &str) -> Failure {
        Failure::failed(format!("{}: {what}", self.0))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_not_verified_is_no_measurement() {
        let report = |passed: bool| {
            let primary = json!({"bytes_sent": 3, "bytes_received": 4});
            json!({"seconds": 1.5, "total_seconds": 2.5, "verify": {"passed": passed}, "primary": primary})
        };
        let verb = Verb("bench x");
        let good = verb.said(&report(true)).unwrap();
        assert_eq!(good, MultiplyOutcome { seconds: 1.5, total_seconds: 2.5, bytes: [3, 4] });
        assert!(verb.said(&report(false)).unwrap_err().text.contains("bench x: a product was not verified"));
        assert!(verb.said(&json!({"verify": {"passed": true}})).is_err());
    }
}
