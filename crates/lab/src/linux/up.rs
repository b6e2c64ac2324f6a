//! `lab up`: creates the machines of a description, starts a worker in each, and waits until all listen.
//!
//! Invariants: the list of everything to create is on disk before creation starts. A failure or a signal removes
//! everything again; after a crash, `down` does. Workers have no terminal and continue when `up` ends.

use super::down;
use super::file::{self, Description, PRIMARY};
use super::limits::Homes;
use super::network;
use super::process::Process;
use super::state::{Folder, Lab, LabMachine, down_command};
use super::status;
use super::tool;
use crate::args::LabUpArgs;
use bramble_cluster::program;
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_link::ClusterKey;
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::size_text;
use bramble_worker::{available_memory, default_threads};
use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::task::yield_now;

/// Time limit for all workers to listen, plus one second per worker: some may have a hundredth of a processor.
const START_DEADLINE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(10);

/// Runs the verb.
pub(super) fn run(args: &LabUpArgs) -> Result<Exit, Failure> {
    let mut description = file::read(&args.description)?;
    for (_, limits) in &mut description.machines {
        limits.link_bits_per_s = args.link.or(limits.link_bits_per_s);
        limits.cores = args.cores.or(limits.cores);
    }
    let homes = Homes::here();
    check(&description, &homes)?;
    let lab = plan(description, &args.lab.name, &homes);
    warn(&lab);
    let folder = Folder::create(&lab.name)?;
    let made = done_or_signal(async {
        folder.save(&lab)?;
        make(&folder, &lab, &homes).await?;
        start(&folder, &lab).await?;
        folder.complete()
    });
    let failure = match made {
        Ok(Completion::Done(())) => {
            let exit = status::show(&folder, &lab, args.json)?;
            let name = &lab.name;
            let option = if name == "lab" { String::new() } else { format!(" --name {name}") };
            bramble_report::say(&format!(
                "lab {name} is up: bramble lab run{option} -- multiply A.npy B.npy; remove it with bramble lab down{option}"
            ));
            return Ok(exit);
        }
        Ok(Completion::Signal(exit)) => Ok(exit),
        Err(failure) => Err(failure),
    };
    let name = lab.name;
    match (down::remove(&name, folder), failure) {
        (Ok(()), ended) => ended,
        (Err(left), Ok(_)) => Err(left),
        (Err(_), Err(failure)) => {
            let text =
                format!("{}; cleaning up failed, repeat it with: {}", failure.text, down_command(&name));
            Err(Failure { text, ..failure })
        }
    }
}

/// Refuses what this system does not support, before anything is created.
fn check(description: &Description, homes: &Homes) -> Result<(), Failure> {
    let all = || {
        let machines = description.machines.iter().map(|(name, limits)| (name.as_str(), limits));
        machines.chain([(PRIMARY, &description.primary)])
    };
    if File::open("/proc/self/ns/net").is_err() {
        return Err(Failure::failed("lab up: this kernel has no network namespaces (CONFIG_NET_NS)"));
    }
    tool::check("ip", "-V")?;
    tool::check("unshare", "--version")?;
    if all().any(|(_, limits)| limits.link_bits_per_s.is_some()) {
        tool::check("tc", "-V")?;
    }
    all().try_for_each(|(name, limits)| homes.check(name, limits))
}

/// Assigns names, addresses and groups.
fn plan(description: Description, name: &str, homes: &Homes) -> Lab {
    let primary = [(PRIMARY.to_owned(), description.primary)];
    let all = primary.into_iter().chain(description.machines).enumerate();
    let machines = all.map(|(number, (machine, limits))| LabMachine {
        address: network::address(number),
        namespace: network::namespace(name, &machine),
        groups: homes.groups(name, &machine, &limits),
        name: machine,
        limits,
    });
    Lab {
        machines: machines.collect(),
        name: name.to_owned(),
        from: description.from,
        key: description.key,
        maker: Process::own(),
    }
}

/// Warns if the machines together have more than this machine.
fn warn(lab: &Lab) {
    let cores: f64 = lab.machines.iter().filter_map(|m| m.limits.cores).sum();
    let here = default_threads();
    if cores > here as f64 + 1e-9 {
        bramble_report::say(&format!(
            "the machines have {cores} cores together, and this machine has {here}: when all compute, each is slower \
            than described"
        ));
    }
    let memory: u64 = lab.machines.iter().filter_map(|m| m.limits.memory_bytes).sum();
    let free = available_memory();
    if memory > free {
        let (memory, free) = (size_text(memory >> 20 << 20), size_text(free >> 20 << 20));
        bramble_report::say(&format!(
            "the machines have {memory} of memory together, and this machine has {free} free: they cannot all use theirs"
        ));
    }
}

/// Creates namespaces, links and groups.
async fn make(folder: &Folder, lab: &Lab, homes: &Homes) -> Result<(), Failure> {
    if lab.key {
        let mut bytes = [0; ClusterKey::BYTES];
        bramble_cluster::random::random(&mut bytes)
            .map_err(|e| Failure::failed(format!("no random numbers: {e}")))?;
        folder.save_key(&ClusterKey::from_bytes(bytes).to_text())?;
    }
    network::make_hub(&folder.lock, &lab.name)?;
    for (number, machine) in lab.machines.iter().enumerate() {
        network::make_machine(&folder.lock, lab, number)?;
        homes.make(lab, machine)?;
        // Lets the event loop notice a signal.
        yield_now().await;
    }
    Ok(())
}

/// Starts all workers, and then waits for each.
async fn start(folder: &Folder, lab: &Lab) -> Result<(), Failure> {
    let share = available_memory() / lab.machines.len() as u64;
    let mut started = Vec::new();
    for machine in lab.workers() {
        let process = start_worker(folder, lab, machine, share)?;
        folder.add_worker(&machine.name, process)?;
        started.push((machine, process));
        yield_now().await;
    }
    let until = Instant::now() + START_DEADLINE + Duration::from_secs(lab.machines.len() as u64);
    for (machine, process) in started {
        while !listens(folder, machine) {
            if !process.is_alive() {
                return Err(not_started(folder, machine, "ended at once"));
            }
            if Instant::now() > until {
                return Err(not_started(folder, machine, "does not listen in time"));
            }
            tokio::time::sleep(SOON).await;
        }
    }
    Ok(())
}

/// Whether the worker's log has the complete line that it listens.
fn listens(folder: &Folder, machine: &LabMachine) -> bool {
    let said = std::fs::read_to_string(folder.log(&machine.name)).unwrap_or_default();
    said.lines().any(|line| line == format!("listening on {}", machine.endpoint()))
}

fn not_started(folder: &Folder, machine: &LabMachine, how: &str) -> Failure {
    let said = std::fs::read_to_string(folder.log(&machine.name)).unwrap_or_default();
    let last = said.lines().last().map(|line| line.strip_prefix("bramble: ").unwrap_or(line));
    let why = last.map_or_else(|| "its log is empty".to_owned(), str::to_owned);
    Failure::failed(format!("machine {}: its worker {how}: {why}", machine.name))
}

/// Starts a process that enters the machine and becomes its worker.
fn start_worker(folder: &Folder, lab: &Lab, machine: &LabMachine, share: u64) -> Result<Process, Failure> {
    let wrong = |e: std::io::Error| {
        Failure::failed(format!("machine {}: its worker cannot be started: {e}", machine.name))
    };
    let program = program::words().map_err(wrong)?;
    let log = File::create(folder.log(&machine.name)).map_err(wrong)?;
    let mut command = program::command().map_err(wrong)?;
    command.args(["lab", "enter", "--name", &lab.name, "--at", &machine.name, "--"]).args(&program);
    // The machines of labs share processors, so workers do not pin threads.
    command.args(["worker", "--no-pin", "--listen", &machine.endpoint()]);
    if let Some(threads) = machine.limits.threads {
        command.args(["--threads", &threads.to_string()]);
    }
    if let Some(kernel) = &machine.limits.kernel {
        command.args(["--kernel", kernel]);
    }
    if machine.limits.memory_bytes.is_none() {
        command.args(["--memory", &share.to_string()]);
    }
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"BRAMBLE_") {
            command.env_remove(name);
        }
    }
    match lab.key {
        true => command.env(bramble_cluster::key::FILE_VARIABLE, folder.key()),
        false => command.args(["--insecure", "--i-trust-this-network"]),
    };
    command.stdin(Stdio::from(folder.lock.try_clone().map_err(wrong)?));
    command.stdout(log.try_clone().map_err(wrong)?).stderr(log);
    let child = command.spawn().map_err(wrong)?;
    let process = i32::try_from(child.id()).ok().and_then(Process::of);
    process.ok_or_else(|| not_started(folder, machine, "ended at once"))
}
