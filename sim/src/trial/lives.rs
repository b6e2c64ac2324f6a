//! The primary dies, and another goes on with what is on its disk.
//!
//! Place in the flow: a trial is a life of the primary. Where it dies the next one begins with the journal, as `--resume` does
//! (`crates/primary/src/resume.rs`, `run/kept.rs`): the same plan, without what is there, by the machines that are here.
//!
//! Invariants: what the journal names is there, to the digest (`keeper.rs`). Machines come with nothing of before; what was to
//! happen to them later still does.
//!
//! Deliberately absent: comparing what the user asks for with what was asked before.

use super::disk::Disk;
use super::joins::comer;
use super::keeper::{Keeper, Tile, digest, rect_of};
use super::looks::Looks;
use super::matter::{GARBAGE, places};
use super::{Scenario, Trial};
use crate::fault::{Fault, FaultKind, Site};
use bramble_matrix::{Digest128, Rect};
use bramble_plan::Plan;
use bramble_schedule::journal::{Head, Journal, read};
use bramble_schedule::primary::{Operands, PeerInfo, Primary};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Longest until somebody goes on, in seconds, and until a machine that survived is there again.
const GAP_MAX_S: f64 = 3.0;
/// A machine that survived is there at once, in so many of 1.
const AT_ONCE: f64 = 0.85;

/// What a life leaves.
pub(super) struct Left {
    /// The unfinished C, and what is valid of its journal, if there is one with tiles.
    c: Vec<f64>,
    pub(super) journal: Option<Journal>,
    log: Vec<u8>,
    /// Tiles that are there and wrong, since a machine lied.
    wrong: BTreeMap<Tile, Rect>,
    /// Tiles that the journal names and that are not what it says: they were being made again.
    damaged: BTreeSet<Tile>,
    /// Machines that are here.
    machines: Vec<usize>,
    /// What happens from now on.
    pub(super) faults: Vec<Fault>,
    pub(super) hash: u64,
}

/// What a journal is of.
pub(super) fn head(plan: &Plan, (alpha, beta): (f64, f64)) -> Head {
    let some = |number| Digest128([number; 16]);
    let old_c = plan.problem.reads_c.then(|| some(3));
    let plan = plan.clone().unpredicted();
    Head { alpha, beta, a: some(1), b: some(2), old_c, kernel: "trial".to_owned(), plan }
}

/// How often machines may come in with these faults.
pub(super) fn comings(faults: &[Fault]) -> usize {
    faults.iter().filter(|fault| matches!(fault.kind, FaultKind::Join | FaultKind::Restart)).count()
}

/// Who is here for a life, and its state machine; an error where nobody of them has room for what is left.
pub(super) fn begun(
    scenario: &Scenario,
    operands: Operands,
    left: Option<&Left>,
) -> (Vec<(usize, PeerInfo)>, Result<Primary, String>) {
    let Some((left, journal)) = left.and_then(|left| Some((left, left.journal.as_ref()?))) else {
        let peers = scenario.peers();
        let infos = peers.iter().map(|(_, info)| info.clone()).collect();
        return (
            peers,
            Ok(Primary::new(scenario.plan.clone(), operands, infos).recovering().inspected().looking(1)),
        );
    };
    let own = |is_reserve| {
        let is = &scenario.machines[0];
        (0, PeerInfo { shares_memory: true, is_reserve, ..comer(0, is.memory_bytes, is.gflops) })
    };
    let workers = left.machines.iter().map(|machine| {
        let is = &scenario.machines[*machine];
        (*machine, comer(*machine, is.memory_bytes, is.gflops))
    });
    let mut peers: Vec<(usize, PeerInfo)> = workers.collect();
    if scenario.has_reserve && !peers.is_empty() {
        peers.push(own(true));
    } else {
        peers.insert(0, own(false));
    }
    let infos = peers.iter().map(|(_, info)| info.clone()).collect();
    let is_there = |region, tile| journal.tiles.contains_key(&(region, tile));
    let primary = Primary::resumed(scenario.plan.clone(), operands, infos, &is_there);
    (peers, primary.map(|primary| primary.inspected().looking(1)))
}

impl Trial {
    /// What is there when a life begins; with a keeper where the primary is to die in it.
    pub(super) fn take_over(&mut self, scenario: &Scenario, left: Option<Left>) {
        let every = Duration::from_secs_f64(
            scenario.plan.predicted.seconds.clamp(0.1, 20.0) * self.random.between(0.01, 0.2),
        );
        let dies = self
            .faults
            .iter()
            .any(|f| f.site == Site::Primary && matches!(f.kind, FaultKind::Kill | FaultKind::Off));
        let head = head(&scenario.plan, (self.matter.alpha, self.matter.beta));
        let mut disk = Disk::empty(self.expected.len());
        let mut before = None;
        if let Some(left) = left {
            if let Some(journal) = left.journal {
                let tiles = journal.tiles.keys().map(|tile| (*tile, rect_of(&scenario.plan, *tile)));
                for (tile, rect) in tiles {
                    places(rect, self.matter.p.n).for_each(|place| self.shell.committed[place] = true);
                    self.steps_there += scenario.plan.regions[tile.0].steps();
                }
                disk.log = left.log;
                disk.log.truncate(usize::try_from(journal.valid_bytes).unwrap_or(usize::MAX));
                disk.sync_log();
                disk.sync_data(left.c.clone());
                self.shell.c = left.c;
                self.looks = Looks::of_before(left.wrong, left.damaged);
                before = Some(journal);
            }
            self.hash = left.hash;
        }
        if dies {
            self.keeper = Some(Keeper::new(head, disk, before.as_ref(), every));
            self.begin_step();
        }
    }

    /// The primary dies: its process, or its whole machine.
    pub(super) fn die(&mut self, kind: FaultKind) {
        let Some(keeper) = &self.keeper else { unreachable!("it was to die, so there is a journal") };
        let disk = keeper.disk.clone();
        self.seen.died_torn += u64::from(disk.log_synced < disk.log.len());
        let (mut c, log) = disk.left(&self.shell.c, kind == FaultKind::Off, &mut self.random);
        let found = read(&log).ok().filter(|journal| !journal.tiles.is_empty());
        self.check_journal(found.as_ref(), &c);
        let plan = self.primary.plan();
        let mut damaged = BTreeSet::new();
        let journal = found.map(|mut journal| {
            let is = journal.head.plan.clone();
            let was = Plan { relay: is.relay, ..plan.clone().unpredicted() };
            assert_eq!(is, was, "the plan of the journal is another");
            // What is not what it was is made again.
            let n = self.matter.p.n;
            let is_there = |tile: &Tile, was| digest(&c, rect_of(plan, *tile), n) == was;
            damaged.extend(
                journal.tiles.iter().filter(|(tile, was)| !is_there(tile, **was)).map(|(tile, _)| *tile),
            );
            journal.tiles.retain(|tile, _| !damaged.contains(tile));
            journal.missing.clone_from(&damaged);
            journal
        });
        let wrong = journal.iter().flat_map(|journal| journal.tiles.keys()).filter_map(|tile| {
            let rect = rect_of(plan, *tile);
            let mut all = places(rect, self.matter.p.n);
            let is_wrong = all.any(|at| c[at].to_bits() != self.expected[at].to_bits());
            assert!(!is_wrong || self.looks.is_known(*tile), "tile {tile:?} is in the journal, and wrong");
            is_wrong.then_some((*tile, rect))
        });
        let wrong = wrong.collect();
        if journal.is_none() {
            // The file is made anew.
            c.fill(GARBAGE);
        }
        self.seen.tiles_kept += journal.as_ref().map_or(0, |journal| journal.tiles.len() as u64);
        self.seen.deaths += 1;
        let gap = Duration::from_micros((self.random.between(0.1, GAP_MAX_S) * 1e6) as u64);
        let (machines, mut faults) = self.who_stays(gap);
        faults.extend(self.later(gap));
        if journal.is_none() {
            // The plan names its machines whether they are here or not.
            faults.extend((1..self.cluster.len()).map(|machine| {
                let kind = if machines.contains(&machine) { FaultKind::Join } else { FaultKind::Kill };
                Fault { kind, site: Site::Worker(machine), from: Duration::ZERO, to: None }
            }));
        }
        self.left = Some(Left { c, journal, log, wrong, damaged, machines, faults, hash: self.hash });
    }

    /// Machines that are here when the next life begins, and when the others come.
    fn who_stays(&mut self, gap: Duration) -> (Vec<usize>, Vec<Fault>) {
        let (mut machines, mut coming) = (Vec::new(), Vec::new());
        for peer in 0..self.count {
            let machine = self.machines[peer];
            if machine == 0 || !self.nodes[peer].lives {
                continue;
            }
            if self.random.chance(AT_ONCE) {
                machines.push(machine);
            } else {
                let from = gap + Duration::from_micros((self.random.between(0.0, GAP_MAX_S) * 1e6) as u64);
                coming.push(Fault { kind: FaultKind::Join, site: Site::Worker(machine), from, to: None });
            }
        }
        (machines, coming)
    }

    /// What was to happen after the death, from when somebody goes on; whoever was to come in again by now does.
    fn later(&self, gap: Duration) -> Vec<Fault> {
        let now = self.agenda.now().duration();
        let after = |at: Duration| at.checked_sub(now).map(|rest| rest + gap);
        let later =
            self.faults.iter().filter_map(|fault| match (after(fault.from), fault.to.and_then(after)) {
                (Some(from), to) if fault.from > now => Some(Fault { from, to, ..*fault }),
                (_, Some(to)) if fault.kind == FaultKind::Restart => {
                    Some(Fault { kind: FaultKind::Join, from: to, to: None, ..*fault })
                }
                _ => None,
            });
        later.collect()
    }
}
