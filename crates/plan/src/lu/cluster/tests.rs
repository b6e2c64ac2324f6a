//! Plans of clusters whose shares, depths and losses are known, and properties of any plan.

use super::*;
use proptest::prelude::*;

fn machine(gflops: f64, memory_bytes: u64, bytes_per_s: Option<f64>) -> LuMachine {
    let (name, tasks) = ("w".into(), LuTaskModel::default());
    LuMachine { name, threads: 4, gflops, memory_bytes, bytes_per_s, round_trip_s: 2e-4, tasks }
}

fn bytes(order: usize) -> impl Fn(PartSizes) -> u64 {
    move |of| 8 * (order * of.columns + (of.depth + 1) * order * of.width) as u64
}

fn plan(order: usize, width: Option<usize>, machines: &[LuMachine]) -> Result<LuPlan, LuPlanError> {
    let bytes = bytes(order);
    LuCluster {
        order,
        extra: 1,
        width,
        depth: None,
        element_bytes: 8,
        machines,
        keeps_all: false,
        coming: None,
        bytes: &bytes,
    }
    .plan()
}

#[test]
fn columns_follow_the_speeds_in_every_remainder() {
    let machines = [4.0, 2.0, 2.0, 1.0].map(|gflops| machine(gflops, 1 << 40, Some(125e6)));
    let LuPlan { deal, left_out, .. } = plan(9000, Some(50), &machines).unwrap();
    assert!(left_out.is_empty());
    for start in [0, 60, 120] {
        let rest = &deal.owners[start..180];
        let count = |at: usize| rest.iter().filter(|owner| **owner == at).count();
        let part = |at: usize| (count(at) * 9 + rest.len() / 2) / rest.len();
        assert_eq!([part(0), part(1), part(2), part(3)], [4, 2, 2, 1], "from block {start} on");
    }
}

#[test]
fn memory_limits_a_share_and_what_does_not_fit_is_refused() {
    let machines = [machine(9.0, 30 << 20, None), machine(1.0, 1 << 30, None)];
    let found = plan(2000, Some(64), &machines).unwrap();
    let with = |columns| bytes(2000)(PartSizes { order: 2000, depth: 3, width: 64, columns, threads: 4 });
    assert!(with(found.deal.columns[0]) <= 30 << 20 && found.deal.columns[1] > 0);
    let small = [machine(9.0, 9 << 20, None), machine(1.0, 9 << 20, None)];
    let refused = plan(2000, None, &small).unwrap_err();
    assert_eq!(refused.offers.len(), 2);
    assert!(refused.needed > 18 << 20);
}

#[test]
fn a_loss_of_the_largest_memory_has_to_leave_room_for_all_columns() {
    // Columns take 32 MB in all, and each machine's panels 4 MiB beside them.
    let fits = |memories_mib: &[u64], lost: usize| {
        let machines: Vec<LuMachine> = memories_mib.iter().map(|mib| machine(1.0, mib << 20, None)).collect();
        let all = LuCluster {
            order: 2000,
            extra: 1,
            width: Some(64),
            depth: None,
            element_bytes: 8,
            machines: &machines,
            keeps_all: false,
            coming: None,
            bytes: &bytes(2000),
        };
        assert!(all.plan().is_ok());
        all.fits_without(lost)
    };
    assert!(fits(&[21, 21, 21], 0).is_ok() && fits(&[24, 24, 24], 1).is_ok());
    let refused = fits(&[21, 60, 15], 1).unwrap_err();
    assert_eq!(refused.offers.iter().map(|(_, bytes)| bytes >> 20).collect::<Vec<_>>(), [15, 21]);
    assert!(fits(&[60, 21, 21, 60], 1).is_ok() && fits(&[60, 21, 15, 60], 2).is_err());
    assert!(fits(&[60, 60], 2).is_err());
}

#[test]
fn a_machine_that_would_slow_the_others_is_left_out() {
    let slow_link = [machine(20.0, 1 << 40, Some(125e6)), machine(0.5, 1 << 40, Some(1e6))];
    assert_eq!(plan(4000, None, &slow_link).unwrap().left_out, [1]);
    let all = LuCluster {
        order: 4000,
        extra: 1,
        width: None,
        depth: None,
        element_bytes: 8,
        machines: &slow_link,
        keeps_all: true,
        coming: None,
        bytes: &bytes(4000),
    };
    assert!(all.plan().unwrap().left_out.is_empty());
    let alike = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(1.25e9)));
    assert!(plan(20_000, None, &alike).unwrap().left_out.is_empty());
}

#[test]
fn machines_that_have_to_take_part_get_a_block_however_slow_they_are() {
    let machines = [1e4, 1e-3, 1e4, 1e-3].map(|gflops| machine(gflops, 1 << 40, None));
    let of = |order, keeps_all| {
        let cluster = LuCluster {
            order,
            extra: 1,
            width: Some(50),
            depth: None,
            element_bytes: 8,
            machines: &machines,
            keeps_all,
            coming: None,
            bytes: &bytes(order),
        };
        cluster.plan()
    };
    assert_eq!(of(1000, false).unwrap().left_out, [1, 3]);
    let LuPlan { deal, left_out, .. } = of(1000, true).unwrap();
    assert!(left_out.is_empty() && deal.columns.iter().sum::<usize>() == 1001, "{deal:?}");
    assert_eq!((deal.columns[1], deal.columns[3], deal.owners[0], deal.owners[1]), (50, 50, 1, 3));
    for (at, columns) in deal.columns.iter().enumerate() {
        let blocks = deal.owners.iter().enumerate().filter(|(_, owner)| **owner == at);
        assert_eq!(blocks.map(|(block, _)| if block < 20 { 50 } else { 1 }).sum::<usize>(), *columns);
    }
    // Two blocks and the right-hand side are too few for four machines.
    assert!(of(100, true).is_err());
}

#[test]
fn elements_of_half_the_size_take_half_of_the_links() {
    let machines = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(1e6)));
    let of = |element_bytes| {
        let cluster = LuCluster {
            order: 4000,
            extra: 1,
            width: Some(100),
            depth: None,
            element_bytes,
            machines: &machines,
            keeps_all: true,
            coming: None,
            bytes: &bytes(4000),
        };
        cluster.plan().unwrap().estimate
    };
    let (half, whole) = (of(4), of(8));
    assert!(half.is_bound_by_links && (whole.bound_seconds / half.bound_seconds - 2.0).abs() < 1e-9);
    assert!(half.seconds < 0.6 * whole.seconds, "{half:?} {whole:?}");
}

/// Four machines that offer this memory, whose columns come at a rate, and which keep `depth` panels if that is given.
fn with_coming(bytes_per_s: Option<f64>, depth: Option<usize>, memory_bytes: u64) -> LuPlan {
    let machines = [20.0; 4].map(|gflops| machine(gflops, memory_bytes, Some(1.25e9)));
    let cluster = LuCluster {
        order: 4000,
        extra: 1,
        width: Some(100),
        depth,
        element_bytes: 8,
        machines: &machines,
        keeps_all: true,
        coming: bytes_per_s.map(|bytes_per_s| ComingColumns { bytes_per_s }),
        bytes: &bytes(4000),
    };
    cluster.plan().unwrap()
}

#[test]
fn columns_that_come_slowly_hide_the_first_steps_only() {
    let of = |rate, depth| with_coming(rate, depth, 1 << 40).estimate;
    let (there, way) = (of(None, None), 4000.0 * 4001.0 * 8.0 / 1e7);
    assert_eq!(of(Some(1e18), Some(4)), there);
    let (few, half) = (of(Some(1e7), Some(4)), of(Some(1e7), Some(20)));
    assert!(few.bound_seconds == way && few.is_bound_by_links);
    assert_eq!(there.column_wait_seconds, 0.0);
    let waited = few.seconds - there.seconds - few.column_wait_seconds;
    assert!(few.column_wait_seconds > half.column_wait_seconds && waited.abs() < 1e-9, "{few:?} {half:?}");
    let after = |estimate: ClusterEstimate| (estimate.seconds - way) / there.seconds;
    // 1 - (1 - 4/40)^3 and 1 - (1 - 20/40)^3 of the operations.
    assert!((0.65..0.95).contains(&after(few)) && (0.05..0.4).contains(&after(half)), "{few:?} {half:?}");
}

#[test]
fn more_panels_are_kept_where_that_pays_and_fits() {
    let depth = |rate, memory| with_coming(rate, None, memory).depth;
    // Columns that are there, or come at once, need no more panels.
    assert_eq!((depth(None, 1 << 40), depth(Some(1e12), 1 << 40)), (3, 3));
    assert_eq!(depth(Some(1e8), 1 << 40), 16);
    // Columns take 32 MB at each machine, a panel 3.2 MB.
    assert_eq!((depth(Some(1e8), 67 << 20), depth(Some(1e8), 45 << 20)), (10, 3));
    assert_eq!(with_coming(Some(1e8), Some(5), 1 << 40).depth, 5);
}

#[test]
fn every_width_that_was_compared_is_told() {
    let machines = [20.0; 3].map(|gflops| machine(gflops, 1 << 40, Some(125e6)));
    let found = plan(6000, None, &machines).unwrap();
    assert_eq!(found.tried.iter().map(|(width, _)| *width).collect::<Vec<_>>(), WIDTHS);
    let least = found.tried.iter().map(|(_, seconds)| *seconds).fold(f64::INFINITY, f64::min);
    assert_eq!(least, found.estimate.seconds);
}

#[test]
fn machines_wait_for_panels_where_links_are_slow() {
    let bytes = bytes(6000);
    let waits = |bytes_per_s: f64| {
        let machines = [20.0; 4].map(|gflops| machine(gflops, 1 << 40, Some(bytes_per_s)));
        let cluster = LuCluster {
            order: 6000,
            extra: 1,
            width: Some(64),
            depth: None,
            element_bytes: 8,
            machines: &machines,
            // With slow links one machine alone would be faster.
            keeps_all: true,
            coming: None,
            bytes: &bytes,
        };
        let estimate = cluster.plan().unwrap().estimate;
        estimate.panel_wait_seconds / estimate.seconds
    };
    // At 10 MB/s the 144 MB of the panels take 14 s, and the products 2 s.
    assert!(waits(1e7) > 0.8 && waits(1e10) < 0.4, "{} {}", waits(1e7), waits(1e10));
}

proptest! {
    #[test]
    fn a_plan_covers_all_columns_and_is_never_below_its_bound(
        order in 1..3000usize, width in prop::option::of(1..300usize), speeds in prop::collection::vec(0.1..90.0f64, 1..7),
        rate in prop::option::of(1e6..1e9f64),
    ) {
        let machines: Vec<LuMachine> = speeds.into_iter().map(|gflops| machine(gflops, 1 << 40, rate)).collect();
        let found = plan(order, width, &machines).unwrap();
        prop_assert_eq!(found.deal.columns.iter().sum::<usize>(), order + 1);
        prop_assert_eq!(found.deal.owners.len(), order.div_ceil(found.width) + 1);
        prop_assert!(found.estimate.seconds.is_finite());
        prop_assert!(found.estimate.seconds >= found.estimate.bound_seconds);
        let parts = found.estimate.panel_wait_seconds + found.estimate.back_seconds;
        prop_assert!(parts <= found.estimate.seconds * (1.0 + 1e-9));
    }
}

#[test]
fn the_largest_order_fills_the_memory_also_after_losses() {
    let bytes = |of: PartSizes| 8 * (of.order * of.columns + (of.depth + 1) * of.order * of.width) as u64;
    let cluster = |machines: &[LuMachine], width, most, losses| {
        let cluster = LuCluster {
            order: most,
            extra: 1,
            width,
            depth: None,
            element_bytes: 8,
            machines,
            keeps_all: false,
            coming: None,
            bytes: &bytes,
        };
        cluster.largest(losses)
    };
    let machines =
        [machine(8.0, 1 << 30, Some(1e8)), machine(8.0, 1 << 30, Some(1e8)), machine(8.0, 1 << 28, None)];
    for (width, losses) in [(None, 0), (Some(64), 0), (Some(256), 1), (None, 1), (Some(100), 2)] {
        let found = cluster(&machines, width, 1 << 20, losses).unwrap();
        let memory: u64 = machines[losses.min(2)..].iter().map(|machine| machine.memory_bytes).sum();
        let filled = (8 * found * found) as f64 / memory as f64;
        println!("{width:?} {losses}: {found}, {filled:.2} of the memory");
        // Panels take the rest; the order is a multiple of the width.
        assert!((0.6..1.0).contains(&filled), "{width:?} {losses}: {found}, {filled}");
        assert!(width.is_none_or(|width| found.is_multiple_of(width)));
        let fits = |order| plan(order, width, &machines[losses..]).is_ok();
        assert!(fits(found) && !fits(found + 64 * width.unwrap_or(64)));
    }
    // Narrow panels would let a larger system fit, whose rate is lower.
    let wide = cluster(&machines, None, 1 << 20, 0).unwrap();
    assert!(wide < cluster(&machines, Some(32), 1 << 20, 0).unwrap());
    assert_eq!(cluster(&machines, None, 1000, 0), Some(1000));
    assert_eq!(cluster(&[machine(8.0, 1 << 10, None)], None, 1 << 20, 0), None);
    assert_eq!(cluster(&machines, None, 1 << 20, 3), None);
}
