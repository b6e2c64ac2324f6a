//! Many small products over one open cluster: nothing of this process grows.
//!
//! Method: counts threads and descriptors of the process, so no other test may run in it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A test may panic.

#[path = "suite/machines/mod.rs"]
mod machines;

use bramble_matrix::DType;
use bramble_primary::{Cluster, ClusterOptions};
use machines::{Watch, elements, machines, request, run, worker};
use std::time::{Duration, Instant};

/// Threads and open descriptors of this process.
fn in_use() -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

#[test]
fn two_hundred_products_leave_no_threads_and_no_descriptors_behind() {
    run(async {
        let mut links = Vec::new();
        for name in ["a", "b", "c"] {
            links.push(worker(name).await.0);
        }
        let watch = Watch::default();
        let options = ClusterOptions { keeps_links: true };
        let mut cluster = Cluster::open(machines(links), options, &watch).await.unwrap();
        let mut before = (0, 0);
        let mut took = Vec::new();
        for at in 0..205 {
            let began = Instant::now();
            let finished = cluster.run(request([64, 64, 64], DType::F64, "simd", at), &watch).await.unwrap();
            let (whole, opening) = (began.elapsed(), finished.report.opening_seconds);
            elements(&finished);
            took.push((whole, Duration::from_secs_f64(opening)));
            if at == 4 {
                before = in_use();
            }
        }
        println!("first {:?}, second {:?}", took[0], took[1]);
        took[1..].sort();
        println!("median {:?}, slowest {:?}", took[took.len() / 2], took[took.len() - 1]);
        // Threads that have done their work may need a moment to end.
        let deadline = Instant::now() + Duration::from_secs(10);
        while in_use().0 > before.0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let after = in_use();
        assert!(after.0 <= before.0 && after.1 <= before.1, "{before:?} before, {after:?} after");
        assert!(watch.lost.borrow().is_empty());
        cluster.close().await;
    });
}
