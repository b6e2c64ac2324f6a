//! Interprets the fields of each schema: turns a line into its measures.
//!
//! Place in the flow: called by `measure`, by the name of the schema.
//!
//! Invariant: a line is refused, with the field's name, if a field of the measurement's identity or value is missing
//! or has a wrong type; fields that are only displayed may be missing.

use super::measure::{Measure, MeasureKind, Pages, Spot, Unit, short};
use bramble_report::quantity::{self, counted};
use serde_json::Value;

static KERNELS: MeasureKind = MeasureKind {
    title: "Kernels",
    about: "Products in memory, by kernel and number of threads: 2 m n k operations by the median time.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: true,
};
static BEST: MeasureKind = MeasureKind {
    title: "Best of all kernels",
    about: "Products in memory, by the kernel and the number of threads that did each fastest on its machine.",
    unit: Unit::Gflops,
    pages: Pages::OfTwo,
    has_peaks: true,
};
pub(super) static PEAKS: MeasureKind = MeasureKind {
    title: "Peak of the processor",
    about: "The peak of this many threads, if they did nothing but multiply and add.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static PRODUCTS: MeasureKind = MeasureKind {
    title: "Whole products",
    about: "bramble multiply: from the first job sent to the last tile landed, with all machines that took part.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static TOGETHER: MeasureKind = MeasureKind {
    title: "All machines together",
    about: "bramble nodes: the sum of all machines' measured speeds, including the primary's.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static NODES: MeasureKind = MeasureKind {
    title: "Machines of the cluster",
    about: "bramble nodes: each machine that answered.",
    unit: Unit::Gflops,
    pages: Pages::OfOne,
    has_peaks: false,
};
static LINKS: MeasureKind = MeasureKind {
    title: "Links of the cluster",
    about: "bramble nodes: bytes a second between the primary and its workers.",
    unit: Unit::BytesPerS,
    pages: Pages::Both,
    has_peaks: false,
};
static ROUND_TRIPS: MeasureKind = MeasureKind {
    title: "Round trips in the cluster",
    about: "bramble nodes: from the primary to a worker and back.",
    unit: Unit::Seconds,
    pages: Pages::Both,
    has_peaks: false,
};

/// Functions of `bench link`, by their names there.
static FUNCTIONS: [(&str, MeasureKind); 8] = [
    ("latency", function("Links: latency", "Half of a round trip of a message.", Unit::Seconds)),
    ("gap", function("Links: gap", "How long one message occupies the sender.", Unit::Seconds)),
    ("bandwidth", function("Links: bandwidth", "Messages in one direction, back to back.", Unit::BytesPerS)),
    (
        "two-way",
        function(
            "Links: both ways",
            "Messages in both directions at once; bytes of both count.",
            Unit::BytesPerS,
        ),
    ),
    ("broadcast", function("Links: broadcast", "A message from one end to all others.", Unit::Seconds)),
    ("reduce", function("Links: reduce", "Sums of numbers from all ends, at one end.", Unit::Seconds)),
    (
        "all-reduce",
        function("Links: all-reduce", "Sums of numbers from all ends, at all ends.", Unit::Seconds),
    ),
    (
        "all-to-all",
        function("Links: all-to-all", "A different message from each end to each other end.", Unit::Seconds),
    ),
];

const fn function(title: &'static str, about: &'static str, unit: Unit) -> MeasureKind {
    MeasureKind { title, about, unit, pages: Pages::Both, has_peaks: false }
}

static ADDING: MeasureKind = MeasureKind {
    title: "Adding to one block",
    about: "bench accumulate: jobs that several threads add to one block, by owners of tiles, locks, or atomic additions.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static TREES: MeasureKind = MeasureKind {
    title: "Strassen by processes",
    about: "bench tree: products of files by worker processes of one machine, by the levels of Strassen's method.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static FILES: MeasureKind = MeasureKind {
    title: "Products from files to a file",
    about: "bench product: by one process, and by worker processes over each link, with one thread and with several.",
    unit: Unit::Gflops,
    pages: Pages::Both,
    has_peaks: false,
};
static STARTS: MeasureKind = function(
    "Starting",
    "bench spawn: time until this many threads or processes have started.",
    Unit::Seconds,
);

/// All kinds, in the order of the page.
pub(super) static KINDS: [&MeasureKind; 20] = [
    &BEST,
    &KERNELS,
    &PEAKS,
    &PRODUCTS,
    &ADDING,
    &FUNCTIONS[0].1,
    &FUNCTIONS[1].1,
    &FUNCTIONS[2].1,
    &FUNCTIONS[3].1,
    &FUNCTIONS[4].1,
    &FUNCTIONS[5].1,
    &FUNCTIONS[6].1,
    &FUNCTIONS[7].1,
    &FILES,
    &TREES,
    &STARTS,
    &TOGETHER,
    &NODES,
    &LINKS,
    &ROUND_TRIPS,
];

/// A JSON object with access by field.
pub(super) struct Line<'a>(pub(super) &'a Value);

impl Line<'_> {
    fn text(&self, field: &str) -> Result<String, String> {
        let text = self.0.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.map(short).ok_or_else(|| format!("'{field}' is missing or no text"))
    }

    fn count(&self, field: &str) -> Result<u64, String> {
        let count = self.0.get(field).and_then(Value::as_u64).filter(|count| *count > 0);
        count.ok_or_else(|| format!("'{field}' is missing or no whole number above 0"))
    }

    fn number(&self, field: &str) -> Result<f64, String> {
        positive(self.0, field).ok_or_else(|| format!("'{field}' is missing or no number above 0"))
    }

    /// The elements of a list.
    fn list(&self, field: &str) -> Result<&Vec<Value>, String> {
        self.0.get(field).and_then(Value::as_array).ok_or_else(|| format!("'{field}' is missing or no list"))
    }

    /// The sizes of a product as text, and the edge of the cube with the same number of operations.
    fn size(&self) -> Result<(String, f64), String> {
        let [m, k, n] = [self.count("m")?, self.count("k")?, self.count("n")?];
        let text = if m == k && k == n { n.to_string() } else { format!("{m}x{k}x{n}") };
        Ok((text, (m as f64 * k as f64 * n as f64).cbrt()))
    }

    /// Sets spread and outliers of a measure. `seconds` is the name of the field with the median.
    fn runs(&self, seconds: &str, of: &mut Measure) {
        let [median, min, max] = ["", "_min", "_max"].map(|end| positive(self.0, &format!("{seconds}{end}")));
        if let (Some(median), Some(min), Some(max)) = (median, min, max) {
            of.spread = Some(((max - min) / median).max(0.0));
        }
        let [slow, all] = ["outliers", "rounds"].map(|field| self.0.get(field).and_then(Value::as_u64));
        of.outliers = slow.zip(all);
    }
}

/// A positive number.
fn positive(of: &Value, field: &str) -> Option<f64> {
    of.get(field).and_then(Value::as_f64).filter(|x| x.is_finite() && *x > 0.0)
}

/// The text of a displayed number; a dash if it is missing.
fn shown(number: Option<f64>, text: impl Fn(f64) -> String) -> String {
    number.map_or_else(|| "–".to_owned(), text)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The position of a product in a plot by size.
fn at_size(panel: String, line: String, edge: f64) -> Option<Spot> {
    Some(Spot { panel, line, place: edge, axis: "edge of the product", mark: |edge| format!("{edge:.0}") })
}

/// `bramble.bench.kernel/1`.
pub(super) fn kernel(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (kernel, dtype, threads) = (line.text("kernel")?, line.text("dtype")?, line.count("threads")?);
    let (size, edge) = line.size()?;
    let of = [("type", dtype.clone()), ("size", size)];
    let by = format!("{kernel}, {}", counted(threads, "thread"));
    let mut one = Measure::new(&KERNELS, of.to_vec(), line.number("gflops")?);
    line.runs("seconds", &mut one);
    one.spot = at_size(dtype.clone(), by.clone(), edge);
    let best =
        Measure { kind: &BEST, way: by, spot: at_size(dtype.clone(), String::new(), edge), ..one.clone() };
    one.key.insert(0, ("kernel", kernel));
    one.key.push(("threads", threads.to_string()));
    one.more = vec![
        ("time", shown(positive(line.0, "seconds"), quantity::brief)),
        ("of peak", shown(positive(line.0, "of_peak"), percent)),
        ("error", shown(positive(line.0, "error_of_bound"), |error| format!("{error:.4}"))),
    ];
    let key = vec![("type", dtype), ("threads", threads.to_string())];
    let peak = positive(line.0, "peak_gflops").map(|peak| Measure::new(&PEAKS, key, peak));
    Ok([one, best].into_iter().chain(peak).collect())
}

/// `bramble.bench.accumulate/1`.
pub(super) fn accumulate(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (way, kernel, dtype) = (line.text("way")?, line.text("kernel")?, line.text("dtype")?);
    let (jobs, threads) = (line.count("jobs")?, line.count("threads")?);
    let (size, edge) = line.size()?;
    let panel = format!("{dtype}, {} a block, {}", counted(jobs, "job"), counted(threads, "thread"));
    let counts = [("jobs", jobs.to_string()), ("threads", threads.to_string())];
    let names = [("way", way.clone()), ("kernel", kernel), ("type", dtype), ("size", size)];
    let key = names.into_iter().chain(counts).collect();
    let mut one = Measure::new(&ADDING, key, line.number("gflops")?);
    line.runs("seconds", &mut one);
    one.spot = at_size(panel, way, edge).map(|spot| Spot { axis: "edge of a job", ..spot });
    one.more = vec![
        ("a block", shown(positive(line.0, "seconds"), quantity::brief)),
        ("a job", shown(positive(line.0, "job_seconds"), quantity::brief)),
        ("of owner", shown(positive(line.0, "times_owner"), |times| format!("{times:.3}"))),
        ("results", shown(positive(line.0, "results"), |results| results.to_string())),
    ];
    Ok(vec![one])
}

/// `bramble.bench.link/1`.
pub(super) fn link(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (link, name) = (line.text("link")?, line.text("function")?);
    let (bytes, ends) = (line.count("bytes")?, line.count("ends")?);
    let Some((_, kind)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
        return Err(format!("the function '{name}' is not known to this version"));
    };
    let value = line.number(if kind.unit == Unit::Seconds { "seconds" } else { "bytes_per_s" })?;
    let key = vec![("link", link.clone()), ("bytes", bytes.to_string()), ("ends", ends.to_string())];
    let mut one = Measure::new(kind, key, value);
    line.runs("seconds", &mut one);
    one.more = vec![("of bare", shown(positive(line.0, "of_bare"), |part| format!("{part:.2}")))];
    let panel = if ends == 2 { "Between two ends".to_owned() } else { format!("Among {ends} ends") };
    let mark = |bytes: f64| quantity::size_text(bytes as u64);
    one.spot = Some(Spot { panel, line: link, place: bytes as f64, axis: "bytes of a message", mark });
    Ok(vec![one])
}

/// `bramble.bench.tree/1`.
pub(super) fn tree(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (link, dtype) = (line.text("link")?, line.text("dtype")?);
    // Level 0 is valid, too.
    let levels = line.0["levels"].as_u64().ok_or("levels is missing, or no whole number")?;
    let workers = line.count("workers")?;
    let (size, edge) = line.size()?;
    let panel = format!("{dtype}, {workers} worker processes");
    let names = [("link", link.clone()), ("levels", levels.to_string()), ("type", dtype), ("size", size)];
    let key = names.into_iter().chain([("workers", workers.to_string())]).collect();
    let mut one = Measure::new(&TREES, key, line.number("gflops")?);
    line.runs("seconds", &mut one);
    one.spot = at_size(panel, format!("{link}, {}", counted(levels, "level")), edge);
    one.more = vec![("time", shown(positive(line.0, "seconds"), quantity::brief))];
    Ok(vec![one])
}

/// `bramble.bench.product/1`.
pub(super) fn product(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (link, dtype, threads) = (line.text("link")?, line.text("dtype")?, line.count("threads")?);
    // 0 workers means this process alone.
    let workers = line.0["workers"].as_u64().ok_or("workers is missing, or no whole number")?;
    let (size, edge) = line.size()?;
    let way = match workers {
        0 => "this process".to_owned(),
        workers => format!("{}, {link}", counted(workers, "worker")),
    };
    let names = [("link", link), ("workers", workers.to_string()), ("threads", threads.to_string())];
    let key = names.into_iter().chain([("type", dtype.clone()), ("size", size)]).collect();
    let mut one = Measure::new(&FILES, key, line.number("gflops")?);
    line.runs("seconds", &mut one);
    let plural = if threads == 1 { "thread" } else { "threads" };
    one.spot = at_size(dtype, format!("{way}, {threads} {plural}"), edge);
    one.more = vec![
        ("time", shown(positive(line.0, "seconds"), quantity::brief)),
        ("whole process", shown(positive(line.0, "total_seconds"), quantity::brief)),
    ];
    Ok(vec![one])
}

/// `bramble.bench.spawn/1`.
pub(super) fn spawn(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (what, count) = (line.text("what")?, line.count("count")?);
    let key = vec![("what", what.clone()), ("number", count.to_string())];
    let mut one = Measure::new(&STARTS, key, line.number("start_s")?);
    line.runs("start_s", &mut one);
    one.more = vec![("end", shown(positive(line.0, "end_s"), quantity::brief))];
    let (panel, mark) = ("Time until all have started".to_owned(), |count: f64| format!("{count:.0}"));
    one.spot = Some(Spot { panel, line: what, place: count as f64, axis: "how many at once", mark });
    Ok(vec![one])
}

/// `bramble.multiply/1`.
pub(super) fn multiply(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (dtype, strategy, kernel) = (line.text("dtype")?, line.text("strategy")?, line.text("kernel")?);
    let (size, edge) = line.size()?;
    let seconds = line.number("seconds")?;
    let machines = line.list("workers")?.iter().filter(|worker| positive(worker, "share").is_some()).count();
    let mut one =
        Measure::new(&PRODUCTS, vec![("type", dtype.clone()), ("size", size)], line.number("gflops")?);
    let plural = if machines == 1 { "machine" } else { "machines" };
    one.way = format!("{strategy}, {kernel}, {machines} {plural}");
    one.spot = at_size(dtype, one.way.clone(), edge);
    let bound = line.0.get("bound").and_then(|bound| positive(bound, "seconds"));
    let moved = line.0.get("primary").and_then(|primary| positive(primary, "bytes_sent"));
    one.more = vec![
        ("time", quantity::brief(seconds)),
        ("over the bound", shown(bound, |bound| format!("{:.2}", seconds / bound))),
        ("sent by the primary", shown(moved, quantity::bytes)),
    ];
    let faults = |what: &str| {
        let list = line.0.get("faults").and_then(|faults| faults.get(what)).and_then(Value::as_array);
        list.map_or(0, Vec::len)
    };
    let (lost, wrong, missing) = (faults("lost"), faults("wrong"), faults("missing"));
    if lost + wrong + missing > 0 {
        one.trouble = Some(format!("{lost} lost, {wrong} wrong, {missing} missing"));
    }
    Ok(vec![one])
}

/// `bramble.nodes/1`.
pub(super) fn nodes(line: &Line<'_>) -> Result<Vec<Measure>, String> {
    let (dtype, nodes) = (line.text("dtype")?, line.list("nodes")?);
    let mut out = Vec::new();
    for node in nodes {
        let node = Line(node);
        let key = vec![("machine", node.text("name")?), ("type", dtype.clone())];
        let mut one = Measure::new(&NODES, key, node.number("gflops")?);
        one.more = vec![
            ("kernel", node.text("kernel").unwrap_or_default()),
            ("threads", shown(positive(node.0, "threads"), |threads| threads.to_string())),
            ("memory", shown(positive(node.0, "memory_bytes"), quantity::bytes)),
            ("link", node.text("link").unwrap_or_default()),
            ("rate", shown(positive(node.0, "link_bytes_per_s"), |rate| quantity::bytes(rate) + "/s")),
            ("round trip", shown(positive(node.0, "round_trip_s"), quantity::brief)),
        ];
        out.push(one);
    }
    let all = |field: &str| nodes.iter().filter_map(|node| positive(node, field)).collect::<Vec<f64>>();
    let count = if nodes.len() == 1 { "1 machine".to_owned() } else { format!("{} machines", nodes.len()) };
    for (what, field) in [("measured", "gflops"), ("peak", "peak_gflops")] {
        let speeds = all(field);
        if !speeds.is_empty() {
            let key = vec![("type", dtype.clone()), ("what", what.to_owned())];
            let sum = Measure::new(&TOGETHER, key, speeds.iter().sum());
            out.push(Measure { way: count.clone(), ..sum });
        }
    }
    let slowest = all("link_bytes_per_s").into_iter().min_by(f64::total_cmp);
    let longest = all("round_trip_s").into_iter().max_by(f64::total_cmp);
    let together = positive(line.0, "together_bytes_per_s");
    let named =
        [(&LINKS, "all at once", together), (&LINKS, "slowest", slowest), (&ROUND_TRIPS, "longest", longest)];
    out.extend(named.into_iter().filter_map(|(kind, what, value)| {
        value.map(|value| Measure {
            way: count.clone(),
            ..Measure::new(kind, vec![("what", what.to_owned())], value)
        })
    }));
    if out.is_empty() { Err("'nodes' is empty".to_owned()) } else { Ok(out) }
}
