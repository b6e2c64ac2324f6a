//! `bramble bench link`: measures links by the functions and conventions of MPI benchmarks.
//!
//! Place in the flow: `measure` turns the configuration into points; `show` prints them, `plot` draws them. Below,
//! `conduct` coordinates the ends of a `mesh`, `pairs` and `collective` are the functions, over messages of `end`;
//! `bare` measures the operating system without Bramble.
//!
//! Invariants: no process outlives the verb, however it ends; each file states its own invariants.
//!
//! Deliberately absent: other machines and other programs (`bench/*.py` measures them), and encrypted links.

mod bare;
mod collective;
mod conduct;
mod end;
mod function;
mod measure;
mod mesh;
mod pairs;
mod plot;
mod show;

pub(crate) use bare::run_bare;
pub(crate) use function::Function;
pub(crate) use mesh::{LinkName, follow, run_end};
pub(super) use mesh::{hidden, reap};

use super::machine;
use super::show::Form;
use crate::args::BenchLinkArgs;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_report::exit::{Exit, Failure};
use measure::{LinkBenchConfig, LinkPoint, Tell};

/// Runs the verb.
pub(crate) fn run(args: &BenchLinkArgs) -> Result<Exit, Failure> {
    args.form.plot.check()?;
    let form = Form::of(&args.form.runs);
    let made_here: Vec<LinkName> = LinkName::ALL.iter().copied().filter(|link| link.is_made_here()).collect();
    let wanted = LinkBenchConfig {
        links: once(&args.link, &made_here),
        ranks: args.ranks.clone(),
        functions: once(&args.function, &Function::ALL),
        sizes: args.size.clone(),
        ends: args.ends.iter().map(|ends| usize::from(*ends)).collect(),
        rounds: args.form.runs.rounds,
    };
    let mut told = Told { form, points: Vec::new(), left_out: Vec::new() };
    bramble_report::out(machine::head(form, show::CSV_HEAD).as_bytes())?;
    if let Completion::Signal(exit) = done_or_signal(measure::all(&wanted, &mut told))? {
        return Ok(exit);
    }
    show::warnings(&told.points).iter().for_each(|line| bramble_report::say(line));
    args.form.plot.write(|| plot::svg(&told.points))?;
    Ok(Exit::Done)
}

/// The named items without duplicates; all items if none is named.
fn once<T: Copy + PartialEq>(named: &[T], all: &[T]) -> Vec<T> {
    let named = if named.is_empty() { all } else { named };
    let mut out = Vec::new();
    for one in named {
        if !out.contains(one) {
            out.push(*one);
        }
    }
    out
}

/// Prints points as they are measured.
struct Told {
    form: Form,
    points: Vec<LinkPoint>,
    left_out: Vec<String>,
}

impl Tell for Told {
    fn points(&mut self, points: Vec<LinkPoint>) -> Result<(), Failure> {
        bramble_report::out(show::lines(self.form, &points).as_bytes())?;
        self.points.extend(points);
        Ok(())
    }

    fn left_out(&mut self, what: &str) {
        if !self.left_out.iter().any(|known| known == what) {
            bramble_report::say(&format!("bramble: {what}"));
            self.left_out.push(what.to_owned());
        }
    }

    fn done(&mut self, function: Function) -> Result<(), Failure> {
        let of_function: Vec<&LinkPoint> = self.points.iter().filter(|p| p.function == function).collect();
        if self.form == Form::Table && !of_function.is_empty() {
            bramble_report::out((show::table(function, &of_function).join("\n") + "\n\n").as_bytes())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::once;

    #[test]
    fn each_is_measured_once_and_all_if_none_is_named() {
        assert_eq!(once(&[3, 1, 3], &[1, 2, 3]), [3, 1]);
        assert_eq!(once(&[], &[1, 2, 3]), [1, 2, 3]);
    }
}
