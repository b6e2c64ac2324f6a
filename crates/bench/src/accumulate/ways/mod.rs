//! Measures four ways in which several threads can add jobs to one block, for the cost of locks and atomic
//! additions.
//!
//! Place in the flow: for measurements only. Workers use [`AccumulateMethod::Owner`]: a tile has one thread, which adds the
//! steps in order.
//!
//! Invariants: each way adds each job to each block once. Only with an owner do the additions have an order, so
//! only its floats are reproducible. Blocks are zeroed, and their memory is mapped, before the time starts; threads
//! begin together and end with the call.
//!
//! Deliberately absent: blocks whose jobs arrive one after another. All jobs are there when the threads begin, and
//! a thread without work at one block continues with the next, as in a worker.

mod atomic;
#[cfg(test)]
mod tests;

use bramble_kernel::{Kernel, Product, even, grid_mut, part};
use bramble_matrix::{View, ViewMut};
use std::fmt;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use atomic::AtomicElement;

/// Edge of the largest tile that has an owner, like the largest tiles of a product.
const TILE: usize = 256;

/// How several threads add to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccumulateMethod {
    /// A tile belongs to one thread, which adds all jobs to it in order, without a lock.
    Owner,
    /// A thread computes the product of a job, and adds it to the block under the block's lock.
    Mutex,
    /// The same, but each element is added atomically.
    Atomic,
    /// Every product of two elements is added atomically at once; a kernel cannot do that, so these are plain
    /// loops.
    AtomicEach,
}

impl AccumulateMethod {
    /// All ways.
    pub(crate) const ALL: [Self; 4] = [Self::Owner, Self::Mutex, Self::Atomic, Self::AtomicEach];

    /// The name on the command line and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Mutex => "mutex",
            Self::Atomic => "atomic",
            Self::AtomicEach => "atomic-each",
        }
    }
}

impl fmt::Display for AccumulateMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One product to add: A B, in contiguous rows.
#[derive(Debug)]
pub(crate) struct AccumulateJob<T> {
    /// m × k.
    pub(crate) a: Vec<T>,
    /// k × n.
    pub(crate) b: Vec<T>,
}

/// The work and times of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ThreadTotals {
    /// Number of jobs; for a tile, the corresponding fraction of a job.
    pub(crate) jobs: f64,
    /// Time in products, including the additions where both are one step.
    pub(crate) multiply: Duration,
    /// Time in additions to blocks.
    pub(crate) add: Duration,
    /// Time waiting for locks.
    pub(crate) wait: Duration,
}

/// The result of one run over all blocks.
#[derive(Clone, Debug)]
pub(crate) struct Accumulated {
    /// From the start of the first thread to the end of the last.
    pub(crate) wall: Duration,
    /// The work of each thread.
    pub(crate) threads: Vec<ThreadTotals>,
}

/// Blocks in the representation that a way needs.
enum Blocks<T: AtomicElement> {
    Owned(Vec<Vec<T>>),
    Locked(Vec<Mutex<Vec<T>>>),
    Shared(Vec<Vec<T::Atomic>>),
}

/// Blocks to which the same jobs are added repeatedly.
pub(crate) struct Accumulator<'a, T: AtomicElement> {
    way: AccumulateMethod,
    kernel: &'a dyn Kernel,
    jobs: &'a [AccumulateJob<T>],
    /// m, k, n of a job.
    sides: [usize; 3],
    blocks: Blocks<T>,
}

impl<'a, T: AtomicElement> Accumulator<'a, T> {
    /// That many blocks of m × n. Panics if a job has other sizes: a bug of the caller.
    pub(crate) fn new(
        way: AccumulateMethod,
        kernel: &'a dyn Kernel,
        jobs: &'a [AccumulateJob<T>],
        [m, k, n]: [usize; 3],
        blocks: usize,
    ) -> Self {
        assert!(jobs.iter().all(|job| job.a.len() == m * k && job.b.len() == k * n), "jobs have these sides");
        let zeros = || vec![T::ZERO; m * n];
        let shared = || (0..m * n).map(|_| T::ZERO.shared()).collect();
        let blocks = match way {
            AccumulateMethod::Owner => Blocks::Owned((0..blocks).map(|_| zeros()).collect()),
            AccumulateMethod::Mutex => Blocks::Locked((0..blocks).map(|_| Mutex::new(zeros())).collect()),
            AccumulateMethod::Atomic | AccumulateMethod::AtomicEach => {
                Blocks::Shared((0..blocks).map(|_| shared()).collect())
            }
        };
        Self { way, kernel, jobs, sides: [m, k, n], blocks }
    }

    /// Number of tiles of a block of that size for owners.
    pub(crate) fn tiles(rows: usize, cols: usize) -> usize {
        rows.div_ceil(TILE) * cols.div_ceil(TILE)
    }

    /// Zeroes all blocks, and adds all jobs to each, on `threads` threads.
    pub(crate) fn run(&mut self, threads: usize) -> Accumulated {
        let [m, k, n] = self.sides;
        let (way, kernel, jobs) = (self.way, self.kernel, self.jobs);
        let multiply = |job: &AccumulateJob<T>, beta: T, into: &mut [T]| {
            let (a, b) = (View::row_major(&job.a, m, k), View::row_major(&job.b, k, n));
            kernel.multiply(T::any(Product::new(T::ONE, a, b, beta, ViewMut::row_major(into, m, n))));
        };
        let each = |blocks: usize| -> Vec<(usize, &'a AccumulateJob<T>)> {
            (0..blocks).flat_map(|block| jobs.iter().map(move |job| (block, job))).collect()
        };
        match &mut self.blocks {
            Blocks::Owned(blocks) => run_owned(kernel, jobs, [m, k, n], blocks, threads),
            Blocks::Locked(blocks) => {
                blocks
                    .iter_mut()
                    .for_each(|b| b.get_mut().unwrap_or_else(PoisonError::into_inner).fill(T::ZERO));
                let blocks = &*blocks;
                on_threads(threads, each(blocks.len()), m * n, |(block, job), own, share| {
                    let began = Instant::now();
                    multiply(job, T::ZERO, own);
                    let multiplied = Instant::now();
                    // A panic of a thread ends the run.
                    let mut sums = blocks[block].lock().unwrap_or_else(PoisonError::into_inner);
                    let locked = Instant::now();
                    sums.iter_mut().zip(&*own).for_each(|(sum, x)| *sum = sum.plus(*x));
                    drop(sums);
                    share.jobs += 1.0;
                    share.multiply += multiplied - began;
                    share.wait += locked - multiplied;
                    share.add += locked.elapsed();
                })
            }
            Blocks::Shared(blocks) => {
                blocks.iter().flatten().for_each(|x| T::store(x, T::ZERO));
                let blocks = &*blocks;
                let is_each = way == AccumulateMethod::AtomicEach;
                let room = if is_each { 0 } else { m * n };
                on_threads(threads, each(blocks.len()), room, |(block, job), own, share| {
                    let began = Instant::now();
                    share.jobs += 1.0;
                    if is_each {
                        add_each(job, [k, n], &blocks[block]);
                        share.multiply += began.elapsed();
                        return;
                    }
                    multiply(job, T::ZERO, own);
                    let multiplied = Instant::now();
                    blocks[block].iter().zip(&*own).for_each(|(sum, x)| T::add(sum, *x));
                    share.multiply += multiplied - began;
                    share.add += multiplied.elapsed();
                })
            }
        }
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        match &self.blocks {
            Blocks::Owned(blocks) => blocks.len(),
            Blocks::Locked(blocks) => blocks.len(),
            Blocks::Shared(blocks) => blocks.len(),
        }
    }

    /// The contents of a block after the last run, in contiguous rows.
    pub(crate) fn block(&self, at: usize) -> Vec<T> {
        match &self.blocks {
            Blocks::Owned(blocks) => blocks[at].clone(),
            Blocks::Locked(blocks) => blocks[at].lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Blocks::Shared(blocks) => blocks[at].iter().map(T::load).collect(),
        }
    }
}

/// Zeroes all blocks, and adds all jobs to each: every tile of a block has one thread.
fn run_owned<T: AtomicElement>(
    kernel: &dyn Kernel,
    jobs: &[AccumulateJob<T>],
    [m, k, n]: [usize; 3],
    blocks: &mut [Vec<T>],
    threads: usize,
) -> Accumulated {
    let [rows, cols] = [m, n].map(|side| even(side, side.div_ceil(TILE)).collect::<Vec<_>>());
    let mut tiles = Vec::new();
    for block in blocks {
        block.fill(T::ZERO);
        let spans = rows.iter().flat_map(|r| cols.iter().map(move |c| (r.clone(), c.clone())));
        tiles.extend(spans.zip(grid_mut(ViewMut::row_major(block, m, n), &rows, &cols)));
    }
    on_threads(threads, tiles, 0, |((rows, cols), mut tile), _: &mut [T], share| {
        let began = Instant::now();
        for job in jobs {
            let a = part(View::row_major(&job.a, m, k), rows.clone(), 0..k);
            let b = part(View::row_major(&job.b, k, n), 0..k, cols.clone());
            kernel.multiply(T::any(Product::new(T::ONE, a, b, T::ONE, tile.reborrow())));
        }
        share.multiply += began.elapsed();
        share.jobs += (jobs.len() * rows.len() * cols.len()) as f64 / (m * n) as f64;
    })
}

/// The plain product, in the order of rows, depth, columns, adding each product of two elements separately.
fn add_each<T: AtomicElement>(job: &AccumulateJob<T>, [k, n]: [usize; 2], to: &[T::Atomic]) {
    for (row, sums) in job.a.chunks_exact(k).zip(to.chunks_exact(n)) {
        for (x, line) in row.iter().zip(job.b.chunks_exact(n)) {
            sums.iter().zip(line).for_each(|(sum, y)| T::add(sum, x.times(*y)));
        }
    }
}

/// Calls `work` with all items, on new threads that begin together; each thread takes the next item when it has
/// finished one, and has a buffer of its own.
fn on_threads<T: AtomicElement, I: Send>(
    threads: usize,
    items: Vec<I>,
    elements: usize,
    work: impl Fn(I, &mut [T], &mut ThreadTotals) + Sync,
) -> Accumulated {
    let (queue, gate) = (Mutex::new(items.into_iter()), Barrier::new(threads));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let thread = || {
        let (mut own, mut share) = (vec![T::ONE; elements], ThreadTotals::default());
        gate.wait();
        let began = Instant::now();
        while let Some(item) = next() {
            work(item, &mut own, &mut share);
        }
        (began, Instant::now(), share)
    };
    let all: Vec<(Instant, Instant, ThreadTotals)> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(thread)).collect();
        let ended =
            running.into_iter().map(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ended.collect()
    });
    let began = all.iter().map(|(began, _, _)| *began).min();
    let ended = all.iter().map(|(_, ended, _)| *ended).max();
    let wall = began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began);
    Accumulated { wall, threads: all.into_iter().map(|(_, _, share)| share).collect() }
}
