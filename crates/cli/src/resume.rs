//! What a run before has left of C, and what becomes of it: `--resume`, `--restart`, and the way back that a run leaves behind.
//!
//! Place in the flow: `multiply` asks before anything is begun, and again when a run has ended without C.
//!
//! Invariants: what another run could go on with is thrown away only by who says `--restart`. It is looked at while the
//! unfinished file is locked.

use crate::args::MultiplyArgs;
use crate::exit::Failure;
use crate::quantity::counted;
use bramble_kernel::Choice;
use bramble_matrix::{DType, Digest128, Matrix, Output, Shape, Unfinished};
use bramble_primary::keeper::{Found, Journal, Journaling, Steps, find, journal_of, look};
use bramble_worker::default_threads;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file that C will be, and its journal: anew, or from where another run ended.
pub(crate) fn begin(
    args: &MultiplyArgs,
    path: &Path,
    shape: Shape,
    dtype: DType,
) -> Result<(Output, Journaling), Failure> {
    let place = Unfinished::lock(path)?;
    let file = journal_of(place.target());
    let name = file.display().to_string();
    let found = found(&file, place.has_begun()?, place.target())?;
    let anew = |why: &str| {
        if args.resume {
            crate::say(&format!("bramble: --resume: {why}; this run begins anew"));
        }
    };
    let before = match found {
        Left::Nothing(why) => {
            anew(&why);
            None
        }
        Left::Tiles(before) if args.resume => {
            same_kernel(args, &before.head.kernel)?;
            Some(before)
        }
        Left::Tiles(before) if !args.restart => {
            return Err(Failure::usage(format!(
                "{name}: a run before has left {}; go on with --resume, or begin anew with --restart",
                share_of(&before)
            )));
        }
        Left::Tiles(_) => None,
    };
    let output = match &before {
        Some(_) => place.resume(shape, dtype)?,
        None => {
            // Before what it is about: a run that ends in between leaves nothing that looks like something.
            let _ = fs::remove_file(&file);
            place.restart(shape, dtype)?
        }
    };
    let every = Duration::from_millis(args.journal_ms);
    let steps = args.die_at.map_or_else(Steps::default, Steps::die_at);
    Ok((output, Journaling { path: file, before, every, steps }))
}

/// What a run before has left.
enum Left {
    /// A journal with tiles.
    Tiles(Box<Journal>),
    /// Nothing that could be gone on with, and why.
    Nothing(String),
}

/// What the unfinished file and the journal beside it are.
fn found(journal: &Path, has_part: bool, target: &Path) -> Result<Left, Failure> {
    let (name, part) = (journal.display(), part_of(target));
    let (found, part) = (find(journal)?, part.display());
    let why = match (found, has_part) {
        (Found::Journal(before), true) => return Ok(Left::Tiles(before)),
        (Found::Journal(before), false) => {
            format!("{name} names {}, but the file with them, {part}, is missing", share_of(&before))
        }
        (Found::Missing, true) => {
            format!(
                "{part} is there, but the journal that says which of its tiles are complete, {name}, is missing"
            )
        }
        (Found::Missing, false) => format!("no run has left anything: neither {part} nor {name} is there"),
        (Found::Empty, _) => format!("{name} is empty: the run before ended before its journal had begun"),
        (Found::NoTiles, _) => format!("{name} has no tile: the run before ended before one was complete"),
        (Found::Unreadable(why), _) => format!("{name} cannot be used: {why}"),
    };
    Ok(Left::Nothing(why))
}

/// "12 of 256 tiles (5 %)".
fn share_of(journal: &Journal) -> String {
    let (there, tiles) = (journal.tiles.len() as u64, journal.head.plan.tiles());
    // Rounded down: what is kept is never called more than it is.
    let percent = u128::from(there) * 100 / u128::from(tiles.max(1));
    format!("{there} of {} ({percent} %)", counted(tiles, "tile"))
}

/// A kernel that is asked for by name is that of the run before, which is used in any case: tiles of one C are of one kernel.
fn same_kernel(args: &MultiplyArgs, was: &str) -> Result<(), Failure> {
    let was = was.split(' ').next().unwrap_or_default().trim_end_matches(',');
    match args.cut.kernel() {
        Choice::Named(wanted) if !was.is_empty() && wanted.to_string() != was => {
            Err(Failure::failed(format!(
                "--resume: --kernel was {was}, and is {wanted} now; give what the run before was given, or begin anew \
                 with --restart"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether the run before ended after C got its name, so that only its journal is left; that goes then. A C that was made from
/// the one that it replaced is not read as that one: neither by who goes on, nor by who says nothing.
pub(crate) fn is_done(
    args: &MultiplyArgs,
    path: &Path,
    (a, b, old_c): (&Matrix, &Matrix, Option<&Matrix>),
) -> Result<bool, Failure> {
    let target = target_of(path);
    let file = journal_of(&target);
    let is_asked = args.resume || (old_c.is_some() && !args.restart);
    if !is_asked || part_of(&target).exists() || !target.exists() {
        return Ok(false);
    }
    let Found::Journal(journal) = look(&file)? else { return Ok(false) };
    let (name, threads) = (target.display(), args.team.threads.map_or_else(default_threads, usize::from));
    let is_result = is_result(&journal, &Matrix::open_file(&target)?, threads)?;
    if !is_result && old_c.is_none() {
        return Ok(false);
    }
    let is_same = |matrix: &Matrix, was| Ok::<_, Failure>(matrix.digest(threads, &|| false)? == Some(was));
    let factors = [(journal.head.alpha, args.alpha), (journal.head.beta, args.beta)];
    let same = factors.iter().all(|(was, is)| was.to_bits() == is.to_bits())
        && is_same(a, journal.head.a)?
        && is_same(b, journal.head.b)?;
    match (is_result, same, args.resume) {
        (true, true, true) => {
            let _ = fs::remove_file(&file);
            Ok(true)
        }
        (true, false, true) => Err(Failure::usage(format!(
            "--resume: {name} is complete, but of other operands or factors; begin anew with --restart"
        ))),
        (true, true, false) => Err(Failure::usage(format!(
            "{name} is complete already: a run before ended when it had its name, and --beta {} would scale it once more; \
             leave it so with --resume, or take it as the old C with --restart",
            args.beta
        ))),
        (false, true, true) => {
            if let Some((old, was)) = old_c.zip(journal.head.old_c)
                && !is_same(old, was)?
            {
                return Err(Failure::usage(format!(
                    "--resume: {name} is neither the C that the run before read nor the one that it made; put the old one \
                     there, or take this one as the old C with --restart"
                )));
            }
            Ok(false)
        }
        (_, false, false) | (false, ..) => Ok(false),
    }
}

/// Whether a matrix is what the run with that journal has made.
fn is_result(journal: &Journal, c: &Matrix, threads: usize) -> Result<bool, Failure> {
    let problem = &journal.head.plan.problem;
    if c.shape() != problem.result_shape() || c.dtype() != problem.dtype {
        return Ok(false);
    }
    if let Some(whole) = journal.c {
        return Ok(c.digest(threads, &|| false)? == Some(whole));
    }
    let is_right = |((region, tile), digest): (&(usize, u64), &Digest128)| {
        let rect = journal.head.plan.regions.get(*region).and_then(|region| region.tile_of(*tile));
        let lines = rect.and_then(|rect| c.lines(rect));
        lines.is_some_and(|l| Digest128::of(l.shape, (0..l.lines).map(|i| l.line(i))) == *digest)
    };
    Ok(!journal.tiles.is_empty() && journal.tiles.iter().all(is_right))
}

/// After a run without C: what it has left, as a sentence. Where that is nothing, its files are removed.
pub(crate) fn left(path: &Path) -> Option<String> {
    let left = kept(path);
    let target = target_of(path);
    // What cannot be read now may be read another time.
    if matches!(find(&journal_of(&target)), Ok(Found::Missing | Found::Empty | Found::NoTiles)) {
        // While C is being synced that goes on in a thread, without its file.
        forget(path);
    }
    left
}

/// Removes what a run has left of C.
pub(crate) fn forget(path: &Path) {
    let target = target_of(path);
    let _ = fs::remove_file(part_of(&target));
    let _ = fs::remove_file(journal_of(&target));
}

/// What another run could go on with, and how, as a sentence.
pub(crate) fn kept(path: &Path) -> Option<String> {
    let target = target_of(path);
    let Ok(Found::Journal(journal)) = find(&journal_of(&target)) else { return None };
    let text = || format!("{} are kept; resume with: {}", share_of(&journal), command());
    part_of(&target).exists().then(text)
}

/// The result with links followed, as far as it is there.
fn target_of(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The unfinished file beside `path`.
pub(crate) fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// The command line that goes on.
fn command() -> String {
    let mut words: Vec<OsString> =
        std::env::args_os().filter(|word| word != "--restart" && word != "--resume").collect();
    words.push("--resume".into());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    // What mpirun was told beside the number of processes is not known here.
    let launcher = crate::ranks::size().map_or_else(String::new, |ranks| format!("mpirun -n {ranks} "));
    launcher + &words.join(" ")
}

/// A word as a shell takes it.
fn quoted(word: &OsStr) -> String {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"-_=+./:,@%".contains(b);
    let text = word.to_string_lossy().into_owned();
    if !word.is_empty() && word.as_bytes().iter().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_through_a_shell_as_they_are() {
        for word in [
            "A.npy",
            "",
            "a b",
            "it's",
            "$HOME",
            "random:5x5:f64:1",
            "*",
            "--resume",
            "a\\b",
            "\"",
            "pi[1-8]",
        ] {
            let script = format!("printf %s {}", quoted(word.as_ref()));
            let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
