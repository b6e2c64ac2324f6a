//! What LU needs of an element besides the arithmetic of products.

use crate::{AnyUpdate, KernelElement, PanelUpdate};

/// An element type whose matrices can be factored: `f32` and `f64`.
pub trait LuElement: KernelElement {
    /// Unit roundoff: half the distance from 1 to the next number.
    const UNIT: f64;
    /// The smallest normal number: the quotient of 1 and a smaller one may overflow.
    const SMALLEST: Self;
    /// The absolute value.
    fn absolute(self) -> Self;
    /// `self / by`, rounded once.
    fn over(self, by: Self) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn is_number(self) -> bool;
    /// The step of a factorisation as a value that any kernel takes.
    fn any_update(step: PanelUpdate<'_, Self>) -> AnyUpdate<'_>;
}

macro_rules! lu_element {
    ($t:ty, $variant:ident) => {
        impl LuElement for $t {
            const UNIT: f64 = <$t>::EPSILON as f64 / 2.0;
            const SMALLEST: Self = <$t>::MIN_POSITIVE;
            #[inline(always)]
            fn absolute(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn over(self, by: Self) -> Self {
                self / by
            }
            #[inline(always)]
            fn is_number(self) -> bool {
                self.is_finite()
            }
            fn any_update(step: PanelUpdate<'_, Self>) -> AnyUpdate<'_> {
                AnyUpdate::$variant(step)
            }
        }
    };
}

lu_element!(f32, F32);
lu_element!(f64, F64);
