//! `lab down`: ends whatever runs in a lab, and removes it, complete or not.
//!
//! Invariants: what ends is what was remembered as the lab's, by id and start, and what is inside its namespaces and groups;
//! what is removed has the lab's name in its own. Done twice, the second time does nothing.
//!
//! Deliberately absent: giving up at the first thing that cannot be removed; the rest is, and then the first is told.

use super::limits;
use super::network;
use super::process::{self, Process};
use super::state::Folder;
use crate::args::LabNameArgs;
use crate::exit::{Exit, Failure};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

/// Runs the verb.
pub(super) fn run(args: &LabNameArgs) -> Result<Exit, Failure> {
    let name = &args.name;
    match Folder::to_remove(name)? {
        Some(folder) => {
            remove(name, folder)?;
            crate::say(&format!("lab {name} is gone"));
        }
        // Its folder may have been lost, and nothing else.
        None if !network::there(name).is_empty() || !limits::there(name).is_empty() => {
            let nothing = File::open("/dev/null")
                .map_err(|e| Failure::failed(format!("/dev/null: cannot be opened: {e}")))?;
            clear(name, &nothing, &[])?;
            crate::say(&format!("lab {name} is gone"));
        }
        None => crate::say(&format!("there is no lab {name}")),
    }
    Ok(Exit::Done)
}

/// Removes a lab; its folder goes last, so that it can be tried again.
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
        return Err(Failure::failed(format!("lab {name}: this command runs in it; leave it first")));
    }
    let ended = process::end_all(find);
    let namespaces = namespaces.iter().map(|namespace| network::remove(lock, namespace));
    let removed: Vec<Result<(), Failure>> = namespaces.collect();
    let groups = groups.iter().map(|group| limits::remove(group));
    let emptied: Vec<Result<(), Failure>> = groups.collect();
    [ended].into_iter().chain(removed).chain(emptied).collect()
}
