//! Well-formed but invalid messages of a member, one test per class.

use crate::client::Client;
use crate::support::{closing_sum, data, elements, generated, hello, how, job, last_job, made, store, tile};
use crate::worker::{BOTH, IDLE_BYTES_MAX, MEMORY_MIB, Trust, Worker};
use bramble_matrix::{DType, Layout};
use bramble_wire::limits::{JOBS_MAX, MATRICES_MAX};
use bramble_wire::message::{Job, Kind, MatrixHeader, Operation, encode_number};

const STORE: u8 = Kind::Store.code();

/// The session has to end with a message that contains one of `whys`.
fn refused(worker: &Worker, whys: &[&str], act: impl Fn(&mut Client)) {
    let mut client = worker.session();
    act(&mut client);
    let words = client.last_words();
    assert!(whys.iter().any(|why| words.contains(why)), "expected one of {whys:?}, got {words:?}");
    worker.says(&words);
}

fn refused_store(worker: &Worker, why: &str, matrices: &[MatrixHeader], body: &[u8]) {
    refused(worker, &[why], |c| c.send(STORE, &store(matrices, &[]), body));
}

#[test]
fn unchecked_enum() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let mut bytes = hello().encode();
        let version = usize::from(bytes[6]);
        for code in [4, 200] {
            bytes[7 + version + 4] = code;
            let mut client = Client::connect(trust, worker.address);
            client.send(Kind::Hello.code(), &bytes, &[]);
            assert!(client.last_words().contains("an element type that is unknown"));
        }
        let head = store(&[data(1, 2, 2, 1)], &[]);
        for source in 6..32 {
            let mut head = head.clone();
            head[4 + 22] = 1 | source << 3;
            refused(&worker, &["a matrix of unknown kind"], |c| c.send(STORE, &head, &elements(4)));
        }
        let mut reserved = head.clone();
        reserved[4 + 23] = 1;
        refused(&worker, &["a matrix of unknown kind"], |c| c.send(STORE, &reserved, &elements(4)));
        let other = MatrixHeader { dtype: DType::I64, ..data(1, 2, 2, 1) };
        refused_store(&worker, "another element type", &[other], &elements(4));
        for (at, value) in [(0, 3), (0, 255), (1, 3), (1, 255), (2, 1), (3, 1)] {
            let mut head = store(&[], &[job(1, 2, 3, 0)]);
            head[4 + at] = value;
            refused(&worker, &["a job of unknown operation"], |c| c.send(STORE, &head, &[]));
        }
        for (at, value) in [(0, 0), (0, 3), (0, 255), (1, 2), (2, 1), (7, 1)] {
            let mut made = how(0, 0);
            made[at] = value;
            let unknown = ["unknown generator", "has no generator description"];
            refused(&worker, &unknown, |c| c.send(STORE, &store(&[generated(1, 2, 2, 1)], &[]), &made));
        }
        worker.is_well();
    }
}

#[test]
fn zero_sizes() {
    let worker = Worker::start(Trust::Keyed);
    refused_store(&worker, "a stored matrix of 0x5", &[tile(1, 0, 5)], &[]);
    refused_store(&worker, "a stored matrix of 5x0", &[tile(1, 5, 0)], &[]);
    refused_store(
        &worker,
        "lines 0+0 of a matrix of 5",
        &[MatrixHeader { lines: 0, ..data(1, 5, 5, 1) }],
        &[],
    );
    let no_uses = MatrixHeader { uses: 0, ..generated(1, 2, 2, 1) };
    refused_store(&worker, "or generated", &[no_uses], &how(0, 0));
    // An empty store is no store.
    let mut client = worker.session();
    client.send(STORE, &store(&[], &[]), &[]);
    client.send(Kind::Bye.code(), &[0; 10], &[]);
    client.receive_kind(Kind::Bye);
    drop(client);
    worker.is_well();
}

#[test]
fn copy_size_from_source_larger_than_the_destination() {
    let worker = Worker::start(Trust::Keyed);
    let lines = |first_line, lines| MatrixHeader { first_line, lines, ..data(1, 8, 4, 1) };
    refused_store(&worker, "lines 0+9 of a matrix of 8", &[lines(0, 9)], &elements(36));
    refused_store(&worker, "lines 7+2 of a matrix of 8", &[lines(7, 2)], &elements(8));
    refused_store(&worker, "lines 4294967295+1", &[lines(u32::MAX, 1)], &elements(4));
    refused_store(&worker, "lines 4294967295+4294967295", &[lines(u32::MAX, u32::MAX)], &elements(4));
    refused_store(&worker, "came with 264", &[lines(0, 8)], &elements(33));
    refused_store(&worker, "came with 248", &[lines(0, 8)], &elements(31));
    refused_store(&worker, "without its bytes", &[lines(0, 8)], &[]);
    refused_store(&worker, "came with 40", &[generated(1, 9, 9, 1)], &elements(5));
    refused_store(&worker, "came with 8", &[tile(1, 1, 1)], &elements(1));
    // Beyond the end of the matrix, in the second part, whose sum with the first exceeds the limit.
    refused(&worker, &["comes twice, or out of order"], |c| {
        c.send(STORE, &store(&[lines(0, 8)], &[]), &elements(32));
        c.send(STORE, &store(&[lines(0, 8)], &[]), &elements(32));
    });
    worker.is_well();
}

#[test]
fn length_to_allocation() {
    let worker = Worker::start(Trust::Keyed);
    let too_much = ["exceeds the grant", "fit no frame", "fits no frame"];
    for (rows, cols) in [(1 << 20, 1 << 20), (1 << 20, 1 << 17), (1 << 13, 1 << 13), (1 << 20, 32)] {
        refused(&worker, &too_much, |c| c.send(STORE, &store(&[tile(1, rows, cols)], &[]), &[]));
        refused(&worker, &too_much, |c| {
            c.send(STORE, &store(&[generated(1, rows, cols, 1)], &[]), &how(0, 0));
        });
    }
    refused_store(&worker, "a stored matrix of", &[tile(1, (1 << 20) + 1, 1)], &[]);
    refused_store(&worker, "a stored matrix of", &[tile(1, u32::MAX, u32::MAX)], &[]);
    assert!(worker.rss_bytes_max() < IDLE_BYTES_MAX, "{} MiB", worker.rss_bytes_max() >> 20);
    worker.is_well();
}

#[test]
fn lines_that_are_longer_than_a_frame() {
    let worker = Worker::start(Trust::Keyed);
    let wide = 1 << 18;
    let mut client = worker.session();
    let matrices = [generated(1, 1, 1, 1), generated(2, 1, wide, 1), tile(3, 1, wide)];
    client.send(STORE, &store(&matrices, &[last_job(1, 2, 3, 0)]), &[how(0, 0), how(0, 0)].concat());
    let words = client.last_words();
    assert!(words.contains("frame"), "{words:?}");
    worker.is_well();
}

#[test]
fn grant_exceeded_by_one_element() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    let element = data(0, 1, 1, 1).bytes();
    let mut left = client.grant_bytes / element;
    assert!(left > 1 << 20, "a grant of {} bytes", client.grant_bytes);
    let mut id = 0;
    while left > 1 << 20 {
        client.send(STORE, &store(&[tile(id, 1 << 10, 1 << 10)], &[]), &[]);
        (id, left) = (id + 1, left - (1 << 20));
    }
    let last = tile(id, u32::try_from(left).unwrap() + 1, 1);
    client.send(STORE, &store(&[last], &[]), &[]);
    assert!(client.last_words().contains("exceeds the grant"));
    worker.says("exceeds the grant");
    worker.is_well();
}

#[test]
fn very_many_tiny_matrices() {
    const STORES: u32 = 4000;
    for tiny in [|id| tile(id, 1, 1), |id| made(id, 1, 1, 1)] {
        let worker = Worker::start(Trust::Keyed);
        let mut client = worker.session();
        for number in 0..STORES {
            let first = number * MATRICES_MAX as u32;
            let matrices: Vec<_> = (first..).take(MATRICES_MAX).map(tiny).collect();
            let bytes = crate::client::frame(STORE, client.session, &store(&matrices, &[]), &[]);
            if client.try_send_raw(&bytes).is_err() {
                break;
            }
        }
        client.last_words();
        worker.says("exceeds the grant");
        let most = worker.rss_bytes_max() >> 20;
        println!("{most} MiB");
        assert!(most < MEMORY_MIB + 32, "{most} MiB for matrices of one element");
        worker.is_well_below(MEMORY_MIB << 20);
    }
}

/// Jobs that wait forever, as many as the uses of their operands pay for: each half of the jobs reads the results of
/// the other half.
#[test]
fn very_many_jobs_that_wait_for_each_other() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    let uses = u16::MAX;
    let grant = client.grant_bytes;
    let charged: u64 = [data(1, 1, 1, uses), made(2, 1, 1, uses), made(3, 1, 1, uses)]
        .iter()
        .map(MatrixHeader::charged_bytes)
        .sum();
    // Each cycle of two jobs has one operand that is present.
    let circles = u32::try_from(grant / charged).unwrap();
    for ids in (0..circles).map(|at| 3 * at) {
        let matrices = [data(ids, 1, 1, uses), made(ids + 1, 1, 1, uses), made(ids + 2, 1, 1, uses)];
        client.send(STORE, &store(&matrices, &[]), &elements(1));
        // All jobs of both read the present operand.
        for step in (0..u32::from(uses) / 2).step_by(600) {
            let jobs: Vec<_> = (step..(step + 600).min(u32::from(uses) / 2))
                .flat_map(|step| [job(ids, ids + 2, ids + 1, step), job(ids, ids + 1, ids + 2, step)])
                .collect();
            client.send(STORE, &store(&[], &jobs), &[]);
        }
    }
    client.send(Kind::Ping.code(), &encode_number(7), &[]);
    assert_eq!(client.receive_kind(Kind::Pong).head[..8], encode_number(7));
    let most = worker.rss_bytes_max() >> 20;
    println!("{most} MiB");
    assert!(most < MEMORY_MIB + 32, "{most} MiB for jobs that wait");
    drop(client);
    worker.is_well_below(MEMORY_MIB << 20);
}

/// As many operands that jobs compute as the grant allows, each waiting for the next two.
#[test]
fn very_many_operands_that_wait_for_the_next() {
    let worker = Worker::start(Trust::Keyed);
    let mut client = worker.session();
    let count = u32::try_from(client.grant_bytes / made(0, 1, 1, 2).charged_bytes()).unwrap();
    let ids: Vec<u32> = (0..count).collect();
    for some in ids.chunks(MATRICES_MAX) {
        let matrices: Vec<_> = some.iter().map(|id| made(*id, 1, 1, 2)).collect();
        client.send(STORE, &store(&matrices, &[]), &[]);
    }
    for some in ids[..ids.len() - 2].chunks(JOBS_MAX) {
        let jobs: Vec<_> = some.iter().map(|id| closing_sum(id + 1, id + 2, *id, 0)).collect();
        client.send(STORE, &store(&[], &jobs), &[]);
    }
    client.send(Kind::Ping.code(), &encode_number(7), &[]);
    assert_eq!(client.receive_kind(Kind::Pong).head[..8], encode_number(7));
    let most = worker.rss_bytes_max() >> 20;
    println!("{most} MiB");
    assert!(most < MEMORY_MIB + 32, "{most} MiB for {count} operands");
    drop(client);
    worker.is_well_below(MEMORY_MIB << 20);
}

#[test]
fn shapes_that_do_not_fit() {
    let worker = Worker::start(Trust::Keyed);
    let fits = [data(1, 3, 5, 1), data(2, 5, 7, 1), tile(3, 3, 7)];
    let wrong = [
        MatrixHeader { rows: 4, lines: 4, ..fits[0] },
        MatrixHeader { cols: 4, ..fits[0] },
        MatrixHeader { rows: 6, lines: 6, ..fits[1] },
        MatrixHeader { cols: 8, ..fits[1] },
        MatrixHeader { rows: 2, lines: 2, ..fits[2] },
        MatrixHeader { cols: 6, ..fits[2] },
        MatrixHeader { rows: 7, cols: 3, lines: 7, ..fits[2] },
    ];
    for (at, changed) in [0, 0, 1, 1, 2, 2, 2].into_iter().zip(wrong) {
        let mut matrices = fits;
        matrices[at] = changed;
        let count: u32 = matrices[..2].iter().map(|m| m.rows * m.cols).sum();
        refused(&worker, &["the shapes or types of its matrices do not fit"], |c| {
            c.send(STORE, &store(&matrices, &[last_job(1, 2, 3, 0)]), &elements(count as usize));
        });
    }
    // Shapes that fit a product do not fit a sum.
    for operation in [Operation::Add, Operation::Subtract] {
        let sum = Job { operation, ..last_job(1, 2, 3, 0) };
        for sides in [(3, 5, 7), (3, 5, 5), (5, 3, 5), (1, 9, 9)] {
            let (m, k, n) = sides;
            let matrices = [data(1, m, k, 1), data(2, k, n, 1), tile(3, m, n)];
            refused(&worker, &["the shapes or types of its matrices do not fit"], |c| {
                c.send(STORE, &store(&matrices, &[sum]), &elements((m * k + k * n) as usize));
            });
        }
    }
    worker.is_well();
}

#[test]
fn column_and_row_layout_confused() {
    let worker = Worker::start(Trust::Keyed);
    let by_columns = |m: MatrixHeader| MatrixHeader { layout: Layout::ColMajor, ..m };
    refused_store(&worker, "or not by rows", &[by_columns(tile(3, 4, 4))], &[]);
    refused_store(&worker, "but not by rows", &[by_columns(made(3, 4, 4, 1))], &[]);
    // The lines of a column-major matrix are columns.
    let narrow = MatrixHeader { lines: 8, ..by_columns(data(1, 8, 3, 1)) };
    refused_store(&worker, "lines 0+8 of a matrix of 3", &[narrow], &elements(24));
    let mut client = worker.session();
    let matrices =
        [MatrixHeader { lines: 3, ..by_columns(data(1, 8, 3, 1)) }, data(2, 3, 2, 1), tile(3, 8, 2)];
    client.send(STORE, &store(&matrices, &[last_job(1, 2, 3, 0)]), &elements(30));
    assert_eq!(client.receive_kind(Kind::Result).body.len(), 8 * 2 * 8);
    drop(client);
    worker.is_well();
}

#[test]
fn generated_near_the_end_of_all_numbers() {
    let worker = Worker::start(Trust::Keyed);
    for (row, col) in [(u64::MAX - 2, 0), (0, u64::MAX - 2), (u64::MAX, u64::MAX)] {
        refused(&worker, &["lies outside its generator"], |c| {
            c.send(STORE, &store(&[generated(1, 3, 3, 1)], &[]), &how(row, col));
        });
    }
    let mut client = worker.session();
    for kind in [1, 2] {
        let mut last = how(u64::MAX - 3, u64::MAX - 3);
        (last[0], last[8]) = (kind, if kind == 1 { 7 } else { 0 });
        let matrices = [generated(1, 3, 3, 1), generated(2, 3, 3, 1), tile(3, 3, 3)];
        client.send(STORE, &store(&matrices, &[last_job(1, 2, 3, 0)]), &[last.clone(), last].concat());
        let body = client.receive_kind(Kind::Result).body;
        let first = f64::from_le_bytes(body[..8].try_into().unwrap());
        assert!(if kind == 1 { first.abs() <= 3.0 } else { first == 1.0 }, "{first}");
    }
    drop(client);
    worker.is_well();
}
