//! The setting that an input of the target begins with: product, machines, strategy.

use crate::bytes::Bytes;
use crate::files::check_message;
use bramble_matrix::{DType, Layout};
use bramble_plan::{
    Base, LinkRate, Machine, OperandSource, Plan, PlanOptions, Preference, Problem, Relay, Strategy,
    TileSize, decide,
};
use bramble_schedule::primary::Operands;

/// Plans with more results would take long, and show nothing new.
const RESULTS_MAX: u64 = 128;

/// See the head of this file.
pub(super) struct Setting {
    pub(super) plan: Plan,
    pub(super) operands: Operands,
    /// Machines whose links share memory, one bit each.
    pub(super) shared: u8,
    /// Whether honest workers finish the product that the input has begun.
    pub(super) ends: bool,
}

impl Setting {
    /// `None` where there is no plan.
    pub(super) fn new(bytes: &mut Bytes<'_>) -> Option<Self> {
        // A product without steps never reaches the state machine: the shell answers it alone.
        let (m, n, k) = (bytes.u8() % 10, bytes.u8() % 10, 1 + bytes.u8() % 7);
        let (cut, flags, more) = (bytes.u8(), bytes.u8(), bytes.u8());
        let flag = |bit: u8| flags >> bit & 1 == 1;
        // Large ones fill links: a matrix has up to 8 MiB, which is never allocated.
        let large = |side: u8| u64::from(side) << if flag(7) { 7 } else { 0 };
        let problem = Problem {
            m: large(m),
            n: large(n),
            k: large(k),
            dtype: if flag(0) { DType::F64 } else { DType::F32 },
            reads_c: flag(1),
            a_source: OperandSource::generated_if(flag(2)),
            b_source: OperandSource::generated_if(flag(3)),
        };
        let cut = TileSize { tile: Some(large(1 + cut % 8)), depth: Some(large(1 + cut / 8 % 8)) };
        let wish = PlanOptions {
            tiles_early: None,
            strategy: strategy(bytes),
            who: if flag(4) { Preference::Fastest } else { Preference::Workers },
            reproducible: flag(5),
            elementwise: more >> 3 & 1 == 1,
            relay: Relay::Off,
        };
        let shared = bytes.u8();
        let machines: Vec<Machine> = (0..1 + more % 4).map(|_| machine(bytes)).collect();
        let plan = match decide(&problem, cut, &machines[0], &machines[1..], &wish) {
            Ok(decision) => {
                check_message(&decision.sentence);
                decision.left_out.iter().for_each(|l| check_message(&l.reason));
                decision.plan
            }
            Err(e) => {
                check_message(&e.to_string());
                return None;
            }
        };
        if plan.results() > RESULTS_MAX {
            return None;
        }
        let layout = |col_major: bool| if col_major { Layout::ColMajor } else { Layout::RowMajor };
        let operands = Operands {
            a_layout: layout(flag(6)),
            b_layout: layout(more >> 4 & 1 == 1),
            a_source: problem.a_source,
            b_source: problem.b_source,
            unplaced: [None; 2],
            reads_c: problem.reads_c,
        };
        Some(Self { plan, operands, shared, ends: more >> 5 & 1 == 0 })
    }
}

fn strategy(bytes: &mut Bytes<'_>) -> Option<Strategy> {
    let (kind, sizes) = (bytes.u8(), u32::from(bytes.u8()));
    let all: Vec<Base> = Base::one_of_each([1 + sizes % 3, 1 + sizes / 3 % 3, 1 + sizes / 9 % 4]).collect();
    let (number, levels) = (usize::from(kind) % (all.len() + 1), u32::from(kind) / 8 % 3);
    // 0: the planner chooses.
    Some(Strategy { base: *all.get(number.checked_sub(1)?)?, levels })
}

/// A machine as it describes itself: most are alike, some claim the largest values that a welcome may have.
fn machine(bytes: &mut Bytes<'_>) -> Machine {
    let kind = bytes.u8();
    // The range that `Welcome::decode` accepts.
    let mut speed = || {
        let claimed = f64::from_bits(bytes.u64());
        if claimed > 0.0 && claimed <= 1e9 { claimed } else { 1.0 }
    };
    let (gflops, peak_gflops) = if kind & 1 == 0 { (2.0, 3.0) } else { (speed(), speed()) };
    let memory_bytes = match kind >> 1 & 3 {
        0 => 4096 * u64::from(bytes.u8()),
        1 => u64::from(bytes.u8()) << 20,
        2 => 64 * u64::from(bytes.u16()),
        _ => bytes.u64(),
    };
    let bytes_per_s = if kind & 8 == 0 { 1e9 } else { f64::from(bytes.u32()) + 1.0 };
    Machine {
        name: "w".to_owned(),
        threads: 1 + u32::from(kind >> 5),
        gflops,
        peak_gflops,
        memory_bytes,
        link: Some(LinkRate { bytes_per_s, round_trip_s: 1e-4 }),
        shares_cores: kind >> 4 & 1 == 1,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let happenings: [&[u8]; 4] = [
        // All workers are honest.
        &[],
        // Links take every message, tiles return in any order and in lines, credit returns.
        &[0x50, 0x60, 0x70, 0x0f, 1, 0x1f, 2, 0x2f, 3, 0x07, 1, 1, 0x18, 0, 2, 0x0b, 0, 0, 0x04, 0x14, 0x24],
        // Tiles before their time, and credit.
        &[0x0a, 0, 0, 0x1a, 3, 1, 0x05, 0x40, 0, 0x15, 0, 1, 0x0a, 2, 0, 0x02, 0x1f, 1],
        // A lie.
        &[0x03, 0x50, 0x09, 0x81, 1, 2],
    ];
    for kind in 0..24u8 {
        for (number, happens) in happenings.iter().enumerate() {
            for large in [0, 0x80] {
                let flags = kind.wrapping_mul(37) & 0x0f | if number == 1 { 0x20 } else { 0 } | large;
                let flags = if kind >= 8 { flags & !0x20 } else { flags };
                let mut seed = vec![9, 7, 7, 0x0a + kind % 3, flags, 3 + (kind & 0x10)];
                seed.extend([kind, kind.wrapping_mul(11), kind.wrapping_mul(5) & 0x0f]);
                // Ordinary machines with enough memory.
                seed.extend([if large > 0 { [2, 200] } else { [0, 200] }; 4].as_flattened());
                seed.extend_from_slice(happens);
                seeds.push(seed);
            }
        }
    }
    seeds
}
