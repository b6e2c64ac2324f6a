//! Faults as text: `kill:w3@2.5s,slow:w1@1s..4s/50`.
//!
//! A fault is `kind:where@when`, with `/amount` for some kinds. Where: `w3`, the third worker, and for faults of links its
//! link with the primary; or a link by its ends, `p` being the primary: `w1-w2` in both directions, `w3>p` in one. When: a
//! time since the start, a span, or a span without an end (`2s..`). Times have units: `us`, `ms`, `s`; or are a part of the
//! product's time without faults (`50%`), if that is known.
//!
//! Invariants: a formatted fault parses to the same fault.

use super::{FaultKind, FaultSite, Faults, LinkEnd, SimFault};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

/// A text that is not a list of faults.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("fault {number}, '{text}': {what}")]
pub struct FaultError {
    /// The number of the fault, from 1.
    pub number: usize,
    /// Its text.
    pub text: String,
    /// The error.
    pub what: String,
}

const FORM: &str = "a fault is kind:where@when, such as kill:w3@2.5s or slow:w1@1s..4s/50";
const KINDS: &str = "kinds are kill, off, memory, pause, busy, cut, stall, slow, delay, late, \
                     join, restart, lie, leap, still";
/// The kinds of the timing mode (`FaultKind::is_timed`).
const TIMED_KINDS: &str = "kinds are kill, off, pause, busy, slow, join, restart";
const SITES: &str =
    "a place is w3 (the third worker), p (the primary) or a link: w1-w2 both ways, w3>p or p>w3 one way";
const TIMES: &str = "a time is a number with s, ms or us, such as 2.5s";
const PARTS: &str = "here a time has to be in s, ms or us: the product's own time, for a %, is not known";
/// Longest time, in seconds, and in multiples of the product's time.
const LATEST: f64 = 1e6;
const LATEST_PART: f64 = 100.0;

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        Self::read(text, None)
    }
}

impl Faults {
    /// Parses a text in which times may be parts of `whole`, the product's time without faults.
    ///
    /// # Errors
    ///
    /// The first invalid fault.
    pub fn read(text: &str, whole: Option<Duration>) -> Result<Self, FaultError> {
        Self::read_kinds(text, whole, KINDS)
    }

    /// The same for the timing mode: all kinds must be supported by it. Places are not checked (see `check_timed`).
    ///
    /// # Errors
    ///
    /// The first invalid fault, or else the first of an unsupported kind.
    pub fn read_timed(text: &str, whole: Option<Duration>) -> Result<Self, FaultError> {
        let faults = Self::read_kinds(text, whole, TIMED_KINDS)?;
        match faults.0.iter().enumerate().find(|(_, fault)| !fault.kind.is_timed()) {
            None => Ok(faults),
            Some((at, fault)) => Err(FaultError {
                number: at + 1,
                text: fault.to_string(),
                what: format!("only trials support this kind; {TIMED_KINDS}"),
            }),
        }
    }

    fn read_kinds(text: &str, whole: Option<Duration>, kinds: &str) -> Result<Self, FaultError> {
        let parts = text.split(',').map(str::trim).enumerate().filter(|(_, part)| !part.is_empty());
        let fault = |(at, part): (usize, &str)| {
            fault(part, whole, kinds).map_err(|what| FaultError {
                number: at + 1,
                text: part.to_owned(),
                what,
            })
        };
        Ok(Self(parts.map(fault).collect::<Result<_, _>>()?))
    }
}

fn fault(text: &str, whole: Option<Duration>, kinds: &str) -> Result<SimFault, String> {
    let moment = |text: &str| moment(text, whole);
    let (name, rest) = text.split_once(':').ok_or(FORM)?;
    let (site, when) = rest.split_once('@').ok_or(FORM)?;
    let (when, amount) = match when.split_once('/') {
        Some((when, amount)) => (when, Some(amount)),
        None => (when, None),
    };
    let kind = kind(name, amount, kinds)?;
    let site = self::site(site)?;
    if matches!(site, FaultSite::Link { .. }) && !kind.is_of_links() {
        return Err(format!("{name} happens at a worker, such as w3"));
    }
    if site == FaultSite::Primary && !kind.is_of_the_primary() {
        return Err(format!("{name} does not happen at the primary; name a worker, such as w3"));
    }
    if kind == FaultKind::Cut && matches!(site, FaultSite::Link { both: false, .. }) {
        return Err("a link is cut both ways, such as w1-w2".to_owned());
    }
    let (from, to) = match when.split_once("..") {
        Some((from, to)) => (moment(from)?, Some(to).filter(|to| !to.is_empty()).map(moment).transpose()?),
        None => (moment(when)?, None),
    };
    if kind.is_sudden() && when.contains("..") {
        return Err(format!("{name} happens at one moment, such as 2.5s"));
    }
    if kind == FaultKind::Restart && to.is_none() {
        return Err("a restart takes from one time to another, such as restart:w1@2s..5s".to_owned());
    }
    if to.is_some_and(|to| to <= from) {
        return Err("it ends before it begins".to_owned());
    }
    Ok(SimFault { kind, site, from, to })
}

fn kind(name: &str, amount: Option<&str>, kinds: &str) -> Result<FaultKind, String> {
    let needs = |what: &str| format!("{name} needs {what}");
    let times = || -> Result<f64, String> {
        let what = || needs("how many times slower, such as /50");
        let times: f64 = amount.and_then(|a| a.parse().ok()).ok_or_else(what)?;
        if (1.0..=1e6).contains(&times) { Ok(times) } else { Err(needs("a number from 1 to 1000000")) }
    };
    let longer = || time(amount.ok_or_else(|| needs("how much longer, such as /200ms"))?);
    let plain = |kind: FaultKind| match amount {
        None => Ok(kind),
        Some(amount) => Err(format!("{name} takes no amount, here /{amount}")),
    };
    match name {
        "kill" => plain(FaultKind::Kill),
        "off" => plain(FaultKind::Off),
        "memory" => plain(FaultKind::Memory),
        "pause" => plain(FaultKind::Pause),
        "cut" => plain(FaultKind::Cut),
        "stall" => plain(FaultKind::Stall),
        "join" => plain(FaultKind::Join),
        "restart" => plain(FaultKind::Restart),
        "lie" => plain(FaultKind::Lie),
        "still" => plain(FaultKind::Still),
        "leap" => Ok(FaultKind::Leap(longer()?)),
        "busy" => Ok(FaultKind::Busy(times()?)),
        "slow" => Ok(FaultKind::Slow(times()?)),
        "delay" => Ok(FaultKind::Delay(longer()?)),
        "late" => Ok(FaultKind::Late(longer()?)),
        _ => Err(format!("'{name}' is no kind of fault; {kinds}")),
    }
}

fn site(text: &str) -> Result<FaultSite, String> {
    let ends = text.split_once('-').map(|ends| (ends, true));
    let Some(((from, to), both)) = ends.or_else(|| text.split_once('>').map(|ends| (ends, false))) else {
        return match at(text)? {
            LinkEnd::Worker(worker) => Ok(FaultSite::Worker(worker)),
            LinkEnd::Primary => Ok(FaultSite::Primary),
        };
    };
    let (from, to) = (at(from)?, at(to)?);
    if from == to {
        return Err("a link has two ends".to_owned());
    }
    Ok(FaultSite::Link { from, to, both })
}

fn at(text: &str) -> Result<LinkEnd, String> {
    if text == "p" {
        return Ok(LinkEnd::Primary);
    }
    let number = text.strip_prefix('w').and_then(|number| number.parse().ok()).filter(|number| *number > 0);
    Ok(LinkEnd::Worker(number.ok_or(SITES)?))
}

fn moment(text: &str, whole: Option<Duration>) -> Result<Duration, String> {
    let Some(part) = text.strip_suffix('%') else { return time(text) };
    let part = part.parse::<f64>().ok().map(|part| part / 100.0);
    let part = part.filter(|part| (0.0..=LATEST_PART).contains(part)).ok_or(TIMES)?;
    let whole = whole.ok_or(PARTS)?.as_secs_f64();
    Ok(super::part_of(whole, part.min(LATEST / whole.max(1e-6))))
}

fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = found.ok_or(TIMES)?;
    let seconds = number.parse::<f64>().map_err(|_| TIMES)? * unit;
    let time = Some(seconds).filter(|s| (0.0..=LATEST).contains(s)).ok_or(TIMES)?;
    Ok(super::micros(time))
}

impl Display for Faults {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl Display for SimFault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (name, amount) = match self.kind {
            FaultKind::Kill => ("kill", String::new()),
            FaultKind::Off => ("off", String::new()),
            FaultKind::Memory => ("memory", String::new()),
            FaultKind::Pause => ("pause", String::new()),
            FaultKind::Cut => ("cut", String::new()),
            FaultKind::Stall => ("stall", String::new()),
            FaultKind::Join => ("join", String::new()),
            FaultKind::Restart => ("restart", String::new()),
            FaultKind::Lie => ("lie", String::new()),
            FaultKind::Still => ("still", String::new()),
            FaultKind::Leap(by) => ("leap", format!("/{}", in_units(by))),
            FaultKind::Busy(times) => ("busy", format!("/{times}")),
            FaultKind::Slow(times) => ("slow", format!("/{times}")),
            FaultKind::Delay(most) => ("delay", format!("/{}", in_units(most))),
            FaultKind::Late(by) => ("late", format!("/{}", in_units(by))),
        };
        write!(f, "{name}:{}@{}", self.site, in_units(self.from))?;
        if !self.kind.is_sudden() {
            write!(f, "..{}", self.to.map(in_units).unwrap_or_default())?;
        }
        write!(f, "{amount}")
    }
}

impl Display for FaultSite {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("p"),
            Self::Worker(worker) => write!(f, "w{worker}"),
            Self::Link { from, to, both } => write!(f, "{from}{}{to}", if *both { '-' } else { '>' }),
        }
    }
}

impl Display for LinkEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => write!(f, "p"),
            Self::Worker(worker) => write!(f, "w{worker}"),
        }
    }
}

fn in_units(time: Duration) -> String {
    match time.as_micros() {
        us if us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us.is_multiple_of(1000) => format!("{}ms", us / 1000),
        us => format!("{us}us"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn formatted_faults_parse_to_the_same_faults() {
        for seed in 0..500 {
            let faults = Faults::of(seed, (5, 2), 2.5);
            assert_eq!(faults.to_string().parse::<Faults>().unwrap(), faults, "{faults}");
        }
        let text = "kill:w3@2500ms,slow:w1@1s..4s/50,stall:w3>p@2s..,cut:w1-w2@7us,delay:p-w2@0s..1s/30ms,join:w9@2s,\
                    restart:w1@1s..3s,off:p@2s,leap:p@1s/9s,still:w2@1s..2s";
        assert_eq!(text.parse::<Faults>().unwrap().to_string(), text);
        assert_eq!(" kill:w3@2.5s, pause:w1@1s..2s ,".parse::<Faults>().unwrap().0.len(), 2);
        assert_eq!("".parse::<Faults>().unwrap(), Faults::default());
    }

    #[test]
    fn times_may_be_parts_of_a_known_total() {
        let text = "kill:w3@50%,slow:w1@10%..1.5s/50,pause:w2@200%..";
        let faults = Faults::read(text, Some(Duration::from_secs(4))).unwrap();
        assert_eq!(faults.to_string(), "kill:w3@2s,slow:w1@400ms..1500ms/50,pause:w2@8s..");
        assert!(text.parse::<Faults>().unwrap_err().to_string().contains("is not known"));
        for text in ["kill:w1@%", "kill:w1@-5%", "kill:w1@nan%", "kill:w1@10001%", "pause:w1@60%..2s"] {
            assert!(Faults::read(text, Some(Duration::from_secs(4))).is_err(), "{text}");
        }
    }

    #[test]
    fn the_timing_mode_names_the_kinds_that_it_knows() {
        let error = |text: &str| Faults::read_timed(text, None).unwrap_err().to_string();
        let kinds = "kinds are kill, off, pause, busy, slow, join, restart";
        assert!(error("die:w1@1s").ends_with(&format!("'die' is no kind of fault; {kinds}")));
        let other = error("kill:w1@1s,stall:w1@1s..");
        assert!(other.starts_with("fault 2, 'stall:w1@1s..': ") && other.ends_with(kinds), "{other}");
        for name in kinds.trim_start_matches("kinds are ").split(", ") {
            let text = match name {
                "busy" | "slow" => format!("{name}:w1@1s..2s/4"),
                "pause" | "restart" => format!("{name}:w1@1s..2s"),
                _ => format!("{name}:w1@1s"),
            };
            assert!(Faults::read_timed(&text, None).unwrap().0.iter().all(|fault| fault.kind.is_timed()));
        }
    }

    #[test]
    fn invalid_faults_are_refused_and_named() {
        let cases = [
            ("kill", "kind:where@when"),
            ("kill:w3", "kind:where@when"),
            ("die:w3@1s", "no kind of fault"),
            ("kill:3@1s", "the third worker"),
            ("kill:w0@1s", "the third worker"),
            ("lie:p@1s..2s", "at the primary"),
            ("leap:p@1s", "how much longer"),
            ("leap:p@1s..2s/9s", "one moment"),
            ("kill:w1-p@1s", "at a worker"),
            ("kill:w3@1", "a time is"),
            ("kill:w3@-1s", "a time is"),
            ("kill:w3@nans", "a time is"),
            ("kill:w3@1s..2s", "one moment"),
            ("kill:w3@1s/2", "no amount"),
            ("kill:w1-w2@1s", "at a worker"),
            ("cut:w1>w2@1s", "both ways"),
            ("join:w1-w2@1s", "at a worker"),
            ("join:w1@1s..2s", "one moment"),
            ("restart:w1@1s..", "from one time to another"),
            ("restart:w1@1s", "from one time to another"),
            ("stall:w1-w1@1s", "two ends"),
            ("slow:w1@1s..2s", "how many times"),
            ("slow:w1@1s..2s/0.5", "from 1 to"),
            ("late:w1@1s..2s", "how much longer"),
            ("pause:w1@3s..2s", "ends before"),
        ];
        for (text, what) in cases {
            let error = format!("cut:w1@1s,{text}").parse::<Faults>().unwrap_err();
            assert_eq!(error.number, 2);
            assert!(error.to_string().contains(what) && error.to_string().contains(text), "{error}");
        }
    }
}
