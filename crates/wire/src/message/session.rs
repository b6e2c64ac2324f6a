//! Messages that open and close a session.

use super::{FieldReader, FieldWriter, Wants};
use crate::ProtocolError;
use crate::limits::{PROTOCOL, THREADS_MAX};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bramble_base::DType;

/// The first bytes of hello and welcome; they tell a foreign program from a worker of another version.
const MAGIC: [u8; 4] = *b"BRMB";

/// Beyond any machine; keeps sums of speeds finite.
const GFLOPS_MAX: f64 = 1e9;

/// Primary to worker: parameters of the session.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// Number that all later frames of this product carry; not 0, which frames outside a product carry.
    pub session: u32,
    /// Element type of every matrix.
    pub dtype: DType,
    /// α of every product.
    pub alpha: f64,
    /// β of every product whose C is sent.
    pub beta: f64,
    /// Operations of the whole product, by which the worker decides whether probing its kernels pays.
    pub flops: f64,
    /// Maximum compute threads that the worker may use; 0 for no limit.
    pub threads_max: u16,
    /// Maximum bytes of matrices that this product could use at one worker. The worker grants no more, which
    /// leaves memory for other sessions.
    pub memory_bytes: u64,
    /// What the worker should report beside results.
    pub wants: Wants,
    /// Kernel to use, by name, or `auto`.
    pub kernel: String,
    /// Version of the program.
    pub version: String,
    /// Name of the primary.
    pub name: String,
}

/// Rates of a worker's tasks in a factorisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LuSpeeds {
    /// All threads together, updating columns with a narrow and a wide panel, Gflop/s.
    pub update_gflops: [f64; 2],
    /// One thread, factoring a panel, Gflop/s.
    pub panel_gflops: f64,
}

impl LuSpeeds {
    /// Columns of the panels of `update_gflops`.
    pub const WIDTHS: [usize; 2] = [64, 256];
}

/// Worker to primary: its properties.
#[derive(Clone, Debug, PartialEq)]
pub struct Welcome {
    /// Compute threads.
    pub threads: u16,
    /// Bytes of matrices that the worker offers to this session: the primary's credit.
    pub memory_bytes: u64,
    /// Bytes that it has left for parts of placed matrices, beside the grant.
    pub hold_bytes: u64,
    /// Speed of the kernel on all threads together, Gflop/s.
    pub gflops: f64,
    /// Peak speed of its cores, Gflop/s.
    pub peak_gflops: f64,
    /// The tasks of a factorisation, if the primary wanted them and the worker has measured them.
    pub lu: Option<LuSpeeds>,
    /// Port at which other workers of a product can reach it; 0 for none.
    pub port: u16,
    /// The kernel that it uses.
    pub kernel: String,
    /// Version of the program.
    pub version: String,
    /// Name of the worker.
    pub name: String,
}

/// Account of one compute thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadReport {
    /// Jobs finished.
    pub jobs: u64,
    /// Microseconds spent in kernels.
    pub busy_us: u64,
    /// Microseconds since its start in which it was not in a kernel.
    pub idle_us: u64,
    /// Microseconds of processor time; 0 if the primary did not ask.
    pub cpu_us: u64,
}

/// Processor time of the I/O thread by purpose, in microseconds; all 0 if the primary did not ask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoReport {
    /// Sending bytes to the system, with encryption.
    pub sending_us: u64,
    /// Receiving bytes from the system, with checksums and decryption.
    pub receiving_us: u64,
    /// Making bodies and heads, and their checksums.
    pub encoding_us: u64,
    /// The session's state machine.
    pub scheduling_us: u64,
    /// All processor time of the thread during the session: the purposes above, and other sessions.
    pub cpu_us: u64,
}

/// Worker to primary at the end: its account. The primary's own goodbye has no threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bye {
    /// One entry per thread.
    pub threads: Vec<ThreadReport>,
    /// Maximum bytes of matrices stored at once.
    pub held_bytes_max: u64,
    /// The I/O thread.
    pub io: IoReport,
    /// Bytes received from other workers, with all framing.
    pub relayed_bytes_in: u64,
    /// Bytes sent to other workers, with all framing.
    pub relayed_bytes_out: u64,
}

/// Checks the common beginning of hello and welcome; returns the other end's version.
fn check_opening(reader: &mut FieldReader<'_>) -> Result<String, ProtocolError> {
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

fn opening(version: &str) -> FieldWriter {
    let mut writer = FieldWriter::default();
    writer.raw(&MAGIC);
    writer.u16(PROTOCOL);
    writer.text(version);
    writer
}

impl Hello {
    /// Encodes the head.
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

    /// Decodes and checks a hello.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let version = check_opening(&mut r)?;
        let session = r.u32()?;
        if session == 0 {
            return Err(ProtocolError::new("a product with the number 0"));
        }
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
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = opening(&self.version);
        w.u16(self.threads);
        w.u64(self.memory_bytes);
        w.u64(self.hold_bytes);
        w.f64(self.gflops);
        w.f64(self.peak_gflops);
        w.u8(u8::from(self.lu.is_some()));
        if let Some(LuSpeeds { update_gflops: [narrow, wide], panel_gflops }) = self.lu {
            [narrow, wide, panel_gflops].into_iter().for_each(|rate| w.f64(rate));
        }
        w.u16(self.port);
        w.text(&self.kernel);
        w.text(&self.name);
        w.finish()
    }

    /// Decodes and checks a welcome.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
        let version = check_opening(&mut r)?;
        let threads = r.u16()?;
        let (memory_bytes, hold_bytes) = (r.u64()?, r.u64()?);
        let (gflops, peak_gflops) = (r.f64()?, r.f64()?);
        let lu = match r.u8()? {
            0 => None,
            1 => Some(LuSpeeds { update_gflops: [r.f64()?, r.f64()?], panel_gflops: r.f64()? }),
            other => return Err(ProtocolError::new(format!("task rates of kind {other}"))),
        };
        let port = r.u16()?;
        let (kernel, name) = (r.text()?, r.text()?);
        r.end()?;
        let sane = |x: f64| x > 0.0 && x <= GFLOPS_MAX;
        let is_sane = |lu: LuSpeeds| lu.update_gflops.into_iter().all(sane) && sane(lu.panel_gflops);
        if threads == 0 || !sane(gflops) || !sane(peak_gflops) || !lu.is_none_or(is_sane) {
            return Err(ProtocolError::new("it claims no threads, or a speed that no machine has"));
        }
        Ok(Self { threads, memory_bytes, hold_bytes, gflops, peak_gflops, lu, port, kernel, version, name })
    }
}

impl Bye {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.u64(self.held_bytes_max);
        let io = &self.io;
        for us in [io.sending_us, io.receiving_us, io.encoding_us, io.scheduling_us, io.cpu_us] {
            w.u64(us);
        }
        // Accounts beyond this limit are dropped; no machine has that many threads.
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

    /// Decodes a goodbye.
    pub fn decode(head: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = FieldReader::new(head);
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
