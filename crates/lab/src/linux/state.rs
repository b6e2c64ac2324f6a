//! The record of a lab between commands: one folder per lab under `/run/bramble-lab`, readable only by root.
//!
//! - `lab.json`: everything to create. Written completely before creation starts.
//! - `workers`: a line for each worker that was started. A process can be recorded only after it has started; if `up`
//!   is killed in between, the process is found by its namespace.
//! - `complete`: created once all workers listen.
//! - `key`: the lab's cluster key, if it has one. `logs/`: the output of the workers.
//!
//! Invariants: a command that creates or removes a lab holds the folder's lock exclusively; a command that enters it
//! holds the lock shared until it is inside. A lock is valid only while the path still names the locked folder.
//!
//! Deliberately absent: anything that survives a reboot, which also removes `/run`, namespaces and groups.

use super::file::{MachineLimits, PRIMARY};
use super::network;
use super::process::Process;
use bramble_report::exit::Failure;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROOT: &str = "/run/bramble-lab";
/// Time limit for the lock. A command that enters a lab holds it for milliseconds.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(5);
/// The port of all workers; each has its own address.
pub(super) const PORT: u16 = 7400;

/// The record of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Lab {
    pub(super) name: String,
    /// Source of its description.
    pub(super) from: String,
    /// Whether it has a cluster key.
    pub(super) key: bool,
    /// The process that creates it.
    pub(super) maker: Option<Process>,
    /// All machines, the primary first.
    pub(super) machines: Vec<LabMachine>,
}

/// A machine of a lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LabMachine {
    pub(super) name: String,
    pub(super) address: Ipv4Addr,
    /// Its network namespace.
    pub(super) namespace: String,
    /// Paths of its control groups; none without limits.
    pub(super) groups: Vec<PathBuf>,
    #[serde(flatten)]
    pub(super) limits: MachineLimits,
}

impl LabMachine {
    pub(super) fn is_primary(&self) -> bool {
        self.name == PRIMARY
    }

    /// Address and port of its worker.
    pub(super) fn endpoint(&self) -> String {
        format!("{}:{PORT}", self.address)
    }
}

impl Lab {
    pub(super) fn primary(&self) -> &LabMachine {
        // The first machine is the primary by construction, and `load` has checked it.
        &self.machines[0]
    }

    pub(super) fn workers(&self) -> &[LabMachine] {
        &self.machines[1..]
    }

    /// The machine with this name or address.
    pub(super) fn machine(&self, what: &str) -> Option<&LabMachine> {
        let address = what.parse::<Ipv4Addr>().ok();
        self.machines.iter().find(|m| m.name == what || Some(m.address) == address)
    }

    /// The first few machines, as `pi1 (10.77.0.2), pi2 (10.77.0.3)`.
    pub(super) fn names(&self) -> String {
        const SHOWN: usize = 8;
        let mut names: Vec<String> =
            self.workers().iter().take(SHOWN).map(|m| format!("{} ({})", m.name, m.address)).collect();
        if self.workers().len() > SHOWN {
            names.push("…".to_owned());
        }
        names.join(", ")
    }
}

/// The folder of a lab; holds the lock until dropped.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) lock: File,
}

/// The path of a lab's folder.
fn path_of(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

fn wrong(path: &Path, what: &str, e: &std::io::Error) -> Failure {
    Failure::failed(format!("{}: {what}: {e}", path.display()))
}

impl Folder {
    /// Creates and locks the folder of a new lab.
    pub(super) fn create(name: &str) -> Result<Self, Failure> {
        let path = path_of(name);
        let folder = |recursive| {
            let mut builder = DirBuilder::new();
            builder.mode(0o700).recursive(recursive);
            builder
        };
        loop {
            folder(true).create(ROOT).map_err(|e| wrong(Path::new(ROOT), "cannot be made", &e))?;
            match folder(false).create(&path) {
                Ok(()) => break,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(there_already(name)),
                // `down` of another lab has just removed the parent folder.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(wrong(&path, "cannot be made", &e)),
            }
        }
        let lock = File::open(&path).map_err(|e| wrong(&path, "cannot be opened", &e))?;
        lock.try_lock().map_err(|_| there_already(name))?;
        match is_still(&lock, &path) {
            true => Ok(Self { path, lock }),
            false => Err(there_already(name)),
        }
    }

    /// The folder of an existing lab, locked exclusively, to remove it; `None` if the lab does not exist.
    pub(super) fn to_remove(name: &str) -> Result<Option<Self>, Failure> {
        let path = path_of(name);
        let until = Instant::now() + LOCK_DEADLINE;
        loop {
            let lock = match File::open(&path) {
                Ok(lock) => lock,
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(wrong(&path, "cannot be opened", &e)),
            };
            match lock.try_lock() {
                Ok(()) if is_still(&lock, &path) => return Ok(Some(Self { path, lock })),
                // It was removed meanwhile, and may have been created again.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(SOON),
                Err(TryLockError::WouldBlock) => return Err(busy(name, &path)),
                Err(TryLockError::Error(e)) => return Err(wrong(&path, "cannot be locked", &e)),
            }
        }
    }

    /// The folder and record of a complete lab, with a shared lock, to enter it.
    pub(super) fn to_enter(name: &str) -> Result<(Self, Lab), Failure> {
        let path = path_of(name);
        let lock = File::open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => none_there(name),
            _ => wrong(&path, "cannot be opened", &e),
        })?;
        match lock.try_lock_shared() {
            Ok(()) if is_still(&lock, &path) => {}
            Ok(()) => return Err(none_there(name)),
            Err(TryLockError::WouldBlock) => return Err(busy(name, &path)),
            Err(TryLockError::Error(e)) => return Err(wrong(&path, "cannot be locked", &e)),
        }
        let folder = Self { path, lock };
        if !folder.path.join("complete").exists() {
            return Err(Failure::failed(format!(
                "lab {name}: its creation was not completed; remove it with {}",
                down_command(name)
            )));
        }
        let lab = folder.load()?;
        Ok((folder, lab))
    }

    /// The folder without locking it, for children of `up`, which inherit its lock.
    pub(super) fn of_maker(name: &str) -> Result<Lab, Failure> {
        load(&path_of(name))
    }

    /// Writes the record of everything to create.
    pub(super) fn save(&self, lab: &Lab) -> Result<(), Failure> {
        let text = serde_json::to_vec(lab).map_err(|e| Failure::failed(format!("lab.json: {e}")))?;
        let (unfinished, path) = (self.path.join("lab.json.part"), self.path.join("lab.json"));
        fs::write(&unfinished, text)
            .and_then(|()| fs::rename(&unfinished, &path))
            .and_then(|()| DirBuilder::new().create(self.path.join("logs")))
            .map_err(|e| wrong(&path, "cannot be written", &e))
    }

    pub(super) fn load(&self) -> Result<Lab, Failure> {
        load(&self.path)
    }

    /// Writes the lab's cluster key.
    pub(super) fn save_key(&self, text: &str) -> Result<(), Failure> {
        let path = self.key();
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| writeln!(file, "{text}")).map_err(|e| wrong(&path, "cannot be written", &e))
    }

    pub(super) fn key(&self) -> PathBuf {
        self.path.join("key")
    }

    /// The log file of a machine's worker.
    pub(super) fn log(&self, machine: &str) -> PathBuf {
        self.path.join("logs").join(format!("{machine}.log"))
    }

    /// Records a started worker.
    pub(super) fn add_worker(&self, machine: &str, process: Process) -> Result<(), Failure> {
        let path = self.path.join("workers");
        let line = serde_json::to_string(&(machine, process)).map_err(|e| Failure::failed(e.to_string()))?;
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{line}")).map_err(|e| wrong(&path, "cannot be written", &e))
    }

    /// The recorded workers; an unfinished line is ignored.
    pub(super) fn workers(&self) -> Vec<(String, Process)> {
        let text = fs::read_to_string(self.path.join("workers")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Records that all workers listen.
    pub(super) fn complete(&self) -> Result<(), Failure> {
        let path = self.path.join("complete");
        File::create(&path).map(drop).map_err(|e| wrong(&path, "cannot be written", &e))
    }

    /// Removes the folder, and the parent folder if this was the last lab.
    pub(super) fn remove(self) -> Result<(), Failure> {
        fs::remove_dir_all(&self.path).map_err(|e| wrong(&self.path, "cannot be removed", &e))?;
        // Fails if other labs exist.
        let _ = fs::remove_dir(ROOT);
        Ok(())
    }
}

fn load(folder: &Path) -> Result<Lab, Failure> {
    let path = folder.join("lab.json");
    let text = fs::read(&path).map_err(|e| wrong(&path, "cannot be read", &e))?;
    let lab: Lab = serde_json::from_slice(&text)
        .map_err(|e| Failure::failed(format!("{}: damaged: {e}", path.display())))?;
    let is_whole = lab.machines.len() > 1 && lab.machines[0].is_primary();
    let own = lab.machines.iter().all(|m| m.namespace == network::namespace(&lab.name, &m.name));
    match is_whole && own {
        true => Ok(lab),
        false => Err(Failure::failed(format!("{}: damaged", path.display()))),
    }
}

/// Whether the path still names the opened folder.
fn is_still(opened: &File, path: &Path) -> bool {
    let identity = |m: fs::Metadata| (m.dev(), m.ino());
    let now = fs::metadata(path).map(identity).ok();
    now.is_some() && opened.metadata().map(identity).ok() == now
}

fn there_already(name: &str) -> Failure {
    Failure::failed(format!(
        "lab {name}: it exists already; remove it with {}, or choose another --name",
        down_command(name)
    ))
}

/// The error for an unknown lab, with the names of existing labs.
pub(super) fn none_there(name: &str) -> Failure {
    let mut names: Vec<String> = fs::read_dir(ROOT)
        .map(|entries| entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    names.sort();
    let others = match names.is_empty() {
        true => "make it with bramble lab up".to_owned(),
        false => format!("there are {}", names.join(", ")),
    };
    Failure::failed(format!("lab {name}: there is no such lab; {others}"))
}

fn busy(name: &str, path: &Path) -> Failure {
    let maker = load(path).ok().and_then(|lab| lab.maker).filter(|maker| maker.is_alive());
    let who = maker.map_or_else(|| "another command".to_owned(), |maker| format!("process {}", maker.pid));
    Failure::failed(format!("lab {name}: {who} is creating or removing it; wait for it, or end it"))
}

/// The command that removes a lab.
pub(super) fn down_command(name: &str) -> String {
    format!("bramble lab down --name {name}")
}
