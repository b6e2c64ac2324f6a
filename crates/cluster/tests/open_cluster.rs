//! Several products, one after another, over one open cluster.

#![allow(clippy::unwrap_used)] // A test may panic.

mod machines;

use bramble_link::LocalKind;
use bramble_matrix::DType;
use bramble_plan::TileSize;
use bramble_primary::{Cluster, ClusterOptions, MachineLink, MachineLinks, PrimaryError, multiply};
use machines::{Watch, at_work, elements, local_worker, machines, request, run, worker};
use std::rc::Rc;
use tokio::sync::mpsc;

const KEEP: ClusterOptions = ClusterOptions { keeps_links: true };

/// Products of several shapes, types and kernels.
const PRODUCTS: [([u64; 3], DType, &str); 6] = [
    ([200, 150, 170], DType::F64, "simd"),
    ([64, 64, 64], DType::I32, "simd"),
    ([300, 40, 90], DType::F32, "blocked:simd"),
    ([1, 500, 1], DType::I64, "simd"),
    ([130, 260, 65], DType::F64, "reference"),
    ([200, 150, 170], DType::F64, "simd"),
];

async fn workers(names: &[&str]) -> Vec<MachineLink> {
    let mut workers = Vec::new();
    for name in names {
        workers.push(worker(name).await.0);
    }
    workers
}

/// C of a product that runs alone, on machines of its own.
async fn alone(product: usize, names: &[&str]) -> Vec<u8> {
    let (shape, dtype, kernel) = PRODUCTS[product];
    let machines = machines(workers(names).await);
    let request = request(shape, dtype, kernel, product as u64);
    elements(&multiply(request, machines, &Watch::default()).await.unwrap())
}

/// Runs all products over these links and compares C with that of a product that runs alone.
async fn all_products(links: MachineLinks, watch: &Watch) {
    let mut cluster = Cluster::open(links, KEEP, watch).await.unwrap();
    for (at, (shape, dtype, kernel)) in PRODUCTS.into_iter().enumerate() {
        let finished = cluster.run(request(shape, dtype, kernel, at as u64), watch).await.unwrap();
        assert_eq!(elements(&finished), alone(at, &["a", "b"]).await, "product {at}");
        assert!(finished.report.changes.lost.is_empty());
    }
    cluster.close().await;
    assert!(watch.lost.borrow().is_empty(), "{:?}", watch.lost.borrow());
}

#[test]
fn products_of_any_type_kernel_and_shape_follow_each_other_with_the_bits_of_single_products() {
    run(async {
        all_products(machines(workers(&["a", "b"]).await), &Watch::default()).await;
    });
}

#[test]
fn links_within_a_machine_and_no_workers_serve_several_products_too() {
    run(async {
        let kinds = [LocalKind::Pipe, LocalKind::Shm];
        let local = kinds.map(|kind| local_worker(kind, "local").0);
        all_products(machines(local.into()), &Watch::default()).await;
        all_products(machines(Vec::new()), &Watch::default()).await;
    });
}

#[test]
fn a_worker_that_dies_between_products_or_in_one_is_named_and_missing_afterwards() {
    run(async {
        let ((a, kill_a), (b, kill_b), (c, _)) = (worker("a").await, worker("b").await, worker("c").await);
        let watch = Watch::default();
        let mut cluster = Cluster::open(machines(vec![a, b, c]), KEEP, &watch).await.unwrap();
        let large = || request([512, 256, 512], DType::I64, "simd", 5);
        let want = elements(&cluster.run(large(), &watch).await.unwrap());
        kill_a.abort();
        let finished = cluster.run(large(), &watch).await.unwrap();
        assert_eq!(elements(&finished), want);
        let names =
            |watch: &Watch| watch.lost.borrow().iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&watch), ["a"]);
        assert_eq!(finished.report.changes.lost[0].name, "a");
        watch.when_decided(move || kill_b.abort());
        let finished = cluster.run(large(), &watch).await.unwrap();
        assert_eq!(elements(&finished), want);
        assert_eq!(names(&watch), ["a", "b"]);
        let finished = cluster.run(large(), &watch).await.unwrap();
        assert_eq!((elements(&finished), at_work(&finished)), (want, vec!["c".to_owned()]));
        assert!(finished.report.changes.lost.is_empty());
        cluster.close().await;
    });
}

#[test]
fn a_worker_that_joins_between_products_takes_part_in_the_next() {
    run(async {
        let (come, later) = mpsc::channel(4);
        let links = MachineLinks { later: Some(later), ..machines(workers(&["a"]).await) };
        let watch = Watch::default();
        let mut cluster = Cluster::open(links, KEEP, &watch).await.unwrap();
        let product = || request([512, 64, 512], DType::I64, "simd", 6);
        let want = elements(&cluster.run(product(), &watch).await.unwrap());
        come.send(worker("b").await.0).await.unwrap();
        for _ in 0..2 {
            let finished = cluster.run(product(), &watch).await.unwrap();
            assert_eq!(elements(&finished), want);
            assert_eq!(at_work(&finished), ["a", "b"]);
        }
        assert_eq!(*watch.joined.borrow(), ["b"]);
        cluster.close().await;
    });
}

#[test]
fn products_that_cannot_run_leave_the_cluster_usable() {
    run(async {
        let watch = Watch::default();
        let links = machines(workers(&["a", "b"]).await);
        let mut cluster = Cluster::open(links, KEEP, &watch).await.unwrap();
        let good = || request([200, 150, 170], DType::F64, "simd", 0);
        let want = elements(&cluster.run(good(), &watch).await.unwrap());
        // Operands that do not fit each other: no machine is asked.
        let mut wrong = good();
        wrong.b = request([200, 151, 170], DType::F64, "simd", 0).b;
        assert!(matches!(cluster.run(wrong, &watch).await, Err(PrimaryError::Operands(_))));
        assert_eq!(elements(&cluster.run(good(), &watch).await.unwrap()), want);
        // A plan that fits no worker's memory: all machines have answered the hello.
        let mut large = good();
        large.sessions.credits = Some(5000);
        large.cut = TileSize { tile: Some(200), depth: Some(150) };
        assert!(matches!(cluster.run(large, &watch).await, Err(PrimaryError::Plan(_))));
        let finished = cluster.run(good(), &watch).await.unwrap();
        assert_eq!((elements(&finished), at_work(&finished).len()), (want, 2));
        assert!(watch.lost.borrow().is_empty(), "{:?}", watch.lost.borrow());
        cluster.close().await;
    });
}

#[test]
fn a_stopped_product_leaves_the_cluster_usable() {
    run(async {
        let watch = Watch::default();
        let links = machines(workers(&["a", "b"]).await);
        let mut cluster = Cluster::open(links, KEEP, &watch).await.unwrap();
        let good = || request([200, 150, 170], DType::F64, "simd", 0);
        let want = elements(&cluster.run(good(), &watch).await.unwrap());
        let long = request([1024, 1024, 1024], DType::I64, "reference", 1);
        let stop = Rc::clone(&long.stop);
        watch.when_decided(move || {
            stop.ask();
        });
        assert!(matches!(cluster.run(long, &watch).await, Err(PrimaryError::Stopped)));
        let finished = cluster.run(good(), &watch).await.unwrap();
        assert_eq!((elements(&finished), at_work(&finished).len()), (want, 2));
        assert!(watch.lost.borrow().is_empty(), "{:?}", watch.lost.borrow());
        cluster.close().await;
    });
}

#[test]
fn a_worker_that_never_answers_fails_the_first_product_only() {
    run(async {
        let ((dead, kill), (a, _)) = (worker("dead").await, worker("a").await);
        kill.abort();
        let watch = Watch::default();
        let mut cluster = Cluster::open(machines(vec![dead, a]), KEEP, &watch).await.unwrap();
        let good = || request([200, 150, 170], DType::F64, "simd", 0);
        match cluster.run(good(), &watch).await {
            Err(PrimaryError::Unreachable { name, .. }) => assert_eq!(name, "dead"),
            other => panic!("{:?}", other.err()),
        }
        assert_eq!(at_work(&cluster.run(good(), &watch).await.unwrap()), ["a"]);
        cluster.close().await;
    });
}
