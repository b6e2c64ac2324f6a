//! Relaying: the bytes that the primary sends and that members relay, compared with a count panel by panel; and its
//! gain.

use super::cost::block_bytes;
use super::*;
use bramble_base::Rect;
use std::collections::BTreeMap;

/// A panel: wave, whether of A, region, order, row or column of cells, step.
type Key = (u64, bool, usize, bool, u64, u64);

/// The members that need each panel whose bytes are sent.
fn needed(plan: &Plan) -> BTreeMap<Key, Vec<usize>> {
    let mut all: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    let p = &plan.problem;
    for (at, member) in plan.members.iter().enumerate() {
        for (wave, block) in (0..).zip(member.blocks()) {
            let by_columns = block.order != PanelOrder::Steps;
            for step in block.steps.iter() {
                let sides = [
                    (true, p.a_source.is_sent(), block.cells.rows),
                    (false, p.b_source.is_sent(), block.cells.cols),
                ];
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

/// The expected bytes, panel by panel, as equal shares: (sent to each, received by each).
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
        let p = Problem { reads_c, b_source: OperandSource::generated_if(generated), ..problem(m, n, k) };
        let workers: Vec<Machine> =
            speeds.iter().map(|s| machine("w", f64::from(*s), 1 << bits, 100.0)).collect();
        let reproducible = reproducible && strategy.levels == 0;
        let who = Preference::Workers;
        let relay = Relay::On;
        let options = PlanOptions { strategy: Some(strategy), who, reproducible, relay, ..PlanOptions::AUTO };
        let cut = TileSize { tile: Some(tile), depth: Some(depth) };
        let Ok(decision) = decide(&p, cut, &workers[0], &workers, &options) else { return Ok(()) };
        let (plan, t) = (&decision.plan, &decision.plan.predicted);
        let fixed = matches!(strategy.base, Base::Naive | Base::Row(_) | Base::Square(_));
        prop_assert!(!plan.relay || !fixed && plan.members.len() > 1);
        prop_assert!(!plan.relay || plan.sums == Sums::Merged || plan.keeps_bits());
        prop_assert_eq!(plan.relay, t.bytes_relayed > 0);
        let counted = counted(plan);
        let near = |is: u64, should: f64| (is as f64 - should).abs() < 0.5;
        prop_assert!(near(t.bytes_sent, counted.iter().map(|c| c.0).sum()), "{} {counted:?}", t.bytes_sent);
        prop_assert!(near(t.bytes_relayed, counted.iter().map(|c| c.1).sum()), "{t:?}");
        // For each stretch of panels that the same members share, at most one frame differs from an equal share.
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

#[test]
fn the_smallest_product_that_computing_binds_falls_to_a_third() {
    for (strategy, relay, gflops, want) in [
        // a + b = 6, 4 and 2 matrices are sent: n = (a + b) e Σg / (2 r), less the heads.
        ("summa:2x4", Relay::Off, 30.2, 49_345.0),
        ("cuboid:2x2x2", Relay::Off, 30.2, 32_897.0),
        ("summa:2x4", Relay::On, 30.2, 16_448.0),
    ] {
        let n = balanced(strategy, relay, gflops);
        println!("{strategy} {relay:?} {gflops}: {n:.0}");
        assert!((n / want - 1.0).abs() < 0.01, "{strategy} {relay:?}: {n}");
    }
}

/// The n from which on 8 boards compute longer than their primary sends, over one gigabit.
pub(super) fn balanced(strategy: &str, relay: Relay, gflops: f64) -> f64 {
    let n = 16384;
    let p = problem(n, n, n);
    let workers = vec![machine("pi5", gflops, 6 << 30, 117.5); 8];
    let options = PlanOptions { relay, ..by(strategy) };
    let plan = decide(&p, TileSize::default(), &machine("primary", 1.0, 1 << 40, 0.0), &workers, &options)
        .unwrap()
        .plan;
    assert_eq!(plan.members.len(), 8);
    // Bytes grow as n², operations as n³.
    let (sent_s, computed_s) = (plan.predicted.bytes_sent as f64 / 117.5e6, p.flops() / (8.0 * gflops * 1e9));
    n as f64 * sent_s / computed_s
}

#[test]
fn relaying_is_chosen_where_it_is_faster_and_only_among_those_who_can() {
    let p = problem(8192, 8192, 8192);
    let primary = Machine { link: None, ..machine("primary", 20.0, 8 << 30, 0.0) };
    let boards = vec![machine("pi", 40.0, 4 << 30, 117.0); 4];
    let plan = |workers: &[Machine], relay| {
        let options = PlanOptions { relay, ..by("reuse") };
        let plan = decide(&p, TileSize::default(), &primary, workers, &options).unwrap().plan;
        println!("{relay:?}: {:.2} s", plan.predicted.seconds);
        plan
    };
    let (off, auto) = (plan(&boards, Relay::Off), plan(&boards, Relay::Auto));
    assert!(auto.relay && !off.relay && auto.predicted.seconds < 0.8 * off.predicted.seconds);
    // |A| + |B|, and heads.
    assert!((auto.predicted.bytes_sent as f64 / p.operand_bytes() - 1.0).abs() < 1e-3);
    assert!(auto.bound.seconds <= auto.predicted.seconds);
    // One worker has no peer to relay to; workers on the primary's cores do not relay unless the user asks for it.
    assert!(!plan(&boards[..1], Relay::On).relay);
    let here: Vec<Machine> = boards.iter().map(|b| Machine { shares_cores: true, ..b.clone() }).collect();
    assert!(!plan(&here, Relay::Auto).relay && plan(&here, Relay::On).relay);
    // Panels that are generated at the worker are not relayed.
    let made = Problem { a_source: OperandSource::Generated, b_source: OperandSource::Generated, ..p };
    let options = PlanOptions { relay: Relay::On, ..by("reuse") };
    assert!(!decide(&made, TileSize::default(), &primary, &boards, &options).unwrap().plan.relay);
    // Computing is the limit in any case, and the plan stays as simple as without relaying.
    let auto = decide(&p, TileSize::default(), &primary, &boards, &PlanOptions::AUTO).unwrap();
    let off = PlanOptions { relay: Relay::Off, ..PlanOptions::AUTO };
    let off = decide(&p, TileSize::default(), &primary, &boards, &off).unwrap();
    assert!(auto.plan.predicted.seconds <= off.plan.predicted.seconds * 1.04);
}

#[test]
fn a_slow_link_among_the_workers_slows_down_what_passes_it() {
    let p = problem(8192, 8192, 8192);
    let with = |rate: f64| {
        let mut workers = vec![machine("pi", 1000.0, 8 << 30, 117.0); 4];
        workers[3] = machine("far", 1000.0, 8 << 30, rate);
        let options = PlanOptions { relay: Relay::On, ..by("summa:2x2") };
        decide(&p, TileSize::default(), &workers[0], &workers, &options).unwrap().plan.predicted.seconds
    };
    assert!(with(11.7) > 1.3 * with(117.0), "{} {}", with(11.7), with(117.0));
}

#[test]
fn waves_beyond_those_that_are_looked_at_are_taken_to_be_alike() {
    // 8 machines with so many blocks of one cell that only a sample is counted, compared with fewer.
    let plan = |rows: u64| {
        let p = problem(rows * 64, 64 * 64, 64);
        let cut = TileSize { tile: Some(64), depth: Some(64) };
        let workers = vec![machine("w", 10.0, 150_000, 100.0); 8];
        let options = PlanOptions { relay: Relay::On, ..by("summa:1x8") };
        decide(&p, cut, &machine("primary", 1.0, 1 << 40, 0.0), &workers, &options).unwrap().plan
    };
    let (few, many) = (plan(64), plan(640));
    let blocks = |plan: &Plan| plan.members[0].blocks().count();
    println!("{} {}", blocks(&few), blocks(&many));
    assert!(blocks(&few) <= 512 && blocks(&many) > 512);
    assert!(few.relay && many.relay);
    let ratio = |plan: &Plan| plan.predicted.bytes_relayed as f64 / plan.predicted.bytes_sent as f64;
    assert!((ratio(&few) / ratio(&many) - 1.0).abs() < 0.02, "{} {}", ratio(&few), ratio(&many));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// Schemes that never relay may be predicted to be faster, but the user has asked for relaying.
    #[test]
    fn relaying_that_was_asked_for_is_not_given_up_for_a_faster_plan(
        speeds in proptest::collection::vec((1u32..1000, 10u32..10_000), 2..6), reproducible in any::<bool>(),
        all in any::<bool>(), depth in 64u64..600,
    ) {
        let p = problem(512, 512, depth);
        let workers: Vec<Machine> = speeds
            .iter()
            .map(|(speed, rate)| machine("w", f64::from(*speed) / 10.0, 1 << 29, f64::from(*rate)))
            .collect();
        let who = if all { Preference::Workers } else { Preference::Fastest };
        let options = PlanOptions { who, reproducible, relay: Relay::On, ..PlanOptions::AUTO };
        let cut = TileSize { tile: Some(64), depth: Some(64) };
        let decision = decide(&p, cut, &Machine { link: None, ..workers[0].clone() }, &workers, &options).unwrap();
        let with_link = decision.plan.members.iter().filter(|m| m.machine != 0).count();
        prop_assert!(decision.plan.relay || with_link < 2, "{}", decision.sentence);
        prop_assert!(!all || with_link == workers.len());
    }
}
