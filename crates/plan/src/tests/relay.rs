//! Relaying: what the primary sends and what members pass on, against a count panel by panel; and what it is worth.

use super::cost::block_bytes;
use super::*;
use bramble_matrix::Rect;
use std::collections::BTreeMap;

/// A panel: wave, whether of A, region, order, row or column of cells, step.
type Key = (u64, bool, usize, bool, u64, u64);

/// Who needs each panel whose bytes travel.
fn needed(plan: &Plan) -> BTreeMap<Key, Vec<usize>> {
    let mut all: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    let p = &plan.problem;
    for (at, member) in plan.members.iter().enumerate() {
        for (wave, block) in (0..).zip(member.blocks()) {
            let by_columns = block.order == Order::Columns;
            for step in block.steps.iter() {
                let sides = [(true, p.sends_a, block.cells.rows), (false, p.sends_b, block.cells.cols)];
                for (is_a, _, lines) in sides.into_iter().filter(|s| s.1) {
                    for line in lines.iter() {
                        let key = (wave, is_a, block.region, by_columns, line, step);
                        all.entry(key).or_default().push(at);
                    }
                }
            }
        }
    }
    all
}

/// The matrices of a panel.
fn matrices(plan: &Plan, key: &Key) -> Vec<Rect> {
    let (_, is_a, region, _, line, step) = *key;
    let region = &plan.regions[region];
    let q = region.q();
    let rim = region.is_rim(step);
    let one = |at: u64| match (is_a, rim) {
        (true, true) => region.a_panel(line, step, at, 0),
        (false, true) => region.b_panel(step, line, 0, at),
        (true, false) => region.a_panel(line, step, at / q, at % q),
        (false, false) => region.b_panel(step, line, at / q, at % q),
    };
    (0..if rim { q } else { q * q }).map(one).collect()
}

/// Bytes of a panel's matrices, and the frames that they take.
fn bytes_and_frames(rects: &[Rect]) -> (u64, u64) {
    let one = |rect: &Rect| {
        let (lines, line) = (rect.rows.len(), rect.cols.len() * 8);
        (lines * line, lines.div_ceil(((1 << 20) / line).max(1)))
    };
    rects.iter().map(one).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

/// What is to be expected, panel by panel: (sent to each, taken by each), as equal shares.
fn counted(plan: &Plan) -> Vec<(f64, f64)> {
    let recipes: Vec<Recipe> = plan.regions.iter().map(|r| Recipe::new(r.levels)).collect();
    let direct = |m: &Member| m.blocks().map(|b| block_bytes(plan, &recipes[b.region], &b).0).sum::<u64>();
    let mut all: Vec<(f64, f64)> = plan.members.iter().map(|m| (direct(m) as f64, 0.0)).collect();
    for (key, members) in needed(plan).iter().filter(|(_, members)| members.len() > 1 && plan.relay) {
        let rects = matrices(plan, key);
        let (count, (bytes, frames)) = (rects.len() as u64, bytes_and_frames(&rects));
        let from_others = (members.len() - 1) as f64 / members.len() as f64;
        let told = (16 + 4 + 24 * count) + (16 + 2 + 12 * count);
        for at in members {
            all[*at].0 += from_others * (told as f64 - (bytes + frames * (16 + 4 + 24)) as f64);
            all[*at].1 += from_others * (bytes + frames * (16 + 12)) as f64;
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn what_is_sent_and_passed_on_is_what_a_count_of_panels_says(
        m in 1u64..700, n in 1u64..700, k in 1u64..700, tile in 20u64..200, depth in 20u64..200,
        speeds in proptest::collection::vec(1u32..9, 2..7), strategy in any_strategy(), bits in 19u32..26,
        reads_c in any::<bool>(), generated in any::<bool>(), reproducible in any::<bool>(),
    ) {
        let p = Problem { reads_c, sends_b: !generated, ..problem(m, n, k) };
        let workers: Vec<Machine> =
            speeds.iter().map(|s| machine("w", f64::from(*s), 1 << bits, 100.0)).collect();
        let reproducible = reproducible && strategy.levels == 0;
        let who = Preference::Workers;
        let wish = Wish { strategy: Some(strategy), who, reproducible, relay: Relay::On, elementwise: false };
        let cut = Cut { tile: Some(tile), depth: Some(depth) };
        let Ok(decision) = decide(&p, cut, &workers[0], &workers, &wish) else { return Ok(()) };
        let (plan, t) = (&decision.plan, &decision.plan.predicted);
        let fixed = matches!(strategy.base, Base::Naive | Base::Row(_) | Base::Square(_));
        prop_assert!(!plan.relay || !fixed && plan.members.len() > 1);
        prop_assert!(!plan.relay || plan.sums == Sums::Merged || plan.keeps_bits());
        prop_assert_eq!(plan.relay, t.bytes_relayed > 0);
        let counted = counted(plan);
        let near = |is: u64, should: f64| (is as f64 - should).abs() < 0.5;
        prop_assert!(near(t.bytes_sent, counted.iter().map(|c| c.0).sum()), "{} {counted:?}", t.bytes_sent);
        prop_assert!(near(t.bytes_relayed, counted.iter().map(|c| c.1).sum()), "{t:?}");
        // Of each stretch of panels that the same members share, one frame at most goes to another than an equal share says.
        let slack = needed(plan).len() as f64 * 150.0 + 1.0;
        for (cost, (out, taken)) in t.machines.iter().zip(&counted) {
            let far = (cost.bytes_out as f64 - out).abs().max((cost.bytes_taken as f64 - taken).abs());
            prop_assert!(far < slack, "{cost:?} {out} {taken}");
        }
        let given: u64 = t.machines.iter().map(|c| c.bytes_given).sum();
        prop_assert_eq!(given, t.bytes_relayed);
        prop_assert!(t.seconds >= plan.bound.seconds, "{} {:?}", t.seconds, plan.bound);
    }
}
