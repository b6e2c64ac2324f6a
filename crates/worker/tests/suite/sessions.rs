//! Several sessions at one worker, over real links: they do not affect each other, end alone, and return their
//! memory.

use crate::client;
use bramble_link::{ArrivedBody, Body, SharedRegion, clock_ns};
use bramble_matrix::{DType, Digest128, Generator, Rect, Span};
use bramble_wire::message::{
    Bye, Generated, GetHead, Hello, Job, Kind, LogHead, MatrixHeader, MatrixSource, Operation, PartHead,
    PartSource, PlacedHead, Pong, PutHead, PutOutcome, ResidentView, Wants, Welcome, Work, encode_number,
};
use bramble_worker::{SessionLedger, WorkerError};
use client::{Client, JOB, config, hello, matrix, run, times};
use std::sync::Arc;

/// A 2 by 2 product in one session: the records of its jobs, and the goodbye.
async fn told(wants: Wants) -> (Vec<LogHead>, Bye) {
    let (config, ledger) = (config(512), SessionLedger::new());
    let mut client = Client::connect(&config, &ledger).await;
    client.greet(&Hello { wants, ..hello("curious", 1 << 20) }).await.unwrap();
    client.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(2.0)).await;
    let rest = vec![matrix(2, 1, MatrixSource::Data), matrix(3, 0, MatrixSource::Vacant)];
    client.store(rest, vec![JOB], times(5.0)).await;
    let mut logs = Vec::new();
    loop {
        match client.receive().await {
            (Kind::Log, arrived) => logs.push(LogHead::decode(&arrived.head).unwrap()),
            // Only now: a job that ends after the goodbye is not recorded.
            (Kind::Result, _) => client.send(Kind::Bye, Bye::default().encode(), Body::Empty).await,
            (Kind::Bye, arrived) => return (logs, Bye::decode(&arrived.head).unwrap()),
            (Kind::Credit, _) => {}
            (kind, _) => panic!("a message of kind {kind:?}"),
        }
    }
}

#[test]
fn tiles_that_wait_for_the_link_take_no_memory() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = Client::connect(&config, &ledger).await;
        client.greet(&hello("wide", 128 << 20)).await.unwrap();
        let tiles = 100;
        let long = |id, rows, cols, uses, source| MatrixHeader {
            rows,
            cols,
            lines: rows,
            ..matrix(id, uses, source)
        };
        let operands =
            vec![long(1, 512, 2, tiles, MatrixSource::Data), long(2, 2, 256, tiles, MatrixSource::Data)];
        let ones = vec![1f64; 512 * 2 + 2 * 256];
        client.store(operands, vec![], ones.into_iter().flat_map(f64::to_le_bytes).collect()).await;
        let ids = || (10..).take(usize::from(tiles));
        let vacant = ids().map(|id| long(id, 512, 256, 0, MatrixSource::Vacant)).collect();
        client.store(vacant, ids().map(|c| Job { c, ..JOB }).collect(), vec![]).await;
        let (mut results, mut bytes) = (0, 0);
        while results < tiles {
            if let (Kind::Result, ArrivedBody::Landed(landing)) = {
                let (kind, arrived) = client.receive().await;
                (kind, arrived.body)
            } {
                let tile = landing.into_any().downcast::<Vec<u8>>().unwrap();
                assert!(tile.as_chunks().0.iter().all(|b| f64::from_le_bytes(*b) == 2.0));
                (results, bytes) = (results + 1, bytes + tile.len());
            }
        }
        assert_eq!(bytes, 100 << 20);
        client.send(Kind::Bye, Bye::default().encode(), Body::Empty).await;
        let bye = loop {
            if let (Kind::Bye, arrived) = client.receive().await {
                break Bye::decode(&arrived.head).unwrap();
            }
        };
        assert!(bye.held_bytes_max < 66 << 20, "{} bytes", bye.held_bytes_max);
    });
}

#[test]
fn a_primary_that_asks_gets_records_of_jobs_and_processor_time() {
    run(async {
        let before = clock_ns();
        let (logs, bye) = told(Wants { log: true, account: true, task_rates: false }).await;
        let [log] = &logs[..] else { panic!("{logs:?}") };
        let [record] = log.records[..] else { panic!("{log:?}") };
        assert_eq!((record.work, record.returns), (Work::Job(Operation::Multiply), true));
        assert_eq!((record.matrix, record.step, log.dropped), (3, 0, 0));
        assert!(record.start_ns >= before && record.start_ns + record.took_ns <= clock_ns(), "{record:?}");
        let thread = bye.threads[usize::from(record.thread)];
        assert_eq!((thread.jobs, thread.busy_us), (1, record.took_ns / 1000));
        let io = bye.io;
        let sections = [io.sending_us, io.receiving_us, io.encoding_us, io.scheduling_us];
        assert!(io.cpu_us > 0 && sections.iter().sum::<u64>() <= io.cpu_us, "{io:?}");
    });
}

#[test]
fn a_primary_that_does_not_ask_gets_no_records() {
    run(async {
        let (logs, bye) = told(Wants::default()).await;
        assert!(logs.is_empty());
        assert_eq!(bye.io, Default::default());
        assert!(bye.threads.iter().all(|t| t.cpu_us == 0));
    });
}

#[test]
fn an_answer_to_a_ping_has_the_clock() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = Client::connect(&config, &ledger).await;
        client.greet(&hello("curious", 1 << 20)).await.unwrap();
        let before = clock_ns();
        client.send(Kind::Ping, encode_number(9), Body::Empty).await;
        let (kind, arrived) = client.receive().await;
        let pong = Pong::decode(&arrived.head).unwrap();
        assert_eq!((kind, pong.nonce), (Kind::Pong, 9));
        assert!((before..=clock_ns()).contains(&pong.clock_ns));
    });
}

#[test]
fn two_sessions_with_the_same_numbers_and_ids_do_not_affect_each_other() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut first = Client::connect(&config, &ledger).await;
        let mut second = Client::connect(&config, &ledger).await;
        assert_eq!(first.greet(&hello("first", 1 << 20)).await.unwrap().memory_bytes, 1 << 20);
        assert_eq!(second.greet(&hello("second", 2 << 20)).await.unwrap().memory_bytes, 2 << 20);
        // Alternately, message by message: the same ids, different elements.
        first.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(2.0)).await;
        second.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(3.0)).await;
        let rest = || vec![matrix(2, 1, MatrixSource::Data), matrix(3, 0, MatrixSource::Vacant)];
        first.store(rest(), vec![JOB], times(5.0)).await;
        second.store(rest(), vec![JOB], times(7.0)).await;
        let all = 2 * (512 + 32) + 512;
        assert_eq!(first.result().await, (vec![10.0, 0.0, 0.0, 10.0], all));
        assert_eq!(second.result().await, (vec![21.0, 0.0, 0.0, 21.0], all));
    });
}

#[test]
fn a_job_that_names_a_matrix_of_another_session_ends_its_own_session_alone() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut honest = Client::connect(&config, &ledger).await;
        let mut thief = Client::connect(&config, &ledger).await;
        honest.greet(&hello("honest", 1 << 20)).await.unwrap();
        thief.greet(&hello("thief", 1 << 20)).await.unwrap();
        honest.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(2.0)).await;
        let rest = || vec![matrix(2, 1, MatrixSource::Data), matrix(3, 0, MatrixSource::Vacant)];
        thief.store(rest(), vec![JOB], times(1.0)).await;
        let error = thief.error().await;
        assert!(error.contains("not stored here"), "{error}");
        assert!(matches!(thief.session.await.unwrap(), Err(WorkerError::Protocol(_))));
        honest.store(rest(), vec![JOB], times(5.0)).await;
        assert_eq!(honest.result().await.0, [10.0, 0.0, 0.0, 10.0]);
    });
}

#[test]
fn a_refusal_names_the_holder_of_the_memory_and_memory_is_free_after_its_session() {
    run(async {
        let (config, ledger) = (config(64), SessionLedger::new());
        let mut first = Client::connect(&config, &ledger).await;
        let granted = first.greet(&hello("laptop", u64::MAX)).await.unwrap().memory_bytes;
        assert!(granted > 1 << 20 && granted <= 32 << 20, "{granted}");
        let peer = "127.0.0.1:";
        let mut second = Client::connect(&config, &ledger).await;
        let error = second.greet(&hello("desk", 2 << 20)).await.unwrap_err();
        assert!(error.contains(&format!("its 64 MiB are in use by laptop ({peer}")), "{error}");
        assert!(matches!(second.session.await.unwrap(), Err(WorkerError::Here(_))));
        drop(first.link);
        assert!(first.session.await.unwrap().is_err());
        let mut third = Client::connect(&config, &ledger).await;
        assert_eq!(third.greet(&hello("desk", 2 << 20)).await.unwrap().memory_bytes, 2 << 20);
    });
}

#[test]
fn a_generated_matrix_far_outside_is_made_or_refused_and_nothing_overflows() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        for (row, fits) in [(u64::MAX - 2, true), (u64::MAX - 1, false)] {
            let mut client = Client::connect(&config, &ledger).await;
            client.greet(&hello("far", 1 << 20)).await.unwrap();
            let generator = Generator::random(u64::MAX).transposed().to_bytes();
            let how = Generated { generator, row, col: u64::MAX - 2 }.encode();
            client.store(vec![matrix(1, 1, MatrixSource::Generated)], vec![], how).await;
            if !fits {
                assert!(client.error().await.contains("outside its generator"));
                continue;
            }
            let rest = vec![matrix(2, 1, MatrixSource::Data), matrix(3, 0, MatrixSource::Vacant)];
            client.store(rest, vec![JOB], times(1.0)).await;
            assert!(client.result().await.0.iter().all(|x| (-1.0..1.0).contains(x)));
        }
    });
}

#[test]
fn a_step_without_a_next_ends_the_session_and_not_the_worker() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = Client::connect(&config, &ledger).await;
        client.greet(&hello("last", 1 << 20)).await.unwrap();
        let both = vec![
            matrix(1, 1, MatrixSource::Data),
            matrix(2, 1, MatrixSource::Data),
            matrix(3, 0, MatrixSource::Vacant),
        ];
        let body = [times(1.0), times(1.0)].concat();
        client.store(both, vec![Job { step: u32::MAX, ..JOB }], body).await;
        assert!(client.error().await.contains("the greatest possible number"));
        assert!(matches!(client.session.await.unwrap(), Err(WorkerError::Protocol(_))));
    });
}

#[test]
fn one_session_uses_the_measurements_of_another() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let large = Hello { flops: 1e12, ..hello("first", 1 << 20) };
        let mut first = Client::connect(&config, &ledger).await;
        let measured = first.greet(&large).await.unwrap();
        // While the first session lasts, and for a product that is too small for a measurement.
        let small = Hello { flops: 16.0, ..hello("second", 1 << 20) };
        for (number, hello) in [large, small].into_iter().enumerate() {
            let mut next = Client::connect(&config, &ledger).await;
            let welcome = next.greet(&hello).await.unwrap();
            let speeds = |w: &Welcome| (w.gflops, w.peak_gflops);
            assert_eq!(speeds(&welcome), speeds(&measured), "{number}");
        }
    });
}

/// Elements 1 to 12 of a 3 by 4 part are placed; a session multiplies by views of it, fetches it and frees it.
#[test]
fn a_placed_matrix_is_multiplied_where_it_lies_fetched_and_freed() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = Client::connect(&config, &ledger).await;
        client.greet(&hello("one", 1 << 20)).await.unwrap();
        let elements: Vec<u8> = (1..=12).flat_map(|x| f64::from(x).to_le_bytes()).collect();
        let part = Rect::new(Span::new(256, 259), Span::new(512, 516));
        let (dtype, source) = (DType::F64, PartSource::Data);
        // Two frames, of which the first ends within a row.
        for (first, body) in [(0, &elements[..40]), (5, &elements[40..])] {
            let put = PutHead { array: 7, part, first, dtype, source };
            let body = Body::Shared(SharedRegion::whole(Arc::new(body.to_vec())));
            client.send(Kind::Put, put.encode(), body).await;
        }
        let (kind, arrived) = client.receive().await;
        assert_eq!(kind, Kind::Placed);
        let digest = Digest128::of(part.shape(), elements.chunks(32));
        let outcome = PutOutcome::Held { bytes: 512, digest };
        assert_eq!(PlacedHead::decode(&arrived.head).unwrap(), PlacedHead { array: 7, outcome });
        // Rows 1 and 2, columns 2 and 3: 7 8, 11 12; and its transpose.
        let rect = Rect::new(Span::new(257, 259), Span::new(514, 516));
        for (round, transposed, want) in
            [(0, false, [7.0, 8.0, 11.0, 12.0]), (1, true, [7.0, 11.0, 8.0, 12.0])]
        {
            let [a, b, c] = [1, 2, 3].map(|id| id + 10 * round);
            let view = ResidentView::of(7, transposed, if transposed { rect.transposed() } else { rect });
            let placed = MatrixHeader { layout: view.layout(), ..matrix(b, 1, MatrixSource::Resident) };
            client.store(vec![matrix(a, 1, MatrixSource::Data)], vec![], times(2.0)).await;
            let tile = matrix(c, 0, MatrixSource::Vacant);
            client.store(vec![tile, placed], vec![Job { a, b, c, ..JOB }], view.encode()).await;
            assert_eq!(client.result().await.0, want.map(|x| 2.0 * x));
        }
        client.send(Kind::Get, GetHead { array: 7, rect }.encode(), Body::Empty).await;
        let (kind, arrived) = client.receive().await;
        assert_eq!(
            (kind, PartHead::decode(&arrived.head)),
            (Kind::Part, Ok(PartHead { array: 7, first: 0 }))
        );
        let ArrivedBody::Landed(landing) = arrived.body else { panic!("no elements") };
        let bytes = landing.into_any().downcast::<Vec<u8>>().unwrap();
        assert_eq!(
            *bytes,
            [7.0, 8.0, 11.0, 12.0].into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>()
        );
        client.send(Kind::Free, encode_number(7), Body::Empty).await;
        client.send(Kind::Get, GetHead { array: 7, rect }.encode(), Body::Empty).await;
        assert!(client.error().await.contains("no complete part of array 7"));
    });
}

#[test]
fn a_generated_part_is_placed_by_a_compute_thread() {
    run(async {
        let (config, ledger) = (config(512), SessionLedger::new());
        let mut client = Client::connect(&config, &ledger).await;
        client.greet(&hello("one", 1 << 20)).await.unwrap();
        let part = Rect::new(Span::new(0, 2), Span::new(0, 2));
        let put = PutHead { array: 1, part, first: 0, dtype: DType::F64, source: PartSource::Generated };
        let description = Generated { generator: Generator::identity().to_bytes(), row: 0, col: 0 }.encode();
        client.send(Kind::Put, put.encode(), Body::Shared(SharedRegion::whole(Arc::new(description)))).await;
        let (kind, arrived) = client.receive().await;
        let digest = Digest128::of(part.shape(), times(1.0).chunks(16));
        let placed = PlacedHead { array: 1, outcome: PutOutcome::Held { bytes: 512, digest } };
        assert_eq!((kind, PlacedHead::decode(&arrived.head)), (Kind::Placed, Ok(placed)));
    });
}
