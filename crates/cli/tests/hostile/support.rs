//! Messages for the tests: hellos, matrices, jobs, stores; and pseudo-random numbers.

use bramble_matrix::{DType, Layout};
use bramble_wire::message::{
    Generated, Hello, Job, MatrixHeader, MatrixSource, Operation, StoreHead, Then, Wants,
};

/// The hello of every session: f64, a small product.
pub(crate) fn hello() -> Hello {
    Hello {
        session: 0x1234_5677,
        dtype: DType::F64,
        alpha: 1.0,
        beta: 0.0,
        flops: 1e6,
        threads_max: 0,
        memory_bytes: u64::MAX,
        wants: Wants::default(),
        kernel: "simd".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        name: "hostile".to_owned(),
    }
}

/// Bytes per element.
pub(crate) const ELEMENT: usize = 8;

/// A row-major operand with data, all its lines in one frame.
pub(crate) fn data(id: u32, rows: u32, cols: u32, uses: u16) -> MatrixHeader {
    let (dtype, layout, source) = (DType::F64, Layout::RowMajor, MatrixSource::Data);
    MatrixHeader { id, rows, cols, first_line: 0, lines: rows, uses, dtype, layout, source }
}

/// A tile without elements.
pub(crate) fn tile(id: u32, rows: u32, cols: u32) -> MatrixHeader {
    MatrixHeader { source: MatrixSource::Vacant, ..data(id, rows, cols, 0) }
}

/// An operand that the worker generates.
pub(crate) fn generated(id: u32, rows: u32, cols: u32, uses: u16) -> MatrixHeader {
    MatrixHeader { source: MatrixSource::Generated, ..data(id, rows, cols, uses) }
}

/// An operand that jobs compute.
pub(crate) fn made(id: u32, rows: u32, cols: u32, uses: u16) -> MatrixHeader {
    MatrixHeader { source: MatrixSource::Vacant, ..data(id, rows, cols, uses) }
}

/// Its generator: random numbers from element (row, col) on.
pub(crate) fn how(row: u64, col: u64) -> Vec<u8> {
    let mut generator = [0; 16];
    (generator[0], generator[8]) = (1, 7);
    Generated { generator, row, col }.encode()
}

/// One step of a tile.
pub(crate) fn job(a: u32, b: u32, c: u32, step: u32) -> Job {
    Job { operation: Operation::Multiply, a, b, c, step, epoch: 0, then: Then::Continue }
}

/// A step after which the tile is returned.
pub(crate) fn last_job(a: u32, b: u32, c: u32, step: u32) -> Job {
    Job { then: Then::Return, ..job(a, b, c, step) }
}

/// A sum that completes an operand.
pub(crate) fn closing_sum(a: u32, b: u32, c: u32, step: u32) -> Job {
    Job { operation: Operation::Add, then: Then::Close, ..job(a, b, c, step) }
}

/// The head of a store.
pub(crate) fn store(matrices: &[MatrixHeader], jobs: &[Job]) -> Vec<u8> {
    StoreHead { matrices: matrices.to_vec(), jobs: jobs.to_vec() }.encode()
}

/// The bytes of `count` elements.
pub(crate) fn elements(count: usize) -> Vec<u8> {
    vec![0; count * ELEMENT]
}

/// Reproducible pseudo-random numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}
