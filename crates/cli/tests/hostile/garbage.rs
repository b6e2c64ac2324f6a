//! Members, or strangers where no key is needed, that send what no primary sends.

use crate::client::{Client, frame};
use crate::support::{ELEMENT, Random, data, elements, hello, how, last_job, store, tile};
use crate::worker::{BOTH, Trust, Worker};
use bramble_wire::message::{Bye, Kind, encode_error, encode_number};

const STORE: u8 = 3;
const PING: u8 = 9;
const BYE: u8 = 12;

/// Opens a session, applies `act` to it, and checks the reason why the worker closed it, in its log and in its error
/// message. It sends no message if the link broke.
fn ends(worker: &Worker, why: &str, told: bool, act: impl Fn(&mut Client)) {
    let mut client = worker.session();
    act(&mut client);
    let words = client.last_words();
    assert!(words.is_empty() || words.contains(why), "expected {why:?}, got {words:?}");
    assert!(!told || !words.is_empty(), "it closed without a message instead of {why:?}");
    worker.says(why);
}

#[test]
fn unexpected_messages_end_the_session_and_nothing_else() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let hello = hello().encode();
        ends(&worker, "kind 1 has no place here", true, |c| c.send(1, &hello, &[]));
        ends(&worker, "kind 4 has no place here", true, |c| c.send(4, &[0; 24], &[]));
        for kind in [Kind::Placed, Kind::Part] {
            let why = format!("kind {} has no place here", kind.code());
            ends(&worker, &why, true, |c| c.send(kind.code(), &[0; 24], &[]));
        }
        ends(&worker, "array 0", true, |c| c.send(Kind::Free.code(), &encode_number(0), &[]));
        ends(&worker, "unknown kind 8", true, |c| c.send(8, &[], &[]));
        ends(&worker, "unknown kind 200", true, |c| c.send(200, &[0; 70], &[]));
        ends(&worker, "a message that is too short", true, |c| c.send(STORE, &[], &[]));
        ends(&worker, "a message with 1 bytes too many", true, |c| c.send(PING, &[0; 9], &[]));
        // After the first, frames with the product's number have no place.
        ends(&worker, "in session 00000000", true, |c| {
            for _ in 0..2 {
                c.send(BYE, &Bye::default().encode(), &[]);
            }
        });
        ends(&worker, "a text with control characters", true, |c| c.send(11, b"\x03\x1b[2", &[]));
        // A text that claims another sender is still logged as from this peer.
        ends(&worker, "the primary gave up: all is well", false, |c| {
            c.send(11, &encode_error("all is well"), &[]);
        });
        worker.is_well();
    }
}

#[test]
fn a_session_begins_with_a_hello() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        for (kind, head) in
            [(STORE, store(&[tile(1, 8, 8)], &[])), (PING, encode_number(1)), (BYE, vec![0; 10])]
        {
            let mut client = Client::connect(trust, worker.address);
            client.send(kind, &head, &[]);
            assert!(client.last_words().contains("its first message is not a hello"));
        }
        let mut client = Client::connect(trust, worker.address);
        client.send(Kind::Hello.code(), &[0xff; 1008], &[]);
        assert!(client.last_words().contains("it does not speak this protocol"));
        worker.says("its first message is not a hello");
        worker.is_well();
    }
}

#[test]
fn bodies_beyond_the_grant_are_refused() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        let mib = vec![1; 1 << 20];
        // 2^19 x 8 elements are 32 MiB, nine of which exceed the grant. The first line of each comes with a body.
        ends(&worker, "exceeds the grant", true, |c| {
            let matrices: Vec<_> = (0..9).map(|id| tile(id, 1 << 19, 8)).collect();
            c.send(STORE, &store(&matrices, &[]), &[]);
            let last = data(100, 1 << 17, 1, 1);
            c.send(STORE, &store(&[last], &[]), &mib);
        });
        ends(&worker, "a message of kind Bye has no body", true, |c| c.send(BYE, &[0; 10], &mib));
        ends(&worker, "a message of kind Hello has no body", true, |c| c.send(1, &hello().encode(), &mib));
        ends(&worker, "came with 1048576", true, |c| c.send(STORE, &store(&[tile(1, 8, 8)], &[]), &mib));
        ends(&worker, "a header announces", false, |c| {
            let mut header = frame(STORE, c.session, &[0; 4], &[]);
            header[..4].copy_from_slice(&((1u32 << 20) + 1).to_le_bytes());
            c.send_raw(&header);
        });
        worker.is_well();
    }
}

#[test]
fn frames_may_be_cut_damaged_or_of_another_session() {
    for trust in BOTH {
        let worker = Worker::start(trust);
        ends(&worker, "too short", true, |c| c.send(STORE, &[0xff; 65_535][..3], &[]));
        ends(&worker, "a store of 65535 matrices", true, |c| c.send(STORE, &[0xff; 65_535], &[]));
        ends(&worker, "a frame arrived damaged", false, |c| {
            let mut bytes = frame(PING, c.session, &encode_number(4), &[]);
            bytes[20] ^= 1;
            c.send_raw(&bytes);
        });
        // A damaged body has landed already, but in a buffer that is discarded.
        ends(&worker, "expected 0", false, |c| {
            let head = store(&[data(1, 4, 4, 1), data(2, 4, 4, 1)], &[]);
            let mut bytes = frame(STORE, c.session, &head, &elements(32));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            bytes[12..16].fill(0);
            c.send_raw(&bytes);
        });
        ends(&worker, "a header announces", false, |c| {
            let mut bytes = frame(PING, c.session, &encode_number(4), &[]);
            bytes[7] = 1;
            c.send_raw(&bytes);
        });
        ends(&worker, "a frame of session 12345678 in session 12345677", false, |c| {
            c.session += 1;
            c.send(PING, &encode_number(4), &[]);
        });
        let whole = frame(STORE, hello().session, &store(&[data(1, 9, 9, 1)], &[]), &elements(81));
        for end in [1, 8, 15, 16, 17, 30, 43, 44, 45, 300, whole.len() - 1] {
            let mut client = worker.session();
            client.send_raw(&whole[..end]);
            drop(client);
        }
        worker.says(if trust == Trust::Keyed {
            "it ended without close_notify"
        } else {
            "in the middle of a frame"
        });
        worker.is_well();
    }
}

/// A frame of some kind with a random or almost valid head.
fn random_frame(random: &mut Random, session: u32) -> Vec<u8> {
    let kind = [1, 2, 3, 3, 3, 3, 4, 5, 6, 9, 9, 10, 12, 13, 14, 15, 16, 17][random.below(18) as usize];
    let (head, body) = match (kind, random.below(3)) {
        (9, 0..=1) => (encode_number(random.next()), random.bytes(40)),
        (3, 0..=1) => {
            let side = 1 + random.below(6) as u32;
            let uses = random.below(3) as u16;
            let made = [data(1, side, side, 2), data(2, side, side, uses), tile(3, side, side)];
            let job = last_job(1, 2, 3, random.below(3) as u32);
            let mut head = store(&made, &[job]);
            for _ in 0..random.below(3) {
                let at = random.below(head.len() as u64) as usize;
                head[at] ^= 1 << random.below(8);
            }
            let count = made[..2].iter().map(|m| (m.rows * m.cols) as usize * ELEMENT).sum();
            (head, random.bytes(count))
        }
        (3, _) => {
            let mut made = crate::support::generated(4, 3, 3, 1);
            made.uses = random.below(2) as u16;
            (store(&[made], &[]), how(random.next(), random.next()))
        }
        _ => {
            let count = random.below(100) as usize;
            (random.bytes(count), Vec::new())
        }
    };
    let mut bytes = frame(kind, session, &head, &body);
    if random.below(8) == 0 {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
    }
    bytes
}

#[test]
fn random_frames_end_their_sessions_only() {
    for (trust, rounds) in [(Trust::Keyed, 60), (Trust::Keyless, 240)] {
        let worker = Worker::start(trust);
        let mut random = Random(0x00c0_ffee);
        for _ in 0..rounds {
            let mut client = worker.session();
            for _ in 0..random.below(12) {
                let bytes = random_frame(&mut random, client.session);
                if client.try_send_raw(&bytes).is_err() {
                    break;
                }
            }
        }
        worker.is_well();
    }
}
