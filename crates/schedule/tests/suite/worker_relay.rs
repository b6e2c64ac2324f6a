//! The worker's part of relaying without a primary or a neighbour: which matrices it passes on and when,
//! which lines it accepts, and what it requests from the primary when a neighbour is lost.

use bramble_base::{DType, Layout};
use bramble_schedule::worker::{RunnableJob, StartLimits, Worker, WorkerAction, WorkerEvent};
use bramble_wire::message::{
    Forward, Job, MatrixHeader, MatrixSource, Missing, Operation, PieceHead, StoreHead, Then,
};

/// A square matrix of two rows.
fn header(id: u32, uses: u16, source: MatrixSource) -> MatrixHeader {
    let (dtype, layout) = (DType::F64, Layout::RowMajor);
    MatrixHeader { id, rows: 2, cols: 2, first_line: 0, lines: 2, uses, dtype, layout, source }
}

/// A matrix that worker number `from` relays.
fn relayed(id: u32, uses: u16, from: u32) -> MatrixHeader {
    MatrixHeader { first_line: from, ..header(id, uses, MatrixSource::Relayed) }
}

const JOB: Job =
    Job { operation: Operation::Multiply, a: 1, b: 2, c: 3, step: 0, epoch: 0, then: Then::Return };
const START: WorkerAction =
    WorkerAction::Start(RunnableJob { job: JOB, reads_tile: false, scales_tile: false });

fn order(id: u32, to: u32, id_there: u32) -> Forward {
    Forward { id, to, id_there }
}

fn piece(id: u32, first_line: u32, lines: u32) -> PieceHead {
    PieceHead { id, first_line, lines }
}

/// A worker with ample memory.
fn worker() -> Worker {
    Worker::new(20_000, StartLimits::for_threads(1))
}

/// Actions of a whole store message.
fn stored(worker: &mut Worker, matrices: Vec<MatrixHeader>, jobs: Vec<Job>) -> Vec<WorkerAction> {
    let store = StoreHead { matrices, jobs };
    let mut actions = worker.handle(WorkerEvent::Announced(&store)).unwrap();
    actions.extend(worker.handle(WorkerEvent::Landed(&store)).unwrap());
    worker.validate();
    actions.retain(|a| !matches!(a, WorkerAction::Reserve(_)));
    actions
}

/// Lines from a neighbour, as the shell takes them.
fn taken(worker: &mut Worker, from: u32, piece: &PieceHead) -> Vec<WorkerAction> {
    assert!(worker.expects(from, piece).unwrap().is_some());
    let actions = worker.handle(WorkerEvent::Piece(piece)).unwrap();
    worker.validate();
    actions
}

fn freed(id: u32, uses: u64) -> [WorkerAction; 2] {
    [WorkerAction::Release(id), WorkerAction::Credit(512 + 32 * uses)]
}

fn refused<T>(result: Result<T, bramble_wire::ProtocolError>, why: &str) {
    match result {
        Ok(_) => panic!("it should say: {why}"),
        Err(e) => assert!(e.0.contains(why), "{} should say: {why}", e.0),
    }
}

#[test]
fn a_relayed_matrix_stays_until_it_was_sent_and_its_jobs_are_done() {
    let mut worker = worker();
    let matrices = vec![
        header(1, 2, MatrixSource::Data),
        header(2, 1, MatrixSource::Data),
        header(3, 0, MatrixSource::Vacant),
    ];
    assert_eq!(stored(&mut worker, matrices, vec![JOB]), [START]);
    let forward = order(1, 7, 90);
    assert_eq!(worker.handle(WorkerEvent::Relay(&[forward])).unwrap(), [WorkerAction::Pass(forward)]);
    let back = WorkerAction::Return { tile: 3, epoch: 0, step_start: 0, step_end: 1 };
    assert_eq!(worker.handle(WorkerEvent::Finished(&JOB)).unwrap(), [&[back][..], &freed(2, 1)].concat());
    worker.validate();
    assert_eq!(worker.handle(WorkerEvent::Passed(&forward)).unwrap(), freed(1, 2));
    worker.validate();
}

#[test]
fn an_order_for_an_incomplete_matrix_is_carried_out_once_it_is_complete() {
    let mut worker = worker();
    stored(&mut worker, vec![relayed(1, 1, 5)], Vec::new());
    let forward = order(1, 6, 40);
    assert_eq!(worker.handle(WorkerEvent::Relay(&[forward])).unwrap(), []);
    assert_eq!(taken(&mut worker, 5, &piece(1, 0, 1)), []);
    assert_eq!(taken(&mut worker, 5, &piece(1, 1, 1)), [WorkerAction::Pass(forward)]);
    assert_eq!(worker.handle(WorkerEvent::Passed(&forward)).unwrap(), freed(1, 1));
    worker.validate();
}

#[test]
fn a_matrix_without_remaining_uses_is_freed_at_once() {
    let mut worker = worker();
    stored(&mut worker, vec![header(1, 1, MatrixSource::Data)], Vec::new());
    let forget = order(1, Forward::NO_MEMBER, 0);
    assert_eq!(worker.handle(WorkerEvent::Relay(&[forget])).unwrap(), freed(1, 1));
    worker.validate();
}

#[test]
fn jobs_wait_for_a_relayed_matrix_even_if_it_arrives_before_its_announcement() {
    let mut worker = worker();
    // The lines stay in the link until the primary's announcement arrives.
    assert_eq!(worker.expects(5, &piece(1, 0, 2)), Ok(None));
    let matrices =
        vec![relayed(1, 1, 5), header(2, 1, MatrixSource::Data), header(3, 0, MatrixSource::Vacant)];
    assert_eq!(stored(&mut worker, matrices, vec![JOB]), []);
    assert_eq!(taken(&mut worker, 5, &piece(1, 0, 2)), [START]);
}

#[test]
fn the_primary_is_asked_for_the_rest_of_a_matrix_that_a_lost_neighbour_began() {
    let mut worker = worker();
    let matrices =
        vec![relayed(1, 1, 5), header(2, 1, MatrixSource::Data), header(3, 0, MatrixSource::Vacant)];
    stored(&mut worker, matrices, vec![JOB]);
    stored(&mut worker, vec![relayed(4, 1, 6)], Vec::new());
    taken(&mut worker, 5, &piece(1, 0, 1));
    let missing = |id, lines| WorkerAction::Missing(Missing { id, lines });
    assert_eq!(worker.handle(WorkerEvent::PeerLost(5)).unwrap(), [missing(1, 1)]);
    assert_eq!(worker.handle(WorkerEvent::PeerLost(5)).unwrap(), [], "asked once");
    refused(worker.expects(5, &piece(1, 1, 1)), "which are not due");
    // A matrix that was announced before the primary knew of the loss.
    assert_eq!(stored(&mut worker, vec![relayed(8, 1, 5)], Vec::new()), [missing(8, 0)]);
    let rest = MatrixHeader { first_line: 1, lines: 1, ..header(1, 1, MatrixSource::Data) };
    assert_eq!(stored(&mut worker, vec![rest], Vec::new()), [START]);
    // The other neighbour is still connected.
    assert_eq!(taken(&mut worker, 6, &piece(4, 0, 2)), []);
}

#[test]
fn nothing_is_passed_to_a_neighbour_that_is_lost() {
    let mut worker = worker();
    stored(&mut worker, vec![header(1, 1, MatrixSource::Data), header(2, 1, MatrixSource::Data)], Vec::new());
    let (to_lost, to_other) = (order(1, 5, 9), order(2, 6, 9));
    worker.handle(WorkerEvent::PeerLost(5)).unwrap();
    let actions = worker.handle(WorkerEvent::Relay(&[to_lost, to_other])).unwrap();
    assert_eq!(actions, [&freed(1, 1)[..], &[WorkerAction::Pass(to_other)]].concat());
    worker.validate();
}

#[test]
fn orders_and_pieces_that_break_the_rules_are_refused() {
    let relay = |worker: &mut Worker, forward| worker.handle(WorkerEvent::Relay(&[forward])).map(drop);
    refused(relay(&mut worker(), order(1, 5, 0)), "is not stored here");
    let mut tile = worker();
    stored(&mut tile, vec![header(3, 0, MatrixSource::Vacant)], Vec::new());
    refused(relay(&mut tile, order(3, 5, 0)), "is not stored here");
    let mut used = worker();
    let matrices = vec![
        header(1, 1, MatrixSource::Data),
        header(2, 1, MatrixSource::Data),
        header(3, 0, MatrixSource::Vacant),
    ];
    stored(&mut used, matrices, vec![JOB]);
    refused(relay(&mut used, order(1, 5, 0)), "was announced for fewer uses");
    let mut taker = worker();
    stored(&mut taker, vec![relayed(1, 1, 5), header(2, 1, MatrixSource::Data)], Vec::new());
    for (from, bad) in [
        (6, piece(1, 0, 1)),
        (5, piece(1, 1, 1)),
        (5, piece(1, 0, 3)),
        (5, piece(1, 0, 0)),
        (5, piece(2, 0, 1)),
    ] {
        refused(taker.expects(from, &bad), "which are not due");
    }
}
