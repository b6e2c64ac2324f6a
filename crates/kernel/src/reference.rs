//! Plain loops: the reference for the other kernels, for every type and all strides.
//!
//! Invariant: element (i, j) is `beta * c + alpha * (a[i,0]*b[0,j] + a[i,1]*b[1,j] + …)`, summed from the left,
//! each operation rounded separately. Its bits are the same on every machine.
//!
//! Deliberately absent: any optimisation.

use bramble_matrix::{DType, Element};

use crate::{AnyProduct, Kernel, KernelName, Product};

/// The kernel of plain loops.
#[derive(Debug)]
pub(crate) struct ReferenceKernel;

impl Kernel for ReferenceKernel {
    fn name(&self) -> &str {
        KernelName::Reference.as_str()
    }

    fn supports(&self, _: DType) -> bool {
        true
    }

    fn multiply(&self, product: AnyProduct<'_>) {
        match product {
            AnyProduct::F32(p) => multiply(p),
            AnyProduct::F64(p) => multiply(p),
            AnyProduct::I32(p) => multiply(p),
            AnyProduct::I64(p) => multiply(p),
        }
    }

    fn scratch_bytes(&self) -> usize {
        0
    }
}

/// The product by definition.
pub(crate) fn multiply<T: Element>(product: Product<'_, T>) {
    let Some(mut p) = product.settle() else { return };
    for i in 0..p.m() {
        for j in 0..p.n() {
            let mut sum = p.a.at(i, 0).times(p.b.at(0, j));
            for d in 1..p.k() {
                sum = sum.plus(p.a.at(i, d).times(p.b.at(d, j)));
            }
            let new = p.alpha.times(sum);
            let c = p.c.at_mut(i, j);
            *c = if p.beta == T::ZERO { new } else { p.beta.times(*c).plus(new) };
        }
    }
}
