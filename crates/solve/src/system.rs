//! `solve`: checks that A and B form a system, solves it, and judges the solution.

use crate::report::{Refinement, SolveReport, SolveTimes};
use crate::setup::{Setup, check_kernels, element_type, sides};
use crate::{SolveArgs, failure, run, workers, write};
use bramble_cluster::until::Completion;
use bramble_kernel::lu::LuElement;
use bramble_lu::{
    KRYLOV_MAX, LuError, LuFactors, MatrixNorms, MixedSystem, ReadMatrix, Residual, WorkingMatrix,
    accepted_error, load, residual,
};
use bramble_matrix::{DType, Matrix};
use bramble_report::exit::{Exit, Failure};
use std::time::Instant;

/// What the computation needs of the options.
pub(crate) struct SolveProblem {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) n: usize,
    pub(crate) width: usize,
    /// Whether the condition is estimated.
    is_estimated: bool,
}

/// A solution in f64, with all that is told about it.
pub(crate) struct Solved {
    pub(crate) x: Vec<f64>,
    pub(crate) report: SolveReport,
}

/// Solves A X = B; `b` is a column or has a right-hand side in each column.
pub fn solve(args: &SolveArgs, a: Matrix, b: Matrix) -> Result<Exit, Failure> {
    let began = Instant::now();
    let dtype = element_type(&args.factor, &a, Some(&b))?;
    let is_vector = b.is_vector();
    let b = if is_vector { b.transposed() } else { b };
    check(&a, &b)?;
    if args.refine && dtype == DType::F32 {
        return Err(Failure::usage(
            "--refine: the matrices are f32, and refinement reaches f64; add --dtype f64",
        ));
    }
    let (name, (n, _), (_, width)) = (a.name().to_owned(), sides(&a)?, sides(&b)?);
    let problem = SolveProblem { a, b, n, width, is_estimated: !args.no_condition };
    let finish = |mut solved: Solved, file| {
        let report = &mut solved.report;
        if !report.is_accepted() {
            return Err(unverified(report));
        }
        if let Some(file) = file {
            let dims = if is_vector { vec![n as u64] } else { vec![n as u64, width as u64] };
            let rounded: Vec<f32> = match dtype {
                DType::F32 => solved.x.iter().map(|x| *x as f32).collect(),
                _ => Vec::new(),
            };
            let bytes: &[u8] = match dtype {
                DType::F32 => bytemuck::cast_slice(&rounded),
                _ => bytemuck::cast_slice(&solved.x),
            };
            write::write(file, &dims, dtype, std::iter::once(bytes))?;
        }
        report.output = args.output.clone();
        report.seconds.total = began.elapsed().as_secs_f64();
        report.print(&args.factor)?;
        Ok(Exit::Done)
    };
    if let Some(team) = workers::team(args)? {
        let file = write::open(args.output.as_deref())?;
        return match workers::solve(args, &problem, dtype, team)? {
            Completion::Done(solved) => finish(solved, file),
            Completion::Signal(exit) => Ok(exit),
        };
    }
    let setup = match dtype {
        _ if args.refine => Setup::new::<f32>(&args.factor, &name, (n, n), width)?,
        DType::F32 => Setup::new::<f32>(&args.factor, &name, (n, n), width)?,
        _ => Setup::new::<f64>(&args.factor, &name, (n, n), width)?,
    };
    let is_refined = args.refine;
    let full = if is_refined { Some(Setup::new::<f64>(&args.factor, &name, (n, n), width)) } else { None };
    let file = write::open(args.output.as_deref())?;
    let work = move || match (full, dtype) {
        (Some(full), _) => refined(&problem, &setup, full),
        (None, DType::F32) => direct::<f32>(&problem, &setup),
        (None, _) => direct::<f64>(&problem, &setup),
    };
    run(work, |solved| finish(solved, file))
}

/// Refuses shapes that form no system.
pub(crate) fn check(a: &Matrix, b: &Matrix) -> Result<(), Failure> {
    let (shape, right) = (a.shape(), b.shape());
    if shape.rows != shape.cols {
        return Err(failure(LuError::NotSquare { name: a.name().to_owned(), shape }));
    }
    if right.rows == shape.rows {
        return Ok(());
    }
    let hint =
        if right.cols == shape.rows { "; B has its right-hand sides in rows: transpose it" } else { "" };
    Err(Failure::failed(format!(
        "{} is {shape} and {} is {right}: B needs as many rows as A{hint}",
        a.name(),
        b.name()
    )))
}

fn unverified(report: &SolveReport) -> Failure {
    let text = format!(
        "the solution has a backward error of {:.1e}, and {:.1e} is accepted: elements grew too much during elimination, or the \
         machine computes wrongly; X was not kept{}",
        report.backward_error,
        report.tolerance,
        if report.dtype == DType::F32 { "; try --dtype f64" } else { "" }
    );
    Failure { exit: Exit::Unverified, text }
}

/// Reads A and B into one working matrix. Returns it with the norms of A.
fn loaded<S: LuElement, T: LuElement>(
    problem: &SolveProblem,
    threads: usize,
    has_b: bool,
) -> Result<(WorkingMatrix, MatrixNorms), Failure> {
    let SolveProblem { n, width, .. } = *problem;
    let working = WorkingMatrix::zeros::<T>(n, n + if has_b { width } else { 0 })?;
    let (a, b) = (problem.a.clone().converted(S::DTYPE)?, problem.b.clone().converted(S::DTYPE)?);
    let norms = load::<S, T>(&a, &working, 0, threads).map_err(failure)?;
    if has_b {
        load::<S, T>(&b, &working, n, threads).map_err(failure)?;
    }
    Ok((working, norms))
}

/// B in f64, in rows.
pub(crate) fn right_hand_sides(problem: &SolveProblem) -> Result<Vec<f64>, Failure> {
    let SolveProblem { n, width, .. } = *problem;
    let working = WorkingMatrix::zeros::<f64>(n, width)?;
    load::<f64, f64>(&problem.b.clone().converted(DType::F64)?, &working, 0, 1).map_err(failure)?;
    working.rows_of::<f64>().map_err(Failure::from)
}

/// By factors of the type of the matrices.
fn direct<T: LuElement>(problem: &SolveProblem, setup: &Setup) -> Result<Solved, Failure> {
    let mut seconds = SolveTimes::default();
    let mut at = Instant::now();
    let mut lap = |of: &mut f64| *of = std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
    let (working, norms) = loaded::<T, T>(problem, setup.options.threads, true)?;
    lap(&mut seconds.load);
    let factors = LuFactors::<T>::new(&working, problem.n, &setup.kernels, setup.options).map_err(failure)?;
    lap(&mut seconds.factor);
    factors.check().map_err(failure)?;
    let x: Vec<f64> = factors.back_substitute(problem.width).iter().map(|x| x.to_f64()).collect();
    lap(&mut seconds.solve);
    let b = right_hand_sides(problem)?;
    let kernels = check_kernels(setup.options.threads)?;
    let found = residual(&problem.a, &norms, &b, &x, problem.width, &kernels).map_err(failure)?;
    lap(&mut seconds.check);
    let factors = if problem.is_estimated { factors.finished(&working).map_err(failure)? } else { factors };
    let mut report = told(problem, setup, &found, T::DTYPE);
    if problem.is_estimated {
        report.estimate(&factors, &norms, T::UNIT);
    }
    lap(&mut seconds.condition);
    report.seconds = seconds;
    Ok(Solved { x, report })
}

/// By f32 factors and refinement, or by f64 factors if that does not converge.
fn refined(problem: &SolveProblem, setup: &Setup, full: Result<Setup, Failure>) -> Result<Solved, Failure> {
    let mut seconds = SolveTimes::default();
    let mut at = Instant::now();
    let mut lap = |of: &mut f64| *of = std::mem::replace(&mut at, Instant::now()).elapsed().as_secs_f64();
    let (working, norms) = loaded::<f64, f32>(problem, setup.options.threads, false)?;
    lap(&mut seconds.load);
    let factors =
        LuFactors::<f32>::new(&working, problem.n, &setup.kernels, setup.options).map_err(failure)?;
    let factors = factors.finished(&working).map_err(failure)?;
    lap(&mut seconds.factor);
    let found = match factors.check() {
        Ok(()) => {
            let (b, kernels) = (right_hand_sides(problem)?, check_kernels(setup.options.threads)?);
            let matrix = ReadMatrix { a: &problem.a, norms: &norms, kernels: &kernels };
            let system = MixedSystem { a: &matrix, factors: &factors };
            let most = iterations_max((problem.n, problem.width), 1, full.is_ok());
            Some(system.refine(&b, problem.width, most).map_err(failure)?)
        }
        Err(_) => None,
    };
    lap(&mut seconds.solve);
    let (rounds, iterations) = found.as_ref().map_or((0, 0), |found| (found.rounds, found.iterations));
    let Some(found) = found.filter(|found| found.has_converged) else {
        drop((factors, working));
        let mut solved = direct::<f64>(problem, &full?)?;
        solved.report.refinement = Some(Refinement { rounds, iterations, has_converged: false });
        return Ok(solved);
    };
    let mut report = told(problem, setup, &found.residual, DType::F64);
    report.refinement = Some(Refinement { rounds, iterations, has_converged: true });
    if problem.is_estimated {
        report.estimate(&factors, &norms, <f64 as LuElement>::UNIT);
    }
    lap(&mut seconds.condition);
    report.seconds = seconds;
    Ok(Solved { x: found.x, report })
}

/// Columns of A for each permitted iteration of GMRES: n/256 iterations take less time than factors in f64 (`bench/lu.py --part
/// refine`).
const COLUMNS_EACH: usize = 256;

/// Most iterations of GMRES for all right-hand sides together, with factors on that number of machines: they factor at the same
/// time, and solve one after another. Where factors in f64 do not fit, nothing else is left.
pub(crate) fn iterations_max((n, width): (usize, usize), machines: usize, has_other: bool) -> usize {
    let most = KRYLOV_MAX * width;
    if has_other { most.min(n / COLUMNS_EACH / machines.max(1)) } else { most }
}

/// The report of a solution, without its times and its condition.
fn told(problem: &SolveProblem, setup: &Setup, found: &Residual, dtype: DType) -> SolveReport {
    SolveReport {
        n: problem.n,
        width: problem.width,
        dtype,
        options: setup.options,
        kernel: setup.kernels.one.name().to_owned(),
        at_workers: None,
        memory_bytes: setup.memory_bytes,
        backward_error: found.backward_error,
        tolerance: accepted_error(problem.n, dtype),
        condition: None,
        refinement: None,
        seconds: SolveTimes::default(),
        output: None,
    }
}
