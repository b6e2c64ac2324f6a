//! The element types of `.npy` files: the texts that `numpy.dtype` accepts, and the supported types among them.
//!
//! Place in the flow: `npy::parse` has found `descr` in a header, and asks for its element type.
//!
//! Deliberately absent: types of several elements (`2f8`), which are refused like structures.

use crate::element::{ByteOrder, FileElement};
use crate::error::printable;

/// The element type of a `descr`, such as `<f8`.
pub(super) fn element(descr: &Descr) -> Result<(FileElement, ByteOrder), String> {
    let text = match descr {
        Descr::Name(text) => text.as_str(),
        Descr::Structure => {
            return Err("holds structures (a dtype with fields); save one field: np.save(path, a['field'])"
                .to_owned());
        }
    };
    let (order, kind, is_bare) = match text.as_bytes().first() {
        Some(b'>') => (ByteOrder::Big, &text[1..], false),
        Some(b'<' | b'=' | b'|') => (ByteOrder::Little, &text[1..], false),
        _ => (ByteOrder::Little, text, true),
    };
    let named = if is_bare { NAMES.iter().find(|(name, _)| *name == kind) } else { None };
    let kind = named.map_or(kind, |(_, kind)| kind);
    let code = CODES.iter().find(|(code, _)| code.contains(&kind));
    code.map(|(_, element)| (*element, order)).ok_or_else(|| refused(text, kind))
}

/// NumPy's codes for the supported types, without byte order; letters are those of `dtype.char` where C's `long`
/// has 64 bits.
const CODES: [(&[&str], FileElement); 11] = [
    (&["f2", "e"], FileElement::F16),
    (&["f4", "f"], FileElement::F32),
    (&["f8", "d"], FileElement::F64),
    (&["i1", "b"], FileElement::I8),
    (&["i2", "h"], FileElement::I16),
    (&["i4", "i"], FileElement::I32),
    (&["i8", "l", "q", "p", "n"], FileElement::I64),
    (&["u1", "B"], FileElement::U8),
    (&["u2", "H"], FileElement::U16),
    (&["u4", "I"], FileElement::U32),
    (&["b1", "?"], FileElement::Bool),
];

/// Other names that `numpy.dtype` accepts for these types, without a byte order.
const NAMES: [(&str, &str); 39] = [
    ("float16", "f2"),
    ("half", "f2"),
    ("float32", "f4"),
    ("single", "f4"),
    ("float64", "f8"),
    ("double", "f8"),
    ("float", "f8"),
    ("int8", "i1"),
    ("byte", "i1"),
    ("int16", "i2"),
    ("short", "i2"),
    ("int32", "i4"),
    ("intc", "i4"),
    ("int64", "i8"),
    ("int", "i8"),
    ("int_", "i8"),
    ("intp", "i8"),
    ("long", "i8"),
    ("longlong", "i8"),
    ("uint8", "u1"),
    ("ubyte", "u1"),
    ("uint16", "u2"),
    ("ushort", "u2"),
    ("uint32", "u4"),
    ("uintc", "u4"),
    ("uint64", "u8"),
    ("uint", "u8"),
    ("uintp", "u8"),
    ("ulong", "u8"),
    ("ulonglong", "u8"),
    ("bool", "b1"),
    ("bool_", "b1"),
    ("complex64", "c8"),
    ("csingle", "c8"),
    ("complex128", "c16"),
    ("complex", "c16"),
    ("cdouble", "c16"),
    ("object", "O"),
    ("str", "U"),
];

/// Why elements of a type cannot be multiplied, and the next step.
fn refused(text: &str, kind: &str) -> String {
    let shown = printable(text);
    if matches!(kind, "u8" | "L" | "Q" | "P" | "N") {
        return format!(
            "has dtype '{shown}' (uint64), which does not fit i64; \
             save it as np.save(path, a.astype('int64')) or a.astype('float64')"
        );
    }
    let meaning = match kind.as_bytes().first() {
        Some(b'c') if kind.len() > 1 => "complex",
        Some(b'F' | b'D' | b'G') if kind.len() == 1 => "complex",
        Some(b'O') => " (Python objects)",
        Some(b'U' | b'S' | b'a' | b'c') => " (text)",
        Some(b'm' | b'M') => " (times)",
        Some(b'V') => " (raw bytes)",
        Some(b'f' | b'g') => " (a longer float)",
        _ => "",
    };
    if meaning == "complex" {
        return format!(
            "has dtype '{shown}' (complex); save the parts: np.save(path, a.real) and np.save(path, a.imag)"
        );
    }
    format!(
        "has dtype '{shown}'{meaning}, which cannot be multiplied; save it as np.save(path, a.astype('float64'))"
    )
}

/// The value of `descr`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Descr {
    /// The name of a type.
    Name(String),
    /// Fields, or arrays as elements.
    Structure,
}
