//! The names of the kernels, and the choice that a user makes among them.

use std::fmt;
use std::str::FromStr;

use bramble_matrix::DType;

use crate::KernelError;

/// A kernel by name. The order is that of the lists users read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelName {
    /// Plain loops: slow, and the truth that the others are held to.
    Reference,
    /// Vector instructions chosen at run time; always there.
    Simd,
    /// OpenBLAS, if it is installed.
    OpenBlas,
    /// BLIS, if it is installed.
    Blis,
}

impl KernelName {
    /// Every kernel.
    pub const ALL: [Self; 4] = [Self::Reference, Self::Simd, Self::OpenBlas, Self::Blis];

    /// The name that users type and read.
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
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == name)
            .ok_or_else(|| KernelError::Unknown { name: name.to_owned(), known: join(Self::ALL.iter()) })
    }
}

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// The fastest that is present.
    #[default]
    Auto,
    /// This one and no other.
    Named(KernelName),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl FromStr for Choice {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self, KernelError> {
        if name == "auto" { Ok(Self::Auto) } else { name.parse().map(Self::Named) }
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
        assert_eq!(text, "there is no kernel 'mkl'; use one of: auto, reference, simd, openblas, blis");
    }
}
