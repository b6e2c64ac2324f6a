//! Opens kernels by name, and picks the fastest.
//!
//! Place in the flow: the first call of the shells into this crate.
//!
//! Invariant: a returned kernel supports the element type that it was picked for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bramble_matrix::DType;

use crate::blocked::{self, Blocked};
use crate::reference::ReferenceKernel;
use crate::simd::Simd;
use crate::strassen::Strassen;
use crate::{Choice, Kernel, KernelError, KernelName, blas, rate};

/// Opening and comparing the libraries takes 60 ms and more. A library that is a tenth faster is worth that only if
/// the product would take one thread of `simd` longer than this, in seconds.
const WORTH_COMPARING: f64 = 0.6;
/// Duration of the trial of `simd` for that estimate, in seconds.
const ESTIMATE: f64 = 0.001;
/// Products with fewer operations are too small to be worth the estimate on any machine.
const WORTH_ESTIMATING: f64 = 1e8;
/// Duration of the comparison; slow machines need longer for three rounds each.
const COMPARISON: Duration = Duration::from_millis(30);
/// A library must be faster than `simd` by more than this factor, since the bits of `simd` do not depend on the cut
/// into tiles.
const MARGIN: f64 = 1.02;

/// A picked kernel, with the reason.
#[derive(Clone)]
pub struct Pick {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// Every kernel that was compared, with its Gflop/s on one thread; empty if none was.
    pub rates: Vec<(String, f64)>,
}

impl fmt::Debug for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pick").field("kernel", &self.kernel.name()).field("rates", &self.rates).finish()
    }
}

/// The kernels that `Auto` has picked, by element type. Once kernels were compared for a type, the result holds for all its
/// products; the decision not to compare holds only for smaller products.
#[derive(Debug, Default)]
pub struct AutoPicks(BTreeMap<DType, (f64, Pick)>);

impl AutoPicks {
    /// The kernel that holds for products of that type and of `flops` operations, if there is one.
    pub fn known(&self, dtype: DType, flops: f64) -> Option<&Pick> {
        let (largest, pick) = self.0.get(&dtype)?;
        (flops <= *largest || !pick.rates.is_empty()).then_some(pick)
    }

    /// Remembers what was picked for a product of `flops` operations.
    pub fn remember(&mut self, dtype: DType, flops: f64, pick: Pick) {
        self.0.insert(dtype, (flops, pick));
    }
}

/// The kernel of that name. A library is opened and checked by the first call, then kept.
pub fn open(name: KernelName) -> Result<Arc<dyn Kernel>, KernelError> {
    Ok(match name {
        KernelName::Reference => Arc::new(ReferenceKernel),
        KernelName::Simd => Arc::new(Simd),
        KernelName::OpenBlas | KernelName::Blis => blas::open(name)?,
    })
}

/// The kernel for products of that type and of `flops` operations in total (2 m n k). `Auto` compares the available
/// kernels, in about 30 ms, if there is enough work to be worth that.
pub fn pick(choice: Choice, dtype: DType, flops: f64) -> Result<Pick, KernelError> {
    match choice {
        Choice::Named(name) | Choice::Blocked { base: name, .. } | Choice::Strassen { base: name, .. }
            if !name.supports(dtype) =>
        {
            Err(KernelError::Unsupported { name, dtype, able: KernelName::able(dtype) })
        }
        Choice::Auto => Ok(auto(dtype, flops)),
        _ => Ok(Pick { kernel: open_on(choice, 1)?, rates: Vec::new() }),
    }
}

/// The chosen kernel, for use on `threads` threads: kernels with a base kernel share a product among them, all
/// others use the calling thread only. `auto` is `simd`: which kernel is faster depends on the product.
pub fn open_on(choice: Choice, threads: usize) -> Result<Arc<dyn Kernel>, KernelError> {
    let name = choice.to_string();
    Ok(match choice {
        Choice::Auto => Arc::new(Simd),
        Choice::Named(name) => open(name)?,
        Choice::Blocked { base, edge } => {
            let edge = edge.map_or(blocked::EDGE, |edge| usize::try_from(edge).unwrap_or(usize::MAX));
            Arc::new(Blocked { name, base: open(base)?, edge, threads })
        }
        Choice::Strassen { base, cutoff } => {
            let cutoff = cutoff.map(u64::from);
            Arc::new(Strassen { name, base: open(base)?, cutoff, threads })
        }
    })
}

fn auto(dtype: DType, flops: f64) -> Pick {
    let simd: Arc<dyn Kernel> = Arc::new(Simd);
    let mut present = vec![Arc::clone(&simd)];
    let start = Instant::now();
    let worth = || flops / (rate(&*simd, dtype, ESTIMATE, &|| start.elapsed()) * 1e9) >= WORTH_COMPARING;
    if dtype.is_float() && flops >= WORTH_ESTIMATING && worth() {
        // A missing or unusable library is no error here, because it was not requested by name.
        present
            .extend([KernelName::OpenBlas, KernelName::Blis].into_iter().filter_map(|name| open(name).ok()));
    }
    if present.len() == 1 {
        return Pick { kernel: simd, rates: Vec::new() };
    }
    let kernels: Vec<&dyn Kernel> = present.iter().map(Arc::as_ref).collect();
    let speeds = rate::compare(&kernels, dtype, COMPARISON);
    let mut best = 0;
    for (at, speed) in speeds.iter().enumerate().skip(1) {
        let needed = if best == 0 { speeds[0] * MARGIN } else { speeds[best] };
        if *speed > needed {
            best = at;
        }
    }
    let rates = present.iter().zip(&speeds).map(|(k, &speed)| (k.name().to_owned(), speed)).collect();
    Pick { kernel: Arc::clone(&present[best]), rates }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_named_for_a_type_that_it_lacks_is_refused_with_those_that_have_it() {
        let error = pick(Choice::Named(KernelName::Blis), DType::I32, 1e12).unwrap_err();
        assert_eq!(error.to_string(), "the kernel 'blis' does not multiply i32; these do: reference, simd");
    }

    #[test]
    fn small_and_integer_products_take_simd_at_once() {
        for (dtype, flops) in [(DType::F64, 1e9), (DType::I64, 1e12)] {
            let pick = pick(Choice::Auto, dtype, flops).unwrap();
            assert_eq!((pick.kernel.name(), pick.rates.len()), ("simd", 0));
        }
    }

    #[test]
    fn large_products_take_one_of_those_that_were_compared() {
        let pick = pick(Choice::Auto, DType::F32, 1e12).unwrap();
        let fastest = pick.rates.iter().map(|r| r.1).fold(0.0, f64::max);
        if let Some(own) = pick.rates.iter().find(|r| r.0 == pick.kernel.name()) {
            assert!(own.1 * MARGIN >= fastest, "{pick:?}");
        }
    }
}
