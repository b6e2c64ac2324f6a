//! `lu`: factors a matrix, checks the factors against it, and writes them.

use crate::report::{LuReport, LuTimes};
use crate::setup::{Setup, check_kernels, element_type, sides};
use crate::{LuArgs, factor_workers, failure, run, write};
use bramble_kernel::lu::LuElement;
use bramble_lu::{LuError, LuFactors, WorkingMatrix, accepted_error, factors_error, load};
use bramble_matrix::{DType, Matrix};
use bramble_report::exit::{Exit, Failure};
use std::time::Instant;

/// Factors with their report.
struct Factored<T> {
    factors: LuFactors<T>,
    report: LuReport,
}

/// Factors A.
pub fn factor(args: &LuArgs, a: Matrix) -> Result<Exit, Failure> {
    let dtype = element_type(&args.factor, &a, None)?;
    if let Some(team) = factor_workers::team(args, &a)? {
        return factor_workers::factor(args, a, dtype, team);
    }
    match dtype {
        DType::F32 => factor_of::<f32>(args, a),
        _ => factor_of::<f64>(args, a),
    }
}

fn factor_of<T: LuElement>(args: &LuArgs, a: Matrix) -> Result<Exit, Failure> {
    let began = Instant::now();
    let (rows, cols) = sides(&a)?;
    let setup = Setup::new::<T>(&args.factor, a.name(), (rows, cols), 0)?;
    let output = args.output.as_deref();
    let beside = output.map(write::beside);
    let files = (write::open(output)?, write::open(beside.as_deref())?);
    run(
        move || compute::<T>(a, &setup),
        |Factored { factors, mut report }| {
            if report.error > report.tolerance || report.error.is_nan() {
                return Err(unverified(&report));
            }
            if let (Some(file), Some(beside)) = files {
                write::write(file, &[rows as u64, cols as u64], T::DTYPE, write::rows(factors.view()))?;
                write::pivots(beside, &factors.elimination().pivots)?;
            }
            report.output = output.map(ToOwned::to_owned).zip(beside);
            report.seconds.total = began.elapsed().as_secs_f64();
            report.print(&args.factor)?;
            Ok(Exit::Done)
        },
    )
}

fn compute<T: LuElement>(a: Matrix, setup: &Setup) -> Result<Factored<T>, Failure> {
    let (rows, cols) = sides(&a)?;
    let a = a.converted(T::DTYPE)?;
    let mut seconds = LuTimes::default();
    let mut at = Instant::now();
    let mut lap = || std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
    let working = WorkingMatrix::zeros::<T>(rows, cols)?;
    let norms = load::<T, T>(&a, &working, 0, setup.options.threads).map_err(failure)?;
    seconds.load = lap();
    let factors =
        LuFactors::<T>::new(&working, rows.min(cols), &setup.kernels, setup.options).map_err(failure)?;
    let factors = factors.finished(&working).map_err(failure)?;
    seconds.factor = lap();
    let singular = match factors.check() {
        Err(LuError::Singular { column }) => Some(column),
        checked => checked.map(|()| None).map_err(failure)?,
    };
    let kernels = check_kernels(setup.options.threads)?;
    let pivots = &factors.elimination().pivots;
    let error = factors_error(&a, &norms, (factors.view(), pivots), &kernels).map_err(failure)?;
    seconds.check = lap();
    let report = LuReport {
        shape: (rows, cols),
        dtype: T::DTYPE,
        options: setup.options,
        kernel: setup.kernels.one.name().to_owned(),
        at_workers: None,
        memory_bytes: setup.memory_bytes,
        error,
        tolerance: accepted_error(rows.max(cols), T::DTYPE),
        singular,
        seconds,
        output: None,
    };
    Ok(Factored { factors, report })
}

pub(crate) fn unverified(report: &LuReport) -> Failure {
    let text = format!(
        "P A and L U differ by {:.1e}, and {:.1e} is accepted: elements grew too much during elimination, or the machine \
         computes wrongly; nothing was kept{}",
        report.error,
        report.tolerance,
        if report.dtype == DType::F32 { "; try --dtype f64" } else { "" }
    );
    Failure { exit: Exit::Unverified, text }
}
