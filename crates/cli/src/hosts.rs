//! Which machines: nodesets (`pi[1-8,10]`, with padding), `host:port`, hostfiles.

use crate::exit::Failure;
use std::path::Path;

/// Where workers listen unless told otherwise.
pub(crate) const DEFAULT_PORT: u16 = 7400;
/// More machines than this in one list is a slip of the pen.
const HOSTS_MAX: usize = 10_000;

/// A worker to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Name or address.
    pub(crate) name: String,
    pub(crate) port: u16,
    /// Most threads to use there; 0 is no limit.
    pub(crate) slots: u16,
}

/// Reads a comma-separated list of nodesets with optional ports.
pub(crate) fn parse_list(text: &str) -> Result<Vec<Host>, Failure> {
    let mut hosts = Vec::new();
    for item in split_outside_brackets(text) {
        let item = item.trim();
        if item.is_empty() {
            return Err(Failure::usage(format!("--workers {text}: an empty name in the list")));
        }
        let (set, port) =
            split_port(item).map_err(|why| Failure::usage(format!("--workers {item}: {why}")))?;
        for name in expand(set).map_err(|why| Failure::usage(format!("--workers {item}: {why}")))? {
            hosts.push(Host { name, port, slots: 0 });
        }
    }
    if hosts.len() > HOSTS_MAX {
        return Err(Failure::usage(format!("--workers {text}: {} machines", hosts.len())));
    }
    Ok(hosts)
}

/// Reads a hostfile: lines of NODESET [slots=N] [port=P], with # comments.
pub(crate) fn parse_file(path: &Path) -> Result<Vec<Host>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::usage(format!("--hostfile {name}: cannot be read: {e}")))?;
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |why: String| Failure::usage(format!("--hostfile {name}:{}: {why}", index + 1));
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(set) = words.next() else { continue };
        let (mut port, mut slots) = (DEFAULT_PORT, 0);
        for word in words {
            match word.split_once('=') {
                Some(("port", value)) => {
                    port = value.parse().map_err(|_| wrong(format!("{word}: no such port")))?;
                }
                Some(("slots", value)) => {
                    slots = value.parse().map_err(|_| wrong(format!("{word}: no such number")))?;
                }
                _ => return Err(wrong(format!("{word}: use slots=N or port=P"))),
            }
        }
        for item in split_outside_brackets(set) {
            hosts.extend(expand(item).map_err(&wrong)?.into_iter().map(|name| Host { name, port, slots }));
        }
    }
    if hosts.is_empty() || hosts.len() > HOSTS_MAX {
        return Err(Failure::usage(format!("--hostfile {name}: it names {} machines", hosts.len())));
    }
    Ok(hosts)
}

/// Commas inside brackets belong to a nodeset.
fn split_outside_brackets(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth <= 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// `host:port` into both; an IPv6 address with a port is in brackets.
fn split_port(item: &str) -> Result<(&str, u16), String> {
    if item.parse::<std::net::IpAddr>().is_ok() {
        return Ok((item, DEFAULT_PORT));
    }
    match item.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            let port = port.parse().map_err(|_| format!("{port} is no port"))?;
            Ok((host, port))
        }
        _ => Ok((item, DEFAULT_PORT)),
    }
}

/// `pi[1-3,07]x` into `pi1x`, `pi2x`, `pi3x`, `pi07x`. Several brackets multiply.
fn expand(set: &str) -> Result<Vec<String>, String> {
    let Some(open) = set.find('[') else {
        let stray = set.contains(']');
        return if stray || set.is_empty() {
            Err("a name that is not one".into())
        } else {
            Ok(vec![set.into()])
        };
    };
    let close = set.find(']').filter(|c| *c > open).ok_or("a bracket that is not closed")?;
    let (before, inside, after) = (&set[..open], &set[open + 1..close], &set[close + 1..]);
    if before.is_empty() && inside.parse::<std::net::Ipv6Addr>().is_ok() {
        return Ok(vec![inside.to_owned()]);
    }
    let tails = if after.is_empty() { vec![String::new()] } else { expand(after)? };
    let mut names = Vec::new();
    for range in inside.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{range} is no range of numbers"));
        let (from, to) = (number(first)?, number(last)?);
        if from > to || (to - from) as usize >= HOSTS_MAX {
            return Err(format!("{range} is no range of numbers"));
        }
        for i in from..=to {
            let width = first.len();
            names.extend(tails.iter().map(|tail| format!("{before}{i:0width$}{tail}")));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_list(text).unwrap().into_iter().map(|h| format!("{}:{}", h.name, h.port)).collect()
    }

    #[test]
    fn nodesets_expand_with_padding_and_ports() {
        assert_eq!(names("pi[1-3],10.0.0.7:7401"), ["pi1:7400", "pi2:7400", "pi3:7400", "10.0.0.7:7401"]);
        assert_eq!(names("n[08-10]:9"), ["n08:9", "n09:9", "n10:9"]);
        assert_eq!(names("a[1,3]b[1-2]"), ["a1b1:7400", "a1b2:7400", "a3b1:7400", "a3b2:7400"]);
        assert_eq!(names("[::1]:81,::1"), ["::1:81", "::1:7400"]);
    }

    #[test]
    fn slips_are_errors() {
        for bad in ["", "a,,b", "pi[1-", "pi[3-1]", "pi[x]", "a:port", "a:70000", "x]", "n[0-4000000000]"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hostfiles_have_slots_ports_and_comments() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        std::fs::write(&path, "# mine\npi[1-2] slots=4\n\nlaptop port=9000 # fast\n").unwrap();
        let hosts = parse_file(&path).unwrap();
        assert_eq!(hosts.len(), 3);
        assert_eq!((hosts[1].name.as_str(), hosts[1].slots, hosts[2].port), ("pi2", 4, 9000));
        std::fs::write(&path, "pi1 slots=many\n").unwrap();
        let error = parse_file(&path).unwrap_err().text;
        assert!(error.contains("hosts:1") && error.contains("slots=many"), "{error}");
    }
}
