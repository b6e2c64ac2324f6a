//! Plans as bytes: decoding inverts encoding, and any other bytes are refused without a panic.

use super::*;
use bramble_base::{Rect, Span};

/// A plan, chained if possible.
fn plan(
    sides: [u64; 3],
    cut: TileSize,
    workers: &[Machine],
    strategy: Strategy,
    reproducible: bool,
) -> Option<Plan> {
    let p = Problem { reads_c: reproducible, ..problem(sides[0], sides[1], sides[2]) };
    let primary = machine("primary", 10.0, 1 << 32, 0.0);
    let levels = if reproducible { 0 } else { strategy.levels };
    let strategy = Some(Strategy { levels, ..strategy });
    let options = PlanOptions { strategy, who: Preference::Workers, reproducible, ..PlanOptions::AUTO };
    let grid = Grid::new(&p, cut).ok()?;
    if grid.tiles() * grid.steps() > 100_000 {
        return None;
    }
    decide(&p, cut, &primary, workers, &options).ok().map(|decision| decision.plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn what_is_decoded_is_what_was_encoded(
        m in side(), n in side(), k in side(), cut in cut(), workers in machines(),
        strategy in any_strategy(), reproducible in any::<bool>(),
    ) {
        let Some(plan) = plan([m, n, k], cut, &workers, strategy, reproducible) else { return Ok(()) };
        let bytes = plan.encode();
        prop_assert_eq!(Plan::decode(&bytes).unwrap(), plan.unpredicted());
    }

    #[test]
    fn whatever_is_not_refused_is_one_plan_with_one_encoding(
        m in 1u64..300, n in 1u64..300, k in 1u64..300, cut in cut(), workers in machines(),
        strategy in any_strategy(), reproducible in any::<bool>(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 1..4), end in any::<Option<usize>>(),
    ) {
        let Some(plan) = plan([m, n, k], cut, &workers, strategy, reproducible) else { return Ok(()) };
        let mut bytes = plan.encode();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(end.map_or(bytes.len(), |end| end % bytes.len()));
        if let Ok(other) = Plan::decode(&bytes) {
            prop_assert_eq!(other.encode(), bytes);
            // No decoded number exceeds the limits of a plan.
            prop_assert!(other.members.iter().flat_map(|m| &m.shares).all(|s| s.blocks() < 1 << 48));
            let _ = (other.tiles(), other.results(), other.stored_bytes(), other.keeps_bits());
        }
    }
}

#[test]
fn work_twice_left_out_or_outside_is_refused() {
    let workers = [machine("w0", 1.0, 1 << 30, 100.0), machine("w1", 1.0, 1 << 30, 100.0)];
    let cut = TileSize { tile: Some(16), depth: Some(16) };
    let plan = planned(&problem(100, 100, 100), cut, &workers, "cuboid");
    assert!(Plan::decode(&plan.encode()).is_ok());
    let refused = |change: &dyn Fn(&mut Share), why: &str| {
        let mut other = plan.clone();
        change(&mut other.members[1].shares[0]);
        assert_eq!(Plan::decode(&other.encode()).unwrap_err().to_string(), why);
    };
    let first = plan.members[0].shares[0];
    refused(&|share| *share = first, "some work is assigned twice");
    refused(&|share| share.cells = Rect::new(Span::new(0, 0), share.cells.cols), "some work is missing");
    refused(&|share| share.steps = Span::new(0, 8), "one of its shares is not in its regions");
    refused(&|share| share.region = 1, "one of its shares is not in its regions");
    refused(&|share| share.block.rows = 0, "one of its shares is not in its regions");
    refused(&|share| share.order = PanelOrder::Columns(0), "one of its orders is unknown");
    let mut other = plan.clone();
    other.problem.k = 99;
    assert!(Plan::decode(&other.encode()).is_ok(), "a depth of 7 steps is that of 97 to 112");
    other.problem.k = 113;
    assert_eq!(Plan::decode(&other.encode()).unwrap_err().to_string(), "some work is missing");
    other.problem.m = u64::MAX;
    assert_eq!(Plan::decode(&other.encode()).unwrap_err().to_string(), "its grid is impossible");
}
