//! What a primary says in the target: heads that may be right, and heads that fit nothing.

use crate::bytes::Bytes;
use bramble_matrix::{DType, Layout};
use bramble_schedule::message::{Job, MatrixHeader, Operation, Source, StoreHead, Then};

const SOURCES: [Source; 8] = [
    Source::Data,
    Source::Vacant,
    Source::Generated,
    Source::Partial,
    Source::Relayed,
    Source::Data,
    Source::Relayed,
    Source::Vacant,
];

/// A head of small numbers, so that they meet.
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
        // The last of all steps, too.
        step: if step == 255 { u32::MAX } else { u32::from(step) },
        epoch: u32::from(c >> 6),
        then: [Then::Continue, Then::Return, Then::Close, Then::Return][usize::from(c >> 4 & 3)],
    }
}

/// Operands and tiles that fit each other, and every job of theirs: what an honest primary sends.
pub(super) fn product(bytes: &mut Bytes<'_>) -> StoreHead {
    let (shape, ids, kind) = (bytes.u8(), bytes.u8(), bytes.u8());
    let (m, k, n) = (1 + u32::from(shape & 3), 1 + u32::from(shape >> 2 & 3), 1 + u32::from(shape >> 4 & 3));
    let first_id = u32::from(ids % 16);
    let steps = 1 + u32::from(ids / 16 % 3);
    // The last steps that there are, too.
    let first_step = if kind & 8 == 0 { 0 } else { u32::MAX - (steps - 1) };
    let header = |id: u32, rows: u32, cols: u32, uses: u16, source: Source| MatrixHeader {
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
    let operand = if kind & 1 == 0 { Source::Data } else { Source::Generated };
    let tile = [Source::Vacant, Source::Data, Source::Vacant, Source::Partial]
        [usize::from(kind >> 1 & 1 | kind >> 3 & 2)];
    let mut store = StoreHead { matrices: vec![header(0, m, n, 0, tile)], jobs: Vec::new() };
    for step in 0..steps {
        let (a, b) = (1 + 2 * step, 2 + 2 * step);
        store.matrices.push(header(a, m, k, 1, operand));
        store.matrices.push(header(b, k, n, 1, Source::Data));
        let then = if step + 1 == steps { Then::Return } else { Then::Continue };
        let (operation, a, b) = (Operation::Multiply, first_id + a, first_id + b);
        store.jobs.push(Job { operation, a, b, c: first_id, step: first_step + step, epoch: 0, then });
    }
    if kind & 4 != 0 && m > 1 {
        // The last lines of one operand are yet to come, so its jobs have to wait.
        store.matrices[1].lines -= 1;
    }
    store
}

/// Two operands, and up to six matrices, each of which one to four jobs make out of those before it; what nobody reads is
/// a tile. Jobs may come before those that make what they read.
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
        let source = if id < 2 { Source::Data } else { Source::Vacant };
        if uses == 0 {
            // An operand that nobody reads does not come.
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
        // Those of later matrices first; each one's own keep their order.
        1 => jobs.sort_by_key(|j| (u32::MAX - j.c, j.step)),
        // In turns.
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
            // A whole product, its landing, and enough of everything that follows.
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
    // One that another worker sends, to be passed on to two others; then that worker is gone, or its lines come.
    let announced = [11, 6, 1, 0x31, 0x22, 0x23, 0x20, 6];
    let orders = [7, 0x40, 0, 1, 1, 1, 7];
    let (lost, lines, passed) = ([7, 4, 3], [7, 6, 1], [7, 2, 0]);
    seeds.push([&announced[..], &orders, &lost, &[6, 1, 0x31, 0x22, 0x20, 0, 6], &passed].concat());
    seeds.push([&announced[..], &orders, &lines, &lines, &passed].concat());
    seeds.push([&announced[..], &lines, &orders, &passed, &lost].concat());
    seeds
}
