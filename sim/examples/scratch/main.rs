//! x
#![allow(clippy::print_stdout)]
#[path = "../auto/clusters.rs"]
#[allow(dead_code)]
mod clusters;
use bramble_plan::*;
use bramble_sim::{Setting, simulate};
use clusters::cases;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    // cluster shape strategy with_primary size
    let (c, _, p) = cases().into_iter().find(|(c, s, _)| c.name == a[1] && *s == a[2]).unwrap();
    let wish = if a[3] == "auto" {
        Wish::AUTO
    } else {
        Wish { strategy: a[3].parse().ok(), who: Preference::Workers, ..Wish::AUTO }
    };
    let mut machines = vec![c.machines[0].clone()];
    if a[4] == "1" {
        machines.push(c.machines[0].clone());
    }
    let mut w = c.machines[1..].to_vec();
    w.sort_by(|a, b| b.gflops.total_cmp(&a.gflops));
    machines.extend(w.into_iter().take(a[5].parse().unwrap()));
    let plan = decide(&p, Cut::default(), &machines[0], &machines[1..], &wish).unwrap().plan;
    let setting = if a.len() > 6 { Setting::ideal() } else { Setting::measured() };
    let r = simulate(&plan, &machines, &setting);
    println!(
        "{} predicted {:.3} by {} simulated {:.3}; sent {:.1} MB {:.1} recv {:.1} {:.1}; aside {} of {}",
        plan.strategy,
        plan.predicted.seconds,
        plan.predicted.by,
        r.seconds,
        r.bytes_sent() as f64 / 1e6,
        plan.predicted.bytes_sent as f64 / 1e6,
        r.bytes_received() as f64 / 1e6,
        plan.predicted.bytes_received as f64 / 1e6,
        r.aside_bytes_max,
        plan.predicted.primary_memory_bytes
    );
    println!(
        "loop busy {:.3}, regions {:?}",
        r.loop_busy_s,
        plan.regions
            .iter()
            .map(|r| (
                r.grid.rows(),
                r.grid.cols(),
                r.steps(),
                r.grid.tile_rows,
                r.grid.tile_cols,
                r.grid.depth,
                r.levels
            ))
            .collect::<Vec<_>>()
    );
    for ((m, pm), rm) in plan.members.iter().zip(&plan.predicted.machines).zip(&r.machines) {
        let ma = &machines[m.machine];
        println!(
            "   last store {:.3} job {:.3} result {:.3}",
            rm.last_store_s, rm.last_job_s, rm.last_result_s
        );
        println!(
            "{}: compute {:.3} sim busy/thread {:.3} | link {:.3} out {:.1} MB back {:.1} MB | mem {} MB held {} MB at once {} jobs {}",
            ma.name,
            pm.compute_s,
            rm.busy_s / f64::from(ma.threads),
            pm.link_s,
            pm.bytes_out as f64 / 1e6,
            pm.bytes_back as f64 / 1e6,
            m.memory_bytes >> 20,
            rm.held_bytes_max >> 20,
            m.blocks_at_once,
            rm.jobs
        );
        for s in &m.shares {
            println!(
                "      {:?} {:?} steps {:?} block {}x{}x{} {:?}",
                s.cells.rows, s.cells.cols, s.steps, s.block.rows, s.block.cols, s.block.steps, s.order
            );
        }
    }
}
