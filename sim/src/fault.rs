//! The faults of a simulated product, and their times.
//!
//! Place in the flow: drawn from a seed (`Faults::of`) or parsed from a text (`fault/text.rs`); the trial or the timing mode
//! applies them to its machines and links.
//!
//! Invariants: a fault is plain data. A fault of a link keeps the link's promises: frames arrive in order and
//! whole, or the link ends.
//!
//! Deliberately absent: how the state machines react.

mod text;

pub use text::FaultError;

use crate::random::SeededRandom;
use std::time::Duration;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The worker's process ends; the system closes its links.
    Kill,
    /// The machine loses power: no peer is notified.
    Off,
    /// The worker's session ends for lack of memory, with an error message.
    Memory,
    /// The worker's process is suspended for a while.
    Pause,
    /// The worker computes this many times slower.
    Busy(f64),
    /// A link breaks; both ends notice.
    Cut,
    /// A link carries nothing, in one direction or both, and no end is notified.
    Stall,
    /// A link is this many times slower.
    Slow(f64),
    /// Each frame is delayed by a random time up to this.
    Delay(Duration),
    /// Each frame from the worker is delayed by this.
    Late(Duration),
    /// A machine joins, unless it is connected: a worker of the cluster that was lost or has no part, or an additional one.
    Join,
    /// The worker's process ends, and joins again when the fault is over.
    Restart,
    /// The worker returns wrong results.
    Lie,
    /// The clock of a machine jumps forward by this.
    Leap(Duration),
    /// The clock of a machine stops; later it continues from there.
    Still,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkEnd {
    /// The primary.
    Primary,
    /// A worker, by its index among the machines: 1 is the first.
    Worker(usize),
}

/// The place of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSite {
    /// At the primary.
    Primary,
    /// At a worker, or on its link with the primary.
    Worker(usize),
    /// On a link, from the first end to the second, or in both directions.
    Link {
        /// One end.
        from: LinkEnd,
        /// The other end.
        to: LinkEnd,
        /// Whether both directions are affected.
        both: bool,
    },
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimFault {
    /// The kind.
    pub kind: FaultKind,
    /// The place.
    pub site: FaultSite,
    /// When it begins.
    pub from: Duration,
    /// When it ends; `None` for never.
    pub to: Option<Duration>,
}

/// The faults of one product.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults(pub Vec<SimFault>);

impl FaultKind {
    /// Whether it happens at one moment.
    pub(crate) fn is_sudden(self) -> bool {
        matches!(self, Self::Kill | Self::Off | Self::Memory | Self::Cut | Self::Join | Self::Leap(_))
    }

    /// Whether the timing mode supports it.
    pub(crate) fn is_timed(self) -> bool {
        use FaultKind::{Busy, Join, Kill, Off, Pause, Restart, Slow};
        matches!(self, Kill | Off | Pause | Busy(_) | Slow(_) | Join | Restart)
    }

    /// Whether it is a lasting condition of a link.
    pub(crate) fn is_on_a_link(self) -> bool {
        matches!(self, Self::Stall | Self::Slow(_) | Self::Delay(_) | Self::Late(_))
    }

    /// Whether it can happen at the primary.
    pub(crate) fn is_of_the_primary(self) -> bool {
        matches!(self, Self::Kill | Self::Off | Self::Pause | Self::Leap(_) | Self::Still)
    }

    /// Whether it can happen on a link that is named by its ends.
    pub(crate) fn is_of_links(self) -> bool {
        matches!(self, Self::Cut | Self::Stall | Self::Slow(_) | Self::Delay(_))
    }
}

/// Most faults that are drawn for one trial.
const DRAWN_MAX: u64 = 7;
/// Least number of different kinds that are drawn for one trial.
const KINDS_MIN: usize = 3;

impl Faults {
    /// Draws three to seven faults of at least three kinds, and sometimes faults of the primary and of clocks. `seconds` is
    /// about the time of the product; the `comers` are machines after the `workers` that may join.
    pub fn of(seed: u64, (workers, comers): (usize, usize), seconds: f64) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut kinds: Vec<FaultKind> = KINDS.to_vec();
        random.shuffle(&mut kinds);
        let several = 3 + random.below(1 + DRAWN_MAX - 3);
        let faults = (0..several).map(|number| {
            // The first faults have different kinds.
            let at = usize::try_from(number).ok().filter(|at| *at < KINDS_MIN);
            let kind = match at {
                Some(at) => kinds[at],
                None => *random.one_of(&KINDS),
            };
            drawn(kind, (workers.max(1), comers), seconds, &mut random)
        });
        let mut faults: Vec<SimFault> = faults.collect();
        // From separate random streams, so that the faults above do not depend on these.
        let mut random = SeededRandom::new(seed ^ 0xc10c);
        faults.extend(drawn_at_the_primary(workers.max(1), seconds, &mut random));
        faults.extend(drawn_between_workers(workers, seconds, &mut SeededRandom::new(seed ^ 0xd0af)));
        Self(faults)
    }

    /// Draws faults for the timing mode, for a product that takes about `seconds` on these workers: one to three, more
    /// for many workers; none without workers.
    pub fn timed_of(seed: u64, workers: &[usize], seconds: f64) -> Self {
        let mut random = SeededRandom::new(seed ^ 0x71e5);
        if workers.is_empty() {
            return Self::default();
        }
        let several = 1 + random.index(3.max(workers.len() / 50));
        let faults = (0..several).map(|_| {
            let kind = match *random.one_of(&TIMED) {
                FaultKind::Busy(_) => FaultKind::Busy(random.between(2.0, 20.0).round()),
                FaultKind::Slow(_) => FaultKind::Slow(random.between(2.0, 50.0).round()),
                other => other,
            };
            let site = FaultSite::Worker(*random.one_of(workers));
            let from = part_of(seconds, random.between(0.0, 1.0));
            let long = part_of(seconds, random.between(0.05, 0.6)).max(Duration::from_micros(1));
            SimFault { kind, site, from, to: (!kind.is_sudden()).then(|| from + long) }
        });
        Self(faults.collect())
    }

    /// Whether the timing mode supports all faults, with this number of workers; the error names the first that it does not.
    ///
    /// # Errors
    ///
    /// A kind that only trials support, a link that is named by its ends, or a worker that does not exist.
    pub fn check_timed(&self, workers: usize) -> Result<(), FaultError> {
        for (at, fault) in self.0.iter().enumerate() {
            let what = match fault.site {
                _ if !fault.kind.is_timed() => {
                    "only kill, off, pause, busy, slow, join and restart work when a plan is timed; use one"
                        .to_owned()
                }
                FaultSite::Primary => {
                    "a resumed product cannot be timed; name a worker, such as w3".to_owned()
                }
                FaultSite::Link { .. } => "name a worker, such as w3: its link with the primary".to_owned(),
                FaultSite::Worker(worker) if worker > workers => match workers {
                    0 => "there are no workers to which it could happen".to_owned(),
                    _ => format!("the workers are w1 to w{workers}; name one of these, or describe one more"),
                },
                FaultSite::Worker(_) => continue,
            };
            return Err(FaultError { number: at + 1, text: fault.to_string(), what });
        }
        Ok(())
    }

    /// All faults except one.
    pub fn without(&self, at: usize) -> Self {
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != at);
        Self(others.map(|(_, fault)| *fault).collect())
    }
}

/// Kinds that are drawn; their strength is drawn separately.
const KINDS: [FaultKind; 13] = [
    FaultKind::Kill,
    FaultKind::Off,
    FaultKind::Memory,
    FaultKind::Pause,
    FaultKind::Busy(1.0),
    FaultKind::Cut,
    FaultKind::Stall,
    FaultKind::Slow(1.0),
    FaultKind::Delay(Duration::ZERO),
    FaultKind::Late(Duration::ZERO),
    FaultKind::Join,
    FaultKind::Restart,
    FaultKind::Lie,
];

/// Kinds that are drawn for the timing mode.
const TIMED: [FaultKind; 6] = [
    FaultKind::Kill,
    FaultKind::Off,
    FaultKind::Pause,
    FaultKind::Busy(1.0),
    FaultKind::Slow(1.0),
    FaultKind::Restart,
];

fn drawn(
    kind: FaultKind,
    (workers, comers): (usize, usize),
    seconds: f64,
    random: &mut SeededRandom,
) -> SimFault {
    let kind = match kind {
        FaultKind::Busy(_) => FaultKind::Busy(random.between(2.0, 40.0).round()),
        FaultKind::Slow(_) => FaultKind::Slow(random.between(2.0, 60.0).round()),
        FaultKind::Delay(_) => FaultKind::Delay(micros(random.between(0.001, 0.5))),
        FaultKind::Late(_) => FaultKind::Late(micros(random.between(0.01, 2.0))),
        other => other,
    };
    let worker = match kind {
        FaultKind::Join if comers > 0 && random.chance(0.8) => 1 + workers + random.index(comers),
        // Joining machines have faults, too.
        _ if random.chance(0.3) => 1 + random.index(workers + comers),
        _ => 1 + random.index(workers),
    };
    let other = 1 + random.index(workers);
    let is_across = kind.is_of_links() && other != worker && random.chance(0.5);
    let site = match kind {
        _ if is_across => {
            let both = random.chance(0.5) || kind == FaultKind::Cut;
            FaultSite::Link { from: LinkEnd::Worker(worker), to: LinkEnd::Worker(other), both }
        }
        FaultKind::Stall | FaultKind::Slow(_) | FaultKind::Delay(_) => match random.below(3) {
            0 => FaultSite::Link { from: LinkEnd::Worker(worker), to: LinkEnd::Primary, both: false },
            1 => FaultSite::Link { from: LinkEnd::Primary, to: LinkEnd::Worker(worker), both: false },
            _ => FaultSite::Worker(worker),
        },
        _ => FaultSite::Worker(worker),
    };
    let from = micros(random.between(0.0, 1.2 * seconds));
    // Some are longer than the silence after which a machine is lost, some shorter.
    let long = if random.chance(0.3) { random.between(15.0, 40.0) } else { random.between(0.05, seconds) };
    // Links between workers that stall for ever are drawn separately.
    let for_ever = kind == FaultKind::Stall && !is_across && random.chance(0.4);
    let to = (!kind.is_sudden() && !for_ever).then(|| from + micros(long));
    SimFault { kind, site, from, to }
}

/// Sometimes a link between two workers that stalls for ever, in one direction or both.
fn drawn_between_workers(workers: usize, seconds: f64, random: &mut SeededRandom) -> Option<SimFault> {
    if workers < 2 || !random.chance(0.15) {
        return None;
    }
    let from = 1 + random.index(workers);
    let to = 1 + (from + random.index(workers - 1)) % workers;
    let site =
        FaultSite::Link { from: LinkEnd::Worker(from), to: LinkEnd::Worker(to), both: random.chance(0.5) };
    Some(SimFault {
        kind: FaultKind::Stall,
        site,
        from: micros(random.between(0.0, 0.7 * seconds)),
        to: None,
    })
}

/// Faults of clocks, suspensions of the primary, and its death, once or twice.
fn drawn_at_the_primary(workers: usize, seconds: f64, random: &mut SeededRandom) -> Vec<SimFault> {
    let mut faults = Vec::new();
    let mut at = |kind: FaultKind, site: FaultSite, long: f64, random: &mut SeededRandom| {
        let from = micros(random.between(0.0, 1.1 * seconds));
        let to = (!kind.is_sudden()).then(|| from + micros(long));
        faults.push(SimFault { kind, site, from, to });
    };
    if random.chance(0.12) {
        for _ in 0..1 + random.below(3) {
            let anywhere = FaultSite::Worker(1 + random.index(workers));
            let site = if random.chance(0.7) { FaultSite::Primary } else { anywhere };
            let long = if random.chance(0.3) { random.between(9.0, 30.0) } else { random.between(0.05, 3.0) };
            let kind = match random.below(3) {
                0 => FaultKind::Pause,
                1 => FaultKind::Still,
                _ => FaultKind::Leap(micros(random.between(0.5, 60.0))),
            };
            at(kind, site, long, random);
        }
    }
    if random.chance(0.1) {
        for _ in 0..1 + random.below(3) / 2 {
            let kind = *random.one_of(&[FaultKind::Kill, FaultKind::Off]);
            at(kind, FaultSite::Primary, 0.0, random);
        }
    }
    faults
}

/// A part of a time: in whole milliseconds if these are fine enough.
fn part_of(seconds: f64, part: f64) -> Duration {
    let time = seconds * part;
    if seconds < 1.0 { micros(time) } else { Duration::from_millis((time * 1e3).round() as u64) }
}

/// In whole microseconds, the resolution of the text form.
fn micros(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::mem::{Discriminant, discriminant};

    fn kinds(faults: &Faults) -> Vec<Discriminant<FaultKind>> {
        faults.0.iter().map(|f| discriminant(&f.kind)).collect()
    }

    #[test]
    fn faults_are_of_three_kinds_at_least_and_a_function_of_the_seed() {
        let mut all = Vec::new();
        for seed in 0..200 {
            let faults = Faults::of(seed, (4, 1), 3.0);
            assert_eq!(faults, Faults::of(seed, (4, 1), 3.0));
            let found = kinds(&faults);
            let different = (0..found.len()).filter(|at| !found[..*at].contains(&found[*at])).count();
            assert!(different >= 3, "{faults}");
            all.extend(found);
        }
        let of_clocks = [FaultKind::Leap(Duration::ZERO), FaultKind::Still];
        assert!(KINDS.iter().chain(&of_clocks).all(|kind| all.contains(&discriminant(kind))));
        let texts: BTreeSet<String> =
            (0..200).map(|seed| Faults::of(seed, (4, 1), 3.0).to_string()).collect();
        assert_eq!(texts.len(), 200);
    }
}
