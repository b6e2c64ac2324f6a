//! `bramble key`: creates, shows and locates the cluster key of this machine.

use crate::args::KeyCommand;
use bramble_cluster::key::{create, show, show_path};
use bramble_report::exit::{Exit, Failure};

/// Runs the verb.
pub(crate) fn run(command: &KeyCommand) -> Result<Exit, Failure> {
    match command {
        KeyCommand::New { force } => create(*force),
        KeyCommand::Show { id } => show(*id),
        KeyCommand::Path => show_path(),
    }
}
