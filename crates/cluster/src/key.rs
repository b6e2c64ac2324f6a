//! The cluster key of this machine: creates, shows and finds it, for `bramble key` and for every connection.
//!
//! Place in the flow: before any link; workers and primaries call `load` for the key that they prove.
//!
//! Invariants: a key is read only from a file that other users cannot read, and is written only with mode 600,
//! whatever the umask is. An existing key is replaced only with --force. An error names the file or the variable and
//! the next step, and shows no part of a key.
//!
//! Deliberately absent: copying the key to other machines; ssh does that.

use bramble_link::ClusterKey;
use bramble_matrix::{FilePlace, OutputTarget};
use bramble_report::exit::{Exit, Failure};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Environment variable with the key itself.
pub const TEXT_VARIABLE: &str = "BRAMBLE_KEY";
/// Environment variable with the path of the key file.
pub const FILE_VARIABLE: &str = "BRAMBLE_KEY_FILE";
/// A longer file is not a key file.
const FILE_BYTES_MAX: usize = 1024;

/// Looks up an environment variable; an empty value counts as unset.
type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Creates a key, and prints how to copy it to other machines.
pub fn create(force: bool) -> Result<Exit, Failure> {
    new(&needed_path()?, force)
}

/// Prints the key, or its id.
pub fn show(id: bool) -> Result<Exit, Failure> {
    let Some(key) = load()? else {
        let path = needed_path()?;
        let path = path.display();
        return Err(Failure::failed(format!(
            "no cluster key: there is no {path}; make one with bramble key new, or copy another machine's"
        )));
    };
    bramble_report::out(format!("{}\n", if id { key.id() } else { key.to_text() }).as_bytes())
}

/// Prints the path of the key file.
pub fn show_path() -> Result<Exit, Failure> {
    let path = needed_path()?;
    say_if_variable_is_set();
    bramble_report::out(&[path.as_os_str().as_bytes(), b"\n"].concat())
}

/// The cluster key of this machine; `None` if there is no file in the default place.
pub fn load() -> Result<Option<ClusterKey>, Failure> {
    if let Some(text) = environment(TEXT_VARIABLE) {
        return parse(TEXT_VARIABLE, &text.to_string_lossy()).map(Some);
    }
    let Some(path) = path_in(&environment) else { return Ok(None) };
    let is_named = environment(FILE_VARIABLE).is_some();
    let credentials = environment("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    match open(&path) {
        Ok(file) => read(&path, file, credentials.as_deref()).map(Some),
        Err(e) if e.kind() == ErrorKind::NotFound && !is_named => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Failure::failed(format!(
            "{FILE_VARIABLE}: there is no {}; make a key with bramble key new, or copy another machine's to there",
            path.display()
        ))),
        Err(e) => Err(Failure::failed(format!(
            "{}: the cluster key cannot be read: {e}; set {FILE_VARIABLE} if it is elsewhere",
            path.display()
        ))),
    }
}

/// The key in a text that a program has passed in; `place` names it in messages.
pub fn given(place: &str, text: &str) -> Result<ClusterKey, Failure> {
    parse(place, text)
}

/// The path of the key file. Relative values of XDG_CONFIG_HOME and HOME count as unset.
fn path_in(variables: Variables<'_>) -> Option<PathBuf> {
    let folder = |name: &str| variables(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variables(FILE_VARIABLE).map(PathBuf::from).or_else(|| {
        let config = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")));
        config.map(|config| config.join("bramble/key"))
    })
}

fn needed_path() -> Result<PathBuf, Failure> {
    path_in(&environment).ok_or_else(|| {
        let text =
            format!("no place for the cluster key, since HOME is not set; set {FILE_VARIABLE} to a file");
        Failure::failed(text)
    })
}

fn say_if_variable_is_set() {
    if environment(TEXT_VARIABLE).is_some() {
        bramble_report::say(&format!("{TEXT_VARIABLE} is set, so this machine uses it instead of the file"));
    }
}

fn parse(place: &str, text: &str) -> Result<ClusterKey, Failure> {
    ClusterKey::parse(text).map_err(|why| {
        let advice = "copy it again from a machine that has it (bramble key show)";
        Failure::failed(format!("{place}: no cluster key: {why}; {advice}"))
    })
}

/// Opens the file without blocking, in case it is a pipe.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
}

fn read(path: &Path, file: File, credentials: Option<&Path>) -> Result<ClusterKey, Failure> {
    let name = path.display().to_string();
    let wrong = |why: String| Failure::failed(format!("{name}: {why}"));
    let broken = |e: std::io::Error| wrong(format!("the cluster key cannot be read: {e}"));
    let metadata = file.metadata().map_err(broken)?;
    if !metadata.is_file() {
        return Err(wrong(format!("not a file, so no cluster key; set {FILE_VARIABLE} to a file")));
    }
    // Only the service can read a systemd credential; its group bits are the mask of an access control list.
    let others = if credentials.is_some_and(|folder| is_below(path, folder)) { 0o007 } else { 0o077 };
    if metadata.mode() & others != 0 {
        let quoted = quoted(path);
        return Err(wrong(format!("other users may read or change this cluster key; chmod 600 {quoted}")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(broken)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(wrong(format!(
            "longer than {FILE_BYTES_MAX} bytes, so no cluster key; a key is one line"
        )));
    }
    let text = String::from_utf8_lossy(&bytes);
    match text.trim() {
        "" => Err(wrong("empty; make a key with bramble key new --force, or copy another machine's".into())),
        text if text.contains('\n') => {
            Err(wrong("several lines; leave only that with the cluster key".to_owned()))
        }
        text => parse(&name, text),
    }
}

fn is_below(path: &Path, folder: &Path) -> bool {
    let (Ok(path), Ok(folder)) = (path.canonicalize(), folder.canonicalize()) else { return false };
    path.starts_with(folder)
}

/// Creates a key and prints how to copy it to other machines.
fn new(path: &Path, force: bool) -> Result<Exit, Failure> {
    let name = path.display();
    let mut place = None;
    if let Ok(there) = fs::symlink_metadata(path) {
        if !there.is_file() && !there.is_symlink() {
            return Err(Failure::failed(format!("{name}: not a file; set {FILE_VARIABLE} to a file")));
        }
        if !force {
            return Err(exists(path));
        }
        match OutputTarget::of(path)? {
            OutputTarget::File(file) => place = Some(file),
            OutputTarget::Stream => {
                return Err(Failure::failed(format!("{name}: not a file; set {FILE_VARIABLE} to a file")));
            }
        }
    }
    let mut bytes = [0; ClusterKey::BYTES];
    crate::random::random(&mut bytes).map_err(|e| Failure::failed(format!("no random numbers: {e}")))?;
    let key = ClusterKey::from_bytes(bytes);
    write(path, place, &format!("{}\n", key.to_text())).map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => Failure::failed(format!("{name}: the cluster key cannot be written: {e}")),
    })?;
    bramble_report::say(&format!("cluster key {}; to give it to another machine:", key.id()));
    let there = "umask 077; mkdir -p ~/.config/bramble; cat > ~/.config/bramble/key";
    bramble_report::say(&format!("  ssh pi1 '{there}' < {}", quoted(path)));
    say_if_variable_is_set();
    bramble_report::out(&[path.as_os_str().as_bytes(), b"\n"].concat())
}

fn exists(path: &Path) -> Failure {
    let name = path.display();
    Failure::failed(format!(
        "{name}: there is a key already; bramble key new --force replaces it, and every machine then needs the new key"
    ))
}

/// Writes the key file atomically; other users cannot read it at any moment. `place` is the destination if a key is
/// replaced.
fn write(path: &Path, place: Option<FilePlace>, text: &str) -> std::io::Result<()> {
    let path = place.as_ref().map_or(path, FilePlace::target);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut suffix = [0; 8];
    crate::random::random(&mut suffix)?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{:016x}.part", u64::from_be_bytes(suffix)));
    let unfinished = PathBuf::from(unfinished);
    let named = || match &place {
        Some(place) => {
            place.keep_owner(&File::open(&unfinished)?, false).map_err(std::io::Error::other)?;
            fs::rename(&unfinished, path)
        }
        None => fs::hard_link(&unfinished, path),
    };
    let written = write_private(&unfinished, text).and_then(|()| named());
    // After a rename the file is gone already.
    let _ = fs::remove_file(&unfinished);
    written?;
    File::open(folder)?.sync_all()
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    // The umask may have removed the owner's bits.
    file.set_permissions(Permissions::from_mode(0o600))?;
    if file.metadata()?.mode() & 0o077 != 0 {
        let why = "this file system cannot keep other users out; choose another with BRAMBLE_KEY_FILE";
        return Err(std::io::Error::other(why));
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The path, quoted for a shell.
fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"/._-+,:=@%".contains(b));
    if is_plain {
        return path.display().to_string();
    }
    let inside: Vec<u8> =
        bytes.iter().flat_map(|b| if *b == b'\'' { b"'\\''".to_vec() } else { vec![*b] }).collect();
    format!("'{}'", OsString::from_vec(inside).to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_with(variables: &[(&str, &str)]) -> Option<PathBuf> {
        path_in(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn the_file_is_the_named_one_or_that_of_the_configuration_or_of_the_home() {
        let all = [(FILE_VARIABLE, "k"), ("XDG_CONFIG_HOME", "/etc/xdg"), ("HOME", "/home/ann")];
        assert_eq!(path_with(&all), Some("k".into()));
        assert_eq!(path_with(&all[1..]), Some("/etc/xdg/bramble/key".into()));
        assert_eq!(path_with(&all[2..]), Some("/home/ann/.config/bramble/key".into()));
        assert_eq!(path_with(&[("XDG_CONFIG_HOME", "here"), ("HOME", "there")]), None);
        assert_eq!(path_with(&[]), None);
    }

    #[test]
    fn a_credential_may_show_its_mask_and_nothing_else_may() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let text = ClusterKey::from_bytes([7; 20]).to_text();
        let attempt = |mode, credentials| {
            fs::write(&path, &text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read(&path, open(&path).unwrap(), credentials).map(|key| key.to_text())
        };
        assert_eq!(attempt(0o600, None).unwrap(), text);
        assert_eq!(attempt(0o440, Some(folder.path())).unwrap(), text);
        for (mode, credentials) in
            [(0o640, None), (0o604, None), (0o444, Some(folder.path())), (0o440, Some(Path::new("/proc")))]
        {
            let why = attempt(mode, credentials).unwrap_err().text;
            assert!(why.contains("chmod 600 /"), "{why}");
        }
    }

    #[test]
    fn paths_are_quoted_as_a_shell_needs_them() {
        assert_eq!(quoted(Path::new("/home/ann/.config/bramble/key")), "/home/ann/.config/bramble/key");
        assert_eq!(quoted(Path::new("/it's here/key")), r"'/it'\''s here/key'");
    }
}
