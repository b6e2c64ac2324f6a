//! What planning is told: the product, and the machines that may compute it.

use bramble_matrix::{DType, Shape};

/// The product C = αAB + βC as far as planning cares.
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
    /// Whether the old C is needed (β ≠ 0).
    pub reads_c: bool,
    /// Whether A's bytes travel (false where a worker can generate them).
    pub sends_a: bool,
    /// Whether B's bytes travel.
    pub sends_b: bool,
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

    /// Bytes of operands that have to leave the primary once: |A| + |B|, and |C| where β ≠ 0.
    pub fn operand_bytes(&self) -> f64 {
        let size = self.dtype.size_bytes() as f64;
        let (m, n, k) = (self.m as f64, self.n as f64, self.k as f64);
        let a = if self.sends_a { m * k } else { 0.0 };
        let b = if self.sends_b { k * n } else { 0.0 };
        let c = if self.reads_c { m * n } else { 0.0 };
        (a + b + c) * size
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

/// The link to a machine, as measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// Payload bytes a second, one direction.
    pub bytes_per_s: f64,
    /// Round trip of a small frame.
    pub round_trip_s: f64,
}

/// A machine that may compute, as it described and measured itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// What to call it in messages.
    pub name: String,
    /// Compute threads.
    pub threads: u32,
    /// Speed of its kernel on this element type, all threads together, Gflop/s.
    pub gflops: f64,
    /// What its cores could do at most (fused multiply-adds from registers), Gflop/s.
    pub peak_gflops: f64,
    /// Bytes of matrices that it will hold.
    pub memory_bytes: u64,
    /// The way there; `None` for threads of the primary's own process.
    pub link: Option<LinkRate>,
    /// Whether its threads run on the primary's own cores (`--local`): then whatever moves bytes takes turns with them.
    pub shares_cores: bool,
    /// Of the primary: what it can send, and receive, over all its links together, bytes a second. Where it is not known,
    /// as much as the fastest link.
    pub nic_bytes_per_s: Option<f64>,
}
