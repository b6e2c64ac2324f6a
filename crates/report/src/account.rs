//! How each thread spent its time: a table as text, and fields for JSON.
//!
//! Units: seconds.

use bramble_primary::{IoUse, Report, ThreadUse};
use serde_json::{Value, json};

/// The tables of event-loop threads and of compute threads; empty if times were not measured.
pub(crate) fn text(report: &Report) -> Vec<String> {
    let own = report.io.iter().map(|io| ("primary", io));
    let workers = report.machines.iter().filter_map(|m| m.io.as_ref().map(|io| (m.name.as_str(), io)));
    let lines: Vec<(&str, &IoUse)> = own.chain(workers).collect();
    if lines.is_empty() {
        return Vec::new();
    }
    let width = report.machines.iter().map(|m| m.name.chars().count()).max().unwrap_or(0).max(7);
    let mut out = vec![format!(
        "  {:width$}  {:>9} {:>9} {:>9} {:>10} {:>9}   seconds of the event-loop thread",
        "", "sending", "receiving", "encoding", "scheduling", "other"
    )];
    out.extend(lines.iter().map(|(name, io)| {
        format!(
            "  {name:width$}  {:9.3} {:9.3} {:9.3} {:10.3} {:9.3}",
            io.sending_s, io.receiving_s, io.encoding_s, io.scheduling_s, io.other_s
        )
    }));
    out.push(format!(
        "  {:width$}  {:>9} {:>9} {:>9} {:>10}             seconds of all compute threads",
        "", "busy", "idle", "processor", "jobs"
    ));
    out.extend(report.machines.iter().map(|m| {
        let sum = |f: fn(&ThreadUse) -> f64| m.threads.iter().map(f).sum::<f64>();
        let jobs: u64 = m.threads.iter().map(|t| t.jobs).sum();
        let (busy, idle, cpu) = (sum(|t| t.busy_s), sum(|t| t.idle_s), sum(|t| t.cpu_s.unwrap_or_default()));
        format!("  {:width$}  {busy:9.3} {idle:9.3} {cpu:9.3} {jobs:10}", m.name)
    }));
    out
}

/// The times of an event-loop thread; `null` if not measured.
pub(crate) fn io_json(io: Option<&IoUse>) -> Value {
    let Some(io) = io else { return Value::Null };
    json!({
        "sending_s": io.sending_s,
        "receiving_s": io.receiving_s,
        "encoding_s": io.encoding_s,
        "scheduling_s": io.scheduling_s,
        "other_s": io.other_s,
    })
}

/// The times of a compute thread.
pub(crate) fn thread_json(t: &ThreadUse) -> Value {
    json!({"jobs": t.jobs, "busy_s": t.busy_s, "idle_s": t.idle_s, "cpu_s": t.cpu_s})
}
