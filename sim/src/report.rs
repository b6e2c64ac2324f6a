//! Results of a simulated product.

use bramble_plan::Prediction;
use bramble_schedule::primary::WorkMoves;

/// One session: the plan's members in their order, then the reserve if there is one, then machines that joined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimMachineReport {
    /// Index into the machines of the plan.
    pub machine: usize,
    /// Bytes over its link from the primary, headers included; 0 without a link.
    pub bytes_out: u64,
    /// Bytes over its link to the primary.
    pub bytes_back: u64,
    /// Bytes that it relayed to other workers.
    pub bytes_passed: u64,
    /// Seconds that its threads were busy, summed.
    pub busy_s: f64,
    /// Peak bytes of matrices, as the protocol charges them.
    pub held_bytes_max: u64,
    /// Jobs.
    pub jobs: u64,
    /// Operations of its multiplications.
    pub flops: f64,
    /// Matrices that it generated.
    pub fills: u64,
    /// When its last store message arrived.
    pub last_store_s: f64,
    /// When its last job ended.
    pub last_job_s: f64,
    /// When its last result arrived.
    pub last_result_s: f64,
}

/// A machine that was lost.
#[derive(Clone, Debug, PartialEq)]
pub struct SimLoss {
    /// Index into the machines.
    pub machine: usize,
    /// When the primary noticed.
    pub at_s: f64,
    /// Why.
    pub why: String,
    /// The part of all work that was reassigned.
    pub part: f64,
}

/// A machine that joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimJoin {
    /// Index into the machines.
    pub machine: usize,
    /// When.
    pub at_s: f64,
}

/// Results of a simulated product.
#[derive(Clone, Debug, PartialEq)]
pub struct SimReport {
    /// Seconds from `Start` to `Finished`, or to the failure.
    pub seconds: f64,
    /// Why the product failed.
    pub failed: Option<String>,
    /// Lost machines, in order of time.
    pub losses: Vec<SimLoss>,
    /// Machines that joined.
    pub joins: Vec<SimJoin>,
    /// All sessions: a machine that joined again has two.
    pub machines: Vec<SimMachineReport>,
    /// Stolen work.
    pub moved: Vec<WorkMoves>,
    /// Seconds that the primary's event loop was busy moving bytes.
    pub loop_busy_s: f64,
    /// Peak bytes of partial sums that waited for earlier ones.
    pub partial_sum_bytes_max: u64,
    /// Tiles of C that were committed.
    pub tiles: u64,
    /// Jobs of all machines.
    pub jobs: u64,
    /// Simulated events: the cost of the simulation.
    pub events: u64,
}

impl SimReport {
    /// Bytes that the primary sent.
    pub fn bytes_sent(&self) -> u64 {
        self.machines.iter().map(|m| m.bytes_out).sum()
    }

    /// Bytes that the primary received.
    pub fn bytes_received(&self) -> u64 {
        self.machines.iter().map(|m| m.bytes_back).sum()
    }

    /// Operations of all multiplications, including results that were lost.
    pub fn flops(&self) -> f64 {
        self.machines.iter().map(|m| m.flops).sum()
    }

    /// Relative error of the predicted bytes, in the worse direction.
    pub fn bytes_off(&self, predicted: &Prediction) -> f64 {
        let off = |is: u64, said: u64| (is as f64 - said as f64).abs() / (is.max(said).max(1)) as f64;
        off(self.bytes_sent(), predicted.bytes_sent).max(off(self.bytes_received(), predicted.bytes_received))
    }
}
