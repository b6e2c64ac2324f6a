//! Systems of equations: sizes without sense, columns, rows and panels that nobody expects.

use crate::client::Client;
use crate::worker::{BOTH, Worker};
use bramble_matrix::DType;
use bramble_wire::message::{
    Kind, LuBegin, LuFill, LuOrigin, LuPanelHead, LuPass, LuRing, LuRows, LuStatus, encode_number,
};

/// A system of order 20 in blocks of 8, all of it at one worker.
fn begin() -> LuBegin {
    let ring = LuRing { owners: vec![0; 4], machines: 1, me: 0 };
    LuBegin { order: 20, width: 8, extra: 1, dtype: DType::F64, live_max: 3, origin: LuOrigin::Sent, ring }
}

/// The session has to end with a message that contains `why`.
fn refused(worker: &Worker, why: &str, act: impl Fn(&mut Client)) {
    let mut client = worker.session();
    act(&mut client);
    let words = client.last_words();
    assert!(words.contains(why), "expected {why:?}, got {words:?}");
    worker.says(&words);
}

fn begun(client: &mut Client) {
    client.send(Kind::LuBegin.code(), &begin().encode(), &[]);
}

#[test]
fn messages_of_a_factorisation_out_of_place() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let nothing = "no factorisation has begun";
        refused(&worker, nothing, |c| c.send(Kind::LuGo.code(), &[], &[]));
        refused(&worker, nothing, |c| c.send(Kind::LuCheck.code(), &[], &[]));
        let fill = LuFill { block: 0, first: 0, rows: 1 }.encode();
        refused(&worker, nothing, |c| c.send(Kind::LuFill.code(), &fill, &[0; 64]));
        refused(&worker, nothing, |c| c.send(Kind::LuFetch.code(), &fill, &[]));
        refused(&worker, "a second factorisation", |c| {
            begun(c);
            begun(c);
        });
        let panel = LuPanelHead { step: 0, first: 0, pivots: vec![0; 8] }.encode();
        refused(&worker, "has no body", |c| c.send(Kind::LuPanel.code(), &panel, &[0; 64]));
        refused(&worker, "has no place here", |c| c.send(Kind::LuSpent.code(), &encode_number(1), &[]));
        worker.is_well();
    }
}

#[test]
fn systems_and_columns_that_do_not_fit() {
    let worker = Worker::start(BOTH[0]);
    let large = LuBegin { order: 100_000, width: 100_000 / 4, ..begin() };
    let large = LuBegin { width: 4096, ring: LuRing { owners: vec![0; 26], ..large.ring.clone() }, ..large };
    refused(&worker, "are granted", |c| c.send(Kind::LuBegin.code(), &large.encode(), &[]));
    let mut foreign = begin();
    foreign.ring.owners[1] = 3;
    refused(&worker, "a system of order 20", |c| c.send(Kind::LuBegin.code(), &foreign.encode(), &[]));
    let fills = [
        (LuFill { block: 9, first: 0, rows: 1 }, 64),
        (LuFill { block: 0, first: 20, rows: 1 }, 64),
        (LuFill { block: 0, first: usize::MAX, rows: 1 }, 64),
        (LuFill { block: 0, first: 0, rows: 2 }, 64),
        (LuFill { block: 0, first: 0, rows: 1 }, 63),
    ];
    for (fill, bytes) in fills {
        refused(&worker, "are not expected", |c| {
            begun(c);
            c.send(Kind::LuFill.code(), &fill.encode(), &vec![0; bytes]);
        });
    }
    for rows in [
        LuRows { pass: LuPass::Back, width: 1, blocks: 0..1, total: 21, first: 0, rows: 21 },
        LuRows { pass: LuPass::Back, width: 1, blocks: 0..1, total: 20, first: 1, rows: 2 },
        LuRows { pass: LuPass::Back, width: 1, blocks: 0..1, total: 8, first: 0, rows: 8 },
    ] {
        refused(&worker, "are not expected", |c| {
            begun(c);
            c.send(Kind::LuRows.code(), &rows.encode(), &vec![0; rows.rows * 8]);
        });
    }
    worker.is_well();
}

/// Sends rows of a block; the diagonal is 1, so that every pivot is.
fn fill(client: &mut Client, block: usize, first: usize, rows: usize) {
    let columns = begin().columns(block);
    let element = |row: usize, col: usize| f64::from(u8::from(row == col));
    let line = |row: usize| columns.clone().flat_map(move |col| element(row, col).to_ne_bytes());
    let body: Vec<u8> = (first..first + rows).flat_map(line).collect();
    client.send(Kind::LuFill.code(), &LuFill { block, first, rows }.encode(), &body);
}

#[test]
fn a_panel_is_factored_before_the_last_block_has_come() {
    let worker = Worker::start(BOTH[0]);
    let mut client = worker.session();
    begun(&mut client);
    assert_eq!(LuStatus::decode(&client.receive_kind(Kind::LuStatus).head), Ok(LuStatus::Ready));
    client.send(Kind::LuGo.code(), &[], &[]);
    for block in [0, 1, 2] {
        fill(&mut client, block, 0, 20);
        match LuStatus::decode(&client.receive_kind(Kind::LuStatus).head) {
            Ok(LuStatus::Factored { step, .. }) => assert_eq!(step, block),
            other => panic!("{other:?} instead of panel {block}"),
        }
    }
    fill(&mut client, 3, 0, 20);
    let eliminated = LuStatus::Eliminated { zero: None, overflow: None };
    assert_eq!(LuStatus::decode(&client.receive_kind(Kind::LuStatus).head), Ok(eliminated));
}

#[test]
fn blocks_come_once_and_in_the_order_of_their_rows() {
    let worker = Worker::start(BOTH[0]);
    let why = "of block 0, from";
    refused(&worker, why, |c| {
        begun(c);
        fill(c, 0, 1, 19);
    });
    refused(&worker, why, |c| {
        begun(c);
        fill(c, 0, 0, 3);
        fill(c, 0, 2, 3);
    });
    refused(&worker, why, |c| {
        begun(c);
        c.receive_kind(Kind::LuStatus);
        c.send(Kind::LuGo.code(), &[], &[]);
        fill(c, 0, 0, 20);
        // Its panel may be under way, or done.
        fill(c, 0, 0, 20);
    });
    refused(&worker, why, |c| {
        c.send(Kind::LuBegin.code(), &LuBegin { origin: LuOrigin::Hpl, ..begin() }.encode(), &[]);
        fill(c, 0, 0, 20);
    });
    worker.is_well();
}

#[test]
fn factors_are_returned_when_they_are_there() {
    let worker = Worker::start(BOTH[0]);
    let ask = |c: &mut Client, block: usize, first: usize, rows: usize| {
        c.send(Kind::LuFetch.code(), &LuFill { block, first, rows }.encode(), &[]);
    };
    refused(&worker, "before they are eliminated", |c| {
        begun(c);
        ask(c, 0, 0, 1);
    });
    let eliminated = || {
        let mut client = worker.session();
        client.send(Kind::LuBegin.code(), &LuBegin { origin: LuOrigin::Hpl, ..begin() }.encode(), &[]);
        assert_eq!(LuStatus::decode(&client.receive_kind(Kind::LuStatus).head), Ok(LuStatus::Ready));
        client.send(Kind::LuGo.code(), &[], &[]);
        let mut pivots = Vec::new();
        loop {
            match LuStatus::decode(&client.receive_kind(Kind::LuStatus).head).unwrap() {
                LuStatus::Factored { pivots: of_panel, .. } => pivots.push(of_panel.len()),
                other => break assert!(matches!(other, LuStatus::Eliminated { .. }), "{other:?}"),
            }
        }
        assert_eq!(pivots, [8, 8, 4]);
        client
    };
    let mut client = eliminated();
    for (block, first, rows, width) in [(0, 0, 20, 8), (2, 19, 1, 4), (2, 3, 5, 4), (3, 0, 20, 1)] {
        ask(&mut client, block, first, rows);
        let came = client.receive_kind(Kind::LuFill);
        assert_eq!(LuFill::decode(&came.head), Ok(LuFill { block, first, rows }));
        assert_eq!(came.body.len(), rows * width * 8);
        assert!(came.body.chunks_exact(8).all(|x| f64::from_le_bytes(x.try_into().unwrap()).is_finite()));
    }
    // A session has most of the memory.
    drop(client);
    for (block, first, rows) in [
        (4, 0, 1),
        (u32::MAX as usize, 0, 1),
        (0, 20, 1),
        (0, 0, 0),
        (0, 0, 21),
        (0, usize::MAX, 1),
        (0, 1, usize::MAX),
        (0, 0, 1 << 40),
    ] {
        let mut client = eliminated();
        ask(&mut client, block, first, rows);
        let words = client.last_words();
        assert!(words.contains("are not here"), "{block} {first} {rows}: {words}");
    }
    // A request has no body.
    let mut client = eliminated();
    client.send(Kind::LuFetch.code(), &LuFill { block: 0, first: 0, rows: 1 }.encode(), &[0; 64]);
    assert!(client.last_words().contains("has no body"));
    worker.is_well();
}

#[test]
fn rows_are_asked_for_only_as_fast_as_they_are_read() {
    let worker = Worker::start(BOTH[0]);
    let mut client = worker.session();
    // A block of 4 MiB: far more than the link takes unread in all requests.
    let (order, width) = (1024, 512);
    let ring = LuRing { owners: vec![0; 3], machines: 1, me: 0 };
    let large =
        LuBegin { order, width, extra: 1, dtype: DType::F64, live_max: 3, origin: LuOrigin::Hpl, ring };
    client.send(Kind::LuBegin.code(), &large.encode(), &[]);
    client.receive_kind(Kind::LuStatus);
    client.send(Kind::LuGo.code(), &[], &[]);
    client.receive_kind(Kind::LuRows);
    for _ in 0..1000 {
        let ask = LuFill { block: 0, first: 0, rows: 256 };
        client.send(Kind::LuFetch.code(), &ask.encode(), &[]);
    }
    // The client reads nothing, so the worker's last words may not reach it.
    worker.says("are not read");
    worker.is_well();
}

/// Factors a generated system, and sends rows of the right-hand side through.
fn through(
    worker: &Worker,
    origin: LuOrigin,
    pass: LuPass,
    blocks: std::ops::Range<usize>,
    rows: usize,
) -> Client {
    let mut client = worker.session();
    let generated = LuBegin { origin, ..begin() };
    client.send(Kind::LuBegin.code(), &generated.encode(), &[]);
    assert_eq!(LuStatus::decode(&client.receive_kind(Kind::LuStatus).head), Ok(LuStatus::Ready));
    client.send(Kind::LuGo.code(), &[], &[]);
    let y = client.receive_kind(Kind::LuRows).body;
    assert_eq!(y.len(), 20 * 8);
    let head = LuRows { pass, width: 1, blocks, total: rows, first: 0, rows };
    client.send(Kind::LuRows.code(), &head.encode(), &y[..rows * 8]);
    client
}

#[test]
fn columns_are_multiplied_only_if_they_can_be_generated_again_and_by_all_rows() {
    let worker = Worker::start(BOTH[0]);
    let product = through(&worker, LuOrigin::HplMxp, LuPass::Multiply, 0..3, 20).receive_kind(Kind::LuRows);
    assert_eq!(product.body.len(), 20 * 8);
    assert_eq!(LuRows::decode(&product.head).map(|rows| rows.pass), Ok(LuPass::Multiply));
    for (origin, rows) in [(LuOrigin::HplMxp, 19), (LuOrigin::Hpl, 20)] {
        let words = through(&worker, origin, LuPass::Multiply, 0..3, rows).last_words();
        assert!(words.contains("are not expected"), "{origin:?}: {words}");
    }
    worker.is_well();
}

#[test]
fn an_honest_system_is_solved_and_foreign_blocks_are_not() {
    let worker = Worker::start(BOTH[0]);
    let through = |pass, blocks, rows| through(&worker, LuOrigin::Hpl, pass, blocks, rows);
    let solved = |blocks, rows| through(LuPass::Back, blocks, rows);
    let x = solved(0..3, 20).receive_kind(Kind::LuRows).body;
    assert!(x.chunks_exact(8).all(|x| f64::from_le_bytes(x.try_into().unwrap()).is_finite()));
    let forward = through(LuPass::Forward, 1..3, 12).receive_kind(Kind::LuRows);
    assert_eq!(forward.body.len(), 12 * 8);
    for (pass, blocks, rows) in [
        (LuPass::Back, 0..4, 20),
        (LuPass::Back, 2..3, 10),
        (LuPass::Back, 5..usize::MAX, 20),
        (LuPass::Forward, 1..3, 20),
        (LuPass::Forward, 3..4, 1),
    ] {
        let words = through(pass, blocks.clone(), rows).last_words();
        assert!(words.contains("are not here"), "{blocks:?}: {words}");
    }
    worker.is_well();
}
