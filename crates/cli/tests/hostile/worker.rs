//! A worker process under test: its log, its resources, and its health.

use crate::client::Client;
use bramble_link::ClusterKey;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The cluster key of all workers that have one.
pub(crate) const KEY: [u8; ClusterKey::BYTES] = [0x5a; ClusterKey::BYTES];
/// Default memory limit of a worker.
pub(crate) const MEMORY_MIB: u64 = 256;
/// Memory of an idle worker at most: the program, stacks of threads, and memory that the allocator keeps.
pub(crate) const IDLE_BYTES_MAX: u64 = 96 << 20;
/// Time limit for expected events; most take milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Whether a worker and its primaries have a cluster key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// TLS, and proofs of `KEY`.
    Keyed,
    /// Loopback without TLS.
    Keyless,
}

pub(crate) const BOTH: [Trust; 2] = [Trust::Keyed, Trust::Keyless];

impl Trust {
    /// The bramble binary with a clean environment, and the key if there is one.
    pub(crate) fn bramble(self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bramble"));
        command.env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
        if self == Self::Keyed {
            command.env("BRAMBLE_KEY", ClusterKey::from_bytes(KEY).to_text());
        }
        command
    }
}

/// A worker process, ended on drop.
pub(crate) struct Worker {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) trust: Trust,
    log: Arc<Mutex<String>>,
    fds: usize,
}

impl Worker {
    pub(crate) fn start(trust: Trust) -> Self {
        Self::with(trust, &[])
    }

    /// Starts a worker with more options.
    pub(crate) fn with(trust: Trust, options: &[&str]) -> Self {
        let mut command = trust.bramble();
        let memory = format!("{MEMORY_MIB}M");
        command.env("BRAMBLE_THREADS", "2");
        command.args(["worker", "--listen", "127.0.0.1:0", "--no-pin", "--memory", &memory]);
        let mut child = command.args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, kept) = (BufReader::new(child.stderr.take().unwrap()).lines(), log.clone());
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let mut worker = Self { child, address, trust, log, fds: 0 };
        worker.says("stop with Ctrl-C");
        worker.fds = worker.fds();
        worker
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that it has written to stderr.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until its log contains a text.
    pub(crate) fn says(&self, text: &str) {
        let said = within(SOON, || self.log().contains(text));
        assert!(said, "its log never had {text:?}:\n{}", self.log());
    }

    pub(crate) fn fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Descriptors opened since it began to listen.
    pub(crate) fn fds_more(&self) -> usize {
        self.fds().saturating_sub(self.fds)
    }

    pub(crate) fn rss_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    pub(crate) fn rss_bytes_max(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with(field));
        let line = line.unwrap_or_else(|| panic!("the worker is dead:\n{}", self.log()));
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Opens a session.
    pub(crate) fn session(&self) -> Client {
        Client::session(self.trust, self.address)
    }

    /// Checks that it runs, has not panicked, has released everything, and computes an honest product correctly.
    pub(crate) fn is_well(&self) {
        self.is_well_below(IDLE_BYTES_MAX);
    }

    /// The same with another limit on its current memory.
    pub(crate) fn is_well_below(&self, bytes_max: u64) {
        assert_eq!(honest_digest(self.trust, &[self.address]), own_digest(), "{}", self.log());
        let back = within(SOON, || self.fds_more() == 0);
        assert!(back, "{} descriptors more than at the beginning:\n{}", self.fds_more(), self.log());
        let small = within(SOON, || self.rss_bytes() <= bytes_max);
        assert!(small, "it still uses {} MiB:\n{}", self.rss_bytes() >> 20, self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a condition became true in time.
pub(crate) fn within(time: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > time {
            return false;
        }
        sleep(Duration::from_millis(20));
    }
    true
}

const HONEST: [&str; 12] = [
    "multiply",
    "random:150x130:f64:1",
    "random:130x170:f64:2",
    "--kernel",
    "simd",
    "--tile",
    "64",
    "--panel",
    "64",
    "--threads",
    "1",
    "--json",
];

/// The digest of an honest product on these workers.
pub(crate) fn honest_digest(trust: Trust, workers: &[SocketAddr]) -> String {
    product(trust, &HONEST, workers)
}

/// The digest of the same product without workers.
fn own_digest() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| product(Trust::Keyless, &HONEST, &[]))
}

/// Runs `bramble multiply`; returns the digest of C.
pub(crate) fn product(trust: Trust, words: &[&str], workers: &[SocketAddr]) -> String {
    let mut command = trust.bramble();
    // A named strategy: a machine alone might choose Strassen's method, which gives other bits.
    command.args(words).args(["--strategy", "reuse"]);
    if !workers.is_empty() {
        let list: Vec<String> = workers.iter().map(SocketAddr::to_string).collect();
        command.args(["-w", &list.join(",")]);
    }
    let done = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "an honest product failed: {err}");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    report["digest"].as_str().unwrap().to_owned()
}
