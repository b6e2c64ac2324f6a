//! Digests of results, as JSON objects show them.

/// BLAKE3 of C's bytes, in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(bytes);
    hasher.finalize().to_hex().to_string()
}
