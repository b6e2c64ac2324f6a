//! Reads text files that users write: hostfiles and descriptions of clusters.
//!
//! Invariant: at most one byte more than the limit is read, whatever the path names. A device may be endless although
//! its size is 0.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The text of a file of at most `bytes_max` bytes; `what` names the expected contents in errors. An error does not
/// name the path.
pub fn read(path: &Path, bytes_max: u64, what: &str) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("cannot be read: {e}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if u64::try_from(bytes.len()).is_ok_and(|read| read > bytes_max) {
        return Err(format!("more than {bytes_max} bytes are not {what}; name another file"));
    }
    String::from_utf8(bytes)
        .map_err(|_| format!("is not text (UTF-8), so it is not {what}; name another file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_an_end_is_refused_and_short_texts_are_read_whole() {
        let why = read(Path::new("/dev/zero"), 1000, "a list").unwrap_err();
        assert_eq!(why, "more than 1000 bytes are not a list; name another file");
        assert_eq!(read(Path::new("/dev/null"), 10, "a list"), Ok(String::new()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        for (bytes, whole) in [(&b"0123456789"[..], true), (b"01234567890", false), (b"\xff", false)] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path, 10, "a list").is_ok(), whole);
        }
        assert!(read(dir.path(), 10, "a list").unwrap_err().starts_with("cannot be read: "));
    }
}
