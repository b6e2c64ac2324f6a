//! Elements that several threads may add to at once.
//!
//! Invariants: no addition is lost; their order is unspecified (`Relaxed`), and so is the moment at which another
//! thread sees one. Integers wrap.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use bramble_kernel::KernelElement;

/// An element type that has an atomic form.
pub(crate) trait AtomicElement: KernelElement {
    /// The atomic type with the same bits.
    type Atomic: Send + Sync;

    /// An atomic element with that value.
    fn shared(self) -> Self::Atomic;
    /// Its value.
    fn load(from: &Self::Atomic) -> Self;
    /// Sets its value.
    fn store(to: &Self::Atomic, value: Self);
    /// Adds: one instruction for integers; floats, which no processor adds in memory, use a compare-and-swap loop.
    fn add(to: &Self::Atomic, value: Self);
}

macro_rules! integer {
    ($t:ty, $atomic:ty) => {
        impl AtomicElement for $t {
            type Atomic = $atomic;

            fn shared(self) -> $atomic {
                <$atomic>::new(self)
            }

            fn load(from: &$atomic) -> Self {
                from.load(Relaxed)
            }

            fn store(to: &$atomic, value: Self) {
                to.store(value, Relaxed);
            }

            #[inline]
            fn add(to: &$atomic, value: Self) {
                to.fetch_add(value, Relaxed);
            }
        }
    };
}

macro_rules! float {
    ($t:ty, $atomic:ty) => {
        impl AtomicElement for $t {
            type Atomic = $atomic;

            fn shared(self) -> $atomic {
                <$atomic>::new(self.to_bits())
            }

            fn load(from: &$atomic) -> Self {
                Self::from_bits(from.load(Relaxed))
            }

            fn store(to: &$atomic, value: Self) {
                to.store(value.to_bits(), Relaxed);
            }

            #[inline]
            fn add(to: &$atomic, value: Self) {
                let mut seen = to.load(Relaxed);
                loop {
                    let sum = (Self::from_bits(seen) + value).to_bits();
                    match to.compare_exchange_weak(seen, sum, Relaxed, Relaxed) {
                        Ok(_) => return,
                        Err(now) => seen = now,
                    }
                }
            }
        }
    };
}

integer!(i32, AtomicI32);
integer!(i64, AtomicI64);
float!(f32, AtomicU32);
float!(f64, AtomicU64);
