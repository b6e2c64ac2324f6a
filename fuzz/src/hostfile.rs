//! Lists of machines: `--workers` and the text of a `--hostfile`.
//!
//! Promises: any text gives hosts or an error; never more hosts than were allowed, each with a name that is
//! printable and within the length limit; an error is one short line.

use crate::files::check_message;
use crate::memory::within;
use bramble_cluster::hosts::{HOSTS_MAX, Host, parse_file, parse_list};

/// 253 bytes of a name, its place in three vectors, and the slack of growing vectors.
const BYTES_A_HOST: usize = 4096;
/// For the texts and ranges of an input.
const BYTES_ANYWAY: usize = 64 << 10;

/// The first byte picks the kind of text, and whether thousands of machines are allowed.
pub fn hostfile(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    // Thousands of names take a while to make, so most inputs are limited to a few.
    let hosts_max = match choice >> 1 {
        0 => HOSTS_MAX,
        few => usize::from(few),
    };
    within(BYTES_ANYWAY + hosts_max * BYTES_A_HOST, || {
        let parsed = match choice & 1 {
            0 => parse_list(text, hosts_max),
            _ => parse_file(text, hosts_max).map_err(|(line, why)| {
                assert!(line <= text.lines().count());
                why
            }),
        };
        match parsed {
            Ok(hosts) => check(&hosts, hosts_max),
            Err(why) => check_message(&why),
        }
    });
}

fn check(hosts: &[Host], hosts_max: usize) {
    assert!(!hosts.is_empty() && hosts.len() <= hosts_max, "{} of {hosts_max} hosts", hosts.len());
    for host in hosts {
        let strange = |c: char| c.is_control() || c.is_whitespace();
        assert!((1..=253).contains(&host.name.len()) && !host.name.contains(strange), "{host:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let lists = [
        "pi[1-3],10.0.0.7:7401",
        "n[08-10]:9",
        "a[1,3]b[1-2]c",
        "[::1]:81,::1",
        "a[0-99]b[0-99]",
        "x",
        "a[0-9999]b[0-9999]c[0-9999]",
    ];
    let files = [
        "# mine\npi[1-2] slots=4\n\nlaptop port=9000 # fast\n",
        "a,b[1-3,5] port=1\n",
        "[::1] slots=2 port=3\r\n",
    ];
    let with = |choice: u8, text: &str| [&[choice], text.as_bytes()].concat();
    let few = lists.iter().map(|t| with(200, t)).chain(files.iter().map(|t| with(201, t)));
    few.chain([with(0, "pi[1-300]"), with(1, "pi[1-300]\n")]).collect()
}
