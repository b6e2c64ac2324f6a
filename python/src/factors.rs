//! Factors that the workers of an open cluster compute, and that lie in this process's memory afterwards.
//!
//! Place in the flow: `Cluster.lu` checks types and shapes; the workers factor, the factors come home and are checked, and
//! become those of `lu.rs`, which solves with them here.
//!
//! Invariants: the workers compute in f64, also for matrices of f32, and the factors are rounded as they come. Nothing of them
//! stays at the workers.

use crate::lu::{Lu, LuFailure, TypedFactors, kernels};
use crate::system::{in_type, is_square, machine, norms_of};
use bramble_client::{Client, ClientError};
use bramble_kernel::lu::LuElement;
use bramble_lu::{
    Elimination, LuError, LuFactors, LuOptions, MatrixNorms, accepted_error, factors_error, hpl,
};
use bramble_matrix::{DType, Matrix, MatrixError, Output, Rect, Shape, Span};
use bramble_primary::{SystemFactors, off_loop};
use bramble_report::losses;
use serde_json::json;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Factors, their order, their type, and the report.
pub(crate) type FactoredOnWorkers = (Lu, u64, &'static str, String);

/// The factors of A; or why A has none with which systems can be solved.
pub(crate) async fn factor_on_workers(
    client: &mut Client,
    a: Matrix,
    threads: usize,
    survive: usize,
) -> Result<Result<FactoredOnWorkers, LuFailure>, ClientError> {
    if let Err(why) = is_square(&a)? {
        return Ok(Err(why.into()));
    }
    let dtype = if a.dtype().is_float() { a.dtype() } else { DType::F64 };
    let a = in_type(a, dtype)?;
    let (need, free) = (a.shape().bytes(dtype).unwrap_or(u64::MAX), bramble_worker::available_memory());
    if need > free {
        return Ok(Err(LuFailure::TooLarge { need, free }));
    }
    match dtype {
        DType::F32 => factored::<f32>(client, a, (threads, survive), TypedFactors::F32).await,
        _ => factored::<f64>(client, a, (threads, survive), TypedFactors::F64).await,
    }
}

async fn factored<T: LuElement>(
    client: &mut Client,
    a: Matrix,
    (threads, survive): (usize, usize),
    typed: fn(LuFactors<T>) -> TypedFactors,
) -> Result<Result<FactoredOnWorkers, LuFailure>, ClientError> {
    let began = Instant::now();
    let matrix = a.clone();
    let norms = match off_loop("reading a matrix", move || norms_of(&matrix, threads)).await? {
        Ok(norms) => norms,
        Err(why) => return Ok(Err(why.into())),
    };
    let (shape, home) = (a.shape(), Arc::new(Output::anonymous(a.shape(), T::DTYPE)?));
    let judged: Arc<Mutex<Option<Result<f64, LuError>>>> = Arc::default();
    let (of, to, told) = (a.clone(), home.clone(), judged.clone());
    let check = move |pivots: &[usize]| {
        let error = error::<T>(&of, &norms, (&to, pivots), threads);
        let is_accepted = error.as_ref().is_ok_and(|error| *error <= accepted_error(pivots.len(), T::DTYPE));
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        is_accepted
    };
    let found = client.factor((a.clone(), home.clone()), survive, Box::new(check)).await?;
    if let Some(why) = LuError::of_pivots(found.zero, found.overflow) {
        return Ok(Err(why.into()));
    }
    let accusations = found.accusations();
    if !accusations.is_empty() {
        return Err(ClientError::Wrong(accusations.join("; ")));
    }
    let error = match judged.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(Ok(error)) => error,
        Some(Err(why)) => return Ok(Err(why.into())),
        None => f64::INFINITY,
    };
    let accepted = accepted_error(found.plan.order, T::DTYPE);
    if error > accepted {
        return Err(ClientError::Wrong(format!(
            "P A and L U differ by {error:.1e}, and {accepted:.1e} is accepted: elements grew too much during elimination, or \
             this machine computes wrongly"
        )));
    }
    let report = report(&found, (shape, T::DTYPE), error, began.elapsed().as_secs_f64());
    let options = LuOptions { threads, block: found.plan.width };
    let made = Elimination { pivots: found.pivots, zero: None, overflow: None };
    let factors = home.matrix().map_err(LuError::from);
    let factors = factors.and_then(|memory| LuFactors::<T>::given(&memory, made, &kernels(threads), options));
    Ok(match factors {
        Ok(factors) => Ok((Lu::of(typed(factors), a, norms, threads), shape.rows, T::DTYPE.name(), report)),
        Err(why) => Err(why.into()),
    })
}

/// How far L U w is from P A w for a random w.
fn error<T: LuElement>(
    a: &Matrix,
    norms: &MatrixNorms,
    (factors, pivots): (&Output, &[usize]),
    threads: usize,
) -> Result<f64, LuError> {
    let Shape { rows, cols } = factors.shape();
    let all = Rect::new(Span::new(0, rows), Span::new(0, cols));
    let lines = factors.matrix()?.lines(all).ok_or(MatrixError::OutOfMemory { bytes: 0 })?;
    factors_error::<T>(a, norms, (lines.view(), pivots), &kernels(threads))
}

fn report(found: &SystemFactors, (shape, dtype): (Shape, DType), error: f64, seconds: f64) -> String {
    json!({
        "kind": "factors",
        "rows": shape.rows,
        "cols": shape.cols,
        "dtype": dtype.name(),
        "machines": found.plan.shares.iter().map(machine).collect::<Vec<_>>(),
        "block": found.plan.width,
        "seconds": seconds,
        "setup_seconds": found.setup_seconds,
        "factor_seconds": found.seconds,
        "sent_seconds": found.sent.seconds,
        "early_panels": found.sent.early_panels,
        "home_seconds": found.home_seconds,
        "gflops": hpl::operations(found.plan.order) / found.seconds / 1e9,
        "predicted_seconds": found.plan.estimate.seconds,
        "bound_seconds": found.plan.estimate.bound_seconds,
        "error": error,
        "checked": true,
        "lost": losses::object(&found.losses),
    })
    .to_string()
}
