//! The kernel of each element type, compared once for a cluster of alike workers.

use bramble_cluster::team::check_kernel;
use bramble_kernel::{AutoPicks, Choice};
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
        check_kernel(self.asked, dtype)?;
        if self.asked != Choice::Auto || !self.here {
            return Ok(self.asked.to_string());
        }
        if let Some(pick) = self.picked.known(dtype, flops) {
            return Ok(pick.kernel.name().to_owned());
        }
        let pick = bramble_kernel::pick(self.asked, dtype, flops)
            .map_err(|e| Failure::failed(format!("--kernel: {e}")))?;
        let name = pick.kernel.name().to_owned();
        self.picked.remember(dtype, flops, pick);
        Ok(name)
    }
}
