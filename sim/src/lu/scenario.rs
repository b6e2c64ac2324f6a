//! A trial of a factorisation as it is drawn from a seed: sizes, machines, owners, links, faults.
//!
//! Place in the flow: `trial.rs` draws one, and runs it without and with its faults.
//!
//! Invariant: the same seed gives the same scenario.

use crate::random::SeededRandom;
use bramble_matrix::DType;
use bramble_plan::{LuCluster, LuMachine, LuTaskModel};
use bramble_wire::message::{LuBegin, LuOrigin, LuRing};

/// Largest order.
const ORDER_MAX: u64 = 60;

/// Everything that a trial depends on.
#[derive(Clone, Debug)]
pub(super) struct LuScenario {
    /// Rows, and columns that are eliminated.
    pub(super) order: usize,
    /// Columns of a block.
    pub(super) width: usize,
    /// Columns of each block right of the eliminated ones.
    pub(super) extra: Vec<usize>,
    pub(super) owners: Vec<usize>,
    /// Threads of each machine.
    pub(super) threads: Vec<usize>,
    pub(super) widest: usize,
    pub(super) live_max: usize,
    pub(super) has_checksum: bool,
    /// Elements of a frame, and frames that a link takes before the first has arrived.
    pub(super) frames: (usize, usize),
    /// Typical seconds of a task, for each machine, and how unequal they are: powers of ten.
    pub(super) task_s: Vec<f64>,
    pub(super) task_spread: f64,
    /// Typical seconds of a frame, for each machine's links to others.
    pub(super) link_s: Vec<f64>,
    /// Typical seconds from one block of a machine to the next, on the way from the primary.
    pub(super) fill_s: f64,
    /// Columns that are copies of the one before.
    pub(super) copies: Vec<usize>,
    pub(super) faults: Vec<LuFault>,
    /// Deaths that the run survives.
    pub(super) survives: usize,
}

/// A fault. Times are parts of the time without faults.
#[derive(Clone, Debug)]
pub(super) enum LuFault {
    /// A machine dies. The primary notices later, and ends the run.
    Dies { machine: usize, at: f64 },
    /// What a machine sends to another one arrives only at the end of this time.
    Stalls { from: usize, to: usize, span: (f64, f64) },
    /// A machine computes so many times slower.
    Slows { machine: usize, span: (f64, f64), times: f64 },
    /// One of a machine's updates, counted as a part of all of them, leaves a wrong element.
    Errs { machine: usize, at: f64, choice: u64 },
}

impl LuScenario {
    pub(super) fn drawn(random: &mut SeededRandom) -> Self {
        let most = *random.one_of(&[6, 20, 36, ORDER_MAX]);
        let order = 1 + random.index(most as usize);
        let width = *random.one_of(&[1, 1, 2, 2, 3, 4, 5, 6, 7, 8]);
        let extra: Vec<usize> = (0..*random.one_of(&[0, 1, 1, 1, 2])).map(|_| 1 + random.index(3)).collect();
        let machines = 1 + random.index(5);
        let has_checksum = random.chance(0.7);
        let owners = owners(random, order, width, extra.len(), machines);
        let scale = 10f64.powf(random.between(-2.0, 1.5));
        let spread = |random: &mut SeededRandom, scale: f64| -> Vec<f64> {
            (0..machines).map(|_| scale * 10f64.powf(random.between(-0.5, 0.5))).collect()
        };
        let copies = if random.chance(0.2) { 1 + random.index(3) } else { 0 };
        let mut new = Self {
            order,
            width,
            extra,
            owners,
            threads: (0..machines).map(|_| *random.one_of(&[1, 1, 2, 3, 4])).collect(),
            widest: 1 + random.index(4),
            live_max: *random.one_of(&[1, 2, 3, 3, 4, 8]),
            has_checksum,
            frames: (*random.one_of(&[1, 7, 20, 60, 1000]), 1 + random.index(4)),
            task_s: spread(random, 1e-3),
            task_spread: *random.one_of(&[0.1, 0.5, 1.2]),
            link_s: spread(random, 1e-3 * scale),
            fill_s: 1e-3 * 10f64.powf(random.between(-2.0, 1.5)),
            copies: (0..copies).map(|_| random.index(order)).collect(),
            faults: Vec::new(),
            survives: *random.one_of(&[0, 1, 1, 2, 3]),
        };
        new.faults = new.drawn_faults(random);
        new
    }

    fn drawn_faults(&self, random: &mut SeededRandom) -> Vec<LuFault> {
        let machines = self.machines();
        let mut faults = Vec::new();
        let span = |random: &mut SeededRandom| {
            let from = random.between(0.0, 1.0);
            (from, from + random.between(0.05, 1.5))
        };
        if random.chance(0.3) {
            let (machine, span, times) =
                (random.index(machines), span(random), 10f64.powf(random.between(0.3, 2.0)));
            faults.push(LuFault::Slows { machine, span, times });
        }
        if machines > 1 && random.chance(0.3) {
            let from = random.index(machines);
            let to = (from + if random.chance(0.7) { 1 } else { machines - 1 }) % machines;
            faults.push(LuFault::Stalls { from, to, span: span(random) });
        }
        match random.below(4) {
            0 => faults.push(LuFault::Dies { machine: random.index(machines), at: random.between(0.0, 1.1) }),
            1 if self.has_checksum => faults.push(LuFault::Errs {
                machine: random.index(machines),
                at: random.between(0.0, 1.0),
                choice: random.next(),
            }),
            _ => {}
        }
        faults
    }

    /// The same system on some of its machines, with other owners; one of them may die.
    pub(super) fn on(&self, machines: &[usize], random: &mut SeededRandom) -> Self {
        let of = |seconds: &[f64]| machines.iter().map(|at| seconds[*at]).collect();
        let mut faults = Vec::new();
        if random.chance(0.4) {
            faults
                .push(LuFault::Dies { machine: random.index(machines.len()), at: random.between(0.0, 1.1) });
        }
        Self {
            owners: owners(random, self.order, self.width, self.extra.len(), machines.len()),
            threads: machines.iter().map(|at| self.threads[*at]).collect(),
            task_s: of(&self.task_s),
            link_s: of(&self.link_s),
            faults,
            ..self.clone()
        }
    }

    pub(super) fn machines(&self) -> usize {
        self.threads.len()
    }

    /// The machine that dies, if one does.
    pub(super) fn dies(&self) -> Option<usize> {
        self.faults.iter().find_map(|fault| match fault {
            LuFault::Dies { machine, .. } => Some(*machine),
            _ => None,
        })
    }

    /// The system as the first machine is told of it.
    pub(super) fn begin(&self, dtype: DType) -> LuBegin {
        let ring = LuRing { owners: self.owners.clone(), machines: self.machines(), me: 0 };
        let (order, width, live_max) = (self.order, self.width, self.live_max);
        LuBegin { order, width, extra: 1, dtype, live_max, origin: LuOrigin::Sent, ring }
    }

    /// Block columns that are eliminated.
    pub(super) fn panels(&self) -> usize {
        self.order.div_ceil(self.width)
    }

    /// All columns.
    pub(super) fn columns(&self) -> usize {
        self.order + self.extra.iter().sum::<usize>()
    }

    /// The columns of a block.
    pub(super) fn span(&self, block: usize) -> std::ops::Range<usize> {
        match block.checked_sub(self.panels()) {
            None => block * self.width..((block + 1) * self.width).min(self.order),
            Some(at) => {
                let start = self.order + self.extra[..at].iter().sum::<usize>();
                start..start + self.extra[at]
            }
        }
    }
}

/// The owners of all blocks: dealt in proportion to speeds, as the program does, or any.
fn owners(
    random: &mut SeededRandom,
    order: usize,
    width: usize,
    extra: usize,
    machines: usize,
) -> Vec<usize> {
    let blocks = order.div_ceil(width) + extra;
    let any: Vec<usize> = (0..blocks).map(|_| random.index(machines)).collect();
    let all: Vec<LuMachine> = (0..machines)
        .map(|at| LuMachine {
            name: format!("w{at}"),
            threads: 1,
            gflops: random.between(1.0, 9.0),
            memory_bytes: u64::MAX,
            bytes_per_s: None,
            round_trip_s: 0.0,
            tasks: LuTaskModel::default(),
        })
        .collect();
    let cluster = LuCluster {
        order,
        extra: 1,
        width: Some(width),
        depth: None,
        element_bytes: 8,
        machines: &all,
        keeps_all: true,
        coming: None,
        bytes: &|_| 0,
    };
    match cluster.plan() {
        Ok(plan) if extra == 1 && random.chance(0.6) => plan.deal.owners,
        _ => any,
    }
}
