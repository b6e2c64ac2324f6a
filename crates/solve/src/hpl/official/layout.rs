//! How the official program's processes lie on the machines.
//!
//! Place in the flow: `mod.rs` runs every layout that fits, of which the fastest counts.
//!
//! Invariants: a layout uses all threads, or as many on each machine as the one with the fewest has. HPL gives every process an
//! equal part of the matrix, so on machines of unequal memory the one with the least of it decides what fits.

use bramble_report::quantity::bytes;

/// A machine as the official program finds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OfficialMachine {
    pub(super) name: String,
    pub(super) threads: usize,
    /// Memory that it offers; `None` if that was looked at before.
    pub(super) offered_bytes: Option<u64>,
}

/// A grid of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessGrid {
    /// Process rows and columns.
    pub(super) grid: [usize; 2],
    /// Threads of each process.
    pub(super) threads: usize,
    /// Whether each of several machines has one process; else each thread is one.
    pub(super) is_one_each: bool,
}

impl ProcessGrid {
    pub(super) fn processes(&self) -> usize {
        self.grid.iter().product()
    }

    /// Why a matrix of this order does not fit in one of the machines; `None` if it fits.
    pub(super) fn refusal(&self, order: usize, machines: &[OfficialMachine]) -> Option<String> {
        let all = (order * order * size_of::<f64>()) as f64;
        let misfit = |machine: &OfficialMachine| {
            let processes = if self.is_one_each { 1 } else { machine.threads };
            let part = all * processes as f64 / self.processes() as f64;
            let offered = machine.offered_bytes.filter(|offered| part > *offered as f64)?;
            let (name, part, offered) = (&machine.name, bytes(part), bytes(offered as f64));
            Some(format!(
                "{name} would hold {part}, since all processes have equal parts, and offers {offered}"
            ))
        };
        machines.iter().find_map(misfit)
    }
}

/// The layouts that are tried on these machines.
pub(super) fn layouts(machines: &[OfficialMachine]) -> Vec<ProcessGrid> {
    let threads = || machines.iter().map(|machine| machine.threads);
    let (all, least) = (threads().sum(), threads().min().unwrap_or(1));
    let of_threads = shapes(all).map(|grid| ProcessGrid { grid, threads: 1, is_one_each: false });
    let is_several = machines.len() > 1;
    let mut found: Vec<ProcessGrid> = match is_several {
        // A single column of processes sends every row that is exchanged over the network.
        true => of_threads.filter(|layout| layout.grid[1] > 1).collect(),
        false => of_threads.collect(),
    };
    if least > 1 {
        let grids = shapes(machines.len()).filter(|[_, columns]| !is_several || *columns > 1);
        found.extend(grids.map(|grid| ProcessGrid { grid, threads: least, is_one_each: is_several }));
    }
    found
}

/// Grids of that number of processes: a row, the squarest one, and a column.
fn shapes(processes: usize) -> impl Iterator<Item = [usize; 2]> {
    let is_rows = |p: &usize| p * p <= processes && processes.is_multiple_of(*p);
    let rows = (1..=processes.isqrt()).rfind(is_rows).unwrap_or(1);
    let all = [[1, processes], [rows, processes / rows], [processes, 1]];
    let count = all.len();
    (0..count).filter(move |at| !all[..*at].contains(&all[*at])).map(move |at| all[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(threads: &[usize]) -> Vec<OfficialMachine> {
        let one = |(at, threads): (usize, &usize)| OfficialMachine {
            name: format!("pi{at}"),
            threads: *threads,
            offered_bytes: Some(1 << 30),
        };
        threads.iter().enumerate().map(one).collect()
    }

    fn found(threads: &[usize]) -> Vec<([usize; 2], usize, bool)> {
        layouts(&machines(threads)).iter().map(|one| (one.grid, one.threads, one.is_one_each)).collect()
    }

    #[test]
    fn every_layout_of_one_machine_uses_all_threads() {
        for threads in 1..=16 {
            let all = found(&[threads]);
            assert!(
                all.iter().all(|([p, q], each, one_each)| p * q * each == threads && !one_each),
                "{all:?}"
            );
        }
        assert_eq!(found(&[1]), [([1, 1], 1, false)]);
        let of_six = [([1, 6], 1, false), ([2, 3], 1, false), ([6, 1], 1, false), ([1, 1], 6, false)];
        assert_eq!(found(&[6]), of_six);
    }

    #[test]
    fn several_machines_have_a_process_for_each_thread_or_one_each() {
        assert_eq!(found(&[1, 1]), [([1, 2], 1, false)]);
        assert_eq!(found(&[1, 4]), [([1, 5], 1, false)], "one thread of each would leave three idle");
        let of_four = [([1, 8], 1, false), ([2, 4], 1, false), ([1, 4], 2, true), ([2, 2], 2, true)];
        assert_eq!(found(&[2, 2, 2, 2]), of_four);
        assert_eq!(found(&[4, 2]), [([1, 6], 1, false), ([2, 3], 1, false), ([1, 2], 2, true)]);
    }

    #[test]
    fn the_machine_that_cannot_hold_its_equal_part_is_named() {
        let mut unequal = machines(&[2, 6]);
        unequal[0].offered_bytes = Some(300 << 20);
        let all = layouts(&unequal);
        // 8 N² = 968 MB: a quarter fits in pi0, and half does not.
        let refused: Vec<Option<String>> = all.iter().map(|one| one.refusal(11_000, &unequal)).collect();
        assert_eq!(all.iter().map(|one| one.is_one_each).collect::<Vec<_>>(), [false, false, true]);
        assert!(refused[0].is_none() && refused[1].is_none());
        assert!(refused[2].as_ref().is_some_and(|why| why.starts_with("pi0 would hold 484")), "{refused:?}");
    }
}
