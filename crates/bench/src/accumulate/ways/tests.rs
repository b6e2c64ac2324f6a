//! Every way adds every job to every block once.

use super::*;
use bramble_kernel::{KernelName, open};

fn jobs<T: AtomicElement>(count: usize, [m, k, n]: [usize; 3]) -> Vec<AccumulateJob<T>> {
    let fill = |len: usize, by: usize| (0..len).map(|i| T::from_i64((i * by % 23) as i64 - 11)).collect();
    (0..count).map(|job| AccumulateJob { a: fill(m * k, 5 + job), b: fill(k * n, 7 + job) }).collect()
}

/// Small integers: floats are exact, too.
fn every_way_is_right<T: AtomicElement>() {
    let (sides, count, blocks) = ([300, 20, 270], 5, 3);
    let [m, k, n] = sides;
    let jobs = jobs::<T>(count, sides);
    let kernel = open(KernelName::Simd).unwrap();
    let mut right = vec![T::ZERO; m * n];
    for job in &jobs {
        for (i, sums) in right.chunks_exact_mut(n).enumerate() {
            for (l, x) in job.a[i * k..(i + 1) * k].iter().enumerate() {
                sums.iter_mut().zip(&job.b[l * n..]).for_each(|(sum, y)| *sum = sum.plus(x.times(*y)));
            }
        }
    }
    for way in AccumulateMethod::ALL {
        for threads in [1, 3] {
            let mut all = Accumulator::new(way, &*kernel, &jobs, sides, blocks);
            // Twice: the first run's contents must not count.
            all.run(threads);
            let run = all.run(threads);
            let done: f64 = run.threads.iter().map(|share| share.jobs).sum();
            assert!((done - (count * blocks) as f64).abs() < 1e-9, "{way}: {done}");
            assert_eq!((run.threads.len(), all.blocks()), (threads, blocks));
            assert!(run.threads.iter().all(|s| s.multiply + s.add + s.wait <= run.wall));
            assert!((0..blocks).all(|at| all.block(at) == right), "{way}, {threads} threads, {}", T::DTYPE);
        }
    }
}

#[test]
fn every_way_adds_every_job_to_every_block_once() {
    every_way_is_right::<i32>();
    every_way_is_right::<i64>();
    every_way_is_right::<f32>();
    every_way_is_right::<f64>();
}

#[test]
fn additions_of_many_threads_are_never_lost() {
    fn sum<T: AtomicElement>() -> f64 {
        let shared = T::ZERO.shared();
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| (0..5000).for_each(|_| T::add(&shared, T::ONE)))));
        });
        T::load(&shared).to_f64()
    }
    assert_eq!([sum::<f32>(), sum::<f64>(), sum::<i32>(), sum::<i64>()], [20_000.0; 4]);
}

#[test]
fn integers_wrap() {
    let shared = i32::MAX.shared();
    i32::add(&shared, 1);
    assert_eq!(i32::load(&shared), i32::MIN);
}

#[test]
fn blocks_are_cut_into_tiles_of_at_most_256() {
    assert_eq!(Accumulator::<f32>::tiles(256, 73), 1);
    assert_eq!(Accumulator::<f32>::tiles(257, 512), 4);
}
