//! Jobs that could run and wait: for the link to send earlier tiles, or for earlier additions.

use bramble_base::{DType, Layout};
use bramble_schedule::worker::{StartLimits, Worker, WorkerAction, WorkerEvent};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, Operation, StoreHead, Then};

/// Small limits.
const LIMITS: StartLimits = StartLimits { unsent_bytes: 70, unsent_tiles: 2, additions: 2 };

/// A square matrix of two rows.
fn header(id: u32, uses: u16, source: MatrixSource) -> MatrixHeader {
    let (dtype, layout) = (DType::F64, Layout::RowMajor);
    MatrixHeader { id, rows: 2, cols: 2, first_line: 0, lines: 2, uses, dtype, layout, source }
}

fn job(operation: Operation, a: u32, b: u32, c: u32, then: Then) -> Job {
    Job { operation, a, b, c, step: 0, epoch: 0, then }
}

/// Stores a whole message.
fn stored(worker: &mut Worker, store: &StoreHead) -> Vec<WorkerAction> {
    worker.handle(WorkerEvent::Announced(store)).unwrap();
    let actions = worker.handle(WorkerEvent::Landed(store)).unwrap();
    worker.validate();
    actions
}

/// Tiles of one job each, from id 10 on, and their jobs.
fn tiles_of_one_job(count: u32) -> StoreHead {
    let mut matrices =
        vec![header(1, count as u16, MatrixSource::Data), header(2, count as u16, MatrixSource::Data)];
    matrices.extend((10..10 + count).map(|id| header(id, 0, MatrixSource::Vacant)));
    let jobs = (10..10 + count).map(|c| job(Operation::Multiply, 1, 2, c, Then::Return));
    StoreHead { jobs: jobs.collect(), matrices }
}

/// The targets of the jobs that start.
fn started(actions: &[WorkerAction]) -> Vec<u32> {
    let starts = actions.iter().filter_map(|action| match action {
        WorkerAction::Start(run) => Some(run.job.c),
        _ => None,
    });
    starts.collect()
}

#[test]
fn a_job_that_makes_a_tile_waits_until_earlier_tiles_are_sent() {
    // Two tiles of 32 bytes are 64 bytes; a third is too much.
    let mut worker = Worker::new(20_000, LIMITS);
    let store = tiles_of_one_job(5);
    assert_eq!(started(&stored(&mut worker, &store)), [10, 11]);
    assert_eq!(worker.waiting(), (3, 0));
    let finished = worker.handle(WorkerEvent::Finished(&store.jobs[0])).unwrap();
    assert!(started(&finished).is_empty(), "the tile has not been sent");
    worker.validate();
    for sent in [10, 11] {
        assert_eq!(started(&worker.handle(WorkerEvent::Returned(sent)).unwrap()), [sent + 2]);
        worker.handle(WorkerEvent::Finished(&store.jobs[sent as usize - 9])).unwrap();
        worker.validate();
    }
    assert_eq!(worker.waiting(), (1, 0));
}

#[test]
fn tiles_in_the_memory_of_the_primary_do_not_wait_for_the_link() {
    let mut worker = Worker::new(20_000, LIMITS);
    let store = tiles_of_one_job(5);
    worker.handle(WorkerEvent::Announced(&store)).unwrap();
    for tile in 10..15 {
        worker.handle(WorkerEvent::Leased(tile)).unwrap();
    }
    assert_eq!(started(&worker.handle(WorkerEvent::Landed(&store)).unwrap()), [10, 11, 12, 13, 14]);
    assert_eq!(worker.waiting(), (0, 0));
}

#[test]
fn of_the_additions_that_events_make_possible_together_the_first_in_order_starts_first() {
    // Sums 20 to 25 of generated operands 1 and 2, or 3 and 4; two additions may run at once.
    let mut matrices: Vec<MatrixHeader> = (1..5).map(|id| header(id, 3, MatrixSource::Generated)).collect();
    matrices.extend((20..26).map(|id| header(id, 1, MatrixSource::Vacant)));
    let sum = |c: u32| {
        let (a, b) = if c < 23 { (3, 4) } else { (1, 2) };
        job(Operation::Add, a, b, c, Then::Close)
    };
    let store = StoreHead { matrices, jobs: (20..26).map(sum).collect() };
    let mut worker = Worker::new(20_000, LIMITS);
    stored(&mut worker, &store);
    let together = worker.handle_all((1..5).map(WorkerEvent::Filled)).unwrap();
    assert_eq!((started(&together), worker.waiting()), (vec![20, 21], (0, 4)));
    worker.validate();
    let ended = [sum(20), sum(21)];
    let next = worker.handle_all(ended.iter().map(WorkerEvent::Finished)).unwrap();
    assert_eq!((started(&next), worker.waiting()), (vec![22, 23], (0, 2)));
}
