//! What goes wrong in a simulated product, and when.
//!
//! Place in the flow: drawn from a seed (`Faults::of`) or read from a text (`fault/text.rs`); the trial carries them out
//! at its machines and links.
//!
//! Invariants: a fault is plain data. What it does to a link keeps what a link promises: frames arrive in order and
//! whole, or the link ends.
//!
//! Deliberately absent: what the state machines make of it.

mod text;

pub use text::FaultError;

use crate::random::Random;
use std::time::Duration;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// The worker's process ends; the system closes its links.
    Kill,
    /// The plug is pulled: nobody is told.
    Off,
    /// The worker's session ends because it has no memory, and says so.
    Memory,
    /// The worker's process stands still for a while.
    Pause,
    /// The worker computes so many times slower.
    Busy(f64),
    /// A link breaks; both ends see it.
    Cut,
    /// A link carries nothing, one way or both, and nobody is told.
    Stall,
    /// A link is so many times slower.
    Slow(f64),
    /// Each frame takes longer, by anything up to that.
    Delay(Duration),
    /// Each frame from the worker takes that much longer.
    Late(Duration),
    /// The machine comes in, unless it is there: a worker of the cluster that is gone or has no part, or one more.
    Join,
    /// The worker's process ends, and comes in again when the fault is over.
    Restart,
    /// What the worker gives back is wrong.
    Lie,
    /// The clock that an end sees is so much later all at once.
    Leap(Duration),
    /// The clock that an end sees stands still; then it goes on from there.
    Still,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// The primary.
    Primary,
    /// A worker, by its number among the machines: 1 is the first.
    Worker(usize),
}

/// Where it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// At the primary.
    Primary,
    /// At a worker, and on its link with the primary.
    Worker(usize),
    /// On a link, from the first end to the second, or both ways.
    Link {
        /// One end.
        from: At,
        /// The other.
        to: At,
        /// Both ways.
        both: bool,
    },
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Where.
    pub site: Site,
    /// When it begins.
    pub from: Duration,
    /// When it is over; `None` where it never is.
    pub to: Option<Duration>,
}

/// Everything that goes wrong.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults(pub Vec<Fault>);

impl FaultKind {
    /// Whether it happens at one moment.
    pub(crate) fn is_sudden(self) -> bool {
        matches!(self, Self::Kill | Self::Off | Self::Memory | Self::Cut | Self::Join | Self::Leap(_))
    }

    /// Whether the timing mode knows it.
    pub(crate) fn is_timed(self) -> bool {
        use FaultKind::{Busy, Join, Kill, Off, Pause, Restart, Slow};
        matches!(self, Kill | Off | Pause | Busy(_) | Slow(_) | Join | Restart)
    }

    /// Whether it is something that a link has for a while.
    pub(crate) fn is_on_a_link(self) -> bool {
        matches!(self, Self::Stall | Self::Slow(_) | Self::Delay(_) | Self::Late(_))
    }

    /// Whether it can happen to the primary.
    pub(crate) fn is_of_the_primary(self) -> bool {
        matches!(self, Self::Kill | Self::Off | Self::Pause | Self::Leap(_) | Self::Still)
    }

    /// Whether it can happen on a link that is named by its ends.
    pub(crate) fn is_of_links(self) -> bool {
        matches!(self, Self::Cut | Self::Stall | Self::Slow(_) | Self::Delay(_))
    }
}

/// Most faults in one trial that are drawn.
const DRAWN_MAX: u64 = 7;
/// Kinds that are drawn for a trial, at least.
const KINDS_MIN: usize = 3;

impl Faults {
    /// Three to seven faults of at least three kinds, and sometimes some of the primary and of clocks, in a product that takes
    /// about so many seconds, for so many workers, after whom come machines (`comers`) that may join.
    pub fn of(seed: u64, (workers, comers): (usize, usize), seconds: f64) -> Self {
        let mut random = Random::new(seed);
        let mut kinds: Vec<FaultKind> = KINDS.to_vec();
        random.shuffle(&mut kinds);
        let several = 3 + random.below(1 + DRAWN_MAX - 3);
        let faults = (0..several).map(|number| {
            // The first are of different kinds.
            let at = usize::try_from(number).ok().filter(|at| *at < KINDS_MIN);
            let kind = match at {
                Some(at) => kinds[at],
                None => *random.one_of(&KINDS),
            };
            drawn(kind, (workers.max(1), comers), seconds, &mut random)
        });
        let mut faults: Vec<Fault> = faults.collect();
        // From numbers of their own: the others stay what they were before there were these.
        let mut random = Random::new(seed ^ 0xc10c);
        faults.extend(drawn_at_the_primary(workers.max(1), seconds, &mut random));
        faults.extend(drawn_between_workers(workers, seconds, &mut Random::new(seed ^ 0xd0af)));
        Self(faults)
    }

    /// Some faults that the timing mode knows, in a product that takes about so many seconds on these workers: one to three, more
    /// where there are many workers; none where there is none.
    pub fn timed_of(seed: u64, workers: &[usize], seconds: f64) -> Self {
        let mut random = Random::new(seed ^ 0x71e5);
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
            let site = Site::Worker(*random.one_of(workers));
            let from = part_of(seconds, random.between(0.0, 1.0));
            let long = part_of(seconds, random.between(0.05, 0.6)).max(Duration::from_micros(1));
            Fault { kind, site, from, to: (!kind.is_sudden()).then(|| from + long) }
        });
        Self(faults.collect())
    }

    /// Whether the timing mode can carry all of them out, with so many workers; an error names the first that it cannot.
    ///
    /// # Errors
    ///
    /// Where a kind is one of trials, at a link that is named by its ends, or at a worker that there is not.
    pub fn check_timed(&self, workers: usize) -> Result<(), FaultError> {
        for (at, fault) in self.0.iter().enumerate() {
            let what = match fault.site {
                _ if !fault.kind.is_timed() => {
                    "only kill, off, pause, busy, slow, join and restart can be told in time; use one of these".to_owned()
                }
                Site::Primary => "the time of products that go on is not known; name a worker, such as w3".to_owned(),
                Site::Link { .. } => "name a worker, such as w3: its link with the primary".to_owned(),
                Site::Worker(worker) if worker > workers => match workers {
                    0 => "there are no workers to which it could happen".to_owned(),
                    _ => format!("the workers are w1 to w{workers}; name one of these, or describe one more"),
                },
                Site::Worker(_) => continue,
            };
            return Err(FaultError { number: at + 1, text: fault.to_string(), what });
        }
        Ok(())
    }

    /// All without one of them.
    pub fn without(&self, at: usize) -> Self {
        let others = self.0.iter().enumerate().filter(|(other, _)| *other != at);
        Self(others.map(|(_, fault)| *fault).collect())
    }
}

/// All kinds; how strong they are is drawn.
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

/// Those that are drawn for the timing mode.
const TIMED: [FaultKind; 6] = [
    FaultKind::Kill,
    FaultKind::Off,
    FaultKind::Pause,
    FaultKind::Busy(1.0),
    FaultKind::Slow(1.0),
    FaultKind::Restart,
];

fn drawn(kind: FaultKind, (workers, comers): (usize, usize), seconds: f64, random: &mut Random) -> Fault {
    let kind = match kind {
        FaultKind::Busy(_) => FaultKind::Busy(random.between(2.0, 40.0).round()),
        FaultKind::Slow(_) => FaultKind::Slow(random.between(2.0, 60.0).round()),
        FaultKind::Delay(_) => FaultKind::Delay(micros(random.between(0.001, 0.5))),
        FaultKind::Late(_) => FaultKind::Late(micros(random.between(0.01, 2.0))),
        other => other,
    };
    let worker = match kind {
        FaultKind::Join if comers > 0 && random.chance(0.8) => 1 + workers + random.index(comers),
        // Who comes in has faults too.
        _ if random.chance(0.3) => 1 + random.index(workers + comers),
        _ => 1 + random.index(workers),
    };
    let other = 1 + random.index(workers);
    let is_across = kind.is_of_links() && other != worker && random.chance(0.5);
    let site = match kind {
        _ if is_across => {
            let both = random.chance(0.5) || kind == FaultKind::Cut;
            Site::Link { from: At::Worker(worker), to: At::Worker(other), both }
        }
        FaultKind::Stall | FaultKind::Slow(_) | FaultKind::Delay(_) => match random.below(3) {
            0 => Site::Link { from: At::Worker(worker), to: At::Primary, both: false },
            1 => Site::Link { from: At::Primary, to: At::Worker(worker), both: false },
            _ => Site::Worker(worker),
        },
        _ => Site::Worker(worker),
    };
    let from = micros(random.between(0.0, 1.2 * seconds));
    // Shorter and longer than an end is silent before it is given up.
    let long = if random.chance(0.3) { random.between(15.0, 40.0) } else { random.between(0.05, seconds) };
    // A link between workers that never carries anything again is drawn later.
    let for_ever = kind == FaultKind::Stall && !is_across && random.chance(0.4);
    let to = (!kind.is_sudden() && !for_ever).then(|| from + micros(long));
    Fault { kind, site, from, to }
}

/// Sometimes a link of two workers that carries nothing any more, one way or both.
fn drawn_between_workers(workers: usize, seconds: f64, random: &mut Random) -> Option<Fault> {
    if workers < 2 || !random.chance(0.15) {
        return None;
    }
    let from = 1 + random.index(workers);
    let to = 1 + (from + random.index(workers - 1)) % workers;
    let site = Site::Link { from: At::Worker(from), to: At::Worker(to), both: random.chance(0.5) };
    Some(Fault { kind: FaultKind::Stall, site, from: micros(random.between(0.0, 0.7 * seconds)), to: None })
}

/// Clocks that leap and stand still, a primary that is suspended, and the death of the primary, once or twice.
fn drawn_at_the_primary(workers: usize, seconds: f64, random: &mut Random) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut at = |kind: FaultKind, site: Site, long: f64, random: &mut Random| {
        let from = micros(random.between(0.0, 1.1 * seconds));
        let to = (!kind.is_sudden()).then(|| from + micros(long));
        faults.push(Fault { kind, site, from, to });
    };
    if random.chance(0.12) {
        for _ in 0..1 + random.below(3) {
            let anywhere = Site::Worker(1 + random.index(workers));
            let site = if random.chance(0.7) { Site::Primary } else { anywhere };
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
            at(kind, Site::Primary, 0.0, random);
        }
    }
    faults
}

/// A part of so many seconds: in whole milliseconds where these are fine enough.
fn part_of(seconds: f64, part: f64) -> Duration {
    let time = seconds * part;
    if seconds < 1.0 { micros(time) } else { Duration::from_millis((time * 1e3).round() as u64) }
}

/// Whole microseconds, which the text form has.
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
