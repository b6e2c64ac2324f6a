//! The report: a few lines for a person, one JSON object for a program.

use crate::account;
use crate::exit::Exit;
use crate::plan::view::limit;
use crate::plan::{json as plan_json, text as plan_text};
use crate::quantity::{bytes, counted, seconds};
use bramble_plan::Sums;
use bramble_primary::{MachineLoss, MachineReport, MovedWork, RelayReport, Report, Unreachable, WrongTiles};
use bramble_verify::Verdict;
use serde_json::{Value, json};

/// The limit of a run that took longer to start than to compute.
const START_UP: &str = "start-up";

/// The report as lines of text. `place` is where C is, as a user calls it; `refused` is a line about refused connections.
pub fn text(
    report: &Report,
    place: &str,
    is_verbose: bool,
    total_seconds: f64,
    refused: Option<String>,
) -> String {
    let mut out = Vec::new();
    let (m, n, k, dtype) = (report.problem.m, report.problem.n, report.problem.k, report.problem.dtype);
    out.push(format!("C         {m}x{n} {dtype}, k = {k}: {place}"));
    let gflops = report.gflops();
    let peak = if report.plan.peak_gflops > 0.0 && gflops > 0.0 {
        format!(
            ", {:.0} % of the cores' peak of {:.0}",
            gflops / report.plan.peak_gflops * 100.0,
            report.plan.peak_gflops
        )
    } else {
        String::new()
    };
    out.push(format!("time      {}  {gflops:.1} Gflop/s{peak}", seconds(report.seconds)));
    if report.machines.iter().any(|m| m.link_bytes_per_s.is_some()) {
        let (sent, received) = (bytes(report.bytes_sent as f64), bytes(report.bytes_received as f64));
        out.push(format!("moved     {sent} sent, {received} received"));
    }
    if report.plan.predicted.seconds > 0.0 {
        let (predicted, took) = (seconds(report.plan.predicted.seconds), seconds(report.seconds));
        let strategy = &report.plan.strategy;
        let by = match is_limited_by_start_up(report) {
            true => START_UP.to_owned(),
            false => report.plan.predicted.by.to_string(),
        };
        out.push(format!("plan      {strategy}: {predicted} predicted, {took} measured; limited by {by}"));
        let held = report.machines.iter().map(|m| m.memory_bytes).max().unwrap_or(0);
        out.push(format!("memory    {}", plan_text::memory(held, report.partial_sum_bytes_max)));
    }
    if let Some(instead) = &report.plan.instead {
        out.push(format!("instead   {instead}"));
    }
    if report.plan.bound.seconds >= plan_text::BOUND_SECONDS_MIN {
        let ratio = report.seconds / report.plan.bound.seconds;
        let (bound, by) = (seconds(report.plan.bound.seconds), report.plan.bound.by.name());
        out.push(format!(
            "bound     no plan takes less than {bound} ({by}); the run took {ratio:.2} times that"
        ));
    }
    out.extend(report.relay.as_ref().map(|relay| relayed(report, relay)));
    out.extend(refused);
    out.push(verified(report));
    out.push(format!(
        "total     {}, of which {} before the first job",
        seconds(total_seconds),
        seconds(report.opening_seconds)
    ));
    if is_verbose {
        out.extend(report.machines.iter().map(|m| machine(m, report.seconds)));
        out.extend(report.changes.moved.iter().map(|m| {
            let (part, times) = (m.part * 100.0, if m.times == 1 { "once" } else { "in several parts" });
            format!("  {part:.1} % of the work moved from {} to {}, {times}", m.from, m.to)
        }));
        out.extend(account::text(report));
    }
    out.join("\n") + "\n"
}

/// The exit code of a run with this report.
pub fn exit(report: &Report) -> Exit {
    let (changes, wrong) = (&report.changes, &report.check.wrong);
    match changes.lost.is_empty() && changes.missing.is_empty() && wrong.is_empty() {
        // Exit code 6 takes precedence over 3: the report names lost machines, but an unverified C has to stop a
        // script.
        _ if !report.check.verify.verdict.is_complete() => Exit::Partial,
        true => Exit::Done,
        false => Exit::Degraded,
    }
}

/// The line about panels that workers relayed.
fn relayed(report: &Report, relay: &RelayReport) -> String {
    let relayed = bytes(report.machines.iter().map(|m| m.relayed_bytes_in as f64).sum());
    let without = match relay.unreachable.len() {
        0 => String::new(),
        n => format!("; {} without a link", counted(n as u64, "pair")),
    };
    let pairs = counted(relay.pairs as u64, "pair");
    format!("relayed   {relayed} from worker to worker, {pairs}{without}")
}

/// Whether starting up took longer than the product. Start-up is the time to the first job: connecting, greeting,
/// measuring, planning, and waiting for workers that dial in.
fn is_limited_by_start_up(report: &Report) -> bool {
    report.opening_seconds > report.seconds
}

/// The line about verification: whether C was verified, how, and which part could not be.
fn verified(report: &Report) -> String {
    let verify = &report.check.verify;
    if report.unverified() {
        return "verified  no (--verify off)".to_owned();
    }
    let Verdict { method, worst_ratio, unverified, .. } = &verify.verdict;
    let used = format!(
        "{method}; largest residual {:.2} % of the rounding tolerance; {}",
        worst_ratio * 100.0,
        seconds(verify.seconds)
    );
    if verify.verdict.is_complete() {
        return format!("verified  yes: {used}");
    }
    let (elements, all) = (unverified.elements, u128::from(report.problem.m) * u128::from(report.problem.n));
    let reasons = unverified.reasons.join("; ");
    format!("verified  in part: {elements} of {all} elements not verified ({reasons}); {used}")
}

/// The verification as JSON. `passed` is null if C was not verified.
fn verify_json(report: &Report) -> Value {
    let verdict = &report.check.verify.verdict;
    let state = match () {
        () if report.unverified() => "off",
        () if !verdict.passed => "failed",
        () if !verdict.is_complete() => "partial",
        () => "passed",
    };
    json!({
        "method": verdict.method,
        "state": state,
        "passed": (!report.unverified()).then_some(verdict.is_complete()),
        "unverified": {"elements": verdict.unverified.elements, "reasons": verdict.unverified.reasons},
        "worst_ratio": verdict.worst_ratio,
        "arbitrated_rows": verdict.arbitrated_rows,
        "seconds": report.check.verify.seconds,
    })
}

fn machine(m: &MachineReport, run_seconds: f64) -> String {
    let busy: f64 = m.threads.iter().map(|t| t.busy_s).sum();
    let possible = run_seconds * m.threads.len() as f64;
    let percent = if possible > 0.0 { busy / possible * 100.0 } else { 0.0 };
    let link = m.link_bytes_per_s.map_or_else(String::new, |rate| {
        let trip = m.round_trip_s.unwrap_or_default() * 1e6;
        let cipher = m.encryption.map_or_else(String::new, |cipher| format!(" with {cipher}"));
        format!(", link{cipher} {}/s, round trip {trip:.0} us", bytes(rate))
    });
    format!(
        "  {}: {:.0} % of C with {}, {} busy {percent:.0} % of the time, {} of matrices{link}",
        m.name,
        m.share * 100.0,
        m.kernel,
        counted(m.threads.len() as u64, "thread"),
        bytes(m.memory_bytes as f64)
    )
}

/// The report as the object `bramble.multiply/1` (docs/json.md), which scripts rely on.
pub fn json(report: &Report, total_seconds: f64, digest: &str) -> Value {
    let machines: Vec<Value> = report.machines.iter().map(machine_json).collect();
    let kernels: Vec<&str> = report.machines.iter().map(|m| m.kernel.as_str()).collect();
    let kernel = match kernels.first() {
        Some(first) if kernels.iter().all(|k| k == first) => *first,
        Some(_) => "mixed",
        None => "none",
    };
    let [tile_rows, tile_cols, depth] = report.plan.grid;
    json!({
        "schema": "bramble.multiply/1",
        "m": report.problem.m, "n": report.problem.n, "k": report.problem.k,
        "dtype": report.problem.dtype.name(),
        "strategy": report.plan.strategy,
        "alone": report.plan.alone,
        "decision": report.plan.sentence,
        "instead": report.plan.instead,
        "sums": match report.plan.sums { Sums::Merged => "merged", Sums::Chained => "chained" },
        "kernel": kernel,
        "grid": {"tile_rows": tile_rows, "tile_cols": tile_cols, "depth": depth},
        "seconds": report.seconds,
        "gflops": report.gflops(),
        "peak_gflops": report.plan.peak_gflops,
        "first_job_seconds": report.opening_seconds,
        "total_seconds": total_seconds,
        "primary": {
            "bytes_sent": report.bytes_sent,
            "bytes_received": report.bytes_received,
            "sums_bytes_max": report.partial_sum_bytes_max,
            "cpu_s": cpu_seconds(),
            "rss_peak_bytes": rss_peak_bytes(),
            "io": account::io_json(report.io.as_ref()),
        },
        "workers": machines,
        "moved": report.changes.moved.iter().map(moved_json).collect::<Vec<_>>(),
        "bound": {"seconds": report.plan.bound.seconds, "by": report.plan.bound.by.name()},
        "predicted": plan_json::predicted(&report.plan.predicted),
        "limited_by": match is_limited_by_start_up(report) {
            true => START_UP,
            false => limit(&report.plan.predicted.by).0,
        },
        "verify": verify_json(report),
        "faults": {
            "lost": report.changes.lost.iter().map(lost_json).collect::<Vec<_>>(),
            "wrong": report.check.wrong.iter().map(wrong_json).collect::<Vec<_>>(),
            "missing": report.changes.missing,
            "retried": report.changes.lost.iter().map(|l| l.parts).sum::<u64>(),
            "excluded": report.changes.left_out.iter().map(|l| json!({"name": l.name, "reason": l.reason})).collect::<Vec<_>>(),
        },
        "joined": report.changes.joined.iter().map(|j| json!({"name": j.name, "at_s": j.at_s})).collect::<Vec<_>>(),
        "relay": report.relay.as_ref().map(relay_json),
        "digest": digest,
    })
}

fn relay_json(relay: &RelayReport) -> Value {
    let pair = |p: &Unreachable| json!({"from": p.from, "to": p.to, "why": p.why});
    json!({"pairs": relay.pairs, "unreachable": relay.unreachable.iter().map(pair).collect::<Vec<_>>()})
}

fn wrong_json(w: &WrongTiles) -> Value {
    json!({ "names": w.names, "tiles": w.tiles, "text": w.text })
}

fn lost_json(l: &MachineLoss) -> Value {
    json!({"name": l.name, "why": l.why, "at_s": l.at_s, "parts": l.parts, "part": l.part})
}

fn moved_json(m: &MovedWork) -> Value {
    json!({"from": m.from, "to": m.to, "times": m.times, "tile_steps": m.tile_steps, "part": m.part})
}

fn machine_json(m: &MachineReport) -> Value {
    let threads: Vec<Value> = m.threads.iter().map(account::thread_json).collect();
    json!({
        "name": m.name,
        "link": m.link,
        "encryption": m.encryption,
        "kernel": m.kernel,
        "gflops": m.gflops,
        "share": m.share,
        "bytes_in": m.bytes_in,
        "bytes_out": m.bytes_out,
        "relayed_bytes_in": m.relayed_bytes_in,
        "relayed_bytes_out": m.relayed_bytes_out,
        // The sum of an empty iterator is -0.0; adding 0.0 makes it 0.0.
        "busy_s": m.threads.iter().map(|t| t.busy_s).sum::<f64>() + 0.0,
        "jobs": m.threads.iter().map(|t| t.jobs).sum::<u64>(),
        "memory_bytes": m.memory_bytes,
        "link_bytes_per_s": m.link_bytes_per_s,
        "round_trip_s": m.round_trip_s,
        "io": account::io_json(m.io.as_ref()),
        "threads": threads,
    })
}

/// CPU seconds of this process so far, all threads.
pub fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Peak resident size of this process, mapped files included; 0 if the system does not report it.
fn rss_peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).map_or(0, |kib| kib * 1024)
}

/// The notice about wrong tiles: C is right now, but the machine needs attention.
pub fn wrong_tiles(wrong: &WrongTiles) -> String {
    let (tiles, were) = match wrong.tiles {
        1 => ("one tile".to_owned(), "was"),
        more => (format!("{more} tiles"), "were"),
    };
    match &wrong.names[..] {
        [] => format!("bramble: {tiles} of the interrupted run {were} wrong, and recomputed"),
        [one] => format!(
            "bramble: {tiles} of C from {one} {were} wrong, and recomputed by other machines: check the memory, clock and \
             cooling of {one}"
        ),
        some => format!(
            "bramble: {tiles} of C from {} together {were} wrong, and recomputed by other machines",
            some.join(", ")
        ),
    }
}
