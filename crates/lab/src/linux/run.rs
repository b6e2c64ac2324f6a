//! `lab run`: a verb of this program on the lab's primary, with the lab's machines as workers.
//!
//! Invariants: a machine outside the lab is refused before the lab is entered, since the lab cannot reach it. The
//! verb runs in this process, so streams, signals and exit code are those of the verb.

use super::enter::{HOSTS_VARIABLE, become_it, becoming, enter, set_environment};
use super::state::{Folder, Lab, PORT};
use crate::args::LabRunArgs;
use crate::{RunVerb, VerbParser};
use bramble_cluster::args::MachineArgs;
use bramble_cluster::hostfile;
use bramble_cluster::hosts::{HOSTS_MAX, Host, parse_list};
use bramble_cluster::program;
use bramble_report::exit::{Exit, Failure};
use std::ffi::OsString;

/// The options that a lab without a key needs.
const OPEN: [&str; 2] = ["--insecure", "--i-trust-this-network"];

/// Runs the verb.
pub(super) fn run(args: &LabRunArgs, parse: VerbParser) -> Result<Exit, Failure> {
    let (machines, verb) = match parse(&args.command) {
        RunVerb::OnTeam { machines, words } => (machines, words),
        RunVerb::Answered(exit) => return Ok(exit),
        RunVerb::Other => {
            let text = "lab run: use multiply, batch, solve, lu, bench hpl, plan or nodes; for any other command: bramble \
                 lab exec";
            return Err(Failure::usage(text));
        }
    };
    let (folder, lab) = Folder::to_enter(&args.lab.name)?;
    let words = words(&lab, &machines, (&args.command, verb))?;
    // Without workers the variable is empty, which the verb treats as unset.
    let hosts = match args.alone {
        true => without_workers(&machines).map(Some)?,
        false => from_environment(&lab, &machines)?,
    };
    enter(lab.primary())?;
    let program =
        program::words().map_err(|e| Failure::failed(format!("this program's file cannot be found: {e}")))?;
    let words: Vec<OsString> = program.into_iter().chain(words).collect();
    let mut command = becoming(lab.primary(), &words)?;
    set_environment(&mut command, &folder, &lab);
    if let Some(hosts) = hosts {
        command.env(HOSTS_VARIABLE, hosts);
    }
    Err(become_it(command))
}

/// The verb of that many words and its options, with names replaced by addresses, and with the options that a lab without a key
/// needs.
fn words(
    lab: &Lab,
    machines: &MachineArgs,
    (command, verb): (&[OsString], usize),
) -> Result<Vec<OsString>, Failure> {
    let mut words = command.to_vec();
    if let Some(list) = &machines.workers {
        let hosts = hostfile::from_list("--workers", list)?;
        let addresses = addresses(lab, &hosts).map_err(|why| Failure::usage(format!("--workers {why}")))?;
        replace_list(&mut words, list, &addresses);
    }
    if let Some(file) = &machines.hostfile {
        for host in hostfile::from_file(file)? {
            let wrong = |why: String| Failure::usage(format!("--hostfile {}: {why}", file.display()));
            let endpoint = endpoint(lab, &host).map_err(wrong)?;
            if endpoint != host.to_string() {
                return Err(wrong(format!("{}: use its address in the lab, {endpoint}", host.name)));
            }
        }
    }
    if !lab.key && machines.local.is_none() {
        let given = [machines.trust.insecure, machines.trust.i_trust_this_network];
        let missing = OPEN.iter().zip(given).filter(|(_, is_given)| !is_given);
        // Right after the verb: later words may be operands.
        words.splice(verb..verb, missing.map(|(option, _)| OsString::from(option)));
    }
    Ok(words)
}

/// The empty list of workers of `--alone`; an error where the verb names workers.
fn without_workers(machines: &MachineArgs) -> Result<String, Failure> {
    let named = [
        ("--workers", machines.workers.is_some()),
        ("--hostfile", machines.hostfile.is_some()),
        ("--await", machines.awaited.is_some()),
    ];
    match named.iter().find(|(_, is_named)| *is_named) {
        Some((option, _)) => {
            Err(Failure::usage(format!("lab run --alone: {option} names workers; leave one of them out")))
        }
        None => Ok(String::new()),
    }
}

/// The workers that the user's variable names, if no option overrides it.
fn from_environment(lab: &Lab, machines: &MachineArgs) -> Result<Option<String>, Failure> {
    let is_named = machines.workers.is_some() || machines.hostfile.is_some() || machines.awaited.is_some();
    let Some(list) = std::env::var(HOSTS_VARIABLE).ok().filter(|list| !list.is_empty() && !is_named) else {
        return Ok(None);
    };
    let wrong = |why: String| {
        Failure::usage(format!("{HOSTS_VARIABLE} {why}; unset it to use all machines of lab {}", lab.name))
    };
    let hosts = parse_list(&list, HOSTS_MAX).map_err(wrong)?;
    addresses(lab, &hosts).map(Some).map_err(wrong)
}

fn addresses(lab: &Lab, hosts: &[Host]) -> Result<String, String> {
    let endpoints: Result<Vec<String>, String> = hosts.iter().map(|host| endpoint(lab, host)).collect();
    Ok(endpoints?.join(","))
}

/// The address and port of a worker, by its name or address.
fn endpoint(lab: &Lab, host: &Host) -> Result<String, String> {
    let Host { name, port, .. } = host;
    match lab.machine(name) {
        Some(machine) if machine.is_primary() => {
            Err(format!("{name}: this is the primary of lab {}, which computes anyway", lab.name))
        }
        Some(machine) if *port == PORT => Ok(machine.endpoint()),
        Some(_) => Err(format!("{name}:{port}: workers of lab {} listen on port {PORT}", lab.name)),
        None => Err(format!(
            "{name}:{port}: no machine of lab {}, which cannot reach others; its machines are {}",
            lab.name,
            lab.names()
        )),
    }
}

/// Replaces the list of `-w` or `--workers` by addresses, in all forms of the option.
fn replace_list(words: &mut [OsString], list: &str, addresses: &str) {
    let joined = ["--workers=", "-w=", "-w"].map(|flag| (flag, OsString::from(format!("{flag}{list}"))));
    for at in 0..words.len() {
        if words[at] == "--" {
            return;
        }
        // `-qw LIST`, too.
        let is_flag = words[at].to_str().is_some_and(|word| {
            word == "--workers" || (word.starts_with('-') && !word.starts_with("--") && word.ends_with('w'))
        });
        if is_flag && words.get(at + 1).is_some_and(|next| next == list) {
            words[at + 1] = OsString::from(addresses);
            return;
        }
        if let Some((flag, _)) = joined.iter().find(|(_, whole)| words[at] == *whole) {
            words[at] = OsString::from(format!("{flag}{addresses}"));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::file::{MachineLimits, PRIMARY};
    use crate::verbs::network;
    use crate::verbs::state::LabMachine;
    use clap::Parser;

    /// The options of a product that matter here; the program's name is that of the verb.
    #[derive(Parser)]
    #[allow(dead_code)] // Parsed, and not read.
    struct Product {
        #[command(flatten)]
        machines: MachineArgs,
        #[arg(short, long)]
        quiet: bool,
        a: OsString,
        b: OsString,
    }

    fn lab(key: bool) -> Lab {
        let machine = |(number, name): (usize, &str)| LabMachine {
            name: name.to_owned(),
            address: network::address(number),
            namespace: network::namespace("x", name),
            groups: Vec::new(),
            limits: MachineLimits::default(),
        };
        let machines = [PRIMARY, "pi1", "pi2"].into_iter().enumerate().map(machine).collect();
        Lab { name: "x".to_owned(), from: String::new(), key, maker: None, machines }
    }

    fn becomes(key: bool, command: &str) -> Result<String, String> {
        becomes_with(key, 1, command)
    }

    /// The same for a verb of several words.
    fn becomes_with(key: bool, verb: usize, command: &str) -> Result<String, String> {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        let args = Product::try_parse_from(&command[verb - 1..]).unwrap();
        let words = words(&lab(key), &args.machines, (&command, verb)).map_err(|e| e.text)?;
        Ok(words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn names_become_addresses_in_every_form_of_the_option() {
        let all = "10.77.0.2:7400,10.77.0.3:7400";
        for (given, becomes_that) in [
            ("multiply A B -w pi[1-2] -q", format!("multiply A B -w {all} -q")),
            ("multiply A B -wpi[1-2]", format!("multiply A B -w{all}")),
            ("multiply A B -w=pi1,10.77.0.3", format!("multiply A B -w={all}")),
            ("multiply A B --workers=pi1,10.77.0.3:7400", format!("multiply A B --workers={all}")),
            ("multiply -qw pi1 pi1 B", "multiply -qw 10.77.0.2:7400 pi1 B".to_owned()),
            ("multiply --workers pi2 -- pi2 B", "multiply --workers 10.77.0.3:7400 -- pi2 B".to_owned()),
            ("multiply A B", "multiply A B".to_owned()),
        ] {
            assert_eq!(becomes(true, given), Ok(becomes_that));
        }
    }

    #[test]
    fn a_lab_without_a_key_says_so_before_the_operands() {
        assert_eq!(
            becomes(false, "multiply -- A B").unwrap(),
            "multiply --insecure --i-trust-this-network -- A B"
        );
        assert_eq!(
            becomes(false, "multiply A B --insecure").unwrap(),
            "multiply --i-trust-this-network A B --insecure"
        );
        assert_eq!(becomes(false, "multiply A B --local 2").unwrap(), "multiply A B --local 2");
        assert_eq!(
            becomes_with(false, 2, "plan lu A B").unwrap(),
            "plan lu --insecure --i-trust-this-network A B"
        );
    }

    #[test]
    fn what_is_outside_the_lab_is_refused_with_what_is_inside() {
        let refused = |given: &str| becomes(true, given).unwrap_err();
        let text = refused("multiply A B -w pi1,10.0.0.9");
        assert!(text.starts_with("--workers 10.0.0.9:7400: no machine of lab x"), "{text}");
        assert!(text.contains("pi1 (10.77.0.2), pi2 (10.77.0.3)"), "{text}");
        assert!(refused("multiply A B -w pi1:7401").contains("listen on port 7400"));
        assert!(refused("multiply A B -w primary").contains("computes anyway"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        let with = |text: &str| {
            std::fs::write(&path, text).unwrap();
            becomes(true, &format!("multiply A B --hostfile {}", path.display()))
        };
        assert!(with("10.77.0.2 slots=1\n").is_ok());
        assert!(with("pi1\n").unwrap_err().contains("use its address in the lab, 10.77.0.2:7400"));
        assert!(with("10.77.0.2\n10.77.0.9\n").unwrap_err().contains("10.77.0.9:7400: no machine of lab x"));
    }
}
