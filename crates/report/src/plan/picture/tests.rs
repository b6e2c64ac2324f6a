//! Checks pictures against the plan, and their size.

use super::*;
use crate::plan::owners::tests::{plan, strategies};
use proptest::prelude::*;

const PLAIN: PictureStyle = PictureStyle { columns: 80, colours: false };

/// The member that computes an element at a depth, found in the blocks.
fn by_blocks(plan: &Plan, row: u64, col: u64, k: u64) -> Option<usize> {
    (0..plan.members.len()).find(|member| {
        plan.members[*member].blocks().any(|block| {
            let region = &plan.regions[block.region];
            let q = region.q();
            let rows = block.cells.rows.iter().flat_map(|i| (0..q).map(move |u| (i, u)));
            let cols = || block.cells.cols.iter().flat_map(|j| (0..q).map(move |v| (j, v)));
            let steps = || block.steps.iter().flat_map(|s| (0..q).map(move |w| (s, w)));
            rows.clone().any(|(i, u)| region.tile(i, 0, u, 0).rows.contains(row))
                && cols().any(|(j, v)| region.tile(0, j, 0, v).cols.contains(col))
                && steps().any(|(s, w)| region.a_panel(0, s, 0, w).cols.contains(k))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_letter_at_a_place_is_the_owner_s(
        sizes in prop::array::uniform3(1u64..90),
        cut in prop::array::uniform2(5u64..24),
        strategy in strategies(),
        speeds in prop::collection::vec(1.0f64..30.0, 0..5),
        columns in 10usize..90,
    ) {
        let Some(plan) = plan(sizes, cut, &strategy, &speeds) else { return Ok(()) };
        let names: Vec<String> = plan.members.iter().map(|m| format!("m{}", m.machine)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        if names.len() == 1 {
            prop_assert_eq!(lines(&plan, &names, PLAIN), vec![format!("all of C: {}", names[0])]);
            return Ok(());
        }
        let owners = Owners::of(&plan);
        let layers = owners.layers();
        let drawn = lines(&plan, &names, PictureStyle { columns, colours: false });
        let shown = layers.len().min(LAYERS_MAX);
        let head = if layers.len() > 1 { 2 } else { 0 };
        let each = (WIDTH_MAX.min(columns - INDENT) - INDENT * (shown - 1)) / shown;
        let (width, height) = extent(sizes[0], sizes[1], each.max(1));
        let apart = if shown > 1 { width.max("part 1".len()) + INDENT } else { 0 };
        for (number, layer) in layers.iter().take(shown).enumerate() {
            let k = owners.k_of(*layer);
            for y in 0..height {
                let line: Vec<char> = drawn[head + y].chars().collect();
                for x in 0..width {
                    let (row, col) = (middle(y, height, sizes[0]), middle(x, width, sizes[1]));
                    let owner = by_blocks(&plan, row, col, k);
                    prop_assert!(owner.is_some(), "no member computes {row} {col} {k}");
                    let wanted = owner.map(|o| letter(&plan, o));
                    prop_assert_eq!(line.get(INDENT + number * apart + x).copied(), wanted, "{:?}", drawn);
                }
            }
        }
    }

    #[test]
    fn pictures_fit_and_have_the_form_of_c(m in 1u64..1_000_000, n in 1u64..1_000_000, most in 1usize..=WIDTH_MAX) {
        let (width, height) = extent(m, n, most);
        prop_assert!((1..=most).contains(&width) && (1..=HEIGHT_MAX).contains(&height));
        if width > 12 && height > 6 {
            let form = width as f64 / (2.0 * height as f64) * m as f64 / n as f64;
            prop_assert!((0.8..1.25).contains(&form), "{width} x {height} for {m} x {n}");
        }
    }

    #[test]
    fn middles_are_inside(count in 1usize..100, elements in 1u64..u64::MAX) {
        prop_assert!(middle(count - 1, count, elements) < elements);
        prop_assert!(middle(0, count, elements) <= elements / 2);
    }
}

#[test]
fn two_machines_are_two_letters() {
    let plan = plan([80, 80, 40], [10, 10], "reuse", &[10.0, 10.0]).unwrap();
    let drawn = lines(&plan, &["w0", "w1"], PLAIN);
    assert_eq!(drawn.len(), HEIGHT_MAX + 1);
    assert_eq!(drawn[0], format!("  {}", "A".repeat(48)));
    assert_eq!(drawn[HEIGHT_MAX - 1], format!("  {}", "B".repeat(48)));
    assert_eq!(drawn[HEIGHT_MAX], "  A w0  B w1");
    let coloured = lines(&plan, &["w0", "w1"], PictureStyle { columns: 80, colours: true });
    assert!(coloured[0].starts_with("  \x1b[30;48;5;117mAAAA") && coloured[0].ends_with("AAA\x1b[0m"));
}

#[test]
fn parts_of_k_stand_side_by_side() {
    let plan = plan([64, 64, 600], [16, 10], "cuboid:1x1x6", &[10.0; 6]).unwrap();
    let names = ["a", "b", "c", "d", "e", "f"];
    let drawn = lines(&plan, &names, PLAIN);
    assert_eq!(drawn[0], "k in 6 parts: 0..100, 100..200, 200..300, 300..400, … and 2 more");
    assert_eq!(drawn[1], "  part 1          part 2          part 3          part 4");
    assert_eq!(drawn[2], "  AAAAAAAAAAAAAA  BBBBBBBBBBBBBB  CCCCCCCCCCCCCC  DDDDDDDDDDDDDD");
    assert!(drawn.iter().all(|l| l.chars().count() <= 66), "{drawn:?}");
}

#[test]
fn more_machines_than_letters_are_said_to_be() {
    let speeds = vec![10.0; 60];
    let plan = plan([600, 600, 40], [10, 10], "reuse", &speeds).unwrap();
    let names: Vec<String> = (0..60).map(|i| format!("w{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let drawn = lines(&plan, &names, PictureStyle { columns: 40, colours: false });
    let end = drawn.last().unwrap();
    assert_eq!(end, "  … and 48 more in this order; after 52 machines the letters repeat");
    assert!(drawn[..drawn.len() - 1].iter().all(|l| l.chars().count() <= 40), "{drawn:?}");
}
