//! Limits of processor time and memory, by control groups of version 1 or 2, whichever has the controller.
//!
//! Place in the flow: `up` finds the controllers that a description needs, records the paths of the groups and
//! creates them; `enter` joins them; `down` removes all groups with the lab's name.
//!
//! Invariants: a group's path is HOME/bramble-LAB/MACHINE, directly below the root of its hierarchy, so that limits
//! and logout of the user who called `up` do not affect the lab. A limit is set before a process is in the group.
//!
//! Deliberately absent: weights. Processor time is limited by a quota, which does not depend on the load of the other
//! machines.

use super::file::MachineLimits;
use super::state::{Lab, LabMachine};
use bramble_report::exit::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The quota's period: short, so that a product sees an average rate and not long pauses.
const PERIOD_US: f64 = 10_000.0;
/// The kernel's smallest quota.
const QUOTA_MIN_US: f64 = 1_000.0;
/// Time limit for ended processes to leave their groups.
const EMPTY_DEADLINE: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_millis(10);

/// The hierarchy of a controller.
#[derive(Clone, Debug, PartialEq)]
struct Home {
    path: PathBuf,
    is_unified: bool,
}

/// The hierarchies of the controllers that labs use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Homes {
    cpu: Option<Home>,
    memory: Option<Home>,
}

/// A value to write to a file of a group.
struct Setting {
    file: &'static str,
    value: String,
    /// Whether the file may be missing.
    is_optional: bool,
}

impl Homes {
    /// The hierarchies of this machine.
    pub(super) fn here() -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        Self::of(&mounts, |path| fs::read_to_string(path).ok())
    }

    /// The same from the text of the mount table and a function that reads files.
    fn of(mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Self {
        let fields = |line: &str| -> Option<(PathBuf, String, String)> {
            let mut words = line.split_whitespace().skip(1);
            Some((words.next()?.into(), words.next()?.to_owned(), words.next()?.to_owned()))
        };
        let mounts: Vec<_> = mounts.lines().filter_map(fields).collect();
        let home = |name: &str| {
            let has = |list: &str, between: char| list.split(between).any(|word| word.trim() == name);
            let old = mounts.iter().find(|(_, kind, options)| kind == "cgroup" && has(options, ','));
            let unified = mounts.iter().find(|(path, kind, _)| {
                let controllers = || read(&path.join("cgroup.controllers")).unwrap_or_default();
                kind == "cgroup2" && has(&controllers(), ' ')
            });
            let old = old.map(|(path, ..)| Home { path: path.clone(), is_unified: false });
            old.or_else(|| unified.map(|(path, ..)| Home { path: path.clone(), is_unified: true }))
        };
        Self { cpu: home("cpu"), memory: home("memory") }
    }

    /// Refuses limits that this system does not support.
    pub(super) fn check(&self, machine: &str, limits: &MachineLimits) -> Result<(), Failure> {
        let missing = |key: &str, controller: &str, advice: &str| {
            Err(Failure::failed(format!(
                "machine {machine}: {key}: this system has no {controller} controller of control groups; {advice}, or \
                 leave {key} out"
            )))
        };
        if limits.cores.is_some() && self.cpu.is_none() {
            return missing("cores", "cpu", "mount one");
        }
        if limits.memory_bytes.is_some() && self.memory.is_none() {
            let advice =
                "on a Raspberry Pi add cgroup_enable=memory to /boot/firmware/cmdline.txt and restart";
            return missing("memory", "memory", advice);
        }
        Ok(())
    }

    /// The paths of a machine's groups.
    pub(super) fn groups(&self, lab: &str, machine: &str, limits: &MachineLimits) -> Vec<PathBuf> {
        let groups = self.needed(limits).into_iter().map(|home| group_of(&home.path, lab).join(machine));
        groups.collect::<BTreeSet<PathBuf>>().into_iter().collect()
    }

    fn needed(&self, limits: &MachineLimits) -> Vec<&Home> {
        let cpu = self.cpu.as_ref().filter(|_| limits.cores.is_some());
        let memory = self.memory.as_ref().filter(|_| limits.memory_bytes.is_some());
        cpu.into_iter().chain(memory).collect()
    }

    /// Creates the groups of a machine and sets its limits.
    pub(super) fn make(&self, lab: &Lab, machine: &LabMachine) -> Result<(), Failure> {
        for home in self.needed(&machine.limits) {
            if home.is_unified {
                self.hand_down(home, &home.path)?;
            }
            let above = group_of(&home.path, &lab.name);
            make_folder(&above)?;
            if home.is_unified {
                self.hand_down(home, &above)?;
            }
        }
        for group in &machine.groups {
            make_folder(group)?;
            let here = |home: &&Home| group.starts_with(&home.path);
            let cpu = self.cpu.as_ref().filter(here).zip(machine.limits.cores);
            let memory = self.memory.as_ref().filter(here).zip(machine.limits.memory_bytes);
            let cpu = cpu.map_or_else(Vec::new, |(home, cores)| quota(cores, home.is_unified));
            let memory = memory.map_or_else(Vec::new, |(home, bytes)| most_memory(bytes, home.is_unified));
            for setting in cpu.into_iter().chain(memory) {
                set(group, &setting)?;
            }
        }
        Ok(())
    }

    /// In version 2, a group has only the controllers that its parent enables for its children.
    fn hand_down(&self, home: &Home, group: &Path) -> Result<(), Failure> {
        let file = group.join("cgroup.subtree_control");
        let names = [("cpu", &self.cpu), ("memory", &self.memory)];
        for name in names.iter().filter(|(_, at)| at.as_ref() == Some(home)).map(|(name, _)| name) {
            let there = fs::read_to_string(&file).unwrap_or_default();
            if there.split_whitespace().any(|word| word == *name) {
                continue;
            }
            fs::write(&file, format!("+{name}")).map_err(|e| {
                let advice = match e.kind() {
                    ErrorKind::ResourceBusy => {
                        "; move the processes of this container to a group below first (docs/lab.md)"
                    }
                    _ => "",
                };
                Failure::failed(format!("{}: cannot take +{name}: {e}{advice}", file.display()))
            })?;
        }
        Ok(())
    }
}

/// The group of a lab, the parent of its machines' groups.
fn group_of(home: &Path, lab: &str) -> PathBuf {
    home.join(format!("bramble-{lab}"))
}

/// The settings for processor time, in processors.
fn quota(cores: f64, is_unified: bool) -> Vec<Setting> {
    let period = PERIOD_US.max((QUOTA_MIN_US / cores).ceil());
    let quota = (period * cores).round().max(QUOTA_MIN_US);
    let setting = |file, value: String| Setting { file, value, is_optional: false };
    if is_unified {
        return vec![setting("cpu.max", format!("{quota} {period}"))];
    }
    vec![setting("cpu.cfs_period_us", format!("{period}")), setting("cpu.cfs_quota_us", format!("{quota}"))]
}

/// The settings for memory, without swap. The swap files are optional, since kernels without swap lack them.
fn most_memory(bytes: u64, is_unified: bool) -> Vec<Setting> {
    let setting = |file, value: u64, is_optional| Setting { file, value: value.to_string(), is_optional };
    match is_unified {
        true => vec![setting("memory.max", bytes, false), setting("memory.swap.max", 0, true)],
        false => vec![
            setting("memory.limit_in_bytes", bytes, false),
            setting("memory.memsw.limit_in_bytes", bytes, true),
        ],
    }
}

fn make_folder(path: &Path) -> Result<(), Failure> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => {
            Err(Failure::failed(format!("control group {}: cannot be made: {e}", path.display())))
        }
        _ => Ok(()),
    }
}

fn set(group: &Path, setting: &Setting) -> Result<(), Failure> {
    let path = group.join(setting.file);
    if setting.is_optional && !path.exists() {
        return Ok(());
    }
    // Does not create a missing file: the cgroup file system would refuse that with a less helpful error.
    let written = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, setting.value.as_bytes()));
    written.map_err(|e| {
        let advice = match e.kind() {
            ErrorKind::NotFound => "; this kernel does not have such limits",
            _ => "",
        };
        Failure::failed(format!("{}: cannot be set to {}: {e}{advice}", path.display(), setting.value))
    })
}

/// Moves this process into the groups of a machine.
pub(super) fn join(groups: &[PathBuf]) -> Result<(), Failure> {
    for group in groups {
        let path = group.join("cgroup.procs");
        fs::write(&path, std::process::id().to_string())
            .map_err(|e| Failure::failed(format!("{}: cannot be joined: {e}", path.display())))?;
    }
    Ok(())
}

/// All existing groups with the lab's name: the groups of machines before their parent.
pub(super) fn there(lab: &str) -> Vec<PathBuf> {
    let homes = Homes::here();
    let paths: BTreeSet<PathBuf> =
        [homes.cpu, homes.memory].into_iter().flatten().map(|home| home.path).collect();
    let mut found = Vec::new();
    for own in paths.iter().map(|path| group_of(path, lab)).filter(|own| own.is_dir()) {
        let Ok(entries) = fs::read_dir(&own) else { continue };
        found.extend(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()));
        found.push(own);
    }
    found
}

/// The ids of the processes in groups.
pub(super) fn members(groups: &[PathBuf]) -> BTreeSet<i32> {
    let lists = groups.iter().filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
    lists.flat_map(|list| list.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>()).collect()
}

/// Removes a group, once all its processes have ended.
pub(super) fn remove(group: &Path) -> Result<(), Failure> {
    let until = Instant::now() + EMPTY_DEADLINE;
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(SOON);
            }
            Err(e) => {
                let text = format!("control group {}: cannot be removed: {e}", group.display());
                return Err(Failure::failed(text));
            }
        }
    }
}

#[cfg(test)]
mod tests;
