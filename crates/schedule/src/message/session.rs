//! The messages that open and close a session.

use super::{Reader, Wants, Writer};
use crate::ProtocolError;
use crate::limits::{PROTOCOL, THREADS_MAX};
use bramble_matrix::DType;

/// The first bytes of hello and welcome, so that a stranger is told from a worker of another version.
const MAGIC: [u8; 4] = *b"BRMB";

/// More than any machine does; keeps sums of speeds finite.
const GFLOPS_MAX: f64 = 1e9;

/// Primary to worker: what the session will be about.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Number that all later frames carry.
    pub session: u32,
    /// Element type of every matrix.
    pub dtype: DType,
    /// α of every product.
    pub alpha: f64,
    /// β of every product whose C is sent.
    pub beta: f64,
    /// Operations of the whole product: tells the worker whether probing its kernels is worth it.
    pub flops: f64,
    /// Most compute threads that the worker may use; 0 is no limit.
    pub threads_max: u16,
    /// The most bytes of matrices that this product could use at a worker. It grants no more, so that what is
    /// left serves others.
    pub memory_bytes: u64,
    /// What else is wanted beside results.
    pub wants: Wants,
    /// Kernel to use, by name, or `auto`.
    pub kernel: String,
    /// Version of the program.
    pub version: String,
    /// What the primary calls itself.
    pub name: String,
}

/// Worker to primary: what it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// Compute threads.
    pub threads: u16,
    /// Bytes of matrices that it will hold for this session: the primary's credit.
    pub memory_bytes: u64,
    /// Speed of the kernel, all threads together, Gflop/s.
    pub gflops: f64,
    /// Speed that its cores could have at most, Gflop/s.
    pub peak_gflops: f64,
    /// The port where other workers of a product can reach it; 0 where it has none.
    pub port: u16,
    /// The kernel it uses.
    pub kernel: String,
    /// Version of the program.
    pub version: String,
    /// What the worker calls itself.
    pub name: String,
}

/// What one compute thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// Jobs finished.
    pub jobs: u64,
    /// Microseconds spent in kernels.
    pub busy_us: u64,
    /// Microseconds since it was started that it was not.
    pub idle_us: u64,
    /// Microseconds of processor time that it had; 0 where the primary did not ask.
    pub cpu_us: u64,
}

/// What the processor time of the thread that moves and decides went to, microseconds; all 0 where the primary did not ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoReport {
    /// Giving bytes to the system, encryption with it.
    pub sending_us: u64,
    /// Taking bytes from it, checksums and decryption with it.
    pub receiving_us: u64,
    /// Making bodies and heads, and their checksums.
    pub encoding_us: u64,
    /// The session's state machine.
    pub scheduling_us: u64,
    /// All that the thread had while the session ran, the others above and other sessions with it.
    pub cpu_us: u64,
}

/// Worker to primary at the end: its account. The primary's own goodbye has no threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bye {
    /// One entry a thread.
    pub threads: Vec<ThreadReport>,
    /// Most bytes of matrices that were held at once.
    pub held_bytes_max: u64,
    /// The thread that is no compute thread.
    pub io: IoReport,
    /// Bytes that came from other workers, with all that frames them.
    pub relayed_bytes_in: u64,
    /// Bytes that went to other workers.
    pub relayed_bytes_out: u64,
}

/// Checks what both openings begin with; gives the other end's version.
fn check_opening(reader: &mut Reader<'_>) -> Result<String, ProtocolError> {
    if reader.array()? != MAGIC {
        return Err(ProtocolError::new("it does not speak this protocol"));
    }
    let protocol = reader.u16()?;
    let version = reader.text()?;
    if protocol != PROTOCOL {
        return Err(ProtocolError::new(format!(
            "it is bramble {version} with protocol {protocol}, this is {} with protocol {PROTOCOL}; install the \
             same version on both",
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(version)
}

fn opening(version: &str) -> Writer {
    let mut writer = Writer::default();
    writer.raw(&MAGIC);
    writer.u16(PROTOCOL);
    writer.text(version);
    writer
}

impl Hello {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = opening(&self.version);
        w.u32(self.session);
        w.u8(self.dtype.code());
        w.f64(self.alpha);
        w.f64(self.beta);
        w.f64(self.flops);
        w.u16(self.threads_max);
        w.u64(self.memory_bytes);
        w.u8(self.wants.code());
        w.text(&self.kernel);
        w.text(&self.name);
        w.finish()
    }

    /// Reads and checks a hello.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let version = check_opening(&mut r)?;
        let session = r.u32()?;
        let dtype =
            DType::from_code(r.u8()?).ok_or_else(|| ProtocolError::new("an element type that is unknown"))?;
        let (alpha, beta, flops) = (r.f64()?, r.f64()?, r.f64()?);
        let (threads_max, memory_bytes) = (r.u16()?, r.u64()?);
        let wants = Wants::from_code(r.u8()?)?;
        let (kernel, name) = (r.text()?, r.text()?);
        r.end()?;
        if !flops.is_finite() || flops < 0.0 || memory_bytes == 0 {
            return Err(ProtocolError::new("a product of no sensible size"));
        }
        Ok(Self {
            session,
            dtype,
            alpha,
            beta,
            flops,
            threads_max,
            memory_bytes,
            wants,
            kernel,
            version,
            name,
        })
    }
}

impl Welcome {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = opening(&self.version);
        w.u16(self.threads);
        w.u64(self.memory_bytes);
        w.f64(self.gflops);
        w.f64(self.peak_gflops);
        w.u16(self.port);
        w.text(&self.kernel);
        w.text(&self.name);
        w.finish()
    }

    /// Reads and checks a welcome.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let version = check_opening(&mut r)?;
        let threads = r.u16()?;
        let memory_bytes = r.u64()?;
        let (gflops, peak_gflops) = (r.f64()?, r.f64()?);
        let port = r.u16()?;
        let (kernel, name) = (r.text()?, r.text()?);
        r.end()?;
        let sane = |x: f64| x > 0.0 && x <= GFLOPS_MAX;
        if threads == 0 || !sane(gflops) || !sane(peak_gflops) {
            return Err(ProtocolError::new("it claims no threads, or a speed that no machine has"));
        }
        Ok(Self { threads, memory_bytes, gflops, peak_gflops, port, kernel, version, name })
    }
}

impl Bye {
    /// The bytes of the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.held_bytes_max);
        let io = &self.io;
        for us in [io.sending_us, io.receiving_us, io.encoding_us, io.scheduling_us, io.cpu_us] {
            w.u64(us);
        }
        // Nobody misses the accounts of more threads than any machine has.
        w.count(self.threads.len().min(THREADS_MAX));
        for thread in self.threads.iter().take(THREADS_MAX) {
            w.u64(thread.jobs);
            w.u64(thread.busy_us);
            w.u64(thread.idle_us);
            w.u64(thread.cpu_us);
        }
        w.u64(self.relayed_bytes_in);
        w.u64(self.relayed_bytes_out);
        w.finish()
    }

    /// Reads a goodbye.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(head);
        let held_bytes_max = r.u64()?;
        let io = IoReport {
            sending_us: r.u64()?,
            receiving_us: r.u64()?,
            encoding_us: r.u64()?,
            scheduling_us: r.u64()?,
            cpu_us: r.u64()?,
        };
        let count = r.u16()?;
        if usize::from(count) > THREADS_MAX {
            return Err(ProtocolError::new(format!("a goodbye of {count} threads")));
        }
        let mut threads = Vec::new();
        for _ in 0..count {
            let (jobs, busy_us) = (r.u64()?, r.u64()?);
            threads.push(ThreadReport { jobs, busy_us, idle_us: r.u64()?, cpu_us: r.u64()? });
        }
        let (relayed_bytes_in, relayed_bytes_out) = (r.u64()?, r.u64()?);
        r.end()?;
        Ok(Self { threads, held_bytes_max, io, relayed_bytes_in, relayed_bytes_out })
    }
}
