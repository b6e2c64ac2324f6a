//! Several products over one connection, one after another, and the time between them.

use crate::client;
use bramble_link::Body;
use bramble_matrix::DType;
use bramble_wire::limits::PRIMARY_SILENCE_MAX;
use bramble_wire::message::{
    Bye, Hello, Kind, MatrixSource, Pong, StoreHead, Wants, decode_error, encode_number,
};
use bramble_worker::{SessionLedger, WorkerError};
use client::{Client, JOB, NUMBER, config, hello, matrix, run, run_within, times};
use std::time::Duration;

/// The next product's hello.
fn next(number: u32, memory_bytes: u64) -> Hello {
    Hello { session: number, ..hello("patient", memory_bytes) }
}

impl Client {
    /// Opens a session, computes twice five, and says goodbye: the worker's goodbye.
    async fn product(&mut self, hello: &Hello) -> Bye {
        self.greet(hello).await.unwrap();
        self.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(2.0)).await;
        let rest = vec![matrix(2, 1, MatrixSource::Data), matrix(3, 0, MatrixSource::Vacant)];
        self.store(rest, vec![JOB], times(5.0)).await;
        assert_eq!(self.result().await.0, [10.0, 0.0, 0.0, 10.0]);
        self.goodbye().await
    }

    /// Says goodbye; both ends are idle afterwards.
    async fn goodbye(&mut self) -> Bye {
        self.send(Kind::Bye, Bye::default().encode(), Body::Empty).await;
        let bye = loop {
            if let (Kind::Bye, arrived) = self.receive().await {
                break Bye::decode(&arrived.head).unwrap();
            }
        };
        self.link.sender.set_session(0);
        self.link.receiver.set_session(0);
        bye
    }

    /// Sends a message that breaks a rule; the worker's reason and its own error.
    async fn breaks(mut self, kind: Kind, head: Vec<u8>) -> (String, WorkerError) {
        self.send(kind, head, Body::Empty).await;
        let error = self.error().await;
        (error, self.session.await.unwrap().unwrap_err())
    }
}

async fn connected() -> Client {
    Client::connect(&config(512), &SessionLedger::new()).await
}

#[test]
fn products_follow_each_other_over_one_connection_each_with_its_own_account() {
    run(async {
        let mut client = connected().await;
        for number in 1..=5 {
            let bye = client.product(&next(number, 1 << 20)).await;
            assert_eq!(bye.threads.iter().map(|t| t.jobs).sum::<u64>(), 1);
        }
        // Another number of threads, and another type of elements.
        let one = Hello { threads_max: 1, ..next(9, 1 << 20) };
        assert_eq!(client.product(&one).await.threads.len(), 1);
        let other = Hello {
            dtype: DType::I64,
            wants: Wants { log: true, account: true, task_rates: false },
            ..next(10, 1 << 20)
        };
        client.greet(&other).await.unwrap();
        let bye = client.goodbye().await;
        assert!(bye.threads.len() == 2 && bye.threads.iter().all(|t| t.jobs == 0));
        drop(client.link);
        client.session.await.unwrap().unwrap();
    });
}

#[test]
fn the_memory_of_a_product_is_free_before_the_next_one() {
    run(async {
        let (config, ledger) = (config(64), SessionLedger::new());
        let mut first = Client::connect(&config, &ledger).await;
        let granted = first.greet(&next(1, u64::MAX)).await.unwrap().memory_bytes;
        first.goodbye().await;
        let mut second = Client::connect(&config, &ledger).await;
        // Scratch memory stays with the first connection's threads for a second; the second primary waits for it.
        let rest = second.greet(&hello("other", u64::MAX)).await.unwrap().memory_bytes;
        assert_eq!(rest, granted);
        second.goodbye().await;
        drop(second.link);
        second.session.await.unwrap().unwrap();
        assert_eq!(first.greet(&next(2, u64::MAX)).await.unwrap().memory_bytes, granted);
    });
}

#[test]
fn work_that_is_left_at_the_goodbye_is_dropped_and_the_next_product_is_right() {
    run(async {
        let mut client = connected().await;
        client.greet(&next(1, 1 << 20)).await.unwrap();
        // The other operand never comes.
        client.store(vec![matrix(1, 1, MatrixSource::Data)], vec![], times(3.0)).await;
        client.goodbye().await;
        let bye = client.product(&next(2, 1 << 20)).await;
        assert_eq!(bye.threads.iter().map(|t| t.jobs).sum::<u64>(), 1);
    });
}

#[test]
fn pings_between_products_are_answered_and_the_end_of_the_link_is_orderly() {
    run(async {
        let mut client = connected().await;
        client.product(&next(1, 1 << 20)).await;
        for nonce in 0..3 {
            client.send(Kind::Ping, encode_number(nonce), Body::Empty).await;
            let (kind, arrived) = client.receive().await;
            assert_eq!((kind, Pong::decode(&arrived.head).unwrap().nonce), (Kind::Pong, nonce));
        }
        client.product(&next(2, 1 << 20)).await;
        client.link.sender.close().await.unwrap();
        client.session.await.unwrap().unwrap();
    });
}

#[test]
fn messages_of_a_product_have_no_place_between_two() {
    run(async {
        let mut client = connected().await;
        client.product(&next(NUMBER, 1 << 20)).await;
        let store = StoreHead { matrices: vec![matrix(1, 1, MatrixSource::Generated)], jobs: vec![] };
        let (error, own) = client.breaks(Kind::Store, store.encode()).await;
        assert!(error.contains("Store has no place between two products"), "{error}");
        assert!(matches!(own, WorkerError::Protocol(_)));

        // A frame with the number of the product that is over.
        let mut client = connected().await;
        client.product(&next(NUMBER, 1 << 20)).await;
        client.link.sender.set_session(NUMBER);
        let (error, own) = client.breaks(Kind::Ping, encode_number(1)).await;
        assert!(error.contains("a frame of session 12345677 in session 00000000"), "{error}");
        assert!(matches!(own, WorkerError::Link(_)));

        // A second goodbye.
        let mut client = connected().await;
        client.product(&next(NUMBER, 1 << 20)).await;
        let (error, _) = client.breaks(Kind::Bye, Bye::default().encode()).await;
        assert!(error.contains("Bye has no place between two products"), "{error}");
    });
}

#[test]
fn a_hello_is_refused_in_a_product_and_with_a_number_that_was_just_used_or_is_0() {
    run(async {
        let mut client = connected().await;
        client.greet(&next(1, 1 << 20)).await.unwrap();
        let (error, own) = client.breaks(Kind::Hello, next(2, 1 << 20).encode()).await;
        assert!(error.contains("has no place here"), "{error}");
        assert!(matches!(own, WorkerError::Protocol(_)));

        for (number, text) in [(1, "the same number"), (0, "the number 0")] {
            let mut client = connected().await;
            client.product(&next(1, 1 << 20)).await;
            let (error, _) = client.breaks(Kind::Hello, next(number, 1 << 20).encode()).await;
            assert!(error.contains(text), "{error}");
        }
    });
}

#[test]
fn a_product_that_gets_no_memory_ends_its_connection_with_the_reason() {
    run(async {
        let (config, ledger) = (config(64), SessionLedger::new());
        let mut first = Client::connect(&config, &ledger).await;
        first.product(&next(1, 1 << 20)).await;
        let mut second = Client::connect(&config, &ledger).await;
        second.greet(&hello("greedy", u64::MAX)).await.unwrap();
        let error = first.greet(&next(2, 2 << 20)).await.unwrap_err();
        assert!(error.contains("in use by greedy"), "{error}");
        assert!(matches!(first.session.await.unwrap(), Err(WorkerError::Here(_))));
    });
}

#[test]
fn a_primary_that_is_silent_between_products_loses_its_connection() {
    run_within(PRIMARY_SILENCE_MAX * 3, async {
        let mut client = connected().await;
        client.product(&next(1, 1 << 20)).await;
        // Pings count as signs of life.
        let pinged = async {
            for nonce in 0..2 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                client.send(Kind::Ping, encode_number(nonce), Body::Empty).await;
                client.receive().await;
            }
        };
        pinged.await;
        let (kind, arrived) = client.receive().await;
        assert_eq!(kind, Kind::Error);
        let error = decode_error(&arrived.head).unwrap();
        assert!(error.contains("the primary has been silent for"), "{error}");
        assert!(matches!(client.session.await.unwrap(), Err(WorkerError::Here(_))));
    });
}
