//! Several products, one after another, over one open cluster.

use crate::machines;
use bramble_link::{Link, LocalKind, NoBodies, Reach, Security, tcp_link, thread_pair};
use bramble_matrix::DType;
use bramble_plan::{Relay, TileSize};
use bramble_primary::{
    Cluster, ClusterOptions, MachineLink, MachineLinks, PrimaryError, SessionRequest, multiply,
};
use bramble_worker::limits::{PING_AFTER, PROTOCOL};
use machines::{
    Watch, at_work, config, elements, local_worker, machines, request, run, serve, sessions, worker,
};
use std::cell::Cell;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

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
fn machines_are_greeted_before_the_first_product_and_between_products() {
    run(async {
        let (come, later) = mpsc::channel(4);
        let links = MachineLinks { later: Some(later), ..machines(workers(&["a"]).await) };
        let watch = Watch::default();
        let mut cluster = Cluster::open(links, KEEP, &watch).await.unwrap();
        cluster.greet(&sessions(), &watch).await.unwrap();
        let product = || request([512, 64, 512], DType::I64, "simd", 6);
        let want = elements(&cluster.run(product(), &watch).await.unwrap());
        // Two machines join while no product runs; one of them says nothing, but sees its hello.
        let (here, mut there) = thread_pair("primary", "silent");
        come.send(MachineLink { link: here, threads_max: 0, was_dialled: false }).await.unwrap();
        come.send(worker("b").await.0).await.unwrap();
        let (sessions, mut bodies) = (sessions(), NoBodies);
        let greeted = tokio::select! {
            () = cluster.attend(&sessions) => unreachable!("it never ends"),
            greeted = there.receiver.receive(&mut bodies) => greeted.unwrap(),
        };
        // The hello, with the primary's name.
        assert!(greeted.head.ends_with(b"test"), "{:?}", greeted.head);
        drop(there);
        for _ in 0..2 {
            let finished = cluster.run(product(), &watch).await.unwrap();
            assert_eq!(elements(&finished), want);
            assert_eq!(at_work(&finished), ["a", "b"]);
        }
        assert_eq!(*watch.joined.borrow(), ["b"]);
        let lost: Vec<_> = watch.lost.borrow().iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(lost, ["silent"]);
        cluster.close().await;
    });
}

#[test]
fn a_machine_that_does_not_answer_its_greeting_is_an_error_or_missing() {
    run(async {
        for degraded in [false, true] {
            let mut workers = workers(&["a"]).await;
            let (here, there) = thread_pair("primary", "gone");
            drop(there);
            workers.push(MachineLink {
                link: Link { shares_memory: false, ..here },
                threads_max: 0,
                was_dialled: false,
            });
            let watch = Watch::default();
            let mut cluster = Cluster::open(machines(workers), KEEP, &watch).await.unwrap();
            let greeted = cluster.greet(&SessionRequest { degraded, ..sessions() }, &watch).await;
            if degraded {
                greeted.unwrap();
                let finished =
                    cluster.run(request([64, 64, 64], DType::I64, "simd", 6), &watch).await.unwrap();
                assert_eq!(at_work(&finished), ["a"]);
            } else {
                assert!(matches!(greeted, Err(PrimaryError::Unreachable { name, .. }) if name == "gone"));
            }
            assert!(watch.lost.borrow().is_empty());
            cluster.close().await;
        }
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

/// Copies bytes one way and counts them.
async fn copy(from: OwnedReadHalf, to: OwnedWriteHalf, bytes: Rc<Cell<usize>>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        from.readable().await.unwrap();
        let count = match from.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => return,
        };
        bytes.set(bytes.get() + count);
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            to.writable().await.unwrap();
            match to.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

/// A worker whose bytes from and to the primary are counted.
async fn counted_worker(name: &str) -> (MachineLink, [Rc<Cell<usize>>; 2]) {
    let pair = async || {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (out, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (out.unwrap(), accepted.unwrap().0)
    };
    let ((primary, front), (back, worker)) = (pair().await, pair().await);
    let ((front_in, front_out), (back_in, back_out)) = (front.into_split(), back.into_split());
    let bytes = [Rc::new(Cell::new(0)), Rc::new(Cell::new(0))];
    tokio::task::spawn_local(copy(front_in, back_out, bytes[0].clone()));
    tokio::task::spawn_local(copy(back_in, front_out, bytes[1].clone()));
    let here = Link { peer: name.to_owned(), ..tcp_link(primary).unwrap() };
    (serve(here, tcp_link(worker).unwrap(), 512).0, bytes)
}

#[test]
fn idle_machines_are_pinged_and_serve_the_next_product() {
    run(async {
        let (link, bytes) = counted_worker("a").await;
        let watch = Watch::default();
        let mut cluster = Cluster::open(machines(vec![link]), KEEP, &watch).await.unwrap();
        let product = || request([64, 64, 64], DType::I64, "simd", 6);
        let want = elements(&cluster.run(product(), &watch).await.unwrap());
        let before = bytes.clone().map(|bytes| bytes.get());
        tokio::time::sleep(PING_AFTER * 2 + PING_AFTER / 2).await;
        let idle = [0, 1].map(|way| bytes[way].get() - before[way]);
        // Two pings of 24 bytes, and two pongs of 32.
        assert!((24..=48).contains(&idle[0]) && (32..=64).contains(&idle[1]), "{idle:?}");
        assert_eq!(elements(&cluster.run(product(), &watch).await.unwrap()), want);
        // The link was measured for the first product only, with more than a megabyte.
        let second = bytes[0].get() - before[0] - idle[0];
        assert!(before[0] > 1 << 20 && second < 1 << 18, "{before:?}, then {second}");
        assert!(watch.lost.borrow().is_empty());
        cluster.close().await;
    });
}

/// A worker that listens, and so can relay.
async fn relaying_worker() -> MachineLink {
    let security = Security::open(Reach::Loopback, PROTOCOL, "test");
    let (tell, address) = oneshot::channel();
    let listening = security.clone();
    tokio::task::spawn_local(async move {
        let ready = move |address| tell.send(address).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        bramble_worker::listen(any, listening, config("worker", 512), ready, |_, _| ()).await.unwrap();
    });
    let link = security.reach(address.await.unwrap(), Duration::from_secs(5)).await.unwrap();
    MachineLink { link, threads_max: 0, was_dialled: true }
}

#[test]
fn workers_relay_in_each_product_and_are_introduced_anew() {
    run(async {
        let links = machines(vec![relaying_worker().await, relaying_worker().await, relaying_worker().await]);
        let watch = Watch::default();
        let mut cluster = Cluster::open(links, KEEP, &watch).await.unwrap();
        let product = || {
            let mut request = request([512, 128, 512], DType::I64, "simd", 4);
            request.wish.relay = Relay::On;
            request
        };
        let mut results = Vec::new();
        for _ in 0..3 {
            let finished = cluster.run(product(), &watch).await.unwrap();
            let relay = finished.report.relay.as_ref().unwrap();
            assert!(relay.pairs > 0 && relay.unreachable.is_empty(), "{relay:?}");
            assert!(finished.report.machines.iter().any(|machine| machine.relayed_bytes_in > 0));
            results.push(elements(&finished));
        }
        assert!(results.windows(2).all(|two| two[0] == two[1]));
        assert!(watch.lost.borrow().is_empty(), "{:?}", watch.lost.borrow());
        cluster.close().await;
    });
}
