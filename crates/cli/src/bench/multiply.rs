//! Products as measurements: this program multiplies in a process of its own, as anyone would start it.
//!
//! Place in the flow: `tree` and `product` say which options; the report of `bramble multiply --json` is what they get.
//!
//! Invariants: operands are files in a folder that is gone with its holder; a product that was not verified is none; a
//! process that was started here ends with the future that waits for it.

use crate::exit::Failure;
use bramble_matrix::DType;
use serde_json::Value;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// A product may take this long.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The verb that measures, by its name in messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verb(pub(super) &'static str);

/// What one product said of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Said {
    /// From the first byte sent to the last tile landed.
    pub(super) seconds: f64,
    /// From the start of the process: workers started, operands opened, C verified and written.
    pub(super) total_seconds: f64,
    /// To all workers, and from them.
    pub(super) bytes: [u64; 2],
}

impl Verb {
    /// A folder with A.npy and B.npy, square and random.
    pub(super) async fn operands(self, size: u32, dtype: DType) -> Result<TempDir, Failure> {
        let folder = tempfile::Builder::new().prefix("bramble-bench-").tempdir();
        let folder = folder.map_err(|e| self.failed(&format!("a folder for operands: {e}")))?;
        for (name, seed) in [("A.npy", 1), ("B.npy", 2)] {
            // By the product with 1, which changes nothing.
            let random = format!("random:{size}x{size}:{dtype}:{seed}");
            let one = format!("identity:{size}:{dtype}");
            let words = [&random, &one, "--verify", "off", "-o"].map(OsString::from);
            self.multiply(words.into_iter().chain([folder.path().join(name).into()])).await?;
        }
        Ok(folder)
    }

    /// Multiplies with these options.
    pub(super) async fn product(self, words: Vec<OsString>) -> Result<Said, Failure> {
        self.said(&self.multiply(words.into_iter()).await?)
    }

    /// What a product's report says, if it was verified.
    fn said(self, report: &Value) -> Result<Said, Failure> {
        let strange = |what: &str| self.failed(&format!("the report of a product has no {what}"));
        if report["verify"]["passed"] != Value::Bool(true) {
            return Err(self.failed("a product was not verified"));
        }
        let time = |name: &str| report[name].as_f64().filter(|s| *s > 0.0).ok_or_else(|| strange(name));
        let count = |name: &str| report["primary"][name].as_u64().ok_or_else(|| strange(name));
        Ok(Said {
            seconds: time("seconds")?,
            total_seconds: time("total_seconds")?,
            bytes: [count("bytes_sent")?, count("bytes_received")?],
        })
    }

    /// Runs this program's `multiply` to its end; what it reports.
    async fn multiply(self, words: impl Iterator<Item = OsString>) -> Result<Value, Failure> {
        let failed = |e: &dyn std::fmt::Display| self.failed(&format!("bramble multiply: {e}"));
        let program = std::env::current_exe().map_err(|e| failed(&e))?;
        let mut command = tokio::process::Command::new(program);
        command.args(["multiply", "--json"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Where the operands would be made by other machines, they would not be sent.
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
        assert_eq!(good, Said { seconds: 1.5, total_seconds: 2.5, bytes: [3, 4] });
        assert!(verb.said(&report(false)).unwrap_err().text.contains("bench x: a product was not verified"));
        assert!(verb.said(&json!({"verify": {"passed": true}})).is_err());
    }
}
