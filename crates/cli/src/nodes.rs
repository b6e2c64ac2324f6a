//! `bramble nodes`: shows which machines answer, with their measured speed, memory and links.
//!
//! Invariant: every named machine is in the table, or in an error that names it.

use crate::args::NodesArgs;
use bramble_cluster::team::{GatheredTeam, Purpose, TeamSpec, check_kernel};
use bramble_cluster::until::{Completion, done_or_signal};
use bramble_kernel::Workload;
use bramble_primary::{Survey, Surveyed, survey};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::bytes;
use bramble_report::table;
use bramble_worker::host_name;
use serde_json::{Value, json};

/// Operations of an assumed product; large enough that workers measure their speed for a few milliseconds.
const FLOPS: f64 = 1e12;

/// The machines that answered, this one first, and the errors of the others.
struct Nodes {
    answered: Vec<Surveyed>,
    missing: Vec<Failure>,
}

impl Nodes {
    /// The rate of all links together, if there are several.
    fn together_bytes_per_s(&self) -> Option<f64> {
        self.answered.first()?.machine.nic_bytes_per_s
    }
}

/// Runs the verb.
pub(crate) fn run(args: &NodesArgs) -> Result<Exit, Failure> {
    if let Some(file) = &args.cluster {
        return Err(crate::plan::only_described("nodes", file));
    }
    let team = TeamSpec::of(&args.team)?;
    check_kernel(args.kernel, args.dtype)?;
    let nodes = match done_or_signal(ask(args, team))? {
        Completion::Done(nodes) => nodes,
        Completion::Signal(exit) => return Ok(exit),
    };
    let shown = if args.json { format!("{}\n", object(args, &nodes)) } else { text(args, &nodes) };
    let exit = bramble_report::out(shown.as_bytes())?;
    for failure in &nodes.missing {
        bramble_report::say(&format!("bramble: {}", failure.text.replace('\n', " ")));
    }
    Ok(nodes.missing.first().map_or(exit, |failure| failure.exit))
}

async fn ask(args: &NodesArgs, team: TeamSpec) -> Result<Nodes, Failure> {
    let purpose = Purpose { kernel: args.kernel, dtype: args.dtype, flops: FLOPS, work: Workload::Products };
    let mut gathered = team.gather_some(&args.team, purpose).await?;
    if let Some(at) = gathered.missing.iter().position(|f| f.exit == Exit::Usage) {
        return Err(gathered.missing.swap_remove(at));
    }
    let is_local = gathered.is_local;
    let asking = Survey {
        dtype: args.dtype,
        flops: FLOPS,
        // Ask for all memory that a worker offers.
        memory_bytes: u64::MAX,
        credits: None,
        kernel: gathered.kernel.clone(),
        one_kernel: false,
        name: host_name(),
        session_seed: bramble_cluster::random::seed()? as u32,
    };
    let (own, others) =
        survey(&asking, gathered.ends).await.map_err(|e| GatheredTeam::failure(is_local, e))?;
    let mut nodes = Nodes { answered: vec![own], missing: gathered.missing };
    for other in others {
        match other {
            Ok(answer) => nodes.answered.push(answer),
            Err(e) => nodes.missing.push(GatheredTeam::failure(is_local, e)),
        }
    }
    Ok(nodes)
}

fn text(args: &NodesArgs, nodes: &Nodes) -> String {
    let head =
        ["machine", "threads", "kernel", "Gflop/s", "peak", "memory", "link", "round trip", "encryption"];
    let none = || "-".to_owned();
    let row = |node: &Surveyed| {
        let m = &node.machine;
        let mut row = vec![
            m.name.clone(),
            m.threads.to_string(),
            node.kernel.clone(),
            format!("{:.1}", m.gflops),
            format!("{:.1}", m.peak_gflops),
            bytes(m.memory_bytes as f64),
        ];
        row.push(m.link.map_or_else(none, |l| format!("{:.1} MB/s", l.bytes_per_s / 1e6)));
        row.push(m.link.map_or_else(none, |l| format!("{:.0} us", l.round_trip_s * 1e6)));
        row.push(match (m.link, node.encryption) {
            (None, _) => none(),
            (Some(_), cipher) => cipher.unwrap_or("none").to_owned(),
        });
        row
    };
    let rows: Vec<Vec<String>> = nodes.answered.iter().map(row).collect();
    let mut lines = table::lines(&head, &rows);
    let all: f64 = nodes.answered.iter().map(|n| n.machine.gflops).sum();
    let count = nodes.answered.len();
    if count > 1 {
        lines.push(format!(
            "{count} machines, {all:.1} Gflop/s of {} together; the first is this one",
            args.dtype
        ));
    } else {
        lines.push(format!(
            "this machine, measured with {}; name others with -w, --hostfile or --local",
            args.dtype
        ));
    }
    lines.join("\n") + "\n"
}

/// The object `bramble.nodes/1`, which docs/json.md describes.
fn object(args: &NodesArgs, nodes: &Nodes) -> Value {
    let one = |(index, node): (usize, &Surveyed)| {
        let m = &node.machine;
        json!({
            "name": m.name,
            "primary": index == 0,
            "link": node.link,
            "encryption": node.encryption,
            "threads": m.threads,
            "kernel": node.kernel,
            "gflops": m.gflops,
            "peak_gflops": m.peak_gflops,
            "memory_bytes": m.memory_bytes,
            "link_bytes_per_s": m.link.map(|l| l.bytes_per_s),
            "round_trip_s": m.link.map(|l| l.round_trip_s),
        })
    };
    json!({
        "schema": "bramble.nodes/1",
        "dtype": args.dtype.name(),
        "nodes": nodes.answered.iter().enumerate().map(one).collect::<Vec<_>>(),
        "together_bytes_per_s": nodes.together_bytes_per_s(),
        "missing": nodes.missing.iter().map(|f| f.text.as_str()).collect::<Vec<_>>(),
    })
}
