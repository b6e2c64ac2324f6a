//! What a factorisation needs before it starts: element type, threads, kernels, and memory, which is checked.

use crate::args::FactorArgs;
use bramble_kernel::KernelName;
use bramble_kernel::lu::LuElement;
use bramble_lu::{LuKernels, LuOptions, block_columns, memory_bytes, worthwhile_threads};
use bramble_matrix::{DType, Matrix};
use bramble_report::exit::Failure;
use bramble_report::quantity::bytes;
use bramble_worker::{available_memory, default_threads};

/// Memory of the program beside matrices and kernels, bytes.
const PROGRAM_BYTES: u64 = 32 << 20;

/// How the factorisation runs.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) options: LuOptions,
    pub(crate) kernels: LuKernels,
    /// Memory that it needs, bytes.
    pub(crate) memory_bytes: u64,
}

/// The type in which matrices are solved: integers in `f64`, as NumPy does.
pub(crate) fn element_type(args: &FactorArgs, a: &Matrix, b: Option<&Matrix>) -> Result<DType, Failure> {
    if let Some(dtype) = args.dtype {
        return if dtype.is_float() {
            Ok(dtype)
        } else {
            Err(Failure::usage(format!(
                "--dtype {dtype}: systems are solved in f32 or f64; integers have no quotients"
            )))
        };
    }
    let dtype = b.map_or_else(|| a.dtype(), |b| a.promoted(b));
    Ok(if dtype.is_float() { dtype } else { DType::F64 })
}

/// Rows and columns. An error where they are more than this machine can count, as on a 32-bit one.
pub(crate) fn sides(matrix: &Matrix) -> Result<(usize, usize), Failure> {
    let shape = matrix.shape();
    match (usize::try_from(shape.rows), usize::try_from(shape.cols)) {
        (Ok(rows), Ok(cols)) => Ok((rows, cols)),
        _ => Err(Failure::failed(format!(
            "{} is {shape}, which is more than this machine can address",
            matrix.name()
        ))),
    }
}

/// The kernels of checks, which are in `f64`: our own, since a library that has computed wrongly may do so again.
pub(crate) fn check_kernels(threads: usize) -> Result<LuKernels, Failure> {
    let kernels = LuKernels::open(Some(KernelName::Simd), DType::F64, 0.0, threads);
    kernels.map_err(|e| Failure::failed(e.to_string()))
}

impl Setup {
    /// For a rows × cols matrix of `T` with `width` right-hand sides. An error if the memory does not suffice.
    pub(crate) fn new<T: LuElement>(
        args: &FactorArgs,
        name: &str,
        (rows, cols): (usize, usize),
        width: usize,
    ) -> Result<Self, Failure> {
        let order = rows.min(cols);
        let threads = args.threads.map_or_else(|| worthwhile_threads(order, default_threads()), usize::from);
        let block = args.block.map_or_else(|| block_columns(order), usize::from);
        let options = LuOptions { threads, block };
        let flops = 2.0 / 3.0 * (order as f64).powi(2) * rows.max(cols) as f64;
        let cannot = |e| Failure::failed(format!("--kernel: {e}"));
        let kernels = LuKernels::open(args.kernel()?, T::DTYPE, flops, threads).map_err(cannot)?;
        // X, B and their residual in f64.
        let vectors =
            (rows as u64).saturating_mul(width as u64).saturating_mul(3 * 8 + size_of::<T>() as u64);
        let scratch = (kernels.one.scratch_bytes() as u64).saturating_mul(threads as u64);
        let parts = [memory_bytes::<T>(rows, cols, width, options), vectors, scratch, PROGRAM_BYTES];
        let needed = parts.into_iter().fold(0u64, u64::saturating_add);
        let (free, source) = match args.memory {
            Some(limit) => (limit, "--memory allows"),
            None => (available_memory(), "this machine has free"),
        };
        if needed > free {
            return Err(Failure::failed(format!(
                "{name}: factoring {rows}x{cols} {} takes {}, and {source} {}; {}",
                T::DTYPE,
                bytes(needed as f64),
                bytes(free as f64),
                if T::DTYPE == DType::F64 {
                    "use a machine with more, or --dtype f32"
                } else {
                    "use a machine with more"
                },
            )));
        }
        Ok(Self { options, kernels, memory_bytes: needed })
    }
}
