//! Tests of the parts of a job; `tests/contract/` has those of its links.

mod leaving;

use super::*;

#[test]
fn processors_are_shared_by_those_who_may_run_on_them() {
    let rank = |machine: u8, processors: &[u8]| {
        let mut one = vec![machine; MACHINE_BYTES];
        one.extend(processors);
        one
    };
    // Two on one machine, bound apart; three on another that are not bound.
    let ranks = [rank(1, &[1]), rank(1, &[2]), rank(2, &[3]), rank(2, &[3]), rank(2, &[2])];
    let all = ranks.concat();
    let of = |which| portion(&all, ranks[0].len(), which);
    assert_eq!(of(0), Portion { ranks: 2, sharers: 1, place: 0 });
    assert_eq!(of(1), Portion { ranks: 2, sharers: 1, place: 0 });
    assert_eq!(of(3), Portion { ranks: 3, sharers: 3, place: 1 });
    assert_eq!(of(4), Portion { ranks: 3, sharers: 3, place: 2 });
}

#[test]
fn no_two_kinds_of_message_have_one_tag() {
    let tags = [ORDER_TAG, PLAIN_TAG, PLAIN_SIGNAL_TAG, LEAVE_TAG, LINK_TAGS];
    assert!(tags.is_sorted_by(|a, b| a < b), "{tags:?}");
}
