//! The names of the kernels, and the user's choice among them.

use std::fmt;
use std::str::FromStr;

use bramble_matrix::{DType, Winograd};

use crate::{KernelError, strassen};

/// A kernel by name, in the order of lists for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelName {
    /// Plain loops: slow, and the reference for all other kernels.
    Reference,
    /// Vector instructions chosen at run time; always available.
    Simd,
    /// OpenBLAS, if it is installed.
    OpenBlas,
    /// BLIS, if it is installed.
    Blis,
}

impl KernelName {
    /// Every kernel.
    pub const ALL: [Self; 4] = [Self::Reference, Self::Simd, Self::OpenBlas, Self::Blis];

    /// The name on the command line and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Simd => "simd",
            Self::OpenBlas => "openblas",
            Self::Blis => "blis",
        }
    }

    /// Whether the kernel multiplies elements of that type; known without opening it.
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            Self::Reference | Self::Simd => true,
            Self::OpenBlas | Self::Blis => dtype.is_float(),
        }
    }

    /// The kernels for that type, comma-separated.
    pub(crate) fn able(dtype: DType) -> String {
        join(Self::ALL.iter().filter(|name| name.supports(dtype)))
    }
}

fn join<'a>(names: impl Iterator<Item = &'a KernelName>) -> String {
    names.map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for KernelName {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        Self::ALL.into_iter().find(|known| known.as_str() == name).ok_or_else(|| KernelError::Unknown {
            name: name.to_owned(),
            known: format!("{}, blocked:BASE:EDGE, strassen:BASE:CUTOFF", join(Self::ALL.iter())),
        })
    }
}

/// The user's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The fastest one that is available.
    #[default]
    Auto,
    /// This one and no other.
    Named(KernelName),
    /// Block multiplication with a base kernel.
    Blocked {
        /// The kernel for the pieces.
        base: KernelName,
        /// Edge of the pieces; `None` is the default.
        edge: Option<u32>,
    },
    /// Strassen's method, in Winograd's form, with a base kernel.
    Strassen {
        /// The kernel after the last level.
        base: KernelName,
        /// Least side of a product for the base kernel; `None` is the default of the element type.
        cutoff: Option<u32>,
    },
}

/// Largest edge or cut-off that a user can give.
const NUMBER_MAX: u32 = 1 << 20;

impl Choice {
    /// Names of the kernels with a base kernel, and the meaning of the number after it.
    const OVER: [(&str, &str); 2] = [("blocked", "EDGE"), ("strassen", "CUTOFF")];

    /// The rules by which Strassen's method cuts products; `None` for all other kernels, whose elements are all
    /// within the bound for classical products.
    pub fn levels(self, dtype: DType) -> Option<Winograd> {
        match self {
            Self::Strassen { cutoff, .. } => {
                Some(Winograd { cutoff: cutoff.map_or_else(|| strassen::cutoff(dtype), u64::from) })
            }
            Self::Auto | Self::Named(_) | Self::Blocked { .. } => None,
        }
    }

    /// Parses the part after the colon of a kernel with a base kernel: `BASE`, `BASE:NUMBER`, or `NUMBER` over simd.
    fn over(kernel: &str, what: &str, rest: Option<&str>) -> Result<(KernelName, Option<u32>), KernelError> {
        let Some(rest) = rest else { return Ok((KernelName::Simd, None)) };
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let (base, number) = match rest.split_once(':') {
            Some((base, number)) => (base, Some(number)),
            None if is_number(rest) => (KernelName::Simd.as_str(), Some(rest)),
            None => (rest, None),
        };
        let base: KernelName = base.parse().map_err(|_| KernelError::Base {
            kernel: kernel.to_owned(),
            base: base.to_owned(),
            known: join(KernelName::ALL.iter()),
        })?;
        let number = number.map(|text| {
            text.parse().ok().filter(|n| is_number(text) && (1..=NUMBER_MAX).contains(n)).ok_or_else(|| {
                let form = format!("{kernel}:{base}:{what}");
                KernelError::Number { form, what: what.to_owned(), text: text.to_owned(), max: NUMBER_MAX }
            })
        });
        Ok((base, number.transpose()?))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = |name: &str, base: &KernelName, number: &Option<u32>| match number {
            Some(number) => format!("{name}:{base}:{number}"),
            None => format!("{name}:{base}"),
        };
        match self {
            Self::Auto => f.pad("auto"),
            Self::Named(name) => name.fmt(f),
            Self::Blocked { base, edge } => f.pad(&over("blocked", base, edge)),
            Self::Strassen { base, cutoff } => f.pad(&over("strassen", base, cutoff)),
        }
    }
}

impl FromStr for Choice {
    type Err = KernelError;

    fn from_str(text: &str) -> Result<Self, KernelError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        if let Some((name, what)) = Self::OVER.into_iter().find(|(over, _)| *over == name) {
            let (base, number) = Self::over(name, what, rest)?;
            return Ok(match name {
                "blocked" => Self::Blocked { base, edge: number },
                _ => Self::Strassen { base, cutoff: number },
            });
        }
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Named) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        assert_eq!("auto".parse::<Choice>().unwrap(), Choice::Auto);
        for name in KernelName::ALL {
            assert_eq!(name.to_string().parse::<Choice>().unwrap(), Choice::Named(name));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let text = "mkl".parse::<Choice>().unwrap_err().to_string();
        assert_eq!(
            text,
            "there is no kernel 'mkl'; use one of: auto, reference, simd, openblas, blis, blocked:BASE:EDGE, strassen:BASE:CUTOFF"
        );
    }

    #[test]
    fn kernels_over_others_are_read_with_what_is_left_away() {
        for (text, full) in [
            ("blocked", "blocked:simd"),
            ("blocked:openblas:64", "blocked:openblas:64"),
            ("strassen", "strassen:simd"),
            ("strassen:blis", "strassen:blis"),
            ("strassen:64", "strassen:simd:64"),
            ("blocked:32", "blocked:simd:32"),
            ("strassen:reference:16", "strassen:reference:16"),
        ] {
            let read = text.parse::<Choice>().unwrap();
            assert_eq!(read.to_string(), full);
            assert_eq!(full.parse::<Choice>().unwrap(), read);
        }
    }

    #[test]
    fn what_cannot_be_read_is_answered_with_the_form() {
        let said = |text: &str| text.parse::<Choice>().unwrap_err().to_string();
        assert_eq!(
            said("strassen:mkl"),
            "the kernel 'strassen' cannot be over 'mkl'; use one of: reference, simd, openblas, blis"
        );
        assert_eq!(said("blocked:strassen"), said("blocked:mkl").replace("mkl", "strassen"));
        for bad in ["0", "", "+5", "x", "9999999", "5:6"] {
            let text =
                format!("'{bad}' is no CUTOFF: use strassen:simd:CUTOFF with a number from 1 to 1048576");
            assert_eq!(said(&format!("strassen:simd:{bad}")), text);
        }
        assert!(said("blocked:simd:0").contains("EDGE") && said("blocked:0").contains("EDGE"));
    }

    #[test]
    fn only_strassen_has_rules_for_levels() {
        let rules = |text: &str| text.parse::<Choice>().unwrap().levels(DType::F64).map(|rules| rules.cutoff);
        assert_eq!((rules("auto"), rules("simd"), rules("blocked:simd:64")), (None, None, None));
        assert_eq!(
            (rules("strassen"), rules("strassen:blis:7")),
            (Some(strassen::cutoff(DType::F64)), Some(7))
        );
    }
}
