//! Errors of choosing or opening a kernel. The multiplication itself cannot fail.

use bramble_matrix::DType;

use crate::KernelName;

/// Why a kernel is not available, with the next step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// No kernel of that name exists.
    #[error("there is no kernel '{name}'; use one of: auto, {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A kernel that uses another one names an unsuitable one.
    #[error("the kernel '{kernel}' cannot be over '{base}'; use one of: {known}")]
    Base {
        /// The outer kernel.
        kernel: String,
        /// The requested base kernel.
        base: String,
        /// The possible base kernels, comma-separated.
        known: String,
    },
    /// The number after a kernel that uses another one is invalid.
    #[error("'{text}' is no {what}: use {form} with a number from 1 to {max}")]
    Number {
        /// The syntax.
        form: String,
        /// The meaning of the number.
        what: String,
        /// The given text.
        text: String,
        /// The largest allowed number.
        max: u32,
    },
    /// The library is not on this machine.
    #[error("the kernel '{name}' needs a library that is not on this machine; {how}")]
    Missing {
        /// The kernel.
        name: KernelName,
        /// How to install the library.
        how: String,
    },
    /// A library was found, but is unusable.
    #[error("the kernel '{name}' cannot use {path}: {why}")]
    Unfit {
        /// The kernel.
        name: KernelName,
        /// The path of the opened library, as given to the loader.
        path: String,
        /// The reason, and the next step.
        why: String,
    },
    /// The kernel does not multiply elements of that type.
    #[error("the kernel '{name}' does not multiply {dtype}; these do: {able}")]
    Unsupported {
        /// The kernel.
        name: KernelName,
        /// The requested element type.
        dtype: DType,
        /// The kernels that support it, comma-separated.
        able: String,
    },
}
