//! `lu`: factors a matrix, checks the factors against it, and writes them.

use crate::report::{LuReport, LuTimes};
use crate::setup::{Setup, check_kernels, element_type, sides};
use crate::{LuArgs, TOLERANCE, factor_workers, failure, run, write};
use bramble_kernel::lu::LuElement;
use bramble_lu::{LuError, LuFactors, MatrixNorms, Residual, WorkingMatrix, load, residual};
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
    let error = difference(&a, &norms, &factors, setup)?;
    seconds.check = lap();
    let report = LuReport {
        shape: (rows, cols),
        dtype: T::DTYPE,
        options: setup.options,
        kernel: setup.kernels.one.name().to_owned(),
        workers: Vec::new(),
        left_out: Vec::new(),
        memory_bytes: setup.memory_bytes,
        error,
        tolerance: TOLERANCE * rows.max(cols).max(1) as f64 * T::UNIT,
        singular,
        seconds,
        output: None,
    };
    Ok(Factored { factors, report })
}

/// ‖A w − Pᵀ L U w‖∞ / (‖A‖∞ ‖w‖∞) for a vector w of random signs and sizes (Freivalds 1977).
fn difference<T: LuElement>(
    a: &Matrix,
    norms: &MatrixNorms,
    factors: &LuFactors<T>,
    setup: &Setup,
) -> Result<f64, Failure> {
    let w = random_vector(a.shape().cols as usize);
    let product = factors.apply(&w);
    let kernels = check_kernels(setup.options.threads)?;
    let found = residual(a, norms, &product, &w, 1, &kernels).map_err(failure)?;
    Ok(relative(&found, norms, &w))
}

/// The difference of A w and Pᵀ L U w, relative to ‖A‖∞ ‖w‖∞.
pub(crate) fn relative(found: &Residual, norms: &MatrixNorms, w: &[f64]) -> f64 {
    let largest = |of: &[f64]| {
        of.iter().fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x.abs()) })
    };
    let (difference, scale) = (largest(&found.elements), norms.inf * largest(w));
    if difference == 0.0 { 0.0 } else { difference / scale }
}

/// Elements between ½ and 1 with random signs, from the time and the addresses of this run, so that no error can be made to fit.
pub(crate) fn random_vector(len: usize) -> Vec<f64> {
    use std::hash::{BuildHasher, RandomState};
    let mut state = RandomState::new().hash_one(len) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len)
        .map(|_| {
            let draw = next();
            let size = 0.5 + (draw >> 12) as f64 / (1u64 << 53) as f64;
            if draw & 1 == 0 { size } else { -size }
        })
        .collect()
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
