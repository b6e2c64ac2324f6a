//! `lab status`: shows the machines of a lab, their limits, and the activity of workers and links.
//!
//! Place in the flow: `up` prints the same table at its end.

use super::network;
use super::process::Process;
use super::state::{Folder, Lab, LabMachine, PORT};
use crate::args::LabStatusArgs;
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::{bytes, rate_text, size_text};
use bramble_report::table;
use serde_json::{Value, json};

/// Runs the verb.
pub(super) fn run(args: &LabStatusArgs) -> Result<Exit, Failure> {
    let (folder, lab) = Folder::to_enter(&args.lab.name)?;
    show(&folder, &lab, args.json)
}

/// Prints the machines.
pub(super) fn show(folder: &Folder, lab: &Lab, json: bool) -> Result<Exit, Failure> {
    let workers = folder.workers();
    let worker =
        |machine: &LabMachine| workers.iter().find(|(name, _)| *name == machine.name).map(|(_, p)| *p);
    let seen: Vec<Seen<'_>> = lab.machines.iter().map(|m| Seen::of(m, worker(m))).collect();
    let text = match json {
        true => format!("{}\n", object(folder, lab, &seen)),
        false => table::lines(&HEAD, &seen.iter().map(Seen::row).collect::<Vec<_>>()).join("\n") + "\n",
    };
    bramble_report::out(text.as_bytes())
}

/// The current state of a machine.
struct Seen<'a> {
    machine: &'a LabMachine,
    worker: Option<Process>,
    /// Processor seconds of the worker; `None` if it has ended.
    cpu_s: Option<f64>,
    /// Bytes that its interface received and sent.
    bytes: Option<(u64, u64)>,
}

const HEAD: [&str; 10] =
    ["machine", "address", "link", "cores", "memory", "threads", "worker", "CPU s", "received", "sent"];

impl<'a> Seen<'a> {
    fn of(machine: &'a LabMachine, worker: Option<Process>) -> Self {
        let cpu_s = worker.and_then(Process::cpu_s);
        Self { machine, worker, cpu_s, bytes: network::counters(&machine.namespace) }
    }

    fn row(&self) -> Vec<String> {
        let limits = &self.machine.limits;
        let none = || "-".to_owned();
        let worker = match (self.worker, self.cpu_s) {
            (None, _) => none(),
            (Some(process), Some(_)) => format!("process {}", process.pid),
            (Some(_), None) => "gone".to_owned(),
        };
        let count = |own: Option<u64>| own.map_or_else(none, |b| bytes(b as f64));
        vec![
            self.machine.name.clone(),
            self.machine.address.to_string(),
            limits.link_bits_per_s.map_or_else(none, rate_text),
            limits.cores.map_or_else(none, |cores| format!("{cores}")),
            limits.memory_bytes.map_or_else(none, size_text),
            limits.threads.map_or_else(none, |threads| threads.to_string()),
            worker,
            self.cpu_s.map_or_else(none, |seconds| format!("{seconds:.2}")),
            count(self.bytes.map(|b| b.0)),
            count(self.bytes.map(|b| b.1)),
        ]
    }

    /// An entry of the object `bramble.lab/1`, which docs/json.md describes.
    fn object(&self, folder: &Folder) -> Value {
        let LabMachine { name, address, namespace, groups, limits } = self.machine;
        let worker = self.worker.map(|process| {
            json!({
                "pid": process.pid,
                "alive": self.cpu_s.is_some(),
                "cpu_s": self.cpu_s,
                "port": PORT,
                "log": folder.log(name),
            })
        });
        json!({
            "name": name,
            "address": address,
            "namespace": namespace,
            "interface": network::INTERFACE,
            "groups": groups,
            "link_bits_per_s": limits.link_bits_per_s,
            "cores": limits.cores,
            "memory_bytes": limits.memory_bytes,
            "threads": limits.threads,
            "kernel": limits.kernel,
            "worker": worker,
            "bytes_in": self.bytes.map(|b| b.0),
            "bytes_out": self.bytes.map(|b| b.1),
        })
    }
}

fn object(folder: &Folder, lab: &Lab, seen: &[Seen<'_>]) -> Value {
    let objects: Vec<Value> = seen.iter().map(|one| one.object(folder)).collect();
    json!({
        "schema": "bramble.lab/1",
        "name": lab.name,
        "from": lab.from,
        "key": lab.key,
        "primary": objects.first(),
        "machines": objects.get(1..),
    })
}
