//! Two ends over a real socket, and attackers between them.

mod spin;

use super::*;
use crate::{Body, Frame, NoBodies, tcp_connect};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn key(byte: u8) -> ClusterKey {
    ClusterKey::from_bytes([byte; ClusterKey::BYTES])
}

fn sealed(byte: u8) -> Security {
    Security::sealed(key(byte), 2, "0.1.0").unwrap()
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(tcp_connect(address, Duration::from_secs(5)), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// Both ends' outcomes, the listener's first.
async fn meet(listener: &Security, dialler: &Security) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    let (out, accepted) = sockets().await;
    tokio::join!(listener.accept(accepted), dialler.dial(out))
}

fn text(result: &Result<Link, LinkError>) -> String {
    match result {
        Ok(link) => panic!("a link with {} was made", link.peer),
        Err(e) => e.to_string(),
    }
}

#[test]
fn members_meet_whoever_dialled_and_speak() {
    run(async {
        for (a, b) in
            [(sealed(1), sealed(1)), (Security::proven(key(1), 2, "1"), Security::proven(key(1), 2, "1"))]
        {
            let (listening, dialling) = meet(&a, &b).await;
            let (mut listening, mut dialling) = (listening.unwrap(), dialling.unwrap());
            assert_eq!((listening.proven, dialling.proven), (Proven::Member, Proven::Member));
            assert_eq!(listening.cipher, dialling.cipher);
            dialling.sender.send(Frame::new(1, vec![1], Body::Empty)).await.unwrap();
            assert_eq!(listening.receiver.receive(&mut NoBodies).await.unwrap().kind, 1);
            listening.sender.send(Frame::new(2, vec![2], Body::Empty)).await.unwrap();
            assert_eq!(dialling.receiver.receive(&mut NoBodies).await.unwrap().kind, 2);
        }
    });
}

#[test]
fn aes_is_taken_only_where_both_ends_have_it() {
    let with = |aes: bool| Security::over(TlsConfig::with_aes(aes).unwrap(), key(1), 2, "1");
    run(async {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let (listening, _) = meet(&with(a), &with(b)).await;
            let want = if a && b { "aes-128-gcm" } else { "chacha20-poly1305" };
            assert_eq!(listening.unwrap().cipher, Some(want), "{a} {b}");
        }
    });
}

#[test]
fn another_key_is_named_on_both_sides_and_nothing_is_proven_to_it() {
    run(async {
        let (listening, dialling) = meet(&sealed(1), &sealed(2)).await;
        let (one, two) = (key(1).id(), key(2).id());
        assert!(text(&listening).contains(&one) && text(&listening).contains(&two), "{}", text(&listening));
        assert!(text(&dialling).contains(&two) && !text(&dialling).contains(&one), "{}", text(&dialling));
    });
}

#[test]
fn another_version_with_the_key_is_told_on_both_sides() {
    run(async {
        let newer = Security::sealed(key(1), 3, "0.9.0").unwrap();
        let (listening, dialling) = meet(&sealed(1), &newer).await;
        assert!(text(&listening).contains("it is bramble 0.9.0 with protocol 3"), "{}", text(&listening));
        assert!(text(&dialling).contains("it is bramble 0.1.0 with protocol 2"), "{}", text(&dialling));
    });
}

#[test]
fn ends_with_and_without_tls_say_so() {
    run(async {
        let open = Security::open(Reach::Loopback, 2, "0.1.0");
        let (out, accepted) = sockets().await;
        // A primary without a key says hello to a worker with one.
        let mut out = tcp_link_of(&open, out).await;
        let hello = Frame::new(1, vec![7; 50], Body::Empty);
        let keyed = sealed(1);
        let (_, refused) = tokio::join!(out.sender.send(hello), keyed.accept(accepted));
        assert!(text(&refused).contains("does not speak TLS"), "{}", text(&refused));
        // And the opposite case.
        let (out, accepted) = sockets().await;
        let mut taken = open.accept(accepted).await.unwrap();
        let security = sealed(1);
        let (dialled, got) = tokio::join!(security.dial(out), async {
            let got = taken.receiver.receive(&mut NoBodies).await;
            drop(taken);
            got
        });
        assert!(got.unwrap_err().to_string().contains("it speaks TLS"));
        assert!(text(&dialled).contains("no cluster key"), "{}", text(&dialled));
    });
}

async fn tcp_link_of(open: &Security, stream: TcpStream) -> Link {
    open.dial(stream).await.unwrap()
}

/// Copies bytes between two sockets and keeps them.
async fn tapped(from: &mut TcpStream, to: &mut TcpStream) -> (Vec<u8>, Vec<u8>) {
    let ((mut r1, mut w1), (mut r2, mut w2)) = (from.split(), to.split());
    let copy = async |r: &mut tokio::net::tcp::ReadHalf<'_>, w: &mut tokio::net::tcp::WriteHalf<'_>| {
        let (mut kept, mut some) = (Vec::new(), vec![0; 4096]);
        while let Ok(n) = r.read(&mut some).await {
            if n == 0 || w.write_all(&some[..n]).await.is_err() {
                break;
            }
            kept.extend_from_slice(&some[..n]);
        }
        let _ = w.shutdown().await;
        kept
    };
    tokio::join!(copy(&mut r1, &mut w2), copy(&mut r2, &mut w1))
}

/// A session with a wiretap: (bytes of the dialler, bytes of the listener).
async fn recorded(a: &Security, b: &Security) -> (Vec<u8>, Vec<u8>) {
    let (out, mut tap_in) = sockets().await;
    let (mut tap_out, accepted) = sockets().await;
    let ends = async {
        let (listening, dialling) = tokio::join!(a.accept(accepted), b.dial(out));
        let (mut listening, mut dialling) = (listening.unwrap(), dialling.unwrap());
        let secret = Frame::new(1, b"the secret matrix".to_vec(), Body::Empty);
        dialling.sender.send(secret).await.unwrap();
        listening.receiver.receive(&mut NoBodies).await.unwrap();
        dialling.sender.close().await.unwrap();
    };
    tokio::join!(tapped(&mut tap_in, &mut tap_out), ends).0
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|w| w == what)
}

#[test]
fn who_listens_on_the_way_reads_neither_frames_nor_key_and_cannot_replay() {
    run(async {
        let (sent, _) = recorded(&sealed(1), &sealed(1)).await;
        assert!(!contains(&sent, b"secret matrix") && !contains(&sent, &[1; 8]));
        let open = Security::proven(key(1), 2, "1");
        let (plain, _) = recorded(&open, &open).await;
        assert!(contains(&plain, b"secret matrix"), "the recording records nothing");
        assert!(!contains(&plain, &[1; 8]), "the key was sent");
        for (security, bytes) in [(sealed(1), sent), (open, plain)] {
            let (mut out, accepted) = sockets().await;
            let again = async {
                out.write_all(&bytes).await.unwrap();
                out.shutdown().await.unwrap();
                let _ = out.read_to_end(&mut Vec::new()).await;
            };
            let (result, ()) = tokio::join!(security.accept(accepted), again);
            let _ = text(&result);
        }
    });
}

#[test]
fn who_answers_in_the_middle_with_connections_of_his_own_is_found_out() {
    run(async {
        // The attacker in the middle has a TLS connection with each end, and forwards their introductions.
        let (member, other) = (sealed(1), sealed(1));
        let middle = TlsConfig::new().unwrap();
        let (out, to_dialler) = sockets().await;
        let (to_listener, accepted) = sockets().await;
        let man = async {
            let dialler = Pipe::sealed(to_dialler, middle.listen().unwrap());
            let listener = Pipe::sealed(to_listener, middle.dial().unwrap());
            dialler.handshake().await.unwrap();
            listener.handshake().await.unwrap();
            let proof: [u8; BYTES] = take(&dialler).await.unwrap();
            put(&listener, &proof).await.unwrap();
            take::<BYTES>(&listener).await.unwrap_err()
        };
        let (listening, dialling, _) = tokio::join!(member.accept(accepted), other.dial(out), man);
        assert!(text(&listening).contains("does not prove"), "{}", text(&listening));
        let _ = text(&dialling);
    });
}

#[test]
fn an_end_that_sends_ones_own_proof_back_is_refused() {
    run(async {
        let security = Security::proven(key(1), 2, "1");
        let (out, mut mirror) = sockets().await;
        let reflecting = async {
            let mut bytes = [0; 32 + BYTES];
            mirror.read_exact(&mut bytes[..32]).await.unwrap();
            mirror.write_all(&bytes[..32]).await.unwrap();
            mirror.read_exact(&mut bytes[..BYTES]).await.unwrap();
            mirror.write_all(&bytes[..BYTES]).await.unwrap();
        };
        let (dialled, ()) = tokio::join!(security.dial(out), reflecting);
        assert!(text(&dialled).contains("does not introduce itself"), "{}", text(&dialled));
    });
}

#[test]
fn a_key_that_was_introduced_is_good_as_long_as_it_is_needed_and_says_so() {
    run(async {
        let (worker, other) = (sealed(1), sealed(9));
        let relay = key(7);
        let guard = worker.introduce(relay.clone()).unwrap();
        let (out, accepted) = sockets().await;
        let (taken, dialled) = tokio::join!(worker.accept(accepted), other.dial_introduced(out, &relay));
        assert_eq!(taken.unwrap().proven, Proven::Introduced(guard.id()));
        assert_eq!(dialled.unwrap().proven, Proven::Introduced(guard.id()));
        drop(guard);
        let (out, accepted) = sockets().await;
        let (taken, dialled) = tokio::join!(worker.accept(accepted), other.dial_introduced(out, &relay));
        assert!(text(&taken).contains("does not prove"));
        let _ = text(&dialled);
    });
}

#[test]
fn a_stream_that_is_cut_short_is_broken_not_closed() {
    run(async {
        let (listening, dialling) = meet(&sealed(1), &sealed(1)).await;
        let (mut listening, dialling) = (listening.unwrap(), dialling.unwrap());
        drop(dialling);
        let got = listening.receiver.receive(&mut NoBodies).await;
        assert!(matches!(got, Err(LinkError::Broken(_))), "{got:?}");
    });
}
