//! Reading and writing sequences of little-endian fields.

use crate::ProtocolError;
use crate::limits::TEXT_BYTES_MAX;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Reads fields from the front of a head.
pub struct FieldReader<'a> {
    bytes: &'a [u8],
}

impl<'a> FieldReader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (front, rest) = self
            .bytes
            .split_first_chunk::<N>()
            .ok_or_else(|| ProtocolError::new("a message that is too short"))?;
        self.bytes = rest;
        Ok(*front)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, ProtocolError> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, ProtocolError> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, ProtocolError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, ProtocolError> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Eight bytes, IEEE 754.
    pub fn f64(&mut self) -> Result<f64, ProtocolError> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    /// A length byte and that many bytes of UTF-8. Control characters are refused: texts end up on a
    /// terminal.
    pub fn text(&mut self) -> Result<String, ProtocolError> {
        let len = usize::from(self.u8()?);
        let (front, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| ProtocolError::new("a text that is longer than its message"))?;
        self.bytes = rest;
        let text = core::str::from_utf8(front).map_err(|_| ProtocolError::new("a text that is not UTF-8"))?;
        if text.chars().any(plays_with_terminals) {
            return Err(ProtocolError::new("a text with control characters"));
        }
        Ok(text.to_owned())
    }

    /// All remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        self.bytes
    }

    /// Checks that no bytes remain.
    pub fn end(self) -> Result<(), ProtocolError> {
        match self.bytes.len() {
            0 => Ok(()),
            n => Err(ProtocolError::new(format!("a message with {n} bytes too many"))),
        }
    }
}

/// Control characters, and characters that change the direction of the following text.
fn plays_with_terminals(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes fields one after another.
#[derive(Default)]
pub struct FieldWriter {
    bytes: Vec<u8>,
}

impl FieldWriter {
    /// Raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    /// One byte.
    pub fn u8(&mut self, x: u8) {
        self.raw(&[x]);
    }
    /// Two bytes.
    pub fn u16(&mut self, x: u16) {
        self.raw(&x.to_le_bytes());
    }
    /// Four bytes.
    pub fn u32(&mut self, x: u32) {
        self.raw(&x.to_le_bytes());
    }
    /// Eight bytes.
    pub fn u64(&mut self, x: u64) {
        self.raw(&x.to_le_bytes());
    }
    /// Eight bytes, IEEE 754.
    pub fn f64(&mut self, x: f64) {
        self.raw(&x.to_le_bytes());
    }

    /// A text, truncated to 255 bytes, without control characters.
    pub fn text(&mut self, text: &str) {
        let mut clean: String = text.chars().map(|c| if plays_with_terminals(c) { ' ' } else { c }).collect();
        while clean.len() > TEXT_BYTES_MAX {
            clean.pop();
        }
        let Ok(len) = u8::try_from(clean.len()) else { unreachable!("a text was cut to what a byte counts") };
        self.u8(len);
        self.raw(clean.as_bytes());
    }

    /// The number of the following entries, in two bytes. Panics if that is too little: each list has a lower
    /// limit.
    pub fn count(&mut self, entries: usize) {
        let Ok(count) = u16::try_from(entries) else { panic!("a list of {entries} entries in one message") };
        self.u16(count);
    }

    /// The written bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
