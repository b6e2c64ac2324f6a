//! Workers that lie to an honest primary: it ends in bounded time with its documented exit code, and names the
//! worker. Either it completes C without the worker, with the right bits, or it leaves no file.

use crate::client::{Came, Client, frame};
use crate::support::elements;
use crate::worker::{Trust, within};
use bramble_link::{ClusterKey, Security};
use bramble_wire::limits::PROTOCOL;
use bramble_wire::message::{
    Bye, Hello, Kind, LogHead, Operation, Pong, ResultHead, StoreHead, Welcome, Work, WorkRecord,
    decode_number, encode_number,
};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

/// Time limit for every primary.
const BOUND: Duration = Duration::from_secs(60);

/// Operands and options of every product.
const PRODUCT: [&str; 10] = [
    "multiply",
    "random:150x130:f64:1",
    "random:130x170:f64:2",
    "--kernel",
    "simd",
    "--tile",
    "64",
    "--panel",
    "64",
    "--quiet",
];

/// C as computed by a primary without workers.
fn expected() -> &'static [u8] {
    static C: OnceLock<Vec<u8>> = OnceLock::new();
    C.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let c = folder.path().join("C.npy");
        let done = Trust::Keyless.bramble().args(PRODUCT).arg("-o").arg(&c).status().unwrap();
        assert!(done.success());
        std::fs::read(c).unwrap()
    })
}

/// Exit code and stderr of a primary.
struct Outcome {
    code: i32,
    err: String,
}

/// Runs a primary whose only worker is at `address`; checks everything that all cases have in common.
fn primary(trust: Trust, address: SocketAddr) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let mut command = trust.bramble();
    let c = folder.path().join("C.npy");
    command.args(PRODUCT).arg("-o").arg(&c);
    command.args(["-w", &address.to_string(), "--strategy", "reuse", "--threads", "1"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let child = std::cell::RefCell::new(child);
    if !within(BOUND, || child.borrow_mut().try_wait().unwrap().is_some()) {
        child.borrow_mut().kill().unwrap();
        panic!("the primary does not end");
    }
    let done = child.into_inner().wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    assert!(err.contains(&address.to_string()), "the worker is not named: {err}");
    assert!(!err.contains("panicked"), "{err}");
    assert!(!err.chars().any(|c| c.is_control() && c != '\n'), "{err:?}");
    let code = done.status.code().unwrap();
    // A wrong tile is reported when it is found, and again when it has been recomputed.
    let lines = usize::from(err.contains("was lost")) + 2 * usize::from(err.contains("may be wrong"));
    assert_eq!(err.lines().count(), if code == 3 { lines } else { 1 }, "{err}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path()).collect();
    if code == 3 {
        assert_eq!(left, std::slice::from_ref(&c), "{err}");
        assert!(std::fs::read(c).unwrap() == expected(), "C differs");
    } else {
        assert!(left.is_empty(), "{left:?} is left");
    }
    Outcome { code, err }
}

/// Runs a primary against one worker that runs `act` on its only connection.
fn against(act: impl FnOnce(Client) + Send + 'static) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let liar = std::thread::spawn(move || act(Client::over(listener.accept().unwrap().0)));
    let outcome = primary(Trust::Keyless, address);
    liar.join().unwrap();
    outcome
}

fn assert_ends(outcome: &Outcome, code: i32, why: &str) {
    assert_eq!(outcome.code, code, "{}", outcome.err);
    assert!(outcome.err.contains(why), "{why:?} was wanted: {}", outcome.err);
}

pub(crate) fn honest_welcome() -> Welcome {
    Welcome {
        threads: 2,
        memory_bytes: 64 << 20,
        hold_bytes: 0,
        gflops: 10.0,
        peak_gflops: 20.0,
        lu: None,
        port: 0,
        kernel: "simd".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: "liar".to_owned(),
    }
}

/// Receives the hello, and sends these bytes as a welcome.
pub(crate) fn welcomes(client: &mut Client, welcome: &[u8]) {
    let came = client.receive().unwrap();
    assert_eq!(came.kind, Kind::Hello.code());
    client.send(Kind::Welcome.code(), welcome, &[]);
    client.session = Hello::decode(&came.head).unwrap().session;
}

/// The answer to a ping.
pub(crate) fn pong(nonce: u64) -> Vec<u8> {
    Pong { nonce, clock_ns: 1 << 30 }.encode()
}

/// Answers pings until the first store.
fn first_store(client: &mut Client) -> StoreHead {
    loop {
        let Came { kind, head, .. } = client.receive().unwrap();
        if kind == Kind::Store.code() {
            return StoreHead::decode(&head).unwrap();
        }
        assert_eq!(kind, Kind::Ping.code());
        client.send(Kind::Pong.code(), &pong(decode_number(&head).unwrap()), &[]);
    }
}

/// A worker that is honest until it has a tile, and then runs `act`.
fn after_first_tile(act: impl Fn(&mut Client, u32, u32, u32) + Send + 'static) -> Outcome {
    with_memory(honest_welcome().memory_bytes, act)
}

fn with_memory(memory_bytes: u64, act: impl Fn(&mut Client, u32, u32, u32) + Send + 'static) -> Outcome {
    against(move |mut client| {
        welcomes(&mut client, &Welcome { memory_bytes, ..honest_welcome() }.encode());
        let tile = loop {
            let store = first_store(&mut client);
            if let Some(tile) = store.matrices.iter().find(|m| m.uses == 0) {
                break *tile;
            }
        };
        act(&mut client, tile.id, tile.rows, tile.cols);
        client.last_words();
    })
}

fn result(c: u32, first_line: u32, lines: u32) -> Vec<u8> {
    // A depth of 130 in panels of 64 has three steps.
    ResultHead { c, epoch: 0, step_start: 0, step_end: 3, first_line, lines }.encode()
}

#[test]
fn impossible_welcomes() {
    let broken = |change: fn(&mut Welcome)| {
        let mut welcome = honest_welcome();
        change(&mut welcome);
        welcome.encode()
    };
    let no_machine = "it claims no threads, or a speed that no machine has";
    let mut control = honest_welcome().encode();
    let at = control.len() - 4;
    control[at..].copy_from_slice(b"\x1b[2J");
    let mut long = honest_welcome().encode();
    long.push(0);
    let lies: [(Vec<u8>, &str); 8] = [
        (broken(|w| w.threads = 0), no_machine),
        (broken(|w| w.gflops = f64::NAN), no_machine),
        (broken(|w| w.gflops = f64::INFINITY), no_machine),
        (broken(|w| w.gflops = -1.0), no_machine),
        (broken(|w| w.peak_gflops = 1e300), no_machine),
        (control, "a text with control characters"),
        (long, "a message with 1 bytes too many"),
        (Vec::new(), "a message that is too short"),
    ];
    for (welcome, why) in lies {
        let outcome = against(move |mut client| {
            welcomes(&mut client, &welcome);
            client.last_words();
        });
        assert_ends(&outcome, 5, why);
    }
}

#[test]
fn a_welcome_that_promises_the_world() {
    for memory_bytes in [1 << 60, u64::MAX, 0, 1] {
        let outcome = against(move |mut client| {
            let (threads, gflops, peak_gflops) = (u16::MAX, 1e9, 1e9);
            let welcome = Welcome { threads, memory_bytes, gflops, peak_gflops, ..honest_welcome() };
            welcomes(&mut client, &welcome.encode());
            if memory_bytes > 1 {
                first_store(&mut client);
            }
        });
        assert!([3, 5].contains(&outcome.code), "{}", outcome.err);
    }
}

#[test]
fn invalid_answers() {
    let outcome = against(|mut client| client.send_raw(b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n"));
    assert_ends(&outcome, 5, "is it a bramble worker?");
    let outcome = against(|mut client| {
        client.receive().unwrap();
        client.send(Kind::Error.code(), b"\x06\x1b]0;x\x07", &[]);
        client.last_words();
    });
    assert_ends(&outcome, 5, "a text with control characters");
    let outcome = against(|mut client| {
        welcomes(&mut client, &honest_welcome().encode());
        client.send(77, &[1, 2, 3], &[]);
        client.last_words();
    });
    assert_ends(&outcome, 3, "unknown kind 77");
    let outcome = against(|mut client| {
        welcomes(&mut client, &honest_welcome().encode());
        client.receive().unwrap();
        client.send(Kind::Pong.code(), &pong(12345), &[]);
        client.last_words();
    });
    assert_ends(&outcome, 3, "it answered a ping");
    let outcome = against(|mut client| {
        welcomes(&mut client, &honest_welcome().encode());
        client.send_raw(&[0xff; 4096]);
    });
    assert_ends(&outcome, 3, "a header announces");
}

#[test]
fn unrequested_results() {
    let refused = after_first_tile(|client, _, _, cols| {
        client.send(4, &result(1_000_000, 0, 1), &elements(cols as usize));
    });
    assert_ends(&refused, 3, "it returned");
    // With this little memory, the last tile of C is assigned long after the first.
    let another = with_memory(300 << 10, |client, tile, _, cols| {
        client.send(4, &result(tile + 8, 0, 1), &elements(cols as usize));
    });
    assert_ends(&another, 3, "which it was not given");
    let twice = after_first_tile(|client, tile, rows, cols| {
        for _ in 0..2 {
            client.send(4, &result(tile, 0, rows), &elements((rows * cols) as usize));
        }
    });
    // The first result was accepted, and was wrong.
    assert_ends(&twice, 3, "which it was not given");
    assert!(twice.err.contains("was wrong, and recomputed by other machines"), "{}", twice.err);
    let out_of_order = after_first_tile(|client, tile, _, cols| {
        client.send(4, &result(tile, 1, 1), &elements(cols as usize));
    });
    assert_ends(&out_of_order, 3, "it returned lines 1+1");
    let beyond = after_first_tile(|client, tile, rows, cols| {
        client.send(4, &result(tile, 0, rows + 1), &elements(((rows + 1) * cols) as usize));
    });
    assert_ends(&beyond, 3, "it returned lines 0+");
    let other_steps = after_first_tile(|client, tile, rows, cols| {
        let (step_start, step_end) = (0, u32::MAX);
        let head = ResultHead { c: tile, epoch: 0, step_start, step_end, first_line: 0, lines: rows };
        client.send(4, &head.encode(), &elements((rows * cols) as usize));
    });
    assert_ends(&other_steps, 3, "with steps 0..4294967295");
}

#[test]
fn results_of_another_size_than_announced() {
    for more in [1, 9, 64 * 64] {
        let wrong = after_first_tile(move |client, tile, rows, cols| {
            client.send(4, &result(tile, 0, rows), &elements((rows * cols) as usize + more));
        });
        assert_ends(&wrong, 3, "came with");
    }
    let nothing = after_first_tile(|client, tile, rows, _| client.send(4, &result(tile, 0, rows), &[]));
    assert_ends(&nothing, 3, "it sent a result without rows");
    let body_of_credit = after_first_tile(|client, _, _, _| client.send(5, &encode_number(1), &[0; 8]));
    assert_ends(&body_of_credit, 3, "came with a body");
}

#[test]
fn impossible_accounts() {
    for bytes in [1, u64::MAX] {
        let credit = after_first_tile(move |client, _, _, _| {
            client.send(5, &encode_number(64 << 20), &[]);
            client.send(5, &encode_number(bytes), &[]);
        });
        assert_ends(&credit, 3, "it returned more credit than it had granted");
    }
    let many_threads = after_first_tile(|client, _, _, _| {
        let mut bye = vec![0; 65_530];
        bye[8..10].copy_from_slice(&u16::MAX.to_le_bytes());
        client.send(12, &bye, &[]);
    });
    assert_eq!(many_threads.code, 3, "{}", many_threads.err);
    let damaged = after_first_tile(|client, tile, rows, cols| {
        let body = elements((rows * cols) as usize);
        let mut bytes = frame(4, client.session, &result(tile, 0, rows), &body);
        bytes[14] ^= 1;
        client.send_raw(&bytes);
    });
    assert_ends(&damaged, 3, "a frame arrived damaged");
}

#[test]
fn unrequested_job_reports() {
    let work = Work::Job(Operation::Multiply);
    let record = WorkRecord { work, returns: true, thread: 0, matrix: 1, step: 0, start_ns: 5, took_ns: 5 };
    let log = LogHead { dropped: 0, records: vec![record] }.encode();
    let unasked = after_first_tile(move |client, _, _, _| client.send(Kind::Log.code(), &log, &[]));
    assert_ends(&unasked, 3, "no log was asked for");
}

#[test]
fn tiles_that_come_back_before_they_can_be_done() {
    let early = against(|mut client| {
        welcomes(&mut client, &honest_welcome().encode());
        loop {
            let Ok(came) = client.receive() else { return };
            match Kind::from_code(came.kind).unwrap() {
                Kind::Ping => client.send(Kind::Pong.code(), &pong(decode_number(&came.head).unwrap()), &[]),
                Kind::Store => {
                    for tile in StoreHead::decode(&came.head).unwrap().matrices.iter().filter(|m| m.uses == 0)
                    {
                        let count = (tile.rows * tile.cols) as usize;
                        client.send(4, &result(tile.id, 0, tile.rows), &elements(count));
                    }
                }
                _ => {}
            }
        }
    });
    assert_ends(&early, 3, "were wrong, and recomputed by other machines");
}

#[test]
fn a_goodbye_in_the_middle_of_the_product() {
    let leaves = against(|mut client| {
        welcomes(&mut client, &honest_welcome().encode());
        while let Ok(came) = client.receive() {
            match Kind::from_code(came.kind).unwrap() {
                Kind::Ping => client.send(Kind::Pong.code(), &pong(decode_number(&came.head).unwrap()), &[]),
                Kind::Store => client.send(Kind::Bye.code(), &Bye::default().encode(), &[]),
                _ => {}
            }
        }
    });
    assert_ends(&leaves, 3, "it says goodbye in the middle of the product");
}

#[test]
fn silence_has_an_end_wherever_it_begins() {
    let quiet = |stores: usize, measured: bool| {
        against(move |mut client| {
            if measured {
                welcomes(&mut client, &honest_welcome().encode());
                (0..stores).for_each(|_| drop(first_store(&mut client)));
            }
            // The primary's own limit is shorter.
            client.set_patience(BOUND);
            client.last_words();
        })
    };
    std::thread::scope(|scope| {
        let cases = [
            (scope.spawn(|| quiet(0, false)), 5, "no answer within 10 s"),
            (scope.spawn(|| quiet(0, true)), 3, "check its network"),
            (scope.spawn(|| quiet(1, true)), 3, "it has been silent for 8 s"),
        ];
        for (case, code, why) in cases {
            assert_ends(&case.join().unwrap(), code, why);
        }
    });
}

/// A listener with another cluster's key, or with TLS only.
fn keyed_liar(proves: bool) -> Outcome {
    let (tell, told) = std::sync::mpsc::channel();
    let liar = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            if proves {
                let key = ClusterKey::from_bytes([1; ClusterKey::BYTES]);
                assert!(Security::sealed(key, PROTOCOL, "0.1.0").unwrap().accept(stream).await.is_err());
            } else {
                let mut stream = stream.into_std().unwrap();
                stream.set_nonblocking(false).unwrap();
                let _ = stream.write_all(&[0x16, 3, 3, 0, 4, 2, 0, 0, 0]);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
    });
    let outcome = primary(Trust::Keyed, told.recv().unwrap());
    liar.join().unwrap();
    outcome
}

#[test]
fn a_listener_without_the_key_gets_nothing() {
    assert_ends(&keyed_liar(true), 5, "it has another one");
    assert_ends(&keyed_liar(false), 5, "it does not speak TLS");
}
