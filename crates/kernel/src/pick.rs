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
use crate::lu::{compare_updates, comparison_flops};
use crate::reference::ReferenceKernel;
use crate::simd::Simd;
use crate::strassen::Strassen;
use crate::{Choice, Kernel, KernelClock, KernelError, KernelName, blas, rate};

/// Opening and comparing the libraries takes 60 ms and more. A library that is a tenth faster is worth that only if
/// the product would take one thread of `simd` longer than this, in seconds.
const WORTH_COMPARING: f64 = 0.6;
/// Duration of the trial of `simd` for that estimate, in seconds.
const ESTIMATE: f64 = 0.001;
/// Products with fewer operations are too small to be worth the estimate on any machine.
const WORTH_ESTIMATING: f64 = 1e8;
/// Comparing kernels in updates takes up to 0.15 s on a fast machine and a second on a slow one. That is worth it only if the
/// factorisation would take one thread of `simd` longer than this, in seconds.
const WORTH_UPDATING: f64 = 10.0;
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

/// What a kernel is picked for: the fastest differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Products. Their jobs add to tiles that a cache holds.
    Products,
    /// A factorisation: its products have little depth, and a C that no cache holds.
    Factorisation,
}

/// The longest comparison for a factorisation, seconds: a primary waits ten for a welcome, which comes after it.
pub const COMPARISON_SECONDS_MAX: f64 = 4.0;

/// How `Auto` compares kernels.
#[derive(Clone, Copy)]
pub struct PickTerms<'a> {
    /// What for.
    pub work: Workload,
    /// By which clock: under a quota of processor time only that time tells kernels apart.
    pub clock: KernelClock<'a>,
    /// The most that a comparison for a factorisation may take, seconds of that clock; otherwise it is that for products.
    pub seconds_max: f64,
}

impl PickTerms<'_> {
    /// Whether `kernels` kernels are compared in updates, for work of `flops` operations on a machine of that speed.
    fn compares_updates(&self, flops: f64, flops_per_s: f64, kernels: usize) -> bool {
        self.work == Workload::Factorisation
            && flops / flops_per_s >= WORTH_UPDATING
            && comparison_flops(kernels) / flops_per_s <= self.seconds_max
    }
}

/// The kernels that `Auto` has picked, by workload and element type. Once kernels were compared for a type, the result holds for
/// all its products; the decision not to compare holds only for smaller products. A factorisation's kernel holds for those of as
/// many operations or fewer.
#[derive(Debug, Default)]
pub struct AutoPicks(BTreeMap<(Workload, DType), (f64, Pick)>);

impl AutoPicks {
    /// The kernel that holds for this work with that type and `flops` operations, if there is one.
    pub fn known(&self, work: Workload, dtype: DType, flops: f64) -> Option<&Pick> {
        let (largest, pick) = self.0.get(&(work, dtype))?;
        let was_compared = work == Workload::Products && !pick.rates.is_empty();
        (flops <= *largest || was_compared).then_some(pick)
    }

    /// Remembers the pick for work of `flops` operations.
    pub fn remember(&mut self, work: Workload, dtype: DType, flops: f64, pick: Pick) {
        self.0.insert((work, dtype), (flops, pick));
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
    pick_by_wall(Workload::Products, choice, dtype, flops)
}

/// The same for either workload, by the wall clock.
pub fn pick_by_wall(work: Workload, choice: Choice, dtype: DType, flops: f64) -> Result<Pick, KernelError> {
    let start = Instant::now();
    let clock = || start.elapsed();
    pick_for(PickTerms { work, clock: &clock, seconds_max: COMPARISON_SECONDS_MAX }, choice, dtype, flops)
}

/// The same on these terms: for a long factorisation kernels are compared in its updates.
pub fn pick_for(terms: PickTerms<'_>, choice: Choice, dtype: DType, flops: f64) -> Result<Pick, KernelError> {
    match choice {
        Choice::Named(name) | Choice::Blocked { base: name, .. } | Choice::Strassen { base: name, .. }
            if !name.supports(dtype) =>
        {
            Err(KernelError::Unsupported { name, dtype, able: KernelName::able(dtype) })
        }
        Choice::Auto => Ok(auto(terms, dtype, flops)),
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

fn auto(terms: PickTerms<'_>, dtype: DType, flops: f64) -> Pick {
    let simd: Arc<dyn Kernel> = Arc::new(Simd);
    let mut present = vec![Arc::clone(&simd)];
    let is_candidate = dtype.is_float() && flops >= WORTH_ESTIMATING;
    let flops_per_s =
        if is_candidate { rate(&*simd, dtype, ESTIMATE, terms.clock) * 1e9 } else { f64::INFINITY };
    if flops / flops_per_s >= WORTH_COMPARING {
        // A missing or unusable library is no error here, because it was not requested by name.
        present
            .extend([KernelName::OpenBlas, KernelName::Blis].into_iter().filter_map(|name| open(name).ok()));
    }
    if present.len() == 1 {
        return Pick { kernel: simd, rates: Vec::new() };
    }
    let kernels: Vec<&dyn Kernel> = present.iter().map(Arc::as_ref).collect();
    let speeds = match terms.compares_updates(flops, flops_per_s, kernels.len()) {
        true => compare_updates(&kernels, dtype, terms.clock),
        false => rate::compare(&kernels, dtype, COMPARISON, terms.clock),
    };
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
    fn only_a_long_factorisation_is_worth_updates_and_only_if_there_is_time_for_them() {
        let start = Instant::now();
        let clock = || start.elapsed();
        let terms = |work, seconds_max| PickTerms { work, clock: &clock, seconds_max };
        let (long, short) = (terms(Workload::Factorisation, 1.0), terms(Workload::Factorisation, 0.4));
        // Two kernels need 3 Gflop, half a second of a thread with 6 Gflop/s.
        assert!(long.compares_updates(61e9, 6e9, 2));
        assert!(!long.compares_updates(59e9, 6e9, 2));
        assert!(!short.compares_updates(61e9, 6e9, 2));
        assert!(!terms(Workload::Products, 1.0).compares_updates(61e9, 6e9, 2));
    }

    #[test]
    fn a_pick_for_a_factorisation_is_not_one_for_products() {
        let mut picks = AutoPicks::default();
        let rates = vec![("simd".to_owned(), 9.0)];
        let simd = Pick { rates, ..pick(Choice::Named(KernelName::Simd), DType::F64, 0.0).unwrap() };
        picks.remember(Workload::Factorisation, DType::F64, 1e12, simd.clone());
        assert!(picks.known(Workload::Products, DType::F64, 1e12).is_none());
        assert!(picks.known(Workload::Factorisation, DType::F64, 1e12).is_some());
        // A longer one may be worth another comparison; a longer product is not.
        assert!(picks.known(Workload::Factorisation, DType::F64, 1e13).is_none());
        picks.remember(Workload::Products, DType::F64, 1e12, simd);
        assert!(picks.known(Workload::Products, DType::F64, 1e13).is_some());
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
