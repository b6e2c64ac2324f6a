//! Elements as files hold them, and their conversion to the four types that are multiplied.
//!
//! Place in the flow: `source` calls `decode` when a rectangle of a foreign file is read, and `convert`
//! when a product wants another type than the operand has. Both work on one line at a time, on bytes
//! of any alignment.
//!
//! Invariants: `decode` is exact for every element that it accepts; `convert` never turns a fraction
//! into an integer and never narrows an integer.
//!
//! Deliberately absent: unsigned 64-bit, complex and 8-bit floating-point elements. None of the four types
//! represents them exactly, so the readers refuse them, with a hint what to do.

use crate::DType;
use half::{bf16, f16};

/// An element type that a file may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileElement {
    F16,
    Bf16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    Bool,
}

/// Which byte of an element comes first in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

impl FileElement {
    /// Its name in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::Bool => "bool",
        }
    }

    /// Bytes of one element in the file.
    pub(crate) const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// The smallest of the four types that holds every value exactly.
    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::F16 | Self::Bf16 | Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::I8 | Self::I16 | Self::I32 | Self::U8 | Self::U16 | Self::Bool => DType::I32,
            Self::I64 | Self::U32 => DType::I64,
        }
    }

    /// Whether the bytes are those of `dtype()` already, so that nothing has to be converted.
    pub(crate) const fn is_native(self, order: ByteOrder) -> bool {
        matches!(order, ByteOrder::Little) && matches!(self, Self::F32 | Self::F64 | Self::I32 | Self::I64)
    }
}

/// Turns each `N` bytes of `src` into `M` bytes of `dst`.
fn each<const N: usize, const M: usize>(src: &[u8], dst: &mut [u8], f: impl Fn([u8; N]) -> [u8; M]) {
    let (src, src_rest) = src.as_chunks::<N>();
    let (dst, dst_rest) = dst.as_chunks_mut::<M>();
    assert!(src.len() == dst.len() && src_rest.is_empty() && dst_rest.is_empty(), "lines of unequal length");
    for (to, from) in dst.iter_mut().zip(src) {
        *to = f(*from);
    }
}

/// The same for a file of either byte order; `f` sees little-endian bytes.
fn each_ordered<const N: usize, const M: usize>(
    order: ByteOrder,
    src: &[u8],
    dst: &mut [u8],
    f: impl Fn([u8; N]) -> [u8; M],
) {
    match order {
        ByteOrder::Little => each(src, dst, f),
        ByteOrder::Big => each(src, dst, |mut bytes: [u8; N]| {
            bytes.reverse();
            f(bytes)
        }),
    }
}

/// Writes the elements of `src` to `dst` as `element.dtype()`.
pub(crate) fn decode(element: FileElement, order: ByteOrder, src: &[u8], dst: &mut [u8]) {
    use FileElement as E;
    match element {
        E::F16 => each_ordered(order, src, dst, |b| f16::from_le_bytes(b).to_f32().to_le_bytes()),
        E::Bf16 => each_ordered(order, src, dst, |b| bf16::from_le_bytes(b).to_f32().to_le_bytes()),
        E::F32 | E::I32 => each_ordered(order, src, dst, |b: [u8; 4]| b),
        E::F64 | E::I64 => each_ordered(order, src, dst, |b: [u8; 8]| b),
        E::I8 => each(src, dst, |b| i32::from(i8::from_le_bytes(b)).to_le_bytes()),
        E::U8 => each(src, dst, |b| i32::from(u8::from_le_bytes(b)).to_le_bytes()),
        E::Bool => each(src, dst, |b: [u8; 1]| i32::from(b[0] != 0).to_le_bytes()),
        E::I16 => each_ordered(order, src, dst, |b| i32::from(i16::from_le_bytes(b)).to_le_bytes()),
        E::U16 => each_ordered(order, src, dst, |b| i32::from(u16::from_le_bytes(b)).to_le_bytes()),
        E::U32 => each_ordered(order, src, dst, |b| i64::from(u32::from_le_bytes(b)).to_le_bytes()),
    }
}

/// Why elements of one type cannot become elements of another, or `None` where they can.
pub(crate) fn conversion_loss(from: DType, to: DType) -> Option<&'static str> {
    match (from, to) {
        (DType::F32 | DType::F64, DType::I32 | DType::I64) => Some("would lose fractions"),
        (DType::I64, DType::I32) => Some("could overflow"),
        _ => None,
    }
}

/// Writes the elements of `src` to `dst` in another type, rounding to nearest where the new type is
/// less precise. Panics for a pair that `conversion_loss` refuses.
pub(crate) fn convert(from: DType, to: DType, src: &[u8], dst: &mut [u8]) {
    use DType as D;
    match (from, to) {
        (D::F32, D::F64) => each(src, dst, |b| f64::from(f32::from_le_bytes(b)).to_le_bytes()),
        (D::F64, D::F32) => each(src, dst, |b| (f64::from_le_bytes(b) as f32).to_le_bytes()),
        (D::I32, D::I64) => each(src, dst, |b| i64::from(i32::from_le_bytes(b)).to_le_bytes()),
        (D::I32, D::F32) => each(src, dst, |b| (i32::from_le_bytes(b) as f32).to_le_bytes()),
        (D::I32, D::F64) => each(src, dst, |b| f64::from(i32::from_le_bytes(b)).to_le_bytes()),
        (D::I64, D::F32) => each(src, dst, |b| (i64::from_le_bytes(b) as f32).to_le_bytes()),
        (D::I64, D::F64) => each(src, dst, |b| (i64::from_le_bytes(b) as f64).to_le_bytes()),
        (from, to) => {
            assert_eq!(from, to, "a conversion that must be refused");
            dst.copy_from_slice(src);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded<const N: usize>(element: FileElement, order: ByteOrder, src: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        decode(element, order, src, &mut out);
        out
    }

    #[test]
    fn every_file_element_decodes_exactly_in_both_byte_orders() {
        use FileElement as E;
        let cases: [(E, Vec<u8>, Vec<u8>); 12] = [
            (E::F16, f16::from_f32(-1.5).to_le_bytes().to_vec(), (-1.5f32).to_le_bytes().to_vec()),
            (E::Bf16, bf16::from_f32(3.0).to_le_bytes().to_vec(), 3f32.to_le_bytes().to_vec()),
            (E::F32, 0.1f32.to_le_bytes().to_vec(), 0.1f32.to_le_bytes().to_vec()),
            (E::F64, 0.1f64.to_le_bytes().to_vec(), 0.1f64.to_le_bytes().to_vec()),
            (E::I8, vec![0x80], (-128i32).to_le_bytes().to_vec()),
            (E::U8, vec![0x80], 128i32.to_le_bytes().to_vec()),
            (E::Bool, vec![1], 1i32.to_le_bytes().to_vec()),
            (E::I16, (-300i16).to_le_bytes().to_vec(), (-300i32).to_le_bytes().to_vec()),
            (E::U16, 65535u16.to_le_bytes().to_vec(), 65535i32.to_le_bytes().to_vec()),
            (E::I32, i32::MIN.to_le_bytes().to_vec(), i32::MIN.to_le_bytes().to_vec()),
            (E::U32, u32::MAX.to_le_bytes().to_vec(), i64::from(u32::MAX).to_le_bytes().to_vec()),
            (E::I64, i64::MIN.to_le_bytes().to_vec(), i64::MIN.to_le_bytes().to_vec()),
        ];
        for (element, little, want) in cases {
            let big: Vec<u8> = little.iter().rev().copied().collect();
            let mut out = vec![0; element.dtype().size_bytes()];
            assert_eq!(want.len(), out.len(), "{element:?}");
            decode(element, ByteOrder::Little, &little, &mut out);
            assert_eq!(out, want, "{element:?}");
            decode(element, ByteOrder::Big, &big, &mut out);
            assert_eq!(out, want, "{element:?} big-endian");
        }
    }

    #[test]
    fn half_precision_special_values_survive() {
        let inf: [u8; 4] = decoded(FileElement::F16, ByteOrder::Little, &0x7c00u16.to_le_bytes());
        assert_eq!(f32::from_le_bytes(inf), f32::INFINITY);
        let nan: [u8; 4] = decoded(FileElement::F16, ByteOrder::Little, &0x7e00u16.to_le_bytes());
        assert!(f32::from_le_bytes(nan).is_nan());
        let tiny: [u8; 4] = decoded(FileElement::F16, ByteOrder::Little, &1u16.to_le_bytes());
        assert_eq!(f32::from_le_bytes(tiny), 2f32.powi(-24));
    }

    #[test]
    fn lossy_conversions_are_named() {
        for from in DType::ALL {
            for to in DType::ALL {
                let refused = from.is_float() && !to.is_float() || (from, to) == (DType::I64, DType::I32);
                assert_eq!(conversion_loss(from, to).is_some(), refused, "{from} to {to}");
            }
        }
    }
}
