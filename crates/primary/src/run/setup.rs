//! What the state machine of a product is told about its sessions and its grid before it starts.
//!
//! Place in the flow: `run` calls these functions once, before the first event.
//!
//! Deliberately absent: decisions. The numbers come from the plan and from the workers' welcomes.

use crate::bodies::Bodies;
use bramble_plan::{Member, Plan};
use bramble_schedule::primary::PeerInfo;
use bramble_sessions::{PrimaryError, Session};

/// What the state machine needs to know of each session: the first `working` ones have work, the others are in reserve. Without a
/// member's bound in the plan a worker's memory is bounded by `credits`.
pub(super) fn peer_infos(
    sessions: &[Session],
    neighbours: Vec<Vec<usize>>,
    bodies: &Bodies,
    members: &[Member],
    (working, credits): (usize, Option<u64>),
) -> Vec<PeerInfo> {
    sessions
        .iter()
        .zip(neighbours)
        .enumerate()
        .map(|(at, (s, neighbours))| PeerInfo {
            name: s.name.clone(),
            // The plan's bound on this member's memory; the worker granted at least that much.
            credit_bytes: members
                .get(at)
                .map_or_else(|| credits.unwrap_or(u64::MAX), |member| member.memory_bytes)
                .min(s.welcome.memory_bytes),
            shares_memory: s.link.shares_memory,
            referred: bodies.referred(&s.link),
            neighbours,
            work_per_s: s.welcome.gflops * 1e9 / 2.0,
            link_bytes_per_s: s.known.rate.map(|rate| rate.bytes_per_s),
            is_reserve: at >= working,
        })
        .collect()
}

/// The number of tiles in each row of tiles, where C is one grid of tiles.
pub(super) fn tiles_by_row(plan: &Plan) -> Result<Vec<u64>, PrimaryError> {
    let [region] = plan.regions[..] else { return Ok(Vec::new()) };
    if region.levels > 0 {
        return Ok(Vec::new());
    }
    let grid = region.grid;
    let too_many =
        || PrimaryError::Failed(format!("{} rows of tiles are too many for this machine", grid.rows()));
    let rows = usize::try_from(grid.rows()).map_err(|_| too_many())?;
    let mut left = Vec::new();
    left.try_reserve_exact(rows).map_err(|_| too_many())?;
    left.resize(rows, grid.cols());
    Ok(left)
}
