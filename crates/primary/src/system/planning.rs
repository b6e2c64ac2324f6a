//! The plan of a factorisation, from the speeds of the machines to the owners of the columns, with names.
//!
//! Place in the flow: `opening.rs` plans with it for the workers of a run, and asks it for the order that fills their memory;
//! `bramble plan lu` and `bramble sim lu` plan also for machines that a file describes. `bramble_plan::LuCluster` decides; this
//! file adds the bytes of a part and the limits of the protocol.
//!
//! Invariant: there is no plan unless all columns fit, also after the losses that the run is to survive.
//!
//! Deliberately absent: links and sessions.

use crate::PrimaryError;
use bramble_matrix::DType;
use bramble_plan::{ClusterEstimate, ComingColumns, LuCluster, LuMachine, LuPlan, LuPlanError, PartSizes};
use bramble_wire::limits::{LU_BLOCKS_MAX, LU_MACHINES_MAX};
use bramble_wire::message::LuBegin;

/// Most machines whose memory an error names.
const NAMED_MAX: usize = 4;

/// The plan of a run, with names.
#[derive(Clone, Debug)]
pub struct SystemPlan {
    /// Rows.
    pub order: usize,
    /// Columns of a block.
    pub width: usize,
    /// Panels that each machine keeps.
    pub depth: usize,
    /// The machines that take part, in the order of the ring.
    pub shares: Vec<SystemShare>,
    /// The owner of each block column, and of the right-hand sides, which are the last block: a number in `shares`.
    pub owners: Vec<usize>,
    /// Machines that would make it slower.
    pub left_out: Vec<String>,
    /// The bound and the prediction.
    pub estimate: ClusterEstimate,
    /// Each width of a block that was compared and fits, with its best prediction, seconds.
    pub tried: Vec<(usize, f64)>,
    /// Whether the system would also fit with elements in f64.
    pub fits_in_f64: bool,
}

/// A machine's share.
#[derive(Clone, Debug)]
pub struct SystemShare {
    /// Its name.
    pub name: String,
    /// Compute threads.
    pub threads: usize,
    /// Its columns.
    pub columns: usize,
    /// All its threads together, multiplying large matrices, Gflop/s.
    pub gflops: f64,
    /// Memory that its part takes.
    pub bytes: u64,
    /// Memory that it offers.
    pub offered_bytes: u64,
    /// Whether one more block would not fit in it.
    pub is_full: bool,
    /// Bytes a second of its link; `None` if unknown or within one machine.
    pub bytes_per_s: Option<f64>,
    /// The kernel of its products; `None` for a described machine.
    pub kernel: Option<String>,
}

/// A system to plan for, and the machines that may take part.
pub struct SystemPlanning<'a> {
    /// Rows, and columns that are eliminated.
    pub order: usize,
    /// Right-hand sides.
    pub extra: usize,
    /// Element type in which the workers eliminate; the machines' rates are those for it.
    pub dtype: DType,
    /// Columns of a block; `None`: as the cost model says.
    pub width: Option<usize>,
    /// Panels that each worker keeps; `None`: as the cost model says.
    pub depth: Option<usize>,
    /// The machines.
    pub machines: &'a [LuMachine],
    /// Whether all of them take part; else those with which the run is fastest.
    pub keeps_all: bool,
    /// How the columns come to the machines; `None` if they generate them.
    pub coming: Option<ComingColumns>,
    /// How many machines may be lost: without those that offer the most memory, the system still has to fit.
    pub losses: usize,
}

impl SystemPlanning<'_> {
    /// Most machines that eliminate together.
    pub const MACHINES_MAX: usize = LU_MACHINES_MAX;

    /// The plan, as it is reported and as the planner makes it.
    pub fn plan(&self) -> Result<(SystemPlan, LuPlan), PrimaryError> {
        let (bytes, bytes_in_f64) =
            (|of| self.part_bytes(of, self.dtype), |of| self.part_bytes(of, DType::F64));
        let cluster = self.cluster(&bytes);
        let found = cluster.plan().map_err(|e| self.too_large(0, &e))?;
        let fits_in_f64 = LuCluster { bytes: &bytes_in_f64, ..cluster }.plan().is_ok();
        if self.losses > 0 {
            cluster.fits_without(self.losses).map_err(|e| self.too_large(self.losses, &e))?;
        }
        if found.deal.owners.len() > LU_BLOCKS_MAX || found.deal.machines.len() > Self::MACHINES_MAX {
            return Err(PrimaryError::Operands(format!(
                "a system of order {} in {} blocks of {} columns on {} machines: at most {LU_BLOCKS_MAX} blocks and \
                 {} machines are possible; use wider blocks, or fewer machines",
                self.order,
                found.deal.owners.len(),
                found.width,
                found.deal.machines.len(),
                Self::MACHINES_MAX
            )));
        }
        let named = SystemPlan {
            order: self.order,
            width: found.width,
            depth: found.depth,
            shares: self.shares(&found),
            owners: found.deal.owners.clone(),
            left_out: found.left_out.iter().map(|at| self.machines[*at].name.clone()).collect(),
            estimate: found.estimate,
            tried: found.tried.clone(),
            fits_in_f64,
        };
        Ok((named, found))
    }

    /// An order that fills the memory, at most this one: the one with the highest predicted rate. For systems of a benchmark.
    pub fn largest(&self) -> Result<usize, PrimaryError> {
        let bytes = |of| self.part_bytes(of, self.dtype);
        if self.losses >= self.machines.len() {
            return Err(too_few(self.losses, self.machines.len()));
        }
        let cluster = self.cluster(&bytes);
        let least = cluster.widths()[0].min(self.order);
        match cluster.largest(self.losses) {
            Some(order) => Ok(order),
            // Not even one block fits, and this error names the memory.
            None => SystemPlanning { order: least, ..*self }.plan().map(|_| least),
        }
    }

    fn cluster<'a>(&'a self, bytes: &'a dyn Fn(PartSizes) -> u64) -> LuCluster<'a> {
        LuCluster {
            order: self.order,
            extra: self.extra,
            width: self.width,
            depth: self.depth,
            element_bytes: self.dtype.size_bytes(),
            machines: self.machines,
            keeps_all: self.keeps_all,
            coming: self.coming,
            bytes,
        }
    }

    fn part_bytes(&self, of: PartSizes, dtype: DType) -> u64 {
        let system = (of.order, self.extra, of.width);
        LuBegin::bytes_of_part(system, dtype, of.depth, of.columns, of.threads)
    }

    /// The machines that take part.
    fn shares(&self, found: &LuPlan) -> Vec<SystemShare> {
        let share = |(at, columns): (&usize, &usize)| {
            let machine = &self.machines[*at];
            let bytes = |columns| {
                let (order, depth, width) = (self.order, found.depth, found.width);
                let of = PartSizes { order, depth, width, columns, threads: machine.threads };
                self.part_bytes(of, self.dtype)
            };
            SystemShare {
                name: machine.name.clone(),
                threads: machine.threads,
                columns: *columns,
                gflops: machine.gflops,
                bytes: bytes(*columns),
                offered_bytes: machine.memory_bytes,
                is_full: bytes(columns + found.width) > machine.memory_bytes,
                bytes_per_s: machine.bytes_per_s,
                kernel: None,
            }
        };
        found.deal.machines.iter().zip(&found.deal.columns).map(share).collect()
    }

    /// The error for a system that does not fit, or not after this number of losses.
    fn too_large(&self, losses: usize, e: &LuPlanError) -> PrimaryError {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let offer = |(name, bytes): &(String, u64)| format!("{name} offers {}", mib(*bytes));
        let mut offers: Vec<String> = e.offers.iter().take(NAMED_MAX).map(offer).collect();
        if let more @ 1.. = e.offers.len().saturating_sub(NAMED_MAX) {
            offers.push(format!("and so on for {more} more"));
        }
        let panels = self.width.map_or_else(String::new, |width| format!(" in panels of {width} columns"));
        let takes = format!("a system of order {} takes {} of memory{panels}", self.order, mib(e.needed));
        let offers = offers.join(", ");
        PrimaryError::Operands(match losses {
            0 => format!("{takes}, and {offers}: use a smaller one, or more machines"),
            _ => format!(
                "--survive {losses}: {takes}, and once the largest {} lost, {offers}: use a smaller one, or more machines, or \
                 survive fewer losses",
                if losses == 1 { "worker is".to_owned() } else { format!("{losses} workers are") }
            ),
        })
    }
}

/// The error for a run on `workers` workers, which are too few to survive the loss of `survives`.
pub(super) fn too_few(survives: usize, workers: usize) -> PrimaryError {
    PrimaryError::Failed(format!(
        "--survive {survives}: {} workers are needed, and {workers} {} part; name more, or survive fewer losses",
        survives + 1,
        if workers == 1 { "takes" } else { "take" }
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_plan::LuTaskModel;

    fn machine(name: &str, gflops: f64, memory_bytes: u64) -> LuMachine {
        LuMachine {
            name: name.to_owned(),
            threads: 4,
            gflops,
            memory_bytes,
            bytes_per_s: Some(1.1e8),
            round_trip_s: 2e-4,
            tasks: LuTaskModel::default(),
        }
    }

    fn planning(machines: &[LuMachine]) -> SystemPlanning<'_> {
        SystemPlanning {
            order: 4000,
            extra: 1,
            dtype: DType::F64,
            width: Some(100),
            depth: None,
            machines,
            keeps_all: true,
            coming: None,
            losses: 0,
        }
    }

    #[test]
    fn a_machine_whose_memory_gives_it_fewer_columns_than_its_speed_is_full() {
        let machines = [machine("fast", 40.0, 60 << 20), machine("slow", 20.0, 4 << 30)];
        let (plan, lu) = planning(&machines).plan().unwrap();
        assert_eq!(plan.shares.iter().map(|share| share.is_full).collect::<Vec<_>>(), [true, false]);
        assert!(plan.shares[0].bytes <= 60 << 20 && plan.shares[0].columns < plan.shares[1].columns);
        assert_eq!(plan.owners, lu.deal.owners);
        let of_fast = plan.owners[..40].iter().filter(|owner| **owner == 0).count() * 100;
        let right = usize::from(plan.owners[40] == 0);
        assert_eq!(of_fast + right, plan.shares[0].columns);
    }

    #[test]
    fn an_error_names_the_memory_of_a_few_machines() {
        let machines: Vec<LuMachine> = (0..6).map(|at| machine(&format!("pi{at}"), 8.0, 1 << 20)).collect();
        let text = planning(&machines).plan().unwrap_err().to_string();
        for part in ["order 4000", "in panels of 100 columns", "pi3 offers 1 MiB", "2 more"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("pi4"), "{text}");
    }

    #[test]
    fn the_largest_system_fits_and_one_that_is_larger_does_not() {
        let machines = [machine("fast", 40.0, 64 << 20), machine("slow", 20.0, 128 << 20)];
        for (losses, width) in [(0, None), (0, Some(64)), (1, None)] {
            let most = SystemPlanning { order: 1_000_000, width, losses, ..planning(&machines) };
            let order = most.largest().unwrap();
            assert!(SystemPlanning { order, ..most }.plan().is_ok());
            assert!(SystemPlanning { order: order * 3 / 2, ..most }.plan().is_err());
        }
        let small = [machine("pi", 8.0, 10 << 10)];
        let none = SystemPlanning { order: 1_000_000, width: None, ..planning(&small) };
        let text = none.largest().unwrap_err().to_string();
        assert!(text.contains("order 32") && text.contains("pi offers 0 MiB"), "{text}");
        let text = SystemPlanning { losses: 1, ..none }.largest().unwrap_err().to_string();
        assert!(text.contains("2 workers are needed"), "{text}");
    }

    #[test]
    fn losses_are_planned_for_by_the_memory_of_the_others() {
        let machines = [machine("large", 8.0, 1 << 30), machine("small", 8.0, 90 << 20)];
        assert!(planning(&machines).plan().is_ok());
        let text = SystemPlanning { losses: 1, ..planning(&machines) }.plan().unwrap_err().to_string();
        assert!(text.contains("--survive 1") && text.contains("small offers 90 MiB"), "{text}");
    }
}
