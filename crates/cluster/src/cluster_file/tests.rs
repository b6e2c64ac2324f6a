//! Files that describe clusters, and files that do not.

use super::*;

const PI: &str = "name = \"pi[1-8]\"\ncores = 4\nmemory = \"4G\"\ngflops = { f64 = 12 }\n";

fn parse(text: &str) -> Result<ClusterFile, (usize, String)> {
    toml_keys::parse(text, described)
}

fn machines(keys: &str) -> Result<ClusterFile, String> {
    parse(&format!("[[machines]]\n{keys}")).map_err(|(line, why)| format!("{line}: {why}"))
}

#[test]
fn a_nodeset_makes_several_machines() {
    let file = machines(PI).unwrap();
    let names: Vec<&str> = file.machines.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["pi1", "pi2", "pi3", "pi4", "pi5", "pi6", "pi7", "pi8"]);
    let machine = file.machines[2].machine(DType::F64, None);
    assert_eq!((machine.threads, machine.memory_bytes), (4, 4 << 30));
    assert_eq!((machine.gflops, machine.peak_gflops), (12.0, 12.0));
    let link = machine.link.unwrap();
    assert_eq!((link.bytes_per_s, link.round_trip_s), (117.5e6, 2e-4));
    assert_eq!(file.primary, None);
}

#[test]
fn speeds_that_are_not_given_follow_from_others() {
    let speed = |given: &str, dtype| {
        let file = machines(&PI.replace("f64 = 12", given)).unwrap();
        file.machines[0].machine(dtype, None).gflops
    };
    let all = |given: &str| DType::ALL.map(|d| speed(given, d));
    assert_eq!(all("f64 = 12"), [24.0, 12.0, 6.0, 6.0]);
    assert_eq!(all("f32 = 24"), [24.0, 12.0, 6.0, 6.0]);
    assert_eq!(all("i64 = 6"), [24.0, 12.0, 6.0, 6.0]);
    assert_eq!(all("f64 = 12, f32 = 30, i32 = 9, i64 = 1"), [30.0, 12.0, 9.0, 1.0]);
}

#[test]
fn the_primary_s_link_bounds_all_others() {
    let text = format!(
        "[primary]\nname = \"laptop\"\ncores = 8\nmemory = \"16G\"\ngflops = {{ f64 = 120 }}\nlink_mb_s = 50\nwatts = 28\n\
         [[machines]]\n{PI}peak_gflops = {{ f64 = 16 }}\nlatency_us = 90.5\nwatts = 7\n"
    );
    let file = parse(&text).unwrap();
    let primary = file.primary.as_ref().unwrap();
    assert_eq!((primary.name.as_str(), primary.watts), ("laptop", Some(28.0)));
    let machine = file.machines[0].machine(DType::F32, file.primary.as_ref());
    assert_eq!((machine.gflops, machine.peak_gflops, file.machines[0].watts), (24.0, 32.0, Some(7.0)));
    let link = machine.link.unwrap();
    assert_eq!((link.bytes_per_s, link.round_trip_s), (50e6, 9.05e-5));
}

#[test]
fn errors_name_the_machine_and_the_key() {
    let wrong = [
        ("cores = 4", "cores = 0", "machine pi[1-8]: cores: must be a whole number from 1 to 1024"),
        ("cores = 4", "cores = -4", "machine pi[1-8]: cores: must be a whole number"),
        ("cores = 4", "cores = 4.5", "machine pi[1-8]: cores: must be a whole number"),
        ("cores = 4", "", "machine pi[1-8]: cores: is missing"),
        ("\"4G\"", "\"4X\"", "machine pi[1-8]: memory: use a number with K, M, G or T"),
        ("\"4G\"", "-1", "machine pi[1-8]: memory: must be more than 0"),
        ("memory", "momory", "machine pi[1-8]: momory: no such key; use name, cores, memory"),
        ("{ f64 = 12 }", "12", "machine pi[1-8]: gflops: use a table by element type"),
        ("{ f64 = 12 }", "{}", "machine pi[1-8]: gflops: use a table by element type"),
        ("f64 = 12", "f64 = -12", "machine pi[1-8]: gflops.f64: must be a number of Gflop/s"),
        ("f64 = 12", "f64 = nan", "machine pi[1-8]: gflops.f64: must be a number of Gflop/s"),
        ("f64 = 12", "bf16 = 12", "machine pi[1-8]: gflops.bf16: no such element type"),
        ("cores = 4", "cores = 4\nwatts = -7", "machine pi[1-8]: watts: must be a number from 0"),
        ("cores = 4", "cores = 4\nlink_mb_s = 0", "machine pi[1-8]: link_mb_s: must be a number from 0.001"),
        ("cores = 4", "cores = 4\nlatency_us = \"1\"", "machine pi[1-8]: latency_us: must be a number"),
        ("name = \"pi[1-8]\"", "", "machine number 1: name: is missing"),
        ("\"pi[1-8]\"", "8", "machine number 1: name: must be a text"),
        ("\"pi[1-8]\"", "\"pi[8-1]\"", "machine pi[8-1]: name: pi[8-1]: 8-1 is no range"),
        ("\"pi[1-8]\"", "\"\"", "machine : name: "),
        ("\"pi[1-8]\"", "\"pi[1-99999]\"", "99999 machines more make more than 10000"),
        ("\"pi[1-8]\"", "\"pi,pi\"", "machine pi: two machines have this name"),
    ];
    for (from, to, message) in wrong {
        let error = machines(&PI.replace(from, to)).unwrap_err();
        assert!(error.starts_with("0: ") && error.contains(message), "{to}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_that_describe_nothing_are_refused() {
    for (text, line, message) in [
        ("", 0, "it names no machines"),
        ("machines = []", 0, "it names no machines"),
        ("machines = 3", 0, "[[machines]]"),
        ("primary = 3", 0, "[primary]"),
        ("[cluster]\n", 0, "cluster: no such key"),
        ("[[machines]]\nname = \"a\"\ncores = = 4\n", 3, ""),
        ("[[machines]]\nname = \"a\"\nname = \"b\"\n", 3, "duplicate"),
    ] {
        let (at, why) = parse(text).unwrap_err();
        assert!(at == line && why.contains(message) && !why.contains('\n'), "{text}: {at}: {why}");
    }
    let error = read(Path::new("/nonexistent/cluster.toml")).unwrap_err();
    assert!(error.starts_with("/nonexistent/cluster.toml: cannot be read: "), "{error}");
}

#[test]
fn the_examples_are_described_rightly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/clusters");
    for (name, count) in [("pi5x8", 8), ("mixed", 9), ("lab1000", 1000)] {
        let file = read(&folder.join(format!("{name}.toml"))).unwrap();
        assert_eq!(file.machines.len(), count, "{name}");
        assert!(file.machines.iter().all(|m| m.watts.is_some()), "{name}");
    }
}
