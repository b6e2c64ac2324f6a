//! A key that a primary introduced so that workers may relay: it opens no session.

use bramble_link::{Body, ClusterKey, Frame, Link, NoBodies, Proven, Security, tcp_connect};
use bramble_schedule::limits::PROTOCOL;
use bramble_schedule::message::{Kind, decode_error};
use bramble_worker::{Config, Ledger, serve_link};
use std::time::Duration;

fn security(byte: u8) -> Security {
    Security::sealed(ClusterKey::from_bytes([byte; ClusterKey::BYTES]), PROTOCOL, "0.1.0").unwrap()
}

/// A worker's end of a session, all that it may use.
async fn served(link: Link) -> String {
    let config =
        Config { threads: 1, memory_bytes: 128 << 20, kernel: None, pin_from: None, name: "w".to_owned() };
    let ledger = Ledger::new();
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
