//! The input of planning: the product, and the machines that may compute it.

use alloc::string::String;
use bramble_base::{DType, Shape};

/// The product C = αAB + βC, as far as planning needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Rows of A and C.
    pub m: u64,
    /// Columns of B and C.
    pub n: u64,
    /// Columns of A, rows of B.
    pub k: u64,
    /// Element type of all three.
    pub dtype: DType,
    /// Whether the old C is read (β ≠ 0).
    pub reads_c: bool,
    /// Where workers get A from.
    pub a_source: OperandSource,
    /// Where workers get B from.
    pub b_source: OperandSource,
}

/// Where workers get the elements of an operand from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandSource {
    /// The primary sends them.
    Sent,
    /// Each worker generates the panels that it needs.
    Generated,
    /// It is placed: each worker reads its own part in place.
    Resident,
}

impl OperandSource {
    /// Generated or, if not, sent.
    pub const fn generated_if(is_generated: bool) -> Self {
        if is_generated { Self::Generated } else { Self::Sent }
    }

    /// Whether the primary sends its bytes.
    pub const fn is_sent(self) -> bool {
        matches!(self, Self::Sent)
    }
}

impl Problem {
    /// Floating-point (or integer) operations: 2mnk.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Bytes of one element.
    pub fn element_bytes(&self) -> u64 {
        self.dtype.size_bytes() as u64
    }

    /// Bytes of operands that the primary has to send once: |A| + |B|, and |C| if β ≠ 0.
    pub fn operand_bytes(&self) -> f64 {
        let size = self.dtype.size_bytes() as f64;
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let a = if self.a_source.is_sent() { m * k } else { 0.0 };
        let b = if self.b_source.is_sent() { k * n } else { 0.0 };
        let c = if self.reads_c { m * n } else { 0.0 };
        (a + b + c) * size
    }

    /// The same product with panels of placed operands sent.
    pub fn without_resident(self) -> Self {
        let sent = |source| if source == OperandSource::Resident { OperandSource::Sent } else { source };
        Self { a_source: sent(self.a_source), b_source: sent(self.b_source), ..self }
    }

    /// Whether an operand is placed on the workers.
    pub fn has_resident(&self) -> bool {
        [self.a_source, self.b_source].contains(&OperandSource::Resident)
    }

    /// Bytes of C.
    pub fn result_bytes(&self) -> f64 {
        self.m as f64 * self.n as f64 * self.dtype.size_bytes() as f64
    }

    /// Shape of C.
    pub fn result_shape(&self) -> Shape {
        Shape::new(self.m, self.n)
    }
}

/// The measured link to a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// Payload bytes per second in one direction.
    pub bytes_per_s: f64,
    /// Round trip of a small frame.
    pub round_trip_s: f64,
}

/// The rate at which all threads of a machine together read and write memory, in bytes per second, as measured or
/// stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryRate {
    /// The rate for a product: the mean, including the system's work for pages that are touched for the first time.
    pub bytes_per_s: f64,
    /// The highest rate: that of the fastest measured piece, on every thread.
    pub most_bytes_per_s: f64,
}

impl MemoryRate {
    /// A rate that the user states.
    pub fn stated(bytes_per_s: f64) -> Self {
        Self { bytes_per_s, most_bytes_per_s: bytes_per_s }
    }
}

/// A machine that may compute, as it described and measured itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name in messages.
    pub name: String,
    /// Compute threads.
    pub threads: u32,
    /// Speed of its kernel on this element type, all threads together, Gflop/s.
    pub gflops: f64,
    /// The upper limit of its cores (fused multiply-adds in registers), Gflop/s.
    pub peak_gflops: f64,
    /// Bytes of matrices that it may hold.
    pub memory_bytes: u64,
    /// The link to it; `None` for threads of the primary's own process.
    pub link: Option<LinkRate>,
    /// Whether its threads run on the primary's own cores (`--local`): then moving bytes takes CPU time from
    /// computing.
    pub shares_cores: bool,
    /// Only for the primary: the rate at which it can send, and receive, over all its links together, in bytes per
    /// second. If unknown, that of its fastest link.
    pub nic_bytes_per_s: Option<f64>,
    /// The memory rate of all its threads together; unlimited if unknown.
    pub memory_rate: Option<MemoryRate>,
}
