//! Checks owners and boxes against the blocks that the machines compute.

use super::*;
use bramble_matrix::DType;
use bramble_plan::{
    Base, LinkRate, Machine, OperandSource, PlanOptions, Preference, Problem, Strategy as Cut, TileSize,
    decide,
};
use proptest::prelude::*;

/// A machine with this speed; `link` is bytes a second, `None` for the primary.
pub(crate) fn machine(name: &str, gflops: f64, link: Option<f64>) -> Machine {
    Machine {
        name: name.to_owned(),
        threads: 2,
        gflops,
        peak_gflops: gflops * 1.5,
        memory_bytes: 64 << 20,
        link: link.map(|bytes_per_s| LinkRate { bytes_per_s, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

/// A plan of `strategy` for workers with these speeds.
pub(crate) fn plan(sizes: [u64; 3], cut: [u64; 2], strategy: &str, speeds: &[f64]) -> Option<Plan> {
    let [m, n, k] = sizes;
    let problem = Problem {
        m,
        n,
        k,
        dtype: DType::F64,
        reads_c: false,
        a_source: OperandSource::Sent,
        b_source: OperandSource::Sent,
    };
    let workers: Vec<Machine> =
        speeds.iter().enumerate().map(|(i, s)| machine(&format!("w{i}"), *s, Some(1e8))).collect();
    let wish = PlanOptions { strategy: strategy.parse().ok(), who: Preference::Fastest, ..PlanOptions::AUTO };
    let cut = TileSize { tile: Some(cut[0]), depth: Some(cut[1]) };
    decide(&problem, cut, &machine("here", 10.0, None), &workers, &wish).ok().map(|d| d.plan)
}

/// Strategies of every kind.
pub(crate) fn strategies() -> impl Strategy<Value = String> {
    let named = |levels| Base::one_of_each([2, 1, 3]).map(move |base| Cut { base, levels }.to_string());
    let all = (0..3).flat_map(named).chain(["auto".to_owned()]);
    prop::sample::select(all.collect::<Vec<_>>())
}

/// The boxes of elements of a member's blocks, enumerated tile by tile and step by step.
fn really(plan: &Plan, member: usize) -> Vec<OwnedBox> {
    let mut all = Vec::new();
    for block in plan.members[member].blocks() {
        let region = &plan.regions[block.region];
        let q = region.q();
        for (i, j, step) in block.cells.rows.iter().flat_map(|i| {
            let steps = block.steps;
            block.cells.cols.iter().flat_map(move |j| steps.iter().map(move |s| (i, j, s)))
        }) {
            for (u, v) in (0..q).flat_map(|u| (0..q).map(move |v| (u, v))) {
                let tile = region.tile(i, j, u, v);
                let parts = if region.is_rim(step) { 1 } else { q };
                all.extend((0..parts).map(|w| {
                    let k = region.a_panel(i, step, u, w).cols;
                    OwnedBox { rows: tile.rows, cols: tile.cols, k }
                }));
            }
        }
    }
    all
}

fn volume(part: &OwnedBox) -> u64 {
    part.rows.len() * part.cols.len() * part.k.len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_owner_is_the_member_with_the_block(
        sizes in prop::array::uniform3(1u64..90),
        cut in prop::array::uniform2(3u64..24),
        strategy in strategies(),
        speeds in prop::collection::vec(1.0f64..30.0, 0..6),
    ) {
        let Some(plan) = plan(sizes, cut, &strategy, &speeds) else { return Ok(()) };
        let owners = Owners::of(&plan);
        let mut covered = 0;
        for member in 0..plan.members.len() {
            let boxes = really(&plan, member);
            covered += boxes.iter().map(volume).sum::<u64>();
            for b in &boxes {
                for (row, col, k) in [
                    (b.rows.start, b.cols.start, b.k.start),
                    (b.rows.end - 1, b.cols.end - 1, b.k.end - 1),
                ] {
                    prop_assert_eq!(owners.at(row, col, k), Some(member), "{} {} {}", row, col, k);
                }
            }
            let shown: Vec<OwnedBox> =
                plan.members[member].shares.iter().flat_map(|s| parts(&plan.regions[s.region], s)).collect();
            prop_assert_eq!(shown.iter().map(volume).sum::<u64>(), boxes.iter().map(volume).sum::<u64>());
            for b in &boxes {
                let inside = |p: &&OwnedBox| {
                    let holds = |outer: Span, inner: Span| outer.start <= inner.start && inner.end <= outer.end;
                    holds(p.rows, b.rows) && holds(p.cols, b.cols) && holds(p.k, b.k)
                };
                prop_assert_eq!(shown.iter().filter(inside).count(), 1, "{:?}", b);
            }
        }
        prop_assert_eq!(covered, sizes.iter().product::<u64>());
    }

    #[test]
    fn owners_change_only_between_layers(
        sizes in prop::array::uniform3(20u64..90),
        strategy in prop::sample::select(vec!["cuboid", "cuboid:1x1x4", "cuboid:2x2x2", "reuse", "row:2"]),
        speeds in prop::collection::vec(1.0f64..30.0, 1..6),
    ) {
        let Some(plan) = plan(sizes, [8, 5], strategy, &speeds) else { return Ok(()) };
        let owners = Owners::of(&plan);
        let layers = owners.layers();
        prop_assert_eq!(layers[0].start, 0);
        prop_assert_eq!(layers[layers.len() - 1].end, plan.regions[0].steps());
        for layer in layers {
            let k = owners.k_of(layer);
            for step in layer.iter() {
                let other = step * 5;
                for (row, col) in [(0, 0), (sizes[0] / 2, sizes[1] / 3), (sizes[0] - 1, sizes[1] - 1)] {
                    prop_assert_eq!(owners.at(row, col, k), owners.at(row, col, other));
                }
            }
        }
    }
}
