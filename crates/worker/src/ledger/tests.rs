//! Tests of the ledger: grants, holders in refusals, parts of placed matrices.

use super::*;
use bramble_matrix::number::to_u64;
use std::sync::atomic::{AtomicUsize, Ordering};

const MIB: u64 = 1 << 20;

fn who(name: &str) -> SessionOwner {
    SessionOwner { name: name.to_owned(), peer: "10.0.0.5:41234".to_owned() }
}

fn wish(wanted_bytes: u64) -> MemoryRequest {
    MemoryRequest { wanted_bytes, scratch_bytes: 0, capacity_bytes: 512 * MIB }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn each_session_gets_its_request_or_the_rest_and_returns_it() {
    let ledger = SessionLedger::new();
    let first = ledger.grant(&who("a"), wish(500 * MIB)).unwrap();
    let second = ledger.grant(&who("b"), wish(500 * MIB)).unwrap();
    assert_eq!((first.bytes(), second.bytes()), (500 * MIB, 12 * MIB));
    assert!(ledger.grant(&who("c"), wish(500 * MIB)).is_none());
    assert!(!ledger.is_quiet());
    drop(first);
    assert!(ledger.is_quiet());
    assert_eq!(ledger.grant(&who("c"), wish(100 * MIB)).unwrap().bytes(), 100 * MIB);
    drop(second);
    assert!(ledger.state().holders.is_empty());
}

#[test]
fn parts_of_placed_matrices_count_beside_products_and_a_refusal_names_the_holders() {
    let ledger = SessionLedger::new();
    let (a, b) = (ledger.hold_account(&who("a"), 512 * MIB), ledger.hold_account(&who("b"), 512 * MIB));
    let first = a.take(300 * MIB).unwrap();
    let second = a.take(100 * MIB).unwrap();
    assert_eq!(
        (first.bytes(), ledger.grant(&who("c"), wish(500 * MIB)).unwrap().bytes()),
        (300 * MIB, 112 * MIB)
    );
    // Products keep 64 MiB.
    let why = b.take(49 * MIB).unwrap_err();
    let want = "a part of 49 MiB does not fit: 48 MiB are left, the rest is in use by a (10.0.0.5:41234, 400 MiB of \
                placed matrices for ";
    assert!(why.starts_with(want), "{why}");
    let third = b.take(48 * MIB).unwrap();
    drop(first);
    assert!(b.take(300 * MIB).is_ok());
    let product = ledger.grant(&who("c"), wish(364 * MIB)).unwrap();
    let why = b.take(MIB).unwrap_err();
    assert!(
        why.contains("c (10.0.0.5:41234, 364 MiB for") && why.contains("a (10.0.0.5:41234, 100 MiB of"),
        "{why}"
    );
    let why = ledger.refusal(512 * MIB);
    assert!(why.contains("c (10.0.0.5:41234, 364 MiB for") && why.contains("and 2 others"), "{why}");
    drop((product, second, third));
    assert!(ledger.state().holds.is_empty());
}

#[test]
fn scratch_memory_of_kernels_counts() {
    let ledger = SessionLedger::new();
    let wish = MemoryRequest { scratch_bytes: 200 * MIB, ..wish(100 * MIB) };
    let _first = ledger.grant(&who("a"), wish).unwrap();
    assert_eq!(ledger.grant(&who("b"), wish).unwrap().bytes(), 12 * MIB);
}

#[test]
fn small_grants_go_only_to_small_requests() {
    let ledger = SessionLedger::new();
    let _most = ledger.grant(&who("a"), wish(512 * MIB - 4096)).unwrap();
    assert!(ledger.grant(&who("b"), wish(2 * MIB)).is_none());
    assert_eq!(ledger.grant(&who("b"), wish(4000)).unwrap().bytes(), 4000);
}

#[test]
fn a_connection_between_products_counts_as_a_session_with_the_scratch_memory_of_its_threads() {
    let ledger = SessionLedger::new();
    let wish = MemoryRequest { scratch_bytes: 200 * MIB, ..wish(100 * MIB) };
    let grant = ledger.grant(&who("a"), wish).unwrap();
    let place = grant.idle_place();
    drop(grant);
    assert_eq!((place.bytes(), place.scratch_bytes(), ledger.is_quiet()), (0, 200 * MIB, true));
    assert_eq!(ledger.grant(&who("b"), wish).unwrap().bytes(), 100 * MIB);
    place.drop_scratch();
    let all = MemoryRequest { wanted_bytes: u64::MAX, scratch_bytes: 0, ..wish };
    let others: Vec<Grant> =
        (2..SESSIONS_MAX).map(|_| ledger.grant(&who("c"), self::wish(1)).unwrap()).collect();
    assert_eq!(ledger.grant(&who("b"), all).unwrap().bytes(), 512 * MIB - to_u64(others.len()));
    let _last = ledger.grant(&who("b"), self::wish(1)).unwrap();
    assert!(ledger.grant(&who("d"), self::wish(1)).is_none());
    drop(place);
    drop(others);
    assert!(ledger.state().holders.len() == 1);
}

#[test]
fn a_panic_returns_the_grant_too() {
    let ledger = SessionLedger::new();
    let other = ledger.clone();
    let panicked = std::thread::spawn(move || {
        let _grant = other.grant(&who("a"), wish(MIB));
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(ledger.state().holders.is_empty());
}

#[test]
fn the_number_of_sessions_is_limited_and_a_refusal_names_a_holder() {
    let ledger = SessionLedger::new();
    let grants: Vec<Grant> = (0..SESSIONS_MAX).map(|_| ledger.grant(&who("a"), wish(100)).unwrap()).collect();
    assert!(ledger.grant(&who("b"), wish(100)).is_none());
    assert_eq!(
        ledger.refusal(512 * MIB),
        "its 16 sessions are taken by a (10.0.0.5:41234, 1 MiB for 0 s) and 15 others: try again later"
    );
    drop(grants);
    assert!(ledger.grant(&who("b"), wish(100)).is_some());
}

#[test]
fn a_refusal_names_the_largest_holder_and_counts_the_others() {
    let ledger = SessionLedger::new();
    let refused = |ledger: &SessionLedger| {
        let patience = Duration::from_millis(1);
        let (who, wish) = (who("late"), wish(600 * MIB));
        wait(ledger.grant_within(patience, &who, wish, 512 * MIB)).unwrap_err().to_string()
    };
    let small = ledger.grant(&who("phone"), wish(32 * MIB)).unwrap();
    let _large = ledger.grant(&who("laptop"), wish(480 * MIB)).unwrap();
    assert_eq!(
        refused(&ledger),
        "its 512 MiB are in use by laptop (10.0.0.5:41234, 480 MiB for 0 s) and one other: try again later, \
         or start it with more --memory"
    );
    drop(small);
    let _long = ledger.grant(&who(&"é".repeat(120)), wish(32 * MIB)).unwrap();
    assert!(refused(&ledger).len() <= 255);
    let none = MemoryRequest { capacity_bytes: 0, ..wish(1) };
    let alone =
        wait(SessionLedger::new().grant_within(Duration::MAX, &who("a"), none, 0)).unwrap_err().to_string();
    assert!(alone.contains("leaves nothing for matrices"), "{alone}");
}

#[test]
fn memory_that_is_returned_within_the_patience_is_granted() {
    let ledger = SessionLedger::new();
    let first = ledger.grant(&who("a"), wish(512 * MIB)).unwrap();
    let clearing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(first);
    });
    let patience = Duration::from_secs(30);
    assert!(wait(ledger.grant_within(patience, &who("b"), wish(MIB), 512 * MIB)).is_ok());
    clearing.join().unwrap();
}

#[test]
fn measurements_take_turns_and_a_panic_in_one_is_an_error() {
    let (ledger, running) = (SessionLedger::new(), Arc::new(AtomicUsize::new(0)));
    let measure = |running: Arc<AtomicUsize>| {
        ledger.measured(move || {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
            std::thread::sleep(Duration::from_millis(10));
            running.fetch_sub(1, Ordering::SeqCst);
        })
    };
    wait(async {
        let (a, b) = tokio::join!(measure(running.clone()), measure(running.clone()));
        assert!(a.is_ok() && b.is_ok());
        assert!(ledger.measured(|| assert_eq!(1, 2, "on purpose")).await.is_err());
        assert!(measure(running.clone()).await.is_ok());
    });
}

#[test]
fn parts_that_were_idle_for_longer_than_the_lease_are_given_up_for_others_only() {
    let asked = |activity: &HoldActivity| {
        wait(async { tokio::time::timeout(Duration::from_millis(1), activity.asked()).await.is_ok() })
    };
    for (lease, is_over) in [(Duration::ZERO, true), (Duration::from_secs(600), false)] {
        let ledger = SessionLedger::with_idle_lease(lease);
        let (a, b) = (ledger.hold_account(&who("a"), 512 * MIB), ledger.hold_account(&who("b"), 512 * MIB));
        let _part = a.take(400 * MIB).unwrap();
        let needs = |bytes| {
            let third = who("c");
            let grant = ledger.grant_within(Duration::from_millis(1), &third, wish(bytes), 512 * MIB);
            wait(grant).map(|grant| grant.bytes())
        };
        // At work.
        a.activity().set_idle(false);
        assert_eq!(needs(500 * MIB).unwrap(), 112 * MIB);
        assert!(!asked(a.activity()));
        a.activity().set_idle(true);
        // There is memory for all.
        assert_eq!(needs(100 * MIB).unwrap(), 100 * MIB);
        assert!(!asked(a.activity()));
        // Its own request.
        assert!(a.take(200 * MIB).is_err());
        assert!(!asked(a.activity()));
        // Another product, another part.
        assert!(needs(500 * MIB).is_ok());
        assert_eq!(asked(a.activity()), is_over);
        let why = b.take(200 * MIB).unwrap_err();
        assert_eq!(
            (asked(a.activity()), why.contains("are being freed: try again")),
            (is_over, is_over),
            "{why}"
        );
    }
}
