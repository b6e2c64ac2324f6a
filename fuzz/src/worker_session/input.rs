//! The messages of the primary in the target: valid heads, and heads that fit nothing.

use crate::bytes::Bytes;
use bramble_matrix::{DType, Layout};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, Operation, StoreHead, Then};

const SOURCES: [MatrixSource; 8] = [
    MatrixSource::Data,
    MatrixSource::Vacant,
    MatrixSource::Generated,
    MatrixSource::Partial,
    MatrixSource::Relayed,
    MatrixSource::Data,
    MatrixSource::Resident,
    MatrixSource::Vacant,
];

/// A head of small numbers, so that ids collide.
pub(super) fn any_store(bytes: &mut Bytes<'_>) -> StoreHead {
    let counts = bytes.u8();
    let matrices = (0..counts % 4).map(|_| any_matrix(bytes)).collect();
    let jobs = (0..counts / 4 % 4).map(|_| any_job(bytes)).collect();
    StoreHead { matrices, jobs }
}

fn any_matrix(bytes: &mut Bytes<'_>) -> MatrixHeader {
    let (id, shape, lines, kind) = (bytes.u8(), bytes.u8(), bytes.u8(), bytes.u8());
    // Now and then a side is so long that a product of two overflows 32 bits.
    let side = |small: u8| if small == 15 { 1 << 20 } else { u32::from(small) };
    MatrixHeader {
        id: u32::from(id % 16),
        rows: side(shape % 16),
        cols: side(shape / 16),
        first_line: u32::from(lines % 16),
        lines: u32::from(lines / 16),
        uses: u16::from(id / 16 % 4),
        dtype: DType::from_code(kind & 3).unwrap_or(DType::F64),
        layout: if kind & 4 == 0 { Layout::RowMajor } else { Layout::ColMajor },
        source: SOURCES[usize::from(kind >> 3 & 7)],
    }
}

fn any_job(bytes: &mut Bytes<'_>) -> Job {
    let (ab, c, step) = (bytes.u8(), bytes.u8(), bytes.u8());
    Job {
        operation: [Operation::Multiply, Operation::Multiply, Operation::Add, Operation::Subtract]
            [usize::from(step >> 6)],
        a: u32::from(ab % 16),
        b: u32::from(ab / 16),
        c: u32::from(c % 16),
        // The largest step number, too.
        step: if step == 255 { u32::MAX } else { u32::from(step) },
        epoch: u32::from(c >> 6),
        then: [Then::Continue, Then::Return, Then::Close, Then::Return][usize::from(c >> 4 & 3)],
    }
}

/// Operands and tiles that fit each other, with all their jobs, as an honest primary sends them.
pub(super) fn product(bytes: &mut Bytes<'_>) -> StoreHead {
    let (shape, ids, kind) = (bytes.u8(), bytes.u8(), bytes.u8());
    let (m, k, n) = (1 + u32::from(shape & 3), 1 + u32::from(shape >> 2 & 3), 1 + u32::from(shape >> 4 & 3));
    let first_id = u32::from(ids % 16);
    let steps = 1 + u32::from(ids / 16 % 3);
    // The largest step numbers, too.
    let first_step = if kind & 8 == 0 { 0 } else { u32::MAX - (steps - 1) };
    let header = |id: u32, rows: u32, cols: u32, uses: u16, source: MatrixSource| MatrixHeader {
        id: first_id + id,
        rows,
        cols,
        first_line: 0,
        lines: rows,
        uses,
        dtype: DType::F32,
        layout: Layout::RowMajor,
        source,
    };
    let operand = if kind & 1 == 0 { MatrixSource::Data } else { MatrixSource::Generated };
    let tile = [MatrixSource::Vacant, MatrixSource::Data, MatrixSource::Vacant, MatrixSource::Partial]
        [usize::from(kind >> 1 & 1 | kind >> 3 & 2)];
    let mut store = StoreHead { matrices: vec![header(0, m, n, 0, tile)], jobs: Vec::new() };
    for step in 0..steps {
        let (a, b) = (1 + 2 * step, 2 + 2 * step);
        store.matrices.push(header(a, m, k, 1, operand));
        store.matrices.push(header(b, k, n, 1, MatrixSource::Data));
        let then = if step + 1 == steps { Then::Return } else { Then::Continue };
        let (operation, a, b) = (Operation::Multiply, first_id + a, first_id + b);
        store.jobs.push(Job { operation, a, b, c: first_id, step: first_step + step, epoch: 0, then });
    }
    if kind & 4 != 0 && m > 1 {
        // The last lines of one operand are withheld, so its jobs must wait.
        store.matrices[1].lines -= 1;
    }
    store
}

/// Two operands, and up to six matrices, each made by one to four jobs out of earlier ones; a matrix that no job reads
/// is a tile. A job may precede the jobs that make its operands.
pub(super) fn sums(bytes: &mut Bytes<'_>) -> StoreHead {
    let (shape, order) = (bytes.u8(), bytes.u8());
    let (side, made) = (1 + u32::from(shape & 3), 1 + u32::from(shape >> 2) % 6);
    let mut jobs = Vec::new();
    for c in 2..2 + made {
        let choice = bytes.u8();
        let count = 1 + u32::from(choice >> 6);
        for step in 0..count {
            let which = u32::from(bytes.u8());
            let a = which % c;
            let operation =
                [Operation::Multiply, Operation::Add, Operation::Subtract][usize::from(choice) % 3];
            let then = if step + 1 == count { Then::Close } else { Then::Continue };
            jobs.push(Job { operation, a, b: (a + 1 + which / c % (c - 1)) % c, c, step, epoch: 0, then });
        }
    }
    let mut store = StoreHead::default();
    for id in 0..2 + made {
        let uses = jobs.iter().map(|j| u16::from(j.a == id) + u16::from(j.b == id)).sum();
        let source = if id < 2 { MatrixSource::Data } else { MatrixSource::Vacant };
        if uses == 0 {
            // An operand that no job reads is not sent.
            jobs.iter_mut()
                .filter(|j| j.c == id && j.then == Then::Close)
                .for_each(|j| j.then = Then::Return);
        }
        if uses > 0 || id >= 2 {
            let (dtype, layout) = (DType::F32, Layout::RowMajor);
            let (rows, cols, lines) = (side, side, side);
            store.matrices.push(MatrixHeader {
                id,
                rows,
                cols,
                first_line: 0,
                lines,
                uses,
                dtype,
                layout,
                source,
            });
        }
    }
    match order % 3 {
        0 => {}
        // Jobs of later matrices first; each matrix's own jobs keep their order.
        1 => jobs.sort_by_key(|j| (u32::MAX - j.c, j.step)),
        // One job of each matrix in turn.
        _ => jobs.sort_by_key(|j| (j.step, u32::MAX - j.c)),
    }
    // One job too many, now and then.
    if order & 64 != 0 {
        jobs.extend(jobs.first().copied());
    }
    store.jobs = jobs;
    store
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for kind in 0..16 {
        for ids in [0, 16, 32] {
            // A whole product, its bodies, and enough of the events that follow.
            let mut seed = vec![11, 4, 21, ids, kind, 5];
            seed.extend([1, 1, 1, 0, 0, 0, 2, 2].repeat(3));
            seeds.push(seed);
        }
    }
    for order in [0, 1, 2, 64] {
        for shape in [4, 9, 22] {
            for choice in [0, 65, 130, 200] {
                let mut seed = vec![11, 5, shape, order];
                seed.extend([choice, 7, 3, 12, 5, 9, 1, 4, 30, 77]);
                seed.extend([choice / 2, 19, 2, 41, 8, 5]);
                seed.extend([7, 0, 8, 16, 0, 2, 10, 0, 24, 0, 2, 2].repeat(4));
                seeds.push(seed);
            }
        }
    }
    // An operand in two parts.
    seeds.push(vec![11, 6, 1, 0x11, 0x44, 0x20, 0, 5, 5, 1, 0x11, 0x44, 0x22, 0, 5]);
    // A matrix from another worker, to be relayed to two more; then that worker is lost, or its lines arrive.
    let announced = [11, 6, 1, 0x31, 0x22, 0x23, 0x20, 6];
    let orders = [7, 0x40, 0, 1, 1, 1, 7];
    let (lost, lines, passed) = ([7, 4, 3], [7, 6, 1], [7, 2, 0]);
    seeds.push([&announced[..], &orders, &lost, &[6, 1, 0x31, 0x22, 0x20, 0, 6], &passed].concat());
    seeds.push([&announced[..], &orders, &lines, &lines, &passed].concat());
    seeds.push([&announced[..], &lines, &orders, &passed, &lost].concat());
    seeds
}
