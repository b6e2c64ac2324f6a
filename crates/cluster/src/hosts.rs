//! Parses lists of workers: nodesets (`pi[1-8,10]`, with padding), `host:port`, `host:[7400-7403]`, and lines of
//! hostfiles.
//!
//! Invariants: pure functions from text to hosts. At most `HOSTS_MAX` hosts with names of at most `NAME_BYTES_MAX`
//! bytes; a text that exceeds this is refused before memory is allocated; no name contains a space or a control
//! character.
//!
//! Deliberately absent: files and failures (see `hostfile`), and name resolution.

use std::fmt::{self, Display, Formatter};

/// Default port of workers.
pub const DEFAULT_PORT: u16 = 7400;
/// A longer list is assumed to be a typing error.
pub const HOSTS_MAX: usize = 10_000;
/// Most ports in a list: as many as machines in a list.
const PORTS_MAX: usize = HOSTS_MAX;
/// Longest name in the domain name system.
const NAME_BYTES_MAX: usize = 253;
/// Most characters of a wrong text that a message shows.
const SHOWN_CHARS: usize = 60;

/// A worker to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Host name or address.
    pub name: String,
    /// The port that the worker listens on.
    pub port: u16,
    /// Most threads to use on it; 0 is no limit.
    pub slots: u16,
}

impl Display for Host {
    /// `name:port`; an IPv6 address is in brackets.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.name.contains(':') {
            true => write!(f, "[{}]:{}", self.name, self.port),
            false => write!(f, "{}:{}", self.name, self.port),
        }
    }
}

/// Parses a comma-separated list of nodesets with optional ports, of at most `hosts_max` machines. An error names the
/// wrong part of the list.
pub fn parse_list(text: &str, hosts_max: usize) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(text) {
        let item = item.trim();
        if item.is_empty() {
            return Err(format!("{}: an empty name in the list", shown(text)));
        }
        let room = hosts_max - hosts.len();
        hosts.extend(workers(item, None, 0, room).map_err(|why| format!("{}: {why}", shown(item)))?);
    }
    Ok(hosts)
}

/// The same, and refuses a worker that is listed twice.
pub fn parse_workers(text: &str, hosts_max: usize) -> Result<Vec<Host>, String> {
    let hosts = parse_list(text, hosts_max)?;
    all_differ(&hosts)?;
    Ok(hosts)
}

/// Parses a hostfile: lines of NODESET [slots=N] [port=P], with # comments, of at most `hosts_max` machines together.
/// An error comes with its line number, or with 0 if it concerns the whole file.
pub fn parse_file(text: &str, hosts_max: usize) -> Result<Vec<Host>, (usize, String)> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let room = hosts_max - hosts.len();
        hosts.extend(parse_line(line, room).map_err(|why| (index + 1, why))?);
    }
    if hosts.is_empty() {
        return Err((0, "it names no machines".to_owned()));
    }
    all_differ(&hosts).map_err(|why| (0, why))?;
    Ok(hosts)
}

fn parse_line(line: &str, hosts_max: usize) -> Result<Vec<Host>, String> {
    let line = line.split('#').next().unwrap_or_default();
    let mut words = line.split_whitespace();
    let Some(set) = words.next() else { return Ok(Vec::new()) };
    let (mut port, mut slots) = (None, None);
    for word in words {
        let wrong = |why: &str| format!("{}: {why}", shown(word));
        let (key, value) = match word.split_once('=') {
            Some(("port", value)) => (&mut port, value),
            Some(("slots", value)) => (&mut slots, value),
            _ => return Err(wrong("use slots=N or port=P")),
        };
        let number = value.parse().ok().filter(|number| *number > 0);
        let number: u16 = number.ok_or_else(|| wrong("must be a number from 1 to 65535"))?;
        if key.replace(number).is_some() {
            return Err(wrong("is given twice on this line; leave one of them out"));
        }
    }
    let mut hosts = Vec::new();
    for item in split_outside_brackets(set) {
        let wrong = |why: String| format!("{}: {why}", shown(item));
        hosts.extend(workers(item, port, slots.unwrap_or(0), hosts_max - hosts.len()).map_err(wrong)?);
    }
    Ok(hosts)
}

/// The workers of one item of a list: every name of its nodeset with every port. `port` is the port from the rest of
/// the line.
fn workers(item: &str, port: Option<u16>, slots: u16, hosts_max: usize) -> Result<Vec<Host>, String> {
    let (set, own_ports) = split_port(item)?;
    let ports = match (own_ports, port) {
        (Some(_), Some(port)) => {
            return Err(format!("has a port, and port={port} is another; leave one out"));
        }
        (Some(ports), None) => ports,
        (None, port) => vec![port.unwrap_or(DEFAULT_PORT)],
    };
    let names = expand(set, hosts_max)?;
    enough(names.len().saturating_mul(ports.len()), hosts_max)?;
    let of_name =
        |name: String| ports.iter().map(move |port| Host { name: name.clone(), port: *port, slots });
    Ok(names.into_iter().flat_map(of_name).collect())
}

/// Refuses a worker that is listed twice: two sessions would both claim its memory.
fn all_differ(hosts: &[Host]) -> Result<(), String> {
    let mut sorted: Vec<&Host> = hosts.iter().collect();
    sorted.sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
    match sorted.windows(2).find(|pair| (&pair[0].name, pair[0].port) == (&pair[1].name, pair[1].port)) {
        Some(pair) => Err(format!("{}: this worker is named twice; name it once", pair[0])),
        None => Ok(()),
    }
}

/// The beginning of a text for a message, without control characters: a hostfile is untrusted.
fn shown(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Splits at commas; those inside brackets belong to a nodeset.
fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        inside = (inside || c == '[') && c != ']';
        c == ',' && !inside
    })
}

/// Splits `host:port`; `host:[7400-7403]` has several ports. An IPv6 address with a port is in brackets.
fn split_port(item: &str) -> Result<(&str, Option<Vec<u16>>), String> {
    if item.parse::<std::net::IpAddr>().is_ok() {
        return Ok((item, None));
    }
    // A colon inside brackets belongs to an IPv6 address; a colon before a bracket begins a range of ports.
    let Some((host, ports)) = item.rsplit_once(':').filter(|(_, ports)| brackets_match(ports)) else {
        return Ok((item, None));
    };
    if ports.contains('[') && host.contains(':') && !host.ends_with(']') {
        // A nodeset of IPv6 addresses.
        return Ok((item, None));
    }
    let wrong = || format!("{} is no port; ports are from 1 to 65535", shown(ports));
    let texts = match ports.contains('[') {
        true => expand(ports, PORTS_MAX)?,
        false => vec![ports.to_owned()],
    };
    let port = |text: String| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(wrong);
    Ok((host, Some(texts.into_iter().map(port).collect::<Result<_, _>>()?)))
}

/// Whether every closing bracket has an opening one.
fn brackets_match(text: &str) -> bool {
    text.matches('[').count() == text.matches(']').count()
}

/// Expands `pi[1-3,07]x` to `pi1x`, `pi2x`, `pi3x`, `pi07x`. Several brackets multiply, up to `names_max` names.
fn expand(set: &str, names_max: usize) -> Result<Vec<String>, String> {
    if set.len() > NAME_BYTES_MAX.max(32 * names_max) {
        return Err(format!("a text of {} bytes is no name", set.len()));
    }
    let address = set.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = address.filter(|a| a.parse::<std::net::Ipv6Addr>().is_ok()) {
        return enough(1, names_max).map(|()| vec![address.to_owned()]);
    }
    let mut names = vec![String::new()];
    let mut rest = set;
    while let Some((before, bracket)) = rest.split_once('[') {
        let (inside, after) = bracket.split_once(']').ok_or("a bracket that is not closed")?;
        let ranges = inside.split(',').map(Range::parse).collect::<Result<Vec<Range>, String>>()?;
        let numbers = ranges.iter().try_fold(0usize, |sum, r| sum.checked_add(r.len()));
        enough(numbers.and_then(|n| n.checked_mul(names.len())).unwrap_or(usize::MAX), names_max)?;
        let before = plain(before)?;
        let longer = |name: &String| -> Result<Vec<String>, String> {
            let numbered = ranges.iter().flat_map(Range::numbers);
            numbered.map(|number| checked(format!("{name}{before}{number}"))).collect()
        };
        names = names.iter().map(longer).collect::<Result<Vec<_>, _>>()?.concat();
        rest = after;
    }
    enough(names.len(), names_max)?;
    let end = plain(rest)?;
    names.into_iter().map(|name| checked(name + end)).collect()
}

/// Refuses too many names before memory is allocated for them.
fn enough(names: usize, names_max: usize) -> Result<(), String> {
    match names {
        _ if names <= names_max => Ok(()),
        usize::MAX => Err(format!("more than {HOSTS_MAX} machines in all")),
        _ => Err(format!("{names} machines more make more than {HOSTS_MAX} in all")),
    }
}

/// Checks a part of a name outside brackets.
fn plain(part: &str) -> Result<&str, String> {
    let stray = |c: char| c == ']' || c.is_whitespace() || c.is_control();
    if part.contains(stray) { Err("a name that is not one".to_owned()) } else { Ok(part) }
}

fn checked(name: String) -> Result<String, String> {
    match name.len() {
        0 => Err("a name that is not one".to_owned()),
        1..=NAME_BYTES_MAX => Ok(name),
        long => Err(format!("a name of {long} bytes; names have {NAME_BYTES_MAX} at most")),
    }
}

/// Expands `7` or `08-10`: both ends are included, and numbers are padded with zeros to the width of the first.
struct Range {
    first: u32,
    last: u32,
    width: usize,
}

impl Range {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{} is no range of numbers", shown(text));
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| -> Result<u32, String> {
            let plain = digits.len() <= NAME_BYTES_MAX && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or_else(wrong)
        };
        let range = Self { first: number(first)?, last: number(last)?, width: first.len() };
        if range.first > range.last { Err(wrong()) } else { Ok(range) }
    }

    fn len(&self) -> usize {
        (self.last - self.first) as usize + 1
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let width = self.width;
        (self.first..=self.last).map(move |i| format!("{i:0width$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let hosts = parse_list(text, HOSTS_MAX).unwrap();
        hosts.into_iter().map(|h| h.to_string()).collect()
    }

    #[test]
    fn nodesets_expand_with_padding_and_ports() {
        assert_eq!(names("pi[1-3],10.0.0.7:7401"), ["pi1:7400", "pi2:7400", "pi3:7400", "10.0.0.7:7401"]);
        assert_eq!(names("n[08-10]:9"), ["n08:9", "n09:9", "n10:9"]);
        assert_eq!(names("a[1,3]b[1-2]"), ["a1b1:7400", "a1b2:7400", "a3b1:7400", "a3b2:7400"]);
        assert_eq!(names("a[1,3]b[1-2]c")[3], "a3b2c:7400");
        assert_eq!(names("[::1]:81,::1"), ["[::1]:81", "[::1]:7400"]);
        assert_eq!(names("[1-2]"), ["1:7400", "2:7400"]);
        assert_eq!(names("127.0.0.1:[7510-7511,9]"), ["127.0.0.1:7510", "127.0.0.1:7511", "127.0.0.1:9"]);
        assert_eq!(names("[::1]:[1-2]"), ["[::1]:1", "[::1]:2"]);
        assert_eq!(names("fd00::[1-2]"), ["[fd00::1]:7400", "[fd00::2]:7400"]);
        assert_eq!(names("a[1-2]:[3-4]"), ["a1:3", "a1:4", "a2:3", "a2:4"]);
    }

    #[test]
    fn slips_are_errors() {
        let bad = [
            "",
            "a,,b",
            "pi[1-",
            "pi[3-1]",
            "pi[x]",
            "a:port",
            "a:70000",
            "x]",
            "x]y[1]",
            "a[1]b]",
            "a[]",
            "n[0-4000000000]",
            "a[1-]",
            "a[+1-3]",
            "a b",
            "a\u{1b}[1]",
            "a[1[2]]",
            "a:0",
            "a:[0-1]",
            "a:[65535-65536]",
            "a:[",
            "a:]",
            "a:[x]",
        ];
        for bad in bad {
            assert!(parse_list(bad, HOSTS_MAX).is_err(), "{bad}");
        }
    }

    #[test]
    fn too_many_machines_are_refused_before_they_are_made() {
        let error = |text: &str| parse_list(text, HOSTS_MAX).unwrap_err();
        assert!(error("a[0-9999]b[0-9999]c[0-9999]").contains("more than 10000"));
        assert!(error("a[0-9999],b").contains("more than 10000"));
        assert_eq!(parse_list("a[0-9999]", HOSTS_MAX).unwrap().len(), HOSTS_MAX);
        assert!(error("a[0-4294967295,0-4294967295]").contains("more than 10000"));
        let lines = parse_file("a[0-9999]\nb\n", HOSTS_MAX).unwrap_err();
        assert!(lines.0 == 2 && lines.1.contains("more than 10000"), "{lines:?}");
        // Each name would be long, and there would be many of them.
        let padded = format!("a[{}1-9999]", "0".repeat(100_000));
        assert!(error(&padded).contains("no range"), "{}", error(&padded));
        assert!(error(&format!("{}[1-9999]", "a".repeat(300))).contains("names have 253"));
    }

    #[test]
    fn a_hundred_thousand_brackets_are_refused_and_no_recursion() {
        let error = parse_list(&"a[1]".repeat(100_000), HOSTS_MAX).unwrap_err();
        assert!(error.contains("is no name") && error.len() < 300, "{error}");
        assert!(parse_list(&"a[1]".repeat(70_000), HOSTS_MAX).unwrap_err().contains("names have 253"));
    }

    #[test]
    fn a_worker_that_is_named_twice_is_refused() {
        let error = |text: &str| parse_workers(text, HOSTS_MAX).unwrap_err();
        assert_eq!(error("a,b,a"), "a:7400: this worker is named twice; name it once");
        assert!(error("pi[1-3],pi2:7400").starts_with("pi2:7400: this worker is named twice"));
        assert!(error("[::1],::1").starts_with("[::1]:7400: "));
        assert_eq!(names("a:1,a:2"), ["a:1", "a:2"]);
        let (line, why) = parse_file("a\nb\na port=7400\n", HOSTS_MAX).unwrap_err();
        assert!(line == 0 && why.starts_with("a:7400: this worker is named twice"), "{why}");
    }

    #[test]
    fn hostfiles_may_name_a_port_in_either_way_once_and_begin_with_a_byte_order_mark() {
        let parse = |text: &str| parse_file(text, HOSTS_MAX);
        let texts = |text: &str| parse(text).unwrap().iter().map(Host::to_string).collect::<Vec<_>>();
        assert_eq!(texts("127.0.0.1:7401 slots=2"), ["127.0.0.1:7401"]);
        assert_eq!(texts("\u{feff}pi1\r\npi2:[8-9]"), ["pi1:7400", "pi2:8", "pi2:9"]);
        for (line, what) in [
            ("a:7401 port=7402", "port=7402 is another"),
            ("a port=0", "from 1 to 65535"),
            ("a slots=0", "from 1 to 65535"),
            ("a port=1 port=1", "is given twice"),
            ("a slots=1 slots=2", "is given twice"),
            ("a:0", "from 1 to 65535"),
        ] {
            let (number, why) = parse(line).unwrap_err();
            assert!(number == 1 && why.contains(what), "{line}: {why}");
        }
    }

    #[test]
    fn hostfiles_have_slots_ports_and_comments() {
        let parse = |text: &str| parse_file(text, HOSTS_MAX);
        let hosts = parse("# mine\npi[1-2] slots=4\n\nlaptop port=9000 # fast\n").unwrap();
        assert_eq!(hosts.len(), 3);
        assert_eq!((hosts[1].name.as_str(), hosts[1].slots, hosts[2].port), ("pi2", 4, 9000));
        let (line, why) = parse("\npi1 slots=many\n").unwrap_err();
        assert!(line == 2 && why.contains("slots=many"), "{line}: {why}");
        let (_, why) = parse("pi1 \u{1b}[2J").unwrap_err();
        assert!(!why.contains('\u{1b}'), "{why}");
        assert_eq!(parse("# nobody\n").unwrap_err(), (0, "it names no machines".to_owned()));
    }
}
