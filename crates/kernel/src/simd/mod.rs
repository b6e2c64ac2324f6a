//! The kernel that is always available: vector instructions, chosen at run time.
//!
//! Place in the flow: behind [`Kernel`]; floats use the `gemm` crate and, for a large C on x86-64, register tiles of this crate;
//! integers use loops of this crate (no library multiplies integers).
//!
//! Invariant: an element's bits depend on its row of A, its column of B, its old value, alpha, beta and k,
//! and on whether the machine has fused multiply-add; not on m, n, strides, cache sizes or vector width. So
//! a product may be cut anywhere across rows and columns, and shared among machines, without a changed bit.

mod float;
mod inner;
#[cfg(target_arch = "x86_64")]
mod inner_x86;
mod integer;
#[cfg(target_arch = "x86_64")]
mod packed;
mod scratch;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tile_float_x86;
#[cfg(target_arch = "x86_64")]
mod update;

use bramble_matrix::DType;

#[cfg(target_arch = "x86_64")]
use crate::AnyUpdate;
use crate::{AnyProduct, Kernel, KernelName};

/// The name of a kernel with the machine features on which its bits depend, to group machines with equal bits:
/// without fused multiply-add, `simd` and the kernels with it as base round products first.
pub fn bits_class(name: &str) -> String {
    let is_simd = name.split(':').any(|part| part == "simd");
    if is_simd && !is_fused() { format!("{name} without fused multiply-add") } else { name.to_owned() }
}

/// Whether this machine has fused multiply-add, which floating-point products then use.
fn is_fused() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return cfg!(target_arch = "aarch64");
}

/// The kernel of run-time chosen vector instructions.
#[derive(Debug)]
pub(crate) struct Simd;

impl Kernel for Simd {
    fn name(&self) -> &str {
        KernelName::Simd.as_str()
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn multiply(&self, product: AnyProduct<'_>) {
        match product {
            AnyProduct::F32(p) => float::multiply(p),
            AnyProduct::F64(p) => float::multiply(p),
            AnyProduct::I32(p) => integer::multiply_i32(p),
            AnyProduct::I64(p) => integer::multiply_i64(p),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn update(&self, step: AnyUpdate<'_>) -> bool {
        match step {
            AnyUpdate::F32(step) => update::update(step),
            AnyUpdate::F64(step) => update::update(step),
        }
    }

    fn scratch_bytes(&self) -> usize {
        float::SCRATCH_BYTES.max(integer::SCRATCH_BYTES)
    }
}
