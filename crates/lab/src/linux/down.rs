//! `lab down`: ends all processes in a lab, and removes it, complete or not.
//!
//! Invariants: it ends only the recorded workers, identified by process id and start time, and processes inside the
//! lab's namespaces and groups; it removes only objects whose names contain the lab's name. Running it again does
//! nothing.
//!
//! Deliberately absent: stopping at the first error. Everything else is removed, and then the first error is
//! reported.

use super::limits;
use super::network;
use super::process::{self, Process};
use super::state::Folder;
use crate::args::LabNameArgs;
use bramble_report::exit::{Exit, Failure};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

/// Runs the verb.
pub(super) fn run(args: &LabNameArgs) -> Result<Exit, Failure> {
    let name = &args.name;
    match Folder::to_remove(name)? {
        Some(folder) => {
            remove(name, folder)?;
            bramble_report::say(&format!("lab {name} is gone"));
        }
        // Only the folder may be missing.
        None if !network::there(name).is_empty() || !limits::there(name).is_empty() => {
            let nothing = File::open("/dev/null")
                .map_err(|e| Failure::failed(format!("/dev/null: cannot be opened: {e}")))?;
            clear(name, &nothing, &[])?;
            bramble_report::say(&format!("lab {name} is gone"));
        }
        None => bramble_report::say(&format!("there is no lab {name}")),
    }
    Ok(Exit::Done)
}

/// Removes a lab, its folder last, so that a failed removal can be repeated.
pub(super) fn remove(name: &str, folder: Folder) -> Result<(), Failure> {
    let workers: Vec<Process> = folder.workers().into_iter().map(|(_, process)| process).collect();
    clear(name, &folder.lock, &workers)?;
    folder.remove()
}

fn clear(name: &str, lock: &File, workers: &[Process]) -> Result<(), Failure> {
    let namespaces = network::there(name);
    let groups = limits::there(name);
    let paths: Vec<PathBuf> = namespaces.iter().map(|name| network::path(name)).collect();
    let find = || -> BTreeSet<Process> {
        let remembered = workers.iter().copied().filter(|worker| worker.is_alive());
        let members = limits::members(&groups).into_iter().filter_map(Process::of);
        remembered.chain(members).chain(process::inside(&paths)).collect()
    };
    if Process::own().is_some_and(|own| find().contains(&own)) {
        return Err(Failure::failed(format!("lab {name}: this command runs inside the lab; leave it first")));
    }
    let ended = process::end_all(find);
    let namespaces = namespaces.iter().map(|namespace| network::remove(lock, namespace));
    let removed: Vec<Result<(), Failure>> = namespaces.collect();
    let groups = groups.iter().map(|group| limits::remove(group));
    let emptied: Vec<Result<(), Failure>> = groups.collect();
    [ended].into_iter().chain(removed).chain(emptied).collect()
}
