//! The worker's state machine without a primary: jobs that add, subtract and multiply matrices that are
//! stored, generated, made by other jobs, or tiles of C, in any order of arrival and of completion; and every
//! rule that a primary can break.

use bramble_base::{DType, Layout};
use bramble_schedule::worker::{RunnableJob, StartLimits, Worker, WorkerAction, WorkerEvent};
use bramble_wire::message::{Job, MatrixHeader, MatrixSource, Operation, StoreHead, Then};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Small limits, so that jobs wait.
const LIMITS: StartLimits = StartLimits { unsent_bytes: 70, unsent_tiles: 2, additions: 2 };

/// A worker with these bytes of memory and the limits of one thread.
fn worker(grant_bytes: u64) -> Worker {
    Worker::new(grant_bytes, StartLimits::for_threads(1))
}

/// A square matrix of two rows.
fn header(id: u32, uses: u16, source: MatrixSource) -> MatrixHeader {
    shaped(id, 2, 2, uses, source)
}

fn shaped(id: u32, rows: u32, cols: u32, uses: u16, source: MatrixSource) -> MatrixHeader {
    let (dtype, layout) = (DType::F64, Layout::RowMajor);
    MatrixHeader { id, rows, cols, first_line: 0, lines: rows, uses, dtype, layout, source }
}

fn store(matrices: Vec<MatrixHeader>, jobs: Vec<Job>) -> StoreHead {
    StoreHead { matrices, jobs }
}

/// Pseudo-random numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % end
    }
}

/// The β of the products here. One number stands for each matrix.
const BETA: i64 = 3;

fn computed(run: &RunnableJob, a: i64, b: i64, old: Option<i64>) -> i64 {
    let new = match run.job.operation {
        Operation::Multiply => a.wrapping_mul(b),
        Operation::Add => a.wrapping_add(b),
        Operation::Subtract => a.wrapping_sub(b),
    };
    let old = if run.reads_tile { old.unwrap() } else { 0 };
    let scale = if run.scales_tile { BETA } else { 1 };
    old.wrapping_mul(scale).wrapping_add(new)
}

/// Matrices and jobs in an order in which they could be computed one by one, and the results.
struct Work {
    matrices: Vec<MatrixHeader>,
    /// Initial elements of the matrices that have some.
    given: BTreeMap<u32, i64>,
    jobs: Vec<Job>,
    /// Final elements of each matrix that jobs write.
    wanted: BTreeMap<u32, i64>,
}

impl Work {
    /// `stored` operands, then `written` matrices, each written by up to three jobs that read earlier
    /// matrices.
    fn new(stored: usize, written: usize, random: &mut Random) -> Self {
        let mut work =
            Self { matrices: Vec::new(), given: BTreeMap::new(), jobs: Vec::new(), wanted: BTreeMap::new() };
        for c in stored..stored + written {
            let (first_step, count) = (random.below(3), 1 + random.below(3));
            for n in 0..count {
                let a = random.below(c);
                let b = (a + 1 + random.below(c - 1)) % c;
                let operation = [Operation::Multiply, Operation::Add, Operation::Subtract][random.below(3)];
                let (a, b, c, step) = (a as u32, b as u32, c as u32, (first_step + 2 * n) as u32);
                let then = if n + 1 == count { Then::Close } else { Then::Continue };
                work.jobs.push(Job { operation, a, b, c, step, epoch: 0, then });
            }
        }
        for id in 0..stored + written {
            work.announce(id as u32, id < stored, random);
        }
        work.compute();
        work
    }

    fn announce(&mut self, id: u32, stored: bool, random: &mut Random) {
        let uses = self.jobs.iter().filter(|j| j.a == id || j.b == id).count() as u16;
        let source = match (stored, uses) {
            (true, 0) => return,
            (true, _) => [MatrixSource::Data, MatrixSource::Generated][random.below(2)],
            (false, 0) => [MatrixSource::Vacant, MatrixSource::Data, MatrixSource::Partial][random.below(3)],
            (false, _) => MatrixSource::Vacant,
        };
        if source != MatrixSource::Vacant {
            self.given.insert(id, 1 + random.below(1000) as i64);
        }
        if uses == 0 {
            // A matrix without readers is a tile.
            for job in self.jobs.iter_mut().filter(|j| j.c == id && j.then == Then::Close) {
                job.then = Then::Return;
            }
        }
        let layout = if stored && random.below(2) == 1 { Layout::ColMajor } else { Layout::RowMajor };
        self.matrices.push(MatrixHeader { layout, ..header(id, uses, source) });
    }

    /// Computes one job after another.
    fn compute(&mut self) {
        let mut values = self.given.clone();
        for job in &self.jobs {
            let c = self.matrices.iter().find(|m| m.id == job.c).unwrap();
            let first = !self.wanted.contains_key(&job.c);
            let reads_tile = !first || c.source != MatrixSource::Vacant;
            let run =
                RunnableJob { job: *job, reads_tile, scales_tile: first && c.source == MatrixSource::Data };
            let value = computed(&run, values[&job.a], values[&job.b], values.get(&job.c).copied());
            values.insert(job.c, value);
            self.wanted.insert(job.c, value);
        }
    }

    fn charged_bytes(&self) -> u64 {
        self.matrices.iter().map(MatrixHeader::charged_bytes).sum()
    }

    /// The same as messages that a worker must accept: a matrix before its jobs, in one or two frames, and
    /// the jobs of one target in order; everything else in random order.
    fn messages(&self, random: &mut Random) -> Vec<StoreHead> {
        let mut parts: Vec<Vec<MatrixHeader>> = self.matrices.iter().map(|m| in_frames(m, random)).collect();
        let mut jobs = self.jobs.clone();
        let (mut messages, mut announced) = (Vec::new(), Vec::new());
        while !parts.is_empty() || !jobs.is_empty() {
            let mut message = StoreHead::default();
            if !parts.is_empty() && random.below(4) > 0 {
                let at = random.below(parts.len());
                message.matrices.push(parts[at].remove(0));
                announced.push(message.matrices[0].id);
                parts.retain(|p| !p.is_empty());
            }
            for _ in 0..random.below(4) {
                let at = random.below(jobs.len().max(1));
                let may_come = jobs.get(at).is_some_and(|job| {
                    let first = jobs.iter().position(|j| j.c == job.c) == Some(at);
                    first && [job.a, job.b, job.c].iter().all(|id| announced.contains(id))
                });
                if may_come {
                    message.jobs.push(jobs.remove(at));
                }
            }
            messages.push(message);
        }
        messages
    }
}

fn in_frames(header: &MatrixHeader, random: &mut Random) -> Vec<MatrixHeader> {
    if matches!(header.source, MatrixSource::Data | MatrixSource::Partial) && random.below(2) == 1 {
        let first = MatrixHeader { lines: 1, ..*header };
        return vec![first, MatrixHeader { first_line: 1, ..first }];
    }
    vec![*header]
}

/// A worker, and a shell that computes with one number per matrix.
struct Shell {
    worker: Worker,
    values: BTreeMap<u32, i64>,
    running: Vec<(RunnableJob, i64)>,
    filling: Vec<u32>,
    leaving: Vec<u32>,
    held_bytes: u64,
    reserved: BTreeMap<u32, MatrixHeader>,
    returned: BTreeMap<u32, i64>,
}

impl Shell {
    fn new(grant_bytes: u64) -> Self {
        Self {
            worker: Worker::new(grant_bytes, LIMITS),
            values: BTreeMap::new(),
            running: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
            held_bytes: 0,
            reserved: BTreeMap::new(),
            returned: BTreeMap::new(),
        }
    }

    fn handle(&mut self, event: WorkerEvent<'_>) {
        let actions = self.worker.handle(event).unwrap();
        let mut freed_bytes = 0;
        for action in actions {
            match action {
                WorkerAction::Reserve(header) => {
                    self.held_bytes += header.charged_bytes();
                    assert!(self.reserved.insert(header.id, header).is_none());
                }
                WorkerAction::Fill(id) => self.filling.push(id),
                WorkerAction::Start(run) => {
                    let (a, b) = (self.values[&run.job.a], self.values[&run.job.b]);
                    assert!(self.running.iter().all(|(other, _)| other.job.c != run.job.c), "one at a time");
                    let old = self.values.get(&run.job.c).copied();
                    self.running.push((run, computed(&run, a, b, old)));
                }
                WorkerAction::Return { tile, .. } => self.leaving.push(tile),
                WorkerAction::Pass(_) | WorkerAction::Missing(_) => unreachable!("nobody relays here"),
                WorkerAction::Release(id) => {
                    self.values.remove(&id);
                    freed_bytes += self.reserved.remove(&id).unwrap().charged_bytes();
                }
                WorkerAction::Credit(bytes) => {
                    freed_bytes -= bytes;
                    self.held_bytes -= bytes;
                }
            }
        }
        assert_eq!(freed_bytes, 0, "freed bytes are credited");
        let held: u64 = self.reserved.values().map(MatrixHeader::charged_bytes).sum();
        assert_eq!(self.held_bytes, held);
        self.worker.validate();
    }

    fn deliver(&mut self, message: &StoreHead, given: &BTreeMap<u32, i64>) {
        self.handle(WorkerEvent::Announced(message));
        for matrix in &message.matrices {
            let whole = matrix.first_line + matrix.lines == matrix.rows;
            if let Some(value) =
                given.get(&matrix.id).filter(|_| whole && matrix.source != MatrixSource::Generated)
            {
                self.values.insert(matrix.id, *value);
            }
        }
        self.handle(WorkerEvent::Landed(message));
    }

    /// Does one of the possible next things; false if there is none.
    fn step(&mut self, given: &BTreeMap<u32, i64>, random: &mut Random) -> bool {
        let many = [self.running.len(), self.filling.len(), self.leaving.len()];
        let total: usize = many.iter().sum();
        if total == 0 {
            return false;
        }
        let which = random.below(total);
        if which < many[0] {
            let (run, value) = self.running.swap_remove(which);
            self.values.insert(run.job.c, value);
            self.handle(WorkerEvent::Finished(&run.job));
        } else if which < many[0] + many[1] {
            let id = self.filling.swap_remove(which - many[0]);
            self.values.insert(id, given[&id]);
            self.handle(WorkerEvent::Filled(id));
        } else {
            let tile = self.leaving.swap_remove(which - many[0] - many[1]);
            self.returned.insert(tile, self.values[&tile]);
            self.handle(WorkerEvent::Returned(tile));
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn in_any_order_every_tile_equals_the_result_of_sequential_jobs(
        stored in 2usize..8, written in 1usize..12, seed in any::<u64>(), eager in 0usize..4,
    ) {
        let mut random = Random(seed);
        let work = Work::new(stored, written, &mut random);
        let mut shell = Shell::new(work.charged_bytes());
        for message in work.messages(&mut random) {
            shell.deliver(&message, &work.given);
            for _ in 0..random.below(1 + 3 * eager) {
                shell.step(&work.given, &mut random);
            }
        }
        while shell.step(&work.given, &mut random) {}
        let tiles = work.matrices.iter().filter(|m| m.uses == 0).map(|m| (m.id, work.wanted[&m.id]));
        prop_assert_eq!(&shell.returned, &tiles.collect());
        prop_assert!(shell.reserved.is_empty(), "{:?} are left", shell.reserved);
        prop_assert_eq!(shell.held_bytes, 0);
    }
}

#[test]
fn jobs_wait_for_operands_that_are_being_made_and_all_memory_is_freed() {
    let add = |a, b, c, then| Job { operation: Operation::Add, a, b, c, step: 0, epoch: 0, then };
    let matrices = vec![
        header(1, 2, MatrixSource::Data),
        header(2, 1, MatrixSource::Data),
        header(3, 1, MatrixSource::Vacant),
        header(4, 0, MatrixSource::Vacant),
    ];
    let mut worker = worker(matrices.iter().map(MatrixHeader::charged_bytes).sum());
    let (read, make) = (add(1, 3, 4, Then::Return), add(1, 2, 3, Then::Close));
    let store = store(matrices, vec![read, make]);
    worker.handle(WorkerEvent::Announced(&store)).unwrap();
    let run = |job| WorkerAction::Start(RunnableJob { job, reads_tile: false, scales_tile: false });
    assert_eq!(worker.handle(WorkerEvent::Landed(&store)).unwrap(), [run(make)]);
    let freed = |id: u32| [WorkerAction::Release(id), WorkerAction::Credit(512 + 32)];
    let then = worker.handle(WorkerEvent::Finished(&make)).unwrap();
    assert_eq!(then, [&freed(2)[..], &[run(read)]].concat());
    let last = worker.handle(WorkerEvent::Finished(&read)).unwrap();
    let back = WorkerAction::Return { tile: 4, epoch: 0, step_start: 0, step_end: 1 };
    let first = [WorkerAction::Release(1), WorkerAction::Credit(512 + 64)];
    assert_eq!(last, [&[back], &first[..], &freed(3)[..]].concat());
    worker.validate();
}

mod hostile {
    //! A primary that breaks the rules.
    use super::*;

    fn operand(id: u32, rows: u32, cols: u32, uses: u16) -> MatrixHeader {
        shaped(id, rows, cols, uses, if uses == 0 { MatrixSource::Vacant } else { MatrixSource::Data })
    }

    fn made(id: u32, rows: u32, cols: u32, uses: u16) -> MatrixHeader {
        shaped(id, rows, cols, uses, MatrixSource::Vacant)
    }

    fn feed(worker: &mut Worker, store: &StoreHead) -> Result<(), String> {
        worker.handle(WorkerEvent::Announced(store)).map_err(|e| e.0)?;
        worker.handle(WorkerEvent::Landed(store)).map_err(|e| e.0)?;
        worker.validate();
        Ok(())
    }

    fn refused(bad: &StoreHead, expected: &str) {
        let error = feed(&mut worker(20_000), bad).unwrap_err();
        assert!(error.contains(expected), "{error} should say: {expected}");
    }

    const JOB: Job =
        Job { operation: Operation::Multiply, a: 1, b: 2, c: 3, step: 0, epoch: 0, then: Then::Return };

    #[test]
    fn state_is_bounded_by_the_grant() {
        // A million matrices of 8 bytes within a grant of 1 MiB: each is charged 512 bytes.
        for source in [MatrixSource::Data, MatrixSource::Vacant] {
            let mut worker = worker(1 << 20);
            let tiny = |id| store(vec![shaped(id, 1, 1, 1, source)], vec![]);
            let refused = (0..1_000_000).find(|id| feed(&mut worker, &tiny(*id)).is_err());
            assert_eq!(refused, Some((1 << 20) / (512 + 32)));
        }
        // Unlimited jobs for one tile: the uses of their operands are charged for them.
        let error = feed(&mut worker(1 << 20), &store(vec![operand(1, 1, 1, u16::MAX)], vec![])).unwrap_err();
        assert!(error.contains("exceeds the grant"), "{error}");
    }

    #[test]
    fn a_matrix_larger_than_any_number_is_refused() {
        let mut worker = worker(u64::MAX - 1);
        let huge = operand(1, u32::MAX, u32::MAX, 1);
        assert!(feed(&mut worker, &store(vec![operand(2, 1, 1, 1), huge], vec![])).is_err());
    }

    #[test]
    fn each_broken_rule_of_matrices_is_refused() {
        let by_columns = |m: MatrixHeader| MatrixHeader { layout: Layout::ColMajor, lines: m.cols, ..m };
        let partial = |m: MatrixHeader| MatrixHeader { source: MatrixSource::Partial, ..m };
        let generated = |m: MatrixHeader| MatrixHeader { source: MatrixSource::Generated, ..m };
        let second = |m: MatrixHeader| MatrixHeader { first_line: 1, lines: 1, ..m };
        let first = |m: MatrixHeader| MatrixHeader { lines: 1, ..m };
        for (expected, bad) in [
            ("exceeds the grant", vec![operand(1, 1000, 1000, 1)]),
            ("exceeds the grant", vec![made(1, 1000, 1000, 1)]),
            ("comes twice", vec![operand(1, 4, 5, 1), operand(1, 4, 5, 1)]),
            ("comes twice", vec![made(1, 4, 5, 1), made(1, 4, 5, 1)]),
            ("comes twice", vec![made(1, 4, 5, 1), operand(1, 4, 5, 1)]),
            ("comes twice", vec![partial(operand(1, 4, 5, 0)), partial(operand(1, 4, 5, 0))]),
            (
                "comes twice",
                vec![
                    first(partial(operand(1, 4, 5, 0))),
                    MatrixHeader { source: MatrixSource::Data, ..second(operand(1, 4, 5, 0)) },
                ],
            ),
            ("first line", vec![second(operand(1, 4, 5, 1))]),
            ("first line", vec![second(partial(operand(1, 4, 5, 0)))]),
            ("first line", vec![first(made(1, 4, 5, 1))]),
            ("is an operand", vec![operand(1, 4, 5, 1), operand(1, 4, 5, 0)]),
            ("is an operand", vec![made(1, 4, 5, 1), operand(1, 4, 5, 0)]),
            ("is a tile", vec![operand(1, 4, 5, 0), operand(1, 4, 5, 1)]),
            ("is a tile", vec![operand(1, 4, 5, 0), made(1, 4, 5, 1)]),
            ("the sum of one", vec![partial(operand(1, 4, 5, 1))]),
            ("not by rows", vec![by_columns(made(1, 4, 5, 1))]),
            ("not by rows", vec![by_columns(operand(1, 4, 5, 0))]),
            ("generated", vec![generated(operand(1, 4, 5, 0))]),
        ] {
            refused(&store(bad, vec![]), expected);
        }
    }

    #[test]
    fn each_broken_rule_of_jobs_is_refused() {
        let go_on = Job { then: Then::Continue, ..JOB };
        let with_uses = |uses| vec![operand(1, 4, 5, uses), operand(2, 5, 6, uses), operand(3, 4, 6, 0)];
        assert!(feed(&mut worker(20_000), &store(with_uses(1), vec![JOB])).is_ok());
        let wrong = vec![operand(1, 4, 5, 1), operand(2, 4, 6, 1), operand(3, 4, 6, 0)];
        for (expected, matrices, jobs) in [
            ("not stored", vec![operand(1, 4, 5, 1)], vec![JOB]),
            ("not stored", with_uses(1), vec![Job { c: 9, ..JOB }]),
            ("not stored", with_uses(1), vec![Job { a: 3, ..JOB }]),
            ("that no job makes", with_uses(1), vec![Job { c: 1, ..JOB }]),
            ("do not fit", wrong, vec![JOB]),
            ("do not fit", with_uses(1), vec![Job { operation: Operation::Add, ..JOB }]),
            ("do not fit", with_uses(1), vec![Job { operation: Operation::Subtract, ..JOB }]),
            ("one operand twice", with_uses(2), vec![Job { b: 1, ..JOB }]),
            ("fewer jobs", with_uses(1), vec![go_on, Job { step: 1, ..JOB }]),
            ("sent it back", with_uses(9), vec![JOB, Job { step: 1, ..JOB }]),
            ("not after", with_uses(9), vec![go_on, go_on]),
            ("greatest possible number", with_uses(1), vec![Job { step: u32::MAX, ..JOB }]),
            ("closes a tile", with_uses(1), vec![Job { then: Then::Close, ..JOB }]),
        ] {
            refused(&store(matrices, jobs), expected);
        }
    }

    #[test]
    fn each_broken_rule_of_operands_that_jobs_make_is_refused() {
        let three = || vec![operand(1, 4, 4, 9), operand(2, 4, 4, 9), made(3, 4, 4, 2)];
        let close = Job { operation: Operation::Add, then: Then::Close, ..JOB };
        let go_on = Job { then: Then::Continue, ..close };
        assert!(feed(&mut worker(20_000), &store(three(), vec![close])).is_ok());
        for (expected, jobs) in [
            ("sends back an operand", vec![Job { then: Then::Return, ..close }]),
            ("reads its target", vec![Job { a: 3, ..close }]),
            ("reads its target", vec![Job { b: 3, operation: Operation::Multiply, ..close }]),
            ("or closed it", vec![close, Job { step: 1, ..go_on }]),
            ("or closed it", vec![close, Job { step: 1, ..close }]),
            ("not after", vec![go_on, close]),
            ("greatest possible number", vec![Job { step: u32::MAX, ..close }]),
        ] {
            refused(&store(three(), jobs), expected);
        }
        let mut worker = worker(20_000);
        feed(&mut worker, &store(three(), vec![close])).unwrap();
        worker.handle(WorkerEvent::Finished(&close)).unwrap();
        let late = feed(&mut worker, &store(vec![], vec![Job { step: 1, ..go_on }])).unwrap_err();
        assert!(late.contains("or closed it"), "{late}");
        // Read more often than announced, before it is made.
        let mut four = three();
        four.push(operand(4, 4, 4, 0));
        let read = |step| Job { a: 1, b: 3, c: 4, step, then: Then::Continue, ..JOB };
        refused(&store(four, vec![read(0), read(1), read(2)]), "fewer jobs");
    }

    #[test]
    fn jobs_that_wait_for_each_other_wait_and_the_rest_goes_on() {
        let job = |a, b, c, then| Job { operation: Operation::Add, a, b, c, then, ..JOB };
        let matrices = vec![
            operand(1, 2, 2, 9),
            made(2, 2, 2, 1),
            made(3, 2, 2, 1),
            operand(4, 2, 2, 1),
            operand(5, 2, 2, 0),
        ];
        let circle = [job(1, 3, 2, Then::Close), job(1, 2, 3, Then::Close)];
        let apart = job(1, 4, 5, Then::Return);
        let all = store(matrices, vec![circle[0], circle[1], apart]);
        let mut worker = worker(20_000);
        worker.handle(WorkerEvent::Announced(&all)).unwrap();
        let started = worker.handle(WorkerEvent::Landed(&all)).unwrap();
        assert_eq!(
            started,
            [WorkerAction::Start(RunnableJob { job: apart, reads_tile: false, scales_tile: false })]
        );
        worker.handle(WorkerEvent::Finished(&apart)).unwrap();
        worker.handle(WorkerEvent::Returned(5)).unwrap();
        worker.validate();
    }
}
