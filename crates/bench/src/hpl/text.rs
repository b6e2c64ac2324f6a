//! The text of `bench hpl`: the lines of HPL's output that its readers look for, and below them what HPL does not say.
//!
//! The first column names the variant as HPL does: wall time, column-major processes, look-ahead, ring, and the recursive panel.

use super::point::{HplCase, HplPoint};
use bramble_lu::hpl::THRESHOLD;
use bramble_report::quantity::seconds;
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
    let HplCase { order, options, kernels, rates } = &point.case;
    let (time, gflops) = (point.times.median(), point.gflops());
    writeln!(
        out,
        "T/V                N    NB     P     Q               Time                 Gflops\n{thin}"
    )?;
    let rate = exponential(gflops);
    writeln!(out, "{VARIANT}{order:12} {:5} {:5} {:5} {time:18.2}    {rate:>19}", options.block, 1, 1)?;
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
    let threads = crate::plot::threads(options.threads as u64);
    writeln!(
        out,
        "rate      {gflops:.1} Gflop/s: {:.2} of the {:.1} that {threads} multiply together ({})",
        gflops / rates.product_gflops,
        rates.product_gflops,
        kernels.one.name()
    )?;
    let (bound, predicted) = (seconds(point.estimate.bound_seconds), seconds(point.estimate.seconds));
    writeln!(
        out,
        "bound     no LU on these threads takes less than {bound}; {predicted} predicted, {} measured",
        seconds(time)
    )?;
    if let Some(official) = &point.official {
        writeln!(out, "{}", official.line(gflops))?;
    }
    writeln!(out, "{thick}")
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
