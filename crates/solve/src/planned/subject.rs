//! The run that is planned: of a benchmark's system, which the workers generate, or of matrices, whose columns are sent.
//!
//! Place in the flow: from the first words of the command line, before any machine is contacted.
//!
//! Invariant: what forms no system is refused as by the verb itself.

use super::PlanLuArgs;
use crate::factor_workers;
use crate::system::check;
use bramble_matrix::{DType, Matrix};
use bramble_primary::SystemSource;
use bramble_report::exit::Failure;
use std::ffi::OsStr;

/// What the workers would do.
#[derive(Clone, Debug)]
pub(super) enum PlanSubject {
    /// `bench hpl` with this order.
    Hpl(usize),
    /// `bench hpl --mxp` with this order.
    HplMxp(usize),
    /// `solve`.
    Solve { a: Matrix, b: Matrix, is_refined: bool },
    /// `lu`.
    Factor { a: Matrix },
}

impl PlanSubject {
    /// From the command line.
    pub(super) fn of(args: &PlanLuArgs) -> Result<Self, Failure> {
        let refused = |option: &str, why: &str| Err(Failure::usage(format!("{option}: {why}")));
        if let Some(order) = order(&args.a)? {
            return match (&args.b, args.mxp) {
                (Some(_), _) => {
                    refused("B", "the workers generate a system of order N with its right-hand side")
                }
                (None, true) => Ok(Self::HplMxp(order)),
                (None, false) => Ok(Self::Hpl(order)),
            };
        }
        if args.mxp {
            return refused("--mxp", "HPL-MxP has a system of its own: name its order N instead of a matrix");
        }
        if args.nodes.is_some() {
            return refused(
                "--nodes",
                "solve and lu use the workers with which they are fastest; name fewer",
            );
        }
        let a = Matrix::open(&args.a)?;
        let Some(b) = &args.b else {
            factor_workers::check(&a)?;
            return Ok(Self::Factor { a });
        };
        let b = Matrix::open(b)?;
        let b = if b.is_vector() { b.transposed() } else { b };
        check(&a, &b)?;
        Ok(Self::Solve { a, b, is_refined: args.refine })
    }

    /// Element type in which the workers eliminate.
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::HplMxp(_) | Self::Solve { is_refined: true, .. } => DType::F32,
            Self::Hpl(_) | Self::Solve { .. } | Self::Factor { .. } => DType::F64,
        }
    }

    /// The verb that would do it.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Hpl(_) => "bench hpl",
            Self::HplMxp(_) => "bench hpl --mxp",
            Self::Solve { is_refined: false, .. } => "solve",
            Self::Solve { is_refined: true, .. } => "solve --refine",
            Self::Factor { .. } => "lu",
        }
    }

    /// The system for the primary.
    pub(super) fn source(&self) -> Result<SystemSource, Failure> {
        Ok(match self {
            Self::Hpl(order) => SystemSource::Hpl(*order),
            Self::HplMxp(order) => SystemSource::HplMxp(*order),
            Self::Solve { a, b, .. } => SystemSource::Given { a: a.clone(), b: b.clone() },
            Self::Factor { a } => SystemSource::to_factor(a.clone())?,
        })
    }
}

/// The order that a text names; `None` if it names a matrix.
fn order(text: &OsStr) -> Result<Option<usize>, Failure> {
    let text = text.to_string_lossy();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse() {
        Ok(order) => Ok(Some(order)),
        Err(_) => Err(Failure::usage(format!("N = {text}: is too large"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_an_order_and_all_else_names_a_matrix() {
        let read = |text: &str| order(OsStr::new(text)).map_err(|e| e.text);
        assert_eq!(read("52416"), Ok(Some(52416)));
        for name in ["", "./52416", "8000.npy", "random:9x9:f64:1", "-5", "1e4"] {
            assert_eq!(read(name), Ok(None), "{name}");
        }
        assert!(read("99999999999999999999999").unwrap_err().contains("too large"));
    }
}
