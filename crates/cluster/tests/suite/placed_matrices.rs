//! Matrices that are placed on the workers of an open cluster: products with them have the bits of products without,
//! and a lost part is put again.

use crate::machines;
use bramble_link::{Link, LocalKind, tcp_connect, tcp_link};
use bramble_matrix::{Buffer, DType, Layout, Matrix, Shape};
use bramble_plan::{LayoutError, Placement, PlanOptions, Preference, ShardAxis, ShardUnits, TileSize};
use bramble_primary::{
    ArrayId, Cluster, ClusterOptions, MachineLink, PlacedOperand, PrimaryError, PutReport, PutRequest,
    Request, multiply,
};
use bramble_worker::{SessionLedger, serve_link};
use machines::{
    Watch, at_work, config, elements, local_worker, machines, operand, request, run, serve, worker,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

const KEEP: ClusterOptions = ClusterOptions { keeps_links: true };
const AXES: [ShardAxis; 2] = [ShardAxis::Rows, ShardAxis::Cols];

async fn workers(names: &[&str]) -> Vec<MachineLink> {
    let mut workers = Vec::new();
    for name in names {
        workers.push(worker(name).await.0);
    }
    workers
}

async fn open(workers: Vec<MachineLink>, watch: &Watch) -> Cluster {
    Cluster::open(machines(workers), KEEP, watch).await.unwrap()
}

fn put_of(matrix: Matrix, placement: Option<Placement>) -> PutRequest {
    let sessions = request([1, 1, 1], DType::F32, "simd", 0).sessions;
    PutRequest { matrix, placement, kernel: "simd".to_owned(), who: Preference::Workers, sessions }
}

async fn put(
    cluster: &mut Cluster,
    watch: &Watch,
    matrix: &Matrix,
    placement: Option<Placement>,
) -> (ArrayId, PutReport) {
    cluster.put(put_of(matrix.clone(), placement), watch).await.unwrap()
}

/// A product whose tiles need not be canonical, with integers so that C is exact all the same.
fn product(shape: [u64; 3]) -> Request {
    let wish = PlanOptions { who: Preference::Workers, ..PlanOptions::AUTO };
    Request { wish, cut: TileSize::default(), ..request(shape, DType::I64, "simd", 7) }
}

fn placed(matrix: &Matrix, array: ArrayId, transposed: bool) -> bramble_primary::ProductOperand {
    let matrix = if transposed { matrix.clone().transposed() } else { matrix.clone() };
    bramble_primary::ProductOperand { matrix, placed: Some(PlacedOperand { array, transposed }) }
}

async fn alone(request: Request) -> Vec<u8> {
    elements(&multiply(request, machines(Vec::new()), &Watch::default()).await.unwrap())
}

/// Both ends of a connection over loopback.
async fn tcp_pair() -> (Link, Link) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (out, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    (tcp_link(out.unwrap()).unwrap(), tcp_link(accepted.unwrap().0).unwrap())
}

fn by_speed(axis: ShardAxis) -> Option<Placement> {
    Some(Placement::Shard(axis, ShardUnits::BySpeed))
}

fn stated(axis: ShardAxis, units: &[u64]) -> Option<Placement> {
    Some(Placement::Shard(axis, ShardUnits::Stated(units.to_vec())))
}

#[test]
fn each_side_may_be_placed_by_either_axis_transposed_or_not() {
    run(async {
        let watch = Watch::default();
        let mut cluster = open(workers(&["a", "b", "c"]).await, &watch).await;
        let sides = [300, 700, 900];
        let want = alone(product(sides)).await;
        for is_left in [true, false] {
            for placement in
                [by_speed(ShardAxis::Rows), by_speed(ShardAxis::Cols), Some(Placement::Replicate)]
            {
                for transposed in [false, true] {
                    let whole = product(sides);
                    let matrix = if is_left { whole.a.matrix } else { whole.b.matrix };
                    let stored = if transposed { matrix.transposed() } else { matrix };
                    let (array, report) = put(&mut cluster, &watch, &stored, placement.clone()).await;
                    let own = placed(&stored, array, transposed);
                    let request = match is_left {
                        true => Request { a: own, ..product(sides) },
                        false => Request { b: own, ..product(sides) },
                    };
                    let finished = cluster.run(request, &watch).await.unwrap();
                    assert!(elements(&finished) == want, "{is_left} {placement:?} {transposed}");
                    // Only the other operand travels; a machine with two shares gets a few of its panels twice.
                    let other = whole_bytes(if is_left { [700, 900] } else { [300, 700] });
                    let own = whole_bytes(if is_left { [300, 700] } else { [700, 900] });
                    let (sent, machines) = (finished.report.bytes_sent, report.parts.len() as u64);
                    assert!(
                        sent < machines * other + own / 2,
                        "{is_left} {placement:?} {transposed}: {sent} bytes, {machines} times {other}"
                    );
                    cluster.free(array, &put_of(stored, None).sessions).await;
                }
            }
        }
        cluster.close().await;
        assert!(watch.lost.borrow().is_empty(), "{:?}", watch.lost.borrow());
    });
}

fn whole_bytes([rows, cols]: [u64; 2]) -> u64 {
    Shape::new(rows, cols).bytes(DType::I64).unwrap()
}

#[test]
fn links_within_a_machine_and_the_threads_of_this_process_hold_parts_too() {
    run(async {
        let sides = [64, 300, 600];
        let want = alone(product(sides)).await;
        let kinds = [LocalKind::Pipe, LocalKind::Shm];
        let local: Vec<MachineLink> = kinds.map(|kind| local_worker(kind, "local").0).into();
        for workers in [local, Vec::new()] {
            let watch = Watch::default();
            let mut cluster = open(workers, &watch).await;
            let b = product(sides).b.matrix;
            let (array, _) = put(&mut cluster, &watch, &b, by_speed(ShardAxis::Cols)).await;
            for _ in 0..2 {
                let request = Request { b: placed(&b, array, false), ..product(sides) };
                assert!(elements(&cluster.run(request, &watch).await.unwrap()) == want);
            }
            cluster.close().await;
        }
    });
}

#[test]
fn two_placed_operands_meet_or_the_smaller_one_is_sent() {
    run(async {
        let watch = Watch::default();
        let mut cluster = open(workers(&["a", "b"]).await, &watch).await;
        let sides = [600, 512, 768];
        let whole = product(sides);
        let want = alone(product(sides)).await;
        for (left, right) in [
            (stated(ShardAxis::Cols, &[1, 1]), stated(ShardAxis::Rows, &[1, 1])),
            (Some(Placement::Replicate), stated(ShardAxis::Cols, &[2, 1])),
            (stated(ShardAxis::Rows, &[1, 1]), stated(ShardAxis::Cols, &[1, 1])),
        ] {
            let (a, _) = put(&mut cluster, &watch, &whole.a.matrix, left.clone()).await;
            let (b, _) = put(&mut cluster, &watch, &whole.b.matrix, right.clone()).await;
            let request = Request {
                a: placed(&whole.a.matrix, a, false),
                b: placed(&whole.b.matrix, b, false),
                ..product(sides)
            };
            let finished = cluster.run(request, &watch).await.unwrap();
            assert!(elements(&finished) == want, "{left:?} {right:?}");
            let sends_one = left == stated(ShardAxis::Rows, &[1, 1]);
            assert_eq!(finished.report.bytes_sent > whole_bytes([600, 512]), sends_one, "{left:?} {right:?}");
        }
        cluster.close().await;
    });
}

#[test]
fn floats_by_columns_have_the_bits_of_a_product_on_one_machine() {
    run(async {
        let watch = Watch::default();
        let mut cluster = open(workers(&["a", "b", "c"]).await, &watch).await;
        for dtype in [DType::F32, DType::F64] {
            let sides = [130, 1000, 2000];
            let wish = PlanOptions { who: Preference::Workers, ..PlanOptions::AUTO };
            let floats = || Request {
                wish,
                cut: TileSize { tile: Some(256), depth: Some(500) },
                ..request(sides, dtype, "simd", 3)
            };
            // By itself a machine may cut k, if it measures itself as slow: the canonical bits are the reference.
            let canonical = PlanOptions { reproducible: true, ..wish };
            let want = alone(Request { wish: canonical, ..floats() }).await;
            let b = floats().b.matrix;
            let (array, _) = put(&mut cluster, &watch, &b, by_speed(ShardAxis::Cols)).await;
            let request = Request { b: placed(&b, array, false), ..floats() };
            assert!(elements(&cluster.run(request, &watch).await.unwrap()) == want, "{dtype}");
        }
        cluster.close().await;
    });
}

#[test]
fn a_generated_matrix_is_described_and_not_sent() {
    run(async {
        let watch = Watch::default();
        let mut cluster = open(workers(&["a", "b"]).await, &watch).await;
        let w = Matrix::open("random:900x1100:i64:5").unwrap();
        let (array, report) = put(&mut cluster, &watch, &w, by_speed(ShardAxis::Rows)).await;
        assert_eq!(report.parts.len(), 2);
        assert!(report.bytes_sent < 1000, "{}", report.bytes_sent);
        let sides = [70, 900, 1100];
        let want = alone(Request { b: w.clone().into(), ..product(sides) }).await;
        let request = Request { b: placed(&w, array, false), ..product(sides) };
        assert!(elements(&cluster.run(request, &watch).await.unwrap()) == want);
        cluster.close().await;
    });
}

#[test]
fn a_lost_part_is_put_again_on_the_machines_that_are_left() {
    run(async {
        for axis in AXES {
            let ((a, _), (b, kill_b), (c, kill_c)) =
                (worker("a").await, worker("b").await, worker("c").await);
            let watch = Watch::default();
            let mut cluster = open(vec![a, b, c], &watch).await;
            let sides = [200, 900, 1100];
            let want = alone(product(sides)).await;
            let w = product(sides).b.matrix;
            let (array, _) = put(&mut cluster, &watch, &w, stated(axis, &[1, 1, 1])).await;
            let with_w = || Request { b: placed(&w, array, false), ..product(sides) };
            assert!(elements(&cluster.run(with_w(), &watch).await.unwrap()) == want);
            // Between products.
            kill_b.abort();
            let lost = cluster.run(with_w(), &watch).await;
            assert!(
                matches!(&lost, Err(PrimaryError::PartLost(why)) if why.contains("512 to ")),
                "{:?}",
                lost.err()
            );
            restore(&mut cluster, &watch).await;
            let finished = cluster.run(with_w(), &watch).await.unwrap();
            assert!(elements(&finished) == want);
            assert_eq!(at_work(&finished), ["a", "c"]);
            // In a product, which goes on: the primary sends the panels of the lost part.
            watch.when_decided(move || kill_c.abort());
            let finished = cluster.run(with_w(), &watch).await.unwrap();
            assert!(elements(&finished) == want);
            let lost = cluster.run(with_w(), &watch).await;
            assert!(matches!(&lost, Err(PrimaryError::PartLost(_))), "{:?}", lost.err());
            restore(&mut cluster, &watch).await;
            let finished = cluster.run(with_w(), &watch).await.unwrap();
            assert!(elements(&finished) == want);
            assert_eq!(at_work(&finished), ["a"]);
            cluster.close().await;
        }
    });
}

async fn restore(cluster: &mut Cluster, watch: &Watch) {
    let Request { sessions, check, .. } = request([1, 1, 1], DType::F32, "simd", 0);
    cluster.restore(("simd", Preference::Workers, true), &sessions, check, watch).await.unwrap();
}

#[test]
fn replicas_survive_a_machine_and_the_last_one_is_put_again() {
    run(async {
        let ((a, kill_a), (b, kill_b), (c, _)) = (worker("a").await, worker("b").await, worker("c").await);
        let watch = Watch::default();
        let mut cluster = open(vec![a, b, c], &watch).await;
        let sides = [400, 60, 500];
        let want = alone(product(sides)).await;
        let w = product(sides).b.matrix;
        let (array, _) = put(&mut cluster, &watch, &w, Some(Placement::Replicate)).await;
        let with_w = || Request { b: placed(&w, array, false), ..product(sides) };
        kill_a.abort();
        kill_b.abort();
        let finished = cluster.run(with_w(), &watch).await.unwrap();
        assert!(elements(&finished) == want);
        assert_eq!(at_work(&finished), ["c"]);
        cluster.close().await;
    });
}

/// A file with a matrix of 600 × 40, and its change in place: the matrix maps this file.
struct ChangingFile(std::path::PathBuf, Vec<u8>);

impl ChangingFile {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bramble-{name}-{}.npy", std::process::id()));
        let header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (600, 40), }";
        let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        file.extend_from_slice(header);
        file.resize(127, b' ');
        file.push(b'\n');
        file.extend((0..600 * 40u64).flat_map(u64::to_le_bytes));
        std::fs::write(&path, &file).unwrap();
        Self(path, file)
    }

    fn matrix(&self) -> Matrix {
        Matrix::open(self.0.to_str().unwrap()).unwrap()
    }

    /// Changes its last element, and not its time, as memory that a program writes has none.
    fn change(&self) {
        let last = self.1.len() - 8;
        let file = std::fs::OpenOptions::new().write(true).open(&self.0).unwrap();
        let before = file.metadata().unwrap().modified().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[self.1[last] ^ 1], last as u64).unwrap();
        file.set_modified(before).unwrap();
    }
}

impl Drop for ChangingFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn a_source_that_has_changed_is_not_put_again() {
    run(async {
        let ((a, _), (b, kill_b)) = (worker("a").await, worker("b").await);
        let watch = Watch::default();
        let mut cluster = open(vec![a, b], &watch).await;
        let file = ChangingFile::new("placed");
        let w = file.matrix();
        let (array, _) = put(&mut cluster, &watch, &w, stated(ShardAxis::Rows, &[1, 1])).await;
        kill_b.abort();
        file.change();
        let sides = [30, 600, 40];
        let request_with_w = Request { b: placed(&w, array, false), ..product(sides) };
        assert!(matches!(cluster.run(request_with_w, &watch).await, Err(PrimaryError::PartLost(_))));
        let Request { sessions, check, .. } = request([1, 1, 1], DType::F32, "simd", 0);
        let refused =
            cluster.restore(("simd", Preference::Workers, true), &sessions, check, &watch).await.unwrap_err();
        let text = refused.to_string();
        assert!(
            text.contains("was changed since it was placed") && text.contains("rows 512 to 599"),
            "{text}"
        );
        cluster.close().await;
    });
}

#[test]
fn a_product_of_a_lost_part_whose_source_has_changed_is_not_kept() {
    run(async {
        let ((a, _), (b, kill_b)) = (worker("a").await, worker("b").await);
        let watch = Watch::default();
        let mut cluster = open(vec![a, b], &watch).await;
        let file = ChangingFile::new("sent");
        let w = file.matrix();
        let (array, _) = put(&mut cluster, &watch, &w, stated(ShardAxis::Rows, &[1, 1])).await;
        file.change();
        watch.when_decided(move || kill_b.abort());
        let request = Request { b: placed(&w, array, false), ..product([30, 600, 40]) };
        let failed = cluster.run(request, &watch).await;
        let is_named =
            |why: &str| why.contains("rows 512 to 599") && why.contains("was changed since it was placed");
        assert!(matches!(&failed, Err(PrimaryError::PartLost(why)) if is_named(why)), "{:?}", failed.err());
        cluster.close().await;
    });
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    run(async {
        let watch = Watch::default();
        let (here, there) = bramble_link::thread_pair("small", "primary");
        let mut cluster = open(vec![serve(here, there, 64).0], &watch).await;
        let large = operand(Shape::new(4096, 2048), DType::I64, 1);
        let refused = cluster.put(put_of(large, by_speed(ShardAxis::Rows)), &watch).await.unwrap_err();
        assert!(matches!(refused, PrimaryError::Layout(LayoutError::NoRoom(_))), "{refused}");
        let wrong = cluster.put(
            put_of(operand(Shape::new(600, 60), DType::I64, 1), stated(ShardAxis::Rows, &[1, 1])),
            &watch,
        );
        assert!(matches!(
            wrong.await,
            Err(PrimaryError::Layout(LayoutError::Units { units: 2, machines: 1 }))
        ));
        // Three quarters of the memory, again and again: each is freed.
        let half = operand(Shape::new(256, 2048), DType::I64, 1);
        for _ in 0..5 {
            let (array, _) = put(&mut cluster, &watch, &half, by_speed(ShardAxis::Rows)).await;
            cluster.free(array, &put_of(half.clone(), None).sessions).await;
        }
        cluster.close().await;
    });
}

#[test]
fn a_placed_matrix_that_is_not_the_operand_or_was_freed_is_refused() {
    run(async {
        let watch = Watch::default();
        let mut cluster = open(workers(&["a"]).await, &watch).await;
        let sides = [60, 300, 400];
        let w = product(sides).b.matrix;
        let (array, _) = put(&mut cluster, &watch, &w, None).await;
        let wider = Matrix::open("random:300x401:i64:1").unwrap();
        let wrong = Request { b: placed(&wider, array, false), ..product([60, 300, 401]) };
        let e = cluster.run(wrong, &watch).await.err().unwrap();
        assert!(e.to_string().contains("is placed as 300x400 and used as 300x401"), "{e}");
        let zeros = Arc::new(Buffer::zeroed(300 * 400 * 4).unwrap());
        let other =
            Matrix::from_shared("w", zeros, 0, Shape::new(300, 400), DType::I32, Layout::RowMajor).unwrap();
        let wrong = Request {
            b: placed(&other, array, false),
            wish: product(sides).wish,
            cut: TileSize::default(),
            ..request(sides, DType::I32, "simd", 7)
        };
        let e = cluster.run(wrong, &watch).await.err().unwrap();
        assert!(e.to_string().contains("placed as i64 and multiplied as i32"), "{e}");
        let sessions = put_of(w.clone(), None).sessions;
        cluster.free(array, &sessions).await;
        cluster.free(array, &sessions).await;
        let freed = cluster.run(Request { b: placed(&w, array, false), ..product(sides) }, &watch).await;
        assert!(freed.err().unwrap().to_string().contains("was freed"));
        cluster.close().await;
    });
}

#[test]
fn parts_of_an_idle_primary_are_given_up_when_another_one_needs_the_memory() {
    run(async {
        let ledger = SessionLedger::with_idle_lease(Duration::ZERO);
        let mut ends = Vec::new();
        for name in ["first", "second"] {
            let (here, there) = tcp_pair().await;
            let ledger = ledger.clone();
            tokio::task::spawn_local(async move {
                let _ = serve_link(there, None, &config("worker", 64), &ledger).await;
            });
            let link = Link { peer: format!("worker of the {name}"), ..here };
            ends.push(MachineLink { link, threads_max: 0, was_dialled: false });
        }
        let (second, first) = (ends.pop().unwrap(), ends.pop().unwrap());
        let watches = [Watch::default(), Watch::default()];
        let mut first = open(vec![first], &watches[0]).await;
        let mut second = open(vec![second], &watches[1]).await;
        let sides = [16, 1024, 2048];
        let w = product(sides).b.matrix;
        let (array, _) = put(&mut first, &watches[0], &w, by_speed(ShardAxis::Rows)).await;
        let want = elements(
            &first.run(Request { b: placed(&w, array, false), ..product(sides) }, &watches[0]).await.unwrap(),
        );
        // The goodbyes of the first one's session have to arrive before it is idle.
        let (mut refusals, began) = (Vec::new(), Instant::now());
        let taken = loop {
            match second.put(put_of(w.clone(), by_speed(ShardAxis::Rows)), &watches[1]).await {
                Ok((taken, _)) => break taken,
                Err(e) => refusals.push(e.to_string()),
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{:?}", refusals.last());
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(!refusals.is_empty(), "both fit into the memory");
        let lost = first.run(Request { b: placed(&w, array, false), ..product(sides) }, &watches[0]).await;
        assert!(matches!(&lost, Err(PrimaryError::PartLost(_))), "{:?}", lost.err());
        let told = watches[0].lost.borrow().clone();
        assert!(told.len() == 1 && told[0].1.contains("another primary needs the memory"), "{told:?}");
        let finished =
            second.run(Request { b: placed(&w, taken, false), ..product(sides) }, &watches[1]).await;
        assert!(elements(&finished.unwrap()) == want);
        first.close().await;
        second.close().await;
    });
}
