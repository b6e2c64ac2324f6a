//! From lines to pages: lines that are read or refused, and escaping of texts from files.

use super::*;
use std::fs;
use std::path::PathBuf;

/// A machine with these lines.
pub(super) fn source(label: &str, lines: &[&str]) -> MeasuredMachine {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lines.jsonl");
    fs::write(&file, lines.join("\n")).unwrap();
    read::source(&[file], Some(&label.to_owned())).unwrap()
}

const KERNEL: &str = concat!(
    r#"{"schema":"bramble.bench.kernel/1","kernel":"simd","dtype":"f64","m":64,"k":64,"n":64,"threads":1,"#,
    r#""rounds":3,"seconds":1.0,"seconds_min":0.9,"seconds_max":1.5,"gflops":20.0,"peak_gflops":50.0,"#,
    r#""of_peak":0.4,"error_of_bound":0.01,"outliers":1}"#,
);
const MULTIPLY: &str = concat!(
    r#"{"schema":"bramble.multiply/1","m":10,"k":10,"n":10,"dtype":"f32","strategy":"reuse","#,
    r#""kernel":"simd","seconds":0.5,"gflops":4,"bound":{"seconds":0.25,"by":"compute"},"#,
    r#""primary":{"bytes_sent":2000},"workers":[{"name":"w","share":0.5},{"name":"v","share":0.5}],"#,
    r#""faults":{"lost":[{}],"wrong":[],"missing":[]}}"#,
);
const NODES: &str = concat!(
    r#"{"schema":"bramble.nodes/1","dtype":"f64","nodes":[{"name":"here","gflops":10,"peak_gflops":12,"#,
    r#""threads":4,"link_bytes_per_s":null},{"name":"there","gflops":5,"peak_gflops":6,"#,
    r#""link_bytes_per_s":1e8,"round_trip_s":0.001}],"together_bytes_per_s":9e7}"#,
);

const LINK: &str = concat!(
    r#"{"schema":"bramble.bench.link/1","link":"tcp","function":"latency","bytes":1024,"ends":2,"rounds":3,"#,
    r#""seconds":1e-5,"seconds_min":9e-6,"seconds_max":2e-5,"bytes_per_s":1e8,"of_bare":0.5,"outliers":0}"#,
);
const SPAWN: &str = concat!(
    r#"{"schema":"bramble.bench.spawn/1","what":"thread","count":4,"rounds":5,"start_s":1e-4,"#,
    r#""start_s_min":1e-4,"start_s_max":1.1e-4,"end_s":1e-5,"outliers":0}"#,
);

fn of_title<'a>(source: &'a MeasuredMachine, title: &str) -> Vec<&'a measure::Measure> {
    source.measures.iter().filter(|one| one.kind.title == title).collect()
}

#[test]
fn every_schema_has_its_measures() {
    let faster = LINK.replace("latency", "bandwidth");
    let all = source("pi", &[KERNEL, MULTIPLY, NODES, LINK, &faster, SPAWN]);
    assert_eq!(of_title(&all, "Links: latency")[0].value, 1e-5);
    assert_eq!(of_title(&all, "Links: bandwidth")[0].value, 1e8);
    let start = of_title(&all, "Starting")[0];
    assert_eq!((start.value, start.outliers), (1e-4, Some((0, 5))));
    assert!((start.spread.unwrap() - 0.1).abs() < 1e-9);
    let kernel = of_title(&all, "Kernels")[0];
    assert_eq!((kernel.value, kernel.outliers), (20.0, Some((1, 3))));
    assert!(kernel.is_disturbed() && (kernel.spread.unwrap() - 0.6).abs() < 1e-9);
    assert_eq!(of_title(&all, "Peak of the processor")[0].value, 50.0);
    let product = of_title(&all, "Whole products")[0];
    assert_eq!((product.value, product.way.as_str()), (4.0, "reuse, simd, 2 machines"));
    assert!(product.is_disturbed() && product.more.contains(&("over the bound", "2.00".to_owned())));
    let together: Vec<f64> = of_title(&all, "All machines together").iter().map(|one| one.value).collect();
    assert_eq!(together, [15.0, 18.0]);
    assert_eq!(of_title(&all, "Machines of the cluster").len(), 2);
    let links: Vec<f64> = of_title(&all, "Links of the cluster").iter().map(|one| one.value).collect();
    assert_eq!(links, [9e7, 1e8]);
    assert_eq!(of_title(&all, "Round trips in the cluster")[0].value, 0.001);
    assert!(all.notes.is_empty(), "{:?}", all.notes);
}

#[test]
fn lines_of_one_measurement_are_one_by_their_median() {
    let with = |gflops: &str| KERNEL.replace("20.0", gflops);
    let all = source("pi", &[&with("10"), &with("30"), &with("20"), &with("20")]);
    let kernels = of_title(&all, "Kernels");
    assert_eq!((kernels.len(), kernels[0].value, kernels[0].lines), (1, 20.0, 3));
    assert_eq!(kernels[0].outliers, Some((3, 9)));
}

#[test]
fn what_is_not_read_is_named_with_its_lines() {
    let broken = [
        KERNEL,
        "{\"schema\": \"brok",
        "\u{1b}[2J",
        "",
        r#"{"schema":"other/1"}"#,
        r#"{"x":1}"#,
        &KERNEL.replace("kernel/1", "kernel/2"),
        &KERNEL.replace("\"gflops\":20.0", "\"gflops\":-1"),
        &KERNEL.replace("\"threads\":1", "\"threads\":\"1\""),
        &LINK.replace("latency", "shout"),
        r#"{"schema":"bramble.plan/1"}"#,
        r#"{"schema":"bramble.machine/1","host":"a","bramble":"1"}"#,
        r#"{"schema":"bramble.machine/1","host":"b","bramble":"1"}"#,
    ];
    let all = source("pi", &broken);
    let notes = all.notes.join("\n");
    for said in [
        "lines 2, 3: no JSON",
        "line 5: the schema other/1",
        "line 6: it has no schema",
        "line 7: version '2' of bramble.bench.kernel",
        "line 8: bramble.bench.kernel/1: 'gflops'",
        "line 9: bramble.bench.kernel/1: 'threads'",
        "line 10: bramble.bench.link/1: the function 'shout'",
        "line 11: bramble.plan/1 is no measurement",
        "versions 1 and 2 of bramble.bench.kernel are mixed",
        "lines of 2 machines: a, b",
    ] {
        assert!(notes.contains(said), "{said} in\n{notes}");
    }
    assert!(!notes.contains('\u{1b}') && all.measures.len() == 3);
}

#[test]
fn many_faults_are_bounded() {
    let mut lines = vec![KERNEL.to_owned()];
    lines.extend((0..1000).map(|at| format!("{{\"schema\":\"x{at}/1\"}}")));
    let all = source("pi", &lines.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(all.notes.len(), 21);
    assert!(all.notes[20].contains("980 more line(s)"), "{}", all.notes[20]);
}

#[test]
fn a_file_without_a_measurement_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.jsonl");
    for (text, said) in [
        ("", "in its 0 line(s)"),
        ("no", "line 1: no JSON"),
        (r#"{"schema":"bramble.machine/1"}"#, "in its 1 line(s)"),
        (r#"{"schema":"bramble.nodes/1","dtype":"f64","nodes":[]}"#, "'nodes' is empty"),
    ] {
        fs::write(&file, text).unwrap();
        let refused = read::source(std::slice::from_ref(&file), None).unwrap_err();
        assert!(refused.text.contains("empty.jsonl") && refused.text.contains(said), "{}", refused.text);
    }
    assert!(read::source(&[folder.path().join("none")], None).unwrap_err().text.contains("none"));
    assert!(read::source(&[folder.path().to_owned()], None).is_err());
}

#[test]
fn nothing_of_a_file_is_on_the_page_unescaped() {
    let evil = "<script>alert(1)</script>\\\"'&\\u0000";
    let hostile = |line: &str| {
        line.replace("\"simd\"", &format!("\"{evil}\"")).replace("\"f64\"", &format!("\"{evil}\""))
    };
    let machine = format!("{{\"schema\":\"bramble.machine/1\",\"host\":\"{evil}\",\"cpu\":\"{evil}\"}}");
    let unknown = format!("{{\"schema\":\"{evil}/1\"}}");
    let lines = [hostile(KERNEL), hostile(MULTIPLY), hostile(NODES).replace("here", evil), machine, unknown];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (a, b) = (source("<img src=x>&\"'", &lines), source("</title><script>", &lines));
    for page in [page::of_one(&a), page::of_two(&a, &b, &compare::compared(&a, &b))] {
        assert!(
            page.contains("&lt;script&gt;alert(1)") && page.contains("&lt;img src=x&gt;&amp;&quot;&#39;")
        );
        for bad in ["<script", "<img", "</title><", "\u{0}"] {
            assert!(!page.contains(bad), "{bad}");
        }
        assert_eq!(page.matches("<title>").count(), 1);
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }
}

#[test]
fn machines_of_one_name_are_told_apart_and_versions_told() {
    let machine = |version: &str| format!("{{\"schema\":\"bramble.machine/1\",\"bramble\":\"{version}\"}}");
    let [a, b] = told_apart(source("x", &[KERNEL, &machine("1")]), source("x", &[KERNEL, &machine("2")]));
    assert_eq!([a.label.as_str(), b.label.as_str()], ["x (1)", "x (2)"]);
    assert!(a.notes[0].contains("1 and 2"));
}

#[test]
fn the_page_has_its_name_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("a.jsonl"), KERNEL).unwrap();
    let args = |files: Vec<PathBuf>, output: PathBuf| BenchReportArgs {
        files,
        compare: Vec::new(),
        output,
        label: Vec::new(),
    };
    assert_eq!(run(&args(vec![path("a.jsonl")], path("page.html"))).unwrap(), Exit::Done);
    assert!(fs::read_to_string(path("page.html")).unwrap().ends_with("</html>\n"));
    assert!(!path("page.html.part").exists());
    assert_eq!(run(&args(vec![path("a.jsonl")], path("a.jsonl"))).unwrap_err().exit, Exit::Usage);
    assert_eq!(fs::read_to_string(path("a.jsonl")).unwrap(), KERNEL);
    assert!(run(&args(vec![path("a.jsonl")], path("none/page.html"))).is_err());
}
