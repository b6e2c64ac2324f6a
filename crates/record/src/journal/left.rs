//! What an interrupted run left beside its output: tiles that a journal names, or nothing that can be resumed.
//!
//! Place in the flow: before a result's output file is begun, with or without a journal of its own.
//!
//! Invariant: tiles of an interrupted run are not overwritten unless the user says so.

use super::{FoundJournal, Journal, find_journal, journal_of};
use crate::RecordError;
use bramble_matrix::{DType, Output, Shape, Unfinished};
use std::fs;
use std::path::{Path, PathBuf};

/// The output file of a result without a journal. Refused if an interrupted run left tiles of it.
pub fn begin_without_journal(path: &Path, shape: Shape, dtype: DType) -> Result<Output, RecordError> {
    let place = Unfinished::lock(path)?;
    let file = journal_of(place.target());
    match found(&file, place.has_begun()?, place.target())? {
        Left::Nothing(_) => restart(place, &file, shape, dtype),
        Left::Tiles(before) => {
            Err(interrupted(&file, &before, "bramble multiply --resume", "bramble multiply --restart"))
        }
    }
}

/// Discards what an earlier run left.
pub fn restart(place: Unfinished, journal: &Path, shape: Shape, dtype: DType) -> Result<Output, RecordError> {
    // The journal goes before the tiles: a run that is killed in between must not leave a journal of tiles that are gone.
    let _ = fs::remove_file(journal);
    Ok(place.restart(shape, dtype)?)
}

/// The refusal to overwrite the tiles of an interrupted run.
pub fn interrupted(file: &Path, before: &Journal, resume: &str, restart: &str) -> RecordError {
    let (name, share) = (file.display(), share_of(before));
    RecordError::Interrupted(format!(
        "{name}: an interrupted run left {share}; continue it with {resume}, or start over with {restart}"
    ))
}

/// What an interrupted run left.
pub enum Left {
    /// A journal with tiles.
    Tiles(Box<Journal>),
    /// Nothing that can be resumed, and the reason.
    Nothing(String),
}

/// What the unfinished file and the journal beside it hold.
pub fn found(journal: &Path, has_part: bool, target: &Path) -> Result<Left, RecordError> {
    let (name, part) = (journal.display(), part_of(target));
    let (found, part) = (find_journal(journal)?, part.display());
    let why = match (found, has_part) {
        (FoundJournal::Journal(before), true) => return Ok(Left::Tiles(before)),
        (FoundJournal::Journal(before), false) => {
            format!("{name} lists {}, but their file, {part}, is missing", share_of(&before))
        }
        (FoundJournal::Missing, true) => {
            format!("{part} exists, but its journal of completed tiles, {name}, is missing")
        }
        (FoundJournal::Missing, false) => {
            format!("there is nothing to resume: neither {part} nor {name} exists")
        }
        (FoundJournal::Empty, _) => {
            format!("{name} is empty: the interrupted run ended before it wrote its journal")
        }
        (FoundJournal::NoTiles, _) => {
            format!("{name} has no tile: the interrupted run completed none")
        }
        (FoundJournal::Unreadable(why), _) => format!("{name} cannot be used: {why}"),
    };
    Ok(Left::Nothing(why))
}

/// "12 of 256 tiles (5 %)".
pub fn share_of(journal: &Journal) -> String {
    let (there, tiles) = (journal.tiles.len() as u64, journal.head.plan.tiles());
    // Rounded down, so as not to promise more than is kept.
    let percent = u128::from(there) * 100 / u128::from(tiles.max(1));
    format!(
        "{there} of {} ({percent} %)",
        if tiles == 1 { "1 tile".to_owned() } else { format!("{tiles} tiles") }
    )
}

/// The path of C with symbolic links resolved, if it exists.
pub fn target_of(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The unfinished file beside `path`.
pub fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}
