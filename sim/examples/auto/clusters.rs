//! Clusters that a student, a lab or the owner of a laptop may have, and products for them.
//!
//! Speeds are approximate measurements for f64: a Raspberry Pi 4 12 Gflop/s, a Pi 5 35, a mini PC 80, a laptop
//! 150. 1 GbE carries 117 MB/s.

use bramble_matrix::DType;
use bramble_plan::{LinkRate, Machine, OperandSource, Problem};

/// The primary, then its workers.
#[derive(Clone)]
pub(crate) struct ExampleCluster {
    pub(crate) name: &'static str,
    pub(crate) machines: Vec<Machine>,
}

const GIB: u64 = 1 << 30;
const GIGABIT: f64 = 117e6;

fn machine(name: &str, threads: u32, gflops: f64, memory_bytes: u64) -> Machine {
    Machine {
        name: name.into(),
        threads,
        gflops,
        peak_gflops: gflops * 1.3,
        memory_bytes,
        link: None,
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

fn pi4() -> Machine {
    machine("pi4", 4, 12.0, 2 * GIB)
}
fn pi5() -> Machine {
    machine("pi5", 4, 35.0, 4 * GIB)
}
fn mini() -> Machine {
    machine("mini", 4, 80.0, 8 * GIB)
}
fn laptop() -> Machine {
    machine("laptop", 8, 150.0, 8 * GIB)
}

fn over(bytes_per_s: f64, round_trip_s: f64, machine: &Machine) -> Machine {
    Machine { link: Some(LinkRate { bytes_per_s, round_trip_s }), ..machine.clone() }
}

/// A primary with workers over gigabit Ethernet.
fn cluster(name: &'static str, primary: Machine, workers: &[Machine]) -> ExampleCluster {
    linked(name, primary, workers, GIGABIT)
}

fn linked(name: &'static str, primary: Machine, workers: &[Machine], bytes_per_s: f64) -> ExampleCluster {
    let mut machines = vec![primary];
    machines.extend(workers.iter().map(|w| over(bytes_per_s, 3e-4, w)));
    ExampleCluster { name, machines }
}

fn many(count: usize, machine: &Machine) -> Vec<Machine> {
    vec![machine.clone(); count]
}

type Shape = (&'static str, u64, u64, u64);

const SMALL: Shape = ("square 1024", 1024, 1024, 1024);
const SQUARE: Shape = ("square 8192", 8192, 8192, 8192);
const LARGE: Shape = ("square 16384", 16384, 16384, 16384);
const TALL: Shape = ("tall", 65_536, 1024, 1024);
const FLAT: Shape = ("flat", 1000, 50_000, 3000);
const LONG: Shape = ("long k", 1024, 1024, 131_072);
const THIN: Shape = ("thin k", 12_000, 12_000, 200);
const VECTOR: Shape = ("vector", 16_384, 1, 16_384);
const PRIME: Shape = ("primes", 4099, 3001, 5003);

/// All cases: cluster, name of the shape, product.
pub(crate) fn cases() -> Vec<(ExampleCluster, &'static str, Problem)> {
    let unequal3 = [mini(), pi5(), pi4()];
    let unequal5 = [mini(), pi5(), pi5(), pi4(), machine("old", 2, 6.0, GIB)];
    let poor = |machine: Machine, mib: u64| Machine { memory_bytes: mib << 20, ..machine };
    let local: Vec<Machine> =
        (0..4).map(|_| Machine { shares_cores: true, ..machine("local", 2, 37.5, 2 * GIB) }).collect();
    let mut all = Vec::new();
    let mut add = |cluster: ExampleCluster, shapes: &[Shape]| {
        for (shape, m, n, k) in shapes {
            let p = Problem {
                m: *m,
                n: *n,
                k: *k,
                dtype: DType::F64,
                reads_c: false,
                a_source: OperandSource::Sent,
                b_source: OperandSource::Sent,
            };
            all.push((cluster.clone(), *shape, p));
        }
    };
    add(cluster("laptop, 4 Pi 4", laptop(), &many(4, &pi4())), &[SMALL, SQUARE, LARGE, LONG]);
    add(cluster("Pi 5, 8 Pi 5", pi5(), &many(8, &pi5())), &[SMALL, SQUARE, TALL, FLAT, LONG, PRIME]);
    add(cluster("Pi 4, 8 Pi 4", pi4(), &many(8, &pi4())), &[SQUARE, TALL, LONG, THIN, VECTOR, PRIME]);
    add(cluster("laptop, Pi 5, 2 Pi 4", laptop(), &[pi5(), pi4(), pi4()]), &[LARGE, FLAT, PRIME]);
    add(cluster("Pi 5, laptop, 2 Pi 4", pi5(), &[laptop(), pi4(), pi4()]), &[SQUARE, TALL, VECTOR, PRIME]);
    add(cluster("Pi 4, 3 unequal", pi4(), &unequal3), &[SQUARE, FLAT, LONG, PRIME]);
    add(cluster("Pi 5, 5 unequal", pi5(), &unequal5), &[LARGE, TALL, LONG, THIN]);
    add(cluster("Pi 4, 16 Pi 4", pi4(), &many(16, &pi4())), &[SQUARE, LARGE, LONG]);
    add(cluster("mini, 64 Pi 4", mini(), &many(64, &pi4())), &[LARGE, LONG, TALL]);
    add(linked("Pi 4, 8 Pi 4 at 12 MB/s", pi4(), &many(8, &pi4()), 12e6), &[SQUARE, LONG]);
    add(linked("mini, 6 mini at 1.2 GB/s", mini(), &many(6, &mini()), 1.2e9), &[SQUARE, LARGE, LONG, PRIME]);
    add(cluster("Pi 4, 6 Pi 4 with 48 MiB", pi4(), &many(6, &poor(pi4(), 48))), &[SQUARE, LONG, TALL]);
    add(cluster("Pi 5, 4 Pi 5 with 160 MiB", pi5(), &many(4, &poor(pi5(), 160))), &[LARGE, PRIME]);
    add(linked("laptop, 4 of its own", laptop(), &local, 2e9), &[SQUARE, PRIME]);
    all
}
