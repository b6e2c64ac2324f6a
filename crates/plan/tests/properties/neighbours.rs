//! Pairs of neighbours: every pair that may be, no member with too many, and none that cannot link.

use super::*;
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn every_pair_that_may_be_is_named_once_and_no_member_has_too_many(
        members in 1usize..12,
        most in 1usize..9,
        apart in any::<u64>(),
        strategy in prop_oneof![Just("summa:3x3"), Just("row:5"), Just("reuse")],
    ) {
        let p = problem(600, 600, 300);
        let workers = vec![machine("w", 10.0, 1 << 24, 100.0); members];
        let cut = TileSize { tile: Some(50), depth: Some(50) };
        let plan = planned(&p, cut, &workers, strategy);
        let members = &plan.members;
        let may_link = |one: usize, other: usize| apart >> ((7 * one + 3 * other) % 64) & 1 == 0;
        let mut asked = BTreeSet::new();
        let pairs = neighbour_pairs(members, most, |one, other| {
            assert!(one < other && asked.insert((one, other)), "asked twice for {one} and {other}");
            may_link(one, other)
        });
        let named: BTreeSet<(usize, usize)> = pairs.iter().copied().collect();
        prop_assert_eq!(named.len(), pairs.len());
        let each = neighbours_of_each(&pairs, members.len());
        for second in 0..members.len() {
            prop_assert!(each[second].len() <= most, "{:?}", each);
            for first in 0..second {
                let is_named = named.contains(&(first, second));
                prop_assert_eq!(each[first].contains(&second), is_named);
                prop_assert_eq!(each[second].contains(&first), is_named);
                let is_wanted = members.len() <= most || members[first].may_share(&members[second]);
                let has_room = each[first].len() < most && each[second].len() < most;
                let may_be = is_wanted && may_link(first, second);
                prop_assert!(!is_named || may_be);
                prop_assert!(is_named || !(may_be && has_room), "{first} and {second} are not named");
            }
        }
    }
}
