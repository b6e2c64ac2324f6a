//! Runs the algorithms by tasks over `thread` links, and checks the results for several numbers of ends.

#![allow(clippy::unwrap_used)] // A test may panic.

use super::*;
use crate::link::mesh::thread_ends;

/// Runs a function on every end; returns the result of each.
fn together<F>(ends: usize, each: F) -> Vec<Vec<u8>>
where
    F: AsyncFn(&mut MeshEnd) -> Result<Vec<MessageChunk>, LinkError>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let each = &each;
        let mut all: Vec<_> = thread_ends(ends)
            .into_iter()
            .map(|mut end| {
                Box::pin(async move {
                    // Twice, with a barrier between: reused buffers must not change the input.
                    for _ in 0..2 {
                        let got = each(&mut end).await.unwrap();
                        end.pool.put_back(got);
                        end.barrier(ends).await.unwrap();
                    }
                    let got = each(&mut end).await.unwrap();
                    (end, got.iter().flat_map(|piece| piece.bytes().to_vec()).collect::<Vec<u8>>())
                })
            })
            .collect();
        let mut results: Vec<Option<_>> = all.iter().map(|_| None).collect();
        std::future::poll_fn(|context| {
            for (one, result) in all.iter_mut().zip(&mut results) {
                if result.is_none()
                    && let std::task::Poll::Ready(done) = one.as_mut().poll(context)
                {
                    *result = Some(done);
                }
            }
            if results.iter().all(Option::is_some) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        results.into_iter().map(|result| result.unwrap().1).collect()
    })
}

/// Numbers that differ between ends.
fn numbers(rank: usize, count: usize) -> SendBuffer {
    Arc::new((0..count).flat_map(|i| ((i * 10 + rank * rank + 1) as f64).to_le_bytes()).collect())
}

fn sums(ends: usize, count: usize) -> Vec<f64> {
    let squares: usize = (0..ends).map(|rank| rank * rank + 1).sum();
    (0..count).map(|i| (i * 10 * ends + squares) as f64).collect()
}

fn read(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number)).collect()
}

#[test]
fn a_broadcast_brings_the_roots_bytes_to_all() {
    for ends in 1..=9 {
        for bytes in [1, 1000, (2 << 20) + 5] {
            let given: SendBuffer = Arc::new((0..bytes).map(|i| (i % 253) as u8).collect());
            let blank: SendBuffer = Arc::new(vec![0; bytes]);
            let got = together(ends, async |end| {
                let mine = if end.rank == 0 { &given } else { &blank };
                broadcast(end, ends, mine).await
            });
            assert!(got.iter().all(|g| g == &*given), "{ends} ends, {bytes} bytes");
        }
    }
}

#[test]
fn a_reduce_sums_at_the_root_alone() {
    for ends in 1..=9 {
        for count in [1, 7, (1 << 17) + 3] {
            let got = together(ends, async |end| reduce(end, ends, &numbers(end.rank, count)).await);
            assert_eq!(read(&got[0]), sums(ends, count), "{ends} ends");
            assert!(got[1..].iter().all(Vec::is_empty));
        }
    }
}

#[test]
fn both_forms_of_all_reduce_sum_at_all() {
    for ends in 1..=9 {
        for count in [1, 7, 1000] {
            let doubled = together(ends, async |end| doubling(end, ends, &numbers(end.rank, count)).await);
            let rung = together(ends, async |end| ring(end, ends, &numbers(end.rank, count)).await);
            for got in doubled.iter().chain(&rung) {
                assert_eq!(read(got), sums(ends, count), "{ends} ends, {count} numbers");
            }
        }
    }
    let long = (3 << 17) + 1;
    let got = together(2, async |end| ring(end, 2, &numbers(end.rank, long)).await);
    assert!(got.iter().all(|g| read(g) == sums(2, long)), "parts of several frames");
}

#[test]
fn an_all_to_all_gives_each_end_its_block_of_every_other() {
    for ends in 1..=9 {
        for bytes in [1usize, 40, (1 << 20) + 1] {
            if ends > 3 && bytes > 40 {
                continue;
            }
            let mark = |from: usize, to: usize| (from * 16 + to) as u8;
            let got = together(ends, async |end| {
                let rank = end.rank;
                let mine: SendBuffer =
                    Arc::new((0..ends).flat_map(|to| vec![mark(rank, to); bytes]).collect());
                all_to_all(end, ends, &mine).await
            });
            for (to, got) in got.iter().enumerate() {
                let want: Vec<u8> = (0..ends).flat_map(|from| vec![mark(from, to); bytes]).collect();
                assert!(got == &want, "{ends} ends, {bytes} bytes");
            }
        }
    }
}

#[test]
fn the_tree_reaches_everyone_once_and_is_as_deep_as_doublings() {
    for ends in 1..=33usize {
        let mut reached = vec![0; ends];
        for rank in 0..ends {
            let (parent, below) = tree(rank, ends);
            for child in below {
                assert_eq!(tree(child, ends).0, Some(rank));
                reached[child] += 1;
            }
            assert_eq!(parent.is_none(), rank == 0);
        }
        assert!(reached[0] == 0 && reached[1..].iter().all(|times| *times == 1));
    }
}
