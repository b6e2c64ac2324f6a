//! The contract of links over MPI: a process has one library and enters it once, so the
//! contract tests are run in a child process for each library.

use super::CASE_MAX;
use bramble_link::{FrameLimits, Launch, Link, World};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Output};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Set in a child process that tests only MPI links.
pub(crate) const ONLY: &str = "BRAMBLE_TEST_ONLY_MPI";
/// Tests that may be skipped on this machine: if it is set and does not name `mpi`, every library has to be
/// installed.
const MAY_LACK: &str = "BRAMBLE_TEST_MAY_LACK";
/// Exit code of a child process without the library.
const MISSING: i32 = 77;

type Check = Box<dyn FnOnce(&World) + Send>;
type Outcome = Result<(), Box<dyn Any + Send>>;

#[test]
fn the_same_over_mpi() {
    if std::env::var_os(ONLY).is_some() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let run = |library: &str| {
        let mut command = Command::new(&program);
        command.args(["--test-threads=1"]).env(ONLY, "1").env("BRAMBLE_MPI", library);
        // The test itself may run in an MPI job.
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("OMPI_") || name.starts_with("PM"))
        {
            command.env_remove(name);
        }
        (library.to_owned(), command.stdout(std::process::Stdio::piped()).spawn().unwrap())
    };
    for (library, child) in ["libmpi.so.40", "libmpich.so.12"].map(run) {
        let output = ended(child, &library);
        if output.status.code() == Some(MISSING) {
            let is_required =
                std::env::var(MAY_LACK).is_ok_and(|names| !names.split([' ', ',']).any(|name| name == "mpi"));
            assert!(!is_required, "{library} is not installed, and {MAY_LACK} does not name mpi");
            println!("skipped: {library} is not installed");
            continue;
        }
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("frames_arrive_whole"), "{library}: {told}");
    }
}

/// The output of a process that has ended; one that hangs is killed, and fails the test.
fn ended(mut child: Child, library: &str) -> Output {
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            let told = child.wait_with_output().unwrap().stdout;
            panic!("{library}: no end after two minutes: {}", String::from_utf8_lossy(&told));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Runs a check, which has this name, over a link of this process with itself.
pub(crate) fn each<F: AsyncFn(Link, Link) + Send + 'static>(case: &str, check: F) {
    let (tell, told) = mpsc::channel();
    let one: Check = Box::new(move |world| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let result = catch_unwind(AssertUnwindSafe(|| {
            local.block_on(&runtime, async {
                tokio::task::spawn_local(world.drive(true).unwrap());
                let (mut a, mut b) = world.own_links().unwrap();
                for end in [&mut a, &mut b] {
                    end.receiver.set_limits(FrameLimits::SESSION);
                    end.receiver.set_session(7);
                    end.sender.set_session(7);
                }
                check(a, b).await;
            });
        }));
        let _ = tell.send(result);
    });
    checks().lock().unwrap_or_else(PoisonError::into_inner).send(one).unwrap();
    let Ok(outcome) = told.recv_timeout(CASE_MAX) else {
        panic!("{case} on mpi: no end within {CASE_MAX:?}")
    };
    let outcome: Outcome = outcome;
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

/// The channel to the thread that has entered MPI, on which all checks run.
fn checks() -> &'static Mutex<mpsc::Sender<Check>> {
    static CHECKS: OnceLock<Mutex<mpsc::Sender<Check>>> = OnceLock::new();
    CHECKS.get_or_init(|| {
        let (checks, next) = mpsc::channel::<Check>();
        std::thread::spawn(move || {
            let world =
                match World::enter(Launch::default(), Duration::from_secs(60), |late| panic!("{late:?}")) {
                    Ok(world) => world,
                    Err(e) => {
                        eprintln!("{e}");
                        std::process::exit(if e.to_string().contains("cannot open shared object") {
                            MISSING
                        } else {
                            1
                        });
                    }
                };
            while let Ok(check) = next.recv() {
                check(&world);
                // All messages that the links have left in flight complete.
                let deadline = Instant::now() + Duration::from_secs(10);
                while !world.is_quiet() {
                    assert!(Instant::now() < deadline, "something is under way for ever");
                }
            }
        });
        Mutex::new(checks)
    })
}
