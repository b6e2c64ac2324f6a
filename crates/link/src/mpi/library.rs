//! The choice of the MPI library.
//!
//! Place in the flow: once per process, before any other MPI code.
//!
//! Invariants: the library of the launcher that started this process is tried first, because processes with
//! different libraries cannot find each other; a file that the user names is the only one that is tried.
//!
//! Deliberately absent: a search of the file system. Names are passed to the system's loader.

use super::table::{self, Opened};
use std::ffi::{OsStr, OsString};
use std::fmt;

/// Environment variable with the file of the library.
pub(super) const VARIABLE: &str = "BRAMBLE_MPI";

/// Why MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// No library was found.
    #[error(
        "there is no MPI library here: install one on every machine with 'sudo apt install openmpi-bin' or 'sudo apt install \
         mpich', or name its file in {VARIABLE}"
    )]
    Missing,
    /// The file exists and is no usable MPI library.
    #[error("{file} cannot be used as an MPI library: {why}", file = .0.display(), why = .1)]
    Unfit(OsString, String),
    /// The launcher belongs to another library.
    #[error(
        "mpirun has started {told} processes, but the library that was opened ({library}) sees {seen}: this mpirun \
         belongs to another library; start with that library's own, or name this mpirun's library in {VARIABLE}"
    )]
    Mismatch {
        /// Processes that the launcher started.
        told: usize,
        /// Processes that the library sees.
        seen: usize,
        /// The library's version text.
        library: String,
    },
    /// An MPI call failed.
    #[error("{0}")]
    Failed(String),
    /// A system call failed.
    #[error("MPI: {0}")]
    System(#[from] std::io::Error),
}

/// The binary interfaces of MPI libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Abi {
    /// The standard ABI of MPI 5.
    Standard,
    OpenMpi,
    Mpich,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standard => "the standard interface",
            Self::OpenMpi => "Open MPI's interface",
            Self::Mpich => "MPICH's interface",
        })
    }
}

/// File names for the loader.
const STANDARD: [(&str, Abi); 2] = [("libmpi_abi.so.1", Abi::Standard), ("libmpi_abi.so.0", Abi::Standard)];
const OPEN_MPI: (&str, Abi) = ("libmpi.so.40", Abi::OpenMpi);
/// Debian's name, and the usual one.
const MPICH: [(&str, Abi); 2] = [("libmpich.so.12", Abi::Mpich), ("libmpi.so.12", Abi::Mpich)];

/// The launcher of this process, according to its environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Open MPI's mpirun.
    is_open_mpi: bool,
    /// MPICH's, or a compatible one.
    is_mpich: bool,
    /// This process's rank.
    pub rank: Option<usize>,
    /// Number of processes.
    pub size: Option<usize>,
    /// Whether this process is the first of its machine; also true if the environment does not say.
    pub is_first_of_machine: bool,
}

impl Launch {
    /// Reads the environment of this process.
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |names: &[&str]| names.iter().find_map(|name| variable(name)?.parse().ok());
        Self {
            is_open_mpi: variable("OMPI_COMM_WORLD_SIZE").is_some(),
            is_mpich: variable("PMI_RANK").is_some(),
            is_first_of_machine: number(&["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
                .is_none_or(|rank| rank == 0),
            rank: number(&["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"]),
            // SLURM_NTASKS is that of the batch job, and a batch script is one process; so use that of the step.
            size: number(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]),
        }
    }

    /// Whether a launcher started this process as the only one of a job.
    pub fn is_alone(self) -> bool {
        self.size == Some(1)
    }

    /// Library names in the order in which they are tried.
    fn candidates(self) -> Vec<(&'static str, Abi)> {
        match (self.is_open_mpi, self.is_mpich) {
            (true, _) => [&[OPEN_MPI], &STANDARD[..], &MPICH].concat(),
            (_, true) => [&MPICH[..], &STANDARD, &[OPEN_MPI]].concat(),
            _ => [&STANDARD[..], &[OPEN_MPI], &MPICH].concat(),
        }
    }
}

/// Opens the library that the user names, or the first that exists.
pub(super) fn open(launch: Launch) -> Result<Opened, MpiError> {
    if let Some(file) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) {
        return match table::open(&file, None) {
            Err(MpiError::Unfit(_, why)) => {
                Err(MpiError::Unfit(file, format!("{why} ({VARIABLE} names it)")))
            }
            other => other?.ok_or(MpiError::Missing),
        };
    }
    for (file, abi) in launch.candidates() {
        if let Some(opened) = table::open(OsStr::new(file), Some(abi))? {
            return Ok(opened);
        }
    }
    Err(MpiError::Missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launched(variables: &[(&str, &str)]) -> Launch {
        Launch::of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_library_of_whoever_started_this_process_goes_first() {
        let first = |launch: Launch| launch.candidates()[0].0;
        let open_mpi =
            launched(&[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "3"), ("PMIX_RANK", "3")]);
        assert_eq!((first(open_mpi), open_mpi.rank, open_mpi.size), ("libmpi.so.40", Some(3), Some(4)));
        let mpich = launched(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
        assert_eq!((first(mpich), mpich.rank, mpich.size), ("libmpich.so.12", Some(0), Some(2)));
        let nobody = launched(&[]);
        assert_eq!((first(nobody), nobody.size), ("libmpi_abi.so.1", None));
        for launch in [open_mpi, mpich, nobody] {
            assert_eq!(launch.candidates().len(), 5, "all are tried");
        }
    }

    #[test]
    fn a_batch_script_is_no_job_and_a_step_says_how_many_it_is() {
        let batch = launched(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")]);
        assert_eq!((batch.size, batch.is_alone()), (None, false));
        let step = launched(&[("SLURM_PROCID", "2"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_NUM_TASKS", "4")]);
        assert_eq!((step.rank, step.size, step.is_alone()), (Some(2), Some(4), false));
        let inside = launched(&[("SLURM_STEP_NUM_TASKS", "1"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        assert_eq!(inside.size, Some(4), "an mpirun in a step");
        assert!(launched(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]).is_alone());
    }
}
