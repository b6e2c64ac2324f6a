//! What `solve` and `lu` tell: text for a person, one JSON object for a program (docs/json.md).

use crate::args::FactorArgs;
use crate::on_workers::merged;
use crate::workers_report::{self, WorkersReport};
use bramble_kernel::lu::LuElement;
use bramble_lu::{LuFactors, LuOptions, MatrixNorms};
use bramble_matrix::DType;
use bramble_report::exit::Failure;
use bramble_report::quantity::{bytes, counted, seconds};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Seconds of each part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SolveTimes {
    pub(crate) load: f64,
    pub(crate) factor: f64,
    /// The way of A and B to the workers, a part of `factor`.
    pub(crate) sent: f64,
    pub(crate) solve: f64,
    pub(crate) check: f64,
    pub(crate) condition: f64,
    pub(crate) total: f64,
}

/// Seconds of each part of a factorisation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LuTimes {
    pub(crate) load: f64,
    pub(crate) factor: f64,
    /// The way of A to the workers, a part of `factor`.
    pub(crate) sent: f64,
    /// The way of the factors from the workers.
    pub(crate) home: f64,
    pub(crate) check: f64,
    pub(crate) total: f64,
}

/// How the refinement ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refinement {
    pub(crate) rounds: usize,
    /// Of GMRES, after the rounds.
    pub(crate) iterations: usize,
    pub(crate) has_converged: bool,
}

/// How sensitive the solution is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Condition {
    /// Estimate of ‖A‖₁ ‖A⁻¹‖₁.
    pub(crate) number: f64,
    /// The column that depends most on those before it, if no digit of the solution is certain.
    pub(crate) weakest: Option<usize>,
    unit: f64,
}

impl Condition {
    /// Decimal digits of X that are right at least, roughly.
    fn digits(&self) -> f64 {
        (-(self.number * self.unit).log10()).floor().max(0.0)
    }
}

/// The report of a solution.
#[derive(Clone, Debug)]
pub(crate) struct SolveReport {
    pub(crate) n: usize,
    pub(crate) width: usize,
    pub(crate) dtype: DType,
    pub(crate) options: LuOptions,
    pub(crate) kernel: String,
    /// The workers; `None` if this process computed.
    pub(crate) at_workers: Option<WorkersReport>,
    /// With workers, of all of them together.
    pub(crate) memory_bytes: u64,
    pub(crate) backward_error: f64,
    pub(crate) tolerance: f64,
    pub(crate) condition: Option<Condition>,
    pub(crate) refinement: Option<Refinement>,
    pub(crate) seconds: SolveTimes,
    pub(crate) output: Option<PathBuf>,
}

impl SolveReport {
    /// Whether the backward error is small enough.
    pub(crate) fn is_accepted(&self) -> bool {
        self.backward_error <= self.tolerance
    }

    /// Adds the condition; `unit` is the unit roundoff of the solution.
    pub(crate) fn estimate<T: LuElement>(&mut self, factors: &LuFactors<T>, norms: &MatrixNorms, unit: f64) {
        let number = factors.condition(norms);
        let weakest = (number * unit >= 1.0).then(|| factors.weakest_column()).flatten();
        self.condition = Some(Condition { number, weakest, unit });
    }

    /// Operations of the factorisation and the substitutions.
    fn flops(&self) -> f64 {
        let (n, width) = (self.n as f64, self.width as f64);
        n * n * (2.0 / 3.0 * n + 2.0 * width)
    }

    fn gflops(&self) -> f64 {
        self.flops() / (self.seconds.factor + self.seconds.solve).max(1e-9) / 1e9
    }

    /// Prints the report in the form that the options ask for, and the warning about a nearly singular matrix.
    pub(crate) fn print(&self, args: &FactorArgs) -> Result<(), Failure> {
        if let Some(column) = self.condition.and_then(|condition| condition.weakest) {
            bramble_report::say(&format!(
                "bramble: warning: the matrix is nearly singular: column {column} (counted from 0) is almost a combination of \
                 the columns before it; no digit of X is certain"
            ));
        }
        if args.json {
            bramble_report::out(format!("{}\n", self.json()).as_bytes())?;
        } else if !args.quiet {
            bramble_report::out(self.text().as_bytes())?;
        }
        Ok(())
    }

    fn text(&self) -> String {
        let SolveTimes { load, factor, solve, total, .. } = self.seconds;
        let place = place(self.output.as_deref());
        let (threads, block) = (counted(self.options.threads as u64, "thread"), self.options.block);
        let places = computed_by(self.at_workers.as_ref(), &threads, &self.kernel);
        let mut out = vec![
            format!("X         {}x{} {}: {place}", self.n, self.width, self.dtype),
            format!("time      {}  {:.1} Gflop/s", seconds(factor + solve), self.gflops()),
            format!("lu        {places}, panels of {block} columns"),
            format!("memory    {}", bytes(self.memory_bytes as f64)),
        ];
        out.extend(self.at_workers.iter().flat_map(WorkersReport::lines));
        out.extend(self.refinement.map(|refinement| {
            let mut rounds = counted(refinement.rounds as u64, "correction");
            if refinement.iterations > 0 {
                rounds += &format!(" and {} of GMRES", counted(refinement.iterations as u64, "iteration"));
            }
            match refinement.has_converged {
                true => format!("refined   f32 factors, {rounds} in f64"),
                false => format!("refined   no: not converged after {rounds}; factored in f64 instead"),
            }
        }));
        out.extend(self.condition.map(|condition| {
            let (digits, all) = (condition.digits(), (-condition.unit.log10()).floor());
            format!(
                "condition about {:.1e}: at least {digits} of {all} digits of X are right",
                condition.number
            )
        }));
        out.push(format!(
            "verified  yes: backward error {:.1e}, and {:.1e} is accepted",
            self.backward_error, self.tolerance
        ));
        out.push(format!("total     {}, of which {} to read A and B", seconds(total), seconds(load)));
        out.join("\n") + "\n"
    }

    fn json(&self) -> Value {
        let SolveTimes { load, factor, sent, solve, check, condition, total } = self.seconds;
        let object = json!({
            "schema": "bramble.solve/1",
            "n": self.n,
            "right_hand_sides": self.width,
            "dtype": self.dtype.name(),
            "threads": self.options.threads,
            "kernel": self.kernel,
            "block": self.options.block,
            "seconds": {
                "load": load, "factor": factor, "sent": sent, "solve": solve, "check": check, "condition": condition,
                "total": total,
            },
            "gflops": self.gflops(),
            "memory_bytes": self.memory_bytes,
            "backward_error": self.backward_error,
            "tolerance": self.tolerance,
            "condition": self.condition.map(|one| one.number).filter(|number| number.is_finite()),
            "weakest_column": self.condition.and_then(|one| one.weakest),
            "refinement": self.refinement.map(|one| json!({
                "rounds": one.rounds, "gmres_iterations": one.iterations, "converged": one.has_converged,
            })),
            "output": self.output.as_deref().map(Path::to_string_lossy),
        });
        merged(object, &workers_report::object(self.at_workers.as_ref()))
    }
}

/// What computed: the workers, or threads of this process.
fn computed_by(workers: Option<&WorkersReport>, threads: &str, kernel: &str) -> String {
    match workers {
        None => format!("{threads}, kernel {kernel}"),
        Some(workers) => counted(workers.plan.shares.len() as u64, "worker"),
    }
}

/// Where a result is, as a user calls it.
fn place(output: Option<&Path>) -> String {
    output.map_or_else(|| "not kept (no -o)".to_owned(), |path| format!("written to {}", path.display()))
}

/// The report of a factorisation.
#[derive(Clone, Debug)]
pub(crate) struct LuReport {
    pub(crate) shape: (usize, usize),
    pub(crate) dtype: DType,
    pub(crate) options: LuOptions,
    pub(crate) kernel: String,
    /// The workers; `None` if this process computed.
    pub(crate) at_workers: Option<WorkersReport>,
    /// With workers, of all of them together.
    pub(crate) memory_bytes: u64,
    /// ‖P A w − L U w‖∞ / (‖A‖∞ ‖w‖∞) for random w.
    pub(crate) error: f64,
    pub(crate) tolerance: f64,
    /// The first column whose pivot is 0.
    pub(crate) singular: Option<usize>,
    pub(crate) seconds: LuTimes,
    /// The files of the factors and of the pivots.
    pub(crate) output: Option<(PathBuf, PathBuf)>,
}

impl LuReport {
    fn gflops(&self) -> f64 {
        let (long, short) = (self.shape.0.max(self.shape.1) as f64, self.shape.0.min(self.shape.1) as f64);
        short * short * (long - short / 3.0) / self.seconds.factor.max(1e-9) / 1e9
    }

    /// Prints the report in the form that the options ask for.
    pub(crate) fn print(&self, args: &FactorArgs) -> Result<(), Failure> {
        if let Some(column) = self.singular {
            bramble_report::say(&format!(
                "bramble: warning: the matrix is singular: column {column} (counted from 0) is a combination of the columns \
                 before it"
            ));
        }
        match (args.json, args.quiet) {
            (true, _) => bramble_report::out(format!("{}\n", self.json()).as_bytes()).map(drop),
            (false, true) => Ok(()),
            (false, false) => bramble_report::out(self.text().as_bytes()).map(drop),
        }
    }

    fn text(&self) -> String {
        let LuTimes { load, factor, home, total, .. } = self.seconds;
        let place = match &self.output {
            Some((factors, pivots)) => format!("written to {} and {}", factors.display(), pivots.display()),
            None => place(None),
        };
        let (threads, block) = (counted(self.options.threads as u64, "thread"), self.options.block);
        let places = computed_by(self.at_workers.as_ref(), &threads, &self.kernel);
        let mut out = vec![
            format!("LU        {}x{} {}: {place}", self.shape.0, self.shape.1, self.dtype),
            format!("time      {}  {:.1} Gflop/s", seconds(factor), self.gflops()),
            format!("lu        {places}, panels of {block} columns"),
            format!("memory    {}", bytes(self.memory_bytes as f64)),
        ];
        out.extend(self.at_workers.iter().flat_map(WorkersReport::lines));
        if self.at_workers.is_some() {
            out.push(format!("home      {} for the factors to come from the workers", seconds(home)));
        }
        out.push(format!(
            "verified  yes: P A and L U differ by {:.1e}, and {:.1e} is accepted",
            self.error, self.tolerance
        ));
        out.push(format!("total     {}, of which {} to read A", seconds(total), seconds(load)));
        out.join("\n") + "\n"
    }

    fn json(&self) -> Value {
        let LuTimes { load, factor, sent, home, check, total } = self.seconds;
        let name = |path: &PathBuf| path.to_string_lossy().into_owned();
        let object = json!({
            "schema": "bramble.lu/1",
            "rows": self.shape.0,
            "cols": self.shape.1,
            "dtype": self.dtype.name(),
            "threads": self.options.threads,
            "kernel": self.kernel,
            "block": self.options.block,
            "seconds": {"load": load, "factor": factor, "sent": sent, "home": home, "check": check, "total": total},
            "gflops": self.gflops(),
            "memory_bytes": self.memory_bytes,
            "error": self.error,
            "tolerance": self.tolerance,
            "singular_column": self.singular,
            "output": self.output.as_ref().map(|(factors, _)| name(factors)),
            "pivots": self.output.as_ref().map(|(_, pivots)| name(pivots)),
        });
        merged(object, &workers_report::object(self.at_workers.as_ref()))
    }
}
