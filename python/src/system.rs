//! Systems of equations on the workers of an open cluster.
//!
//! Place in the flow: `Cluster.solve` checks types and shapes; the workers factor and substitute, this process judges the
//! solution.
//!
//! Invariants: the workers compute in f64, also for matrices of f32, and X is rounded at the end. Its backward error is computed
//! here, from the matrix as this process reads it.
//!
//! Deliberately absent: factors (`factors.rs`).

use crate::lu::kernels;
use crate::memory::Memory;
use bramble_client::{Client, ClientError};
use bramble_lu::{LuError, MatrixNorms, WorkingMatrix, accepted_error, hpl, load, norms, residual, rounded};
use bramble_matrix::{Buffer, DType, Matrix, Shape};
use bramble_primary::{PrimaryError, SystemShare, SystemSolution, off_loop};
use bramble_report::losses;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A solution, and the report.
pub(crate) type SystemSolved = (Memory, String);

/// Right-hand sides by rows, and the norms of A.
struct Known {
    right: Vec<f64>,
    norms: MatrixNorms,
}

/// X with A X = B; or why A has no such X.
pub(crate) async fn solve_on_workers(
    client: &mut Client,
    (a, b): (Matrix, Matrix),
    threads: usize,
    survive: usize,
) -> Result<Result<SystemSolved, LuError>, ClientError> {
    let began = Instant::now();
    let shape = b.shape();
    if let Err(why) = is_square(&a)? {
        return Ok(Err(why));
    }
    if a.shape().rows != shape.rows {
        let why = format!("solve: the matrix has {} rows, and b has {}", a.shape().rows, shape.rows);
        return Err(PrimaryError::Operands(why).into());
    }
    let common = a.promoted(&b);
    let dtype = if common.is_float() { common } else { DType::F64 };
    let (a, b) = (in_type(a, dtype)?, in_type(b, dtype)?);
    // Its rows are those of a matrix that both ends can index.
    let accepted = accepted_error(shape.rows as usize, dtype);
    let (matrix, columns) = (a.clone(), b.clone());
    let known = match off_loop("reading a system", move || known(&matrix, &columns, threads)).await? {
        Ok(known) => known,
        Err(why) => return Ok(Err(why)),
    };
    let judged: Arc<Mutex<Option<Result<f64, LuError>>>> = Arc::default();
    let (of, told) = (a.clone(), judged.clone());
    let check = move |x: &[f64]| {
        let x = rounded(x, dtype);
        let found = residual(&of, &known.norms, &known.right, &x, shape.cols as usize, &kernels(threads));
        let found = found.map(|found| found.backward_error);
        let is_accepted = found.as_ref().is_ok_and(|error| *error <= accepted);
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        is_accepted
    };
    let solution = client.solve((a, b), survive, Box::new(check)).await?;
    if let Some(why) = LuError::of_pivots(solution.zero, solution.overflow) {
        return Ok(Err(why));
    }
    let accusations = solution.accusations();
    if !accusations.is_empty() {
        return Err(ClientError::Wrong(accusations.join("; ")));
    }
    let error = match judged.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(Ok(error)) => error,
        Some(Err(why)) => return Ok(Err(why)),
        None => f64::INFINITY,
    };
    if error > accepted {
        return Err(ClientError::Wrong(format!(
            "the solution has a backward error of {error:.1e}, and {accepted:.1e} is accepted: elements grew too much during \
             elimination, or this machine computes wrongly"
        )));
    }
    let report = report(&solution, (shape, dtype), error, began.elapsed().as_secs_f64());
    Ok(memory_of(&solution.x, shape, dtype).map(|memory| (memory, report)))
}

/// Whether this process has a square matrix.
pub(crate) fn is_square(a: &Matrix) -> Result<Result<(), LuError>, PrimaryError> {
    if a.is_remote() {
        let why =
            format!("{} was made at the workers; fetch it with .numpy(), and solve with that", a.name());
        return Err(PrimaryError::Operands(why));
    }
    let shape = a.shape();
    let is_square = shape.rows == shape.cols;
    Ok(if is_square { Ok(()) } else { Err(LuError::NotSquare { name: "the matrix".to_owned(), shape }) })
}

pub(crate) fn in_type(matrix: Matrix, dtype: DType) -> Result<Matrix, PrimaryError> {
    Ok(matrix.converted(dtype)?)
}

/// The norms of a matrix of f32 or f64.
pub(crate) fn norms_of(a: &Matrix, threads: usize) -> Result<MatrixNorms, LuError> {
    match a.dtype() {
        DType::F32 => norms::<f32>(a, threads),
        _ => norms::<f64>(a, threads),
    }
}

fn known(a: &Matrix, b: &Matrix, threads: usize) -> Result<Known, LuError> {
    let norms = norms_of(a, threads)?;
    let Shape { rows, cols } = b.shape();
    let right = WorkingMatrix::zeros::<f64>(rows as usize, cols as usize)?;
    load::<f64, f64>(&b.clone().converted(DType::F64)?, &right, 0, 1)?;
    Ok(Known { right: right.rows_of::<f64>()?, norms })
}

fn memory_of(x: &[f64], shape: Shape, dtype: DType) -> Result<Memory, LuError> {
    let mut buffer = Buffer::zeroed(x.len() * dtype.size_bytes())?;
    match dtype {
        DType::F32 => {
            buffer.elements_mut::<f32>().iter_mut().zip(x).for_each(|(to, x)| *to = *x as f32);
        }
        _ => buffer.elements_mut::<f64>().copy_from_slice(x),
    }
    Ok(Memory::in_buffer(buffer, shape, dtype))
}

/// A machine's share.
pub(crate) fn machine(share: &SystemShare) -> serde_json::Value {
    json!({
        "machine": share.name,
        "columns": share.columns,
        "gflops": share.gflops,
        "bytes": share.bytes,
    })
}

fn report(solution: &SystemSolution, (shape, dtype): (Shape, DType), error: f64, seconds: f64) -> String {
    let operations = hpl::operations(shape.rows as usize);
    let machines: Vec<_> = solution.plan.shares.iter().map(machine).collect();
    json!({
        "kind": "system",
        "rows": shape.rows,
        "cols": shape.cols,
        "dtype": dtype.name(),
        "machines": machines,
        "block": solution.plan.width,
        "seconds": seconds,
        "setup_seconds": solution.setup_seconds,
        "sent_seconds": solution.sent.seconds,
        "early_panels": solution.sent.early_panels,
        "solve_seconds": solution.seconds,
        "gflops": operations / solution.seconds / 1e9,
        "predicted_seconds": solution.plan.estimate.seconds,
        "bound_seconds": solution.plan.estimate.bound_seconds,
        "backward_error": error,
        "checked": true,
        "lost": losses::object(&solution.losses),
    })
    .to_string()
}
