//! The kernel of each element type, compared once for a cluster of alike workers.

use bramble_cluster::team::check_kernel;
use bramble_kernel::{AutoPicks, Choice, Workload, pick_by_wall};
use bramble_matrix::DType;
use bramble_report::exit::Failure;

/// The kernel of each element type.
pub(crate) struct KernelChoice {
    asked: Choice,
    /// Whether all workers run on this machine, so that one comparison of kernels serves them all.
    here: bool,
    picked: AutoPicks,
}

impl KernelChoice {
    pub(crate) fn new(asked: Choice, here: bool) -> Self {
        Self { asked, here, picked: AutoPicks::default() }
    }

    /// The kernel's name for a product of `flops` operations.
    pub(crate) fn name(&mut self, dtype: DType, flops: f64) -> Result<String, Failure> {
        self.name_for(Workload::Products, dtype, flops)
    }

    /// The same for a factorisation of a matrix of that order.
    pub(crate) fn name_for_factors(&mut self, dtype: DType, order: u64) -> Result<String, Failure> {
        let order = order as f64;
        self.name_for(Workload::Factorisation, dtype, 2.0 / 3.0 * order * order * order)
    }

    fn name_for(&mut self, work: Workload, dtype: DType, flops: f64) -> Result<String, Failure> {
        check_kernel(self.asked, dtype)?;
        if self.asked != Choice::Auto || !self.here {
            return Ok(self.asked.to_string());
        }
        if let Some(pick) = self.picked.known(work, dtype, flops) {
            return Ok(pick.kernel.name().to_owned());
        }
        let pick = pick_by_wall(work, self.asked, dtype, flops)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
        let name = pick.kernel.name().to_owned();
        self.picked.remember(work, dtype, flops, pick);
        Ok(name)
    }
}
