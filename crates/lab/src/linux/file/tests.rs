//! Files that describe labs, and files that do not.

use super::*;

const PI: &str =
    "[[machines]]\nname = \"pi[1-4]\"\nlink = \"200Mbit/s\"\ncores = 0.25\nmemory = \"512M\"\nthreads = 1\n";

fn parse(text: &str) -> Result<Description, String> {
    let read = toml_keys::parse(text, |table| described(table, "it".to_owned()));
    read.map_err(|(line, why)| format!("{line}: {why}"))
}

#[test]
fn a_description_says_what_every_machine_may_use() {
    let primary = "key = false\n[primary]\nlink = \"1Gbit/s\"\ncores = 2\nmemory = \"2G\"\nthreads = 2\n";
    let lab = parse(&format!("{primary}{PI}kernel = \"simd\"\n")).unwrap();
    let names: Vec<&str> = lab.machines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["pi1", "pi2", "pi3", "pi4"]);
    let limits = |link, cores, memory_bytes, threads, kernel: Option<&str>| MachineLimits {
        link_bits_per_s: Some(link),
        cores: Some(cores),
        memory_bytes: Some(memory_bytes),
        threads: Some(threads),
        kernel: kernel.map(str::to_owned),
    };
    assert_eq!(lab.machines[3].1, limits(200_000_000, 0.25, 512 << 20, 1, Some("simd")));
    assert_eq!(lab.primary, limits(1_000_000_000, 2.0, 2 << 30, 2, None));
    assert!(!lab.key);
}

#[test]
fn what_is_not_said_has_no_limit_and_links_are_encrypted() {
    let lab = parse("[[machines]]\nname = \"a\"\n").unwrap();
    assert_eq!((lab.primary, &lab.machines[0].1), (MachineLimits::default(), &MachineLimits::default()));
    assert!(lab.key);
}

#[test]
fn errors_name_the_machine_and_the_key() {
    let wrong = [
        ("\"200Mbit/s\"", "200", "machine pi[1-4]: link: must be a text"),
        ("\"200Mbit/s\"", "\"200\"", "machine pi[1-4]: link: use a rate as in 200Mbit/s"),
        ("\"200Mbit/s\"", "\"1Tbit/s\"", "machine pi[1-4]: link: use a rate"),
        ("\"200Mbit/s\"", "\"500Gbit/s\"", "machine pi[1-4]: link: a rate is from 64 kbit/s to 400 Gbit/s"),
        ("cores = 0.25", "cores = 0", "machine pi[1-4]: cores: must be a number from 0.01 to 1024"),
        ("cores = 0.25", "cores = nan", "machine pi[1-4]: cores: must be a number"),
        ("cores = 0.25", "cores = \"1\"", "machine pi[1-4]: cores: must be a number"),
        ("\"512M\"", "\"512X\"", "machine pi[1-4]: memory: use a number with K, M, G or T"),
        ("\"512M\"", "\"32M\"", "machine pi[1-4]: memory: must be at least 64M"),
        ("threads = 1", "threads = 0", "machine pi[1-4]: threads: must be a whole number from 1 to 1024"),
        ("threads = 1", "kernel = \"fastest\"", "machine pi[1-4]: kernel: "),
        ("threads = 1", "kernel = \"auto\"", "machine pi[1-4]: kernel: leave it out"),
        ("threads = 1", "thread = 1", "machine pi[1-4]: thread: no such key; use name, link, cores"),
        ("\"pi[1-4]\"", "\"hub\"", "machine hub: name: hub: this name is reserved for the lab itself"),
        ("\"pi[1-4]\"", "\"primary\"", "machine primary: name: primary: this name is reserved"),
        ("\"pi[1-4]\"", "\"a/../b\"", "machine a/../b: name: a/../b: use letters"),
        ("\"pi[1-4]\"", "\".a\"", "machine .a: name: .a: use letters"),
        ("\"pi[1-4]\"", "\"10.0.0.1\"", "name: 10.0.0.1: use letters"),
        ("\"pi[1-4]\"", "\"pi[1-251]\"", "machine pi[1-251]: name: a lab has at most 250 machines"),
        ("\"pi[1-4]\"", "\"pi[1-99999]\"", "99999 machines more make more than 10000"),
        ("\"pi[1-4]\"", "\"pi1,pi1\"", "machine pi1: two machines have this name"),
        ("name = \"pi[1-4]\"", "", "machine number 1: name: is missing"),
    ];
    for (from, to, message) in wrong {
        let error = parse(&PI.replace(from, to)).unwrap_err();
        assert!(error.starts_with("0: ") && error.contains(message), "{to}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn files_that_describe_nothing_are_refused() {
    for (text, message) in [
        ("", "0: it names no machines"),
        ("machines = 3", "0: machines: use one table for each"),
        ("primary = 3", "0: primary: use a table"),
        ("key = 1", "0: key: must be true or false"),
        ("[cluster]\n", "0: cluster: no such key; use key, [primary] and [[machines]]"),
        ("[primary]\nname = \"me\"\n", "0: primary: name: no such key; use link, cores, memory, threads"),
        ("[[machines]]\nname = \"a\"\ncores = = 4\n", "3: "),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.starts_with(message) && !error.contains('\n'), "{text}: {error}");
    }
    let error = read("/nonexistent/lab.toml").unwrap_err();
    assert!(error.text.starts_with("/nonexistent/lab.toml: cannot be read: "), "{}", error.text);
    let error = read("five").unwrap_err();
    assert!(error.text.contains("there are four, mixed, tiny8, slow-link."), "{}", error.text);
}

#[test]
fn the_examples_fit_two_processors() {
    for ((name, _), count) in EXAMPLES.iter().zip([4, 4, 8, 4]) {
        let lab = read(name).unwrap();
        assert_eq!((lab.machines.len(), lab.from.as_str()), (count, *name));
        let all = lab.machines.iter().map(|(_, limits)| limits).chain([&lab.primary]);
        let cores: f64 = all.map(|limits| limits.cores.unwrap()).sum();
        assert!(cores <= 2.0 + 1e-9, "{name}: {cores}");
    }
}
