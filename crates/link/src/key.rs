//! The cluster key: one secret that every machine of a cluster holds, and its text, which a person can type.
//!
//! Place in the flow: the command line finds the key and passes it to the code that opens links; both ends of a
//! link prove to each other that they hold it. The key itself is never sent.
//!
//! Invariants: no message and no `Debug` output shows a key or a part of one. A text with one wrong character is
//! refused, except one in a million.
//!
//! Deliberately absent: the storage of keys (`cluster/src/key.rs`), and a comparison of keys, whose duration would
//! depend on them; people compare ids.

use ring::digest::{Context, SHA256};

/// The prefix of every key text of this version.
const PREFIX: &str = "bramble1-";
/// Crockford's base32: without i, l, o and u, which are misread or form words.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Five bytes make a group of eight characters.
const GROUP_BYTES: usize = 5;
/// Characters of the key itself.
const KEY_CHARS: usize = ClusterKey::BYTES * 8 / 5;
/// Characters of the checksum after them: 20 bits.
const CHECK_CHARS: usize = 4;
/// Prefix of the bytes that the checksum is computed of.
const CHECK_LABEL: &[u8] = b"bramble cluster key 1";
/// Prefix of the bytes that the id is computed of.
const ID_LABEL: &[u8] = b"bramble cluster key id 1";

/// The secret of a cluster: 160 random bits.
#[derive(Clone)]
pub struct ClusterKey {
    bytes: [u8; Self::BYTES],
}

/// Why a text is no key. No variant contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text does not begin like a key.
    #[error("it does not begin with {PREFIX}, as every key does")]
    Foreign,
    /// The format of a later version.
    #[error("it was made by a newer bramble: this one reads keys that begin with {PREFIX}")]
    Newer,
    /// A character that no key contains.
    #[error("character {place} is none that keys are written with: digits, and letters but for u")]
    Character {
        /// Position from 1, counted from the first character that is not blank.
        place: usize,
    },
    /// Wrong number of characters.
    #[error("it has {found} characters after {PREFIX}, not {}: some are missing, or too many", KEY_CHARS + CHECK_CHARS)]
    Length {
        /// Number of characters without hyphens.
        found: usize,
    },
    /// The checksum does not match.
    #[error("a character is wrong or missing")]
    Checksum,
}

impl ClusterKey {
    /// Bytes of a key.
    pub const BYTES: usize = 20;

    /// The key with these bytes, which have to be random.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self { bytes }
    }

    /// Parses a text. Case, hyphens and surrounding blanks are ignored; o is read as 0, i and l as 1.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        let values = values(text)?;
        if values.len() != KEY_CHARS + CHECK_CHARS {
            return Err(KeyError::Length { found: values.len() });
        }
        let (of_key, of_check) = values.split_at(KEY_CHARS);
        let mut bytes = [0; Self::BYTES];
        for (group, chars) in bytes.chunks_exact_mut(GROUP_BYTES).zip(of_key.chunks_exact(8)) {
            group.copy_from_slice(&number(chars).to_be_bytes()[8 - GROUP_BYTES..]);
        }
        let key = Self { bytes };
        if number(of_check) == key.checksum() { Ok(key) } else { Err(KeyError::Checksum) }
    }

    /// The key as text: `bramble1-` and five groups. Anyone with this text can use the cluster.
    pub fn to_text(&self) -> String {
        let mut text = PREFIX.to_owned();
        for group in self.bytes.chunks_exact(GROUP_BYTES) {
            let number = group.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            write_chars(&mut text, number, 8);
            text.push('-');
        }
        write_chars(&mut text, self.checksum(), CHECK_CHARS);
        text
    }

    /// A public name of the key, such as `7f3a-91c2`: equal for equal keys, and the key cannot be computed from it.
    pub fn id(&self) -> String {
        id_text(self.id_bytes())
    }

    /// The id as bytes, as an introduction contains it.
    pub(crate) fn id_bytes(&self) -> [u8; 4] {
        self.digest(ID_LABEL)
    }

    /// The secret itself, for the computation of the proof.
    pub(crate) fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.bytes
    }

    /// The checksum, 20 bits.
    fn checksum(&self) -> u64 {
        let d = self.digest(CHECK_LABEL);
        u64::from(u32::from_be_bytes([0, d[0], d[1], d[2]]) >> 4)
    }

    fn digest(&self, label: &[u8]) -> [u8; 4] {
        let mut context = Context::new(&SHA256);
        context.update(label);
        context.update(self.bytes());
        let mut first = [0; 4];
        first.copy_from_slice(&context.finish().as_ref()[..4]);
        first
    }
}

/// The id as text.
pub(crate) fn id_text([a, b, c, d]: [u8; 4]) -> String {
    format!("{a:02x}{b:02x}-{c:02x}{d:02x}")
}

impl std::fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterKey({})", self.id())
    }
}

/// Five bits for each character after the prefix, without the hyphens.
fn values(text: &str) -> Result<Vec<u8>, KeyError> {
    let (Some(start), Some(rest)) = (text.get(..PREFIX.len()), text.get(PREFIX.len()..)) else {
        return Err(KeyError::Foreign);
    };
    if !start.eq_ignore_ascii_case(PREFIX) {
        return Err(if is_newer(text) { KeyError::Newer } else { KeyError::Foreign });
    }
    let mut values = Vec::with_capacity(KEY_CHARS + CHECK_CHARS);
    for (at, c) in rest.chars().enumerate().filter(|(_, c)| *c != '-') {
        let c = match c.to_ascii_lowercase() {
            'o' => '0',
            'i' | 'l' => '1',
            c => c,
        };
        let value = (0..).zip(ALPHABET).find(|(_, known)| char::from(**known) == c);
        let (value, _) = value.ok_or(KeyError::Character { place: PREFIX.len() + at + 1 })?;
        values.push(value);
    }
    Ok(values)
}

/// Whether the text begins like a key of a later version: `bramble`, a number above 1, a hyphen.
fn is_newer(text: &str) -> bool {
    let version = text.split_once('-').map(|(start, _)| start.to_ascii_lowercase());
    let number = version.as_deref().and_then(|v| v.strip_prefix("bramble")).and_then(|n| n.parse().ok());
    number.is_some_and(|n: u32| n > 1)
}

fn number(values: &[u8]) -> u64 {
    values.iter().fold(0, |sum, value| sum << 5 | u64::from(*value))
}

/// The last `5 * chars` bits of the number.
fn write_chars(text: &mut String, number: u64, chars: usize) {
    for at in (0..chars).rev() {
        text.push(char::from(ALPHABET[usize::from((number >> (5 * at)).to_le_bytes()[0] & 31)]));
    }
}

#[cfg(test)]
mod tests;
