//! The text of `bench hpl`: the lines of HPL's output that its readers look for, and below them what HPL does not say.
//!
//! The first column names the variant as HPL does: wall time, column-major processes, look-ahead, ring, and the recursive panel.

use super::point::{HplPlace, HplPoint};
use crate::on_workers::{block_line, left_out_lines};
use crate::workers_report::speed_text;
use bramble_lu::hpl::THRESHOLD;
use bramble_primary::{SystemLosses, SystemPlan, SystemShare};
use bramble_report::losses;
use bramble_report::quantity::{bytes, counted, seconds};
use std::fmt::Write;

/// Look-ahead of 1, one ring, right-looking recursion in 2 parts down to 8 columns and more, left-looking below.
const VARIANT: &str = "WC10R2L8";

/// The text of all points of one order.
pub(super) fn text(points: &[HplPoint]) -> String {
    let (thick, thin) = ("=".repeat(80), "-".repeat(80));
    let mut out = format!(
        "{thick}\nLU with partial pivoting by the rules of HPL 2.3, by Bramble {}: not HPLinpack itself\n{thick}\n",
        env!("CARGO_PKG_VERSION")
    );
    for point in points {
        // Writing to a `String` cannot fail.
        let _ = result(point, &mut out);
    }
    let passed = points.iter().filter(|point| point.check.is_valid()).count();
    let (tests, failed) = (points.len(), points.len() - passed);
    let skipped = 0;
    out + &format!(
        "\nFinished {tests:6} tests with the following results:\n\
         {passed:15} tests completed and passed residual checks,\n\
         {failed:15} tests completed and failed residual checks,\n\
         {skipped:15} tests skipped because of illegal input values.\n\
         {thin}\n\nEnd of Tests.\n{thick}\n"
    )
}

fn result(point: &HplPoint, out: &mut String) -> std::fmt::Result {
    let (thick, thin) = ("=".repeat(80), "-".repeat(80));
    let (order, block) = (point.order, point.block);
    let (time, gflops) = (point.times.median(), point.gflops());
    writeln!(
        out,
        "T/V                N    NB     P     Q               Time                 Gflops\n{thin}"
    )?;
    let rate = exponential(gflops);
    writeln!(
        out,
        "{VARIANT}{order:12} {:5} {:5} {:5} {time:18.2}    {rate:>19}",
        block,
        1,
        point.place.machines()
    )?;
    writeln!(out, "HPL_pdgesv() start time {}\n", point.start.ctime())?;
    writeln!(out, "HPL_pdgesv() end time   {}\n", point.end.ctime())?;
    let verdict = if point.check.is_valid() { "PASSED" } else { "FAILED" };
    let residual = residual(point.check.scaled_residual);
    writeln!(out, "{thin}\n||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {residual} ...... {verdict}")?;
    if !point.check.is_valid() {
        writeln!(out, "||Ax-b||_oo . . . . . . . . . . . . . . . . . = {:18.6}", point.check.residual_inf)?;
        writeln!(out, "(a solution is valid below {THRESHOLD})")?;
    }
    let check = &point.check;
    writeln!(out, "||A||_oo . . . . . . . . . . . . . . . . . . . = {:18.6}", check.norms.inf)?;
    writeln!(out, "||A||_1  . . . . . . . . . . . . . . . . . . . = {:18.6}", check.norms.one)?;
    writeln!(out, "||x||_oo . . . . . . . . . . . . . . . . . . . = {:18.6}", check.x_inf)?;
    writeln!(out, "||x||_1  . . . . . . . . . . . . . . . . . . . = {:18.6}", check.x_one)?;
    writeln!(out, "||b||_oo . . . . . . . . . . . . . . . . . . . = {:18.6}\n{thin}", check.b_inf)?;
    rates(point, out)?;
    if let Some(official) = &point.official {
        writeln!(out, "{}", official.line(gflops))?;
    }
    writeln!(out, "{thick}")
}

/// The rate, the machines, the bound and the prediction.
fn rates(point: &HplPoint, out: &mut String) -> std::fmt::Result {
    let (gflops, all) = (point.gflops(), point.place.product_gflops());
    let part = gflops / all;
    match &point.place {
        HplPlace::Threads { threads, kernel, .. } => {
            let threads = counted(*threads as u64, "thread");
            writeln!(
                out,
                "rate      {gflops:.1} Gflop/s: {part:.2} of the {all:.1} that {threads} multiply together ({kernel})"
            )?;
        }
        HplPlace::Workers(plan, losses) => {
            writeln!(
                out,
                "rate      {gflops:.1} Gflop/s: {part:.2} of the {all:.1} that {} multiply together",
                counted(plan.shares.len() as u64, "worker")
            )?;
            for line in worker_lines(plan, losses) {
                writeln!(out, "{line}")?;
            }
        }
    }
    let estimate = &point.estimate;
    writeln!(
        out,
        "bound     no LU on these {} takes less than {} ({}); {} predicted, {} measured",
        if point.place.machines() > 1 { "workers" } else { "threads" },
        seconds(estimate.bound_seconds),
        estimate.bound_by,
        seconds(estimate.seconds),
        seconds(point.times.median())
    )
}

/// The line `blocks`, then a line for each worker that computed, was left out, or was lost.
pub(super) fn worker_lines(plan: &SystemPlan, losses: &SystemLosses) -> Vec<String> {
    let of = |share: &SystemShare| {
        let SystemShare { name, columns, bytes: memory, .. } = share;
        format!("worker    {name}: {columns} columns, {}; {}", bytes(*memory as f64), speed_text(share))
    };
    let mut lines = vec![block_line(plan)];
    lines.extend(plan.shares.iter().map(of));
    lines.extend(left_out_lines(&plan.left_out));
    lines.extend(losses::lines(losses));
    lines
}

/// A table of the points with different numbers of workers: how the rate grows with them.
pub(super) fn scaling(points: &[HplPoint]) -> String {
    let mut out = "\n       N    NB workers    Gflop/s  of products  speed-up\n".to_owned();
    for point in points {
        let alone = points.iter().find(|one| one.order == point.order && one.place.machines() == 1);
        let gain =
            alone.map_or_else(|| "-".to_owned(), |one| format!("{:.2}", point.gflops() / one.gflops()));
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "{:8} {:5} {:7} {:10.1} {:12.2} {gain:>9}",
            point.order,
            point.block,
            point.place.machines(),
            point.gflops(),
            point.gflops() / point.place.product_gflops()
        );
    }
    out
}

/// As C's `%.8e` prints it, in 18 columns.
fn residual(x: f64) -> String {
    let (digits, exponent) = parts(x, 8);
    format!("{:>18}", format!("{digits}e{exponent}"))
}

/// As C's `%.4e` prints it.
fn exponential(x: f64) -> String {
    let (digits, exponent) = parts(x, 4);
    format!("{digits}e{exponent}")
}

/// Digits, and an exponent of a sign and at least two digits.
fn parts(x: f64, digits: usize) -> (String, String) {
    let text = format!("{x:.digits$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, number) = exponent.strip_prefix('-').map_or(('+', exponent), |number| ('-', number));
            (digits.to_owned(), format!("{sign}{number:0>2}"))
        }
        // Infinite or NaN.
        None => (text, String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_c_prints_them() {
        assert_eq!(exponential(132.97), "1.3297e+02");
        assert_eq!(exponential(0.001), "1.0000e-03");
        assert_eq!(residual(0.003_701_121_3), "    3.70112130e-03");
        assert!(exponential(f64::INFINITY).starts_with("inf"));
    }
}
