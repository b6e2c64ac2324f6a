//! The four element types that are multiplied.
//!
//! Invariant: the numeric codes are part of the wire format and never change meaning.

use alloc::format;
use alloc::string::String;
use core::fmt;

/// Integer factors are exact up to here.
const EXACT_LIMIT: f64 = 9_007_199_254_740_992.0;

/// An element type of a product. Files may contain others (f16, bf16, big-endian); these are widened when they are
/// read and never reach a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// 32-bit two's complement, wrapping on overflow as NumPy does.
    I32,
    /// 64-bit two's complement, wrapping on overflow as NumPy does.
    I64,
}

impl DType {
    /// Every type, in code order.
    pub const ALL: [Self; 4] = [Self::F32, Self::F64, Self::I32, Self::I64];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The name that users type and read: `f32`, `f64`, `i32`, `i64`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Whether a factor is 0 or rounds to a normal number of this type. For `f32` that excludes factors below 2^-126 and above
    /// the largest `f32`. `f64` holds every factor; the caller checks factors of integers.
    pub fn holds_factor(self, factor: f64) -> bool {
        self != Self::F32 || factor == 0.0 || (factor as f32).is_normal()
    }

    /// Whether the type has this factor, which the user calls `name`; the text says what to write instead.
    pub fn check_factor(self, name: &str, factor: f64) -> Result<(), String> {
        if !factor.is_finite() {
            return Err(format!("{name} {factor}: must be a finite number"));
        }
        let is_exact = libm::trunc(factor) == factor && factor.abs() < EXACT_LIMIT;
        let fits = self != Self::I32 || (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&factor);
        if self.is_float() || (is_exact && fits) {
            return Ok(());
        }
        // A factor is read as f64, which has every whole number below this limit.
        let nearer = if self == Self::I64 { " (and nearer to 0 than 9007199254740992)" } else { "" };
        Err(format!(
            "{name} {factor}: the matrices are {self}, so it must be a whole number of that type{nearer}; or use --dtype f64"
        ))
    }

    /// The type in which NumPy computes with elements of both types.
    pub const fn promoted(self, other: Self) -> Self {
        match (self, other) {
            (Self::F32, Self::F32) => Self::F32,
            (Self::I32, Self::I32) => Self::I32,
            (Self::I32 | Self::I64, Self::I32 | Self::I64) => Self::I64,
            _ => Self::F64,
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F64 => 1,
            Self::I32 => 2,
            Self::I64 => 3,
        }
    }

    /// The type with that wire code, if there is one.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::F32),
            1 => Some(Self::F64),
            2 => Some(Self::I32),
            3 => Some(Self::I64),
            _ => None,
        }
    }

    /// The type with that name; NumPy's long names (`float32`, `int64`, …) are taken too.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "f32" | "float32" => Some(Self::F32),
            "f64" | "float64" => Some(Self::F64),
            "i32" | "int32" => Some(Self::I32),
            "i64" | "int64" => Some(Self::I64),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(DType::parse(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_code(4), None);
        assert_eq!(DType::parse("f16"), None);
    }
}
