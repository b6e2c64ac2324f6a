//! The machines of a product in a chosen order, their links and their failures.
//!
//! Invariants: the same setting gives the same machines. The plan's members have links and operands of several kinds.

use super::{Scenario, Values};
use crate::fault::Faults;
use bramble_plan::{LinkRate, Machine, PanelOrder, PlanOptions, Problem, TileSize, decide};
use bramble_schedule::primary::{PeerInfo, Referred};
use bramble_schedule::worker::StartLimits;
use bramble_wire::limits::NEIGHBOURS_MAX;

/// The machines, their links and their failures.
#[derive(Clone, Debug)]
pub struct OrderSetting {
    /// The sizes of tiles and steps.
    pub cut: TileSize,
    /// The memory of each worker.
    pub memories: Vec<u64>,
    /// 0: all links move bytes; 1: all share memory; 2: the primary computes alone, in its own memory; 3: one of the
    /// machines shares memory, as when the primary computes too.
    pub shared: u8,
    /// Whether A is stored by columns.
    pub col_major: bool,
    /// Whether workers whose links move bytes relay panels.
    pub relay: bool,
    /// Whether links between workers may break at any time.
    pub breaks: bool,
    /// Slowness factor of each worker; 1 beyond the end of the list.
    pub slow: Vec<u32>,
    /// Whether slow workers' work is stolen.
    pub steals: bool,
    /// 0: order of steps; 1 to 3: blocks are computed by groups of this many columns; 4: from a corner; more: by columns in
    /// the last steps (this number less 4); with memory for that.
    pub columns: u64,
    /// Whether the work of lost workers is reassigned.
    pub recovers: bool,
    /// Whether there is a reserve worker in the primary's own memory, outside the plan.
    pub reserve: bool,
    /// Workers that die: after which event, and a number that chooses worker and way. Never the last one, and none that
    /// shares memory.
    pub deaths: Vec<(u64, u32)>,
    /// Workers that join: after which event, and with how much memory.
    pub joins: Vec<(u64, u64)>,
}

impl OrderSetting {
    /// The plain setting: nothing goes wrong.
    pub const PLAIN: Self = Self {
        cut: TileSize { tile: None, depth: None },
        memories: Vec::new(),
        shared: 0,
        col_major: false,
        relay: false,
        breaks: false,
        slow: Vec::new(),
        steals: false,
        columns: 0,
        recovers: false,
        reserve: false,
        deaths: Vec::new(),
        joins: Vec::new(),
    };

    /// The machines of the product: the primary, with the speed of the first worker, the workers, and machines that join.
    fn machines(&self) -> Vec<Machine> {
        let machine = |at: usize, memory_bytes: u64| Machine {
            name: format!("w{}", at + 1),
            threads: 1 + u32::try_from(at % 3).unwrap_or(0),
            gflops: 1.0 + at as f64 * 0.7,
            peak_gflops: 3.0 + at as f64,
            memory_bytes,
            link: Some(LinkRate { bytes_per_s: 1e9, round_trip_s: 1e-4 }),
            shares_cores: false,
            nic_bytes_per_s: None,
            memory_rate: None,
        };
        let first = self.memories.first().copied().unwrap_or_default();
        let workers = self.memories.iter().enumerate().map(|(at, memory)| machine(at, *memory));
        let joining = self.joins.iter().enumerate();
        let joining = joining.map(|(at, (_, memory))| machine(self.memories.len() + at, *memory));
        let joining = joining.map(|machine| Machine { gflops: 2e-3, ..machine });
        let primary = Machine { name: "w0".to_owned(), ..machine(0, first) };
        [primary].into_iter().chain(workers).chain(joining).collect()
    }

    /// The product and its machines; `None` if it does not fit them.
    pub(super) fn scenario(&self, p: &Problem, wish: &PlanOptions) -> Option<Scenario> {
        let mut machines = self.machines();
        let workers = if self.shared == 2 { &[][..] } else { &machines[1..=self.memories.len()] };
        let mut plan = decide(p, self.cut, &machines[0], workers, wish).ok()?.plan;
        let order = match self.columns {
            4 => PanelOrder::Corner,
            more if more > 4 => PanelOrder::Ending(more - 4),
            columns => PanelOrder::Columns(columns),
        };
        for (number, member) in plan.members.iter_mut().enumerate() {
            if self.columns > 0 {
                member.shares.iter_mut().for_each(|share| share.order = order);
                member.memory_bytes = 1 << 30;
            }
            if [false, true, true, number == 1][usize::from(self.shared)] {
                machines[member.machine].link = None;
            }
        }
        if self.reserve {
            machines[0].memory_bytes = plan.members.iter().map(|m| m.memory_bytes).max().unwrap_or_default();
        }
        machines[0].link = None;
        plan.relay = self.relay;
        Some(Scenario {
            seed: p.m ^ p.n << 8 ^ p.k << 16,
            plan,
            machines,
            values: Values::Rounded,
            col_major: self.col_major,
            steals: self.steals,
            has_reserve: self.reserve,
            lines_per_frame: 3,
            // Small limits, so that jobs wait for the link and for the compute threads.
            start_limits: StartLimits { unsent_bytes: 300, unsent_tiles: 2, additions: 2 },
            neighbours_max: NEIGHBOURS_MAX,
            apart: Vec::new(),
            faults: Faults::default(),
        })
    }
}

/// The peers of a scenario, with links and operands of several kinds.
pub(super) fn peers(scenario: &Scenario) -> Vec<(usize, PeerInfo)> {
    let of_a_kind = |(at, (machine, info)): (usize, (usize, PeerInfo))| {
        if info.is_reserve {
            return (machine, PeerInfo { work_per_s: 1e5, ..info });
        }
        let info = PeerInfo {
            // Some workers whose links move bytes read one or both operands in place.
            referred: Referred { a: at % 2 == 1, b: at % 3 == 1 },
            work_per_s: 1e6,
            // Over fast links all cells of a block are multiplied side by side.
            link_bytes_per_s: [None, Some(1e8), Some(2e9)][at % 3],
            ..info
        };
        (machine, info)
    };
    scenario.peers().into_iter().enumerate().map(of_a_kind).collect()
}
