//! `--resume` and `--restart`: what to do with the files that an interrupted run left, and the command that resumes a
//! run.
//!
//! Place in the flow: `multiply` calls this before the product starts, and again when a run ends without C.
//!
//! Invariants: completed tiles of an earlier run are discarded only with `--restart`. The journal is read while the
//! unfinished file is locked.

use crate::args::MultiplyArgs;
use bramble_kernel::Choice;
use bramble_matrix::{DType, Digest128, Matrix, Output, Shape, Unfinished};
use bramble_record::journal::left::{Left, found, interrupted, part_of, restart, share_of, target_of};
use bramble_record::journal::{
    DiskStepHook, FoundJournal, Journal, JournalOptions, find_journal, journal_of, read_journal,
};
use bramble_report::exit::Failure;
use bramble_worker::default_threads;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The output file of C and its journal: new ones, or those of the interrupted run.
pub(crate) fn begin(
    args: &MultiplyArgs,
    path: &Path,
    shape: Shape,
    dtype: DType,
) -> Result<(Output, JournalOptions), Failure> {
    let place = Unfinished::lock(path)?;
    let file = journal_of(place.target());
    let found = found(&file, place.has_begun()?, place.target())?;
    let anew = |why: &str| {
        if args.journal.resume {
            bramble_report::say(&format!("bramble: --resume: {why}; starting over"));
        }
    };
    let before = match found {
        Left::Nothing(why) => {
            anew(&why);
            None
        }
        Left::Tiles(before) if args.journal.resume => {
            same_kernel(args, &before.head.kernel)?;
            Some(before)
        }
        Left::Tiles(before) if !args.journal.restart => {
            return Err(interrupted(&file, &before, "--resume", "--restart").into());
        }
        Left::Tiles(_) => None,
    };
    let output = match &before {
        Some(_) => place.resume(shape, dtype)?,
        None => restart(place, &file, shape, dtype)?,
    };
    let every = Duration::from_millis(args.journal.journal_ms);
    let on_step = args.journal.die_at.map_or_else(DiskStepHook::default, killed_at);
    Ok((output, JournalOptions { path: file, before, every, on_step }))
}

/// Kills this process at the nth step, as a power failure would: for tests of resuming.
fn killed_at(nth: i64) -> DiskStepHook {
    let left = AtomicI64::new(nth);
    DiskStepHook::new(move || {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // No caller could handle the error.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })
}

/// Refuses a `--kernel` that differs from the interrupted run's, which is used anyway: one kernel computes all tiles
/// of C.
fn same_kernel(args: &MultiplyArgs, was: &str) -> Result<(), Failure> {
    let was = was.split(' ').next().unwrap_or_default().trim_end_matches(',');
    match args.cut.kernel() {
        Choice::Named(wanted) if !was.is_empty() && wanted.to_string() != was => {
            Err(Failure::failed(format!(
                "--resume: --kernel was {was}, and is {wanted} now; give the same --kernel, or start over with --restart"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether the interrupted run had already given C its final name, so that only its journal was left; with `--resume`
/// the journal is then removed. This also keeps a C that was computed with `--beta` from being taken for the old C
/// and scaled twice, with or without `--resume`.
pub(crate) fn is_done(
    args: &MultiplyArgs,
    path: &Path,
    (a, b, old_c): (&Matrix, &Matrix, Option<&Matrix>),
) -> Result<bool, Failure> {
    let target = target_of(path);
    let file = journal_of(&target);
    let is_asked = args.journal.resume || (old_c.is_some() && !args.journal.restart);
    if !is_asked || part_of(&target).exists() || !target.exists() {
        return Ok(false);
    }
    let FoundJournal::Journal(journal) = read_journal(&file)? else { return Ok(false) };
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
    match (is_result, same, args.journal.resume) {
        (true, true, true) => {
            let _ = fs::remove_file(&file);
            Ok(true)
        }
        (true, false, true) => Err(Failure::usage(format!(
            "--resume: {name} is complete, but from other operands or factors; start over with --restart"
        ))),
        (true, true, false) => Err(Failure::usage(format!(
            "{name} is complete already: the interrupted run had renamed it, and --beta {} would scale it again; \
            leave it as it is with --resume, or use it as the old C with --restart",
            args.beta
        ))),
        (false, true, true) => {
            if let Some((old, was)) = old_c.zip(journal.head.old_c)
                && !is_same(old, was)?
            {
                return Err(Failure::usage(format!(
                    "--resume: {name} is neither the old C that the interrupted run read nor its result; put the old \
                    C there, or use this one as the old C with --restart"
                )));
            }
            Ok(false)
        }
        (_, false, false) | (false, ..) => Ok(false),
    }
}

/// Whether `c` is the result of the run with this journal.
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

/// After a run without C: the kept tiles and the command that resumes, as a sentence. If no tile is kept, the files
/// are removed.
pub(crate) fn left(path: &Path) -> Option<String> {
    let left = kept(path);
    let target = target_of(path);
    // A journal that cannot be read now may be readable later, so its files stay.
    if matches!(
        find_journal(&journal_of(&target)),
        Ok(FoundJournal::Missing | FoundJournal::Empty | FoundJournal::NoTiles)
    ) {
        // A thread may still be syncing C; it does so on the removed file.
        forget(path);
    }
    left
}

/// Removes the unfinished C and its journal.
pub(crate) fn forget(path: &Path) {
    let target = target_of(path);
    let _ = fs::remove_file(part_of(&target));
    let _ = fs::remove_file(journal_of(&target));
}

/// The kept tiles and the command that resumes the run, as a sentence.
pub(crate) fn kept(path: &Path) -> Option<String> {
    let target = target_of(path);
    let Ok(FoundJournal::Journal(journal)) = find_journal(&journal_of(&target)) else { return None };
    let text = || format!("{} are kept; resume with: {}", share_of(&journal), command());
    part_of(&target).exists().then(text)
}

/// The command line that resumes this run.
fn command() -> String {
    let mut words: Vec<OsString> =
        std::env::args_os().filter(|word| word != "--restart" && word != "--resume").collect();
    words.push("--resume".into());
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    // Other options of mpirun are not known here.
    let launcher =
        bramble_cluster::ranks::size().map_or_else(String::new, |ranks| format!("mpirun -n {ranks} "));
    launcher + &words.join(" ")
}

/// A word, quoted for a shell.
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
