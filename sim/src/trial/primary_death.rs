//! The primary dies, and another process resumes from its disk.
//!
//! Place in the flow: a trial consists of lives of the primary. When one dies the next begins with its journal, as
//! `--resume` does (`crates/primary/src/resume.rs`, `run/resume_point.rs`): the same plan without the complete tiles, with
//! the machines that are connected.
//!
//! Invariants: tiles in the journal are in C, to the digest (`journal_writer.rs`). Machines keep nothing of the earlier
//! life; their later faults still happen.
//!
//! Deliberately absent: comparing the new request with the earlier one.

use super::disk::Disk;
use super::inspection::InspectionState;
use super::journal_writer::{TileKey, TrialJournalWriter, digest, rect_of};
use super::trial_data::{GARBAGE, places};
use super::{Scenario, Trial};
use crate::fault::{FaultKind, FaultSite, SimFault};
use crate::participants;
use bramble_matrix::{Digest128, Rect};
use bramble_plan::Plan;
use bramble_schedule::journal::{Head, Journal, read};
use bramble_schedule::primary::{Operands, PeerInfo, Primary};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest time in seconds until the next life begins, and from then until a surviving machine joins.
const GAP_MAX_S: f64 = 3.0;
/// The probability that a surviving machine is connected at once.
const AT_ONCE: f64 = 0.85;

/// What a life leaves to the next.
pub(super) struct SurvivingState {
    /// The unfinished C, and the valid journal, if there is one with tiles.
    c: Vec<f64>,
    pub(super) journal: Option<Journal>,
    log: Vec<u8>,
    /// Tiles that are in C and wrong, because a machine lied.
    wrong: BTreeMap<TileKey, Rect>,
    /// Tiles below the watermark whose digests differ from the journal's: they were being recomputed.
    damaged: BTreeSet<TileKey>,
    /// Connected machines.
    machines: Vec<usize>,
    /// Faults from now on.
    pub(super) faults: Vec<SimFault>,
    pub(super) hash: u64,
}

/// The head of the trial's journal.
pub(super) fn head(plan: &Plan, (alpha, beta): (f64, f64)) -> Head {
    let some = |number| Digest128([number; 16]);
    let old_c = plan.problem.reads_c.then(|| some(3));
    let plan = plan.clone().unpredicted();
    Head { alpha, beta, a: some(1), b: some(2), old_c, kernel: "trial".to_owned(), plan }
}

/// How many joins these faults can cause.
pub(super) fn joins(faults: &[SimFault]) -> usize {
    faults.iter().filter(|fault| matches!(fault.kind, FaultKind::Join | FaultKind::Restart)).count()
}

/// The peers of a life, and its state machine; an error if none of them has memory for the rest.
pub(super) fn begun(
    scenario: &Scenario,
    operands: Operands,
    left: Option<&SurvivingState>,
) -> (Vec<(usize, PeerInfo)>, Result<Primary, String>) {
    let Some((left, journal)) = left.and_then(|left| Some((left, left.journal.as_ref()?))) else {
        let peers = scenario.peers();
        let infos = peers.iter().map(|(_, info)| info.clone()).collect();
        return (
            peers,
            Ok(Primary::new(scenario.plan.clone(), operands, infos)
                .recovering()
                .inspected()
                .with_spot_checks(1)),
        );
    };
    let peer = |machine: usize| {
        let is = &scenario.machines[machine];
        (machine, participants::info(is, is.memory_bytes))
    };
    let own = |is_reserve| (0, PeerInfo { is_reserve, ..peer(0).1 });
    let workers = left.machines.iter().map(|machine| peer(*machine));
    let mut peers: Vec<(usize, PeerInfo)> = workers.collect();
    if scenario.has_reserve && !peers.is_empty() {
        peers.push(own(true));
    } else {
        peers.insert(0, own(false));
    }
    let infos = peers.iter().map(|(_, info)| info.clone()).collect();
    let is_there = |region, tile| journal.tiles.contains_key(&(region, tile));
    let primary = Primary::resumed(scenario.plan.clone(), operands, infos, &is_there);
    (peers, primary.map(|primary| primary.inspected().with_spot_checks(1)))
}

impl Trial {
    /// Sets up a life from what the last one left; with a journal writer if the primary will die in it.
    pub(super) fn begin_life(&mut self, scenario: &Scenario, left: Option<SurvivingState>) {
        let every = Duration::from_secs_f64(
            scenario.plan.predicted.seconds.clamp(0.1, 20.0) * self.random.between(0.01, 0.2),
        );
        let dies = self
            .faults
            .all
            .iter()
            .any(|f| f.site == FaultSite::Primary && matches!(f.kind, FaultKind::Kill | FaultKind::Off));
        let head = head(&scenario.plan, (self.model.data.alpha, self.model.data.beta));
        let mut disk = Disk::empty(self.model.expected.len());
        let mut before = None;
        if let Some(left) = left {
            if let Some(journal) = left.journal {
                self.take_over(journal.tiles.keys().copied(), left.c.clone());
                disk.log = left.log;
                disk.log.truncate(usize::try_from(journal.valid_bytes).unwrap_or(usize::MAX));
                disk.sync_log();
                disk.sync_data(left.c);
                self.inspection = InspectionState::of_before(left.wrong, left.damaged);
                before = Some(journal);
            }
            self.record.hash = left.hash;
        }
        if dies {
            self.process.journal_writer = Some(TrialJournalWriter::new(head, disk, before.as_ref(), every));
            self.begin_step();
        }
    }

    /// These tiles are complete from the beginning, in this unfinished C.
    pub(super) fn take_over(&mut self, tiles: impl Iterator<Item = TileKey>, c: Vec<f64>) {
        for tile in tiles {
            let plan = self.primary.plan();
            self.work.steps_there += plan.regions[tile.0].steps();
            places(rect_of(plan, tile), self.model.data.p.n)
                .for_each(|place| self.shell.committed[place] = true);
        }
        self.shell.c = c;
    }

    /// The primary dies: only its process, or its whole machine.
    pub(super) fn die(&mut self, kind: FaultKind) {
        let Some(journal_writer) = &self.process.journal_writer else {
            unreachable!("it was to die, so there is a journal")
        };
        let disk = journal_writer.disk.clone();
        self.record.seen.deaths.torn += u64::from(disk.log_synced < disk.log.len());
        let (mut c, log) = disk.left(&self.shell.c, kind == FaultKind::Off, &mut self.random);
        let found = read(&log).ok().filter(|journal| !journal.tiles.is_empty());
        self.check_journal(found.as_ref(), &c);
        let plan = self.primary.plan();
        let mut damaged = BTreeSet::new();
        let journal = found.map(|mut journal| {
            let is = journal.head.plan.clone();
            let was = Plan { relay: is.relay, ..plan.clone().unpredicted() };
            assert_eq!(is, was, "the journal has another plan");
            // Tiles with another digest are recomputed.
            let n = self.model.data.p.n;
            let is_there = |tile: &TileKey, was| digest(&c, rect_of(plan, *tile), n) == was;
            damaged.extend(
                journal.tiles.iter().filter(|(tile, was)| !is_there(tile, **was)).map(|(tile, _)| *tile),
            );
            journal.tiles.retain(|tile, _| !damaged.contains(tile));
            journal.missing.clone_from(&damaged);
            // Of the others the journal says that they may be missing, until they are recomputed and synced.
            damaged.retain(|tile| !journal.unsynced.contains(tile));
            journal
        });
        let wrong = journal.iter().flat_map(|journal| journal.tiles.keys()).filter_map(|tile| {
            let rect = rect_of(plan, *tile);
            let mut all = places(rect, self.model.data.p.n);
            let is_wrong = all.any(|at| c[at].to_bits() != self.model.expected[at].to_bits());
            assert!(
                !is_wrong || self.inspection.is_known(*tile),
                "tile {tile:?} is in the journal, and wrong"
            );
            is_wrong.then_some((*tile, rect))
        });
        let wrong = wrong.collect();
        if journal.is_none() {
            // The next run creates the file anew.
            c.fill(GARBAGE);
        }
        self.record.seen.deaths.tiles_kept +=
            journal.as_ref().map_or(0, |journal| journal.tiles.len() as u64);
        self.record.seen.deaths.all += 1;
        let gap = Duration::from_micros((self.random.between(0.1, GAP_MAX_S) * 1e6) as u64);
        let (machines, mut faults) = self.surviving_machines(gap);
        faults.extend(self.later(gap));
        if journal.is_none() {
            // The plan names its machines whether they are connected or not.
            faults.extend((1..self.members.cluster.len()).map(|machine| {
                let kind = if machines.contains(&machine) { FaultKind::Join } else { FaultKind::Kill };
                SimFault { kind, site: FaultSite::Worker(machine), from: Duration::ZERO, to: None }
            }));
        }
        self.process.left = Some(SurvivingState {
            c,
            journal,
            log,
            wrong,
            damaged,
            machines,
            faults,
            hash: self.record.hash,
        });
    }

    /// The machines that are connected when the next life begins, and the joins of the others.
    fn surviving_machines(&mut self, gap: Duration) -> (Vec<usize>, Vec<SimFault>) {
        let (mut machines, mut coming) = (Vec::new(), Vec::new());
        for peer in 0..self.members.count {
            let machine = self.members.machines[peer];
            if machine == 0 || !self.nodes[peer].machine.lives {
                continue;
            }
            if self.random.chance(AT_ONCE) {
                machines.push(machine);
            } else {
                let from = gap + Duration::from_micros((self.random.between(0.0, GAP_MAX_S) * 1e6) as u64);
                coming.push(SimFault {
                    kind: FaultKind::Join,
                    site: FaultSite::Worker(machine),
                    from,
                    to: None,
                });
            }
        }
        (machines, coming)
    }

    /// The faults after the death, relative to the next life; a restart under way becomes a join.
    fn later(&self, gap: Duration) -> Vec<SimFault> {
        let now = self.event_queue.now().duration();
        let after = |at: Duration| at.checked_sub(now).map(|rest| rest + gap);
        let later =
            self.faults.all.iter().filter_map(|fault| match (after(fault.from), fault.to.and_then(after)) {
                (Some(from), to) if fault.from > now => Some(SimFault { from, to, ..*fault }),
                (_, Some(to)) if fault.kind == FaultKind::Restart => {
                    Some(SimFault { kind: FaultKind::Join, from: to, to: None, ..*fault })
                }
                _ => None,
            });
        later.collect()
    }
}
