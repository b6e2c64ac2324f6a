//! Relaying: a key from an introduction opens no session, unexpected joins get no answer, and a primary with invalid
//! orders loses its session.

use crate::client::Client;
use crate::support::{Random, data, store};
use crate::worker::{BOTH, Trust, Worker};
use bramble_link::{Body, ClusterKey, Frame, Link, NoBodies, Proven, Security, tcp_connect};
use bramble_wire::limits::{NEIGHBOURS_MAX, PROTOCOL};
use bramble_wire::message::{
    Forward, Join, Kind, MatrixHeader, MatrixSource, Neighbour, Reached, decode_error, encode_forwards,
};
use bramble_worker::{Config, SessionLedger, serve_link};
use std::time::Duration;

fn security(byte: u8) -> Security {
    Security::sealed(ClusterKey::from_bytes([byte; ClusterKey::BYTES]), PROTOCOL, "0.1.0").unwrap()
}

/// Serves one session as a worker; returns the error that ends it.
async fn served(link: Link) -> String {
    let config = Config {
        threads: 1,
        memory_bytes: 128 << 20,
        kernel: None,
        pin_from: None,
        gives_way: true,
        name: "w".to_owned(),
    };
    let ledger = SessionLedger::new();
    serve_link(link, None, &config, &ledger).await.unwrap_err().to_string()
}

#[test]
fn a_key_that_was_introduced_opens_no_session() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let relay = ClusterKey::from_bytes([9; ClusterKey::BYTES]);
        let (worker, other) = (security(1), security(2));
        let introduced = worker.introduce(relay.clone()).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dialling = async {
            let stream = tcp_connect(address, Duration::from_secs(5)).await.unwrap();
            let mut link = other.dial_introduced(stream, &relay).await.unwrap();
            let hello = Frame::new(Kind::Hello.code(), crate::support::hello().encode(), Body::Empty);
            link.sender.send(hello).await.unwrap();
            let came = link.receiver.receive(&mut NoBodies).await.unwrap();
            assert_eq!(came.kind, Kind::Error.code());
            assert!(link.receiver.receive(&mut NoBodies).await.is_err());
            decode_error(&came.head).unwrap()
        };
        let serving = async {
            let link = worker.accept(listener.accept().await.unwrap().0).await.unwrap();
            assert_eq!(link.proven, Proven::Introduced(introduced.id()));
            served(link).await
        };
        let (told, why) = tokio::join!(dialling, serving);
        for words in [told, why] {
            assert!(words.contains("introduced for relaying opens no session"), "{words}");
        }
    });
}

#[test]
fn an_unexpected_join_is_closed_without_an_answer() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let mut random = Random(3);
        for _ in 0..50 {
            let mut client = Client::connect(trust, worker.address);
            client.send(Kind::Join.code(), &random.bytes(16), &[]);
            assert_eq!(client.last_words(), "");
        }
        // Another session waits for a join; guessing does not find it.
        let mut waiting = worker.session();
        waiting.send(Kind::Neighbour.code(), &neighbour(1).encode(), &[]);
        for ticket in [[0; 16], [0xff; 16], *b"a ticket, 1 off!"] {
            let mut client = Client::connect(trust, worker.address);
            client.send(Kind::Join.code(), &Join { ticket }.encode(), &[]);
            assert_eq!(client.last_words(), "");
        }
        if trust == Trust::Keyed {
            // The ticket is right, but the proof is of the cluster key instead of the pair's key.
            let mut client = Client::connect(trust, worker.address);
            client.send(Kind::Join.code(), &Join { ticket: neighbour(1).ticket }.encode(), &[]);
            assert_eq!(client.last_words(), "");
        }
        drop(waiting);
        for bad in [15, 17] {
            let mut client = Client::connect(trust, worker.address);
            client.send(Kind::Join.code(), &random.bytes(bad), &[]);
            client.last_words();
        }
        worker.is_well();
    }
}

fn neighbour(peer: u32) -> Neighbour {
    let ticket = *b"a ticket, 1 off.";
    Neighbour { peer, me: 0, dials: false, key: [7; 20], ticket, address: String::new() }
}

/// Kinds and heads, one after another.
type Messages = Vec<(Kind, Vec<u8>)>;

#[test]
fn a_primary_with_invalid_orders_loses_its_session_and_no_more() {
    let worker = Worker::start(Trust::Keyless);
    let order = |id, to| encode_forwards(&[Forward { id, to, id_there: 1 }]);
    let relayed = MatrixHeader { source: MatrixSource::Relayed, first_line: 3, ..data(1, 2, 2, 1) };
    let unknown = Reached { peer: 5, is_there: false, why: String::new() };
    let cases: [(&str, Messages); 6] = [
        ("is not stored here", vec![(Kind::Relay, order(1, 2))]),
        ("come from worker 3, which is not known", vec![(Kind::Store, store(&[relayed], &[]))]),
        ("worker 5 is not known", vec![(Kind::Reached, unknown.encode())]),
        ("introduced twice", vec![(Kind::Neighbour, neighbour(1).encode()); 2]),
        (
            "one too many",
            (1..=NEIGHBOURS_MAX as u32 + 1).map(|n| (Kind::Neighbour, neighbour(n).encode())).collect(),
        ),
        ("has no place here", vec![(Kind::Join, neighbour(1).ticket.to_vec())]),
    ];
    for (why, messages) in cases {
        let mut client = worker.session();
        messages.iter().for_each(|(kind, head)| client.send(kind.code(), head, &[]));
        let words = client.last_words();
        assert!(words.contains(why), "expected {why:?}, got {words:?}");
    }
    // An order for a neighbour that was never introduced.
    let mut client = worker.session();
    client.send(Kind::Store.code(), &store(&[data(1, 2, 2, 1)], &[]), &[0; 32]);
    client.send(Kind::Relay.code(), &order(1, 9), &[]);
    assert!(client.last_words().contains("worker 9, which is not known"));
    worker.is_well();
}
