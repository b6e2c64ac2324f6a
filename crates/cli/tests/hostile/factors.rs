//! A worker that lies about the factors of `bramble lu`: the primary ends with its documented exit code, names the worker,
//! and leaves no file.

use crate::client::{Came, Client};
use crate::liars::{honest_welcome, pong, welcomes};
use crate::worker::{Trust, within};
use bramble_wire::message::{Bye, Kind, LuBegin, LuFill, LuPass, LuRows, LuStatus, decode_number};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

/// Factors a matrix of order 20 in blocks of 8 on one worker, which runs `act` once it has its columns and may begin. Exit code
/// and last line of the error.
fn against(act: impl FnOnce(&mut Client, &LuBegin) + Send + 'static) -> (i32, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let liar = std::thread::spawn(move || {
        let mut client = Client::over(listener.accept().unwrap().0);
        welcomes(&mut client, &honest_welcome().encode());
        let begin = LuBegin::decode(&next(&mut client, &[Kind::LuBegin]).head).unwrap();
        say(&mut client, &LuStatus::Ready);
        let mut missing = 21 * 20 * 8;
        next(&mut client, &[Kind::LuGo]);
        while missing > 0 {
            missing -= next(&mut client, &[Kind::LuFill]).body.len();
        }
        act(&mut client, &begin);
        client.last_words();
    });
    let folder = tempfile::tempdir().unwrap();
    let mut command = Trust::Keyless.bramble();
    command.args(["lu", "random:20x20:f64:1", "--block", "8", "--quiet", "-w", &address]);
    command.arg("-o").arg(folder.path().join("LU.npy"));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let child = std::cell::RefCell::new(child);
    assert!(
        within(Duration::from_secs(60), || child.borrow_mut().try_wait().unwrap().is_some()),
        "it does not end"
    );
    let done = child.into_inner().wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    liar.join().unwrap_or_else(|_| panic!("the liar's part broke: {err}"));
    assert!(!err.contains("panicked"), "{err}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a file is left");
    (done.status.code().unwrap(), err)
}

/// The next frame of these kinds; answers pings.
fn next(client: &mut Client, kinds: &[Kind]) -> Came {
    loop {
        let came = client.receive().unwrap();
        match Kind::from_code(came.kind).unwrap() {
            Kind::Ping => client.send(Kind::Pong.code(), &pong(decode_number(&came.head).unwrap()), &[]),
            kind if kinds.contains(&kind) => return came,
            other => panic!("{other:?} came, not {kinds:?}"),
        }
    }
}

fn say(client: &mut Client, status: &LuStatus) {
    client.send(Kind::LuStatus.code(), &status.encode(), &[]);
}

/// Tells all exchanges of rows, none of which exchanges anything, and sends right-hand sides.
fn eliminated(client: &mut Client, begin: &LuBegin) {
    for step in 0..begin.panels() {
        let pivots = (0..begin.columns(step).len()).collect();
        say(client, &LuStatus::Factored { step, pivots });
    }
    say(client, &LuStatus::Eliminated { zero: None, overflow: None });
    let head = LuRows { pass: LuPass::Back, width: 1, blocks: 3..3, total: 20, first: 0, rows: 20 };
    client.send(Kind::LuRows.code(), &head.encode(), &[0; 20 * 8]);
}

#[track_caller]
fn assert_named((code, err): (i32, String), why: &str) {
    assert!(code == 5 && err.contains("worker 127.0.0.1:") && err.contains(why), "{why}: {code}: {err}");
}

#[test]
fn exchanges_that_are_impossible() {
    let says = |statuses: Vec<LuStatus>| {
        against(move |client, _| statuses.iter().for_each(|status| say(client, status)))
    };
    let factored = |step, pivots| LuStatus::Factored { step, pivots };
    let own: Vec<usize> = (0..8).collect();
    assert_named(says(vec![factored(0, vec![0; 8])]), "wrong pivots");
    assert_named(says(vec![factored(0, own[1..].to_vec())]), "wrong pivots");
    assert_named(says(vec![factored(0, vec![20; 8])]), "wrong pivots");
    assert_named(says(vec![factored(3, own.clone())]), "panel 3");
    assert_named(says(vec![factored(usize::MAX, own.clone())]), "not expected");
    assert_named(says(vec![factored(0, own.clone()), factored(0, own)]), "panel 0");
    assert_named(says(vec![LuStatus::Eliminated { zero: None, overflow: None }]), "not expected");
}

#[test]
fn rows_that_were_not_asked_for() {
    let answers = |change: fn(&mut LuFill, &mut Vec<u8>)| {
        against(move |client, begin| {
            eliminated(client, begin);
            let asked = LuFill::decode(&next(client, &[Kind::LuFetch]).head).unwrap();
            assert_eq!(asked, LuFill { block: 0, first: 0, rows: 20 });
            let (mut head, mut body) = (asked, vec![0; 20 * 8 * 8]);
            change(&mut head, &mut body);
            client.send(Kind::LuFill.code(), &head.encode(), &body);
        })
    };
    assert_named(answers(|head, _| head.block = 1), "not asked for");
    assert_named(answers(|head, _| head.block = u32::MAX as usize), "not asked for");
    assert_named(answers(|head, _| head.first = 1), "not asked for");
    assert_named(answers(|head, _| head.rows = usize::MAX), "not asked for");
    assert_named(answers(|_, body| body.truncate(20 * 8 * 8 - 8)), "not asked for");
    assert_named(answers(|_, body| body.clear()), "without their elements");
    // Before all columns are eliminated.
    let early = against(|client, _| {
        client.send(Kind::LuFill.code(), &LuFill { block: 0, first: 0, rows: 1 }.encode(), &[0; 64]);
    });
    assert_named(early, "no place here");
}

#[test]
fn a_worker_that_is_gone_before_its_rows_have_come() {
    let gone = against(|client, begin| {
        eliminated(client, begin);
        next(client, &[Kind::LuFetch]);
        client.hang_up();
    });
    assert_named(gone, "its columns are lost, so the run has ended");
}

#[test]
fn factors_that_are_wrong_are_not_kept() {
    let (code, err) = against(|client, begin| {
        eliminated(client, begin);
        let mut left = begin.panels();
        loop {
            let came = next(client, &[Kind::LuFetch, Kind::LuCheck, Kind::Bye]);
            match Kind::from_code(came.kind).unwrap() {
                Kind::LuFetch => {
                    let asked = LuFill::decode(&came.head).unwrap();
                    let elements = asked.rows * begin.columns(asked.block).len();
                    let body: Vec<u8> = (0..elements).flat_map(|_| 0.5f64.to_le_bytes()).collect();
                    client.send(Kind::LuFill.code(), &came.head, &body);
                    left -= 1;
                }
                Kind::LuCheck => {
                    assert_eq!(left, 0);
                    say(client, &LuStatus::Checked(f64::NAN));
                }
                _ => {
                    client.send(Kind::Bye.code(), &Bye::default().encode(), &[]);
                    return;
                }
            }
        }
    });
    assert!(code == 4 && err.contains("accepted") && err.contains("nothing was kept"), "{code}: {err}");
    assert!(err.contains("has computed wrongly"), "{err}");
}
