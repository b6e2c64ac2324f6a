//! What can go wrong when a kernel is chosen or opened. Multiplying itself cannot fail.

use bramble_matrix::DType;

use crate::KernelName;

/// Why a kernel cannot be had, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// No kernel of that name exists.
    #[error("there is no kernel '{name}'; use one of: auto, {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that exist, comma-separated.
        known: String,
    },
    /// A kernel over another names one that cannot be under it.
    #[error("the kernel '{kernel}' cannot be over '{base}'; use one of: {known}")]
    Base {
        /// The upper one.
        kernel: String,
        /// What was asked for below it.
        base: String,
        /// The names that can be there, comma-separated.
        known: String,
    },
    /// The number behind a kernel over another cannot be read.
    #[error("'{text}' is no {what}: use {form} with a number from 1 to {max}")]
    Number {
        /// How it is written.
        form: String,
        /// What the number is.
        what: String,
        /// What was there.
        text: String,
        /// The largest that can be named.
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
    /// A library was found, but cannot be used.
    #[error("the kernel '{name}' cannot use {path}: {why}")]
    Unfit {
        /// The kernel.
        name: KernelName,
        /// The library that was opened, as it was named to the loader.
        path: String,
        /// What is wrong with it and what would help.
        why: String,
    },
    /// The kernel does not multiply elements of that type.
    #[error("the kernel '{name}' does not multiply {dtype}; these do: {able}")]
    Unsupported {
        /// The kernel.
        name: KernelName,
        /// The element type that was asked for.
        dtype: DType,
        /// The kernels that do, comma-separated.
        able: String,
    },
}
