//! What a simulated product took.

use bramble_plan::Prediction;
use bramble_schedule::primary::Moved;

/// One machine: the members of the plan in their order, then the reserve where there is one, and those who came in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineReport {
    /// Index into the machines that the plan was made for.
    pub machine: usize,
    /// Bytes over its link from the primary, frames and all; 0 without a link.
    pub bytes_out: u64,
    /// Bytes over its link to the primary.
    pub bytes_back: u64,
    /// Bytes that it passed on to others.
    pub bytes_passed: u64,
    /// Seconds that its threads were busy, summed.
    pub busy_s: f64,
    /// Most bytes of matrices that it held, as they are charged.
    pub held_bytes_max: u64,
    /// Jobs.
    pub jobs: u64,
    /// Operations of the products that it did.
    pub flops: f64,
    /// Matrices that it generated.
    pub fills: u64,
    /// When the last store message was there.
    pub last_store_s: f64,
    /// When its last job was done.
    pub last_job_s: f64,
    /// When its last result was there.
    pub last_result_s: f64,
}

/// A machine that was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Index into the machines.
    pub machine: usize,
    /// When the primary knew.
    pub at_s: f64,
    /// Why.
    pub why: String,
    /// Its work that others had to do, of all work.
    pub part: f64,
}

/// A machine that came in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coming {
    /// Index into the machines.
    pub machine: usize,
    /// When.
    pub at_s: f64,
}

/// What a simulated product took.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// From `Start` to `Finished`, or to where it failed.
    pub seconds: f64,
    /// Why there is no C.
    pub failed: Option<String>,
    /// Machines that were lost, in this order.
    pub losses: Vec<Loss>,
    /// Machines that came in.
    pub comings: Vec<Coming>,
    /// All sessions: a machine that came in again has two.
    pub machines: Vec<MachineReport>,
    /// Work that was taken from one member and given to another.
    pub moved: Vec<Moved>,
    /// Seconds that the primary's event loop was busy with bytes.
    pub loop_busy_s: f64,
    /// Most bytes of sums that waited for earlier ones.
    pub aside_bytes_max: u64,
    /// Tiles of C that were committed.
    pub tiles: u64,
    /// Jobs of all machines.
    pub jobs: u64,
    /// Things that happened: what a run costs to simulate.
    pub events: u64,
}

impl Report {
    /// Bytes that left the primary.
    pub fn bytes_sent(&self) -> u64 {
        self.machines.iter().map(|m| m.bytes_out).sum()
    }

    /// Bytes that came back.
    pub fn bytes_received(&self) -> u64 {
        self.machines.iter().map(|m| m.bytes_back).sum()
    }

    /// Operations of all products that were done, also of those that were lost.
    pub fn flops(&self) -> f64 {
        self.machines.iter().map(|m| m.flops).sum()
    }

    /// By which part of the bytes the prediction is wrong, in the direction that is worse.
    pub fn bytes_off(&self, predicted: &Prediction) -> f64 {
        let off = |is: u64, said: u64| (is as f64 - said as f64).abs() / (is.max(said).max(1)) as f64;
        off(self.bytes_sent(), predicted.bytes_sent).max(off(self.bytes_received(), predicted.bytes_received))
    }
}
